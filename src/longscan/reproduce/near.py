"""Runs near a row: of its recipe and figure, but not by its protocol or not by `longscan reproduce`, so that they do not count.

`near` of a row names their files, relative to the folder of the records: a `.json` with seeds that `benchmarks/seeds.py` trained
together, or a `.jsonl` with runs, of which those of the row's recipe and figure are taken.
"""

import json
import shlex
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from longscan.report.comparisons import compare
from longscan.report.records import Record, check_record, read_records
from longscan.report.statistics import mean_interval
from longscan.reproduce.rows import PublishedRow

NOT_COMPARED = ("training.seed", "training.capture", "training.threads", "training.device")  # settings that no line names


class NearRun(NamedTuple):
    """Runs of one setting.

    Attributes:
        scores: one for each seed, in the unit of the published figure.
        updates: the smallest number of updates.
        source: the file of the records, and what wrote it.
        settings: what the command sets besides the recipe, empty for nothing.
        why: why the runs do not count.
    """

    scores: tuple[float, ...]
    updates: int
    source: str
    settings: str
    why: str

    def line(self, name: str, decimals: int) -> str:
        """Return a line of a Markdown table with the columns of `HEADER`.

        Args:
            name: name of the row.
            decimals: digits after the point of the published figure.
        """
        mean, half = mean_interval(self.scores)
        score = f"{mean:.{decimals + 1}f}" + ("" if half is None else f" ± {half:.{decimals + 1}f}")
        own = f"`{self.settings}`" if self.settings else "–"
        return f"| {name} | {score} | {len(self.scores)} | {self.updates:,} | {own} | {self.source} |"


HEADER = ["| row | ours | seeds | updates | other settings | records |", "|---|---|---:|---:|---|---|"]


def near_lines(table: str, rows: Sequence[PublishedRow], folder: Path) -> list[str]:
    """Return Markdown lines on the runs near a table's rows in a folder of records: each reason, then a table of its runs."""
    lines: dict[str, list[str]] = {}
    for row in rows:
        for run in near_runs(row, folder):
            lines.setdefault(run.why, []).append(run.line(row.id.removeprefix(f"{table}/"), row.decimals))
    heading = "Runs near these rows, which do not count"
    return [line for why, of in lines.items() for line in ("", f"{heading} ({why}):", "", *HEADER, *of)]


def near_runs(row: PublishedRow, folder: Path) -> list[NearRun]:
    """Return the runs near a row that a folder of records has."""
    return [run for path, why in row.near.items() if (folder / path).exists() for run in _read(row, folder / path, why)]


def _read(row: PublishedRow, file: Path, why: str) -> Iterator[NearRun]:
    if file.suffix == ".json":
        record = json.loads(file.read_text("utf-8"))
        check_record("seeds", record)
        if scores := record["selected"]["test"]:
            yield NearRun(tuple(scores), record["steps"], f"`{file.as_posix()}` by `{_script(record['command'])}`", "", why)
        return
    found = [one for one in read_records(file) if one.get("row") is None and _is_near(row, one)]
    for settings, group in groupby(sorted(found, key=_settings), _settings):
        records = list(group)
        scores = tuple(score for one in compare(records) for entry in one.entries for score in entry.scores)
        source = f"`{file.as_posix()}` by `{_script(records[0]['command'])}`"
        yield NearRun(scores, min(one["steps"] for one in records), source, settings, why)


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
    words, found = shlex.split(record["command"]), {}
    for position, word in enumerate(words):
        name, equals, value = word.removeprefix("--").partition("=")
        if word.startswith("--") and name.partition(".")[0] in ("task", "model", "training") and name not in NOT_COMPARED:
            found[name] = value if equals else words[position + 1]
    return " ".join(f"{name}={value}" for name, value in sorted(found.items()))
