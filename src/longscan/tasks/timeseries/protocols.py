"""Splits of labelled series into train, valid and test by three published protocols, whose scores are not comparable.

clean    The test set of the archive; a part of its training set is valid; values are standardised by channel with mean and
         standard deviation of the remaining training series. Training series that also occur in test, or twice, are left out.
linoss   As in the LinOSS and Log-NCDE repositories: both sets together without repeated series, raw values, 70/15/15 by JAX's
         permutation.
aussm    As in the AUSSM repository: both sets together, repeated series kept (so one may be in two splits), standardised with the
         statistics of everything, test included; 70/15/15 by torch's random_split.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch

from longscan.tasks._random import CounterRNG
from longscan.tasks.base import Split
from longscan.tasks.timeseries import _threefry

Protocol = Literal["clean", "linoss", "aussm"]
CONSTANT = 1e-10  # largest standard deviation, relative to the mean, of a channel that counts as constant


@dataclass(frozen=True)
class Partition:
    """The series of each split, and the scaling (value - shift) / scale, before which `fill` replaces missing values.

    rows: indices into train + test. shift, scale, fill: (C,).
    """

    rows: dict[Split, np.ndarray]
    shift: np.ndarray
    scale: np.ndarray
    fill: np.ndarray


class ValidationSplit(NamedTuple):
    """The split of valid from train: random seed, fraction, and whether the fraction is the same for each class."""

    seed: int
    fraction: float
    stratified: bool


def clean(train: list[np.ndarray], test: list[np.ndarray], labels: np.ndarray, validation: ValidationSplit) -> Partition:
    """Return the partition without leaks; ValueError if train is too small to split. labels: (N,) int64 of train + test."""
    known = {_series_key(series) for series in test}
    unique = []
    for row, series in enumerate(train):
        if (key := _series_key(series)) not in known:
            known.add(key)
            unique.append(row)
    order = np.array(unique, np.int64)[CounterRNG(("valid", validation.seed), 0).permutation(len(unique))]
    if validation.stratified:
        groups = [order[labels[order] == label] for label in np.unique(labels[order])]
        valid = np.concatenate([group[: _subset_size(len(group), validation.fraction)] for group in groups] or [order])
    else:
        valid = order[: _subset_size(len(order), validation.fraction)]
    training = np.setdiff1d(order, valid)
    if not len(valid) or not len(training):
        found = f"{validation.fraction:g} of {len(unique)} series"
        raise ValueError(f"`valid_fraction` must leave series for training and for validation, got {found}")
    rows: dict[Split, np.ndarray] = {
        "train": training,
        "valid": np.sort(valid),
        "test": np.arange(len(train), len(train) + len(test)),
    }
    mean, std = _channel_statistics([train[row] for row in training])
    return Partition(rows, mean, std, mean)


def linoss(series: list[np.ndarray], *, seed: int, order: Literal["sorted", "file"]) -> Partition:
    """Return the partition with unscaled values and the rows of `numpy.unique` (sorted) or in file order, permuted.

    key, _, _, _ = split(PRNGKey(seed), 4); key, _ = split(key); permutation(key, N), cut at int(.7 N) and int(.85 N).
    """
    first = {_series_key(item): row for row, item in reversed(list(enumerate(series)))}
    rows = np.array(sorted(first.values()))
    if order == "sorted":
        rows = rows[_lexicographic_order([series[row] for row in rows])]
    key = _threefry.split(_threefry.split(_threefry.key_from_seed(seed), 4)[0])[0]
    rows = rows[_threefry.permutation(key, len(rows))]
    bounds = [int(len(rows) * 0.7), int(len(rows) * 0.85)]
    parts = _split_rows(rows, bounds)
    channels = len(series[0])
    train_mean, _ = _channel_statistics([series[row] for row in parts["train"]])
    return Partition(parts, np.zeros(channels), np.ones(channels), train_mean)


def aussm(series: list[np.ndarray], *, seed: int) -> Partition:
    """Return the partition of `torch.utils.data.random_split` into int(.7 N), int(.15 N) and the rest, with statistics of all."""
    count = len(series)
    rows = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).numpy()
    mean, std = _channel_statistics(series)
    return Partition(_split_rows(rows, [int(0.7 * count), int(0.7 * count) + int(0.15 * count)]), mean, std, mean)


def _split_rows(rows: np.ndarray, bounds: list[int]) -> dict[Split, np.ndarray]:
    train, valid, test = np.split(rows, bounds)
    if not len(train) or not len(valid):
        raise ValueError(f"`data_dir` must have enough series for a split 70/15/15, got {len(rows)}")
    return {"train": train, "valid": valid, "test": test}


def _subset_size(count: int, fraction: float) -> int:
    """Return the rounded fraction of a count, at least one and never all."""
    return min(max(1, int(count * fraction + 0.5)), count - 1)


def _series_key(series: np.ndarray) -> tuple[int, bytes]:
    return series.shape[1], (series.astype(np.float32) + np.float32(0)).tobytes()  # -0.0 becomes 0.0


def _lexicographic_order(series: list[np.ndarray]) -> np.ndarray:
    """Return the order of `numpy.unique` over float32 arrays (L, C); missing values and the ends of shorter series come last."""
    longest = max(item.shape[1] for item in series)
    padded = [np.pad(item, ((0, 0), (0, longest - item.shape[1])), constant_values=np.nan) for item in series]
    keys = [np.nan_to_num(item, nan=np.inf).astype(np.float32).T.ravel().tolist() for item in padded]
    return np.array(sorted(range(len(keys)), key=keys.__getitem__))


def _channel_statistics(series: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and unbiased standard deviation of each channel over the present values; 0 without any, 1 if constant."""
    values = np.concatenate(series, axis=1)
    present = ~np.isnan(values)
    count = present.sum(1)
    mean = np.where(present, values, 0).sum(1) / np.maximum(count, 1)
    spread = np.where(present, values - mean[:, None], 0)
    std = np.sqrt((spread**2).sum(1) / np.maximum(count - 1, 1))
    return mean, np.where(std > CONSTANT * np.abs(mean), std, 1.0)  # rounding gives equal values a deviation above 0
