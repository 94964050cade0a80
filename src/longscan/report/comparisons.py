"""Comparison of our records with published scores: runs grouped by task, and measurements grouped by op and shape."""

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import fsum
from statistics import median
from typing import Any

from longscan.report.page import commit_text, protocol_text, uncommitted_note
from longscan.report.published import published_row, published_table
from longscan.report.records import Record, apply_corrections
from longscan.report.statistics import mean_interval

BACKENDS = ("triton", "cpu", "eager", "reference")
# Options of a command that do not change what a recipe trains.
_NOT_OVERRIDES = ("training.seed", "training.threads", "training.device", "task.split_seed", "task.data_dir")
CHOSEN = {
    "test": "recipe made after test scores of other recipes had been seen",
    "validation": "recipe chosen by validation scores",
}


@dataclass(frozen=True, kw_only=True)
class Entry:
    """The runs of one setting over its distinct seeds, in the unit of its comparison.

    Attributes:
        protocol: whose protocol the data of the task follow, in words; empty if the task has one protocol only.
        scores: one score for each distinct seed with a finished run, the mean of that seed's finished runs.
        runs: number of finished runs.
        failed: number of seeds without a finished run.
        notes: remarks on these rows for the tables.
    """

    name: str
    model: str
    protocol: str
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
        """Mean and half width of the 95 % interval over distinct seeds; None if no run finished."""
        return mean_interval(self.scores) if self.scores else None


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One task and metric: our settings and the published rows, which are empty if no paper reports the task."""

    paper: str | None
    task: str
    metric: str
    unit: str
    source: str
    published: tuple[dict[str, Any], ...]
    entries: tuple[Entry, ...]


def _ids(row: Record) -> tuple[str, ...]:
    """Return the ids of the published rows that a run reproduces."""
    ids = row["published"]
    return () if ids is None else (ids,) if isinstance(ids, str) else tuple(ids)


def _groups(rows: Iterable[Record], key: Any) -> list[tuple[Any, list[Record]]]:
    """Group rows by a key function; keys are in the order of their first row."""
    groups: dict[Any, list[Record]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return list(groups.items())


def _scale(row: Record, published: Sequence[dict[str, Any]], field: str) -> float | None:
    """Return a score (`value` or `constant`) in the unit of the published scores: scaled, in per cent or in thousandths."""
    if not published:
        return row[field]
    scaled, factor = "scaled" in published[0]["metric"], _factor(published)
    name = ("scaled" if field == "value" else "constant_scaled") if scaled else field
    if name not in row:
        run = f"a run of {row['task']} (seed {row['seed']})"
        raise ValueError(f"{run} must have {name!r} for the comparison with {_ids(row)[0]}, got none")
    return None if row[name] is None else row[name] * factor


def _factor(published: Sequence[dict[str, Any]]) -> float:
    """Return the factor from 1 to the unit of the published scores."""
    unit = published[0]["unit"] if published else ""
    return 100 if unit.startswith("%") else {"1e-2": 100, "1e-3": 1000}.get(unit, 1)


def _settings(groups: Sequence[Sequence[Record]]) -> list[str]:
    """Return recipe (or steps) and overrides of each group whose model and suite another group has, too; "" for the others."""
    names = [(_model(rows[0]), rows[0]["suite"]) for rows in groups]
    return [
        "" if names.count(name) == 1 else " ".join((rows[0]["recipe"] or f"{rows[0]['steps']} steps", *overrides(rows[0])))
        for name, rows in zip(names, groups, strict=True)
    ]


def overrides(row: Record) -> tuple[str, ...]:
    """Return the options of a run's command that change its recipe, except seeds, threads, device and data folder."""
    words = [part for word in shlex.split(row["command"]) for part in (word.split("=", 1) if word[:2] == "--" else [word])]
    changes: list[str] = []
    for option, value in zip(words, [*words[1:], ""], strict=True):
        name = option.removeprefix("--")
        if option != name and ("." in name or name == "steps") and name not in _NOT_OVERRIDES:
            changes += [option, value]
    return tuple(changes)


def changed_settings(row: Record) -> dict[str, str]:
    """Return the values of `overrides` by name, without `training.capture`, which changes no result."""
    options = overrides(row)
    pairs = zip(options[::2], options[1::2], strict=True)
    return {option.removeprefix("--"): value for option, value in pairs if option != "--training.capture"}


def _setting(row: Record) -> tuple[object, ...]:
    """Return the key that the runs of one entry share."""
    return row["model"], row["spec"], row["suite"], row["recipe"] or row["steps"], overrides(row) if row["recipe"] else ()


def _model(row: Record) -> str:
    return f"{row['model']} ({row['spec']})" if row["spec"] and row["spec"] != row["model"] else row["model"]


def _notes(rows: Sequence[Record], finished: int, seeds: int) -> tuple[str, ...]:
    """Return the remarks on an entry's rows for the tables."""
    notes = [f"{finished} runs of {seeds} seeds: a seed counts once, with the mean of its runs"] if finished > seeds else []
    notes.append(uncommitted_note([r["commit"] for r in rows]))
    notes += [f"recipe replaced: {r['replaced']}" for r in rows if "replaced" in r]
    notes += [CHOSEN[r["chosen_on"]] for r in rows if r.get("chosen_on")]
    notes += [r["note"] for r in rows if "note" in r]
    return tuple(dict.fromkeys(filter(None, notes)))


def _changes(row: Record, setting: str) -> tuple[str, ...]:
    """Return a remark on the settings of a recipe that a run has changed, empty if there are none or `setting` names them.

    Runs whose command states the published rows themselves, as `longscan reproduce` does, have the settings of these rows.
    """
    changed = [f"--{name} {value}" for name, value in changed_settings(row).items()]
    if setting or not changed or row["recipe"] is None or "about.published" in row["command"]:
        return ()
    return (f"settings changed from those of {row['recipe']}: {' '.join(changed)}",)


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
    protocol = protocol_text(rows[0]["suite"])
    return Entry(
        name=", ".join(filter(None, (_model(rows[0]), protocol, setting))),
        model=_model(rows[0]),
        protocol=protocol,
        setting=setting,
        scores=tuple(fsum(scores) / len(scores) for scores in by_seed.values()),
        runs=len(finished),
        constant=mean_interval(constants)[0] if constants else None,
        baselines=baselines,
        failed=len({r["seed"] for r in rows} - {r["seed"] for r in finished}),
        notes=(*_notes(rows, len(finished), len(by_seed)), *_changes(rows[0], setting)),
        rows=tuple(rows),
    )


def compare(rows: Iterable[Record]) -> list[Comparison]:
    """Group runs by paper, task and metric, without quick runs and with corrected values in place of recorded ones.

    Raises ValueError for an unknown id of a published row, and for a run without the score that its published row needs.
    """

    def table(row: Record) -> tuple[str, ...]:
        references = [published_row(i) for i in _ids(row)]
        return tuple(dict.fromkeys(f"{r['table']} {r['metric']} {r['unit']}" for r in references))

    comparisons = []
    full = [apply_corrections(row) for row in rows if not row.get("quick")]
    for (paper, task, metric, _), members in _groups(full, lambda r: (r["paper"], r["task"], r["metric"], table(r))):
        related = {p["id"]: p for identity in _ids(members[0])[:1] for p in published_table(identity)}
        published = tuple(related.values())
        groups = [group for _, group in _groups(members, _setting)]
        comparisons.append(
            Comparison(
                paper=paper,
                task=task,
                metric=published[0]["metric"] if published else metric,
                unit=published[0]["unit"] if published else "",
                source=published[0]["table"] if published else "",
                published=published,
                entries=tuple(_entry(name, group, published) for name, group in zip(_settings(groups), groups, strict=True)),
            )
        )
    return comparisons


@dataclass(frozen=True, kw_only=True)
class Timing:
    """One implementation in one measurement: times relative to ours, and absolute times in milliseconds.

    ours: whether it is longscan's. extra_share: peak memory beyond inputs, outputs and their gradients, relative to these.
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
        """Whether the measurement has a time."""
        return self.forward_ms is not None or self.forward_backward_ms is not None


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """All implementations of one op at one shape, measured in one session."""

    op: str
    shape: str
    dtype: str
    device: str
    origin: str
    commands: tuple[str, ...]
    unit: str
    timings: tuple[Timing, ...]
    note: str


def _median(rows: Sequence[Record], field: str) -> float | None:
    """Return the median of a field over the rows that have it, None if none has it."""
    values = [r[field] for r in rows if r.get(field) is not None]
    return median(values) if values else None


def _ratio(time: float | None, unit: float | None) -> float | None:
    return None if time is None or not unit else time / unit


def _implementation(row: Record) -> str:
    """Return the name of the implementation that a row measures: our backend with its variant, or the peer."""
    return row["peer"] or ", ".join(filter(None, (f"longscan {row['backend']}", row.get("variant"))))


def measurements(rows: Iterable[Record]) -> list[Measurement]:
    """Group benchmark rows by op, shape, dtype and device; only rows of the latest day count, so ratios are of one session.

    Ratios are relative to our first available backend of triton, cpu, eager, reference. Rows that are points of a
    figure, or that have no times, are left out.
    """
    rows = [row for row in rows if "figure" not in row and "check" not in row]
    found = []
    for (op, shape, dtype, device), members in _groups(
        rows, lambda r: (r["op"], tuple(r["shape"].items()), r["dtype"], r["device"])
    ):
        latest = max(r["date"] for r in members)[:10]
        session = [r for r in members if r["date"][:10] == latest]
        named = dict(_groups(session, _implementation))
        unit = next((f"longscan {b}" for b in BACKENDS if f"longscan {b}" in named), next(iter(named)))
        base = {field: _median(named[unit], field) for field in ("forward_ms", "forward_backward_ms")}
        timings = []
        for name, group in named.items():
            forward, both = _median(group, "forward_ms"), _median(group, "forward_backward_ms")
            timings.append(
                Timing(
                    name=name,
                    ours=group[0]["peer"] is None,
                    forward=_ratio(forward, base["forward_ms"]),
                    forward_ms=forward,
                    forward_backward=_ratio(both, base["forward_backward_ms"]),
                    forward_backward_ms=both,
                    peak_mib=_median(group, "peak_mib"),
                    extra_share=_median(group, "extra_share"),
                    error=_median(group, "error_vs_float64"),
                    measurements=len(group),
                )
            )
        commits = sorted({commit_text(r["commit"]) for r in session})
        found.append(
            Measurement(
                op=op,
                shape=", ".join(f"{k} {v}" for k, v in shape),
                dtype=dtype,
                device=device,
                origin=f"commit {', '.join(commits)}, {latest}, torch {', '.join(sorted({r['torch'] for r in session}))}",
                commands=tuple(dict.fromkeys(r["command"] for r in session)),
                unit=unit,
                timings=tuple(timings),
                note=uncommitted_note([r["commit"] for r in session]),
            )
        )
    return found
