"""Solvable groups as cyclic counters: a series with abelian factors, each a product of cyclic groups of prime power order.

With N > M of the series, N/M abelian: a homomorphism phi: N -> Z/q_1 x ... x Z/q_r with kernel M, and t_j with phi(t_j) the j-th
unit vector. Every g in N is n rep(c), n in M, c = phi(g), rep(c) = t_1^c_1 ... t_r^c_r; multiplied by h in N from the right it
becomes n w rep(c'), with c' = c + phi(h) and w = rep(c) h rep(c')^-1 in M (Frobenius and Lagrange's coordinates). phi comes from
the Smith normal form of the relations between generators of N modulo M.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from longscan.automata.permutations import Permutation, PermutationGroup, element_order, inverse, multiply, power

Series = Literal["abelian", "prime"]
Counts = tuple[int, ...]


@dataclass(frozen=True)
class Factor:
    """One factor N/M. moduli: q_j, prime powers; phi: the counts of each element of N; units: t_j; representatives: rep(c)."""

    moduli: Counts
    phi: dict[Permutation, Counts]
    units: tuple[Permutation, ...]
    representatives: dict[Counts, Permutation]

    @property
    def size(self) -> int:
        """The order of N."""
        return len(self.phi)

    def carry(self, h: Permutation, after: Counts) -> Permutation:
        """Return w, the element of M that multiplies n when h takes the counts to `after`."""
        before = tuple((c - d) % q for c, d, q in zip(after, self.phi[h], self.moduli, strict=True))
        return multiply(multiply(self.representatives[before], h), inverse(self.representatives[after]))


def factors(group: PermutationGroup, series: Series, limit: int) -> list[Factor]:
    """Return the factors of the series of a solvable group, from the top. Raises LimitExceeded beyond `limit` elements.

    series: "abelian", N_{i+1} = N_i', the smallest number of factors; "prime", N_{i+1} = N_i' N_i^r with r the product of the
    primes in the exponent of N_i / N_i', so that every counter has prime length.
    """
    result = []
    group.elements(limit)
    while group.order > 1:
        below = group.derived if series == "abelian" else _prime_step(group)
        result.append(_factor(group, below))
        group = below
    return result


def _prime_step(group: PermutationGroup) -> PermutationGroup:
    exponent = math.lcm(*(element_order(g) for g in group.generators))
    radical = math.prod(p for p in range(2, exponent + 1) if exponent % p == 0 and all(p % d for d in range(2, p)))
    return group.normal_closure([*group.derived.generators, *(power(g, radical) for g in group.generators)])


def _factor(group: PermutationGroup, below: PermutationGroup) -> Factor:
    # Exponents of every element of N in the generators g_1, ..., g_r modulo M, one generator at a time, and their relations.
    exponents: dict[Permutation, Counts] = dict.fromkeys(below.elements(below.order), ())
    relations: list[list[int]] = []
    used: list[Permutation] = []
    for g in group.generators:
        if g in exponents:
            continue
        grown, current, order = {h: (*e, 0) for h, e in exponents.items()}, g, 1
        while current not in exponents:
            grown |= {multiply(h, current): (*e, order) for h, e in exponents.items()}
            current, order = multiply(current, g), order + 1
        relations = [[*row, 0] for row in relations] + [[*(-e for e in exponents[current]), order]]
        exponents, used = grown, [*used, g]
    orders, to_cycles, from_cycles = smith_normal_form(relations)
    moduli: list[int] = []
    columns: list[tuple[int, int]] = []  # for every counter its cycle, and the multiple of the cycle's generator that is the unit
    for column, order in enumerate(orders):
        for q in prime_powers(order):
            moduli.append(q)
            columns.append((column, order // q * pow(order // q, -1, q)))
    phi = {}
    for g, e in exponents.items():
        along = [sum(x * row[j] for x, row in zip(e, to_cycles, strict=True)) for j in range(len(orders))]
        phi[g] = tuple(along[column] % q for (column, _), q in zip(columns, moduli, strict=True))
    units = []
    for column, multiple in columns:
        unit = group.identity
        for g, exponent in zip(used, from_cycles[column], strict=True):
            unit = multiply(unit, power(g, exponent * multiple % element_order(g)))
        units.append(unit)
    representatives = {}
    for counts in itertools.product(*(range(q) for q in moduli)):
        element = group.identity
        for unit, c in zip(units, counts, strict=True):
            element = multiply(element, power(unit, c))
        representatives[counts] = element
    return Factor(tuple(moduli), phi, tuple(units), representatives)


def prime_powers(n: int) -> list[int]:
    """Return the prime powers whose product is n, by increasing prime."""
    powers, p = [], 2
    while n > 1:
        q = 1
        while n % p == 0:
            n, q = n // p, q * p
        if q > 1:
            powers.append(q)
        p += 1
    return powers


def smith_normal_form(matrix: Sequence[Sequence[int]]) -> tuple[list[int], list[list[int]], list[list[int]]]:
    """Return the diagonal d of a Smith normal form U R V = diag(d) of a regular square matrix R, V, and the inverse of V.

    d need not divide one another. Row operations change the relations' basis, column operations that of the generators.
    """
    n = len(matrix)
    R = [list(row) for row in matrix]
    V = [[int(i == j) for j in range(n)] for i in range(n)]
    W = [row[:] for row in V]  # the inverse of V
    for k in range(n):
        while True:
            i, j = min(((i, j) for i in range(k, n) for j in range(k, n) if R[i][j]), key=lambda at: abs(R[at[0]][at[1]]))
            R[k], R[i] = R[i], R[k]
            for rows in (R, V):
                for row in rows:
                    row[k], row[j] = row[j], row[k]
            W[k], W[j] = W[j], W[k]
            for i in range(k + 1, n):
                quotient = R[i][k] // R[k][k]
                R[i] = [x - quotient * y for x, y in zip(R[i], R[k], strict=True)]
            for j in range(k + 1, n):
                quotient = R[k][j] // R[k][k]
                for rows in (R, V):
                    for row in rows:
                        row[j] -= quotient * row[k]
                W[k] = [x + quotient * y for x, y in zip(W[k], W[j], strict=True)]
            if not any(R[i][k] or R[k][i] for i in range(k + 1, n)):
                break
    return [abs(R[k][k]) for k in range(n)], V, W
