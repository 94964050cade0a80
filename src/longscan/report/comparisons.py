"""Our records put in order: runs grouped by task beside the published figures, measurements grouped by op and shape."""

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import fsum
from statistics import median
from typing import Any

from longscan.report.published import published_beside, published_row
from longscan.report.records import Record, apply_corrections
from longscan.report.statistics import mean_interval
from longscan.report.text import commit_text, uncommitted_note

OWN = ("triton", "cpu", "eager", "reference")
# Options of a command that say where and how often a recipe ran, not what was trained.
_NOT_OVERRIDES = ("training.seed", "training.threads", "training.device", "task.split_seed", "task.data_dir")
CHOSEN = {
    "test": "recipe made after test scores of other recipes had been seen",
    "validation": "recipe chosen by validation scores",
}


@dataclass(frozen=True, kw_only=True)
class Entry:
    """The runs of one setting, over its distinct seeds, on the scale of the comparison that it belongs to.

    scores: one score for each distinct seed with a finished run, the mean of that seed's finished runs. runs: number of finished
    runs. failed: number of seeds without a finished run. notes: what the tables must say of these rows beside the figures.
    """

    name: str
    model: str
    suite: str
    setting: str
    scores: tuple[float, ...]
    runs: int
    constant: float | None
    baselines: dict[str, float]
    failed: int
    notes: tuple[str, ...]
    rows: tuple[Record, ...]

    @property
    def seeds(self) -> int:
        """Number of distinct seeds with a finished run."""
        return len(self.scores)

    @property
    def mean(self) -> tuple[float, float | None] | None:
        """Mean and half width of the 95 % interval over distinct seeds; None where no run finished."""
        return mean_interval(self.scores) if self.scores else None


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One task and metric: our settings beside the published rows (none where no paper reports the task)."""

    paper: str | None
    task: str
    metric: str
    unit: str
    source: str
    published: tuple[dict[str, Any], ...]
    entries: tuple[Entry, ...]


def _ids(row: Record) -> tuple[str, ...]:
    given = row["published"]
    return () if given is None else (given,) if isinstance(given, str) else tuple(given)


def _groups(rows: Iterable[Record], key: Any) -> list[tuple[Any, list[Record]]]:
    """Rows by key, keys in the order of their first row."""
    found: dict[Any, list[Record]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return list(found.items())


def _scale(row: Record, published: Sequence[dict[str, Any]], field: str) -> float | None:
    """A score (`value` or `constant`) in the unit of the published figures: scaled, in per cent or in thousandths."""
    if not published:
        return row[field]
    scaled, factor = "scaled" in published[0]["metric"], _factor(published)
    name = ("scaled" if field == "value" else "constant_scaled") if scaled else field
    if name not in row:
        raise ValueError(f"a run of {row['task']} (seed {row['seed']}) has no {name!r}, which published {_ids(row)[0]} needs")
    return None if row[name] is None else row[name] * factor


def _factor(published: Sequence[dict[str, Any]]) -> float:
    """What one is in the unit of the published figures."""
    unit = published[0]["unit"] if published else ""
    return 100 if unit.startswith("%") else {"1e-2": 100, "1e-3": 1000}.get(unit, 1)


def _settings(groups: Sequence[Sequence[Record]]) -> list[str]:
    """Recipe (or number of steps) and overrides of each group that shares its model and suite with others; "" of the rest."""
    names = [(_model(rows[0]), rows[0]["suite"]) for rows in groups]
    return [
        "" if names.count(name) == 1 else " ".join((rows[0]["recipe"] or f"{rows[0]['steps']} steps", *overrides(rows[0])))
        for name, rows in zip(names, groups, strict=True)
    ]


def overrides(row: Record) -> tuple[str, ...]:
    """The options of a run's command that changed its recipe, as words; seeds, threads, device and data folder do not count."""
    words = [part for word in shlex.split(row["command"]) for part in (word.split("=", 1) if word[:2] == "--" else [word])]
    found: list[str] = []
    for option, value in zip(words, [*words[1:], ""], strict=True):
        name = option.removeprefix("--")
        if option != name and ("." in name or name == "steps") and name not in _NOT_OVERRIDES:
            found += [option, value]
    return tuple(found)


def _setting(row: Record) -> tuple[object, ...]:
    """What the runs of one entry have in common."""
    return row["model"], row["spec"], row["suite"], row["recipe"] or row["steps"], overrides(row) if row["recipe"] else ()


def _model(row: Record) -> str:
    return f"{row['model']} ({row['spec']})" if row["spec"] and row["spec"] != row["model"] else row["model"]


def _notes(rows: Sequence[Record], finished: int, seeds: int) -> tuple[str, ...]:
    """What the tables must say of an entry's rows."""
    notes = [f"{finished} runs of {seeds} seeds: a seed counts once, with the mean of its runs"] if finished > seeds else []
    notes.append(uncommitted_note([r["commit"] for r in rows]))
    notes += [f"recipe replaced: {r['replaced']}" for r in rows if "replaced" in r]
    notes += [CHOSEN[r["chosen_on"]] for r in rows if r.get("chosen_on")]
    notes += [r["note"] for r in rows if "note" in r]
    return tuple(dict.fromkeys(filter(None, notes)))


def _entry(setting: str, rows: Sequence[Record], published: Sequence[dict[str, Any]]) -> Entry:
    finished = [r for r in rows if r["status"] == "finished"]
    scored = [(r["seed"], s) for r in finished if (s := _scale(r, published, "value")) is not None]
    by_seed: dict[int, list[float]] = {}
    for seed, score in scored:
        by_seed.setdefault(seed, []).append(score)
    constants = [c for r in rows if (c := _scale(r, published, "constant")) is not None]
    baselines = {name: 0.0 for r in rows for name in r["baselines"]}
    for name in baselines:
        mean, _ = mean_interval([r["baselines"][name] for r in rows if name in r["baselines"]])
        baselines[name] = mean * _factor(published)
    return Entry(
        name=", ".join(filter(None, (_model(rows[0]), rows[0]["suite"], setting))),
        model=_model(rows[0]),
        suite=rows[0]["suite"] or "",
        setting=setting,
        scores=tuple(fsum(scores) / len(scores) for scores in by_seed.values()),
        runs=len(finished),
        constant=mean_interval(constants)[0] if constants else None,
        baselines=baselines,
        failed=len({r["seed"] for r in rows} - {r["seed"] for r in finished}),
        notes=_notes(rows, len(finished), len(by_seed)),
        rows=tuple(rows),
    )


def compare(rows: Iterable[Record]) -> list[Comparison]:
    """Runs by paper, task and metric, without quick ones, with corrected values in place of recorded ones.

    Raises ValueError for an unknown id of a published row, and for a run without the score that its published row needs.
    """

    def table(row: Record) -> tuple[str, ...]:
        references = [published_row(i) for i in _ids(row)]
        return tuple(dict.fromkeys(f"{r['table']} {r['metric']} {r['unit']}" for r in references))

    comparisons = []
    full = [apply_corrections(row) for row in rows if not row.get("quick")]
    for (paper, task, metric, _), members in _groups(full, lambda r: (r["paper"], r["task"], r["metric"], table(r))):
        beside = {p["id"]: p for identity in _ids(members[0])[:1] for p in published_beside(identity)}
        published = tuple(beside.values())
        groups = [group for _, group in _groups(members, _setting)]
        comparisons.append(
            Comparison(
                paper=paper,
                task=task,
                metric=published[0]["metric"] if published else metric,
                unit=published[0]["unit"] if published else "",
                source=published[0]["table"] if published else "",
                published=published,
                entries=tuple(_entry(told, group, published) for told, group in zip(_settings(groups), groups, strict=True)),
            )
        )
    return comparisons


@dataclass(frozen=True, kw_only=True)
class Timing:
    """One implementation in one measurement: times relative to ours, and absolute in milliseconds.

    extra_share: peak memory beyond inputs, outputs and their gradients, as a share of these.
    """

    name: str
    ours: bool
    forward: float | None
    forward_ms: float | None
    forward_backward: float | None
    forward_backward_ms: float | None
    peak_mib: float | None
    extra_share: float | None
    error: float | None
    measurements: int

    @property
    def timed(self) -> bool:
        """Whether there is a time."""
        return self.forward_ms is not None or self.forward_backward_ms is not None


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """All implementations of one op at one shape, measured side by side."""

    op: str
    shape: str
    dtype: str
    device: str
    origin: str
    commands: tuple[str, ...]
    unit: str
    timings: tuple[Timing, ...]
    note: str


def _middle(rows: Sequence[Record], field: str) -> float | None:
    values = [r[field] for r in rows if r.get(field) is not None]
    return median(values) if values else None


def _ratio(time: float | None, unit: float | None) -> float | None:
    return None if time is None or not unit else time / unit


def _implementation(row: Record) -> str:
    """The name of what a row measures: our backend with what sets it apart, or the peer."""
    return row["peer"] or ", ".join(filter(None, (f"longscan {row['backend']}", row.get("variant"))))


def measurements(rows: Iterable[Record]) -> list[Measurement]:
    """Benchmark rows by op, shape, dtype and device; of each the latest day's rows only, so that a ratio is of one session.

    Ratios are to our own fastest kind of backend present: triton, else cpu, else eager, else reference. Rows that are points of a
    figure, or that time nothing, are left out.
    """
    rows = [row for row in rows if "figure" not in row and "check" not in row]
    found = []
    for (op, shape, dtype, device), members in _groups(
        rows, lambda r: (r["op"], tuple(r["shape"].items()), r["dtype"], r["device"])
    ):
        latest = max(r["date"] for r in members)[:10]
        today = [r for r in members if r["date"][:10] == latest]
        named = dict(_groups(today, _implementation))
        unit = next((f"longscan {b}" for b in OWN if f"longscan {b}" in named), next(iter(named)))
        base = {field: _middle(named[unit], field) for field in ("forward_ms", "forward_backward_ms")}
        timings = []
        for name, group in named.items():
            forward, both = _middle(group, "forward_ms"), _middle(group, "forward_backward_ms")
            timings.append(
                Timing(
                    name=name,
                    ours=group[0]["peer"] is None,
                    forward=_ratio(forward, base["forward_ms"]),
                    forward_ms=forward,
                    forward_backward=_ratio(both, base["forward_backward_ms"]),
                    forward_backward_ms=both,
                    peak_mib=_middle(group, "peak_mib"),
                    extra_share=_middle(group, "extra_share"),
                    error=_middle(group, "error_vs_float64"),
                    measurements=len(group),
                )
            )
        commits = sorted({commit_text(r["commit"]) for r in today})
        found.append(
            Measurement(
                op=op,
                shape=", ".join(f"{k} {v}" for k, v in shape),
                dtype=dtype,
                device=device,
                origin=f"commit {', '.join(commits)}, {latest}, torch {', '.join(sorted({r['torch'] for r in today}))}",
                commands=tuple(dict.fromkeys(r["command"] for r in today)),
                unit=unit,
                timings=tuple(timings),
                note=uncommitted_note([r["commit"] for r in today]),
            )
        )
    return found
