"""Nested list operations, generated and evaluated for many trees together, one level at a time (Nangia and Bowman, 2018).

A node above the deepest level is an operator with probability 1/4, with 2 .. max_args children, else a digit; nodes of the
deepest level are digits. Operators and numbers of children are uniform. The length of an expression is its number of digits plus
two tokens for each operator; an expression is used if its length lies strictly between two limits, so its root is an operator.
"""

from typing import NamedTuple

import numpy as np

from longscan.tasks._random import CounterRNG
from longscan.tasks._store import Ragged

SYMBOLS = ("0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "[MIN", "[MAX", "[MED", "[SM", "]")
MIN, MAX, MEDIAN, SUM = range(4)
_FIRST_OPERATOR, _CLOSING = 10, 14
_ROOTS = 1024  # number of trees that are generated together


class _Level(NamedTuple):
    """The nodes of one depth in all trees."""

    parents: np.ndarray  # (nodes,) number of the parent among the operators of the level above
    tokens: np.ndarray  # (nodes,)
    is_operator: np.ndarray  # (nodes,) bool
    kinds: np.ndarray  # (operators,) MIN .. SUM


class ExpressionLimits(NamedTuple):
    """Limits of an expression: number of levels, children of an operator, and two exclusive limits of its length in tokens."""

    max_depth: int = 10
    max_args: int = 10
    shorter_than: int = 2000
    longer_than: int = 500


def generate_expressions(rng: CounterRNG, count: int, limits: ExpressionLimits) -> tuple[Ragged, np.ndarray]:
    """Generate `count` expressions as uint8 tokens; return them and their values (count,) int64."""
    sequences: list[np.ndarray] = []
    values: list[np.ndarray] = []
    rounds = 0
    while len(sequences) < count:
        tokens, value = _generate_round(rng, limits)
        sequences += tokens
        values.append(value)
        rounds += 1
        if rounds == 20 and not sequences:
            interval = f"{limits.longer_than} and {limits.shorter_than}"
            depth = f"`max_depth` {limits.max_depth} and `max_args` {limits.max_args}"
            raise ValueError(f"`longer_than` and `shorter_than` must allow expressions of {depth}, got {interval}")
    return Ragged.from_sequences(sequences[:count]), np.concatenate(values)[:count]


def _generate_round(rng: CounterRNG, limits: ExpressionLimits) -> tuple[list[np.ndarray], np.ndarray]:
    """Generate `_ROOTS` trees; return the expressions whose length lies between the limits, and their values."""
    levels = _grow_trees(rng, limits)
    sizes, values = _evaluate_trees(levels)
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
    usable = np.flatnonzero((sizes[0] > limits.longer_than) & (sizes[0] < limits.shorter_than))
    return [flat[ends[row] - sizes[0][row] : ends[row]] for row in usable], values[usable]


def _grow_trees(rng: CounterRNG, limits: ExpressionLimits) -> list[_Level]:
    """Generate `_ROOTS` trees with operators as roots."""
    levels: list[_Level] = []
    parents, is_operator = np.arange(_ROOTS), np.ones(_ROOTS, bool)
    while len(parents):
        depth, count = len(levels) + 1, int(is_operator.sum())
        tokens = rng.integers(0, 10, len(parents))
        kinds = rng.integers(0, 4, count)
        tokens[is_operator] = _FIRST_OPERATOR + kinds
        levels.append(_Level(parents, tokens, is_operator, kinds))
        children = rng.integers(2, limits.max_args + 1, count)
        parents = np.repeat(np.arange(count), children)
        is_operator = rng.integers(0, 4, len(parents)) == 0
        if depth + 1 >= limits.max_depth:
            is_operator[:] = False
    return levels


def _evaluate_trees(levels: list[_Level]) -> tuple[list[np.ndarray], np.ndarray]:
    """Return the number of tokens of the subtree of each node, an array per level, and the values of the roots."""
    sizes: list[np.ndarray] = []
    below_sizes, below_values = np.empty(0, np.int64), np.empty(0, np.int64)
    below_parents = np.empty(0, np.int64)
    for level in reversed(levels):
        count = len(level.kinds)
        size, value = np.ones(len(level.tokens), np.int64), level.tokens.copy()
        if count:
            size[level.is_operator] = 2 + np.bincount(below_parents, below_sizes, count).astype(np.int64)
            histogram = np.bincount(below_parents * 10 + below_values, minlength=count * 10).reshape(count, 10)
            value[level.is_operator] = _apply_operators(level.kinds, histogram)
        sizes.append(size)
        below_sizes, below_values, below_parents = size, value, level.parents
    return sizes[::-1], below_values


def _apply_operators(kinds: np.ndarray, histogram: np.ndarray) -> np.ndarray:
    """Return the values (n,) of operators; histogram: (n, 10), counts of each digit among their children. Medians are floored."""
    cumulative = histogram.cumsum(1)
    count = cumulative[:, -1:]
    low, high = ((cumulative > rank).argmax(1) for rank in ((count - 1) // 2, count // 2))
    results = np.empty((4, len(kinds)), np.int64)
    results[MIN] = (cumulative > 0).argmax(1)
    results[MAX] = (cumulative == count).argmax(1)
    results[MEDIAN] = (low + high) // 2
    results[SUM] = histogram @ np.arange(10) % 10
    return results[kinds, np.arange(len(kinds))]
