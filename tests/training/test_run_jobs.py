"""`run_jobs` runs processes in parallel: their order, devices and device time, and the time limit."""

import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from longscan.training import processes
from longscan.training.processes import STOPPED, Job, run_jobs

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
    assert sorted(order[:2]) == ["a", "b"], "only two jobs run at the same time"
    assert [(tmp_path / f"{name}.txt").read_text() for name in "ab"] == ["0\n", "1\n"]
    assert sum(result.device_seconds for result in ended.values()) <= 2 * seconds
    shared = run_jobs([job("e", "time.sleep(1)"), job("f", "time.sleep(1)")], [""], 2, 100.0)
    for result in shared.values():
        assert result.device_seconds < min(ended[name].device_seconds for name in "abc"), "these ran alone on their device"


def test_time_limit_interrupts_and_then_kills_jobs(
    job: Callable[[str, str], Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "GRACE", 3.0)
    ignore_interrupt = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); print('ready', flush=True); time.sleep(60)"
    jobs = [job("interruptible", "time.sleep(60)"), job("stubborn", ignore_interrupt), job("waiting", "pass")]
    began = time.monotonic()
    ended = run_jobs(jobs, [""], 2, 8.0)
    assert time.monotonic() - began < 30
    assert {name: result.status in STOPPED for name, result in ended.items()} == {"interruptible": True, "stubborn": True}
    assert "ready" in (tmp_path / "stubborn.txt").read_text()
    assert ended["stubborn"].status == -9
    assert run_jobs(jobs, [""], 2, 0.0) == {}, "the limit is zero"
