"""`run_jobs` runs processes in parallel: their order, devices and device time, and the time limit."""

import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from longscan.training import processes
from longscan.training.processes import Job, run_jobs, visible_gpus

PRINT = "import os, sys, time; print(os.environ['CUDA_VISIBLE_DEVICES'], flush=True); "


@pytest.fixture
def job(tmp_path: Path) -> Callable[[str, str], Job]:
    """Return a function that makes a job: job(name, code) prints its device and then runs Python code."""
    return lambda name, code: Job(name, tmp_path / f"{name}.txt", lambda _: [sys.executable, "-c", PRINT + code])


def test_jobs_run_on_all_devices_and_share_device_time(job: Callable[[str, str], Job], tmp_path: Path) -> None:
    order = list[str]()
    jobs = [job("a", "time.sleep(1)"), job("b", "time.sleep(1)"), job("c", "time.sleep(1)"), job("d", "sys.exit(3)")]
    began = time.monotonic()
    ended = run_jobs(jobs, ["0", "1"], 1, 100.0, lambda job: order.append(job.name))
    seconds = time.monotonic() - began
    assert {name: result.status for name, result in ended.items()} == {"a": 0, "b": 0, "c": 0, "d": 3}
    assert [name for name, result in ended.items() if result.has_failed] == ["d"]
    assert sorted(order[:2]) == ["a", "b"], "only two jobs run at the same time"
    assert [(tmp_path / f"{name}.txt").read_text() for name in "ab"] == ["0\n", "1\n"]
    assert sum(result.device_seconds for result in ended.values()) <= 2 * seconds
    shared = run_jobs([job("e", "time.sleep(1)"), job("f", "time.sleep(1)")], [""], 2, 100.0)
    for result in shared.values():
        assert result.device_seconds < min(ended[name].device_seconds for name in "abc"), "these ran alone on their device"


def test_devices_threads_and_seconds_of_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs are appended to; cores are divided among the places; a command gets the seconds that are left before the signal."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(processes.os, "cpu_count", lambda: 12)
    seconds: list[float] = []
    code = PRINT + "print(os.environ['OMP_NUM_THREADS'], flush=True); time.sleep(1)"
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
    run_jobs([Job("three", log, command)], ["3"], 4, 100.0)
    assert log.read_text().split() == ["7", "6", "3", "12"]


def test_time_limit_interrupts_and_then_kills_jobs(
    job: Callable[[str, str], Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "GRACE", 3.0)
    ignore_interrupt = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); print('ready', flush=True); time.sleep(60)"
    # A shell starts background jobs with SIGINT ignored, which children inherit.
    interruptible = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); time.sleep(60)"
    codes = {"interruptible": interruptible, "stubborn": ignore_interrupt, "other": ignore_interrupt, "waiting": "pass"}
    jobs = [job(name, code) for name, code in codes.items()]
    began = time.monotonic()
    ended = run_jobs(jobs, [""], 3, 8.0)
    assert 5 <= time.monotonic() - began < 20
    assert sorted(ended) == ["interruptible", "other", "stubborn"]
    assert not any(result.has_failed for result in ended.values())
    assert "ready" in (tmp_path / "stubborn.txt").read_text()
    assert ended["stubborn"].status == -9
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
