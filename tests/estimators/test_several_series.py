"""Forecasts of several series have the form in which the series were given, and are those of each series alone."""

import numpy as np
import pandas as pd
import pytest

from longscan.estimators import SSMForecaster

BRIEF = {"horizon": 3, "window": 12, "d_model": 4, "d_state": 2, "epochs": 1, "random_state": 0, "device": "cpu"}
DAYS = pd.date_range("2024-03-01", periods=50, freq="D")
LEVELS = np.random.default_rng(0).normal(size=(3, 50, 2)).cumsum(1)
LONG = pd.DataFrame(
    {
        "unique_id": np.repeat(["north", "south", "west"], [50, 40, 30]),
        "ds": np.concatenate([DAYS, DAYS[:40], DAYS[:30]]),
        "y": np.concatenate([LEVELS[0, :, 0], LEVELS[1, :40, 0], LEVELS[2, :30, 0]]),
    }
)


@pytest.fixture(scope="module")
def model() -> SSMForecaster:
    return SSMForecaster(**BRIEF).fit(LONG)


def test_forecast_of_a_long_frame_has_its_columns(model):
    forecast = model.predict()
    assert forecast.columns.tolist() == ["unique_id", "ds", "forecast"]
    assert forecast["unique_id"].tolist() == ["north"] * 3 + ["south"] * 3 + ["west"] * 3
    expected = [stamp for last in (49, 39, 29) for stamp in pd.date_range(DAYS[last], periods=4, freq="D")[1:]]
    assert forecast["ds"].tolist() == expected
    shuffled = LONG.sample(frac=1, random_state=0)
    again = model.predict(shuffled).sort_values(["unique_id", "ds"], ignore_index=True)
    pd.testing.assert_frame_equal(again, forecast)
    new = model.predict(LONG[LONG["unique_id"] == "south"].assign(unique_id=7))
    assert new["unique_id"].tolist() == [7] * 3
    np.testing.assert_allclose(new["forecast"], forecast["forecast"][3:6], rtol=1e-5)


def test_forecasts_are_those_of_each_series_alone(model):
    series = [rows.set_index("ds")["y"] for _, rows in LONG.groupby("unique_id")]
    alone = [model.predict(part) for part in series]
    for forecast, expected in zip(model.predict(series), alone, strict=True):
        pd.testing.assert_series_equal(forecast, expected, rtol=1e-4)
    np.testing.assert_allclose(model.predict()["forecast"], np.concatenate(alone), rtol=1e-4)
    arrays = model.predict([part.to_numpy() for part in series])
    assert [forecast.shape for forecast in arrays] == [(3,)] * 3
    np.testing.assert_allclose(np.concatenate(arrays), np.concatenate(alone), rtol=1e-4)
    short = model.predict([series[0], series[1][:5]])
    pd.testing.assert_series_equal(short[1], model.predict(series[1][:5]), rtol=1e-4)


def test_forecasts_of_arrays_and_indexed_frames_have_their_form():
    model = SSMForecaster(**BRIEF).fit(LEVELS)
    forecasts = model.predict()
    assert forecasts.shape == (3, 3, 2)
    frames = {name: pd.DataFrame(level, DAYS, ["in", "out"]) for name, level in zip("bac", LEVELS, strict=True)}
    indexed = pd.concat(frames, names=["site", "day"])
    named = SSMForecaster(**BRIEF).fit(indexed)
    result = named.predict(indexed[["out", "in"]])
    assert result.index.names == ["site", "day"]
    assert result.columns.tolist() == ["out", "in"]
    assert result.index.get_level_values(0).tolist() == ["b"] * 3 + ["a"] * 3 + ["c"] * 3
    np.testing.assert_allclose(result[["in", "out"]].to_numpy().reshape(3, 3, 2), forecasts, rtol=1e-4)
    one = SSMForecaster(**BRIEF).fit(indexed["in"]).predict()
    assert (one.name, one.shape) == ("in", (9,))


def test_score_of_several_series_counts_all_of_them(model):
    series = [rows.set_index("ds")["y"] for _, rows in LONG.groupby("unique_id")]
    errors, persistence = np.zeros(3), np.zeros(3)
    for row, part in enumerate(series):
        values = part.to_numpy()
        for cut in range(12, len(values) - 2, 3):
            ahead = values[cut : cut + 3]
            errors[row] += np.abs(model.predict(values[:cut]) - ahead).sum()
            persistence[row] += np.abs(values[cut - 1] - ahead).sum()
    assert model.score(LONG) == pytest.approx(1 - errors.sum() / persistence.sum(), rel=1e-4)
    assert model.score(series[1]) == pytest.approx(1 - errors[1] / persistence[1], rel=1e-4)
    with pytest.raises(ValueError, match="`y` must have more steps than the horizon of 3, got 3"):
        model.score([series[0], series[1][:3]])


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (LONG.rename(columns={"y": "value"}), "`y` must have the columns unique_id, ds and y as a long frame, got no column y"),
        (LONG.drop(columns="unique_id"), "got no column unique_id; set_index\\('ds'\\) makes the times of one series"),
        (pd.concat([LONG, LONG[:1]]), "`y` must be without duplicated time stamps in a case, got 1, the first 2024-03-01"),
        (LONG.assign(ds=LONG["ds"].astype(str)), "`y` must have times that are numbers, dates, .*pd.to_datetime reads dates"),
        (LONG.assign(unique_id=LONG["unique_id"].where(LONG.index > 2)), "`y` must have a case for each row, got 3 rows without"),
        (LONG.assign(y=LONG["y"].where(LONG.index > 2)), "must contain only finite numbers, got 3 NaN"),
        (LONG.drop(index=60), "series 1 of `y` must have equal steps, got 1 of 38"),
    ],
    ids=["no y", "no unique_id", "twice", "text", "no case", "missing", "gap"],
)
def test_invalid_long_frame_raises(frame, message):
    with pytest.raises(ValueError, match=message):
        SSMForecaster(**BRIEF).fit(frame)


def test_times_ahead_of_several_series_raise():
    times = [np.arange(50.0)] * 3
    model = SSMForecaster(**BRIEF).fit(LEVELS, times)
    assert model.predict().shape == (3, 3, 2)
    with pytest.raises(ValueError, match="`times_ahead` must be None for several series, got times for 3 series"):
        model.predict(LEVELS, times, [50.0, 51.0, 52.0])
    with pytest.raises(ValueError, match="`times` must be given as in fit, got None"):
        model.score(LEVELS)
