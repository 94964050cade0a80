"""The published scores, stored in published.json."""

import json
from functools import cache
from importlib import resources
from typing import Any


@cache
def _data() -> dict[str, Any]:
    return json.loads(resources.files("longscan.report").joinpath("published.json").read_text("utf-8"))


def papers() -> dict[str, str]:
    """Return the titles of the papers by their keys."""
    return _data()["papers"]


@cache
def published_ids() -> tuple[str, ...]:
    """Return the ids of all rows."""
    return tuple(row["id"] for row in _data()["results"])


def published_row(identity: str) -> dict[str, Any]:
    """Return the row with an id. Raises ValueError if there is none."""
    for row in _data()["results"]:
        if row["id"] == identity:
            return row
    raise ValueError(f"`published` must be the id of a row of published.json, got {identity!r}")


def published_table(identity: str) -> list[dict[str, Any]]:
    """Return the rows of all models with the same table, task and metric as the row with an id, including that row."""
    row = published_row(identity)
    same = ("paper", "table", "task", "task_key", "metric", "unit")
    return [other for other in _data()["results"] if all(other[k] == row[k] for k in same)]


def valid_score(row: dict[str, Any]) -> float | None:
    """Return the valid score of a row: the author's correction if there is one, None if the author withdrew it."""
    return None if row.get("superseded") else row.get("corrected_value", row["value"])
