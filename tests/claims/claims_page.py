"""Write the page docs/claims.md: the claims in claims.json and the tests that check them.

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
    "holds": "a test confirms it, with the code of this package or with a record whose command is named",
    "does not hold": "a test shows in the same way that it is not true; the note says what is true",
    "shown in part": "a test confirms one part; the note says which part, and what is not confirmed",
    "stated only": "there is only the text or the table of the paper; no code or run of this package tests it",
    "data absent": "a test needs data that are not available here",
    "run not made": "a test needs runs or timings that are possible here, but have not been recorded to their end",
}
TESTED = ("holds", "does not hold", "shown in part")


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim: id, paper (a key of published.json), where it is printed, the claim in our words, the outcome and a note.

    records: the files that the test of the claim reads, relative to the root of the repository, with the commands that make them.
    """

    id: str
    paper: str
    where: str
    claim: str
    outcome: str
    note: str = ""
    records: tuple[dict[str, str], ...] = ()


def outcome(identity: str) -> str:
    """Return the outcome of a claim in claims.json."""
    (found,) = (row.outcome for row in claims() if row.id == identity)
    return found


def verdict(*parts: bool) -> str:
    """Return the outcome that follows from whether each part of a claim is true."""
    return "holds" if all(parts) else "shown in part" if any(parts) else "does not hold"


class Found(NamedTuple):
    """The test of a claim: the name of its file, and its definition."""

    file: str
    definition: ast.FunctionDef


def claims() -> list[Claim]:
    """Return the rows of claims.json, with the figures of records inserted into their notes."""
    rows = json.loads((HERE / "claims.json").read_text("utf-8"))["claims"]
    return [Claim(**row | {"note": fill_note(row["id"], row.get("note", ""))}) for row in rows]


@cache
def named_tests() -> dict[str, list[Found]]:
    """Return the tests of each claim by its id, which is a part of the name of the test."""
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
    """Return the text of docs/claims.md."""
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
        f"This page lists {len(rows)} claims of four papers, in our words, and whether they were confirmed here. The table of a",
        "paper itself does not confirm a claim, and no test uses a bound that was chosen to fit a record: the outcome follows",
        "from the claim as the paper states it. The tests are in `tests/claims`; for tests that read a record, the page names",
        "the command that makes the record. `python tests/claims/claims_page.py` makes this page from `claims.json` there.",
        "",
        "| Outcome | Meaning | Claims |",
        "|---|---|---|",
    ]
    lines += [f"| {outcome} | {meaning} | {counts[outcome]} |" for outcome, meaning in OUTCOMES.items()]
    for key, title in titles.items():
        own = [row for row in rows if row.paper == key]
        share = ", ".join(f"{sum(row.outcome == outcome for row in own)} {outcome}" for outcome in OUTCOMES)
        lines += ["", f"## {title}", "", f"{len(own)} claims: {share}.", ""]
        lines += ["| Claim | Statement | Source | Outcome | Note | Test |", "|---|---|---|---|---|---|"]
        for row in own:
            links = "; ".join(f"`{found.file}::{found.definition.name}`" for found in named.get(row.id, [])) or "–"
            if row.records:
                links += "; " + "; ".join(f"{record['file']}: `{record['command']}`" for record in row.records)
            cells = (row.id, row.claim, row.where, row.outcome, row.note or "–", links)
            lines.append(f"| {' | '.join(map(_cell, cells))} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
