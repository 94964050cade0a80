"""Context-free languages: arithmetic with brackets, and equations."""

from dataclasses import dataclass
from math import gcd
from typing import ClassVar

import numpy as np

from longscan.tasks._random import CounterRNG
from longscan.tasks.base import TASKS
from longscan.tasks.formal._examples import Examples, single_token_examples
from longscan.tasks.formal._expressions import Expressions, SymbolIds, generate_expressions, generate_sums
from longscan.tasks.formal.base import AllSuites, FormalTask


@TASKS.register("modular_arithmetic_brackets")
@dataclass(frozen=True, kw_only=True)
class ModularArithmeticBrackets(FormalTask):
    """Compute the value of a bracketed expression modulo vocab_size - 7; here 5.

        clean     ( ( 3 * 4 ) - 2 ) = | 0
        chomsky   ( ( 3 ) - ( - 4 ) ) = | 2

    An expression grows from one digit by replacing a uniformly chosen digit with ( digit op digit ); op is one of *, - and +.
    A sequence generated for length l has max(0, (l - 3)//4) operators in `clean` and `aussm`, which differ in teacher forcing and
    in the lengths. 0 is their most frequent answer (about 31 % in test). In `chomsky` an expression has signs, no products
    and l - 2 tokens (`generate_sums`).
    """

    _extra_symbols: ClassVar[tuple[str, ...]] = (")", "(", "*", "-", "+", "=")
    _end_symbol: ClassVar[str | None] = "="
    _min_vocab_size: ClassVar[int] = 9
    _min_length: ClassVar[int] = 3
    suite: AllSuites = "clean"  # type: ignore[assignment]  # one choice more

    def _min_question_length(self, length: int) -> int:
        return length - 1 if self.suite == "chomsky" else 2 + 4 * ((length - 3) // 4)

    def _generate(self, rng: CounterRNG, lengths: np.ndarray) -> Examples:
        modulus = self.num_classes
        numbers = SymbolIds(closing=modulus, opening=modulus + 1, times=modulus + 2, padding=self.padding)
        if self.suite == "chomsky":
            (tokens, values), ends = generate_sums(rng, lengths - 2, modulus, numbers), lengths - 2
        else:
            expressions = generate_expressions(rng, (lengths - 3) // 4, modulus, numbers)
            tokens, ends, values = expressions.tokens, expressions.lengths, expressions.values(expressions.tokens, modulus)
        return single_token_examples(self._append_end(tokens, ends), ends + 1, values)


@TASKS.register("solve_equation")
@dataclass(frozen=True, kw_only=True)
class SolveEquation(FormalTask):
    """Solve an equation of two bracketed expressions for x, modulo vocab_size - 9; here 3.

        clean     ( x * 2 ) = 1 ACT | 2
        aussm     ( x * 2 ) = 1 ACT | 0
        chomsky   ( ( x ) - ( - 2 ) ) = 1 ACT | 2

    In `clean` the arithmetic is modulo 3 and the equation has exactly one solution; others are generated again. In `aussm` it is
    solved over the rationals and the answer is the solution truncated to an integer, modulo 3 (x = 1/2 gives 0); equations in
    which x cancels are generated again. A uniformly chosen literal of the left side becomes x. In `aussm` a sequence generated
    for length l has sides with target sizes of t in 1 .. l - 4 (uniform) and l - 3 - t tokens; a side grows while 4 tokens more
    stay below its target. In `clean` the sequence has (l - 5)//4 operators, and the number of those on the left side is uniform.
    In `chomsky` the left side has signs, no products and l - 4 tokens (`generate_sums`), x is the first literal at or after a
    uniformly chosen position, continuing from the start after the end, and the right side is the value.
    """

    _extra_symbols: ClassVar[tuple[str, ...]] = ("ACT", "x", ")", "(", "*", "-", "+", "=")
    _end_symbol: ClassVar[str | None] = "ACT"
    _min_vocab_size: ClassVar[int] = 11
    _min_length: ClassVar[int] = 5
    suite: AllSuites = "clean"  # type: ignore[assignment]  # one choice more

    def _min_question_length(self, length: int) -> int:
        return length - 1 if self.suite == "chomsky" else max(4, length - 9)

    def _side_operators(self, rng: CounterRNG, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the numbers of operators (n,) of the left and the right side."""
        if self.suite == "clean":
            total = (lengths - 5) // 4
            left = rng.integers(0, total + 1, len(lengths))
            return left, total - left
        target = rng.integers(1, lengths - 3, len(lengths))
        return np.maximum(0, (target - 2) // 4), np.maximum(0, (lengths - 3 - target - 2) // 4)

    def _generate(self, rng: CounterRNG, lengths: np.ndarray) -> Examples:
        modulus, count = self.num_classes, len(lengths)
        numbers = SymbolIds(closing=modulus + 2, opening=modulus + 3, times=modulus + 4, padding=self.padding)
        if self.suite == "chomsky":
            return self._generate_equations_of_sums(rng, lengths, numbers)
        left, right = (generate_expressions(rng, operators, modulus, numbers) for operators in self._side_operators(rng, lengths))
        leaves = left.tokens < modulus
        chosen = rng.integers(0, leaves.sum(1), count)
        unknown = leaves & (leaves.cumsum(1) == chosen[:, None] + 1)
        solve = _solve_modular if self.suite == "clean" else _solve_rational
        answers, is_usable = solve(left, unknown, right, modulus)

        width, rows = left.tokens.shape[1] + right.tokens.shape[1] + 2, np.arange(count)
        questions = np.full((count, width), self.padding)
        questions[:, : left.tokens.shape[1]] = np.where(unknown, modulus + 1, left.tokens)
        questions[rows, left.lengths] = self.vocab_size - 2
        row, position = np.nonzero(np.arange(right.tokens.shape[1]) < right.lengths[:, None])
        questions[row, left.lengths[row] + 1 + position] = right.tokens[row, position]
        question_lengths = left.lengths + right.lengths + 2
        questions[rows, question_lengths - 1] = self._end_of_question
        return single_token_examples(questions, question_lengths, answers)._replace(is_usable=is_usable)

    def _generate_equations_of_sums(self, rng: CounterRNG, lengths: np.ndarray, numbers: SymbolIds) -> Examples:
        rows, sides, modulus = np.arange(len(lengths)), lengths - 4, self.num_classes
        sums = generate_sums(rng, sides, modulus, numbers)
        width = sums.tokens.shape[1]
        start = rng.integers(0, sides, len(lengths))
        distance = np.where(sums.tokens < modulus, (np.arange(width) - start[:, None]) % sides[:, None], width)
        chosen = distance.argmin(1)
        questions = np.pad(sums.tokens, ((0, 0), (0, 3)), constant_values=self.padding)
        answers = questions[rows, chosen]
        questions[rows, chosen] = modulus + 1
        questions[rows, sides] = self.vocab_size - 2
        questions[rows, sides + 1] = sums.values
        questions[rows, sides + 2] = self._end_of_question
        return single_token_examples(questions, lengths - 1, answers)


def _solve_modular(left: Expressions, unknown: np.ndarray, right: Expressions, modulus: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the solutions (n,) modulo `modulus`, and which are unique, (n,) bool. unknown: (n, width) bool, the position of x.

    x occurs once, so the left side is offset + slope x, and the solution is unique if and only if the slope is invertible.
    """
    offset, at_one = (left.values(np.where(unknown, x, left.tokens), modulus) for x in (0, 1))
    slope = (at_one - offset) % modulus
    inverses = np.array([pow(number, -1, modulus) if gcd(number, modulus) == 1 else 0 for number in range(modulus)])
    return (right.values(right.tokens, modulus) - offset) * inverses[slope] % modulus, inverses[slope] != 0


def _solve_rational(left: Expressions, unknown: np.ndarray, right: Expressions, modulus: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the rational solutions (n,), truncated and modulo `modulus`, and where x does not cancel, (n,) bool.

    Computes with Python integers, since products may exceed 64 bits.
    """
    offset, at_one = (left.values(np.where(unknown, x, left.tokens).astype(object), None) for x in (0, 1))
    slope, rest = at_one - offset, right.values(right.tokens.astype(object), None) - offset
    truncated = [abs(r) // abs(s) * (1 if (r < 0) == (s < 0) else -1) if s else 0 for r, s in zip(rest, slope, strict=True)]
    return np.array([number % modulus for number in truncated], np.int64), (slope != 0).astype(bool)
