"""Deterministic finite automata and regular expressions."""

import itertools
import operator
import random
import re

import numpy as np
import pytest
import torch

from longscan import automata
from longscan.automata import DFA, LimitExceeded, RegexError, from_regex


def make_random_pattern(draw: random.Random, depth: int) -> str:
    if depth == 0:
        return draw.choice(["a", "b", "."])
    kind = draw.randrange(4)
    operands = [make_random_pattern(draw, depth - 1) for _ in range(2)]
    if kind == 0:
        return f"({operands[0]}|{operands[1]})"
    if kind == 1:
        return f"({operands[0]}){draw.choice('*+?')}"
    return operands[0] + operands[1]


def test_patterns_accept_the_words_that_re_accepts():
    draw = random.Random(0)
    words = ["".join(word) for length in range(7) for word in itertools.product("ab", repeat=length)]
    for _ in range(150):
        pattern = make_random_pattern(draw, draw.randint(1, 5))
        dfa = from_regex(pattern, "ab")
        assert [dfa.accepts(word) for word in words] == [re.fullmatch(pattern, word) is not None for word in words], pattern


@pytest.mark.parametrize("pattern", ["", "|a", "a|", "()", "(a|)*b"])
def test_empty_term_matches_the_empty_word(pattern):
    dfa = from_regex(pattern, "ab")
    for word in ("", "a", "b", "ab", "aab", "ba"):
        assert dfa.accepts(word) == (re.fullmatch(pattern, word) is not None)


@pytest.mark.parametrize(
    ("pattern", "position"),
    [("(ab", 1), ("ab)", 3), ("*a", 1), ("a|*", 3), ("a**", 3), ("a[bc]", 2), ("a\\b", 2), ("((a)", 1), ("a{2}", 2)],
)
def test_invalid_pattern_raises_with_its_position(pattern, position):
    with pytest.raises(RegexError, match=f"at position {position}$") as caught:
        from_regex(pattern, "ab")
    assert caught.value.position == position


def test_deeply_nested_pattern_raises_instead_of_exhausting_the_stack():
    assert from_regex("(" * 100 + "a" + ")*" * 100) == from_regex("a*")
    with pytest.raises(RegexError, match=r"opens more than 100 parentheses inside one another at position 101$"):
        from_regex("(" * 3000 + "a" + ")" * 3000)


def test_letter_outside_of_the_alphabet_raises():
    with pytest.raises(ValueError, match=r"alphabet.* letters with b of the pattern"):
        from_regex("ab", "a")
    with pytest.raises(ValueError, match=r"alphabet.* given for the pattern '\.\*', which has no letters"):
        from_regex(".*")
    for make in (lambda: from_regex("a*", {"a", "b"}), lambda: DFA({"a", "b"}, [[0, 0]], 0, [0])):
        with pytest.raises(
            ValueError, match="`alphabet` must be letters in an order, such as a text or a list, as a set has none"
        ):
            make()
    with pytest.raises(ValueError, match=r"`alphabet` must be at least one letter, got ''"):
        from_regex("ab", "")
    with pytest.raises(ValueError, match="`pattern` must be text, got None"):
        from_regex(None)
    with pytest.raises(ValueError, match=r"word\[1\].* one of a, b"):
        from_regex("(ab)*").accepts("ac")


def test_automata_of_patterns_have_the_known_sizes():
    sizes = {"(ab)*": 3, "a*b*": 3, ".*aba.*": 4, "(a|b)*": 1, "(a|b)*a(a|b)(a|b)": 8}
    assert {pattern: from_regex(pattern, "ab").size for pattern in sizes} == sizes


def test_minimised_automaton_is_minimal_and_equivalent(make_automaton):
    for seed in range(60):
        dfa = make_automaton(seed)
        small = dfa.minimise()
        words = np.random.default_rng(seed).integers(0, len(dfa.alphabet), (50, 20))
        accept = [np.isin(a.run(words), list(a.accept)) for a in (dfa, small)]
        np.testing.assert_array_equal(*accept)
        assert small.minimise() == small
        # some word distinguishes every two states, and every state is reached
        equal = {(p, q) for p in range(small.size) for q in range(small.size) if (p in small.accept) == (q in small.accept)}
        for _ in range(small.size):
            equal = {(p, q) for p, q in equal if all(pair in equal for pair in zip(small.delta[p], small.delta[q], strict=True))}
        assert all(p == q for p, q in equal)
        assert small.trim().size == small.size


def test_product_and_complement_follow_the_boolean_operation():
    even, ends = automata.mod(2), from_regex("(0|1)*1")
    both = even.product(ends, operator.and_)
    neither = even.complement().product(ends.complement(), operator.and_)
    either = even.product(ends, operator.or_)
    for length in range(7):
        for letters in itertools.product("01", repeat=length):
            word = "".join(letters)
            first, second = word.count("1") % 2 == 0, word.endswith("1")
            assert both.accepts(word) == (first and second)
            assert neither.accepts(word) == (not first and not second)
            assert either.accepts(word) == (first or second)
    with pytest.raises(ValueError, match=r"other\.alphabet"):
        even.product(from_regex("a"), operator.and_)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((), ((),), 0, ()), "at least one letter"),
        ((("a", "a"), ((0, 0),), 0, ()), "all different"),
        ((("a",), (), 0, ()), "a table with at least one row"),
        ((("a",), ((0, 0),), 0, ()), "delta[0]"),
        ((("a",), ((1,),), 0, ()), "a state from 0 to 0 for each of 1 letters"),
        ((("a",), ((0,),), 1, ()), "start"),
        ((("a",), ((0,),), 0, (3,)), "accept"),
        ((("a",), ((0.7,),), 0, ()), "`delta[0]` must be the number of a state, got 0.7"),
        ((("a",), (0,), 0, ()), "`delta[0]` must be a collection of states, got 0"),
        ((("a",), None, 0, ()), "`delta` must be a collection, got None"),
        ((("a",), ((0,), (1,)), 0.5, ()), "`start` must be the number of a state, got 0.5"),
        ((("a",), ((0,), (1,)), True, ()), "`start` must be the number of a state, got True"),
        ((("a",), ((0,),), 0, ("0",)), "`accept` must be the number of a state, got '0'"),
        ((("a",), ((0,),), 0, 0), "`accept` must be a collection, got 0"),
    ],
)
def test_invalid_automaton_raises(arguments, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        DFA(*arguments)


def test_states_may_be_numbers_of_numpy_or_tensors():
    dfa = DFA(["a"], np.array([[1], [0]]), np.int64(1), np.array([0]))
    assert dfa == DFA(("a",), ((1,), (0,)), 1, frozenset({0}))
    assert type(dfa.start) is int
    assert dfa == DFA(("a",), torch.tensor([[1], [0]]), torch.tensor(1), torch.tensor([0]))
    with pytest.raises(ValueError, match=r"`delta\[0\]` must be the number of a state, got tensor\(0.5000\)"):
        DFA(("a",), torch.tensor([[0.5]]), 0, ())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([[0, -1]], "`words` must have whole numbers from 0 to 1, the letters' numbers, got -1 to 0, int64"),
        ([[0, 2]], "got 0 to 2, int64"),
        ([[0.0, 1.0]], "got 0.0 to 1.0, float64"),
        ([0, 1], "`words` must have shape (B, L), got (2,)"),
    ],
)
def test_invalid_letter_numbers_raise(words, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        automata.mod(2).run(np.array(words))


def test_arguments_of_functions_of_an_automaton():
    for function in (automata.analyse, automata.compile, automata.model_size):
        with pytest.raises(TypeError, match=r"`dfa` must be a DFA, such as automata.from_regex\('\(ab\)\*'\), got 'a\*'"):
            function("a*")
    with pytest.raises(LimitExceeded, match="at most 2 image sets are allowed, got at least 3"):
        automata.analyse(automata.mod(2), set_limit=2)
    twice = DFA(("a",), ((1,), (0,)), 0, frozenset({0, 1}))
    assert automata.model_size(twice, minimise=False).counters == (2,)
    assert automata.model_size(twice).counters == ()
    with pytest.raises(ValueError, match="`length` must be a whole number of at least 1 or None, got -1"):
        automata.compile(automata.mod(2), length=-1)


def test_named_languages_accept_the_expected_words():
    assert automata.named("mod 7").size == 7
    assert automata.named("Dyck depth 2").accepts("(())()")
    assert not automata.named("Dyck depth 2").accepts("((()))")
    assert automata.named("cycle navigation mod 4").accepts("++++-+")
    assert automata.word_problem([(1, 2, 0)]).accepts("aaa")
    for name in ("S17", "mod 0", "mod x"):
        with pytest.raises(ValueError, match=rf"`name` must be one of .* S4, .*, got '{name}'"):
            automata.named(name)
    with pytest.raises(ValueError, match="`maps` must be maps of the same number of states"):
        automata.from_maps({"a": (1, 0), "b": (0, 1, 2)})
    with pytest.raises(ValueError, match=r"`perms` must be 1 to 26 permutations, or a mapping .*, got \[\]"):
        automata.word_problem([])
    with pytest.raises(ValueError, match=r"perms\['a'\].* a permutation of 0 to 1"):
        automata.word_problem([(0, 0)])
    for make in (automata.mod, automata.dyck, automata.cycle_navigation):
        with pytest.raises(ValueError, match="a whole number of at least 1"):
            make(0)
