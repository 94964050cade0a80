"""Regular languages: parity, cycle navigation, arithmetic without brackets."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, ClassVar, Literal

import numpy as np

from longscan._types import Doc
from longscan.tasks._random import CounterRNG
from longscan.tasks.base import TASKS, Split
from longscan.tasks.formal._examples import Examples, random_words, single_token_examples
from longscan.tasks.formal.base import FormalTask


@TASKS.register("parity")
@dataclass(frozen=True, kw_only=True)
class Parity(FormalTask):
    """Say whether the number of ones in a word of bits is odd.

        clean   1 0 1 1 0 | 1
        aussm   1 0 1 1 0 | 0      (the published repository answers 1 if the number of ones is even)

    A sequence generated for length l has l - 1 bits.
    """

    _min_vocab_size: ClassVar[int] = 3
    _min_length: ClassVar[int] = 2
    vocab_size: Annotated[Literal[3], Doc("number of tokens: 0, 1 and padding")] = 3
    one_means: Annotated[Literal["odd", "even"] | None, Doc("parity whose answer is 1; None: the choice of the suite")] = None

    def _generate(self, rng: CounterRNG, lengths: np.ndarray) -> Examples:
        bits = random_words(rng, lengths - 1, 2, self.padding)
        odd = (bits == 1).sum(1) % 2
        even_is_one = (self.one_means or ("even" if self.suite == "aussm" else "odd")) == "even"
        return single_token_examples(bits, lengths - 1, odd ^ even_is_one)


@TASKS.register("cycle_navigation")
@dataclass(frozen=True, kw_only=True)
class CycleNavigation(FormalTask):
    """Give the end of a walk on a cycle of vocab_size - 4 places that starts at place 0; here 8 places.

        +1 STAY -1 -1 -1 | 6

    The three moves are equally likely. A sequence generated for length l has l - 1 moves. In the suite `aussm` the longest
    sequences have two tokens less than the longest allowed, as published.
    """

    _extra_symbols: ClassVar[tuple[str, ...]] = ("+1", "-1", "STAY")
    _min_vocab_size: ClassVar[int] = 6
    _min_length: ClassVar[int] = 2

    def _length_range(self, split: Split) -> tuple[int, int]:
        low, high = super()._length_range(split)
        return (low, max(low, high - 2)) if self.suite == "aussm" else (low, high)

    def _generate(self, rng: CounterRNG, lengths: np.ndarray) -> Examples:
        moves = random_words(rng, lengths - 1, 3, 3)
        places = ((moves == 0).sum(1) - (moves == 1).sum(1)) % self.num_classes
        return single_token_examples(moves + self.num_classes, lengths - 1, places)


TIMES, MINUS, PLUS, SKIP = 0, 1, 2, 3  # the operators in the order of their token numbers; SKIP: beyond the end


@TASKS.register("modular_arithmetic")
@dataclass(frozen=True, kw_only=True)
class ModularArithmetic(FormalTask):
    """Compute the value of an expression without brackets modulo vocab_size - 5; here 7.

        clean   2 + 3 * 4 - 0 = | 0     (14: the product first)
        aussm   2 + 3 * 4 - 0 = | 6     (20: from left to right)

    Digits and the operators *, - and + are uniform. In the suite `aussm` the last operand is always 0, which makes 0 the answer
    of 46.7 % of the examples, and a sequence generated for length l has l//2 - 2 operators. In `clean` the last operand is random
    too and there are (l - 3)//2 operators.
    """

    _extra_symbols: ClassVar[tuple[str, ...]] = ("*", "-", "+", "=")
    _end_symbol: ClassVar[str | None] = "="
    _min_vocab_size: ClassVar[int] = 7
    precedence: Annotated[
        Literal["standard", "left"] | None, Doc("products first, or operators from left to right; None: the choice of the suite")
    ] = None

    @property
    def _min_length(self) -> int:
        return 4 if self.suite == "aussm" else 3

    def _count_operators(self, lengths: np.ndarray) -> np.ndarray:
        return lengths // 2 - 2 if self.suite == "aussm" else (lengths - 3) // 2

    def _min_question_length(self, length: int) -> int:
        return int(2 * self._count_operators(np.array(length)) + 2)

    def _generate(self, rng: CounterRNG, lengths: np.ndarray) -> Examples:
        modulus, counts = self.num_classes, self._count_operators(lengths)
        most, rows = int(counts.max()), np.arange(len(lengths))
        digits = rng.integers(0, modulus, (len(lengths), most + 1))
        if self.suite == "aussm":
            digits[rows, counts] = 0
        operators = rng.integers(0, 3, (len(lengths), most))
        operators[np.arange(most) >= counts[:, None]] = SKIP
        questions = np.empty((len(lengths), 2 * most + 1), np.int64)
        questions[:, 0::2], questions[:, 1::2] = digits, operators + modulus
        questions[np.arange(2 * most + 1) > 2 * counts[:, None]] = self.padding
        standard = (self.precedence or ("left" if self.suite == "aussm" else "standard")) == "standard"
        answers = evaluate_arithmetic(digits, operators, modulus, standard=standard)
        return single_token_examples(self._append_end(questions, 2 * counts + 1), 2 * counts + 2, answers)


def evaluate_arithmetic(digits: np.ndarray, operators: np.ndarray, modulus: int, *, standard: bool) -> np.ndarray:
    """Return the values (n,) of d op d op ... modulo `modulus`. digits: (n, k + 1); operators: (n, k), SKIP beyond the end.

    standard: products first; otherwise the operators apply from left to right. A finite automaton reads (operator, digit) pairs;
    its state is the sum of the finished terms and the current term.
    """
    table = _transition_table(modulus, standard)
    letters = np.ascontiguousarray((operators * modulus + digits[:, 1:]).T)
    state = digits[:, 0].copy()
    for letter in letters:
        state = table[letter, state]
    total, term = np.divmod(state, modulus)
    return (total + term) % modulus


@lru_cache(maxsize=8)
def _transition_table(modulus: int, standard: bool) -> np.ndarray:
    """Return the next state for each letter and state, (4 modulus letters, modulus^2 states).

    A state is total * modulus + term, a letter operator * modulus + digit.
    """
    digit = np.arange(modulus)[:, None]
    total, term = np.divmod(np.arange(modulus**2)[None], modulus)
    if standard:
        times, minus, plus = (total, term * digit), (total + term, -digit), (total + term, digit)
    else:
        zero = np.zeros_like(total)
        times, minus, plus = (zero, term * digit), (zero, term - digit), (zero, term + digit)
    moves = [next_total % modulus * modulus + next_term % modulus for next_total, next_term in (times, minus, plus)]
    return np.concatenate([np.broadcast_to(move, (modulus, modulus**2)) for move in (*moves, np.arange(modulus**2))])
