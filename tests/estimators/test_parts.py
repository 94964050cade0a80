"""Numbers that decide within estimators, at and next to their bounds: codes, limits, threads, divisions of series, cutoffs."""

import os
from dataclasses import replace
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pytest
import torch

from longscan.estimators import features, forecaster, held_back, limits, threads
from longscan.estimators.backtesting import find_cutoffs
from longscan.estimators.covariates import fit_effect
from longscan.estimators.forecast_series import find_form, truncate, unify_time_zones
from longscan.estimators.linear import FEW_FOLDS, _compared_steps, _folds, usable_windows
from longscan.estimators.series import Collection, StandardisedSeries, pad_arrays


def collection_of(*series: Any) -> Collection:
    return pad_arrays([np.asarray(values, dtype=float).reshape(len(values), -1) for values in series])


@pytest.mark.parametrize(
    ("largest", "code", "expected"),
    [
        (10, 99, 99),
        (16.4, 99, 99),  # the distance, 82.6, is more than five times the range
        (16.5, 99, None),
        (1, 99, 99),
        (1, 99.99, 99.99),
        (1, 90, None),
        (0.5, 9, None),
        (0.5, 9.9, None),  # below the smallest code
    ],
)
def test_codes_are_at_least_99_and_farther_than_five_ranges(largest: float, code: float, expected: float | None) -> None:
    assert limits.find_codes(collection_of([0, largest, code, largest / 2])) == [expected]
    negative = None if expected is None else -expected
    assert limits.find_codes(collection_of([0, -largest, -code, -largest / 2])) == [negative]


@pytest.mark.parametrize(("values", "code"), [([3, 3, 99, 3], None), ([0, 99, 0, 99], None), ([3, 4, 99, 3], 99)])
def test_a_channel_of_two_values_has_no_code(values: list[int], code: float | None) -> None:
    assert limits.find_codes(collection_of(values)) == [code]


@pytest.mark.parametrize(("steps", "expected"), [(500, 0), (501, -np.inf)])
def test_a_limit_is_reached_at_a_hundredth_of_the_steps(steps: int, expected: float) -> None:
    x = 1 + np.arange(float(steps)) % 7
    x[[3, 100, 200, 300, 450]] = 0
    assert limits.find_limits(collection_of(x), np.zeros(1)).lower[0] == expected


def test_neighbouring_steps_are_one_visit() -> None:
    x = 1 + np.arange(60.0) % 7
    x[[0, 1, 10, 11, 30, 31, 58, 59]] = 0
    assert limits.find_limits(collection_of(x), np.zeros(1)).lower[0] == -np.inf, "four visits"
    x[[20, 21]] = 0
    assert limits.find_limits(collection_of(x), np.zeros(1)).lower[0] == 0


def test_threads_of_n_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 5)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 7}, raising=False)
    assert [threads.choose_threads(None, values) for values in (2**21 - 1, 2**21)] == [1, 5]
    assert [threads.choose_threads(jobs, 0) for jobs in (1, 3, -1, -2, -3, -4, -9)] == [1, 3, 4, 3, 2, 1, 1]
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert threads.choose_threads(-2, 0) == 5
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert threads.choose_threads(-1, 0) == 1


def test_long_series_are_divided_at_three_fifths_and_four_fifths() -> None:
    assert _folds(200, 0, 24, 6, FEW_FOLDS) == [(range(91), range(96, 131)), (range(131), range(136, 171))]


@pytest.mark.parametrize(
    ("length", "window", "horizon", "divided"), [(60, 24, 6, True), (59, 24, 6, False), (31, 1, 6, True), (29, 1, 6, False)]
)
def test_series_are_divided_if_each_part_has_a_window(length: int, window: int, horizon: int, divided: bool) -> None:
    """Up to the first cut there must be a window and two horizons, and after the last one a horizon."""
    every = range(length - window - horizon + 1)
    turns = [(every, range(0)), (every, range(0))]
    assert (_folds(length, 0, window, horizon, FEW_FOLDS) != turns) == divided
    if not divided:
        assert _folds(length, 1, window, horizon, FEW_FOLDS) == [(range(0), every), (every, range(0))]
        assert _folds(length, 2, window, horizon, FEW_FOLDS) == [(every, range(0)), (range(0), every)]
        assert _folds(length, 3, window, horizon, FEW_FOLDS) == turns


def test_windows_need_as_many_examples_as_weights() -> None:
    """Of 100 steps, the first 60 have 60 - W - 3 + 1 windows of W steps and a horizon of 3."""
    assert usable_windows(np.array([100]), 3, range(1, 60)) == list(range(1, 30))
    assert usable_windows(np.array([100, 100]), 3, (29, 30, 38, 39)) == [29, 30, 38]
    assert usable_windows(np.array([5]), 3, (2, 3)) == []
    assert usable_windows(np.array([], dtype=int), 3) == []


def test_compared_steps_are_evenly_spaced() -> None:
    assert _compared_steps(5).tolist() == [0, 1, 2, 3, 4]
    assert _compared_steps(24).tolist() == list(range(24))
    steps = _compared_steps(100)
    assert (len(steps), steps[0], steps[-1]) == (24, 0, 99)
    assert set(np.diff(steps)) == {4, 5}


def test_cutoffs_leave_a_horizon_and_at_least_one_step() -> None:
    collection = collection_of(np.zeros(10), np.zeros(4), np.zeros(2))
    assert find_cutoffs(collection, 1, 3, 2).tolist() == [[0, 1], [0, 4], [0, 7], [1, 1]]
    with pytest.raises(ValueError, match=r"`start` must be a number of at least 1 step or a time stamp of `y`, got 0"):
        find_cutoffs(collection, 0, 3, 2)
    assert find_cutoffs(collection, 2, 2, 2).tolist() == [[0, 2], [0, 4], [0, 6], [0, 8], [1, 2]]
    with pytest.raises(ValueError, match=r"`y` must have 9 steps, the horizon, after `start`, 2, got series of at most 10 steps"):
        find_cutoffs(collection, 2, 1, 9)
    with pytest.raises(ValueError, match=r"`start` must be a number of steps, as `y` has no time stamps, got True"):
        find_cutoffs(collection, True, 1, 2)
    hours = pd.date_range("2024-01-01", periods=6, freq="h")
    dated = collection_of(np.zeros(6)).with_times([hours])
    assert find_cutoffs(dated, hours[4], 1, 1).tolist() == [[0, 4], [0, 5]]
    assert find_cutoffs(dated, pd.Timestamp("2024-01-01 03:30"), 1, 1).tolist() == [[0, 4], [0, 5]]
    with pytest.raises(ValueError, match=r"`start` must be a number of steps or a time stamp of `y`, got 'noon'"):
        find_cutoffs(dated, "noon", 1, 1)


def parts_of(*lengths: int) -> StandardisedSeries:
    return StandardisedSeries(np.zeros((len(lengths), max(lengths), 1), np.float32), np.array(lengths), None)


def test_the_last_fifth_of_each_series_is_held_back() -> None:
    """But at least a horizon."""
    assert held_back.first_part(parts_of(100, 104, 20, 12, 3), 5).lengths.tolist() == [80, 84, 15, 7, 0]


def test_windows_begin_at_every_step() -> None:
    windows = held_back.Windows.between(np.zeros(3, int), np.array([1, -1, 0]))
    assert windows.total == 3
    assert windows.starts(np.arange(3)).tolist() == [[0, 0], [0, 1], [2, 0]]
    later = held_back.Windows.between(np.array([2, 5, 1]), np.array([3, 4, 1]))
    assert later.starts(np.arange(later.total)).tolist() == [[0, 2], [0, 3], [2, 1]]


def test_windows_of_long_series_need_no_table() -> None:
    """A table of 2e12 windows would exceed any memory."""
    windows = held_back.Windows.between(np.zeros(2, int), np.array([10**12, 10**12]))
    assert windows.total == 2 * (10**12 + 1)
    assert windows.starts(np.array([10**12, 10**12 + 1, windows.total - 1])).tolist() == [[0, 10**12], [1, 0], [1, 10**12]]
    starts = held_back.later_starts(np.array([10**12]), np.array([10**11]), 720, 24)
    assert len(starts) == held_back.COMPARED


def test_later_windows_forecast_what_is_held_back(monkeypatch: pytest.MonkeyPatch) -> None:
    starts = held_back.later_starts(np.array([12, 6]), np.array([8, 2]), 3, 2)
    assert starts.tolist() == [[0, 5], [0, 6], [0, 7], [1, 0], [1, 1]]
    for most, expected in ((5, [0, 1, 2, 3, 4]), (4, [0, 2, 4]), (2, [0, 3]), (1, [0])):
        monkeypatch.setattr(held_back, "COMPARED", most)
        chosen = held_back.later_starts(np.array([12, 6]), np.array([8, 2]), 3, 2)
        assert chosen.tolist() == starts[expected].tolist()


def test_errors_of_overlapping_steps_count_once() -> None:
    starts = np.array([[0, 10], [0, 11], [0, 12], [0, 16], [2, 5]])
    assert held_back.count_independent(starts, 3).tolist() == [4 + 1, 4 + 1, 3 + 1]
    assert held_back.count_independent(starts, 4)[3] == 1 + 6 / 4 + 1


def test_ranks_are_positions_among_equal_numbers() -> None:
    ranks, counts = forecaster._ranks(np.array([0, 0, 0, 2, 5, 5]))
    assert (ranks.tolist(), counts.tolist()) == ([0, 1, 2, 0, 0, 1], [3, 3, 3, 1, 2, 2])


def test_blocks_are_scaled_to_the_lowest_error() -> None:
    """The factors are right for additions to the linear forecast of 0, twice too much, the opposite, half, and NaN."""
    true = np.array([[[1.0], [2.0]], [[0.0], [3.0]]])
    given = iter([0 * true, 2 * true, -true, true / 2, true + np.nan, 0 * true])
    validation = held_back.Validation(true, lambda _: next(given))
    model: Any = torch.nn.Linear(1, 1)
    errors = [validation.evaluate(model) for _ in range(6)]
    assert model.training
    square = float(np.square(true).mean())
    assert validation.shares == [0, 0.5, 0, 1, 0, 0]
    np.testing.assert_allclose(errors, [square, 0, square, square / 4, np.nan, square])
    assert errors[:4] == validation.curve[:4]
    assert validation.best_epoch(2) == 1


@pytest.mark.parametrize(
    ("squares", "best"), [([0.95, 0.87], 0), ([0.9, 0.89], 2), ([0.8, 0.99], 0), ([1.3, 0.3], 0), ([0.85, 0.85], 2)]
)
def test_blocks_must_lower_the_error_by_a_tenth_and_in_all_parts(squares: list[float], best: int) -> None:
    """The errors of two windows: their gain is lower than a tenth, or not above two standard errors, or enough."""
    validation = held_back.Validation(np.zeros((2, 1, 1)), lambda _: np.zeros((2, 1, 1)))
    for one in ([1.0, 1.0], [0.96, 0.96], squares, [np.nan, np.nan]):
        validation.curve.append(float(np.mean(one)))
        validation._squares.append(np.array(one))
    assert validation.best_epoch(2) == best


@pytest.mark.parametrize(
    ("count", "length", "outputs"),
    [(1, 1, 1280), (10, 100, 1280), (3000, 1, 1280), (3001, 1, 320), (10**6, 10**6, 64)],
)
def test_number_of_outputs(count: int, length: int, outputs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "MAX_OUTPUTS", 1280)
    monkeypatch.setattr(features, "MIN_OUTPUTS", 64)
    monkeypatch.setattr(features, "MANY_SERIES_OUTPUTS", 320)
    assert features.choose_outputs(count, length) == outputs
    monkeypatch.setattr(features, "MAX_WORK", 100 * count * length)
    assert features.choose_outputs(count, length) == 100


def test_batches_of_series_have_8192_steps() -> None:
    assert [features.rows_at_once(length) for length in (1, 100, 4096, 4097, 8192, 8193, 10**6)] == [8192, 81, 2, 1, 1, 1, 1]


def objects(*series: Any) -> np.ndarray:
    """Return series as a one-dimensional array of objects."""
    array = np.empty(len(series), dtype=object)
    for row, values in enumerate(series):
        array[row] = values
    return array


FORMS: list[tuple[Any, str]] = [
    ([1.0, 2.0], "one"),
    ([], "list"),
    ([np.zeros(2)], "list"),
    (np.zeros(3), "one"),
    (np.zeros((3, 2)), "one"),
    (np.zeros((1, 3, 2)), "array"),
    (np.zeros((0, 2)), "array"),
    (objects(np.zeros(3), np.zeros(4)), "list"),
    (objects(1.0, 2.0), "one"),
    (pd.Series([1.0, 2]), "one"),
    (pd.Series([], dtype=float), "indexed"),
    (pd.Series([1.0, 2], pd.MultiIndex.from_product([[0], [1, 2]])), "indexed"),
    (pd.DataFrame({"a": [1.0]}), "one"),
    (pd.DataFrame({"unique_id": [1], "ds": [1], "y": [1.0]}), "long"),
    (torch.zeros(3), "one"),
]


@pytest.mark.parametrize(("y", "form"), FORMS)
def test_forms_of_series(y: Any, form: str) -> None:
    assert find_form(y) == form


def test_a_long_frame_needs_its_three_columns() -> None:
    with pytest.raises(ValueError, match=r"unique_id, ds and y as a long frame, got no column unique_id, y"):
        find_form(pd.DataFrame({"ds": [1], "a": [1.0]}))


def test_series_are_cut_at_a_moment_and_padded_with_zeros() -> None:
    days = pd.date_range("2024-01-01", periods=6)
    given = replace(collection_of([1, 2, 3, 4], [5, 6, 7, 8], [9, 9]), clocks=(days[:4], days[2:6], days[4:6]))
    known = truncate(given, days[2])
    assert known.lengths.tolist() == [3, 1]
    assert known.values[..., 0].tolist() == [[1, 2, 3], [5, 0, 0]]
    assert [len(clock) for clock in known.clocks or ()] == [3, 1]


@pytest.mark.parametrize("zone", ["America/New_York", "UTC", "Asia/Tokyo"])
@pytest.mark.parametrize("fitted", ["America/New_York", "UTC", "Asia/Tokyo"])
def test_dates_are_converted_to_the_time_zone_of_fit(zone: str, fitted: str) -> None:
    clock = pd.date_range("2024-01-01", periods=3, tz=zone)
    found, kept = unify_time_zones(replace(collection_of([1, 2, 3]), clocks=(clock,)), ZoneInfo(fitted), fitting=False)
    assert str(kept) == fitted
    assert found.clocks is not None
    assert str(found.clocks[0].tz) == fitted  # type: ignore[attr-defined]
    assert found.clocks[0].equals(clock.tz_convert(fitted))


def test_effect_of_a_covariate_does_not_depend_on_its_unit() -> None:
    x = np.random.default_rng(0).normal(size=(1, 50, 1))
    series = collection_of(3 * x[0, :, 0])
    lengths = np.array([50])
    for unit in (1.0, 1e-9, 1e9):
        effect = fit_effect(replace(series, covariates=x * unit), lengths)
        np.testing.assert_allclose(effect.of(x * unit)[0, :, 0], 3 * x[0, :, 0] - 3 * x.mean(), rtol=1e-6, atol=1e-9)
