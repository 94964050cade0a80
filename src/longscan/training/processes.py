"""Run processes in parallel on the GPUs of a machine, or on its CPU, up to a time limit."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import torch

from longscan._errors import SettingError, one_line
from longscan._files import lock_file

GRACE = 20.0  # seconds before the limit at which processes get the signal to stop
# Exit statuses of a process that was stopped.
_STOPPED = (128 + signal.SIGINT, -signal.SIGINT, -signal.SIGTERM, -signal.SIGKILL)
_POLL = 0.5  # seconds between two checks of the processes


class Job(NamedTuple):
    """A process to start.

    Attributes:
        name: name of the job.
        log: file to which the output of the process is appended.
        command: function that returns the command and its arguments, given the number of seconds that are left.
    """

    name: str
    log: Path
    command: Callable[[float], list[str]]


class Ended(NamedTuple):
    """A process that has ended.

    Attributes:
        name: name of the job.
        status: exit status.
        device_seconds: its share of the time of its device: each second counts 1 / (number of jobs that ran on the device).
        was_asked: whether it was asked to stop before it ended.
    """

    name: str
    status: int
    device_seconds: float
    was_asked: bool = False

    @property
    def has_failed(self) -> bool:
        """Whether the process ended by itself with an error, or was killed without having been asked to stop."""
        return self.status != 0 and not (self.was_asked and self.status in _STOPPED)


class _Started:
    """A running process."""

    def __init__(self, job: Job, device: str, n_slots: int, seconds: float) -> None:
        job.log.parent.mkdir(parents=True, exist_ok=True)
        threads = str(max(1, (os.cpu_count() or 1) // n_slots))
        environment = {"OMP_NUM_THREADS": threads, **os.environ, "CUDA_VISIBLE_DEVICES": device}
        with job.log.open("ab") as log:
            # A separate process group: Ctrl-C in a terminal reaches only this process, which sends SIGINT to each job once. The
            # pipe closes when this process ends, even if it is killed; `stop_with_parent` detects this.
            self.process = subprocess.Popen(
                job.command(seconds),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                process_group=0,
            )
        self.job, self.device, self.device_seconds = job, device, 0.0
        self.was_asked = False

    def ask_to_stop(self) -> None:
        """Send the process SIGINT."""
        self.was_asked = True
        self.process.send_signal(signal.SIGINT)

    def wait(self, seconds: float) -> None:
        """Wait until the process has ended, and kill it if this takes longer than a number of seconds."""
        assert self.process.stdin is not None
        try:
            self.process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdin.close()

    def ended(self) -> Ended:
        """Return how the process has ended."""
        return Ended(self.job.name, self.process.returncode, self.device_seconds, self.was_asked)


def visible_gpus() -> list[str]:
    """Return the GPUs that this process may use, as values of CUDA_VISIBLE_DEVICES for other processes."""
    count = torch.cuda.device_count()
    names = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(count)))
    return names.split(",")[:count]


def run_jobs(
    jobs: Sequence[Job],
    devices: Sequence[str],
    per_device: int,
    limit: float,
    on_end: Callable[[Ended], object] = lambda _: None,
    on_poll: Callable[[], object] = lambda: None,
) -> dict[str, Ended]:
    """Run jobs in order, at most `per_device` at a time on each device; return how those that were started ended, by name.

    Args:
        jobs: the processes.
        devices: values of CUDA_VISIBLE_DEVICES; "" is the CPU.
        per_device: largest number of processes on a device.
        limit: time limit in seconds. `GRACE` seconds before it, running processes get SIGINT, and at the limit they are killed.
        on_end: called with each process that has ended.
        on_poll: called twice a second while processes run.

    Raises KeyboardInterrupt on a signal of `stop_signals`, after the processes have been stopped in the same way.
    """
    began, waiting, running, ended = time.monotonic(), list(jobs), list[_Started](), dict[str, Ended]()
    slots = [device for _ in range(per_device) for device in devices]
    n_slots = min(len(slots), max(1, len(jobs)))

    last = began

    def count_seconds() -> None:
        nonlocal last
        now = time.monotonic()
        for one in running:
            one.device_seconds += (now - last) / sum(other.device == one.device for other in running)
        last = now

    def end(one: _Started, seconds: float) -> None:
        one.wait(seconds)
        count_seconds()
        running.remove(one)
        slots.append(one.device)
        ended[one.job.name] = one.ended()
        on_end(ended[one.job.name])

    with terminate_as_interrupt():
        try:
            while (waiting or running) and (now := time.monotonic()) - began < limit - GRACE:
                count_seconds()
                for one in [one for one in running if one.process.poll() is not None]:
                    end(one, GRACE)
                while waiting and slots:
                    running.append(_Started(waiting.pop(0), slots.pop(0), n_slots, limit - GRACE - (now - began)))
                on_poll()
                time.sleep(_POLL)
        finally:
            deadline = time.monotonic() + GRACE
            for one in running:
                one.ask_to_stop()
            for one in list(running):
                end(one, max(0.0, deadline - time.monotonic()))
    return ended


def stop_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that ask this process to stop: SIGINT, SIGTERM and, unless it is ignored as under nohup, SIGHUP.

    A process gets SIGHUP when its terminal is closed or its connection is lost.
    """
    hangup: signal.Signals | None = getattr(signal, "SIGHUP", None)  # Windows has none
    if hangup is None or signal.getsignal(hangup) is signal.SIG_IGN:
        return signal.SIGINT, signal.SIGTERM
    return signal.SIGINT, signal.SIGTERM, hangup


@contextmanager
def terminate_as_interrupt() -> Iterator[None]:
    """Raise KeyboardInterrupt on all of `stop_signals`, in the main thread, which alone may handle signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(_: int, __: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in stop_signals() if number != signal.SIGINT}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def lock_job(folder: Path) -> AbstractContextManager[None]:
    """Return the lock of a run, the file FOLDER.lock, for the process of a job to hold while it trains the run.

    If the parent of jobs is killed, they save checkpoints before they end. When the parent is started again meanwhile, the new
    jobs wait for them. Raises SettingError if another process has the lock for longer than `GRACE` seconds.
    """
    in_use = SettingError(f"`--out` must be a run that no other process trains, got {folder}")
    return lock_file(folder.with_suffix(".lock"), in_use, GRACE)


def run_locked(folders: Sequence[Path], job: Callable[[], int]) -> int:
    """Return the exit status of `job`, called while this process holds the locks of its runs (`lock_job`).

    The status is 2, after one line on stderr, for a SettingError of `job` or of a run that another process trains, and 130 for a
    KeyboardInterrupt.
    """
    try:
        with ExitStack() as locks:
            for folder in folders:
                locks.enter_context(lock_job(folder))
            return job()
    except SettingError as error:
        sys.stderr.write(f"{one_line(error)}\n")
        return 2
    except KeyboardInterrupt:
        return 130


def stop_with_parent() -> None:
    """Send this process SIGTERM once its parent process has ended, so that training saves a checkpoint and stops."""

    def watch() -> None:
        os.read(0, 1)  # nothing is ever written: this returns when the other end is closed
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()
