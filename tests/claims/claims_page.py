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

from recorded import fill_note

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs/claims.md"
PUBLISHED = HERE.parents[1] / "src/longscan/report/published.json"
OUTCOMES = {
    "holds": "a test shows it, by the code here or by a record that a named command makes again",
    "does not hold": "a test shows in the same way that it is not so; the note says what is",
    "shown in part": "a test shows one part; the note says which, and what is not shown",
    "stated only": "the paper's own text or table is all there is: no code or run of ours speaks to it",
    "data absent": "data that are not available here would settle it",
    "run not made": "runs or timings that can be made here would settle it, and are not recorded to their end",
}
TESTED = ("holds", "does not hold", "shown in part")


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A row: id, paper (its key in published.json), where it is printed, the claim in our words, outcome, and what was found.

    records: the files that its test reads under the root of the repository, each with the command that makes it again.
    """

    id: str
    paper: str
    where: str
    claim: str
    outcome: str
    note: str = ""
    records: tuple[dict[str, str], ...] = ()


def outcome(identity: str) -> str:
    """The outcome of a claim in claims.json."""
    (found,) = (row.outcome for row in claims() if row.id == identity)
    return found


def verdict(*parts: bool) -> str:
    """The outcome that follows from what was found of each part of a claim."""
    return "holds" if all(parts) else "shown in part" if any(parts) else "does not hold"


class Found(NamedTuple):
    """A test of a claim: the file it stands in, and its definition."""

    file: str
    definition: ast.FunctionDef


def claims() -> list[Claim]:
    """The rows of claims.json, with the figures of records in their notes."""
    rows = json.loads((HERE / "claims.json").read_text("utf-8"))["claims"]
    return [Claim(**row | {"note": fill_note(row["id"], row.get("note", ""))}) for row in rows]


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
        f"What four papers claim, {len(rows)} statements in our words, and what became of each here. No claim is settled by the",
        "paper's own table, and none by a bound that was chosen to fit a record: an outcome follows from the claim as the paper",
        "states it. Tests stand in `tests/claims`; those that read a record name the command that makes it again.",
        "This page is made from `claims.json` there by `python tests/claims/claims_page.py`.",
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
            if row.records:
                links += "; " + "; ".join(f"{record['file']}: `{record['command']}`" for record in row.records)
            cells = (row.id, row.claim, row.where, row.outcome, row.note or "–", links)
            lines.append(f"| {' | '.join(map(_cell, cells))} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
