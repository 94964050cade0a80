"""The suite "automata" of benchmarks/run.py: its oracle agrees with the verdict, and small numbers of cases find no error."""

import sys
from argparse import Namespace
from pathlib import Path

import pytest

from longscan import automata

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from cases import automata as benchmark

QUICK = Namespace(quick=True)


def test_solvability_equals_that_of_the_independent_algorithm():
    verdicts = set()
    for seed in range(60):
        dfa = benchmark.random_automaton(seed).minimise()
        solvable = automata.analyse(dfa, monoid_limit=0).verdict != "non-solvable"
        assert benchmark.solvable_by_points(dfa) == solvable, seed
        verdicts.add(solvable)
    assert verdicts == {True, False}
    for name in automata.NAMED:
        if name not in ("A5", "S5"):
            assert benchmark.solvable_by_points(automata.named(name)) == (name != "S5 and a reset")


@pytest.mark.slow
def test_small_campaigns_find_no_error():
    rows = list(benchmark.random_outcomes(30))
    assert all(row["right"] for row in rows)
    assert {row["outcome"] for row in rows} == {"compiled", "refused", "limit"}
    counts = benchmark.count_mutants(20)
    assert counts["caught"] == counts["change the language"] == 20
    rows = list(benchmark.named_cases(QUICK))
    assert sum("refused" in row for row in rows) == 3
    assert all(row["wrong"] == 0 for row in rows if "wrong" in row)
    assert all(row["wrong"] == 0 for row in benchmark.long_cases(QUICK))
