"""Green's relations in the transition monoid of an automaton, which give the verdict on its language independently.

Source: Pin, "Mathematical foundations of automata theory", chapter V. R and L classes are the strong components of the right and
left Cayley graphs, D (= J) classes those of both together, H = R meet L. The group of a D class with an idempotent is the H class
of that idempotent, acting on its image.
"""

from dataclasses import dataclass
from functools import cached_property

from longscan.automata.dfa import DFA
from longscan.automata.monoid import Map, transition_monoid
from longscan.automata.permutations import PermutationGroup
from longscan.automata.skeleton import strong_components


@dataclass(frozen=True)
class DClass:
    """A D class: boxes[row][column] are the numbers of the elements of an H class, rows are R classes, columns L classes.

    group: the group of an H class with an idempotent, None if the class is not regular. rank: number of states in an image.
    """

    boxes: tuple[tuple[tuple[int, ...], ...], ...]
    idempotents: frozenset[int]
    group: PermutationGroup | None
    rank: int

    @property
    def size(self) -> int:
        """Return the number of elements."""
        return sum(len(box) for row in self.boxes for box in row)


@dataclass(frozen=True)
class Monoid:
    """The transition monoid of an automaton; elements[0] is the identity."""

    dfa: DFA
    elements: tuple[Map, ...]

    @property
    def size(self) -> int:
        """Return the number of elements."""
        return len(self.elements)

    @cached_property
    def _components(self) -> dict[str, list[list[int]]]:
        numbers = {element: number for number, element in enumerate(self.elements)}
        right = [tuple(numbers[tuple(letter[x] for x in element)] for letter in self.dfa.maps) for element in self.elements]
        left = [tuple(numbers[tuple(element[x] for x in letter)] for letter in self.dfa.maps) for element in self.elements]
        graphs = {"R": right, "L": left, "D": [a + b for a, b in zip(right, left, strict=True)]}
        return {name: strong_components(dict(enumerate(graph))) for name, graph in graphs.items()}

    @cached_property
    def d_classes(self) -> tuple[DClass, ...]:
        """Return the D classes, those with larger images first."""
        class_of: dict[str, dict[int, int]] = {
            name: {element: i for i, part in enumerate(self._components[name]) for element in part} for name in ("R", "L")
        }
        classes = []
        for part in self._components["D"]:
            rows = {row: i for i, row in enumerate(sorted({class_of["R"][x] for x in part}))}
            columns = {column: i for i, column in enumerate(sorted({class_of["L"][x] for x in part}))}
            boxes: list[list[list[int]]] = [[[] for _ in columns] for _ in rows]
            for x in sorted(part):
                boxes[rows[class_of["R"][x]]][columns[class_of["L"][x]]].append(x)
            idempotents = frozenset(x for x in part if _is_idempotent(self.elements[x]))
            group = None
            if idempotents:
                e = min(idempotents)
                group = self._group(e, boxes[rows[class_of["R"][e]]][columns[class_of["L"][e]]])
            rank = len(set(self.elements[part[0]]))
            classes.append(DClass(tuple(tuple(map(tuple, row)) for row in boxes), idempotents, group, rank))
        return tuple(sorted(classes, key=lambda c: (-c.rank, c.boxes[0][0][0])))

    def _group(self, idempotent: int, box: list[int]) -> PermutationGroup:
        image = sorted(set(self.elements[idempotent]))
        number = {state: i for i, state in enumerate(image)}
        return PermutationGroup(len(image), (tuple(number[self.elements[x][state]] for state in image) for x in box))

    @cached_property
    def counts(self) -> dict[str, int]:
        """Return the numbers of R, L, D and H classes."""
        counts = {name: len(parts) for name, parts in self._components.items()}
        return counts | {"H": sum(1 for c in self.d_classes for row in c.boxes for box in row if box)}

    @property
    def is_aperiodic(self) -> bool:
        """Return whether all groups are trivial: a minimal automaton then has a star-free language (Schuetzenberger 1965)."""
        return all(c.group is None or c.group.order == 1 for c in self.d_classes)

    @property
    def is_solvable(self) -> bool:
        """Return whether all groups are solvable."""
        return all(c.group is None or c.group.is_solvable for c in self.d_classes)

    @property
    def trivial_relations(self) -> list[str]:
        """Return which of Green's relations R, L and J are equality."""
        names = (("R", "R"), ("L", "L"), ("J", "D"))
        return [name for name, relation in names if self.counts[relation] == self.size]


def _is_idempotent(element: Map) -> bool:
    return all(element[y] == y for y in set(element))


def build_monoid(dfa: DFA, limit: int = 30_000) -> Monoid:
    """Return the transition monoid of an automaton with Green's relations; raise LimitExceeded beyond `limit` elements."""
    return Monoid(dfa, transition_monoid(dfa, limit))
