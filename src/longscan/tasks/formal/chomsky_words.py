"""Tasks of the Chomsky hierarchy suite whose answer is a word; see `longscan.tasks.formal.chomsky`."""

from abc import abstractmethod
from dataclasses import dataclass
from math import isqrt
from typing import ClassVar

import numpy as np

from longscan.tasks._random import Draws
from longscan.tasks.base import TASKS
from longscan.tasks.formal._examples import Examples
from longscan.tasks.formal.chomsky import ChomskyTask
from longscan.tasks.formal.regular import PADDING, random_words

END = 2  # the token that ends an answer whose length depends on the question


@dataclass(frozen=True, kw_only=True)
class _Rearranged(ChomskyTask):
    """A uniform word over `_letters` letters; the answer takes its letters from given places of the word."""

    _letters: ClassVar[int] = 2
    _copies: ClassVar[int] = 1

    @property
    def num_classes(self) -> int:
        """The letters."""
        return self._letters

    @property
    def symbols(self) -> tuple[str, ...]:
        """Letters, padding."""
        return (*map(str, range(self._letters)), PADDING)

    def _width(self, length: int) -> int:
        return (1 + self._copies) * length

    def _answer_length(self, question: list[int]) -> int:
        return self._copies * len(question)

    def _draw(self, draws: Draws, lengths: np.ndarray) -> Examples:
        words = random_words(draws, lengths, self._letters, self.padding)
        return Examples(words, lengths, self._rearrange(words, lengths), self._copies * lengths)

    @abstractmethod
    def _rearrange(self, words: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """The answers (n, copies * W) from words (n, W); what stands beyond an answer's end does not matter."""


@TASKS.register("chomsky_reverse_string")
@dataclass(frozen=True, kw_only=True)
class ReverseString(_Rearranged):
    """The word from its end.

    0 1 1 0 1 | 1 0 1 1 0
    """

    name: ClassVar[str] = "chomsky_reverse_string"

    def _rearrange(self, words: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        return _taken(words, lengths[:, None] - 1 - np.arange(words.shape[1]))


@TASKS.register("chomsky_duplicate_string")
@dataclass(frozen=True, kw_only=True)
class DuplicateString(_Rearranged):
    """The word twice.

    0 1 1 | 0 1 1 0 1 1
    """

    name: ClassVar[str] = "chomsky_duplicate_string"
    _copies: ClassVar[int] = 2

    def _rearrange(self, words: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        return _taken(words, np.arange(2 * words.shape[1]) % lengths[:, None])


@TASKS.register("chomsky_odds_first")
@dataclass(frozen=True, kw_only=True)
class OddsFirst(_Rearranged):
    """The letters at odd places, counted from 0 (the second, fourth, ...), then the others, as the published code has it.

    0 0 1 1 0 1 0 1 | 0 1 1 1 0 1 0 0
    """

    name: ClassVar[str] = "chomsky_odds_first"

    def _rearrange(self, words: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        places, odd = np.arange(words.shape[1]), lengths[:, None] // 2
        return _taken(words, np.where(places < odd, 2 * places + 1, 2 * (places - odd)))


@TASKS.register("chomsky_bucket_sort")
@dataclass(frozen=True, kw_only=True)
class BucketSort(_Rearranged):
    """The five letters in ascending order, without an end mark in the question.

    3 1 4 1 0 | 0 1 1 3 4
    """

    name: ClassVar[str] = "chomsky_bucket_sort"
    _letters: ClassVar[int] = 5

    def _rearrange(self, words: np.ndarray, lengths: np.ndarray) -> np.ndarray:  # noqa: ARG002
        return np.sort(words, axis=1)


@dataclass(frozen=True, kw_only=True)
class _Computed(ChomskyTask):
    """Questions drawn together, answers computed one by one with exact integers or by acting step by step."""

    def _answer_length(self, question: list[int]) -> int:
        return len(self._answer(question))

    def _draw(self, draws: Draws, lengths: np.ndarray) -> Examples:
        questions, keep = self._questions(draws, lengths)
        answers = [self._answer(question[:length].tolist()) for question, length in zip(questions, lengths, strict=True)]
        answer_lengths = np.array([len(answer) for answer in answers])
        table = np.full((len(answers), answer_lengths.max()), self.padding)
        table[np.arange(table.shape[1]) < answer_lengths[:, None]] = np.concatenate(answers)
        return Examples(questions, lengths, table, answer_lengths, keep)

    @abstractmethod
    def _questions(self, draws: Draws, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """Questions (n, W), padded, and which are usable (n,), None for all."""

    @abstractmethod
    def _answer(self, question: list[int]) -> list[int]:
        """The answer's tokens."""


@TASKS.register("chomsky_stack_manipulation")
@dataclass(frozen=True, kw_only=True)
class StackManipulation(_Computed):
    """A stack from the bottom up after the actions that follow it, from the top down, then END; an empty stack stays under POP.

        0 1 1 0 PUSH1 POP POP | 1 1 0 END

    1 .. n - 1 of n tokens are the stack, uniform; there are no actions at length 1. What comes after END is not scored.
    """

    name: ClassVar[str] = "chomsky_stack_manipulation"

    @property
    def num_classes(self) -> int:
        """Bits and END."""
        return 3

    @property
    def symbols(self) -> tuple[str, ...]:
        """Bits, END, actions, padding."""
        return ("0", "1", "END", "POP", "PUSH0", "PUSH1", PADDING)

    def _width(self, length: int) -> int:
        return 2 * length + 1

    def _questions(self, draws: Draws, lengths: np.ndarray) -> tuple[np.ndarray, None]:
        stacks = 1 + draws.integers(0, np.maximum(lengths - 1, 1), len(lengths))
        bits = random_words(draws, lengths, 2, self.padding)
        actions = random_words(draws, lengths, 3, self.padding - 3) + 3
        return np.where(np.arange(bits.shape[1]) < stacks[:, None], bits, actions), None

    def _answer(self, question: list[int]) -> list[int]:
        stack: list[int] = []
        for token in question:
            if token == 3:
                del stack[-1:]
            else:
                stack.append(token % 4 if token >= 4 else token)
        return [*reversed(stack), END]


@dataclass(frozen=True, kw_only=True)
class _Binary(_Computed):
    """Two binary numbers above 0, lowest bit first; the first has 1 .. n - 2 of n - 1 bits, uniform. Lengths start at 3."""

    _operator: ClassVar[str]

    @property
    def num_classes(self) -> int:
        """Bits and END."""
        return 3

    @property
    def symbols(self) -> tuple[str, ...]:
        """Bits, END, the operator, padding."""
        return ("0", "1", "END", self._operator, PADDING)

    @property
    def _least_length(self) -> int:
        return 3

    def _width(self, length: int) -> int:
        return 2 * length + 1

    def _questions(self, draws: Draws, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        bits = random_words(draws, lengths, 2, self.padding)
        middle = 1 + draws.integers(0, lengths - 2, len(lengths))
        ones = bits == 1
        ones[np.arange(len(lengths)), middle] = False
        before = np.arange(bits.shape[1]) < middle[:, None]
        bits[np.arange(len(lengths)), middle] = 3
        return bits, (ones & before).any(1) & (ones & ~before).any(1)

    def _answer(self, question: list[int]) -> list[int]:
        middle = question.index(3) if 3 in question else len(question)
        numbers = (question[:middle], question[middle + 1 :])
        result = self._compute(*(sum(bit << place for place, bit in enumerate(bits)) for bits in numbers))
        return [*(result >> place & 1 for place in range(max(1, result.bit_length()))), END]

    @abstractmethod
    def _compute(self, first: int, second: int) -> int:
        """What the operator makes of two numbers."""


@TASKS.register("chomsky_binary_addition")
@dataclass(frozen=True, kw_only=True)
class BinaryAddition(_Binary):
    """The sum of two binary numbers, lowest bit first, then END; here 4 + 22.

    0 0 1 + 0 1 1 0 1 | 0 1 0 1 1 END
    """

    name: ClassVar[str] = "chomsky_binary_addition"
    _operator: ClassVar[str] = "+"

    def _compute(self, first: int, second: int) -> int:
        return first + second


@TASKS.register("chomsky_binary_multiplication")
@dataclass(frozen=True, kw_only=True)
class BinaryMultiplication(_Binary):
    """The product of two binary numbers, lowest bit first, then END; here 4 * 22.

    0 0 1 * 0 1 1 0 1 | 0 0 0 1 1 0 1 END
    """

    name: ClassVar[str] = "chomsky_binary_multiplication"
    _operator: ClassVar[str] = "*"

    def _compute(self, first: int, second: int) -> int:
        return first * second


@TASKS.register("chomsky_compute_sqrt")
@dataclass(frozen=True, kw_only=True)
class ComputeSqrt(_Computed):
    """The whole part of the square root of a binary number above 0, highest bit first, in half as many bits; here of 37.

    1 0 0 1 0 1 | 1 1 0
    """

    name: ClassVar[str] = "chomsky_compute_sqrt"

    def _width(self, length: int) -> int:
        return length + (length + 1) // 2

    def _questions(self, draws: Draws, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        bits = random_words(draws, lengths, 2, self.padding)
        return bits, (bits == 1).any(1)

    def _answer(self, question: list[int]) -> list[int]:
        root = isqrt(int("".join(map(str, question)), 2))
        return [int(bit) for bit in f"{root:0{(len(question) + 1) // 2}b}"]


def _taken(words: np.ndarray, places: np.ndarray) -> np.ndarray:
    """words[row, places[row]], places outside a word's array being anything inside it."""
    return np.take_along_axis(words, np.clip(places, 0, words.shape[1] - 1), axis=1)
