"""The measurements of benchmarks/automata.py: their oracle agrees with the verdict, and a few of each find nothing wrong."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from longscan import automata


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    path = Path(__file__).parents[2] / "benchmarks" / "automata.py"
    spec = importlib.util.spec_from_file_location("benchmark_of_automata", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_solvability_is_found_independently(benchmark):
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
def test_a_few_of_each(benchmark):
    rows = list(benchmark.random_cases(quick=True))
    assert all(row["right"] for row in rows)
    assert {row["outcome"] for row in rows} == {"compiled", "refused", "limit"}
    counts = benchmark.mutation_cases(quick=True)
    assert counts["caught"] == counts["change the language"] == 20
    rows = list(benchmark.named_cases(quick=True))
    assert sum("refused" in row for row in rows) == 3
    assert all(row["wrong"] == 0 for row in rows if "wrong" in row)
    assert all(row["wrong"] == 0 for row in benchmark.long_cases(quick=True))
