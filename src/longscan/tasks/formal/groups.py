"""Word problems of finite groups: find the product of a sequence of group elements.

Groups of permutations, given by generators or by name: Z2, Z3, ... (cyclic), S3, ... (symmetric), A4, ... (alternating). The word
problem of a solvable group (S4 and smaller symmetric groups, all cyclic groups, A4) is easier for circuits than that of A5 and S5
(Barrington, 1989; Merrill, Petty and Sabharwal, 2024).
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, ClassVar, Literal

import numpy as np

from longscan._errors import setting_error
from longscan._types import Doc
from longscan.tasks._random import CounterRNG
from longscan.tasks.base import TASKS
from longscan.tasks.formal._examples import PADDING, Examples, random_words, single_token_examples, splitmix64
from longscan.tasks.formal.base import WordTask

Permutation = tuple[int, ...]
MAX_GROUP_SIZE = 720  # number of elements of S6


@dataclass(frozen=True, kw_only=True)
class _Group:
    """A permutation group with its multiplication table; elements are numbered."""

    elements: tuple[Permutation, ...]  # the identity first
    table: np.ndarray  # table[a, b]: number of the product "first a, then b"
    generators: tuple[int, ...]  # numbers of elements


@TASKS.register("group_word")
@dataclass(frozen=True, kw_only=True)
class GroupWord(WordTask):
    """Multiply a word of group elements from left to right: apply the first permutation, then the second, ...

        (0,1,2) (0,1) (0,1) | (0,1,2)

    Elements are written in cycle notation, e is the identity. A sequence generated for length l has l - 1 letters.
    """

    _min_length: ClassVar[int] = 2
    group: Annotated[str, Doc("name of the group: Zn, Sn or An")] = "S3"
    generators: Annotated[
        tuple[tuple[int, ...], ...] | None,
        Doc("instead of a name: permutations of 0 .. n - 1 that generate the group, each as a list of images"),
    ] = None
    letters: Annotated[
        Literal["elements", "generators"], Doc("letters of the words: all elements of the group, or its generators only")
    ] = "elements"

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self._group

    @property
    def _group(self) -> _Group:
        return _group(self.group, self.generators)

    @property
    def vocab_size(self) -> int:
        """Number of tokens: the elements and the padding."""
        return self.num_classes + 1

    @property
    def num_classes(self) -> int:
        """Number of elements of the group."""
        return len(self._group.elements)

    @property
    def symbols(self) -> tuple[str, ...]:
        """Names of the tokens: the elements in cycle notation, and the padding."""
        return (*map(_cycle_notation, self._group.elements), PADDING)

    def _generate(self, rng: CounterRNG, lengths: np.ndarray) -> Examples:
        group = self._group
        letters = np.array(group.generators if self.letters == "generators" else range(self.num_classes))
        words = random_words(rng, lengths - 1, len(letters), len(letters))
        words = np.append(letters, self.padding)[words]
        product = np.zeros(len(words), np.int64)
        for step, letter in enumerate(words.T):
            product = np.where(step < lengths - 1, group.table[product, np.where(letter < self.padding, letter, 0)], product)
        return single_token_examples(words, lengths - 1, product)


@lru_cache(maxsize=16)
def _group(name: str, generators: tuple[Permutation, ...] | None) -> _Group:
    """Return the group with its multiplication table. Raises ValueError naming the setting if it does not define a group."""
    generators = _named_generators(name) if generators is None else generators
    points = len(generators[0]) if generators else 0
    for permutation in generators:
        if sorted(permutation) != list(range(points)):
            raise setting_error("generators", list(permutation), f"permutations of 0 .. {points - 1}")
    elements = _enumerate_group(generators, tuple(range(points)))
    numbers = {element: number for number, element in enumerate(elements)}
    images = np.array(elements, np.uint64)
    weights = splitmix64(np.arange(points, dtype=np.uint64))
    # Each element is encoded as one number (modulo 2^64), so that a binary search finds the products of all pairs.
    keys = images @ weights
    assert len(np.unique(keys)) == len(keys)
    order = np.argsort(keys)
    products = (images[:, list(element)] for element in elements)  # row b, column i: b(element(i)), so `element` acts first
    table = np.stack([order[np.searchsorted(keys[order], product @ weights)] for product in products])
    return _Group(elements=elements, table=table, generators=tuple(numbers[permutation] for permutation in generators))


def _named_generators(name: str) -> tuple[Permutation, ...]:
    """Return generators of Zn, Sn or An as permutations of 0 .. n - 1. Raises ValueError for any other name."""
    match = re.fullmatch(r"([ZSA])([0-9]{1,4})", name)
    kind, points = (match[1], int(match[2])) if match else ("", 0)
    lowest = {"Z": 2, "S": 2, "A": 3}.get(kind, 0)
    if not lowest or not lowest <= points <= (MAX_GROUP_SIZE if kind == "Z" else 6):
        raise setting_error("group", name, f"one of Z2 .. Z{MAX_GROUP_SIZE}, S2 .. S6 or A3 .. A6")
    cycle = (*range(1, points), 0)
    if kind == "Z":
        return (cycle,)
    if kind == "S":
        return (cycle, (1, 0, *range(2, points)))
    return tuple(tuple({0: 1, 1: third, third: 0}.get(point, point) for point in range(points)) for third in range(2, points))


def _enumerate_group(generators: tuple[Permutation, ...], identity: Permutation) -> tuple[Permutation, ...]:
    """Return all products of the generators: the identity first, the others by distance from it."""
    elements = {identity: None}
    frontier = [identity]
    while frontier:
        products = []
        for element in frontier:
            for generator in generators:
                product = tuple(generator[image] for image in element)
                if product not in elements:
                    elements[product] = None
                    products.append(product)
        frontier = products
        if len(elements) > MAX_GROUP_SIZE:
            raise setting_error("generators", generators, f"generators of a group of at most {MAX_GROUP_SIZE} elements")
    if len(elements) < 2:
        raise setting_error("generators", generators, "generators of a group of at least two elements")
    return tuple(elements)


def _cycle_notation(permutation: Permutation) -> str:
    """Return a permutation in cycle notation without spaces, e for the identity."""
    text, visited = "", set()
    for start in range(len(permutation)):
        cycle, point = [], start
        while point not in visited:
            visited.add(point)
            cycle.append(point)
            point = permutation[point]
        if len(cycle) > 1:
            text += f"({','.join(map(str, cycle))})"
    return text or "e"
