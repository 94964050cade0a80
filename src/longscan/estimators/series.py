"""A collection of series with one or several channels and any lengths, as one padded array."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from longscan._float32 import FLOAT32_MAX, find_out_of_range
from longscan.estimators.clock import as_clock, has_seconds, to_seconds

BLOCK = 2**18  # values of the series that are converted together


@dataclass(frozen=True)
class Collection:
    """Series as arrays.

    values: (n, L, C) float64 with zeros in the padding on the right. lengths: (n,). times: (n, L) float64, or None for equal
    steps. cases: the index of the cases, None if the input has none. channel_names: None for channels without names. is_long:
    whether the input was a frame indexed by (case, time). clocks: the time stamps of each series, None without any. covariates:
    (n, L, K) float64, of the same steps, None without any; covariate_names: their names, None without.
    """

    values: np.ndarray
    lengths: np.ndarray
    times: np.ndarray | None = None
    cases: pd.Index | None = None
    channel_names: tuple[Hashable, ...] | None = None
    is_long: bool = False
    clocks: tuple[pd.Index, ...] | None = None
    covariates: np.ndarray | None = None
    covariate_names: tuple[Hashable, ...] | None = None

    def __len__(self) -> int:
        return len(self.values)

    @property
    def channels(self) -> int:
        """Number of channels, C."""
        return int(self.values.shape[2])

    @property
    def valid(self) -> np.ndarray:
        """Steps that are not padding, (n, L) bool."""
        return np.arange(self.values.shape[1]) < self.lengths[:, None]

    def select(self, rows: np.ndarray) -> "Collection":
        """Return some of the series. rows: (m,), their indices."""
        longest = max(1, int(self.lengths[rows].max(initial=1)))
        return replace(
            self,
            values=self.values[rows, :longest],
            lengths=self.lengths[rows],
            times=None if self.times is None else self.times[rows, :longest],
            cases=None if self.cases is None else self.cases[rows],
            clocks=None if self.clocks is None else tuple(self.clocks[row] for row in rows),
            covariates=None if self.covariates is None else self.covariates[rows, :longest],
        )

    def _blocks(self) -> Iterator[slice]:
        """Yield the rows in blocks of about `BLOCK` values, so that temporary arrays are small."""
        size = max(1, BLOCK // max(1, self.values[0].size)) if len(self) else 1
        for first in range(0, len(self), size):
            yield slice(first, first + size)

    def _valid_steps(self, rows: slice) -> np.ndarray:
        return np.arange(self.values.shape[1]) < self.lengths[rows, None]

    def statistics(self, weights: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and standard deviation of each channel over all steps, (C,); the latter is 1 for a constant channel.

        weights: (n,), of the series; None for equal ones. Squares of the values may exceed float64.
        """
        of_series = np.ones(len(self)) if weights is None else weights
        total = max(float(of_series @ self.lengths), 1e-300)
        largest = np.zeros(self.channels)
        for rows in self._blocks():
            largest = np.maximum(largest, np.abs(self.values[rows]).max((0, 1)))  # the padding is 0
        unit = np.where(largest > 1e100, largest, 1.0)

        def average(function: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
            found = np.zeros(self.channels)
            for rows in self._blocks():
                shares = self._valid_steps(rows) * (of_series[rows, None] / total)
                found += np.einsum("nl,nlc->c", shares, function(self.values[rows] / unit))
            return found

        mean = average(lambda values: values)
        deviation = np.sqrt(average(lambda values: (values - mean) ** 2)) * unit
        return mean * unit, np.where(deviation > 1e-8 * np.maximum(largest, 1e-30), deviation, 1.0)

    def own_statistics(self) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and standard deviation of each channel of each series, (n, C); the latter is 1 for a constant channel."""
        mean, deviation = np.zeros((2, len(self), self.channels))
        for row, length in enumerate(self.lengths):
            mean[row], deviation[row] = mean_and_deviation(self.values[row, :length]) if length else (0.0, 0.0)
        return mean, np.where(deviation > 1e-8 * np.maximum(np.abs(self.values).max(1), 1e-30), deviation, 1.0)

    def standardise(self, mean: np.ndarray, deviation: np.ndarray, unit: float, argument: str) -> "StandardisedSeries":
        """Return the series less `mean` (C,), divided by `deviation` (C,), and the times between steps in units of `unit`.

        Raises ValueError for a value or a time between steps that is beyond float32. argument: name of the series in errors.
        """
        standardised = np.empty(self.values.shape, np.float32)
        for rows in self._blocks():
            with np.errstate(over="ignore"):
                values = np.where(self._valid_steps(rows)[..., None], (self.values[rows] - mean) / deviation, 0)
            beyond = find_out_of_range(values)
            if beyond is not None:
                row, step, channel = beyond
                row += rows.start
                largest = f"{mean[channel] + FLOAT32_MAX * deviation[channel]:.3g} in channel {self.channel_label(channel)}"
                raise ValueError(
                    f"{self.case_label(row)} of `{argument}` must be at most {largest}, the largest number of float32 in "
                    f"units of its standard deviation in fit, {deviation[channel]:g}, got {self.values[row, step, channel]:g} "
                    f"in step {step}"
                )
            standardised[rows] = values
        if self.times is None:
            return StandardisedSeries(standardised, self.lengths, None)
        gaps = np.empty(self.times.shape, np.float32)
        for rows in self._blocks():
            own = self._gaps(rows)
            with np.errstate(over="ignore"):
                beyond = find_out_of_range(own / unit)
            if beyond is not None:
                row, step = rows.start + beyond[0], beyond[1]
                raise ValueError(
                    f"{self.case_label(row)} of `times` must be at most {FLOAT32_MAX * unit:.3g} from step to step, the largest "
                    f"number of float32 in units of the median time between steps in fit, {unit:g}, got {own[beyond]:g} before "
                    f"step {step}"
                )
            gaps[rows] = own / unit
        return StandardisedSeries(standardised, self.lengths, gaps)

    def channel_label(self, channel: int) -> str:
        """Return the name of a channel in messages, or its number if it has none."""
        return str(channel) if self.channel_names is None else repr(self.channel_names[channel])

    def case_label(self, row: int) -> str:
        """Return the name of a series in error messages: its number, and its case where it has one."""
        return f"series {row}" if self.cases is None else f"series {row} (case {self.cases[row]!r})"

    def _gaps(self, rows: slice) -> np.ndarray:
        """Return the time since the previous step of some series, (m, L), 0 for the first step and in the padding."""
        times = cast("np.ndarray", self.times)[rows]
        return np.where(self._valid_steps(rows), np.diff(times, axis=1, prepend=times[:, :1]), 0.0)

    def gaps(self) -> np.ndarray | None:
        """Return the time since the previous step, (n, L), 0 for the first step and in the padding; None without times."""
        return None if self.times is None else self._gaps(slice(None))

    def time_unit(self) -> float:
        """Return the median of the positive gaps, 1 without times."""
        if self.times is None:
            return 1.0
        positive = np.concatenate([gaps[gaps > 0] for gaps in map(self._gaps, self._blocks())])
        return float(np.median(positive, overwrite_input=True)) if len(positive) else 1.0

    def with_times(self, times: Sequence[Any]) -> "Collection":
        """Return the collection with times (n, L), or a list of arrays.

        Raises ValueError if their lengths differ or they decrease.
        """
        if len(times) != len(self):
            raise ValueError(f"`times` must have {len(self)} series of times, got {len(times)}")
        padded, clocks = np.zeros(self.values.shape[:2]), list[pd.Index]()
        for index, (row, length) in enumerate(zip(times, self.lengths, strict=True)):
            source = f"series {index} of `times`"
            clock = as_clock(row, source)
            if len(clock) != length:
                raise ValueError(f"{source} must have {length} times, one for each step, got {len(clock)}")
            if not clock.is_monotonic_increasing:
                raise ValueError(f"{source} must be in the order of time, got times that go back")
            if clocks and has_seconds(clock) != has_seconds(clocks[0]):
                raise ValueError(f"{source} must be of the kind of series 0, numbers or dates, got {clock.dtype}")
            padded[index, :length] = to_seconds(clock)
            clocks.append(clock)
        return replace(self, times=padded, clocks=tuple(clocks))


class SeriesBatch(NamedTuple):
    """Tensors of some series on one device.

    Attributes:
        values: (b, L, C), padded with zeros after the end of shorter series.
        valid: (b, L) boolean, False after the end of a series; None without padding.
        elapsed: (b, L), the time since the step before; None without times.
    """

    values: Tensor
    valid: Tensor | None
    elapsed: Tensor | None


class StandardisedSeries(NamedTuple):
    """Series as a model reads them: values (n, L, C) float32, 0 in the padding; lengths (n,); gaps (n, L) float32 or None."""

    values: np.ndarray
    lengths: np.ndarray
    gaps: np.ndarray | None

    def batch(self, rows: np.ndarray, device: torch.device, *, few_lengths: bool = False) -> SeriesBatch:
        """Return the tensors of some series on a device, padded to the longest of them.

        few_lengths: whether they are padded to L, L / 2, L / 4, ..., rounded up, so that batches have few shapes. There is a mask
        then unless no series has padding.
        """
        length, compared = max(1, int(self.lengths[rows].max(initial=1))), self.lengths[rows]
        if few_lengths:
            length, compared = _halved_length(self.values.shape[1], length), self.lengths
        has_padding = bool((compared < length).any())
        mask = torch.from_numpy(np.arange(length) < self.lengths[rows, None]).to(device) if has_padding else None
        elapsed = None if self.gaps is None else torch.from_numpy(self.gaps[rows, :length]).to(device)
        if elapsed is not None:
            elapsed[:, 0] = 1.0  # the time before the first step is unknown
        return SeriesBatch(torch.from_numpy(self.values[rows, :length]).to(device), mask, elapsed)

    def select(self, rows: np.ndarray) -> "StandardisedSeries":
        """Return some of the series. rows: (m,), their indices."""
        return StandardisedSeries(self.values[rows], self.lengths[rows], None if self.gaps is None else self.gaps[rows])

    def trimmed(self) -> Iterator[np.ndarray]:
        """Yield the values of each series, (L_i, C) float64, without padding."""
        for values, length in zip(self.values, self.lengths, strict=True):
            yield values[:length].astype(np.float64)

    def windows(self, starts: np.ndarray, length: int) -> "StandardisedSeries":
        """Return windows of one length, each as a series. starts: (n, 2), number of the series and first step."""
        values = cut_windows(self.values, starts, length)
        gaps = None if self.gaps is None else cut_windows(self.gaps, starts, length)
        return StandardisedSeries(values, np.full(len(starts), length), gaps)


def _halved_length(length: int, needed: int) -> int:
    """Return the smallest of `length`, its half, its quarter and so on, each rounded up, that is at least `needed`."""
    while length > 1 and (half := (length + 1) // 2) >= needed:
        length = half
    return length


def cut_windows(values: np.ndarray, starts: np.ndarray, length: int) -> np.ndarray:
    """Return windows (m, length, ...) of series (n, L, ...). starts: (m, 2), number of the series and first step."""
    return values[starts[:, :1], starts[:, 1:] + np.arange(length)]


def mean_and_deviation(values: np.ndarray, weights: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and standard deviation of each column of (n, C), (C,), even if squares of the values exceed float64.

    weights: (n,), of the rows; None for equal ones.
    """
    largest = np.abs(values).max(0, initial=0.0)
    unit = np.where(largest > 1e100, largest, 1.0)
    scaled = values / unit
    if weights is None:
        return scaled.mean(0) * unit, scaled.std(0) * unit
    mean = np.average(scaled, axis=0, weights=weights)
    return mean * unit, np.sqrt(np.average((scaled - mean) ** 2, axis=0, weights=weights)) * unit


def check_predictions(predictions: np.ndarray, argument: str) -> np.ndarray:
    """Return the predictions (n, ...). Raises ValueError if one is NaN or infinite."""
    wrong = ~np.isfinite(predictions.reshape(len(predictions), -1)).all(1)
    if wrong.any():
        raise ValueError(
            f"the prediction for series {int(wrong.argmax())} of `{argument}` is NaN or infinite ({int(wrong.sum())} of "
            f"{len(wrong)} are): its values are far larger than those of fit, or the fit diverged (see loss_curve_)"
        )
    return predictions


def pad_arrays(arrays: Sequence[np.ndarray]) -> Collection:
    """Combine arrays (L_i, C) to a collection, padded on the right."""
    lengths = np.array([len(array) for array in arrays])
    values = np.zeros((len(arrays), max(1, lengths.max()), arrays[0].shape[1]))
    for row, array in zip(values, arrays, strict=True):
        row[: len(array)] = array
    return Collection(values, lengths)
