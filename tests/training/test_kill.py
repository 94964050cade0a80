"""kill -9 at a random moment, and `--resume`: the same final weights bit for bit, and a log without a gap or a repetition."""

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

from fork_server import PROCESSES
from longscan.cli import main
from longscan.training import Run
from longscan.training.logs import read_rows
from longscan.training.trainer import catch_signals

STEPS = 30
WORDS = [
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


def program(words: list[str], errors: Path) -> None:
    """The command in a process of its own, its stderr in a file."""
    descriptor = os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 2)
    sys.exit(main(words))


def start(folder: Path, *words: str) -> BaseProcess:
    process = PROCESSES.Process(
        target=program, args=(["train", "--out", str(folder), *WORDS, *words], folder.with_suffix(".err"))
    )
    process.start()
    return process


def finish(process: BaseProcess, folder: Path) -> None:
    process.join(timeout=240)
    assert process.exitcode == 0, folder.with_suffix(".err").read_text()


def wait_for(process: BaseProcess, folder: Path, rows: int) -> None:
    """Until the log has so many rows."""
    log = folder / "metrics.jsonl"
    while process.is_alive() and (not log.exists() or log.read_bytes().count(b"\n") < rows):
        time.sleep(0.001)


def kill_after(process: BaseProcess, folder: Path, rows: int, delay: float) -> None:
    """SIGKILL once the log has so many rows, and a moment more."""
    wait_for(process, folder, rows)
    time.sleep(delay)
    assert process.is_alive(), "the kill came too late to test anything"
    process.kill()
    process.join()


def contents(folder: Path) -> dict[str, Any]:
    """Return all that must not depend on the kills: weights, optimiser, averages, rows of the three logs, result."""
    tensors = {
        f"{which}/{path.name}": path.read_bytes()
        for which in ("last", "best", "average")
        for path in sorted((folder / "checkpoints" / which).glob("*.safetensors"))
    }
    rows = [{name: value for name, value in row.items() if name != "seconds"} for row in read_rows(folder / "metrics.jsonl")]
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
    same = {name: result[name] for name in ("value", "valid", "test", "by_length", "steps", "status", "selected")}
    return {"tensors": tensors, "rows": rows, "table": table, "events": events, "result": same}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the contents of a run that was not killed."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    finish(start(folder), folder)
    found = contents(folder)
    assert [row["step"] for row in found["rows"] if row["split"] == "train"] == list(range(1, STEPS + 1))
    return found


def check(folder: Path, whole: dict[str, Any], seed: int) -> None:
    draw = random.Random(seed)
    kill_after(start(folder), folder, draw.randrange(1, STEPS), draw.uniform(0, 0.05))
    finish(start(folder, "--resume"), folder)
    found = contents(folder)
    for part, expected in whole.items():
        assert found[part] == expected, part


@pytest.mark.filterwarnings("ignore::DeprecationWarning:tensorboard")
@pytest.mark.parametrize("seed", range(2))
def test_a_killed_run_ends_as_if_it_had_not_been(tmp_path: Path, whole: dict[str, Any], seed: int) -> None:
    check(tmp_path / "run", whole, seed)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning:tensorboard")
@pytest.mark.parametrize("seed", range(10, 20))
def test_ten_killed_runs(tmp_path: Path, whole: dict[str, Any], seed: int) -> None:
    check(tmp_path / "run", whole, seed)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning:tensorboard")
def test_a_run_killed_again_and_again(tmp_path: Path, whole: dict[str, Any]) -> None:
    folder, draw = tmp_path / "run", random.Random(5)
    kill_after(start(folder), folder, 6, 0.0)
    for rows in (12, 20, 28):
        kill_after(start(folder, "--resume"), folder, rows, draw.uniform(0, 0.05))
    finish(start(folder, "--resume"), folder)
    assert contents(folder) == whole


@pytest.mark.parametrize("name", ["SIGTERM", pytest.param("SIGINT", marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("ignore::DeprecationWarning:tensorboard")
def test_a_run_asked_to_stop_saves_first(tmp_path: Path, whole: dict[str, Any], name: str) -> None:
    folder = tmp_path / "run"
    process = start(folder)
    wait_for(process, folder, 10)
    assert process.pid is not None
    os.kill(process.pid, getattr(signal, name))
    process.join(timeout=60)
    assert process.exitcode == 130
    assert "--resume" in folder.with_suffix(".err").read_text()
    rows = [row for row in read_rows(folder / "metrics.jsonl") if row["split"] == "train"]
    finish(start(folder, "--resume"), folder)
    assert len(rows) < STEPS
    assert contents(folder) == whole


@pytest.mark.timeout(20)
@pytest.mark.parametrize("events", range(12))
def test_a_signal_that_interrupts_the_handler_of_another_does_not_block(events: int) -> None:
    remaining = iter(range(events))  # calls and returns in the handler of SIGINT before SIGTERM comes

    def send_another(*_: Any) -> None:
        if next(remaining, None) is None:
            sys.setprofile(None)
            signal.raise_signal(signal.SIGTERM)

    with catch_signals() as received:
        sys.setprofile(send_another)
        signal.raise_signal(signal.SIGINT)
        sys.setprofile(None)
        assert received
