"""Tables of measurements: CSV files with a date first and a variable a column, as Informer's, Autoformer's and ETT's.

The rows of a table must be in the order of time and evenly apart, since windows count rows: by a constant difference, or by a
calendar that pandas.infer_freq finds (months, business days). The published tables are so, but for "weather" (see `IRREGULAR`).
"""

import logging
import math
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from longscan._float32 import LARGEST
from longscan.tasks._store import stored

Missing = Literal["refuse", "fill"]
MISSING_CHOICES: tuple[Missing, ...] = ("refuse", "fill")
_log = logging.getLogger("longscan")

# What the published tables hold, so that another table of the same name is noticed.
VARIABLES = {"WTH": 12, "weather": 21, "ETTh1": 7, "ETTh2": 7, "ETTm1": 7, "ETTm2": 7}

# Steps of the published tables that are not as long as the others, by the dates around them. Autoformer's weather.csv has one row
# twice and lacks nine rows; the results published for it count the rows as if they were even.
StepDates = Collection[tuple[str, str]]
IRREGULAR: dict[str, StepDates] = {
    "weather": (("2020-05-12 06:00:00", "2020-05-12 06:00:00"), ("2020-05-29 09:30:00", "2020-05-29 11:10:00")),
}
_DAYS = ("%Y/%m/%d", "%m/%d/%Y", "%d/%m/%Y", "%d.%m.%Y")
DATE_FORMS = ("ISO 8601", *(f"{day}{time}" for time in (" %H:%M", " %H:%M:%S", "") for day in _DAYS), "%Y-%m")


class Table(NamedTuple):
    """values: (rows, C) float64; variables: the names of its columns, without the date."""

    values: np.ndarray
    variables: tuple[str, ...]


def read_table(path: Path, expected: int | None = None, missing: Missing = "refuse", irregular: StepDates = ()) -> Table:
    """A CSV file: names in the first line, then a date and numbers a line.

    Args:
        path: of the file. Only the header may hold more than ASCII.
        expected: how many variables there must be.
        irregular: the dates before and after each step that may be of another length, or 0, as the file has them.
        missing: what becomes of missing values ("?", "NaN", nothing between commas), which are counted: "refuse", ValueError;
            "fill", the last value of the variable before, as later ones are what is to be forecast, and a warning of the log.

    Raises ValueError naming file and line for missing, surplus and damaged values, for column names that occur twice, and for
    dates that are unreadable, repeated, out of order or unevenly apart.
    """
    if missing not in MISSING_CHOICES:
        raise ValueError(f"missing: got {missing!r}, expected one of {', '.join(MISSING_CHOICES)}")
    try:
        with path.open(encoding="latin-1", newline=None) as file:
            header = file.readline().rstrip("\n\r").removeprefix("ï»¿").split(",")
    except OSError as error:
        raise ValueError(f"{path}: can not be read: {error.strerror}") from None
    if len(header) < 2 or header[0].strip().strip('"').lower() not in ("date", "time", "timestamp"):
        raise ValueError(f"{path}:1: a header 'date,NAME,NAME,...' is needed, not {','.join(header)[:60]!r}")
    names = [name.strip().strip('"') for name in header]
    for name in names:
        count = names.count(name)
        if count > 1:
            raise ValueError(f"{path}:1: the column {name!r} occurs {count} times; unique names are needed")
    variables = tuple(names[1:])
    if expected is not None and len(variables) != expected:
        raise ValueError(f"{path}: has {len(variables)} variables, {expected} are needed; is it another table of the same name?")
    arrays = stored("dated_table", [path], irregular, lambda: _rows(path, len(header), irregular))
    values, lines = arrays["values"], arrays["lines"]
    gaps = np.isnan(values)
    if not gaps.any():
        return Table(values, variables)
    row, column = np.argwhere(gaps)[0]
    counts = f"{gaps.sum()} missing values ('?', 'NaN' or nothing) in {gaps.any(1).sum()} of its {len(values)} rows"
    if missing == "refuse":
        raise ValueError(
            f"{path}: {counts}, the first in line {lines[row]}, {variables[column]}; missing='fill' repeats the value before"
        )
    if gaps[0].any():
        first = variables[int(gaps[0].argmax())]
        raise ValueError(f"{path}: line {lines[0]} has no value of {first}, and none before it to repeat; start at a later line")
    known = np.maximum.accumulate(np.where(gaps, 0, np.arange(len(values))[:, None]))
    _log.warning("%s: %s were filled with the last value before", path, counts)
    return Table(np.take_along_axis(values, known, 0), variables)


def read_dates(path: Path, horizon: int, irregular: StepDates = ()) -> list[str]:
    """The dates of a table that `read_table` reads, and the `horizon` ones that follow in the same step.

    Dates are written as in ISO 8601, numbers as numbers. A table of one row does not tell its step: ValueError.
    """
    with path.open(encoding="latin-1", newline=None) as file:
        columns = len(file.readline().split(","))
    arrays = stored("dated_table", [path], irregular, lambda: _rows(path, columns, irregular))
    words, form = arrays["dates"].tolist(), str(arrays["form"][0])
    if len(words) < 2:
        raise ValueError(f"{path}: has one row, which does not tell how far apart steps are; two are needed")
    usual = _usual_step(_stamps(words, form))
    count = range(1, horizon + 1)
    if form == "numbers":
        numbers = [_number(word) for word in words]
        step = numbers[1] - numbers[0] if all(isinstance(number, int) for number in numbers) else usual
        return [*words, *(f"{numbers[-1] + number * step:.15g}" for number in count)]
    dates = [_date(word, form) for word in words]
    calendar = None if _odd_steps(_stamps(words, form), words, irregular).size == 0 else _calendar(dates)
    if calendar is None:
        later = [dates[-1] + number * timedelta(microseconds=int(usual)) for number in count]
    else:
        import pandas as pd

        later = pd.date_range(dates[-1], periods=horizon + 1, freq=calendar)[1:].to_pydatetime().tolist()
    return [date.isoformat(" ") for date in [*dates, *later]]


def _rows(path: Path, columns: int, irregular: StepDates) -> dict[str, np.ndarray]:
    """values: (rows, columns - 1) float64, NaN where one is missing; dates: (rows,) words; form: (1,); lines: (rows,)."""
    rows, dates, numbers = [], [], []
    with path.open(encoding="latin-1", newline=None) as file:
        next(file)
        for line, text in enumerate(file, 2):
            words = text.rstrip("\n").split(",")
            if len(words) != columns:
                if not text.strip():
                    continue
                raise ValueError(f"{path}:{line}: has {len(words)} columns, the header has {columns}")
            try:
                rows.append([float("nan" if word.strip() in ("", "?") else word) for word in words[1:]])
            except ValueError:
                raise ValueError(f"{path}:{line}: a value is no number in {text[:60]!r}") from None
            dates.append(words[0].strip().strip('"'))
            numbers.append(line)
    if not rows:
        raise ValueError(f"{path}: holds no rows after the header")
    values = np.array(rows)
    wrong = np.argwhere(np.abs(values) > LARGEST)
    if len(wrong):
        row, column = wrong[0]
        value = values[row, column]
        raise ValueError(f"{path}:{numbers[row]}: a value is not finite in float32, {value:g}; {LARGEST:.3g} is the largest")
    form = _form_of_dates(path, dates, numbers, irregular)
    return {"values": values, "dates": np.array(dates), "form": np.array([form]), "lines": np.array(numbers)}


def _form_of_dates(path: Path, words: list[str], lines: list[int], irregular: StepDates) -> str:
    """The form in which the dates are read: the one that makes their steps even; "numbers" for numbers that are no dates.

    ValueError with the line where none does, of the form that reads all of them or goes furthest, or where several do and differ.
    """
    pairs = set(pairwise(words))
    known = {step for step in irregular if step in pairs}
    best, reason, found = (False, -1), "", dict[str, tuple[datetime | None, np.ndarray]]()
    for form in (*DATE_FORMS, "numbers"):
        if form == "numbers" and best != (False, 0):
            break  # dates such as 20240131 are numbers too
        try:
            stamps = _stamps(words, form)
        except _UnreadableError as error:
            reached = False, error.row
            needed = f"{', '.join(DATE_FORMS)} or numbers, the same in all lines, is needed"
            problem = f"{words[error.row][:40]!r} is no date; one of {needed}"
        else:
            row, problem = _uneven(stamps, words, form, known)
            reached = True, row
            if not problem:
                first = None if form == "numbers" else _date(words[0], form)
                if not any(first == other and np.array_equal(stamps, others) for other, others in found.values()):
                    found[form] = first, stamps
        if reached > best:
            best, reason = reached, problem
    if len(found) > 1:
        raise ValueError(
            f"{path}: its dates from {words[0]} to {words[-1]} can be read in several forms ({', '.join(found)}); dates as in "
            "ISO 8601, such as 2024-01-31 13:00, are needed"
        )
    if not found:
        raise ValueError(f"{path}:{lines[best[1]]}: {reason}")
    return next(iter(found))


def _uneven(stamps: np.ndarray, words: list[str], form: str, irregular: StepDates) -> tuple[int, str]:
    """The row after the first step that is not as it must be, and what is wrong with it; "" where all are even."""
    steps = np.diff(stamps)
    for row in np.flatnonzero(steps <= 0).tolist():
        if (words[row], words[row + 1]) in irregular:
            continue
        if steps[row] == 0:
            return row + 1, f"the time stamp {words[row]} is duplicated; keep one row of each"
        return row + 1, f"its time stamps go back, from {words[row]} to {words[row + 1]}; rows in the order of time are needed"
    odd = _odd_steps(stamps, words, irregular)
    if not len(odd) or (form != "numbers" and _calendar([_date(word, form) for word in words]) is not None):
        return 0, ""
    row, usual = int(odd[0]), _usual_step(stamps)
    shown = f"{usual:g}" if form == "numbers" else str(timedelta(microseconds=int(usual)))
    pandas = "" if find_spec("pandas") else "; steps of a calendar, such as months, are read with pandas, which is not installed"
    return row + 1, (
        f"its steps are not even: {len(odd)} of {len(steps)} differ from {shown}, the first between {words[row]} and "
        f"{words[row + 1]}; asfreq and interpolate of pandas fill gaps{pandas}"
    )


def _usual_step(stamps: np.ndarray) -> float:
    """The most frequent step; of numbers with fractions the median, as they are rounded."""
    steps = np.diff(stamps)
    if stamps.dtype.kind == "f":
        return float(np.median(steps))
    values, counts = np.unique(steps, return_counts=True)
    return float(values[counts.argmax()])


def _odd_steps(stamps: np.ndarray, words: Sequence[str], irregular: StepDates) -> np.ndarray:
    """The rows before the steps that differ from the usual one, less those that are known to."""
    if len(stamps) < 2:
        return np.zeros(0, int)
    rounding, usual = 0.0, _usual_step(stamps)
    if stamps.dtype.kind == "f":
        rounding = float(4 * np.finfo(np.float64).eps * np.abs(stamps).max() + 1e-6 * abs(usual))
    odd = np.flatnonzero(np.abs(np.diff(stamps) - usual) > rounding)
    return np.array([row for row in odd.tolist() if (words[row], words[row + 1]) not in irregular], int)


def _calendar(dates: list[datetime]) -> str | None:
    """The frequency of dates whose differences vary, as pandas names it ("MS", "B"); None without one, or without pandas."""
    if len(dates) < 3 or find_spec("pandas") is None:
        return None
    import pandas as pd

    try:
        return pd.infer_freq(pd.DatetimeIndex(dates))
    except ValueError:  # dates of several offsets from UTC
        return None


class _UnreadableError(ValueError):
    """A word that is no date of the form; row: its place among the words."""

    def __init__(self, row: int) -> None:
        super().__init__(row)
        self.row = row


def _stamps(words: Sequence[str], form: str) -> np.ndarray:
    """(rows,): dates in microseconds since the first, int64; numbers as they are."""
    stamps: list[float] = []
    first = None
    for row, word in enumerate(words):
        try:
            if form == "numbers":
                stamps.append(_number(word))
            else:
                date = _date(word, form)
                first = date if first is None else first
                stamps.append((date - first) // timedelta(microseconds=1))
        except (TypeError, ValueError, OverflowError):  # TypeError: dates with and without a time zone
            raise _UnreadableError(row) from None
    return np.array(stamps, dtype=np.int64 if all(isinstance(stamp, int) for stamp in stamps) else np.float64)


def _date(word: str, form: str) -> datetime:
    return datetime.fromisoformat(word) if form == "ISO 8601" else datetime.strptime(word, form)


def _number(word: str) -> float:
    """A word as an int, or as a float that is finite; ValueError for others."""
    try:
        return int(word)
    except ValueError:
        number = float(word)
        if not math.isfinite(number):
            raise ValueError(word) from None
        return number
