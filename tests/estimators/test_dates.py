"""The stamps of forecasts are those of pandas' own ranges, for each frequency, with and without a time zone."""

import numpy as np
import pandas as pd
import pytest

from longscan.estimators.clock import next_stamps, regular_step
from longscan.estimators.forecast_series import usual_step

FREQUENCIES = [
    "s", "15min", "30min", "h", "6h", "12h", "D", "2D", "B", "W", "W-MON", "W-WED", "2W-FRI", "ME", "MS", "2MS", "BME", "BMS",
    "QE", "QS", "QE-JAN", "QS-FEB", "BQE", "YE", "YS", "YE-JUN", "YS-APR", "BYE", "SME", "SMS", "bh", "WOM-3FRI",
]  # fmt: skip
ZONES = ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "UTC"]


@pytest.mark.parametrize("frequency", FREQUENCIES)
@pytest.mark.parametrize("has_freq", [True, False])
def test_dates_continue_as_in_date_range(frequency, has_freq):
    if frequency in ("SME", "SMS", "bh") and not has_freq:
        pytest.skip("pandas finds no frequency in such dates")
    dates = pd.date_range("2023-01-02", periods=60, freq=frequency)
    known = dates[:40] if has_freq else pd.DatetimeIndex(dates[:40], freq=None)
    ahead = next_stamps(known[-1], regular_step(known, "`y`"), 20)
    assert ahead.equals(dates[40:])


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("frequency", ["30min", "h", "6h", "D", "B", "W-SUN", "MS", "ME"])
@pytest.mark.parametrize("start", ["2024-03-08", "2024-03-29", "2024-10-25", "2024-11-01"])
def test_local_dates_continue_over_changes_of_the_clock(zone, frequency, start):
    dates = pd.date_range(start, periods=80, freq=frequency, tz=zone)
    known = pd.DatetimeIndex(dates[:20], freq=None)
    assert next_stamps(known[-1], regular_step(known, "`y`"), 60).equals(dates[20:])


@pytest.mark.parametrize("frequency", ["s", "h", "D", "W-WED", "M", "Q", "Q-NOV", "Y", "2D", "3M"])
def test_periods_continue_as_in_period_range(frequency):
    periods = pd.period_range("2023-01-04", periods=12, freq=frequency)
    assert next_stamps(periods[7], regular_step(periods[:8], "`y`"), 4).equals(periods[8:])


@pytest.mark.parametrize("step", [1, 7, 0.25])
def test_numbers_continue_with_their_step(step):
    numbers = pd.Index(10 + step * np.arange(12))
    np.testing.assert_allclose(next_stamps(numbers[7], regular_step(numbers[:8], "`y`"), 4), numbers[8:])


def test_usual_step_of_periods_is_their_median_and_one_period_for_a_single_one():
    months = pd.PeriodIndex(["2024-01", "2024-03", "2024-05", "2024-06"], freq="M")
    assert usual_step(months, 1.0) == 2 * months.freq
    assert usual_step(months[:1], 1.0) == months.freq
    pairs = pd.PeriodIndex(["2024-01", "2024-05", "2024-09"], freq="2M")
    assert usual_step(pairs, 1.0) == 2 * pairs.freq
    assert usual_step(pd.DatetimeIndex(["2024-01-01"]), 60.0) == pd.Timedelta(60, unit="s")
    assert usual_step(pd.Index([1.0, 2.0]), 0.5) == 0.5
