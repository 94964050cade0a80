"""What language models share: the next token at every step, scored in bits a token."""

from abc import abstractmethod
from dataclasses import dataclass
from math import log
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from longscan.tasks.base import Batch, Split, check_request
from longscan.tasks.classification import ClassificationTask, answered

if TYPE_CHECKING:
    from torchmetrics import Metric


@dataclass(frozen=True, kw_only=True)
class LanguageTask(ClassificationTask):
    """The next token at every step. The scale is 1 - bits / bits of a predictor that knows train's token frequencies alone."""

    metric: ClassVar[str] = "bits"
    higher_is_better: ClassVar[bool] = False

    @property
    def d_input(self) -> None:
        """None: the inputs are tokens."""
        return

    @property
    def per_step(self) -> bool:
        """True: a token a step."""
        return True

    @abstractmethod
    def _counts(self, split: Split) -> np.ndarray:
        """How often each token is an answer in a split, (num_classes,)."""

    def metrics(self, split: Split) -> "dict[str, Metric]":
        """Bits a token, and accuracy."""
        from torchmetrics import MeanMetric

        return {"bits": MeanMetric(), **super().metrics(split)}

    def update(self, metrics: "dict[str, Metric]", output: Tensor, batch: Batch) -> None:
        """Enter a batch. output: (B, L, K)."""
        super().update(metrics, output, batch)
        logits, targets = answered(output.detach(), batch)
        metrics["bits"].update(F.cross_entropy(logits.float(), targets) / log(2), len(targets))

    def constant_score(self, split: Split = "test") -> float:
        """Bits a token of the predictor that gives train's frequencies, each token counted once more."""
        check_request(self, split, 0, 1, 0)
        seen, asked = self._counts("train") + 1.0, self._counts(split)
        return float(-(asked * np.log2(seen / seen.sum())).sum() / asked.sum())

    def scaled(self, score: float) -> float:
        """1 - score / `constant_score("test")`."""
        return 1 - score / self.constant_score("test")

    def _shifted(self, windows: np.ndarray) -> Batch:
        """The batch of windows (n, L + 1): inputs without the last token, targets without the first."""
        tokens = torch.from_numpy(windows.astype(np.int64))
        return Batch(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
