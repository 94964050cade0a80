"""A folder of runs that reproduce rows of the papers' tables: training up to a time limit, and the records.

reproduce.json                        version of this layout and of the package
PAPER/TABLE/ROW/seed_0/               a run's folder, as `longscan train` writes it, and device_seconds.json
PAPER/TABLE/ROW/seed_0.txt            what its processes printed
PAPER/TABLE/ROW/seeds_0-2.txt         the same for seeds that train together in one process
runs/PAPER.jsonl                      the records of the runs that are over
tries/                                the same for tries with other settings (`longscan.reproduce.tries`)
"""

import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import longscan
from longscan._errors import SettingError, count_text, one_line, setting_error
from longscan._files import lock_file, write_text
from longscan.datasets import DATA_SETS
from longscan.report.records import Record, append_record, read_folder
from longscan.reproduce.archive import MANIFEST, RECORDS, check_size, checkpoint_bytes, other_checkpoint_bytes, pack, unpack
from longscan.reproduce.rows import PublishedRow, find_recipe
from longscan.reproduce.stacks import Stacking, is_stacked, stack_command
from longscan.reproduce.state_tracking import LOCK as TRACKING_LOCK
from longscan.reproduce.state_tracking import NAME as TRACKING_NAME
from longscan.reproduce.state_tracking import RECORDS as TRACKING
from longscan.reproduce.state_tracking import UNUSED_FOLDER
from longscan.training.logs import read_rows
from longscan.training.parsing import parse_settings
from longscan.training.processes import GRACE, Ended, Job, run_jobs, visible_gpus
from longscan.training.records import result_row
from longscan.training.run import Run, check_out, is_run_folder
from longscan.training.settings import Settings
from longscan.training.trainer import MAY_CHANGE, changed_settings

DEVICE_SECONDS = "device_seconds.json"
LAYOUT = 1  # version of the folder
LOCK = "reproduce.lock"
# Names that a folder without a manifest may contain: those of the state-tracking benchmark, which has the same default folder.
ALLOWED_NAMES = {Path(TRACKING).parent.name, TRACKING_NAME, TRACKING_LOCK, LOCK}
PACKING_SECONDS = 5  # part of the time limit that is left for writing the archive
_TRAIN = """
import sys
from pathlib import Path
from longscan.cli import main
from longscan.training.processes import run_locked, stop_with_parent
stop_with_parent()
sys.exit(run_locked([Path(sys.argv[sys.argv.index("--out") + 1])], main))
"""


class Progress(NamedTuple):
    """The state of one run: the updates that it has made, and whether it is over."""

    updates: int
    is_over: bool


class Planned(NamedTuple):
    """One run: its row, seed, folder, and the arguments of `longscan train`."""

    row: PublishedRow
    seed: int
    folder: Path
    argv: list[str]

    @property
    def name(self) -> str:
        """Row and seed."""
        return f"{self.row.id}/seed_{self.seed}"


class Process(NamedTuple):
    """A process with one run, or with several seeds of a row that train together."""

    runs: list[Planned]

    @property
    def folder(self) -> Path:
        """The path of the log without its suffix: the folder of the run, or a name of the seeds next to the runs."""
        first, last = self.runs[0], self.runs[-1]
        return first.folder if first is last else first.folder.with_name(f"seeds_{first.seed}-{last.seed}")

    @property
    def log(self) -> Path:
        """The file of what the process prints."""
        return self.folder.with_suffix(".txt")

    @property
    def name(self) -> str:
        """Row and seeds."""
        return f"{self.runs[0].row.id}/{self.folder.name}"

    def command(self, _: float) -> list[str]:
        """Return the command of the process, which resumes what is in the folders."""
        if len(self.runs) > 1:
            return stack_command([(one.argv, one.folder) for one in self.runs])
        (one,) = self.runs
        resume = ["--resume"] if is_run_folder(one.folder) else []
        return [sys.executable, "-c", _TRAIN, "train", *one.argv, "--out", str(one.folder), *resume]


def run_folder(out: Path, row: PublishedRow, seed: int) -> Path:
    """Return the folder of one run."""
    return out / row.id / f"seed_{seed}"


def row_argv(row: PublishedRow, seed: int) -> list[str]:
    """Return the arguments of `longscan train` for one seed of a row. Raises SettingError if the recipe is missing."""
    if row.recipe is None:
        raise SettingError(f"{row.id} cannot be run ({row.status}: {row.why})")
    settings = {
        **row.settings,
        **dict.fromkeys(["training.seed", *row.with_seed], seed),
        "about.paper": row.figure["paper"],
        "about.model": row.figure["model"],
        "about.published": [row.published],
    }
    values = {name: value if isinstance(value, str) else json.dumps(value) for name, value in settings.items()}
    return ["--config", find_recipe(row.recipe), *(f"--{name}={value}" for name, value in values.items())]


def row_settings(row: PublishedRow, seed: int = 0) -> Settings:
    """Return the settings of one seed of a row. Raises SettingError, which names the command that fetches missing data."""
    try:
        return parse_settings(row_argv(row, seed))
    except SettingError as error:
        if isinstance(error.__cause__, FileNotFoundError) and row.data is not None:
            raise SettingError(f"the data of {row.id} are missing; {DATA_SETS[row.data].command} ({one_line(error)})") from error
        raise


def progress_of(folder: Path) -> Progress:
    """Return the state of the run in a folder, which need not exist."""
    if not is_run_folder(folder):
        return Progress(0, False)
    run = Run(folder)
    return Progress(run.steps_made(), run.result is not None)


def has_runs(folder: Path) -> bool:
    """Return whether a folder has runs of rows or of state tracking, finished or not, or records of runs."""
    has_files = any((folder / name).exists() for name in (MANIFEST, TRACKING, TRACKING_NAME))
    return has_files or any(read_folder(folder / records) for records in RECORDS)


def check_manifest(out: Path) -> None:
    """Raise SettingError if a folder was made by another version, or has files of other programs and no manifest."""
    path = out / MANIFEST
    here = {"layout": LAYOUT, "longscan": longscan.__version__}
    if not path.exists():
        if out.is_dir() and any(entry.name not in ALLOWED_NAMES for entry in out.iterdir()):
            raise setting_error("--out", str(out), "an empty folder or one that `longscan reproduce` made")
        return
    try:
        found = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise SettingError(f"{path} is damaged ({error})") from None
    if not isinstance(found, dict):
        raise SettingError(f"{path} is damaged (it must have a mapping, got {found!r})")
    if found != here:
        needed, got = (f"longscan {of.get('longscan')} (layout {of.get('layout')})" for of in (here, found))
        raise SettingError(f"`--out` must be a folder made by {needed}, got {out}, made by {got}")


def check_run(planned: Planned, settings: Settings) -> None:
    """Raise SettingError if a run's folder holds a run of other settings than the row's, as after a change of its recipe."""
    if not is_run_folder(planned.folder):
        return
    may_change = MAY_CHANGE - {"training.steps"}
    for name, stored, given in changed_settings(Run(planned.folder).settings, settings, may_change):
        needed = f"{stored!r} as in {planned.folder}, whose run is of another recipe (choose another --out)"
        raise setting_error(name, given, needed)


def with_seed(settings: Settings, row: PublishedRow, seed: int) -> Settings:
    """Return the settings of seed 0 of a row with another seed."""
    of_task: Mapping[str, Any] = {name.removeprefix("task."): seed for name in row.with_seed}
    return replace(settings, training=replace(settings.training, seed=seed), task=replace(settings.task, **of_task))


def reproduce(
    rows: Sequence[PublishedRow],
    out: str | Path,
    *,
    seeds: int | None = None,
    minutes: float = math.inf,
    per_device: int | None = None,
    stacking: Stacking = "auto",
    archive: str | Path | None = None,
    echo: Callable[[str], object] = lambda _: None,
    on_failure: Callable[[str], object] = lambda _: None,
) -> list[Planned]:
    """Run rows of the papers' tables in parallel and record the runs that are over; return the runs that are not.

    Args:
        rows: the rows, or tries of rows, whose status is "recipe" and whose data are present.
        out: folder of the runs, created if needed; runs in it are continued.
        seeds: number of seeds of each row, from 0; None: that of the row's protocol. Seed 0 of every row comes first.
        minutes: limit after which all runs save a checkpoint and end.
        per_device: processes on a GPU (8), or on the CPU (one for each core).
        stacking: whether the seeds of a row train together in one process: "always", "never", or for "auto" by the rule of
            `longscan.reproduce.stacks.is_stacked`.
        archive: folder whose archive is unpacked into `out` before, and written again after the runs.
        echo: called with two lines before the first run starts, and a line for each run that ends.
        on_failure: called with the name of each run that ends without a score, or whose process ends with an error before it.

    Raises SettingError if the folder is of another version or recipe, if data are missing, if the limit leaves no time, if the
    archive could become too large, or if another process works in the folder or with the archive;
    KeyboardInterrupt, after the checkpoints are saved, on a request to stop.
    """
    began, out, archive = time.monotonic(), Path(out), None if archive is None else Path(archive)
    packing = 0.0 if archive is None else PACKING_SECONDS
    _check_folders(out, archive, minutes, packing)
    settings = {row.id: row_settings(row) for row in rows}
    stacked = {row.id for row in rows if is_stacked(row, settings[row.id], stacking)}
    with _locked_folders(out, archive):
        if archive is not None:
            unpack(archive, out)
        plan = _plan_runs(rows, out, seeds)
        for one in plan:
            check_run(one, with_seed(settings[one.row.id], one.row, one.seed))
        recorded = {_identity(record) for folder in RECORDS for record in read_folder(out / folder)}
        for one in plan:  # runs that ended while this process was gone
            _record(one, out, recorded)
        waiting = [one for one in plan if not progress_of(one.folder).is_over]
        if archive is not None:
            sizes = {name: checkpoint_bytes(settings[name]) for name in {one.row.id for one in waiting}}
            others = other_checkpoint_bytes(out, {one.folder for one in waiting})
            check_size(archive, sum(sizes[one.row.id] for one in waiting) + others)
        processes = _share_processes(waiting, stacked)
        by_name = {process.name: process for process in processes}

        def on_end(ended: Ended) -> None:
            process = by_name[ended.name]
            for one in process.runs:
                _add_device_seconds(one.folder, ended.device_seconds / len(process.runs))
                row = _record(one, out, recorded)
                if ended.has_failed if row is None else row["value"] is None:
                    on_failure(one.name)
                updates = settings[one.row.id].training.steps
                echo(_unfinished_line(one, ended, process.log, updates) if row is None else _result_line(one, row))

        gpus = visible_gpus()
        parallel = per_device or (8 if gpus else os.cpu_count() or 1)
        if processes:
            _echo_plan(processes, parallel * max(1, len(gpus)), minutes, echo)
        jobs = [Job(process.name, process.log, process.command) for process in processes]
        try:
            run_jobs(jobs, gpus or [""], parallel, 60 * minutes - (time.monotonic() - began) - packing, on_end)
        finally:
            if archive is not None:
                pack(out, archive)
        return [one for one in plan if not progress_of(one.folder).is_over]


def _check_folders(out: Path, archive: Path | None, minutes: float, packing: float) -> None:
    """Raise SettingError for folders that cannot be used, and for a limit that leaves no time besides `packing` seconds."""
    reserved = GRACE + packing
    if 60 * minutes <= reserved:
        needed = f"at least {math.ceil(reserved / 0.6) / 100:g}, as the last {reserved:g} seconds are for checkpoints"
        raise setting_error("--minutes", minutes, needed)
    check_out(out)
    check_manifest(out)
    if archive is not None:
        check_out(archive, "--pack")


@contextmanager
def _locked_folders(out: Path, archive: Path | None) -> Iterator[None]:
    """Create the folders and lock them inside the `with` block. Raises SettingError if another process has locked one."""
    for folder in [out] if archive is None else [out, archive]:
        folder.mkdir(parents=True, exist_ok=True)
    write_text(out / MANIFEST, json.dumps({"layout": LAYOUT, "longscan": longscan.__version__}))
    with ExitStack() as locks:
        locks.enter_context(lock_file(out / LOCK, setting_error("--out", str(out), UNUSED_FOLDER)))
        if archive is not None:
            locks.enter_context(lock_file(archive / "runs.lock", setting_error("--pack", str(archive), UNUSED_FOLDER)))
        yield


def _plan_runs(rows: Sequence[PublishedRow], out: Path, seeds: int | None) -> list[Planned]:
    """Return the runs of rows, seed 0 of every row first; seeds: their number for each row, None for that of its protocol."""
    counts = {row.id: row.seeds if seeds is None else seeds for row in rows}
    return [
        Planned(row, seed, run_folder(out, row, seed), row_argv(row, seed))
        for seed in range(max(counts.values(), default=0))
        for row in rows
        if seed < counts[row.id]
    ]


def _echo_plan(processes: Sequence[Process], parallel: int, minutes: float, echo: Callable[[str], object]) -> None:
    """Say how many runs are trained, at most `parallel` processes at a time, and where their output is."""
    running = count_text(min(len(processes), parallel), "process", "processes")
    stops = "" if math.isinf(minutes) else f", and stops after {count_text(minutes, 'minute')}"
    count = sum(len(process.runs) for process in processes)
    echo(f"runs to train: {count}, in {running} at a time; each prints a line when it ends{stops}")
    echo(f"what the runs print until then is in {processes[0].log} and the files next to it")


def _share_processes(waiting: Sequence[Planned], stacked: Set[str]) -> list[Process]:
    """Return the processes of runs in the order of their first ones.

    The seeds of a row in `stacked`, and of other rows in it that differ in the learning rate alone, share a process, row by row.
    """
    processes: list[Process] = []
    shared: dict[str, Process] = {}
    for one in waiting:
        key = _identity_of_stack(one.row)
        if one.row.id in stacked and key in shared:
            shared[key].runs.append(one)
            continue
        processes.append(Process([one]))
        if one.row.id in stacked:
            shared[key] = processes[-1]
    for process in processes:
        rows = list(dict.fromkeys(one.row.id for one in process.runs))
        process.runs.sort(key=lambda one: rows.index(one.row.id))
    return processes


def _identity_of_stack(row: PublishedRow) -> str:
    """Return a text that rows have in common whose runs can train in one process."""
    settings = {name: value for name, value in row.settings.items() if name != "training.lr"}
    return json.dumps([row.table, row.published, row.recipe, row.with_seed, settings], sort_keys=True)


def _add_device_seconds(folder: Path, seconds: float) -> None:
    """Add to the seconds that a run has used of its device."""
    if folder.is_dir():
        write_text(folder / DEVICE_SECONDS, json.dumps(round(device_seconds(folder) + seconds, 3)))


def device_seconds(folder: Path) -> float:
    """Return the seconds that a run has used of its device: of several runs on a device at a time, each counts its share."""
    path = folder / DEVICE_SECONDS
    return float(json.loads(path.read_text("utf-8"))) if path.exists() else 0.0


def _identity(record: Record) -> tuple[Any, ...]:
    """Return the identity of the run of a record: row, seed and the time at which the run started."""
    return record.get("row"), record["seed"], record["date"]


def _record(one: Planned, out: Path, recorded: set[tuple[Any, ...]]) -> Record | None:
    """Return the record of a run that is over, after appending it unless its identity is in `recorded`; else None."""
    if not progress_of(one.folder).is_over:
        return None
    row = result_row(Run(one.folder)) | one.row.record_fields | {"device_seconds": device_seconds(one.folder)}
    row["updates_per_second"] = round(row["steps"] / row["seconds"], 3) if row["steps"] and row["seconds"] else None
    scored = [logged for logged in read_rows(one.folder / "metrics.jsonl") if logged["split"] == "valid"]
    row["validation_curve"] = {str(logged["step"]): x for logged in scored if (x := logged.get(row["metric"])) is not None}
    if _identity(row) not in recorded:
        recorded.add(_identity(row))
        append_record(out / one.row.records, row)
    return row


def _result_line(one: Planned, row: Record) -> str:
    """Return a line on a run that is over, from its record."""
    value = "failed" if row["value"] is None else f"{row['metric']} {row['value']:.4f}"
    limit = row.get("replayed_updates_per_second")
    rate = f"{row['updates_per_second']} updates a second" + ("" if limit is None else f" ({limit} replayed)")
    return f"{one.name}: {value} after {row['steps']:,} updates, {rate}"


def _unfinished_line(one: Planned, ended: Ended, log: Path, updates: int) -> str:
    """Return a line on a run that is not over, from the end and the log of its process."""
    if ended.has_failed:
        lines = log.read_text("utf-8", errors="replace").splitlines()
        return f"{one.name}: ended with code {ended.status}: {lines[-1] if lines else ''} ({log})"
    return f"{one.name}: stopped at update {progress_of(one.folder).updates:,} of {updates:,}"
