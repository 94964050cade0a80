"""Time stamps: accepted types, their step, the stamps that follow, and errors, which name the first wrong position."""

import datetime

import numpy as np
import pandas as pd
import pytest
import torch
from pandas.tseries.frequencies import to_offset

from longscan.estimators.clock import (
    as_clock,
    check_increasing,
    next_stamps,
    regular_step,
    same_step,
    season_of,
    step_name,
    to_seconds,
)

EPS = float(np.finfo(np.float64).eps)
DAY = pd.Timestamp("2024-01-01")


def make_hours(*numbers: float) -> pd.DatetimeIndex:
    return pd.DatetimeIndex([DAY + pd.Timedelta(number, unit="h") for number in numbers])


@pytest.mark.parametrize(
    ("times", "kind", "first"),
    [
        ([3, 5], "int64", 3),
        ([0.5, 2], "float64", 0.5),
        (np.array([0.5, 2], np.float16), "float64", 0.5),
        (torch.tensor([1.5, 2.0], requires_grad=True), "float64", 1.5),
        (pd.array([4, 5], dtype="Int64"), "float64", 4),
        (np.array([7, 8], object), "int64", 7),
        (np.array([7, 2**63 - 1], np.uint64), "int64", 7),
        (pd.Categorical([2, 9]), "int64", 2),
        ([datetime.date(2024, 1, 1), datetime.date(2024, 1, 2)], "datetime64", DAY),
        (np.array([datetime.datetime(2024, 1, 1)], object), "datetime64", DAY),
        (pd.period_range("2024-01", periods=2, freq="M"), "period", pd.Period("2024-01", "M")),
        (pd.to_timedelta([1, 2], unit="s"), "timedelta64", pd.Timedelta(1, unit="s")),
    ],
    ids=str,
)
def test_as_clock_accepts_numbers_dates_periods_and_durations(times, kind, first):
    clock = as_clock(times, "`y`")
    assert str(clock.dtype).startswith(kind)
    assert clock[0] == first


@pytest.mark.parametrize(
    ("times", "message"),
    [
        (["a", "b"], "^`y` must have times that are .*, got the kind 'string', which has no order in time"),
        ([[1, 2], [3]], "^`y` must have times that are numbers"),
        ([0.0, np.nan, np.nan], "^`y` must have a time stamp in each row, got 2 missing, first row 1"),
        ([0.0, 1.0, np.inf], "^`y` must have a time stamp in each row, got 1 missing, first row 2"),
        (pd.array([4, None], dtype="Int64"), "^`y` must have a time stamp in each row, got 1 missing, first row 1"),
        (pd.DatetimeIndex([DAY, None, None]), "^`y` must have a time stamp in each row, got 2 missing, first row 1"),
        (
            [pd.Timestamp("2024-01-01", tz="UTC"), pd.Timestamp("2024-01-01", tz="Asia/Tokyo")],
            "^`y` must have times that are numbers, (or )?dates",
        ),
        ([True, False], "^`y` must have times .*, got the kind 'boolean'"),
        (np.array([7, 2**63], np.uint64), r"^`y` must have times below 2\*\*63 if .*, got 9223372036854775808"),
    ],
    ids=str,
)
def test_as_clock_of_invalid_times_raises(times, message):
    with pytest.raises(ValueError, match=message):
        as_clock(times, "`y`")


def test_to_seconds_counts_from_the_first_stamp():
    assert to_seconds(pd.Index([2.5, 4])).tolist() == [2.5, 4]
    assert to_seconds(pd.Index([2, 4])).dtype == np.float64
    assert to_seconds(make_hours(3, 4, 4.5)).tolist() == [0, 3600, 5400]
    assert to_seconds(pd.DatetimeIndex([DAY, DAY + pd.Timedelta(3, unit="ns")])).tolist() == [0, 3e-9]
    assert to_seconds(make_hours(3, 4).as_unit("s")).tolist() == [0, 3600]
    assert to_seconds(pd.to_timedelta([5, 7], unit="ms")).tolist() == [0, 0.002]
    assert to_seconds(pd.period_range("2024-02", periods=2, freq="M")).tolist() == [0, 29 * 86400]


def test_check_increasing_raises_for_repeated_or_decreasing_stamps():
    check_increasing(pd.Index([1, 2, 5]), "`y`")
    check_increasing(pd.Index([3]), "`y`")
    with pytest.raises(ValueError, match=r"^`y` must be without duplicated time stamps, got 2, the first 4; remove the"):
        check_increasing(pd.Index([1, 4, 4, 9, 9]), "`y`")
    with pytest.raises(ValueError, match=r"^`y` must be in the order of time, got 3 in row 2 after 7; sort_index"):
        check_increasing(pd.Index([1, 7, 3, 9, 8]), "`y`")
    with pytest.raises(ValueError, match=r"got 3 in row 1 after 7;"):
        check_increasing(pd.Index([7, 3]), "`y`")


@pytest.mark.parametrize(
    ("clock", "known", "step"),
    [
        (make_hours(3, 4), None, to_offset("h")),
        (make_hours(3, 5), None, to_offset("2h")),
        (make_hours(3, 4, 5), None, to_offset("h")),
        (make_hours(3, 5), to_offset("h"), to_offset("2h")),
        (pd.DatetimeIndex(["2024-01-31", "2024-02-29", "2024-03-31"]), None, to_offset("ME")),
        (pd.DatetimeIndex(["2024-01-31", "2024-02-29"]), to_offset("ME"), to_offset("ME")),
        (pd.DatetimeIndex(["2024-01-31", "2024-02-29"]), to_offset("h"), to_offset("696h")),
        (pd.date_range("2024-01-01", periods=2, freq="MS"), None, to_offset("MS")),
        (pd.period_range("2024-01", periods=3, freq="M"), None, pd.Period("2024-01", "M").freq),
        (pd.period_range("2024-01", periods=3, freq="2D"), None, pd.Period("2024-01-01", "2D").freq),
        (pd.to_timedelta([0, 10], unit="s"), None, pd.Timedelta(10, unit="s")),
        (pd.to_timedelta([0, 10, 20], unit="s"), None, pd.Timedelta(10, unit="s")),
        (pd.Index([4, 6]), None, 2),
        (pd.Index([4, 6, 8]), None, 2),
        (pd.Index([0.0, 0.1, 0.2, 0.30000000000000004]), None, 0.1),
        (pd.Index([0, 1, 2, 3 + 9e-7]), None, 1.0),
        (pd.Index([1e9, 1e9 + 0.1, 1e9 + 0.2, 1e9 + 0.3]), None, 0.1),
        (pd.Index([1 + EPS * number for number in (0, 1024, 2048, 3072, 4100)]), None, 1024 * EPS),
    ],
    ids=str,
)
def test_regular_step_of_an_even_clock(clock, known, step):
    result = regular_step(clock, "`y`", known)
    assert type(result) is type(step)
    assert result == pytest.approx(step, rel=2e-6, abs=0) if isinstance(step, float) else result == step


def test_regular_step_of_one_stamp_is_the_known_step():
    assert regular_step(pd.Index([3]), "`y`") is None
    assert regular_step(pd.Index([3]), "`y`", 7) == 7
    assert regular_step(make_hours(3), "`y`", to_offset("h")) == to_offset("h")


@pytest.mark.parametrize(
    ("clock", "message"),
    [
        (pd.Index([0, 1, 2, 4, 5, 7]), "2 of 5 that differ from 1, the first between 2 and 4; asfreq"),
        (pd.Index([10**9, 10**9 + 1000, 10**9 + 2001]), "1 of 2 that differ from 1000"),
        (pd.Index([0, 1, 2, 3 + 1.1e-6]), "between 2.0 and 3.0000011"),
        (pd.Index([1 + EPS * number for number in (0, 1024, 2048, 3072, 4101)]), "1 of 4 that differ"),
        (
            make_hours(0, 1, 2, 4),
            "1 of 3 that differ from 0 days 01:00:00, the first between 2024-01-01 02:00:00 and 2024-01-01 04:00:00",
        ),
        (make_hours(0, 1, 2, 4), r"times\)? .*local times of a place that changes its clocks need a time zone"),
        (
            pd.to_timedelta([0, 10, 20, 40, 50], unit="s"),
            "1 of 4 that differ from 0 days 00:00:10, the first between 0 days 00:00:20",
        ),
        (pd.PeriodIndex(["2024-01", "2024-02", "2024-03", "2024-05"], freq="M"), "1 of 3 that differ from 1, .* between 2024-03"),
    ],
    ids=str,
)
def test_uneven_clock_raises_and_names_the_first_uneven_step(clock, message):
    with pytest.raises(ValueError, match=f"^`y` must have equal steps, got .*{message}"):
        regular_step(clock, "`y`")


def test_error_of_uneven_times_suggests_a_time_zone_only_for_local_times():
    with pytest.raises(ValueError, match=r"reads uneven times$"):
        regular_step(make_hours(0, 1, 2, 4).tz_localize("UTC"), "`y`")
    with pytest.raises(ValueError, match=r"reads uneven times$"):
        regular_step(pd.Index([0, 1, 3]), "`y`")


@pytest.mark.parametrize(
    ("step", "other", "same"),
    [
        (None, 3, True),
        (3, None, True),
        (1, 7, True),
        (7, 1, True),
        (1, to_offset("h"), True),
        (2, 3, False),
        (2, 2, True),
        (2, 2.0, True),
        (1.0, 5.0, False),
        (2.0, 2.000001, True),
        (2.0, 2.00001, False),
        (1e-9, 2e-9, False),
        (0.5, to_offset("h"), False),
        (to_offset("h"), 0.5, False),
        (to_offset("h"), to_offset("60min"), True),
        (to_offset("h"), to_offset("2h"), False),
    ],
    ids=str,
)
def test_same_step_compares_steps_with_a_tolerance(step, other, same):
    assert same_step(step, other) is same


def test_step_name_gives_a_short_text():
    names = [step_name(step) for step in (to_offset("h"), to_offset("ME"), pd.Timedelta(10, unit="s"), 0.5)]
    assert names == ["h", "ME", "0 days 00:00:10", "0.5"]


@pytest.mark.parametrize(
    ("last", "step", "expected"),
    [
        (7, 2, pd.RangeIndex(9, 15, 2)),
        (np.int64(7), 2, pd.RangeIndex(9, 15, 2)),
        (7.5, 0.5, pd.Index([8.0, 8.5, 9.0])),
        (7, 0.5, pd.Index([7.5, 8.0, 8.5])),
        (DAY, to_offset("D"), pd.DatetimeIndex(["2024-01-02", "2024-01-03", "2024-01-04"])),
        (pd.Timestamp("2024-01-31"), to_offset("ME"), pd.DatetimeIndex(["2024-02-29", "2024-03-31", "2024-04-30"])),
        (DAY, pd.Timedelta(12, unit="h"), make_hours(12, 24, 36)),
        (pd.Timedelta(1, unit="s"), pd.Timedelta(2, unit="s"), pd.to_timedelta([3, 5, 7], unit="s")),
        (pd.Period("2024-01", "M"), pd.Period("2024-01", "M").freq, pd.PeriodIndex(["2024-02", "2024-03", "2024-04"], freq="M")),
    ],
    ids=str,
)
def test_next_stamps_continue_the_clock(last, step, expected):
    stamps = next_stamps(last, step, 3)
    assert type(stamps) is type(expected)
    assert stamps.equals(expected)


def test_next_stamps_of_periods_with_longer_steps():
    periods = next_stamps(pd.Period("2024-01", "M"), 2 * pd.Period("2024-01", "M").freq, 3)
    assert [str(period) for period in periods] == ["2024-03", "2024-05", "2024-07"]


@pytest.mark.parametrize(
    ("step", "season"),
    [
        *(("h", 24), ("30min", 48), ("12h", 2), ("s", 86_400), ("5h", 1), ("D", 7), ("2D", 1), ("48h", 1), ("B", 5), ("2B", 1)),
        *(("W", 52), ("W-WED", 52), ("2W", 26), ("4W", 13), ("3W", 1), ("ME", 12), ("MS", 12), ("3MS", 4), ("5MS", 1)),
        *(("QE", 4), ("QS-FEB", 4), ("2QS", 2), ("3QS", 1), ("YE", 1)),
    ],
)
def test_season_of_dates_is_a_day_a_week_or_a_year(step, season):
    """The season is 1 if the steps do not divide the period, and for steps of a year."""
    assert season_of(to_offset(step)) == season


def test_steps_without_dates_have_no_season():
    assert [season_of(step) for step in (1, 0.5, pd.Timedelta(hours=1), None)] == [1, 1, 1, 1]


@pytest.mark.parametrize(("dtype", "last", "after"), [("int8", 127, 128), ("uint8", 255, 256), ("uint16", 65535, 65536)])
def test_stamps_after_numbers_of_few_bits_do_not_wrap(dtype, last, after):
    clock = as_clock(np.arange(last - 4, last + 1).astype(dtype), "`y`")
    assert next_stamps(clock[-1], regular_step(clock, "`y`"), 2).tolist() == [after, after + 1]
    wide = as_clock(np.array([-120, -20, 80], np.int8), "`y`")
    assert regular_step(wide, "`y`") == 100


def test_stamps_that_int64_cannot_count_are_refused():
    assert next_stamps(np.int64(2**63 - 5), 2, 2).tolist() == [2**63 - 3, 2**63 - 1]
    with pytest.raises(ValueError, match=r"`y` must have times that leave 2 steps of 2 below 2\*\*63, got 9223372036854775804"):
        next_stamps(np.int64(2**63 - 4), 2, 2)
