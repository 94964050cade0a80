"""Tasks that ask for what stood earlier in the sequence: selective copying, induction heads, multi-query associative recall."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from longscan.tasks._random import Draws
from longscan.tasks.base import TASKS, Batch
from longscan.tasks.formal._examples import IGNORED, Examples
from longscan.tasks.formal.base import WordTask
from longscan.tasks.formal.regular import PADDING, single


@dataclass(frozen=True, kw_only=True)
class _Recall(WordTask):
    """Lengths and checks of the tasks with a number of letters."""

    letters: int = 14

    def __post_init__(self) -> None:
        if self.letters < 2:
            raise ValueError(f"letters: must be at least 2, not {self.letters}")
        super().__post_init__()

    @property
    def num_classes(self) -> int:
        """The letters."""
        return self.letters


@TASKS.register("selective_copying")
@dataclass(frozen=True, kw_only=True)
class SelectiveCopying(_Recall):
    """The letters that are strewn among noise, in their order.

        . 3 . . 0 . 7 . ACT | 3 0 7

    `copied` letters stand at uniformly chosen places (Gu and Dao, 2023, with 4,096 tokens of 16 kinds and 16 letters to copy). A
    sequence drawn at length l has l tokens, question and answer.
    """

    name: ClassVar[str] = "selective_copying"
    eval_lengths: tuple[int, int] = (257, 1024)
    copied: int = 16

    def __post_init__(self) -> None:
        if self.copied < 1:
            raise ValueError(f"copied: must be at least 1, not {self.copied}")
        super().__post_init__()

    @property
    def vocab_size(self) -> int:
        """Letters, noise, ACT, padding."""
        return self.letters + 3

    @property
    def symbols(self) -> tuple[str, ...]:
        """Letters, noise, ACT, padding."""
        return (*map(str, range(self.letters)), ".", "ACT", PADDING)

    @property
    def _closing(self) -> int:
        return self.letters + 1

    @property
    def _least_length(self) -> int:
        return 2 * self.copied + 1

    @property
    def _own_lengths(self) -> tuple[int, int]:
        return self._least_length, max(256, self._least_length)

    def _shortest_question(self, length: int) -> int:
        return length - self.copied

    def _answer_length(self, question: list[int]) -> int:
        return max(1, sum(token < self.letters for token in question))

    def _draw(self, draws: Draws, lengths: np.ndarray) -> Examples:
        count, places = len(lengths), lengths - self.copied - 1
        width = int(places.max())
        ranks = np.where(np.arange(width) < places[:, None], draws.integers(0, 2**31, (count, width)), 2**31)
        chosen = np.sort(np.argsort(ranks, axis=1, kind="stable")[:, : self.copied], axis=1)
        letters = draws.integers(0, self.letters, (count, self.copied))
        questions = np.where(np.arange(width + 1) < places[:, None], self.letters, self.padding)
        np.put_along_axis(questions, chosen, letters, axis=1)
        questions[np.arange(count), places] = self._closing
        return Examples(questions, places + 1, letters, np.full(count, self.copied))


@TASKS.register("induction_heads")
@dataclass(frozen=True, kw_only=True)
class InductionHeads(_Recall):
    """The letter that followed the mark when it stood in the sequence before.

        4 1 MARK 6 3 3 0 MARK | 6

    Letters are uniform, and the first mark's place is (Olsson et al., 2022; Gu and Dao, 2023, who train at 256 tokens and test up
    to a million). A sequence drawn at length l has l - 1 tokens in its question.
    """

    name: ClassVar[str] = "induction_heads"
    eval_lengths: tuple[int, int] = (257, 1024)

    @property
    def vocab_size(self) -> int:
        """Letters, the mark, padding."""
        return self.letters + 2

    @property
    def symbols(self) -> tuple[str, ...]:
        """Letters, the mark, padding."""
        return (*map(str, range(self.letters)), "MARK", PADDING)

    @property
    def _closing(self) -> int:
        return self.letters

    @property
    def _least_length(self) -> int:
        return 4

    @property
    def _own_lengths(self) -> tuple[int, int]:
        return 4, 256

    def _shortest_question(self, length: int) -> int:
        return length - 1

    def _draw(self, draws: Draws, lengths: np.ndarray) -> Examples:
        rows, last, width = np.arange(len(lengths)), lengths - 2, int(lengths.max()) - 1
        words = np.where(np.arange(width) < last[:, None], draws.integers(0, self.letters, (len(rows), width)), self.padding)
        mark = draws.integers(0, last - 1, len(rows))
        answers = words[rows, mark + 1]
        words[rows, mark] = words[rows, last] = self.letters
        return single(words, last + 1, answers)


@TASKS.register("multi_query_recall")
@dataclass(frozen=True, kw_only=True)
class MultiQueryRecall(_Recall):
    """The values that keys had at the beginning, asked for later, each key once.

        k2 v7 k0 v3 v1 v5 k0 v6 k2 v2 | 3 7

    `pairs` keys, distinct among `letters`, stand first, each with its value among `letters`. Then come random values, and keys
    again at every second place, chosen without replacement by weights (1 + distance)^(power - 1) (Arora et al., 2023, where 4,096
    keys and values and power .01 are used). The model answers at each of these. A length is that of the whole question.
    """

    name: ClassVar[str] = "multi_query_recall"
    eval_lengths: tuple[int, int] = (129, 512)
    letters: int = 64
    pairs: int = 8
    power: float = 0.01

    def __post_init__(self) -> None:
        if not 1 <= self.pairs <= self.letters:
            raise ValueError(f"pairs: must lie in 1 .. letters ({self.letters}), not {self.pairs}")
        if not 0 < self.power <= 1:
            raise ValueError(f"power: must lie above 0 and at most at 1, not {self.power}")
        super().__post_init__()

    @property
    def vocab_size(self) -> int:
        """Values, keys, padding."""
        return 2 * self.letters + 1

    @property
    def symbols(self) -> tuple[str, ...]:
        """Values, keys, padding."""
        return (*(f"v{value}" for value in range(self.letters)), *(f"k{key}" for key in range(self.letters)), PADDING)

    @property
    def _least_length(self) -> int:
        return 4 * self.pairs

    @property
    def _own_lengths(self) -> tuple[int, int]:
        return max(64, self._least_length), max(128, self._least_length)

    def _shortest_question(self, length: int) -> int:
        return length

    def _width(self, length: int) -> int:
        return length + 1

    def _drawn_lengths(self, batch: Batch) -> Tensor:
        assert batch.valid is not None
        return batch.valid.sum(1)

    def _answer_length(self, question: list[int]) -> int:
        return sum(token >= self.letters for token in question[2 * self.pairs :])

    def _question(self, batch: Batch, row: int) -> list[int]:
        assert batch.valid is not None
        return batch.inputs[row][batch.valid[row]].tolist()

    def _draw(self, draws: Draws, lengths: np.ndarray) -> Examples:
        count, width, context = len(lengths), int(lengths.max()), 2 * self.pairs
        rows = np.arange(count)[:, None]
        keys = np.argsort(draws.integers(0, 2**31, (count, self.letters)), axis=1, kind="stable")[:, : self.pairs]
        questions = draws.integers(0, self.letters, (count, width))
        values = questions[:, 1:context:2].copy()
        questions[:, 0:context:2] = keys + self.letters
        room = (lengths - context) // 2
        gaps = np.arange(int(room.max()))
        # Exponential clocks: the first to ring are a choice without replacement by weight.
        rings = -np.log(draws.uniform((count, len(gaps)))) * (gaps + 1.0) ** (1 - self.power)
        chosen = np.argsort(np.where(gaps < room[:, None], rings, np.inf), axis=1, kind="stable")[:, : self.pairs]
        questions[rows, context + 2 * chosen] = keys + self.letters
        questions[np.arange(width) >= lengths[:, None]] = self.padding
        answers = values[rows, np.argsort(chosen, axis=1)]
        return Examples(questions, lengths, answers, np.full(count, self.pairs))

    def _layout(self, examples: Examples, width: int | None, *, shows_answers: bool) -> Batch:  # noqa: ARG002
        width = int(examples.question_lengths.max()) if width is None else width
        inputs = np.full((len(examples.questions), width), self.padding)
        inputs[:, : examples.questions.shape[1]] = examples.questions
        places = np.arange(width)
        asked = (inputs >= self.letters) & (places >= 2 * self.pairs) & (places < examples.question_lengths[:, None])
        targets = np.full(inputs.shape, IGNORED)
        targets[asked] = examples.answers[np.arange(examples.answers.shape[1]) < examples.answer_lengths[:, None]]
        valid = places < examples.question_lengths[:, None]
        return Batch(*map(torch.from_numpy, (inputs, targets, valid, asked)))
