"""`make soak` with few cases: counts, failures, crashes, seeds of later calls, damaged files, and a layer in chunks."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from longscan import doctor
from longscan.cli import machine
from scripts import load_script

FOLDER = Path(__file__).parent
sys.path[:0] = [str(FOLDER), *(str(FOLDER.parent / name) for name in ("contracts", "tasks"))]

import damage  # noqa: E402
import streaming  # noqa: E402

runner = load_script(FOLDER / "run.py", "soak_run")  # benchmarks have a module `run`, too
gpu = load_script(FOLDER / "gpu.py", "soak_gpu")

UNIT_PROGRAM = """
def run(seed, until, write):
    write(begin="one")
    write(subject="a", cases=3, outcomes={"fine": 3})
    write(begin="two")
    if seed == 1:
        raise SystemExit
    write(subject="b", cases=1, failure="wrong" if seed == 2 else None)
"""


@pytest.fixture
def fake_kind_argv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a kind whose second unit crashes and whose third has a failure, and the arguments that run it."""
    monkeypatch.setattr(runner, "KINDS", {"fake": runner.Kind(16, 4, 1)})
    monkeypatch.setattr(runner, "is_available", lambda _: True)

    class FinishedProcess:
        def __init__(self, code: int) -> None:
            self.returncode = code

        def poll(self) -> int:
            return self.returncode

    def start_unit(kind: str, seed: int, seconds: float, folder: Path) -> Any:
        lines = folder / f"{kind}-{seed}.jsonl"
        with lines.open("w") as file:
            (folder / f"{kind}-{seed}.log").write_text("a crash")
            space: dict[str, Any] = {}
            exec(UNIT_PROGRAM, space)
            code = 0
            try:
                space["run"](seed, 0, lambda **line: file.write(json.dumps(line) + "\n"))
            except SystemExit:
                code = 9
        return runner.Unit(kind, seed, lines, FinishedProcess(code))  # type: ignore[arg-type]

    monkeypatch.setattr(runner, "start_unit", start_unit)
    results, state = tmp_path / "results.jsonl", tmp_path / "state.json"
    return ["--minutes", "0.11", "--processes", "1", "--kinds", "fake", "--results", str(results), "--state", str(state)]


def test_records_have_counts_failures_and_seeds(fake_kind_argv: list[str], tmp_path: Path) -> None:
    assert runner.main(fake_kind_argv) == 1
    assert runner.main([*fake_kind_argv, "--first-seed", "100"]) == 0
    first, second = runner.read_lines(tmp_path / "results.jsonl")
    assert first["failures"] == 2
    assert "the process ended with 9 in two: a crash" in first["failed"][0]["failure"]
    assert first["failed"][1] == {"seed": 2, "case": "b", "failure": "wrong"}
    assert first["cases"] == 4 * first["units"] - 1
    assert first["subjects"] == {"a": 3 * first["units"], "b": first["units"] - 1}
    assert first["seeds"] == [0, first["units"] - 1]
    assert second["seeds"] == [100 + first["units"], 99 + first["units"] + second["units"]]
    other = tmp_path / "other.jsonl"
    assert runner.main(["--merge", str(tmp_path / "results.jsonl"), "--results", str(other)]) == 0
    assert runner.main(["--merge", str(tmp_path / "results.jsonl"), "--results", str(other)]) == 0
    assert runner.read_lines(other) == [first, second], "existing records are not added again"


def test_committed_records_have_the_fields_to_repeat_them() -> None:
    for line in runner.read_lines(runner.ROOT / "results" / "reliability.jsonl"):
        assert line["kind"] in runner.KINDS
        assert line["cases"] == sum(line["subjects"].values())
        assert len(line["failed"]) == min(20, line["failures"])
        assert all(line[name] for name in ("seeds", "seconds", "processes", "commit", "date", "machine", "torch", "command"))


@pytest.mark.parametrize("name", ["model", "checkpoint", "records of runs", "settings.yaml", "automaton", "own.csv"])
def test_damaged_file_raises_or_is_valid(name: str, tmp_path: Path) -> None:
    for number in range(4):
        (tmp_path / str(number)).mkdir()
        outcome, failure = damage.check_damaged_file(name, damage.np.random.default_rng([99, number]), tmp_path / str(number))
        assert failure is None, failure
        assert outcome in ("refused", "unchanged", "well-formed")


def test_undetected_damage_is_counted_as_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lax = damage.Format(lambda path: path.write_bytes(b"123456789"), lambda path: path.read_bytes().decode("latin-1"), sized=True)
    monkeypatch.setitem(damage.READERS, "lax", lax)
    failures = []
    for number in range(40):
        (tmp_path / str(number)).mkdir()
        failures.append(damage.check_damaged_file("lax", damage.np.random.default_rng(number), tmp_path / str(number))[1])
    assert any(failure and "that has its length" in failure for failure in failures)
    assert any(failure and "was read" in failure for failure in failures)


def test_layer_in_chunks_equals_one_pass() -> None:
    assert streaming.find_fault("s5", streaming.contract_options("s5", 0), 1, 3000) is None
    assert runner.KINDS["streaming"].target == len(streaming.NAMES)


def test_wrong_final_state_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    original = streaming.run_in_chunks

    def return_initial_state(*arguments: Any) -> Any:
        y, _, growth, largest = original(*arguments)
        return y, streaming.LAYERS["s5"](streaming.WIDTH, d_state=4).initial_state(1), growth, largest

    monkeypatch.setattr(streaming, "run_in_chunks", return_initial_state)
    return_initial_state.__qualname__, return_initial_state.__module__ = "run_in_chunks", "streaming"
    failure = streaming.find_fault("s5", {"d_state": 4}, 1, 500)
    assert failure is not None
    assert "differ from one pass" in failure


def test_kernels_of_doctor_are_counted_by_their_verdicts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def make_finding(op: str, fault: str | None) -> doctor.Finding:
        return doctor.Finding(op, "triton", "(2, 70, 5, 3) masks, 12 passed", "y", 1.3e-07, 1.1e-06, fault)

    passed, faulty = make_finding("linear_scan", None), make_finding("ssd_scan", "two equal calls differ; 3 failed")
    monkeypatch.setattr(doctor, "doctor", lambda _: [[passed], [faulty, passed, faulty], [passed]])
    machine._print_findings(torch.device("cpu"))
    assert gpu.count_kernels(capsys.readouterr().out) == (2, 1)


def test_cases_of_pytest_and_tracing_are_counted_by_their_summaries() -> None:
    assert gpu.count_cases("....\n2 failed, 74 passed in 98.7s\n") == (74, 2)
    assert gpu.count_cases("180 passed, 1 failed, 2 crashed, 3 hung\nno 5 crashed here\n") == (180, 6)
