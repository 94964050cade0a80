"""Regular languages: parity, cycle navigation, arithmetic without brackets."""

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Literal

import numpy as np

from longscan.tasks._random import Draws
from longscan.tasks.base import TASKS, Split
from longscan.tasks.formal._examples import Examples
from longscan.tasks.formal.base import FormalTask, check_choice

PADDING = "_"


def random_words(draws: Draws, lengths: np.ndarray, letters: int, padding: int) -> np.ndarray:
    """Words of letters 0 .. letters - 1, uniform; (n, longest) int64, padded. lengths: (n,)."""
    width = int(lengths.max())
    return np.where(np.arange(width) < lengths[:, None], draws.integers(0, letters, (len(lengths), width)), padding)


def single(questions: np.ndarray, lengths: np.ndarray, answers: np.ndarray) -> Examples:
    """Examples with answers (n,) of one token."""
    return Examples(questions, lengths, answers[:, None], np.ones_like(lengths))


@TASKS.register("parity")
@dataclass(frozen=True, kw_only=True)
class Parity(FormalTask):
    """Whether the number of ones in a word of bits is odd.

        clean   1 0 1 1 0 | 1
        aussm   1 0 1 1 0 | 0      (the published repository answers 1 where the number of ones is even)

    A sequence drawn at length l has l - 1 bits. one_means: which number of ones is answered by 1, None for the suite's choice.
    """

    name: ClassVar[str] = "parity"
    vocab_size: int = 3
    one_means: Literal["odd", "even"] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.vocab_size != 3:
            raise ValueError(f"vocab_size: parity has the tokens 0, 1 and padding, so it is 3, not {self.vocab_size}")
        check_choice(self, "one_means", (None, "odd", "even"))

    @property
    def num_classes(self) -> int:
        """0 and 1."""
        return 2

    @property
    def symbols(self) -> tuple[str, ...]:
        """0, 1 and padding."""
        return ("0", "1", PADDING)

    @property
    def _least_vocab(self) -> int:
        return 3

    @property
    def _least_length(self) -> int:
        return 2

    def _shortest_question(self, length: int) -> int:
        return length - 1

    def _draw(self, draws: Draws, lengths: np.ndarray) -> Examples:
        bits = random_words(draws, lengths - 1, 2, self.padding)
        odd = (bits == 1).sum(1) % 2
        even_is_one = (self.one_means or ("even" if self.suite == "aussm" else "odd")) == "even"
        return single(bits, lengths - 1, odd ^ even_is_one)


@TASKS.register("cycle_navigation")
@dataclass(frozen=True, kw_only=True)
class CycleNavigation(FormalTask):
    """Where a walk on a cycle of vocab_size - 4 places ends that starts at place 0; here 8 places.

        +1 STAY -1 -1 -1 | 6

    Moves are uniform among the three. A sequence drawn at length l has l - 1 moves. The suite `aussm` draws lengths up to two
    below the longest allowed, as published.
    """

    name: ClassVar[str] = "cycle_navigation"

    @property
    def num_classes(self) -> int:
        """The places of the cycle."""
        return self.vocab_size - 4

    @property
    def symbols(self) -> tuple[str, ...]:
        """Places, moves, padding."""
        return (*map(str, range(self.num_classes)), "+1", "-1", "STAY", PADDING)

    @property
    def _least_vocab(self) -> int:
        return 6

    @property
    def _least_length(self) -> int:
        return 2

    def _length_range(self, split: Split) -> tuple[int, int]:
        low, high = super()._length_range(split)
        return (low, max(low, high - 2)) if self.suite == "aussm" else (low, high)

    def _shortest_question(self, length: int) -> int:
        return length - 1

    def _draw(self, draws: Draws, lengths: np.ndarray) -> Examples:
        moves = random_words(draws, lengths - 1, 3, 3)
        places = ((moves == 0).sum(1) - (moves == 1).sum(1)) % self.num_classes
        return single(moves + self.num_classes, lengths - 1, places)


TIMES, MINUS, PLUS, SKIP = 0, 1, 2, 3  # the operators in the order of their token numbers; SKIP: beyond the end


@TASKS.register("modular_arithmetic")
@dataclass(frozen=True, kw_only=True)
class ModularArithmetic(FormalTask):
    """The value of an expression without brackets modulo vocab_size - 5; here 7.

        clean   2 + 3 * 4 - 0 = | 0     (14: the product first)
        aussm   2 + 3 * 4 - 0 = | 6     (20: from left to right)

    Digits and the operators *, - and + are uniform. In the suite `aussm` the last operand is always 0, which makes 0 the answer
    of 46.7 % of the examples, and a sequence drawn at length l has l//2 - 2 operators; in `clean` the last operand is drawn too
    and there are (l - 3)//2. precedence: "standard" or "left" (from left to right), None for the suite's choice.
    """

    name: ClassVar[str] = "modular_arithmetic"
    precedence: Literal["standard", "left"] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, "precedence", (None, "standard", "left"))

    @property
    def num_classes(self) -> int:
        """The digits."""
        return self.vocab_size - 5

    @property
    def symbols(self) -> tuple[str, ...]:
        """Digits, operators, the equality sign, padding."""
        return (*map(str, range(self.num_classes)), "*", "-", "+", "=", PADDING)

    @property
    def _closing(self) -> int:
        return self.vocab_size - 2

    @property
    def _least_vocab(self) -> int:
        return 7

    @property
    def _least_length(self) -> int:
        return 4 if self.suite == "aussm" else 3

    def _operators(self, lengths: np.ndarray) -> np.ndarray:
        return lengths // 2 - 2 if self.suite == "aussm" else (lengths - 3) // 2

    def _shortest_question(self, length: int) -> int:
        return int(2 * self._operators(np.array(length)) + 2)

    def _draw(self, draws: Draws, lengths: np.ndarray) -> Examples:
        modulus, counts = self.num_classes, self._operators(lengths)
        most, rows = int(counts.max()), np.arange(len(lengths))
        digits = draws.integers(0, modulus, (len(lengths), most + 1))
        if self.suite == "aussm":
            digits[rows, counts] = 0
        operators = draws.integers(0, 3, (len(lengths), most))
        operators[np.arange(most) >= counts[:, None]] = SKIP
        questions = np.empty((len(lengths), 2 * most + 2), np.int64)
        questions[:, 0::2], questions[:, 1:-1:2] = digits, operators + modulus
        questions[np.arange(2 * most + 2) > 2 * counts[:, None]] = self.padding
        questions[rows, 2 * counts + 1] = self._closing
        standard = (self.precedence or ("left" if self.suite == "aussm" else "standard")) == "standard"
        return single(questions, 2 * counts + 2, arithmetic(digits, operators, modulus, standard=standard))


def arithmetic(digits: np.ndarray, operators: np.ndarray, modulus: int, *, standard: bool) -> np.ndarray:
    """The values (n,) of d op d op ... modulo `modulus`. digits: (n, k + 1); operators: (n, k), SKIP beyond the end.

    A finite automaton reads (operator, digit) pairs; its state is the sum of the finished terms and the running term.
    """
    table = _automaton(modulus, standard)
    letters = np.ascontiguousarray((operators * modulus + digits[:, 1:]).T)
    state = digits[:, 0].copy()
    for letter in letters:
        state = table[letter, state]
    total, term = np.divmod(state, modulus)
    return (total + term) % modulus


@lru_cache(maxsize=8)
def _automaton(modulus: int, standard: bool) -> np.ndarray:
    """The table (4 modulus letters, modulus^2 states) -> next state.

    A state is total * modulus + term, a letter operator * modulus + digit.
    """
    digit = np.arange(modulus)[:, None]
    total, term = np.divmod(np.arange(modulus**2)[None], modulus)
    if standard:
        times, minus, plus = (total, term * digit), (total + term, -digit), (total + term, digit)
    else:
        nothing = np.zeros_like(total)
        times, minus, plus = (nothing, term * digit), (nothing, term - digit), (nothing, term + digit)
    moves = [after_total % modulus * modulus + after_term % modulus for after_total, after_term in (times, minus, plus)]
    return np.concatenate([np.broadcast_to(move, (modulus, modulus**2)) for move in (*moves, np.arange(modulus**2))])
