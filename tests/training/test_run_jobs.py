"""`run_jobs` runs processes in parallel: their order, devices and device time, and the time limit."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from longscan.training import processes
from longscan.training.processes import Job, run_jobs, visible_gpus

PRINT = "import os, sys, time; print(os.environ['CUDA_VISIBLE_DEVICES'], flush=True); "


@pytest.fixture
def job(tmp_path: Path) -> Callable[[str, str], Job]:
    """Return a function that makes a job: job(name, code) prints its device and then runs Python code."""
    return lambda name, code: Job(name, tmp_path / f"{name}.txt", lambda _: [sys.executable, "-c", PRINT + code])


class SimulatedTime:
    """A clock that only `sleep` moves, and processes that end by it: their commands are (seconds, exit status)."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def start_process(self, command: list[str], **_: Any) -> Any:
        end, status = self.now + float(command[0]), int(command[1])

        def wait(timeout: float) -> int:
            self.now = max(self.now, min(end, self.now + timeout))
            return status

        return SimpleNamespace(
            poll=lambda: status if self.now >= end else None,
            wait=wait,
            send_signal=lambda _: None,
            returncode=status,
            stdin=SimpleNamespace(close=lambda: None),
        )


@pytest.fixture
def simulated_time(monkeypatch: pytest.MonkeyPatch) -> SimulatedTime:
    clock = SimulatedTime()
    monkeypatch.setattr(processes, "time", clock)
    fake = SimpleNamespace(Popen=clock.start_process, PIPE=None, STDOUT=None, TimeoutExpired=subprocess.TimeoutExpired)
    monkeypatch.setattr(processes, "subprocess", fake)
    return clock


def test_jobs_run_on_all_devices_and_share_device_time(
    simulated_time: SimulatedTime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three jobs of a second and one that fails at once, on two devices; then two jobs on one device."""
    monkeypatch.setattr(processes, "_POLL", 0.25)
    ends, seconds = list[tuple[str, float]](), {"a": 1.0, "b": 1.0, "c": 1.0, "d": 0.0, "e": 1.0, "f": 1.0}

    def jobs(names: str) -> list[Job]:
        statuses = {name: "3" if name == "d" else "0" for name in names}
        return [Job(name, tmp_path / name, lambda _, name=name: [str(seconds[name]), statuses[name]]) for name in names]

    ended = run_jobs(jobs("abcd"), ["0", "1"], 1, 100.0, lambda job: ends.append((job.name, simulated_time.now)))
    assert {name: result.status for name, result in ended.items()} == {"a": 0, "b": 0, "c": 0, "d": 3}
    assert [name for name, result in ended.items() if result.has_failed] == ["d"]
    assert ends == [("a", 1.0), ("b", 1.0), ("d", 1.25), ("c", 2.0)], "c and d start when a and b have ended"
    assert {name: result.device_seconds for name, result in ended.items()} == {"a": 1.0, "b": 1.0, "c": 1.0, "d": 0.25}
    polls: list[float] = []
    shared = run_jobs(jobs("ef"), [""], 2, 100.0, on_poll=lambda: polls.append(simulated_time.now - 2.0))
    assert polls[:3] == [0.25, 0.5, 0.75]
    assert {name: result.device_seconds for name, result in shared.items()} == {"e": 0.5, "f": 0.5}


@pytest.mark.usefixtures("simulated_time")
def test_device_time_lasts_until_processes_that_were_asked_to_stop_have_ended(tmp_path: Path) -> None:
    """Their checkpoints take time, too. Two processes share device 0, of which one ends later than the other."""
    ends = {"a": 7.0, "b": 4.0, "c": 9.0}
    jobs = [Job(name, tmp_path / name, lambda _, end=end: [str(end), "130"]) for name, end in ends.items()]
    ended = run_jobs(jobs, ["0", "1"], 2, 22.0)
    assert {name: one.device_seconds for name, one in ended.items()} == {"a": 3.5, "b": 7.0, "c": 5.5}


def test_devices_threads_and_seconds_of_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs are appended to; cores are divided among the places; a command gets the seconds that are left before the signal."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(processes.os, "cpu_count", lambda: 12)
    seconds: list[float] = []
    code = PRINT + "print(os.environ['OMP_NUM_THREADS'], flush=True); time.sleep(1); sys.exit(3)"
    log = tmp_path / "new" / "folder" / "log.txt"

    def command(left: float) -> list[str]:
        seconds.append(left)
        return [sys.executable, "-c", code]

    began = time.monotonic()
    ended = run_jobs([Job("one", log, command), Job("two", tmp_path / "two.txt", command)], ["7", "70"], 2, 100.0)
    elapsed = time.monotonic() - began
    assert [log.read_text().split(), (tmp_path / "two.txt").read_text().split()] == [["7", "6"], ["70", "6"]]
    assert all(78 < left <= 100 - processes.GRACE for left in seconds)
    assert all(1 < result.device_seconds <= elapsed for result in ended.values()), "each ran alone on its device"
    assert all((result.status, result.has_failed) == (3, True) for result in ended.values())
    run_jobs([Job("three", log, command)], ["3"], 4, 100.0)
    assert log.read_text().split() == ["7", "6", "3", "12"]


def test_time_limit_interrupts_and_then_kills_jobs(
    job: Callable[[str, str], Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait = "print('ready', flush=True); time.sleep(60)"
    ignore_interrupt = f"import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); {wait}"
    # A shell starts background jobs with SIGINT ignored, which children inherit.
    interruptible = f"import signal; signal.signal(signal.SIGINT, signal.default_int_handler); {wait}"
    codes = {"interruptible": interruptible, "stubborn": ignore_interrupt, "other": ignore_interrupt, "waiting": "pass"}
    jobs = [job(name, code) for name, code in codes.items()]
    logs = [tmp_path / f"{name}.txt" for name in ("interruptible", "stubborn", "other")]

    def monotonic() -> float:
        """Return the time, past the limit once the jobs are ready for the signal, however slow the machine is."""
        return time.monotonic() + (1000.0 if all(log.exists() and "ready" in log.read_text() for log in logs) else 0.0)

    monkeypatch.setattr(processes, "GRACE", 3.0)
    monkeypatch.setattr(processes, "time", SimpleNamespace(monotonic=monotonic, sleep=time.sleep))
    began = time.monotonic()
    ended = run_jobs(jobs, [""], 3, 1000.0)
    assert time.monotonic() - began >= processes.GRACE
    assert sorted(ended) == ["interruptible", "other", "stubborn"]
    assert not any(result.has_failed for result in ended.values())
    assert ended["stubborn"].status == ended["other"].status == -9
    assert ended["interruptible"].status != -9, "it ends by the signal"
    assert run_jobs(jobs, [""], 2, 0.0) == {}, "the limit is zero"
    killed = run_jobs([job("killed", "os.kill(os.getpid(), 9)")], [""], 1, 100.0)["killed"]
    assert (killed.status, killed.has_failed) == (-9, True), "it was not asked to stop"


@pytest.mark.parametrize(
    ("visible", "count", "expected"), [(None, 2, ["0", "1"]), ("1,3", 2, ["1", "3"]), ("1", 1, ["1"]), ("", 0, []), (None, 0, [])]
)
def test_other_processes_get_the_gpus_of_this_one(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, count: int, expected: list[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert visible_gpus() == expected
