"""Records of runs and measurements: JSON Lines files under results/, each row checked against its schema."""

import json
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema

Record = dict[str, Any]

_SCHEMAS = {"automata": "automata.json", "bench": "bench.json", "runs": "run.json"}  # of rows, by the folder of their file


@cache
def _validator(kind: str) -> Any:
    name = _SCHEMAS.get(kind, f"{kind}.json")
    text = resources.files("longscan.report").joinpath("schemas", name).read_text("utf-8")
    return jsonschema.Draft202012Validator(json.loads(text))


MOST = 8  # fields that an error names


def check_record(kind: str, row: Record) -> None:
    """Raise ValueError naming every field in which a row departs from the schema of its kind.

    Kinds: `runs`, `bench`, `automata`, and `sweep` and `seeds`, which are files of their own and no rows.
    """
    errors = sorted(_validator(kind).iter_errors(row), key=lambda e: e.json_path)
    if errors:
        said = "; ".join(f"{e.json_path.replace('$', 'row', 1)}: {_shortened(e.message)}" for e in errors[:MOST])
        more = f"; and {len(errors) - MOST} more" if len(errors) > MOST else ""
        raise ValueError(f"not a row of {kind}: {said}{more}")


def _shortened(message: str, most: int = 160) -> str:
    """A message of the validator, which may hold a whole row, as one line."""
    line = " ".join(message.split())
    return line if len(line) <= most else f"{line[: most - 3]}..."


def _kind(path: Path) -> str:
    kind = path.resolve().parent.name
    if kind not in _SCHEMAS:
        raise ValueError(f"path: {path} lies in a folder {kind!r}; records live in folders {', '.join(_SCHEMAS)}")
    return kind


def append_record(path: str | Path, row: Record) -> None:
    """Add one row to a JSON Lines file whose folder is called `runs`, `bench` or `automata`, which says the schema.

    The row is checked and turned into text before the file is opened, and written in one call at the end of the file, so that
    processes that write at the same time do not mix their rows. Raises ValueError for a row that breaks the schema or holds NaN
    or an infinity.
    """
    path = Path(path)
    check_record(_kind(path), row)
    line = json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab", buffering=0) as file:
        file.write(line.encode("utf-8"))


def read_records(path: str | Path) -> list[Record]:
    """The rows of one JSON Lines file, each checked; ValueError names the file and the line."""
    path = Path(path)
    rows = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            rows.append(json.loads(line.decode("utf-8")))
            check_record(_kind(path), rows[-1])
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}, line {number}: {error}") from error
    return rows


def apply_corrections(row: Record) -> Record:
    """Return a row of `runs` with the values of its field "corrected" in place of those that the run recorded."""
    corrected: Record = row.get("corrected", {})
    return row | corrected.get("values", {})


def read_folder(folder: str | Path) -> list[Record]:
    """The rows of all `*.jsonl` files of a folder, in the order of their names; none where there is no such folder."""
    return [row for path in sorted(Path(folder).glob("*.jsonl")) for row in read_records(path)]


def read_seeds(folder: str | Path) -> dict[str, Record]:
    """Name -> record of all `*.json` files of a folder, each checked; ValueError names the file."""
    records = {}
    for path in sorted(Path(folder).glob("*.json")):
        try:
            records[path.stem] = json.loads(path.read_text("utf-8"))
            check_record("seeds", records[path.stem])
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}: {error}") from error
    return records
