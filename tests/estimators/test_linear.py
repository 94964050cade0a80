"""The linear forecast is the ridge regression that an explicit table of windows gives, chosen by cross-validation over time."""

import tracemalloc

import numpy as np
import pytest
import torch

from longscan.estimators import SSMForecaster
from longscan.estimators.linear import FOLDS, PENALTIES, fit_linear, usable_windows, window_sums
from longscan.models import Forecaster


def make_waves(length: int, seed: int = 0) -> np.ndarray:
    noise = np.random.default_rng(seed).normal(size=(length, 2))
    return np.stack([np.sin(np.arange(length) / 5), 3 * np.cos(np.arange(length) / 9)], 1) + 0.1 * noise


def table_of_windows(x: np.ndarray, window: int, horizon: int, with_level: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return features and targets of all windows of x (L,), both less the mean of the window."""
    starts = range(len(x) - window - horizon + 1)
    past = np.stack([x[start : start + window] for start in starts])
    ahead = np.stack([x[start + window : start + window + horizon] for start in starts])
    mean = past.mean(1, keepdims=True)
    features = past - mean
    return np.hstack([features, mean]) if with_level else features, ahead - mean


def ridge(features: np.ndarray, targets: np.ndarray, penalty: float) -> tuple[np.ndarray, np.ndarray]:
    """Return coefficients and intercept of a ridge regression."""
    centred = features - features.mean(0)
    covariance = centred.T @ centred
    scaled = penalty * np.trace(covariance) / len(covariance) * np.eye(len(covariance))
    coefficients = np.linalg.solve(covariance + scaled, centred.T @ (targets - targets.mean(0)))
    return coefficients, targets.mean(0) - features.mean(0) @ coefficients


def cross_validated_error(series: list[np.ndarray], window: int, horizon: int, with_level: bool, penalty: float) -> float:
    errors = []
    for fold in range(FOLDS):
        fitted, forecast = [], []
        for x in series:
            features, targets = table_of_windows(x, window, horizon, with_level)
            start, end = (round(len(features) * part / FOLDS) for part in (fold, fold + 1))
            numbers = np.arange(len(features))
            others = (numbers < start - horizon) | (numbers >= end + horizon)
            fitted.append((features[others], targets[others]))
            forecast.append((features[start:end], targets[start:end]))
        coefficients, intercept = ridge(*(np.vstack(part) for part in zip(*fitted, strict=True)), penalty)
        errors += [(targets - features @ coefficients - intercept) ** 2 for features, targets in forecast]
    return float(np.concatenate(errors).mean())


def test_sums_over_windows_are_those_of_the_table():
    x = np.random.default_rng(0).normal(size=60).cumsum()
    for sums, starts in zip(window_sums(x, 7, [0, 10, 54]), (range(10), range(10, 54)), strict=True):
        table = np.array([[1, *x[start : start + 7]] for start in starts])
        np.testing.assert_allclose(sums, table.T @ table, atol=1e-9)


@pytest.mark.parametrize("horizon", [1, 6])
def test_forecast_of_lowest_cross_validated_error_is_chosen(horizon):
    x = make_waves(400)[:, 0]
    series = [x[:300], x[300:]]
    errors = {
        (level, penalty): cross_validated_error(series, 12, horizon, level, penalty)
        for level in (False, True)
        for penalty in PENALTIES
    }
    (with_level, penalty), error = min(errors.items(), key=lambda item: item[1])
    fit = fit_linear([part[:, None] for part in series], horizon, [12])
    assert fit.error == pytest.approx(error, rel=1e-9)
    tables = [table_of_windows(part, 12, horizon, with_level) for part in series]
    coefficients, intercept = ridge(*(np.vstack(part) for part in zip(*tables, strict=True)), penalty)
    np.testing.assert_allclose(fit.weight[0], coefficients[:12].T, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(fit.level[0], coefficients[12] if with_level else 0, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(fit.bias[0], intercept, rtol=1e-6, atol=1e-9)


def test_channels_share_a_forecast_only_if_it_is_better():
    x = make_waves(400)
    assert fit_linear([x], 6, [12]).weight.shape == (2, 6, 12)
    copies = np.stack([make_waves(100, seed)[:, 0] for seed in range(6)], 1)
    assert fit_linear([copies], 6, [12]).weight.shape == (1, 6, 12)


def test_chosen_window_covers_the_period():
    random = np.random.default_rng(0)
    season = np.tile(random.normal(size=40), 30) + 0.05 * random.normal(size=1200)
    assert fit_linear([season[:, None]], 8, [12, 24, 48]).window == 48


def test_constant_series_are_forecast_as_constant():
    fit = fit_linear([np.full((200, 1), 3.0)], 4, [12])
    assert np.isfinite(fit.weight).all()
    np.testing.assert_allclose(3 * (1 + fit.level[0]) + fit.bias[0], 3, atol=1e-9)


@pytest.mark.parametrize("x", [np.full(300, 3.3), np.full(300, -0.5123), np.arange(1000) / 300 - 1.7], ids=["3", "-0.5", "line"])
def test_weights_do_not_amplify_rounding_errors(x):
    """The features are equal in all windows, so that all there is of their covariance is rounding errors of the sums."""
    assert np.abs(fit_linear([x[:, None]], 4, [12, 24]).weight).max() < 1e-3


def test_series_far_apart_are_forecast_as_well_as_near_ones():
    """The variance in a series is 1e-12 of that between the two; rounding errors must not be taken for a low error."""
    waves = make_waves(1000)[:, :1]
    near, far = (fit_linear([waves, waves + offset], 4, [24]) for offset in (1, 3e5))
    assert np.abs(far.weight).max() < 1
    past, ahead = table_of_windows(waves[:, 0], 24, 4, with_level=False)
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
    assert usable_windows(np.array([40, 30, 20]), 6) == [12]
    assert usable_windows(np.array([2000]), 24) == [12, 24, 48, 96, 192, 336]


def make_walk(length: int) -> np.ndarray:
    """Return a linear process, of which blocks cannot forecast more than the regression does."""
    noise, x = np.random.default_rng(0).normal(size=length), np.zeros(length)
    for step in range(2, length):
        x[step] = 1.6 * x[step - 1] - 0.8 * x[step - 2] + noise[step]
    return x


def test_linear_forecast_alone_is_used_where_the_blocks_do_not_help():
    y = make_walk(600)
    model = SSMForecaster(horizon=3, d_model=4, d_state=2, epochs=3, lr=1.0, device="cpu", random_state=0).fit(y)
    assert model.n_epochs_ == np.argmin(model.validation_curve_) == 0
    linear = fit_linear([((y - model.mean_) / model.scale_)[:, None]], 3, [model.window_])
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
    assert model.validation_curve_ is None, "one series of 30 months has 18 before the part that is held back"
    model.fit([y[:36] for y in series])
    assert model.window_ == 12
    assert model.validation_curve_[0] < 0.05
    errors = [np.abs(model.predict(y[:30]) - y[30:]).mean() for y in series]
    assert np.mean(errors) < 0.2
