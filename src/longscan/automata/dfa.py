"""Deterministic finite automata: complete, immutable, with letters numbered in the order of the alphabet."""

import operator
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import SupportsIndex, cast

import numpy as np

from longscan._errors import setting_error

Word = str | Sequence[str]


def _states(name: str, states: Iterable[object]) -> tuple[int, ...]:
    """Return the numbers of states as int. Raises SettingError naming the argument for anything but whole numbers."""
    if not isinstance(states, Iterable):
        raise setting_error(name, states, "a collection of states")
    numbers = []
    for state in states:
        try:
            number = None if isinstance(state, bool) else operator.index(cast("SupportsIndex", state))
        except TypeError:
            number = None
        if number is None:
            raise setting_error(name, state, "the number of a state")
        numbers.append(number)
    return tuple(numbers)


def ordered_letters(alphabet: Iterable[str]) -> tuple[str, ...]:
    """Return the letters as a tuple. Raises ValueError for a set, whose order, that of the letters' numbers, is arbitrary."""
    if not isinstance(alphabet, Iterable):
        raise setting_error("alphabet", alphabet, "a collection")
    if isinstance(alphabet, Set):
        raise setting_error("alphabet", alphabet, "letters in an order, such as a text or a list, as a set has none")
    return tuple(alphabet)


@dataclass(frozen=True)
class DFA:
    """A complete deterministic automaton.

    Args:
        alphabet: the letters, distinct non-empty strings.
        delta: `delta[state][letter]` is the next state, both by number.
        start: the state before any letter.
        accept: the accepting states.

    Raises ValueError naming the invalid argument.

    >>> DFA(("a", "b"), ((1, 0), (0, 1)), 0, frozenset({1})).accepts("aab")
    False
    """

    alphabet: tuple[str, ...]
    delta: tuple[tuple[int, ...], ...]
    start: int
    accept: frozenset[int]

    def __post_init__(self) -> None:
        for name in ("delta", "accept"):
            if not isinstance(getattr(self, name), Iterable):
                raise setting_error(name, getattr(self, name), "a collection")
        object.__setattr__(self, "alphabet", ordered_letters(self.alphabet))
        object.__setattr__(self, "delta", tuple(_states(f"delta[{state}]", row) for state, row in enumerate(self.delta)))
        object.__setattr__(self, "start", _states("start", [self.start])[0])
        object.__setattr__(self, "accept", frozenset(_states("accept", self.accept)))
        letters, states = len(self.alphabet), len(self.delta)
        if not letters or len(set(self.alphabet)) < letters or not all(isinstance(x, str) and x for x in self.alphabet):
            raise setting_error("alphabet", self.alphabet, "at least one letter, all different and not empty")
        if not states:
            raise setting_error("delta", self.delta, "a table with at least one row")
        for state, row in enumerate(self.delta):
            if len(row) != letters or not all(0 <= target < states for target in row):
                raise setting_error(f"delta[{state}]", row, f"a state from 0 to {states - 1} for each of {letters} letters")
        if not 0 <= self.start < states:
            raise setting_error("start", self.start, f"a state from 0 to {states - 1}")
        if not all(0 <= state < states for state in self.accept):
            raise setting_error("accept", sorted(self.accept), f"states from 0 to {states - 1}")

    @property
    def size(self) -> int:
        """Number of states."""
        return len(self.delta)

    @cached_property
    def table(self) -> np.ndarray:
        """The next states as an array (states, letters), int64."""
        return np.array(self.delta, dtype=np.int64)

    @property
    def maps(self) -> tuple[tuple[int, ...], ...]:
        """The action of each letter on the states: `maps[letter][state]`."""
        return tuple(zip(*self.delta, strict=True))

    @property
    def sinks(self) -> tuple[int, ...]:
        """The states that every letter maps to themselves."""
        return tuple(state for state, row in enumerate(self.delta) if set(row) == {state})

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {letter: number for number, letter in enumerate(self.alphabet)}

    def encode(self, word: Word) -> list[int]:
        """Return the numbers of a word's letters. Raises ValueError naming an unknown letter and its position, counted from 1."""
        for position, letter in enumerate(word, 1):
            if letter not in self._numbers:
                raise setting_error(f"word[{position - 1}]", letter, f"one of {', '.join(self.alphabet)}")
        return [self._numbers[letter] for letter in word]

    def accepts(self, word: Word) -> bool:
        """Return whether a word is in the language."""
        state = self.start
        for letter in self.encode(word):
            state = self.delta[state][letter]
        return state in self.accept

    def run(self, words: np.ndarray) -> np.ndarray:
        """Return the state after every letter of words (B, L) of letter numbers, (B, L) int64.

        Raises ValueError for another number of axes and for numbers that no letter has.
        """
        words = np.asarray(words)
        if words.ndim != 2:
            raise ValueError(f"`words` must have shape (B, L), got {words.shape}")
        letters = len(self.alphabet)
        if words.size and (words.dtype.kind not in "iu" or words.min() < 0 or words.max() >= letters):
            got = f"{words.min()} to {words.max()}, {words.dtype}"
            raise ValueError(f"`words` must have whole numbers from 0 to {letters - 1}, the letters' numbers, got {got}")
        states = np.empty(words.shape, np.int64)
        state = np.full(words.shape[0], self.start, np.int64)
        for t in range(words.shape[1]):
            state = self.table[state, words[:, t]]
            states[:, t] = state
        return states

    def trim(self) -> "DFA":
        """Return the automaton without unreachable states; the others are numbered in breadth-first order."""
        order, seen = [self.start], {self.start: 0}
        for state in order:
            for target in self.delta[state]:
                if target not in seen:
                    seen[target] = len(order)
                    order.append(target)
        return DFA(
            self.alphabet,
            tuple(tuple(seen[target] for target in self.delta[state]) for state in order),
            0,
            frozenset(seen[state] for state in self.accept if state in seen),
        )

    def minimise(self) -> "DFA":
        """Return the minimal automaton of the language by Hopcroft's refinement (1971), with states numbered as by `trim`."""
        dfa = self.trim()
        letters = range(len(dfa.alphabet))
        sources: list[list[list[int]]] = [[[] for _ in range(dfa.size)] for _ in letters]
        for state, row in enumerate(dfa.delta):
            for letter, target in enumerate(row):
                sources[letter][target].append(state)
        blocks = [block for block in (set(range(dfa.size)) - dfa.accept, set(dfa.accept)) if block]
        block_of = [0] * dfa.size
        for state in blocks[-1]:
            block_of[state] = len(blocks) - 1
        pending = {(len(blocks) - 1, letter) for letter in letters}
        while pending:
            number, letter = pending.pop()
            parts: dict[int, list[int]] = {}
            for target in blocks[number]:
                for state in sources[letter][target]:
                    parts.setdefault(block_of[state], []).append(state)
            for other, part in parts.items():
                if len(part) == len(blocks[other]):
                    continue
                new = len(blocks)
                blocks.append(set(part))
                blocks[other] -= blocks[new]
                for state in part:
                    block_of[state] = new
                smaller = new if len(blocks[new]) <= len(blocks[other]) else other
                pending |= {(new if (other, a) in pending else smaller, a) for a in letters}
        rows = tuple(tuple(block_of[target] for target in dfa.delta[min(block)]) for block in blocks)
        return DFA(dfa.alphabet, rows, block_of[0], frozenset(block_of[state] for state in dfa.accept)).trim()

    def complement(self) -> "DFA":
        """Return the automaton of the words that this one rejects."""
        return DFA(self.alphabet, self.delta, self.start, frozenset(range(self.size)) - self.accept)

    def product(self, other: "DFA", op: Callable[[bool, bool], bool]) -> "DFA":
        """Return the minimal automaton of the words for which `op` of the two answers is True; the alphabets must be equal.

        `a.product(b, operator.and_)` is the intersection.
        """
        if other.alphabet != self.alphabet:
            raise setting_error("other.alphabet", other.alphabet, f"{self.alphabet}")
        n = other.size
        pairs = [(p, q) for p in range(self.size) for q in range(n)]
        delta = [[x * n + y for x, y in zip(self.delta[p], other.delta[q], strict=True)] for p, q in pairs]
        accept = {p * n + q for p, q in pairs if op(p in self.accept, q in other.accept)}
        return DFA(self.alphabet, tuple(map(tuple, delta)), self.start * n + other.start, frozenset(accept)).minimise()

    def edges(self) -> dict[tuple[int, int], list[str]]:
        """Return the letters of each edge (source, target)."""
        edges: dict[tuple[int, int], list[str]] = {}
        for source, row in enumerate(self.delta):
            for letter, target in zip(self.alphabet, row, strict=True):
                edges.setdefault((source, target), []).append(letter)
        return edges
