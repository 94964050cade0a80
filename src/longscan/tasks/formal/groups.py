"""Word problems of finite groups: what a product of group elements is.

Groups of permutations, given by generators or by name: Z2, Z3, ... (cyclic), S3, ... (symmetric), A4, ... (alternating). The word
problem of a solvable group (S4 and below, all cyclic ones, A4) is easier for circuits than that of A5 and S5 (Barrington, 1989;
Merrill, Petty and Sabharwal, 2024).
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Literal

import numpy as np

from longscan.tasks._random import Draws
from longscan.tasks.base import TASKS
from longscan.tasks.formal._examples import Examples, mixed
from longscan.tasks.formal.base import WordTask, check_choice
from longscan.tasks.formal.regular import PADDING, random_words, single

Permutation = tuple[int, ...]
LARGEST = 720  # elements, those of S6


@dataclass(frozen=True, kw_only=True)
class _Group:
    """elements: permutations, the identity first; table[a, b]: number of "first a, then b"; generators: numbers of elements."""

    elements: tuple[Permutation, ...]
    table: np.ndarray
    generators: tuple[int, ...]


@TASKS.register("group_word")
@dataclass(frozen=True, kw_only=True)
class GroupWord(WordTask):
    """The product of a word of group elements, from left to right: first the first permutation, then the second, ...

        (0,1,2) (0,1) (0,1) | (0,1,2)

    Elements are written as their cycles, e is the identity. group: Zn, Sn or An. generators: instead, permutations of
    0 .. n - 1, each as the list of images; the group is what they generate. letters: "elements", words over all elements, or
    "generators", over the generators alone. A sequence drawn at length l has l - 1 letters.
    """

    name: ClassVar[str] = "group_word"
    group: str = "S3"
    generators: tuple[tuple[int, ...], ...] | None = None
    letters: Literal["elements", "generators"] = "elements"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, "letters", ("elements", "generators"))
        if self.generators is not None:
            object.__setattr__(self, "generators", tuple(tuple(generator) for generator in self.generators))
        _ = self._group

    @property
    def _group(self) -> _Group:
        return _group(self.group, self.generators)

    @property
    def vocab_size(self) -> int:
        """The elements and padding."""
        return self.num_classes + 1

    @property
    def num_classes(self) -> int:
        """The elements."""
        return len(self._group.elements)

    @property
    def symbols(self) -> tuple[str, ...]:
        """Elements, padding."""
        return (*map(_cycles, self._group.elements), PADDING)

    @property
    def _least_length(self) -> int:
        return 2

    @property
    def _own_lengths(self) -> tuple[int, int]:
        return 3, 40

    def _shortest_question(self, length: int) -> int:
        return length - 1

    def _draw(self, draws: Draws, lengths: np.ndarray) -> Examples:
        group = self._group
        letters = np.array(group.generators if self.letters == "generators" else range(self.num_classes))
        words = random_words(draws, lengths - 1, len(letters), len(letters))
        words = np.append(letters, self.padding)[words]
        product = np.zeros(len(words), np.int64)
        for place, letter in enumerate(words.T):
            product = np.where(place < lengths - 1, group.table[product, np.where(letter < self.padding, letter, 0)], product)
        return single(words, lengths - 1, product)


@lru_cache(maxsize=16)
def _group(name: str, generators: tuple[Permutation, ...] | None) -> _Group:
    """The group as tables; ValueError naming the setting where there is none."""
    given = _named(name) if generators is None else generators
    points = len(given[0]) if given else 0
    for permutation in given:
        if sorted(permutation) != list(range(points)):
            raise ValueError(f"generators: {list(permutation)} is no permutation of 0 .. {points - 1}")
    elements = _closure(given, tuple(range(points)))
    numbers = {element: number for number, element in enumerate(elements)}
    images = np.array(elements, np.uint64)
    weights = mixed(np.arange(points, dtype=np.uint64))
    # Each element as one number, whose weights wrap around 2^64, so that products are found by a sorted search over all pairs.
    keys = images @ weights
    assert len(np.unique(keys)) == len(keys)
    order = np.argsort(keys)
    products = (images[:, list(element)] for element in elements)  # row b, column i: b(element(i)), first `element`
    table = np.stack([order[np.searchsorted(keys[order], product @ weights)] for product in products])
    return _Group(elements=elements, table=table, generators=tuple(numbers[permutation] for permutation in given))


def _named(name: str) -> tuple[Permutation, ...]:
    match = re.fullmatch(r"([ZSA])([0-9]{1,4})", name)
    kind, points = (match[1], int(match[2])) if match else ("", 0)
    least = {"Z": 2, "S": 2, "A": 3}.get(kind, 0)
    if not least or not least <= points <= (LARGEST if kind == "Z" else 6):
        raise ValueError(f"group: needs Z2 .. Z{LARGEST}, S2 .. S6 or A3 .. A6, not {name!r}")
    cycle = (*range(1, points), 0)
    if kind == "Z":
        return (cycle,)
    if kind == "S":
        return (cycle, (1, 0, *range(2, points)))
    return tuple(
        tuple({0: 1, 1: third, third: 0}.get(point, point) for point in range(points)) for third in range(2, points)
    )


def _closure(generators: tuple[Permutation, ...], identity: Permutation) -> tuple[Permutation, ...]:
    """All products of the generators, the identity first, then by distance from it."""
    elements = {identity: None}
    frontier = [identity]
    while frontier:
        found = []
        for element in frontier:
            for generator in generators:
                product = tuple(generator[image] for image in element)
                if product not in elements:
                    elements[product] = None
                    found.append(product)
        frontier = found
        if len(elements) > LARGEST:
            raise ValueError(f"generators: they generate a group of more than {LARGEST} elements, at most {LARGEST} are needed")
    if len(elements) < 2:
        raise ValueError("generators: they generate the identity alone, a group of at least two elements is needed")
    return tuple(elements)


def _cycles(permutation: Permutation) -> str:
    """Cycle notation without spaces, e for the identity."""
    text, seen = "", set()
    for start in range(len(permutation)):
        cycle, point = [], start
        while point not in seen:
            seen.add(point)
            cycle.append(point)
            point = permutation[point]
        if len(cycle) > 1:
            text += f"({','.join(map(str, cycle))})"
    return text or "e"
