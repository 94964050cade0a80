"""Series at uneven times: interpolation to equal steps, and their forecasts at equal and at other times."""

import numpy as np
import pandas as pd
import pytest

from longscan.estimators import SSMForecaster
from longscan.estimators.even_steps import append_steps, even_length, fill_evenly, interpolate_forecasts
from longscan.estimators.series import Collection

SMALL = {"horizon": 12, "d_model": 4, "d_state": 2, "epochs": 1, "random_state": 0, "device": "cpu"}
LENGTH = 600


def days(times: np.ndarray) -> np.ndarray:
    """Return two channels of days, (L, 2)."""
    return np.sin(times[:, None] * np.pi / 12 + np.array([0.0, 2.0]))


@pytest.fixture(scope="module")
def hours() -> np.ndarray:
    """Return the hours that are left where a fifth is missing, and a whole day."""
    is_kept = np.random.default_rng(0).random(LENGTH) > 0.2
    is_kept[300:324] = False
    is_kept[-1] = True
    return np.flatnonzero(is_kept).astype(float)


@pytest.fixture(scope="module")
def model(hours) -> SSMForecaster:
    return SSMForecaster(**SMALL, quantiles=(0.1, 0.9)).fit(days(hours), hours)


def test_steps_are_filled_by_linear_interpolation():
    times = np.array([[0.0, 1, 4, 5, 0], [0, 2, 4, 7, 9]])
    values = np.stack([2 * times, times**2], 2)
    series = Collection(values, np.array([4, 5]), times)
    filled = fill_evenly(series, np.array([[0, 4], [1, 5], [1, 2]]), 2.0)
    assert filled.times is None
    assert filled.lengths.tolist() == [even_length(times[0, :4], 2.0), 5, 2] == [3, 5, 2]
    np.testing.assert_allclose(filled.values[0, :3], [[2, 1], [6, 11], [10, 25]])  # at the times 1, 3 and 5
    np.testing.assert_allclose(filled.values[1, :, 0], [2, 6, 10, 14, 18])
    np.testing.assert_allclose(filled.values[2, :2], [[0, 0], [4, 4]])
    last = fill_evenly(series, np.array([[0, 4], [1, 5]]), 2.0, most=np.array([2, 2]))
    np.testing.assert_allclose(last.values, [filled.values[0, 1:3], filled.values[1, 3:]])
    longer = append_steps(filled, np.full((3, 1, 2), 7.0))
    assert longer.lengths.tolist() == [4, 6, 3]
    np.testing.assert_allclose(longer.values[2, :4], [[0, 0], [4, 4], [7, 7], [0, 0]])


def test_forecasts_at_other_times_are_interpolated_and_the_last_is_repeated():
    forecasts = np.array([1.0, 3.0, 2.0])[None, :, None, None]
    found = interpolate_forecasts(forecasts, np.array([[5.0]]), np.array([[0.0, 0.5, 1.0, 2 - 1e-9, 2.25, 3.0, 40.0]]))
    np.testing.assert_allclose(found[0, :, 0, 0], [5, 3, 1, 3, 2.75, 2, 2], atol=1e-6)


def test_missing_hours_are_forecast_as_filled_ones(hours, model):
    assert model.is_filled_
    assert model.time_unit_ == 1
    every = np.arange(LENGTH, dtype=float)
    filled = np.stack([np.interp(every[int(hours[0]) :], hours, channel) for channel in days(hours).T], 1)
    equal = SSMForecaster(**SMALL).fit(filled)
    np.testing.assert_allclose(model.predict(), equal.predict(), atol=1e-4)
    ahead = LENGTH + np.arange(12.0)
    assert np.abs(model.predict() - days(ahead)).mean() < 0.05
    np.testing.assert_allclose(model.predict(days(hours), hours, ahead), model.predict(), atol=1e-9)
    assert model.score(days(hours), hours) > 0.8
    frame = model.backtest(days(hours), hours, start=400, stride=20)
    assert (frame["q0.1"] <= frame["q0.9"]).all()


def test_times_beyond_the_horizon_are_forecast_from_the_forecast(hours, model):
    ahead = LENGTH - 1 + np.array([0.5, *range(1, 11), 30.0])
    found = model.predict(days(hours), hours, ahead)
    steps = model.predict(days(hours), hours)
    np.testing.assert_allclose(found[0], (days(hours)[-1] + steps[0]) / 2, atol=1e-9)
    np.testing.assert_allclose(found[1:11], steps[:10], atol=1e-9)
    assert np.abs(found[-1] - days(ahead[-1:])[0]).max() < 0.2  # the horizon ends at 12
    far = model.predict(days(hours), hours, LENGTH - 1 + np.arange(1.0, 13) * 100)
    np.testing.assert_array_equal(far[1], far[-1])  # after four horizons the last forecast is repeated
    low, high = (model.predict_quantiles(days(hours), hours, ahead)[0, name] for name in ("q0.1", "q0.9"))
    assert (low <= high).all()


def test_dates_with_gaps_are_filled(hours, tmp_path):
    stamps = pd.date_range("2024-01-01", periods=LENGTH, freq="h")
    series = pd.Series(days(hours)[:, 0], stamps[hours.astype(int)], name="level")
    model = SSMForecaster(**SMALL).fit(series, "index")
    forecast = model.predict()
    assert forecast.index.equals(pd.date_range(stamps[-1], periods=13, freq="h")[1:])
    assert np.abs(forecast - days(LENGTH + np.arange(12.0))[:, 0]).mean() < 0.05
    model.save(tmp_path / "model")
    loaded = SSMForecaster.load(tmp_path / "model")
    assert loaded.is_filled_
    pd.testing.assert_series_equal(loaded.predict(), forecast, check_exact=True)


def test_several_series_have_their_own_scales(hours):
    values = [days(hours)[:, 0], 100 * days(hours)[:, 0] + 1000]
    model = SSMForecaster(**SMALL).fit(values, [hours, hours])
    assert model.own_scales_
    assert model.is_filled_
    small, large = model.predict()
    np.testing.assert_allclose(large, 100 * small + 1000, rtol=1e-3)
    pause = np.where(np.arange(len(hours)) < 300, hours, hours + 1e15)  # equal steps between would need petabytes
    assert np.isfinite(model.predict([values[0]], [pause])).all()


@pytest.mark.parametrize("kind", ["pauses", "short", "window"])
def test_blocks_forecast_alone_where_steps_cannot_be_filled(hours, kind):
    times = np.arange(200) + 90.0 * (np.arange(200) // 20) if kind == "pauses" else hours[: 20 if kind == "short" else 200]
    settings = {**SMALL, "window": 180 if kind == "window" else None}
    model = SSMForecaster(**settings).fit(days(times), times)
    assert not model.is_filled_
    assert model.validation_curve_ is None
    assert model.predict().shape == (12, 2)
