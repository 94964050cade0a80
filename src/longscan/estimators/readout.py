"""States of diagonal systems of all channels, which a regression adds to the linear forecast of each channel.

Each channel u drives states x_k = a x_{k-1} + (1 - a) u_k, with a = exp(-1 / tau) for several time constants tau. At the last
step of a window they are exponential means of it. Differences of neighbouring time constants, and of the longest one and the
mean of the window, do not depend on the level of a channel. From these F = channels x time constants numbers, a ridge regression
forecasts what the linear forecast misses in each channel and step ahead. It reads all channels, the linear forecast of a channel
only its own.

The regression is fitted to the first part of the series. Its penalty, and for each channel a factor from 0 to 1, minimise the
squared error on the part that is held back. As they are fitted to that part, the gain on new data is smaller. The regression is
not used if the gain is smaller than `READOUT_GAIN`, or smaller than `STANDARD_ERRORS` of its standard errors, which happens by
chance if the held-back part is short.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from longscan.estimators.linear import LinearForecast

TIME_CONSTANTS = (3, 12, 48, 192)  # in addition to the last step; those up to a third of the window are used
PENALTIES = (1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0)  # in units of the mean square of the features
READOUT_GAIN = 0.05  # smallest relative gain in the squared error on the held-back part for which the regression is used
STANDARD_ERRORS = 2.0
MAX_CHANNELS = 32  # bounds memory and time, which grow with the square of the number of channels
FITTED_WINDOWS = 4000  # largest number of windows to fit to, evenly spaced
WINDOWS_AT_ONCE = 256
STEPS = 24  # number of steps of the horizon, evenly spaced, on which regressions are compared

Array = np.ndarray[Any, np.dtype[np.float64]]


class StateReadout(NamedTuple):
    """A regression from states: kernels (T, W) of the states, scale (F,) of the features, weight (F, horizon, C)."""

    kernels: Array
    scale: Array
    weight: Array

    def of(self, windows: Array) -> Array:
        """Return the corrections (n, horizon, C) of the forecasts after windows (n, L, C) of L <= W steps."""
        size, steps = self.kernels.shape[1], windows.shape[1]
        if steps < size:  # as in the linear forecast, steps before the first one count as the mean
            mean = windows.mean(1, keepdims=True).repeat(size - steps, 1)
            windows = np.concatenate([mean, windows], 1)
        added = _features(windows, self.kernels) / self.scale @ self.weight.reshape(len(self.scale), -1)
        return np.asarray(added.reshape(len(windows), *self.weight.shape[1:]))


class ReadoutChoice(NamedTuple):
    """The penalty of a regression and the factors of the channels, (C,)."""

    penalty: float
    factors: Array


class _Moments(NamedTuple):
    """Kernels (T, W), scale (F,) of the features, sums of their products (F, F) and of those with what is missed (F, K C)."""

    kernels: Array
    scale: Array
    inner: Array
    crossed: Array


def choose_readout(
    first: Sequence[Array], linear: LinearForecast, past: Array, ahead: Array, independent: int
) -> tuple[StateReadout, ReadoutChoice] | None:
    """Return the regression fitted to the first part of the series and what was chosen for it, None without enough gain.

    Args:
        first: the first part of each series, (L_i, C).
        linear: the linear forecast fitted to it.
        past: windows whose forecasts are in the part that is held back, (n, W, C), in the order of time.
        ahead: the steps that follow them, (n, horizon, C).
        independent: how many of their forecasts have no common steps, from 2 to n.
    """
    horizon = ahead.shape[1]
    steps = np.unique(np.linspace(0, horizon - 1, min(horizon, STEPS)).round().astype(int))
    moments = _moments(first, linear, horizon, steps)
    if moments is None:
        return None
    kernels, scale, inner, crossed = moments
    features = _features(past, kernels) / scale
    missed = ahead[:, steps] - linear.forecast(past, steps)
    squares = np.square(missed)
    gains, choice = np.full(len(past), -math.inf), ReadoutChoice(PENALTIES[0], np.zeros(missed.shape[2]))
    for penalty in PENALTIES:
        added = (features @ _solve(inner, crossed, penalty)).reshape(missed.shape)
        factors = np.clip((added * missed).sum((0, 1)) / np.maximum(np.square(added).sum((0, 1)), 1e-30), 0, 1)
        own = (squares - np.square(missed - factors * added)).sum((1, 2))
        if own.sum() > gains.sum():
            gains, choice = own, ReadoutChoice(penalty, factors)
    if not (gains.sum() > READOUT_GAIN * squares.sum() and exceeds_chance(gains, independent)):
        return None
    others = np.setdiff1d(np.arange(horizon), steps)
    more = _moments(first, linear, horizon, others) if len(others) else None
    of_all = np.zeros((len(scale), horizon, missed.shape[2]))
    of_all[:, steps] = crossed.reshape(len(scale), len(steps), -1)
    if more is not None:
        of_all[:, others] = more.crossed.reshape(len(scale), len(others), -1)
    return _solve_readout(moments._replace(crossed=of_all.reshape(len(scale), -1)), choice, horizon), choice


def exceeds_chance(gains: np.ndarray, independent: int) -> bool:
    """Return whether the mean of gains (n,) on successive windows exceeds `STANDARD_ERRORS` of its standard errors.

    independent: how many of the windows have no common steps, from 2 to n.
    """
    means = np.array([part.mean() for part in np.array_split(gains, independent)])
    return bool(means.mean() > STANDARD_ERRORS * means.std(ddof=1) / math.sqrt(independent))


def fit_readout(series: Sequence[Array], linear: LinearForecast, horizon: int, choice: ReadoutChoice) -> StateReadout:
    """Fit the regression to all steps of the horizon. linear: the linear forecast fitted to the series (L_i, C)."""
    moments = _moments(series, linear, horizon, np.arange(horizon))
    assert moments is not None, "called for series that have windows"
    return _solve_readout(moments, choice, horizon)


def _solve_readout(moments: _Moments, choice: ReadoutChoice, horizon: int) -> StateReadout:
    """Return the regression of a choice from the moments of all steps of the horizon."""
    weight = _solve(moments.inner, moments.crossed, choice.penalty).reshape(len(moments.scale), horizon, -1) * choice.factors
    # In the order in which files have it, as sums depend on it.
    return StateReadout(moments.kernels, moments.scale, np.ascontiguousarray(weight))


def _features(windows: Array, kernels: Array) -> Array:
    """Return the differences of neighbouring states (n, F) at the last step of windows (n, W, C)."""
    states = np.einsum("tw,nwc->ntc", kernels, windows, optimize=True)
    return np.asarray((states[:, :-1] - states[:, 1:]).reshape(len(windows), -1))


def _kernels(window: int) -> Array:
    """Return the weights of the steps of a window in each state, and in its mean, (T, W)."""
    lags = np.arange(window)[::-1]
    states = [(lags == 0).astype(np.float64)]
    states += [np.exp(-lags / constant) for constant in TIME_CONSTANTS if 3 * constant <= window]
    states.append(np.ones(window))
    return np.stack([state / state.sum() for state in states])


def _moments(series: Sequence[Array], linear: LinearForecast, horizon: int, steps: np.ndarray) -> _Moments | None:
    """Return the moments for some steps of the horizon, None if there are no windows."""
    kernels = _kernels(linear.window)
    count, inner, crossed = 0, np.zeros((0, 0)), np.zeros((0, 0))
    for past, ahead in _windows(series, linear.window, horizon, steps):
        features = _features(past, kernels)
        missed = ahead - linear.forecast(past, steps)
        products, with_missed = features.T @ features, features.T @ missed.reshape(len(past), -1)
        inner, crossed = (inner + products, crossed + with_missed) if count else (products, with_missed)
        count += len(past)
    if not count:
        return None
    scale = np.sqrt(np.diag(inner) / count)
    scale = np.where(scale > 1e-6 * scale.max(), scale, scale.max() + 1e-30)  # a constant channel has features of 0
    return _Moments(kernels, scale, inner / np.outer(scale, scale), crossed / scale[:, None])


def _windows(series: Sequence[Array], window: int, horizon: int, steps: np.ndarray) -> Iterator[tuple[Array, Array]]:
    """Yield windows (n, W, C) of series (L_i, C) and the steps ahead of them (n, K, C), `WINDOWS_AT_ONCE` together."""
    counts = np.array([max(0, len(values) - window - horizon + 1) for values in series])
    before = np.cumsum(counts) - counts  # windows of earlier series
    chosen = np.arange(0, counts.sum(), max(1, -(-int(counts.sum()) // FITTED_WINDOWS)))
    numbers = np.searchsorted(before + counts, chosen, side="right")
    ends = window + chosen - before[numbers]
    for first in range(0, len(ends), WINDOWS_AT_ONCE):
        some = list(zip(numbers[first : first + WINDOWS_AT_ONCE], ends[first : first + WINDOWS_AT_ONCE], strict=True))
        past = np.stack([series[number][end - window : end] for number, end in some])
        yield past, np.stack([series[number][end + steps] for number, end in some])


def _solve(inner: Array, crossed: Array, penalty: float) -> Array:
    """Return the weights (F, K C) of a ridge regression from the sums of products of scaled features."""
    # The constant is for series whose channels are all constant.
    penalised = inner + (penalty * np.trace(inner) / len(inner) + 1e-30) * np.eye(len(inner))
    return np.asarray(cho_solve(cho_factor(penalised, lower=True), crossed))
