"""The short form of commands for a user's own file: `longscan train mine.csv --label worn`, `longscan show mine.csv ...`."""

import csv
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from longscan._argparse import UnknownArgumentError
from longscan._errors import SettingError, count_text, setting_error
from longscan._types import Doc, PositiveInt
from longscan.cli._console import echo

if TYPE_CHECKING:
    from longscan.tasks.series import SeriesFile
    from longscan.training import Settings

Label = Annotated[str | None, Doc("with FILE: column with the class or the number to predict")]
LabelKind = Annotated[
    Literal["class", "number"] | None, Doc("with FILE: what labels are; by default text is a class and 12.5 a number")
]
Target = Annotated[
    str | None, Doc("with FILE: columns to forecast, separated by commas; a name with a comma is in double quotes")
]
Horizon = Annotated[PositiveInt | None, Doc("with FILE: number of steps to forecast")]
Known = Annotated[str | None, Doc("with FILE: columns whose future values are known, as in --target")]
Id = Annotated[str | None, Doc("with FILE: column that says to which series a row belongs")]
Time = Annotated[str | None, Doc("with FILE: column with the time of each row")]
Channels = Annotated[str | None, Doc("with FILE: columns that the model reads, as in --target (default: all others)")]
Group = Annotated[str | None, Doc("with FILE: column of groups; all series of a group are in the same part of the split")]
OPTIONS = ("label", "target", "horizon", "known", "id", "time", "channels", "group")  # settings of the tasks of a file
KINDS = {"class": "series_classes", "number": "series_values"}


def given_options(**options: Any) -> dict[str, Any]:
    """Return the settings of a task that the options of a command give, without those that are not given."""
    found = {name: value for name, value in options.items() if value is not None}
    for name in ("channels", "target", "known"):
        if name in found:
            found[name] = _split_names(name, found[name])
    return found


def _split_names(option: str, text: str) -> tuple[str, ...]:
    """Return the names in the text of an option, in the form of a line of a CSV file."""
    try:
        (names,) = csv.reader([text], skipinitialspace=True, strict=True)
    except (csv.Error, ValueError):
        needed = "names of columns, separated by commas, of which those with a comma are in double quotes"
        raise setting_error(f"--{option}", text, needed) from None
    return tuple(name.strip() for name in names) or ("",)


def check_unused(options: Mapping[str, Any]) -> None:
    """Raise SettingError for an option about a file if there is no file."""
    for name, value in options.items():
        shown = ",".join(value) if isinstance(value, tuple) else value
        needed = "left out, unless a FILE comes first, as in `longscan train FILE`"
        raise setting_error(f"--{name.replace('_', '-')}", shown, needed)


def own_settings(file: str, options: Mapping[str, Any], label_kind: str | None, argv: Sequence[str]) -> "Settings":
    """Return the settings for a user's file: the task that fits the options and the labels, and model and training by its size.

    options: settings of the task. argv: further settings, which take precedence. Raises SettingError, whose message has the names
    of the command's options.
    """
    try:
        return _read_settings(file, options, label_kind, argv)
    except UnknownArgumentError:
        raise
    except SettingError as error:
        raise SettingError(re.sub(rf"`(?:--)?task\.({'|'.join(OPTIONS)})`", r"`--\1`", str(error))) from error


def _read_settings(file: str, options: Mapping[str, Any], label_kind: str | None, argv: Sequence[str]) -> "Settings":
    from longscan.cli.runs import errors_as_lines
    from longscan.tasks.series import SeriesFile
    from longscan.tasks.series.base import checksum_of
    from longscan.training.choice import choose_settings
    from longscan.training.parsing import make_settings, merge, read_arguments
    from longscan.training.run import is_run_folder

    if not file or not Path(file).exists():  # Path("") would be the working directory
        raise setting_error("FILE", file, "a file or folder that exists")
    if is_run_folder(Path(file)):
        needed = "your own file or folder of series, not the folder of a run, which `longscan train --resume --out RUN` continues"
        raise setting_error("FILE", file, needed)
    for one, other in (("label", "target"), ("label", "horizon"), ("label_kind", "target")):
        if one in {**options, **({"label_kind": 1} if label_kind else {})} and other in options:
            given = one.replace("_", "-")
            raise SettingError(f"`--{other}` must be left out with --{given}: a forecast, or an answer for each series, got both")
    is_forecast = "target" in options or "horizon" in options
    name = "series_forecast" if is_forecast else KINDS[label_kind or "class"]
    plain = read_arguments(argv, {"task": {"name": name, "path": str(Path(file).resolve()), **options}})
    if plain["task"]["name"] not in (*KINDS.values(), "series_forecast"):
        needed = f"left out with a FILE, or one of {', '.join(KINDS.values())} and series_forecast"
        raise setting_error("--task", plain["task"]["name"], needed)
    if not is_forecast and label_kind is None and plain["task"]["name"] == name:
        with errors_as_lines():
            plain["task"]["name"] = KINDS[_find_kind(plain["task"])]
    task = make_settings({"task": plain["task"]}).task
    assert isinstance(task, SeriesFile)
    plain["task"]["checksum"] = checksum_of(task.read_store())
    steps = plain.get("training", {}).get("steps")
    return make_settings(merge(choose_settings(task, steps if isinstance(steps, int) and steps > 0 else None), plain))


def task_arguments(word: str, given: Mapping[str, Any]) -> list[str]:
    """Return `--task NAME` for the help of a command with a FILE or the name of a task as its first argument.

    given: options of the command line, None where absent. The labels of a file are read, if `label_kind` does not say what they
    are. Raises SettingError.
    """
    from longscan.cli.runs import errors_as_lines
    from longscan.tasks import TASKS

    if word in TASKS:
        return ["--task", word]
    if not Path(word).exists():
        raise setting_error("FILE", word, "a file or folder that exists")
    if given.get("target") is not None or given.get("horizon") is not None:
        return ["--task", "series_forecast"]
    kind = given.get("label_kind")
    if kind is None:
        names = ("label", "id", "time", "channels", "group")
        options = given_options(**{name: given.get(name) for name in names})
        with errors_as_lines():
            kind = _find_kind({"path": str(Path(word).resolve()), **options})
    if kind not in KINDS:
        raise setting_error("--label-kind", kind, "class or number")
    return ["--task", KINDS[kind]]


def _find_kind(values: Mapping[str, Any]) -> str:
    """Return "class" or "number" for the labels of a file. Raises SettingError if they may be either."""
    from longscan.tasks.series.labelled import SeriesClasses, label_kind
    from longscan.training.parsing import with_section

    try:
        task = SeriesClasses(**{name: value for name, value in values.items() if name != "name"})
        found = label_kind(str(task.path), task.read_options())
    except (ValueError, OSError, TypeError) as error:
        raise SettingError(with_section("task", error, SeriesClasses)) from error
    if found == "unclear":
        raise setting_error("--label-kind", None, f"class or number, as the labels in {task.label} are whole numbers")
    return {"classes": "class", "values": "number"}[found]


def is_path(word: str) -> bool:
    """Return whether a word of the command line is a path: it exists, or contains a dot or a separator, unlike names of tasks."""
    return Path(word).exists() or any(mark in word for mark in "./\\")


def print_summary(settings: "Settings", out: str | None = None) -> None:
    """Print what was understood of a user's file, the chosen model and training, and the folder of the run if there is one."""
    from longscan._specs import format_names
    from longscan.models.spec import block_label, parse_spec

    task: SeriesFile = settings.task  # type: ignore[assignment]
    model, training = settings.model, settings.training
    spec = model.spec if isinstance(model.spec, str) else format_names([block_label(entry) for entry in parse_spec(model.spec)])
    updates = count_text(training.steps, "update")
    rows = [
        *task.summary(),
        ("model", f"{spec}, width {model.d_model} (`--model.spec`, `--model.d_model`)"),
        ("training", f"{updates} of {count_text(training.batch_size, 'example')}, learning rate {training.lr:g} (`--steps`)"),
        *([] if out is None else [("run", f"{out} (`--out`)")]),
    ]
    for name, text in rows:
        echo(f"{name:9} {text}")
    sys.stdout.flush()  # before the progress on stderr, also where both go into one file


def run_folder(file: str) -> Path:
    """Return runs/NAME for a file NAME.csv."""
    return Path("runs") / Path(file).resolve().name.partition(".")[0]


def free_folder(file: str) -> str:
    """Return runs/NAME for a file NAME.csv, or the first of runs/NAME-2, runs/NAME-3, ... that does not exist."""
    number, first = 1, run_folder(file)
    folder = first
    while folder.exists():
        number += 1
        folder = first.with_name(f"{first.name}-{number}")
    return str(folder)
