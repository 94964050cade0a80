"""Classification of a language as star-free, solvable or neither, from the skeleton of its minimal automaton; and its monoid.

A language is star-free iff its transition monoid has trivial groups only (Schuetzenberger 1965). Every holonomy group divides the
monoid, and every simple group that divides the monoid divides a holonomy group (Zeiger; Eilenberg), so "all groups trivial" and
"all groups solvable" can be read off the holonomy groups; the monoid, which can be very large, is not needed for the verdict.
That a k-layer diagonal model of finite precision tracks a group iff it has a subnormal series of length k with abelian factors is
a theorem of Shakerinava et al. (arXiv:2603.01959); with non-solvable groups the language is complete for NC1 (Barrington 1989).
"""

from dataclasses import dataclass, field
from typing import Literal

from longscan._errors import quote
from longscan.automata.abelian import Series, factors
from longscan.automata.dfa import DFA
from longscan.automata.errors import LimitExceeded
from longscan.automata.monoid import MONOID_LIMIT, transition_monoid
from longscan.automata.permutations import PermutationGroup, cycle_notation
from longscan.automata.skeleton import SET_LIMIT, SetClass, Skeleton, build_skeleton, states_of

Verdict = Literal["star-free", "solvable group", "solvable", "non-solvable"]
Needs = Literal["none", "mamba", "aussm", "hybrid", "no diagonal model"]
SERIES_LIMIT = 20_000
MAX_LISTED = 8  # largest number of states and points that an error lists


@dataclass(frozen=True)
class Holonomy:
    """A non-trivial holonomy group of an automaton, which permutes the tiles of a class of image sets.

    Attributes:
        level, number: level of the class in the skeleton, and its number.
        tiles: number of tiles of an image set of the class.
        sets: number of image sets in the class.
        order: number of elements of the group.
        name: usual name of the group, such as S3, or "order 20".
        solvable: whether the group is solvable.
        series: moduli of the counters of each factor of its series, from the top; empty if the group is not solvable.
        generators: generators of the group in cycle notation.
    """

    level: int
    number: int
    tiles: int
    sets: int
    order: int
    name: str
    solvable: bool
    series: tuple[tuple[int, ...], ...]
    generators: tuple[str, ...]


@dataclass(frozen=True)
class Report:
    """The analysis of a language.

    verdict: "star-free", "solvable group" (every letter permutes the states), "solvable" or "non-solvable". needs: the blocks
    that a model needs: "mamba", "aussm", "hybrid", "none" for one state, or "no diagonal model". dfa: the analysed automaton.
    n_sets: number of image sets. levels: height of the skeleton. holonomy: its non-trivial groups. monoid_size: number
    of elements of the transition monoid, None if it was not requested or is too large. limits: descriptions of results that are
    missing because of a limit.
    """

    verdict: Verdict
    needs: Needs
    dfa: DFA
    n_sets: int
    levels: int
    holonomy: tuple[Holonomy, ...]
    monoid_size: int | None = None
    limits: tuple[str, ...] = ()
    obstruction: str | None = None
    skeleton: Skeleton = field(repr=False, compare=False, kw_only=True)

    def rows(self) -> list[tuple[str, str]]:
        """Return the content of the report as pairs of a name and a text."""
        rows = [
            ("verdict", self.verdict),
            ("needs", self.needs),
            ("states", str(self.dfa.size)),
            ("image sets", str(self.n_sets)),
            ("levels", str(self.levels)),
        ]
        for group in self.holonomy:
            counters = ", ".join("x".join(map(str, moduli)) for moduli in group.series) or "no abelian series"
            text = f"{group.name}, order {group.order}, on {group.tiles} tiles: {counters}"
            rows.append((f"group at level {group.level}", text))
        if self.monoid_size is not None:
            rows.append(("monoid", f"{self.monoid_size} elements"))
        rows += [("limit", text) for text in self.limits]
        if self.obstruction:
            rows.append(("obstruction", self.obstruction))
        return rows


def analyse(dfa: DFA, monoid_limit: int = MONOID_LIMIT, set_limit: int = SET_LIMIT, *, minimise: bool = True) -> Report:
    """Classify the language of an automaton and find the blocks that a model of it needs.

    Args:
        dfa: any automaton; its minimal one is analysed, unless `minimise` is False.
        monoid_limit: largest number of elements of the monoid that are counted; 0 for no count.
        set_limit: LimitExceeded beyond this number of image sets.

    Raises TypeError if `dfa` is no DFA.
    """
    if not isinstance(dfa, DFA):
        raise TypeError(f"`dfa` must be a DFA, such as automata.from_regex('(ab)*'), got {quote(dfa)}")
    dfa = dfa.minimise() if minimise else dfa.trim()
    skeleton = build_skeleton(dfa, set_limit)
    groups = [set_class for set_class in skeleton.classes if set_class.group.order > 1]
    unsolvable = next((set_class for set_class in groups if not set_class.group.is_solvable), None)
    permutes = all(len(set(letter)) == dfa.size for letter in dfa.maps)
    verdict: Verdict = "star-free"
    if groups:
        verdict = "non-solvable" if unsolvable else "solvable group" if permutes else "solvable"
    needs: dict[Verdict, Needs] = {
        "star-free": "mamba" if dfa.size > 1 else "none",
        "solvable group": "aussm",
        "solvable": "hybrid",
        "non-solvable": "no diagonal model",
    }
    monoid_size, limits = None, []
    if monoid_limit:
        try:
            monoid_size = len(transition_monoid(dfa, monoid_limit))
        except LimitExceeded as error:
            limits.append(f"monoid: more than {error.limit} elements")
    return Report(
        verdict,
        needs[verdict],
        dfa,
        len(skeleton.moves),
        skeleton.height,
        tuple(map(_holonomy, groups)),
        monoid_size,
        tuple(limits),
        None if unsolvable is None else _obstruction(unsolvable),
        skeleton=skeleton,
    )


def _holonomy(set_class: SetClass, series: Series = "abelian") -> Holonomy:
    group, moduli = set_class.group, []
    if group.is_solvable and group.order <= SERIES_LIMIT:
        moduli = [factor.moduli for factor in factors(group, series, SERIES_LIMIT)]
    return Holonomy(
        set_class.level,
        set_class.number,
        set_class.width,
        len(set_class.tiles),
        group.order,
        group.name,
        group.is_solvable,
        tuple(moduli),
        tuple(map(cycle_notation, group.generators)),
    )


def _obstruction(set_class: SetClass) -> str:
    """Describe the perfect group that makes the language non-solvable."""
    core: PermutationGroup = set_class.group.perfect_core
    states = states_of(next(iter(set_class.tiles)))
    sets = "the states " + ",".join(map(str, states)) if len(states) <= MAX_LISTED else f"{len(states)} states"
    generators = ", ".join(_truncate_cycles(cycle_notation(g)) for g in core.generators[:3])
    where = f"order {set_class.group.order}, level {set_class.level}, on the {set_class.width} tiles of {sets}"
    return (
        f"its holonomy group {set_class.group.name} ({where}) contains a perfect group of order {core.order}, generated by the "
        f"permutations of tiles {generators}"
    )


def _truncate_cycles(text: str) -> str:
    """Truncate cycle notation to about 80 characters, after a whole cycle if there is one."""
    if len(text) <= 10 * MAX_LISTED:
        return text
    start = text[: 10 * MAX_LISTED]
    return start[: start.rindex(")") + 1] + "..." if ")" in start else start[: start.rindex(" ")] + " ...)"
