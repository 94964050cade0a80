"""Every claim has an outcome, every settled claim a test that can fail, and docs/claims.md shows them."""

import ast
from functools import cache

import pytest
from claims_page import OUTCOMES, PAGE, TESTED, TESTS, Found, claims, named_tests, page, verdict
from counted import records

CLAIMS = claims()
IDS = {
    "AUSSM": [f"A{number:02}" for number in range(1, 43)],
    "S7": [f"S{number:02}" for number in range(1, 31)],
    "THESIS": [f"T{number:02}" for number in range(1, 56)],
    "MAMBA_LRA": [f"M{number:02}" for number in range(1, 22)],
}


def checks(found: Found) -> int:
    """Return how many statements of a test compare a value that the test computes."""
    variables = (ast.Name, ast.Attribute, ast.Call)
    count = 0
    for node in ast.walk(found.definition):
        if isinstance(node, ast.Assert):
            count += any(isinstance(part, variables) for part in ast.walk(node.test))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            count += node.func.attr in ("assert_close", "assert_allclose", "gradcheck", "raises")
    return count


COUNTED = {"blelloch", "compose", "entries", "loop", "peak"}  # of counted.py: they run code and count what it does
RECORDED = {"records", "scaling", "beaten_forms", "ratios_to_s6"}  # of counted.py and recorded.py: they read results/


@cache
def definitions(file: str) -> tuple[dict[str, ast.AST], dict[str, str]]:
    """Return the functions and constants of a file by name, and what it imports as name -> `module.name`."""
    tree = ast.parse((TESTS / file).read_text("utf-8"))
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    constants = {
        target.id: node
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    imported = {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    return {**functions, **constants}, imported


def names_used(found: Found) -> set[str]:
    """Return the names that a test uses, directly or by functions of its module; imported ones as `module.name`."""
    known, imported = definitions(found.file)
    seen: set[str] = set()
    waiting: list[ast.AST] = [found.definition]
    while waiting:
        for part in ast.walk(waiting.pop()):
            if isinstance(part, ast.Name) and part.id not in seen:
                seen.add(part.id)
                waiting += [known[part.id]] if part.id in known else []
    return {imported.get(name, name) for name in seen}


def runs_code(names: set[str]) -> bool:
    """Return whether a test runs code: of the package, or a computation whose operations are counted."""
    package = {name for name in names if name.startswith("longscan.") and not name.startswith("longscan.report.")}
    return bool(package or {f"counted.{name}" for name in COUNTED} & names)


def reads_records(names: set[str]) -> bool:
    """Return whether a test reads a record of results/."""
    return bool({f"{module}.{name}" for module in ("counted", "recorded") for name in RECORDED} & names)


def test_the_outcomes_are_these_six():
    assert list(OUTCOMES) == ["holds", "does not hold", "shown in part", "stated only", "data absent", "run not made"]
    assert [verdict(True, True), verdict(True, False), verdict(False, False)] == list(TESTED[:1] + TESTED[2:] + TESTED[1:2])


def test_every_claim_has_its_row():
    assert {paper: [row.id for row in CLAIMS if row.paper == paper] for paper in IDS} == IDS
    assert len(CLAIMS) == 148
    assert {row.outcome for row in CLAIMS} <= set(OUTCOMES)
    for row in CLAIMS:
        assert row.claim, row.id
        assert row.where, row.id
        assert row.note or row.outcome == "holds", f"{row.id}: what holds instead, or what is missing, is not said"
        parts = ("Shown" in row.note, "Not shown:" in row.note)
        assert parts == (row.outcome == "shown in part",) * 2, f"{row.id}: which part is shown and which is not"


def test_every_test_is_of_a_claim():
    assert set(named_tests()) <= {row.id for row in CLAIMS}


def test_only_settled_claims_have_tests():
    assert {row.id for row in CLAIMS if row.outcome in TESTED} == set(named_tests())


def test_a_record_is_named_with_a_command_that_makes_it():
    for row in CLAIMS:
        tests = named_tests().get(row.id, [])
        assert bool(row.records) == any(reads_records(names_used(found)) for found in tests), row.id
        for record in row.records:
            rows = records(record["file"].removeprefix("results/"))
            assert any(made["command"].startswith(record["command"]) for made in rows), (row.id, record)


@pytest.mark.parametrize("row", [row for row in CLAIMS if row.outcome in TESTED], ids=lambda row: row.id)
def test_what_is_settled_has_a_test_that_can_fail(row):
    tests = named_tests()[row.id]
    assert len(tests) == max(1, len(row.tests)), "either a test is named by the claim, or claims.json names its tests"
    for test in tests:
        marks = {
            node.attr for mark in test.definition.decorator_list for node in ast.walk(mark) if isinstance(node, ast.Attribute)
        }
        assert not marks & {"skip", "skipif", "xfail", "slow"}, "it must run with all the others"
        assert checks(test) > 0
        names = names_used(test)
        assert runs_code(names) or reads_records(names), "it compares printed figures alone"


def test_printed_figures_are_told_from_code_and_records():
    source = "def test_a01_x():\n    assert published_row('r001')\n"
    (printed,) = ast.parse(source).body
    assert isinstance(printed, ast.FunctionDef)
    names = names_used(Found("claims/test_claims_aussm.py", printed))
    assert names == {"longscan.report.published.published_row"}
    assert not runs_code(names)
    assert not reads_records(names)


def test_the_checks_of_a_test_are_told_from_what_cannot_fail():
    idle = ast.parse("def test_a01_idle():\n    assert 1 + 1 == 2\n    compute()\n").body[0]
    busy = ast.parse("def test_a01_busy():\n    assert compute() == 2\n").body[0]
    assert isinstance(idle, ast.FunctionDef)
    assert isinstance(busy, ast.FunctionDef)
    assert [checks(Found("", definition)) for definition in (idle, busy)] == [0, 1]


def test_the_page_is_that_of_the_table():
    assert PAGE.read_text("utf-8") == page(), "run: python tests/claims/claims_page.py"
