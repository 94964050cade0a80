"""Errors of a task that a user wrote: they name the method and the value, before the first update."""

import dataclasses

import pytest
import torch

from longscan._errors import SettingError
from longscan.tasks import TASKS, Batch, ClassificationTask, check_request
from longscan.training import ModelSettings, Settings, TrainingSettings, train


@dataclasses.dataclass(frozen=True)
class LastLetter(ClassificationTask):
    """Repeat each letter of a word, of which the last two steps of the first row are padding."""

    vocab_size = num_classes = 3
    d_input = None
    per_step = True
    length = 6

    def size(self, split):
        return None if split == "train" else 8

    def batch(self, split, step, batch_size, seed=0):
        check_request(self, split, step, batch_size, seed)
        inputs = torch.arange(batch_size * self.length).view(batch_size, self.length) % 3
        valid = torch.ones_like(inputs, dtype=torch.bool)
        valid[0, 4:] = False
        return self.change(Batch(inputs, inputs.clone(), valid, loss_mask=valid.clone()))

    def change(self, batch):
        return batch

    def constant_score(self, split="test"):
        return 1 / 3

    def describe(self, batch, row=0):
        return str(batch.unpadded(row).tolist())


@pytest.fixture(autouse=True)
def registered():
    """Register the task during a test."""
    TASKS.register("last_letter")(LastLetter)
    yield
    del TASKS["last_letter"]


def start(task, folder):
    training = TrainingSettings(steps=1, batch_size=4, trackers=[])
    return train(Settings(task=task, model=ModelSettings(spec="gru", d_model=4), training=training), folder)


def test_a_task_that_names_no_classes_is_trained_with_their_numbers(tmp_path):
    run = start(LastLetter(), tmp_path / "run")
    assert LastLetter().classes == ("0", "1", "2")
    assert run.result["status"] == "finished"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (tuple, "must return a longscan.tasks.Batch, got tuple"),
        (lambda b: b._replace(inputs=b.inputs.numpy()), "must return tensors, as `inputs`, got ndarray"),
        (lambda b: b._replace(targets=None), "must return `targets`, got None"),
        (lambda b: b._replace(targets=b.targets[1:]), r"must return `targets` for 4 examples, got shape \(3, 6\)"),
        (lambda b: b._replace(targets=b.targets + 1), "must return `targets` from 0 to 2, got 3"),
        (lambda b: b._replace(targets=b.targets.int()), "must return `targets` of dtype torch.int64, got torch.int32"),
        (lambda b: b._replace(loss_mask=b.loss_mask.long()), "must return a `loss_mask` of dtype torch.bool, got torch.int64"),
        (
            lambda b: b._replace(loss_mask=b.loss_mask[:, 1:]),
            r"a `loss_mask` .* like `targets` \(4, 6\), got shape \(4, 5\)",
        ),
        (lambda b: b._replace(loss_mask=~b.loss_mask), "`loss_mask` that is False at padding, got True at step 4 of row 0"),
        (lambda b: b._replace(loss_mask=b.loss_mask & False), "a `loss_mask` that is True at one step at least, got none"),
        (
            lambda b: b._replace(loss_mask=None),
            "must return a `loss_mask`, as it has padding, .* got None",
        ),
    ],
)
def test_a_batch_that_cannot_be_scored_is_an_error(change, message, tmp_path, monkeypatch):
    monkeypatch.setattr(LastLetter, "change", lambda _, batch: change(batch))
    with pytest.raises(SettingError, match=f"^`batch` of task last_letter .*{message}"):
        start(LastLetter(), tmp_path / "run")


@pytest.mark.parametrize(
    ("attribute", "value", "message"),
    [
        ("metric", "acuracy", "`metric` of task last_letter must be one of accuracy, got 'acuracy'"),
        ("classes", ("a", "b"), r"`classes` of task last_letter must have a name for each of the 3 classes, got \('a', 'b'\)"),
        (
            "constant_score",
            lambda *_: None,
            "`constant_score` of task last_letter must return a finite number, got None",
        ),
        ("constant_score", lambda *_: float("nan"), "must return a finite number, got nan"),
    ],
)
def test_a_wrong_attribute_of_a_task_is_an_error(attribute, value, message, tmp_path, monkeypatch):
    monkeypatch.setattr(LastLetter, attribute, value)
    with pytest.raises(SettingError, match=message):
        start(LastLetter(), tmp_path / "run")


def test_a_task_that_is_not_registered_is_an_error(tmp_path):
    class Unregistered(LastLetter):
        pass

    with pytest.raises(SettingError, match=r"`task` must be of a class that `@TASKS.register.NAME.` registers, .* Unregistered"):
        start(Unregistered(), tmp_path / "run")


def test_an_incomplete_task_is_listed_with_what_it_lacks(capsys):
    from longscan.cli import main

    @TASKS.register("incomplete")
    class Incomplete(LastLetter):
        """Lacks a method."""

        constant_score = ClassificationTask.constant_score

    try:
        assert main(["tasks"]) == 0
    finally:
        del TASKS["incomplete"]
    assert "incomplete  " in (listed := capsys.readouterr().out)
    assert "cannot be used, as it does not define constant_score" in " ".join(listed.split())
