"""Check of what a task returns, before training starts: errors of a task that a user wrote name the method and the value."""

import math

import torch
from torch import Tensor

from longscan._errors import SettingError, quote
from longscan.tasks import TASKS, Batch, Task
from longscan.tasks.classification import IGNORE_INDEX


def check_task(task: Task, batch: object) -> None:
    """Raise SettingError unless the names of metric and classes, and the first training batch, are possible.

    The steps that `loss_mask` scores must not be padding, and scored targets of tasks with classes must be classes.
    """
    if TASKS.get(getattr(task, "name", "")) is not type(task):
        raise SettingError(f"`task` must be of a class that `@TASKS.register(NAME)` registers, got {type(task).__name__}")
    metrics = task.metrics("valid")
    if task.metric not in metrics:
        raise SettingError(f"`metric` of task {task.name} must be one of {', '.join(metrics)}, got {task.metric!r}")
    if task.num_classes is not None and len(task.classes or ()) != task.num_classes:
        needed = f"a name for each of the {task.num_classes} classes"
        raise SettingError(f"`classes` of task {task.name} must have {needed}, got {quote(task.classes)}")
    if not isinstance(batch, Batch):
        raise _batch_error(task, "a longscan.tasks.Batch", type(batch).__name__)
    for name, tensor in batch._asdict().items():
        if tensor is not None and not isinstance(tensor, Tensor):
            raise _batch_error(task, f"tensors, as `{name}`", type(tensor).__name__)
    if batch.targets is None:
        raise _batch_error(task, "`targets`", "None")
    if batch.targets.shape[:1] != batch.inputs.shape[:1]:
        raise _batch_error(task, f"`targets` for {len(batch.inputs)} examples", f"shape {tuple(batch.targets.shape)}")
    scored = _scored_targets(task, batch)
    if task.num_classes is not None and not scored.is_floating_point():
        _check_classes(task, scored)


def check_constant(task: Task, score: object) -> None:
    """Raise SettingError unless a constant score is a finite number."""
    if isinstance(score, bool) or not isinstance(score, (int, float)) or not math.isfinite(score):
        raise SettingError(f"`constant_score` of task {task.name} must return a finite number, got {quote(score)}")


def _scored_targets(task: Task, batch: Batch) -> Tensor:
    """Return the targets that are scored. Raises SettingError for a loss mask of another form, or one that covers padding."""
    mask, targets = batch.loss_mask, batch.targets
    assert targets is not None
    has_padding = batch.valid is not None and not bool(batch.valid.all())
    if mask is None and task.per_step and task.num_classes is not None and has_padding:  # regression leaves out padding itself
        raise _batch_error(task, "a `loss_mask`, as it has padding, which must not be scored", "None")
    if mask is None:
        return targets
    if mask.dtype != torch.bool:
        raise _batch_error(task, "a `loss_mask` of dtype torch.bool", str(mask.dtype))
    if targets.shape[:2] != mask.shape:
        raise _batch_error(task, f"a `loss_mask` (B, L) like `targets` {tuple(targets.shape)}", f"shape {tuple(mask.shape)}")
    if not mask.any():
        raise _batch_error(task, "a `loss_mask` that is True at one step at least", "none")
    if batch.valid is not None and batch.valid.shape == mask.shape and bool((mask & ~batch.valid.bool()).any()):
        row, step = (mask & ~batch.valid.bool()).nonzero()[0].tolist()
        raise _batch_error(task, "a `loss_mask` that is False at padding", f"True at step {step} of row {row}")
    return targets[mask]


def _check_classes(task: Task, scored: Tensor) -> None:
    if scored.dtype not in (torch.int64, torch.uint8):
        raise _batch_error(task, "`targets` of dtype torch.int64", str(scored.dtype))
    count = task.num_classes
    assert count is not None
    wrong = scored[((scored < 0) & (scored != IGNORE_INDEX)) | (scored >= count)]
    if len(wrong):
        raise _batch_error(task, f"`targets` from 0 to {count - 1}", str(int(wrong[0])))


def _batch_error(task: Task, needed: str, got: str) -> SettingError:
    return SettingError(f"`batch` of task {task.name} must return {needed}, got {got}")
