"""Groups, image sets and monoids, compared with sympy and with each other."""

import itertools
import math
import random

import pytest
from green_relations import build_monoid
from sympy.combinatorics import Permutation as SympyPermutation
from sympy.combinatorics import PermutationGroup as SympyGroup

from longscan import automata
from longscan.automata.abelian import factors, prime_powers, smith_normal_form
from longscan.automata.errors import LimitExceeded
from longscan.automata.languages import GROUPS, NAMED
from longscan.automata.permutations import PermutationGroup, cycle_notation, element_order, inverse, multiply, power
from longscan.automata.skeleton import ImageTables, build_skeleton, states_of


def make_random_group(seed: int) -> tuple[int, list[tuple[int, ...]]]:
    draw = random.Random(seed)
    degree = draw.randint(2, 8)
    generators = []
    for _ in range(draw.randint(1, 3)):
        image = list(range(degree))
        cycle = draw.sample(range(degree), draw.randint(2, degree))
        for x, y in zip(cycle, [*cycle[1:], cycle[0]], strict=True):
            image[x] = y
        generators.append(tuple(image))
    return degree, generators


def test_permutation_groups_equal_those_of_sympy():
    for seed in range(200):
        degree, generators = make_random_group(seed)
        group, expected = PermutationGroup(degree, generators), SympyGroup([SympyPermutation(list(g)) for g in generators])
        assert group.order == expected.order()
        assert [g.order for g in group.derived_series()][:2] == [g.order() for g in expected.derived_series()][:2]
        assert group.is_solvable == expected.is_solvable
        assert group.is_abelian == expected.is_abelian
        draw = random.Random(seed)
        for _ in range(5):
            g = tuple(draw.sample(range(degree), degree))
            assert (g in group) == expected.contains(SympyPermutation(list(g)))
        if group.order <= 200:
            assert len(set(group.elements(200))) == group.order


def test_arithmetic_of_permutations():
    g = (1, 2, 0, 4, 3)
    assert multiply(g, inverse(g)) == (0, 1, 2, 3, 4)
    assert power(g, 0) == (0, 1, 2, 3, 4)
    assert power(g, 6) == (0, 1, 2, 3, 4)
    assert element_order(g) == 6
    assert cycle_notation(g) == "(0 1 2)(3 4)"
    assert cycle_notation((0, 1)) == "()"
    with pytest.raises(LimitExceeded, match="at most 100 elements of a group are allowed, got at least 120"):
        PermutationGroup(5, GROUPS["S5"]).elements(100)


def test_small_groups_are_named():
    for name, generators in GROUPS.items():
        assert PermutationGroup(len(generators[0]), generators).name == name
        regular = automata.word_problem(generators)
        assert PermutationGroup(regular.size, regular.maps).name == name
    assert PermutationGroup(6, [(1, 2, 3, 4, 5, 0)]).name == "C6"
    assert PermutationGroup(5, [(1, 0, 2, 3, 4), (0, 1, 3, 2, 4)]).name == "C2xC2"
    assert PermutationGroup(6, [(1, 0, 2, 3, 4, 5), (0, 1, 3, 4, 5, 2)]).name == "C4xC2"
    assert PermutationGroup(3).name == "1"
    assert PermutationGroup(7, [(1, 2, 3, 4, 0, 5, 6), (1, 2, 0, 3, 4, 5, 6), (0, 1, 2, 3, 4, 6, 5)]).name == "order 120"
    assert PermutationGroup(10, [(1, 2, 3, 4, 5, 6, 7, 8, 9, 0), (1, 0, *range(2, 10))]).name == "S10"


def test_smith_normal_form_diagonalises_relations():
    draw = random.Random(1)
    for _ in range(100):
        n = draw.randint(1, 4)
        matrix = [[draw.randint(1, 6) if i == j else draw.randint(-5, 5) if j < i else 0 for j in range(n)] for i in range(n)]
        diagonal, V, W = smith_normal_form(matrix)
        assert math.prod(diagonal) == math.prod(matrix[i][i] for i in range(n))
        for i, j in itertools.product(range(n), repeat=2):
            assert sum(V[i][k] * W[k][j] for k in range(n)) == int(i == j)
        for row in matrix:  # a relation is zero in the new coordinates
            coordinates = [sum(x * V[i][j] for i, x in enumerate(row)) for j in range(n)]
            assert all(x % d == 0 for x, d in zip(coordinates, diagonal, strict=True))
    assert prime_powers(360) == [8, 9, 5]
    assert prime_powers(1) == []


@pytest.mark.parametrize("series", ["abelian", "prime"])
@pytest.mark.parametrize("name", ["S3", "A4", "S4", "D4", "Q8", "random"])
def test_counters_of_factors_represent_products(name, series):
    """The counters are sums of phi, and the representatives of their values, with carries, give the product of elements."""
    if name == "random":
        degree, generators = 7, [(1, 2, 3, 0, 4, 5, 6), (0, 3, 2, 1, 4, 5, 6), (0, 1, 2, 3, 5, 6, 4), (0, 1, 2, 3, 5, 4, 6)]
    else:
        generators = list(GROUPS[name])
        degree = len(generators[0])
    group = PermutationGroup(degree, generators)
    group_factors = factors(group, series, 1000)
    assert math.prod(q for factor in group_factors for q in factor.moduli) == group.order
    if series == "prime":
        assert all(len(prime_powers(q)) == 1 and all(q % (d * d) for d in range(2, q)) for f in group_factors for q in f.moduli)
    else:
        assert len(group_factors) == len(list(group.derived_series())) - 1
    draw = random.Random(0)
    elements = group.elements(1000)
    assert group_factors[0].size == group.order
    for _ in range(30):
        product, counts = group.identity, [(0,) * len(factor.moduli) for factor in group_factors]
        for h in draw.choices(elements, k=6):
            product = multiply(product, h)
            for i, factor in enumerate(group_factors):
                counts[i] = tuple((c + d) % q for c, d, q in zip(counts[i], factor.phi[h], factor.moduli, strict=True))
                h = factor.carry(h, counts[i])
        decoded = group.identity
        for factor, c in zip(group_factors, counts, strict=True):
            decoded = multiply(factor.representatives[c], decoded)
        assert decoded == product


def test_skeleton_has_tiles_of_lower_levels_that_letters_permute(make_automaton):
    """Tiles cover their set and have lower levels. Letters permute the tiles of a class or lead to a lower level."""
    for seed in range(80):
        dfa = make_automaton(seed).minimise()
        skeleton = build_skeleton(dfa)
        images = ImageTables(dfa)
        for mask, targets in skeleton.moves.items():
            expected = [sum(1 << q for q in {letter[p] for p in states_of(mask)}) for letter in dfa.maps]
            assert list(targets) == expected == [images.image(mask, a) for a in range(len(dfa.alphabet))]
            if mask not in skeleton.class_of:
                assert skeleton.level[mask] == 0
                continue
            equivalence_class = skeleton.class_of[mask]
            union = 0
            for tile in equivalence_class.tiles[mask]:
                union |= tile
                assert skeleton.level[tile] < equivalence_class.level
            assert union == mask
            for letter, target in enumerate(targets):
                if target in equivalence_class.tiles:
                    targets_of_tiles = [skeleton.moves[tile][letter] for tile in equivalence_class.tiles[mask]]
                    assert sorted(targets_of_tiles) == sorted(equivalence_class.tiles[target])
                    assert (
                        tuple(equivalence_class.tiles[target].index(tile) for tile in targets_of_tiles) in equivalence_class.group
                    )
                else:
                    assert skeleton.level[target] < equivalence_class.level
    with pytest.raises(LimitExceeded, match="image sets"):
        build_skeleton(automata.dyck(8), limit=12)


def test_verdict_equals_that_of_the_transition_monoid(make_automaton):
    n_compared = 0
    for seed in range(120):
        report = automata.analyse(make_automaton(seed, 6), monoid_limit=3000)
        if report.monoid_size is None:
            assert report.limits == ("monoid: more than 3000 elements",)
            continue
        n_compared += 1
        monoid = build_monoid(report.dfa)
        assert monoid.size == report.monoid_size
        assert monoid.is_aperiodic == (report.verdict == "star-free")
        assert monoid.is_solvable == (report.verdict != "non-solvable")
    assert n_compared > 60


SIZES = {  # known numbers of elements of the monoids
    "parity": 2, "(ab)*": 6, "a*b*": 5, "contains aba": 12, "Dyck depth 3": 31, "Dyck depth 8": 286, "S3": 6, "A4": 12, "S4": 24,
    "F20 on 5 points": 20, "flip-flop and parity": 5, "S3 and resets": 9, "S4 and a map of rank 3": 256, "S5 and a reset": 125,
}  # fmt: skip


def test_monoids_have_the_known_sizes_and_classes():
    monoids = {name: build_monoid(NAMED[name]().minimise()) for name in SIZES}
    assert {name: monoid.size for name, monoid in monoids.items()} == SIZES
    for monoid in monoids.values():
        assert sum(c.size for c in monoid.d_classes) == monoid.size
        for c in monoid.d_classes:
            assert len({len(box) for row in c.boxes for box in row}) == 1  # all H classes of a D class have the same size
            if c.group is not None:
                assert c.group.order == len(c.boxes[0][0])
    assert monoids["a*b*"].trivial_relations == ["R", "L", "J"]
    assert monoids["(ab)*"].counts == {"R": 4, "L": 4, "D": 3, "H": 6}
    assert [c.rank for c in monoids["S4 and a map of rank 3"].d_classes] == [4, 3, 2, 1]
    with pytest.raises(LimitExceeded, match="elements of the transition monoid"):
        build_monoid(NAMED["Dyck depth 8"](), limit=285)


NEEDS = {
    "parity": "aussm", "mod 6": "aussm", "(ab)*": "mamba", "Dyck depth 3": "mamba", "S4": "aussm", "F20 on 5 points": "aussm",
    "flip-flop and parity": "hybrid", "S4 and a map of rank 3": "hybrid", "A5": "no diagonal model",
}  # fmt: skip


def test_analysis_names_the_model_that_a_language_needs():
    assert {name: automata.analyse(NAMED[name]()).needs for name in NEEDS} == NEEDS
    assert automata.analyse(automata.from_regex("(a|b)*")).needs == "none"
    report = automata.analyse(NAMED["S4 and a map of rank 3"]())
    assert [(g.level, g.name, g.series) for g in report.holonomy] == [
        (1, "C2", ((2,),)), (2, "S3", ((2,), (3,))), (3, "S4", ((2,), (3,), (2, 2))),
    ]  # fmt: skip
    assert dict(report.rows())["monoid"] == "256 elements"
    assert dict(report.rows())["verdict"] == "solvable"
    obstruction = automata.analyse(NAMED["A5"]()).obstruction
    assert "contains a perfect group of order 60, generated by the permutations of tiles (0 1 3)(2 5 10)" in obstruction
    assert all(text.endswith((")", ")...")) for text in obstruction.split("of tiles ")[1].split(", "))  # whole cycle_notation
    assert dict(automata.analyse(NAMED["A5"]()).rows())["obstruction"] == obstruction


def test_large_automaton_exceeds_the_limit():
    with pytest.raises(LimitExceeded, match="at most 20000 image sets are allowed, got at least 30001"):
        automata.analyse(automata.mod(30_000))
    assert PermutationGroup(500, [tuple((x + 1) % 500 for x in range(500))]).name == "C500"
