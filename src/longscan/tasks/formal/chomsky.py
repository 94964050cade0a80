"""The tasks of "Neural Networks and the Chomsky Hierarchy" (Delétang et al., ICLR 2023), with that suite's semantics.

Nine tasks are here; the other six are languages of the files beside this one, with the settings that `chomsky_suite` gives them.
A length of the nine is that of the question: 1-40 in training, 41-100 in valid and test (there: 1-100 with the score over those
above 40, up to 500 in the paper's figures). Answers of several tokens are given at the steps after the question, which show
padding, and none shows the answers before it. The suite's score is the mean over lengths; here it is over answers, and the
buckets are by length of the question. Fixed lengths within a batch, which only that suite's one-hot inputs needed, are not kept.
"""

from abc import abstractmethod
from dataclasses import dataclass
from math import isqrt
from typing import ClassVar

import numpy as np
from torch import Tensor

from longscan.tasks._random import Draws
from longscan.tasks.base import TASKS, Batch
from longscan.tasks.formal._examples import Examples
from longscan.tasks.formal.base import WordTask
from longscan.tasks.formal.context_free import ModularArithmeticBrackets, SolveEquation
from longscan.tasks.formal.regular import PADDING, CycleNavigation, ModularArithmetic, Parity, random_words, single
from longscan.tasks.formal.rewriting import BucketSort

END = 2  # the token that ends an answer whose length depends on the question


def chomsky_suite() -> dict[str, WordTask]:
    """Return the suite's fifteen tasks by their published names, with questions of 1-40 and, in valid and test, of 41-100 tokens.

    The lengths that the six from other files are given count the answer, too, and a token that ends the question (= or ACT) but
    for parity and cycle navigation.
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
    """The base class of the nine tasks: lengths are the question's, and the vocabulary follows from the task."""

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
        """The questions' lengths."""
        assert batch.loss_mask is not None
        return batch.loss_mask.int().argmax(1) + 1


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


@dataclass(frozen=True, kw_only=True)
class _Rearranged(ChomskyTask):
    """A uniform word of bits; the answer takes its bits from given places of the word."""

    _copies: ClassVar[int] = 1

    def _width(self, length: int) -> int:
        return (1 + self._copies) * length

    def _answer_length(self, question: list[int]) -> int:
        return self._copies * len(question)

    def _draw(self, draws: Draws, lengths: np.ndarray) -> Examples:
        words = random_words(draws, lengths, 2, self.padding)
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
        """Return the result of the operator on two numbers."""


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
