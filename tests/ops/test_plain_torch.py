"""benchmarks/plain_torch.py, whose times the READMEs of the kernels have, in Triton's interpreter or on a GPU."""

import io
import json
import os
from importlib import import_module
from pathlib import Path

import pytest
import torch

from longscan.ops.dispatch import unsupported_reason

DEVICE = torch.device(os.environ.get("LONGSCAN_DEVICE", "cpu"))
pytestmark = pytest.mark.skipif(
    unsupported_reason("linear_scan", "triton", DEVICE, torch.float32, ("triton",)) is not None,
    reason="needs TRITON_INTERPRET=1 or a GPU",
)


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return import_module("plain_torch")


def read_rows(path):
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def find_case(script, name):
    (case,) = (case for case in script.CASES if case.name.startswith(name))
    return case


def test_implementations_are_timed_and_compared(script, tmp_path):
    out = tmp_path / "rows.jsonl"
    assert script.main(["--quick", "--only", "linear", "--out", str(out)]) == 0
    rows = read_rows(out)
    assert [row["implementation"] for row in rows] == ["triton", "eager", "eager, compiled"]
    assert all(min(row["forward_ms"], row["forward_backward_ms"], row["first_forward_backward_s"]) > 0 for row in rows)
    assert all(row["error_vs_float64"] < 1e-5 for row in rows[:2])
    assert rows[2]["difference_from_eager"] < 1e-5
    assert {"device", "commit", "torch", "triton"} <= rows[0].keys()


def test_transform_of_the_kernel_of_s4_has_equal_results(script):
    measurement = script.Measurement(find_case(script, "S4"), "called", quick=True, with_errors=True)
    measurement.prepare()
    rows = measurement.rows()
    assert [row["implementation"] for row in rows] == ["triton", "eager"]
    assert all(row["error_vs_float64"] < 1e-10 for row in rows)


def test_process_that_is_not_ready_gives_rows_that_say_so(script, tmp_path):
    out = tmp_path / "rows.jsonl"
    assert script.measure_in_processes([find_case(script, "linear")], ["--quick"], script.MEASURING_SECONDS, out)
    rows = read_rows(out)
    assert len(rows) == 3
    assert {row["reason"] for row in rows} == {"not ready within 0 s"}


def test_process_that_fails_gives_rows_that_say_so(script, tmp_path, monkeypatch):
    out = tmp_path / "rows.jsonl"
    monkeypatch.setattr(script.sys, "executable", "false")
    assert not script.measure_in_processes(script.CASES[:1], [], 60.0, out)
    assert {row["reason"] for row in read_rows(out)} == {"the process ended with status 1"}


def test_process_prints_its_rows_when_it_is_asked(script, monkeypatch, capsys):
    monkeypatch.setattr(script.torch, "set_num_threads", lambda _: None)
    monkeypatch.setattr(script.sys, "stdin", io.StringIO("\n"))
    assert script.main(["--quick", "--no-errors", "--worker", "linear 8 4096 2048 float32", "called"]) == 0
    ready, rows = capsys.readouterr().out.splitlines()
    assert ready == "ready"
    assert [row["implementation"] for row in json.loads(rows)] == ["triton", "eager"]


def test_lack_of_memory_and_calls_that_cannot_be_captured_give_a_reason(script, monkeypatch):
    def raise_error(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    prepared = script.Measurement(find_case(script, "linear"), "called", quick=True, with_errors=False)
    prepared.prepare()
    with monkeypatch.context() as patched:
        patched.setattr(script, "measure_times", raise_error)
        assert {row["reason"] for row in prepared.rows()} == {"out of memory"}
    with monkeypatch.context() as patched:
        patched.setattr(script, "differentiable", raise_error)
        prepared.prepare()
    assert {row["reason"] for row in prepared.rows()} == {"out of memory"}

    def fail(*_):
        try:
            raise RuntimeError("operation not permitted when stream is capturing")
        finally:
            raise RuntimeError("operation failed due to a previous error during capture")

    monkeypatch.setattr(script, "GPU", torch.device("cuda"))
    monkeypatch.setattr(script, "peak_mib", lambda _: 1.0)
    monkeypatch.setattr(script, "record_graph", fail)
    row = script.measure_times(script.Implementation(lambda: None, lambda: None))
    assert row["timed"] == "called"
    assert row["reason"].startswith("cannot be captured: operation not permitted")


def test_unknown_case_is_reported(script, capsys):
    with pytest.raises(SystemExit):
        script.main(["--only", "unknown"])
    assert "--only" in capsys.readouterr().err
