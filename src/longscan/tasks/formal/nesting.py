"""Languages of counters and of nested brackets with bounded depth."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from longscan._types import Doc, PositiveInt
from longscan.tasks._random import CounterRNG
from longscan.tasks.base import TASKS
from longscan.tasks.formal._examples import PADDING, Examples, single_token_examples
from longscan.tasks.formal.base import WordTask


@TASKS.register("counters")
@dataclass(frozen=True, kw_only=True)
class Counters(WordTask):
    """Say whether all of several counters end at zero; each letter adds one to a counter or subtracts one.

        +0 +1 -1 -0 | 1

    In half of the words each counter ends at zero. The other half are such words with the sign of one letter changed, so that the
    counts of two letters differ from the right ones by one and only counting finds the answer. A sequence generated for length l
    has as many letters as the largest even number below l.
    """

    num_classes: ClassVar[int] = 2
    _min_length: ClassVar[int] = 3
    counters: Annotated[PositiveInt, Doc("number of counters")] = 2

    @property
    def symbols(self) -> tuple[str, ...]:
        """Names of the tokens: answers, letters, padding."""
        return ("0", "1", *(f"{sign}{counter}" for counter in range(self.counters) for sign in "+-"), PADDING)

    def _min_question_length(self, length: int) -> int:
        return (length - 1) // 2 * 2

    def _generate(self, rng: CounterRNG, lengths: np.ndarray) -> Examples:
        count, letters = len(lengths), (lengths - 1) // 2 * 2
        width = int(letters.max())
        pairs = rng.integers(0, self.counters, (count, width // 2))
        words = np.stack([2 * pairs, 2 * pairs + 1], axis=2).reshape(count, width)  # each letter is followed by its opposite
        inside = np.arange(width) < letters[:, None]
        ranks = np.where(inside, rng.integers(0, 2**31, (count, width)), 2**31)
        words = np.take_along_axis(words, np.argsort(ranks, axis=1, kind="stable"), axis=1)
        balanced = rng.integers(0, 2, count)
        changed = rng.integers(0, letters, count)
        words[np.arange(count), changed] ^= 1 - balanced
        return single_token_examples(np.where(inside, words + 2, self.padding), letters, balanced)


@TASKS.register("bounded_dyck")
@dataclass(frozen=True, kw_only=True)
class BoundedDyck(WordTask):
    """Name the kind of bracket that may close next, which is that of the innermost open one; the last class: none is open.

        (0 (1 )1 (0 (0 | 0

    Prefixes of words of the Dyck language with `kinds` kinds of brackets and depth at most `depth` (Hewitt et al., 2020). At
    depth 0 a bracket opens, at `depth` one closes, between them it opens or closes with equal probability; kinds are uniform. A
    sequence generated for length l has l - 1 brackets.
    """

    _min_length: ClassVar[int] = 2
    kinds: Annotated[PositiveInt, Doc("number of kinds of brackets")] = 2
    depth: Annotated[PositiveInt, Doc("largest number of open brackets")] = 4

    @property
    def num_classes(self) -> int:
        """Number of answers: the kinds of brackets, and none."""
        return self.kinds + 1

    @property
    def symbols(self) -> tuple[str, ...]:
        """Names of the tokens: answers, opening and closing brackets, padding."""
        kinds = range(self.kinds)
        return (*map(str, kinds), "NONE", *(f"({kind}" for kind in kinds), *(f"){kind}" for kind in kinds), PADDING)

    def _generate(self, rng: CounterRNG, lengths: np.ndarray) -> Examples:
        count, width = len(lengths), int(lengths.max()) - 1
        rows = np.arange(count)
        choices, kinds = rng.integers(0, 2, (count, width)), rng.integers(0, self.kinds, (count, width))
        words = np.full((count, width), self.padding)
        stack, height = np.full((count, self.depth + 1), self.kinds), np.zeros(count, np.int64)  # at the bottom is "NONE"
        for step in range(width):
            inside = step < lengths - 1
            opens = inside & ((height == 0) | ((height < self.depth) & (choices[:, step] == 1)))
            closes = inside & ~opens
            words[closes, step] = 2 * self.kinds + 1 + stack[rows, height][closes]
            height = height + opens - closes
            stack[rows[opens], height[opens]] = kinds[opens, step]
            words[opens, step] = self.kinds + 1 + kinds[opens, step]
        return single_token_examples(words, lengths - 1, stack[rows, height])
