"""What a language needs: star-free, solvable or not, from the skeleton of its minimal automaton; the monoid beside it.

A language is star-free iff its transition monoid has trivial groups only (Schuetzenberger 1965). Every holonomy group divides the
monoid, and every simple group that divides the monoid divides a holonomy group (Zeiger; Eilenberg), so "all groups trivial" and
"all groups solvable" can be read off the holonomy groups; the monoid, which can be very large, is not needed for the verdict.
That a k-layer diagonal model of finite precision tracks a group iff it has a subnormal series of length k with abelian factors
is theorem of Shakerinava et al. (arXiv:2603.01959); with non-solvable groups the language is complete for NC1 (Barrington 1989).
"""

import json
from dataclasses import dataclass, field
from typing import Any, Literal

from longscan.automata.abelian import Series, factors
from longscan.automata.dfa import DFA
from longscan.automata.errors import LimitExceeded
from longscan.automata.monoid import MONOID_LIMIT, Monoid, transition_monoid
from longscan.automata.permutations import PermutationGroup, cycles
from longscan.automata.skeleton import SET_LIMIT, SetClass, Skeleton, members, skeleton

Verdict = Literal["star-free", "solvable group", "solvable", "non-solvable"]
Needs = Literal["none", "mamba", "aussm", "hybrid", "no diagonal model"]
SERIES_LIMIT = 20_000
SHOWN = 8  # states and points that an error lists


@dataclass(frozen=True)
class Holonomy:
    """One holonomy group that is not trivial: its class, the class's level, tiles and sets, and the group with its series."""

    level: int
    number: int
    tiles: int
    sets: int
    order: int
    name: str
    solvable: bool
    series: tuple[tuple[int, ...], ...]  # moduli of the counters, from the top; empty where there is no such series
    generators: tuple[str, ...]


@dataclass(frozen=True)
class Report:
    """The analysis of a language.

    verdict: "star-free", "solvable group" (every letter permutes the states), "solvable" or "non-solvable". needs: what a model
    must have: "mamba", "aussm", "hybrid", "none" for one state, or "no diagonal model". dfa: the automaton analysed. n_sets:
    image sets. levels: height of the skeleton. holonomy: its non-trivial groups. monoid: None where it was not asked for or too
    large;
    limits: what was left out at a limit, in words.
    """

    verdict: Verdict
    needs: Needs
    dfa: DFA
    n_sets: int
    levels: int
    holonomy: tuple[Holonomy, ...]
    monoid: Monoid | None = None
    limits: tuple[str, ...] = ()
    obstruction: str | None = None
    skeleton: Skeleton = field(repr=False, compare=False, kw_only=True)

    def rows(self) -> list[tuple[str, str]]:
        """What the report says, as pairs of a name and a text."""
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
        if self.monoid is not None:
            counts = self.monoid.counts
            rows.append(("monoid", f"{self.monoid.size} elements; " + ", ".join(f"{counts[x]} {x}" for x in "RLDH") + " classes"))
            if self.monoid.trivial:
                rows.append(("trivial relations", ", ".join(self.monoid.trivial)))
        rows += [("limit", text) for text in self.limits]
        if self.obstruction:
            rows.append(("obstruction", self.obstruction))
        return rows

    def table(self) -> str:
        """The report as a table of text."""
        width = max(len(name) for name, _ in self.rows())
        return "\n".join(f"{name:<{width}}  {text}" for name, text in self.rows())

    def to_json(self) -> str:
        """The report as JSON."""
        entries: dict[str, Any] = {
            "verdict": self.verdict,
            "needs": self.needs,
            "states": self.dfa.size,
            "alphabet": list(self.dfa.alphabet),
            "image_sets": self.n_sets,
            "levels": self.levels,
            "holonomy": [vars(group) for group in self.holonomy],
            "monoid": None if self.monoid is None else {"size": self.monoid.size, **self.monoid.counts},
            "limits": list(self.limits),
            "obstruction": self.obstruction,
        }
        return json.dumps(entries, indent=2)


def analyse(dfa: DFA, monoid_limit: int = MONOID_LIMIT, set_limit: int = SET_LIMIT, *, minimise: bool = True) -> Report:
    """Say what the language of an automaton needs.

    Args:
        dfa: any automaton; its minimal one is analysed, unless `minimise` is False.
        monoid_limit: the monoid is left out beyond this many elements (and with 0), which the report says.
        set_limit: LimitExceeded beyond this many image sets.
    """
    dfa = dfa.minimise() if minimise else dfa.trim()
    bones = skeleton(dfa, set_limit)
    groups = [found for found in bones.classes if found.group.order > 1]
    bad = next((found for found in groups if not found.group.is_solvable), None)
    permutes = all(len(set(letter)) == dfa.size for letter in dfa.maps)
    verdict: Verdict = "star-free"
    if groups:
        verdict = "non-solvable" if bad else "solvable group" if permutes else "solvable"
    needs: dict[Verdict, Needs] = {
        "star-free": "mamba" if dfa.size > 1 else "none",
        "solvable group": "aussm",
        "solvable": "hybrid",
        "non-solvable": "no diagonal model",
    }
    monoid, limits = None, []
    if monoid_limit:
        try:
            monoid = transition_monoid(dfa, monoid_limit)
        except LimitExceeded as error:
            limits.append(f"monoid: more than {error.limit} elements")
    return Report(
        verdict,
        needs[verdict],
        dfa,
        len(bones.moves),
        bones.height,
        tuple(_holonomy(found) for found in groups),
        monoid,
        tuple(limits),
        None if bad is None else _obstruction(bad),
        skeleton=bones,
    )


def _holonomy(found: SetClass, series: Series = "abelian") -> Holonomy:
    group, moduli = found.group, []
    if group.is_solvable and group.order <= SERIES_LIMIT:
        moduli = [factor.moduli for factor in factors(group, series, SERIES_LIMIT)]
    return Holonomy(
        found.level,
        found.number,
        found.width,
        len(found.tiles),
        group.order,
        group.name,
        group.is_solvable,
        tuple(moduli),
        tuple(map(cycles, group.generators)),
    )


def _obstruction(found: SetClass) -> str:
    """The perfect group that stands in the way, in words."""
    core: PermutationGroup = found.group.perfect_core
    states = members(next(iter(found.tiles)))
    sets = "the states " + ",".join(map(str, states)) if len(states) <= SHOWN else f"{len(states)} states"
    generators = ", ".join(_shortened(cycles(g)) for g in core.generators[:3])
    where = f"order {found.group.order}, level {found.level}, on the {found.width} tiles of {sets}"
    return (
        f"its holonomy group {found.group.name} ({where}) holds a perfect group of order {core.order}, made by the permutations "
        f"of tiles {generators}"
    )


def _shortened(text: str) -> str:
    """A permutation's cycles, the whole ones among the first 80 characters where there are more, or a part of the first."""
    if len(text) <= 10 * SHOWN:
        return text
    start = text[: 10 * SHOWN]
    return start[: start.rindex(")") + 1] + "..." if ")" in start else start[: start.rindex(" ")] + " ...)"
