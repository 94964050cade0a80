"""Examples of a formal language as padded arrays, the hash that assigns a question to a split, and the layout for a model."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from longscan.tasks._random import CounterRNG
from longscan.tasks.base import Batch
from longscan.tasks.classification import IGNORE_INDEX

PADDING = "_"  # the symbol of the padding token


class Examples(NamedTuple):
    """Questions (n, Q) and answers (n, A) int64, padded on the right, and their lengths (n,).

    is_usable: (n,) bool, False for candidates that must be generated again; None if all are usable.
    """

    questions: np.ndarray
    question_lengths: np.ndarray
    answers: np.ndarray
    answer_lengths: np.ndarray
    is_usable: np.ndarray | None = None

    def select(self, rows: np.ndarray) -> "Examples":
        """Return the examples with the given row numbers."""
        return Examples(self.questions[rows], self.question_lengths[rows], self.answers[rows], self.answer_lengths[rows])


def random_words(rng: CounterRNG, lengths: np.ndarray, letters: int, padding: int) -> np.ndarray:
    """Return uniformly random words over the letters 0 .. letters - 1, (n, longest) int64, padded. lengths: (n,)."""
    width = int(lengths.max())
    return np.where(np.arange(width) < lengths[:, None], rng.integers(0, letters, (len(lengths), width)), padding)


def single_token_examples(questions: np.ndarray, lengths: np.ndarray, answers: np.ndarray) -> Examples:
    """Return examples whose answers (n,) have one token each."""
    return Examples(questions, lengths, answers[:, None], np.ones_like(lengths))


def concatenate_examples(examples: Sequence[Examples], padding: int) -> Examples:
    """Concatenate several sets of examples and pad all to the widest."""
    if len(examples) == 1:
        return examples[0]
    return Examples(
        _concatenate_padded([part.questions for part in examples], padding),
        np.concatenate([part.question_lengths for part in examples]),
        _concatenate_padded([part.answers for part in examples], padding),
        np.concatenate([part.answer_lengths for part in examples]),
    )


def _concatenate_padded(arrays: Sequence[np.ndarray], padding: int) -> np.ndarray:
    width = max(array.shape[1] for array in arrays)
    return np.concatenate([np.pad(array, ((0, 0), (0, width - array.shape[1])), constant_values=padding) for array in arrays])


def next_token_batch(examples: Examples, width: int, padding: int, *, uses_teacher_forcing: bool) -> Batch:
    """Lay out examples for next-token prediction: inputs (n, width) and targets (n, width), which are one step ahead.

    The targets are the answer tokens and -100 elsewhere. With teacher forcing the inputs contain the answer tokens, without it
    they contain padding tokens in their place.
    """
    count = len(examples.questions)
    sequence = np.full((count, width + 1), padding)
    sequence[:, : examples.questions.shape[1]] = examples.questions[:, : width + 1]
    targets = np.full((count, width), IGNORE_INDEX)
    rows, positions = np.nonzero(np.arange(examples.answers.shape[1]) < examples.answer_lengths[:, None])
    columns = examples.question_lengths[rows] + positions
    answers = examples.answers[rows, positions]
    targets[rows, columns - 1] = answers
    if uses_teacher_forcing:
        sequence[rows, columns] = answers
    valid = np.arange(width) < (examples.question_lengths + examples.answer_lengths - 1)[:, None]
    return Batch(
        inputs=torch.from_numpy(np.ascontiguousarray(sequence[:, :width])),
        targets=torch.from_numpy(targets),
        valid=torch.from_numpy(valid),
        loss_mask=torch.from_numpy(targets != IGNORE_INDEX),
    )


def split_index(questions: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the index (0, 1 or 2) of the split of each question, a hash of its tokens. questions: (n, Q); lengths: (n,)."""
    width = questions.shape[1]
    inside = np.arange(width) < lengths[:, None]
    weights = splitmix64(np.arange(1, width + 1, dtype=np.uint64)) | np.uint64(1)
    sums = np.where(inside, questions + 1, 0).astype(np.uint64) @ weights
    return (splitmix64(sums) % np.uint64(3)).astype(np.int64)


def splitmix64(numbers: np.ndarray) -> np.ndarray:
    """Apply the finaliser of splitmix64, a bijection of uint64 in which every input bit affects all output bits."""
    bits = numbers + np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))
