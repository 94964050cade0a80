"""Quantiles of forecasts: their loss, their correction, their coverage, and the frames in which they are returned."""

import numpy as np
import pandas as pd
import pytest
import torch

from longscan.estimators import SSMForecaster, forecaster, score_forecasts
from longscan.estimators.quantiles import calibrate, pinball_loss

LEVELS = (0.1, 0.5, 0.9)
BRIEF = {"horizon": 3, "d_model": 4, "d_state": 2, "epochs": 1, "random_state": 0, "device": "cpu", "quantiles": LEVELS}
HOURS = pd.date_range("2024-01-01", periods=700, freq="h")


def make_walk(seed: int, length: int = 700, channels: int = 2) -> np.ndarray:
    """Return a linear process whose noise is skewed, so that its quantiles are not symmetric."""
    noise = np.random.default_rng(seed).exponential(size=(length, channels)) - 1
    walk = np.zeros((length, channels))
    for step in range(1, length):
        walk[step] = 0.8 * walk[step - 1] + noise[step]
    return walk


@pytest.fixture(scope="module")
def model() -> SSMForecaster:
    return SSMForecaster(**BRIEF).fit(pd.DataFrame(make_walk(0), HOURS, ["in", "out"]))


def test_pinball_loss_is_smallest_at_the_quantile():
    true = torch.arange(1.0, 101.0)
    for level in (0.1, 0.3, 0.9):
        losses = [pinball_loss(torch.full((100, 1), value), true, [level]).item() for value in np.arange(0, 102, 0.5)]
        assert np.arange(0, 102, 0.5)[np.argmin(losses)] == pytest.approx(100 * level, abs=1)
    assert pinball_loss(torch.tensor([[3.0, 3.0]]), torch.tensor([5.0]), [0.1, 0.9]).item() == pytest.approx((0.2 + 1.8) / 2)


def test_correction_gives_the_nominal_share_of_new_values():
    """The noise has another scale at each step ahead, and the quantiles of the model are all 0."""
    random = np.random.default_rng(0)
    scale = np.array([1.0, 3.0])[:, None] * np.array([1.0, 10.0])
    true = random.exponential(size=(8000, 2, 2)) * scale
    zeros, unit = np.zeros((4000, 2, 2, 3)), np.ones((4000, 2))
    calibration = calibrate(zeros, true[:4000], unit, LEVELS, np.arange(4000) >= 2000, np.full(2, 4000))
    assert not calibration.is_scaled
    np.testing.assert_allclose(calibration.coverage, LEVELS, atol=0.02)
    covered = (true[4000:, ..., None] <= calibration.apply(zeros, unit)).mean(0)
    np.testing.assert_allclose(covered, np.broadcast_to(LEVELS, (2, 2, 3)), atol=0.04)
    exact = -np.log(1 - np.array(LEVELS)) * scale[..., None]
    np.testing.assert_allclose(calibration.offsets, exact, rtol=0.2)


def test_correction_is_in_units_of_the_windows_where_errors_are():
    random = np.random.default_rng(0)
    unit = 10 ** random.uniform(-1, 1, (600, 1))
    true = random.normal(size=(600, 2, 1)) * unit[:, None]
    calibration = calibrate(np.zeros((600, 2, 1, 3)), true, unit, LEVELS, np.arange(600) >= 300, np.full(2, 600))
    assert calibration.is_scaled
    np.testing.assert_allclose(calibration.offsets[:, 0, 2], 1.28, atol=0.2)


def test_coverage_is_measured_on_windows_that_did_not_correct():
    """The second half has errors twice as large: half of the corrected windows is covered too often, the other too seldom."""
    random = np.random.default_rng(0)
    later = np.arange(600) >= 300
    true = random.normal(size=(600, 1, 1)) * np.where(later, 2, 1)[:, None, None]
    coverage = calibrate(np.zeros((600, 1, 1, 1)), true, np.ones((600, 1)), [0.9], later, np.full(1, 600)).coverage
    first, second = 0.9948, 0.7389  # of a normal distribution below 1.2816 times 2 and divided by 2
    np.testing.assert_allclose(coverage, [(first + second) / 2], atol=0.02)
    alone = calibrate(np.zeros((1, 1, 1, 1)), true[:1], np.ones((1, 1)), [0.5], later[:1], np.ones(1))
    assert np.isnan(alone.coverage).all()
    assert alone.offsets == true[0]


def test_quantiles_of_few_independent_errors_are_further_apart():
    """The distance is the difference of the quantiles of Student's and the normal distribution, times the RMS error."""
    true = np.random.default_rng(0).normal(2, 1, size=(40, 1, 1))
    later = np.arange(40) >= 20
    many, few = (
        calibrate(np.zeros((40, 1, 1, 3)), true, np.ones((40, 1)), LEVELS, later, np.array([count])).offsets[0, 0]
        for count in (1e9, 3.0)
    )
    np.testing.assert_allclose(many, np.quantile(true[:, 0, 0], LEVELS, method="weibull"), rtol=1e-6)
    wider = (1.6377 * np.sqrt(4 / 3) - 1.2816) * np.sqrt(np.square(true).mean())  # 1.6377: of 3 degrees of freedom
    np.testing.assert_allclose(few - many, [-wider, 0, wider], rtol=1e-3)


@pytest.mark.parametrize("slope", [0.0, 0.3])
def test_quantiles_cover_the_future_of_short_series_with_a_trend(slope):
    """132 months, of which the last 26 have about two independent errors of twelve months ahead."""
    covered = []
    for seed in range(12):
        random = np.random.default_rng(seed)
        months = np.arange(144)
        noise = np.zeros(144)
        for month in months[1:]:
            noise[month] = 0.8 * noise[month - 1] + random.normal()
        y = 50 + slope * months + 5 * np.sin(months * np.pi / 6) + noise
        model = SSMForecaster(**{**BRIEF, "horizon": 12}).fit(y[:132])
        covered.append(y[132:, None] <= model.predict_quantiles().to_numpy())
    low, high = np.mean(covered, (0, 1))[[0, 2]]
    assert low < 0.14
    assert high > 0.86


def test_quantiles_cover_new_windows_and_do_not_cross(model):
    assert model.coverage_.index.tolist() == list(LEVELS)
    np.testing.assert_allclose(model.coverage_, LEVELS, atol=0.05)
    frame = model.backtest(pd.DataFrame(make_walk(1, 3000), pd.date_range("2025", periods=3000, freq="h"), ["in", "out"]))
    assert (frame["q0.1"] <= frame["q0.5"]).all()
    assert (frame["q0.5"] <= frame["q0.9"]).all()
    scores = score_forecasts(frame).loc["forecast"]
    np.testing.assert_allclose(scores[["covered q0.1", "covered q0.5", "covered q0.9"]], LEVELS, atol=0.06)
    skew = (frame["q0.9"] - frame["q0.5"]).mean() / (frame["q0.5"] - frame["q0.1"]).mean()
    assert skew > 1.3, "the noise of the process is skewed"


def test_blocks_learn_the_spread_from_the_window(monkeypatch):
    """Values that follow a 1 in the other channel are twenty times as far apart as those that follow a -1."""
    random = np.random.default_rng(0)
    sign = random.choice([-1.0, 1.0], 1000)
    spread = np.where(sign > 0, 2.0, 0.1)
    y = np.stack([sign, np.append(0, (random.normal(size=1000) * spread)[:-1])], 1)
    settings = {**BRIEF, "horizon": 1, "window": 4, "d_model": 16, "epochs": 12, "lr": 0.02, "spec": "lru"}
    monkeypatch.setattr(forecaster, "MOST_FILLED", 0.0)  # the blocks forecast alone
    model = SSMForecaster(**settings).fit(y, np.arange(1000.0))
    widths = []
    for value in (-1.0, 1.0):
        frame = model.predict_quantiles(np.concatenate([y[:998], [[value, 0.0]]]), np.arange(999.0))
        widths.append(frame[1, "q0.9"].iloc[0] - frame[1, "q0.1"].iloc[0])
    assert widths[1] > 3 * widths[0]


def test_quantiles_have_frames_in_the_form_of_the_series(model):
    forecast, quantiles = model.predict(), model.predict_quantiles()
    assert quantiles.index.equals(forecast.index)
    assert quantiles.columns.tolist() == [(name, f"q{level}") for name in ("in", "out") for level in LEVELS]
    assert quantiles.columns.names == ["channel", "quantile"]
    walk = make_walk(2, 100)
    arrays = model.predict_quantiles([walk, walk[:50]])
    assert [frame.index.tolist() for frame in arrays] == [[100, 101, 102], [50, 51, 52]]
    indexed = pd.concat({"b": pd.DataFrame(walk, HOURS[:100], ["in", "out"])}, names=["site", "ds"])
    long = model.predict_quantiles(indexed[["out", "in"]])
    assert long.index.names == ["site", "ds"]
    assert long.columns[0] == ("out", "q0.1")
    np.testing.assert_allclose(long[["in", "out"]], arrays[0], rtol=1e-4)


def test_quantiles_of_a_long_frame_are_columns_of_its_forecast():
    y = make_walk(0, 400, 1)[:, 0]
    long = pd.DataFrame({"unique_id": np.repeat(["a", "b"], 200), "ds": np.tile(HOURS[:200], 2), "y": y})
    model = SSMForecaster(**BRIEF).fit(long)
    forecast = model.predict()
    assert forecast.columns.tolist() == ["unique_id", "ds", "forecast", "q0.1", "q0.5", "q0.9"]
    pd.testing.assert_frame_equal(model.predict_quantiles(), forecast)
    alone = model.predict_quantiles(pd.Series(y[:200], HOURS[:200]))
    assert alone.columns.tolist() == ["q0.1", "q0.5", "q0.9"]
    np.testing.assert_allclose(alone, forecast.iloc[:3, 3:], rtol=1e-4)


def test_quantiles_without_a_linear_forecast_need_a_part_to_hold_back():
    times = np.random.default_rng(0).exponential(1.0, 60).cumsum()
    model = SSMForecaster(**BRIEF, spec="lru").fit(np.sin(times), times)
    assert model.predict_quantiles().shape == (3, 3)
    assert (np.diff(model.predict_quantiles()) > 0).all()
    short = SSMForecaster(**BRIEF).fit(np.sin(np.arange(7.0)))
    assert short.window_ == 1
    with pytest.raises(ValueError, match=r"`y` must have a series of more than 6 steps, twice the horizon, .*most 6"):
        SSMForecaster(**BRIEF).fit(np.arange(6.0))
    with pytest.raises(ValueError, match=r"`quantiles` must be probabilities such as \(0\.1, 0\.5, 0\.9\) when .*, got None"):
        short.set_params(quantiles=None).fit(np.sin(np.arange(7.0))).predict_quantiles()
    with pytest.raises(ValueError, match=r"`quantiles\[0\]` must be a number between 0 and 1, got 0"):
        short.set_params(quantiles=(0, 0.5)).fit(np.sin(np.arange(7.0)))
