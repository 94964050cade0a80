"""Tasks on a user's files: values of series and time stamps, on small series with known answers."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from longscan._errors import SettingError
from longscan.tasks.series import base, clock, files, forecast, splits
from longscan.tasks.series.files import Dialect, check_column, column_names, suffix_of
from longscan.tasks.series.reading import SeriesStore

NAN = np.nan
DAY = 86_400 * 10**9  # nanoseconds


def store_of(*series: Any, stamps: Any = None, form: str = "numbers", groups: Any = None) -> SeriesStore:
    """Return a store of series, each a list of rows of values."""
    values = [np.asarray(rows, dtype=np.float64) for rows in series]
    offsets = np.cumsum([0, *map(len, values)])
    channels = tuple("xyz"[: values[0].shape[1]])
    ids = np.array([f"u{number}" for number in range(len(values))])
    return SeriesStore(np.concatenate(values), offsets, ids, None, groups, stamps, form, channels, "long", True, None)


def nanoseconds(*dates: str) -> np.ndarray:
    return pd.DatetimeIndex(dates).as_unit("ns").astype(np.int64).to_numpy()


def test_missing_values_are_interpolated_in_each_channel() -> None:
    values = np.array([[NAN, 1, NAN], [2, NAN, NAN], [NAN, NAN, NAN], [5, 7, NAN], [NAN, NAN, NAN]])
    np.testing.assert_array_equal(base.fill_gaps(values), [[2, 1, NAN], [2, 3, NAN], [3.5, 5, NAN], [5, 7, NAN], [5, 7, NAN]])
    assert np.isnan(values[0, 0]), "the series itself is not changed"
    whole = np.ones((2, 2))
    assert base.fill_gaps(whole) is whole


def test_missing_values_are_interpolated_over_the_times_if_these_count() -> None:
    start = nanoseconds("2026-01-01")[0]
    for stamps in (np.array([0.0, 1, 10]), start + np.array([0, 1, 10])):
        store = store_of([[0, 3], [NAN, NAN], [10, 13]], stamps=stamps)
        given = (store, np.array([0]), np.zeros(2), np.ones(2), "fill")
        assert base.build_inputs(*given, 1.0).inputs[0].tolist() == [[0, 3], [1, 4], [10, 13]]
        assert base.build_inputs(*given, None).inputs[0].tolist() == [[0, 3], [5, 8], [10, 13]]


def test_statistics_are_those_of_the_given_steps_without_missing_values() -> None:
    store = store_of([[1, 5, 0], [NAN, 5, 1], [3, 5, 2]], [[5, 5, NAN], [100, 9, 50]])
    found = base.fit_statistics(store, np.array([[0, 3], [3, 4]]), "mine.csv")
    np.testing.assert_allclose(found.mean, [3, 5, 1])
    np.testing.assert_allclose(found.scale, [np.std([1, 3, 5]), 1, np.std([0, 1, 2])])
    assert found.missing.tolist() == [1, 0, 1]
    assert found.constant == ("y",)
    with pytest.raises(ValueError, match=r"^mine.csv must have values of 'z' in the training series, got none"):
        base.fit_statistics(store, np.array([[3, 4]]), "mine.csv")


@pytest.mark.parametrize(("spread", "is_constant"), [(0.9e-10, True), (1.1e-10, False)])
def test_a_channel_is_constant_up_to_rounding(spread: float, is_constant: bool) -> None:
    rows = [[1e6 * (1 + spread)], [1e6 * (1 - spread)]]
    found = base.fit_statistics(store_of(rows), np.array([[0, 2]]), "mine.csv")
    assert bool(found.constant) == is_constant
    assert (found.scale[0] == 1) == is_constant


def test_missing_values_are_counted_and_the_first_is_named() -> None:
    store = store_of([[1, 2], [3, 4]], [[5, 6], [7, NAN], [NAN, NAN]])
    message = "mine.csv has 3 missing values, the first in step 2 of series 'u1', y; `missing='fill'` interpolates"
    with pytest.raises(ValueError, match=message):
        base.check_missing(store, "refuse", "mine.csv")
    base.check_missing(store, "mask", "mine.csv")
    base.check_missing(store, "fill", "mine.csv")
    base.check_missing(store_of([[1, 2]]), "refuse", "mine.csv")
    empty = store_of([[1, 2]], [[5, NAN], [7, NAN]])
    with pytest.raises(ValueError, match=r"mine.csv: series 'u1' must have a value of y, from which missing ones"):
        base.check_missing(empty, "fill", "mine.csv")


def test_uneven_steps_name_the_first_and_their_number() -> None:
    stamps = np.array([0.0, 2, 4, 50, 52, 55, 58])
    store = store_of([[1.0]] * 3, [[1.0]] * 4, stamps=stamps)
    message = "as 2 steps of mine.csv differ from 2, the first, 3, in series 'u1'"
    with pytest.raises(SettingError, match=message):
        base.check_steps(store, 2.0, "mine.csv")
    base.check_steps(store_of([[1.0]] * 3, [[1.0]] * 2, stamps=stamps[:5]), 2.0, "mine.csv")
    base.check_steps(store_of([[1.0]] * 3), 2.0, "mine.csv")
    dates = store_of([[1.0]] * 3, stamps=nanoseconds("2024-01-01", "2024-01-02", "2024-01-04"), form="ISO8601")
    with pytest.raises(SettingError, match=r"as 1 step of mine.csv differs from 1 day, 0:00:00, the first, 2 days, 0:00:00, in"):
        base.check_steps(dates, float(DAY), "mine.csv")


def test_steps_as_text() -> None:
    assert base.format_step(0.25, is_dated=False) == "0.25"
    assert base.format_step(1.5e9, is_dated=True) == "0:00:01.500000"
    assert base.format_step(2e3, is_dated=True) == "0:00:00.000002"


def test_values_beyond_float32_raise() -> None:
    mean, scale = np.array([1.0, 0]), np.array([2.0, 1])
    scaled = base.scaled_values(np.array([[3.0, -4], [NAN, 0.5]]), mean, scale, "it")
    assert scaled.dtype == np.float32
    np.testing.assert_array_equal(scaled, [[1, -4], [NAN, 0.5]])
    largest = float(np.finfo(np.float32).max)
    assert base.scaled_values(np.array([[0.0, -largest]]), mean, scale, "it")[0, 1] == np.float32(-largest)
    with pytest.raises(ValueError, match=r"^it must have values of at most 3.4e\+38, .* got 4e\+38"):
        base.scaled_values(np.array([[0.0, -4e38]]), mean, scale, "it")


def test_inputs_are_scaled_padded_and_marked() -> None:
    stamps = np.array([0.0, 2, 3, 10, 14])
    store = store_of([[1, NAN], [3, 4], [5, 6]], [[7, 8], [NAN, NAN]], stamps=stamps)
    mean, scale = np.array([1.0, 0]), np.array([2.0, 4])
    batch = base.build_inputs(store, np.array([1, 0]), mean, scale, "mask", 2.0)
    nothing = [0.0, 0.0]
    assert batch.inputs[0].tolist() == [[3, 2, 1, 1], [*nothing, 0, 0], [*nothing, 0, 0]]
    assert batch.inputs[1].tolist() == [[0, 0, 1, 0], [1, 1, 1, 1], [2, 1.5, 1, 1]]
    assert batch.valid is not None
    assert batch.valid.tolist() == [[True, True, False], [True] * 3]
    assert batch.elapsed is not None
    assert batch.elapsed.tolist() == [[1, 2, 1], [1, 1, 0.5]]
    filled = base.build_inputs(store, np.array([0]), mean, scale, "fill", None)
    assert filled.inputs[0].tolist() == [[0, 1], [1, 1], [2, 1.5]]
    assert (filled.valid, filled.elapsed) == (None, None)
    assert base.build_inputs(store._replace(stamps=None), np.array([0, 1]), mean, scale, "mask", 1.0).elapsed is not None


def test_odd_steps_are_those_that_differ_by_more_than_rounding() -> None:
    offsets = np.array([0, 3, 6])
    stamps = np.array([0, 1, 2.1, 100, 101, 102 + 2e-6])
    assert clock.uneven_steps(stamps, offsets, 1.0).tolist() == [1, 4], "not the step between the series"
    stamps = np.array([0, 1, 2 + 0.5e-6, 100, 101, 102])
    assert clock.uneven_steps(stamps, offsets, 1.0).tolist() == []
    large = 1e12 + np.array([0, 0.1, 0.2, 0.3])  # steps of 0.1 with an error of up to 2e-4
    assert clock.uneven_steps(large, np.array([0, 4]), 0.1).tolist() == []
    dates = np.array([0, 10**9, 2 * 10**9 + 2000])
    assert clock.uneven_steps(dates, np.array([0, 3]), 1e9).tolist() == [1], "dates are whole numbers, without rounding"


def test_usual_step_is_the_median_within_series() -> None:
    assert clock.usual_step(np.array([0, 1, 3, 6, 10.0]), np.array([0, 5])) == 2.5
    assert clock.usual_step(np.array([5.0]), np.array([0, 1])) == 1.0
    assert clock.usual_step(np.array([0, 7.0, 100, 107]), np.array([0, 2, 4])) == 7


def test_stamps_that_do_not_increase_are_found() -> None:
    stamps = np.array([0, 1, 0, 3, 3, 2])
    assert clock.first_decrease(stamps, [0, 2, 6]) == 4, "equal ones, and not the step between two series"
    assert clock.first_decrease(stamps, [0, 6]) == 2
    assert clock.first_decrease(stamps[:4], [0, 2, 4]) is None


@pytest.mark.parametrize(
    ("frequency", "text"),
    [
        ("MS", "first days of months (MS)"),
        ("QE-DEC", "last days of quarters (QE-DEC)"),
        ("2MS", "dates of the pandas frequency 2MS"),
    ],
)
def test_frequencies_are_words(frequency: str, text: str) -> None:
    assert clock.format_frequency(frequency) == text


def test_later_stamps_have_the_usual_step_or_the_calendar() -> None:
    assert clock.later_stamps(np.array([1.0, 1.5]), 3, 0.5, None, is_dated=False).tolist() == [2.0, 2.5, 3.0]
    months = nanoseconds("2024-01-01", "2024-02-01", "2024-03-01")
    assert clock.calendar_frequency(months) == "MS"
    later = clock.later_stamps(months, 2, 30 * DAY, "MS", is_dated=True)
    assert later.tolist() == nanoseconds("2024-04-01", "2024-05-01").tolist()
    even = clock.later_stamps(months, 2, float(DAY), None, is_dated=True)
    assert even.tolist() == nanoseconds("2024-03-02", "2024-03-03").tolist()
    assert even.dtype == np.int64
    assert clock.calendar_frequency(months[:2]) is None
    assert clock.calendar_frequency(nanoseconds("2024-01-01", "2024-01-02", "2024-01-09")) is None


@pytest.mark.parametrize(
    ("step", "days", "periods"),
    [
        (1 / 24, 2, ("day",)),
        (1 / 24, 1.99, ()),
        (1 / 24, 14, ("day", "week")),
        (0.5, 14, ("week",)),  # a day is not longer than two steps
        (0.49, 13.9, ("day",)),
        (1, 731, ("week", "year")),
        (1, 730, ("week",)),
        (4, 731, ("year",)),
    ],
)
def test_calendar_periods(step: float, days: float, periods: tuple[str, ...]) -> None:
    stamps = np.array([5 * DAY, 5 * DAY + int(days * DAY)])
    assert clock.calendar_periods(stamps, step * DAY) == periods


def test_calendar_features_begin_with_midnight_monday_and_1970() -> None:
    moments = nanoseconds("2024-01-01 00:00", "2024-01-01 06:00", "2024-01-04 12:00")  # a Monday, a Thursday
    found = clock.calendar_features(moments, ("day", "week"))
    angles = np.array([[0, 0], [np.pi / 2, 2 * np.pi / 28], [np.pi, np.pi]])
    np.testing.assert_allclose(found[:, ::2], np.sin(angles), atol=1e-6)
    np.testing.assert_allclose(found[:, 1::2], np.cos(angles), atol=1e-6)
    year = clock.calendar_features(np.array([0, int(365.2425 / 4 * DAY)]), ("year",))
    np.testing.assert_allclose(year, [[0, 1], [1, 0]], atol=1e-6)
    assert clock.calendar_features(moments, ()).shape == (3, 0)


@pytest.mark.parametrize(
    ("name", "suffix"),
    [("a.csv", ".csv"), ("a.CSV.GZ", ".csv"), ("a.tsv.xz", ".tsv"), ("a.parquet.gz", ".gz"), ("csv.gz", ".gz"), ("a", ""),
     ("a.b.npz", ".npz"), ("a.2024.csv.gz", ".csv"), ("a.csv.2024.gz", ".gz")],
)  # fmt: skip
def test_suffixes_leave_out_compression(name: str, suffix: str) -> None:
    assert suffix_of(Path(name)) == suffix


@pytest.mark.parametrize("mark", [";", "\t", "|"])
def test_another_separator_is_suggested(mark: str, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(mark.join(("one", "two")) + "\n")
    with pytest.raises(SettingError, match=r"`separator` must be the character between the columns of .*, got ','"):
        column_names(path, Dialect(",", "."))
    assert column_names(path, Dialect(mark, ".")) == ["one", "two"]
    path.write_text(f"1{mark}2.5\n")
    with pytest.raises(ValueError, match=r"must begin with a line with the names of the columns, got the numbers 1, 2.5"):
        column_names(path, Dialect(mark, "."))


def test_names_of_digits_and_underscores_are_no_numbers(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("1_1,1_2\n3,4\n")
    assert column_names(path, Dialect(",", ".")) == ["1_1", "1_2"]


def test_a_wrong_name_of_a_column_shows_twelve_of_them() -> None:
    columns = [f"c{number}" for number in range(13)]
    with pytest.raises(SettingError, match=r"its columns are c0, .*, c11, \.\.\., got 'other'"):
        check_column("label", "other", columns, "mine.csv")
    with pytest.raises(SettingError, match=r"its columns are c0, .*, c11, got 'other'"):
        check_column("label", "other", columns[:12], "mine.csv")
    with pytest.raises(SettingError, match=r"did you mean kind or kinda\? its columns"):
        check_column("label", "kinds", ["kind", "kinda", "kin"], "mine.csv")
    check_column("label", "c3", columns, "mine.csv")


def test_units_are_groups_or_equal_series() -> None:
    series = [[[1.0], [2.0]], [[1.0], [3.0]], [[1.0], [2.0]], [[1.0]]]
    assert splits.split_units(store_of(*series)).tolist() == [0, 1, 0, 2]
    assert splits.split_units(store_of([[0.0], [1.0]], [[-0.0], [1.0]])).tolist() == [0, 0], "-0.0 is equal to 0.0"
    grouped = store_of(*series, groups=np.array(["b", "a", "c", "b"]))
    assert splits.split_units(grouped).tolist() == [1, 0, 2, 1]


def parts_of(units: list[int], targets: list[int] | None, valid: float, test: float, seed: int, grouped: bool) -> str:
    """Return the part of each series: - of train, v of valid, t of test."""
    given = None if targets is None else np.array(targets)
    rows = splits.split_series(np.array(units), given, valid, test, seed, has_groups=grouped)
    letters = np.full(len(units), "?")
    for part, chosen in rows.items():
        letters[chosen] = {"train": "-", "valid": "v", "test": "t"}[part]
    return "".join(letters.tolist())


CASES: dict[str, tuple[list[int], list[int] | None, float, float, int, bool]] = {
    "single series": (list(range(20)), None, 0.2, 0.3, 0, False),
    "another seed": (list(range(20)), None, 0.2, 0.3, 1, False),
    "classes": (list(range(24)), [0] * 14 + [1] * 7 + [2] * 3, 0.15, 0.25, 0, False),
    "equal series": ([0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 9], [0, 0, 0, 0, 0, 1, 0, 1, 0, 1, 0, 1, 0, 0], 0.2, 0.2, 3, False),
    "groups": ([n // 3 for n in range(30)], [n % 2 for n in range(30)], 0.2, 0.2, 0, True),
    "unequal groups": ([0] * 9 + [1] * 5 + [2] * 4 + [3, 3, 4, 5, 6, 6], [n * n % 3 % 2 for n in range(24)], 0.2, 0.25, 5, True),
    "few groups": ([0, 0, 0, 1, 1, 2], None, 0.1, 0.4, 0, True),
}


EXPECTED = {
    "single series": "t-----tv-v-tttv-t-v-",
    "another seed": "t--ttt-tv----v-tv--v",
    "classes": "v-----tv---tttv-t---ttv-",
    "equal series": "ttttvtvv------",
    "groups": "vvv------------vvv------tttttt",
    "unequal groups": "---------vvvvvtttttt----",
    "few groups": "---ttv",
}


@pytest.mark.parametrize("name", CASES)
def test_splits_stay_the_same_in_all_versions(name: str) -> None:
    assert parts_of(*CASES[name]) == EXPECTED[name]


def test_unevenness_is_the_distance_of_the_shares_in_valid_and_test() -> None:
    table = np.array([[4.0, 0], [2, 2], [2, 6], [2, 2]])
    shares = {"valid": 0.2, "test": 0.3}
    parts = np.array([0, 0, 1, 2])
    expected = abs(0.2 - 0.2) + abs(0.6 - 0.2) + abs(0.2 - 0.3) + abs(0.2 - 0.3)
    assert splits._unevenness(table, parts, shares) == pytest.approx(expected)
    assert splits._unevenness(table, np.array([0, 1, 1, 2]), shares) == pytest.approx(1000 + 0.2 + 0.6 + 0.1 + 0.1)


@pytest.mark.parametrize(
    ("seconds", "season"),
    [(60, 1440), (59.99, 1), (30, 1), (3600, 24), (7200, 12), (7000, 1), (43_200, 2), (86_399, 1), (86_400, 7), (172_800, 1)],
)
def test_season_of_dates_is_a_day_or_a_week(seconds: float, season: int) -> None:
    dates = store_of([[1.0]], stamps=nanoseconds("2024-01-01"), form="ISO8601")
    assert forecast._season(dates, seconds * 1e9, None) == season
    assert forecast._season(store_of([[1.0]]), seconds * 1e9, None) == 1, "numbers have no days"


def test_season_of_a_calendar() -> None:
    dates = store_of([[1.0]], stamps=nanoseconds("2024-01-01"), form="ISO8601")
    names = ("MS", "ME", "BME", "QS-OCT", "B", "YS", "W-SUN")
    assert [forecast._season(dates, 30.0 * DAY, name) for name in names] == [12, 12, 12, 4, 5, 1, 52]


def test_frequency_is_that_of_all_series() -> None:
    months = ("2024-01-01", "2024-02-01", "2024-03-01")
    both = nanoseconds(*months, *months)
    store = store_of([[1.0]] * 3, [[1.0]] * 3, stamps=both, form="ISO8601")
    assert forecast._frequency(store) == "MS"
    other = nanoseconds(*months, "2024-01-01", "2024-01-02", "2024-01-03")
    assert forecast._frequency(store._replace(stamps=other)) is None
    assert forecast._frequency(store._replace(form="numbers")) is None
    assert forecast._frequency(store._replace(stamps=None)) is None


def test_a_target_must_vary_within_the_rows() -> None:
    values = np.array([[1.0, 0], [1, 0], [2, 0], [2, 0]])
    assert not forecast._varies(values[:, :1], [(0, 2)])
    assert forecast._varies(values[:, :1], [(0, 2), (2, 4)])
    assert forecast._varies(values[:, ::-1], [(1, 3)]), "one of several"
    assert not forecast._varies(values[:, 1:], [(0, 4)])
    assert not forecast._varies(values[:, :1], [(2, 2)])
    assert not forecast._varies(np.array([[1.0], [NAN], [1.0]]), [(0, 3)])
    assert forecast._varies(np.array([[NAN], [1.0], [NAN], [2.0]]), [(0, 4)])


def test_missing_values_of_a_forecast_repeat_the_value_before() -> None:
    store = store_of([[1, 2], [NAN, 3], [NAN, NAN]], [[4, 5], [6, NAN]])
    fill: Any = SimpleNamespace(missing="fill")
    found = forecast._checked_values(store, fill, "mine.csv")
    assert found.tolist() == [[1, 2], [1, 3], [1, 3], [4, 5], [6, 5]]
    whole = store_of([[1.0]])
    assert forecast._checked_values(whole, fill, "mine.csv") is whole.values
    with pytest.raises(ValueError, match=r"mine.csv: the first row of series 'u1' must have a value of y, as none before it"):
        forecast._checked_values(store_of([[1, 2]], [[4, NAN], [6, 7]]), fill, "mine.csv")


def test_rows_with_what_is_known_ahead_alone_are_left_out_at_the_end() -> None:
    store = store_of([[1, 5], [NAN, 6], [2, 7], [NAN, 8], [NAN, 9]], [[3, 1], [4, 2]], stamps=np.arange(7.0))
    found = forecast._without_rows_ahead(store, np.array([1]))
    assert found.values[:, 1].tolist() == [5, 6, 7, 1, 2]
    assert found.offsets.tolist() == [0, 3, 5]
    assert found.stamps is not None
    assert found.stamps.tolist() == [0, 1, 2, 5, 6]
    assert forecast._without_rows_ahead(store, np.array([], dtype=int)) is store
    assert forecast._without_rows_ahead(store, np.array([0])) is store, "the other channel has a value in the last row"
    empty = forecast._without_rows_ahead(store_of([[NAN, 5], [NAN, 6]], [[1, 2]]), np.array([1]))
    assert empty.offsets.tolist() == [0, 0, 1]


def test_damaged_archives_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    with pytest.raises(ValueError, match=f"^{path} cannot be read: No such file or directory$"):
        files.read_npz(path)
    np.savez(path, x=np.ones(2), names=np.array(["a"]))
    assert {name: array.tolist() for name, array in files.read_npz(path).items()} == {"x": [1, 1], "names": ["a"]}
    path.write_bytes(b"other")
    with pytest.raises(ValueError, match=r"must be an .npz file of numbers and text, got another or a damaged one \("):
        files.read_npz(path)


def test_a_table_without_rows_has_no_frames(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("one,two\n")
    assert sum(len(frame) for frame in files.read_frames(path, ["one"], [], Dialect(",", "."))) == 0
    path.write_text("one,two\n1,2\n3,4,5\n")
    with pytest.raises(ValueError, match=r"a.csv cannot be read: Expected 2 fields in line 3, saw 3"):
        list(files.read_frames(path, ["one"], [], Dialect(",", ".")))


@pytest.mark.parametrize("rows", ["1,2,3\n4,5,6\n", "0,2,3\n1,5,6\n", "7,2,3\n9,5,6\n1,2,3\n", "1,2,\n2,3,\n"])
def test_rows_longer_than_the_header_are_refused(rows: str, tmp_path: Path) -> None:
    """pandas takes their first values for labels, which are a RangeIndex where they are evenly spaced."""
    path = tmp_path / "a.csv"
    path.write_text(f"one,two\n{rows}")
    with pytest.raises(ValueError, match=r"a.csv cannot be read: Expected 2 fields in line 2, saw 3"):
        list(files.read_frames(path, ["one"], [], Dialect(",", ".")))


def test_quotes_may_follow_a_space(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('one, "two"\n1, "2,5"\n3, "4"\n')
    assert column_names(path, Dialect(",", ".")) == ["one", "two"]
    (frame,) = files.read_frames(path, ["two"], ["two"], Dialect(",", "."))
    assert frame["two"].tolist() == ["2,5", "4"]


def test_numbers_of_a_table_have_the_dialect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.csv"
    path.write_text("id; one ;two\n007;1,5; 2\n 08 ;?;N/A\nx;-1e3;None\n")
    monkeypatch.setattr(files, "ROWS", 2)
    frames = list(files.read_frames(path, ["two", "id", "one"], ["id"], Dialect(";", ",")))
    assert [len(frame) for frame in frames] == [2, 1]
    joined = pd.concat(frames)
    assert joined.columns.tolist() == ["two", "id", "one"]
    assert joined["id"].tolist() == ["007", "08", "x"]
    np.testing.assert_array_equal(joined[["one", "two"]].to_numpy(float), [[1.5, 2], [NAN, NAN], [-1000, NAN]])


def test_columns_of_parquet_become_text_as_in_a_text_file() -> None:
    whole = pd.Series([1.0, 2.5, NAN, 1e16])
    assert files._as_text(whole).tolist()[:2] == ["1", "2.5"]
    assert files._as_text(whole)[3] == "10000000000000000"
    assert files._as_text(whole).isna().tolist() == [False, False, True, False]
    assert files._as_text(pd.Series([7, 8])).tolist() == ["7", "8"]
    dates = files._as_text(pd.Series(pd.DatetimeIndex(["2024-01-02 03:04", None])))
    assert dates[0] == "2024-01-02T03:04:00"
    assert dates.isna()[1]


def test_files_of_a_folder_are_tables_in_the_order_of_their_names(tmp_path: Path) -> None:
    for name in ("b.csv", "a.tsv.gz", "c.npz", ".hidden.csv", "sub/a.csv", "note.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / "folder.csv").mkdir()
    found = [str(path.relative_to(tmp_path)) for path in files.find_files(tmp_path)]
    assert found == ["a.tsv.gz", "b.csv", "sub/a.csv"]
    assert files.find_files(tmp_path / "c.npz") == [tmp_path / "c.npz"]
    with pytest.raises(ValueError, match=r"note.md: its name must end in one of .csv, .tsv, .txt, .parquet"):
        files.find_files(tmp_path / "note.md")
    with pytest.raises(ValueError, match=r"other cannot be read: No such file or directory"):
        files.find_files(tmp_path / "other")
    with pytest.raises(ValueError, match=r"folder.csv must contain files with names that end in one of .csv, .*, got none"):
        files.find_files(tmp_path / "folder.csv")
