"""The loss and the metrics of a model on a split of a task, and the rotation angles of its AUSSM layers by input symbol."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from math import isfinite, nan
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from longscan.layers import AUSSM
from longscan.tasks import Batch, Task
from longscan.tasks.base import Split

MIN_ERRORS = 20  # smallest number of examples from whose errors quantiles are computed
# Largest number of elements of the outputs of a batch that are scored on the CPU. Scoring reads a dozen values, and on a GPU each
# read waits for the work of other processes on that GPU; a copy of the outputs waits only once.
MAX_CPU_ELEMENTS = 2**22


class Scores(NamedTuple):
    """Loss and metrics of a model on a split.

    loss: mean over the scored answers. values: the scalar metrics by name, the task's main metric first; None for a metric
    without scored answers (such as an empty length bucket). tables: the other metrics as nested lists ("confusion").
    """

    loss: float
    values: dict[str, float | None]
    tables: dict[str, list[Any]]


def scored_answers(batch: Batch, task: Task) -> Tensor:
    """Return the number of answers in the mean loss of a batch, up to a constant factor, as a scalar."""
    if batch.loss_mask is not None:
        return batch.loss_mask.sum()
    if task.per_step and batch.valid is not None:
        return batch.valid.sum()
    rows, steps = batch.inputs.shape[:2]
    return torch.tensor(rows * steps if task.per_step else rows)


def predict(model: nn.Module, batch: Batch) -> Tensor:
    """Return the model's output on a batch with its elapsed times, mask and packing. For pairs the model is a `SiameseModel`."""
    if batch.inputs.ndim == 3 + batch.inputs.is_floating_point():  # pairs of sequences, of tasks with `is_pair`
        parts: dict[str, Tensor] = {}
        for name, part in (("valid", batch.valid), ("elapsed", batch.elapsed)):
            if part is not None:
                parts[f"{name}_first"], parts[f"{name}_second"] = part.unbind(1)
        output: Tensor = model(*batch.inputs.unbind(1), **parts)
    else:
        output = model(batch.inputs, elapsed=batch.elapsed, valid=batch.valid, seq_idx=batch.seq_idx)
    return output


@torch.no_grad()
def error_quantiles(
    model: nn.Module, batches: Sequence[Batch], levels: Sequence[float], batch_size: int, steps: Tensor | None = None
) -> Tensor | None:
    """Return quantiles of target - output at each of S steps, (Q, S, C) float64 on the CPU, of a regression task.

    steps: (L,) bool, the S steps; None: those that are scored in any example. The quantiles of a step are over the examples in
    which it is scored. None if one of the steps is scored in fewer than MIN_ERRORS examples, if the lengths of batches differ,
    or if the padding of examples differs in batches without a loss mask.
    """
    device = next(model.parameters()).device
    masks = [_scored_steps(batch) for batch in batches]
    if len({mask.shape[1] for mask in masks}) != 1:
        return None
    steps = torch.cat(masks).any(0) if steps is None else steps
    has_padding = (batch.loss_mask is None and bool((mask != steps).any()) for batch, mask in zip(batches, masks, strict=True))
    if any(has_padding) or int(torch.cat(masks)[:, steps].sum(0).min()) < MIN_ERRORS:
        return None
    errors: list[Tensor] = []
    for batch, mask in zip(batches, masks, strict=True):
        assert batch.targets is not None
        parts = [batch.rows(first, batch_size) for first in range(0, len(batch.inputs), batch_size)]
        output = torch.cat([predict(model, part.to(device)).float().cpu() for part in parts])
        errors.append((batch.targets - output)[:, steps].masked_fill(~mask[:, steps, None], nan))
    together = torch.cat(errors).double().numpy()
    quantile = np.quantile if all(bool(mask[:, steps].all()) for mask in masks) else np.nanquantile  # the latter is slower
    return torch.from_numpy(quantile(together, list(levels), axis=0))


def _scored_steps(batch: Batch) -> Tensor:
    """Return which steps of a batch of a task with an answer at each step are scored, (B, L) bool."""
    if batch.loss_mask is not None:
        return batch.loss_mask
    return torch.ones(batch.inputs.shape[:2], dtype=torch.bool) if batch.valid is None else batch.valid


@torch.no_grad()
def evaluate(
    model: nn.Module,
    task: Task,
    split: Split,
    *,
    batch_size: int,
    seed: int = 0,
    max_batches: int = 0,
    autocast: Callable[[], AbstractContextManager[None]] = nullcontext,
    predict: Callable[[nn.Module, Batch], Tensor] = predict,
) -> Scores:
    """Return loss and metrics over a split, or over `max_batches` of its batches.

    Of a finite split, evenly spaced batches are scored, because examples are often sorted by class and the first batches may have
    a single class. Of an endless split, the first batches are scored. The model is in evaluation mode meanwhile, and returns to
    its former mode. `predict` returns the outputs of the model on a batch. Raises ValueError for an endless split without
    `max_batches`.
    """
    device = next(model.parameters()).device
    scorer = Scorer(task, split)
    was_training = model.training
    model.eval()
    try:
        for step in evaluated_steps(task, split, batch_size, max_batches):
            batch = task.batch(split, step, batch_size, seed)
            if device.type == "cuda":
                batch = batch.pin_memory()
            on_device = batch.to(device)
            with autocast():
                output = predict(model, on_device)
            scorer.add(output, batch, on_device)
    finally:
        model.train(was_training)
    return scorer.scores()


def evaluated_steps(task: Task, split: Split, batch_size: int, max_batches: int) -> Sequence[int]:
    """Return the indices of the batches that `evaluate` scores. Raises ValueError for an endless split without `max_batches`."""
    batches = task.num_batches(split, batch_size)
    if batches is None and not max_batches:
        raise ValueError(f"`max_batches` must be a number of batches, as split {split!r} of {task.name} is endless, got 0")
    if batches is not None and 0 < max_batches < batches:
        return [number * batches // max_batches for number in range(max_batches)]
    return range(max_batches if batches is None else batches)


class Scorer:
    """Accumulates the loss and the metrics of a split from the outputs of a model on one batch after another."""

    def __init__(self, task: Task, split: Split) -> None:
        self._task, self._metrics = task, task.metrics(split)
        for metric in self._metrics.values():
            metric.distributed_available_fn = distributed_available
        self._device: torch.device | None = None  # where outputs are scored, chosen by the first one
        self._total, self._count = 0.0, 0.0

    def add(self, output: Tensor, batch: Batch, on_device: Batch) -> None:
        """Score the output on a batch, which is given on the CPU and on the device of the output."""
        if self._device is None:
            self._device = torch.device("cpu") if output.numel() <= MAX_CPU_ELEMENTS else output.device
            self._metrics = {name: metric.to(self._device) for name, metric in self._metrics.items()}
        if self._device == output.device:
            batch = on_device
        else:
            output = _copy_scored_steps(output, batch)
        answers = float(scored_answers(batch, self._task))
        if not answers:  # its mean loss is NaN
            return
        self._total += float(self._task.loss(output, batch)) * answers
        self._count += answers
        self._task.update(self._metrics, output, batch)

    def scores(self) -> Scores:
        """Return the loss and the metrics over all batches; NaN and None if no batch had a scored answer."""
        values: dict[str, float | None] = {}
        tables: dict[str, list[Any]] = {}
        for name, metric in self._metrics.items():
            value = metric.compute() if metric.update_called else torch.tensor(torch.nan)
            if value.ndim:
                tables[name] = value.tolist()
            else:
                values[name] = finite_or_none(round(value.item(), 7))
        return Scores(self._total / self._count if self._count else nan, values, tables)


def _copy_scored_steps(output: Tensor, batch: Batch) -> Tensor:
    """Return an output on the CPU, where the steps that are not scored are 0: most tasks with a loss mask score few steps."""
    if batch.loss_mask is None:
        return output.cpu()
    scored = batch.loss_mask.nonzero(as_tuple=True)
    copied = torch.zeros(output.shape, dtype=output.dtype)
    copied[scored] = output[tuple(index.to(output.device) for index in scored)].cpu()
    return copied


def distributed_available() -> bool:
    """Return False, so that the metrics of a process are those of its own outputs and torchmetrics exchanges no states.

    This function replaces a metric's `distributed_available_fn`. The argument `sync_on_compute` could be given only when a metric
    is constructed. An exchange would fail, because the states are on the CPU, which NCCL does not support.
    """
    return False


def finite_or_none(value: float) -> float | None:
    """Return the value, or None if it is infinite or NaN, which JSON cannot represent."""
    return value if isfinite(value) else None


@torch.no_grad()
def symbol_angles(model: nn.Module, task: Task) -> dict[str, Any]:
    """Return {layer name: {"symbols": [...], "theta": [[D * N angles in radians] for each symbol]}}.

    Empty for a model without AUSSM layers and for a task without symbols. The angles of a symbol are those for a sequence of this
    symbol alone, after the blocks below the layer and the layer's own projection and convolution; inside a longer sequence they
    also depend on the symbols before.
    """
    layers = {name: module for name, module in model.named_modules() if isinstance(module, AUSSM)}
    symbols = task.symbols
    if not layers or symbols is None:
        return {}
    angles: dict[str, Any] = {}

    def record_angles(name: str, layer: AUSSM, args: tuple[Tensor, ...]) -> None:
        theta = layer.angles(args[0][:, 0]).flatten(1).double().cpu().tolist()
        angles[name] = {"symbols": list(symbols), "theta": theta}

    hooks = [layer.register_forward_pre_hook(partial(record_angles, name)) for name, layer in layers.items()]
    was_training = model.training
    try:
        model.eval()(torch.arange(len(symbols), device=next(model.parameters()).device).unsqueeze(1))
    finally:
        model.train(was_training)
        for hook in hooks:
            hook.remove()
    return angles
