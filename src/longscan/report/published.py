"""The published figures, kept as data in published.json."""

import json
from functools import cache
from importlib import resources
from typing import Any


@cache
def _data() -> dict[str, Any]:
    return json.loads(resources.files("longscan.report").joinpath("published.json").read_text("utf-8"))


def papers() -> dict[str, str]:
    """Key of a paper -> its title."""
    return _data()["papers"]


@cache
def published_ids() -> tuple[str, ...]:
    """The ids of all rows."""
    return tuple(row["id"] for row in _data()["results"])


def published_row(identity: str) -> dict[str, Any]:
    """The row with this id; ValueError where there is none."""
    for row in _data()["results"]:
        if row["id"] == identity:
            return row
    raise ValueError(f"published: got {identity!r}, needed the id of a row of published.json")


def published_beside(identity: str) -> list[dict[str, Any]]:
    """All models' rows of the table, task and metric that the row with this id belongs to, itself included."""
    row = published_row(identity)
    same = ("paper", "table", "task", "task_key", "metric", "unit")
    return [other for other in _data()["results"] if all(other[k] == row[k] for k in same)]


def figure_of(row: dict[str, Any]) -> float | None:
    """The figure that counts: the author's correction where there is one, none where the author withdrew it."""
    return None if row.get("superseded") else row.get("corrected_value", row["value"])
