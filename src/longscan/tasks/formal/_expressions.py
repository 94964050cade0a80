"""Bracketed expressions of two grammars, generated and evaluated for a whole batch together, one level of the trees at a time.

`generate_expressions`: an expression with k operators has 1 + 4k tokens. It grows from one leaf by replacing k times a uniformly
chosen leaf with ( leaf op leaf ). The left operand of the outermost operator then has 0 .. k - 1 of the other operators with
equal probability (Polya's urn with one leaf on each side), and the same holds for its operands. This is how the trees are
generated here.

`generate_sums` (Delétang et al., 2023): an expression of one to four tokens is d, -d, (d) or (-d); a longer one of n tokens is
(left op right) with op one of + and -, and 1 .. n - 4 tokens on the left, uniform. There are no products, so the value is the sum
of the digits, each multiplied by the product of the signs that apply to it.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from longscan.tasks._random import CounterRNG


class SymbolIds(NamedTuple):
    """Token numbers of the brackets, of the first operator (*; - and + follow it) and of the padding."""

    closing: int
    opening: int
    times: int
    padding: int


@dataclass(frozen=True)
class _Level:
    """The nodes of one depth in the trees of all rows."""

    rows: np.ndarray  # (nodes,) row of each node
    starts: np.ndarray  # (nodes,) position of its first token
    is_internal: np.ndarray  # (nodes,) bool: an operator, not a leaf
    operators: np.ndarray  # (internal nodes,) 0 *, 1 -, 2 +


@dataclass(frozen=True)
class Expressions:
    """Tokens (n, width) and lengths (n,) of n expressions, and their trees."""

    tokens: np.ndarray
    lengths: np.ndarray
    levels: tuple[_Level, ...]

    def values(self, leaves: np.ndarray, modulus: int | None) -> np.ndarray:
        """Evaluate the expressions with the numbers `leaves` (n, width) in place of the tokens; return (n,).

        modulus: of every operation, None for ordinary arithmetic.
        """
        operands = np.empty(0, leaves.dtype)  # of the current level: all left ones, then all right ones
        for level in reversed(self.levels):
            values = leaves[level.rows, level.starts]
            half = len(operands) // 2
            left, right, operators = operands[:half], operands[half:], level.operators
            if half:
                results = np.where(operators == 0, left * right, np.where(operators == 1, left - right, left + right))
                values[level.is_internal] = results if modulus is None else results % modulus
            operands = values
        return operands


def generate_expressions(rng: CounterRNG, operators: np.ndarray, digits: int, symbols: SymbolIds) -> Expressions:
    """Generate expressions with the given numbers of operators (n,); literals 0 .. digits - 1 and operators are uniform."""
    count = len(operators)
    lengths = 1 + 4 * operators
    tokens = np.full((count, int(lengths.max())), symbols.padding)
    levels = []
    rows, starts, sizes = np.arange(count), np.zeros(count, np.int64), operators
    while len(rows):
        is_internal = sizes > 0
        leaf = ~is_internal
        tokens[rows[leaf], starts[leaf]] = rng.integers(0, digits, int(leaf.sum()))
        row, start, size = rows[is_internal], starts[is_internal], sizes[is_internal]
        operator = rng.integers(0, 3, len(row))
        levels.append(_Level(rows, starts, is_internal, operator))
        left = rng.integers(0, size, len(row))
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


def generate_sums(rng: CounterRNG, lengths: np.ndarray, digits: int, symbols: SymbolIds) -> Sums:
    """Generate bracketed sums of exactly `lengths` (n,) tokens; literals 0 .. digits - 1 and operators are uniform."""
    count = len(lengths)
    tokens = np.full((count, int(lengths.max())), symbols.padding)
    values = np.zeros(count, np.int64)
    minus, plus = symbols.times + 1, symbols.times + 2
    rows, starts, sizes, signs = np.arange(count), np.zeros(count, np.int64), lengths, np.ones(count, np.int64)
    while len(rows):
        leaf = sizes < 5
        row, start, size = rows[leaf], starts[leaf], sizes[leaf]
        literal = rng.integers(0, digits, len(row))
        negative, bracketed = size % 2 == 0, size > 2
        tokens[row[bracketed], start[bracketed]] = symbols.opening
        tokens[row[bracketed], (start + size - 1)[bracketed]] = symbols.closing
        tokens[row[negative], (start + bracketed)[negative]] = minus
        tokens[row, start + bracketed + negative] = literal
        np.add.at(values, row, signs[leaf] * np.where(negative, -literal, literal))

        row, start, size, sign = rows[~leaf], starts[~leaf], sizes[~leaf], signs[~leaf]
        left = 1 + rng.integers(0, size - 4, len(row))
        subtracts = rng.integers(0, 2, len(row)) == 1
        middle = start + 1 + left
        tokens[row, start] = symbols.opening
        tokens[row, middle] = np.where(subtracts, minus, plus)
        tokens[row, start + size - 1] = symbols.closing
        rows, starts = np.tile(row, 2), np.concatenate([start + 1, middle + 1])
        sizes, signs = np.concatenate([left, size - left - 3]), np.concatenate([sign, np.where(subtracts, -sign, sign)])
    return Sums(tokens, values % digits)
