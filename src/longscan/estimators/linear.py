"""Linear forecasts: averages of ridge regressions, weighted by their errors in later parts of the series.

A regression forecasts step k after the last W steps x_1 ... x_W of a channel, relative to a reference r, by

    y_k = r + sum_j weight_kj (x_j - r).

The reference is the last step, the mean of the W steps, or the mean of the whole series; a large penalty moves the forecast
towards it. Which regression is best depends on the series and on the horizon, and validation errors of similar regressions differ
by chance. Each channel is therefore forecast by a convex combination of regressions. Its weights minimise the squared error in
two or four later parts of the series, each forecast from the steps before it, plus a penalty on uneven weights. The errors in a
part are divided by that of repeating the last step there, so that parts in which a series varies more do not count more. The
combination is again a linear map of the longest window.

Series that are too short for a window of `LONG_WINDOW` steps have further members: the same regressions of the differences of
steps one season apart, x_t - x_{t-m}, or if these are too short as well, of single steps (m = 1). The forecast is then y_k =
x_{k-m} + the forecast of the difference, so that the members include the seasonal naive forecast and the mean change from step to
step. Series of less than five horizons are forecast in two parts that overlap, see `fold_shares`. Such a comparison is not
reliable. Without a season the forecast of a single series is therefore the mean of that of the members and of `continue_change`,
its last value and its mean change. If no regression can be fitted and compared, the forecast is `continue_change` alone, and
`repeat_last` for series with a season and for several series.

All of this needs only the sums of products x_s x_t over windows (`window_sums`): the regressions, their squared errors on other
windows, and the products of the errors of two members, which give the squared error of any combination. There is no table of
windows.
"""

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import nnls
from scipy.signal import correlate

from longscan.models.forecaster import apply_linear_forecast

WINDOWS = (12, 24, 96, 336, 720)  # candidates: up to a month of hours
LONG_WINDOW = 336  # smallest window with which regressions of differences are not needed
PENALTIES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)  # in units of the mean variance of the features
FOLDS = (0.6, 0.7, 0.8, 0.9)  # fractions of each series before the parts that are forecast
FEW_FOLDS = (0.6, 0.8)  # the same if the longest series has fewer than `HORIZONS` horizons
HORIZONS = 20
FEWEST_HORIZONS = 5  # smallest number of horizons in a series that is divided by `FEW_FOLDS`
COMPARED_STEPS = 24  # number of steps of the horizon, evenly spaced, on which members are compared
SMALLEST_UNIT = 0.1  # added to the error of repeating the last step in a part, in units of its mean over the parts
EVENNESS = 0.2  # penalty on the sum of the squared weights, in units of the error of the best member
SMALLEST_WEIGHT = 0.01  # smallest weight of a member that is used
LEAST_CORRELATION = 0.5  # smallest autocorrelation at the lag of a season, where the clock does not determine the season
MAX_OWN = 32  # largest number of channels with separate regressions; it bounds the time
ROUNDING = 1e-11  # bound of the rounding errors of the sums of products, relative to the sum of the squares of all steps

Array = np.ndarray[Any, np.dtype[np.float64]]
Steps = np.ndarray[Any, np.dtype[np.int64]]
Reference = Literal["last", "mean", "constant"]


class LinearForecast(NamedTuple):
    """A linear forecast: weight (K, horizon, W), level and bias (K, horizon), where K is 1 for one of all channels, or C.

    After steps x_1 ... x_W of mean m, step k is m + sum_j weight_kj (x_j - m) + level_k m + bias_k. error: the mean squared error
    in the later parts of the series, on `COMPARED_STEPS` steps of the horizon.
    """

    weight: Array
    level: Array
    bias: Array
    error: float

    @property
    def window(self) -> int:
        """Number of steps that the forecast reads, W."""
        return int(self.weight.shape[2])

    def widened(self, window: int) -> "LinearForecast":
        """Return the same forecast as one that reads at least `window` steps."""
        added = max(0, window - self.window)
        # The steps of a window of another mean have the same weights, and the level follows from these.
        return self._replace(weight=np.pad(self.weight, ((0, 0), (0, 0), (added, 0))))

    def forecast(self, past: Array, steps: Steps | None = None) -> Array:
        """Return forecasts (n, S, C) after windows (n, L, C) of L <= W steps. steps: (S,) of the horizon, None for all."""
        chosen = slice(None) if steps is None else steps
        weight, level, bias = (torch.from_numpy(part[:, chosen]) for part in self[:3])
        windows = torch.from_numpy(past)
        mean = windows.mean(1, keepdim=True)
        weight = weight[..., self.window - windows.shape[1] :]
        return np.asarray(apply_linear_forecast(windows - mean, mean, weight, level, bias).numpy())


class Regression(NamedTuple):
    """A ridge regression from a window.

    shared: whether it is fitted to all channels together. lag: of the differences that it forecasts, 0 for the steps themselves.
    """

    window: int
    reference: Reference
    penalty: float
    shared: bool
    lag: int = 0


class Difference(NamedTuple):
    """Regressions of differences x_t - x_{t-lag}, from a window of more than `lag` steps."""

    window: int
    lag: int


class Members(NamedTuple):
    """The inputs of the regressions of a linear forecast: windows of steps, and differences.

    constants: whether regressions have a constant; without, the forecast does not depend on the unit of a series.
    """

    windows: list[int]
    differences: list[Difference]
    constants: bool = True

    @property
    def largest(self) -> int:
        """The longest window, 0 without any."""
        return max((*self.windows, *(one.window for one in self.differences)), default=0)


class _Fold(NamedTuple):
    """Sums of products over the windows to fit and over those to forecast, (n, n) each, and a bound of their rounding errors."""

    fitted: Array
    forecast: Array
    rounding: float


def fold_shares(length: int, horizon: int, count: int = 3) -> tuple[float, ...]:
    """Return the fractions of each series before the parts that are forecast; the longest of `count` series has `length` steps.

    One or two series of less than `FEWEST_HORIZONS` horizons have two parts which reach to the end and overlap: the first begins
    two horizons before it, but after more than one horizon. Three and more series of this length are not divided; whole series
    are forecast in turn.
    """
    if length >= HORIZONS * horizon:
        return FOLDS
    first = max(length - 2 * horizon, horizon + 2)
    if count > len(FEW_FOLDS) or length >= FEWEST_HORIZONS * horizon or first > length - horizon:
        return FEW_FOLDS
    return first / length, (first + length - horizon) / 2 / length


def usable_windows(lengths: Array, horizon: int, candidates: Sequence[int] = WINDOWS) -> list[int]:
    """Return the candidates for which series of these lengths have enough windows to fit and to compare regressions."""
    return [window for window in candidates if _is_usable(lengths, horizon, window, window)]


def usable_members(lengths: Array, horizon: int, season: int) -> Members:
    """Return the members for series of these lengths, with seasons of `season` steps, 1 for none.

    Series that are too short for `LONG_WINDOW` have regressions of differences as well. Windows of one step, and differences of
    single steps in windows of two and more, are used for series without a season or too short for seasonal differences.
    """
    windows = usable_windows(lengths, horizon)
    if LONG_WINDOW in windows:
        return Members(windows, [])

    def usable_differences(lag: int, candidates: Iterable[int]) -> list[Difference]:
        longer = (window for window in candidates if window > lag)
        return [Difference(window, lag) for window in longer if _is_usable(lengths, horizon, window, window - lag)]

    differences = usable_differences(1, WINDOWS)
    seasonal = usable_differences(season, sorted({season + 1, *WINDOWS})) if season > 1 else []
    if seasonal:
        return Members(windows, [*differences, *seasonal])
    return Members([*usable_windows(lengths, horizon, (1,)), *windows], [*usable_differences(1, (2,)), *differences])


def _is_usable(lengths: Array, horizon: int, window: int, features: int) -> bool:
    """Return whether there are at least `features` windows to fit to in each fold, and one to forecast."""
    long_enough = [int(length) for length in lengths if length >= window + horizon]
    if not long_enough:
        return False
    shares = fold_shares(int(lengths.max()), horizon, len(long_enough))
    ranges = [_folds(length, number, window, horizon, shares) for number, length in enumerate(long_enough)]
    fitted, forecast = np.array([[[len(part) for part in fold] for fold in folds] for folds in ranges]).sum(0).T
    return bool(fitted.min() >= features and forecast.min() > 0)


def find_season(series: Sequence[Array]) -> int:
    """Return the lag of the highest peak of the autocorrelation of series (L_i, C), a median over these and channels; 1 for none.

    A peak must be above `LEAST_CORRELATION`, beyond the first lag below it, and occur three times in a series.
    """
    found = []
    for values in series:
        length = len(values)
        most = length // 3
        for x in values.T if most > 1 else ():
            changes = x - np.linspace(x[0], x[-1], length)
            changes = changes - changes.mean()
            products = correlate(changes, changes, mode="full")[length - 1 : length + most + 1]
            if products[0] <= ROUNDING * max(float(x @ x), 1e-30):
                found.append(1)
                continue
            correlation = products / products[0] * length / (length - np.arange(most + 2))
            low = np.flatnonzero(correlation < LEAST_CORRELATION)
            lags = np.arange(max(2, low[0]), most + 1) if len(low) else np.zeros(0, int)
            peaks = lags[(correlation[lags] >= correlation[lags - 1]) & (correlation[lags] >= correlation[lags + 1])]
            peaks = peaks[correlation[peaks] > LEAST_CORRELATION]
            found.append(int(peaks[correlation[peaks].argmax()]) if len(peaks) else 1)
    return int(np.median(found)) if found else 1


def repeat_last(horizon: int) -> LinearForecast:
    """Return the forecast of the last step for all channels."""
    return LinearForecast(np.ones((1, horizon, 1)), np.zeros((1, horizon)), np.zeros((1, horizon)), math.nan)


def continue_change(values: Array, horizon: int) -> LinearForecast:
    """Return the forecast of the last step of a series (L, C) and its mean change from step to step, for each channel.

    The mean change m, whose standard error is s, is multiplied by max(0, 1 - s^2 / m^2), a James-Stein shrinkage of one mean. So
    a mean change that is not larger than its standard error is not continued.
    """
    changes = np.diff(values, axis=0)
    mean = changes.mean(0) if len(changes) > 1 else np.zeros(values.shape[1])
    square = changes.var(0, ddof=1) / len(changes) if len(changes) > 1 else mean
    share = np.where(square < mean**2, 1 - square / np.maximum(mean**2, 1e-300), 0)
    bias = (share * mean)[:, None] * np.arange(1, horizon + 1)
    return LinearForecast(np.ones((len(bias), horizon, 1)), np.zeros(bias.shape), bias, math.nan)


def average(first: LinearForecast, second: LinearForecast) -> LinearForecast:
    """Return the mean of two forecasts; its `error` is that of the first."""
    window = max(first.window, second.window)
    pairs = zip(first.widened(window)[:3], second.widened(window)[:3], strict=True)
    weight, level, bias = (0.5 * (own + other) for own, other in pairs)
    return LinearForecast(weight, level, bias, first.error)


def fit_short(series: Sequence[Array], horizon: int, members: Members, season: int) -> LinearForecast:
    """Fit the linear forecast of series (L_i, C) that may be too short for some or all regressions.

    It is that of `fit_linear`, or the mean of it and of `continue_change` for one series of less than `FEWEST_HORIZONS` horizons
    without a season. Without members it is that of `continue_change` for one series without a season, or else of `repeat_last`.

    Args:
        series: whose forecast is fitted.
        horizon: number of steps of a forecast.
        members: usable ones, also none.
        season: steps of a season, 1 for none.
    """
    is_plain = len(series) == 1 and season == 1 and members.constants
    if not members.largest:
        return continue_change(series[0], horizon) if is_plain else repeat_last(horizon)
    found = fit_linear(series, horizon, *members)
    is_long = LONG_WINDOW in members.windows or len(series[0]) >= FEWEST_HORIZONS * horizon
    return average(found, continue_change(series[0], horizon)) if is_plain and not is_long else found


def fit_linear(
    series: Sequence[Array],
    horizon: int,
    windows: Sequence[int],
    differences: Sequence[Difference] = (),
    constants: bool = True,
) -> LinearForecast:
    """Fit a linear forecast to series (L_i, C): the combination of members of lowest error, as the module's docstring describes.

    Series that are too short to be divided in time are forecast whole, in turn: of three series with two folds, the first is
    always among those that are fitted, and each other one is forecast from the rest. Channels have separate combinations, of
    regressions fitted to the channel and to all channels, unless there are more than `MAX_OWN`. windows and differences: as
    returned by `usable_members`; the forecast reads the longest window.
    """
    members = Members(list(windows), list(differences), constants)
    series = [values for values in series if len(values) >= members.largest + horizon]
    shares = fold_shares(max(map(len, series)), horizon, len(series))
    return _fit_ranges(series, [series], [len(shares)], horizon, members, shares)[0]


def fit_early_and_whole(
    series: Sequence[Array], early: Sequence[Array], horizon: int, windows: Sequence[int], *, constants: bool = True
) -> tuple[LinearForecast, LinearForecast]:
    """Fit one linear forecast to the first steps of each series, `early`, and one to all steps.

    The second is that of `fit_linear`. The first is chosen by the later parts that lie within `early`, so that both use the same
    regressions, which halves the work. If no part lies there, each is fitted separately by `fit_linear`.
    """
    largest = max(windows)
    pairs = [pair for pair in zip(series, early, strict=True) if len(pair[0]) >= largest + horizon]
    shares = fold_shares(max(len(values) for values, _ in pairs), horizon, len(pairs))
    n_parts = min(_count_parts(len(values), len(first), largest, horizon, shares) for values, first in pairs)
    if n_parts == 0:
        return fit_linear(early, horizon, windows, (), constants), fit_linear(series, horizon, windows, (), constants)
    long, first_steps = [values for values, _ in pairs], [first for _, first in pairs]
    first, whole = _fit_ranges(
        long, [first_steps, long], [n_parts, len(shares)], horizon, Members(list(windows), [], constants), shares
    )
    return first, whole


def _fit_ranges(
    series: Sequence[Array],
    ranges: Sequence[Sequence[Array]],
    n_parts: Sequence[int],
    horizon: int,
    members: Members,
    shares: Sequence[float],
) -> list[LinearForecast]:
    """Return a linear forecast for each of `ranges`, which is fitted to these series and chosen by the first `n_parts` parts.

    series: whose parts are forecast; shares: of each before a part.
    """
    largest, channels = members.largest, series[0].shape[1]
    steps = _compared_steps(horizon)
    grouped = 1 < channels <= MAX_OWN
    total = _sum_folds(_fold_sums(series, channel, largest, horizon, shares) for channel in range(channels))
    solved = _solve_candidates(total, largest, members, steps, shared=True)
    shared = [_best_regressions(solved, total[:count], largest) for count in n_parts]
    plans: list[list[dict[Regression, float]]] = [[] for _ in n_parts]
    errors = [0.0] * len(n_parts)
    for folds in (_fold_sums(series, channel, largest, horizon, shares) for channel in range(channels)) if grouped else (total,):
        solved = _solve_candidates(folds, largest, members, steps, shared=False) if grouped else {}
        for number, count in enumerate(n_parts):
            best = shared[number] | _best_regressions(solved, folds[:count], largest)
            plan, error = _combine(best, folds[:count], largest)
            plans[number].append(plan)
            errors[number] += error
    counts = [sum(fold.forecast[0, 0] for fold in total[:count]) * len(steps) for count in n_parts]
    fitted = zip(ranges, plans, errors, counts, strict=True)
    return [_solve(values, horizon, largest, chosen, error / count) for values, chosen, error, count in fitted]


def _count_parts(length: int, early: int, window: int, horizon: int, shares: Sequence[float]) -> int:
    """Return how many of the parts of a series of `length` steps lie within its first `early`; 0 if it is not divided in time."""
    if _is_undivided(length, window, horizon, shares) or early < window + horizon:
        return 0
    return sum(end <= early for end in _cuts(length, shares)[1:])


def window_sums(x: Array, size: int, start: int, end: int) -> Array:
    """Return the sums of products over the windows of x (L,) that begin at step `start` ... `end` - 1, (1 + size, 1 + size).

    It is the sum of z z^T, where z is 1 followed by the steps of a window. The sum of x_s x_t follows from that of x_{s-1}
    x_{t-1} by one product that is added and one that is removed, so that the cost is L log L + size^2.
    """
    return _mirror(_upper_sums(x, size, start, end))


def _mirror(upper: Array) -> Array:
    """Return the symmetric matrix of an upper triangle."""
    return upper + np.triu(upper, 1).T


def _upper_sums(x: Array, size: int, start: int, end: int) -> Array:
    """Return the upper triangle of `window_sums`, with zeros below it."""
    result = np.zeros((1 + size, 1 + size))
    steps = x[start : end + size - 1]
    sums = np.concatenate([[0.0], np.cumsum(steps)])
    result[0, 0] = end - start
    result[0, 1:] = sums[end - start : end - start + size] - sums[:size]
    products = result[1:, 1:]
    products[0] = correlate(steps, x[start:end], mode="valid", method="fft")
    added, removed = x[end : end + size - 1], x[start : start + size - 1]
    for step in range(1, size):
        change = added[step - 1] * added[step - 1 :] - removed[step - 1] * removed[step - 1 :]
        products[step, step:] = products[step - 1, step - 1 : -1] + change
    return result


def _folds(length: int, number: int, window: int, horizon: int, shares: Sequence[float]) -> list[tuple[range, range]]:
    """Return for each fold the first steps of the windows of a series to fit and of those to forecast.

    number: of the series; one too short to be divided is forecast as a whole in fold `number % (1 + folds) - 1`, and else fitted
    to. shares: of the series before each part to forecast. A part of less than a horizon reaches to the end of the series.
    """
    if _is_undivided(length, window, horizon, shares):
        turn, every, none = number % (1 + len(shares)) - 1, range(length - window - horizon + 1), range(0)
        return [(none, every) if turn == fold else (every, none) for fold in range(len(shares))]
    cuts = _cuts(length, shares)
    fitted = [range(cut - window - horizon + 1) for cut in cuts[:-1]]
    ends = [end if end - cut >= horizon else length for cut, end in pairwise(cuts)]
    return [(part, range(cuts[i] - window, ends[i] - window - horizon + 1)) for i, part in enumerate(fitted)]


def _is_undivided(length: int, window: int, horizon: int, shares: Sequence[float]) -> bool:
    """Return whether a series is too short to be divided in time, so that it is fitted or forecast as a whole."""
    if shares not in (FOLDS, FEW_FOLDS):
        first, *_, last, _ = _cuts(length, shares)
        return first < window + horizon + 1 or length - last < horizon
    return shares[0] * length < window + 2 * horizon or (1 - shares[-1]) * length < horizon


def _cuts(length: int, shares: Sequence[float]) -> list[int]:
    """Return the steps that divide a series: the beginning of each part to forecast, and its length."""
    return [round(share * length) for share in (*shares, 1)]


def _fold_sums(series: Sequence[Array], channel: int, window: int, horizon: int, shares: Sequence[float]) -> list[_Fold]:
    """Return the sums over the windows of a channel in each fold; of the steps ahead they have only the compared ones."""
    kept = np.r_[0 : 1 + window, 1 + window + _compared_steps(horizon)]
    sums = np.zeros((len(shares), 2, len(kept), len(kept)))
    rounding = 0.0
    for number, values in enumerate(series):
        x = np.ascontiguousarray(values[:, channel])
        rounding += ROUNDING * float(x @ x)
        for fold, parts in enumerate(_folds(len(x), number, window, horizon, shares)):
            for part, starts in enumerate(parts):
                if len(starts):
                    sums[fold, part] += _upper_sums(x, window + horizon, starts.start, starts.stop)[np.ix_(kept, kept)]
    return [_Fold(_mirror(fitted), _mirror(forecast), rounding) for fitted, forecast in sums]


def _sum_folds(channels: Iterable[list[_Fold]]) -> list[_Fold]:
    """Return the sums over several channels, of which only one at a time is in memory."""
    channels = iter(channels)
    total = next(channels)
    for folds in channels:
        for fold, (fitted, forecast, rounding) in enumerate(folds):
            total[fold] = _Fold(total[fold].fitted + fitted, total[fold].forecast + forecast, total[fold].rounding + rounding)
    return total


def _compared_steps(horizon: int) -> Steps:
    """Return at most `COMPARED_STEPS` steps of the horizon, from the first to the last."""
    return np.unique(np.linspace(0, horizon - 1, min(horizon, COMPARED_STEPS)).round().astype(int))


class _Candidate(NamedTuple):
    """A regression in each fold: its coefficients (1 + window, K), of the constant and of the steps, and its squared error."""

    coefficients: list[Array]
    errors: list[float]


def _solve_candidates(
    folds: Sequence[_Fold], largest: int, members: Members, steps: Steps, *, shared: bool
) -> dict[Regression, _Candidate]:
    """Return the regressions of all windows and differences, references and penalties. steps: those ahead, (K,)."""
    found: dict[Regression, _Candidate] = {}
    for window, lag in [*((window, 0) for window in members.windows), *members.differences]:
        references: tuple[Reference, ...] = ("last", "mean", "constant") if not lag else ("last", "constant")
        if lag == 1:  # relative to the last step or to the last change, as with lag 0 or a longer window
            references = ("constant",)
        if not members.constants:
            references = tuple(reference for reference in references if reference != "constant")
        ahead, read = slice(1 + largest, None), np.r_[0, 1 + largest - window : 1 + largest]
        for fitted, forecast, rounding in folds:
            # The members of a fold are multiplied by the sums of its windows together.
            sums, crossed, square = forecast[np.ix_(read, read)], forecast[read, ahead], float(np.trace(forecast[ahead, ahead]))
            for reference in references:
                equations = _equations(fitted, largest, window, lag, steps, reference, rounding)
                # The shape of the stacked coefficients is (1 + window, penalties, K).
                solved = np.stack([_step_coefficients(equations.solve(penalty), lag, steps) for penalty in PENALTIES], axis=1)
                products = (sums @ solved.reshape(len(read), -1)).reshape(solved.shape) - 2 * crossed[:, None]
                errors = square + np.einsum("npk,npk->p", solved, products)
                for number, penalty in enumerate(PENALTIES):
                    regression = Regression(window, reference, penalty, shared, lag)
                    candidate = found.setdefault(regression, _Candidate([], []))
                    candidate.coefficients.append(solved[:, number])
                    candidate.errors.append(float(errors[number]))
    return found


def _best_regressions(
    candidates: dict[Regression, _Candidate], folds: Sequence[_Fold], largest: int
) -> dict[Regression, list[Array]]:
    """Return for each window, reference and lag the regression of the penalty that is best in these folds, the first ones.

    The values are its coefficients (1 + largest, K) in each fold.
    """
    units = _units(folds, largest)
    best: dict[tuple[int, Reference, int], tuple[float, Regression]] = {}
    for regression, (_, errors) in candidates.items():
        error = float(sum(own / unit for own, unit in zip(errors, units, strict=False)))
        case = regression.window, regression.reference, regression.lag
        if case not in best or error < best[case][0]:
            best[case] = error, regression
    chosen = (regression for _, regression in best.values())
    return {one: [_pad(own, largest) for own in candidates[one].coefficients[: len(folds)]] for one in chosen}


def _pad(coefficients: Array, largest: int) -> Array:
    """Return coefficients (1 + largest, K) from those of a shorter window (1 + window, K)."""
    padded = np.zeros((1 + largest, coefficients.shape[1]))
    padded[0], padded[2 + largest - len(coefficients) :] = coefficients[0], coefficients[1:]
    return padded


class _Equations(NamedTuple):
    """The normal equations of the regressions from a window, for any penalty.

    features: products of the steps less the reference (W, W). targets: those with the steps ahead less the reference (W, K).
    share: of each step in the reference (W,). means, means_ahead: of the steps (W,) and of the steps ahead (K,), zeros unless the
    reference is the mean of the series. rounding: bound of the rounding errors of `features`.
    """

    features: Array
    targets: Array
    share: Array
    means: Array
    means_ahead: Array
    rounding: float

    def solve(self, penalty: float) -> Array:
        """Return the coefficients (1 + window, K) of the constant and of the steps."""
        window, steps = self.targets.shape
        features = self.features.copy(order="F")
        # Larger than the rounding errors, which are all there is of constant features.
        features[np.diag_indices(window)] += penalty * np.trace(features) / window + self.rounding + 1e-30
        factor = cho_factor(features, lower=True, overwrite_a=True, check_finite=False)
        weight = cho_solve(factor, self.targets, check_finite=False)
        coefficients = np.zeros((1 + window, steps))
        coefficients[1:] = weight + (np.outer(self.share, 1 - weight.sum(0)) if self.share.any() else 0)
        coefficients[0] = self.means_ahead - self.means @ coefficients[1:]
        return coefficients


def _equations(
    sums: Array, largest: int, window: int, lag: int, steps: Steps, reference: Reference, rounding: float
) -> _Equations:
    """Return the equations for windows, or for the differences in them, see `_normal_equations`. steps: those ahead, (K,)."""
    if not lag:
        return _normal_equations(sums, largest, window, reference, rounding)
    past = np.arange(1 + largest - window, 1 + largest)
    # 1, the differences in a window, and those of the steps ahead to the steps of the same phase at its end.
    plus = np.r_[0, past[lag:], 1 + largest + np.arange(len(steps))]
    minus = np.r_[past[:-lag], past[window - lag + steps % lag]]
    columns = sums[:, plus]
    columns[:, 1:] -= sums[:, minus]
    products = columns[plus]
    products[1:] -= columns[minus]
    return _normal_equations(products, window - lag, window - lag, reference, 4 * rounding)


def _step_coefficients(coefficients: Array, lag: int, steps: Steps) -> Array:
    """Return the coefficients (1 + window, K) of the steps of a window from those of differences, (1 + window - lag, K)."""
    if not lag:
        return coefficients
    found = np.zeros((len(coefficients) + lag, len(steps)))
    found[0] = coefficients[0]
    found[1 + lag :] += coefficients[1:]
    found[1 : len(coefficients)] -= coefficients[1:]
    found[len(coefficients) + steps % lag, np.arange(len(steps))] += 1
    return found


def _normal_equations(sums: Array, largest: int, window: int, reference: Reference, rounding: float) -> _Equations:
    """Return the equations for windows relative to a reference, from the sums of products over windows of `largest` steps."""
    past, ahead = slice(1 + largest - window, 1 + largest), slice(1 + largest, None)
    share = np.zeros(window)
    means, means_ahead = np.zeros(window), np.zeros(len(sums) - 1 - largest)
    if reference == "constant":
        means, means_ahead = sums[past, 0] / sums[0, 0], sums[ahead, 0] / sums[0, 0]
        features = sums[past, past] - np.outer(sums[past, 0], means)
        targets = sums[past, ahead] - np.outer(sums[past, 0], means_ahead)
    else:
        share[slice(None) if reference == "mean" else -1] = 1
        share /= share.sum()
        along = sums[past, past] @ share
        square = float(share @ along)
        features = sums[past, past] - along - along[:, None] + square
        targets = sums[past, ahead] - share @ sums[past, ahead] - (along - square)[:, None]
    return _Equations(features, targets, share, means, means_ahead, rounding)


def _regress(sums: Array, largest: int, member: Regression, rounding: float) -> Array:
    """Return the coefficients (1 + largest, K) of the constant and of the steps of a regression."""
    steps = np.arange(len(sums) - 1 - largest)
    equations = _equations(sums, largest, member.window, member.lag, steps, member.reference, rounding)
    return _pad(_step_coefficients(equations.solve(member.penalty), member.lag, steps), largest)


def _units(folds: Sequence[_Fold], largest: int) -> Array:
    """Return for each fold the squared error of repeating the last step of a window of `largest` steps.

    A share of the mean over the folds is added, as a series may be constant in one of them.
    """
    last, ahead = largest, slice(1 + largest, None)
    errors = []
    for _, forecast, rounding in folds:
        squares = np.diag(forecast)
        errors.append(max(0.0, float(np.sum(squares[ahead] - 2 * forecast[last, ahead] + squares[last]))) + rounding + 1e-30)
    return np.asarray(errors) + SMALLEST_UNIT * np.mean(errors)


def _error_products(members: Sequence[Array], fold: _Fold) -> Array:
    """Return the sums of products of the errors of each two of M members on the windows to forecast, (M, M)."""
    n, count, steps = len(members[0]), len(members), members[0].shape[1]
    stacked = np.concatenate(members, axis=1)  # (n, M K)
    with_sums = fold.forecast[:n, :n] @ stacked

    def by_member(values: Array) -> Array:
        return values.reshape(n, count, steps).transpose(1, 0, 2).reshape(count, -1)

    flat = by_member(stacked)
    crossed = flat @ fold.forecast[:n, n:].reshape(-1)
    return np.asarray(flat @ by_member(with_sums).T - crossed[:, None] - crossed + np.trace(fold.forecast[n:, n:]))


def _combine(
    members: dict[Regression, list[Array]], folds: Sequence[_Fold], largest: int
) -> tuple[dict[Regression, float], float]:
    """Return the weights of the members, which sum to 1, and the squared error, summed over the windows to forecast."""
    of_fold = [_error_products([member[i] for member in members.values()], fold) for i, fold in enumerate(folds)]
    units = _units(folds, largest)
    products = np.sum([errors / own for errors, own in zip(of_fold, units, strict=True)], axis=0)
    rounding = sum(fold.rounding / own for fold, own in zip(folds, units, strict=True))
    unit = max(float(np.diag(products).min()), rounding + 1e-30)
    values, vectors = np.linalg.eigh(products / unit + EVENNESS * np.eye(len(products)))
    root = np.sqrt(np.maximum(values, 1e-9 * values.max()))[:, None] * vectors.T
    strict = 1e3 * np.sqrt(values.max())  # the weight of the equation that the weights sum to 1
    weights, _ = nnls(np.vstack([root, np.full(len(products), strict)]), np.r_[np.zeros(len(products)), strict])
    weights = np.where(weights > SMALLEST_WEIGHT * weights.sum(), weights, 0)
    weights /= weights.sum()
    plan = {member: float(weight) for member, weight in zip(members, weights, strict=True) if weight}
    return plan, max(0.0, float(weights @ np.sum(of_fold, axis=0) @ weights))


def _solve(
    series: Sequence[Array], horizon: int, largest: int, plans: Sequence[dict[Regression, float]], error: float
) -> LinearForecast:
    """Return the combinations of the channels, or one of all, with regressions fitted to all windows."""
    channels = series[0].shape[1]
    roundings = ROUNDING * sum(np.square(values).sum(0) for values in series)

    def sums_of(channel: int) -> Array:
        parts = (window_sums(x[:, channel], largest + horizon, 0, len(x) - largest - horizon + 1) for x in series)
        return np.asarray(sum(parts))

    def solve(members: Iterable[Regression], sums: Array, rounding: float) -> dict[Regression, Array]:
        return {member: _regress(sums, largest, member, rounding) for member in members}

    shared = dict.fromkeys(member for plan in plans for member in plan if member.shared)
    solved = solve(shared, np.asarray(sum(sums_of(channel) for channel in range(channels))), float(np.sum(roundings)))
    weight, level, bias = [], [], []
    for channel, plan in enumerate(plans):
        own = [member for member in plan if member not in shared]
        members = solved | (solve(own, sums_of(channel), float(roundings[channel])) if own else {})
        coefficients = np.sum([share * members[member] for member, share in plan.items()], axis=0)
        bias.append(coefficients[0])
        weight.append(coefficients[1:].T)
        level.append(weight[-1].sum(1) - 1)
    return LinearForecast(np.stack(weight), np.stack(level), np.stack(bias), float(error))
