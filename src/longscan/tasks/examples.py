"""Classification of whole sequences that lie in memory or in memory-mapped arrays, of equal or unequal lengths."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from longscan.tasks._random import CounterRNG
from longscan.tasks._store import Ragged
from longscan.tasks.base import Batch, Split, check_request, rows_of_step
from longscan.tasks.classification import ClassificationTask, largest_share


class Labelled(NamedTuple):
    """sequences: N of them; targets: (N,) int64; rows: which of them make a split."""

    sequences: Ragged
    targets: np.ndarray
    rows: dict[Split, np.ndarray]


@dataclass(frozen=True, kw_only=True)
class SequenceClassification(ClassificationTask):
    """One answer a sequence. Shorter sequences are padded on the right, which `valid` marks."""

    uneven: ClassVar[bool] = True

    @abstractmethod
    def _labelled(self) -> Labelled:
        """The examples; called for every batch, so it must remember them."""

    @property
    def _padding(self) -> int:
        """What stands after the end of a sequence of tokens; series have zeros there."""
        return 0

    @property
    def per_step(self) -> bool:
        """False: one answer a sequence."""
        return False

    @property
    def length(self) -> int:
        """Steps of the longest sequence."""
        data = self._labelled()
        return int(max(data.sequences.lengths[rows].max() for rows in data.rows.values()))

    def size(self, split: Split) -> int | None:
        """Number of sequences of a split."""
        check_request(self, split, 0, 1, 0)
        return len(self._labelled().rows[split])

    def batch(self, split: Split, step: int, batch_size: int, seed: int = 0) -> Batch:
        """The batch of a step: inputs (B, L) or (B, L, C), targets (B,), valid (B, L) or None where all are equally long."""
        check_request(self, split, step, batch_size, seed)
        data, size = self._labelled(), self.size(split)
        assert size is not None
        rows = data.rows[split][rows_of_step(size, split, step, batch_size, seed)]
        return self._arranged(data.sequences, rows)._replace(targets=torch.from_numpy(np.array(data.targets[rows], np.int64)))

    def constant_score(self, split: Split = "test") -> float:
        """The accuracy on a split of always giving its most frequent class."""
        check_request(self, split, 0, 1, 0)
        data = self._labelled()
        return largest_share(data.targets[data.rows[split]])

    def decode(self, output: Tensor, batch: Batch) -> list[dict[str, str | float]]:  # noqa: ARG002
        """The most probable class and its probability, a row a sequence. output: (B, K)."""
        best = output.float().softmax(-1).max(-1)
        classes = self.classes
        assert classes is not None
        answers = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        return [{"class": classes[choice], "probability": probability} for choice, probability in answers]

    def _arranged(self, sequences: Ragged, rows: np.ndarray) -> Batch:
        """The sequences `rows` as a batch without targets."""
        table, lengths = sequences.pad(rows, self._padding)
        inputs = torch.from_numpy(self._prepared(table))
        if len(np.unique(sequences.lengths)) == 1:
            return Batch(inputs)
        return Batch(inputs, valid=torch.from_numpy(np.arange(table.shape[1]) < lengths[:, None]))

    def _prepared(self, table: np.ndarray) -> np.ndarray:
        """Padded values as the model reads them: tokens int64, series float32."""
        return table.astype(np.int64 if self.d_input is None else np.float32)


def carved(count: int, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices of train and of valid, about `fraction` of `count`, drawn by seed; both sorted.

    Raises ValueError where that leaves nothing for one of them.
    """
    order = CounterRNG(("valid", seed), 0).permutation(count)
    share = max(1, int(count * fraction + 0.5))
    if share >= count:
        raise ValueError(f"valid_fraction: {count} training examples are too few to take {fraction:g} of them")
    return np.sort(order[share:]), np.sort(order[:share])


def check_fraction(fraction: float) -> None:
    """ValueError where `valid_fraction` is no share."""
    if not 0 < fraction < 1:
        raise ValueError(f"valid_fraction: must lie between 0 and 1, not {fraction}")
