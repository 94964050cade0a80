"""Series of one or several channels, perhaps of unequal lengths, as one padded array."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from longscan.estimators.clock import as_clock, seconds


@dataclass(frozen=True)
class Collection:
    """Series as arrays.

    values: (n, L, C) float64, zeros in the padding on the right. lengths: (n,). times: (n, L) float64, or None where the steps
    are even. cases: the index of the cases, None where what was given has none. channel_names: the names of the channels, None
    without. is_long: whether it was a frame indexed by (case, time). clocks: the time stamps of each series, None where there are
    none.
    """

    values: np.ndarray
    lengths: np.ndarray
    times: np.ndarray | None = None
    cases: pd.Index | None = None
    channel_names: tuple[str, ...] | None = None
    is_long: bool = False
    clocks: tuple[pd.Index, ...] | None = None

    def __len__(self) -> int:
        return len(self.values)

    @property
    def channels(self) -> int:
        """C."""
        return int(self.values.shape[2])

    @property
    def valid(self) -> np.ndarray:
        """(n, L) bool: the steps that are not padding."""
        return np.arange(self.values.shape[1]) < self.lengths[:, None]

    def statistics(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation of each channel over all steps, (C,); 1 where a channel is constant."""
        flat = self.values[self.valid]
        deviation = flat.std(0)
        return flat.mean(0), np.where(deviation > 1e-8 * np.abs(flat).max(0, initial=1e-30), deviation, 1.0)

    def gaps(self) -> np.ndarray | None:
        """(n, L): the time between each step and the one before it; 0 for the first and in the padding."""
        if self.times is None:
            return None
        gaps = np.diff(self.times, axis=1, prepend=self.times[:, :1])
        return np.where(self.valid, gaps, 0.0)

    def time_unit(self) -> float:
        """The median of the gaps that are not 0; 1 without times."""
        gaps = self.gaps()
        positive = np.ones(1) if gaps is None else gaps[gaps > 0]
        return float(np.median(positive)) if len(positive) else 1.0

    def batch(
        self, rows: np.ndarray, mean: np.ndarray, deviation: np.ndarray, unit: float, device: torch.device
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Of some series: standardised values, valid (None where no step is padding), elapsed times in `unit` (None without)."""
        longest = max(1, int(self.lengths[rows].max(initial=1)))
        valid = self.valid[rows, :longest]
        values = np.where(valid[..., None], (self.values[rows, :longest] - mean) / deviation, 0)
        gaps = self.gaps()
        elapsed = None
        if gaps is not None:
            scaled = gaps[rows, :longest] / unit
            scaled[:, 0] = 1.0  # nothing is known of what came before the first step
            elapsed = torch.from_numpy(scaled.astype(np.float32)).to(device)
        mask = None if valid.all() else torch.from_numpy(valid).to(device)
        return torch.from_numpy(values.astype(np.float32)).to(device), mask, elapsed

    def with_times(self, times: Sequence[Any]) -> "Collection":
        """The same with times: (n, L), or a list of one array for each series; ValueError where they do not fit or go back."""
        if len(times) != len(self):
            raise ValueError(f"times: got {len(times)} series of times, expected {len(self)}")
        padded, clocks = np.zeros(self.values.shape[:2]), []
        for index, (row, length) in enumerate(zip(times, self.lengths, strict=True)):
            place = f"times: series {index}"
            clock = as_clock(row, place)
            if len(clock) != length:
                raise ValueError(f"{place} has {len(clock)} times, expected {length}, one for each step")
            if not clock.is_monotonic_increasing:
                raise ValueError(f"{place} has times that go back, expected them in order")
            padded[index, :length] = seconds(clock)
            clocks.append(clock)
        return replace(self, times=padded, clocks=tuple(clocks))


def pad_arrays(arrays: Sequence[np.ndarray]) -> Collection:
    """Arrays (L_i, C) as one, padded on the right."""
    lengths = np.array([len(array) for array in arrays])
    values = np.zeros((len(arrays), max(1, lengths.max()), arrays[0].shape[1]))
    for row, array in zip(values, arrays, strict=True):
        row[: len(array)] = array
    return Collection(values, lengths)
