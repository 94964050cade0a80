"""The cascade as a program: right on every word, proved by its tables, and every corruption that matters caught."""

import random
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from longscan import automata
from longscan.automata.cascade import build_program
from longscan.automata.certificate import check_product, check_program
from longscan.automata.languages import NAMED
from longscan.automata.program import HOLD, Branch, Op, Program
from longscan.automata.skeleton import build_skeleton

SOLVABLE = [name for name in NAMED if name not in ("A5", "S5", "S5 and a reset")]


def compiled(dfa: automata.DFA, series: str = "abelian") -> Program:
    return build_program(build_skeleton(dfa), dfa.start, series)


def errors(program: Program, dfa: automata.DFA, words: int = 100, length: int = 60) -> int:
    drawn = np.random.default_rng(0).integers(0, len(dfa.alphabet), (words, length))
    return int((program.states(program.run(drawn)) != dfa.run(drawn)).sum())


@pytest.mark.parametrize("series", ["abelian", "prime"])
@pytest.mark.parametrize("name", SOLVABLE)
def test_named_cases(name, series):
    dfa = NAMED[name]().minimise()
    program = compiled(dfa, series)
    proof = check_program(program, dfa)
    assert proof.problems == []
    assert errors(program, dfa) == 0
    assert check_product(program, dfa) in (True, None)


def test_random_automata(automaton):
    searched = 0
    for seed in range(40):
        dfa = automaton(seed, 8).minimise()
        if automata.analyse(dfa, 0).verdict == "non-solvable":
            continue
        program = compiled(dfa)
        assert check_program(program, dfa).problems == []
        assert errors(program, dfa) == 0
        searched += check_product(program, dfa, 2000) is True
    assert searched > 15


def test_the_proof_is_of_one_automaton():
    """A program is not proved against another automaton, or another start."""
    dfa = NAMED["S3 and resets"]()
    program = compiled(dfa)
    assert check_program(program, dfa).is_proved
    assert not check_program(program, replace(dfa, start=1)).is_proved
    assert not check_program(program, replace(dfa, delta=(*dfa.delta[:2], dfa.delta[0]))).is_proved
    assert not check_program(program, automata.mod(4)).is_proved


def mutants(program: Program, draw: random.Random) -> Iterator[tuple[Program, str]]:
    """Programs with one entry of one table changed, without end."""
    while True:
        number = draw.randrange(len(program.ops))
        op = program.ops[number]
        size = program.fields[op.output].size
        branch_number = draw.randrange(len(op.branches))
        branch = op.branches[branch_number]
        if not branch.rows:
            continue
        key = draw.choice(list(branch.rows))
        choices = [value for value in ([HOLD] if op.kind == "flip-flop" else []) + list(range(size)) if value != branch.rows[key]]
        rows = {**branch.rows, key: draw.choice(choices)}
        branches = list(op.branches)
        branches[branch_number] = Branch(branch.wires, rows)
        yield program.replace_op(number, Op(op.kind, op.output, tuple(branches), op.default)), f"op {number}, {key}"


@pytest.mark.parametrize("name", ["S3 and resets", "Dyck depth 3", "S4 and a map of rank 3"])
def test_corruptions_are_caught(name):
    """None that changes an answer passes; and the search over products finds most of them, so they do change answers."""
    dfa = NAMED[name]()
    wrong = 0
    for mutant, what in (pair for pair, _ in zip(mutants(compiled(dfa), random.Random(0)), range(40), strict=False)):
        changes = errors(mutant, dfa, 50, 40) > 0 or check_product(mutant, dfa, 3000) is False
        wrong += changes
        assert not (changes and check_program(mutant, dfa).is_proved), what
    assert wrong > 20


def test_malformed_programs_are_refused():
    dfa = NAMED["flip-flop and parity"]()
    program = compiled(dfa)
    number = next(i for i, op in enumerate(program.ops) if op.kind == "lookup")
    op = program.ops[number]
    outside = program.replace_op(number, replace(op, default=program.fields[op.output].size))
    assert "writes values" in check_program(outside, dfa).problems[0]
    twice = program.replace_op(number, replace(op, branches=(*op.branches, op.branches[0])))
    assert "two rows of one table apply at the same time" in check_program(twice, dfa).problems[0]
    same_field = program.replace_op(number, replace(op, output=program.ops[0].output))
    assert "two ops write one field" in check_program(same_field, dfa).problems


def test_counters_have_prime_length_in_the_prime_series():
    dfa = NAMED["F20 on 5 points"]()
    sizes = {series: [f.size for f in compiled(dfa, series).fields if f.is_counter] for series in ("abelian", "prime")}
    assert sizes == {"abelian": [4, 5], "prime": [2, 2, 5]}
