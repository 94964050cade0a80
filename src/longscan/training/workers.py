"""The processes of a sweep on one machine, and the file locks that tell processes on any machine of each other."""

import fcntl
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import torch
from optuna.storages.journal import JournalFileOpenLock

_PROGRAM = """
import sys
from longscan.training import processes, sweep
processes.stop_with_parent()
try:
    sweep.work(sys.argv[1])
except KeyboardInterrupt:
    sys.exit(130)
"""
_PATIENCE = 60  # seconds that a worker has for its last checkpoint


class FileLock(JournalFileOpenLock):
    """An exclusive lock on a file, which replaces the lock of Optuna's journal.

    The system releases it when the process that locked it ends. Optuna's lock would remain after a kill.
    """

    def __init__(self, path: str | Path) -> None:
        super().__init__(str(path))
        self.path = Path(path)
        self._file: BinaryIO | None = None

    def acquire(self, blocking: bool = True) -> bool:
        """Lock the file. Without `blocking`, return False if another process has locked it."""
        self._file = self.path.open("ab")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | (0 if blocking else fcntl.LOCK_NB))
        except BlockingIOError:
            return False
        return True

    def release(self) -> None:
        """Unlock the file."""
        if self._file is not None:
            self._file.close()

    def __enter__(self) -> "FileLock":
        self.acquire()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()


def run_workers(folder: Path, n_workers: int, echo: Callable[[str], None]) -> None:
    """Run processes that work on a sweep until all have ended. A KeyboardInterrupt has them save checkpoints and end first."""
    command = [sys.executable, "-c", _PROGRAM, str(folder)]
    environments = [worker_environment(i, n_workers) for i in range(n_workers)]
    # The pipe closes when this process ends, even if it is killed, which is how `stop_with_parent` knows.
    processes = [subprocess.Popen(command, env=environment, stdin=subprocess.PIPE) for environment in environments]
    try:
        for process in processes:
            if code := process.wait():
                echo(f"a worker ended with code {code}, other workers continue its runs")
    finally:
        for process in processes:
            if process.stdin is not None:
                process.stdin.close()
        for process in processes:
            try:
                process.wait(_PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def worker_environment(position: int, n_workers: int) -> dict[str, str]:
    """Return the environment variables of one of several workers: its share of the cores, and its GPU if there are several."""
    variables = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // n_workers)), **os.environ}
    if n_workers > 1 and torch.cuda.device_count() > 1:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(torch.cuda.device_count())))
        devices = visible.split(",")
        variables["CUDA_VISIBLE_DEVICES"] = devices[position % len(devices)]
    return variables
