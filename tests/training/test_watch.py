"""Processes whose work has to wait for one that has ended stop and name it; those that end by themselves are left alone."""

import logging
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed

from fork_server import PROCESSES
from longscan.distributed import watch, watch_processes

SIZE = 3


def take_part(rank: int, way: str, lost: int, folder: str) -> None:
    """Watch the others, and end in a way; process `lost` is the first to end."""
    distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=SIZE)
    logging.basicConfig(filename=f"{folder}/log-{rank}.txt", format="%(message)s")
    watch.GRACE = 1.0
    try:
        with watch_processes():
            if way == "leave":  # later than the first one by more than GRACE
                time.sleep(0.0 if rank == lost else 2.0)
            elif rank == lost:
                os.kill(os.getpid(), signal.SIGKILL)
            elif way == "wait":
                threading.Event().wait()
            else:
                distributed.all_reduce(torch.zeros(1))
    except RuntimeError as error:
        Path(folder, f"notes-{rank}.txt").write_text("\n".join(error.__notes__))
    os._exit(0)  # without the group, whose destruction may wait for the lost process


def end_together(folder: Path, way: str, lost: int) -> list[int]:
    """Return the exit statuses of processes, one of which ends first."""
    workers: list[Any] = [PROCESSES.Process(target=take_part, args=(rank, way, lost, str(folder))) for rank in range(SIZE)]
    for process in workers:
        process.start()
    for process in workers:
        process.join(60)
    statuses = [process.exitcode for process in workers]
    for process in workers:
        process.kill()
    return statuses


@pytest.mark.parametrize("lost", [0, 1])
def test_processes_that_wait_for_a_killed_one_stop_and_name_it(tmp_path: Path, lost: int) -> None:
    assert end_together(tmp_path, "wait", lost) == [-signal.SIGKILL if rank == lost else 1 for rank in range(SIZE)]
    for rank in {0, 1, 2} - {lost}:
        log = (tmp_path / f"log-{rank}.txt").read_text()
        assert log.startswith(f"process {lost} of 3 has ended (pid "), log
        assert log.endswith(f"): process {rank}, which waits for it, stops\n"), log


@pytest.mark.parametrize("lost", [0, 1])
def test_processes_that_leave_the_watch_are_not_missed(tmp_path: Path, lost: int) -> None:
    assert end_together(tmp_path, "leave", lost) == [0] * SIZE


def test_errors_of_exchanges_name_the_process_that_has_ended(tmp_path: Path) -> None:
    assert end_together(tmp_path, "exchange", 2) == [0, 0, -signal.SIGKILL]
    for rank in (0, 1):
        assert (tmp_path / f"notes-{rank}.txt").read_text().startswith("process 2 of 3 has ended (pid ")
