"""Level shifts shortly before the end of a series, after which a linear forecast would return to the former level.

A linear forecast is fitted to what a series has done. If its level changes in a way that the fit has not seen, most weights
belong to steps before the change, and the forecast returns to the former level. The errors of the forecasts from the last steps
show such a change: if a shift of size d is k steps old, the forecast from the step before it has an error of about d at all k
steps.

A shift is recognised in a channel if two errors are larger than any in `fit`: the mean error over the last k steps for some k, by
the factor `SHIFT_FACTOR`, and the error of the first of the steps since the shift. Its age is the k whose mean error is the
largest in units of its root mean square in `fit`, and its size is that mean. The first condition excludes single outliers, the
second excludes deviations that grow in small steps, as those of weather do, which often end soon.

A value that is repeated at the end, at least `MIN_REPEATS` times and in half of the steps since the shift, is not taken for a new
level: a sensor that has failed gives zeros or its last value. Another shift is not recognised then.

The forecast is then made from the window without the shift, and the shift is added to it, as if it were permanent. In
econometrics this is an intercept correction: see Clements and Hendry, "Forecasting Economic Time Series", 1998.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from longscan.estimators.linear import LinearForecast

MAX_AGE = 48  # largest number of steps since a shift
ORIGINS_PER_STEP = 10  # smallest number of forecast origins in `fit` for each step since a shift
MAX_ORIGINS = 65536  # largest number of forecast origins in `fit`, evenly spaced
SHIFT_FACTOR = 1.5  # factor of the largest mean error in `fit` that a shift must exceed
MIN_LIMIT = 0.1  # smallest limit of an error, in standard deviations of the channel
MIN_DEVIATION = 1e-3  # smallest root mean square of errors, by which ages are compared, in the same unit
SIZE_DIGITS = 6  # number of decimals of a size in standard deviations of the channel
MIN_REPEATS = 3  # smallest number of equal values at the end of a channel that is not a level
WINDOWS_AT_ONCE = 256

Array = np.ndarray[Any, np.dtype[np.float64]]
Ages = np.ndarray[Any, np.dtype[np.int64]]


class ShiftLimits(NamedTuple):
    """Errors of the linear forecast in `fit`, K steps ahead.

    first: (C,), the largest absolute error of the first step. mean: (K, C), the largest absolute means of the errors of the first
    1 to K steps. Both are at least `MIN_LIMIT`. deviation: (K, C), root mean squares of these means.
    """

    first: Array
    mean: Array
    deviation: Array


def measure_errors(series: Sequence[Array], linear: LinearForecast) -> ShiftLimits | None:
    """Return the errors of a linear forecast in series (L_i, C), None where these are too short.

    The last steps of a series, in which a shift would be recognised, are left out.
    """
    window, steps = linear.window, min(linear.bias.shape[1], MAX_AGE)
    counts = [max(0, len(values) - window - 2 * steps) for values in series]
    steps = min(steps, sum(counts) // ORIGINS_PER_STEP)
    if steps < 2:
        return None
    chosen = np.arange(0, sum(counts), -(-sum(counts) // MAX_ORIGINS))
    numbers = np.searchsorted(np.cumsum(counts), chosen, side="right")
    origins = window + chosen - (np.cumsum(counts) - counts)[numbers]
    largest_first, largest, squares = [], [], []
    for begin in range(0, len(chosen), WINDOWS_AT_ONCE):
        some = list(zip(numbers[begin : begin + WINDOWS_AT_ONCE], origins[begin : begin + WINDOWS_AT_ONCE], strict=True))
        past = np.stack([series[number][at - window : at] for number, at in some])
        errors = np.stack([series[number][at : at + steps] for number, at in some]) - linear.forecast(past, np.arange(steps))
        means = np.cumsum(errors, 1) / np.arange(1, steps + 1)[:, None]
        largest_first.append(np.abs(errors[:, 0]).max(0))
        largest.append(np.abs(means).max(0))
        squares.append(np.square(means).sum(0))
    deviation = np.sqrt(np.sum(squares, 0) / len(chosen))
    first, mean = (np.maximum(np.max(parts, 0), MIN_LIMIT) for parts in (largest_first, largest))
    return ShiftLimits(first, mean, np.maximum(deviation, MIN_DEVIATION))


def find_shifts(past: Array, linear: LinearForecast, limits: ShiftLimits) -> tuple[Ages, Array]:
    """Return the ages (n, C) in steps, 0 for no shift, and the sizes (n, C) of shifts at the end of steps (n, L, C).

    linear: the forecast of one step ahead at least as many as `limits` has. Shifts that are older than L less its window are not
    found.
    """
    window, length = linear.window, past.shape[1]
    candidates = np.arange(2, min(len(limits.mean), length - window) + 1)
    ages, sizes = np.zeros((len(past), past.shape[2]), np.int64), np.zeros((len(past), past.shape[2]))
    if not len(candidates):
        return ages, sizes
    firsts, means = [], []
    for age in candidates:
        begin = length - age
        errors = past[:, begin:] - linear.forecast(past[:, begin - window : begin], np.arange(age))
        firsts.append(np.abs(errors[:, 0]) / limits.first)
        means.append(errors.mean(1))
    mean = np.stack(means)
    exceeds = (np.abs(mean) > SHIFT_FACTOR * limits.mean[candidates - 1, None]).any(0)
    best = (np.abs(mean) / limits.deviation[candidates - 1, None]).argmax(0)
    is_shift = exceeds & (np.take_along_axis(np.stack(firsts), best[None], 0)[0] > 1)
    repeated = np.cumprod(past[:, ::-1] == past[:, -1:], 1).sum(1)  # values at the end that equal the last one
    is_shift &= (repeated < MIN_REPEATS) | (2 * repeated < candidates[best])
    ages[is_shift] = candidates[best[is_shift]]
    # Rounding errors of the sums depend on where arrays lie in memory; they must not change the forecast.
    sizes[is_shift] = np.take_along_axis(mean, best[None], 0)[0][is_shift].round(SIZE_DIGITS)
    return ages, sizes


def remove_shifts(windows: Array, ages: Ages, sizes: Array) -> Array:
    """Return windows (n, W, C) less the shifts of these ages and sizes (n, C) in their last steps."""
    is_later = np.arange(windows.shape[1])[:, None] >= windows.shape[1] - ages[:, None]
    return np.asarray(windows - is_later * sizes[:, None])
