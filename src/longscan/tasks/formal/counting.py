"""Counting languages: majority and majority count."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from longscan.tasks._random import Draws
from longscan.tasks.base import TASKS
from longscan.tasks.formal._examples import Examples
from longscan.tasks.formal.base import FormalTask
from longscan.tasks.formal.regular import PADDING, random_words, single


@dataclass(frozen=True, kw_only=True)
class _Counting(FormalTask):
    """A uniform word over vocab_size - 1 letters; the answer depends on how often each occurs.

    A sequence drawn at length l has l - 1 letters.
    """

    vocab_size: int = 64

    @property
    def num_classes(self) -> int:
        """The letters."""
        return self.vocab_size - 1

    @property
    def symbols(self) -> tuple[str, ...]:
        """Letters, padding."""
        return (*map(str, range(self.num_classes)), PADDING)

    @property
    def _least_vocab(self) -> int:
        return 3

    @property
    def _least_length(self) -> int:
        return 2

    def _shortest_question(self, length: int) -> int:
        return length - 1

    def _draw(self, draws: Draws, lengths: np.ndarray) -> Examples:
        words = random_words(draws, lengths - 1, self.num_classes, self.padding)
        rows = np.arange(len(lengths))[:, None] * self.vocab_size
        counts = np.bincount((words + rows).ravel(), minlength=len(lengths) * self.vocab_size)
        return single(words, lengths - 1, self._answers(counts.reshape(len(lengths), -1)[:, : self.num_classes]))

    @abstractmethod
    def _answers(self, counts: np.ndarray) -> np.ndarray:
        """(n,) from the number of times that each letter occurs, (n, letters)."""


@TASKS.register("majority")
@dataclass(frozen=True, kw_only=True)
class Majority(_Counting):
    """The most frequent letter, the smallest of several.

        7 4 7 4 | 4
    """

    name: ClassVar[str] = "majority"

    def _answers(self, counts: np.ndarray) -> np.ndarray:
        return counts.argmax(1)


@TASKS.register("majority_count")
@dataclass(frozen=True, kw_only=True)
class MajorityCount(_Counting):
    """How often the most frequent letter occurs, as a token; more than the largest letter is given as that letter.

        7 4 7 4 7 | 3

    At 64 tokens test counts are mostly 3-9 and training counts 1-6, so some test answers never occur in training.
    """

    name: ClassVar[str] = "majority_count"

    def _answers(self, counts: np.ndarray) -> np.ndarray:
        return np.minimum(counts.max(1), self.num_classes - 1)
