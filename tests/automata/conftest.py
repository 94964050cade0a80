"""A fixture that creates random automata."""

import random

import pytest

from longscan.automata import DFA


def make_random_automaton(seed: int, most_states: int = 10) -> DFA:
    """Return a random automaton of 2 to `most_states` states over two or three letters."""
    draw = random.Random(seed)
    states, letters = draw.randint(2, most_states), draw.randint(2, 3)
    delta = tuple(tuple(draw.randrange(states) for _ in range(letters)) for _ in range(states))
    return DFA(tuple("abc"[:letters]), delta, 0, frozenset(q for q in range(states) if draw.random() < 0.5))


@pytest.fixture
def make_automaton():
    """Return a function that creates random automata: make_automaton(seed, most_states=10)."""
    return make_random_automaton
