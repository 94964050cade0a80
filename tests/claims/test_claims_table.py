"""Each claim has an outcome, each tested one a test that can fail, and docs/claims.md is up to date."""

import ast
from functools import cache

import pytest
from claim_helpers import read_results
from claims_page import OUTCOMES, PAGE, TESTED, TESTS, ClaimTest, claim_tests, combine_parts, page_text, read_claims

CLAIMS = read_claims()
IDS = {
    "AUSSM": [f"A{number:02}" for number in range(1, 43)],
    "S7": [f"S{number:02}" for number in range(1, 31)],
    "THESIS": [f"T{number:02}" for number in range(1, 56)],
    "MAMBA_LRA": [f"M{number:02}" for number in range(1, 22)],
}


def count_checks(test: ClaimTest) -> int:
    """Return the number of assertions of a test about values that it computes."""
    variables = (ast.Name, ast.Attribute, ast.Call)
    count = 0
    for node in ast.walk(test.definition):
        if isinstance(node, ast.Assert):
            count += any(isinstance(part, variables) for part in ast.walk(node.test))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            count += node.func.attr in ("assert_close", "assert_allclose", "gradcheck", "raises")
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            count += node.func.id.startswith("assert_")  # a comparison that tests share
    return count


# Functions of claim_helpers.py that compute or count operations, and those of the shared modules that read results/.
COMPUTING = {"blelloch_scan", "compose_affine_maps", "count_entries", "iterate_recurrence", "peak_memory"}
READING = {"read_results", "read_scaling", "kernel_wins_by_form", "ratios_to_s6", "trained_scores", "share_of_masked_time"}


@cache
def read_definitions(file: str) -> tuple[dict[str, ast.AST], dict[str, str]]:
    """Return the functions, classes and constants of a file by name, and `module.name` of each imported name."""
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


def names_used(test: ClaimTest) -> set[str]:
    """Return the names that a test uses, itself or in functions of its file; imported ones as `module.name`."""
    known, imported = read_definitions(test.file)
    seen: set[str] = set()
    waiting: list[ast.AST] = [test.definition]
    while waiting:
        for part in ast.walk(waiting.pop()):
            if isinstance(part, ast.Name) and part.id not in seen:
                seen.add(part.id)
                waiting += [known[part.id]] if part.id in known else []
    return {imported.get(name, name) for name in seen}


def runs_code(names: set[str]) -> bool:
    """Return whether a test runs code of the package or a computation of claim_helpers.py, given the names that it uses."""
    package = {name for name in names if name.startswith("longscan.") and not name.startswith("longscan.report.")}
    return bool(package or {f"claim_helpers.{name}" for name in COMPUTING} & names)


def reads_records(names: set[str]) -> bool:
    """Return whether a test reads records in results/, given the names that it uses."""
    return bool({f"{module}.{name}" for module in ("claim_helpers", "recorded_figures") for name in READING} & names)


def test_outcomes_and_their_combinations():
    assert list(OUTCOMES) == ["holds", "does not hold", "shown in part", "stated only", "data absent", "run not made"]
    assert [combine_parts(True, True), combine_parts(True, False), combine_parts(False, False)] == list(
        TESTED[:1] + TESTED[2:] + TESTED[1:2]
    )


def test_claims_are_complete_and_have_a_source_and_a_note():
    assert {paper: [row.id for row in CLAIMS if row.paper == paper] for paper in IDS} == IDS
    assert len(CLAIMS) == 148
    assert {row.outcome for row in CLAIMS} <= set(OUTCOMES)
    for row in CLAIMS:
        assert row.claim, row.id
        assert row.where, row.id
        assert row.note or row.outcome == "holds", f"{row.id} needs a note on what holds instead, or what is missing"
        parts = ("Shown" in row.note, "Not shown:" in row.note)
        assert parts == (row.outcome == "shown in part",) * 2, (
            f"{row.id} needs a note on the part that is shown and the part that is not"
        )


def test_each_named_test_belongs_to_a_claim():
    assert set(claim_tests()) <= {row.id for row in CLAIMS}


def test_claims_have_tests_exactly_if_their_outcome_is_tested():
    assert {row.id for row in CLAIMS if row.outcome in TESTED} == set(claim_tests())


def test_records_of_claims_have_the_command_that_makes_them():
    for row in CLAIMS:
        tests = claim_tests().get(row.id, [])
        assert bool(row.records) == any(reads_records(names_used(test)) for test in tests), row.id
        for record in row.records:
            rows = read_results(record["file"].removeprefix("results/"))
            assert any(made["command"].startswith(record["command"]) for made in rows), (row.id, record)


@pytest.mark.parametrize("row", [row for row in CLAIMS if row.outcome in TESTED], ids=lambda row: row.id)
def test_each_tested_claim_has_a_test_that_always_runs_and_can_fail(row):
    tests = claim_tests()[row.id]
    assert len(tests) == max(1, len(row.tests)), "one test is named by the claim, or claims.json names its tests"
    for test in tests:
        marks = {
            node.attr for mark in test.definition.decorator_list for node in ast.walk(mark) if isinstance(node, ast.Attribute)
        }
        assert not marks & {"skip", "skipif", "xfail", "slow"}, "a test of a claim must not be skipped"
        assert count_checks(test) > 0
        names = names_used(test)
        assert runs_code(names) or reads_records(names), "a test of printed figures alone shows nothing"


def test_a_test_of_printed_figures_alone_runs_no_code_and_reads_no_records():
    source = "def test_a01_x():\n    assert published_row('r001')\n"
    (printed,) = ast.parse(source).body
    assert isinstance(printed, ast.FunctionDef)
    names = names_used(ClaimTest("claims/test_claims_aussm.py", printed))
    assert names == {"longscan.report.published.published_row"}
    assert not runs_code(names)
    assert not reads_records(names)


def test_assertions_about_constants_do_not_count_as_checks():
    constant = ast.parse("def test_a01_constant():\n    assert 1 + 1 == 2\n    compute()\n").body[0]
    computed = ast.parse("def test_a01_computed():\n    assert compute() == 2\n").body[0]
    assert isinstance(constant, ast.FunctionDef)
    assert isinstance(computed, ast.FunctionDef)
    assert [count_checks(ClaimTest("", definition)) for definition in (constant, computed)] == [0, 1]


def test_claims_page_is_up_to_date():
    assert PAGE.read_text("utf-8") == page_text(), "run: python tests/claims/claims_page.py"
