"""Context-free languages: bracketed arithmetic and equations."""

from dataclasses import dataclass
from math import gcd
from typing import ClassVar

import numpy as np

from longscan.tasks._random import Draws
from longscan.tasks.base import TASKS
from longscan.tasks.formal._examples import Examples
from longscan.tasks.formal._expressions import Expressions, Symbols, draw_expressions, draw_sums
from longscan.tasks.formal.base import FormalTask
from longscan.tasks.formal.regular import PADDING, single


@TASKS.register("modular_arithmetic_brackets")
@dataclass(frozen=True, kw_only=True)
class ModularArithmeticBrackets(FormalTask):
    """The value of a bracketed expression modulo vocab_size - 7; here 5.

        clean     ( ( 3 * 4 ) - 2 ) = | 0
        chomsky   ( ( 3 ) - ( - 4 ) ) = | 2

    An expression grows from one digit by replacing a uniformly chosen digit with ( digit op digit ); op is one of *, - and +.
    A sequence drawn at length l has max(0, (l - 3)//4) operators in `clean` and `aussm`, which differ in the answer's being shown
    and in the lengths. 0 is their most frequent answer (about 31 % in test). In `chomsky` an expression has signs, no products
    and l - 2 tokens (`draw_sums`).
    """

    name: ClassVar[str] = "modular_arithmetic_brackets"
    suites: ClassVar[tuple[str, ...]] = ("clean", "aussm", "chomsky")

    @property
    def num_classes(self) -> int:
        """The digits."""
        return self.vocab_size - 7

    @property
    def symbols(self) -> tuple[str, ...]:
        """Digits, brackets, operators, the equality sign, padding."""
        return (*map(str, range(self.num_classes)), ")", "(", "*", "-", "+", "=", PADDING)

    @property
    def _closing(self) -> int:
        return self.vocab_size - 2

    @property
    def _least_vocab(self) -> int:
        return 9

    @property
    def _least_length(self) -> int:
        return 3

    def _shortest_question(self, length: int) -> int:
        return length - 1 if self.suite == "chomsky" else 2 + 4 * ((length - 3) // 4)

    def _draw(self, draws: Draws, lengths: np.ndarray) -> Examples:
        modulus = self.num_classes
        numbers = Symbols(closing=modulus, opening=modulus + 1, times=modulus + 2, padding=self.padding)
        if self.suite == "chomsky":
            (tokens, values), ends = draw_sums(draws, lengths - 2, modulus, numbers), lengths - 2
        else:
            expressions = draw_expressions(draws, (lengths - 3) // 4, modulus, numbers)
            tokens, ends, values = expressions.tokens, expressions.lengths, expressions.values(expressions.tokens, modulus)
        questions = np.pad(tokens, ((0, 0), (0, 1)), constant_values=self.padding)
        questions[np.arange(len(lengths)), ends] = self._closing
        return single(questions, ends + 1, values)


@TASKS.register("solve_equation")
@dataclass(frozen=True, kw_only=True)
class SolveEquation(FormalTask):
    """The x that solves an equation of two bracketed expressions, modulo vocab_size - 9; here 3.

        clean     ( x * 2 ) = 1 ACT | 2
        aussm     ( x * 2 ) = 1 ACT | 0
        chomsky   ( ( x ) - ( - 2 ) ) = 1 ACT | 2

    In `clean` the equation is one modulo 3 and has exactly one solution there; others are drawn again. In `aussm` it is solved
    over the rationals and the answer is the solution cut to an integer, modulo 3 (x = 1/2 gives 0); equations in which x cancels
    are drawn again. One literal of the left side, uniformly chosen, becomes x. A sequence drawn at length l has sides that target
    t in 1 .. l - 4 (uniform) and l - 3 - t tokens in `aussm`, growing while 4 tokens more stay below the target; in `clean` it
    has (l - 5)//4 operators, of which the left side has a uniform share. In `chomsky` the left side has signs, no products and
    l - 4 tokens (`draw_sums`), x is the first literal at or after a uniformly chosen place, going round, and the right side is
    the value.
    """

    name: ClassVar[str] = "solve_equation"
    suites: ClassVar[tuple[str, ...]] = ("clean", "aussm", "chomsky")

    @property
    def num_classes(self) -> int:
        """The digits."""
        return self.vocab_size - 9

    @property
    def symbols(self) -> tuple[str, ...]:
        """Digits, ACT, x, brackets, operators, the equality sign, padding."""
        return (*map(str, range(self.num_classes)), "ACT", "x", ")", "(", "*", "-", "+", "=", PADDING)

    @property
    def _closing(self) -> int:
        return self.vocab_size - 9

    @property
    def _least_vocab(self) -> int:
        return 11

    @property
    def _least_length(self) -> int:
        return 5

    def _shortest_question(self, length: int) -> int:
        return length - 1 if self.suite == "chomsky" else max(4, length - 9)

    def _sides(self, draws: Draws, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Numbers of operators of the left and the right side."""
        if self.suite == "clean":
            total = (lengths - 5) // 4
            left = draws.integers(0, total + 1, len(lengths))
            return left, total - left
        target = draws.integers(1, lengths - 3, len(lengths))
        return np.maximum(0, (target - 2) // 4), np.maximum(0, (lengths - 3 - target - 2) // 4)

    def _draw(self, draws: Draws, lengths: np.ndarray) -> Examples:
        modulus, count = self.num_classes, len(lengths)
        numbers = Symbols(closing=modulus + 2, opening=modulus + 3, times=modulus + 4, padding=self.padding)
        if self.suite == "chomsky":
            return self._draw_equations_of_sums(draws, lengths, numbers)
        left, right = (draw_expressions(draws, operators, modulus, numbers) for operators in self._sides(draws, lengths))
        leaves = left.tokens < modulus
        chosen = draws.integers(0, leaves.sum(1), count)
        unknown = leaves & (leaves.cumsum(1) == chosen[:, None] + 1)
        solve = _solve_modular if self.suite == "clean" else _solve_rational
        answers, keep = solve(left, unknown, right, modulus)

        width, rows = left.tokens.shape[1] + right.tokens.shape[1] + 2, np.arange(count)
        questions = np.full((count, width), self.padding)
        questions[:, : left.tokens.shape[1]] = np.where(unknown, modulus + 1, left.tokens)
        questions[rows, left.lengths] = self.vocab_size - 2
        row, place = np.nonzero(np.arange(right.tokens.shape[1]) < right.lengths[:, None])
        questions[row, left.lengths[row] + 1 + place] = right.tokens[row, place]
        question_lengths = left.lengths + right.lengths + 2
        questions[rows, question_lengths - 1] = self._closing
        return single(questions, question_lengths, answers)._replace(keep=keep)

    def _draw_equations_of_sums(self, draws: Draws, lengths: np.ndarray, numbers: Symbols) -> Examples:
        rows, sides, modulus = np.arange(len(lengths)), lengths - 4, self.num_classes
        sums = draw_sums(draws, sides, modulus, numbers)
        width = sums.tokens.shape[1]
        start = draws.integers(0, sides, len(lengths))
        distance = np.where(sums.tokens < modulus, (np.arange(width) - start[:, None]) % sides[:, None], width)
        chosen = distance.argmin(1)
        questions = np.pad(sums.tokens, ((0, 0), (0, 3)), constant_values=self.padding)
        answers = questions[rows, chosen]
        questions[rows, chosen] = modulus + 1
        questions[rows, sides] = self.vocab_size - 2
        questions[rows, sides + 1] = sums.values
        questions[rows, sides + 2] = self._closing
        return single(questions, lengths - 1, answers)


def _solve_modular(left: Expressions, unknown: np.ndarray, right: Expressions, modulus: int) -> tuple[np.ndarray, np.ndarray]:
    """The solutions (n,) modulo `modulus`, and where there is exactly one. unknown: (n, width) marks x among the left tokens.

    x occurs once, so the left side is offset + slope x, and the solution is unique exactly where the slope is invertible.
    """
    offset, at_one = (left.values(np.where(unknown, x, left.tokens), modulus) for x in (0, 1))
    slope = (at_one - offset) % modulus
    inverses = np.array([pow(number, -1, modulus) if gcd(number, modulus) == 1 else 0 for number in range(modulus)])
    return (right.values(right.tokens, modulus) - offset) * inverses[slope] % modulus, inverses[slope] != 0


def _solve_rational(left: Expressions, unknown: np.ndarray, right: Expressions, modulus: int) -> tuple[np.ndarray, np.ndarray]:
    """The rational solutions (n,) cut to integers, modulo `modulus`, and where x does not cancel. Exact integers of any size."""
    offset, at_one = (left.values(np.where(unknown, x, left.tokens).astype(object), None) for x in (0, 1))
    slope, rest = at_one - offset, right.values(right.tokens.astype(object), None) - offset
    keep = slope != 0
    cut = [abs(r) // abs(s) * (1 if (r < 0) == (s < 0) else -1) if s else 0 for r, s in zip(rest, slope, strict=True)]
    return np.array([number % modulus for number in cut], np.int64), keep.astype(bool)
