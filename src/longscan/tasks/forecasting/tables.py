"""Tables of measurements: CSV files with a date column and a column per variable, as in Informer, Autoformer and ETT.

The rows of a table must be in the order of time with equal steps, since windows count rows: a constant difference, or a calendar
frequency that pandas.infer_freq finds (months, business days). The published tables satisfy this, except "weather" (see
`KNOWN_IRREGULAR_STEPS`).
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

from longscan._errors import count_text
from longscan._float32 import FLOAT32_MAX, MAX_EXACT_INTEGER, check_exact_integers
from longscan._frequencies import infer_frequency
from longscan._types import checked_value
from longscan.tasks._store import cached_arrays

Missing = Literal["refuse", "fill"]
_log = logging.getLogger("longscan")

# Number of variables of the published tables; another table with the same name is an error.
VARIABLE_COUNTS = {"WTH": 12, "weather": 21, "ETTh1": 7, "ETTh2": 7, "ETTm1": 7, "ETTm2": 7}

# Steps of the published tables whose length differs from the others, by the dates before and after. Autoformer's weather.csv has
# one row twice and lacks nine rows; the published results for it use the rows as if all steps were equal.
StepDates = Collection[tuple[str, str]]
KNOWN_IRREGULAR_STEPS: dict[str, StepDates] = {
    "weather": (("2020-05-12 06:00:00", "2020-05-12 06:00:00"), ("2020-05-29 09:30:00", "2020-05-29 11:10:00")),
}
_DAYS = ("%Y/%m/%d", "%m/%d/%Y", "%d/%m/%Y", "%d.%m.%Y")
DATE_FORMATS = ("ISO 8601", *(f"{day}{time}" for time in (" %H:%M", " %H:%M:%S", "") for day in _DAYS), "%Y-%m")


class Table(NamedTuple):
    """The values of a table, (rows, C) float64, and the names of its columns without the date."""

    values: np.ndarray
    variables: tuple[str, ...]


def read_table(path: Path, expected: int | None = None, missing: Missing = "refuse", irregular: StepDates = ()) -> Table:
    """Read a CSV file with names in the first line, and a date and numbers in each of the others.

    Args:
        path: of the file. Only the header may contain characters other than ASCII.
        expected: required number of variables, None for any.
        irregular: the dates before and after each step that may have another length, or length 0, as written in the file.
        missing: treatment of missing values ("?", "NaN", nothing between commas): "refuse", ValueError with their number;
            "fill", the previous value of the variable (later values are to be forecast) and a log warning with their number.

    Raises ValueError naming file and line for missing, surplus and damaged values, for duplicate column names, and for dates that
    are unreadable, repeated, out of order or at unequal steps.
    """
    checked_value(missing, Missing, "missing")
    try:
        with path.open(encoding="latin-1", newline=None) as file:
            header = file.readline().rstrip("\n\r").removeprefix("ï»¿").split(",")
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    if len(header) < 2 or header[0].strip().strip('"').lower() not in ("date", "time", "timestamp"):
        raise ValueError(f"{path}:1: the header must be 'date,NAME,NAME,...', got {','.join(header)[:60]!r}")
    names = [name.strip().strip('"') for name in header]
    for name in names:
        count = names.count(name)
        if count > 1:
            raise ValueError(f"{path}:1: the names of columns must be unique, got {name!r} {count} times")
    variables = tuple(names[1:])
    if expected is not None and len(variables) != expected:
        raise ValueError(f"{path} must have {expected} variables, got {len(variables)}; is it another table of the same name?")
    arrays = cached_arrays("dated_table", [path], irregular, lambda: _parse_rows(path, len(header), irregular))
    values, lines = arrays["values"], arrays["lines"]
    gaps = np.isnan(values)
    if not gaps.any():
        return Table(values, variables)
    row, column = np.argwhere(gaps)[0]
    counts = f"{count_text(gaps.sum(), 'missing value')} ('?', 'NaN' or nothing) in {gaps.any(1).sum()} of its {len(values)} rows"
    if missing == "refuse":
        raise ValueError(
            f"{path} has {counts}, the first in line {lines[row]}, {variables[column]}; missing='fill' repeats the value before"
        )
    if gaps[0].any():
        first = variables[int(gaps[0].argmax())]
        raise ValueError(
            f"{path}:{lines[0]}: the first line must have a value of {first}, as none before it can be repeated, got none"
        )
    last_present = np.maximum.accumulate(np.where(gaps, 0, np.arange(len(values))[:, None]))
    _log.warning("%s: %s were filled with the last value before", path, counts)
    return Table(np.take_along_axis(values, last_present, 0), variables)


def read_dates(path: Path, horizon: int, irregular: StepDates = ()) -> list[str]:
    """Return the dates of a table that `read_table` reads, and the next `horizon` dates with the same step.

    Dates have the format of ISO 8601, numbers stay numbers. Raises ValueError for a table of one row, whose step is unknown.
    """
    with path.open(encoding="latin-1", newline=None) as file:
        columns = len(file.readline().split(","))
    arrays = cached_arrays("dated_table", [path], irregular, lambda: _parse_rows(path, columns, irregular))
    words, form = arrays["dates"].tolist(), str(arrays["form"][0])
    if len(words) < 2:
        raise ValueError(f"{path} must have at least two rows, from which the step between rows is known, got one")
    usual = _usual_step(_parse_timestamps(words, form))
    count = range(1, horizon + 1)
    if form == "numbers":
        numbers = [_parse_number(word) for word in words]
        step = numbers[1] - numbers[0] if all(isinstance(number, int) for number in numbers) else usual
        return [*words, *(f"{numbers[-1] + number * step:.15g}" for number in count)]
    dates = [_parse_date(word, form) for word in words]
    has_equal_steps = _irregular_steps(_parse_timestamps(words, form), words, irregular).size == 0
    calendar = None if has_equal_steps else _calendar_frequency(dates)
    if calendar is None:
        later = [dates[-1] + number * timedelta(microseconds=int(usual)) for number in count]
    else:
        import pandas as pd

        later = pd.date_range(dates[-1], periods=horizon + 1, freq=calendar)[1:].to_pydatetime().tolist()
    return [date.isoformat(" ") for date in [*dates, *later]]


def _parse_rows(path: Path, columns: int, irregular: StepDates) -> dict[str, np.ndarray]:
    """Return values (rows, columns - 1) float64 with NaN for missing ones, dates (rows,) as text, form (1,) and lines (rows,)."""
    rows, dates, numbers = [], [], []
    with path.open(encoding="latin-1", newline=None) as file:
        next(file)
        for line, text in enumerate(file, 2):
            words = text.rstrip("\n").split(",")
            if len(words) != columns:
                if not text.strip():
                    continue
                raise ValueError(f"{path}:{line}: the line must have {columns} columns, like the header, got {len(words)}")
            try:
                rows.append([_parse_value(word) for word in words[1:]])
            except ValueError:
                raise ValueError(f"{path}:{line}: values must be numbers, got {text[:60]!r}") from None
            if any(abs(value) >= MAX_EXACT_INTEGER for value in rows[-1]):
                check_exact_integers(words[1:], np.array(rows[-1]), f"{path}:{line}: the line")
            dates.append(words[0].strip().strip('"'))
            numbers.append(line)
    if not rows:
        raise ValueError(f"{path} must have rows after the header, got none")
    values = np.array(rows)
    wrong = np.argwhere(np.abs(values) > FLOAT32_MAX)
    if len(wrong):
        row, column = wrong[0]
        value = values[row, column]
        raise ValueError(
            f"{path}:{numbers[row]}: values must be at most {FLOAT32_MAX:.3g}, the largest of float32, got {value:g}"
        )
    form = _detect_date_format(path, dates, numbers, irregular)
    return {"values": values, "dates": np.array(dates), "form": np.array([form]), "lines": np.array(numbers)}


def _detect_date_format(path: Path, words: list[str], lines: list[int], irregular: StepDates) -> str:
    """Return the date format with which the steps are equal, or "numbers" for numbers that are no dates.

    Raises ValueError if there is none, with the line of the first error in the format that reads the most rows, or if there are
    several that give different dates.
    """
    pairs = set(pairwise(words))
    known = {step for step in irregular if step in pairs}
    best, reason, found = (False, -1), "", dict[str, tuple[datetime | None, np.ndarray]]()
    for form in (*DATE_FORMATS, "numbers"):
        if form == "numbers" and best != (False, 0):
            break  # dates such as 20240131 are numbers too
        try:
            stamps = _parse_timestamps(words, form)
        except _UnreadableError as error:
            reached = False, error.row
            needed = f"{', '.join(DATE_FORMATS)} or numbers, the same in all lines"
            problem = f"dates must be {needed}, got {words[error.row][:40]!r}"
        else:
            row, problem = _find_uneven_step(stamps, words, form, known)
            reached = True, row
            if not problem:
                first = None if form == "numbers" else _parse_date(words[0], form)
                if not any(first == other and np.array_equal(stamps, others) for other, others in found.values()):
                    found[form] = first, stamps
        if reached > best:
            best, reason = reached, problem
    if len(found) > 1:
        raise ValueError(
            f"{path}: dates must be in a form that can be read in one way, such as 2024-01-31 13:00 of ISO 8601, got dates from "
            f"{words[0]} to {words[-1]}, which can be read as {', '.join(found)}"
        )
    if not found:
        raise ValueError(f"{path}:{lines[best[1]]}: {reason}")
    return next(iter(found))


def _find_uneven_step(stamps: np.ndarray, words: list[str], form: str, irregular: StepDates) -> tuple[int, str]:
    """Return the row after the first invalid step and a description of the error, "" if all steps are equal."""
    steps = np.diff(stamps)
    for row in np.flatnonzero(steps <= 0).tolist():
        if (words[row], words[row + 1]) in irregular:
            continue
        if steps[row] == 0:
            return row + 1, f"each time stamp must occur once, got {words[row]} twice"
        return row + 1, f"the rows must be in the order of time, got {words[row + 1]} after {words[row]}"
    odd = _irregular_steps(stamps, words, irregular)
    if not len(odd) or (form != "numbers" and _calendar_frequency([_parse_date(word, form) for word in words]) is not None):
        return 0, ""
    row, usual = int(odd[0]), _usual_step(stamps)
    shown = f"{usual:g}" if form == "numbers" else str(timedelta(microseconds=int(usual)))
    pandas = "" if find_spec("pandas") else "; steps of a calendar, such as months, are read with pandas, which is not installed"
    return row + 1, (
        f"the steps must be equal, got {len(odd)} of {len(steps)} that differ from {shown}, the first between {words[row]} and "
        f"{words[row + 1]}; asfreq and interpolate of pandas fill gaps{pandas}"
    )


def _usual_step(stamps: np.ndarray) -> float:
    """Return the most frequent step; for numbers with fractions the median, as they are rounded."""
    steps = np.diff(stamps)
    if stamps.dtype.kind == "f":
        return float(np.median(steps))
    values, counts = np.unique(steps, return_counts=True)
    return float(values[counts.argmax()])


def _irregular_steps(stamps: np.ndarray, words: Sequence[str], irregular: StepDates) -> np.ndarray:
    """Return the rows before the steps that differ from the usual one, except known irregular steps."""
    if len(stamps) < 2:
        return np.zeros(0, int)
    rounding, usual = 0.0, _usual_step(stamps)
    if stamps.dtype.kind == "f":
        rounding = float(4 * np.finfo(np.float64).eps * np.abs(stamps).max() + 1e-6 * abs(usual))
    odd = np.flatnonzero(np.abs(np.diff(stamps) - usual) > rounding)
    return np.array([row for row in odd.tolist() if (words[row], words[row + 1]) not in irregular], int)


def _calendar_frequency(dates: list[datetime]) -> str | None:
    """Return the calendar frequency of dates by its name in pandas ("MS", "B"); None if there is none, or without pandas."""
    if len(dates) < 3 or find_spec("pandas") is None:
        return None
    import pandas as pd

    try:
        return infer_frequency(pd.DatetimeIndex(dates))
    except ValueError:  # dates of several offsets from UTC
        return None


class _UnreadableError(ValueError):
    """A word that is no date in the given format; row: its index among the words."""

    def __init__(self, row: int) -> None:
        super().__init__(row)
        self.row = row


def _parse_timestamps(words: Sequence[str], form: str) -> np.ndarray:
    """Return timestamps (rows,): dates in microseconds since the first, int64; numbers unchanged."""
    stamps: list[float] = []
    first = None
    for row, word in enumerate(words):
        try:
            if form == "numbers":
                stamps.append(_parse_number(word))
            else:
                date = _parse_date(word, form)
                first = date if first is None else first
                stamps.append((date - first) // timedelta(microseconds=1))
        except (TypeError, ValueError, OverflowError):  # TypeError: dates with and without a time zone
            raise _UnreadableError(row) from None
    return np.array(stamps, dtype=np.int64 if all(isinstance(stamp, int) for stamp in stamps) else np.float64)


def _parse_date(word: str, form: str) -> datetime:
    return datetime.fromisoformat(word) if form == "ISO 8601" else datetime.strptime(word, form)


def _parse_value(word: str) -> float:
    """Convert a word to a float, NaN for a missing value. Raises ValueError for any other."""
    if "_" in word:  # 1_1 is a number for Python alone
        raise ValueError(word)
    return float("nan" if word.strip() in ("", "?") else word)


def _parse_number(word: str) -> float:
    """Convert a word to an int below 2^63 or to a finite float. Raises ValueError for any other."""
    if "_" in word:
        raise ValueError(word)
    try:
        number: float = int(word)
    except ValueError:
        number = float(word)
    if not math.isfinite(number) or (isinstance(number, int) and abs(number) >= 2**63):
        raise ValueError(word)
    return number
