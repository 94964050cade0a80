"""The word problems of seven groups, with words that are the same on every machine, and the scores of a model on them.

The groups are Z2, Z5, S3, A4, S4, A5 and S5, the letters their generators; the answer after each letter is the product of the
letters so far, an element of the group. Words are a function of group, split, seed and number alone (splitmix64), so they do not
depend on the versions of torch and NumPy. `CHECKSUMS` has the SHA-256 of the test words and of the first 1,000 training words of
seed 0, with their answers; `word_problem` raises RuntimeError if they differ.
"""

import hashlib
from typing import Any

import numpy as np
from torch import Tensor

from longscan import automata
from longscan.tasks.formal._examples import splitmix64

GROUPS = {"Z2": "mod 2", "Z5": "mod 5", "S3": "S3", "A4": "A4", "S4": "S4", "A5": "A5", "S5": "S5"}
SPLITS = {"train": (1000, 64), "test": (500, 512)}  # number and length of the words that have a checksum
# A letter is a hash of 64 bits: 4 of the split, 12 of the seed, 32 of the number of the word, 16 of the position in it.
MAX_SEED, MAX_NUMBER, MAX_LENGTH = 2**12 - 1, 2**32 - 1, 2**16
LENGTHS = (8, 16, 32, 40, 64, 128, 256, 512)  # lengths of the prefixes that are scored
CHECKSUMS: dict[str, dict[str, str]] = {
    "Z2": {
        "train": "85a0fa5d2642fe181fc3fe36e3cb23045d20d1aa23d44e010c9921783c660d0b",
        "test": "2403935f713d00619e21ad3caf5d29db8061e342f6da9d52b7cc885db3f36804",
    },
    "Z5": {
        "train": "384852b435374bb736b55ac934533a31f07b608e8547a3e83d08a9f7820db1dc",
        "test": "ee54d6c65f931ab4c22db3bf68acba952048703c43ab42842d476e7b757e9ac9",
    },
    "S3": {
        "train": "f23d6f60c711bf8698d723299d71876d73ecd8dd9d37622a9d3acc884065fe2c",
        "test": "083993d22b6835778ee836d52b3e78d6497b5acd708aa9b6eb9ab1e9586a3dd3",
    },
    "A4": {
        "train": "05fc0d09c848bd2750b7ec02fd4395605baa8b4e14297bd52806f33ad24d52a9",
        "test": "185326228d1125342bb5b0226ff5aa49108fb31d8ce68d9377411e45003d255a",
    },
    "S4": {
        "train": "3a4f3584f7718fb9d2d4d3b5b7af523af5a0762fcd456ef5b1824f824fe71e14",
        "test": "5f9c9cd33f8a84e9797dfae81c456c41749bfafcdafade96f281ee99234ba9eb",
    },
    "A5": {
        "train": "80c6674a9c8f268fd753181e8f7bc062e867d60e6b75e451461dcfec3d2dc113",
        "test": "b914ca76357ce1803c954435ac4df9fb9d70f5affab2ad3481fcddc26e9243ea",
    },
    "S5": {
        "train": "891ed00582253a6a5e64f3f73ab405a8077a93a084595da6ec10f84d485978c2",
        "test": "6a032b9f7a2e99314bacf297a438c3153a1562b15fe8697c7122866936ba496e",
    },
}


def random_words(letters: int, split: str, seed: int, numbers: np.ndarray, length: int) -> np.ndarray:
    """Return the words of these numbers (words,): letters (words, length) int64, uniform and independent.

    The first letters of a word do not depend on `length`. Raises ValueError for a split that is not in SPLITS, and for a seed, a
    number or a length beyond MAX_SEED, MAX_NUMBER and MAX_LENGTH, whose letters would be those of other words.
    """
    if split not in SPLITS:
        raise ValueError(f"`split` must be one of {', '.join(SPLITS)}, got {split!r}")
    ends = numbers.min(initial=0), numbers.max(initial=0)
    limits = (("seed", (seed,), MAX_SEED), ("numbers", ends, MAX_NUMBER), ("length", (length,), MAX_LENGTH))
    for argument, given, largest in limits:
        wrong = next((value for value in given if not 0 <= value <= largest), None)
        if wrong is not None:
            raise ValueError(f"`{argument}` must be from 0 to {largest:,}, got {wrong:,}")
    key = np.uint64(list(SPLITS).index(split) << 60 | seed << 48)
    counters = key | numbers.astype(np.uint64)[:, None] << np.uint64(16) | np.arange(length, dtype=np.uint64)
    return (splitmix64(splitmix64(counters)) % np.uint64(letters)).astype(np.int64)


def checksum(dfa: automata.DFA, split: str) -> str:
    """Return the SHA-256 of the first words of a split, for seed 0, and of the states after their letters, a byte for each."""
    count, length = SPLITS[split]
    words = random_words(len(dfa.alphabet), split, 0, np.arange(count), length)
    return hashlib.sha256(words.astype(np.uint8).tobytes() + dfa.run(words).astype(np.uint8).tobytes()).hexdigest()


def word_problem(group: str) -> automata.DFA:
    """Return the word problem of a group, with a state for each element. RuntimeError if its words are not those of CHECKSUMS."""
    dfa = automata.named(GROUPS[group]).minimise()
    for split, expected in CHECKSUMS[group].items():
        found = checksum(dfa, split)
        if found != expected:
            raise RuntimeError(f"the words of {group}, {split}, must have the checksum {expected}, got {found}")
    return dfa


def scored_words(dfa: automata.DFA) -> np.ndarray:
    """Return the letters of the test words, (words, L)."""
    count, length = SPLITS["test"]
    return random_words(len(dfa.alphabet), "test", 0, np.arange(count), length)


def score_fields(right: Tensor) -> dict[str, Any]:
    """Return the scores by length: "states", the share of right states over all prefixes, and "exact", of words without an error.

    right: whether the state after each letter is right, (words, L).
    """
    lengths = [n for n in LENGTHS if n <= right.shape[1]]
    states = {str(n): float(right[:, :n].double().mean()) for n in lengths}
    exact = {str(n): float(right[:, :n].all(1).double().mean()) for n in lengths}
    return {"words": [list(right.shape)], "states": states, "exact": exact}
