"""The proof from its tables that a program computes its automaton for words of every length.

`check_program` is an induction over time and levels. Let S_h be the set of level h that the values represent. If

    before the first letter every S_h contains the start state;
    whenever S_h goes from P to P' >= P.a under a letter a, S_{h-1} goes from some R to some R' >= R.a, for all values of the
    memories of level h;
    the sets of level 0 are single states,

then S_0 is the state of the automaton after every word. The second line is checked by running the ops of level h on all pairs
(P, P') that the levels above allow and on all values of the memories that affect the result. Nothing is assumed about how the
tables were built. The check is sufficient, not necessary: it also rejects wrong entries that no word reaches.
"""

import itertools
from dataclasses import dataclass, field

import numpy as np

from longscan.automata.dfa import DFA
from longscan.automata.errors import LimitExceeded
from longscan.automata.program import HOLD, LevelFields, Op, Program
from longscan.automata.skeleton import ImageTables

CASE_LIMIT = 20_000_000
PRODUCT_LIMIT = 5_000
BATCH_SIZE = 100_000


@dataclass
class ProgramProof:
    """The result of `check_program`.

    problems: descriptions of failed checks, empty if the program is proved. cases: number of cases that were run. domains: for
    each op the values of its inputs that occur, (cases, wires), with keep_domains=True.
    """

    problems: list[str] = field(default_factory=list)
    cases: int = 0
    domains: dict[int, np.ndarray] = field(default_factory=dict)

    @property
    def is_proved(self) -> bool:
        """Whether all checks passed."""
        return not self.problems


def check_program(program: Program, dfa: DFA, *, keep_domains: bool = False) -> ProgramProof:
    """Prove that a program computes an automaton, see this module's docstring. Raises LimitExceeded beyond 20 million cases."""
    proof = ProgramProof()
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
        triples = _LevelCheck(program, dfa, upper, lower, proof).check(triples, domains if keep_domains else None)
    proof.domains = {number: np.unique(np.concatenate(parts), axis=0) for number, parts in domains.items()}
    return proof


class _LevelCheck:
    """The check of the ops between the sets of one level and those of the level below."""

    def __init__(self, program: Program, dfa: DFA, upper: LevelFields, lower: LevelFields, proof: ProgramProof) -> None:
        self.program, self.dfa, self.upper, self.lower, self.proof = program, dfa, upper, lower, proof
        self.writer = {program.ops[i].output: i for i in upper.ops}
        self.images = ImageTables(dfa)
        # The lookups that compute the set below from this level's set and memories; any other input of them is an error.
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
        """Return the memories that affect the set below if this level's set has the given number."""
        found: set[int] = set()
        pending: list[int] = []
        if self.lower.field is not None:
            pending += self._active_fields(self.program.ops[self.writer[self.lower.field]], number)
        while pending:
            wire = pending.pop()
            if wire not in self.writer or wire in found:
                continue
            op = self.program.ops[self.writer[wire]]
            if op.kind != "lookup":
                found.add(wire)
            pending += [other.field for other in op.wires]
        return found

    def _active_fields(self, op: Op, number: int) -> set[int]:
        """Return the fields in branches of an op that can have a row if this level's set has the given number."""
        wires: set[int] = set()
        for branch in op.branches:
            of_set = [i for i, wire in enumerate(branch.wires) if wire.field == self.upper.field and not wire.delayed]
            if not of_set or any(key[of_set[0]] == number for key in branch.rows):
                wires |= {wire.field for wire in branch.wires}
        return wires

    def decode(self, values: np.ndarray) -> np.ndarray:
        """Compute the lookups in `values`, which has this level's set and memories; return the numbers of the set below."""
        for number in self.decoders:
            self.program.apply(number, values, values)
        return np.zeros(len(values), np.int64) if self.lower.field is None else values[:, self.lower.field]

    def check(self, triples: np.ndarray, domains: dict[int, list[np.ndarray]] | None) -> np.ndarray:
        """Check all sorted triples (set before, set after, letter) of numbers; return the triples of the level below.

        The search starts from the initial values and collects the values that the memories can have together with each set. A
        memory that does not affect the set before is given every value.
        """
        start = self.program.start(1)
        initial = 0 if self.lower.field is None else int(start[0, self.lower.field])
        if self.decode(start)[0] != initial or not self.lower.sets[initial] >> self.dfa.start & 1:
            self.proof.problems.append(f"the first set of level {self.lower.level} is wrong")
            return triples
        # A set and the values of the memories that affect it are one number: set * span + code.
        columns = [op.output for op in (self.program.ops[i] for i in self.upper.ops) if op.kind != "lookup"]
        sizes = np.array([self.program.fields[m].size for m in columns], np.int64)
        relevant = [self.memories(number) for number in range(len(self.upper.sets))]
        weights, counts = _mixed_radix_weights([[m in fields for m in columns] for fields in relevant], sizes)
        free = [[m in relevant[q] and m not in relevant[p] for m in columns] for p, q, _ in triples.tolist()]
        free_weights, free_counts = _mixed_radix_weights(free, sizes)
        span = int(counts.max())
        first = 0 if self.upper.field is None else self.program.fields[self.upper.field].initial
        known = fresh = np.array([first * span + int((start[0, columns] * weights[first]).sum())])
        limits = np.searchsorted(triples[:, 0], np.arange(len(self.upper.sets) + 1))
        lower_triples = [np.empty((0, 3), np.int64)]
        while len(fresh):
            before, code = np.divmod(fresh, span)
            row, within = _repeat_index((limits[1:] - limits[:-1])[before])
            triple = limits[before[row]] + within
            self.proof.cases += int(free_counts[triple].sum())
            if self.proof.cases > CASE_LIMIT:
                raise LimitExceeded("cases of the proof", CASE_LIMIT, self.proof.cases)
            case, free_code = _repeat_index(free_counts[triple])
            row, triple, reached = row[case], triple[case], []
            for part in np.array_split(np.arange(len(row)), 1 + len(row) // BATCH_SIZE):
                numbers = triple[part]
                old = self.program.start(len(part))
                old[:, columns] = _mixed_radix_digits(code[row[part]], weights[triples[numbers, 0]], sizes)
                old[:, columns] += _mixed_radix_digits(free_code[part], free_weights[numbers], sizes)
                below, new = self._run(triples[numbers], old, domains)
                if self.proof.problems:
                    return triples
                lower_triples.append(below)
                after = triples[numbers, 1]
                reached.append(np.unique(after * span + (new[:, columns] * weights[after]).sum(1)))
            fresh = np.setdiff1d(np.concatenate(reached), known)
            known = np.union1d(known, fresh)
        return np.unique(np.concatenate(lower_triples), axis=0)

    def _run(
        self, cases: np.ndarray, old: np.ndarray, domains: dict[int, list[np.ndarray]] | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Run the level's ops on cases (n, 3); return the triples of the level below, and the values after the step."""
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
                domains.setdefault(number, []).append(_unique_rows(*columns))
        low_after = np.zeros(len(cases), np.int64) if self.lower.field is None else new[:, self.lower.field]
        found = _unique_rows(low_before, low_after, letters)
        for p, q, a in found.tolist():
            if self.images.image(self.lower.sets[p], a) & ~self.lower.sets[q]:
                self.proof.problems.append(
                    f"level {self.upper.level}: letter {self.dfa.alphabet[a]!r} takes set {p} of the level below to set {q}, "
                    "which does not contain its image"
                )
                break
        return found, new


def _mixed_radix_weights(selected: list[list[bool]], sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return for each row of flags the weights of the flagged digits in a mixed-radix number, 0 elsewhere; and its range."""
    flags = np.array(selected, bool).reshape(len(selected), len(sizes))
    factors = np.where(flags, sizes, 1)
    counts = factors.prod(1)
    return np.where(flags, counts[:, None] // np.cumprod(factors, 1), 0), counts


def _mixed_radix_digits(codes: np.ndarray, weights: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return the digits of mixed-radix numbers, 0 where the weight is 0."""
    return np.where(weights > 0, codes[:, None] // np.maximum(weights, 1) % sizes, 0)


def _repeat_index(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return each index repeated `counts[index]` times, and the number of each repetition."""
    index = np.repeat(np.arange(len(counts)), counts)
    return index, np.arange(len(index)) - np.repeat(np.cumsum(counts) - counts, counts)


def _unique_rows(*columns: np.ndarray) -> np.ndarray:
    """Return the sorted distinct rows of columns of non-negative integers; faster than np.unique along an axis."""
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
    """Return whether all reachable pairs of (program's values, automaton's state) agree, None if there are more than `limit`.

    This check is necessary and sufficient, but the number of pairs can be very large.
    """
    memories = [i for i, f in enumerate(program.fields) if i and (i in program.delayed or i in _memory_fields(program))]
    values, states = program.start(1), np.array([dfa.start])
    seen = {(dfa.start, *values[0, memories].tolist())}
    while len(values):
        letters = np.tile(np.arange(len(dfa.alphabet)), len(values))
        states = dfa.table[np.repeat(states, len(dfa.alphabet)), letters]
        values = program.step(np.repeat(values, len(dfa.alphabet), 0), letters)
        if (program.states(values) != states).any():
            return False
        fresh = []
        for i, row in enumerate(np.concatenate([states[:, None], values[:, memories]], 1).tolist()):
            if tuple(row) not in seen:
                seen.add(tuple(row))
                fresh.append(i)
        if len(seen) > limit:
            return None
        values, states = values[fresh], states[fresh]
    return True


def _memory_fields(program: Program) -> set[int]:
    return {op.output for op in program.ops if op.kind != "lookup"}
