"""The tasks of "Neural Networks and the Chomsky Hierarchy" (Delétang et al., ICLR 2023), with that suite's semantics.

This file defines nine tasks; the other six are languages of this package's other files, with the settings in `chomsky_suite`.
A length of the nine is that of the question: 1-40 in training, 41-100 in valid and test (in the paper: 1-100 with the score over
those above 40, up to 500 in its figures). The model gives answers of several tokens at the steps after the question, whose inputs
are padding and show no earlier answer. The suite's score is the mean over lengths; here it is the mean over answers, and
the buckets are by length of the question. In that suite all questions of a batch have the same length, which only its one-hot
inputs needed; here they do not.
"""

from abc import abstractmethod
from dataclasses import dataclass
from math import isqrt
from typing import ClassVar

import numpy as np
from torch import Tensor

from longscan.tasks._random import CounterRNG
from longscan.tasks._store import Ragged
from longscan.tasks.base import TASKS, Batch
from longscan.tasks.formal._examples import PADDING, Examples, random_words, single_token_examples
from longscan.tasks.formal.base import EvalLengths, WordTask
from longscan.tasks.formal.context_free import ModularArithmeticBrackets, SolveEquation
from longscan.tasks.formal.regular import CycleNavigation, ModularArithmetic, Parity
from longscan.tasks.formal.rewriting import BucketSort

END = 2  # the token that ends an answer whose length depends on the question


def chomsky_suite() -> dict[str, WordTask]:
    """Return the suite's fifteen tasks by their published names, with questions of 1-40 and, in valid and test, of 41-100 tokens.

    The lengths of the six from other files also count the answer and the token that ends the question (= or ACT), which parity
    and cycle navigation do not have.
    """
    return {
        "parity_check": Parity(train_lengths=(2, 41), eval_lengths=(42, 101)),
        "cycle_navigation": CycleNavigation(vocab_size=9, train_lengths=(2, 41), eval_lengths=(42, 101)),
        "modular_arithmetic": ModularArithmetic(vocab_size=10, train_lengths=(3, 42), eval_lengths=(43, 102)),
        "modular_arithmetic_brackets": ModularArithmeticBrackets(
            suite="chomsky", vocab_size=12, train_lengths=(3, 42), eval_lengths=(43, 102)
        ),
        "solve_equation": SolveEquation(suite="chomsky", vocab_size=14, train_lengths=(5, 42), eval_lengths=(43, 102)),
        "bucket_sort": BucketSort(vocab_size=7, train_lengths=(3, 82), eval_lengths=(83, 202)),
        **{name.removeprefix("chomsky_"): cls() for name, cls in TASKS.items() if issubclass(cls, ChomskyTask)},
    }


@dataclass(frozen=True, kw_only=True)
class ChomskyTask(WordTask):
    """The base class of the nine tasks: lengths are those of the question; by default questions and answers are words of bits."""

    num_classes: ClassVar[int] = 2
    _min_length: ClassVar[int] = 1
    eval_lengths: EvalLengths = (41, 100)

    @property
    def _default_train_lengths(self) -> tuple[int, int]:
        return self._min_length, 40

    def _min_question_length(self, length: int) -> int:
        return length

    def _max_length_at(self, length: int) -> int:
        return length + 1

    def _bucket_lengths(self, batch: Batch) -> Tensor:
        assert batch.loss_mask is not None
        return batch.loss_mask.int().argmax(1) + 1


@TASKS.register("chomsky_even_pairs")
@dataclass(frozen=True, kw_only=True)
class EvenPairs(ChomskyTask):
    """Say whether the number of 01s and 10s together is odd, which is whether first and last bit differ.

    0 1 0 1 0 0 1 | 1
    """

    def _generate(self, rng: CounterRNG, lengths: np.ndarray) -> Examples:
        words = random_words(rng, lengths, 2, self.padding)
        return single_token_examples(words, lengths, words[:, 0] ^ words[np.arange(len(words)), lengths - 1])


@TASKS.register("chomsky_missing_duplicate")
@dataclass(frozen=True, kw_only=True)
class MissingDuplicate(ChomskyTask):
    """Find the missing bit of a word of bits that is written twice; a question of odd length ends with an empty token.

        0 1 1 0 0 ? 1 0 | 1

    Lengths start at 2.
    """

    _extra_symbols: ClassVar[tuple[str, ...]] = ("?", "END")
    _min_length: ClassVar[int] = 2

    def _generate(self, rng: CounterRNG, lengths: np.ndarray) -> Examples:
        rows, halves = np.arange(len(lengths)), lengths // 2
        words = random_words(rng, halves, 2, self.padding)
        positions = np.arange(int(lengths.max()))
        doubled = _gather_letters(words, positions % halves[:, None])
        questions = np.where(positions < 2 * halves[:, None], doubled, np.where(positions < lengths[:, None], 3, self.padding))
        missing = rng.integers(0, 2 * halves, len(lengths))
        answers = questions[rows, missing]
        questions[rows, missing] = 2
        return single_token_examples(questions, lengths, answers)


@dataclass(frozen=True, kw_only=True)
class _RearrangedWord(ChomskyTask):
    """A uniformly random word of bits; each bit of the answer is the bit at a given position of the word."""

    _copies: ClassVar[int] = 1

    def _max_length_at(self, length: int) -> int:
        return (1 + self._copies) * length

    def _answer_length(self, question: list[int]) -> int:
        return self._copies * len(question)

    def _generate(self, rng: CounterRNG, lengths: np.ndarray) -> Examples:
        words = random_words(rng, lengths, 2, self.padding)
        return Examples(words, lengths, self._rearrange(words, lengths), self._copies * lengths)

    @abstractmethod
    def _rearrange(self, words: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Return the answers (n, copies * W) to words (n, W); tokens beyond the end of an answer are arbitrary."""


@TASKS.register("chomsky_reverse_string")
@dataclass(frozen=True, kw_only=True)
class ReverseString(_RearrangedWord):
    """Reverse the word of the question.

    0 1 1 0 1 | 1 0 1 1 0
    """

    def _rearrange(self, words: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        return _gather_letters(words, lengths[:, None] - 1 - np.arange(words.shape[1]))


@TASKS.register("chomsky_duplicate_string")
@dataclass(frozen=True, kw_only=True)
class DuplicateString(_RearrangedWord):
    """Write the word of the question twice.

    0 1 1 | 0 1 1 0 1 1
    """

    _copies: ClassVar[int] = 2

    def _rearrange(self, words: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        return _gather_letters(words, np.arange(2 * words.shape[1]) % lengths[:, None])


@TASKS.register("chomsky_odds_first")
@dataclass(frozen=True, kw_only=True)
class OddsFirst(_RearrangedWord):
    """Write the letters at odd positions, counted from 0 (the second, fourth, ...), then the others, as in the published code.

    0 0 1 1 0 1 0 1 | 0 1 1 1 0 1 0 0
    """

    def _rearrange(self, words: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        positions, odd = np.arange(words.shape[1]), lengths[:, None] // 2
        return _gather_letters(words, np.where(positions < odd, 2 * positions + 1, 2 * (positions - odd)))


@dataclass(frozen=True, kw_only=True)
class _ExactAnswer(ChomskyTask):
    """Questions that are generated as arrays, with answers computed for one question at a time in exact integers."""

    def _answer_length(self, question: list[int]) -> int:
        return len(self._solve(question))

    def _generate(self, rng: CounterRNG, lengths: np.ndarray) -> Examples:
        questions, is_usable = self._generate_questions(rng, lengths)
        answers = [self._solve(question[:length].tolist()) for question, length in zip(questions, lengths, strict=True)]
        return Examples(questions, lengths, *Ragged.from_sequences(answers).pad(None, self.padding), is_usable)

    @abstractmethod
    def _generate_questions(self, rng: CounterRNG, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """Return padded questions (n, W), and which are usable, (n,) bool, or None for all."""

    @abstractmethod
    def _solve(self, question: list[int]) -> list[int]:
        """Return the tokens of the answer to a question."""


@TASKS.register("chomsky_stack_manipulation")
@dataclass(frozen=True, kw_only=True)
class StackManipulation(_ExactAnswer):
    """Apply actions to a stack and write it from top to bottom, then END; POP leaves an empty stack empty.

        0 1 1 0 PUSH1 POP POP | 1 1 0 END

    The question is the stack from bottom to top, then the actions. 1 .. n - 1 of n tokens are the stack, uniform; there are no
    actions at length 1. Tokens after END are not scored.
    """

    num_classes: ClassVar[int] = 3
    symbols: ClassVar[tuple[str, ...]] = ("0", "1", "END", "POP", "PUSH0", "PUSH1", PADDING)

    def _max_length_at(self, length: int) -> int:
        return 2 * length + 1

    def _generate_questions(self, rng: CounterRNG, lengths: np.ndarray) -> tuple[np.ndarray, None]:
        stacks = 1 + rng.integers(0, np.maximum(lengths - 1, 1), len(lengths))
        bits = random_words(rng, lengths, 2, self.padding)
        actions = random_words(rng, lengths, 3, self.padding - 3) + 3
        return np.where(np.arange(bits.shape[1]) < stacks[:, None], bits, actions), None

    def _solve(self, question: list[int]) -> list[int]:
        stack: list[int] = []
        for token in question:
            if token == 3:
                del stack[-1:]
            else:
                stack.append(token % 4 if token >= 4 else token)
        return [*reversed(stack), END]


@dataclass(frozen=True, kw_only=True)
class _BinaryArithmetic(_ExactAnswer):
    """Two positive binary numbers, lowest bit first; the first has 1 .. n - 2 of n - 1 bits, uniform. Lengths start at 3."""

    num_classes: ClassVar[int] = 3
    _min_length: ClassVar[int] = 3

    def _max_length_at(self, length: int) -> int:
        return 2 * length + 1

    def _generate_questions(self, rng: CounterRNG, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        bits = random_words(rng, lengths, 2, self.padding)
        middle = 1 + rng.integers(0, lengths - 2, len(lengths))
        ones = bits == 1
        ones[np.arange(len(lengths)), middle] = False
        before = np.arange(bits.shape[1]) < middle[:, None]
        bits[np.arange(len(lengths)), middle] = 3
        return bits, (ones & before).any(1) & (ones & ~before).any(1)

    def _solve(self, question: list[int]) -> list[int]:
        middle = question.index(3) if 3 in question else len(question)
        numbers = (question[:middle], question[middle + 1 :])
        result = self._compute(*(sum(bit << position for position, bit in enumerate(bits)) for bits in numbers))
        return [*(result >> position & 1 for position in range(max(1, result.bit_length()))), END]

    @abstractmethod
    def _compute(self, first: int, second: int) -> int:
        """Return the result of the operator on two numbers."""


@TASKS.register("chomsky_binary_addition")
@dataclass(frozen=True, kw_only=True)
class BinaryAddition(_BinaryArithmetic):
    """Add two binary numbers, lowest bit first, and end with END; here 4 + 22.

    0 0 1 + 0 1 1 0 1 | 0 1 0 1 1 END
    """

    symbols: ClassVar[tuple[str, ...]] = ("0", "1", "END", "+", PADDING)

    def _compute(self, first: int, second: int) -> int:
        return first + second


@TASKS.register("chomsky_binary_multiplication")
@dataclass(frozen=True, kw_only=True)
class BinaryMultiplication(_BinaryArithmetic):
    """Multiply two binary numbers, lowest bit first, and end with END; here 4 * 22.

    0 0 1 * 0 1 1 0 1 | 0 0 0 1 1 0 1 END
    """

    symbols: ClassVar[tuple[str, ...]] = ("0", "1", "END", "*", PADDING)

    def _compute(self, first: int, second: int) -> int:
        return first * second


@TASKS.register("chomsky_compute_sqrt")
@dataclass(frozen=True, kw_only=True)
class ComputeSqrt(_ExactAnswer):
    """Compute the integer part of the square root of a binary number, highest bit first, in half as many bits; here of 37.

    1 0 0 1 0 1 | 1 1 0
    """

    def _max_length_at(self, length: int) -> int:
        return length + (length + 1) // 2

    def _generate_questions(self, rng: CounterRNG, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        bits = random_words(rng, lengths, 2, self.padding)
        return bits, (bits == 1).any(1)

    def _solve(self, question: list[int]) -> list[int]:
        root = isqrt(int("".join(map(str, question)), 2))
        return [int(bit) for bit in f"{root:0{(len(question) + 1) // 2}b}"]


def _gather_letters(words: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Return words[row, positions[row]] for each row; positions outside the array are clipped to it."""
    return np.take_along_axis(words, np.clip(positions, 0, words.shape[1] - 1), axis=1)
