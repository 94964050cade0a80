"""Numbers that stand for missing values are replaced before a forecast, and hard limits of a channel hold for forecasts."""

import logging

import numpy as np
import pytest

from longscan.estimators import SSMForecaster
from longscan.estimators.limits import Limits, fill_codes, find_codes, find_limits, without_values
from longscan.estimators.series import Collection, pad_arrays

SMALL = {"d_model": 4, "d_state": 2, "epochs": 1, "device": "cpu", "random_state": 0}


def collection_of(*columns: np.ndarray) -> Collection:
    return pad_arrays([np.stack(columns, 1).astype(float)])


def limits_of(x: np.ndarray) -> tuple[float, float]:
    limits = find_limits(collection_of(x), np.zeros(1))
    return limits.lower[0], limits.upper[0]


@pytest.mark.parametrize(
    ("value", "expected"),
    [(-9999, -9999), (-99.9, -99.9), (999, 999), (-9998, None), (1234, None), (9, None), (-99999, -99999)],
)
def test_numbers_of_nines_far_from_all_others_are_codes(value, expected):
    x = np.sin(np.arange(50))
    x[[7, 8, 30]] = value
    assert find_codes(collection_of(x, np.cos(np.arange(50)))) == [expected, None]


def test_numbers_of_nines_among_others_are_values():
    assert find_codes(collection_of(np.arange(990.0, 1000.0))) == [None]
    assert find_codes(collection_of(np.linspace(0, 60, 20), np.r_[np.linspace(0, 60, 19), 99])) == [None, None]
    assert find_codes(collection_of(np.full(20, 99.0))) == [None]
    assert find_codes(collection_of(np.where(np.arange(70) % 7, 0.0, 99.0))) == [None], "sales of 0 or 99 are values"


def test_codes_are_filled_by_the_last_value_before_them():
    filled = fill_codes(collection_of([-99, -99, 1, 2, -99, -99, 3, -99], np.arange(8)), [-99.0, None], np.zeros(2))
    np.testing.assert_array_equal(filled.values[0].T, [[1, 1, 1, 2, 2, 2, 3, 3], np.arange(8)])
    several = pad_arrays([np.array([[-99.0], [-99.0]]), np.array([[4.0], [-99.0], [5.0]])])
    np.testing.assert_array_equal(
        fill_codes(several, [-99.0], np.array([7.0])).values[..., 0], [[7, 7, 0], [4, 4, 5]], "padding is left alone"
    )


def test_limits_are_values_that_are_reached_again_and_again():
    random = np.random.default_rng(0)
    noise = random.normal(size=400)
    assert limits_of(noise) == (-np.inf, np.inf)
    assert limits_of(np.maximum(noise, -0.5)) == (-0.5, np.inf)
    assert limits_of(np.clip(noise, -1, 2)) == (-1, 2)
    assert limits_of(np.floor(np.arange(400) / 10)) == (-np.inf, np.inf), "the ends of a trend are no limits"
    assert limits_of(np.r_[np.maximum(noise[:200], 0), np.abs(noise[200:]) + 1]) == (-np.inf, np.inf), "reached in one half only"


@pytest.mark.parametrize(("visits", "expected"), [(4, -np.inf), (5, 0)])
def test_a_limit_is_reached_at_five_separate_times(visits, expected):
    x = 1 + np.arange(50.0) % 7
    x[np.linspace(0, 49, visits).astype(int)] = 0
    assert limits_of(x)[0] == expected


def test_forecasts_and_quantiles_keep_within_limits():
    rain = np.maximum(np.random.default_rng(0).normal(size=400) - 0.5, 0)
    model = SSMForecaster(4, window=12, quantiles=(0.05, 0.9), **SMALL).fit(rain)
    assert model.limits_.lower == 0
    assert model.predict_quantiles(rain).to_numpy().min() == 0
    below = model.predict_quantiles(rain - 3).to_numpy().min()
    assert -3 <= below < 0, "the limit extends to the values that were read"


def test_codes_do_not_change_the_forecast(caplog):
    wave = np.sin(np.arange(300) / 5)
    coded = wave.copy()
    coded[[20, 100, 299]] = -9999
    filled = wave.copy()
    filled[[20, 100, 299]] = wave[[19, 99, 298]]
    with caplog.at_level(logging.WARNING, logger="longscan"):
        model = SSMForecaster(4, window=24, **SMALL).fit(coded)
    assert "-9999 in channel 0 (3 steps)" in caplog.text
    np.testing.assert_array_equal(model.predict(coded), SSMForecaster(4, window=24, **SMALL).fit(filled).predict(filled))
    assert model.backtest(coded, start=296)["y"].min() == -9999, "the values of the series are returned as they are"


def test_forecast_of_a_series_without_a_value_is_made_with_a_warning(caplog):
    wave = np.stack([np.sin(np.arange(300) / 5), np.cos(np.arange(300) / 7)], 1)
    wave[20, 1] = -9999
    model = SSMForecaster(4, window=24, **SMALL).fit(wave)
    caplog.clear()
    model.predict(wave[:50])
    assert not caplog.messages
    broken = wave.copy()
    broken[:, 1] = -9999
    model.predict(broken)
    assert caplog.messages == ["y: series 0 has only -9999, the missing value, in channel 1; the mean of fit is read instead"]
    assert without_values(pad_arrays([broken, wave[:5], broken[:3]]), model.missing_codes_) == [(0, 1), (2, 1)]


def test_limits_extend_to_the_values_of_the_window_before():
    """By the rounding a value may lie beyond a limit that holds."""
    limits = Limits(np.array([0.0, -np.inf]), np.array([100.0, 5.0]), np.array([0.5, 0.5]))
    forecasts = np.array([-50.0, 150.0])[None, :, None, None] * np.ones((3, 1, 2, 1))
    smallest = np.array([[0.0, -1], [-0.5, -1], [-3, -1]])
    largest = np.array([[100.0, 5], [100.5, 5.5], [107, 9]])
    lower, upper = limits.apply(forecasts, smallest, largest)[..., 0].transpose(1, 0, 2)
    assert lower.tolist() == [[0, -50], [0, -50], [-3, -50]]
    assert upper.tolist() == [[100, 5], [100, 5], [107, 9]]


def test_the_halves_of_a_series_are_those_of_its_own_length():
    """A limit in the first half of a short series and in the second half of a long one is one; in one half of all it is none."""
    ramp = np.arange(1.0, 201)
    first, second = ramp.copy(), ramp.copy()
    first[:20:2], second[-20::2] = 0, 0
    for parts, expected in (([first[:40], second], 0), ([first, first[:40]], -np.inf), ([second, second[-40:]], -np.inf)):
        assert find_limits(pad_arrays([part[:, None] for part in parts]), np.zeros(1)).lower[0] == expected
    odd = np.arange(1.0, 12)
    odd[[1, 3]] = 0
    odd[5:10:2] = 0
    assert find_limits(pad_arrays([odd[:, None]]), np.zeros(1)).lower[0] == 0, "the middle step of eleven is in the first half"
