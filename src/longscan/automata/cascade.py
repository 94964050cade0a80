"""Construction of the program from the skeleton of an automaton: the holonomy cascade, one component for each class of a level.

The cascade's state at level h is an image set P_h that contains the automaton's state, from P_H = all states down to P_0, the
state itself. If P_h is of level h, the component of its class has the number x of a tile of P_h, and P_{h-1} is that tile;
otherwise P_{h-1} = P_h. The levels above determine that a letter a takes P = P_h to P' >= P.a. Then at level h

    P' of a lower level     nothing changes
    P.a = P'                P is in the class of P', and the letter permutes tiles: x' = x.g
    P.a < P'                reset: x' is the first tile of P' that contains P.a

and in each case the new tile contains the image of the old one. With resets and a non-trivial group a component consists of
counters for g, which are never reset, followed by a flip-flop for y, with x = y.g: a permutation h takes g to g h, a reset to x
takes y to x.g^-1. Classes with a trivial group share a flip-flop. Source: as in skeleton.py; the form without a list of tile
chains is ours.
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


class _Selection(NamedTuple):
    """A choice of a permutation at every step: inputs, and the permutation for each of their values (other values: none)."""

    wires: tuple[Wire, ...]
    permutations: dict[Key, Permutation]


class _Component(NamedTuple):
    """A component of the cascade: the inputs that determine its tile, and the tile for each of their values."""

    wires: tuple[Wire, ...]
    tile: dict[Key, int]


class _Builder:
    """Collects the fields and ops of a program."""

    def __init__(self, letters: int) -> None:
        self.fields = [Field("letter", letters, 0)]
        self.ops: list[Op] = []

    def field(self, name: str, size: int, initial: int, is_counter: bool = False) -> int:
        self.fields.append(Field(name, size, initial, is_counter))
        return len(self.fields) - 1

    def lookup(self, name: str, branches: Sequence[Branch], size: int, initial: int, default: int | None = None) -> int:
        """Add a lookup and return its field. Without a default it is the most frequent value, whose rows are left out."""
        if default is None:
            default = Multiset(value for branch in branches for value in branch.rows.values()).most_common(1)[0][0]
        output = self.field(name, size, initial)
        without_default = (Branch(b.wires, {key: value for key, value in b.rows.items() if value != default}) for b in branches)
        self.ops.append(Op("lookup", output, tuple(without_default), default))
        return output


def build_program(skeleton: Skeleton, start: int, series: Series = "abelian") -> Program:
    """Build the program of an automaton with the given start state, whose groups must be solvable.

    Raises LimitExceeded if a group has more than 20,000 elements.
    """
    builder = _Builder(len(skeleton.dfa.alphabet))
    triples: set[Triple] = {(skeleton.full, skeleton.full, a) for a in range(len(skeleton.dfa.alphabet))}
    sets, current, field = [skeleton.full], skeleton.full, None
    levels = []
    for level in range(skeleton.height, 0, -1):
        if not any(skeleton.level[mask] == level for mask in sets):
            continue
        first_op = len(builder.ops)
        step = _LevelBuilder(skeleton, level, sets, triples, current, start, field)
        components = {c.number: step.component(builder, c, series) for c in step.classes}
        below = sorted(step.sets_below)
        after = step.tiles_of(current)[step.initial_tile] if skeleton.level[current] == level else current
        field_below = None
        if len(below) > 1:
            decoding_branches = step.decoding_branches(components, {mask: i for i, mask in enumerate(below)})
            field_below = builder.lookup(f"P{level - 1}", decoding_branches, len(below), below.index(after))
        levels.append(LevelFields(level, tuple(sets), field, range(first_op, len(builder.ops))))
        sets, triples, current, field = below, step.triples_below, after, field_below
    levels.append(LevelFields(0, tuple(sets), field, range(len(builder.ops), len(builder.ops))))
    return Program(tuple(builder.fields), tuple(builder.ops), tuple(levels))


class _LevelBuilder:
    """One level: the actions of the letters on its components, and the transitions of the level below."""

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
        self.class_sets: dict[int, list[Mask]] = {}
        for mask in sets:
            if skeleton.level[mask] == level:
                set_class = skeleton.class_of[mask]
                by_number[set_class.number] = set_class
                self.class_sets.setdefault(set_class.number, []).append(mask)
        self.classes = [by_number[number] for number in sorted(by_number)]
        for number in by_number:
            self.permutes[number], self.resets[number] = {}, {}
        self._classify_triples(triples)
        self.tiles = {c.number: self._reachable_tiles(c) for c in self.classes}
        self.triples_below = self._next_triples(triples)
        self.sets_below = {mask for p, q, _ in self.triples_below for mask in (p, q)}
        self.sets_below.add(self.tiles_of(current)[self.initial_tile] if active else current)

    def tiles_of(self, mask: Mask) -> tuple[Mask, ...]:
        return self.skeleton.class_of[mask].tiles[mask]

    def _classify_triples(self, triples: set[Triple]) -> None:
        """Store for each triple of a class the permutation of tiles or the tile of a reset."""
        indices: dict[Mask, dict[Mask, int]] = {}
        for triple in sorted(triples):
            before, after, letter = triple
            if self.skeleton.level[after] < self.level:
                continue
            number = self.skeleton.class_of[after].number
            image = self.skeleton.moves[before][letter]
            tiles = self.tiles_of(after)
            if image == after:
                index = indices.setdefault(after, {tile: i for i, tile in enumerate(tiles)})
                self.permutes[number][triple] = tuple(
                    [index[self.skeleton.moves[tile][letter]] for tile in self.tiles_of(before)]
                )
            else:
                self.resets[number][triple] = next(i for i, tile in enumerate(tiles) if not image & ~tile)

    def _reachable_tiles(self, set_class: SetClass) -> list[int]:
        """Return the tiles that the component of a class can reach from those of the start and of resets by permutations."""
        queue = list(dict.fromkeys(self.resets[set_class.number].values()))
        if set_class.number == self.initial_class and self.initial_tile not in queue:
            queue.append(self.initial_tile)
        permutations = set(self.permutes[set_class.number].values())
        for x in queue:
            queue += {g[x] for g in permutations} - set(queue)
        return sorted(queue)

    def _next_triples(self, triples: set[Triple]) -> set[Triple]:
        """Return the triples (set before, set after, letter) of the level below."""
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

    def _triple_inputs(self) -> tuple[tuple[Wire, ...], Callable[[Triple], Key]]:
        """Return the inputs that identify a triple, and the function from a triple to their values."""
        letter = Wire(0)
        if self.field is None:
            return (letter,), lambda triple: (triple[2],)
        wires = (Wire(self.field, delayed=True), Wire(self.field), letter)
        return wires, lambda triple: (self.numbers[triple[0]], self.numbers[triple[1]], triple[2])

    def component(self, builder: _Builder, set_class: SetClass, series: Series) -> _Component:
        """Build the component of a class: counters for its group, and a flip-flop if it has resets."""
        wires, key = self._triple_inputs()
        name, identity = f"{self.level}.{set_class.number}", set_class.group.identity
        permutes = {key(t): g for t, g in self.permutes[set_class.number].items() if g != identity}
        resets = {key(t): x for t, x in self.resets[set_class.number].items()}
        initial = self.initial_tile if set_class.number == self.initial_class else 0
        if not permutes and resets:
            return self._shared_flip_flop(builder)
        group = PermutationGroup(set_class.width, dict.fromkeys(permutes.values()))
        counters, decode = _counters(builder, name, factors(group, series, GROUP_LIMIT), _Selection(wires, permutes), identity)
        if not resets:
            return _Component(counters, {counts: g[initial] for counts, g in decode.items()})
        if len(resets) > set_class.width:  # a separate field for the tile of the reset reduces the number of rows
            none = set_class.width
            reset_tile = builder.lookup(f"r{name}", [Branch(wires, resets)], none + 1, none, default=none)
            wires, resets = (Wire(reset_tile),), _identity_rows(set(resets.values()))
        rows = {(*values, *counts): inverse(g)[x] for values, x in resets.items() for counts, g in decode.items()}
        output = builder.field(f"y{name}", set_class.width, initial)
        builder.ops.append(Op("flip-flop", output, (Branch((*wires, *counters), rows),), HOLD))
        tile = {(y, *counts): g[y] for y in range(set_class.width) for counts, g in decode.items()}
        parts = _Component((Wire(output), *counters), tile)
        n_sets = len(self.class_sets[set_class.number])
        if n_sets * len(tile) <= 4 * (len(tile) + n_sets * set_class.width):
            return parts
        value = builder.lookup(f"x{name}", [Branch(*parts)], set_class.width, initial)
        return _Component((Wire(value),), _identity_rows(range(set_class.width)))

    def _shared_flip_flop(self, builder: _Builder) -> _Component:
        """Return the flip-flop that all classes of this level with only resets share."""
        if self.shared is None:
            wires, key = self._triple_inputs()
            reset_only = [c for c in self.classes if self.resets[c.number] and not self._has_permutations(c)]
            rows = {key(t): x for c in reset_only for t, x in self.resets[c.number].items()}
            size = max(max(self.tiles[c.number]) for c in reset_only) + 1
            starts_here = any(c.number == self.initial_class for c in reset_only)
            output = builder.field(f"x{self.level}", size, self.initial_tile if starts_here else 0)
            builder.ops.append(Op("flip-flop", output, (Branch(wires, rows),), HOLD))
            self.shared = _Component((Wire(output),), _identity_rows(range(size)))
        return self.shared

    def _has_permutations(self, set_class: SetClass) -> bool:
        return any(g != set_class.group.identity for g in self.permutes[set_class.number].values())

    def decoding_branches(self, components: dict[int, _Component], below: dict[Mask, int]) -> list[Branch]:
        """Return the table of P_{h-1} from P_h and the components: a branch per class, and one for sets of lower levels."""
        set_wire = () if self.field is None else (Wire(self.field),)
        branches = []
        for set_class in self.classes:
            wires, tile = components[set_class.number]
            possible = set(self.tiles[set_class.number])
            rows = {
                (*((self.numbers[mask],) if set_wire else ()), *values): below[set_class.tiles[mask][x]]
                for mask in self.class_sets[set_class.number]
                for values, x in tile.items()
                if x in possible
            }
            branches.append(Branch((*set_wire, *wires), rows))
        levels = self.skeleton.level
        passing: dict[Key, int] = {(i,): below[mask] for mask, i in self.numbers.items() if levels[mask] < self.level}
        return [*branches, Branch(set_wire, passing)] if passing else branches


def _identity_rows(values: Iterable[int]) -> dict[Key, int]:
    """Return the rows of the identity function of one input."""
    return {(x,): x for x in values}


def _counters(
    builder: _Builder, name: str, series: list[Factor], source: _Selection, identity: Permutation
) -> tuple[tuple[Wire, ...], dict[Counts, Permutation]]:
    """Add counters for the product of all permutations so far; return their wires, and the product for each of their values."""
    wires: tuple[Wire, ...] = ()
    decode: dict[Counts, Permutation] = {(): identity}
    for depth, factor in enumerate(series):
        counters = []
        for j, q in enumerate(factor.moduli):
            output = builder.field(f"c{name}.{depth}{'abcdefgh'[j % 8] if len(factor.moduli) > 1 else ''}", q, 0, is_counter=True)
            rows = {values: factor.phi[h][j] for values, h in source.permutations.items() if factor.phi[h][j]}
            builder.ops.append(Op("counter", output, (Branch(source.wires, rows),), 0))
            counters.append(Wire(output))
        if depth + 1 < len(series):
            source = _next_selection(builder, f"w{name}.{depth}", factor, source, tuple(counters), identity)
        wires = (*wires, *counters)
        decode = {
            (*counts, *new): multiply(representative, g)
            for counts, g in decode.items()
            for new, representative in factor.representatives.items()
        }
    return wires, decode


def _next_selection(
    builder: _Builder, name: str, factor: Factor, source: _Selection, counters: tuple[Wire, ...], identity: Permutation
) -> _Selection:
    """Return the permutation that multiplies the remaining factors, selected by the source and the counters' new values.

    If many inputs select few permutations, a lookup first stores the number of the permutation; it needs no additional block.
    """
    elements = list(dict.fromkeys(source.permutations.values()))
    if len(source.wires) > 1 and len(source.permutations) > 2 * len(elements):
        number = {h: i + 1 for i, h in enumerate(elements)}
        rows = {values: number[h] for values, h in source.permutations.items()}
        field = builder.lookup(name, [Branch(source.wires, rows)], len(elements) + 1, 0, default=0)
        source = _Selection((Wire(field),), {(number[h],): h for h in elements})
    result: dict[Key, Permutation] = {}
    for values, h in source.permutations.items():
        for counts in itertools.product(*(range(q) for q in factor.moduli)):
            w = factor.carry(h, counts)
            if w != identity:
                result[*values, *counts] = w
    return _Selection((*source.wires, *counters), result)
