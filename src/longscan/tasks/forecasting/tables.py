"""Tables of measurements: CSV files with a date first and a variable a column, as Informer's, Autoformer's and ETT's."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from longscan.tasks._store import stored

# What the published tables hold, so that another table of the same name is noticed.
VARIABLES = {"WTH": 12, "weather": 21, "ETTh1": 7, "ETTh2": 7, "ETTm1": 7, "ETTm2": 7}


class Table(NamedTuple):
    """values: (rows, C) float64; variables: the names of its columns."""

    values: np.ndarray
    variables: tuple[str, ...]


def read_table(path: Path, expected: int | None = None) -> Table:
    """A CSV file: names in the first line, then a date and numbers a line. `expected`: how many variables there must be.

    Raises ValueError naming file and line for missing, surplus and damaged values. Only the header may hold more than ASCII.
    """
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
    values = stored("table", [path], None, lambda: {"values": _numbers(path, len(header))})["values"]
    return Table(values, variables)


def _numbers(path: Path, columns: int) -> np.ndarray:
    """(rows, columns - 1) float64."""
    rows = []
    with path.open(encoding="latin-1", newline=None) as file:
        next(file)
        for line, text in enumerate(file, 2):
            words = text.rstrip("\n").split(",")
            if len(words) != columns:
                if not text.strip():
                    continue
                raise ValueError(f"{path}:{line}: has {len(words)} columns, the header has {columns}")
            try:
                rows.append([float(word) for word in words[1:]])
            except ValueError:
                raise ValueError(f"{path}:{line}: a value is no number in {text[:60]!r}") from None
    if not rows:
        raise ValueError(f"{path}: holds no rows after the header")
    values = np.array(rows)
    wrong = np.flatnonzero(~np.isfinite(values).all(1))
    if len(wrong):
        raise ValueError(f"{path}:{wrong[0] + 2}: a value is missing or not finite")
    return values
