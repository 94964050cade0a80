"""Classification of whole sequences of equal or unequal lengths, in memory or in memory-mapped arrays."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import torch

from longscan.tasks._random import CounterRNG
from longscan.tasks._store import Ragged
from longscan.tasks.base import Batch, Split, check_request, rows_of_step
from longscan.tasks.classification import ClassificationTask, majority_share


class LabelledSequences(NamedTuple):
    """N sequences with their classes, and the row numbers of each split."""

    sequences: Ragged
    targets: np.ndarray  # (N,) int64
    rows: dict[Split, np.ndarray]


@dataclass(frozen=True, kw_only=True)
class SequenceClassification(ClassificationTask):
    """A task with one answer per sequence. Shorter sequences are padded on the right, where `valid` is False."""

    has_imbalanced_classes: ClassVar[bool] = True
    per_step: ClassVar[bool] = False
    _padding_value: ClassVar[int] = 0  # token or number after the end of a sequence

    @abstractmethod
    def _data(self) -> LabelledSequences:
        """Return the examples; called for every batch, so an implementation must cache them."""

    @property
    def length(self) -> int:
        """Steps of the longest sequence."""
        data = self._data()
        return int(max(data.sequences.lengths[rows].max() for rows in data.rows.values()))

    def size(self, split: Split) -> int | None:
        """Return the number of sequences of a split."""
        check_request(self, split)
        return len(self._data().rows[split])

    def batch(self, split: Split, step: int, batch_size: int, seed: int = 0) -> Batch:
        """Return the batch of a step: inputs (B, L) or (B, L, C), targets (B,), valid (B, L) or None if all lengths are equal."""
        check_request(self, split, step, batch_size, seed)
        data, size = self._data(), self.size(split)
        assert size is not None
        rows = data.rows[split][rows_of_step(size, split, step, batch_size, seed)]
        return self._to_batch(data.sequences, rows)._replace(targets=torch.from_numpy(np.array(data.targets[rows], np.int64)))

    def constant_score(self, split: Split = "test") -> float:
        """Return the accuracy on a split of always giving its most frequent class."""
        check_request(self, split)
        data = self._data()
        return majority_share(data.targets[data.rows[split]])

    def _to_batch(self, sequences: Ragged, rows: np.ndarray | None = None) -> Batch:
        """Return the sequences with numbers `rows` (None: all) as a batch without targets."""
        table, lengths = sequences.pad(rows, self._padding_value)
        inputs = torch.from_numpy(self._to_inputs(table))
        all_lengths = sequences.lengths
        if (all_lengths == all_lengths[0]).all():
            return Batch(inputs)
        return Batch(inputs, valid=torch.from_numpy(np.arange(table.shape[1]) < lengths[:, None]))

    def _to_inputs(self, table: np.ndarray) -> np.ndarray:
        """Convert padded values to the model's inputs: tokens int64, series float32."""
        return table.astype(np.int64 if self.d_input is None else np.float32)


def split_off_validation(count: int, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the sorted indices of train and of valid, a random `fraction` of `count` examples that depends on the seed.

    Raises ValueError if one of them would be empty.
    """
    order = CounterRNG(("valid", seed), 0).permutation(count)
    valid_count = max(1, int(count * fraction + 0.5))
    if valid_count >= count:
        raise ValueError(f"`valid_fraction` must leave an example for training, got {fraction:g} of {count} examples")
    return np.sort(order[valid_count:]), np.sort(order[:valid_count])


def consecutive_rows(sizes: Mapping[Split, int]) -> dict[Split, np.ndarray]:
    """Return the row numbers of each split in arrays that contain the splits one after another. sizes: of each split."""
    ends = np.cumsum(list(sizes.values()))
    return {split: np.arange(end - size, end) for (split, size), end in zip(sizes.items(), ends.tolist(), strict=True)}
