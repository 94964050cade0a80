"""Programs: what a compiled model computes at every step, as memories and tables, before it becomes weights.

A program has fields (values that change from step to step) and ops that are run in order, each reading fields and writing one:

    lookup     field := table(inputs)
    counter    field := field + table(inputs), modulo its size
    flip-flop  field := table(inputs), or as it was where the table says HOLD

An input is the new value of a field, or its value one step before (`delayed`), which only the outputs of lookups offer. Field 0
is the letter that is read.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np

HOLD = -1
SILENT = -2  # of a branch without a row for its inputs
DENSE = 1 << 16
Kind = Literal["lookup", "counter", "flip-flop"]
Key = tuple[int, ...]


class Wire(NamedTuple):
    """An input: the number of a field, and whether its value of one step before is meant."""

    field: int
    delayed: bool = False


class Field(NamedTuple):
    """name, number of values, value before the first step, and whether it is a counter (held as a phase, not one value a
    cell).
    """

    name: str
    size: int
    initial: int
    is_counter: bool = False


@dataclass(frozen=True)
class Branch:
    """Rows of a table over some inputs: `rows` maps the inputs' values to the output; what is not there is not said here."""

    wires: tuple[Wire, ...]
    rows: Mapping[Key, int]


@dataclass(frozen=True)
class Op:
    """One op. Branches never speak at the same time; where none does, the table's value is `default`."""

    kind: Kind
    output: int
    branches: tuple[Branch, ...]
    default: int

    @cached_property
    def wires(self) -> tuple[Wire, ...]:
        """All inputs, each once."""
        return tuple(dict.fromkeys(wire for branch in self.branches for wire in branch.wires))

    @property
    def rows(self) -> int:
        """The number of rows."""
        return sum(len(branch.rows) for branch in self.branches)


@dataclass(frozen=True)
class LevelFields:
    """Where a level of the cascade lives. `sets`: the image sets P_h by number; `field`: the field that holds the number, None
    where there is one set only; `ops`: the range of the ops that lead from this level's sets to those of the level below.
    """

    level: int
    sets: tuple[int, ...]
    field: int | None
    ops: range


@dataclass(frozen=True)
class Program:
    """A compiled automaton. levels: from the top, the last being level 0, whose sets are single states."""

    fields: tuple[Field, ...]
    ops: tuple[Op, ...]
    levels: tuple[LevelFields, ...]
    _tables: dict[int, "_Tables"] = field(default_factory=dict, repr=False, compare=False)

    def start(self, batch: int) -> np.ndarray:
        """The values (batch, fields) before the first step; that of the letter has no meaning."""
        return np.tile(np.array([f.initial for f in self.fields], np.int64), (batch, 1))

    def step(self, values: np.ndarray, letters: np.ndarray) -> np.ndarray:
        """The values (batch, fields) after a step that reads letters (batch,)."""
        new = values.copy()
        new[:, 0] = letters
        for number in range(len(self.ops)):
            self.apply(number, values, new)
        return new

    def apply(self, number: int, old: np.ndarray, new: np.ndarray) -> None:
        """Run one op: reads `old` and `new` (batch, fields) and writes its column of `new`."""
        op = self.ops[number]
        told = self._table(number)(old, new)
        before = old[:, op.output]
        if op.kind == "counter":
            told = (before + told) % self.fields[op.output].size
        elif op.kind == "flip-flop":
            told = np.where(told == HOLD, before, told)
        new[:, op.output] = told

    def _table(self, number: int) -> "_Tables":
        if number not in self._tables:
            self._tables[number] = _Tables(self.ops[number], [f.size for f in self.fields])
        return self._tables[number]

    def run(self, words: np.ndarray) -> np.ndarray:
        """All values after every letter: words (B, L) -> (B, L, fields)."""
        values = self.start(len(words))
        history = np.empty((*words.shape, len(self.fields)), np.int64)
        for t in range(words.shape[1]):
            values = history[:, t] = self.step(values, words[:, t])
        return history

    def states(self, values: np.ndarray) -> np.ndarray:
        """The state of the automaton in values (..., fields)."""
        last = self.levels[-1]
        states = np.array([mask.bit_length() - 1 for mask in last.sets])
        return states[np.zeros(values.shape[:-1], np.int64) if last.field is None else values[..., last.field]]

    def replaced(self, number: int, op: Op) -> "Program":
        """The program with another op in the place of one."""
        ops = list(self.ops)
        ops[number] = op
        return replace(self, ops=tuple(ops), _tables={})

    @cached_property
    def delayed(self) -> frozenset[int]:
        """The fields whose value of one step before is read."""
        return frozenset(wire.field for op in self.ops for wire in op.wires if wire.delayed)


class _Tables:
    """An op's branches over arrays of values: as plain arrays, or sorted keys where these would be large."""

    def __init__(self, op: Op, sizes: Sequence[int]) -> None:
        self.default = op.default
        self.branches = [_Table(branch, sizes) for branch in op.branches if branch.rows]

    def __call__(self, old: np.ndarray, new: np.ndarray) -> np.ndarray:
        result = spoken = None
        for branch in self.branches:
            told = branch(old, new)
            speaks = told != SILENT
            if result is None:
                result, spoken = np.where(speaks, told, self.default), speaks
                continue
            if (speaks & spoken).any():
                raise ValueError("branches: two rows of one table speak at the same time")
            spoken = spoken | speaks
            result = np.where(speaks, told, result)
        return np.full(len(new), self.default, np.int64) if result is None else result


class _Table:
    """One branch: SILENT where it has no row."""

    def __init__(self, branch: Branch, sizes: Sequence[int]) -> None:
        radix = [sizes[wire.field] for wire in branch.wires]
        self.wires = [(wire, math.prod(radix[i + 1 :])) for i, wire in enumerate(branch.wires)]
        weights = np.array([weight for _, weight in self.wires], np.int64)
        keys = np.array(list(branch.rows), np.int64).reshape(len(branch.rows), len(radix)) @ weights
        told = np.array(list(branch.rows.values()), np.int64)
        self.dense: np.ndarray | None = None
        if math.prod(radix) <= DENSE:
            self.dense = np.full(math.prod(radix), SILENT, np.int64)
            self.dense[keys] = told
        else:
            order = np.argsort(keys)
            self.keys, self.told = keys[order], told[order]

    def __call__(self, old: np.ndarray, new: np.ndarray) -> np.ndarray:
        asked: np.ndarray | int = 0
        for wire, weight in self.wires:
            asked = asked + (old if wire.delayed else new)[:, wire.field] * weight
        if isinstance(asked, int):
            asked = np.zeros(len(new), np.int64)
        if self.dense is not None:
            return self.dense[asked]
        place = np.minimum(np.searchsorted(self.keys, asked), len(self.told) - 1)
        return np.where(self.keys[place] == asked, self.told[place], SILENT)
