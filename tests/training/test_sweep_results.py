"""The summary of tested seeds, rows and lines of trials, and damaged journals, without training."""

import json
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from optuna.trial import TrialState

from longscan._errors import SettingError
from longscan.training import sweep
from longscan.training.sweep import Sweep, open_storage, trial_status


def sweep_of(metric: str = "accuracy") -> Any:
    """Return what the summaries read of a sweep."""
    task = SimpleNamespace(metric=metric, scaled=lambda value: 2 * value - 1)
    own: Any = SimpleNamespace(_task=task)
    own._row = lambda stage, index: Sweep._row(own, stage, index)
    return own


def seed_row(seed: int, score: float | None, constant: float = 0.5, status: str = "finished") -> dict[str, Any]:
    return {"seed": seed, "score": score, "constant": constant, "status": status}


def test_scores_of_seeds_have_mean_and_interval() -> None:
    rows = [seed_row(1, 0.6), seed_row(2, 0.8, 0.25), seed_row(3, None, status="failed"), seed_row(4, None, status="waiting")]
    found = Sweep._summarize_test(sweep_of(), rows)
    assert found is not None
    assert (found["mean"], found["scaled"], found["constant"]) == pytest.approx((0.7, 0.4, 0.375))
    assert (found["count"], found["failed"]) == (2, 1)
    assert found["half_width"] == pytest.approx(12.706 * 0.1, rel=1e-4)  # Student's distribution of one degree of freedom
    assert Sweep._summarize_test(sweep_of(), rows[2:]) is None


def trial_of(state: TrialState, value: float | None = None, **attributes: Any) -> Any:
    return SimpleNamespace(state=state, value=value, user_attrs=attributes)


def stage_of(split: str, *trials: Any) -> Any:
    return SimpleNamespace(
        split=split, last_trials=lambda: trials, seeds=[[7, 8], [9]], settings_of=lambda trial: {"training.lr": trial.value}
    )


RUNS = [{"constant": 0.5, "seconds": 2.0}, {"constant": 0.25, "seconds": 3.5}]


def test_rows_of_trials() -> None:
    stage = stage_of(
        "validation", trial_of(TrialState.COMPLETE, 0.9, runs=RUNS), trial_of(TrialState.FAIL, None, error="KeyError: a")
    )
    first, second = (Sweep._row(sweep_of(), stage, index) for index in range(2))
    assert first == {
        "trial": 0, "settings": {"training.lr": 0.9}, "status": "finished", "score": 0.9, "constant": 0.375, "failure": None,
        "seconds": 5.5, "runs": RUNS,
    }  # fmt: skip
    assert (second["status"], second["score"], second["constant"], second["failure"]) == ("failed", None, None, "KeyError: a")
    assert (second["seconds"], second["runs"]) == (0, [])
    waiting = Sweep._row(sweep_of(), stage_of("test", None), 0)
    assert waiting == {
        "seed": 7, "status": "waiting", "score": None, "constant": None, "failure": None, "seconds": 0, "runs": [],
    }  # fmt: skip
    pruned = Sweep._row(sweep_of(), stage_of("test", None, trial_of(TrialState.PRUNED, 0.4, failure="not finite")), 1)
    assert (pruned["seed"], pruned["status"], pruned["score"], pruned["failure"]) == (9, "failed", None, "not finite")


@pytest.mark.parametrize(
    ("state", "attributes", "status"),
    [
        (TrialState.RUNNING, {}, "running"),
        (TrialState.COMPLETE, {}, "finished"),
        (TrialState.PRUNED, {}, "failed"),
        (TrialState.FAIL, {}, "waiting"),
        (TrialState.FAIL, {"error": "x"}, "failed"),
        (TrialState.WAITING, {}, "waiting"),
    ],
)
def test_status_of_a_trial(state: TrialState, attributes: dict[str, str], status: str) -> None:
    assert trial_status(trial_of(state, **attributes)) == status


def test_lines_of_trials() -> None:
    own = sweep_of()
    stage = stage_of(
        "validation", trial_of(TrialState.COMPLETE, 0.25, runs=RUNS), trial_of(TrialState.PRUNED, 0.1, failure="not finite")
    )
    assert Sweep.describe(own, stage, 0) == "trial 0: accuracy 0.2500 on validation (training.lr 0.25)"
    assert Sweep.describe(own, stage, 1) == "trial 1: not finite (training.lr 0.1)"
    tested = stage_of("test", trial_of(TrialState.COMPLETE, 0.25, runs=RUNS))
    assert Sweep.describe(own, tested, 0) == "seed 7: accuracy 0.2500 on test"


def test_a_worker_ends_if_its_lock_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Own:
        folder = tmp_path

        def __init__(self, _: Path) -> None:
            pass

        @contextmanager
        def _worker_lock(self, worker: str) -> Any:
            path = tmp_path / f"{worker}.lock"
            path.touch()
            yield SimpleNamespace(lock_file=str(path))

        def ask(self, worker: str) -> None:
            (tmp_path / f"{worker}.lock").unlink()

    monkeypatch.setattr(sweep, "Sweep", Own)
    sweep.work(tmp_path)
    assert not list(tmp_path.glob("*.lock"))


def test_damaged_lines_of_a_journal_are_named(tmp_path: Path) -> None:
    entry = json.dumps({"op_code": 0, "worker_id": "a", "study_name": "s", "directions": [2]})
    journal = tmp_path / "journal.log"
    open_storage(None, tmp_path)
    for content, line in (
        (f"{entry}\nnot JSON\n{entry}\n", 2),
        (f'{entry}\n{{"op_code": 0}}\n', 2),
        ("[1]\n", 1),
        (f"{entry}\n{entry}\n" + json.dumps({"op_code": 4, "worker_id": "a"}) + "\n", 3),
    ):
        journal.write_text(content)
        with pytest.raises(SettingError, match=rf"^{journal} is damaged in line {line} or before \("):
            open_storage(None, tmp_path)
    journal.write_bytes(f"{entry}\n".encode() + b'{"op_code": 4, "wor')
    open_storage(None, tmp_path)
    assert journal.read_text() == f"{entry}\n"


def test_a_database_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        SettingError, match=r"`--storage` must be the URL of a database that Optuna can open \(.*, got 'other://x'"
    ):
        open_storage("other://x", tmp_path)


@pytest.mark.parametrize("higher", [True, False])
def test_best_trial_has_the_best_value_and_of_equal_ones_the_lowest_place(higher: bool) -> None:
    values = [0.5, 0.9, 0.1, 0.9, 0.1]
    trials: list[Any] = [
        SimpleNamespace(state=TrialState.COMPLETE, value=value, user_attrs={"place": place}) for place, value in enumerate(values)
    ]
    trials += [None, SimpleNamespace(state=TrialState.FAIL, value=None, user_attrs={"place": 5})]
    search = SimpleNamespace(last_trials=lambda: list(reversed(trials)))
    own: Any = SimpleNamespace(search=search, _task=SimpleNamespace(higher_is_better=higher))
    assert Sweep.best(own) is trials[1 if higher else 2]
