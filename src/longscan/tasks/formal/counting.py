"""Counting languages: majority and majority count."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from longscan._types import Doc
from longscan.tasks._random import CounterRNG
from longscan.tasks.base import TASKS
from longscan.tasks.formal._examples import Examples, random_words, single_token_examples
from longscan.tasks.formal.base import FormalTask


@dataclass(frozen=True, kw_only=True)
class _CountingTask(FormalTask):
    """A uniformly random word over vocab_size - 1 letters; the answer depends on the number of times that each occurs.

    A sequence generated for length l has l - 1 letters.
    """

    _min_vocab_size: ClassVar[int] = 3
    _min_length: ClassVar[int] = 2
    vocab_size: Annotated[int, Doc("number of tokens: letters and padding")] = 64

    def _generate(self, rng: CounterRNG, lengths: np.ndarray) -> Examples:
        words = random_words(rng, lengths - 1, self.num_classes, self.padding)
        rows = np.arange(len(lengths))[:, None] * self.vocab_size
        counts = np.bincount((words + rows).ravel(), minlength=len(lengths) * self.vocab_size)
        answers = self._answers(counts.reshape(len(lengths), -1)[:, : self.num_classes])
        return single_token_examples(words, lengths - 1, answers)

    @abstractmethod
    def _answers(self, counts: np.ndarray) -> np.ndarray:
        """Return the answers (n,) from the number of times that each letter occurs, (n, letters)."""


@TASKS.register("majority")
@dataclass(frozen=True, kw_only=True)
class Majority(_CountingTask):
    """Name the most frequent letter, and the smallest of them if there are several.

    7 4 7 4 | 4
    """

    def _answers(self, counts: np.ndarray) -> np.ndarray:
        return counts.argmax(1)


@TASKS.register("majority_count")
@dataclass(frozen=True, kw_only=True)
class MajorityCount(_CountingTask):
    """Count the occurrences of the most frequent letter. The count is a token and is limited to the largest letter.

        7 4 7 4 7 | 3

    With 64 tokens the counts in test are mostly 3-9 and those in training 1-6, so some test answers never occur in training.
    """

    def _answers(self, counts: np.ndarray) -> np.ndarray:
        return np.minimum(counts.max(1), self.num_classes - 1)
