"""Covariates of forecasts: their effect, its choice, their forms, and what is refused."""

import re

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone

from longscan.estimators import SSMForecaster, score_forecasts
from longscan.estimators.covariates import fit_effect
from longscan.estimators.series import Collection, pad_arrays
from longscan.numerics.regression import generalised_least_squares

SMALL = {"horizon": 4, "window": 12, "d_model": 4, "d_state": 2, "epochs": 1, "device": "cpu", "random_state": 0}
HOURS = pd.date_range("2024-03-01", periods=304, freq="h", tz="Europe/Berlin")
WEIGHTS = np.array([2.0, -1.0])


def autoregressive(random: np.random.Generator, steps: int, memory: float) -> np.ndarray:
    """Return x_t = memory x_{t-1} + a normal number."""
    x = random.normal(size=steps)
    for step in range(1, steps):
        x[step] += memory * x[step - 1]
    return x


def simulate(seed: int = 0, memory: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
    """Return a series (304,) and its covariates (304, 2): the effect of these and an autoregression."""
    random = np.random.default_rng(seed)
    x = np.stack([10 + 3 * random.normal(size=304), (np.arange(304) // 24 % 7 > 4).astype(float)], 1)
    return 50 + x @ WEIGHTS + autoregressive(random, 304, memory), x


def with_covariates(y: np.ndarray, x: np.ndarray) -> Collection:
    series = pad_arrays([y])
    return Collection(series.values, series.lengths, covariates=x[None])


@pytest.mark.parametrize("memory", [0.0, 0.9, 1.0])
def test_effect_is_that_of_the_simulation(memory):
    weights = []
    for seed in range(40):
        y, x = simulate(seed, memory)
        effect = fit_effect(with_covariates(y[:, None], x), np.array([300]))
        np.testing.assert_allclose(effect.mean, x[:300].mean(0))
        weights.append(effect.weight[:, 0])
    error = np.std(weights, axis=0) / np.sqrt(40)
    assert (np.abs(np.mean(weights, axis=0) - WEIGHTS) < 3.5 * error).all()
    assert np.std(weights, axis=0)[0] < 0.04, "twice the standard error with independent errors of 1, 1 / (3 sqrt(300))"


def test_trends_that_have_nothing_to_do_with_each_other_have_no_effect():
    """Two random walks: least squares takes one for the other, generalised least squares does not."""
    random = np.random.default_rng(1)
    weights, naive = [], []
    for _ in range(40):
        y, x = autoregressive(random, 300, 1.0), autoregressive(random, 300, 1.0)
        weights.append(fit_effect(with_covariates(y[:, None], x[:, None]), np.array([300])).weight[0, 0])
        naive.append(np.polyfit(x, y, 1)[0])
    assert np.std(weights) < 0.15 < 0.4 < np.std(naive)


def test_effect_of_several_series_ignores_their_levels_and_constant_covariates():
    y, x = simulate(memory=0.0)
    x = np.concatenate([x, np.ones((304, 1))], 1)
    series = pad_arrays([y[:150, None], y[150:, None] + 1000, np.zeros((3, 1))])
    covariates = np.zeros((3, 154, 3))
    covariates[0, :150], covariates[1] = x[:150], x[150:]
    effect = fit_effect(Collection(series.values, series.lengths, covariates=covariates), np.array([150, 154, 0]))
    assert np.abs(effect.weight[:2, 0] - WEIGHTS).max() < 0.5
    assert effect.weight[2, 0] == pytest.approx(0, abs=1e-6)
    removed = effect.remove(Collection(series.values, series.lengths, covariates=covariates))
    assert (removed.values[0, 150:] == 0).all(), "padding is left alone"


@pytest.mark.parametrize("length", [1, 2, 10, 23])
def test_series_of_fewer_steps_than_the_autoregression_has_lags_are_read(length):
    """A series next to a long one has no products of the lags that it is too short for."""
    y, x = simulate(memory=0.0)
    long = generalised_least_squares([y], [x])
    assert np.abs(generalised_least_squares([y, y[:length]], [x, x[:length]]) - long).max() < 0.1
    model = SSMForecaster(**SMALL).fit([y, y[:9]], covariates=[x, x[:9]])
    assert [len(one) for one in model.predict(covariates_ahead=[x[:4], x[:4]])] == [4, 4]


def test_forecasts_with_covariates_are_better_and_irrelevant_ones_are_left_out():
    y, x = simulate()
    with_them = SSMForecaster(**SMALL).fit(y[:240], covariates=x[:240])
    without = SSMForecaster(**SMALL).fit(y[:240])
    tested = with_them.backtest(y, covariates=x, start=240, stride=1)
    error = score_forecasts(tested).loc["forecast", "mse"]
    assert error < 0.5 * score_forecasts(without.backtest(y, start=240, stride=1)).loc["forecast", "mse"]
    np.testing.assert_array_equal(tested["y"].iloc[:4], y[240:244])
    walk = autoregressive(np.random.default_rng(3), 304, 1.0)
    noise = SSMForecaster(**SMALL).fit(y[:240], covariates=walk[:240])
    assert noise.covariate_effect_ is None
    np.testing.assert_array_equal(noise.predict(covariates_ahead=walk[240:244]), without.predict())


def test_every_form_gives_the_same_forecast():
    y, x = simulate()
    expected = SSMForecaster(**SMALL).fit(y[:300], covariates=x[:300]).predict(covariates_ahead=x[300:])
    series = pd.Series(y, HOURS, name="load")
    frame = pd.DataFrame(x, HOURS, ["heat", "weekend"])
    model = SSMForecaster(**SMALL).fit(series[:300], covariates=frame[:300])
    forecast = model.predict(covariates_ahead=frame[["weekend", "heat"]][300:].tz_convert("UTC"))
    assert forecast.index.equals(HOURS[300:])
    np.testing.assert_array_equal(forecast, expected)
    np.testing.assert_array_equal(model.predict(series[:300], None, None, x[:300], x[300:]), expected)
    assert model.covariate_names_ == ("heat", "weekend")
    assert np.abs(model.covariate_effect_.weight[:, 0] - WEIGHTS).max() < 0.8

    both = [y[:300], y[4:304]], [x[:300], x[4:304]]
    listed = SSMForecaster(**SMALL).fit(both[0], covariates=both[1])
    ahead = [x[300:], x[:4]]
    several = listed.predict(covariates_ahead=ahead)
    stacked = SSMForecaster(**SMALL).fit(np.stack(both[0])[..., None], covariates=np.stack(both[1]))
    np.testing.assert_array_equal(stacked.predict(covariates_ahead=np.stack(ahead))[..., 0], np.stack(several))
    rows = [
        pd.DataFrame({"unique_id": name, "ds": HOURS[:300], "y": values, "heat": of[:, 0], "weekend": of[:, 1]})
        for name, values, of in zip("ab", *both, strict=True)
    ]
    later = [
        pd.DataFrame({"unique_id": name, "ds": HOURS[300:], "heat": of[:, 0], "weekend": of[:, 1]})
        for name, of in zip("ba", ahead[::-1], strict=True)
    ]
    long = SSMForecaster(**SMALL).fit(pd.concat(rows)).predict(covariates_ahead=pd.concat(later))
    np.testing.assert_array_equal(long["forecast"], np.concatenate(several))
    apart = pd.concat(rows)[["unique_id", "ds", "weekend", "heat"]]
    known = SSMForecaster(**SMALL).fit(pd.concat(rows)[["unique_id", "ds", "y"]], covariates=apart)
    np.testing.assert_allclose(known.predict(covariates_ahead=pd.concat(later))["forecast"], np.concatenate(several), rtol=1e-6)


def test_files_clones_quantiles_and_refits(tmp_path):
    y, x = simulate()
    settings = {**SMALL, "quantiles": (0.1, 0.9)}
    model = SSMForecaster(**settings).fit(y[:300], covariates=x[:300])
    model.save(tmp_path / "model.safetensors")
    loaded = SSMForecaster.load(tmp_path / "model.safetensors")
    quantiles = model.predict_quantiles(covariates_ahead=x[300:])
    pd.testing.assert_frame_equal(loaded.predict_quantiles(covariates_ahead=x[300:]), quantiles)
    assert (quantiles["q0.1"] < quantiles["q0.9"]).all()
    np.testing.assert_array_equal(model.score(y, covariates=x), loaded.score(y, covariates=x))
    moved = model.predict(covariates_ahead=x[300:] + np.array([1, 0])) - model.predict(covariates_ahead=x[300:])
    np.testing.assert_allclose(moved, model.covariate_effect_.weight[0, 0], rtol=1e-6)
    again = clone(model).fit(y[:280], covariates=x[:280]).predict(covariates_ahead=x[280:284])
    refitted = model.backtest(y[:284], covariates=x[:284], start=280, refit=True)
    np.testing.assert_allclose(refitted["forecast"], again, rtol=1e-6)


@pytest.mark.parametrize("unit", [1e-9, 1e9])
def test_effect_does_not_depend_on_the_unit_of_the_covariates(unit):
    """Constant covariates are those that are constant relative to their size."""
    y, x = simulate()
    expected = fit_effect(with_covariates(y[:, None], x), np.array([304])).weight
    found = fit_effect(with_covariates(y[:, None], x * unit), np.array([304])).weight
    np.testing.assert_allclose(found * unit, expected, rtol=1e-5)
    assert (np.abs(expected[:, 0] - WEIGHTS) < 1).all()


def test_limits_hold_with_covariates():
    y, x = simulate()
    rain = np.maximum(y - y.mean(), 0)
    model = SSMForecaster(**SMALL).fit(rain[:300], covariates=x[:300])
    assert model.covariate_effect_ is not None
    assert model.predict(covariates_ahead=x[300:] - np.array([100, 0])).max() == 0


Y, X = simulate()
FITTED = {"y": pd.Series(Y, HOURS)[:300], "covariates": pd.DataFrame(X, HOURS, ["heat", "weekend"])[:300]}
AHEAD = pd.DataFrame(X, HOURS, ["heat", "weekend"])[300:]


@pytest.mark.parametrize(
    ("covariates", "message"),
    [
        (X[:299], "^`covariates` must have 300 steps, got 299"),
        (FITTED["covariates"].set_axis(HOURS[1:301]), "`covariates` must have the time stamps .* got 2024-03-01 01"),
        (FITTED["covariates"].tz_localize(None), "`covariates` must have the time stamps"),
        (FITTED["covariates"].reset_index(drop=True), "`covariates` must have the time stamps 2024-03-01 00:00.*got 0 ... 299"),
        ([X[:300], X[:300]], "`covariates` must have 1 series, as many as `y`, got 2"),
        (np.where(X[:300] > 15, np.nan, X[:300]), "`covariates` must contain only finite numbers|must contain only finite"),
        (pd.DataFrame({"kind": ["a"] * 300}, HOURS[:300]), "must contain only real numbers"),
        (FITTED["covariates"].assign(unique_id=1), "must have the columns unique_id, ds and those of the covariates"),
        (pd.DataFrame({"unique_id": 1, "ds": HOURS[:300]}), "must have the columns unique_id, ds and those of the covariates"),
        (FITTED["covariates"].assign(unique_id=1, ds=HOURS[:300], y=1), "and no column y, got heat, weekend, unique_id, ds, y"),
    ],
    ids=["short", "shifted", "no zone", "no clock", "two", "missing", "text", "half long", "no columns", "y"],
)
def test_covariates_that_do_not_fit_the_series_raise(covariates, message):
    with pytest.raises(ValueError, match=message):
        SSMForecaster(**SMALL).fit(FITTED["y"], covariates=covariates)


def test_wrong_use_of_covariates_raises():
    model = SSMForecaster(**SMALL).fit(**FITTED)
    cases = [
        ({}, "`covariates_ahead` must be given, as fit had covariates (heat, weekend), got None"),
        ({"y": FITTED["y"], "covariates_ahead": AHEAD}, "`covariates` must be given, as fit had covariates (heat, weekend)"),
        ({"covariates_ahead": AHEAD[:3]}, "`covariates_ahead` must have 4 steps, got 3"),
        ({"covariates_ahead": AHEAD.set_axis(HOURS[:4])}, "`covariates_ahead` must have the time stamps 2024-03-13 12:00"),
        ({"covariates_ahead": AHEAD[["heat"]]}, "must have the channels 'heat', 'weekend', got columns without 'weekend'"),
    ]
    for arguments, message in cases:
        with pytest.raises(ValueError, match=re.escape(message)):
            model.predict(**arguments)
    plain = SSMForecaster(**SMALL).fit(Y[:300])
    with pytest.raises(ValueError, match="`covariates_ahead` must be None, as fit had no covariates, got some"):
        plain.predict(covariates_ahead=X[300:])
    with pytest.raises(ValueError, match="`covariates` must be None, as fit had no covariates, got some"):
        plain.score(Y[:300], covariates=X[:300])
    with pytest.raises(ValueError, match="`covariates` must be None with `times`, got both"):
        SSMForecaster(**SMALL).fit(Y[:300], np.arange(300.0), X[:300])
    with pytest.raises(ValueError, match="`y` must have a series long enough for a linear forecast with a horizon of 4 and cov"):
        SSMForecaster(**SMALL).fit(Y[:10], covariates=X[:10])
    long = pd.DataFrame({"unique_id": "a", "ds": HOURS[:300], "y": Y[:300], "heat": X[:300, 0]})
    with pytest.raises(ValueError, match=r"`covariates` must be None for a long frame `y` with columns besides .* 'heat'"):
        SSMForecaster(**SMALL).fit(long, covariates=long[["unique_id", "ds", "heat"]])
    other = long[["unique_id", "ds", "heat"]].assign(unique_id="b")
    with pytest.raises(ValueError, match="`covariates` must have the series of `y`, got no series 'a'"):
        SSMForecaster(**SMALL).fit(long[["unique_id", "ds", "y"]], covariates=other)
    two = pd.concat([long, long.assign(unique_id="c")])[["unique_id", "ds", "y"]]
    with pytest.raises(ValueError, match=r"must have the series of `y`, got no series 'c'$"):
        SSMForecaster(**SMALL).fit(two, covariates=pd.concat([long.drop(columns="y"), other]))
    short = two.groupby("unique_id").head(299).merge(long[["ds", "heat"]]).drop(columns="y")
    with pytest.raises(ValueError, match="series 0 of `covariates` must have 300 steps, got 299"):
        SSMForecaster(**SMALL).fit(two, covariates=short)


def test_dated_covariates_of_a_series_without_time_stamps_raise():
    """Nothing says to which steps they belong; the numbers of a frame without another index are not read as time stamps."""
    with pytest.raises(
        ValueError, match=r"`y` must have time stamps if `covariates` has some.*got 2024-03-01 00:00:00.* none in `y`"
    ):
        SSMForecaster(**SMALL).fit(Y[:300], covariates=FITTED["covariates"])
    model = SSMForecaster(**SMALL).fit(Y[:300], covariates=FITTED["covariates"].reset_index(drop=True))
    expected = model.predict(covariates_ahead=X[300:])
    np.testing.assert_array_equal(model.predict(covariates_ahead=AHEAD.reset_index(drop=True)), expected)
    with pytest.raises(ValueError, match=r"`y` must have time stamps if `covariates_ahead` has some"):
        model.predict(covariates_ahead=AHEAD)


def test_data_of_fit_are_a_copy():
    """Later changes of what was handed to `fit` do not change the forecasts of `predict` without arguments."""
    y, x, steps = Y[:300].copy(), torch.from_numpy(X[:300].copy()), pd.Series(Y[:300].copy())
    model = SSMForecaster(**SMALL).fit([y], covariates=[x])
    alone = SSMForecaster(**SMALL).fit(steps)
    expected, following = model.predict(covariates_ahead=[X[300:]]), alone.predict()
    y[:], x[:] = 0, 0
    steps.loc[300] = 1e6
    np.testing.assert_array_equal(model.predict(covariates_ahead=[X[300:]]), expected)
    pd.testing.assert_series_equal(alone.predict(), following)
