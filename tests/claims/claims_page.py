"""The table of claims, claims.json, beside the tests that check them, as the page docs/claims.md.

    python tests/claims/claims_page.py        writes the page

A test that is named test_a01_... is the test of claim A01.
"""

import ast
import json
import re
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs/claims.md"
PUBLISHED = HERE.parents[1] / "src/longscan/report/published.json"
OUTCOMES = {
    "holds": "a test shows it",
    "false as printed": "a test shows that it is not so, and what is",
    "needs data": "what would settle it is not here: a data set, a run or a timing",
    "open": "no data alone would settle it",
}
TESTED = ("holds", "false as printed")


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A row: id, paper (its key in published.json), where it is printed, the claim in our words, outcome, and what was found."""

    id: str
    paper: str
    where: str
    claim: str
    outcome: str
    note: str = ""


class Found(NamedTuple):
    """A test of a claim: the file it stands in, and its definition."""

    file: str
    definition: ast.FunctionDef


def claims() -> list[Claim]:
    """The rows of claims.json."""
    return [Claim(**row) for row in json.loads((HERE / "claims.json").read_text("utf-8"))["claims"]]


@cache
def named_tests() -> dict[str, list[Found]]:
    """Id of a claim -> the tests that are named by it."""
    found: dict[str, list[Found]] = {}
    for path in sorted(HERE.glob("test_claims_*.py")):
        for node in ast.parse(path.read_text("utf-8")).body:
            match = re.match(r"test_([a-z]\d\d)_", node.name) if isinstance(node, ast.FunctionDef) else None
            if match and isinstance(node, ast.FunctionDef):
                found.setdefault(match[1].upper(), []).append(Found(path.name, node))
    return found


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def page() -> str:
    """The text of docs/claims.md."""
    titles: dict[str, str] = json.loads(PUBLISHED.read_text("utf-8"))["papers"]
    rows, named = claims(), named_tests()
    counts = Counter(row.outcome for row in rows)
    lines = [
        "---",
        "hide: [toc]",
        "---",
        "",
        "# Claims",
        "",
        f"What four papers claim, {len(rows)} statements in our words, and what became of each here. A claim about what training",
        "gives is not settled by the paper's own table; that the table agrees may be tested, and then the note says so.",
        "Tests stand in `tests/claims`. This page is made from its `claims.json` by `python tests/claims/claims_page.py`.",
        "",
        "| Outcome | Meaning | Claims |",
        "|---|---|---|",
    ]
    lines += [f"| {outcome} | {meaning} | {counts[outcome]} |" for outcome, meaning in OUTCOMES.items()]
    for key, title in titles.items():
        own = [row for row in rows if row.paper == key]
        share = ", ".join(f"{sum(row.outcome == outcome for row in own)} {outcome}" for outcome in OUTCOMES)
        lines += ["", f"## {title}", "", f"{len(own)} claims: {share}.", ""]
        lines += ["| Claim | What is said | Where | Outcome | What was found | Test |", "|---|---|---|---|---|---|"]
        for row in own:
            links = "; ".join(f"`{found.file}::{found.definition.name}`" for found in named.get(row.id, [])) or "–"
            cells = (row.id, row.claim, row.where, row.outcome, row.note or "–", links)
            lines.append(f"| {' | '.join(map(_cell, cells))} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
