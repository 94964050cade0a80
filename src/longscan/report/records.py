"""Records of runs and measurements: JSON Lines files under results/, whose rows have the type of their kind."""

import json
from pathlib import Path
from typing import Any

from longscan._specs import upgrade_record
from longscan._types import parse_value
from longscan.report.parsing import RecordType
from longscan.report.record_types import (
    AutomataRecord,
    BenchRecord,
    ClassificationRecord,
    ForecastRecord,
    RegressionRecord,
    RunRecord,
    SeedsRecord,
    ShortSeriesRecord,
    SweepRecord,
)

Record = dict[str, Any]

# Whose rows have the kind of this name.
_FOLDERS = ("automata", "bench", "classification", "forecasts", "regression", "runs", "short_series")
_TYPES: dict[str, type[RecordType]] = {
    "automata": AutomataRecord,
    "bench": BenchRecord,
    "classification": ClassificationRecord,
    "forecasts": ForecastRecord,
    "regression": RegressionRecord,
    "runs": RunRecord,
    "seeds": SeedsRecord,
    "short_series": ShortSeriesRecord,
    "sweep": SweepRecord,
}
_MAX_ERRORS = 8  # fields that a message names


def check_record(kind: str, row: Record) -> None:
    """Raise ValueError naming the fields of a row that do not match the type of its kind, their values and what was needed.

    Kinds: `runs`, `bench`, `classification`, `regression`, `forecasts`, `short_series`, `automata` for rows; `sweep`, `seeds` for
    whole files.
    """
    _, errors = parse_value(row, _TYPES[kind])
    if errors:
        named = "; ".join(map(str, errors[:_MAX_ERRORS]))
        more = f"; and {len(errors) - _MAX_ERRORS} more" if len(errors) > _MAX_ERRORS else ""
        raise ValueError(f"this is not a record of {kind}: {named}{more}")


def _kind(path: Path) -> str:
    kind = path.resolve().parent.name
    if kind not in _FOLDERS:
        raise ValueError(f"`path` must be in a folder {' or '.join(_FOLDERS)}, got {path}")
    return kind


def append_record(path: str | Path, row: Record) -> None:
    """Add one row to a JSON Lines file whose folder is called as the row's kind.

    The row is checked and turned into text before the file is opened, and written in one call at the end of the file, so that
    processes that write at the same time do not mix their rows. Raises ValueError, which names the file and
    the fields, for a row that is not of its kind's type, or contains NaN or an infinity.
    """
    path = Path(path)
    kind = _kind(path)
    try:
        check_record(kind, row)
        line = json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n"
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab", buffering=0) as file:
        file.write(line.encode("utf-8"))


def read_records(path: str | Path) -> list[Record]:
    """Return the rows of one JSON Lines file, each checked. A ValueError names the file, the line and the fields.

    Specs and commands in the letters of version 1 come back in names.
    """
    path = Path(path)
    rows = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            rows.append(json.loads(line.decode("utf-8")))
            check_record(_kind(path), rows[-1])
            rows[-1] = upgrade_record(rows[-1])
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}, line {number}: {error}") from error
    return rows


def apply_corrections(row: Record) -> Record:
    """Return a row of `runs` with the values of its field "corrected" in place of those that the run recorded."""
    corrected: Record = row.get("corrected", {})
    return row | corrected.get("values", {})


def read_folder(folder: str | Path) -> list[Record]:
    """Return the rows of all `*.jsonl` files of a folder in the order of their names, none if the folder does not exist."""
    return [row for path in sorted(Path(folder).glob("*.jsonl")) for row in read_records(path)]


def read_seeds(folder: str | Path) -> dict[str, Record]:
    """Return the checked records of all `*.json` files of a folder by name. A ValueError names the file."""
    records = {}
    for path in sorted(Path(folder).glob("*.json")):
        try:
            records[path.stem] = json.loads(path.read_text("utf-8"))
            check_record("seeds", records[path.stem])
            records[path.stem] = upgrade_record(records[path.stem])
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}: {error}") from error
    return records
