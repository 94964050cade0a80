"""Scores of several seeds that were trained together: how many of them find the solution, and when."""

from collections.abc import Mapping
from dataclasses import dataclass

from longscan._specs import spec_names
from longscan.report.page import commit_text, protocol_text, uncommitted_note
from longscan.report.published import published_table, valid_score
from longscan.report.records import Record

# Published name of a model by the names of its blocks.
MODELS = {frozenset(["mamba"]): "Mamba", frozenset(["aussm"]): "AUSSM", frozenset(["mamba", "aussm"]): "AUSSM Hybrid"}


@dataclass(frozen=True, kw_only=True)
class Seeds:
    """One record: the scaled validation scores of its seeds at every evaluation.

    scores: a tuple for each evaluation with a score for each seed. success: the lowest score of a successful seed. published: the
    paper's score of the model. note: a remark for the tables.
    """

    name: str
    task: str
    model: str
    lengths: str
    seeds: tuple[int, ...]
    steps: tuple[int, ...]
    scores: tuple[tuple[float, ...], ...]
    success: float
    constant: float
    published: float | None
    command: str
    origin: str
    note: str

    @property
    def successes(self) -> tuple[int, ...]:
        """Number of successful seeds at every evaluation."""
        return tuple(sum(score >= self.success for score in row) for row in self.scores)

    @property
    def best(self) -> float:
        """The highest score of any seed at any evaluation."""
        return max(max(row) for row in self.scores)


def trained_together(records: Mapping[str, Record]) -> list[Seeds]:
    """Convert the records of `read_seeds` in their order; scores are of the averaged weights if a record has them."""
    return [_seeds(name, record) for name, record in records.items()]


def _seeds(name: str, record: Record) -> Seeds:
    low, high = record["settings"]["task"].get("eval_lengths") or (None, None)
    protocol = protocol_text(record["suite"])
    known = MODELS.get(frozenset(spec_names(record["spec"])))
    return Seeds(
        name=name,
        task=f"{record['task']} ({protocol})" if protocol else record["task"],
        model=f"{known} ({record['spec']})" if known else record["spec"],
        lengths="" if low is None else f"lengths {low} to {high}",
        seeds=tuple(record["seeds"]),
        steps=tuple(row["step"] for row in record["rows"]),
        scores=tuple(tuple(row.get("average", row["last"])) for row in record["rows"]),
        success=record["success"],
        constant=record["constant_scaled"],
        published=_published(record, known),
        command=record["command"],
        origin=f"commit {commit_text(record['commit'])}, {record['date'][:10]}, torch {record['torch']}, {record['device']}",
        note=uncommitted_note([record["commit"]]),
    )


def _published(record: Record, model: str | None) -> float | None:
    """Return the paper's scaled score of this model on the recipe's task, None without one; the recipe may name another model."""
    rows = [row for name in (record["settings"].get("about") or {}).get("published") or () for row in published_table(name)]
    found = (valid_score(row) for row in rows if row["model"] == model and "scaled" in row["metric"])
    return next(found, None)
