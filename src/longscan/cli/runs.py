"""The commands that read runs: eval, predict, inspect, record, baselines and report."""

import csv
import io
import sys
from array import array
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from longscan._errors import SettingError, one_line, setting_error
from longscan._files import try_writing, write_user_file
from longscan._types import Doc
from longscan.cli._console import echo, print_table

if TYPE_CHECKING:
    from longscan.training import Run

PARQUET = (".parquet", ".pq")
RunFolder = Annotated[str, Doc("folder of the run")]
Checkpoint = Annotated[str, Doc("which weights of the run: last, best or average, or selected, those that its end chose")]


@contextmanager
def errors_as_lines() -> Iterator[None]:
    """Raise SettingError, whose message is one line, in place of ValueError and OSError."""
    try:
        yield
    except BrokenPipeError:  # of a reader of stdout that has ended, such as head; `main` ends without a message
        raise
    except (ValueError, OSError) as error:
        raise SettingError(one_line(error)) from error


def evaluate(
    run: RunFolder,
    *,
    split: Annotated[Literal["train", "valid", "test"], Doc("part of the task's data")] = "test",
    checkpoint: Checkpoint = "selected",
    by_length: Annotated[bool, Doc("also show the scores for each range of input lengths")] = False,
) -> int:
    """Score the model of a run on its training, validation or test data."""
    from rich.table import Table

    from longscan.cli.automata import evaluate_automaton
    from longscan.training.run import Run

    if (Path(run) / "automaton.json").is_file():
        return evaluate_automaton(run, split, checkpoint)
    opened = Run(run)
    scores = opened.evaluate(split, checkpoint)
    task = opened.settings.task
    buckets = {name: value for name, value in scores.values.items() if "/" in name}
    if by_length and not buckets:
        raise SettingError(f"`--by-length` must be left out, as task {task.name} has no scores by length")
    weights = opened.checkpoint(checkpoint).name.removesuffix(".previous")
    table = Table("metric", "value", title=f"{run}, {split} split, weights: {weights}")
    table.add_row("loss", f"{scores.loss:.4f}")
    for name, value in scores.values.items():
        if name not in buckets or by_length:
            table.add_row(name, "none" if value is None else f"{value:.4f}")
    main_value = scores.values[task.metric]
    if main_value is not None:
        table.add_row(f"{task.metric}, scaled", f"{task.scaled(main_value):z.4f}")
    table.add_row(f"{task.metric} of the best constant predictor", f"{task.constant_score(split):.4f}")
    print_table(table)
    return 0


def predict(
    run: RunFolder,
    file: Annotated[str, Doc("new examples in the form of the file that the model was trained on")],
    *,
    out: Annotated[str | None, Doc("table to write, .csv or .parquet (default: CSV on standard output)")] = None,
    checkpoint: Checkpoint = "selected",
    missing: Annotated[str | None, Doc("what to do with missing values: refuse or fill (default: as in training)")] = None,
    every_window: Annotated[bool, Doc("forecast each window of the file, and not only the steps after its end")] = False,
    quantiles: Annotated[str | None, Doc("quantiles of forecasts, such as 0.1,0.9, from the errors on validation data")] = None,
) -> int:
    """Apply the model of a run to a file of new examples, and write its answers as a table.

    Labels in the file are ignored: join their table and the answers to score them. `longscan eval` scores a part of the data that
    the run was made with.

    Examples:
        longscan predict runs/pumps new.csv --out answers.csv
    """
    from longscan.training.run import Run

    if out is not None:
        _check_out_file(out)
    levels = () if quantiles is None else read_levels(quantiles)
    _write_table(Run(run).predict(file, checkpoint, missing, every_window=every_window, quantiles=levels), out)
    if out is not None:
        echo(f"answers: {out}")
    return 0


def read_levels(text: str) -> tuple[float, ...]:
    """Return the levels of quantiles in a text such as "0.1,0.9". Raises SettingError for a word that is not a number."""
    try:
        return tuple(float(word) for word in text.split(","))
    except ValueError:
        raise SettingError(f"`--quantiles` must be numbers above 0 and below 1, separated by commas, got {text!r}") from None


def _check_out_file(path: str) -> None:
    """Raise SettingError if the table of `--out` could not be written, before anything is computed for it."""
    if Path(path).is_dir():
        raise setting_error("--out", path, "a file, not a folder")
    suffix = Path(path).suffix.lower()
    if suffix not in ("", ".csv", ".txt", *PARQUET):
        raise setting_error("--out", path, "a file whose name ends in .csv or .parquet")
    if suffix in PARQUET:
        find_pyarrow()
    try:
        try_writing(path if Path(path).exists() else Path(path).resolve())  # /dev/stdout resolves to no file
    except OSError as error:
        raise _unwritable(path, error) from None


def _unwritable(path: str, error: OSError) -> SettingError:
    return SettingError(f"`--out` must be a file that can be written, got {path} ({error.strerror})")


def find_pyarrow() -> None:
    """Raise SettingError if pyarrow, which writes Parquet, is not installed."""
    if find_spec("pyarrow") is None:
        needed = "pip install pyarrow, or longscan[parquet]"
        raise SettingError(f"`--out` must end in .csv, as .parquet needs the package pyarrow: {needed}")


def _write_table(rows: list[dict[str, str | float]], out: str | None) -> None:
    """Write rows as CSV to stdout or a file, or as Parquet to a file of this suffix. CSV numbers are as `_format_number` says."""
    if out is not None and Path(out).suffix.lower() in PARQUET:
        import pandas as pd

        content = io.BytesIO()
        pd.DataFrame(rows).to_parquet(content, index=False)
        _write_out(out, content.getvalue())
        return
    table = io.StringIO()
    writer = csv.DictWriter(sys.stdout if out is None else table, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(
        {name: _format_number(value) if isinstance(value, float) else value for name, value in row.items()} for row in rows
    )
    if out is not None:
        _write_out(out, table.getvalue().encode())


def _format_number(value: float) -> str:
    """Return a number that float32 can represent with 9 digits, which determine it, and any other with 15."""
    return f"{value:.9g}" if array("f", [value])[0] == value else f"{value:.15g}"


def _write_out(path: str, content: bytes) -> None:
    """Write the file of `--out`, which keeps its former content until the new one is complete."""
    try:
        write_user_file(Path(path), content)
    except OSError as error:
        raise _unwritable(path, error) from None


def inspect(
    run: RunFolder,
    *,
    row: Annotated[int, Doc("number of the example in the split, from 0")] = 0,
    split: Annotated[Literal["train", "valid", "test"], Doc("part of the task's data")] = "test",
    checkpoint: Checkpoint = "selected",
    out: Annotated[str | None, Doc("folder of the pictures (default: inspection in the folder of the run)")] = None,
) -> int:
    """Draw what the model of a run does with one example: states, attention, eigenvalues, what its answer depends on.

    Pictures in the folder of the run also become a section of its report.
    """
    from longscan.report import run_report
    from longscan.training.pictures import draw_inspection
    from longscan.training.run import Run, check_out

    folder = Path(out) if out is not None else Path(run) / "inspection"
    opened = Run(run)
    check_out(folder)
    with errors_as_lines():
        pictures = draw_inspection(opened, folder, row, split=split, which=checkpoint)
    for picture in pictures:
        echo(f"picture: {picture}")
    if out is None:
        with errors_as_lines():
            echo(f"report: {run_report(run)}")
    return 0


def record(
    run: RunFolder,
    *,
    results: Annotated[str, Doc("file of records (JSON Lines) in a folder called runs")],
) -> int:
    """Append the result of a run to a file of records, such as results/runs/parity.jsonl."""
    from longscan.training.run import Run

    append_record(Run(run), results)
    return 0


def append_record(run: "Run", target: str) -> None:
    """Append the result of a run to a file of records and print where."""
    from longscan.training.records import record_run

    record_run(run, target)
    echo(f"recorded in {target}")


def baselines(
    run: RunFolder,
    *,
    quick: Annotated[bool, Doc("leave out predictors that must be fitted")] = False,
) -> int:
    """Score simple predictors on the test data of a run, to compare with its model."""
    from rich.table import Table

    from longscan.training.progress import FitBar
    from longscan.training.records import write_baselines
    from longscan.training.run import Run

    opened = Run(run)
    with errors_as_lines(), closing(FitBar()) as bar:
        scores = write_baselines(opened, fitted=not quick, on_progress=bar)
    table = Table("predictor", opened.settings.task.metric, title=f"{run}, test split")
    value = (opened.result or {}).get("value")
    for name, score in {"this run": value, **scores}.items():
        if score is not None:
            table.add_row(name, f"{score:.4f}")
    print_table(table)
    return 0


def report(
    folder: Annotated[str, Doc("folder of a run, of a sweep, or of results")] = "results",
    *,
    out: Annotated[str | None, Doc("page of results to write (default: report.html in the folder)")] = None,
    markdown: Annotated[str | None, Doc("instead, write the tables of results between the marks of this Markdown file")] = None,
) -> int:
    """Write the report of a run or a sweep, or a page of all results next to the published figures."""
    from longscan.report import fill_markdown, results_report, run_report, sweep_report
    from longscan.training.run import is_run_folder

    path = Path(folder)
    if out is not None and markdown is not None:
        raise setting_error("--out", out, "left out with --markdown, which writes tables into a Markdown file instead of a page")
    with errors_as_lines():
        if is_run_folder(path) or (path / "sweep.json").is_file():
            for option, value in (("--out", out), ("--markdown", markdown)):
                if value is not None:
                    raise SettingError(f"`{option}` must be left out, as a run's report lies in its folder, got {value!r}")
            page = run_report(path) if is_run_folder(path) else sweep_report(path)
        else:
            _check_results(path)
            if markdown is not None:
                page = fill_markdown(markdown, path)
            else:
                page = results_report(path, Path(out) if out else path / "report.html")
    echo(f"report: {page}")
    return 0


def _check_results(path: Path) -> None:
    """Raise SettingError if a path is no folder of results."""
    from longscan.training.run import describe_runs

    if any((path / name).is_dir() for name in ("runs", "seeds", "bench")):
        return
    needed = "the folder of a run, of a sweep, or of results, which has records in runs, seeds or bench"
    if not path.exists():
        raise SettingError(f"`folder` must be {needed}, got {path}, which does not exist")
    kind = ", which is a file" if path.is_file() else describe_runs(path)
    raise SettingError(f"`folder` must be {needed}, got {path}{kind}")
