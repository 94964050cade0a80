"""Logs and trackers have each row once, also if a run is resumed."""

import csv
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from accelerate.tracking import GeneralTracker
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from torch.utils.tensorboard import SummaryWriter

from longscan.engine import Callback, Engine, StepResult
from longscan.training import SettingError, train
from longscan.training.logs import RunLog, build_trackers, read_rows

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:tensorboard")
ENGINE = Engine(torch.optim.SGD([torch.zeros(1)]), lambda batch: (batch, None), learning_rate=lambda *_: 0.0)


def make_row(step: int) -> dict[str, Any]:
    return {"step": step, "split": "train", "loss": step / 8, "accuracy": None, "seconds": float(step)}


def read_events(folder: Path) -> list[tuple[int, str, float]]:
    events = []
    for path in sorted(folder.glob("tensorboard/**/events.*")):
        for event in EventFileLoader(str(path)).Load():
            events += [(event.step, value.tag, value.tensor.float_val[0]) for value in event.summary.value]
    return events


def test_rows_of_an_earlier_log_are_kept_and_written_once(tmp_path: Path) -> None:
    columns = ["step", "split", "loss", "accuracy", "seconds"]
    with closing(RunLog(tmp_path, columns)) as log:
        for step in range(5):
            log.on_log(ENGINE, make_row(step))
        log.flush()
    kept = [r for r in read_rows(tmp_path / "metrics.jsonl") if r["step"] < 3]
    with closing(RunLog(tmp_path, columns, kept)) as log:
        for step in range(3, 6):
            log.on_log(ENGINE, make_row(step))
    assert read_rows(tmp_path / "metrics.jsonl") == [make_row(step) for step in range(6)]
    with (tmp_path / "metrics.csv").open() as file:
        assert [(r["step"], r["loss"], r["accuracy"]) for r in csv.DictReader(file)] == [
            (str(s), str(s / 8), "") for s in range(6)
        ]


class Kill(Callback):
    """A callback that ends the training some steps after the last checkpoint."""

    def on_step_end(self, engine: Engine, result: StepResult) -> None:
        if engine.step == 5:
            raise RuntimeError("killed")


class OwnTracker(GeneralTracker):
    """A tracker that records its calls; `runs` has an entry for each call of `train`."""

    name = "own"
    requires_logging_directory = True
    runs: ClassVar[list[dict[str, Any]]] = []

    def __init__(self, project: str, folder: Path) -> None:
        super().__init__()
        self.runs.append({"project": project, "folder": folder, "rows": [], "finished": False})

    @property
    def tracker(self) -> Any:
        return self.runs[-1]

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self.tracker["config"] = values

    def log(self, values: dict[str, Any], step: int | None = None, **_: Any) -> None:
        self.tracker["rows"].append((step, values))

    def finish(self) -> None:
        self.tracker["finished"] = True


def test_trackers_of_a_resumed_run_have_each_step_once(tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OwnTracker, "runs", [])
    settings = tiny(steps=8, eval_every=3, trackers=["tensorboard", f"{__name__}.OwnTracker"])
    with pytest.raises(RuntimeError, match="killed"):
        train(settings, tmp_path / "run", callbacks=[Kill()])
    train(settings, tmp_path / "run", resume=True)
    first, second = OwnTracker.runs
    assert (first["project"], first["folder"]) == ("longscan", tmp_path / "run")
    assert first["finished"]
    assert second["finished"]
    assert first["config"]["training.steps"] == 8
    assert first["config"]["training.curriculum.start"] == 0
    assert max(step for step, _ in first["rows"]) == 5, "the run ended after the checkpoint of step 3"
    rows = read_rows(tmp_path / "run" / "metrics.jsonl")
    expected = []
    for logged in rows:
        values = {f"{logged['split']}/{name.replace('/', '_')}": value for name, value in logged.items() if value is not None}
        expected.append((logged["step"], {tag: v for tag, v in values.items() if not tag.endswith(("/step", "/split"))}))
    assert second["rows"] == expected
    losses = [(step, value) for step, tag, value in read_events(tmp_path / "run") if tag == "train/loss"]
    assert losses == [(row["step"], pytest.approx(row["loss"])) for row in rows if row["split"] == "train"]
    assert [step for step, _ in losses] == list(range(1, 9))


class LogNorm(Callback):
    """A callback that logs a value without a split at every fourth step."""

    def on_step_end(self, engine: Engine, result: StepResult) -> None:
        if engine.step % 4 == 0:
            engine.log({"norm": 1.5})


def test_row_of_a_callback_without_a_split_is_logged(tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OwnTracker, "runs", [])
    settings = tiny(steps=8, eval_every=3, trackers=["tensorboard", f"{__name__}.OwnTracker"])
    train(settings, tmp_path / "run", callbacks=[LogNorm()], progress=True)
    expected = [(4, {"norm": 1.5}), (8, {"norm": 1.5})]
    rows = [row for row in read_rows(tmp_path / "run" / "metrics.jsonl") if "norm" in row]
    assert rows == [{"step": 4, "norm": 1.5}, {"step": 8, "norm": 1.5}]
    assert [row for row in OwnTracker.runs[0]["rows"] if "norm" in row[1]] == expected
    assert [(step, value) for step, tag, value in read_events(tmp_path / "run") if tag == "norm"] == [(4, 1.5), (8, 1.5)]


class UnreachableTracker(GeneralTracker):
    """A tracker whose server cannot be reached."""

    name = "unreachable"
    requires_logging_directory = False

    def __init__(self, project: str) -> None:
        super().__init__()

    @property
    def tracker(self) -> Any:
        raise AssertionError("the tracker has not started")

    def start(self) -> None:
        raise ConnectionError("no server")

    def finish(self) -> None:
        raise AssertionError("the tracker has not started")


def test_tracker_that_fails_to_start_finishes_the_others(tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OwnTracker, "runs", [])
    trackers = [f"{__name__}.OwnTracker", "tensorboard", f"{__name__}.UnreachableTracker"]
    closed = list[str]()
    monkeypatch.setattr(SummaryWriter, "close", lambda writer: closed.append(writer.log_dir))
    with pytest.raises(SettingError, match=r"^`training\.trackers` must be trackers that start, got one .*\(no server\)$"):
        train(tiny(trackers=trackers), tmp_path / "run")
    assert OwnTracker.runs[0]["finished"]
    assert len(closed) == 1


def test_run_without_trackers_writes_no_tensorboard_files(tiny: Any, tmp_path: Path) -> None:
    train(tiny(trackers=[]), tmp_path)
    assert not (tmp_path / "tensorboard").exists()


@pytest.mark.parametrize("name", ["tensorbord", "longscan.no_module.Tracker", "longscan.training.NoTracker", ""])
def test_unknown_tracker_raises(tmp_path: Path, name: str) -> None:
    with pytest.raises(SettingError, match=rf"^`training\.trackers` must be names among .*tensorboard, .*wandb.*, got '{name}'"):
        build_trackers([name], tmp_path)


def test_tracker_whose_package_is_not_installed_raises(tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("longscan.training.logs.get_available_trackers", list)
    with pytest.raises(SettingError, match=r"`training\.trackers` must be a tracker whose package is installed, got 'tens"):
        train(tiny(), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_incomplete_last_line_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n{"st')
    assert read_rows(path) == [{"step": 1}, {"step": 2}]
    assert read_rows(tmp_path / "absent.jsonl") == []


def test_damaged_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"loss": 2}\n')
    with pytest.raises(SettingError, match=r"metrics\.jsonl is damaged in line 2 \(it has no step\)"):
        read_rows(path)


@pytest.mark.parametrize("content", [None, "", '{"step": 1, "spl'])
def test_a_log_without_rows_of_a_run_with_steps_is_damaged(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "metrics.jsonl"
    if content is not None:
        path.write_text(content)
    assert read_rows(path) == []
    with pytest.raises(SettingError, match=r"metrics\.jsonl (is missing, which has|must have) the rows of 7 steps"):
        read_rows(path, 7)
