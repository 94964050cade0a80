"""Properties of every registered task, with its default settings and with each choice of each setting."""

import json
from dataclasses import asdict, dataclass, fields, replace
from math import log
from typing import get_type_hints

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from longscan.tasks import TASKS, Batch, Task
from longscan.tasks.classification import ClassificationTask
from longscan.tasks.dynamics import HumanActivity
from longscan.tasks.forecasting import Forecast
from longscan.tasks.formal import WordTask
from longscan.tasks.language import LanguageTask
from longscan.tasks.lra import LraImage, Pathfinder
from longscan.tasks.regression import RegressionTask
from longscan.tasks.series import SeriesForecast
from task_variants import VARIANTS, choices, make_small

LABELLED = [v for v in VARIANTS if isinstance(v.values[0], ClassificationTask)]
LANGUAGES = [v for v in LABELLED if isinstance(v.values[0], LanguageTask)]
CLASSIFIERS = [v for v in LABELLED if not isinstance(v.values[0], LanguageTask)]
REGRESSORS = [v for v in VARIANTS if isinstance(v.values[0], RegressionTask)]
# With this scope pytest runs all tests of a task one after another, so that its data are read or generated once.
every_variant = pytest.mark.parametrize("task", VARIANTS, scope="module")
every_labelled = pytest.mark.parametrize("task", LABELLED, scope="module")
every_classifier = pytest.mark.parametrize("task", CLASSIFIERS, scope="module")
every_language = pytest.mark.parametrize("task", LANGUAGES, scope="module")
every_regressor = pytest.mark.parametrize("task", REGRESSORS, scope="module")
every_class = pytest.mark.parametrize("cls", [pytest.param(cls, id=name) for name, cls in TASKS.items()])


def are_equal(first: Batch, second: Batch) -> bool:
    return all((a is None and b is None) or torch.equal(a, b) for a, b in zip(first, second, strict=True))


def example_bytes(task: Task, batch: Batch) -> list[bytes]:
    """Return the inputs of each example as bytes: words up to their answer, whole windows of text, numbers of valid steps."""
    rows = []
    for row, inputs in enumerate(batch.inputs):
        steps = slice(None)
        if batch.loss_mask is not None and batch.inputs.dtype == torch.int64 and not isinstance(task, LanguageTask):
            steps = slice(int(batch.loss_mask[row].int().argmax()) + 1)
        elif batch.valid is not None:
            steps = batch.valid[row]
        rows.append(inputs[steps].numpy().tobytes())
    return rows


def scored_targets(batch: Batch) -> Tensor:
    return batch.targets if batch.loss_mask is None else batch.targets[batch.loss_mask]


def list_batches(task: Task, split: str, batch_size: int = 64) -> list[Batch]:
    """Return the batches of a finite split, or of the first 256 examples of a stream."""
    count = task.num_batches(split, batch_size)
    return [task.batch(split, step, batch_size) for step in range(4 if count is None else count)]


def make_outputs(task: Task, batch: Batch, targets: Tensor) -> Tensor:
    """Return model outputs that predict `targets`: logits with nearly all probability on a class, or the numbers themselves."""
    if targets.is_floating_point():
        return targets
    return torch.nn.functional.one_hot(targets.clamp(min=0), task.num_classes).float() * 50


def compute_score(task: Task, split: str, constant: int | None) -> float:
    """Return the main metric of predicting the class `constant` for every example, or the targets if it is None."""
    metrics = task.metrics(split)
    for batch in list_batches(task, split):
        assert batch.targets is not None
        predictions = batch.targets if constant is None else torch.full_like(batch.targets, constant)
        task.update(metrics, make_outputs(task, batch, predictions), batch)
    assert next(iter(metrics)) == task.metric
    values = {name: metric.compute() for name, metric in metrics.items()}
    assert all(value.ndim == (2 if name == "confusion" else 0) for name, value in values.items())
    return values[task.metric].item()


@every_class
def test_a_task_is_registered_under_its_name(cls):
    assert TASKS[cls.name] is cls
    assert cls.__doc__
    assert " | " in cls.__doc__, "the docstring has an example"


@every_variant
def test_batch_depends_only_on_its_arguments(task):
    equal_task = replace(task)
    assert equal_task == task
    assert hash(equal_task) == hash(task)
    for split in task.splits:
        last = 1 if split == "train" else task.num_batches(split, 16) - 1
        forwards = [task.batch(split, step, 16, seed=3) for step in (0, last)]
        backwards = [equal_task.batch(split, step, 16, seed=3) for step in (last, 0)]
        assert all(are_equal(a, b) for a, b in zip(forwards, reversed(backwards), strict=True))


@dataclass
class TrainingBatches(Dataset):
    task: Task

    def __len__(self) -> int:
        return 6

    def __getitem__(self, step: int) -> Batch:
        return self.task.batch("train", step, 8, seed=1)


@pytest.mark.parametrize("name", ["parity", "uea", "lra_text"])
def test_data_loader_workers_give_the_same_batches(name):
    task = make_small(TASKS[name])
    alone = [task.batch("train", step, 8, seed=1) for step in range(6)]
    loaded = DataLoader(TrainingBatches(task), batch_size=None, num_workers=2)
    assert all(are_equal(a, b) for a, b in zip(alone, loaded, strict=True))


@every_variant
def test_whole_numbers_of_numpy_give_the_batches_of_whole_numbers(task):
    batches = [replace(task).batch("train", kind(1), kind(8), seed=kind(3)) for kind in (int, np.int64)]
    assert are_equal(*batches)


@every_class
def test_only_whole_numbers_select_a_batch(cls):
    task = make_small(cls)
    others = ("step", 1.0), ("step", True), ("batch_size", 2.5), ("batch_size", None), ("seed", "1"), ("seed", 3.0)
    for argument, value in others:
        with pytest.raises(ValueError, match=f"`{argument}` must be a whole number of at least"):
            task.batch("train", **{"step": 0, "batch_size": 8, "seed": 3, argument: value})


def has_fixed_order(task):
    """Return whether training batches are the same in every epoch and for every seed, as in the AUSSM repository."""
    return getattr(task, "protocol", None) == "aussm" or getattr(task, "order", None) == "time"


@every_variant
def test_training_batches_differ_between_steps_and_seeds(task):
    first = task.batch("train", 0, 16)
    assert not are_equal(first, task.batch("train", 1, 16))
    assert are_equal(first, task.batch("train", 0, 16, seed=1)) == has_fixed_order(task)


@every_variant
def test_batches_have_the_declared_shapes_dtypes_and_ranges(task):
    assert (task.vocab_size is None) != (task.d_input is None)
    if isinstance(task, ClassificationTask):
        assert task.d_output == task.num_classes == len(task.classes)
    else:
        assert task.num_classes is None
        assert task.classes is None
    assert task.symbols is None or len(task.symbols) == len(set(task.symbols)) == task.vocab_size
    longest = 0
    for split in task.splits:
        for batch in list_batches(task, split)[:3]:
            pair = (2,) if task.is_pair else ()
            count, length = batch.inputs.shape[0], batch.inputs.shape[1 + len(pair)]
            longest = max(longest, length)
            if task.vocab_size is None:
                assert (batch.inputs.dtype, batch.inputs.shape) == (torch.float32, (count, length, task.d_input))
                assert batch.inputs.isfinite().all()
            else:
                assert (batch.inputs.dtype, batch.inputs.shape) == (torch.int64, (count, *pair, length))
                assert 0 <= batch.inputs.min() <= batch.inputs.max() < task.vocab_size
            scored = scored_targets(batch)
            if task.num_classes is None:
                expected = (count, length, task.d_output) if task.per_step else (count, task.d_output)
                assert (batch.targets.dtype, batch.targets.shape) == (torch.float32, expected)
                assert scored.isfinite().all()
            else:
                expected = (count, length) if task.per_step else (count,)
                assert (batch.targets.dtype, batch.targets.shape) == (torch.int64, expected)
                assert 0 <= scored.min() <= scored.max() < task.num_classes
            if batch.valid is not None:
                assert (batch.valid.dtype, batch.valid.shape) == (torch.bool, (count, *pair, length))
                assert batch.valid[..., 0].all(), "padding is on the right"
                assert (batch.valid.int().diff(dim=-1) <= 0).all(), "one run of valid steps per row"
            if batch.loss_mask is not None:
                assert batch.loss_mask.shape == (count, length)
                assert batch.loss_mask.any(1).all()
                assert batch.valid is None or not (batch.loss_mask & ~batch.valid).any()
            if batch.elapsed is not None:
                assert (batch.elapsed.dtype, batch.elapsed.shape) == (torch.float32, (count, length))
                assert (batch.elapsed >= 0).all()
    assert longest == task.length


@every_variant
def test_finite_splits_are_complete_for_any_batch_size(task):
    for split in ("valid", "test"):
        size = task.size(split)
        small_batches = [example for batch in list_batches(task, split, 7) for example in example_bytes(task, batch)]
        large_batches = [example for batch in list_batches(task, split, 64) for example in example_bytes(task, batch)]
        assert len(small_batches) == size
        assert small_batches == large_batches
        with pytest.raises(IndexError, match=split):
            task.batch(split, task.num_batches(split, 7), 7)


@every_variant
def test_epoch_has_each_training_example_once(task):
    size = task.size("train")
    if size is None:
        assert task.num_batches("train", 7) is None
        return
    batches = task.num_batches("train", 7)
    steps = (range(batches), range(batches, 2 * batches))
    epochs = [[example for step in epoch for example in example_bytes(task, task.batch("train", step, 7))] for epoch in steps]
    if task.name == "uea" and task.protocol == "linoss":  # this protocol drops the last batch of an epoch
        assert len(epochs[0]) == len(epochs[1]) == (size - 1) // 7 * 7
        assert len(set(epochs[0])) == len(epochs[0])
        return
    assert len(epochs[0]) == size
    assert sorted(epochs[0]) == sorted(epochs[1])
    assert (epochs[0] == epochs[1]) == has_fixed_order(task)


@every_variant
def test_splits_are_disjoint(task):
    examples = [
        {example for batch in list_batches(task, split) for example in example_bytes(task, batch)} for split in task.splits
    ]
    assert not examples[0] & examples[1]
    assert not examples[0] & examples[2]
    if task.name == "lra_text" and task.holdout == "lra":  # that protocol validates on test
        assert examples[1] == examples[2]
    else:
        assert not examples[1] & examples[2]


@every_classifier
def test_constant_score_is_the_score_of_the_best_constant(task):
    present = torch.cat([scored_targets(batch) for batch in list_batches(task, "valid")]).unique().tolist()
    absent = [constant for constant in range(task.num_classes) if constant not in present][:1]
    scores = [compute_score(task, "valid", constant) for constant in present + absent]
    assert task.constant_score("valid") == pytest.approx(max(scores), abs=1e-6)
    assert sum(scores) == pytest.approx(1, abs=1e-5)


@every_classifier
def test_correct_predictions_score_one(task):
    assert compute_score(task, "test", None) == 1
    assert task.higher_is_better
    assert task.scaled(1) == 1
    assert task.scaled(1 / task.num_classes) == pytest.approx(0, abs=1e-12)


@every_regressor
def test_correct_predictions_have_no_error(task):
    assert compute_score(task, "test", None) == 0
    assert not task.higher_is_better
    assert task.scaled(0) == 1
    assert task.scaled(task.constant_score()) == 0
    assert next(iter(task.baselines("test").items())) == ("constant", task.constant_score())
    assert task.constant_score() > 0


@every_regressor
def test_no_constant_has_a_smaller_error_than_constant_score(task):
    if isinstance(task, Forecast) and (task.level, task.channels) != ("kept", "together"):
        assert task.constant_score("valid") == replace(task, level="kept", channels="together").constant_score("valid")
        return
    if isinstance(task, SeriesForecast):  # targets are less the level, the constants are values of the table
        pytest.skip("tests/tasks/test_series_forecast.py compares the constant")
    targets = torch.cat([scored_targets(batch).flatten(0, -2) for batch in list_batches(task, "valid")]).double()
    best = targets.median(0).values if task.metric == "mae" else targets.mean(0)

    def error(constant: Tensor) -> float:
        metric = task.metrics("valid")[task.metric].double()
        metric.update(constant.expand_as(targets).reshape(-1), targets.reshape(-1))
        return metric.compute().item()

    assert task.constant_score("valid") == pytest.approx(error(best), rel=1e-4)
    for step in (-0.1, 0.1):
        assert error(best + step * targets.std(0)) > task.constant_score("valid")


def assert_loss(task: Task, batch: Batch, output: Tensor, mean: object) -> None:
    """Assert that the loss is `mean` for each scored target, in float32, and has gradients at scored steps only."""
    assert task.loss(output, batch).item() == mean
    total = task.loss(output, batch, reduction="sum")
    assert total.item() / scored_targets(batch).numel() == mean
    total.backward()
    has_gradient = (output.grad != 0).any(-1)
    assert has_gradient.all() if batch.loss_mask is None else torch.equal(has_gradient, batch.loss_mask)
    assert task.loss(output.bfloat16(), batch).dtype == torch.float32


@every_regressor
def test_regression_loss_is_the_squared_error(task):
    batch = task.batch("valid", 0, 5)
    output = (batch.targets + 2).requires_grad_()
    assert_loss(task, batch, output, pytest.approx(4, rel=1e-4))
    metrics = task.metrics("valid")
    task.update(metrics, output, batch)
    expected = {"mse": 4, "mae": 2, "rmse": 2}
    assert {name: metric.compute().item() for name, metric in metrics.items()} == pytest.approx(expected, rel=1e-4)
    assert next(iter(metrics)) == task.metric
    rows = task.decode(output.detach(), batch)
    assert len(rows) == len(scored_targets(batch).flatten(0, -2))
    assert list(rows[0]) == [*(("example", "step") if task.per_step else ()), *task.variables]


@every_language
def test_bits_per_token_are_those_of_uniform_and_certain_predictions(task):
    uniform, certain = task.metrics("test"), task.metrics("test")
    for batch in list_batches(task, "test"):
        task.update(uniform, torch.zeros(*batch.targets.shape, task.num_classes), batch)
        task.update(certain, make_outputs(task, batch, batch.targets), batch)
    bits = uniform["bits"].compute().item()
    assert bits == pytest.approx(log(task.num_classes) / log(2), rel=1e-5)
    assert certain["bits"].compute() < 1e-6
    assert 0 < task.constant_score() < bits
    assert task.scaled(task.constant_score()) == 0
    assert not task.higher_is_better


@every_labelled
def test_loss_of_uniform_predictions_is_log_of_number_of_classes(task):
    batch = task.batch("valid", 0, 5)
    output = torch.zeros(*batch.targets.shape, task.num_classes, requires_grad=True)
    assert_loss(task, batch, output, pytest.approx(log(task.num_classes), rel=1e-5))


@every_variant
def test_described_examples_can_be_read_as_inputs(task, tmp_path):
    batch = task.batch("valid", 0, 4)
    text = [task.describe(batch, row) for row in range(4)]
    assert task.example("valid") == text[0]
    assert all(line.count(" | ") == 1 for line in text)
    if not isinstance(task, WordTask) or (task.uses_teacher_forcing and batch.loss_mask.sum() > 4):
        return
    path = tmp_path / "questions.txt"
    path.write_text("\n\n".join(text))
    read_batch = task.read_inputs(path)
    assert read_batch.targets is None
    assert [task.describe(read_batch, row) for row in range(4)] == [line.split(" | ")[0] for line in text]
    length = read_batch.inputs.shape[1]
    assert torch.equal(read_batch.loss_mask, batch.loss_mask[:, :length])
    assert torch.equal(read_batch.valid, batch.valid[:, :length])
    rows = task.decode(make_outputs(task, batch, batch.targets[:, :length]), read_batch)
    assert [f"{row['question']} | {row['answer']}" for row in rows] == text
    assert all(row["probability"] > 0.99 for row in rows)


@every_class
def test_loss_and_update_without_targets_raise(cls):
    task = make_small(cls)
    batch = task.batch("valid", 0, 3)
    output = make_outputs(task, batch, torch.zeros_like(batch.targets))
    for function in (task.loss, lambda output, batch: task.update(task.metrics("valid"), output, batch)):
        with pytest.raises(ValueError, match=r"^`batch` must have targets"):
            function(output, batch._replace(targets=None))


@every_class
def test_batch_to_moves_all_tensors(cls):
    batch = make_small(cls).batch("valid", 0, 3)
    moved = batch.to("meta")
    assert [part is None for part in moved] == [part is None for part in batch]
    assert {part.device.type for part in moved if part is not None} == {"meta"}


@every_variant
def test_settings_round_trip_through_json(task):
    assert type(task)(**json.loads(json.dumps(asdict(task)))) == task


@every_class
@pytest.mark.parametrize(
    ("arguments", "name"),
    [(("dev", 0, 4), "split"), (("train", -1, 4), "step"), (("train", 0, 0), "batch_size"), (("train", 0, 4, -1), "seed")],
)
def test_invalid_arguments_of_batch_raise(cls, arguments, name):
    with pytest.raises(ValueError, match=f"^`?{name}"):
        make_small(cls).batch(*arguments)


@every_class
def test_unknown_settings_and_choices_raise(cls):
    with pytest.raises(TypeError, match="no_such_setting"):
        cls(no_such_setting=1)
    hints = get_type_hints(cls)
    names = [field.name for field in fields(cls) if any(isinstance(choice, str) for choice in choices(hints[field.name]))]
    for name in names:
        with pytest.raises(ValueError, match=f"^`?{name}`?.*nonsense"):
            cls(**{name: "nonsense"})


@every_class
def test_missing_or_empty_file_raises_with_its_name(cls, tmp_path):
    if cls.read_inputs is Task.read_inputs:
        with pytest.raises(ValueError, match="does not define read_inputs"):
            make_small(cls).read_inputs(tmp_path / "none.txt")
        return
    task = make_small(cls)
    reads_text = task.d_input is None or isinstance(task, HumanActivity | Forecast | LraImage | Pathfinder)
    suffix = "bin" if cls.name == "events" else "txt" if reads_text else "csv"
    with pytest.raises(ValueError, match=f"none.{suffix} cannot be read: No such file"):
        task.read_inputs(tmp_path / f"none.{suffix}")
    path = tmp_path / f"empty.{suffix}"
    path.write_text("")
    with pytest.raises(
        ValueError, match=f"empty.{suffix}(:1:)? (must contain|cannot be read|the header must be|must be a FASTA)"
    ):
        task.read_inputs(path)
