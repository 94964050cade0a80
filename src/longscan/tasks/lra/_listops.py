"""Nested list operations, drawn, measured and evaluated for many trees at once, level by level (Nangia and Bowman, 2018).

A node above the deepest level is an operator with probability 1/4, with 2 .. max_args children, else a digit; the deepest level
holds digits. Operators and numbers of children are uniform. An expression counts its digits, and two tokens for each operator; it
is kept where its length lies strictly between two bounds, so its root is an operator.
"""

from typing import NamedTuple

import numpy as np

from longscan.tasks._random import CounterRNG
from longscan.tasks._store import Ragged

SYMBOLS = ("0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "[MIN", "[MAX", "[MED", "[SM", "]")
MIN, MAX, MEDIAN, SUM = range(4)
_FIRST_OPERATOR, _CLOSING = 10, 14
_ROOTS = 1024  # drawn together


class _Level(NamedTuple):
    """Nodes of one depth. parents: their place among the operators above; tokens; is_operator; kinds: of the operators alone."""

    parents: np.ndarray
    tokens: np.ndarray
    is_operator: np.ndarray
    kinds: np.ndarray


class Bounds(NamedTuple):
    """What an expression may be: levels, children of an operator, and its length strictly between two numbers of tokens."""

    max_depth: int = 10
    max_args: int = 10
    shorter_than: int = 2000
    longer_than: int = 500


def draw_expressions(rng: CounterRNG, count: int, bounds: Bounds) -> tuple[Ragged, np.ndarray]:
    """`count` expressions as uint8 tokens, and their values (count,) int64."""
    sequences: list[np.ndarray] = []
    values: list[np.ndarray] = []
    rounds = 0
    while len(sequences) < count:
        tokens, value = _draw_trees(rng, bounds)
        sequences += tokens
        values.append(value)
        rounds += 1
        if rounds == 20 and not sequences:
            bounds_text = f"{bounds.longer_than} and {bounds.shorter_than}"
            raise ValueError(f"longer_than, shorter_than: between {bounds_text} tokens there is no expression of such depth")
    return Ragged.from_sequences(sequences[:count]), np.concatenate(values)[:count]


def _draw_trees(rng: CounterRNG, bounds: Bounds) -> tuple[list[np.ndarray], np.ndarray]:
    """The expressions of fit length among `_ROOTS`, and their values."""
    levels = _grown(rng, bounds)
    sizes, values = _measured(levels)
    ends = sizes[0].cumsum()
    flat = np.empty(ends[-1], np.uint8)
    begins = ends - sizes[0]
    for depth, (level, size) in enumerate(zip(levels, sizes, strict=True)):
        flat[begins] = level.tokens
        inner = np.flatnonzero(level.is_operator)
        flat[begins[inner] + size[inner] - 1] = _CLOSING
        if len(inner):
            parents, below = levels[depth + 1].parents, sizes[depth + 1]
            before = below.cumsum() - below
            first = np.searchsorted(parents, np.arange(len(inner)))
            begins = begins[inner][parents] + 1 + before - before[first][parents]
    kept = np.flatnonzero((sizes[0] > bounds.longer_than) & (sizes[0] < bounds.shorter_than))
    return [flat[ends[row] - sizes[0][row] : ends[row]] for row in kept], values[kept]


def _grown(rng: CounterRNG, bounds: Bounds) -> list[_Level]:
    """Trees under `_ROOTS` operators."""
    levels: list[_Level] = []
    parents, is_operator = np.arange(_ROOTS), np.ones(_ROOTS, bool)
    while len(parents):
        depth, count = len(levels) + 1, int(is_operator.sum())
        tokens = rng.integers(0, 10, len(parents))
        kinds = rng.integers(0, 4, count)
        tokens[is_operator] = _FIRST_OPERATOR + kinds
        levels.append(_Level(parents, tokens, is_operator, kinds))
        children = rng.integers(2, bounds.max_args + 1, count)
        parents = np.repeat(np.arange(count), children)
        is_operator = rng.integers(0, 4, len(parents)) == 0
        if depth + 1 >= bounds.max_depth:
            is_operator[:] = False
    return levels


def _measured(levels: list[_Level]) -> tuple[list[np.ndarray], np.ndarray]:
    """The number of tokens of every node of every level, and the values of the roots."""
    sizes: list[np.ndarray] = []
    below_sizes, below_values = np.empty(0, np.int64), np.empty(0, np.int64)
    below_parents = np.empty(0, np.int64)
    for level in reversed(levels):
        count = len(level.kinds)
        size, value = np.ones(len(level.tokens), np.int64), level.tokens.copy()
        if count:
            size[level.is_operator] = 2 + np.bincount(below_parents, below_sizes, count).astype(np.int64)
            histogram = np.bincount(below_parents * 10 + below_values, minlength=count * 10).reshape(count, 10)
            value[level.is_operator] = _applied(level.kinds, histogram)
        sizes.append(size)
        below_sizes, below_values, below_parents = size, value, level.parents
    return sizes[::-1], below_values


def _applied(kinds: np.ndarray, histogram: np.ndarray) -> np.ndarray:
    """The values (n,) of operators from how often each digit is among their children, (n, 10). A median of x.5 is cut to x."""
    upto = histogram.cumsum(1)
    count = upto[:, -1:]
    low, high = ((upto > rank).argmax(1) for rank in ((count - 1) // 2, count // 2))
    results = np.empty((4, len(kinds)), np.int64)
    results[MIN] = (upto > 0).argmax(1)
    results[MAX] = (upto == count).argmax(1)
    results[MEDIAN] = (low + high) // 2
    results[SUM] = histogram @ np.arange(10) % 10
    return results[kinds, np.arange(len(kinds))]
