"""The steps at which a run logs, validates, saves and stops early, and the values that several processes exchange."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import PartialState

from longscan.engine import Callback, Engine, StepResult
from longscan.tasks import TASKS, Batch
from longscan.training import SettingError, train
from longscan.training import trainer as trainer_module
from longscan.training.batches import share_of
from longscan.training.checkpoint import find_checkpoint, read_checkpoint
from longscan.training.evaluate import Scores
from longscan.training.logs import read_rows
from longscan.training.trainer import Trainer

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:tensorboard")


@pytest.fixture
def train_with_scores(tiny: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that trains with given scores and returns the steps of each event, the result and the checkpoints.

    scores: (accuracy, loss) of each validation in turn; the last one is repeated.
    """

    def run(scores: list[tuple[float | None, float]] | None = None, **values: Any) -> dict[str, Any]:
        remaining, saved, best = list(scores or [(0.5, 1.0)]), [], []

        def evaluate(*_: Any, **__: Any) -> Scores:
            accuracy, loss = remaining.pop(0) if len(remaining) > 1 else remaining[0]
            return Scores(loss, {"accuracy": accuracy}, {})

        def write(target: Any, _: Any, state: dict[str, Any]) -> None:
            (saved if target.name == "last" else best).append(state)

        monkeypatch.setattr(trainer_module, "evaluate", evaluate)
        monkeypatch.setattr(trainer_module, "write_checkpoint", write)
        monkeypatch.setattr(trainer_module.longscan.report, "run_report", lambda _: None)
        finished = train(tiny(**values), tmp_path / "run", test=False)
        rows = read_rows(tmp_path / "run" / "metrics.jsonl")
        return {
            "train": [row["step"] for row in rows if row["split"] == "train"],
            "valid": [row["step"] for row in rows if row["split"] == "valid"],
            "saved": [state["step"] for state in saved],
            "best": [state["step"] for state in best],
            "result": finished.result,
            "states": saved,
        }

    return run


@pytest.mark.parametrize(
    ("values", "train_steps", "valid_steps", "saved_steps"),
    [
        ({"steps": 7, "log_every": 3, "eval_every": 0, "checkpoint_every": 2}, [1, 3, 6, 7], [7], [2, 4, 6, 7]),
        ({"steps": 6, "log_every": 4, "eval_every": 3, "checkpoint_every": 0}, [1, 4, 6], [3, 6], [3, 6]),
        ({"steps": 5, "log_every": 2, "eval_every": 4, "checkpoint_every": 3}, [1, 2, 4, 5], [4, 5], [3, 4, 5]),
        ({"steps": 3, "log_every": 100, "eval_every": 100, "checkpoint_every": 100}, [1, 3], [3], [3]),
    ],
    ids=["saves between", "validates between", "all intervals", "last step only"],
)
def test_steps_of_logs_validations_and_checkpoints(
    train_with_scores: Any, values: dict[str, int], train_steps: list[int], valid_steps: list[int], saved_steps: list[int]
) -> None:
    outcome = train_with_scores(**values)
    assert (outcome["train"], outcome["valid"], outcome["saved"]) == (train_steps, valid_steps, saved_steps)
    assert outcome["result"]["steps"] == values["steps"]
    assert not outcome["result"]["stopped_early"]


def test_patience_counts_validations_since_the_best_one(train_with_scores: Any) -> None:
    """If accuracies are equal the smaller loss is better; an equal pair is no improvement."""
    scores = [(None, 1.0), (0.5, 1.0), (0.4, 0.1), (0.5, 0.9), (0.5, 0.9), (0.49, 0.1), (0.4, 0.1), (0.9, 0.1)]
    outcome = train_with_scores(scores, steps=9, eval_every=1, patience=3)
    assert outcome["best"] == [1, 2, 4]
    assert [state["patience_used"] for state in outcome["states"]] == [0, 0, 1, 0, 1, 2, 3]
    assert outcome["states"][-1]["best"] == {"step": 4, "value": 0.5, "loss": 0.9}
    assert outcome["result"]["stopped_early"]
    assert outcome["result"]["valid"] == {"last": 0.4, "best": 0.5}


def test_patience_of_zero_never_stops(train_with_scores: Any) -> None:
    outcome = train_with_scores([(0.5, 1.0)], steps=6, eval_every=1, patience=0)
    assert (outcome["valid"], outcome["result"]["stopped_early"]) == ([1, 2, 3, 4, 5, 6], False)


def test_solved_for_counts_consecutive_validations(train_with_scores: Any) -> None:
    scores = [(0.9, 1.0), (0.8, 1.0), (0.95, 1.0), (None, 1.0), (0.9, 1.0), (0.9, 1.0), (0.9, 1.0)]
    outcome = train_with_scores(scores, steps=9, eval_every=1, solved_at=0.9, solved_for=2)
    assert outcome["valid"] == [1, 2, 3, 4, 5, 6]
    assert [state["solved_evaluations"] for state in outcome["states"]] == [1, 0, 1, 0, 1, 2]
    assert outcome["result"]["stopped_early"]


def make_trainer(settings: Any, folder: Any) -> Trainer:
    with torch.random.fork_rng(devices=[]):
        return Trainer(settings, folder, Accelerator(cpu=True), "as typed", resume=False, progress=False, test=True)


def test_endless_split_without_number_of_batches_raises(tiny: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = tiny(eval_batches=1, test_batches=1)
    monkeypatch.setattr(type(settings.task), "size", lambda *_: None)
    assert make_trainer(settings, tmp_path).engine.step == 0
    with pytest.raises(SettingError, match=r"`training\.eval_batches` must be a number of batches, as split valid of .*, got 0"):
        make_trainer(tiny(test_batches=1), tmp_path)
    with pytest.raises(SettingError, match=r"`training\.test_batches` must be a number of batches, as split test of .*, got 0"):
        make_trainer(tiny(eval_batches=1), tmp_path)


@pytest.mark.parametrize("number", [1, 2])
def test_batch_scores_are_means_over_processes(tiny: Any, tmp_path: Any, number: int) -> None:
    """Each process adds loss times weight, score times weight and the weight. The other process is a constant here."""
    trainer = make_trainer(tiny(), tmp_path)
    other = torch.tensor([8.0, 1.0, 2.0])
    batch = trainer.task.batch("train", 0, 4, 0)
    result = StepResult((trainer.model(batch.inputs, valid=batch.valid), batch, 6.0), torch.zeros(()), None, 0.0)
    loss, score = trainer.batch_scores(result)
    trainer.accelerator = SimpleNamespace(num_processes=number, device="cpu", reduce=lambda x: x + other)  # type: ignore[assignment]
    trainer.engine.step = 1
    expected = (loss, score) if number == 1 else ((loss * 6 + 8) / 8, (score * 6 + 1) / 8)
    assert trainer.batch_scores(result) == pytest.approx(expected)


def test_run_restores_threads_and_state_of_the_process(train_with_scores: Any) -> None:
    before = torch.get_num_threads()
    train_with_scores(steps=1, threads=before + 1)
    assert torch.get_num_threads() == before
    assert PartialState._shared_state == {}


def test_share_of_a_process_has_its_rows_and_factor() -> None:
    """Weights are the numbers of scored answers. With the factors the mean of the gradients is that of the whole batch."""
    task = TASKS["parity"](train_lengths=(3, 8), eval_lengths=(9, 12))
    batch = task.batch("train", 0, 5, 0)
    whole = share_of(batch, task, "mean", 0, 1)
    assert (whole.rows, whole.weight, whole.factor) == (batch, 1.0, 1.0)
    shares = [share_of(batch, task, "mean", process, 3) for process in range(3)]
    for process, share in enumerate(shares):
        assert torch.equal(share.rows.inputs, batch.inputs[process::3])
    total = sum(share.weight for share in shares)
    assert all(share.factor == pytest.approx(3 * share.weight / total) for share in shares)
    assert [share_of(batch, task, "sum", process, 3).factor for process in range(3)] == [3.0, 3.0, 3.0]
    first = Batch(*(None if part is None else part[:1] for part in batch))
    empty = share_of(first, task, "mean", 1, 2)
    assert (empty.weight, empty.factor) == (0.0, 0.0)
    assert torch.equal(empty.rows.inputs, first.inputs)


def test_callback_can_stop_a_run_before_its_first_validation(tiny: Any, tmp_path: Any) -> None:
    class Stop(Callback):
        def on_step_end(self, engine: Engine, result: StepResult) -> None:
            engine.stop_requested = True

    run = train(tiny(steps=4, eval_every=3, select="best"), tmp_path / "run", callbacks=[Stop()])
    assert run.result is not None
    assert (run.result["steps"], run.result["selected"], run.result["status"]) == (1, "last", "finished")
    assert run.model() is not None


def test_last_checkpoint_of_a_run_that_a_callback_stops_is_of_its_last_step(tiny: Any, tmp_path: Any) -> None:
    class Stop(Callback):
        def on_step_end(self, engine: Engine, result: StepResult) -> None:
            engine.stop_requested |= engine.step == 3

    run = train(tiny(steps=6, eval_every=2, select="last"), tmp_path / "run", callbacks=[Stop()])
    last = find_checkpoint(run.folder / "checkpoints" / "last")
    assert last is not None
    assert (run.result or {})["steps"] == read_checkpoint(last)["step"] == 3
