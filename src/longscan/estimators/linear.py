"""Linear forecasts: ridge regression from the steps of a window to those that follow, chosen by cross-validation over time.

The forecast of step k after a window x_1 ... x_W of one channel, with the mean m of the window, is

    y_k = m + sum_j weight_kj (x_j - m) + level_k m + bias_k.

The regression needs only the sums of products x_s x_t over all windows. Two windows that are one step apart share all but one of
these products, so that a cumulative sum for each lag t - s gives the sums over any range of windows, at a cost of (W + horizon) L
instead of (W + horizon)^2 L and without a table of windows. The squared error on other windows follows from their sums as well.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise, product
from typing import Any, NamedTuple

import numpy as np

WINDOWS = (12, 24, 48, 96, 192, 336)  # candidates: up to two weeks of hours
PENALTIES = tuple(10.0**power for power in range(-5, 4))  # in units of the mean variance of the features
FOLDS = 3
COMPARED_STEPS = 24  # of the horizon, evenly spaced, on which candidates are compared
ROUNDING = 1e-11  # bound of the rounding errors of the sums of products, relative to the sum of the squares of all steps

Array = np.ndarray[Any, np.dtype[np.float64]]


class LinearForecast(NamedTuple):
    """A linear forecast: weight (K, horizon, W), level and bias (K, horizon), where K is 1 for one of all channels, or C.

    error: the mean squared error of the cross-validation, on `COMPARED_STEPS` steps of the horizon.
    """

    weight: Array
    level: Array
    bias: Array
    error: float

    @property
    def window(self) -> int:
        """Number of steps that the forecast reads, W."""
        return int(self.weight.shape[2])


class _Candidate(NamedTuple):
    """Penalty of a regression, whether it has the mean of the window as a feature, rounding of its sums, summed squared error."""

    penalty: float
    with_level: bool
    rounding: float
    error: float


class _Sums(NamedTuple):
    """Sums of products of one channel, or of all: as `_sums_by_part` returns them, and a bound of their rounding errors."""

    folds: Array
    whole: Array
    rounding: float


def usable_windows(lengths: Array, horizon: int, candidates: Sequence[int] = WINDOWS) -> list[int]:
    """Return the candidates for which series of these lengths have enough windows to fit and to compare a regression."""

    def is_usable(window: int) -> bool:
        counts = np.maximum(lengths - window - horizon + 1, 0)
        return bool(counts.sum() >= window and (_has_parts(counts.max(), horizon) or np.sum(counts > 0) >= FOLDS))

    return [window for window in candidates if is_usable(window)]


def _has_parts(count: int, horizon: int) -> bool:
    """Return whether a series of that number of windows is divided into parts; a shorter one is fitted or forecast whole."""
    return count >= 2 * FOLDS * horizon


def fit_linear(series: Sequence[Array], horizon: int, windows: Sequence[int]) -> LinearForecast:
    """Fit a linear forecast to series (L_i, C) by ridge regression, with the window and penalties of lowest error.

    The windows of each series are divided into `FOLDS` parts in the order of time; each part is forecast from the others, without
    those windows whose steps ahead overlap with it. Series that are too short for that belong to one part each. One regression
    for all channels is compared with one for each. The chosen one is then fitted to all windows. windows: as returned by
    `usable_windows`.
    """
    channels, largest = series[0].shape[1], max(windows)
    long_enough = [values for values in series if len(values) >= largest + horizon]
    own = []
    for channel in range(channels):
        columns = [values[:, channel] for values in long_enough]
        of_series = (_sums_by_part(x, largest, horizon, number) for number, x in enumerate(columns))
        own.append(_Sums(*_total(of_series), ROUNDING * sum(float(x @ x) for x in columns)))
    groupings = [[_Sums(*_total((sums.folds, sums.whole) for sums in own), sum(sums.rounding for sums in own))]]
    if channels > 1:
        groupings.append(own)
    count = groupings[0][0].folds[:, 1, 0, 0].sum() * len(_compared_steps(horizon))
    fits = []
    for grouped in groupings:
        for window in windows:
            chosen = [_choose(sums, largest, window) for sums in grouped]
            fits.append((sum(candidate.error for candidate in chosen) / count, window, chosen, grouped))
    error, window, chosen, grouped = min(fits, key=lambda fit: fit[0])
    pairs = zip(chosen, grouped, strict=True)
    solved = [_solve(_centre(sums.whole, largest, window), window, candidate) for candidate, sums in pairs]
    weights, levels, biases = zip(*solved, strict=True)
    return LinearForecast(np.stack(weights), np.stack(levels), np.stack(biases), float(error))


def window_sums(x: Array, size: int, bounds: Sequence[int]) -> list[Array]:
    """Return the sums of products over the windows of x (L,) that start in bounds[i] ... bounds[i + 1] - 1.

    Each is (1 + size, 1 + size): the sum of z z^T, where z is 1 followed by the steps of a window.
    """
    result = [np.zeros((1 + size, 1 + size)) for _ in pairwise(bounds)]
    for lag in range(size):
        sums = np.concatenate([[0.0], np.cumsum(x[: len(x) - lag] * x[lag:])])
        first = np.arange(size - lag)
        for total, (start, end) in zip(result, pairwise(bounds), strict=True):
            diagonal = sums[first + end] - sums[first + start]
            total[1 + first, 1 + first + lag] = total[1 + first + lag, 1 + first] = diagonal
    sums, first = np.concatenate([[0.0], np.cumsum(x)]), np.arange(size)
    for total, (start, end) in zip(result, pairwise(bounds), strict=True):
        total[0, 0] = end - start
        total[0, 1:] = total[1:, 0] = sums[first + end] - sums[first + start]
    return result


def _total(pairs: Iterable[tuple[Array, Array]]) -> tuple[Array, Array]:
    """Return the sums of the first and of the second arrays, of which only one pair at a time is in memory."""
    pairs = iter(pairs)
    first, second = (part.copy() for part in next(pairs))
    for part, other in pairs:
        first += part
        second += other
    return first, second


def _sums_by_part(x: Array, window: int, horizon: int, number: int) -> tuple[Array, Array]:
    """Return for each part of x the sums over the windows to fit and over those to forecast, (FOLDS, 2, n, n), and over all.

    The former have only the compared steps of the horizon. number: of the series; a short one is all of part number % FOLDS.
    """
    count = len(x) - window - horizon + 1
    if _has_parts(count, horizon):
        edges = [round(count * part / FOLDS) for part in range(FOLDS + 1)]
        cuts = sorted({0, count, *(edge + shift for edge in edges[1:-1] for shift in (-horizon, 0, horizon))})
    else:
        edges = [0 if part <= number % FOLDS else count for part in range(FOLDS + 1)]
        cuts = [0, count]
    pieces = dict(zip(pairwise(cuts), window_sums(x, window + horizon, cuts), strict=True))
    kept = np.r_[0 : 1 + window, 1 + window + _compared_steps(horizon)]
    by_part = np.zeros((FOLDS, 2, len(kept), len(kept)))
    for part, (start, end) in zip(by_part, pairwise(edges), strict=True):
        for (first, last), sums in pieces.items():
            if start == end or last <= start - horizon or first >= end + horizon:
                part[0] += sums[np.ix_(kept, kept)]
            elif start <= first and last <= end:
                part[1] += sums[np.ix_(kept, kept)]
    return by_part, np.sum(list(pieces.values()), axis=0)


def _compared_steps(horizon: int) -> Array:
    """Return at most `COMPARED_STEPS` steps of the horizon, from the first to the last."""
    return np.unique(np.linspace(0, horizon - 1, min(horizon, COMPARED_STEPS)).round().astype(int))


def _centre(sums: Array, largest: int, window: int) -> Array:
    """Return the sums of products of (1, x_j - m, m, y_k - m), where m is the mean of the last `window` steps x_j."""
    kept = np.r_[0, np.arange(1 + largest - window, len(sums))]
    result = sums[np.ix_(kept, kept)]
    past = slice(1, 1 + window)
    result = np.insert(result, 1 + window, result[past].mean(0), axis=0)
    result = np.insert(result, 1 + window, result[:, past].mean(1), axis=1)
    others = np.r_[1 : 1 + window, 2 + window : len(result)]
    result[others] -= result[1 + window]
    result[:, others] -= result[:, [1 + window]]
    return result


def _decompose(sums: Array, features: slice, targets: slice) -> tuple[Array, Array, Array]:
    """Return eigenvalues and eigenvectors of the features' covariance, and the covariance with the targets along the latter."""
    means = sums[0] / sums[0, 0]
    values, vectors = np.linalg.eigh(sums[features, features] - np.outer(sums[features, 0], means[features]))
    cross = sums[features, targets] - np.outer(sums[features, 0], means[targets])
    return np.maximum(values, 0), vectors, vectors.T @ cross


def _ridge(values: Array, penalty: float, rounding: float) -> float:
    """Return what is added to the eigenvalues; larger than the rounding errors, which are all there is of constant features."""
    return float(penalty * values.mean() + rounding + 1e-30)


def _solve(sums: Array, window: int, candidate: _Candidate) -> tuple[Array, Array, Array]:
    """Return weight (horizon, window), level and bias (horizon,) of a regression, from what `_centre` returns."""
    features, targets = slice(1, 1 + window + candidate.with_level), slice(2 + window, None)
    values, vectors, projected = _decompose(sums, features, targets)
    coefficients = vectors @ (projected / (values + _ridge(values, candidate.penalty, candidate.rounding))[:, None])
    bias = (sums[targets, 0] - sums[features, 0] @ coefficients) / sums[0, 0]
    return coefficients[:window].T, coefficients[window] if candidate.with_level else np.zeros(len(bias)), bias


def _choose(sums: _Sums, largest: int, window: int) -> _Candidate:
    """Return the candidate of lowest squared error, summed over the windows that are forecast."""
    errors = dict.fromkeys(product((False, True), PENALTIES), 0.0)
    targets = slice(2 + window, None)
    for fitted, forecast in sums.folds:
        moments, others = _centre(fitted, largest, window), _centre(forecast, largest, window)
        means = moments[0] / moments[0, 0]
        total = float(np.trace(others[targets, targets]))
        for with_level in (False, True):
            features = slice(1, 1 + window + with_level)
            values, vectors, projected = _decompose(moments, features, targets)
            # Sums over the windows to forecast of (1, features less means, along the eigenvectors) times the rows of `others`.
            along = np.vstack([others[0], vectors.T @ (others[features] - np.outer(means[features], others[0]))])
            inner = np.hstack([along[:, :1], (along[:, features] - np.outer(along[:, 0], means[features])) @ vectors])
            for penalty in PENALTIES:
                coefficients = np.vstack([means[targets], projected / (values + _ridge(values, penalty, sums.rounding))[:, None]])
                squares = np.sum(coefficients * (inner @ coefficients)) - 2 * np.sum(coefficients * along[:, targets])
                errors[with_level, penalty] += total + float(squares)
    (with_level, penalty), error = min(errors.items(), key=lambda item: item[1])
    return _Candidate(penalty, with_level, sums.rounding, error)
