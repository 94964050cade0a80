"""The fork server of the tests that start processes, which imports once what every process of training needs; signals to runs."""

import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(
    [
        *("longscan.training.trainer", "longscan.training.records", "longscan.training.sweep", "longscan.report.run"),
        *("torch._dynamo", "torch.distributed.fsdp", "torch.utils.tensorboard", "torchmetrics.classification", "pytest"),
    ]
)


def act_at_step(step: int, signal_number: int | None = None) -> None:
    """Make the run of this process wait for ever once it has logged a step, or send itself a signal there.

    A run that waits cannot end before the parent kills it, however late the parent gets to it on a busy machine.
    """
    from longscan.training.logs import RunLog

    on_log, acted = RunLog.on_log, threading.Event()

    def on_log_and_act(self, engine, row):
        on_log(self, engine, row)
        if row.get("step", 0) >= step and not acted.is_set():
            acted.set()
            if signal_number is None:
                threading.Event().wait()
            else:
                os.kill(os.getpid(), signal_number)

    RunLog.on_log = on_log_and_act


def run_python(code: str, arguments: list[str], environment: dict[str, str], log: str, stdin: Connection) -> None:
    """Do in this process what `python -c CODE ARGUMENTS` does, in a process group of its own."""
    os.setpgid(0, 0)
    os.environ.clear()
    os.environ.update(environment)
    output = os.open(log, os.O_WRONLY | os.O_APPEND)
    for source, target in ((stdin.fileno(), 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    sys.argv = ["-c", *arguments]
    exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})


class ForkedPython:
    """The part of subprocess.Popen that `run_jobs` uses, for `[sys.executable, "-c", CODE, ...]`, by the fork server."""

    def __init__(self, command: list[str], *, stdout: IO[bytes], env: dict[str, str], **options: Any) -> None:
        assert command[:2] == [sys.executable, "-c"], command
        assert options == {"stdin": subprocess.PIPE, "stderr": subprocess.STDOUT, "process_group": 0}, options
        stdin, self.stdin = PROCESSES.Pipe(duplex=False)
        self.process = PROCESSES.Process(target=run_python, args=(command[2], command[3:], env, stdout.name, stdin))
        self.process.start()
        stdin.close()

    @property
    def returncode(self) -> int | None:
        return self.process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int | None:
        self.process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("python -c", timeout or 0.0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            assert self.process.pid is not None
            os.kill(self.process.pid, number)

    def kill(self) -> None:
        self.process.kill()


@contextmanager
def running_job(command: list[str], log: Path) -> Iterator[ForkedPython]:
    """Start the process of a job as `run_jobs` does, and kill it at the end of the block.

    When its `stdin` is closed, the process finds what it would find if its parent had been killed.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    options: dict[str, Any] = {"stdin": subprocess.PIPE, "stderr": subprocess.STDOUT, "process_group": 0}
    with log.open("ab") as file:
        process = ForkedPython(command, stdout=file, env=dict(os.environ), **options)
    try:
        yield process
    finally:
        process.kill()
