"""The commands that train: `longscan train` and `longscan sweep`."""

import json
import os
import re
import shlex
from collections.abc import Collection, Iterator, Set
from contextlib import contextmanager
from math import isclose
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from longscan._errors import SettingError, count_text, with_options
from longscan._types import Doc, NonNegativeInt
from longscan.cli import own_data
from longscan.cli._console import echo, echo_error, print_table
from longscan.cli.runs import append_record

if TYPE_CHECKING:
    from longscan.tasks import Task
    from longscan.training.run import Run


@contextmanager
def advise_to_resume(command: str, out: str | Path, marker: str) -> Iterator[None]:
    """Add to a KeyboardInterrupt the command that continues what was begun in `out`, if there is the file `marker` in it."""
    try:
        yield
    except KeyboardInterrupt:
        if not (Path(out) / marker).exists():
            raise
        words = shlex.join(["longscan", command, "--out", str(out), "--resume"])
        raise KeyboardInterrupt(f"`{words}` continues from the last checkpoint") from None


def train(
    file: Annotated[str | None, Doc("your own file or folder of series, instead of --task; must come first")] = None,
    *settings: str,
    command_line: str,
    label: own_data.Label = None,
    label_kind: own_data.LabelKind = None,
    target: own_data.Target = None,
    horizon: own_data.Horizon = None,
    known: own_data.Known = None,
    id: own_data.Id = None,  # noqa: A002
    time: own_data.Time = None,
    channels: own_data.Channels = None,
    group: own_data.Group = None,
    out: Annotated[str | None, Doc("folder of the run (default with FILE: runs/NAME, or runs/NAME-2, ... if it exists)")] = None,
    resume: Annotated[bool, Doc("continue from the last checkpoint in --out")] = False,
    overwrite: Annotated[bool, Doc("delete an earlier run in --out, or with FILE in runs/NAME, first")] = False,
    record: Annotated[str | None, Doc("file of records (JSON Lines) to which the result is appended")] = None,
) -> int:
    """Train a model on your own file or on a task, test it and write a report.

    Examples:
        longscan train pumps.csv --label worn --id pump --time second
        longscan train prices.csv --target price --horizon 24 --time date
        longscan train --config recipes/aussm/parity.yaml --quick --out runs/parity
        longscan train --task parity --model.spec "s4d*2" --out runs/s4d
    """
    from longscan.training.parsing import merge, parse_settings, read_yaml
    from longscan.training.records import check_target
    from longscan.training.run import SETTINGS, Run
    from longscan.training.trainer import train as train_model

    prints = not int(os.environ.get("RANK", "0"))  # under torchrun the first process prints for all
    if resume and overwrite:
        raise SettingError("`--overwrite` must be left out with --resume, got both")
    options = own_data.given_options(
        label=label, target=target, horizon=horizon, known=known, id=id, time=time, channels=channels, group=group
    )
    if file is None:
        own_data.check_unused(options | ({} if label_kind is None else {"label_kind": label_kind}))
    if file is None and not settings and not resume:
        raise SettingError("`longscan train` must be given a file of your own, `--task` or `--config`, got none of them")
    if out is None and (file is None or resume):
        raise SettingError("`--out` must be the folder of the run, got nothing")
    if resume:
        stored = read_yaml(Run(str(out)).folder / SETTINGS)
        given = {} if file is None else {"path": str(Path(file).resolve()), **options}
        given |= {} if label_kind is None else {"name": own_data.KINDS[label_kind]}
        parsed = parse_settings(settings, merge(stored, {"task": given}))
    elif file is not None:
        parsed = own_data.own_settings(file, options, label_kind, settings)
        out = out or (str(own_data.run_folder(file)) if overwrite else own_data.free_folder(file))
        if prints:
            own_data.print_summary(parsed, out)
    else:
        parsed = parse_settings(settings)
    assert out is not None
    if record is not None:
        check_target(record)
    with advise_to_resume("train", out, SETTINGS):
        run = train_model(parsed, out, resume=resume, overwrite=overwrite, progress=True, command=command_line)
    if not prints:
        return 0
    if record is not None:
        append_record(run, record)
    return _print_result(run, parsed.task, with_baselines=file is not None)


def _print_result(run: "Run", task: "Task", *, with_baselines: bool) -> int:
    """Print the test result of a run, next to those of simple predictors, and where its report is; return the exit status."""
    from longscan.tasks.series import SeriesFile

    result = run.result or {}
    if result["status"] == "failed":
        echo_error(f"failed: {result['failure']}; the report is {run.folder / 'report.html'}", style="red")
        return 1
    if result["value"] is None:
        reason = "as answers are not finite"
        echo_error(f"no test {result['metric']}, {reason}; the report is {run.folder / 'report.html'}", style="red")
        return 1
    echo(f"test {result['metric']}: {result['value']:.4f} (scaled {result['scaled']:z.4f}, weights: {result['selected']})")
    if isinstance(task, SeriesFile) and (error := task.error_in_units(result["value"])) is not None:
        echo(f"test {error[0]}, in its units: {error[1]:.4g}")
    echo(f"best constant predictor: {result['constant']:.4f} (scaled {result['constant_scaled']:z.4f})")
    if with_baselines:
        _print_baselines(task, result["value"])
    if _adds_nothing(run.folder):
        echo("the forecast is that of ridge: no update of the network lowered the validation loss, so that it adds nothing")
    echo(f"report: {run.folder / 'report.html'}")
    return 0


def _adds_nothing(folder: Path) -> bool:
    """Return whether the network of a run changes none of the ridge regression's forecasts, by the examples of its report."""
    path = folder / "examples.json"
    return path.exists() and json.loads(path.read_text("utf-8")).get("has_corrections") is False


def _print_baselines(task: "Task", value: float) -> None:
    """Print the scores of the simple predictors but the constant on the test data, and which of them are better than a model."""
    scores = dict(list(task.baselines("test").items())[1:])
    for name, score in scores.items():
        echo(f"{name}: {score:.4f}")
    sign = 1 if task.higher_is_better else -1
    different = {name: score for name, score in scores.items() if not isclose(score, value, rel_tol=1e-5)}  # value is of float32
    better = [name for name, score in different.items() if sign * score > sign * value]
    if better:
        echo(f"on these test data {' and '.join(better)} {'is' if len(better) == 1 else 'are'} better than the model")


def sweep(
    file: Annotated[str | None, Doc("YAML file with the search: config, space, sampler, trials, seeds; must come first")] = None,
    *settings: str,
    command_line: str,
    program: str | None,
    out: Annotated[str, Doc("folder of the sweep; each trial and each seed gets the folder of a run in it")],
    workers: Annotated[NonNegativeInt, Doc("number of processes, each with one run at a time; 0 only writes the folder")] = 1,
    sampler: Annotated[str | None, Doc("how settings are searched: grid, random or tpe")] = None,
    trials: Annotated[int | None, Doc("number of settings that random and tpe try")] = None,
    search_seeds: Annotated[int | None, Doc("number of runs of each setting in the search")] = None,
    seeds: Annotated[int | None, Doc("number of runs of the best setting that are trained and tested at the end")] = None,
    storage: Annotated[str | None, Doc("URL of the database for Optuna (default: a file in --out)")] = None,
    resume: Annotated[bool, Doc("continue the sweep in --out, also next to other processes that work on it")] = False,
    record: Annotated[str | None, Doc("file of records (JSON Lines) to which the tested runs are appended")] = None,
) -> int:
    """Search settings by their validation scores and test the best over several seeds, or only repeat a recipe over seeds.

    Examples:
        longscan sweep recipes/s7/sweeps/dense_rate.yaml --out runs/rates
        longscan sweep --config runs/pumps/settings.yaml --seeds 5 --out runs/seeds
    """
    from longscan.training import run_sweep
    from longscan.training.parsing import asks_for_quick, parse_settings
    from longscan.training.records import check_target
    from longscan.training.space import CONFIG_FILE, SweepConfig, read_config, read_sweep_file

    fields: dict[str, Any] = read_config(Path(out))[1].as_dict() if resume else {"command": command_line}
    if file is not None and Path(file).suffix.lower() not in (".yaml", ".yml"):
        advice = "for series of your own, train one run and give its settings: `longscan sweep --config runs/NAME/settings.yaml`"
        raise SettingError(f"`FILE` must be a sweep file, which ends in .yaml, got {file}; {advice}")
    in_file = {} if file is None else read_sweep_file(file, quick=asks_for_quick(settings))
    fields |= in_file
    base = parse_settings(settings, fields.pop("settings", None))
    options = {"sampler": sampler, "trials": trials, "search_seeds": search_seeds, "seeds": seeds, "storage": storage}
    given = {name: value for name, value in options.items() if value is not None}
    with _sweep_fields_as_given(file, in_file.keys() - given.keys(), options):
        config = SweepConfig(settings=base, **{**fields, **given})
        if record is not None:
            check_target(record)
        with advise_to_resume("sweep", out, CONFIG_FILE):
            done = run_sweep(config, out, resume=resume, workers=workers, echo=echo_error, program=program)
    result = done.result()
    _print_sweep(result)
    if record is not None:
        for run in done.unrecorded(record):
            append_record(run, record)
    echo(f"report: {done.folder / 'report.html'}")
    if result["status"] != "finished":
        command = shlex.join(["longscan", "sweep", "--out", out, "--resume"])
        echo_error(f"longscan: not finished; `{command}` continues", style="red")
        return 1 if workers else 0
    return 0 if result["test"] or (result["best"] and not result["seeds"]) else 1


@contextmanager
def _sweep_fields_as_given(file: str | None, in_file: Set[str], options: Collection[str]) -> Iterator[None]:
    """Raise errors about fields of a `SweepConfig` with the names under which the user gave them.

    "`trials`" becomes "`--trials`", for all of `options` that are not read from the sweep file. The message about a field that
    the file gives begins with the path of the file.

    in_file: fields whose values are those of the sweep file.
    """
    try:
        yield
    except SettingError as error:
        message = with_options(str(error), set(options) - in_file)
        field = re.match(r"(?:each name in )?`(\w+)", message)
        path = f"{file}: " if field is not None and field[1] in in_file else ""
        raise SettingError(f"{path}{message}") from error


def _print_sweep(result: dict[str, Any]) -> None:
    """Print the trials of a sweep, best first, and the test over seeds."""
    from longscan.report.page import mean_text
    from longscan.report.sweep import failures, settings_text

    metric, best, test = result["metric"], result["best"], result["test"]
    if result["trials"]:
        _print_trials(result)
    for line in (*failures(result["trials"], "trial"), *failures(result["seeds"], "seed")):
        echo(line)
    if best is not None:
        point = settings_text(best["settings"])
        echo(f"best on validation: trial {best['trial']}, {metric} {best['score']:.4f} ({point})")
    if test is not None:
        mean = mean_text((test["mean"], test["half_width"]), 4)
        over = count_text(test["count"], "seed")
        echo(f"test {metric}: {mean} over {over} (scaled {test['scaled']:z.4f}), {test['failed']} failed")
        echo(f"best constant predictor: {test['constant']:.4f}")


def _print_trials(result: dict[str, Any]) -> None:
    from rich.table import Table

    from longscan.report.page import number_text
    from longscan.report.sweep import best_first, setting_text

    names = [", ".join(name.rpartition(".")[2] for name in key.split(",")) for key in result["space"]]
    score = f"validation {result['metric']}"
    table = Table("trial", *names, score, "constant", "status", title=f"sweep, {result['task']}")
    for row in best_first(result):
        values = [setting_text(row["settings"][key]) if key in row["settings"] else "" for key in result["space"]]
        table.add_row(str(row["trial"]), *values, number_text(row["score"]), number_text(row["constant"]), row["status"])
    print_table(table)
