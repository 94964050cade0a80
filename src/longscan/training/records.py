"""The row of a run among the recorded results, and the scores of simple predictors that it is compared with."""

import json
import logging
from pathlib import Path
from typing import Any

import longscan.report
from longscan._errors import SettingError, one_line, setting_error
from longscan._files import try_writing, write_text
from longscan.tasks.fitted import FitProgress, ignore_progress
from longscan.training.run import Run

log = logging.getLogger("longscan")


def result_row(run: Run) -> dict[str, Any]:
    """Return the run as a row of results/runs/*.jsonl. Raises SettingError if the run has not ended.

    The row of a quick run has no ids of published rows.
    """
    result = run.result
    if result is None:
        raise SettingError(f"{run.folder}: the run has not ended, so there is no result to record")
    about = run.settings.about
    same = ("task", "suite", "spec", "spec_version", "seed", "metric", "value", "scaled", "constant", "constant_scaled")
    rest = ("steps", "seconds", "device", "params", "commit", "date", "status", "command", "by_length", "selected", "valid")
    return {
        "paper": about.paper,
        "model": about.model or result["spec"],
        **{name: result[name] for name in same},
        "baselines": read_baselines(run),
        "published": None if about.quick else about.published or None,
        "recipe": about.recipe,
        "quick": about.quick,
        "chosen_on": about.chosen_on,
        **{name: result[name] for name in (*rest, "versions")},
        **{name: result[name] for name in ("stacked", "replayed_updates_per_second") if name in result},
    }


def read_baselines(run: Run) -> dict[str, float]:
    """Return the scores in the run's baselines.json; empty if `longscan baselines` has not been run."""
    path = run.folder / "baselines.json"
    try:
        scores: dict[str, float] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    except ValueError as error:
        raise SettingError(f"{path} is damaged ({error}); `longscan baselines` writes it") from None
    return scores


def write_baselines(run: Run, *, fitted: bool = True, on_progress: FitProgress = ignore_progress) -> dict[str, float]:
    """Score the task's simple predictors on test, with those fitted on train, and write baselines.json for the run's record.

    on_progress: see `Task.fitted_baselines`. A file that cannot be written is logged.
    """
    task = run.settings.task
    scores = dict(task.baselines("test"))
    if fitted:
        scores |= task.fitted_baselines("test", run.settings.training.seed, on_progress)
    path = run.folder / "baselines.json"
    try:
        write_text(path, json.dumps(scores, indent=1))
    except OSError as error:
        log.warning("%s cannot be written (%s), so report and record of the run have no such scores", path, error.strerror)
    return scores


def check_target(target: str | Path) -> None:
    """Raise SettingError if `record_run` could not append to this file, to be called before a run."""
    path = Path(target)
    if path.resolve().parent.name != "runs" or path.is_dir():
        raise setting_error("--record", str(target), "a JSON Lines file in a folder called runs")
    try:
        try_writing(path)
        if path.exists():
            longscan.report.read_records(path)
    except OSError as error:
        raise SettingError(f"`--record` must be a file that can be written, got {target} ({error.strerror or error})") from None
    except ValueError as error:
        raise SettingError(f"`--record` must be a file with valid records, got {target} ({error})") from error


def record_run(run: Run, target: str | Path) -> None:
    """Append the run's row to a JSON Lines file in a folder called `runs`. Raises SettingError if row or file are not valid."""
    row = result_row(run)
    try:
        longscan.report.append_record(target, row)
    except (ValueError, OSError) as error:
        raise SettingError(f"the run cannot be recorded ({one_line(error)})") from error
