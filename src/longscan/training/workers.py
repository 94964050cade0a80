"""Start and stop the processes of a sweep on one machine."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from longscan.training.processes import visible_gpus

# A program of the user is run as `multiprocessing` does it, so that its code below `if __name__ == "__main__"` is not.
_PROGRAM = """
import os
import runpy
import sys
from pathlib import Path
from longscan._allocator import keep_freed_memory
from longscan.training import processes, sweep
processes.stop_with_parent()
keep_freed_memory()
try:
    with processes.terminate_as_interrupt():
        if len(sys.argv) > 2:
            sys.path.insert(0, str(Path(sys.argv[2]).resolve().parent))
            os.environ["LONGSCAN_WORKER_PROGRAM"] = sys.argv[2]  # `longscan.cli.main` refuses to run in it
            runpy.run_path(sys.argv[2], run_name="__mp_main__")
            del os.environ["LONGSCAN_WORKER_PROGRAM"]
        sweep.work(sys.argv[1])
except KeyboardInterrupt:
    sys.exit(130)
"""
_PATIENCE = 60  # seconds in which a worker must write its last checkpoint


def run_workers(folder: Path, n_workers: int, echo: Callable[[str], None], program: str | None = None) -> None:
    """Run processes that work on a sweep until all have ended. On KeyboardInterrupt they save checkpoints and end first.

    program: a Python file that each process runs first, such as one that registers layers.
    """
    command = [sys.executable, "-c", _PROGRAM, str(folder), *([] if program is None else [program])]
    environments = [worker_environment(i, n_workers) for i in range(n_workers)]
    # The pipe closes when this process ends, even if it is killed; `stop_with_parent` detects this.
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
    devices = visible_gpus()
    if n_workers > 1 and len(devices) > 1:
        variables["CUDA_VISIBLE_DEVICES"] = devices[position % len(devices)]
    return variables
