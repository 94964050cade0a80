"""Programs: the computation of a compiled model at every step as memories and tables, from which its weights are built.

A program has fields (values that change from step to step) and ops that are run in order, each reading fields and writing one:

    lookup     field := table(inputs)
    counter    field := field + table(inputs), modulo its size
    flip-flop  field := table(inputs), unchanged if the table's value is HOLD

An input is the new value of a field, or its value at the previous step (`delayed`), which is possible only for outputs of
lookups. Field 0 is the input letter.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np

HOLD = -1
NO_ROW = -2  # value of a branch without a row for its inputs
MAX_DENSE_SIZE = 1 << 16
Kind = Literal["lookup", "counter", "flip-flop"]
Key = tuple[int, ...]


class Wire(NamedTuple):
    """An input: the number of a field, and whether it is the value at the previous step."""

    field: int
    delayed: bool = False


class Field(NamedTuple):
    """A field: name, number of values, initial value, and whether it is a counter (represented by a phase, not one-hot)."""

    name: str
    size: int
    initial: int
    is_counter: bool = False


@dataclass(frozen=True)
class Branch:
    """A part of a table that depends on some inputs: `rows` maps the values of the inputs to the output."""

    wires: tuple[Wire, ...]
    rows: Mapping[Key, int]


@dataclass(frozen=True)
class Op:
    """One op. At most one branch has a row for a combination of inputs; if none has, the value of the table is `default`."""

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
    """One level of the cascade in a program.

    sets: the image sets P_h by number; field: the field with the number of the set, None if there is only one set; ops: the range
    of the ops from this level's sets to those of the level below.
    """

    level: int
    sets: tuple[int, ...]
    field: int | None
    ops: range


@dataclass(frozen=True)
class Program:
    """A program. levels: from the top; the last is level 0, whose sets are single states."""

    fields: tuple[Field, ...]
    ops: tuple[Op, ...]
    levels: tuple[LevelFields, ...]
    _tables: dict[int, "_OpTable"] = field(default_factory=dict, repr=False, compare=False)

    def start(self, batch: int) -> np.ndarray:
        """Return the values (batch, fields) before the first step; that of the letter has no meaning."""
        return np.tile(np.array([f.initial for f in self.fields], np.int64), (batch, 1))

    def step(self, values: np.ndarray, letters: np.ndarray) -> np.ndarray:
        """Return the values (batch, fields) after a step with letters (batch,)."""
        new = values.copy()
        new[:, 0] = letters
        for number in range(len(self.ops)):
            self.apply(number, values, new)
        return new

    def apply(self, number: int, old: np.ndarray, new: np.ndarray) -> None:
        """Run one op: read `old` and `new` (batch, fields) and write its column of `new`."""
        op = self.ops[number]
        result = self._table(number)(old, new)
        before = old[:, op.output]
        if op.kind == "counter":
            result = (before + result) % self.fields[op.output].size
        elif op.kind == "flip-flop":
            result = np.where(result == HOLD, before, result)
        new[:, op.output] = result

    def _table(self, number: int) -> "_OpTable":
        if number not in self._tables:
            self._tables[number] = _OpTable(self.ops[number], [f.size for f in self.fields])
        return self._tables[number]

    def run(self, words: np.ndarray) -> np.ndarray:
        """Return all values after every letter of words (B, L), (B, L, fields)."""
        values = self.start(len(words))
        history = np.empty((*words.shape, len(self.fields)), np.int64)
        for t in range(words.shape[1]):
            values = history[:, t] = self.step(values, words[:, t])
        return history

    def states(self, values: np.ndarray) -> np.ndarray:
        """Return the states (...) of the automaton in values (..., fields)."""
        last = self.levels[-1]
        states = np.array([mask.bit_length() - 1 for mask in last.sets])
        return states[np.zeros(values.shape[:-1], np.int64) if last.field is None else values[..., last.field]]

    def replace_op(self, number: int, op: Op) -> "Program":
        """Return the program with another op at a position."""
        ops = list(self.ops)
        ops[number] = op
        return replace(self, ops=tuple(ops), _tables={})

    @cached_property
    def delayed(self) -> frozenset[int]:
        """The fields whose value at the previous step is an input."""
        return frozenset(wire.field for op in self.ops for wire in op.wires if wire.delayed)


class _OpTable:
    """The table of an op, which evaluates its branches on arrays of values."""

    def __init__(self, op: Op, sizes: Sequence[int]) -> None:
        self.default = op.default
        self.branches = [_BranchTable(branch, sizes) for branch in op.branches if branch.rows]

    def __call__(self, old: np.ndarray, new: np.ndarray) -> np.ndarray:
        result, has_value = np.full(len(new), self.default, np.int64), np.zeros(len(new), bool)
        for branch in self.branches:
            values = branch(old, new)
            has_row = values != NO_ROW
            if (has_row & has_value).any():
                raise ValueError("`branches` must have one row for each input, got two that apply")
            has_value |= has_row
            result = np.where(has_row, values, result)
        return result


class _BranchTable:
    """The table of one branch: a dense array, or sorted keys if that would be large; NO_ROW for inputs without a row."""

    def __init__(self, branch: Branch, sizes: Sequence[int]) -> None:
        radix = [sizes[wire.field] for wire in branch.wires]
        self.wires = [(wire, math.prod(radix[i + 1 :])) for i, wire in enumerate(branch.wires)]
        weights = np.array([weight for _, weight in self.wires], np.int64)
        keys = np.array(list(branch.rows), np.int64).reshape(len(branch.rows), len(radix)) @ weights
        values = np.array(list(branch.rows.values()), np.int64)
        self.dense: np.ndarray | None = None
        if math.prod(radix) <= MAX_DENSE_SIZE:
            self.dense = np.full(math.prod(radix), NO_ROW, np.int64)
            self.dense[keys] = values
        else:
            order = np.argsort(keys)
            self.keys, self.values = keys[order], values[order]

    def __call__(self, old: np.ndarray, new: np.ndarray) -> np.ndarray:
        keys = np.zeros(len(new), np.int64)
        for wire, weight in self.wires:
            keys += (old if wire.delayed else new)[:, wire.field] * weight
        if self.dense is not None:
            return self.dense[keys]
        index = np.minimum(np.searchsorted(self.keys, keys), len(self.values) - 1)
        return np.where(self.keys[index] == keys, self.values[index], NO_ROW)
