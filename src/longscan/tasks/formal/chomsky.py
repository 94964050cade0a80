"""The fifteen tasks of "Neural Networks and the Chomsky Hierarchy" (Delétang et al., ICLR 2023), with that suite's semantics.

A length is that of the question: 1-40 in training, 41-100 in valid and test (there: 1-100 with the score over those above 40, up
to 500 in the paper's figures). Answers of several tokens are given at the steps after the question, which show padding, and none
shows the answers before it. The suite's score is the mean over lengths; here it is over answers, and the buckets are by length of
the question. Fixed lengths within a batch, which only that suite's one-hot inputs needed, are not kept.

This file holds the tasks with an answer of one token, `chomsky_words` those whose answer is a word.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch import Tensor

from longscan.tasks._random import Draws
from longscan.tasks.base import TASKS, Batch
from longscan.tasks.formal._brackets import CLOSING, MINUS, OPENING, PLUS, draw_bracketed_sums
from longscan.tasks.formal._examples import Examples
from longscan.tasks.formal.base import WordTask
from longscan.tasks.formal.regular import PADDING, arithmetic, random_words, single


@dataclass(frozen=True, kw_only=True)
class ChomskyTask(WordTask):
    """What the fifteen share: lengths are the question's, and the vocabulary follows from the task."""

    eval_lengths: tuple[int, int] = (41, 100)

    @property
    def vocab_size(self) -> int:
        """The symbols."""
        return len(self.symbols)

    @property
    def num_classes(self) -> int:
        """Two, where a task has bits as answers."""
        return 2

    @property
    def symbols(self) -> tuple[str, ...]:
        """0, 1, padding, where a task has words of bits as questions."""
        return ("0", "1", PADDING)

    @property
    def _least_length(self) -> int:
        return 1

    @property
    def _own_lengths(self) -> tuple[int, int]:
        return self._least_length, 40

    def _shortest_question(self, length: int) -> int:
        return length

    def _width(self, length: int) -> int:
        return length + 1

    def _drawn_lengths(self, batch: Batch) -> Tensor:
        """The questions' lengths; a question may be one token shorter than the length it was drawn at."""
        assert batch.loss_mask is not None
        return (batch.loss_mask.int().argmax(1) + 1).clamp(min=self._length_range("test")[0])


@TASKS.register("chomsky_even_pairs")
@dataclass(frozen=True, kw_only=True)
class EvenPairs(ChomskyTask):
    """Whether the number of 01s and 10s together is odd, which is whether first and last bit differ.

    0 1 0 1 0 0 1 | 1
    """

    name: ClassVar[str] = "chomsky_even_pairs"

    def _draw(self, draws: Draws, lengths: np.ndarray) -> Examples:
        words = random_words(draws, lengths, 2, self.padding)
        return single(words, lengths, words[:, 0] ^ words[np.arange(len(words)), lengths - 1])


@TASKS.register("chomsky_parity_check")
@dataclass(frozen=True, kw_only=True)
class ParityCheck(ChomskyTask):
    """Whether the number of ones is odd.

    1 0 1 1 0 | 1
    """

    name: ClassVar[str] = "chomsky_parity_check"

    def _draw(self, draws: Draws, lengths: np.ndarray) -> Examples:
        words = random_words(draws, lengths, 2, self.padding)
        return single(words, lengths, (words == 1).sum(1) % 2)


@TASKS.register("chomsky_cycle_navigation")
@dataclass(frozen=True, kw_only=True)
class CycleNavigation(ChomskyTask):
    """Where a walk on a cycle of five places ends.

    +1 STAY -1 -1 -1 | 3
    """

    name: ClassVar[str] = "chomsky_cycle_navigation"

    @property
    def num_classes(self) -> int:
        """Places of the cycle."""
        return 5

    @property
    def symbols(self) -> tuple[str, ...]:
        """Places, moves, padding."""
        return ("0", "1", "2", "3", "4", "-1", "STAY", "+1", PADDING)

    def _draw(self, draws: Draws, lengths: np.ndarray) -> Examples:
        moves = random_words(draws, lengths, 3, 3)
        steps = np.where(moves < 3, moves - 1, 0).sum(1)
        return single(moves + 5, lengths, steps % 5)


@TASKS.register("chomsky_modular_arithmetic")
@dataclass(frozen=True, kw_only=True)
class ModularArithmetic(ChomskyTask):
    """The value modulo 5 of an expression without brackets, products first; an even length gives a question one token shorter.

    1 + 2 * 3 | 2
    """

    name: ClassVar[str] = "chomsky_modular_arithmetic"

    @property
    def num_classes(self) -> int:
        """The digits."""
        return 5

    @property
    def symbols(self) -> tuple[str, ...]:
        """Digits, operators, padding."""
        return ("0", "1", "2", "3", "4", "*", "-", "+", PADDING)

    def _shortest_question(self, length: int) -> int:
        return length - 1 + length % 2

    def _draw(self, draws: Draws, lengths: np.ndarray) -> Examples:
        counts = (lengths - 1) // 2
        most = int(counts.max())
        digits = draws.integers(0, 5, (len(lengths), most + 1))
        operators = draws.integers(0, 3, (len(lengths), most))
        operators[np.arange(most) >= counts[:, None]] = 3
        questions = np.empty((len(lengths), 2 * most + 1), np.int64)
        questions[:, 0::2], questions[:, 1::2] = digits, operators + 5
        questions[np.arange(2 * most + 1) > 2 * counts[:, None]] = self.padding
        return single(questions, 2 * counts + 1, arithmetic(digits, operators, 5, standard=True))


_BRACKET_SYMBOLS = ("0", "1", "2", "3", "4", "+", "-", "(", ")")
assert (_BRACKET_SYMBOLS[5 + PLUS], _BRACKET_SYMBOLS[5 + MINUS]) == ("+", "-")
assert (_BRACKET_SYMBOLS[5 + OPENING], _BRACKET_SYMBOLS[5 + CLOSING]) == ("(", ")")


@TASKS.register("chomsky_modular_arithmetic_brackets")
@dataclass(frozen=True, kw_only=True)
class ModularArithmeticBrackets(ChomskyTask):
    """The value modulo 5 of a bracketed sum with signs, as drawn by `draw_bracketed_sums`.

    ( ( 3 ) - ( - 4 ) ) | 2
    """

    name: ClassVar[str] = "chomsky_modular_arithmetic_brackets"

    @property
    def num_classes(self) -> int:
        """The digits."""
        return 5

    @property
    def symbols(self) -> tuple[str, ...]:
        """Digits, operators, brackets, padding."""
        return (*_BRACKET_SYMBOLS, PADDING)

    def _draw(self, draws: Draws, lengths: np.ndarray) -> Examples:
        sums = draw_bracketed_sums(draws, lengths, 5, self.padding)
        return single(sums.tokens, lengths, sums.values)


@TASKS.register("chomsky_solve_equation")
@dataclass(frozen=True, kw_only=True)
class SolveEquation(ChomskyTask):
    """The digit that x stands for in a bracketed sum whose value modulo 5 is given; there is exactly one.

        ( ( x ) - ( - 4 ) ) = 2 | 3

    x takes the place of the first digit at or after a uniformly chosen place, going round. Lengths start at 3.
    """

    name: ClassVar[str] = "chomsky_solve_equation"

    @property
    def num_classes(self) -> int:
        """The digits."""
        return 5

    @property
    def symbols(self) -> tuple[str, ...]:
        """Digits, operators, brackets, x, the equality sign, padding."""
        return (*_BRACKET_SYMBOLS, "x", "=", PADDING)

    @property
    def _least_length(self) -> int:
        return 3

    def _draw(self, draws: Draws, lengths: np.ndarray) -> Examples:
        rows, sides = np.arange(len(lengths)), lengths - 2
        sums = draw_bracketed_sums(draws, sides, 5, self.padding)
        start = draws.integers(0, sides, len(lengths))
        places = np.arange(sums.tokens.shape[1])
        distance = np.where(sums.is_digit, (places - start[:, None]) % sides[:, None], sums.tokens.shape[1])
        chosen = distance.argmin(1)
        questions = np.pad(sums.tokens, ((0, 0), (0, 2)), constant_values=self.padding)
        answers = questions[rows, chosen]
        questions[rows, chosen] = self.symbols.index("x")
        questions[rows, sides] = self.symbols.index("=")
        questions[rows, sides + 1] = sums.values
        return single(questions, lengths, answers)


@TASKS.register("chomsky_missing_duplicate")
@dataclass(frozen=True, kw_only=True)
class MissingDuplicate(ChomskyTask):
    """The bit that is missing where a word of bits stands twice; an odd length has an empty token at the end.

        0 1 1 0 0 ? 1 0 | 1

    Lengths start at 2.
    """

    name: ClassVar[str] = "chomsky_missing_duplicate"

    @property
    def symbols(self) -> tuple[str, ...]:
        """Bits, the missing one, the empty token, padding."""
        return ("0", "1", "?", "END", PADDING)

    @property
    def _least_length(self) -> int:
        return 2

    def _draw(self, draws: Draws, lengths: np.ndarray) -> Examples:
        rows, halves = np.arange(len(lengths)), lengths // 2
        words = random_words(draws, halves, 2, self.padding)
        places = np.arange(int(lengths.max()))
        twice = words[rows[:, None], np.minimum(places % halves[:, None], words.shape[1] - 1)]
        questions = np.where(places < 2 * halves[:, None], twice, np.where(places < lengths[:, None], 3, self.padding))
        missing = draws.integers(0, 2 * halves, len(lengths))
        answers = questions[rows, missing]
        questions[rows, missing] = 2
        return single(questions, lengths, answers)
