"""Backtests: forecasts from each cutoff are those of `predict`, next to the seasonal naive forecast; and their errors."""

import numpy as np
import pandas as pd
import pytest

from longscan.estimators import SSMForecaster, score_forecasts
from longscan.estimators.backtesting import find_cutoffs
from longscan.estimators.clock import season_of
from longscan.estimators.series import Collection

BRIEF = {"horizon": 3, "window": 12, "d_model": 4, "d_state": 2, "epochs": 1, "random_state": 0, "device": "cpu"}
DAYS = pd.date_range("2024-03-01", periods=60, freq="D")
LEVELS = pd.DataFrame(np.random.default_rng(0).normal(size=(60, 2)).cumsum(0), DAYS, ["in", "out"])


@pytest.fixture(scope="module")
def model() -> SSMForecaster:
    return SSMForecaster(**BRIEF).fit(LEVELS[:40])


def test_backtest_has_a_row_for_each_cutoff_step_and_channel(model):
    frame = model.backtest(LEVELS, start=pd.Timestamp("2024-04-10"), stride=5)
    assert frame.columns.tolist() == ["cutoff", "ds", "channel", "y", "forecast", "seasonal_naive", "naive_scale"]
    assert frame["cutoff"].unique().tolist() == DAYS[[39, 44, 49, 54]].tolist()
    assert len(frame) == 4 * 3 * 2
    for cutoff, rows in frame.groupby("cutoff"):
        expected = model.predict(LEVELS[:cutoff])
        table = rows.pivot_table("forecast", "ds", "channel")
        pd.testing.assert_frame_equal(table, expected, check_names=False, check_freq=False, rtol=1e-4)
        true = rows.pivot_table("y", "ds", "channel")
        pd.testing.assert_frame_equal(true, LEVELS.loc[table.index], check_names=False, check_freq=False)
        naive = rows.pivot_table("seasonal_naive", "ds", "channel")
        np.testing.assert_allclose(naive, LEVELS.shift(7).loc[table.index])
    scale = np.abs(LEVELS[:40].diff(7)).mean()
    np.testing.assert_allclose(frame.groupby("channel")["naive_scale"].first(), scale)
    assert model.backtest(LEVELS)["ds"].tolist() == [day for day in DAYS[12:] for _ in range(2)], "each step once"


def test_seasonal_naive_forecast_repeats_the_season_over_a_long_horizon():
    y = np.arange(30.0)
    model = SSMForecaster(**{**BRIEF, "horizon": 7}).fit(y)
    frame = model.backtest(y, start=20, stride=4, season=3)
    assert frame["cutoff"].unique().tolist() == [19]
    assert frame["ds"].tolist() == list(range(20, 27))
    assert frame["channel"].unique().tolist() == [0]
    assert frame["seasonal_naive"].tolist() == [17, 18, 19, 17, 18, 19, 17]
    assert frame["naive_scale"].tolist() == [3] * 7
    last = model.backtest(y, start=20, season=25)
    assert last["seasonal_naive"].tolist() == [19] * 7, "the last value where less than a season is known"
    assert last["naive_scale"].tolist() == [1] * 7


def test_backtest_of_several_series_and_of_a_long_frame(model):
    long = pd.concat(
        [pd.DataFrame({"unique_id": name, "ds": DAYS[: 60 - cut], "y": LEVELS[name].to_numpy()[: 60 - cut]}) for name, cut in
         (("out", 0), ("in", 20))]
    )  # fmt: skip
    frame = SSMForecaster(**BRIEF).fit(long).backtest(start=pd.Timestamp("2024-04-05"))
    assert frame.columns.tolist() == ["unique_id", "cutoff", "ds", "y", "forecast", "seasonal_naive", "naive_scale"]
    assert frame.groupby("unique_id", sort=False)["cutoff"].nunique().to_dict() == {"out": 8, "in": 1}
    merged = frame.merge(long, on=["unique_id", "ds"])
    assert len(merged) == len(frame)
    assert (merged["y_x"] == merged["y_y"]).all()
    several = model.backtest([LEVELS, LEVELS[:30]], start=20)
    assert several["unique_id"].unique().tolist() == [0, 1]
    assert several.columns[3] == "channel"


def test_refit_uses_only_what_is_known_at_each_cutoff():
    y = LEVELS["in"]
    model = SSMForecaster(**BRIEF).fit(y)
    frame = model.backtest(start=50, stride=5, refit=True)
    assert frame["cutoff"].unique().tolist() == DAYS[[49, 54]].tolist()
    for cutoff, rows in frame.groupby("cutoff"):
        expected = SSMForecaster(**BRIEF).fit(y[:cutoff]).predict()
        np.testing.assert_allclose(rows["forecast"], expected, rtol=1e-5)
    arrays = model.fit(y.to_numpy()).backtest(start=50, stride=5, refit=True)
    np.testing.assert_allclose(arrays["forecast"], frame["forecast"], rtol=1e-5)


def test_backtest_at_uneven_times_passes_the_times_ahead():
    times = np.random.default_rng(1).exponential(1.0, 60).cumsum()
    y = np.sin(times)
    model = SSMForecaster(**BRIEF, spec="lru").fit(y, times)
    frame = model.backtest(y, times, start=40, stride=10)
    assert frame["cutoff"].tolist() == np.repeat(times[[39, 49]], 3).tolist()
    expected = model.predict(y[:50], times[:50], times[50:53])
    np.testing.assert_allclose(frame["forecast"][3:], expected, rtol=1e-4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"start": 58}, "`y` must have 3 steps, the horizon, after `start`, 58, got series of at most 60 steps"),
        ({"start": "soon"}, "`start` must have times that are numbers, dates"),
        ({"start": True}, "`start` must "),
        ({"stride": 0}, "`stride` must be a whole number of at least 1, got 0"),
        ({"season": 1.5}, r"`season` must be a whole number of at least 1, got 1\.5"),
    ],
    ids=str,
)
def test_invalid_backtest_raises(model, arguments, message):
    with pytest.raises(ValueError, match=message):
        model.backtest(LEVELS, **arguments)
    if "start" in arguments:
        with pytest.raises(ValueError, match="`start`"):
            model.backtest(LEVELS.to_numpy(), **arguments)


def make_scored(**columns) -> pd.DataFrame:
    return pd.DataFrame(
        {"channel": list("aabb"), "y": [1.0, 2, 3, 4], "forecast": [1.0, 4, 3, 3], "seasonal_naive": [0.0, 2, 6, 4],
         "naive_scale": [2.0, 2, 0, 0], **columns}
    )  # fmt: skip


def test_errors_of_forecasts():
    scores = score_forecasts(make_scored())
    assert scores.loc["forecast"].to_dict() == {"mse": 5 / 4, "mae": 3 / 4, "mase": 1 / 2}
    assert scores.loc["seasonal_naive"].to_dict() == {"mse": 10 / 4, "mae": 1, "mase": 1 / 4}
    by_channel = score_forecasts(make_scored(), by="channel")
    assert by_channel.loc[("a", "forecast"), "mse"] == 2
    assert np.isnan(by_channel.loc[("b", "forecast"), "mase"])
    pairs = score_forecasts(make_scored(), by=["channel", "naive_scale"])
    assert pairs.index.tolist()[0] == ("a", 2.0, "forecast")
    with pytest.raises(ValueError, match=r"`forecasts` must be the frame of backtest, .*, got no seasonal_naive"):
        score_forecasts(make_scored().drop(columns="seasonal_naive"))
    pd.testing.assert_frame_equal(score_forecasts(make_scored(), by=[]), scores)
    with pytest.raises(ValueError, match="`forecasts` must be the frame of backtest, got a ndarray"):
        score_forecasts(np.zeros((2, 5)))
    with pytest.raises(ValueError, match="`forecasts` must have at least one row, got none"):
        score_forecasts(make_scored()[:0])


@pytest.mark.parametrize("start", [0, -5, np.int64(-1)])
def test_forecasts_start_after_at_least_one_step(start):
    collection = Collection(np.zeros((1, 9, 1)), np.array([9]))
    with pytest.raises(ValueError, match=f"`start` must be a number of at least 1 step or a time stamp of `y`, got {start}$"):
        find_cutoffs(collection, start, 1, 2)
    np.testing.assert_array_equal(find_cutoffs(collection, 6, 1, 2), [[0, 6], [0, 7]])


def test_errors_of_quantiles():
    scores = score_forecasts(make_scored(**{"q0.1": [0.0, 3, 3, 5], "q0.9": [2.0, 3, 3, 5]}))
    row = scores.loc["forecast"]
    assert row["covered q0.1"] == 3 / 4
    assert row["covered q0.9"] == 1
    assert row["covered 0.8"] == 2 / 4, "the second value is below its interval, the fourth too"
    low, high = 0.1 * 1 + 0.9 * 1 + 0.9 * 1, 0.1 * (1 + 1 + 1)
    assert row["pinball"] == pytest.approx((low + high) / 8)


@pytest.mark.parametrize(
    ("frequency", "season"),
    [("h", 24), ("10min", 144), ("7min", 1), ("D", 7), ("2D", 1), ("B", 5), ("W", 52), ("W-TUE", 52), ("2W", 26), ("MS", 12),
     ("ME", 12),
     ("2MS", 6), ("BME", 12), ("QS-FEB", 4), ("QE-DEC", 4), ("YE", 1), ("5ME", 1)],
)  # fmt: skip
def test_season_of_frequencies(frequency, season):
    assert season_of(pd.tseries.frequencies.to_offset(frequency)) == season
    assert season_of(pd.Timedelta(1, unit="h")) == season_of(2.5) == season_of(None) == 1
