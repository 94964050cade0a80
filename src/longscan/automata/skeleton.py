"""The skeleton of an automaton: image sets, their classes, tiles and levels, and the holonomy group of each class.

Source: the holonomy theorem of Zeiger and Eilenberg, in the form of Egri-Nagy and Nehaniv, "Computational holonomy
decomposition of transformation semigroups" (arXiv:1508.06345).

    image sets      the set Q of all states, its images under words, and all single states; as bit masks
    class           image sets that are images of one another under words
    tile of P       a maximal image set that is a proper subset of P; the tiles cover P
    level           0 for single states, else one more than the highest level of its tiles and of its images outside its class
    holonomy group  the permutations of a set's tiles under words that map the set to itself
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
    """A class of image sets.

    tiles: of each member, in an order that words between members preserve. group: the holonomy group, on the tile numbers.
    """

    number: int
    level: int
    tiles: dict[Mask, tuple[Mask, ...]]
    group: PermutationGroup

    @property
    def width(self) -> int:
        """Number of tiles."""
        return self.group.degree


class ImageTables:
    """Tables for the images of sets of states under letters, one table per eight states."""

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

    def image(self, mask: Mask, letter: int) -> Mask:
        """Return the image of a set under a letter."""
        result = 0
        for table in self.tables[letter]:
            result |= table[mask & 255]
            mask >>= 8
        return result


@dataclass(frozen=True)
class Skeleton:
    """The image sets of an automaton with their levels, the classes of those with several states, and their images by letter."""

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


def states_of(mask: Mask) -> list[int]:
    """Return the states of a set."""
    return [state for state in range(mask.bit_length()) if mask >> state & 1]


def build_skeleton(dfa: DFA, limit: int = SET_LIMIT) -> Skeleton:
    """Build the skeleton of an automaton. Raises LimitExceeded if it has more than `limit` image sets."""
    full = (1 << dfa.size) - 1
    moves: dict[Mask, tuple[Mask, ...]] = {}
    seen = {full, *(1 << state for state in range(dfa.size))}
    if len(seen) > limit:
        raise LimitExceeded("image sets", limit, len(seen))
    images, letters = ImageTables(dfa), range(len(dfa.alphabet))
    for mask in (queue := list(seen)):
        moves[mask] = tuple([images.image(mask, letter) for letter in letters])
        for target in moves[mask]:
            if target not in seen:
                seen.add(target)
                queue.append(target)
                if len(queue) > limit:
                    raise LimitExceeded("image sets", limit, len(queue))
    components = strong_components(moves)
    number_of = {mask: number for number, component in enumerate(components) for mask in component}
    components_by_size = sorted(range(len(components)), key=lambda i: (components[i][0].bit_count(), i))
    inside = _SubsetIndex(moves)
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


class _SubsetIndex:
    """An index of image sets that finds the maximal proper subsets of a set."""

    def __init__(self, masks: Iterable[Mask]) -> None:
        self.masks = sorted(masks, key=lambda mask: -mask.bit_count())
        self.array = np.array(self.masks, dtype=np.int64) if self.masks[0].bit_length() < 63 else None

    def maximal(self, mask: Mask) -> list[Mask]:
        """Return the maximal image sets among the proper subsets of a set, sorted."""
        if self.array is None:
            candidates = [other for other in self.masks if not other & ~mask]
        else:
            candidates = self.array[(self.array & ~mask) == 0].tolist()
        maximal_masks: list[Mask] = []
        union = 0
        for other in candidates:
            single = not other & (other - 1)  # a single state is inside one of the larger sets if it is inside their union
            if other != mask and (not other & union if single else all(other & ~larger for larger in maximal_masks)):
                maximal_masks.append(other)
                union |= other
        return sorted(maximal_masks)


def _holonomy(
    component: list[Mask], moves: dict[Mask, tuple[Mask, ...]], inside: _SubsetIndex
) -> tuple[dict[Mask, tuple[Mask, ...]], PermutationGroup]:
    """Return the tiles of every member in the order of their images along a spanning tree of words, and the holonomy group.

    The edges outside the tree give the generators (Schreier's lemma for the class as a groupoid).
    """
    root, in_component = min(component), set(component)
    tiles = {root: tuple(inside.maximal(root))}
    indices = {root: {tile: i for i, tile in enumerate(tiles[root])}}
    generators = []
    for mask in (queue := [root]):
        for letter, target in enumerate(moves[mask]):
            if target not in in_component:
                continue
            image_tiles = tuple([moves[tile][letter] for tile in tiles[mask]])
            if target not in tiles:
                tiles[target] = image_tiles
                indices[target] = {tile: i for i, tile in enumerate(image_tiles)}
                queue.append(target)
            else:
                generators.append(tuple([indices[target][tile] for tile in image_tiles]))
    return tiles, PermutationGroup(len(tiles[root]), dict.fromkeys(generators))


def strong_components(moves: dict[int, tuple[int, ...]]) -> list[list[int]]:
    """Return the strongly connected components of a graph in reverse topological order (Tarjan 1972, without recursion)."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    result = []
    for root in moves:
        if root in index:
            continue
        work = [(root, iter(moves[root]))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        while work:
            node, targets = work[-1]
            for target in targets:
                if target not in index:
                    index[target] = low[target] = len(index)
                    stack.append(target)
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
                        member = stack.pop()
                        on_stack.discard(member)
                        component.append(member)
                        if member == node:
                            break
                    result.append(component)
    return result
