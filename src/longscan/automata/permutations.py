"""Permutation groups: order, membership and derived series, by the Schreier-Sims algorithm.

A permutation is a tuple g with x.g = g[x]; products act from the right, x.(gh) = (x.g).h. Source: Seress, "Permutation Group
Algorithms" (2003), chapter 4; Knuth's incremental form, "Efficient representation of perm groups" (1991).
"""

import math
from collections.abc import Iterable, Iterator
from functools import cached_property

from longscan.automata.errors import LimitExceeded

Permutation = tuple[int, ...]
MAX_NAMED_ORDER = 20_000  # groups of a larger order have a name only if their degree determines it


def multiply(g: Permutation, h: Permutation) -> Permutation:
    """Return the product of two permutations: first g, then h."""
    return tuple([h[x] for x in g])


def inverse(g: Permutation) -> Permutation:
    """Return the inverse of a permutation."""
    result = [0] * len(g)
    for x, y in enumerate(g):
        result[y] = x
    return tuple(result)


def power(g: Permutation, exponent: int) -> Permutation:
    """Return g to the power `exponent` >= 0."""
    result = tuple(range(len(g)))
    while exponent:
        if exponent & 1:
            result = multiply(result, g)
        g = multiply(g, g)
        exponent >>= 1
    return result


def cycle_notation(g: Permutation) -> str:
    """Return a permutation in cycle notation, "(0 1)(2 3 4)"; "()" for the identity."""
    seen: set[int] = set()
    text = ""
    for x in range(len(g)):
        if x in seen or g[x] == x:
            continue
        cycle = [x]
        while g[cycle[-1]] != x:
            cycle.append(g[cycle[-1]])
        seen.update(cycle)
        text += "(" + " ".join(map(str, cycle)) + ")"
    return text or "()"


def element_order(g: Permutation) -> int:
    """Return the order of g, the smallest k > 0 with g^k = 1."""
    identity, count, current = tuple(range(len(g))), 1, g
    while current != identity:
        current, count = multiply(current, g), count + 1
    return count


class _StabiliserLevel:
    """One level of a stabiliser chain: base point, transversal (a group element to each point of its orbit), next level."""

    def __init__(self, point: int, degree: int) -> None:
        self.point = point
        self.generators: list[Permutation] = []
        self.transversal: dict[int, Permutation] = {point: tuple(range(degree))}
        self.next: _StabiliserLevel | None = None

    def sift(self, g: Permutation) -> bool:
        """Return whether g is in the group of this level."""
        level: _StabiliserLevel | None = self
        while level is not None:
            image = g[level.point]
            if image not in level.transversal:
                return False
            g = multiply(g, inverse(level.transversal[image]))
            level = level.next
        return all(x == y for x, y in enumerate(g))

    def add(self, g: Permutation) -> None:
        """Add g to the generators of the group."""
        if self.sift(g):
            return
        self.generators.append(g)
        pending = [(representative, g) for representative in list(self.transversal.values())]
        while pending:
            representative, generator = pending.pop()
            product = multiply(representative, generator)
            image = product[self.point]
            if image not in self.transversal:
                self.transversal[image] = product
                pending += [(product, other) for other in self.generators]
                continue
            rest = multiply(product, inverse(self.transversal[image]))
            moved = next((x for x, y in enumerate(rest) if x != y), None)
            if moved is not None:
                if self.next is None:
                    self.next = _StabiliserLevel(moved, len(g))
                self.next.add(rest)


class PermutationGroup:
    """The group of permutations of 0 .. degree - 1 that the generators generate."""

    def __init__(self, degree: int, generators: Iterable[Permutation] = ()) -> None:
        self.degree = degree
        self.identity: Permutation = tuple(range(degree))
        self.generators: list[Permutation] = []
        self._chain: _StabiliserLevel | None = None
        for g in generators:
            self._add(g)

    def _add(self, g: Permutation) -> bool:
        """Add g to the generators and return whether that changed the group."""
        if g in self:
            return False
        if self._chain is None:
            self._chain = _StabiliserLevel(next(x for x, y in enumerate(g) if x != y), self.degree)
        self._chain.add(g)
        self.generators.append(g)
        return True

    def __contains__(self, g: Permutation) -> bool:
        return g == self.identity if self._chain is None else self._chain.sift(g)

    @property
    def order(self) -> int:
        """Number of elements."""
        order, level = 1, self._chain
        while level is not None:
            order, level = order * len(level.transversal), level.next
        return order

    def _commutes(self, g: Permutation) -> bool:
        return all(multiply(g, h) == multiply(h, g) for h in self.generators)

    @property
    def is_abelian(self) -> bool:
        """Whether all elements commute."""
        return all(map(self._commutes, self.generators))

    def elements(self, limit: int) -> list[Permutation]:
        """Return all elements, the identity first. Raises LimitExceeded if there are more than `limit`."""
        if self.order > limit:
            raise LimitExceeded("elements of a group", limit, self.order)
        found = {self.identity: None}
        for g in (queue := [self.identity]):
            for h in self.generators:
                product = multiply(g, h)
                if product not in found:
                    found[product] = None
                    queue.append(product)
        return queue

    def normal_closure(self, elements: Iterable[Permutation]) -> "PermutationGroup":
        """Return the smallest normal subgroup that contains the elements."""
        closure = PermutationGroup(self.degree)
        queue = list(elements)
        while queue:
            g = queue.pop()
            if closure._add(g):
                queue += [multiply(multiply(inverse(h), g), h) for h in self.generators]
        return closure

    @cached_property
    def derived(self) -> "PermutationGroup":
        """The derived subgroup, which the commutators generate."""
        commutators = (
            multiply(multiply(inverse(g), inverse(h)), multiply(g, h)) for g in self.generators for h in self.generators
        )
        return self.normal_closure(commutators)

    def derived_series(self) -> Iterator["PermutationGroup"]:
        """Yield the group, its derived subgroup, and so on, down to a perfect group."""
        group = self
        while True:
            yield group
            if group.derived.order == group.order:
                return
            group = group.derived

    @property
    def perfect_core(self) -> "PermutationGroup":
        """The last group of the derived series; trivial if the group is solvable."""
        return list(self.derived_series())[-1]

    @property
    def is_solvable(self) -> bool:
        """Whether the derived series ends in the trivial group."""
        return self.perfect_core.order == 1

    @property
    def name(self) -> str:
        """The usual name if it is known, such as C6, C2xC2, S3, A4, D4, Q8, otherwise "order 20"."""
        order = self.order
        moved = sum(any(g[x] != x for g in self.generators) for x in range(self.degree))
        if order == 1:
            return "1"
        if moved > 2 and order in (math.factorial(moved), math.factorial(moved) // 2) and not self.is_abelian:
            return f"S{moved}" if order == math.factorial(moved) else f"A{moved}"
        if order > MAX_NAMED_ORDER:
            return f"order {order}"
        if self.is_abelian:
            return "x".join(f"C{q}" for q in _abelian_invariants(self))
        known = {(6, 3): "S3", (12, 4): "A4", (24, 12): "S4", (60, 60): "A5", (120, 60): "S5"}
        if order == 120 and any(g != self.identity and self._commutes(g) for g in self.elements(120)):
            return "order 120"  # A5 with a non-trivial centre
        if order == 8:
            return "D4" if sum(element_order(g) == 2 for g in self.elements(8)) == 5 else "Q8"
        return known.get((order, self.derived.order), f"order {order}")


def _abelian_invariants(group: PermutationGroup) -> list[int]:
    """Return the orders of cyclic factors of an abelian group, each of which divides the previous one."""
    if any(element_order(g) == group.order for g in group.generators):
        return [group.order]
    factors: list[int] = []
    counts: dict[int, list[int]] = {}
    rest, p = group.order, 2
    elements = group.elements(group.order)
    while rest > 1:
        if rest % p == 0:
            exponent = 0
            while rest % p == 0:
                rest, exponent = rest // p, exponent + 1
            # log_p of how many elements p^k kills; its second differences count the factors of order p^k
            killed = [_log(sum(power(g, p**k) == group.identity for g in elements), p) for k in range(exponent + 2)]
            factor = {k: 2 * killed[k] - killed[k - 1] - killed[k + 1] for k in range(1, exponent + 1)}
            counts[p] = [p**k for k in range(exponent, 0, -1) for _ in range(factor[k])]
        p += 1
    for i in range(max(map(len, counts.values()))):
        factors.append(math.prod(powers[i] for powers in counts.values() if i < len(powers)))
    return factors


def _log(value: int, base: int) -> int:
    exponent = 0
    while base**exponent < value:
        exponent += 1
    return exponent
