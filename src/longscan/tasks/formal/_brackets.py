"""Bracketed sums of a given length (Delétang et al., 2023), drawn and evaluated for a whole batch at once, level by level.

An expression of one to four tokens is d, -d, (d) or (-d); a longer one of n tokens is (left op right) with op one of + and -, and
1 .. n - 4 tokens on the left, uniform. As there are no products, the value is the sum of the digits with the signs above them.
"""

from typing import NamedTuple

import numpy as np

from longscan.tasks._random import Draws

PLUS, MINUS, OPENING, CLOSING = 0, 1, 2, 3  # after the digits, in this order


class BracketedSums(NamedTuple):
    """tokens (n, width), padded; values (n,) modulo the number of digits; is_digit (n, width)."""

    tokens: np.ndarray
    values: np.ndarray
    is_digit: np.ndarray


def draw_bracketed_sums(draws: Draws, lengths: np.ndarray, digits: int, padding: int) -> BracketedSums:
    """Expressions of exactly `lengths` (n,) tokens; literals uniform on 0 .. digits - 1, operators uniform."""
    count = len(lengths)
    tokens = np.full((count, int(lengths.max())), padding)
    values = np.zeros(count, np.int64)
    rows, starts, sizes, signs = np.arange(count), np.zeros(count, np.int64), lengths, np.ones(count, np.int64)
    while len(rows):
        leaf = sizes < 5
        row, start, size = rows[leaf], starts[leaf], sizes[leaf]
        literal = draws.integers(0, digits, len(row))
        negative, bracketed = size % 2 == 0, size > 2
        tokens[row[bracketed], start[bracketed]] = digits + OPENING
        tokens[row[bracketed], (start + size - 1)[bracketed]] = digits + CLOSING
        tokens[row[negative], (start + bracketed)[negative]] = digits + MINUS
        tokens[row, start + bracketed + negative] = literal
        np.add.at(values, row, signs[leaf] * np.where(negative, -literal, literal))

        row, start, size, sign = rows[~leaf], starts[~leaf], sizes[~leaf], signs[~leaf]
        left = 1 + draws.integers(0, size - 4, len(row))
        operator = draws.integers(0, 2, len(row))
        middle = start + 1 + left
        tokens[row, start] = digits + OPENING
        tokens[row, middle] = digits + operator
        tokens[row, start + size - 1] = digits + CLOSING
        rows, starts = np.tile(row, 2), np.concatenate([start + 1, middle + 1])
        sizes, signs = np.concatenate([left, size - left - 3]), np.concatenate([sign, np.where(operator == MINUS, -sign, sign)])
    return BracketedSums(tokens, values % digits, tokens < digits)
