"""Processes whose work has to wait for one that has ended stop and name it; those that end by themselves are left alone."""

import logging
import os
import signal
import socket
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
KEPT: list[socket.socket] = []  # connections of strangers, which stay open


def take_part(rank: int, way: str, lost: int, folder: str) -> None:
    """Watch the others, and end in a way; process `lost` is the first to end."""
    if way == "strangers" and rank == 0:
        let_strangers_connect()
    distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=SIZE)
    logging.basicConfig(filename=f"{folder}/log-{rank}.txt", format="%(message)s")
    if way != "exchange":  # whose errors must come before the watch ends the processes, on a busy machine, too
        watch.GRACE = 1.0
    start = time.monotonic()
    try:
        with watch_processes():
            Path(folder, f"start-{rank}.txt").write_text(str(time.monotonic() - start))
            if way == "strangers":
                distributed.barrier()
            elif way == "leave":  # later than the first one by more than GRACE
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


def let_strangers_connect() -> None:
    """Connect to the port of process 0 before the other processes can: some send nothing, some something else."""
    listen = watch._listen

    def listen_to_strangers() -> socket.socket:
        server = listen()
        strangers = [socket.create_connection(("localhost", server.getsockname()[1])) for _ in range(5)]
        for stranger, message in zip(strangers, (b"", b"", b"\x00", bytes(20), bytes(100)), strict=True):
            stranger.sendall(message)
        KEPT.extend(strangers[:-1])
        strangers[-1].close()
        return server

    watch._listen = listen_to_strangers


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


def test_connections_of_strangers_delay_no_process(tmp_path: Path) -> None:
    """Waiting for what a silent stranger sends would take a minute."""
    assert end_together(tmp_path, "strangers", 0) == [0] * SIZE
    assert max(float((tmp_path / f"start-{rank}.txt").read_text()) for rank in range(SIZE)) < 30


def test_missing_processes_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "_CONNECT", 0.5)
    process = object.__new__(watch._Watch)
    process.size = 3
    server, token = socket.create_server(("localhost", 0)), bytes(16)
    with socket.create_connection(server.getsockname()) as silent, socket.create_connection(server.getsockname()) as peer:
        peer.sendall(token + watch._NUMBER.pack(2))
        with pytest.raises(TimeoutError, match=r"processes \[1\] of 3 have not connected to process 0"):
            process._accept(server, token)
        assert silent.recv(1) == b""
