"""The base class of language modelling tasks: predict the next token at every step, scored in bits per token."""

from abc import abstractmethod
from dataclasses import dataclass
from math import log
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from longscan.tasks.base import Batch, Split, check_request
from longscan.tasks.classification import ClassificationTask, scored_outputs

if TYPE_CHECKING:
    from torchmetrics import Metric


@dataclass(frozen=True, kw_only=True)
class LanguageTask(ClassificationTask):
    """A language modelling task. The scaled score is 1 - bits / bits of a predictor that uses the token frequencies of train."""

    metric: ClassVar[str] = "bits"
    higher_is_better: ClassVar[bool] = False

    d_input: ClassVar[None] = None
    per_step: ClassVar[bool] = True

    @property
    def needs_causal(self) -> bool:
        """Whether the inputs of later steps contain the targets: they do, where the next token is predicted."""
        return True

    @abstractmethod
    def _token_counts(self, split: Split) -> np.ndarray:
        """Return the number of times that each token is a target in a split, (num_classes,)."""

    def metrics(self, split: Split) -> "dict[str, Metric]":
        """Return bits per token, and the metrics of classification."""
        from torchmetrics import MeanMetric

        return {"bits": MeanMetric(), **super().metrics(split)}

    def update(self, metrics: "dict[str, Metric]", output: Tensor, batch: Batch) -> None:
        """Update the metrics with a batch. output: (B, L, K)."""
        super().update(metrics, output, batch)
        logits, targets = scored_outputs(output.detach(), batch)
        metrics["bits"].update(F.cross_entropy(logits.float(), targets) / log(2), len(targets))

    def constant_score(self, split: Split = "test") -> float:
        """Return the bits per token of the predictor that gives the token frequencies of train, with one added to each count."""
        check_request(self, split)
        train, counts = self._token_counts("train") + 1.0, self._token_counts(split)
        return float(-(counts * np.log2(train / train.sum())).sum() / counts.sum())

    def scaled(self, score: float) -> float:
        """Return 1 - score / `constant_score("test")`."""
        return 1 - score / self.constant_score("test")

    def _next_token_batch(self, windows: np.ndarray) -> Batch:
        """Return the batch of windows (n, L + 1): inputs without the last token, targets without the first."""
        tokens = torch.from_numpy(windows.astype(np.int64))
        return Batch(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
