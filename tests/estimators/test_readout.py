"""Diagonal state space systems of all channels forecast what the linear forecast of one channel cannot."""

import numpy as np
import pytest

from longscan.estimators import SSMForecaster, readout
from longscan.estimators.linear import LinearForecast, fit_linear
from longscan.estimators.readout import MAX_CHANNELS, ReadoutChoice, StateReadout, choose_readout, fit_readout

SMALL = {"d_model": 4, "d_state": 2, "epochs": 1, "device": "cpu", "random_state": 0}


def make_pair(length: int, share: float) -> np.ndarray:
    """Return two channels, of which the second follows the first one step later by a share."""
    random, y = np.random.default_rng(0), np.zeros((length, 2))
    for step in range(1, length):
        y[step, 0] = 0.9 * y[step - 1, 0] + random.normal()
        y[step, 1] = 0.5 * y[step - 1, 1] + share * y[step - 1, 0] + 0.3 * random.normal()
    return y


@pytest.fixture(scope="module")
def fitted() -> SSMForecaster:
    return SSMForecaster(horizon=2, window=24, **SMALL).fit(make_pair(1200, 0.8))


def errors(model: SSMForecaster, y: np.ndarray) -> np.ndarray:
    """Return the mean squared error of each channel on windows of a series."""
    ends = range(model.window_, len(y) - model.horizon + 1)
    forecasts = np.stack(model.predict([y[end - model.window_ : end] for end in ends]))
    return np.square(forecasts - np.stack([y[end : end + model.horizon] for end in ends])).mean((0, 1))


def test_channel_is_forecast_from_one_that_leads_it(fitted):
    y = make_pair(1500, 0.8)[1200:]
    both = errors(fitted, y)
    found, fitted.state_readout_ = fitted.state_readout_, None
    alone = errors(fitted, y)
    fitted.state_readout_ = found
    assert fitted.n_epochs_ == 0
    # Variances of the noise that is left in the second channel one and two steps ahead, where the first one's has arrived.
    one_step, two_steps = 0.3**2, (1 + 0.5**2) * 0.3**2 + 0.8**2
    assert both[1] < 1.2 * (one_step + two_steps) / 2 < 0.5 * alone[1]
    assert both[0] == pytest.approx(alone[0], rel=0.02)


def test_short_windows_are_continued_by_their_mean(fitted):
    window = make_pair(10, 0.8)[None]
    filled = np.concatenate([window.mean(1, keepdims=True).repeat(14, 1), window], 1)
    np.testing.assert_allclose(fitted.state_readout_.of(window), fitted.state_readout_.of(filled), rtol=1e-12)


def test_saved_forecaster_adds_the_same(fitted, tmp_path):
    fitted.save(tmp_path / "model")
    loaded = SSMForecaster.load(tmp_path / "model")
    assert isinstance(loaded.state_readout_, StateReadout)
    np.testing.assert_array_equal(loaded.predict(), fitted.predict())


def test_independent_channels_and_single_ones_have_no_readout():
    y = make_pair(600, 0.0)
    assert SSMForecaster(horizon=2, window=24, **SMALL).fit(y).state_readout_ is None
    assert SSMForecaster(horizon=2, window=24, **SMALL).fit(y[:, 0]).state_readout_ is None


def test_more_channels_than_the_largest_number_have_no_readout():
    y = np.concatenate([make_pair(400, 0.8), np.zeros((400, MAX_CHANNELS - 2))], 1)
    settings = {"horizon": 2, "window": 12} | SMALL
    assert SSMForecaster(**settings).fit(y).state_readout_ is not None
    assert SSMForecaster(**settings).fit(np.hstack([y, y[:, :1]])).state_readout_ is None


def test_gains_by_chance_are_not_used(monkeypatch):
    """Of 20 windows that are held back, only one has a gain, which is more than 5 % of the error of all."""
    y = make_pair(300, 0.8)
    linear = fit_linear([y], 1, [12])
    past = np.stack([y[end - 12 : end] for end in range(280, 300)])
    added = fit_readout([y], linear, 1, ReadoutChoice(1e-3, np.ones(2))).of(past)
    missed = np.zeros_like(added)
    largest = np.abs(added[:, 0, 1]).argmax()
    missed[largest] = 5 * added[largest]
    ahead = linear.forecast(past, np.array([0])) + missed
    assert choose_readout([y], linear, past, ahead, 20) is None
    monkeypatch.setattr(readout, "STANDARD_ERRORS", 0.0)
    assert choose_readout([y], linear, past, ahead, 20) is not None


def test_windows_are_spaced_evenly_over_all_series(monkeypatch):
    monkeypatch.setattr(readout, "FITTED_WINDOWS", 6)
    series = [np.arange(start, start + length, dtype=float)[:, None] for start, length in ((0, 5), (100, 12), (200, 3), (300, 9))]
    windows = [np.concatenate([past[:, -1, 0], ahead[:, 0, 0]]) for past, ahead in readout._windows(series, 4, 1, np.array([0]))]
    # 1, 8 and 5 windows of the first, second and fourth series, every third of which is read.
    np.testing.assert_array_equal(np.stack(windows), [[3, 105, 108, 303, 306, 4, 106, 109, 304, 307]])


def test_features_do_not_depend_on_the_level_of_a_channel(fitted):
    window = make_pair(24, 0.8)[None]
    np.testing.assert_allclose(fitted.state_readout_.of(window + 1e3), fitted.state_readout_.of(window), rtol=1e-6, atol=1e-8)


def test_weights_are_those_of_a_table_of_windows():
    y = make_pair(300, 0.8)
    linear = fit_linear([y], 3, [12])
    past = np.stack([y[end - 12 : end] for end in range(12, 298)])
    ahead = np.stack([y[end : end + 3] for end in range(12, 298)])
    found = choose_readout([y], linear, past, ahead, 90)
    assert found is not None
    fitted_to_table, choice = found
    lags = np.arange(12)[::-1]
    kernels = [lags == 0, np.exp(-lags / 3), np.ones(12)]
    states = np.stack([np.einsum("w,nwc->nc", kernel / kernel.sum(), past) for kernel in kernels], 1)
    features = (states[:, :-1] - states[:, 1:]).reshape(len(past), -1)
    features /= np.sqrt(np.square(features).mean(0))
    missed = (ahead - linear.forecast(past)).reshape(len(past), -1)
    inner = features.T @ features
    weight = np.linalg.solve(inner + choice.penalty * np.trace(inner) / 4 * np.eye(4), features.T @ missed)
    expected = (features @ weight).reshape(ahead.shape) * choice.factors
    np.testing.assert_allclose(fitted_to_table.of(past), expected, rtol=1e-6, atol=1e-9)
    np.testing.assert_array_equal(fit_readout([y], linear, 3, choice).weight, fitted_to_table.weight)


def test_series_without_windows_and_constant_ones_have_no_readout():
    linear = LinearForecast(np.zeros((1, 2, 12)), np.zeros((1, 2)), np.zeros((1, 2)), 1.0)
    past, ahead = np.zeros((3, 12, 2)), np.ones((3, 2, 2))
    assert choose_readout([np.zeros((10, 2))], linear, past, ahead, 3) is None
    assert choose_readout([np.zeros((50, 2))], linear, past, ahead, 3) is None
