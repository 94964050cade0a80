"""A user's files of all layouts, and bad files, each with an error of one line that names what is wrong."""

import bz2
import gzip
import io
import lzma
import re
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from longscan._errors import SettingError
from longscan.tasks.series import SeriesClasses, SeriesForecast, SeriesValues
from longscan.tasks.series.base import checksum_of
from longscan.tasks.series.clock import usual_step
from longscan.tasks.series.files import Dialect, column_names
from longscan.tasks.series.labelled import label_kind
from longscan.tasks.series.splits import split_series
from made_up import labelled_series


def long_rows(count: int = 12, steps: int = 5, kinds: str = "ab") -> list[list[object]]:
    """Return rows (unit, time, x, y, kind) of series with random values."""
    draw = np.random.default_rng(0)
    return [
        [f"u{number}", step, round(draw.normal(), 4), round(draw.normal(), 4), kinds[number % len(kinds)]]
        for number in range(count)
        for step in range(steps)
    ]


HEADER = ("unit", "time", "x", "y", "kind")


def text_of(rows: list[list[object]], header: tuple[str, ...] = HEADER, separator: str = ",") -> str:
    return "\n".join(separator.join(map(str, row)) for row in [header, *rows]) + "\n"


GOOD = text_of(long_rows())


def change(row: int, column: int, value: object) -> str:
    rows = long_rows()
    rows[row][column] = value
    return text_of(rows)


def dates(*words: str) -> str:
    rows = long_rows()
    for number, row in enumerate(rows):
        row[1] = words[number % 5]
    return text_of(rows)


def wide(header: str, *rows: str) -> str:
    return "\n".join([header, *rows]) + "\n"


FIVE = ("2024-01-01", "2024-01-02", "2024-01-03", "2024-01-04", "2024-01-05")
LABELS = [f"{number / 7:.3f},{number / 3:.3f},{number}.5,{'ab'[number % 2]}" for number in range(12)]
PLAIN: dict[str, object] = {"id": "unit", "label": "kind"}
OLDER_CHECKSUM = "890a5476fe3305e2"  # of long_rows(), as runs stored it when it did not depend on the times

# name: (content, settings other than PLAIN, part of the message)
BAD: dict[str, tuple[str, dict[str, object], str]] = {
    "empty file": ("", {}, "must contain a line with the names of the columns, got an empty file"),
    "header alone": ("unit,time,x,y,kind\n", {}, "must contain rows after the names of the columns, got none"),
    "one row": (text_of(long_rows()[:1]), {}, "at least two classes; every series has 'a'"),
    "one class": (text_of(long_rows(kinds="a")), {}, "at least two classes; every series has 'a'"),
    "one series of a class": (text_of(long_rows(kinds="aaaaaaaaaaab")), {}, "class 'b' has 1 series"),
    "two series of a class": (text_of(long_rows(kinds="aaaaab")), {}, "class 'b' has 2 series"),
    "equal series of a class": (
        text_of([[f"u{n}", s, 1, s if n % 2 else n * s, "ab"[n % 2]] for n in range(12) for s in range(5)]), {},
        "class 'b' has 1 different series",
    ),
    "unknown label": (GOOD, {"label": "kinds"}, "`label` must be a column of"),
    "near miss of a label": (GOOD, {"label": "kinds"}, "did you mean kind?"),
    "unknown id": (GOOD, {"id": "units"}, "did you mean unit?"),
    "unknown time": (GOOD, {"time": "tim"}, "did you mean time?"),
    "unknown group": (GOOD, {"group": "machine"}, "`group` must be a column of"),
    "unknown channel": (GOOD, {"channels": ("x", "z")}, "`channels` must be a column of"),
    "one column for two things": (GOOD, {"id": "kind"}, "`id` must be another column than `label`, got 'kind' for both"),
    "a row for each series, by names of months": (
        text_of([[f"u{n}", n, n / 2, 3, "ab"[n % 2]] for n in range(12)], ("unit", "jan", "feb", "mar", "kind")), {},
        "`layout` must be wide if each row of",
    ),
    "no label": (GOOD, {"label": None, "channels": ("x",)}, "`label` must be the column with the answers"),
    "neither id nor time": (GOOD.replace("time", "step"), {"id": None},
        "`--time` alone if all rows are one series), or `layout` must be wide if each row is a series"),
    "two columns that may be ids": (
        GOOD.replace("unit", "id").replace("time", "series_id"), {"id": None}, "`id` must be one of the columns id, series_id"
    ),
    "two columns that may be times": (GOOD.replace("x,", "date,", 1), {}, "`time` must be one of the columns time, date"),
    "label missing in a row": (change(7, 4, ""), {}, "column 'kind' must have a value in each row, got none in line 9"),
    "label that is a word for missing values": (
        change(7, 4, "NA"), {}, "got none in line 9 (nothing, or one of the words ?, NaN, nan, NA, <NA>, N/A, n/a, #N/A, null,"
    ),
    "word in a row": (change(7, 2, "-"), {}, "got '-' in line 9; missing values are empty or one of the words ?, NaN, nan, NA,"),
    "column of text": (
        text_of([[*row, "red"] for row in long_rows()], (*HEADER, "hue")), {},
        "got 'red' in line 2; `channels` lists the columns to read",
    ),
    "column of text that may be an id": (
        text_of([[*row[1:], "red"] for row in long_rows()[:5]], (*HEADER[1:], "hue")), {"id": None},
        "`channels` lists the columns to read, and `id` names the column of several series",
    ),
    "column of dates": (
        text_of([[*row, f"2024-03-{n % 28 + 1:02d} 10:00"] for n, row in enumerate(long_rows())],
                ("unit", "step", *HEADER[2:], "when")), {},
        "got '2024-03-01 10:00' in line 2; `time` names the column of the times, and `channels` lists the columns to read",
    ),
    "id missing in a row": (change(3, 0, ""), {}, "column 'unit' must have a value in each row, got none in line 5"),
    "time missing in a row": (change(3, 1, ""), {}, "column 'time' must have a value in each row, got none in line 5"),
    "several labels": (change(7, 4, "a"), {}, "each series must have one label, got 'b' and 'a' in column 'kind' of series 'u1'"),
    "several groups": (
        text_of([[*row, n // 3] for n, row in enumerate(long_rows())], (*HEADER, "day")), {"group": "day"}, "must have one group"
    ),
    "two groups": (
        text_of([[*row, int(str(row[0])[1:]) // 6] for row in long_rows()], (*HEADER, "day")), {"group": "day"},
        "`group` must be a column of at least three groups, for train, valid and test, got 2",
    ),
    "class in few groups": (
        text_of([[*row, int(str(row[0])[1:]) // 3] for row in long_rows(kinds="abbbbbbbbbbb")], (*HEADER, "day")),
        {"group": "day", "label": "day"}, "for both",
    ),
    "text in a channel": (change(4, 2, "high"), {}, "column 'x' must contain numbers, got 'high' in line 6"),
    "text column": (
        text_of([[*row, row[4]] for row in long_rows()], (*HEADER, "sort")), {}, "'sort' must contain numbers, got 'a' in line 2"
    ),
    "too many values in each row": (text_of(long_rows(), HEADER[:4]), {"label": "y"}, "Expected 4 fields in line 2, saw 5"),
    "infinite value": (change(4, 2, "inf"), {}, "values must be finite and at most 3.4e+38, got inf in step 5 of series 'u0', x"),
    "beyond float32": (change(4, 3, "1e39"), {}, "got 1e+39 in step 5 of series 'u0', y"),
    "missing value": (change(4, 2, ""), {}, "has 1 missing value, the first in step 5 of series 'u0', x; `missing='fill'`"),
    "question mark": (change(4, 2, "?"), {}, "has 1 missing value"),
    "channel without values in a series": (
        text_of([[*row[:2], "" if row[0] == "u3" else row[2], *row[3:]] for row in long_rows()]), {"missing": "fill"},
        "series 'u3' must have a value of x",
    ),
    "channel without values": (
        text_of([[*row[:2], "", *row[3:]] for row in long_rows()]), {"missing": "mask"}, "must have values of 'x' in the training"
    ),
    "time stamp twice": (change(3, 1, 2), {}, "a series must occur once in column 'time', got 2 twice in series 'u0'"),
    "clock goes back": (change(3, 1, 0.5), {}, "the rows of a series must be in the order of column 'time', got 0.5 after 2"),
    "time stamp twice later": (change(38, 1, 2), {}, "a series must occur once in column 'time', got 2 twice in series 'u7'"),
    "clock goes back later": (change(38, 1, 0.5), {}, "in the order of column 'time', got 0.5 after 2 in series 'u7'"),
    "gap": (change(4, 1, 9), {}, "`uneven` must be elapsed"),
    "column without values": (
        text_of([[*row[:3], "", *row[4:]] for row in long_rows()]), {},
        "`missing='mask'` marks them; no row has a value of y, which `channels` can leave out",
    ),
    "gap and missing value": (
        text_of([[*row[:1], 9 if n == 4 else row[1], "" if n == 2 else row[2], *row[3:]] for n, row in enumerate(long_rows())]),
        {}, "`missing='mask'` marks them; and `uneven` must be elapsed",
    ),
    "mixed frequency": (
        text_of([[row[0], row[1] * (1 if row[0] < "u5" else 2), *row[2:]] for row in long_rows()]), {}, "`uneven` must be elapsed"
    ),
    "several forms of dates": (dates(*FIVE[:3], "04.01.2024", "05.01.2024"), {}, "all rows, got '04.01.2024' in line 5"),
    "no date": (dates(*FIVE[:4], "monday"), {}, "got 'monday' in line 6, after '2024-01-04'; `time_format` is for other forms"),
    "offset in some rows": (
        dates(*(f"{day}T00+02:00" for day in FIVE[:4]), "2024-01-05T00"), {},
        "got '2024-01-05T00' in line 6, after '2024-01-04T00+02:00'",
    ),
    "hour twice": (
        dates(*(f"2024-10-27 {hour}" for hour in ("00:00", "01:00", "02:00", "02:00", "03:00"))), {},
        "got 2024-10-27 02:00:00 twice in series 'u0'; if the clocks were changed then, write times in UTC or with their offset",
    ),
    "day or month first": (
        dates("01/01/2024", "02/02/2024", "03/03/2024", "04/04/2024", "05/05/2024"), {}, "`uneven` must be elapsed"
    ),
    "long cell": (dates(*FIVE[:4], "[{" * 20_000), {}, "[{[... in line 6, after"),
    "long name": (GOOD.replace("y,", "y" * 20_000 + ",", 1), {"label": "other"}, "`label` must be a column of"),
    "two readings of dates": (
        dates("01/02/2024", "02/03/2024", "03/04/2024", "04/05/2024", "05/06/2024"), {}, "`time_format` must be one of %m/%d/%Y"
    ),
    "wrong form": (dates(*FIVE), {"time_format": "%d.%m.%Y"}, "must contain %d.%m.%Y, the same in all rows, got '2024-01-01'"),
    "duplicate date": (dates(*FIVE[:3], FIVE[2], FIVE[4]), {}, "got 2024-01-03 00:00:00 twice in series 'u0'"),
    "times that float64 does not have": (
        GOOD.replace(",1,", f",{2**53 + 1},").replace(",0,", f",{2**53},"), {"time": "time"},
        "'time' must contain numbers below 2^53, ISO 8601 (2024-01-31 13:00)",
    ),
    "dates before int64 nanoseconds": (
        dates(*(f"1500-01-0{day}" for day in range(1, 6))), {"time": "time"}, "from 1678 to 2261, the same in all rows, got '1500"
    ),
    "semicolons": (GOOD.replace(",", ";"), {}, "`separator` must be the character between the columns of"),
    "tabs": (GOOD.replace(",", "\t"), {}, "`separator` must be the character between the columns of"),
    "decimal comma": (
        GOOD.replace(",", ";").replace(".", ","), {"separator": ";"}, "got '0,1257' in line 2; `decimal=','` reads 1,5"
    ),
    "decimal comma or thousands": (
        GOOD.replace(",", ";").replace("0.1257", "1,257"), {"separator": ";"},
        "got '1,257' in line 2; `decimal=','` reads 1,5, and commas between thousands must be removed",
    ),
    "thousands": (
        GOOD.replace(",", ";").replace("0.1257", "1,257.5"), {"separator": ";"},
        "got '1,257.5' in line 2; commas between thousands must be removed",
    ),
    "decimal comma, but points": (
        GOOD.replace(",", ";"), {"separator": ";", "decimal": ","}, "must contain numbers with a decimal comma, got '0.1257' in"
    ),
    "decimal comma and points for thousands": (
        GOOD.replace(",", ";").replace(".", ",").replace("0,1257", "1.234,5"), {"separator": ";", "decimal": ","},
        "numbers with a decimal comma, got '1.234,5' in line 2",
    ),
    "large whole numbers": (
        text_of([[*row[:2], 2**53 - 3 + int(str(row[1])), *row[3:]] for row in long_rows()]), {}, "got '9007199254740993'"
    ),
    "whole numbers beyond int64": (
        text_of([[*row[:2], 2**70 + int(str(row[1])), *row[3:]] for row in long_rows()]), {},
        "got '1180591620717411303424' in line 2; subtract a number from the column",
    ),
    "no header": (GOOD.partition("\n")[2].replace("u", "").replace(",a", ",1").replace(",b", ",2"), {}, "got the numbers 0, 0, "),
    "no header, a label": (wide(*LABELS), {"id": None, "label": "a"}, "got what seem to be values: 0.000, 0.000, 0.5, a"),
    "no header, ids and a label": (GOOD.partition("\n")[2], {"id": "u0", "label": "a"}, "got what seem to be values: u0, 0, "),
    "no header, a date": (
        GOOD.partition("\n")[2].replace("u0,0", "2024-01-01,0", 1), {"id": "0", "label": "a"}, "got what seem to be values: 2024-"
    ),
    "no header, a missing value": (
        GOOD.partition("\n")[2].replace("u0,0", "?,0", 1), {"id": "0", "label": "a"}, "got what seem to be values: ?, 0, "
    ),
    "no header, ids that occur once": (
        wide(*(f"s{n},{n}.5,{n}.1,{n}.7,{n}.2,{'ab'[n % 2]}" for n in range(12))), {"id": "s0", "label": "a"},
        "got what seem to be values: s0, 0.5, 0.1, 0.7, 0.2, a",
    ),
    "no header, decimal commas": (
        "0,5;1,5\n0,25;2,5\n", {"separator": ";", "decimal": ",", "label": "0,5"}, "got the numbers 0,5, 1,5"
    ),
    "column twice": (GOOD.replace("y,", "x,", 1), {}, "the names of the columns must be unique, got 'x' 2 times"),
    "column without a name": (GOOD.replace("y,", ",", 1), {}, "`channels` must be the columns to read, as column 4"),
    "no channels": ("unit,kind\n" + "u1,a\n" * 4, {}, "must have at least one column of values, got only unit, kind"),
    "too many values in a row": (GOOD.replace("u1,0,", "u1,0,7,"), {}, "cannot be read: Expected 5 fields in line 7, saw 6"),
    "bytes": ("unit,x,kind\n\0\1\2,\n", {}, "must be UTF-8 text, got zero bytes"),
    "wide: id twice": (wide("unit,kind,t1,t2,t3", "u1,a,1,2,3", "u1,b,2,3,4"), {}, "got 'u1' twice in column 'unit'"),
    "wide: no values": (wide("unit,kind,t1,t2,t3", "u1,a,1,2,3", "u2,b,,,"), {}, "must have values, got none in line 3"),
    "wide: two channels": (wide("unit,kind,x1,x2,y1,y2", "u1,a,1,2,3,4"), {}, "`channels` must be the names before the"),
    "wide: other columns": (wide("unit,kind,t1,t2,t3,age", "u1,a,1,2,3,4"), {}, "as it also has 'age'"),
    "wide: channels of several lengths": (
        wide("unit,kind,x1,x2,x3,y1", "u1,a,1,2,3,4"), {"channels": ("x", "y")}, "columns for each channel, got 3 of x"
    ),
    "wide: channels of different steps": (
        wide("unit,kind,x1,x2,x3,y2,y3,y4", "u1,a,1,2,3,4,5,6"), {"channels": ("x", "y")}, "got 1 of x alone and 4 of y alone"
    ),
    "wide: step twice": (
        wide("unit,kind,x1,x01,x2,y1,y2,y3", "u1,a,1,2,3,4,5,6"), {"channels": ("x", "y")}, "one column, got 'x1' and 'x01' for"
    ),
    "wide: column of times": (GOOD, {"layout": "wide"}, "`layout` must be long, as the table has a column of times"),
    "wide: text": (wide("unit,kind,t1,t2,t3", "u1,a,1,2,x"), {}, "column 't3' must contain numbers, got 'x' in line 2"),
    "layout of arrays": (GOOD, {"layout": "ncl"}, "`layout` must be auto, long or wide"),
    "large test part": (GOOD, {"test_fraction": 0.5}, "`test_fraction` must be a number above 0 and below 0.5, got 0.5"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_table_is_an_error_of_one_line(name, tmp_path):
    content, settings, message = BAD[name]
    path = tmp_path / "mine.csv"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=r".") as caught:
        SeriesClasses(path=str(path), **{**PLAIN, **settings}).size("train")
    text = str(caught.value)
    assert message in text
    assert "\n" not in text
    assert len(text) < 500


ARRAYS = {
    "bytes of another encoding": ({"X": np.zeros((4, 3)), "y": np.array([b"\xe4"] * 4)}, "y must be UTF-8 text, got other bytes"),
    "no X": ({"Y": np.zeros((4, 3))}, "must contain an array X, or arrays values and offsets, got Y"),
    "more channels than steps": ({"X": np.zeros((8, 3, 9))}, "`layout` must be nlc or ncl: (8, 3, 9), X of"),
    "four axes": ({"X": np.zeros((2, 2, 2, 2))}, "must have the shape (series, steps) or (series, steps, channels)"),
    "text": ({"X": np.array([["a", "b"]])}, "must contain series of numbers, got"),
    "labels of another number": ({"X": np.zeros((4, 3)), "y": np.zeros(3)}, "y must have one value for each of the 4 series"),
    "missing label": ({"X": np.zeros((4, 3)), "y": np.array([0, 1, np.nan, 1])}, "got none in row 3"),
    "series without values": ({"X": np.full((4, 3), np.nan), "y": np.zeros(4)}, "must have values, got none in series 1"),
    "offsets that decrease": ({"values": np.zeros(4), "offsets": np.array([0, 3, 2, 4])}, "`offsets` must be whole numbers"),
    "large whole numbers": ({"X": np.full((4, 3), 2**53 + 1)}, "at most 2^53, which float64 has without gaps, got 90"),
    "both forms": (
        {"X": np.zeros((4, 3)), "values": np.zeros(4), "offsets": np.array([0, 4])},
        "X, or arrays values and offsets, got both",
    ),
    "lengths": ({"X": np.zeros((4, 3)), "lengths": np.full(4, 2)}, "got an array `lengths`, which is not read"),
    "dates as labels": (
        {"X": np.zeros((4, 3)), "y": np.array(["2024-01-01"] * 4, "M8[D]")},
        "y must be text or numbers, got datetime64[D]",
    ),
    "complex labels": ({"X": np.zeros((4, 3)), "y": np.ones(4) * 1j}, "y must be text or numbers, got complex128"),
    "id twice": ({"X": np.zeros((4, 3)), "id": np.array([1, 2, 2, 3])}, "each series must have another id, got '2' twice"),
    "no y": ({"X": np.random.default_rng(0).normal(size=(8, 9))}, "`label` must be the column with the answers"),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_bad_array_is_an_error_of_one_line(name, tmp_path):
    arrays, message = ARRAYS[name]
    np.savez(tmp_path / "mine.npz", **arrays)
    with pytest.raises(ValueError, match=r".") as caught:
        SeriesClasses(path=str(tmp_path / "mine.npz")).size("train")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("ending", "setting", "value", "needed"),
    [
        ("npz", "time", "t", "left out, as .* has no columns"),
        ("npz", "layout", "long", "auto or nlc or ncl for"),
        ("npz", "labels", "a.csv", "left out, as .* is no folder with a file for each series"),
        ("npz", "channels", ("a", "a"), "different names"),
        ("ts", "id", "unit", "left out, as .* has no columns"),
        ("ts", "time", "t", "left out, as .* has no columns"),
        ("ts", "group", "day", "left out, as .* has no columns"),
        ("ts", "layout", "ncl", "auto for"),
        ("csv", "labels", "a.csv", "left out, as .* is no folder with a file for each series"),
        ("csv", "channels", ("x", "x"), "different names"),
    ],
)
def test_settings_that_mean_nothing_for_a_file_are_errors(ending, setting, value, needed, tmp_path):
    path, settings = same_data(tmp_path, "columns in another order" if ending == "csv" else ending)
    assert SeriesClasses(path=str(path), **settings).size("train")
    with pytest.raises(SettingError, match=f"^`{setting}` must be {needed}.*, got "):
        SeriesClasses(path=str(path), **{**settings, setting: value}).size("train")


def test_targets_have_different_names():
    for setting in ("target", "known"):
        with pytest.raises(SettingError, match=rf"^`{setting}` must be different names, got \('a', 'a'\)$"):
            SeriesForecast(**{setting: ("a", "a")})


def test_summary_names_the_arrays_that_are_not_read(tmp_path):
    path, _ = same_data(tmp_path, "npz")
    with np.load(path) as content:
        np.savez(path, **content, unit=np.zeros(2), made=np.array("today"))
    rows = dict(SeriesClasses(path=str(path)).summary())
    assert rows["not read"] == "the arrays unit, made"
    assert "not read" not in dict(SeriesClasses(path=str(same_data(tmp_path, "ts")[0])).summary())


def test_other_files_are_errors(tmp_path):
    for name, content, message in (
        ("a.xlsx", b"x", "its name must end in one of .csv"),
        ("a.npz", b"x", "must be an .npz file of numbers and text"),
        ("a.csv.gz", b"x", "cannot be read: Not a gzipped file"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=message):
            SeriesClasses(path=str(tmp_path / name), **PLAIN).size("train")
    with pytest.raises(ValueError, match="cannot be read: No such file"):
        SeriesClasses(path=str(tmp_path / "none.csv")).size("train")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="must contain files with names that end in one of"):
        SeriesClasses(path=str(tmp_path / "empty")).size("train")
    (tmp_path / "a.csv").write_text(text_of([row[:4] for row in long_rows()], HEADER[:4]))
    with pytest.raises(ValueError, match="`target` must be a column of numbers of"):
        SeriesForecast(path=str(tmp_path / "a.csv"), id="unit", target=("z",)).size("train")


INDEXED = {"parquet indexed by id": "unit", "parquet indexed by id and time": ["unit", "time"]}


def same_data(tmp_path: Path, name: str) -> tuple[Path, dict[str, object]]:
    """Write the table GOOD in another way and return the path and the settings with which it is read."""
    frame = pd.DataFrame(long_rows(), columns=HEADER)
    values = frame[["x", "y"]].to_numpy().reshape(12, 5, 2)
    kinds = frame["kind"].to_numpy().reshape(12, 5)[:, 0]
    path, settings = tmp_path / "mine.csv", {"id": "unit", "label": "kind", "time": "time"}
    if name == "semicolons and decimal commas":
        path.write_text(GOOD.replace(",", ";").replace(".", ","), encoding="utf-8")
        settings |= {"separator": ";", "decimal": ","}
    elif name == "byte order mark":
        path.write_bytes(b"\xef\xbb\xbf" + GOOD.encode())
    elif name == "gz":
        path = tmp_path / "mine.csv.gz"
        path.write_bytes(gzip.compress(GOOD.encode()))
    elif name == "tsv":
        path = tmp_path / "mine.tsv"
        path.write_text(GOOD.replace(",", "\t"))
    elif name == "sorted by time":
        frame.sort_values(["time", "unit"], key=lambda column: column, kind="stable").to_csv(path, index=False)
    elif name == "rows in another order":
        frame.groupby("unit", sort=False).apply(lambda part: part.iloc[::-1])[[*HEADER[1:]]].reset_index().to_csv(path)
        settings |= {"order": "sort", "channels": ("x", "y")}
    elif name == "columns in another order":
        frame[["y", "kind", "x", "time", "unit"]].to_csv(path, index=False)
        settings |= {"channels": ("x", "y")}
    elif name == "parquet":
        pytest.importorskip("pyarrow")
        path = tmp_path / "mine.parquet"
        frame.to_parquet(path)
    elif name in INDEXED:
        pytest.importorskip("pyarrow")
        path = tmp_path / "mine.parquet"
        frame.set_index(INDEXED[name]).to_parquet(path)
    elif name == "parquet of bytes":
        pytest.importorskip("pyarrow")
        path = tmp_path / "mine.parquet"
        frame.assign(unit=frame["unit"].str.encode("utf-8"), kind=frame["kind"].str.encode("utf-8")).to_parquet(path)
    elif name == "parquet of decimal commas":
        pytest.importorskip("pyarrow")
        path, settings = tmp_path / "mine.parquet", settings | {"decimal": ","}
        frame.assign(x=frame["x"].astype(str).str.replace(".", ",")).to_parquet(path)
    elif name == "npz of bytes":
        path, settings = tmp_path / "mine.npz", {}
        np.savez(path, X=values, y=kinds.astype("S"), id=np.array([f"u{number}" for number in range(12)], "S"))
    elif name == "npz":
        path, settings = tmp_path / "mine.npz", {}
        np.savez(path, X=values, y=kinds.astype(str), id=[f"u{number}" for number in range(12)])
    elif name == "npz, channels first":
        path, settings = tmp_path / "mine.npz", {"layout": "ncl", "label": "kind"}
        np.savez(path, X=values.transpose(0, 2, 1), kind=kinds.astype(str))
    elif name == "ragged npz":
        path, settings = tmp_path / "mine.npz", {}
        np.savez(path, values=values.reshape(-1, 2), offsets=np.arange(0, 61, 5), y=kinds.astype(str))
    elif name == "wide":
        columns = [f"{channel}_{step}" for step in range(5) for channel in "xy"]
        table = pd.DataFrame(values.reshape(12, 10), columns=columns).assign(unit=[f"u{n}" for n in range(12)], kind=kinds)
        table.to_csv(path, index=False)
        settings = {"id": "unit", "label": "kind", "channels": ("x", "y")}
    elif name in ("folders", "folder with labels", "folders of names with dots"):
        path = tmp_path / "mine"
        ending = ".2024-01.b.csv" if name == "folders of names with dots" else ".csv"
        settings = {} if name.startswith("folders") else {"labels": str(path / "labels.csv"), "label": "kind"}
        for number, (unit, part) in enumerate(frame.groupby("unit", sort=False)):
            folder = path / kinds[number] if name.startswith("folders") else path
            folder.mkdir(parents=True, exist_ok=True)
            part[["time", "x", "y"]].to_csv(folder / f"u.{unit}{ending}", index=False)
        if not name.startswith("folders"):
            files = [f"u.u{n}{ending if n % 2 else ''}" for n in range(12)]
            pd.DataFrame({"file": files, "kind": kinds}).to_csv(path / "labels.csv", index=False)
    elif name == "ts":
        path, settings = tmp_path / "mine.ts", {}
        words = [":".join(",".join(map(str, part)) for part in item.T) for item in values]
        lines = [f"{word}:{kind}" for word, kind in zip(words, kinds, strict=True)]
        path.write_text("@classLabel true a b\n@data\n" + "\n".join(lines) + "\n")
    return path, settings


@pytest.mark.parametrize(
    "name",
    ["semicolons and decimal commas", "byte order mark", "gz", "tsv", "sorted by time", "rows in another order", "parquet", "npz",
     "columns in another order", "npz, channels first", "ragged npz", "wide", "folders", "folder with labels", "ts",
     "folders of names with dots", *INDEXED, "parquet of bytes", "parquet of decimal commas", "npz of bytes"],
)  # fmt: skip
def test_the_same_series_in_each_layout(name, tmp_path):
    path, settings = same_data(tmp_path, name)
    data = SeriesClasses(path=str(path), **settings)._data
    frame = pd.DataFrame(long_rows(), columns=HEADER)
    expected = {part[["x", "y"]].to_numpy().tobytes(): part["kind"].iloc[0] for _, part in frame.groupby("unit")}
    found = {data.store.series(row).tobytes(): data.store.labels[row] for row in range(12)}
    assert found == expected
    assert data.classes == ("a", "b")


def test_a_new_task_reads_a_file_that_has_changed(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text(GOOD)
    before = SeriesClasses(path=str(path), **PLAIN)
    values = before.batch("test", 0, 2).inputs
    path.write_text(GOOD.replace("u0,0,", "u0,0,1"))
    after = SeriesClasses(path=str(path), **PLAIN)
    assert after == before
    assert after._data.store.values[0, 0] == before._data.store.values[0, 0] + 10
    assert torch.equal(before.batch("test", 0, 2).inputs, values), "a task in use keeps its data"


def test_a_new_task_reads_labels_that_have_changed(tmp_path):
    (tmp_path / "files").mkdir()
    for number in range(12):
        (tmp_path / "files" / f"{number:02}.csv").write_text(f"x\n{number}\n1\n")
    for kinds in ("ab", "ba"):
        lines = [f"{number:02},{kinds[number % 2]}" for number in range(12)]
        (tmp_path / "labels.csv").write_text("\n".join(["file,kind", *lines]))
        task = SeriesClasses(path=str(tmp_path / "files"), labels=str(tmp_path / "labels.csv"), label="kind")
        assert "".join(task._data.store.labels.tolist()) == kinds * 6


def test_baselines_of_a_forecast_are_those_of_a_file_that_has_changed(tmp_path):
    path, errors = tmp_path / "mine.csv", []
    for factor in (1, 2):
        path.write_text("x,y\n" + "\n".join(f"{np.sin(step):.3f},{factor * np.sin(3 * step):.3f}" for step in range(60)))
        settings = {"path": str(path), "layout": "long", "horizon": 2, "context": 8, "target": ("x",)}
        task = SeriesForecast(**settings)
        assert task.batch("test", 0, 2).inputs.shape == (2, 10, task.d_input)
        errors.append((task._data.statistics.scale[1], task.baselines()["ridge"]))
        path.write_text(path.read_text().replace("x,y\n", "x,y\n9,0\n", 1))
        errors.append((0, SeriesForecast(**settings).baselines()["ridge"]))
    assert errors[2][0] == pytest.approx(2 * errors[0][0], rel=1e-3)
    assert errors[0][1] != errors[1][1]


def test_texts_of_a_parquet_file_are_those_of_a_csv_file(tmp_path):
    pytest.importorskip("pyarrow")
    numbers = np.array([0.1, 1, 2.5, 1e300, 2**60] * 12)
    for kind, expected in ((np.float64, ["0.1", "1", "2.5", str(int(1e300)), str(2**60)]), (np.float32, ["0.1", "1", "2.5"])):
        count = len(expected)
        frame = pd.DataFrame(long_rows(), columns=HEADER).assign(kind=[kind(numbers[row // 5 % count]) for row in range(60)])
        frame.to_parquet(tmp_path / "mine.parquet")
        store = SeriesClasses(path=str(tmp_path / "mine.parquet"), id="unit", label="kind", test_fraction=0.4).read_store()
        assert store.labels[:count].tolist() == expected


@pytest.mark.parametrize("ending", ["csv", "npz"])
def test_two_ways_to_write_a_letter_are_one_label(ending, tmp_path):
    frame = pd.DataFrame(long_rows(), columns=HEADER)
    frame["kind"] = [("\u00e9", "e\u0301", "z")[row // 5 % 3] for row in range(60)]
    path, settings = tmp_path / f"mine.{ending}", PLAIN if ending == "csv" else {}
    if ending == "csv":
        frame.to_csv(path, index=False)
    else:
        np.savez(path, X=frame[["x", "y"]].to_numpy().reshape(12, 5, 2), y=frame["kind"][::5].to_numpy().astype(str))
    assert SeriesClasses(path=str(path), **settings).classes == ("z", "\u00e9")


def test_steps_of_a_stream_are_scaled_like_those_of_a_file(tmp_path):
    settings = labelled_series(tmp_path)
    task = SeriesClasses(**settings)
    whole = task.read_inputs(task.path)
    rows = pd.read_csv(task.path).query("unit == 'u0'")[["force", "speed"]].to_numpy()
    assert torch.equal(task.scale_steps(rows)[0], whole.inputs[0, : len(rows)])
    assert torch.equal(task.scale_steps(rows[3]), whole.inputs[:1, 3:4])
    with pytest.raises(ValueError, match=r"`steps` must have the shape \(k, 2\), channels force, speed, got \(3,\)"):
        task.scale_steps(np.zeros(3))
    rows[1, 0] = np.nan
    with pytest.raises(ValueError, match="`steps` must have no missing values unless `missing` is mask, got 1"):
        task.scale_steps(rows)
    masked = SeriesClasses(**settings, missing="mask").scale_steps(rows)
    assert masked[0, 1].tolist() == [0, float(masked[0, 1, 1]), 0, 1]


def test_groups_are_in_one_part(tmp_path):
    rows = [[*row, int(str(row[0])[1:]) // 2] for row in long_rows(count=24)]
    (tmp_path / "mine.csv").write_text(text_of(rows, (*HEADER, "day")))
    data = SeriesClasses(path=str(tmp_path / "mine.csv"), **PLAIN, group="day")._data
    groups = [set(data.store.groups[part]) for part in data.rows.values()]
    assert all(groups)
    assert sum(map(len, groups)) == len(set.union(*groups)) == 12
    assert data.store.channels == ("x", "y")


def test_summary_says_how_series_without_times_are_read(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text(text_of([[*row[:1], *row[2:]] for row in long_rows()], ("unit", "x", "y", "kind")))
    assert ("time", "no column of times; a row is a step") in SeriesClasses(path=str(path), **PLAIN).summary()
    path.write_text(text_of([[float(i + j % 3) for j in range(6)] + ["ab"[i % 2]] for i in range(12)], (*"uvwxyz", "kind")))
    options = {**PLAIN, "id": None, "time": None, "layout": "wide"}
    assert ("time", "none") in SeriesClasses(path=str(path), **options).summary()


def test_constant_channel_is_zero_and_reported(tmp_path):
    (tmp_path / "mine.csv").write_text(text_of([[*row[:2], 0.1, *row[3:]] for row in long_rows()]))
    task = SeriesClasses(path=str(tmp_path / "mine.csv"), **PLAIN)
    assert task.batch("train", 0, 4).inputs[..., 0].abs().max() < 1e-6
    assert dict(task.summary())["constant"].startswith("x: ")


def test_uneven_times_are_given_in_units_of_the_usual_step(tmp_path):
    (tmp_path / "mine.csv").write_text(text_of([[row[0], 0.5 * row[1] + 3 * (row[1] > 2), *row[2:]] for row in long_rows()]))
    task = SeriesClasses(path=str(tmp_path / "mine.csv"), **PLAIN, uneven="elapsed")
    assert task.batch("train", 0, 1).elapsed.tolist() == [[1, 1, 1, 7, 1]]
    assert SeriesClasses(path=str(tmp_path / "mine.csv"), **PLAIN, uneven="ignore").batch("train", 0, 1).elapsed is None


@pytest.mark.parametrize(
    ("labels", "kind"),
    [
        *(("ab", "classes"), ("01", "classes"), ("123", "unclear"), ("1x", "classes")),
        *((("1.5", "2", "3"), "values"), (("1.5", "2", "3", "-inf"), "values")),
        *((("0", "1", "inf"), "unclear"), (("0.5", "1", "inf"), "values"), (("0", "inf"), "classes")),
    ],
)
def test_kind_of_labels(labels, kind, tmp_path):
    (tmp_path / "mine.csv").write_text(text_of([[*row[:4], labels[int(str(row[0])[1:]) % len(labels)]] for row in long_rows()]))
    task = SeriesClasses(path=str(tmp_path / "mine.csv"), **PLAIN)
    assert label_kind(str(task.path), task.read_options()) == kind


def test_new_files_are_checked_against_the_training_series(tmp_path):
    (tmp_path / "mine.csv").write_text(GOOD)
    task, new = SeriesClasses(path=str(tmp_path / "mine.csv"), **PLAIN), tmp_path / "new.csv"
    frame = pd.DataFrame(long_rows(4), columns=HEADER)
    batch = task.batch("train", 0, 1)
    frame[["y", "x", "unit", "time"]].to_csv(new, index=False)  # another order, and no labels
    known = task.read_inputs(tmp_path / "mine.csv").inputs[:4]
    assert task.read_inputs(new).inputs.equal(known)
    assert batch.inputs.shape[2] == 2
    for columns, message in (
        (["unit", "time", "x"], "must have the channels of the training series, x, y, got a table without the column y"),
        ([*HEADER, "z"], "must have no other columns than the table of the training series, got 'z'"),
        (["time", "x", "y"], "`id` must be a column of"),
    ):
        frame.assign(z=1)[columns].to_csv(new, index=False)
        with pytest.raises(ValueError, match=message):
            task.read_inputs(new)


def test_numbers_are_standardised_by_train_and_answered_in_their_units(tmp_path):
    rows = [[*row[:4], 100 + int(str(row[0])[1:]) * 1.5] for row in long_rows()]
    (tmp_path / "mine.csv").write_text(text_of(rows))
    task = SeriesValues(path=str(tmp_path / "mine.csv"), **PLAIN)
    targets = task.batch("train", 0, 20).targets
    assert targets.mean().item() == pytest.approx(0, abs=1e-6)
    assert targets.std(correction=0).item() == pytest.approx(1)
    batch = task.batch("test", 0, 20)
    found = [row["kind"] for row in task.decode(batch.targets, batch)]
    assert found == pytest.approx([float(task._data.store.labels[row]) for row in task._data.rows["test"]])


@pytest.mark.parametrize(("count", "left"), [(5, "one series"), (12, "2 series with the same number")])
def test_numbers_of_the_test_series_must_differ(count, left, tmp_path):
    rows = long_rows(count=count)
    numbers = [int(str(row[0])[1:]) for row in rows]
    split = split_series(np.arange(count), None, 0.15, 0.2, 0, has_groups=False)
    for row, number in zip(rows, numbers, strict=True):
        row[4] = 99 if number in split["test"] else number
    path = tmp_path / "mine.csv"
    path.write_text(text_of(rows))
    with pytest.raises(ValueError, match=f"`test_fraction` must be large enough .* it leaves {left} for test"):
        SeriesValues(path=str(path), **PLAIN).batch("train", 0, 2)


def test_usual_step_leaves_out_the_steps_between_series():
    stamps = np.array([0, 10, 20, 22])
    assert usual_step(stamps, np.array([0, 1, 2, 4])) == 2
    assert usual_step(stamps, np.array([0, 1, 2, 3, 4])) == 1


@pytest.mark.parametrize("place", ["header", "row"])
def test_text_in_another_encoding_is_an_error_that_names_utf_8(tmp_path, place):
    path = tmp_path / "mine.csv"
    text = GOOD.replace("kind", "größe") if place == "header" else GOOD.replace("a\n", "ä\n")
    path.write_bytes(text.encode("cp1252"))
    with pytest.raises(ValueError, match=r"mine.csv must be UTF-8 text, got the byte 0x.*; spreadsheets save"):
        SeriesClasses(path=str(path), **PLAIN).size("train")


@pytest.mark.parametrize(
    ("codes", "is_named"),
    [((0.0, 1.0), True), ((2.0, 2.0), False), (None, False)],
    ids=["copy of the label", "constant", "copy but for one step"],
)
def test_summary_names_a_channel_that_is_a_copy_of_the_label(tmp_path, codes, is_named):
    rows = [[*row, (codes or (0.0, 1.0))["ab".index(str(row[-1]))]] for row in long_rows()]
    if codes is None:
        rows[-1][-1] = 0.5
    path = tmp_path / "mine.csv"
    path.write_text(text_of(rows, (*HEADER, "code")))
    text = dict(SeriesClasses(path=str(path), **PLAIN).summary()).get("suspect", "")
    assert text.startswith("code: one value for each class, as in a copy of the label; `--channels`") == is_named
    assert bool(text) == is_named


def test_summary_names_twelve_classes_and_counts_the_others(tmp_path):
    for count, more in ((12, ""), (13, ", and 1 other"), (15, ", and 3 others")):
        rows = long_rows(count=3 * count)
        for row in rows:
            row[4] = f"k{int(str(row[0])[1:]) % count:02d}"
        path = tmp_path / f"{count}.csv"
        path.write_text(text_of(rows))
        text = dict(SeriesClasses(path=str(path), **PLAIN, test_fraction=0.3, valid_fraction=0.3).summary())["classes"]
        assert text == f"{count} in kind: {', '.join(f'k{number:02d} 3' for number in range(12))}{more}"


def test_checksum_depends_on_the_times_and_older_checksums_are_compared_without_them(tmp_path):
    stores = {}
    for name, first in {"one": 0, "later": 1, "twice": None, "without": None}.items():
        table = pd.DataFrame(long_rows(), columns=list(HEADER))
        if first is not None:
            table["time"] += first
        table = table.drop(columns="time") if name == "without" else table
        table.to_csv(tmp_path / f"{name}.csv", index=False)
        stores[name] = SeriesClasses(path=str(tmp_path / f"{name}.csv"), **PLAIN).read_store()
    sums = {name: checksum_of(store) for name, store in stores.items()}
    assert sums["one"] == sums["twice"]
    assert len(set(sums.values())) == 3
    older = {checksum_of(store, with_times=False) for store in stores.values()}
    assert older == {OLDER_CHECKSUM}
    later = {"path": str(tmp_path / "later.csv"), **PLAIN}
    for checksum in (sums["later"], OLDER_CHECKSUM):
        SeriesClasses(**later, checksum=checksum).read_store()
    for checksum in (sums["one"], sums["without"], OLDER_CHECKSUM[::-1]):
        with pytest.raises(ValueError, match=r"`checksum` must be .*: the file has changed since the run began"):
            SeriesClasses(**later, checksum=checksum).read_store()


def test_numbers_to_predict_may_have_decimal_commas(tmp_path):
    rows = [[*row[:4], f"{int(str(row[0])[1:]) / 8:g}"] for row in long_rows()]
    path, settings = tmp_path / "mine.csv", {**PLAIN, "separator": ";", "decimal": ","}
    path.write_text(text_of(rows).replace(",", ";").replace(".", ","))
    task = SeriesValues(path=str(path), **settings)
    data = task._data
    assert sorted(data.targets * data.spread + data.center) == pytest.approx([number / 8 for number in range(12)])
    assert label_kind(path, task.read_options()) == "values"
    path = tmp_path / "points.csv"
    path.write_text(text_of([[*row[:2], 1, 2, row[4]] for row in rows]).replace(",", ";"))
    with pytest.raises(SettingError, match=r"`label` must be a column of .* with finite numbers; one value is '0\.125'"):
        SeriesValues(path=str(path), **settings).size("train")
    path.write_text(text_of([[*row[:4], "1_0"] for row in rows]))
    with pytest.raises(SettingError, match="with finite numbers; one value is '1_0'"):
        SeriesValues(path=str(path), **PLAIN).size("train")


def test_files_of_a_folder_have_different_names(tmp_path):
    for name in ("1.csv", "2.csv", "2.tsv"):
        (tmp_path / name).write_text("x\n1\n2\n")
    with pytest.raises(ValueError, match="the files must have different names without their endings, got '2' twice"):
        SeriesForecast(path=str(tmp_path)).size("train")


def test_ids_in_the_files_of_a_folder_are_no_channel(tmp_path):
    for number in range(12):
        (tmp_path / "ab"[number % 2]).mkdir(exist_ok=True)
        (tmp_path / "ab"[number % 2] / f"{number}.csv").write_text(f"ID,x\n{number},{number / 7:.2f}\n{number},1\n")
    with pytest.raises(SettingError, match=r"^`channels` must be the columns to read, as 'ID' of .* names series, .* got None$"):
        SeriesClasses(path=str(tmp_path)).size("train")
    assert SeriesClasses(path=str(tmp_path), channels=("x",))._data.store.channels == ("x",)


def test_labels_of_no_file_are_logged(tmp_path, caplog):
    path, settings = same_data(tmp_path, "folder with labels")
    (path / "labels.csv").write_text((path / "labels.csv").read_text() + "u.u12,a\nu.u13.csv,b\n")
    with caplog.at_level("WARNING", "longscan"):
        assert SeriesClasses(path=str(path), **settings).size("train")
    assert caplog.messages == [f"{path / 'labels.csv'}: 2 rows are of no file in {path}, the first of 'u.u12'"]


def test_tables_of_labels_are_checked(tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    for number in range(4):
        (folder / f"u{number}.csv").write_text("x\n1\n2\n")
    table = tmp_path / "labels.csv"
    table.write_text("file,kind,day\nu0.csv,a,1\nu3.csv,b,2\n")
    for settings, message in (
        ({"label": "kinds"}, f"`label` must be a column of {table}; did you mean kind"),
        ({"label": "kind", "group": "days"}, f"`group` must be a column of {table}; did you mean day"),
        ({"label": "kind"}, f"{table} must have a row for each file of {folder}, got none for 'u1' and 1 other"),
    ):
        with pytest.raises(ValueError, match=message):
            SeriesClasses(path=str(folder), labels=str(table), **settings).size("train")


def test_checksums_have_sixteen_digits(tmp_path):
    (tmp_path / "mine.csv").write_text(GOOD)
    store = SeriesClasses(path=str(tmp_path / "mine.csv"), **PLAIN)._data.store
    assert len(checksum_of(store).removeprefix("times-")) == len(OLDER_CHECKSUM) == 16


SPECTRUM = ("1100.5", "1101.0", "1101.5", "1102.0")
DAYS = ("30.01.2024", "31.01.2024", "01.02.2024", "02.02.2024")


@pytest.mark.parametrize("steps", [SPECTRUM, SPECTRUM[::-1], ("-2", "-1", "0", "1"), DAYS], ids=" ".join)
def test_steps_of_a_wide_table_are_in_the_order_of_numbers_or_dates(steps, tmp_path):
    draw = np.random.default_rng(0).normal(size=(12, 4)).round(3)
    (tmp_path / "mine.csv").write_text(text_of([["ab"[n % 2], *draw[n]] for n in range(12)], ("kind", *steps)))
    task = SeriesClasses(path=str(tmp_path / "mine.csv"), label="kind")
    assert task._data.store.channels == ("value",)
    np.testing.assert_array_equal(task._data.store.series(3)[:, 0], draw[3, ::-1] if steps == SPECTRUM[::-1] else draw[3])


def test_first_names_of_many_columns_tell_that_they_are_names(tmp_path, monkeypatch):
    """Whether a word is a time takes milliseconds to find out, and a table may have thousands of columns."""
    asked: list[str] = []
    monkeypatch.setattr("longscan.tasks.series.files._is_time", asked.append)
    (tmp_path / "mine.csv").write_text(text_of([[0.5] * 21], (*(f"x_{number}" for number in range(20)), "0")))
    assert len(column_names(tmp_path / "mine.csv", Dialect(",", "."))) == 21
    assert asked == ["x_0"]


def test_steps_of_a_wide_table_that_are_ambiguous_are_refused(tmp_path):
    for header, needed in (
        (("kind", "01/02/2024", "02/02/2024", "03/02/2024"), "`time_format` must be one of %m/%d/%Y, %d/%m/%Y"),
        (("kind", "1", "1.0", "2"), "must have one column, got '1' and '1.0' for the same step"),
    ):
        (tmp_path / "mine.csv").write_text(text_of([["ab"[n % 2], n, n % 3, n % 5] for n in range(12)], header))
        with pytest.raises(ValueError, match=re.escape(needed)):
            _ = SeriesClasses(path=str(tmp_path / "mine.csv"), label="kind").length


def test_times_may_have_decimal_commas(tmp_path):
    rows = [[row[0], str(row[1] / 4).replace(".", ","), *map(str, row[2:])] for row in long_rows()]
    (tmp_path / "mine.csv").write_text(text_of(rows, separator=";"))
    task = SeriesClasses(path=str(tmp_path / "mine.csv"), **PLAIN, time="time", separator=";", decimal=",", channels=("kind",))
    with pytest.raises(ValueError, match="column 'kind' must contain numbers with a decimal comma, got 'a'"):
        task.read_store()
    (tmp_path / "mine.csv").write_text(text_of([[*row[:2], "1", "2,5", row[4]] for row in rows], separator=";"))
    store = replace(task, channels=("x", "y")).read_store()
    assert store.stamps[:5].tolist() == [0, 0.25, 0.5, 0.75, 1]


def test_series_to_predict_have_the_kind_of_times_of_the_training_series(tmp_path):
    uneven = [[row[0], int(str(row[1])) ** 2, *row[2:]] for row in long_rows()]
    (tmp_path / "mine.csv").write_text(text_of(uneven))
    task = SeriesClasses(path=str(tmp_path / "mine.csv"), id="unit", label="kind", channels=("x", "y"), uneven="elapsed")
    assert task.read_inputs(task.path).elapsed[0].tolist() == [1, 0.25, 0.75, 1.25, 1.75]
    (tmp_path / "new.csv").write_text(text_of([[row[0], *row[2:]] for row in uneven], ("unit", "x", "y", "kind")))
    with pytest.raises(ValueError, match=r"new.csv must have numbers as times, as the training series, got no times$"):
        task.read_inputs(tmp_path / "new.csv")
    assert replace(task, uneven="ignore").read_inputs(tmp_path / "new.csv").elapsed is None
    (tmp_path / "new.csv").write_text(text_of([[row[0], f"2024-01-{1 + row[1]:02}", *row[2:]] for row in uneven]))
    with pytest.raises(ValueError, match=r"new.csv must have numbers as times, as the training series, got dates$"):
        task.read_inputs(tmp_path / "new.csv")


@pytest.mark.parametrize(
    ("header", "usual", "found", "elapsed"),
    [
        (("t1", "t2", "t3", "t6"), "1", "3", [1, 1, 1, 3]),
        (("1100.5", "1101.5", "1102.5", "1104.5"), "1", "2", [1, 1, 1, 2]),
        (("2024-01-01", "2024-01-02", "2024-01-03", "2024-01-05"), "1 day, 0:00:00", "2 days, 0:00:00", [1, 1, 1, 2]),
    ],
)
def test_gaps_between_the_steps_of_a_wide_table_are_uneven_times(header, usual, found, elapsed, tmp_path):
    draw = np.random.default_rng(0).normal(size=(12, 4)).round(3)
    (tmp_path / "mine.csv").write_text(text_of([["ab"[n % 2], *draw[n]] for n in range(12)], ("kind", *header)))
    task = SeriesClasses(path=str(tmp_path / "mine.csv"), label="kind")
    needed = f"as 12 steps of {tmp_path / 'mine.csv'} differ from {usual}, the first, {found}, in series '1', got 'refuse'"
    with pytest.raises(SettingError, match=re.escape(needed)):
        task.size("train")
    assert replace(task, uneven="elapsed").batch("train", 0, 2).elapsed.tolist() == [elapsed] * 2
    assert replace(task, uneven="ignore").batch("train", 0, 2).elapsed is None


@pytest.mark.parametrize("header", [("2024-01-01", "2024-02-01", "2024-03-01", "2024-04-01"), ("t1", "t2", "t3", "t4"), DAYS])
def test_equal_steps_and_months_of_a_wide_table_have_no_times(header, tmp_path):
    (tmp_path / "mine.csv").write_text(text_of([["ab"[n % 2], n, n % 3, n % 5, 1] for n in range(12)], ("kind", *header)))
    assert SeriesClasses(path=str(tmp_path / "mine.csv"), label="kind")._data.store.stamps is None


def test_two_ways_to_write_a_number_are_not_two_classes(tmp_path):
    rows = [[*row[:4], ("1", "1.0", "2")[int(str(row[0])[1:]) % 3]] for row in long_rows()]
    (tmp_path / "mine.csv").write_text(text_of(rows))
    with pytest.raises(ValueError, match=re.escape("'1' and '1.0' would be two classes")):
        _ = SeriesClasses(path=str(tmp_path / "mine.csv"), **PLAIN).length


@pytest.mark.parametrize("layout", ["wide", "npz"])
def test_labels_and_groups_of_a_file_to_predict_may_be_empty(tmp_path: Path, layout: str) -> None:
    """They are not read. Their names are those of no channel, and a file without them gives the same inputs."""
    draw, names = np.random.default_rng(0), ("kind", "machine")
    x, answers = draw.normal(size=(12, 6)), {"kind": [*"ab"] * 6, "machine": [*"cdefgh"] * 2}

    def write(name: str, count: int, columns: dict[str, object]) -> Path:
        path = tmp_path / f"{name}.{'csv' if layout == 'wide' else 'npz'}"
        if layout == "wide":
            pd.DataFrame(x[:count]).add_prefix("t").assign(**columns).to_csv(path, index=False)
        else:
            np.savez(path, X=x[:count, :, None], **{key: np.array(value) for key, value in columns.items()})
        return path

    task = SeriesClasses(path=str(write("all", 12, answers)), label="kind", group="machine")
    batches = [
        task.read_inputs(write("whole", 3, {name: values[:3] for name, values in answers.items()})),
        task.read_inputs(write("empty", 3, dict.fromkeys(names, [np.nan] * 3))),
        task.read_inputs(write("without", 3, {})),
    ]
    assert batches[0].inputs.shape == (3, 6, 1)
    for batch in batches[1:]:
        assert torch.equal(batch.inputs, batches[0].inputs)


@pytest.mark.parametrize("suffix", ["", ".gz", ".bz2", ".xz", ".zip"])
@pytest.mark.parametrize("place", ["number", "text", "last"])
def test_zero_bytes_in_a_text_file_are_an_error(tmp_path, place, suffix):
    text = {
        "number": GOOD[:-20] + GOOD[-20:].replace(",", ",1\0"),
        "text": GOOD.replace("a\n", "a\0b\n"),
        "last": GOOD + "\0" * 5,
    }[place]
    assert "\0" in text
    path = tmp_path / f"mine.csv{suffix}"
    path.write_bytes(compressed(text.encode(), suffix))
    with pytest.raises(ValueError, match=r"mine.csv.* must be UTF-8 text, got zero bytes$"):
        SeriesClasses(path=str(path), **PLAIN).size("train")
    path.write_bytes(compressed(GOOD.encode(), suffix))
    assert SeriesClasses(path=str(path), **PLAIN).size("train") > 0


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz", ".zip"])
@pytest.mark.parametrize("damage", ["cut", "changed", "not compressed"])
def test_damaged_compressed_files_are_an_error_that_names_the_file(tmp_path, damage, suffix):
    random = np.random.default_rng(0)
    content = compressed((GOOD + "".join(f"z,{number},0,a\n" for number in random.random(3000))).encode(), suffix)
    middle = len(content) // 2
    content = {
        "cut": content[:middle],
        "changed": content[:middle] + bytes(byte ^ 0x5A for byte in content[middle : middle + 200]) + content[middle + 200 :],
        "not compressed": GOOD.encode(),
    }[damage]
    path = tmp_path / f"mine.csv{suffix}"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"mine.csv{suffix} cannot be read: "):
        SeriesClasses(path=str(path), **PLAIN).size("train")


@pytest.mark.parametrize(("names", "is_named"), [(("True", "TRUE"), True), (("True", "b"), False)])
def test_summary_names_classes_that_differ_only_in_case(tmp_path, names, is_named):
    rows = [[*row[:-1], names["ab".index(str(row[-1]))]] for row in long_rows()]
    path = tmp_path / "mine.csv"
    path.write_text(text_of(rows))
    task = SeriesClasses(path=str(path), **PLAIN)
    text = f"{names[1]!r} and {names[0]!r} are two classes, which differ only in upper and lower case"
    assert (("suspect", text) in task.summary()) == is_named
    assert task.num_classes == 2


def compressed(content: bytes, suffix: str) -> bytes:
    if suffix == ".zip":
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
            file.writestr("mine.csv", content)
        return archive.getvalue()
    return {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}[suffix](content)
