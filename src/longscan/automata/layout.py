"""The plan of a model: the ops of each block, the position of each field in the residual stream, and the rows of each table.

The stream consists of one-hot fields (the letter, lookups, flip-flops), two numbers (cos, sin) for each counter, a second copy
of every lookup that is read with a delay, and one constant. A block with counters is an AUSSM block, any other a Mamba block;
lookups can be in both.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from longscan._errors import setting_error
from longscan.automata.errors import LimitExceeded
from longscan.automata.program import Op, Program, Wire

Layout = Literal["minimal", "am", "ma"]
MAX_BLOCKS = 1000


class TableRow(NamedTuple):
    """One conjunction: if every input has one of the listed values, the output of the table is `value`."""

    literals: tuple[tuple[Wire, tuple[int, ...]], ...]
    value: int


@dataclass(frozen=True)
class PlannedBlock:
    """One block of the model: its letter, "a" or "m", the numbers of its ops, and the rows of each op."""

    letter: str
    ops: tuple[int, ...]
    rows: Mapping[int, tuple[TableRow, ...]]


@dataclass(frozen=True)
class ModelPlan:
    """The blocks of a model in order, and the layout of its residual stream.

    offsets: first position of the new value of each field; delayed: first position of its value at the previous step.
    constant_position, constant: position and value of the constant. d_model: width of the stream.
    """

    blocks: tuple[PlannedBlock, ...]
    offsets: dict[int, int]
    delayed: dict[int, int]
    constant_position: int
    constant: float
    d_model: int

    @property
    def spec(self) -> str:
        """Spec of the blocks in AUSSM's notation, a string of "a" and "m"."""
        return "".join(block.letter for block in self.blocks)

    def position(self, wire: Wire) -> int:
        """Return the first position of the value of an input."""
        return (self.delayed if wire.delayed else self.offsets)[wire.field]


def plan_model(program: Program, layout: Layout = "minimal") -> ModelPlan:
    """Plan the model of a program.

    layout: "minimal" for as few blocks as the order of the ops allows; "am" or "ma" for alternating kinds, the first one first.
    Raises LimitExceeded for more than 1,000 blocks.
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
    for letter, ops in _schedule(program, layout):
        blocks.append(PlannedBlock(letter, tuple(ops), {number: rows[number] for number in ops}))
    constant = 8.0
    while constant**2 < width + 1:
        constant *= 2
    return ModelPlan(tuple(blocks), offsets, delayed, width, constant, width + 1)


def _schedule(program: Program, layout: Layout) -> list[tuple[str, list[int]]]:
    """Return blocks with their ops; each op is in the first block that its inputs and its kind allow."""
    done: set[int] = {0}
    pending = list(range(len(program.ops)))
    blocks: list[tuple[str, list[int]]] = []
    alternation = {"am": "am", "ma": "ma"}.get(layout)
    while pending or not blocks:
        ready = [i for i in pending if all(wire.field in done for wire in program.ops[i].wires)]
        if alternation is not None:
            letter = alternation[len(blocks) % 2]
        else:
            letter = "a" if any(program.ops[i].kind == "counter" for i in ready) else "m"
        impossible = "flip-flop" if letter == "a" else "counter"
        chosen = [i for i in ready if program.ops[i].kind != impossible]
        blocks.append((letter, chosen))
        if len(blocks) > MAX_BLOCKS:
            raise LimitExceeded("blocks", MAX_BLOCKS, len(blocks))
        done |= {program.ops[i].output for i in chosen}
        pending = [i for i in pending if i not in chosen]
    return blocks


def table_rows(program: Program, op: Op) -> list[TableRow]:
    """Return the rows of a table; rows that differ only in the value of one input are merged.

    Values of counters are not merged: their literal is a point on the circle. An input that may have any value is left out.
    """
    result = []
    for branch in op.branches:
        rows: dict[tuple[tuple[int, ...], ...], int] = {tuple((x,) for x in key): value for key, value in branch.rows.items()}
        for i, wire in enumerate(branch.wires):
            if program.fields[wire.field].is_counter:
                continue
            merged: dict[tuple[tuple[tuple[int, ...], ...], int], list[int]] = {}
            for sets, value in rows.items():
                merged.setdefault((sets[:i] + sets[i + 1 :], value), []).extend(sets[i])
            rows = {(*rest[:i], tuple(sorted(values)), *rest[i:]): value for (rest, value), values in merged.items()}
        for sets, value in rows.items():
            literals = tuple(
                (wire, values)
                for wire, values in zip(branch.wires, sets, strict=True)
                if len(values) < program.fields[wire.field].size
            )
            result.append(TableRow(literals, value))
    return result


def inner_width(program: Program, block: PlannedBlock, d_model: int) -> int:
    """Return the number of channels of a block, a multiple of d_model.

    They are a constant, two for each row and delayed row, two for each counter, one for each value of a flip-flop.
    """
    channels = 1 + sum(sum(op_channels(program, program.ops[i], len(block.rows[i]))) for i in block.ops)
    return d_model * math.ceil(channels / d_model)


def op_channels(program: Program, op: Op, rows: int) -> tuple[int, int]:
    """Return the numbers of channels of an op before its rows, and of its rows with their delayed copies."""
    before = {"lookup": 0, "counter": 2, "flip-flop": program.fields[op.output].size}[op.kind]
    return before, 2 * rows * (2 if op.output in program.delayed else 1)


def row_channels(program: Program, block: PlannedBlock, number: int) -> tuple[int, int]:
    """Return the first channel of the rows of an op in its block, and their number; every row has two adjacent channels."""
    first = 1
    for other in block.ops:
        before, of_rows = op_channels(program, program.ops[other], len(block.rows[other]))
        if other == number:
            return first + before, len(block.rows[number])
        first += before + of_rows
    raise setting_error("number", number, f"an op of the block, one of {block.ops}")


def flip_flop_values(program: Program, block: PlannedBlock) -> int:
    """Return the number of values of all flip-flops of a block, the rank that the projection to Delta needs."""
    outputs = [program.ops[i].output for i in block.ops if program.ops[i].kind == "flip-flop"]
    return sum(program.fields[output].size for output in outputs)


def count_parameters(program: Program, layout: ModelPlan) -> int:
    """Return the number of parameters of the model, including the learned initial state."""
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
