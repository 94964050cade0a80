"""What the tests of automata share: random automata, and names."""

import random

import pytest

from longscan.automata import DFA


def random_automaton(seed: int, most_states: int = 10) -> DFA:
    """A random automaton of 2 to `most_states` states over two or three letters."""
    draw = random.Random(seed)
    states, letters = draw.randint(2, most_states), draw.randint(2, 3)
    delta = tuple(tuple(draw.randrange(states) for _ in range(letters)) for _ in range(states))
    return DFA(tuple("abc"[:letters]), delta, 0, frozenset(q for q in range(states) if draw.random() < 0.5))


@pytest.fixture
def automaton():
    """Makes random automata: automaton(seed, most_states=10)."""
    return random_automaton
