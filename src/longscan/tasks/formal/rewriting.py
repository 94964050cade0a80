"""Languages whose answer is a word: repetition, bucket sort, set."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np

from longscan._types import Doc
from longscan.tasks._random import CounterRNG
from longscan.tasks.base import TASKS
from longscan.tasks.formal._examples import Examples, random_words
from longscan.tasks.formal.base import FormalTask


@dataclass(frozen=True, kw_only=True)
class _RewritingTask(FormalTask):
    """A uniformly random word over vocab_size - 2 letters, the symbol ACT, then a word that is computed from the first.

    In a sequence generated for length l the word has l//2 - 1 letters in the suite `aussm` and (l - 1)//2 in `clean`.
    """

    _extra_symbols: ClassVar[tuple[str, ...]] = ("ACT",)
    _end_symbol: ClassVar[str | None] = "ACT"
    _min_vocab_size: ClassVar[int] = 4

    @property
    def _min_length(self) -> int:
        return 4 if self.suite == "aussm" else 3

    def _count_letters(self, lengths: np.ndarray) -> np.ndarray:
        return lengths // 2 - 1 if self.suite == "aussm" else (lengths - 1) // 2

    def _min_question_length(self, length: int) -> int:
        return int(self._count_letters(np.array(length))) + 1

    def _answer_length(self, question: list[int]) -> int:
        return len(question) - 1

    def _generate(self, rng: CounterRNG, lengths: np.ndarray) -> Examples:
        counts = self._count_letters(lengths)
        words = random_words(rng, counts, self.num_classes, self.padding)
        questions = self._append_end(words, counts)
        return Examples(questions, counts + 1, *self._rewrite(words, counts))

    @abstractmethod
    def _rewrite(self, words: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the padded answers and their lengths. words: (n, W), padded; counts: (n,) number of letters of each."""


@TASKS.register("repetition")
@dataclass(frozen=True, kw_only=True)
class Repetition(_RewritingTask):
    """Repeat the word of the question.

    5 2 9 2 ACT | 5 2 9 2
    """

    def _rewrite(self, words: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return words, counts


@TASKS.register("bucket_sort")
@dataclass(frozen=True, kw_only=True)
class BucketSort(_RewritingTask):
    """Sort the letters of the word in ascending order.

        5 2 9 2 ACT | 2 2 5 9

    Under teacher forcing (the suite `aussm`) the input shows the previous letter, and each answer is at least that letter.
    """

    def _rewrite(self, words: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.sort(words, axis=1), counts


@TASKS.register("set")
@dataclass(frozen=True, kw_only=True)
class Set(_RewritingTask):
    """List each distinct letter of the word once.

        3 5 0 7 3 ACT | 0 3 5 7      (order="sorted", as the AUSSM paper's sample has it)
        3 5 0 7 3 ACT | 3 5 0 7      (order="first": by first occurrence, as the xLSTM paper has it)

    No published repository contains the code of this task: both suites differ only in lengths and teacher forcing.
    """

    order: Annotated[Literal["sorted", "first"], Doc("order of the letters: ascending, or by first occurrence")] = "sorted"

    def _answer_length(self, question: list[int]) -> int:
        return len(set(question)) - 1

    def _rewrite(self, words: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        rows, width = np.arange(len(counts)), words.shape[1]
        first = np.full((len(counts), self.vocab_size), width)
        for position in range(width - 1, -1, -1):
            first[rows, words[:, position]] = position
        first = first[:, : self.num_classes]
        present = first < width
        rank = np.where(present, np.arange(self.num_classes) if self.order == "sorted" else first, width + self.num_classes)
        letters = np.argsort(rank, axis=1, kind="stable")
        distinct = present.sum(1)
        return np.where(np.arange(self.num_classes) < distinct[:, None], letters, self.padding), distinct
