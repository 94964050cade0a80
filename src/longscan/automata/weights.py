"""Construction of the weights of a `SequenceModel` from a plan.

Every field has norm 0 before it is written and 1 after, so the RMSNorm of every block divides by a constant that its gain
cancels. A row of a table is a conjunction of literals, each 0 if it is true and at most -1 if it is false; two channels compute
SiLU(K (s + 5/16)) - SiLU(K (s + 3/16)) of their sum s, which is 16 for s = 0 and below 1e-30 for s <= -1, so small errors of the
input have no effect. A literal of a one-hot field is its coordinate minus 1, that of a counter, c = a modulo q, is
(cos(phase - 2 pi a / q) - 1) / (1 - cos(2 pi / q)).

Lookups: rows are added directly to the output (skip 1, state 0), a delayed copy uses the convolution's older tap.
Counters (AUSSM): two channels of a state that starts at 1, has no input and rotates by the row's angle; C reads cosine and sine.
Flip-flops (S6): a channel for each value, A = -1. Delta is 0 without a write, so the state does not change by a bit; a write of
the channel's value has Delta 64 and writes 2, that of another value has Delta 32 and writes 1. All constants are dyadic.
"""

import math
from typing import Any, Literal

import numpy as np
import torch

from longscan._errors import setting_error
from longscan.automata.layout import ModelPlan, PlannedBlock, TableRow, flip_flop_values, inner_width
from longscan.automata.program import HOLD, Op, Program
from longscan.blocks.residual import EPSILON
from longscan.models import SequenceModel
from longscan.ops.dispatch import Backend

SHARPNESS = 128.0  # K
UPPER_THRESHOLD, LOWER_THRESHOLD = 5 / 16, 3 / 16
ROW_OUTPUT = SHARPNESS * (UPPER_THRESHOLD - LOWER_THRESHOLD)  # output of a true row: 16
GATE = 32.0  # SiLU(32) = 32 in float32 and float64
DT_OFF = -128.0  # softplus(-128) = 0 in float32
DT_WRITE = 32.0  # Delta of a write; twice that for the value itself
MAGNITUDE_OFF = -200.0  # raw magnitude of a coefficient that is 0

Phase = Literal["grid", "float"]
Arrays = dict[str, np.ndarray]


def build_model(
    program: Program, plan: ModelPlan, accept: frozenset[int], *, phase: Phase, dtype: torch.dtype, backend: Backend
) -> SequenceModel:
    """Build the model of a plan, whose outputs at every step are (reject, accept), one of which is much larger."""
    widths = [inner_width(program, block, plan.d_model) for block in plan.blocks]
    entries = [
        _block_entry(program, block, width // plan.d_model, phase) for block, width in zip(plan.blocks, widths, strict=True)
    ]
    with torch.random.fork_rng(devices=[]):  # the initial weights, which are replaced, must not use the caller's random numbers
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


def weight_arrays(program: Program, plan: ModelPlan, accept: frozenset[int]) -> Arrays:
    """Return the weights by their names in the model."""
    arrays, start, written = _encoder_and_head(program, plan, accept), [], 1
    for number, block in enumerate(plan.blocks):
        builder = _BlockWeights(program, plan, block, inner_width(program, block, plan.d_model))
        arrays[f"blocks.{number}.norm.weight"] = _norm_gain(plan, written)
        arrays |= {f"blocks.{number}.block.{name}": value for name, value in builder.arrays.items()}
        start += [builder.conv_start, builder.ssm_start]
        outputs = [program.ops[i].output for i in block.ops]
        written += len(outputs) + sum(output in program.delayed for output in outputs)
    arrays["norm.weight"] = _norm_gain(plan, written)
    return arrays | {f"start.{i}": value for i, value in enumerate(start)}


def _norm_gain(plan: ModelPlan, fields: int) -> np.ndarray:
    """Return the RMSNorm's gain that cancels its division, for `fields` fields of norm 1 and the constant."""
    return np.full(plan.d_model, math.sqrt((plan.constant**2 + fields) / plan.d_model + EPSILON))


def _encoder_and_head(program: Program, plan: ModelPlan, accept: frozenset[int]) -> Arrays:
    """Return the weights of the encoder and the head."""
    letters = program.fields[0].size
    encoder = np.zeros((letters, plan.d_model))
    encoder[:, plan.constant_position] = plan.constant
    encoder[np.arange(letters), plan.offsets[0] + np.arange(letters)] = 1
    head = np.zeros((2, plan.d_model))
    last = program.levels[-1]
    for number, mask in enumerate(last.sets):
        position = plan.constant_position if last.field is None else plan.offsets[last.field] + number
        head[int(mask.bit_length() - 1 in accept), position] = 1
    return {"encoder.weight": encoder, "head.weight": head}


def _block_entry(program: Program, block: PlannedBlock, expand: int, phase: Phase) -> dict[str, Any]:
    """Return a block as an entry of the model's list of blocks."""
    options: dict[str, Any] = {"expand": expand, "d_conv": 2, "d_state": 1}
    if block.letter == "m":
        return {"layer": "s6", "block": "mamba", "options": options | {"dt_rank": max(1, flip_flop_values(program, block))}}
    moduli = [program.fields[program.ops[i].output].size for i in block.ops if program.ops[i].kind == "counter"]
    options |= {"activation": "silu", "dt_rank": 1, "dt_bias_twice": False, "phase_scale": "one", "shared": False}
    options["phase_grid"] = math.lcm(2, *moduli) if phase == "grid" else None
    return {"layer": "aussm", "block": "aussm", "options": options}


class _BlockWeights:
    """Builds the arrays of one block."""

    def __init__(self, program: Program, plan: ModelPlan, block: PlannedBlock, width: int) -> None:
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
            self.arrays["layer.B"][..., 0] = self.arrays["layer.C"][..., 0] = MAGNITUDE_OFF
        else:
            self.arrays["layer.dt_bias"][:] = DT_OFF
            # B = 1/1024 from the constant channel, times x = 32
            self.arrays["layer.x_proj"][rank, 0] = 1 / (GATE * GATE * DT_WRITE)
            self.arrays["layer.x_proj"][rank + 1, 0] = 1 / GATE  # C = 1
        self.used, self.rank_used = 0, 0
        self.constant = self._new_channel(skip=True)
        self.arrays["conv_bias"][self.constant] = GATE
        add = {"lookup": self._add_lookup, "counter": self._add_counter, "flip-flop": self._add_flip_flop}
        for number in block.ops:
            op = program.ops[number]
            add[op.kind](op, block.rows[number])

    def _new_channel(self, *, skip: bool) -> int:
        """Add a channel with an open gate and return its number. skip: whether the layer adds its input to its output."""
        channel, self.used = self.used, self.used + 1
        width = len(self.arrays["conv_bias"])
        self.arrays["in_proj.weight"][width + channel, self.plan.constant_position] = GATE / self.plan.constant
        self.arrays["layer.D"][channel] = float(skip)
        return channel

    def _add_row(self, row: TableRow, *, delayed: bool = False, holds_at_start: bool = False) -> int:
        """Add the two channels of a row and return the first."""
        first = self._new_channel(skip=True)
        self._new_channel(skip=True)
        weights, offset = np.zeros(self.plan.d_model), 0.0
        for wire, values in row.literals:
            position, f = self.plan.position(wire), self.program.fields[wire.field]
            if f.is_counter:
                gap, angle = 1 - math.cos(2 * math.pi / f.size), 2 * math.pi * values[0] / f.size
                weights[position : position + 2] += SHARPNESS / gap * np.array([math.cos(angle), math.sin(angle)])
                offset -= SHARPNESS / gap
            else:
                weights[position + np.array(values)] = SHARPNESS
                offset -= SHARPNESS
        for channel, threshold in ((first, UPPER_THRESHOLD), (first + 1, LOWER_THRESHOLD)):
            self.arrays["in_proj.weight"][channel] = weights
            self.arrays["conv_bias"][channel] = offset + SHARPNESS * threshold
            if delayed:
                self.arrays["conv_weight"][channel] = (1, 0)
                self.conv_start[channel] = -offset if holds_at_start else 0
        return first

    def _add_lookup(self, op: Op, rows: tuple[TableRow, ...]) -> None:
        out = self.arrays["out_proj.weight"]
        copies = [(self.plan.offsets[op.output], False)]
        if op.output in self.plan.delayed:
            copies.append((self.plan.delayed[op.output], True))
        for position, delayed in copies:
            initial = self.program.fields[op.output].initial
            first = next((row for row in rows if row.value == initial), None) if initial != op.default else None
            out[position + op.default, self.constant] += 1 / GATE**2
            for row in rows:
                channel = self._add_row(row, delayed=delayed, holds_at_start=row is first)
                for sign, c in ((1, channel), (-1, channel + 1)):
                    out[position + row.value, c] += sign / (ROW_OUTPUT * GATE)
                    out[position + op.default, c] -= sign / (ROW_OUTPUT * GATE)

    def _add_counter(self, op: Op, rows: tuple[TableRow, ...]) -> None:
        size, position = self.program.fields[op.output].size, self.plan.offsets[op.output]
        channels = [self._new_channel(skip=False) for _ in range(2)]
        angle_step = 2 * math.pi / size
        for channel, phase in zip(channels, (0.0, -math.pi / 2), strict=True):
            self.arrays["layer.C"][channel, 0] = (math.log(math.e - 1), phase)
            self.ssm_start[channel, 0, 0] = 1
        for row in rows:
            balanced = row.value if 2 * row.value <= size else row.value - size
            first = self._add_row(row)
            for channel in channels:
                self.arrays["layer.angle_proj"][channel, 0, first] = angle_step * balanced / ROW_OUTPUT
                self.arrays["layer.angle_proj"][channel, 0, first + 1] = -angle_step * balanced / ROW_OUTPUT
        for i, channel in enumerate(channels):
            self.arrays["out_proj.weight"][position + i, channel] = 1 / GATE

    def _add_flip_flop(self, op: Op, rows: tuple[TableRow, ...]) -> None:
        if op.default != HOLD:
            raise setting_error("default", op.default, f"HOLD, {HOLD}, in the table of a flip-flop")
        size, position = self.program.fields[op.output].size, self.plan.offsets[op.output]
        channels = [self._new_channel(skip=False) for _ in range(size)]
        signals = range(self.rank_used, self.rank_used + size)
        self.rank_used += size
        for row in rows:
            first = self._add_row(row)
            self.arrays["layer.x_proj"][signals[row.value], first] = 1 / ROW_OUTPUT
            self.arrays["layer.x_proj"][signals[row.value], first + 1] = -1 / ROW_OUTPUT
        for value, channel in enumerate(channels):
            self.arrays["conv_bias"][channel] = GATE
            self.arrays["layer.dt_proj"][channel, signals.start : signals.stop] = DT_WRITE - DT_OFF
            self.arrays["layer.dt_proj"][channel, signals[value]] += DT_WRITE
            self.arrays["out_proj.weight"][position + value, channel] = 1 / GATE
            self.arrays["out_proj.weight"][position + value, self.constant] = -1 / GATE**2
            self.ssm_start[channel] = 2 if value == self.program.fields[op.output].initial else 1
