"""Bracketed expressions of two grammars, drawn and evaluated for a whole batch at once, level by level of their trees.

`draw_expressions`: an expression with k operators has 1 + 4k tokens. It grows from one leaf by replacing k times a uniformly
chosen leaf with ( leaf op leaf ). The left operand of the outermost operator then holds 0 .. k - 1 of the other operators with
equal probability (Polya's urn with one leaf on each side), and so on inside, which is how the trees are drawn here.

`draw_sums` (Delétang et al., 2023): an expression of one to four tokens is d, -d, (d) or (-d); a longer one of n tokens is
(left op right) with op one of + and -, and 1 .. n - 4 tokens on the left, uniform. As there are no products, the value is the sum
of the digits with the signs above them.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from longscan.tasks._random import Draws


class Symbols(NamedTuple):
    """Token numbers of the brackets and the first operator (of *, -, + in this order), and of the padding."""

    closing: int
    opening: int
    times: int
    padding: int


@dataclass(frozen=True)
class _Level:
    """Nodes of one depth: their row and first token; which are operators, and what these are (0 *, 1 -, 2 +)."""

    rows: np.ndarray
    starts: np.ndarray
    inner: np.ndarray
    operators: np.ndarray


@dataclass(frozen=True)
class Expressions:
    """Tokens (n, width) and lengths (n,) of n expressions, and their trees."""

    tokens: np.ndarray
    lengths: np.ndarray
    levels: tuple[_Level, ...]

    def values(self, leaves: np.ndarray, modulus: int | None) -> np.ndarray:
        """The values (n,) with the leaves (n, width) instead of the tokens; without `modulus` as they are."""
        below = np.empty(0, leaves.dtype)
        for level in reversed(self.levels):
            values = leaves[level.rows, level.starts]
            half = len(below) // 2
            left, right, operators = below[:half], below[half:], level.operators
            if half:
                results = np.where(operators == 0, left * right, np.where(operators == 1, left - right, left + right))
                values[level.inner] = results if modulus is None else results % modulus
            below = values
        return below


def draw_expressions(draws: Draws, operators: np.ndarray, digits: int, symbols: Symbols) -> Expressions:
    """Expressions with the given numbers of operators (n,), literals uniform on 0 .. digits - 1, operators uniform."""
    count = len(operators)
    lengths = 1 + 4 * operators
    tokens = np.full((count, int(lengths.max())), symbols.padding)
    levels = []
    rows, starts, sizes = np.arange(count), np.zeros(count, np.int64), operators
    while len(rows):
        inner = sizes > 0
        leaf = ~inner
        tokens[rows[leaf], starts[leaf]] = draws.integers(0, digits, int(leaf.sum()))
        row, start, size = rows[inner], starts[inner], sizes[inner]
        operator = draws.integers(0, 3, len(row))
        levels.append(_Level(rows, starts, inner, operator))
        left = draws.integers(0, size, len(row))
        middle = start + 2 + 4 * left
        tokens[row, start] = symbols.opening
        tokens[row, middle] = symbols.times + operator
        tokens[row, start + 4 * size] = symbols.closing
        rows, starts, sizes = np.tile(row, 2), np.concatenate([start + 1, middle + 1]), np.concatenate([left, size - 1 - left])
    return Expressions(tokens, lengths, tuple(levels))


class Sums(NamedTuple):
    """Bracketed sums: tokens (n, width), padded; values (n,) modulo the number of digits."""

    tokens: np.ndarray
    values: np.ndarray


def draw_sums(draws: Draws, lengths: np.ndarray, digits: int, symbols: Symbols) -> Sums:
    """Bracketed sums of exactly `lengths` (n,) tokens; literals uniform on 0 .. digits - 1, operators uniform."""
    count = len(lengths)
    tokens = np.full((count, int(lengths.max())), symbols.padding)
    values = np.zeros(count, np.int64)
    minus, plus = symbols.times + 1, symbols.times + 2
    rows, starts, sizes, signs = np.arange(count), np.zeros(count, np.int64), lengths, np.ones(count, np.int64)
    while len(rows):
        leaf = sizes < 5
        row, start, size = rows[leaf], starts[leaf], sizes[leaf]
        literal = draws.integers(0, digits, len(row))
        negative, bracketed = size % 2 == 0, size > 2
        tokens[row[bracketed], start[bracketed]] = symbols.opening
        tokens[row[bracketed], (start + size - 1)[bracketed]] = symbols.closing
        tokens[row[negative], (start + bracketed)[negative]] = minus
        tokens[row, start + bracketed + negative] = literal
        np.add.at(values, row, signs[leaf] * np.where(negative, -literal, literal))

        row, start, size, sign = rows[~leaf], starts[~leaf], sizes[~leaf], signs[~leaf]
        left = 1 + draws.integers(0, size - 4, len(row))
        subtracts = draws.integers(0, 2, len(row)) == 1
        middle = start + 1 + left
        tokens[row, start] = symbols.opening
        tokens[row, middle] = np.where(subtracts, minus, plus)
        tokens[row, start + size - 1] = symbols.closing
        rows, starts = np.tile(row, 2), np.concatenate([start + 1, middle + 1])
        sizes, signs = np.concatenate([left, size - left - 3]), np.concatenate([sign, np.where(subtracts, -sign, sign)])
    return Sums(tokens, values % digits)
