"""The log of a run: metrics.jsonl, and the same rows as metrics.csv and as TensorBoard files."""

import csv
import json
import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from longscan.training.parsing import one_line
from longscan.training.settings import SettingError

Row = dict[str, Any]


def read_rows(path: Path, steps: int = 0) -> list[Row]:
    """The rows of a metrics.jsonl; a last line cut short by a kill is left out. SettingError for any other damage.

    steps: of the run so far. Training logs its first step, so that a log without a row of a run with steps is damaged, too.
    """
    rows: list[Row] = []
    if not path.exists() and not steps:
        return rows
    if not path.exists():
        raise SettingError(f"{path}: missing, needed the rows of {steps} steps")
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines[:-1], 1):  # what follows the last line break was cut short
        try:
            row = json.loads(line)
            if not isinstance(row, dict) or type(row.get("step")) is not int:
                raise ValueError("it has no step")
        except (ValueError, RecursionError) as error:
            raise SettingError(f"{path}, line {number}: damaged ({one_line(error)}), needed a row that training wrote") from None
        rows.append(row)
    if steps and not rows:
        raise SettingError(f"{path}: holds no row, needed those of {steps} steps")
    return rows


class RunLog:
    """Appends rows to the three logs; `keep` are the rows of an earlier part of the run, with which they start.

    columns: of metrics.csv. Each row has "step", "split" and "seconds" (training time), and numbers.
    """

    def __init__(self, folder: Path, columns: Sequence[str], keep: Iterable[Row] = ()) -> None:
        temporary = folder / "metrics.jsonl.writing"
        temporary.write_text("".join(json.dumps(row) + "\n" for row in keep), encoding="utf-8")
        temporary.replace(folder / "metrics.jsonl")
        shutil.rmtree(folder / "tensorboard", ignore_errors=True)
        self._lines = (folder / "metrics.jsonl").open("a", encoding="utf-8")
        self._table = (folder / "metrics.csv").open("w", encoding="utf-8", newline="")
        self._writer = csv.DictWriter(self._table, columns, extrasaction="ignore")
        self._writer.writeheader()
        self._events = EventFileWriter(str(folder / "tensorboard"))
        for row in keep:
            self._copy(row)

    def add(self, row: Row) -> None:
        """One more row; it is in the files' hands when this returns."""
        self._lines.write(json.dumps(row) + "\n")
        self._lines.flush()
        self._copy(row)

    def _copy(self, row: Row) -> None:
        self._writer.writerow(row)
        self._table.flush()
        values = [
            Summary.Value(tag=f"{row['split']}/{name}", simple_value=value)
            for name, value in row.items()
            if name not in ("step", "split") and isinstance(value, int | float)
        ]
        self._events.add_event(Event(wall_time=row["seconds"], step=row["step"], summary=Summary(value=values)))

    def flush(self) -> None:
        """Have everything on the disk, as before a checkpoint."""
        os.fsync(self._lines.fileno())
        self._events.flush()

    def close(self) -> None:
        """Close the files."""
        self._lines.close()
        self._table.close()
        self._events.close()
