"""Tables of measurements: CSV files with a date first and a variable a column, as Informer's, Autoformer's and ETT's."""

import logging
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from longscan.tasks._store import stored

Missing = Literal["refuse", "fill"]
MISSING_CHOICES: tuple[Missing, ...] = ("refuse", "fill")
_log = logging.getLogger("longscan")

# What the published tables hold, so that another table of the same name is noticed.
VARIABLES = {"WTH": 12, "weather": 21, "ETTh1": 7, "ETTh2": 7, "ETTm1": 7, "ETTm2": 7}


class Table(NamedTuple):
    """values: (rows, C) float64; variables: the names of its columns, without the date."""

    values: np.ndarray
    variables: tuple[str, ...]


def read_table(path: Path, expected: int | None = None, missing: Missing = "refuse") -> Table:
    """A CSV file: names in the first line, then a date and numbers a line.

    Args:
        path: of the file. Only the header may hold more than ASCII.
        expected: how many variables there must be.
        missing: what becomes of missing values ("?", "NaN", nothing between commas), which are counted: "refuse", ValueError;
            "fill", the last value of the variable before, as later ones are what is to be forecast, and a warning of the log.

    Raises ValueError naming file and line for missing, surplus and damaged values.
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
    variables = tuple(name.strip().strip('"') for name in header[1:])
    if expected is not None and len(variables) != expected:
        raise ValueError(f"{path}: has {len(variables)} variables, {expected} are needed; is it another table of the same name?")
    arrays = stored("dated_table", [path], None, lambda: _rows(path, len(header)))
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


def read_dates(path: Path) -> list[str]:
    """The first column of a table that `read_table` reads, as the file has it."""
    with path.open(encoding="latin-1", newline=None) as file:
        columns = len(file.readline().split(","))
    dates: list[str] = stored("dated_table", [path], None, lambda: _rows(path, columns))["dates"].tolist()
    return dates


def _rows(path: Path, columns: int) -> dict[str, np.ndarray]:
    """values: (rows, columns - 1) float64, NaN where one is missing; dates: (rows,) words; lines: (rows,) in the file."""
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
    wrong = np.flatnonzero(np.isinf(values).any(1))
    if len(wrong):
        raise ValueError(f"{path}:{numbers[wrong[0]]}: a value is not finite")
    return {"values": values, "dates": np.array(dates), "lines": np.array(numbers)}
