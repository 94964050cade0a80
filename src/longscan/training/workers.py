"""The processes that do a sweep's work, on this machine or as Slurm jobs through submitit; each of them is one `work(folder)`."""

import os
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from longscan.training.settings import SettingError, refuse

_PROGRAM = """
import sys
from longscan.training import sweep, workers
workers.stop_with_parent()
sys.exit(sweep.work(sys.argv[1]))
"""
_PATIENCE = 60  # seconds that a worker has for its last checkpoint
# Our words and submitit's, with the type of the value.
_SLURM = {
    "partition": ("slurm_partition", str),
    "account": ("slurm_account", str),
    "qos": ("slurm_qos", str),
    "constraint": ("slurm_constraint", str),
    "time": ("timeout_min", int),
    "gpus": ("gpus_per_node", int),
    "cpus": ("cpus_per_task", int),
    "memory": ("mem_gb", float),
}


class Worker(Protocol):
    """A worker that was started: its name, its exit code, and how to end it."""

    name: str

    def code(self) -> int | None:
        """0 for work that is done, another number for a worker that was lost, None while it runs."""

    def ask_to_stop(self) -> None:
        """Have it save a checkpoint and end."""

    def wait(self) -> None:
        """Return once it has ended."""


@dataclass
class _Process:
    name: str
    process: subprocess.Popen

    def code(self) -> int | None:
        code = self.process.poll()
        if code is not None:
            self.ask_to_stop()
        return code

    def ask_to_stop(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    def wait(self) -> None:
        try:
            self.process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@dataclass
class _Job:
    name: str
    job: Any

    def code(self) -> int | None:
        if not self.job.done():
            return None
        return 0 if self.job.exception() is None else 1

    def ask_to_stop(self) -> None:
        self.job.cancel()

    def wait(self) -> None:
        self.job.wait()


def start_processes(folder: Path, number: int) -> list[Worker]:
    """Workers on this machine, which share its processor cores and are dealt its GPUs; each writes workers/N.log."""
    logs = folder / "workers"
    logs.mkdir(exist_ok=True)
    started: list[Worker] = []
    for position in range(number):
        log = logs / f"{os.getpid()}-{position}.log"
        with log.open("wb") as file:
            process = _start(folder, environment(position, number), file)
        started.append(_Process(str(log), process))
    return started


def _start(folder: Path, variables: dict[str, str], output: Any = None) -> subprocess.Popen:
    command = [sys.executable, "-c", _PROGRAM, str(folder)]
    # The pipe closes with this process, however it ends; that is how the worker knows.
    return subprocess.Popen(command, env=variables, stdin=subprocess.PIPE, stdout=output, stderr=output)


def environment(position: int, number: int) -> dict[str, str]:
    """The environment variables of one of so many workers: its share of the cores, and its GPU where there are several."""
    found = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // number)), **os.environ}
    if number > 1 and torch.cuda.device_count() > 1:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(torch.cuda.device_count())))
        devices = visible.split(",")
        found["CUDA_VISIBLE_DEVICES"] = devices[position % len(devices)]
    return found


def stop_with_parent() -> None:
    """Have this process asked to stop (SIGTERM: training saves a checkpoint first) once the one that started it is gone."""

    def watch() -> None:
        os.read(0, 1)  # nothing is ever written: this returns when the other end is closed
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


class SlurmWorker:
    """What a Slurm job runs: a worker as a process of its own, so that submitit's signals leave training alone.

    With `checkpoint`, submitit puts a job back into the queue that reached its time limit or was preempted; the run that it was
    at is taken up from its last checkpoint.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self) -> None:
        """Work until the sweep is over. Raises RuntimeError where the worker is lost."""
        with _start(self._folder, dict(os.environ)) as process:
            code = process.wait()
        if code:
            raise RuntimeError(f"the worker ended with code {code}")

    def checkpoint(self) -> Any:
        """The job to put into the queue in the place of this one."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


def slurm_settings(text: str) -> dict[str, Any]:
    """`partition=gpu,time=120,gpus=1` as words to their values; SettingError naming the word that is no good.

    time: minutes; memory: GB; executor: slurm, or submitit's local, which runs the jobs on this machine, to try things out.
    """
    known = (*_SLURM, "executor")
    settings: dict[str, Any] = {}
    for part in text.split(","):
        word, _, value = part.strip().partition("=")
        if word not in known or not value:
            raise refuse("--slurm", part, f"WORD=VALUE with one of {', '.join(known)}")
        try:
            settings[word] = _SLURM[word][1](value) if word in _SLURM else value
        except ValueError:
            raise refuse(f"--slurm {word}", value, "a number") from None
    if settings.get("executor", "slurm") not in ("slurm", "local"):
        raise refuse("--slurm executor", settings["executor"], "slurm or local")
    return settings


def start_jobs(folder: Path, number: int, settings: dict[str, Any]) -> list[Worker]:
    """Workers as Slurm jobs, whose scripts and output go to slurm/ in the folder; SettingError where there is no Slurm."""
    try:
        import submitit
    except ModuleNotFoundError as error:
        raise SettingError(f"--slurm: needs the package {error.name}: pip install 'longscan[sweep]'") from error
    try:
        executor = submitit.AutoExecutor(folder=folder / "slurm", cluster=settings.get("executor", "slurm"))
    except RuntimeError as error:
        raise SettingError(f"--slurm: {error}") from None
    words = {_SLURM[word][0]: value for word, value in settings.items() if word in _SLURM}
    executor.update_parameters(name="longscan-sweep", **words)
    jobs = [executor.submit(SlurmWorker(folder)) for _ in range(number)]
    return [_Job(f"job {job.job_id} ({job.paths.stderr})", job) for job in jobs]
