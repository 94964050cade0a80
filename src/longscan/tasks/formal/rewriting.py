"""Languages whose answer is a word: repetition, bucket sort, set."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from longscan.tasks._random import Draws
from longscan.tasks.base import TASKS
from longscan.tasks.formal._examples import Examples
from longscan.tasks.formal.base import FormalTask, check_choice
from longscan.tasks.formal.regular import PADDING, random_words


@dataclass(frozen=True, kw_only=True)
class _Rewriting(FormalTask):
    """A uniform word over vocab_size - 2 letters, the symbol ACT, then a word made from the first.

    A sequence drawn at length l has a word of l//2 - 1 letters in the suite `aussm`, of (l - 1)//2 in `clean`.
    """

    @property
    def num_classes(self) -> int:
        """The letters."""
        return self.vocab_size - 2

    @property
    def symbols(self) -> tuple[str, ...]:
        """Letters, ACT, padding."""
        return (*map(str, range(self.num_classes)), "ACT", PADDING)

    @property
    def _closing(self) -> int:
        return self.vocab_size - 2

    @property
    def _least_vocab(self) -> int:
        return 4

    @property
    def _least_length(self) -> int:
        return 4 if self.suite == "aussm" else 3

    def _letters(self, lengths: np.ndarray) -> np.ndarray:
        return lengths // 2 - 1 if self.suite == "aussm" else (lengths - 1) // 2

    def _shortest_question(self, length: int) -> int:
        return int(self._letters(np.array(length))) + 1

    def _answer_length(self, question: list[int]) -> int:
        return len(question) - 1

    def _draw(self, draws: Draws, lengths: np.ndarray) -> Examples:
        counts = self._letters(lengths)
        words = random_words(draws, counts, self.num_classes, self.padding)
        questions = np.pad(words, ((0, 0), (0, 1)), constant_values=self.padding)
        questions[np.arange(len(counts)), counts] = self._closing
        return Examples(questions, counts + 1, *self._rewrite(words, counts))

    @abstractmethod
    def _rewrite(self, words: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The answers, padded, and their lengths. words: (n, W), padded; counts: (n,) letters of each."""


@TASKS.register("repetition")
@dataclass(frozen=True, kw_only=True)
class Repetition(_Rewriting):
    """The same word again.

        5 2 9 2 ACT | 5 2 9 2
    """

    name: ClassVar[str] = "repetition"

    def _rewrite(self, words: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return words, counts


@TASKS.register("bucket_sort")
@dataclass(frozen=True, kw_only=True)
class BucketSort(_Rewriting):
    """The letters in ascending order.

        5 2 9 2 ACT | 2 2 5 9

    Under teacher forcing (the suite `aussm`) each answer is at least the letter before it, which the input shows.
    """

    name: ClassVar[str] = "bucket_sort"

    def _rewrite(self, words: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.sort(words, axis=1), counts


@TASKS.register("set")
@dataclass(frozen=True, kw_only=True)
class Set(_Rewriting):
    """The distinct letters, each once.

        3 5 0 7 3 ACT | 0 3 5 7      (order="sorted", as the AUSSM paper's sample has it)
        3 5 0 7 3 ACT | 3 5 0 7      (order="first": by first occurrence, as the xLSTM paper has it)

    Its code is in no published repository: both suites differ only in lengths and teacher forcing.
    """

    name: ClassVar[str] = "set"
    order: Literal["sorted", "first"] = "sorted"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, "order", ("sorted", "first"))

    def _answer_length(self, question: list[int]) -> int:
        return len(set(question)) - 1

    def _rewrite(self, words: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        rows, width = np.arange(len(counts)), words.shape[1]
        first = np.full((len(counts), self.vocab_size), width)
        for place in range(width - 1, -1, -1):
            first[rows, words[:, place]] = place
        first = first[:, : self.num_classes]
        present = first < width
        rank = np.where(present, np.arange(self.num_classes) if self.order == "sorted" else first, width + self.num_classes)
        letters = np.argsort(rank, axis=1, kind="stable")
        distinct = present.sum(1)
        return np.where(np.arange(self.num_classes) < distinct[:, None], letters, self.padding), distinct
