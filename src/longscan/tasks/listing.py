"""Facts about a task without training on it: sizes, classes, length, constant score, and where its data come from."""

from dataclasses import fields, replace
from typing import Any, NamedTuple

from longscan.tasks.base import Task

# sizes of generated sets from which the constant score is computed
_SMALL_SIZES = {"train_size": 32, "valid_size": 32, "test_size": 256}


class TaskFacts(NamedTuple):
    """A row of `longscan tasks`; sizes, classes, length and constant are None if the data are not available.

    sizes: of train, valid and test, None for an endless split. constant: the constant score on test. available: "generated" if
    the task reads no files, else "yes" or "no". missing: the error message that names the missing files.
    """

    sizes: tuple[int | None, ...] | None
    classes: int | None
    length: int | None
    constant: float | None
    metric: str
    source: str
    available: str
    missing: str | None = None


def task_facts(task: Task) -> TaskFacts:
    """Return the facts about a task. Constant score and length of a generated set are those of a smaller set of the same kind."""
    available = "generated" if task.source == "generated" else "yes"
    changed: dict[str, Any] = {field.name: _SMALL_SIZES[field.name] for field in fields(task) if field.name in _SMALL_SIZES}
    try:
        small = replace(task, **changed) if available == "generated" else task
        sizes = tuple(task.size(split) for split in task.splits)
        return TaskFacts(sizes, task.num_classes, small.length, small.constant_score("test"), task.metric, task.source, available)
    except (FileNotFoundError, ImportError) as error:
        return TaskFacts(None, None, None, None, task.metric, task.source, "no", str(error))
