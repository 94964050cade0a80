"""The proof that a program computes its automaton, for words of every length, from its tables alone.

`check_program` is an induction over time and levels. Let S_h be the set that the values name at level h. If

    before the first letter every S_h holds the start state;
    whenever S_h goes from P to P' >= P.a under a letter a, S_{h-1} goes from some R to some R' >= R.a, whatever the memories of
    level h hold;
    the sets of level 0 are single states,

then S_0 is the state of the automaton after every word. The second line is checked by running the ops of level h on all pairs
(P, P') that the levels above allow and on all values of the memories that play a part in them. Nothing is assumed about how the
tables were made. The check is sufficient: it also refuses wrong entries that no word reaches.
"""

import itertools
from dataclasses import dataclass, field

import numpy as np

from longscan.automata.dfa import DFA
from longscan.automata.errors import LimitExceeded
from longscan.automata.program import HOLD, LevelFields, Op, Program
from longscan.automata.skeleton import Images

CASE_LIMIT = 20_000_000
PRODUCT_LIMIT = 5_000
SLICE = 100_000


@dataclass
class LocalProof:
    """problems: what fails, in words; none means proved. cases: how many were run. domains: for each op the values of its inputs
    that occur, (cases, wires), where they were asked for.
    """

    problems: list[str] = field(default_factory=list)
    cases: int = 0
    domains: dict[int, np.ndarray] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        """Whether the program is proved."""
        return not self.problems


def check_program(program: Program, dfa: DFA, *, keep_domains: bool = False) -> LocalProof:
    """See the top of the file. LimitExceeded beyond 20 million cases."""
    proof = LocalProof()
    if program.levels[0].sets != ((1 << dfa.size) - 1,):
        proof.problems.append("the cascade does not begin with the set of all states")
    if any(mask.bit_count() != 1 for mask in program.levels[-1].sets):
        proof.problems.append("a set of level 0 is not a single state")
    for number, op in enumerate(program.ops):
        values = {op.default, *(value for branch in op.branches for value in branch.rows.values())}
        if not values <= {*range(program.fields[op.output].size), *([HOLD] if op.kind == "flip-flop" else [])}:
            proof.problems.append(f"op {number} writes values that {program.fields[op.output].name} does not have")
    if len({op.output for op in program.ops} | {0}) <= len(program.ops):
        proof.problems.append("two ops write one field")
    triples = np.array([(0, 0, a) for a in range(len(dfa.alphabet))], np.int64)
    domains: dict[int, list[np.ndarray]] = {}
    for upper, lower in itertools.pairwise(program.levels):
        if proof.problems:
            return proof
        triples = _Level(program, dfa, upper, lower, proof).check(triples, domains if keep_domains else None)
    proof.domains = {number: np.unique(np.concatenate(parts), axis=0) for number, parts in domains.items()}
    return proof


class _Level:
    """The ops between one level's sets and those of the level below."""

    def __init__(self, program: Program, dfa: DFA, upper: LevelFields, lower: LevelFields, proof: LocalProof) -> None:
        self.program, self.dfa, self.upper, self.lower, self.proof = program, dfa, upper, lower, proof
        self.writer = {program.ops[i].output: i for i in upper.ops}
        self.images = Images(dfa)
        # The lookups that make the set below out of this level's set and memories; what else they read would be a mistake.
        self.decoders: list[int] = []
        pending = [] if lower.field is None else [lower.field]
        while pending:
            number = self.writer[pending.pop()]
            self.decoders.append(number)
            for wire in program.ops[number].wires:
                if wire.delayed or wire.field == 0:
                    proof.problems.append(f"level {lower.level} is read off a letter or an old value")
                elif wire.field in self.writer and program.ops[self.writer[wire.field]].kind == "lookup":
                    pending.append(wire.field)
        self.decoders.sort()
        readable = {0} if upper.field is None else {0, upper.field}
        for number in upper.ops:
            op = program.ops[number]
            for wire in op.wires:
                if wire.field not in readable or (wire.delayed and wire.field != upper.field):
                    proof.problems.append(f"op {number} reads {program.fields[wire.field].name}, which its level does not know")
            readable.add(op.output)

    def memories(self, number: int) -> set[int]:
        """The memories that play a part where this level's set has the given number: behind a branch that can speak then."""
        found: set[int] = set()
        pending: list[int] = []
        if self.lower.field is not None:
            pending += self._speaking(self.program.ops[self.writer[self.lower.field]], number)
        while pending:
            wire = pending.pop()
            if wire not in self.writer or wire in found:
                continue
            op = self.program.ops[self.writer[wire]]
            if op.kind != "lookup":
                found.add(wire)
            pending += [other.field for other in op.wires]
        return found

    def _speaking(self, op: Op, number: int) -> set[int]:
        wires: set[int] = set()
        for branch in op.branches:
            of_set = [i for i, wire in enumerate(branch.wires) if wire.field == self.upper.field and not wire.delayed]
            if not of_set or any(key[of_set[0]] == number for key in branch.rows):
                wires |= {wire.field for wire in branch.wires}
        return wires

    def decode(self, values: np.ndarray) -> np.ndarray:
        """The number of the set below for values of this level's set and memories; fills in the lookups on the way."""
        for number in self.decoders:
            self.program.apply(number, values, values)
        return np.zeros(len(values), np.int64) if self.lower.field is None else values[:, self.lower.field]

    def check(self, triples: np.ndarray, domains: dict[int, list[np.ndarray]] | None) -> np.ndarray:
        """Check all triples (set before, set after, letter), by number and sorted; return those that the level below can see.

        Which values the memories can have beside each set is found on the way, from those of the start; memories that play no
        part beside the set before are given every value.
        """
        start = self.program.start(1)
        initial = 0 if self.lower.field is None else int(start[0, self.lower.field])
        if self.decode(start)[0] != initial or not self.lower.sets[initial] >> self.dfa.start & 1:
            self.proof.problems.append(f"the first set of level {self.lower.level} is wrong")
            return triples
        # A set and the values of the memories that play a part beside it, as one number: set * span + code.
        columns = [op.output for op in (self.program.ops[i] for i in self.upper.ops) if op.kind != "lookup"]
        sizes = np.array([self.program.fields[m].size for m in columns], np.int64)
        parts = [self.memories(number) for number in range(len(self.upper.sets))]
        own, counts = _radix([[m in part for m in columns] for part in parts], sizes)
        others = [[m in parts[q] and m not in parts[p] for m in columns] for p, q, _ in triples.tolist()]
        extra, extra_counts = _radix(others, sizes)
        span = int(counts.max())
        first = 0 if self.upper.field is None else self.program.fields[self.upper.field].initial
        known = fresh = np.array([first * span + int((start[0, columns] * own[first]).sum())])
        bounds = np.searchsorted(triples[:, 0], np.arange(len(self.upper.sets) + 1))
        seen = [np.empty((0, 3), np.int64)]
        while len(fresh):
            before, code = np.divmod(fresh, span)
            row, within = _expand((bounds[1:] - bounds[:-1])[before])
            triple = bounds[before[row]] + within
            self.proof.cases += int(extra_counts[triple].sum())
            if self.proof.cases > CASE_LIMIT:
                raise LimitExceeded("cases of the proof", CASE_LIMIT, self.proof.cases)
            again, other = _expand(extra_counts[triple])
            row, triple, found = row[again], triple[again], []
            for piece in np.array_split(np.arange(len(row)), 1 + len(row) // SLICE):
                at = triple[piece]
                old = self.program.start(len(piece))
                old[:, columns] = _digits(code[row[piece]], own[triples[at, 0]], sizes) + _digits(other[piece], extra[at], sizes)
                pairs, new = self._run(triples[at], old, domains)
                if self.proof.problems:
                    return triples
                seen.append(pairs)
                after = triples[at, 1]
                found.append(np.unique(after * span + (new[:, columns] * own[after]).sum(1)))
            fresh = np.setdiff1d(np.concatenate(found), known)
            known = np.union1d(known, fresh)
        return np.unique(np.concatenate(seen), axis=0)

    def _run(
        self, cases: np.ndarray, old: np.ndarray, domains: dict[int, list[np.ndarray]] | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Run the level's ops: the triples that the level below sees, and the values after the step."""
        before, after, letters = cases.T
        if self.upper.field is not None:
            old[:, self.upper.field] = before
        low_before = self.decode(old).copy()
        new = old.copy()
        new[:, 0] = letters
        if self.upper.field is not None:
            new[:, self.upper.field] = after
        for number in self.upper.ops:
            try:
                self.program.apply(number, old, new)
            except ValueError as error:
                self.proof.problems.append(f"op {number}: {error}")
                return cases, new
            if domains is not None:
                columns = [(old if wire.delayed else new)[:, wire.field] for wire in self.program.ops[number].wires]
                domains.setdefault(number, []).append(_unique(*columns))
        low_after = np.zeros(len(cases), np.int64) if self.lower.field is None else new[:, self.lower.field]
        found = _unique(low_before, low_after, letters)
        for p, q, a in found.tolist():
            if self.images.of(self.lower.sets[p], a) & ~self.lower.sets[q]:
                self.proof.problems.append(
                    f"level {self.upper.level}: letter {self.dfa.alphabet[a]!r} takes set {p} of the level below to set {q}, "
                    "which does not hold its image"
                )
                break
        return found, new


def _radix(parts: list[list[bool]], sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For rows of flags: the weights of the flagged places in a number of mixed radix, 0 elsewhere; how many values it has."""
    flags = np.array(parts, bool).reshape(len(parts), len(sizes))
    factors = np.where(flags, sizes, 1)
    counts = factors.prod(1)
    return np.where(flags, counts[:, None] // np.cumprod(factors, 1), 0), counts


def _digits(codes: np.ndarray, weights: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """The values at the flagged places, 0 elsewhere."""
    return np.where(weights > 0, codes[:, None] // np.maximum(weights, 1) % sizes, 0)


def _expand(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each index repeated as often as its count says, and which of its repetitions each is."""
    index = np.repeat(np.arange(len(counts)), counts)
    return index, np.arange(len(index)) - np.repeat(np.cumsum(counts) - counts, counts)


def _unique(*columns: np.ndarray) -> np.ndarray:
    """The different rows of columns of non-negative numbers, sorted."""
    key = np.zeros(len(columns[0]), np.int64)
    spans = [int(column.max(initial=0)) + 1 for column in columns]
    for column, span in zip(columns, spans, strict=True):
        key = key * span + column
    key, result = np.unique(key), []
    for span in reversed(spans):
        key, digit = np.divmod(key, span)
        result.append(digit)
    return np.stack(result[::-1], 1)


def check_product(program: Program, dfa: DFA, limit: int = PRODUCT_LIMIT) -> bool | None:
    """Whether all reachable pairs of (program's values, automaton's state) agree: complete, but the pairs can be very many.

    None where there are more than `limit`.
    """
    memory = [i for i, f in enumerate(program.fields) if i and (i in program.delayed or i in _memories(program))]
    values, states = program.start(1), np.array([dfa.start])
    seen = {(dfa.start, *values[0, memory].tolist())}
    while len(values):
        letters = np.tile(np.arange(len(dfa.alphabet)), len(values))
        states = dfa.table[np.repeat(states, len(dfa.alphabet)), letters]
        values = program.step(np.repeat(values, len(dfa.alphabet), 0), letters)
        if (program.states(values) != states).any():
            return False
        fresh = []
        for i, row in enumerate(np.concatenate([states[:, None], values[:, memory]], 1).tolist()):
            if tuple(row) not in seen:
                seen.add(tuple(row))
                fresh.append(i)
        if len(seen) > limit:
            return None
        values, states = values[fresh], states[fresh]
    return True


def _memories(program: Program) -> set[int]:
    return {op.output for op in program.ops if op.kind != "lookup"}
