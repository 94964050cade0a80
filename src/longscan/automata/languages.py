"""Named automata: counters, word problems of groups, brackets, and the cases of the tests and benchmarks."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from longscan._errors import setting_error
from longscan._types import PositiveInt, checked_value
from longscan.automata.dfa import DFA
from longscan.automata.errors import LimitExceeded
from longscan.automata.permutations import Permutation, PermutationGroup, multiply
from longscan.automata.regex import STATE_LIMIT, from_regex


def letters(count: int) -> tuple[str, ...]:
    """Return the first letters of the alphabet, a, b, c and so on. Raises ValueError for more than 26."""
    if not 1 <= count <= 26:
        raise setting_error("count", count, "a whole number from 1 to 26")
    return tuple("abcdefghijklmnopqrstuvwxyz"[:count])


def mod(k: int) -> DFA:
    """Return the automaton of words over 0 and 1 whose number of ones is divisible by k."""
    checked_value(k, PositiveInt, "k")
    return DFA(("0", "1"), tuple((i, (i + 1) % k) for i in range(k)), 0, frozenset({0}))


def cycle_navigation(k: int) -> DFA:
    """Return the automaton of walks by +, - and 0 on a cycle of k places that end at their start."""
    checked_value(k, PositiveInt, "k")
    return DFA(("+", "-", "0"), tuple(((i + 1) % k, (i - 1) % k, i) for i in range(k)), 0, frozenset({0}))


def dyck(depth: int) -> DFA:
    """Return the automaton of balanced words of one kind of brackets with a nesting depth of at most `depth`."""
    checked_value(depth, PositiveInt, "depth")
    sink = depth + 1
    rows = [(i + 1 if i < depth else sink, i - 1 if i else sink) for i in range(depth + 1)]
    return DFA(("(", ")"), (*rows, (sink, sink)), 0, frozenset({0}))


def from_maps(maps: Mapping[str, Sequence[int]], accept: Sequence[int] = (0,)) -> DFA:
    """Return the automaton whose letters act on the states 0 .. n-1 by the given maps (tuples of targets), from state 0."""
    if not maps:
        raise setting_error("maps", maps, "a mapping with at least one letter")
    if len({len(targets) for targets in maps.values()}) > 1:
        raise setting_error("maps", maps, "maps of the same number of states")
    return DFA(tuple(maps), tuple(zip(*maps.values(), strict=True)), 0, frozenset(accept))


def word_problem(perms: Mapping[str, Sequence[int]] | Sequence[Sequence[int]]) -> DFA:
    """Return the automaton of words of permutations whose product is the identity, with a state for every group element.

    perms: permutations by letter, each a tuple of images; or only the permutations, whose letters are then a, b, c, ...
    """
    if not 1 <= len(perms) <= 26 and not isinstance(perms, Mapping):
        raise setting_error("perms", perms, "1 to 26 permutations, or a mapping from letters to permutations")
    given = perms if isinstance(perms, Mapping) else dict(zip(letters(len(perms)), perms, strict=True))
    steps: dict[str, Permutation] = {letter: tuple(perm) for letter, perm in given.items()}
    for letter, perm in steps.items():
        if sorted(perm) != list(range(len(perm))):
            raise setting_error(f"perms[{letter!r}]", perm, f"a permutation of 0 to {len(perm) - 1}")
    if not steps or len({len(perm) for perm in steps.values()}) > 1:
        raise setting_error("perms", perms, "at least one permutation, all of the same points")
    group = PermutationGroup(len(next(iter(steps.values()))), steps.values())
    if group.order > STATE_LIMIT:
        raise LimitExceeded("elements of a group", STATE_LIMIT, group.order)
    numbers = {group.identity: 0}
    rows = []
    for g in (queue := [group.identity]):
        for h in steps.values():
            product = multiply(g, h)
            if product not in numbers:
                numbers[product] = len(queue)
                queue.append(product)
        rows.append(tuple(numbers[multiply(g, h)] for h in steps.values()))
    return DFA(tuple(steps), tuple(rows), 0, frozenset({0}))


def _cycle(n: int, *points: int) -> Permutation:
    image = list(range(n))
    for x, y in zip(points, (*points[1:], points[0]), strict=True):
        image[x] = y
    return tuple(image)


GROUPS: dict[str, tuple[Permutation, ...]] = {  # name -> generators
    "S3": (_cycle(3, 0, 1), _cycle(3, 0, 1, 2)),
    "A4": (_cycle(4, 0, 1, 2), multiply(_cycle(4, 0, 1), _cycle(4, 2, 3))),
    "S4": (_cycle(4, 0, 1), _cycle(4, 0, 1, 2, 3)),
    "D4": (_cycle(4, 0, 1, 2, 3), _cycle(4, 0, 2)),
    "Q8": (
        multiply(_cycle(8, 0, 1, 2, 3), _cycle(8, 4, 5, 6, 7)),
        multiply(_cycle(8, 0, 4, 2, 6), _cycle(8, 1, 7, 3, 5)),
    ),
    "A5": (_cycle(5, 0, 1, 2), _cycle(5, 0, 1, 2, 3, 4)),
    "S5": (_cycle(5, 0, 1), _cycle(5, 0, 1, 2, 3, 4)),
}
F20 = {"t": (1, 2, 3, 4, 0), "m": (0, 2, 4, 1, 3)}  # x + 1 and 2 x modulo 5

NAMED: dict[str, Callable[[], DFA]] = {
    "parity": lambda: mod(2),
    "mod 3": lambda: mod(3),
    "mod 5": lambda: mod(5),
    "mod 6": lambda: mod(6),
    "cycle navigation mod 5": lambda: cycle_navigation(5),
    "(ab)*": lambda: from_regex("(ab)*"),
    "a*b*": lambda: from_regex("a*b*", "abc"),
    "contains aba": lambda: from_regex(".*aba.*"),
    "Dyck depth 3": lambda: dyck(3),
    "Dyck depth 8": lambda: dyck(8),
    **{name: partial(word_problem, GROUPS[name]) for name in ("S3", "A4", "S4", "Q8", "D4")},
    "F20 on 5 points": lambda: from_maps(F20),
    "flip-flop and parity": lambda: from_maps({"t": (1, 0, 2), "s": (2, 2, 2), "r": (0, 0, 0)}),
    "S3 and resets": lambda: from_maps({"a": (1, 0, 2), "b": (1, 2, 0), "r": (0, 0, 0), "s": (1, 1, 1)}),
    "S4 and a map of rank 3": lambda: from_maps({"a": (1, 0, 2, 3), "b": (1, 2, 3, 0), "c": (0, 0, 2, 3)}),
    "A5": lambda: word_problem(GROUPS["A5"]),
    "S5": lambda: word_problem(GROUPS["S5"]),
    "S5 and a reset": lambda: from_maps({"a": (1, 0, 2, 3, 4), "b": (1, 2, 3, 4, 0), "r": (0, 0, 0, 0, 0)}),
}
KNOWN_NAMES = f"{', '.join(NAMED)}, mod K, cycle navigation mod K or Dyck depth K, with K of at least 1"


def find_named(name: str) -> DFA | None:
    """Return the automaton of a name as in `named`; None for an unknown name."""
    if name in NAMED:
        return NAMED[name]()
    for prefix, make in (("cycle navigation mod ", cycle_navigation), ("mod ", mod), ("Dyck depth ", dyck)):
        number = name.removeprefix(prefix)
        if name.startswith(prefix) and number.isdecimal() and int(number) > 0:
            return make(int(number))
    return None


def named(name: str) -> DFA:
    """Return the automaton of a name in `NAMED`, or of "mod K", "cycle navigation mod K" or "Dyck depth K" for any K."""
    dfa = find_named(name)
    if dfa is None:
        raise setting_error("name", name, f"one of {KNOWN_NAMES}")
    return dfa
