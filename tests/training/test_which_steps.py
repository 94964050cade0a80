"""Which steps of a run are logged, validated and saved, when it stops early, and what several processes exchange."""

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
from longscan.training.evaluate import Scores
from longscan.training.logs import read_rows
from longscan.training.trainer import Trainer

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:tensorboard")


@pytest.fixture
def followed(tiny: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`followed(scores, **settings)` trains without a model's work; the steps of each event, the result and the checkpoints.

    scores: (accuracy, loss) of each validation in turn; the last one stays.
    """

    def run(scores: list[tuple[float | None, float]] | None = None, **values: Any) -> dict[str, Any]:
        left, saved, written = list(scores or [(0.5, 1.0)]), [], []

        def evaluate(*_: Any, **__: Any) -> Scores:
            accuracy, loss = left.pop(0) if len(left) > 1 else left[0]
            return Scores(loss, {"accuracy": accuracy}, {})

        def write(target: Any, _: Any, state: dict[str, Any]) -> None:
            (saved if target.name == "last" else written).append(state)

        monkeypatch.setattr(trainer_module, "evaluate", evaluate)
        monkeypatch.setattr(trainer_module, "write_checkpoint", write)
        monkeypatch.setattr(trainer_module.longscan.report, "run_report", lambda _: None)
        done = train(tiny(**values), tmp_path / "run", test=False)
        rows = read_rows(tmp_path / "run" / "metrics.jsonl")
        return {
            "train": [row["step"] for row in rows if row["split"] == "train"],
            "valid": [row["step"] for row in rows if row["split"] == "valid"],
            "saved": [state["step"] for state in saved],
            "best": [state["step"] for state in written],
            "result": done.result,
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
    ids=["saves between", "validates between", "all of them", "ends alone"],
)
def test_logs_validations_and_checkpoints(
    followed: Any, values: dict[str, int], train_steps: list[int], valid_steps: list[int], saved_steps: list[int]
) -> None:
    found = followed(**values)
    assert (found["train"], found["valid"], found["saved"]) == (train_steps, valid_steps, saved_steps)
    assert found["result"]["steps"] == values["steps"]
    assert not found["result"]["stopped_early"]


def test_patience_counts_validations_since_the_best(followed: Any) -> None:
    """Between equal accuracies the smaller loss is the better one; an equal pair is no improvement."""
    scores = [(None, 1.0), (0.5, 1.0), (0.4, 0.1), (0.5, 0.9), (0.5, 0.9), (0.49, 0.1), (0.4, 0.1), (0.9, 0.1)]
    found = followed(scores, steps=9, eval_every=1, patience=3)
    assert found["best"] == [1, 2, 4]
    assert [state["patience_used"] for state in found["states"]] == [0, 0, 1, 0, 1, 2, 3]
    assert found["states"][-1]["best"] == {"step": 4, "value": 0.5, "loss": 0.9}
    assert found["result"]["stopped_early"]
    assert found["result"]["valid"] == {"last": 0.4, "best": 0.5}


def test_no_patience_never_stops(followed: Any) -> None:
    found = followed([(0.5, 1.0)], steps=6, eval_every=1, patience=0)
    assert (found["valid"], found["result"]["stopped_early"]) == ([1, 2, 3, 4, 5, 6], False)


def test_solved_validations_are_counted_one_after_the_other(followed: Any) -> None:
    scores = [(0.9, 1.0), (0.8, 1.0), (0.95, 1.0), (None, 1.0), (0.9, 1.0), (0.9, 1.0), (0.9, 1.0)]
    found = followed(scores, steps=9, eval_every=1, solved_at=0.9, solved_for=2)
    assert found["valid"] == [1, 2, 3, 4, 5, 6]
    assert [state["solved_evaluations"] for state in found["states"]] == [1, 0, 1, 0, 1, 2]
    assert found["result"]["stopped_early"]


def trainer(settings: Any, folder: Any) -> Trainer:
    with torch.random.fork_rng(devices=[]):
        return Trainer(settings, folder, Accelerator(cpu=True), "as typed", resume=False, progress=False, test=True)


def test_endless_splits_need_numbers_of_batches(tiny: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = tiny(eval_batches=1, test_batches=1)
    monkeypatch.setattr(type(settings.task), "size", lambda *_: None)
    assert trainer(settings, tmp_path).engine.step == 0
    with pytest.raises(SettingError, match=r"`training\.eval_batches` must be a number of batches, as split valid of .*, got 0"):
        trainer(tiny(test_batches=1), tmp_path)
    with pytest.raises(SettingError, match=r"`training\.test_batches` must be a number of batches, as split test of .*, got 0"):
        trainer(tiny(eval_batches=1), tmp_path)


@pytest.mark.parametrize("number", [1, 2])
def test_scores_of_a_batch_are_means_over_the_processes(tiny: Any, tmp_path: Any, number: int) -> None:
    """Each process adds loss times weight, score times weight and the weight; the same on each of them here."""
    one = trainer(tiny(), tmp_path)
    other = torch.tensor([8.0, 1.0, 2.0])
    batch = one.task.batch("train", 0, 4, 0)
    result = StepResult((one.model(batch.inputs, valid=batch.valid), batch, 6.0), torch.zeros(()), None, 0.0)
    loss, score = one.batch_scores(result)
    one.accelerator = SimpleNamespace(num_processes=number, device="cpu", reduce=lambda x: x + other)  # type: ignore[assignment]
    one.engine.step = 1
    expected = (loss, score) if number == 1 else ((loss * 6 + 8) / 8, (score * 6 + 1) / 8)
    assert one.batch_scores(result) == pytest.approx(expected)


def test_a_run_puts_back_what_it_set_for_the_process(followed: Any) -> None:
    before = torch.get_num_threads()
    followed(steps=1, threads=before + 1)
    assert torch.get_num_threads() == before
    assert PartialState._shared_state == {}


def test_shares_of_processes() -> None:
    """Weights are the numbers of scored answers; the factors make the mean of the processes' gradients that of the batch."""
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


def test_a_callback_may_stop_a_run_before_its_first_validation(tiny: Any, tmp_path: Any) -> None:
    class Stop(Callback):
        def on_step_end(self, engine: Engine, result: StepResult) -> None:
            engine.stop_requested = True

    result = train(tiny(steps=4, eval_every=3, select="best"), tmp_path / "run", callbacks=[Stop()]).result
    assert result is not None
    assert (result["steps"], result["selected"], result["status"]) == (1, "last", "finished")
