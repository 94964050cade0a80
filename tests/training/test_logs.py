"""The three logs hold the same rows, once each, however often they are opened again."""

import csv
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from longscan.training.logs import RunLog, read_rows
from longscan.training.settings import SettingError


def row(step: int) -> dict[str, Any]:
    return {"step": step, "split": "train", "loss": step / 8, "accuracy": None, "seconds": float(step)}


def events(folder: Path) -> list[tuple[int, str, float]]:
    found = []
    for path in sorted((folder / "tensorboard").iterdir()):
        for event in EventFileLoader(str(path)).Load():
            found += [(event.step, value.tag, value.tensor.float_val[0]) for value in event.summary.value]
    return found


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_rows_are_kept_up_to_a_step_and_written_once(tmp_path: Path) -> None:
    columns = ["step", "split", "loss", "accuracy", "seconds"]
    log = RunLog(tmp_path, columns)
    for step in range(5):
        log.add(row(step))
    log.flush()
    log.close()
    kept = [r for r in read_rows(tmp_path / "metrics.jsonl") if r["step"] < 3]
    log = RunLog(tmp_path, columns, kept)
    for step in range(3, 6):
        log.add(row(step))
    log.close()
    assert read_rows(tmp_path / "metrics.jsonl") == [row(step) for step in range(6)]
    with (tmp_path / "metrics.csv").open() as file:
        assert [(r["step"], r["loss"], r["accuracy"]) for r in csv.DictReader(file)] == [
            (str(s), str(s / 8), "") for s in range(6)
        ]
    losses = [(step, value) for step, tag, value in events(tmp_path) if tag == "train/loss"]
    assert losses == [(step, step / 8) for step in range(6)]


def test_a_line_cut_short_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n{"st')
    assert read_rows(path) == [{"step": 1}, {"step": 2}]
    assert read_rows(tmp_path / "absent.jsonl") == []


@pytest.mark.parametrize("content", [None, "", '{"step": 1, "spl'])
def test_a_log_without_rows_of_a_run_with_steps_is_damaged(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "metrics.jsonl"
    if content is not None:
        path.write_text(content)
    assert read_rows(path) == []
    with pytest.raises(SettingError, match=r"metrics\.jsonl: .*needed .* of 7 steps"):
        read_rows(path, 7)
