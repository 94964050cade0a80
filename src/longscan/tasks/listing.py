"""What is known of a task without training on it: sizes, classes, length, the constant predictor, where its data come from."""

from dataclasses import fields, replace
from typing import Any, NamedTuple

from longscan.tasks.base import Task

_SIZES = {"train_size": 32, "valid_size": 32, "test_size": 256}  # of drawn sets, for the constant predictor's score


class Facts(NamedTuple):
    """sizes: of train, valid and test, None for an endless split; the rest None where the data are not at hand.

    at_hand: "drawn" where nothing is read, "yes" or "no" where files are; missing: what is said where they are not.
    """

    sizes: tuple[int | None, ...] | None
    classes: int | None
    length: int | None
    constant: float | None
    metric: str
    source: str
    at_hand: str
    missing: str | None = None


def facts(task: Task) -> Facts:
    """Look at a task. The constant score and the length of a drawn set are those of a small one of the same kind."""
    at_hand = "drawn" if task.source == "drawn" else "yes"
    changed: dict[str, Any] = {field.name: _SIZES[field.name] for field in fields(task) if field.name in _SIZES}
    try:
        small = replace(task, **changed) if at_hand == "drawn" else task
        sizes = tuple(task.size(split) for split in task.splits)
        return Facts(sizes, task.num_classes, small.length, small.constant_score("test"), task.metric, task.source, at_hand)
    except (FileNotFoundError, ImportError) as error:
        return Facts(None, None, None, None, task.metric, task.source, "no", str(error))
