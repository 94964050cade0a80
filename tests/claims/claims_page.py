"""Write docs/claims.md, the table of claims in claims.json with the tests that check them.

    python tests/claims/claims_page.py

The test of claim A01 has a name that begins with test_a01_, or claims.json names the tests of other folders that show it.
"""

import ast
import json
import re
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

from recorded_figures import fill_note

HERE = Path(__file__).parent
TESTS = HERE.parent
PAGE = TESTS.parent / "docs/claims.md"
PUBLISHED = TESTS.parent / "src/longscan/report/published.json"
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
    """A claim of a paper.

    Attributes:
        id: name of the claim, such as A01.
        paper: key of the paper in published.json.
        where: place in the paper.
        claim: the claim in our words.
        outcome: a key of `OUTCOMES`.
        note: what holds instead, or what is not shown.
        records: files under the root of the repository that the test reads, each with the command that makes it.
        tests: tests of the claim as FILE::NAME, with a path below tests/, if no test is named by the claim.
    """

    id: str
    paper: str
    where: str
    claim: str
    outcome: str
    note: str = ""
    records: tuple[dict[str, str], ...] = ()
    tests: tuple[str, ...] = ()


def outcome_of(identity: str) -> str:
    """Return the outcome of a claim in claims.json."""
    (result,) = (row.outcome for row in read_claims() if row.id == identity)
    return result


def combine_parts(*parts: bool) -> str:
    """Return the outcome of a claim, given whether each of its parts holds."""
    return "holds" if all(parts) else "shown in part" if any(parts) else "does not hold"


class ClaimTest(NamedTuple):
    """A test of a claim.

    Attributes:
        file: path below tests/.
        definition: the function.
    """

    file: str
    definition: ast.FunctionDef


def read_claims() -> list[Claim]:
    """Return the claims of claims.json, with figures of records in their notes."""
    rows = json.loads((HERE / "claims.json").read_text("utf-8"))["claims"]
    return [Claim(**row | {"note": fill_note(row["id"], row.get("note", ""))}) for row in rows]


@cache
def claim_tests() -> dict[str, list[ClaimTest]]:
    """Return the tests of each claim by its id: those whose names begin with the id, and those that claims.json names."""
    tests: dict[str, list[ClaimTest]] = {}
    for path in sorted(HERE.glob("test_claims_*.py")):
        for name, definition in read_functions(f"claims/{path.name}").items():
            if match := re.match(r"test_([a-z]\d\d)_", name):
                tests.setdefault(match[1].upper(), []).append(ClaimTest(f"claims/{path.name}", definition))
    for row in read_claims():
        for file, name in (test.split("::") for test in row.tests):
            tests.setdefault(row.id, []).append(ClaimTest(file, read_functions(file)[name]))
    return tests


@cache
def read_functions(file: str) -> dict[str, ast.FunctionDef]:
    """Return the functions of a test file by name."""
    body = ast.parse((TESTS / file).read_text("utf-8")).body
    return {node.name: node for node in body if isinstance(node, ast.FunctionDef)}


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def page_text() -> str:
    """Return the text of docs/claims.md."""
    titles: dict[str, str] = json.loads(PUBLISHED.read_text("utf-8"))["papers"]
    rows, tests = read_claims(), claim_tests()
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
        "from the claim as the paper states it. Notes of claims without a test say what a test needs. Paths of tests start in",
        "`tests`. For tests that read a record, the page names the command that made it; `results/README.md` has the present",
        "command where it was renamed. `python tests/claims/claims_page.py` makes this page from `claims.json`.",
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
            links = "; ".join(f"`{one.file}::{one.definition.name}`" for one in tests.get(row.id, [])) or "–"
            if row.records:
                links += "; " + "; ".join(f"{record['file']}: `{record['command']}`" for record in row.records)
            cells = (row.id, row.claim, row.where, row.outcome, row.note or "–", links)
            lines.append(f"| {' | '.join(map(_cell, cells))} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page_text(), encoding="utf-8")
