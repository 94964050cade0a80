"""From the skeleton of an automaton to a program: the holonomy cascade, level by level, one component for each class.

The cascade's state at level h is an image set P_h that holds the automaton's state, from P_H = all states down to P_0, the state
itself. Where P_h is of level h, the component of its class holds the number x of a tile of P_h, and P_{h-1} is that tile;
otherwise P_{h-1} = P_h. A letter a takes P = P_h to P' >= P.a, which the levels above have decided. Then at level h

    P' of a lower level     nothing to do
    P.a = P'                P is in the class of P', and the letter permutes tiles: x' = x.g
    P.a < P'                reset: x' is the first tile of P' that holds P.a

and in each case the new tile holds the image of the old one. With resets and a group that is not trivial a component is counters
for g, never reset, followed by a flip-flop for y, with x = y.g: a permutation h takes g to g h, a reset to x takes y to x.g^-1.
Classes with a trivial group share a flip-flop. Source: as in skeleton.py; the lazy form (no tile chains are listed) is ours.
"""

import itertools
from collections import Counter as Multiset
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from longscan.automata.abelian import Counts, Factor, Series, factors
from longscan.automata.permutations import Permutation, PermutationGroup, inverse, multiply
from longscan.automata.program import HOLD, Branch, Field, Key, LevelFields, Op, Program, Wire
from longscan.automata.skeleton import Mask, SetClass, Skeleton

GROUP_LIMIT = 20_000
Triple = tuple[Mask, Mask, int]  # P, P' and the letter between them


class _Source(NamedTuple):
    """What chooses something at every step: inputs, and for each of their values what is chosen (other values: nothing)."""

    wires: tuple[Wire, ...]
    chosen: dict[Key, Permutation]


class _Component(NamedTuple):
    """A built component: what its tile depends on, and the tile for each of their values."""

    wires: tuple[Wire, ...]
    tile: dict[Key, int]


class _Builder:
    """Collects fields and ops."""

    def __init__(self, letters: int) -> None:
        self.fields = [Field("letter", letters, 0)]
        self.ops: list[Op] = []

    def field(self, name: str, size: int, initial: int, is_counter: bool = False) -> int:
        self.fields.append(Field(name, size, initial, is_counter))
        return len(self.fields) - 1

    def lookup(self, name: str, branches: Sequence[Branch], size: int, initial: int, default: int | None = None) -> int:
        """A lookup; where no default is given it is the commonest value, whose rows are left out."""
        if default is None:
            default = Multiset(value for branch in branches for value in branch.rows.values()).most_common(1)[0][0]
        output = self.field(name, size, initial)
        kept = tuple(Branch(b.wires, {key: value for key, value in b.rows.items() if value != default}) for b in branches)
        self.ops.append(Op("lookup", output, kept, default))
        return output


def build_program(skeleton: Skeleton, start: int, series: Series = "abelian") -> Program:
    """The program of an automaton with the given start state.

    Raises LimitExceeded where a group has more than 20,000 elements; its groups must be solvable.
    """
    builder = _Builder(len(skeleton.dfa.alphabet))
    triples: set[Triple] = {(skeleton.full, skeleton.full, a) for a in range(len(skeleton.dfa.alphabet))}
    sets, current, field = [skeleton.full], skeleton.full, None
    levels = []
    for level in range(skeleton.height, 0, -1):
        if not any(skeleton.level[mask] == level for mask in sets):
            continue
        first_op = len(builder.ops)
        step = _Level(skeleton, level, sets, triples, current, start, field)
        components = {c.number: step.component(builder, c, series) for c in step.classes}
        below = sorted(step.sets_below)
        after = step.tiles_of(current)[step.initial_tile] if skeleton.level[current] == level else current
        field_below = None
        if len(below) > 1:
            decoding = step.decoding(components, {mask: i for i, mask in enumerate(below)})
            field_below = builder.lookup(f"P{level - 1}", decoding, len(below), below.index(after))
        levels.append(LevelFields(level, tuple(sets), field, range(first_op, len(builder.ops))))
        sets, triples, current, field = below, step.triples_below, after, field_below
    levels.append(LevelFields(0, tuple(sets), field, range(len(builder.ops), len(builder.ops))))
    return Program(tuple(builder.fields), tuple(builder.ops), tuple(levels))


class _Level:
    """One level: which actions the letters have on its components, and what can happen one level below."""

    def __init__(
        self, skeleton: Skeleton, level: int, sets: list[Mask], triples: set[Triple], current: Mask, start: int, field: int | None
    ) -> None:
        self.skeleton, self.level, self.field = skeleton, level, field
        self.numbers = {mask: i for i, mask in enumerate(sets)}
        self.shared: _Component | None = None
        active = skeleton.level[current] == level
        self.initial_class = skeleton.class_of[current].number if active else None
        self.initial_tile = next(i for i, t in enumerate(self.tiles_of(current)) if t >> start & 1) if active else 0
        self.permutes: dict[int, dict[Triple, Permutation]] = {}
        self.resets: dict[int, dict[Triple, int]] = {}
        by_number: dict[int, SetClass] = {}
        self.own_sets: dict[int, list[Mask]] = {}
        for mask in sets:
            if skeleton.level[mask] == level:
                found = skeleton.class_of[mask]
                by_number[found.number] = found
                self.own_sets.setdefault(found.number, []).append(mask)
        self.classes = [by_number[number] for number in sorted(by_number)]
        for number in by_number:
            self.permutes[number], self.resets[number] = {}, {}
        self._actions(triples)
        self.tiles = {c.number: self._possible_tiles(c) for c in self.classes}
        self.triples_below = self._below(triples)
        self.sets_below = {mask for p, q, _ in self.triples_below for mask in (p, q)}
        self.sets_below.add(self.tiles_of(current)[self.initial_tile] if active else current)

    def tiles_of(self, mask: Mask) -> tuple[Mask, ...]:
        return self.skeleton.class_of[mask].tiles[mask]

    def _actions(self, triples: set[Triple]) -> None:
        places: dict[Mask, dict[Mask, int]] = {}
        for triple in sorted(triples):
            before, after, letter = triple
            if self.skeleton.level[after] < self.level:
                continue
            number = self.skeleton.class_of[after].number
            image = self.skeleton.moves[before][letter]
            tiles = self.tiles_of(after)
            if image == after:
                place = places.setdefault(after, {tile: i for i, tile in enumerate(tiles)})
                self.permutes[number][triple] = tuple(
                    [place[self.skeleton.moves[tile][letter]] for tile in self.tiles_of(before)]
                )
            else:
                self.resets[number][triple] = next(i for i, tile in enumerate(tiles) if not image & ~tile)

    def _possible_tiles(self, found: SetClass) -> list[int]:
        """The tiles that the component of a class can hold: those of the start and of resets, and what permutations make of
        them.
        """
        queue = list(dict.fromkeys(self.resets[found.number].values()))
        if found.number == self.initial_class and self.initial_tile not in queue:
            queue.append(self.initial_tile)
        permutations = set(self.permutes[found.number].values())
        for x in queue:
            queue += {g[x] for g in permutations} - set(queue)
        return sorted(queue)

    def _below(self, triples: set[Triple]) -> set[Triple]:
        result = set()
        for triple in triples:
            before, after, letter = triple
            old = self.skeleton.class_of[before] if self.skeleton.level[before] == self.level else None
            new = self.skeleton.class_of[after] if self.skeleton.level[after] == self.level else None
            for x in self.tiles[old.number] if old else [0]:
                if new is None:
                    low = after
                else:
                    g = self.permutes[new.number].get(triple)
                    low = new.tiles[after][self.resets[new.number][triple] if g is None else g[x]]
                result.add((old.tiles[before][x] if old else before, low, letter))
        return result

    def _inputs(self) -> tuple[tuple[Wire, ...], Callable[[Triple], Key]]:
        """The inputs that tell a triple, and their values for it."""
        letter = Wire(0)
        if self.field is None:
            return (letter,), lambda triple: (triple[2],)
        wires = (Wire(self.field, delayed=True), Wire(self.field), letter)
        return wires, lambda triple: (self.numbers[triple[0]], self.numbers[triple[1]], triple[2])

    def component(self, builder: _Builder, found: SetClass, series: Series) -> _Component:
        """Build the component of a class: counters for its group, a flip-flop where it is reset."""
        wires, key = self._inputs()
        name, identity = f"{self.level}.{found.number}", found.group.identity
        permutes = {key(t): g for t, g in self.permutes[found.number].items() if g != identity}
        resets = {key(t): x for t, x in self.resets[found.number].items()}
        initial = self.initial_tile if found.number == self.initial_class else 0
        if not permutes and resets:
            return self._shared_flip_flop(builder)
        group = PermutationGroup(found.width, dict.fromkeys(permutes.values()))
        counters, decode = _counters(builder, name, factors(group, series, GROUP_LIMIT), _Source(wires, permutes), identity)
        if not resets:
            return _Component(counters, {counts: g[initial] for counts, g in decode.items()})
        if len(resets) > found.width:  # a field of its own for the tile wanted, then fewer rows
            none = found.width
            wanted = builder.lookup(f"r{name}", [Branch(wires, resets)], none + 1, none, default=none)
            wires, resets = (Wire(wanted),), _itself(set(resets.values()))
        rows = {(*at, *counts): inverse(g)[x] for at, x in resets.items() for counts, g in decode.items()}
        output = builder.field(f"y{name}", found.width, initial)
        builder.ops.append(Op("flip-flop", output, (Branch((*wires, *counters), rows),), HOLD))
        tile = {(y, *counts): g[y] for y in range(found.width) for counts, g in decode.items()}
        parts = _Component((Wire(output), *counters), tile)
        own = len(self.own_sets[found.number])
        if own * len(tile) <= 4 * (len(tile) + own * found.width):
            return parts
        value = builder.lookup(f"x{name}", [Branch(*parts)], found.width, initial)
        return _Component((Wire(value),), _itself(range(found.width)))

    def _shared_flip_flop(self, builder: _Builder) -> _Component:
        """The flip-flop of all classes of this level that are only ever reset."""
        if self.shared is None:
            wires, key = self._inputs()
            reset_only = [c for c in self.classes if self.resets[c.number] and not self._moves(c)]
            rows = {key(t): x for c in reset_only for t, x in self.resets[c.number].items()}
            size = max(max(self.tiles[c.number]) for c in reset_only) + 1
            starts_here = any(c.number == self.initial_class for c in reset_only)
            output = builder.field(f"x{self.level}", size, self.initial_tile if starts_here else 0)
            builder.ops.append(Op("flip-flop", output, (Branch(wires, rows),), HOLD))
            self.shared = _Component((Wire(output),), _itself(range(size)))
        return self.shared

    def _moves(self, found: SetClass) -> bool:
        return any(g != found.group.identity for g in self.permutes[found.number].values())

    def decoding(self, components: dict[int, _Component], below: dict[Mask, int]) -> list[Branch]:
        """P_{h-1} from P_h and the components: one branch a class, one for the sets that pass through."""
        here = () if self.field is None else (Wire(self.field),)
        branches = []
        for found in self.classes:
            wires, tile = components[found.number]
            possible = set(self.tiles[found.number])
            rows = {
                (*((self.numbers[mask],) if here else ()), *values): below[found.tiles[mask][x]]
                for mask in self.own_sets[found.number]
                for values, x in tile.items()
                if x in possible
            }
            branches.append(Branch((*here, *wires), rows))
        levels = self.skeleton.level
        passing: dict[Key, int] = {(i,): below[mask] for mask, i in self.numbers.items() if levels[mask] < self.level}
        return [*branches, Branch(here, passing)] if passing else branches


def _itself(values: Iterable[int]) -> dict[Key, int]:
    """The table that gives back its one input."""
    return {(x,): x for x in values}


def _counters(
    builder: _Builder, name: str, series: list[Factor], source: _Source, identity: Permutation
) -> tuple[tuple[Wire, ...], dict[Counts, Permutation]]:
    """Counters that hold the product of the permutations chosen so far; the product for each of their values."""
    wires: tuple[Wire, ...] = ()
    decode: dict[Counts, Permutation] = {(): identity}
    for depth, factor in enumerate(series):
        own = []
        for j, q in enumerate(factor.moduli):
            output = builder.field(f"c{name}.{depth}{'abcdefgh'[j % 8] if len(factor.moduli) > 1 else ''}", q, 0, is_counter=True)
            rows = {at: factor.phi[h][j] for at, h in source.chosen.items() if factor.phi[h][j]}
            builder.ops.append(Op("counter", output, (Branch(source.wires, rows),), 0))
            own.append(Wire(output))
        if depth + 1 < len(series):
            source = _carried(builder, f"w{name}.{depth}", factor, source, tuple(own), identity)
        wires = (*wires, *own)
        decode = {
            (*counts, *new): multiply(representative, g)
            for counts, g in decode.items()
            for new, representative in factor.representatives.items()
        }
    return wires, decode


def _carried(
    builder: _Builder, name: str, factor: Factor, source: _Source, own: tuple[Wire, ...], identity: Permutation
) -> _Source:
    """What multiplies the rest of the element, chosen by the source and the counters' new values.

    Where many inputs choose few elements, these get a field of their own first; a lookup beside the counters costs no block.
    """
    elements = list(dict.fromkeys(source.chosen.values()))
    if len(source.wires) > 1 and len(source.chosen) > 2 * len(elements):
        number = {h: i + 1 for i, h in enumerate(elements)}
        rows = {at: number[h] for at, h in source.chosen.items()}
        chosen = builder.lookup(name, [Branch(source.wires, rows)], len(elements) + 1, 0, default=0)
        source = _Source((Wire(chosen),), {(number[h],): h for h in elements})
    result: dict[Key, Permutation] = {}
    for at, h in source.chosen.items():
        for counts in itertools.product(*(range(q) for q in factor.moduli)):
            w = factor.carry(h, counts)
            if w != identity:
                result[*at, *counts] = w
    return _Source((*source.wires, *own), result)
