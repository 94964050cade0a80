"""Examples of a formal language as padded arrays, which split owns a question, and the layout that a model reads."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from longscan.tasks.base import Batch

IGNORED = -100  # cross_entropy's ignore_index


class Examples(NamedTuple):
    """Questions (n, Q) and answers (n, A) int64, padded, and their lengths (n,); keep (n,) bool: usable, None for all."""

    questions: np.ndarray
    question_lengths: np.ndarray
    answers: np.ndarray
    answer_lengths: np.ndarray
    keep: np.ndarray | None = None

    def select(self, rows: np.ndarray) -> "Examples":
        """The examples of the given rows."""
        return Examples(self.questions[rows], self.question_lengths[rows], self.answers[rows], self.answer_lengths[rows])


def joined(parts: Sequence[Examples], padding: int) -> Examples:
    """Several lots of examples as one, padded to the widest."""
    if len(parts) == 1:
        return parts[0]
    return Examples(
        _stacked([part.questions for part in parts], padding),
        np.concatenate([part.question_lengths for part in parts]),
        _stacked([part.answers for part in parts], padding),
        np.concatenate([part.answer_lengths for part in parts]),
    )


def _stacked(arrays: Sequence[np.ndarray], padding: int) -> np.ndarray:
    width = max(array.shape[1] for array in arrays)
    return np.concatenate([np.pad(array, ((0, 0), (0, width - array.shape[1])), constant_values=padding) for array in arrays])


def layout(examples: Examples, width: int, padding: int, *, shows_answers: bool) -> Batch:
    """The batch of next-token prediction: inputs (n, width) the sequence, targets (n, width) the answer tokens one step early.

    Where `shows_answers` is not set, the padding token stands in the input at the answer's places. Targets elsewhere are -100.
    """
    count = len(examples.questions)
    sequence = np.full((count, width + 1), padding)
    sequence[:, : examples.questions.shape[1]] = examples.questions[:, : width + 1]
    targets = np.full((count, width), IGNORED)
    rows, places = np.nonzero(np.arange(examples.answers.shape[1]) < examples.answer_lengths[:, None])
    columns = examples.question_lengths[rows] + places
    answers = examples.answers[rows, places]
    targets[rows, columns - 1] = answers
    if shows_answers:
        sequence[rows, columns] = answers
    valid = np.arange(width) < (examples.question_lengths + examples.answer_lengths - 1)[:, None]
    return Batch(
        inputs=torch.from_numpy(np.ascontiguousarray(sequence[:, :width])),
        targets=torch.from_numpy(targets),
        valid=torch.from_numpy(valid),
        loss_mask=torch.from_numpy(targets != IGNORED),
    )


def owner(questions: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Which of three splits a question belongs to, (n,) in 0..2, by a hash of its tokens. questions: (n, Q); lengths: (n,)."""
    width = questions.shape[1]
    inside = np.arange(width) < lengths[:, None]
    weights = mixed(np.arange(1, width + 1, dtype=np.uint64)) | np.uint64(1)
    sums = np.where(inside, questions + 1, 0).astype(np.uint64) @ weights
    return (mixed(sums) % np.uint64(3)).astype(np.int64)


def mixed(numbers: np.ndarray) -> np.ndarray:
    """The finaliser of splitmix64, a bijection of uint64 that spreads every input bit over all output bits."""
    bits = numbers + np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))
