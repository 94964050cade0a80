"""From a plan to the weights of a `SequenceModel`.

Every field has norm 0 before it is written and 1 after, so the RMSNorm of every block divides by a constant that its gain gives
back. A row of a table is a conjunction of literals, each 0 where it holds and at most -1 where it does not; their sum s goes
through two channels, SiLU(K (s + 5/16)) - SiLU(K (s + 3/16)), which is 16 for s = 0 and below 1e-30 for s <= -1: errors of the
input do not pass. A literal of a one-hot field is its coordinate minus 1, that of a counter, c = a modulo q, is
(cos(phase - 2 pi a / q) - 1) / (1 - cos(2 pi / q)).

Lookups: rows go straight to the output (skip 1, state 0), a delayed copy takes the convolution's older tap.
Counters (AUSSM): two channels of a state that starts at 1, is never written and turns by the row's angle; C reads cosine and
sine. Flip-flops (S6): a channel for each value, A = -1. Delta is 0 where nothing is written, which keeps the state to the last
bit; 64 writes 2 where the channel's own value is written, 32 writes 1 elsewhere. All constants are dyadic.
"""

import math
from typing import Any, Literal

import numpy as np
import torch

from longscan.automata.layout import Plan, PlannedBlock, Row, flip_flop_values, inner_width
from longscan.automata.program import HOLD, Op, Program
from longscan.blocks.residual import EPSILON
from longscan.models import SequenceModel

SHARPNESS = 128.0  # K
ON, HALF = 5 / 16, 3 / 16
STEP = SHARPNESS * (ON - HALF)  # what a row that holds gives: 16
GATE = 32.0  # SiLU(32) = 32 in float32 and float64
NEVER = -128.0  # softplus(-128) = 0 in float32
WRITE = 32.0  # Delta of a write; twice that for the value itself
SMALL = -200.0  # raw magnitude of a coefficient that is 0

Phase = Literal["grid", "float"]
Arrays = dict[str, np.ndarray]


def build_model(
    program: Program, plan: Plan, accept: frozenset[int], *, phase: Phase, dtype: torch.dtype, backend: str
) -> SequenceModel:
    """The model of a plan: outputs (reject, accept) at every step, one of which is larger by far."""
    entries = [_entry(program, block, inner_width(program, block, plan.d_model) // plan.d_model, phase) for block in plan.blocks]
    with torch.random.fork_rng(devices=[]):  # the weights that are replaced must not cost the caller random numbers
        model = SequenceModel(
            entries,
            d_model=plan.d_model,
            d_output=2,
            vocab_size=program.fields[0].size,
            pooling="none",
            initial_state="learned",
            backend=backend,
        )
    arrays = weight_arrays(program, plan, accept)
    for name, parameter in model.named_parameters():
        parameter.data = torch.from_numpy(arrays[name]).to(dtype)
    return model.eval()


def weight_arrays(program: Program, plan: Plan, accept: frozenset[int]) -> Arrays:
    """The weights by their names in the model."""
    arrays, start, written = _stream(program, plan, accept), [], 1
    for number, block in enumerate(plan.blocks):
        builder = _Block(program, plan, block, inner_width(program, block, plan.d_model))
        arrays[f"blocks.{number}.norm.weight"] = _gain(plan, written)
        arrays |= {f"blocks.{number}.block.{name}": value for name, value in builder.arrays.items()}
        start += [builder.conv_start, builder.ssm_start]
        outputs = [program.ops[i].output for i in block.ops]
        written += len(outputs) + sum(output in program.delayed for output in outputs)
    arrays["norm.weight"] = _gain(plan, written)
    return arrays | {f"start.{i}": value for i, value in enumerate(start)}


def _gain(plan: Plan, fields: int) -> np.ndarray:
    """The RMSNorm's gain that gives back what it divides by, with `fields` fields of norm 1 beside the constant."""
    return np.full(plan.d_model, math.sqrt((plan.constant**2 + fields) / plan.d_model + EPSILON))


def _stream(program: Program, plan: Plan, accept: frozenset[int]) -> Arrays:
    """The encoder and the head."""
    letters = program.fields[0].size
    encoder = np.zeros((letters, plan.d_model))
    encoder[:, plan.dummy] = plan.constant
    encoder[np.arange(letters), plan.offsets[0] + np.arange(letters)] = 1
    head = np.zeros((2, plan.d_model))
    last = program.levels[-1]
    for number, mask in enumerate(last.sets):
        place = plan.dummy if last.field is None else plan.offsets[last.field] + number
        head[int(mask.bit_length() - 1 in accept), place] = 1
    return {"encoder.weight": encoder, "head.weight": head}


def _entry(program: Program, block: PlannedBlock, expand: int, phase: Phase) -> dict[str, Any]:
    """The block as an entry of the model's list."""
    options: dict[str, Any] = {"expand": expand, "d_conv": 2, "d_state": 1}
    if block.letter == "m":
        return {"layer": "s6", "block": "mamba", "options": options | {"dt_rank": max(1, flip_flop_values(program, block))}}
    moduli = [program.fields[program.ops[i].output].size for i in block.ops if program.ops[i].kind == "counter"]
    options |= {"activation": "silu", "dt_rank": 1, "dt_bias_twice": False, "phase_scale": "one", "shared": False}
    options["phase_grid"] = math.lcm(2, *moduli) if phase == "grid" else None
    return {"layer": "aussm", "block": "aussm", "options": options}


class _Block:
    """Fills in the arrays of one block."""

    def __init__(self, program: Program, plan: Plan, block: PlannedBlock, width: int) -> None:
        self.program, self.plan, self.letter = program, plan, block.letter
        d, rank = plan.d_model, max(1, flip_flop_values(program, block)) if block.letter == "m" else 1
        shapes: dict[str, tuple[int, ...]] = {
            "in_proj.weight": (2 * width, d),
            "out_proj.weight": (d, width),
            "conv_weight": (width, 2),
            "conv_bias": (width,),
            "layer.dt_proj": (width, rank),
            "layer.dt_bias": (width,),
            "layer.D": (width,),
        }
        if block.letter == "a":
            shapes |= {"layer.x_proj": (rank, width), "layer.angle_proj": (width, 1, width)}
            shapes |= {"layer.angle_bias": (width, 1), "layer.B": (width, 1, 2), "layer.C": (width, 1, 2)}
        else:
            shapes |= {"layer.x_proj": (rank + 2, width), "layer.A_log": (width, 1)}
        self.arrays: Arrays = {name: np.zeros(shape) for name, shape in shapes.items()}
        self.conv_start = np.zeros((width, 1))
        self.ssm_start = np.zeros((width, 1, 2) if block.letter == "a" else (width, 1))
        self.arrays["conv_weight"][:, 1] = 1
        if block.letter == "a":
            self.arrays["layer.B"][..., 0] = self.arrays["layer.C"][..., 0] = SMALL
        else:
            self.arrays["layer.dt_bias"][:] = NEVER
            self.arrays["layer.x_proj"][rank, 0] = 1 / (GATE * GATE * WRITE)  # B = 1/1024 from the constant channel, times x = 32
            self.arrays["layer.x_proj"][rank + 1, 0] = 1 / GATE  # C = 1
        self.used, self.rank_used = 0, 0
        self.constant = self._channel(skip=True)
        self.arrays["conv_bias"][self.constant] = GATE
        for number in block.ops:
            op = program.ops[number]
            {"lookup": self._lookup, "counter": self._counter, "flip-flop": self._flip_flop}[op.kind](op, block.rows[number])

    def _channel(self, *, skip: bool) -> int:
        """A new channel with its gate open."""
        channel, self.used = self.used, self.used + 1
        width = len(self.arrays["conv_bias"])
        self.arrays["in_proj.weight"][width + channel, self.plan.dummy] = GATE / self.plan.constant
        self.arrays["layer.D"][channel] = float(skip)
        return channel

    def _row(self, row: Row, *, delayed: bool = False, holds_at_start: bool = False) -> int:
        """The first of a row's two channels."""
        first = self._channel(skip=True)
        self._channel(skip=True)
        weights, offset = np.zeros(self.plan.d_model), 0.0
        for wire, values in row.literals:
            place, f = self.plan.place(wire), self.program.fields[wire.field]
            if f.is_counter:
                gap, angle = 1 - math.cos(2 * math.pi / f.size), 2 * math.pi * values[0] / f.size
                weights[place : place + 2] += SHARPNESS / gap * np.array([math.cos(angle), math.sin(angle)])
                offset -= SHARPNESS / gap
            else:
                weights[place + np.array(values)] = SHARPNESS
                offset -= SHARPNESS
        for channel, threshold in ((first, ON), (first + 1, HALF)):
            self.arrays["in_proj.weight"][channel] = weights
            self.arrays["conv_bias"][channel] = offset + SHARPNESS * threshold
            if delayed:
                self.arrays["conv_weight"][channel] = (1, 0)
                self.conv_start[channel] = -offset if holds_at_start else 0
        return first

    def _lookup(self, op: Op, rows: tuple[Row, ...]) -> None:
        out = self.arrays["out_proj.weight"]
        copies = [(self.plan.offsets[op.output], False)]
        if op.output in self.plan.delayed:
            copies.append((self.plan.delayed[op.output], True))
        for place, delayed in copies:
            initial = self.program.fields[op.output].initial
            first = next((row for row in rows if row.value == initial), None) if initial != op.default else None
            out[place + op.default, self.constant] += 1 / GATE**2
            for row in rows:
                channel = self._row(row, delayed=delayed, holds_at_start=row is first)
                for sign, c in ((1, channel), (-1, channel + 1)):
                    out[place + row.value, c] += sign / (STEP * GATE)
                    out[place + op.default, c] -= sign / (STEP * GATE)

    def _counter(self, op: Op, rows: tuple[Row, ...]) -> None:
        size, place = self.program.fields[op.output].size, self.plan.offsets[op.output]
        channels = [self._channel(skip=False) for _ in range(2)]
        turn = 2 * math.pi / size
        for channel, phase in zip(channels, (0.0, -math.pi / 2), strict=True):
            self.arrays["layer.C"][channel, 0] = (math.log(math.e - 1), phase)
            self.ssm_start[channel, 0, 0] = 1
        for row in rows:
            balanced = row.value if 2 * row.value <= size else row.value - size
            first = self._row(row)
            for channel in channels:
                self.arrays["layer.angle_proj"][channel, 0, first] = turn * balanced / STEP
                self.arrays["layer.angle_proj"][channel, 0, first + 1] = -turn * balanced / STEP
        for i, channel in enumerate(channels):
            self.arrays["out_proj.weight"][place + i, channel] = 1 / GATE

    def _flip_flop(self, op: Op, rows: tuple[Row, ...]) -> None:
        if op.default != HOLD:
            raise ValueError(f"program: a flip-flop's table has the default {op.default}, expected to hold")
        size, place = self.program.fields[op.output].size, self.plan.offsets[op.output]
        channels = [self._channel(skip=False) for _ in range(size)]
        signals = range(self.rank_used, self.rank_used + size)
        self.rank_used += size
        for row in rows:
            first = self._row(row)
            self.arrays["layer.x_proj"][signals[row.value], first] = 1 / STEP
            self.arrays["layer.x_proj"][signals[row.value], first + 1] = -1 / STEP
        for value, channel in enumerate(channels):
            self.arrays["conv_bias"][channel] = GATE
            self.arrays["layer.dt_proj"][channel, signals.start : signals.stop] = WRITE - NEVER
            self.arrays["layer.dt_proj"][channel, signals[value]] += WRITE
            self.arrays["out_proj.weight"][place + value, channel] = 1 / GATE
            self.arrays["out_proj.weight"][place + value, self.constant] = -1 / GATE**2
            self.ssm_start[channel] = 2 if value == self.program.fields[op.output].initial else 1
