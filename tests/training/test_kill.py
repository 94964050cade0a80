"""Runs that are killed at a random moment and resumed have the same final weights and logs as an uninterrupted run."""

import csv
import os
import random
import signal
import sys
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from fork_server import PROCESSES, act_at_step
from longscan.cli import main
from longscan.training import Run
from longscan.training.logs import read_rows
from longscan.training.trainer import catch_signals
from run_files import read_log

STEPS = 30
ARGUMENTS = [
    *("--task", "parity", "--task.train_lengths", "[3, 12]", "--task.eval_lengths", "[13, 20]", "--task.valid_size", "16"),
    *("--task.test_size", "16", "--model.d_model", "8", "--model.d_state", "4", "--training.batch_size", "16"),
    *("--steps", str(STEPS), "--checkpoint-every", "3", "--training.eval_every", "7", "--training.log_every", "1"),
    *(
        "--training.lr",
        "0.01",
        "--training.schedule",
        "restarts",
        "--training.restart_period",
        "10",
        "--training.average",
        "0.95",
    ),
    *("--training.select", "average", "--training.curriculum.start", "4", "--training.curriculum.end", "12"),
    *("--training.curriculum.threshold", "0.5", "--training.curriculum.every", "5", "--training.late_lengths.share", "0.4"),
    *("--training.late_lengths.shortest", "8", "--training.late_lengths.longest", "16"),
    *("--training.threads", "1", "--training.device", "cpu"),
]


def run_command(argv: list[str], errors: Path, *action: int) -> None:
    """Run the command with its stderr in a file; action: arguments of `act_at_step`, if there are any."""
    descriptor = os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 2)
    if action:
        act_at_step(*action)
    sys.exit(main(argv))


def start_run(folder: Path, *options: str, action: tuple[int, ...] = ()) -> BaseProcess:
    argv = ["train", "--out", str(folder), *ARGUMENTS, *options]
    process = PROCESSES.Process(target=run_command, args=(argv, folder.with_suffix(".err"), *action))
    process.start()
    return process


def join_run(process: BaseProcess, folder: Path) -> None:
    process.join(timeout=240)
    assert process.exitcode == 0, folder.with_suffix(".err").read_text()


def kill_after_rows(folder: Path, rows: int, delay: float, *options: str) -> None:
    """Start a run and send it SIGKILL a short time after its log has a number of rows."""
    process = start_run(folder, *options, action=(STEPS,))
    log = folder / "metrics.jsonl"
    while process.is_alive() and (not log.exists() or log.read_bytes().count(b"\n") < rows):
        time.sleep(0.001)
    time.sleep(delay)
    assert process.is_alive(), folder.with_suffix(".err").read_text()
    process.kill()
    process.join()


def read_run(folder: Path) -> dict[str, Any]:
    """Return what must not depend on kills: weights, optimiser states, averages, rows of the three logs, and the result."""
    tensors = {
        f"{which}/{path.name}": path.read_bytes()
        for which in ("last", "best", "average")
        for path in sorted((folder / "checkpoints" / which).glob("*.safetensors"))
    }
    rows = read_log(folder)
    with (folder / "metrics.csv").open() as file:
        table = [{name: value for name, value in row.items() if name != "seconds"} for row in csv.DictReader(file)]
    events = [
        (event.step, value.tag, value.tensor.float_val[0])
        for path in sorted(folder.glob("tensorboard/**/events.*"))
        for event in EventFileLoader(str(path)).Load()
        for value in event.summary.value
        if not value.tag.endswith("/seconds")
    ]
    result = Run(folder).result
    assert result is not None
    compared = {name: result[name] for name in ("value", "valid", "test", "by_length", "steps", "status", "selected")}
    return {"tensors": tensors, "rows": rows, "table": table, "events": events, "result": compared}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the contents of an uninterrupted run."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    join_run(start_run(folder), folder)
    contents = read_run(folder)
    assert [row["step"] for row in contents["rows"] if row["split"] == "train"] == list(range(1, STEPS + 1))
    return contents


def assert_killed_run_equals(folder: Path, whole: dict[str, Any], seed: int) -> None:
    draw = random.Random(seed)
    kill_after_rows(folder, draw.randrange(1, STEPS), draw.uniform(0, 0.05))
    join_run(start_run(folder, "--resume"), folder)
    contents = read_run(folder)
    for part, expected in whole.items():
        assert contents[part] == expected, part


@pytest.mark.filterwarnings("ignore::DeprecationWarning:tensorboard")
@pytest.mark.parametrize("seed", range(2))
def test_resumed_run_after_a_kill_equals_an_uninterrupted_run(tmp_path: Path, whole: dict[str, Any], seed: int) -> None:
    assert_killed_run_equals(tmp_path / "run", whole, seed)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning:tensorboard")
@pytest.mark.parametrize("seed", range(10, 20))
def test_ten_resumed_runs_after_a_kill_equal_an_uninterrupted_run(tmp_path: Path, whole: dict[str, Any], seed: int) -> None:
    assert_killed_run_equals(tmp_path / "run", whole, seed)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning:tensorboard")
def test_run_that_is_killed_repeatedly_equals_an_uninterrupted_run(tmp_path: Path, whole: dict[str, Any]) -> None:
    folder, draw = tmp_path / "run", random.Random(5)
    kill_after_rows(folder, 6, 0.0)
    for rows in (12, 20, 28):
        kill_after_rows(folder, rows, draw.uniform(0, 0.05), "--resume")
    join_run(start_run(folder, "--resume"), folder)
    assert read_run(folder) == whole


@pytest.mark.parametrize("name", ["SIGTERM", *(pytest.param(name, marks=pytest.mark.slow) for name in ("SIGINT", "SIGHUP"))])
@pytest.mark.filterwarnings("ignore::DeprecationWarning:tensorboard")
def test_run_saves_a_checkpoint_before_it_stops_on_a_signal(tmp_path: Path, whole: dict[str, Any], name: str) -> None:
    folder = tmp_path / "run"
    process = start_run(folder, action=(10, getattr(signal, name)))
    process.join(timeout=240)
    assert process.exitcode == 130
    assert f"`longscan train --out {folder} --resume` continues" in folder.with_suffix(".err").read_text()
    rows = [row for row in read_rows(folder / "metrics.jsonl") if row["split"] == "train"]
    join_run(start_run(folder, "--resume"), folder)
    assert len(rows) < STEPS
    assert read_run(folder) == whole


@pytest.mark.parametrize(("before", "expected"), [(signal.SIG_DFL, {signal.SIGHUP}), (signal.SIG_IGN, set())])
def test_a_closed_terminal_is_a_request_to_stop_unless_nohup_ignores_it(before: signal.Handlers, expected: set[int]) -> None:
    former = signal.signal(signal.SIGHUP, before)
    try:
        with catch_signals() as received:
            signal.raise_signal(signal.SIGHUP)
            assert received == expected
        assert signal.getsignal(signal.SIGHUP) == before
    finally:
        signal.signal(signal.SIGHUP, former)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("events", range(12))
def test_signal_during_the_handler_of_another_signal_does_not_block(events: int) -> None:
    remaining = iter(range(events))  # calls and returns in the handler of SIGINT before SIGTERM

    def send_second_signal(*_: Any) -> None:
        if next(remaining, None) is None:
            sys.setprofile(None)
            signal.raise_signal(signal.SIGTERM)

    with catch_signals() as received:
        sys.setprofile(send_second_signal)
        signal.raise_signal(signal.SIGINT)
        sys.setprofile(None)
        assert received
