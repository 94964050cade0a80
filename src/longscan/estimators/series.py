"""What people have as data, as one padded array: series of one or several channels, perhaps of unequal lengths."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor


@dataclass(frozen=True)
class Collection:
    """Series as tensors.

    values: (n, L, C) float64, zeros in the padding on the right. lengths: (n,). times: (n, L) float64, or None where the steps
    are even.
    """

    values: np.ndarray
    lengths: np.ndarray
    times: np.ndarray | None = None

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

    def with_times(self, times: Any) -> "Collection":
        """The same with times: (n, L), or a list of one array for each series; ValueError where they do not fit or go back."""
        if len(times) != len(self):
            raise ValueError(f"times: got {len(times)} series of times, expected {len(self)}")
        padded = np.zeros(self.values.shape[:2])
        for index, (row, length) in enumerate(zip(times, self.lengths, strict=True)):
            try:
                seconds = in_seconds(row)
            except (TypeError, ValueError) as error:
                raise ValueError(f"times: series {index} has times that are neither numbers nor dates ({error})") from None
            if len(seconds) != length:
                raise ValueError(f"times: series {index} has {len(seconds)} times, expected {length}, one for each step")
            if not np.isfinite(seconds).all() or (np.diff(seconds) < 0).any():
                raise ValueError(f"times: series {index} has times that are not finite or go back, expected them in order")
            padded[index, :length] = seconds
        return replace(self, times=padded)


def in_seconds(times: Any) -> np.ndarray:
    """Times as float64: numbers as they are, dates (with their time zone), beginnings of periods and durations in seconds."""
    if isinstance(times, pd.Series):
        times = pd.Index(times)
    if isinstance(times, pd.PeriodIndex):
        times = times.to_timestamp()
    if isinstance(times, pd.DatetimeIndex) and times.tz is not None:
        times = times.tz_convert(None)
    array = np.asarray(times)
    if array.dtype.kind in "mM":
        fine = array.astype("datetime64[ns]" if array.dtype.kind == "M" else "timedelta64[ns]")
        return np.where(np.isnat(fine), np.nan, fine.astype(np.int64) / 1e9)
    return array.astype(np.float64)


def is_table(X: Any) -> bool:
    """Whether X is a table of equally long series of one channel, (n, L), for scikit-learn's own checks."""
    if isinstance(X, pd.DataFrame):
        return not isinstance(X.index, pd.MultiIndex)
    if isinstance(X, np.ndarray):
        return X.ndim < 3
    if isinstance(X, (list, tuple)):
        flat = all(np.isscalar(row) for row in X)
        rows = all(isinstance(row, (list, tuple)) and all(map(np.isscalar, row)) and len(row) == len(X[0]) for row in X)
        return bool(X) and (flat or rows)
    return True  # anything else that scikit-learn may make an array of, or refuse


def read_series(X: Any, times: Any = None) -> Collection:
    """A collection of what is no table.

    Args:
        X: an array (n, L, C); a list of arrays, Series or frames, (L_i,) or (L_i, C); or a frame with a two-level index (series,
            time), whose columns are the channels.
        times: None, (n, L), a list of one array for each series, or "index": the index of each series.
    """
    frame = isinstance(X, pd.DataFrame)
    parts: list[Any] = [part.droplevel(0) for _, part in X.groupby(level=0, sort=False)] if frame else list(X)
    if not parts:
        raise ValueError("X: got no series, expected at least one")
    arrays = [_values(index, part) for index, part in enumerate(parts)]
    channels = arrays[0].shape[1]
    for index, array in enumerate(arrays):
        if array.shape[1] != channels:
            raise ValueError(f"X: series {index} has {array.shape[1]} channels, expected {channels} as the first")
    collection = pad_arrays(arrays)
    if times is None:
        return collection
    if isinstance(times, str):
        if times != "index" or not all(isinstance(part, (pd.Series, pd.DataFrame)) for part in parts):
            raise ValueError(f"times: got {times!r}, expected times, or 'index' with series of pandas")
        times = [part.index for part in parts]
    return collection.with_times(times)


def pad_arrays(arrays: Sequence[np.ndarray]) -> Collection:
    """Arrays (L_i, C) as one, padded on the right."""
    lengths = np.array([len(array) for array in arrays])
    values = np.zeros((len(arrays), max(1, lengths.max()), arrays[0].shape[1]))
    for row, array in zip(values, arrays, strict=True):
        row[: len(array)] = array
    return Collection(values, lengths)


def _values(index: int, part: Any) -> np.ndarray:
    """(L, C) of one series."""
    array = np.asarray(part)
    if array.dtype.kind in "cmM":
        raise ValueError(f"X: series {index} holds {array.dtype}, expected real numbers")
    if array.dtype.kind not in "fiub":
        try:
            array = array.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise ValueError(f"X: series {index} holds what is no number ({error})") from None
    array = array[:, None] if array.ndim == 1 else array
    if array.ndim != 2 or 0 in array.shape:
        raise ValueError(f"X: series {index} has the shape {np.shape(part)}, expected (length,) or (length, channels)")
    if not np.isfinite(array).all():
        raise ValueError(f"X: series {index} contains NaN or infinity")
    return array
