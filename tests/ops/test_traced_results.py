"""Traced and compiled graphs give the results of direct calls: selected cases of tests/soak/tracing.py, in a child process."""

import json
from pathlib import Path

import pytest

from scripts import load_script

tracing = load_script(Path(__file__).parents[1] / "soak" / "tracing.py", "soak_tracing")

SELECTED = [
    # cases that once crashed, returned uninitialised memory or wrong numbers
    "layer:s6/cpu/export/grad/frozen/63/fixed",
    "layer:s6/cpu/export/no_grad/frozen/1/fixed",
    "layer:aussm/cpu/export/grad/frozen/63/fixed",
    "op:selective_scan/cpu/export/no_grad/frozen/63/fixed",
    "layer:s6/cpu/jit_trace/no_grad/frozen/63/fixed",
    "layer:aussm/cpu/jit_trace/no_grad/frozen/63/fixed",
    "layer:lru/cpu/jit_trace/no_grad/trainable/63/fixed",
    "layer:s6/cpu/make_fx/grad/trainable/63/dynamic",
    "op:short_conv/cpu/make_fx/no_grad/frozen/63/fixed",
    "layer:aussm/cpu/make_fx/no_grad/trainable/63/dynamic",
    "op:linear_scan/cpu/jit_trace/grad/trainable/63/fixed",
    "op:unitary_scan/cpu/jit_trace/no_grad/frozen/1/fixed",
    "layer:s6/cpu/aot_eager/no_grad/frozen/63/fixed",
    # a graph of one chunk, which was wrong for more steps
    "layer:gated_deltanet/eager/make_fx/no_grad/trainable/63/dynamic",
]


@pytest.fixture(scope="module")
def child():
    child = tracing.Child("cpu", 250)
    yield child
    child.close()


@pytest.mark.parametrize("name", SELECTED)
def test_graph_equals_direct_call(name, child):
    result = child.run(tracing.Case.parse(name))
    assert result["status"] == "passed", result


def test_selected_cases_exist():
    names = [str(case) for case in tracing.list_cases(("eager", "cpu"))]
    assert set(SELECTED) <= set(names)
    assert len(names) == len(set(names)) > 2500


def test_crash_and_time_out_fail_one_case_only(tmp_path, monkeypatch):
    """A child process that dies, and one that does not answer, end their own case only."""
    case = tracing.Case.parse(SELECTED[0])
    scripts = ("import os; os.abort()", "crashed", 60), ("import time; time.sleep(60)", "hung", 0.5)
    for text, status, timeout in scripts:
        script = tmp_path / "child.py"
        script.write_text(text)
        monkeypatch.setattr(tracing, "__file__", str(script))
        child = tracing.Child("cpu", timeout)
        result = json.loads(json.dumps(child.run(case)))
        assert (result["case"], result["status"]) == (str(case), status)
        assert child.process is None
