"""The cascade as a program: it is right for every word, its tables prove this, and changed tables are rejected."""

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


def compile_program(dfa: automata.DFA, series: str = "abelian") -> Program:
    return build_program(build_skeleton(dfa), dfa.start, series)


def count_errors(program: Program, dfa: automata.DFA, count: int = 100, length: int = 60) -> int:
    words = np.random.default_rng(0).integers(0, len(dfa.alphabet), (count, length))
    return int((program.states(program.run(words)) != dfa.run(words)).sum())


@pytest.mark.parametrize("series", ["abelian", "prime"])
@pytest.mark.parametrize("name", SOLVABLE)
def test_program_of_a_named_automaton_is_proved_and_right(name, series):
    dfa = NAMED[name]().minimise()
    program = compile_program(dfa, series)
    proof = check_program(program, dfa)
    assert proof.problems == []
    assert count_errors(program, dfa) == 0
    assert check_product(program, dfa) in (True, None)


def test_program_of_a_random_automaton_is_proved_and_right(make_automaton):
    n_searched = 0
    for seed in range(40):
        dfa = make_automaton(seed, 8).minimise()
        if automata.analyse(dfa, 0).verdict == "non-solvable":
            continue
        program = compile_program(dfa)
        assert check_program(program, dfa).problems == []
        assert count_errors(program, dfa) == 0
        n_searched += check_product(program, dfa, 2000) is True
    assert n_searched > 15


def test_proof_of_another_automaton_fails():
    """The other automata differ in the start, in a transition, or completely."""
    dfa = NAMED["S3 and resets"]()
    program = compile_program(dfa)
    assert check_program(program, dfa).is_proved
    assert not check_program(program, replace(dfa, start=1)).is_proved
    assert not check_program(program, replace(dfa, delta=(*dfa.delta[:2], dfa.delta[0]))).is_proved
    assert not check_program(program, automata.mod(4)).is_proved


def generate_mutants(program: Program, draw: random.Random) -> Iterator[tuple[Program, str]]:
    """Yield programs with one changed entry of one table, without end."""
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
def test_mutant_that_changes_answers_is_not_proved(name):
    """More than half of the mutants change an answer."""
    dfa = NAMED[name]()
    n_wrong = 0
    for mutant, description in (
        pair for pair, _ in zip(generate_mutants(compile_program(dfa), random.Random(0)), range(40), strict=False)
    ):
        changes_answers = count_errors(mutant, dfa, 50, 40) > 0 or check_product(mutant, dfa, 3000) is False
        n_wrong += changes_answers
        assert not (changes_answers and check_program(mutant, dfa).is_proved), description
    assert n_wrong > 20


def test_malformed_program_is_not_proved():
    dfa = NAMED["flip-flop and parity"]()
    program = compile_program(dfa)
    number = next(i for i, op in enumerate(program.ops) if op.kind == "lookup")
    op = program.ops[number]
    outside = program.replace_op(number, replace(op, default=program.fields[op.output].size))
    assert "writes values" in check_program(outside, dfa).problems[0]
    twice = program.replace_op(number, replace(op, branches=(*op.branches, op.branches[0])))
    assert "`branches` must have one row for each input, got two that apply" in check_program(twice, dfa).problems[0]
    same_field = program.replace_op(number, replace(op, output=program.ops[0].output))
    assert "two ops write one field" in check_program(same_field, dfa).problems


def test_prime_series_gives_counters_of_prime_size():
    dfa = NAMED["F20 on 5 points"]()
    sizes = {series: [f.size for f in compile_program(dfa, series).fields if f.is_counter] for series in ("abelian", "prime")}
    assert sizes == {"abelian": [4, 5], "prime": [2, 2, 5]}
