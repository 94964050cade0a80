"""Languages of counters and of nested brackets with bounded depth."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from longscan.tasks._random import Draws
from longscan.tasks.base import TASKS
from longscan.tasks.formal._examples import Examples
from longscan.tasks.formal.base import WordTask
from longscan.tasks.formal.regular import PADDING, single


@TASKS.register("counters")
@dataclass(frozen=True, kw_only=True)
class Counters(WordTask):
    """Whether each of several counters is back at zero; a letter adds one to a counter or takes one away.

        +0 +1 -1 -0 | 1

    In half of the words each counter ends at zero. The other half are such words with one letter turned round, so that two of the
    letters' counts are off by one and nothing short of counting tells. A sequence drawn at length l has the largest even number
    below l as its number of letters.
    """

    name: ClassVar[str] = "counters"
    counters: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.counters < 1:
            raise ValueError(f"counters: must be at least 1, not {self.counters}")

    @property
    def vocab_size(self) -> int:
        """Answers, letters, padding."""
        return 2 * self.counters + 3

    @property
    def num_classes(self) -> int:
        """No and yes."""
        return 2

    @property
    def symbols(self) -> tuple[str, ...]:
        """Answers, letters, padding."""
        return ("0", "1", *(f"{sign}{counter}" for counter in range(self.counters) for sign in "+-"), PADDING)

    @property
    def _least_length(self) -> int:
        return 3

    @property
    def _own_lengths(self) -> tuple[int, int]:
        return 3, 40

    def _shortest_question(self, length: int) -> int:
        return (length - 1) // 2 * 2

    def _draw(self, draws: Draws, lengths: np.ndarray) -> Examples:
        count, letters = len(lengths), (lengths - 1) // 2 * 2
        width = int(letters.max())
        pairs = draws.integers(0, self.counters, (count, width // 2))
        words = np.stack([2 * pairs, 2 * pairs + 1], axis=2).reshape(count, width)  # a letter and its opposite, side by side
        inside = np.arange(width) < letters[:, None]
        ranks = np.where(inside, draws.integers(0, 2**31, (count, width)), 2**31)
        words = np.take_along_axis(words, np.argsort(ranks, axis=1, kind="stable"), axis=1)
        balanced = draws.integers(0, 2, count)
        turned = draws.integers(0, letters, count)
        words[np.arange(count), turned] ^= 1 - balanced
        return single(np.where(inside, words + 2, self.padding), letters, balanced)


@TASKS.register("bounded_dyck")
@dataclass(frozen=True, kw_only=True)
class BoundedDyck(WordTask):
    """Which bracket may close next: the kind of the innermost open one; the last class says that none is open.

        (0 (1 )1 (0 (0 | 0

    Beginnings of words of the Dyck language with `kinds` kinds of brackets, never deeper than `depth` (Hewitt et al., 2020). At
    depth 0 a bracket opens, at `depth` one closes, between them it opens or closes with equal probability; kinds are uniform. A
    sequence drawn at length l has l - 1 brackets.
    """

    name: ClassVar[str] = "bounded_dyck"
    kinds: int = 2
    depth: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        for setting in ("kinds", "depth"):
            if getattr(self, setting) < 1:
                raise ValueError(f"{setting}: must be at least 1, not {getattr(self, setting)}")

    @property
    def vocab_size(self) -> int:
        """Answers, opening and closing brackets, padding."""
        return 3 * self.kinds + 2

    @property
    def num_classes(self) -> int:
        """The kinds, and none."""
        return self.kinds + 1

    @property
    def symbols(self) -> tuple[str, ...]:
        """Answers, opening and closing brackets, padding."""
        kinds = range(self.kinds)
        return (*map(str, kinds), "NONE", *(f"({kind}" for kind in kinds), *(f"){kind}" for kind in kinds), PADDING)

    @property
    def _least_length(self) -> int:
        return 2

    @property
    def _own_lengths(self) -> tuple[int, int]:
        return 3, 40

    def _shortest_question(self, length: int) -> int:
        return length - 1

    def _draw(self, draws: Draws, lengths: np.ndarray) -> Examples:
        count, width = len(lengths), int(lengths.max()) - 1
        rows = np.arange(count)
        choices, kinds = draws.integers(0, 2, (count, width)), draws.integers(0, self.kinds, (count, width))
        words = np.full((count, width), self.padding)
        stack, height = np.full((count, self.depth + 1), self.kinds), np.zeros(count, np.int64)  # below the lowest stands "none"
        for place in range(width):
            there = place < lengths - 1
            opens = there & ((height == 0) | ((height < self.depth) & (choices[:, place] == 1)))
            closes = there & ~opens
            words[closes, place] = 2 * self.kinds + 1 + stack[rows, height][closes]
            height = height + opens - closes
            stack[rows[opens], height[opens]] = kinds[opens, place]
            words[opens, place] = self.kinds + 1 + kinds[opens, place]
        return single(words, lengths - 1, stack[rows, height])
