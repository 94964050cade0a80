"""The loss, the metrics and the scale shared by every task whose answers are classes."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor
from torch.nn import functional as F

from longscan.tasks.base import Batch, Reduction, Split, Task

if TYPE_CHECKING:
    from torchmetrics import Metric


@dataclass(frozen=True, kw_only=True)
class ClassificationTask(Task):
    """Cross entropy, micro accuracy over the scored answers, and (accuracy - 1/K) / (1 - 1/K)."""

    @property
    def d_output(self) -> int:
        """One output a class."""
        return self._classes_count

    @property
    def _classes_count(self) -> int:
        count = self.num_classes
        assert count is not None, "a classification task has classes"
        return count

    def loss(self, output: Tensor, batch: Batch, reduction: Reduction = "mean") -> Tensor:
        """Cross entropy in float32, mean or sum over the scored answers. output: (B, L, K), or (B, K) where pooled."""
        logits, targets = _answers(output, batch)
        return F.cross_entropy(logits.float(), targets, reduction=reduction)

    def metrics(self, split: Split) -> "dict[str, Metric]":
        """Accuracy over the scored answers; on test, where the model answers once, also the confusion matrix (a row a class)."""
        from torchmetrics.classification import MulticlassAccuracy, MulticlassConfusionMatrix

        metrics: dict[str, Metric] = {"accuracy": MulticlassAccuracy(self._classes_count, average="micro", validate_args=False)}
        if split == "test" and not self.per_step:
            metrics["confusion"] = MulticlassConfusionMatrix(self._classes_count, validate_args=False)
        return metrics

    def update(self, metrics: "dict[str, Metric]", output: Tensor, batch: Batch) -> None:
        """Enter a batch. output: (B, L, K), or (B, K) where pooled."""
        logits, targets = _answers(output.detach(), batch)
        choice = logits.argmax(-1)
        for name in ("accuracy", "confusion"):
            if name in metrics:
                metrics[name].update(choice, targets)

    def scaled(self, score: float) -> float:
        """(score - 1/K) / (1 - 1/K): guessing uniformly among K classes is 0, perfection 1."""
        chance = 1 / self._classes_count
        return (score - chance) / (1 - chance)


def _answers(output: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """The scored logits (n, K) and targets (n,)."""
    if batch.targets is None:
        raise ValueError("batch: it has no targets, so its output can not be scored")
    if batch.loss_mask is None:
        return output.reshape(-1, output.shape[-1]), batch.targets.reshape(-1)
    return output[batch.loss_mask], batch.targets[batch.loss_mask]
