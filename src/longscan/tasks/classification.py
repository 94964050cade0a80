"""The base class of all tasks whose answers are classes: loss, metrics, scale and the table of answers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from torch import Tensor
from torch.nn import functional as F

from longscan.tasks.base import Batch, Reduction, Split, Task, is_captured

if TYPE_CHECKING:
    from torchmetrics import Metric

IGNORE_INDEX = -100  # cross_entropy's ignore_index


@dataclass(frozen=True, kw_only=True)
class ClassificationTask(Task):
    """A classification task: cross entropy, micro accuracy over the scored answers, and (accuracy - 1/K) / (1 - 1/K)."""

    has_imbalanced_classes: ClassVar[bool] = False  # whether class frequencies may differ greatly

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes in the order of the outputs: their numbers, unless a task overrides this property."""
        return tuple(map(str, range(self._classes_count)))

    @property
    def d_output(self) -> int:
        """Number of outputs, one for each class."""
        return self._classes_count

    @property
    def _classes_count(self) -> int:
        count = self.num_classes
        assert count is not None, "a classification task has classes"
        return count

    def loss(self, output: Tensor, batch: Batch, reduction: Reduction = "mean", smoothing: float = 0.0) -> Tensor:
        """Return the cross entropy in float32, mean or sum over the scored answers. output: (B, L, K), or (B, K) if pooled.

        Targets may also be class probabilities, (B, K) float. smoothing: label smoothing (Szegedy et al. 2016, section 7).
        """
        logits, targets = (_all_outputs if is_captured() else scored_outputs)(output, batch)
        return F.cross_entropy(logits.float(), targets, reduction=reduction, label_smoothing=smoothing)

    def metrics(self, split: Split) -> "dict[str, Metric]":
        """Return the accuracy over the scored answers, and more metrics for valid and test.

        With `has_imbalanced_classes` these are "balanced_accuracy", the mean recall of the classes that occur among the targets,
        and "macro_f1", the mean over the classes that occur among targets or answers, both as in scikit-learn. For test, if the
        model answers once per sequence, also "confusion", a matrix with a row for each class.
        """
        from torchmetrics.classification import MulticlassAccuracy, MulticlassConfusionMatrix, MulticlassF1Score

        from longscan.tasks._metrics import BalancedAccuracy

        count = self._classes_count
        metrics: dict[str, Metric] = {"accuracy": MulticlassAccuracy(count, average="micro", validate_args=False)}
        if split != "train" and self.has_imbalanced_classes:
            metrics["balanced_accuracy"] = BalancedAccuracy(count, validate_args=False)
            metrics["macro_f1"] = MulticlassF1Score(count, average="macro", validate_args=False)
        if split == "test" and not self.per_step:
            metrics["confusion"] = MulticlassConfusionMatrix(count, validate_args=False)
        return metrics

    def update(self, metrics: "dict[str, Metric]", output: Tensor, batch: Batch) -> None:
        """Update the metrics with a batch. output: (B, L, K), or (B, K) if pooled."""
        logits, targets = scored_outputs(output.detach(), batch)
        choice = logits.argmax(-1)
        targets = targets.argmax(-1) if targets.is_floating_point() else targets
        for name in ("accuracy", "balanced_accuracy", "macro_f1", "confusion"):
            if name in metrics:
                metrics[name].update(choice, targets)

    def scaled(self, score: float) -> float:
        """Return (score - 1/K) / (1 - 1/K): 0 for guessing uniformly among K classes, 1 for perfection."""
        chance = 1 / self._classes_count
        return (score - chance) / (1 - chance)

    def decode(self, output: Tensor, batch: Batch) -> list[dict[str, str | float]]:
        """Return the most probable class and its probability, a row for each sequence.

        output: (B, K), or (B, L, K) with a loss mask that selects one step of each sequence.
        """
        assert self.classes is not None
        return most_probable(output if batch.loss_mask is None else output[batch.loss_mask], self.classes)

    def _append_class(self, text: str, batch: Batch, row: int) -> str:
        """Return "text | class" for an example with one answer, or `text` if the batch has no targets."""
        assert self.classes is not None
        return text if batch.targets is None else f"{text} | {self.classes[int(batch.targets[row])]}"


def most_probable(logits: Tensor, classes: Sequence[str], column: str = "class") -> list[dict[str, str | float]]:
    """Return a table with a row for each of the logits (n, K): the most probable class and its probability.

    column: name of the column of the class.
    """
    best = logits.float().softmax(-1).max(-1)
    answers = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [{column: classes[choice], "probability": probability} for choice, probability in answers]


def majority_share(targets: np.ndarray) -> float:
    """Return the relative frequency of the most frequent class, the accuracy of the best constant answer. targets: integers."""
    return float(np.bincount(targets.ravel()).max() / targets.size)


def scored_outputs(output: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the scored logits (n, K) and their targets, (n,) classes or (n, K) class probabilities."""
    if batch.targets is None:
        raise ValueError("`batch` must have targets, with which outputs are scored, got None")
    if batch.targets.is_floating_point():
        return output, batch.targets
    if batch.loss_mask is None:
        return output.reshape(-1, output.shape[-1]), batch.targets.reshape(-1)
    return output[batch.loss_mask], batch.targets[batch.loss_mask]


def _all_outputs(output: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the logits of all steps and their targets, which are `IGNORE_INDEX` at steps that are not scored."""
    if batch.loss_mask is None or batch.targets is None:
        return scored_outputs(output, batch)
    return output.flatten(0, 1), batch.targets.masked_fill(~batch.loss_mask, IGNORE_INDEX).flatten()
