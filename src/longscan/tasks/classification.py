"""The loss, the metrics and the scale shared by every task whose answers are classes."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from torch import Tensor
from torch.nn import functional as F

from longscan.tasks.base import Batch, Reduction, Split, Task

if TYPE_CHECKING:
    from torchmetrics import Metric


@dataclass(frozen=True, kw_only=True)
class ClassificationTask(Task):
    """Cross entropy, micro accuracy over the scored answers, and (accuracy - 1/K) / (1 - 1/K)."""

    uneven: ClassVar[bool] = False  # whether classes may be of very different sizes

    @property
    def d_output(self) -> int:
        """One output a class."""
        return self._classes_count

    @property
    def _classes_count(self) -> int:
        count = self.num_classes
        assert count is not None, "a classification task has classes"
        return count

    def loss(self, output: Tensor, batch: Batch, reduction: Reduction = "mean", smoothing: float = 0.0) -> Tensor:
        """Cross entropy in float32, mean or sum over the scored answers. output: (B, L, K), or (B, K) where pooled.

        Targets may also be shares of classes, (B, K) float. smoothing: label smoothing (Szegedy et al. 2016, section 7).
        """
        logits, targets = answered(output, batch)
        return F.cross_entropy(logits.float(), targets, reduction=reduction, label_smoothing=smoothing)

    def metrics(self, split: Split) -> "dict[str, Metric]":
        """Accuracy over the scored answers, and what valid and test add to it.

        Where classes are uneven: "balanced_accuracy", the mean over classes of the share that is found, and "macro_f1". On
        test, where the model answers once, "confusion", a matrix with a row a class.
        """
        from torchmetrics.classification import MulticlassAccuracy, MulticlassConfusionMatrix, MulticlassF1Score

        count = self._classes_count
        metrics: dict[str, Metric] = {"accuracy": MulticlassAccuracy(count, average="micro", validate_args=False)}
        if split != "train" and self.uneven:
            metrics["balanced_accuracy"] = MulticlassAccuracy(count, average="macro", validate_args=False)
            metrics["macro_f1"] = MulticlassF1Score(count, average="macro", validate_args=False)
        if split == "test" and not self.per_step:
            metrics["confusion"] = MulticlassConfusionMatrix(count, validate_args=False)
        return metrics

    def update(self, metrics: "dict[str, Metric]", output: Tensor, batch: Batch) -> None:
        """Enter a batch. output: (B, L, K), or (B, K) where pooled."""
        logits, targets = answered(output.detach(), batch)
        choice = logits.argmax(-1)
        targets = targets.argmax(-1) if targets.is_floating_point() else targets
        for name in ("accuracy", "balanced_accuracy", "macro_f1", "confusion"):
            if name in metrics:
                metrics[name].update(choice, targets)

    def scaled(self, score: float) -> float:
        """(score - 1/K) / (1 - 1/K): guessing uniformly among K classes is 0, perfection 1."""
        chance = 1 / self._classes_count
        return (score - chance) / (1 - chance)


def largest_share(targets: np.ndarray) -> float:
    """The share of the most frequent class: what the best constant answer scores. targets: whole numbers of any shape."""
    return float(np.bincount(targets.ravel()).max() / targets.size)


def answered(output: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """The scored logits (n, K) and targets, (n,) classes or (n, K) shares."""
    if batch.targets is None:
        raise ValueError("batch: it has no targets, so its output can not be scored")
    if batch.targets.is_floating_point():
        return output, batch.targets
    if batch.loss_mask is None:
        return output.reshape(-1, output.shape[-1]), batch.targets.reshape(-1)
    return output[batch.loss_mask], batch.targets[batch.loss_mask]
