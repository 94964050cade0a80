"""Every claim has an outcome, every outcome that needs a test has one that can fail, and the page shows them."""

import ast

import pytest
from claims_page import OUTCOMES, PAGE, TESTED, Found, claims, named_tests, page

CLAIMS = claims()
IDS = {
    "AUSSM": [f"A{number:02}" for number in range(1, 43)],
    "S7": [f"S{number:02}" for number in range(1, 31)],
    "THESIS": [f"T{number:02}" for number in range(1, 56)],
    "MAMBA_LRA": [f"M{number:02}" for number in range(1, 22)],
}


def checks(found: Found) -> int:
    """How many of a test's statements compare something that the test computes."""
    variables = (ast.Name, ast.Attribute, ast.Call)
    count = 0
    for node in ast.walk(found.definition):
        if isinstance(node, ast.Assert):
            count += any(isinstance(part, variables) for part in ast.walk(node.test))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            count += node.func.attr in ("assert_close", "assert_allclose", "raises")
    return count


def test_every_claim_has_its_row():
    assert {paper: [row.id for row in CLAIMS if row.paper == paper] for paper in IDS} == IDS
    assert len(CLAIMS) == 148
    assert {row.outcome for row in CLAIMS} <= set(OUTCOMES)
    for row in CLAIMS:
        assert row.claim, row.id
        assert row.where, row.id
        assert row.note or row.outcome == "holds", f"{row.id}: what holds instead, or what is missing, is not said"


def test_every_test_is_of_a_claim():
    assert set(named_tests()) <= {row.id for row in CLAIMS}


def test_what_is_tested_of_an_unsettled_claim_is_said():
    for row in CLAIMS:
        if row.outcome not in TESTED:
            assert (row.id in named_tests()) == ("tested" in row.note.lower()), row.id


@pytest.mark.parametrize("row", [row for row in CLAIMS if row.outcome in TESTED], ids=lambda row: row.id)
def test_what_holds_or_is_false_has_a_test_that_can_fail(row):
    (found,) = named_tests()[row.id]
    marks = {node.attr for mark in found.definition.decorator_list for node in ast.walk(mark) if isinstance(node, ast.Attribute)}
    assert not marks & {"skip", "skipif", "xfail", "slow"}, "it must run with all the others"
    assert checks(found) > 0


def test_the_checks_of_a_test_are_told_from_what_cannot_fail():
    idle = ast.parse("def test_a01_idle():\n    assert 1 + 1 == 2\n    compute()\n").body[0]
    busy = ast.parse("def test_a01_busy():\n    assert compute() == 2\n").body[0]
    assert isinstance(idle, ast.FunctionDef)
    assert isinstance(busy, ast.FunctionDef)
    assert [checks(Found("", definition)) for definition in (idle, busy)] == [0, 1]


def test_the_page_is_that_of_the_table():
    assert PAGE.read_text("utf-8") == page(), "run: python tests/claims/claims_page.py"
