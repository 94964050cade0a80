"""The skeleton of an automaton: image sets, their classes, tiles and levels, and the holonomy group of every class.

Source: the holonomy theorem of Zeiger and Eilenberg, in the form of Egri-Nagy and Nehaniv, "Computational holonomy
decomposition of transformation semigroups" (arXiv:1508.06345).

    image sets      the set Q of all states, its images under words, and all single states; as bit masks
    class           image sets that words take to one another and back
    tile of P       an image set properly inside P that no other one contains; they cover P
    level           0 for single states, else one more than the highest level of what a letter or a tile leads to
    holonomy group  the permutations of a set's tiles that words make which take the set to itself
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from longscan.automata.dfa import DFA
from longscan.automata.errors import LimitExceeded
from longscan.automata.permutations import PermutationGroup

Mask = int
SET_LIMIT = 20_000


@dataclass(frozen=True)
class SetClass:
    """One class: `tiles` gives each member's tiles in an order that the words between members keep; `group` acts on their
    numbers.
    """

    number: int
    level: int
    tiles: dict[Mask, tuple[Mask, ...]]
    group: PermutationGroup

    @property
    def width(self) -> int:
        """The number of tiles."""
        return self.group.degree


class Images:
    """Images of sets of states under letters, from tables of eight states at a time."""

    def __init__(self, dfa: DFA) -> None:
        self.tables = []
        for letter in dfa.maps:
            tables = []
            for first in range(0, dfa.size, 8):
                table = [0]
                for target in letter[first : first + 8]:
                    table += [image | 1 << target for image in table]
                tables.append(table)
            self.tables.append(tables)

    def of(self, mask: Mask, letter: int) -> Mask:
        """The image of the set under the letter."""
        image = 0
        for table in self.tables[letter]:
            image |= table[mask & 255]
            mask >>= 8
        return image


@dataclass(frozen=True)
class Skeleton:
    """Image sets with their level, the classes of those with more than one state, and the image of every set under every
    letter.
    """

    dfa: DFA
    level: dict[Mask, int]
    class_of: dict[Mask, SetClass]
    classes: tuple[SetClass, ...]
    moves: dict[Mask, tuple[Mask, ...]]

    @property
    def full(self) -> Mask:
        """The set of all states."""
        return (1 << self.dfa.size) - 1

    @property
    def height(self) -> int:
        """The highest level, that of the set of all states."""
        return self.level[self.full]


def members(mask: Mask) -> list[int]:
    """The states in a set."""
    return [state for state in range(mask.bit_length()) if mask >> state & 1]


def skeleton(dfa: DFA, limit: int = SET_LIMIT) -> Skeleton:
    """The skeleton of an automaton; LimitExceeded where it has more than `limit` image sets."""
    full = (1 << dfa.size) - 1
    moves: dict[Mask, tuple[Mask, ...]] = {}
    seen = {full, *(1 << state for state in range(dfa.size))}
    if len(seen) > limit:
        raise LimitExceeded("image sets", limit, len(seen))
    images, letters = Images(dfa), range(len(dfa.alphabet))
    for mask in (queue := list(seen)):
        moves[mask] = tuple([images.of(mask, letter) for letter in letters])
        for target in moves[mask]:
            if target not in seen:
                seen.add(target)
                queue.append(target)
                if len(queue) > limit:
                    raise LimitExceeded("image sets", limit, len(queue))
    components = strong_components(moves)
    number_of = {mask: number for number, component in enumerate(components) for mask in component}
    components_by_size = sorted(range(len(components)), key=lambda i: (components[i][0].bit_count(), i))
    inside = _Inside(moves)
    level_of: dict[int, int] = {}
    classes: list[SetClass] = []
    class_of: dict[Mask, SetClass] = {}
    for number in components_by_size:
        component = components[number]
        if component[0].bit_count() == 1:
            level_of[number] = 0
            continue
        tiles, group = _holonomy(component, moves, inside)
        below = {number_of[target] for mask in component for target in (*moves[mask], *tiles[mask])} - {number}
        level_of[number] = 1 + max(level_of[other] for other in below)
        found = SetClass(len(classes), level_of[number], tiles, group)
        classes.append(found)
        class_of |= dict.fromkeys(component, found)
    return Skeleton(dfa, {mask: level_of[number_of[mask]] for mask in moves}, class_of, tuple(classes), moves)


class _Inside:
    """Finds the largest image sets inside a given one."""

    def __init__(self, masks: Iterable[Mask]) -> None:
        self.masks = sorted(masks, key=lambda mask: -mask.bit_count())
        self.array = np.array(self.masks, dtype=np.int64) if self.masks[0].bit_length() < 63 else None

    def maximal(self, mask: Mask) -> list[Mask]:
        if self.array is None:
            candidates = [other for other in self.masks if not other & ~mask]
        else:
            candidates = self.array[(self.array & ~mask) == 0].tolist()
        kept: list[Mask] = []
        union = 0
        for other in candidates:
            single = not other & (other - 1)  # inside one of the larger ones where it is inside their union
            if other != mask and (not other & union if single else all(other & ~larger for larger in kept)):
                kept.append(other)
                union |= other
        return sorted(kept)


def _holonomy(
    component: list[Mask], moves: dict[Mask, tuple[Mask, ...]], inside: _Inside
) -> tuple[dict[Mask, tuple[Mask, ...]], PermutationGroup]:
    """The tiles of every member, in the order that a tree of words from the first member carries along; and the group.

    The edges outside the tree give the generators (Schreier's lemma for the class as a groupoid).
    """
    root, belongs = min(component), set(component)
    tiles = {root: tuple(inside.maximal(root))}
    places = {root: {tile: i for i, tile in enumerate(tiles[root])}}
    generators = []
    for mask in (queue := [root]):
        for letter, target in enumerate(moves[mask]):
            if target not in belongs:
                continue
            carried = tuple([moves[tile][letter] for tile in tiles[mask]])
            if target not in tiles:
                tiles[target] = carried
                places[target] = {tile: i for i, tile in enumerate(carried)}
                queue.append(target)
            else:
                generators.append(tuple([places[target][tile] for tile in carried]))
    return tiles, PermutationGroup(len(tiles[root]), dict.fromkeys(generators))


def strong_components(moves: dict[int, tuple[int, ...]]) -> list[list[int]]:
    """The strongly connected components of a graph, each after those that it leads to (Tarjan 1972, without recursion)."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    waiting: list[int] = []
    on_stack: set[int] = set()
    result = []
    for root in moves:
        if root in index:
            continue
        work = [(root, iter(moves[root]))]
        index[root] = low[root] = len(index)
        waiting.append(root)
        on_stack.add(root)
        while work:
            node, targets = work[-1]
            for target in targets:
                if target not in index:
                    index[target] = low[target] = len(index)
                    waiting.append(target)
                    on_stack.add(target)
                    work.append((target, iter(moves[target])))
                    break
                if target in on_stack:
                    low[node] = min(low[node], index[target])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    component = []
                    while True:
                        member = waiting.pop()
                        on_stack.discard(member)
                        component.append(member)
                        if member == node:
                            break
                    result.append(component)
    return result
