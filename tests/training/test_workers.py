"""Processes of a sweep: how they are started, and how they are stopped. The processes are stand-ins."""

import subprocess
import sys
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from longscan.training import processes, workers
from longscan.training.processes import Job


class StandIn:
    """A process that ends with a status, or is still busy when it is waited for with a limit."""

    started: list["StandIn"]
    statuses: tuple[Any, ...]

    def __init__(self, command: list[str], **options: Any) -> None:
        self.command, self.options = command, options
        self.status = self.statuses[len(self.started)]
        self.stdin = BytesIO()
        self.calls: list[Any] = []
        self.started.append(self)

    def wait(self, timeout: float | None = None) -> int:
        self.calls.append(timeout)
        if self.status == "interrupted" and timeout is None and len(self.calls) == 1:
            raise KeyboardInterrupt
        if timeout is not None:
            assert all(process.stdin.closed for process in self.started), "all get the signal to stop before the first wait"
            if self.status == "busy":
                raise subprocess.TimeoutExpired(self.command, timeout)
        return 0 if isinstance(self.status, str) else self.status

    def kill(self) -> None:
        self.calls.append("kill")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[StandIn]:
    monkeypatch.setattr(StandIn, "started", [], raising=False)
    monkeypatch.setattr(workers.subprocess, "Popen", StandIn)
    monkeypatch.setattr(workers, "visible_gpus", lambda: ["4", "6"])
    monkeypatch.setattr(workers.os, "cpu_count", lambda: 9)
    for name in ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    return StandIn.started


def test_workers_are_started_and_those_that_fail_are_reported(started: list[StandIn], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StandIn, "statuses", (0, 3, 0), raising=False)
    lines: list[str] = []
    workers.run_workers(Path("sweep"), 3, lines.append)
    assert lines == ["a worker ended with code 3, other workers continue its runs"]
    assert [process.command for process in started] == [[sys.executable, "-c", workers._PROGRAM, "sweep"]] * 3
    for process, device in zip(started, "464", strict=True):
        assert process.options["stdin"] == subprocess.PIPE
        assert process.options["env"]["CUDA_VISIBLE_DEVICES"] == device
        assert process.options["env"]["OMP_NUM_THREADS"] == "3"
        assert process.calls == [None, 60]


def test_workers_run_the_own_program_first(started: list[StandIn], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StandIn, "statuses", (0,), raising=False)
    workers.run_workers(Path("sweep"), 1, lambda _: None, "own.py")
    assert started[0].command == [sys.executable, "-c", workers._PROGRAM, "sweep", "own.py"]


def test_an_interrupt_stops_the_workers_and_kills_those_that_do_not_end(
    started: list[StandIn], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StandIn, "statuses", ("interrupted", "busy", 0), raising=False)
    with pytest.raises(KeyboardInterrupt):
        workers.run_workers(Path("sweep"), 3, lambda _: None)
    assert [process.calls for process in started] == [[None, 60], [60, "kill", None], [60]]


@pytest.mark.parametrize(
    ("gpus", "count", "cores", "threads"), [(["4"], 2, 9, "4"), (["4", "6"], 1, 9, "9"), ([], 20, None, "1")]
)
def test_one_gpu_or_one_worker_needs_no_division(
    gpus: list[str], count: int, cores: int | None, threads: str, started: list[StandIn], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "visible_gpus", lambda: gpus)
    monkeypatch.setattr(workers.os, "cpu_count", lambda: cores)
    variables = workers.worker_environment(0, count)
    assert "CUDA_VISIBLE_DEVICES" not in variables
    assert variables["OMP_NUM_THREADS"] == threads
    assert not started


def test_a_job_that_does_not_end_in_time_is_killed(tmp_path: Path) -> None:
    job = Job("slow", tmp_path / "log.txt", lambda _: [sys.executable, "-S", "-c", "import time; time.sleep(60)"])
    running = processes._Started(job, "", 1, 10.0)
    running.device_seconds = 2.5
    running.wait(0.05)
    ended = running.ended()
    assert ended == processes.Ended("slow", -9, 2.5, was_asked=False)
    assert ended.has_failed
    assert running.process.stdin is not None
    assert running.process.stdin.closed
