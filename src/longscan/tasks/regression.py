"""The base class of all tasks whose answers are numbers at steps of the sequence: loss, metrics and scale."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from longscan._errors import setting_error
from longscan.tasks.base import Batch, Reduction, Split, Task, is_captured

if TYPE_CHECKING:
    from torchmetrics import Metric


@dataclass(frozen=True, kw_only=True)
class RegressionTask(Task):
    """A regression task: mean squared error at the scored steps, and 1 - score / constant score as the scaled score."""

    metric: ClassVar[str] = "mse"
    higher_is_better: ClassVar[bool] = False

    vocab_size: ClassVar[None] = None  # the inputs are series
    num_classes: ClassVar[None] = None  # the answers are numbers
    per_step: ClassVar[bool] = True  # the model answers where the loss mask is set, at every step without one

    @property
    @abstractmethod
    def variables(self) -> tuple[str, ...]:
        """Names of the numbers of an answer."""

    @property
    def d_output(self) -> int:
        """Number of outputs, one for each variable."""
        return len(self.variables)

    def loss(self, output: Tensor, batch: Batch, reduction: Reduction = "mean", smoothing: float = 0.0) -> Tensor:
        """Return the squared error in float32, mean or sum over scored steps and variables.

        output: of the shape of the targets, (B, L, C), or (B, C) for one answer for each sequence. Raises ValueError for others.
        """
        if smoothing:
            raise setting_error("smoothing", smoothing, f"0, as {self.name} has no classes")
        targets = _check_shape(output, batch)
        mask = _mask(output, batch)
        if mask is not None and is_captured():
            difference = torch.where(mask[..., None], output.float() - targets, 0)
            total = difference.square().sum()
            return total if reduction == "sum" else total / (mask.sum() * output.shape[-1])
        answers, targets = _scored(output, batch)
        return F.mse_loss(answers.float(), targets, reduction=reduction)

    def metrics(self, split: Split) -> "dict[str, Metric]":  # noqa: ARG002
        """Return the mean squared and the mean absolute error over scored steps and variables, and the root of the former."""
        from torchmetrics.regression import MeanAbsoluteError, MeanSquaredError

        known: dict[str, Metric] = {"mse": MeanSquaredError(), "mae": MeanAbsoluteError()}
        known["rmse"] = MeanSquaredError(squared=False)
        return {self.metric: known.pop(self.metric), **known}

    def update(self, metrics: "dict[str, Metric]", output: Tensor, batch: Batch) -> None:
        """Update the metrics with a batch. output: (B, L, C)."""
        answers, targets = (part.reshape(-1) for part in _scored(output.detach(), batch))
        for metric in metrics.values():
            metric.update(answers.float(), targets)

    @abstractmethod
    def constant_score(self, split: Split = "test") -> float:
        """Return the main metric on a split of the best constant answer: one number per variable, chosen on the split itself.

        These are the means of the targets if the metric is mse or rmse, and their medians if it is mae.
        """

    def in_units(self, values: Tensor, batch: Batch) -> Tensor:  # noqa: ARG002
        """Return answers, targets or the inputs of the variables in the units of the data, for plots. values: (B, L, C)."""
        return values

    def scaled(self, score: float) -> float:
        """Return 1 - score / `constant_score("test")`: 0 for the best constant answer, 1 for perfection."""
        return 1 - score / self.constant_score("test")

    def decode(self, output: Tensor, batch: Batch) -> list[dict[str, str | float]]:
        """Return a table with a row for each scored step: example, step and the variables."""
        mask = batch.loss_mask if batch.loss_mask is not None else batch.valid
        rows: list[dict[str, str | float]] = []
        for example, series in enumerate(output.float().tolist()):
            for step, values in enumerate(series):
                if mask is None or mask[example, step]:
                    rows.append({"example": example, "step": step, **dict(zip(self.variables, values, strict=True))})
        return rows


def _scored(output: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return answers and targets, (n, C) each, at the scored steps, or of whole sequences if the output has no axis of steps."""
    targets = _check_shape(output, batch)
    if output.ndim == 2:
        return output, targets
    mask = _mask(output, batch)
    if mask is None:
        return output.flatten(0, 1), targets.flatten(0, 1)
    return output[mask], targets[mask]


def _check_shape(output: Tensor, batch: Batch) -> Tensor:
    """Return the targets of a batch. Raises ValueError if there are none, or if the output has another shape."""
    if batch.targets is None:
        raise ValueError("`batch` must have targets, with which outputs are scored, got None")
    if output.shape != batch.targets.shape:  # PyTorch would repeat an axis of size 1
        raise ValueError(f"`output` must have the shape of the targets, {tuple(batch.targets.shape)}, got {tuple(output.shape)}")
    return batch.targets


def _mask(output: Tensor, batch: Batch) -> Tensor | None:
    """Return the mask of the scored steps, (B, L); None if all are scored or the output has no axis of steps."""
    if output.ndim == 2:
        return None
    return batch.loss_mask if batch.loss_mask is not None else batch.valid
