"""Runs that are shown next to a row of a paper's table, but do not count as its reproduction.

Such a run is "near" the row: it has the recipe and the published figure of the row, but it does not follow the protocol, or
`longscan reproduce` has not made it. The field `near` of a row names the files of these runs, relative to the folder of the
records: a `.json` file with seeds that `benchmarks/seeds.py` has trained together, or a `.jsonl` file with runs, of which those
with the recipe and the figure of the row are taken. Tries of a row by `longscan reproduce --settings` are near it, too.
"""

import json
import shlex
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from longscan.report.comparisons import changed_settings, compare
from longscan.report.records import Record, check_record, read_records
from longscan.report.statistics import mean_interval
from longscan.reproduce.rows import TRIES, PublishedRow
from longscan.reproduce.tries import settings_text


class NearRun(NamedTuple):
    """Runs of one setting.

    Attributes:
        scores: one for each seed whose run is finished, in the unit of the published figure.
        failed: number of seeds whose runs failed.
        updates: the smallest number of updates of a finished run, or of a failed one if none is finished.
        minutes: minutes of a GPU or CPU, of all runs; None where a record has no time.
        source: the file of the records, and what wrote it.
        settings: what the command sets besides the recipe, empty for nothing.
        why: why the runs do not count.
    """

    scores: tuple[float, ...]
    failed: int
    updates: int
    minutes: float | None
    source: str
    settings: str
    why: str

    def line(self, name: str, row: PublishedRow) -> str:
        """Return a line of a Markdown table with the columns of `HEADER`, under a name for the row."""
        cells = [name, score_text(self.scores, row.decimals)]
        cells.append(f"{len(self.scores)}, {self.failed} failed" if self.failed else str(len(self.scores)))
        cells += [f"{self.updates:,}, of {row.updates:,}", "–" if self.minutes is None else f"{self.minutes:.1f}"]
        cells += [f"`{self.settings}`".replace("|", "\\|") if self.settings else "–", self.source]
        return f"| {' | '.join(cells)} |"


HEADER = [
    "| row | ours | seeds | updates, of published | minutes | other settings | records |",
    "|---|---|---:|---:|---:|---|---|",
]
TRIED = "tries by `longscan reproduce --settings`, with other settings than the protocol's"


def score_text(scores: Sequence[float], decimals: int) -> str:
    """Return mean and half the 95 % interval over seeds, with a digit more than the published figure; a dash without a score."""
    if not scores:
        return "–"
    mean, half = mean_interval(scores)
    return f"{mean:.{decimals + 1}f}" + ("" if half is None else f" ± {half:.{decimals + 1}f}")


def near_lines(table: str, rows: Sequence[PublishedRow], folder: Path) -> list[str]:
    """Return Markdown lines on the runs near a table's rows in a folder of records: each reason, then a table of its runs."""
    lines: dict[str, list[str]] = {}
    for row in rows:
        for run in near_runs(row, folder):
            lines.setdefault(run.why, []).append(run.line(row.id.removeprefix(f"{table}/"), row))
    heading = "Runs near these rows, which do not count"
    return [line for why, of in lines.items() for line in ("", f"{heading} ({why}):", "", *HEADER, *of)]


def near_runs(row: PublishedRow, folder: Path) -> list[NearRun]:
    """Return the runs near a row that a folder of records has: those of the files that it names, then its tries."""
    found = [run for path, why in row.near.items() if (folder / path).exists() for run in _read(row, folder / path, why)]
    for file in sorted((folder / TRIES / "runs").glob("*.jsonl")):
        tries = [one for one in read_records(file) if one.get("try_of") == row.id]
        found += _grouped(tries, lambda one: settings_text(one["changed"]), file, TRIED)
    return found


def _read(row: PublishedRow, file: Path, why: str) -> Iterator[NearRun]:
    if file.suffix == ".json":
        record = json.loads(file.read_text("utf-8"))
        check_record("seeds", record)
        if scores := record["selected"]["test"]:
            source = f"`{file.as_posix()}` by `{_script(record['command'])}`"
            yield NearRun(tuple(scores), 0, record["steps"], record["seconds"] / 60, source, "", why)
        return
    found = [one for one in read_records(file) if one.get("row") is None and _is_near(row, one)]
    yield from _grouped(found, _settings, file, why)


def _grouped(found: Sequence[Record], key: Callable[[Record], str], file: Path, why: str) -> Iterator[NearRun]:
    """Yield the runs of each text of settings, which `key` returns for a record."""
    for settings, group in groupby(sorted(found, key=key), key):
        records = list(group)
        entries = [entry for one in compare(records) for entry in one.entries]
        finished = [one for one in records if one["status"] == "finished"]
        yield NearRun(
            scores=tuple(score for entry in entries for score in entry.scores),
            failed=sum(entry.failed for entry in entries),
            updates=min(one["steps"] for one in finished or records),
            minutes=_minutes(records),
            source=f"`{file.as_posix()}` by `{_script(records[0]['command'])}`",
            settings=settings,
            why=why,
        )


def _minutes(records: Sequence[Record]) -> float | None:
    """Return the minutes of a device for runs, None if a time is missing."""
    seconds = [record_seconds(one) for one in records]
    return None if None in seconds else sum(filter(None, seconds)) / 60


def record_seconds(record: Record) -> float | None:
    """Return the seconds of a device that a run took; of seeds that trained together each has its share. None if not known."""
    if seconds := record.get("device_seconds"):
        return float(seconds)
    return None if record["seconds"] is None else float(record["seconds"] / record.get("stacked", 1))


def _is_near(row: PublishedRow, record: Record) -> bool:
    published = record["published"] or []
    ids: Sequence[str] = [published] if isinstance(published, str) else published
    return record["recipe"] == row.recipe and record["status"] == "finished" and row.published in ids


def _script(command: str) -> str:
    """Return the program of a command: a script's path, or the first two words, such as `longscan train`."""
    words = shlex.split(command)
    return next((word for word in words if word.endswith(".py")), " ".join(words[:2]))


def _settings(record: Record) -> str:
    """Return the settings of task, model and training in a run's command, in the order of their names."""
    found = {name: value for name, value in changed_settings(record).items() if name.startswith(("task.", "model.", "training."))}
    return " ".join(f"{name}={value}" for name, value in sorted(found.items()))
