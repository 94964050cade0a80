"""The description of a run in result.json, and its row among the recorded results."""

import json
import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import nn

import longscan
import longscan.report
from longscan._errors import SettingError, setting_error
from longscan._files import try_writing, write_text
from longscan._specs import SPEC_VERSION, format_names
from longscan.models.spec import block_label, parse_spec
from longscan.training.run import Run
from longscan.training.settings import Settings


def spec_text(spec: str | list[dict[str, Any]]) -> str:
    """Return the spec of a model as text; of a list of blocks their names, without their options."""
    return spec if isinstance(spec, str) else format_names([block_label(entry) for entry in parse_spec(spec)])


def describe_run(settings: Settings, model: nn.Module, device: torch.device, command: str) -> dict[str, Any]:
    """Return the part of result.json that is known before training."""
    task = settings.task
    return {
        "task": task_title(settings),
        "suite": getattr(task, "suite", None) or getattr(task, "protocol", None),
        "spec": spec_text(settings.model.spec),
        "spec_version": SPEC_VERSION,
        "seed": settings.training.seed,
        "metric": task.metric,
        "device": device_name(device),
        "params": sum(parameter.numel() for parameter in model.parameters()),
        "commit": commit(),
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "versions": {
            "longscan": longscan.__version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": numpy.__version__,
        },
        "command": command,
        "classes": None if task.classes is None else list(task.classes),
    }


def task_title(settings: Settings) -> str:
    """Return the task's name, with that of the data set for a task that reads several."""
    dataset = getattr(settings.task, "dataset", None)
    return f"{settings.task.name}/{dataset}" if dataset else settings.task.name


def device_name(device: torch.device) -> str:
    """Return the name of a device: the model of a GPU, or the processor and the number of threads of a CPU."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type != "cpu":
        return device.type
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        models = (line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if line.startswith("model name"))
        name = next(models, name)
    return f"cpu, {name}, {torch.get_num_threads()} threads"


def commit() -> str:
    """Return the commit of the checkout that this package runs from, marked if files have changed since, or "unknown".

    The environment variable LONGSCAN_COMMIT names it for files that were copied without their history. A package that is
    installed inside another project's checkout is not of that checkout: git must know this package's files.
    """
    if os.environ.get("LONGSCAN_COMMIT"):
        return os.environ["LONGSCAN_COMMIT"]
    folder = Path(longscan.__file__).parent
    try:
        _git(folder, "ls-files", "--error-unmatch", "__init__.py")
        revision = _git(folder, "rev-parse", "--short=12", "HEAD")
        return revision + (
            "+changes"
            if _git(folder, "status", "--porcelain", "--untracked-files=no", "--", ":/", ":(top,exclude)results")
            else ""
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def _git(folder: Path, *words: str) -> str:
    return subprocess.run(
        ["git", "-C", str(folder), *words], check=True, capture_output=True, text=True, timeout=10
    ).stdout.strip()


def result_row(run: Run) -> dict[str, Any]:
    """Return the run as a row of results/runs/*.jsonl. Raises SettingError if it is not over.

    A quick run names no published rows.
    """
    result = run.result
    if result is None:
        raise SettingError(f"{run.folder}: its run is not over, so there is no result to record")
    about = run.settings.about
    same = ("task", "suite", "spec", "spec_version", "seed", "metric", "value", "scaled", "constant", "constant_scaled")
    rest = (
        "steps",
        "seconds",
        "device",
        "params",
        "commit",
        "date",
        "status",
        "command",
        "by_length",
        "selected",
        "valid",
        "versions",
    )
    return {
        "paper": about.paper,
        "model": about.model or result["spec"],
        **{name: result[name] for name in same},
        "baselines": read_baselines(run),
        "published": None if about.quick else about.published or None,
        "recipe": about.recipe,
        "quick": about.quick,
        "chosen_on": about.chosen_on,
        **{name: result[name] for name in rest},
    }


def read_baselines(run: Run) -> dict[str, float]:
    """Return the scores in the run's baselines.json; empty if `longscan baselines` has not been run."""
    path = run.folder / "baselines.json"
    try:
        scores: dict[str, float] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    except ValueError as error:
        raise SettingError(f"{path}: damaged ({error}), needed the JSON that `longscan baselines` wrote") from None
    return scores


def write_baselines(run: Run, *, fitted: bool = True) -> dict[str, float]:
    """Score the task's simple predictors on test, with those fitted on train, and write baselines.json for the run's record."""
    task = run.settings.task
    scores = task.baselines("test") | (task.fitted_baselines("test", run.settings.training.seed) if fitted else {})
    write_text(run.folder / "baselines.json", json.dumps(scores, indent=1))
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
        raise SettingError(f"--record: {target} can not be written ({error.strerror or error})") from None
    except ValueError as error:
        raise SettingError(f"--record: {error}") from error


def record_run(run: Run, target: str | Path) -> None:
    """Append the run's row to a JSON Lines file in a folder called `runs`. Raises SettingError if row or file are not valid."""
    row = result_row(run)
    try:
        longscan.report.append_record(target, row)
    except (ValueError, OSError) as error:
        raise SettingError(f"record: {error}") from error
