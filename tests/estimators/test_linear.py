"""The linear forecast is the ridge regression that an explicit table of windows gives, chosen by cross-validation over time."""

import tracemalloc
from itertools import product

import numpy as np
import pandas as pd
import pytest
import torch

from longscan.estimators import SSMForecaster, linear
from longscan.estimators.held_back import BLOCK_GAIN
from longscan.estimators.linear import (
    EVENNESS,
    FEW_FOLDS,
    FOLDS,
    PENALTIES,
    SMALLEST_UNIT,
    WINDOWS,
    Members,
    Regression,
    _combine,
    _Fold,
    _folds,
    _regress,
    _units,
    continue_change,
    find_season,
    fit_early_and_whole,
    fit_linear,
    fit_short,
    fold_shares,
    repeat_last,
    usable_members,
    usable_windows,
    window_sums,
)
from longscan.models import Forecaster


def make_waves(length: int, seed: int = 0) -> np.ndarray:
    noise = np.random.default_rng(seed).normal(size=(length, 2))
    return np.stack([np.sin(np.arange(length) / 5), 3 * np.cos(np.arange(length) / 9)], 1) + 0.1 * noise


def table_of_windows(x: np.ndarray, window: int, horizon: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the steps of all windows of x (L,) and the steps that follow."""
    starts = range(len(x) - window - horizon + 1)
    past = np.stack([x[start : start + window] for start in starts])
    return past, np.stack([x[start + window : start + window + horizon] for start in starts])


def ridge_forecast(fitted: np.ndarray, window: int, horizon: int, reference: str, penalty: float, past: np.ndarray) -> np.ndarray:
    """Return forecasts (n, horizon) after windows `past` (n, window) of a ridge regression fitted to a series."""

    def level(steps: np.ndarray) -> np.ndarray:
        return {"last": steps[:, -1:], "mean": steps.mean(1, keepdims=True), "constant": center}[reference]

    steps, ahead = table_of_windows(fitted, window, horizon)
    center = np.zeros((1, 1))
    features, targets, offset = steps - level(steps), ahead - level(steps), np.zeros(horizon)
    if reference == "constant":
        offset = targets.mean(0)
        means = features.mean(0)
        features, targets, past = features - means, targets - offset, past - means
    covariance = features.T @ features
    scaled = penalty * np.trace(covariance) / window * np.eye(window)
    return level(past) + offset + (past - level(past)) @ np.linalg.solve(covariance + scaled, features.T @ targets)


def test_sums_over_windows_are_those_of_the_table():
    x = np.random.default_rng(0).normal(size=60).cumsum()
    for start, end in ((0, 10), (10, 54), (3, 4)):
        table = np.array([[1, *x[first : first + 7]] for first in range(start, end)])
        np.testing.assert_allclose(window_sums(x, 7, start, end), table.T @ table, atol=1e-9)


@pytest.mark.parametrize("reference", ["last", "constant"])
@pytest.mark.parametrize("lag", [1, 5])
def test_regressions_of_differences_are_those_of_the_table_of_differences(reference, lag):
    """A window of 12 steps has 12 - lag differences, and the step ahead is compared with the last step of its phase."""
    x = make_waves(300)[:, 0]
    sums = window_sums(x, 16 + 7, 0, 300 - 16 - 7 + 1)
    coefficients = _regress(sums, 16, Regression(12, reference, 0.1, True, lag), 0.0)
    starts = range(4, 300 - 12 - 7 + 1)
    windows = np.stack([x[start : start + 12] for start in starts])
    before = windows[:, 12 - lag + np.arange(7) % lag]
    ahead = np.stack([x[start + 12 : start + 19] for start in starts]) - before
    differences = windows[:, lag:] - windows[:, :-lag]
    if reference == "last":
        level, offset, means = differences[:, -1:], 0.0, 0.0
    else:
        level, offset, means = 0.0, ahead.mean(0), differences.mean(0)
    features, targets = differences - level - means, ahead - level - offset
    covariance = features.T @ features
    penalised = covariance + 0.1 * np.trace(covariance) / (12 - lag) * np.eye(12 - lag)
    expected = before + level + offset + features @ np.linalg.solve(penalised, features.T @ targets)
    found = coefficients[0] + np.pad(windows, ((0, 0), (4, 0))) @ coefficients[1:]
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("reference", ["last", "mean", "constant"])
def test_regressions_are_those_of_the_table(reference):
    x = make_waves(300)[:, 0]
    sums = window_sums(x, 16 + 6, 0, 300 - 16 - 6 + 1)
    coefficients = _regress(sums, 16, Regression(12, reference, 0.1, shared=True), 0.0)
    past = np.random.default_rng(1).normal(size=(5, 16))
    # A shorter window is fitted to the same steps ahead as the longest one.
    expected = ridge_forecast(x[4:], 12, 6, reference, 0.1, past[:, 4:])
    np.testing.assert_allclose(coefficients[0] + past @ coefficients[1:], expected, rtol=1e-6, atol=1e-9)


def test_regressions_have_the_errors_of_the_table():
    """Each later part of the series is forecast from the steps before it."""
    x = make_waves(400)[:, :1]
    fit = fit_linear([x], 6, [12])
    best = np.inf
    for reference, penalty in product(("last", "mean", "constant"), PENALTIES):
        errors = []
        for start, end in ((240, 280), (280, 320), (320, 360), (360, 400)):
            past, ahead = table_of_windows(x[start - 12 : end, 0], 12, 6)
            errors.append(ridge_forecast(x[:start, 0], 12, 6, reference, penalty, past) - ahead)
        best = min(best, float(np.concatenate(errors).var() + np.concatenate(errors).mean() ** 2))
    assert 0.8 * best < fit.error < 1.02 * best


def test_weights_of_members_are_those_of_lowest_error_with_a_penalty_on_uneven_ones():
    """Coefficients are those of a constant and one step; the sums of products make the errors independent."""
    members = {Regression(1, "last", 10.0**k, shared=True): [np.eye(3)[:, k : k + 1]] for k in range(3)}
    products = np.diag([1.0, 2.0, 50.0])
    fold = _Fold(np.zeros((4, 4)), np.pad(products, (0, 1)), 0.0)
    plan, error = _combine(members, [fold], 2)
    inverse = 1 / (np.diag(products) + EVENNESS)
    expected = inverse / inverse.sum()
    np.testing.assert_allclose(list(plan.values()), expected, rtol=1e-4)
    assert error == pytest.approx(expected @ products @ expected, rel=1e-4)


def test_parts_count_in_units_of_the_error_of_the_last_step():
    """In the second part the series varies ten times as much; the error there is as important as in the first."""
    walk = np.random.default_rng(0).normal(size=(2, 50)).cumsum(1) * np.array([[1.0], [10.0]])
    folds = [_Fold(np.zeros((7, 7)), window_sums(x, 6, 0, 45), 0.0) for x in walk]
    table = [np.array([x[first : first + 6] for first in range(45)]) for x in walk]
    errors = [float(np.sum((windows[:, 4:] - windows[:, 3:4]) ** 2)) for windows in table]
    expected = np.array(errors) + SMALLEST_UNIT * np.mean(errors)
    np.testing.assert_allclose(_units(folds, 4), expected, rtol=1e-9)


def test_four_parts_are_forecast_if_each_has_two_horizons():
    assert fold_shares(240, 12) == FOLDS
    assert fold_shares(239, 12) == FEW_FOLDS


def test_short_series_take_turns():
    """A series of 40 steps is too short to be divided for a window of 24; in each fold, other series are forecast."""
    folds = [_folds(40, number, 24, 6, FEW_FOLDS) for number in range(3)]
    assert [[len(forecast) > 0 for _, forecast in fold] for fold in folds] == [[False, False], [True, False], [False, True]]
    assert all((len(fitted) > 0) != (len(forecast) > 0) for fold in folds for fitted, forecast in fold)


def test_divided_series_are_forecast_from_earlier_steps():
    for (fitted, forecast), end in zip(_folds(200, 0, 24, 6, FEW_FOLDS), (160, 200), strict=True):
        assert fitted[-1] + 24 + 6 == forecast[0] + 24, "the last step fitted to precedes the first forecast"
        assert forecast[-1] + 24 + 6 == end


def test_channels_share_a_forecast_if_there_are_many(monkeypatch):
    x = make_waves(400)
    assert fit_linear([x], 6, [12]).weight.shape == (2, 6, 12)
    monkeypatch.setattr(linear, "MAX_OWN", 1)
    assert fit_linear([x], 6, [12]).weight.shape == (1, 6, 12)


@pytest.mark.parametrize("lengths", [(400, 300), (400, 20)], ids=["long", "one is too short"])
def test_first_steps_and_all_are_forecast_by_common_regressions(lengths, monkeypatch):
    """Of the four parts of a series two lie within its first four fifths, and the regressions of these are needed only once."""
    solved = []
    factor = linear.cho_factor
    monkeypatch.setattr(linear, "cho_factor", lambda *args, **settings: solved.append(1) or factor(*args, **settings))
    series = [make_waves(length, length) for length in lengths]
    early = [values[: len(values) * 4 // 5].copy() for values in series]
    first, whole = fit_early_and_whole(series, early, 6, [12, 24])
    together = len(solved)
    alone = fit_linear(series, 6, [12, 24])
    assert together < 1.2 * (len(solved) - together)
    for part, expected in zip(whole, alone, strict=True):
        np.testing.assert_array_equal(part, expected)
    for values, known in zip(series, early, strict=True):
        values[len(known) :] = values[len(known) :][::-1].copy()
    again, _ = fit_early_and_whole(series, early, 6, [12, 24])
    for part, expected in zip(again, first, strict=True):
        np.testing.assert_allclose(part, expected, rtol=1e-9, atol=1e-9)


def test_first_steps_without_a_whole_part_are_forecast_as_alone():
    """The first of the two parts of a series of 100 steps ends at step 80, after its first 75."""
    x = make_waves(100)
    first, _ = fit_early_and_whole([x], [x[:75]], 12, [12])
    for part, expected in zip(first, fit_linear([x[:75]], 12, [12]), strict=True):
        np.testing.assert_array_equal(part, expected)


def test_seasons_are_found():
    random = np.random.default_rng(0)
    season = np.tile(random.normal(size=40), 30) + 0.05 * random.normal(size=1200)
    fit = fit_linear([season[:, None]], 8, [12, 48])
    assert fit.window == 48
    assert fit.error < 2 * 0.05**2, "the error of repeating the last season"


def test_forecasts_follow_a_series_whose_level_has_changed():
    """The mean of the steps to forecast is far from that of the steps before; the weights of relative regressions sum to 1."""
    x = make_waves(600)[:, 0]
    fit = fit_linear([(x + np.random.default_rng(1).normal(size=600).cumsum())[:, None]], 6, [24])
    assert np.abs(fit.level).max() < 0.05


def test_constant_series_are_forecast_as_constant():
    fit = fit_linear([np.full((200, 1), 3.0)], 4, [12])
    assert np.isfinite(fit.weight).all()
    np.testing.assert_allclose(3 * (1 + fit.level[0]) + fit.bias[0], 3, atol=1e-9)


@pytest.mark.parametrize("x", [np.full(300, 3.3), np.full(300, -0.5123), np.arange(1000) / 300 - 1.7], ids=["3", "-0.5", "line"])
def test_weights_do_not_amplify_rounding_errors(x):
    """The features are equal in all windows, so that all there is of their covariance is rounding errors of the sums."""
    assert np.abs(fit_linear([x[:, None]], 4, [12, 24]).weight).sum(2).max() < 3


def test_series_far_apart_are_forecast_as_well_as_near_ones():
    """The variance in a series is 1e-12 of that between the two; rounding errors must not be taken for a low error."""
    waves = make_waves(1000)[:, :1]
    near, far = (fit_linear([waves, waves + offset], 4, [24]) for offset in (1, 3e5))
    assert np.abs(far.weight).max() < 1
    past, ahead = table_of_windows(waves[:, 0], 24, 4)
    past, ahead = past - past.mean(1, keepdims=True), ahead - past.mean(1, keepdims=True)
    assert ((ahead - past @ far.weight[0].T) ** 2).mean() < 2 * ((ahead - past @ near.weight[0].T) ** 2).mean()


def test_memory_does_not_grow_with_the_number_of_series():
    def peak(count: int) -> int:
        series = [np.random.default_rng(i).normal(size=(140, 1)) for i in range(count)]
        tracemalloc.start()
        fit_linear(series, 6, [96])
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    assert peak(30) < 1.5 * peak(6)


def test_short_series_have_no_usable_window():
    assert usable_windows(np.array([60]), 6) == [12]
    assert usable_windows(np.array([40, 30]), 6) == []
    assert usable_windows(np.array([40, 30, 20]), 6) == []
    assert usable_windows(np.array([40, 30, 20, 30]), 6) == [12]
    assert usable_windows(np.array([4000]), 24) == [12, 24, 96, 336, 720]


def test_short_series_are_forecast_by_differences():
    assert usable_members(np.array([4000]), 24, 24) == (list(WINDOWS), [], True)
    assert usable_members(np.array([54]), 12, 12) == ([], [(13, 12)], True)
    assert usable_members(np.array([54]), 12, 1) == ([1], [(2, 1)], True)
    assert usable_members(np.array([13]), 6, 1) == ([], [], True)
    assert usable_members(np.array([14]), 6, 1) == ([1], [], True)


def test_two_overlapping_parts_of_a_short_series_reach_to_its_end():
    """Of 54 steps with a horizon of 12, less than five: the first part begins two horizons before the end."""
    shares = fold_shares(54, 12, 1)
    assert _folds(54, 0, 13, 12, shares) == [(range(6), range(17, 30)), (range(12), range(23, 30))]
    assert fold_shares(54, 12, 3) == fold_shares(60, 12, 1) == FEW_FOLDS


@pytest.mark.parametrize("dated", [True, False])
def test_few_years_of_months_are_forecast_as_well_as_by_the_seasonal_naive_forecast(dated):
    """Four and a half years with a trend: without the trend, the last year would be wrong by 3."""
    months = np.arange(66)
    y = pd.Series(100 + 0.25 * months + 20 * np.sin(months * np.pi / 6) + np.random.default_rng(0).normal(size=66))
    y.index = pd.date_range("2019-01-01", periods=66, freq="MS") if dated else y.index
    forecast = SSMForecaster(12, device="cpu", random_state=0).fit(y[:54]).predict()
    assert np.abs(forecast - y[54:]).mean() < 2 < np.abs(y[42:54].to_numpy() - y[54:]).mean()
    assert forecast.index.equals(y.index[54:])


def test_a_series_without_a_direction_repeats_its_last_step_if_nothing_can_be_compared():
    model = SSMForecaster(3, device="cpu", random_state=0).fit(np.array([2.0, 5.0, 4.0, 3.5]))
    np.testing.assert_allclose(model.predict(), 3.5, rtol=1e-6)
    np.testing.assert_allclose(model.predict(np.array([1.0, 9.0])), 9.0, rtol=1e-6)
    assert repeat_last(2).widened(3).forecast(np.array([[[1.0], [2.0], [4.0]]])).tolist() == [[[4.0], [4.0]]]
    assert continue_change(np.array([[1.0], [4.0]]), 2).bias.tolist() == [[0.0, 0.0]], "one change has no deviation"


def test_a_short_series_continues_its_change():
    """Years of growth by 5 and noise of deviation 1 are continued; eight of each of two series are too few, and repeated."""
    years = np.arange(24)
    y = 100 + 5 * years + np.random.default_rng(0).normal(size=24)
    for length in (8, 18):  # nothing can be compared, and two parts that overlap
        forecast = SSMForecaster(6, device="cpu", random_state=0).fit(y[:length]).predict()
        actual = y[length : length + 6]
        assert np.abs(forecast - actual).mean() < 0.3 * np.abs(y[length - 1] - actual).mean()
    panel = SSMForecaster(6, device="cpu", random_state=0).fit([y[:8], y[:8] + 1]).predict()
    np.testing.assert_allclose(panel[0], y[7], rtol=1e-6)


def test_the_mean_change_is_shrunk_by_its_deviation():
    values = np.array([[0.0, 0.0], [2.0, 3.0], [3.0, -1.0], [6.0, 1.0]])  # changes 2, 1, 3 and 3, -4, 2
    found = continue_change(values, 2)
    mean, square = 2.0, 1.0 / 3  # of the first channel, and the variance of this mean
    np.testing.assert_allclose(found.bias, [np.array([1, 2]) * (1 - square / mean**2) * mean, [0, 0]])
    np.testing.assert_allclose(found.forecast(np.array([[[6.0, 1.0]]]))[0], np.array([[6, 1], [6, 1]]) + found.bias.T)


def test_a_short_series_without_a_season_has_half_of_its_mean_change():
    x = np.random.default_rng(0).normal(size=(40, 1)).cumsum(0) + np.arange(40)[:, None]
    for length, horizon, is_half in ((28, 6, True), (31, 6, False)):
        members = usable_members(np.array([length]), horizon, 1)
        found, regressions = fit_short([x[:length]], horizon, members, 1), fit_linear([x[:length]], horizon, *members)
        change = continue_change(x[:length], horizon)
        past = x[None, :length][:, -found.window :]
        expected = [part.widened(found.window).forecast(past) for part in (regressions, change if is_half else regressions)]
        np.testing.assert_allclose(found.forecast(past), np.mean(expected, 0), atol=1e-9)
    members = usable_members(np.array([28]), 6, 12)
    assert all(difference.lag == 1 for difference in members.differences), "too short for those of a year"
    np.testing.assert_array_equal(fit_short([x[:28]], 6, members, 12).bias, fit_linear([x[:28]], 6, *members).bias)
    assert fit_short([x[:8]], 6, Members([], []), 12).bias.tolist() == [[0.0] * 6]


def test_seasons_are_peaks_of_the_autocorrelation():
    noise = np.random.default_rng(0).normal(size=(60, 2))
    waves = np.sin(np.arange(60)[:, None] * np.pi / 6) + 0.2 * noise
    assert find_season([waves + 0.1 * np.arange(60)[:, None]]) == 12
    assert find_season([noise]) == find_season([np.ones((30, 1))]) == find_season([waves[:3]]) == 1
    assert find_season([waves[:30]]) == 1, "twelve steps occur less than three times"


def make_walk(length: int) -> np.ndarray:
    """Return a linear process, of which blocks cannot forecast more than the regression does."""
    noise, x = np.random.default_rng(0).normal(size=length), np.zeros(length)
    for step in range(2, length):
        x[step] = 1.6 * x[step - 1] - 0.8 * x[step - 2] + noise[step]
    return x


def test_linear_forecast_alone_is_used_where_the_blocks_do_not_help():
    y = make_walk(600)
    model = SSMForecaster(horizon=3, d_model=4, d_state=2, epochs=3, lr=1.0, device="cpu", random_state=0).fit(y)
    assert model.n_epochs_ == 0
    assert len(model.validation_curve_) > 1  # the blocks were trained, whose errors at this learning rate vary with rounding
    assert min(model.validation_curve_) > (1 - BLOCK_GAIN) * model.validation_curve_[0]
    series = [((y - model.mean_) / model.scale_).astype(np.float32).astype(np.float64)[:, None]]
    members = usable_members(np.array([600]), 3, find_season(series))
    assert members.differences, "the series is too short for windows of 336 steps"
    linear = fit_linear(series, 3, *members)
    past = (y[-model.window_ :] - model.mean_) / model.scale_
    mean = past.mean()
    expected = mean * (1 + linear.level[0]) + linear.weight[0] @ (past - mean) + linear.bias[0]
    np.testing.assert_allclose(model.predict(), expected * model.scale_ + model.mean_, rtol=1e-4, atol=1e-4)


def test_blocks_whose_error_is_not_a_number_are_left_out():
    """The only update of the only epoch makes the weights so large that the forecast overflows."""
    model = SSMForecaster(horizon=3, d_model=4, d_state=2, epochs=1, batch_size=10_000, lr=1e30, device="cpu", random_state=0)
    model.fit(make_walk(300))
    assert np.isnan(model.validation_curve_[1])
    assert model.n_epochs_ == 0
    assert np.isfinite(model.predict()).all()


def test_held_back_part_is_forecast_without_dropout(monkeypatch):
    modes, forward = set(), Forecaster.forward

    def record(self, *args, **kwargs):
        modes.add((torch.is_grad_enabled(), self.training))
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(Forecaster, "forward", record)
    SSMForecaster(horizon=3, d_model=4, d_state=2, epochs=2, device="cpu", random_state=0).fit(make_walk(300))
    assert modes == {(True, True), (False, False)}


def test_blocks_are_used_where_they_help():
    """The logistic map is a parabola of the last value, of which a line forecasts nothing."""
    y = [0.3]
    for _ in range(900):
        y.append(3.9 * y[-1] * (1 - y[-1]))
    model = SSMForecaster(horizon=1, window=12, d_model=16, d_state=2, epochs=12, device="cpu", random_state=0).fit(np.array(y))
    assert model.n_epochs_ == np.argmin(model.validation_curve_) > 0
    assert min(model.validation_curve_) < 0.7 * model.validation_curve_[0]
    assert len(model.loss_curve_) == model.n_epochs_


def test_many_short_series_are_forecast_by_the_regression_of_all():
    """Each of 40 series has two and a half years of months: too few for a regression, and a fifth of them is less than a year."""
    random = np.random.default_rng(0)
    months = np.arange(42)
    series = [
        level + size * np.sin(2 * np.pi * (months + shift) / 12) + 0.02 * random.normal(size=42)
        for level, size, shift in zip(random.normal(size=40), random.uniform(1, 3, 40), random.integers(12, size=40), strict=True)
    ]
    model = SSMForecaster(12, d_model=4, d_state=2, epochs=1, device="cpu", random_state=0).fit([y[:30] for y in series])
    assert model.n_epochs_ == 0, "one series of 30 months has 18 before the part that is held back"
    model.fit([y[:36] for y in series])
    assert model.window_ == 24
    assert model.validation_curve_[0] < 0.05
    errors = [np.abs(model.predict(y[:30]) - y[30:]).mean() for y in series]
    assert np.mean(errors) < 0.2


def test_series_of_different_sizes_are_forecast_alike():
    """Seven series of 138 steps with a season of 12, whose sizes and levels differ by powers of ten."""
    random = np.random.default_rng(0)
    series = [10.0**size * (2 + np.sin(np.arange(150) * np.pi / 6) + 0.05 * random.normal(size=150)) for size in range(7)]
    model = SSMForecaster(12, d_model=4, d_state=2, device="cpu", random_state=0).fit([y[:-12] for y in series])
    assert model.own_scales_
    errors = [np.abs(forecast - y[-12:]).mean() for forecast, y in zip(model.predict(), series, strict=True)]
    assert max(error / 10.0**size for size, error in enumerate(errors)) < 0.08, "twice the mean size of the noise"
    other = model.predict([7e8 * y[:-12] - 3e9 for y in series[:2]])
    for forecast, changed in zip(model.predict([y[:-12] for y in series[:2]]), other, strict=True):
        np.testing.assert_allclose(7e8 * forecast - 3e9, changed, rtol=1e-4)
    assert not SSMForecaster(12, d_model=4, d_state=2, epochs=1, device="cpu").fit([series[0], 2 * series[0]]).own_scales_


def test_one_window_to_forecast_in_each_part_is_enough():
    """Of three short series the last two are forecast once; there must be as many windows to fit to as a window has steps."""
    assert usable_windows(np.array([30, 18, 18]), 6, [12]) == [12]
    assert usable_windows(np.array([30, 18]), 6, [12]) == []
    assert usable_windows(np.array([28, 18, 18]), 6, [12]) == [12]
    assert usable_windows(np.array([27, 18, 18]), 6, [12]) == []
