"""The plan of a model: which block runs which ops of a program, where each field stands in the stream, which rows a
table needs.

The stream holds, one beside the other, one-hot fields (the letter, lookups, flip-flops), two numbers (cos, sin) for each
counter, a second copy of every lookup that is read with a delay, and one constant. A block is an AUSSM block where it holds
counters, otherwise a Mamba block; lookups go into either.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from longscan.automata.errors import LimitExceeded
from longscan.automata.program import Op, Program, Wire

Layout = Literal["minimal", "am", "ma"]


class Row(NamedTuple):
    """One conjunction: where every input has one of the listed values, the table says `value`."""

    literals: tuple[tuple[Wire, tuple[int, ...]], ...]
    value: int


@dataclass(frozen=True)
class PlannedBlock:
    """letter: "a" or "m"; ops: numbers of ops; rows: for each of them its rows."""

    letter: str
    ops: tuple[int, ...]
    rows: Mapping[int, tuple[Row, ...]]


@dataclass(frozen=True)
class Plan:
    """blocks: in order. offsets: where the new value of a field stands, delayed: where its value of one step before does; dummy:
    the constant's place, `constant` its value. d_model: width of the stream.
    """

    blocks: tuple[PlannedBlock, ...]
    offsets: dict[int, int]
    delayed: dict[int, int]
    dummy: int
    constant: float
    d_model: int

    @property
    def spec(self) -> str:
        """The letters of the blocks."""
        return "".join(block.letter for block in self.blocks)

    def place(self, wire: Wire) -> int:
        """Where the value of an input stands."""
        return (self.delayed if wire.delayed else self.offsets)[wire.field]


def plan(program: Program, layout: Layout = "minimal", max_blocks: int = 1000) -> Plan:
    """Plan the model of a program.

    layout: "minimal", as few blocks as the ops' order allows; "am" or "ma": the two kinds of block by turns, the named one first.
    """
    offsets, delayed, width = {}, {}, 0
    for number, f in enumerate(program.fields):
        offsets[number] = width
        width += 2 if f.is_counter else f.size
        if number in program.delayed:
            delayed[number] = width
            width += f.size
    rows = {number: tuple(table_rows(program, op)) for number, op in enumerate(program.ops)}
    blocks = []
    for letter, ops in _schedule(program, layout, max_blocks):
        blocks.append(PlannedBlock(letter, tuple(ops), {number: rows[number] for number in ops}))
    constant = 8.0
    while constant**2 < width + 1:
        constant *= 2
    return Plan(tuple(blocks), offsets, delayed, width, constant, width + 1)


def _schedule(program: Program, layout: Layout, max_blocks: int) -> list[tuple[str, list[int]]]:
    """Blocks with their ops, each op as early as its inputs, and the kind of block it needs, allow."""
    done: set[int] = {0}
    pending = list(range(len(program.ops)))
    blocks: list[tuple[str, list[int]]] = []
    turn = {"am": "am", "ma": "ma"}.get(layout)
    while pending or not blocks:
        ready = [i for i in pending if all(wire.field in done for wire in program.ops[i].wires)]
        if turn is not None:
            letter = turn[len(blocks) % 2]
        else:
            letter = "a" if any(program.ops[i].kind == "counter" for i in ready) else "m"
        refused = "flip-flop" if letter == "a" else "counter"
        chosen = [i for i in ready if program.ops[i].kind != refused]
        blocks.append((letter, chosen))
        if len(blocks) > max_blocks:
            raise LimitExceeded("blocks", max_blocks, len(blocks))
        done |= {program.ops[i].output for i in chosen}
        pending = [i for i in pending if i not in chosen]
    return blocks


def table_rows(program: Program, op: Op) -> list[Row]:
    """The rows of a table, with values of one input that make no difference joined into one row.

    Values of counters are not joined: their literal is a position on the circle. An input that may have any value is left out.
    """
    result = []
    for branch in op.branches:
        rows: dict[tuple[tuple[int, ...], ...], int] = {tuple((x,) for x in key): value for key, value in branch.rows.items()}
        for i, wire in enumerate(branch.wires):
            if program.fields[wire.field].is_counter:
                continue
            joined: dict[tuple[tuple[tuple[int, ...], ...], int], list[int]] = {}
            for sets, value in rows.items():
                joined.setdefault((sets[:i] + sets[i + 1 :], value), []).extend(sets[i])
            rows = {(*rest[:i], tuple(sorted(values)), *rest[i:]): value for (rest, value), values in joined.items()}
        for sets, value in rows.items():
            literals = tuple(
                (wire, values)
                for wire, values in zip(branch.wires, sets, strict=True)
                if len(values) < program.fields[wire.field].size
            )
            result.append(Row(literals, value))
    return result


def inner_width(program: Program, block: PlannedBlock, d_model: int) -> int:
    """Channels inside a block, a multiple of d_model: a constant, two for each row and delayed row, two for each counter, one for
    each value of a flip-flop.
    """
    channels = 1 + sum(sum(op_channels(program, program.ops[i], len(block.rows[i]))) for i in block.ops)
    return d_model * math.ceil(channels / d_model)


def op_channels(program: Program, op: Op, rows: int) -> tuple[int, int]:
    """The channels of an op before its rows, and of its rows with their delayed copies."""
    before = {"lookup": 0, "counter": 2, "flip-flop": program.fields[op.output].size}[op.kind]
    return before, 2 * rows * (2 if op.output in program.delayed else 1)


def row_channels(program: Program, block: PlannedBlock, number: int) -> tuple[int, int]:
    """The first channel of the rows of an op in its block, and their number; every row has two, one after the other."""
    first = 1
    for other in block.ops:
        before, of_rows = op_channels(program, program.ops[other], len(block.rows[other]))
        if other == number:
            return first + before, len(block.rows[number])
        first += before + of_rows
    raise ValueError(f"number: got {number}, expected an op of the block, {block.ops}")


def flip_flop_values(program: Program, block: PlannedBlock) -> int:
    """The values of all flip-flops of a block: the rank that the map to Delta needs."""
    outputs = [program.ops[i].output for i in block.ops if program.ops[i].kind == "flip-flop"]
    return sum(program.fields[output].size for output in outputs)


def count_parameters(program: Program, layout: Plan) -> int:
    """The parameters of the model, learned start included."""
    d = layout.d_model
    total = program.fields[0].size * d + d + 2 * d  # encoder, last norm, head
    for block in layout.blocks:
        e = inner_width(program, block, d)
        total += d + 3 * d * e + 3 * e + e  # norm, projections, convolution, its start
        rank = max(1, flip_flop_values(program, block))
        if block.letter == "a":
            total += e * rank + e * rank + e + e * e + e + 4 * e + e + 2 * e
        else:
            total += (rank + 2) * e + e * rank + e + e + e + e
    return total
