"""Tasks that ask for earlier tokens of the sequence: selective copying, induction heads, multi-query associative recall."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
from torch import Tensor

from longscan._errors import setting_error
from longscan._types import Doc, PositiveInt, Rule, at_least
from longscan.tasks._random import CounterRNG
from longscan.tasks.base import TASKS, Batch
from longscan.tasks.classification import IGNORE_INDEX
from longscan.tasks.formal._examples import PADDING, Examples, single_token_examples
from longscan.tasks.formal.base import EvalLengths, WordTask

Letters = Annotated[int, at_least(2), Doc("number of different letters")]


@dataclass(frozen=True, kw_only=True)
class _RecallTask(WordTask):
    """Base class of the tasks with the setting `letters`, the number of different letters."""

    letters: Letters = 14

    @property
    def num_classes(self) -> int:
        """Number of letters, each of which may be an answer."""
        return self.letters


@TASKS.register("selective_copying")
@dataclass(frozen=True, kw_only=True)
class SelectiveCopying(_RecallTask):
    """Copy the letters among noise tokens in their order.

        . 3 . . 0 . 7 . ACT | 3 0 7

    The `copied` letters are at uniformly chosen positions (Gu and Dao, 2023, with 4,096 tokens of 16 kinds and 16 letters to
    copy). A sequence generated for length l has l tokens, question and answer.
    """

    _extra_symbols: ClassVar[tuple[str, ...]] = (".", "ACT")
    _end_symbol: ClassVar[str | None] = "ACT"
    eval_lengths: EvalLengths = (257, 1024)
    copied: Annotated[PositiveInt, Doc("number of letters to copy")] = 16

    @property
    def _min_length(self) -> int:
        return 2 * self.copied + 1

    @property
    def _default_train_lengths(self) -> tuple[int, int]:
        return self._min_length, max(256, self._min_length)

    def _min_question_length(self, length: int) -> int:
        return length - self.copied

    def _answer_length(self, question: list[int]) -> int:
        return sum(token < self.letters for token in question)

    def _generate(self, rng: CounterRNG, lengths: np.ndarray) -> Examples:
        count, positions = len(lengths), lengths - self.copied - 1
        inside = np.arange(int(positions.max())) < positions[:, None]
        ranks = np.where(inside, rng.integers(0, 2**31, inside.shape), 2**31)
        chosen = np.sort(np.argsort(ranks, axis=1, kind="stable")[:, : self.copied], axis=1)
        letters = rng.integers(0, self.letters, (count, self.copied))
        words = np.where(inside, self.letters, self.padding)
        np.put_along_axis(words, chosen, letters, axis=1)
        return Examples(self._append_end(words, positions), positions + 1, letters, np.full(count, self.copied))


@TASKS.register("induction_heads")
@dataclass(frozen=True, kw_only=True)
class InductionHeads(_RecallTask):
    """Give the letter that followed the mark at its first occurrence.

        4 1 MARK 6 3 3 0 MARK | 6

    The letters and the position of the first mark are uniform (Olsson et al., 2022; Gu and Dao, 2023, who train at 256 tokens and
    test up to a million). A sequence generated for length l has l - 1 tokens in its question.
    """

    _extra_symbols: ClassVar[tuple[str, ...]] = ("MARK",)
    _end_symbol: ClassVar[str | None] = "MARK"
    _end_count: ClassVar[int] = 2
    _min_length: ClassVar[int] = 4
    _default_train_lengths: ClassVar[tuple[int, int]] = (4, 256)
    eval_lengths: EvalLengths = (257, 1024)

    def _generate(self, rng: CounterRNG, lengths: np.ndarray) -> Examples:
        rows, last, width = np.arange(len(lengths)), lengths - 2, int(lengths.max()) - 1
        words = np.where(np.arange(width) < last[:, None], rng.integers(0, self.letters, (len(rows), width)), self.padding)
        mark = rng.integers(0, last - 1, len(rows))
        answers = words[rows, mark + 1]
        words[rows, mark] = words[rows, last] = self.letters
        return single_token_examples(words, last + 1, answers)


@TASKS.register("multi_query_recall")
@dataclass(frozen=True, kw_only=True)
class MultiQueryRecall(_RecallTask):
    """Recall the value of each key from the beginning of the sequence when the key occurs again.

        k2 v7 k0 v3 v1 v5 k0 v6 k2 v2 | 3 7

    The sequence starts with `pairs` different keys out of `letters`, each followed by its value, one of `letters`. Random values
    follow. Each key occurs once more, at every second position chosen without replacement with weights (1 + distance)^(power - 1)
    (Arora et al., 2023, who use 4,096 keys and values and power .01). The model answers at these keys. A length is that of the
    whole question.
    """

    eval_lengths: EvalLengths = (129, 512)
    letters: Letters = 64
    pairs: Annotated[PositiveInt, Doc("number of pairs of a key and its value")] = 8
    power: Annotated[
        float,
        Rule(lambda power: 0 < power <= 1, "a number above 0 and at most 1"),
        Doc("of the distance in the weights of the positions at which keys occur again"),
    ] = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pairs > self.letters:
            raise setting_error("pairs", self.pairs, f"at most `letters`, {self.letters}")

    @property
    def vocab_size(self) -> int:
        """Number of tokens: values, keys, padding."""
        return 2 * self.letters + 1

    @property
    def symbols(self) -> tuple[str, ...]:
        """Names of the tokens: values, keys, padding."""
        return (*(f"v{value}" for value in range(self.letters)), *(f"k{key}" for key in range(self.letters)), PADDING)

    @property
    def _min_length(self) -> int:
        return 4 * self.pairs

    @property
    def _default_train_lengths(self) -> tuple[int, int]:
        return max(64, self._min_length), max(128, self._min_length)

    def _min_question_length(self, length: int) -> int:
        return length

    def _max_length_at(self, length: int) -> int:
        return length + 1

    def _bucket_lengths(self, batch: Batch) -> Tensor:
        assert batch.valid is not None
        return batch.valid.sum(1)

    def _answer_length(self, question: list[int]) -> int:
        return sum(token >= self.letters for token in question[2 * self.pairs :])

    def _question(self, batch: Batch, row: int) -> list[int]:
        assert batch.valid is not None
        return batch.inputs[row][batch.valid[row]].tolist()

    def _generate(self, rng: CounterRNG, lengths: np.ndarray) -> Examples:
        count, width, context = len(lengths), int(lengths.max()), 2 * self.pairs
        rows = np.arange(count)[:, None]
        keys = np.argsort(rng.integers(0, 2**31, (count, self.letters)), axis=1, kind="stable")[:, : self.pairs]
        questions = rng.integers(0, self.letters, (count, width))
        values = questions[:, 1:context:2].copy()
        questions[:, 0:context:2] = keys + self.letters
        slots = (lengths - context) // 2
        distances = np.arange(int(slots.max()))
        # The smallest of exponential random numbers with these rates are a weighted choice without replacement.
        times = -np.log(rng.uniform((count, len(distances)))) * (distances + 1.0) ** (1 - self.power)
        chosen = np.argsort(np.where(distances < slots[:, None], times, np.inf), axis=1, kind="stable")[:, : self.pairs]
        questions[rows, context + 2 * chosen] = keys + self.letters
        questions[np.arange(width) >= lengths[:, None]] = self.padding
        answers = values[rows, np.argsort(chosen, axis=1)]
        return Examples(questions, lengths, answers, np.full(count, self.pairs))

    def _to_batch(self, examples: Examples, width: int | None, *, uses_teacher_forcing: bool) -> Batch:  # noqa: ARG002
        width = int(examples.question_lengths.max()) if width is None else width
        inputs = np.full((len(examples.questions), width), self.padding)
        inputs[:, : examples.questions.shape[1]] = examples.questions
        positions = np.arange(width)
        valid = positions < examples.question_lengths[:, None]
        is_query = (inputs >= self.letters) & (positions >= 2 * self.pairs) & valid
        targets = np.full(inputs.shape, IGNORE_INDEX)
        targets[is_query] = examples.answers[np.arange(examples.answers.shape[1]) < examples.answer_lengths[:, None]]
        return Batch(*map(torch.from_numpy, (inputs, targets, valid, is_query)))
