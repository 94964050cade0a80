"""The logs of a run: metrics.jsonl, the same rows as metrics.csv, accelerate's trackers (TensorBoard, ...).

metrics.jsonl is the record that a run resumes from. The other logs are written again from its rows when a run resumes, so that no
step is in any of them twice.
"""

import csv
import json
import os
import shutil
from collections.abc import Iterable, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from accelerate.tracking import LOGGER_TYPE_TO_CLASS, GeneralTracker, get_available_trackers

from longscan._errors import SettingError, one_line, setting_error
from longscan._yaml import flatten
from longscan.engine import Callback, Engine

Row = dict[str, Any]
PROJECT = "longscan"  # the project of Weights & Biases, the experiment of MLflow


def read_rows(path: Path, steps: int = 0) -> list[Row]:
    """Return the rows of a metrics.jsonl. An incomplete last line is dropped, which a kill of the process leaves.

    Raises SettingError for other damage.

    steps: the number of steps that the run has made. The log must have a row if it is above 0, because every run logs its first
    step.
    """
    rows: list[Row] = []
    if not path.exists() and not steps:
        return rows
    if not path.exists():
        raise SettingError(f"{path} is missing, which has the rows of {steps} steps")
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines[:-1], 1):  # what follows the last line break is incomplete
        try:
            row = json.loads(line)
            if not isinstance(row, dict) or type(row.get("step")) is not int:
                raise ValueError("it has no step")
        except (ValueError, RecursionError) as error:
            raise SettingError(f"{path} is damaged in line {number} ({one_line(error)})") from None
        rows.append(row)
    if steps and not rows:
        raise SettingError(f"{path} must have the rows of {steps} steps, got no rows")
    return rows


class RunLog(Callback):
    """Appends rows to metrics.jsonl and metrics.csv; `rows` are those of an earlier part of the run, with which both start.

    columns: the columns of metrics.csv, which omits the other values of a row; metrics.jsonl has all. The rows of training have
    "step", "split" and "seconds" (of training); those of other callbacks may have only "step" and numbers.
    """

    def __init__(self, folder: Path, columns: Sequence[str], rows: Iterable[Row] = ()) -> None:
        temporary = folder / "metrics.jsonl.writing"
        temporary.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        temporary.replace(folder / "metrics.jsonl")
        self._json_lines = (folder / "metrics.jsonl").open("a", encoding="utf-8")
        self._table = (folder / "metrics.csv").open("w", encoding="utf-8", newline="")
        self._writer = csv.DictWriter(self._table, columns, extrasaction="ignore")
        self._writer.writeheader()
        self._writer.writerows(rows)

    def on_log(self, engine: Engine, row: Row) -> None:
        """Write the row. It is in the files when this returns."""
        self._json_lines.write(json.dumps(row) + "\n")
        self._json_lines.flush()
        self._writer.writerow(row)
        self._table.flush()

    def flush(self) -> None:
        """Write everything to the disk, as before a checkpoint."""
        os.fsync(self._json_lines.fileno())

    def close(self) -> None:
        """Close the files."""
        self._json_lines.close()
        self._table.close()


class TrackerLog(Callback):
    """Sends rows to the trackers of an accelerator, first those of an earlier part of the run.

    A resumed run is a new run to each tracker, with all rows up to the checkpoint: a killed run may have sent later ones. The
    caller finishes the trackers. If a tracker does not start, for example because its server is not reached, the others are
    finished here, and SettingError is raised.
    """

    def __init__(self, accelerator: Accelerator, folder: Path, config: dict[str, Any], rows: Iterable[Row] = ()) -> None:
        self._accelerator = accelerator
        shutil.rmtree(folder / "tensorboard", ignore_errors=True)
        names = {"wandb": {"name": folder.name}, "mlflow": {"run_name": folder.name}}
        try:
            accelerator.init_trackers(PROJECT, init_kwargs=names)
            for tracker in accelerator.trackers:
                if tracker.name != "tensorboard":  # it would add a separate run for the settings
                    tracker.store_init_configuration(dict(flatten(config)))
            for row in rows:
                self.on_log(None, row)
        except Exception as error:  # each tracker has other kinds of exceptions
            for tracker in accelerator.trackers:
                with suppress(Exception):  # the tracker that did not start may have nothing to finish
                    tracker.finish()
            message = f"`training.trackers` must be trackers that start, got one that does not ({one_line(error)})"
            raise SettingError(message) from error

    def on_log(self, engine: Engine | None, row: Row) -> None:
        """Send the numbers of the row, named SPLIT/METRIC, or METRIC in a row without a split; scores by length are named
        SPLIT/METRIC_LENGTHS.

        MLflow stores a metric as a file, so that no metric may have a name that begins with another metric's name and a slash.
        """
        numbers = {name: value for name, value in row.items() if name not in ("step", "split") and isinstance(value, int | float)}
        prefix = f"{row['split']}/" if "split" in row else ""
        values = {f"{prefix}{name.replace('/', '_')}": value for name, value in numbers.items()}
        options = {"tensorboard": {"walltime": row["seconds"]}} if "seconds" in row else {}
        self._accelerator.log(values, step=row["step"], log_kwargs=options)


def build_trackers(names: Sequence[str], folder: Path) -> list[str | GeneralTracker]:
    """Return what `Accelerator` takes as `log_with`: names that accelerate knows, and an instance for each class of the user.

    A class is named by its import path, "package.module.Class". It gets the name of the project and, if it declares
    `requires_logging_directory`, the run's folder. Raises SettingError for anything else, or if a package is missing.
    """
    trackers: list[str | GeneralTracker] = []
    for name in names:
        if name in LOGGER_TYPE_TO_CLASS:
            if name not in map(str, get_available_trackers()):
                raise setting_error("training.trackers", name, "a tracker whose package is installed")
            trackers.append(name)
            continue
        module, _, kind = name.rpartition(".")
        try:
            tracker = getattr(import_module(module), kind)
        except (ImportError, AttributeError, ValueError) as error:
            known = ", ".join(sorted(map(str, LOGGER_TYPE_TO_CLASS)))
            needed = f"names among {known}, or import paths of subclasses of accelerate's GeneralTracker ({one_line(error)})"
            raise setting_error("training.trackers", name, needed) from None
        trackers.append(tracker(PROJECT, folder) if tracker.requires_logging_directory else tracker(PROJECT))
    return trackers
