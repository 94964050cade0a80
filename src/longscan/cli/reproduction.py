"""The command `longscan reproduce`: the papers' tables row by row, their runs, and the comparison."""

import math
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from longscan._errors import SettingError, count_text, setting_error
from longscan._types import Doc, PositiveFloat, PositiveInt
from longscan.cli._console import echo, print_table, stdout

if TYPE_CHECKING:
    from longscan.reproduce import PublishedRow
    from longscan.reproduce.page import Outcome

FOLDER = "runs/reproduce"
TRACKING = "state-tracking"
WIDTH = 100
# widths of the columns of the list
COLUMNS = {"row": 23, "published": 9, "recipe": 13, "data": 11, "seeds": 5, "updates": 9, "min": 5, "state": 11}


def reproduce(
    target: Annotated[str, Doc("list, report, state-tracking, or a paper, table or row such as aussm/table1")],
    folder: Annotated[str | None, Doc(f"with list and report: folder of the runs (default: {FOLDER})")] = None,
    *,
    paper: Annotated[Literal["aussm", "s7", "thesis", "mamba_lra"] | None, Doc("with list: only this paper")] = None,
    rows: Annotated[list[str] | None, Doc("only the rows of the table whose names begin with one of these")] = None,
    settings: Annotated[
        list[str] | None,
        Doc("settings of model or training, such as training.lr=0.003, for tries of the rows that do not count as the rows"),
    ] = None,
    seeds: Annotated[PositiveInt | None, Doc("number of seeds of each row, by default as its protocol says")] = None,
    updates: Annotated[PositiveInt | None, Doc("with state-tracking: number of updates of each model, by default 2500")] = None,
    minutes: Annotated[PositiveFloat | None, Doc("minutes after which all runs save a checkpoint and end")] = None,
    per_device: Annotated[PositiveInt | None, Doc("simultaneous runs, by default 8 on a GPU, one for each core on a CPU")] = None,
    stacked: Annotated[
        Literal["auto", "always", "never"] | None,
        Doc("train the seeds of a row together in one process; by default (auto) on a GPU where it saves time"),
    ] = None,
    out: Annotated[str | None, Doc(f"folder of the runs (default: {FOLDER}); with report: the Markdown file to write")] = None,
    readme: Annotated[
        str | None, Doc("with report: a Markdown file that gets a line for each paper between its marks, such as README.md")
    ] = None,
    pack: Annotated[
        str | None, Doc("folder of an archive that carries the runs to another machine: read at the start, written at the end")
    ] = None,
) -> int:
    """Repeat rows of the papers' tables or the state-tracking benchmark, list them, or compare scores with published ones.

    A model of state-tracking takes about 18 seconds on an H100 that eight of them share, and on one core of a CPU 3 minutes (GRU)
    to 23 minutes (Gated DeltaNet), PD-SSM on A5 and S5 4 and 17 hours. On a CPU choose less by --rows, --seeds and --updates: the
    command prints at its start how long it will take.

    Examples:
        longscan reproduce list
        longscan reproduce aussm/table1/parity/ma --settings training.lr=0.003 --seeds 3
        longscan reproduce state-tracking --rows S3/gru --seeds 1 --updates 300
        longscan reproduce report --out comparison.md
    """
    from longscan.cli.runs import errors_as_lines

    of_runs: dict[str, object] = {"--rows": rows, "--seeds": seeds, "--minutes": minutes, "--per-device": per_device}
    of_runs |= {"--settings": settings, "--stacked": stacked, "--pack": pack, "--updates": updates}
    tracks = target.partition("/")[0] == TRACKING
    if target in ("list", "report"):
        unused = of_runs | ({"--out": out, "--readme": readme} if target == "list" else {"--paper": paper})
    else:
        unused = {"folder": folder, "--paper": paper, "--readme": readme}
        unused |= {"--settings": settings, "--stacked": stacked, "--pack": pack} if tracks else {"--updates": updates}
    for option, value in unused.items():
        if value is not None:
            raise setting_error(option, value, f"left out with `longscan reproduce {target}`")
    with errors_as_lines():
        if target == "report" or folder is not None:
            _check_folder(folder or FOLDER)
        if target == "list":
            return _list(Path(folder or FOLDER), paper)
        if target == "report":
            return _report(Path(folder or FOLDER), out or "docs/reproduction.md", readme)
        limit = math.inf if minutes is None else minutes
        if tracks:
            return _track(target, rows or [], seeds, updates, limit, per_device, out or FOLDER)
        return _run(target, rows or [], settings or [], seeds, limit, per_device, stacked or "auto", out or FOLDER, pack)


def _check_folder(folder: str) -> None:
    """Raise SettingError unless `longscan reproduce` has made runs in a folder, or their records are in it."""
    from longscan.reproduce.runs import has_runs

    if not has_runs(Path(folder)):
        got = "which has none" if Path(folder).is_dir() else "which does not exist"
        raise SettingError(f"`folder` must be a folder with runs of `longscan reproduce` or their records, got {folder!r}, {got}")


def _list(folder: Path, paper: str | None) -> int:
    """Print the rows of all papers, or of one: tables within 100 columns on a terminal, elsewhere one line for each row."""
    from longscan.reproduce.page import merge_candidates, read_outcomes
    from longscan.reproduce.rows import read_rows
    from longscan.reproduce.state_tracking import read_rows as read_tracking
    from longscan.reproduce.tries import count_runs

    rows = [row for row in read_rows() if paper is None or row.id.startswith(f"{paper}/")]
    tables = list(dict.fromkeys(row.table for row in rows))
    outcomes = sorted(merge_candidates(read_outcomes(rows, folder)), key=lambda one: tables.index(one.row.table))
    if stdout().is_terminal:
        _print_folded(outcomes)
    else:
        _print_lines(outcomes)
    own = {row.published for row in rows if row.status not in ("cited", "repeated")}
    runnable = {row.published for row in rows if row.status == "recipe"}
    echo(f"{len({row.published for row in rows})} figures: {len(own)} of the papers' own, {len(runnable)} with a recipe")
    echo("recipe: the file in the paper's folder")
    echo("min: GPU minutes of all seeds and settings, expected; –: no rate of its updates is measured")
    if any(tried := count_runs(folder)):
        over, left = tried
        echo(f"tries with other settings in {folder}: {count_text(over, 'run')} over, which `report` shows, and {left} not over")
    if paper is None:
        found = len(read_tracking(folder))
        echo(f"`longscan reproduce {TRACKING}`: word problems of seven groups, {count_text(found, 'row')} in {folder}")
    return 0


def _print_folded(outcomes: "Sequence[Outcome]") -> None:
    """Print a table for each of the papers', within 100 columns: long cells are folded, and reasons stand below the table."""
    from rich.console import Console
    from rich.table import Table

    from longscan.reproduce.page import list_lines, wrap_name

    console = Console(width=WIDTH, highlight=False, markup=False, emoji=False, file=stdout().file)
    for table, lines, reasons in list_lines(outcomes):
        page = Table(title=table, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0), width=WIDTH)
        for name, width in COLUMNS.items():
            page.add_column(name, width=width, overflow="fold")
        for line in lines:
            cells = (wrap_name(cell, width) for cell, width in zip(line, COLUMNS.values(), strict=True))
            page.add_row(*cells)
        console.print(page)
        for reason in reasons:
            console.print(reason)
        console.print()


def _print_lines(outcomes: "Sequence[Outcome]") -> None:
    """Print one line for each row, with its whole name and the reason why it has no run, for programs such as grep."""
    from rich.table import Table

    from longscan.reproduce.page import list_lines

    page = Table(*COLUMNS)
    for table, lines, _ in list_lines(outcomes, summarized=False):
        for name, *cells in lines:
            page.add_row(f"{table}/{name}", *cells)
    print_table(page)


def _report(folder: Path, out: str, readme: str | None) -> int:
    """Write the comparison of the runs of a folder with the published figures, and the lines of the papers into `readme`."""
    from longscan._files import write_user_file
    from longscan.report.results import replace_between
    from longscan.reproduce.page import SUMMARY_MARKERS, read_outcomes, report_page, summary_table
    from longscan.reproduce.rows import read_rows
    from longscan.reproduce.state_tracking import read_rows as read_tracking

    outcomes = read_outcomes(read_rows(), folder)
    page = report_page(outcomes, f"longscan reproduce report {folder} --out {out}", read_tracking(folder), folder)
    if readme is not None:
        summary = Path(readme)
        text = replace_between(summary.read_text("utf-8"), SUMMARY_MARKERS, summary_table(outcomes), summary)
        write_user_file(summary, text.encode())
    echo(f"report: {write_user_file(Path(out), page.encode())}")
    return 0


def _track(
    target: str,
    names: Sequence[str],
    seeds: int | None,
    updates: int | None,
    minutes: float,
    per_device: int | None,
    out: str,
) -> int:
    """Train models of the state-tracking benchmark, print what ended and what is left, and return the exit code."""
    from longscan.report.page import duration_text
    from longscan.reproduce import state_tracking
    from longscan.reproduce.remaining import RunProgress
    from longscan.training.progress import RunBar

    failed: list[str] = []  # names of trainings
    pairs = state_tracking.find_targets(target, names)
    seeds, updates = seeds or state_tracking.SEEDS, updates or state_tracking.UPDATES
    with closing(RunBar(stdout())) as bar:

        def show_progress(progress: RunProgress) -> None:
            note = "no estimate yet" if progress.seconds is None else f"about {duration_text(progress.seconds)} left"
            bar.update(progress.made, progress.updates, note)

        left = state_tracking.run(
            pairs,
            out,
            seeds=seeds,
            updates=updates,
            minutes=minutes,
            per_device=per_device,
            echo=bar.print,
            on_failure=failed.append,
            on_progress=show_progress,
        )
    if left:
        echo(f"trainings that have not finished: {len(left)}; the same command continues them")
    echo(f"`longscan reproduce report {out}` writes the table")
    return 1 if failed else 0


def _run(
    target: str,
    names: Sequence[str],
    settings: Sequence[str],
    seeds: int | None,
    minutes: float,
    per_device: int | None,
    stacked: Literal["auto", "always", "never"],
    out: str,
    pack: str | None,
) -> int:
    """Run rows, or tries of them with other settings, print what ended and what is left, and return the exit code."""
    from longscan.reproduce.runs import reproduce
    from longscan.reproduce.tries import make_tries

    rows = _runnable(target, names)
    failed: list[str] = []  # names of runs
    left = reproduce(
        make_tries(rows, settings) if settings else rows,
        out,
        seeds=seeds,
        minutes=minutes,
        per_device=per_device,
        stacking=stacked,
        archive=pack,
        echo=echo,
        on_failure=failed.append,
    )
    if left:
        elsewhere = f", on another machine from {pack}" if pack else ""
        echo(f"runs that have not finished: {len(left)}; the same command continues them{elsewhere}")
    tables = ", ".join(dict.fromkeys(row.table for row in rows))
    does = f"shows these tries below {tables}" if settings else f"compares {tables} with the papers"
    echo(f"`longscan reproduce report {out}` {does}")
    return 1 if failed else 0


def _runnable(target: str, names: Sequence[str]) -> "list[PublishedRow]":
    """Return the rows to run. Rows that cannot be run are printed; raises SettingError if no others are left."""
    from longscan.datasets import DATA_SETS
    from longscan.reproduce.rows import find_rows

    rows, left_out = [], dict[str, list[str]]()  # the rows that cannot be run, by the reason
    for row in find_rows(target, names):
        if row.status != "recipe":
            left_out.setdefault(f"cannot be run ({row.status}: {row.why})", []).append(row.id)
        elif row.data is not None and not row.has_data:
            left_out.setdefault(f"missing data: {DATA_SETS[row.data].command}", []).append(row.id)
        else:
            rows.append(row)
    reasons = [
        f"{found[0]}{f' and {len(found) - 1} more' if len(found) > 1 else ''}: {reason}" for reason, found in left_out.items()
    ]
    if not rows:
        raise SettingError("; ".join(reasons[:3]) + (f"; and {len(reasons) - 3} more reasons" if len(reasons) > 3 else ""))
    for reason in reasons:
        echo(f"left out: {reason}")
    return rows
