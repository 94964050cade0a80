"""Check of a model's weights: every block runs on all values of its inputs, and its output is compared with the program.

The proof of the program (certificate.py) lists the values that the inputs of every op can have. Weights must be zero where the
construction has zeros, so an op depends only on its inputs. Each block runs on streams with all of their values, for two
consecutive steps from the model's initial state, so that delayed copies, counters and flip-flops are measured both at the start
and later. The measurements are

    one-hot error   distance of a written field from its one-hot vector or its point on the circle
    margin          distance, in literals, of a row's sum from its threshold -1/4 (0.25 where the row is true, 0.75 elsewhere)
    angle error     distance of a counter's angle from its multiple of 2 pi / q

Rows saturate: with a margin above 1/16 they are 16 or 0 up to rounding, so the output of a block does not depend on small errors
of the blocks before it. On a phase grid the angle error must stay below half a step, and the counter is exact for every length;
otherwise errors add up, and the certified length follows from the tolerance of the literals.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import linear, silu

from longscan.automata.certificate import ProgramProof
from longscan.automata.layout import ModelPlan, row_channels
from longscan.automata.program import Op, Program
from longscan.automata.weights import LOWER_THRESHOLD, SHARPNESS, UPPER_THRESHOLD, Arrays, weight_arrays
from longscan.layers.state import State
from longscan.models import SequenceModel
from longscan.ops import OPS
from longscan.ops.dispatch import resolve

if TYPE_CHECKING:
    from longscan.blocks.gated import GatedBlock
    from longscan.layers import AUSSM

MIN_MARGIN = 1 / 16
MAX_ERROR = 1e-2
BATCH_SIZE = 4096
# Largest error of a phase per step in radians, in float32: two roundings of a sum below 3 pi and of its reduction.
ROUNDING = {"reference": 7e-7, "eager": 2.5e-7, "cpu": 5e-7, "triton": 7e-7}
USED_OPS = ("linear_scan", "selective_scan", "short_conv", "unitary_scan")  # ops of the blocks of compiled models


@dataclass(frozen=True)
class BlockCheck:
    """The measurements in one block; `allowed_angle` is half a step of its phase grid, None without a grid."""

    letter: str
    cases: int
    error: float
    margin: float
    angle_error: float
    allowed_angle: float | None


@dataclass(frozen=True)
class Certificate:
    """The result of `CompiledAutomaton.verify`.

    is_certified: the program is proved and the weights compute its tables. safe_length: the longest word with guaranteed correct
    answers, None for every length. dtype, backend: for which this is valid; the backend is the resolved one. cases: of the proof.
    problems: descriptions of failed checks.
    """

    is_certified: bool
    safe_length: int | None
    dtype: str
    backend: str
    cases: int
    blocks: tuple[BlockCheck, ...]
    problems: tuple[str, ...] = field(default=())

    @property
    def margin(self) -> float:
        """The smallest margin of all blocks."""
        return min((block.margin for block in self.blocks), default=math.inf)

    @property
    def error(self) -> float:
        """The largest error of a written field."""
        return max((block.error for block in self.blocks), default=0.0)

    def __str__(self) -> str:
        if not self.is_certified:
            return "not certified: " + "; ".join(self.problems)
        length = "words of every length" if self.safe_length is None else f"words of up to {self.safe_length:,} letters"
        return (
            f"certified for {length} in {self.dtype} on the backend {self.backend}: {self.cases} cases of the cascade, "
            f"{sum(block.cases for block in self.blocks)} of the weights, largest error {self.error:.1e}, "
            f"least margin {self.margin:.3f}"
        )


@torch.no_grad()
def inspect_weights(
    model: SequenceModel, program: Program, plan: ModelPlan, proof: ProgramProof, accept: frozenset[int]
) -> Certificate:
    """Check a model's weights, see this module's docstring. proof: with the domains of the ops; accept: accepting states."""
    problems = [*proof.problems, *_unexpected_weights(model, weight_arrays(program, plan, accept))]
    problems += _check_head(model, program, plan, accept)
    checks = []
    start = model.initial_state(1)
    for number, planned in enumerate(plan.blocks):
        domain = {i: proof.domains[i] for i in planned.ops if i in proof.domains}
        check, wrong = _BlockInspector(model, program, plan, number, start.blocks[number]).check(domain)
        checks.append(check)
        problems += [f"block {number}: {text}" for text in wrong]
    dtype = str(model.norm.weight.dtype).removeprefix("torch.")
    weight = model.encoder.weight
    backends = sorted({resolve(op, model.backend, weight, OPS[op].native) for op in USED_OPS})
    length = 0 if problems else _safe_length(program, plan, checks, max(map(ROUNDING.__getitem__, backends)), dtype)
    return Certificate(not problems, length, dtype, " and ".join(backends), proof.cases, tuple(checks), tuple(problems))


def _unexpected_weights(model: SequenceModel, arrays: Arrays) -> list[str]:
    """Return messages for the parameters with weights where the construction has zeros."""
    parameters = dict(model.named_parameters())
    return [
        f"{name} has weights where none belong"
        for name, array in arrays.items()
        if bool((parameters[name].cpu() != 0)[torch.from_numpy(array == 0)].any())
    ]


def _check_head(model: SequenceModel, program: Program, plan: ModelPlan, accept: frozenset[int]) -> list[str]:
    """Check the answers of the last norm and the head for every state, with random values in the other fields."""
    last = program.levels[-1]
    streams = np.zeros((len(last.sets), plan.d_model))
    streams[:, plan.constant_position] = plan.constant
    inspector = _BlockInspector(model, program, plan, len(plan.blocks) - 1, None)
    inspector.written += [program.ops[i].output for i in plan.blocks[-1].ops]
    inspector.fill(streams, {} if last.field is None else {(last.field, False): np.arange(len(last.sets))})
    logits = model.head(model.norm(inspector.tensor(streams))).double().cpu()
    differences = logits[:, 1] - logits[:, 0]
    signs = torch.tensor([1.0 if mask.bit_length() - 1 in accept else -1.0 for mask in last.sets])
    separated = bool((differences * signs > 0.5 * logits.abs().max()).all())
    return [] if separated else ["the head does not tell the states apart"]


def _safe_length(program: Program, plan: ModelPlan, checks: list[BlockCheck], rounding: float, dtype: str) -> int | None:
    """Return the length up to which the phases of all counters stay within the tolerance of the rows that read them."""
    shortest = None
    rounding *= 2.0**-29 if dtype == "float64" else 1
    for planned, check in zip(plan.blocks, checks, strict=True):
        moduli = [program.fields[program.ops[i].output].size for i in planned.ops if program.ops[i].kind == "counter"]
        if not moduli or check.allowed_angle is not None:
            continue
        for q in moduli:
            readers = max((sum(program.fields[w.field].is_counter for w in op.wires) for op in program.ops), default=1)
            gap = 1 - math.cos(2 * math.pi / q)
            tolerance = math.acos(max(-1.0, 1 - (UPPER_THRESHOLD - LOWER_THRESHOLD) * gap)) / math.sqrt(max(1, readers))
            length = int(tolerance / (check.angle_error + rounding))
            shortest = length if shortest is None else min(shortest, length)
    return shortest


class _BlockInspector:
    """Runs one block on constructed streams and measures its output."""

    def __init__(self, model: SequenceModel, program: Program, plan: ModelPlan, number: int, start: State) -> None:
        self.program, self.plan, self.start = program, plan, start
        self.norm = model.stack[number].norm
        self.block = cast("GatedBlock", model.stack[number].block)
        self.planned = plan.blocks[number]
        self.written = [0, *(program.ops[i].output for block in plan.blocks[:number] for i in block.ops)]
        self.generator = np.random.default_rng(number)

    def tensor(self, stream: np.ndarray) -> Tensor:
        """Return a stream in the dtype and on the device of the block."""
        return torch.from_numpy(stream).to(self.block.in_proj.weight)

    def check(self, domains: dict[int, np.ndarray]) -> tuple[BlockCheck, list[str]]:
        """Run every op on every value of its inputs; return the measurements and the problems."""
        error, margin, angle, cases = 0.0, math.inf, 0.0, 0
        problems: list[str] = []
        grid = cast("AUSSM", self.block.layer).phase_grid if self.planned.letter == "a" else None
        for number, domain in domains.items():
            op = self.program.ops[number]
            for values in np.array_split(domain, 1 + len(domain) // BATCH_SIZE):
                cases += len(values)
                measured = self._run(op, values)
                error, margin, angle = max(error, measured[0]), min(margin, measured[1]), max(angle, measured[2])
            name = self.program.fields[op.output].name
            if not error <= MAX_ERROR:
                problems.append(f"{name} is written with an error of {error:.2g}")
            if not margin >= MIN_MARGIN:
                problems.append(f"a row of {name} must be at least {MIN_MARGIN} from its threshold, got {margin:.2g}")
        allowed = None if grid is None else math.pi / grid
        if allowed is not None and not angle < allowed / 2:
            problems.append(f"the error of an angle must be less than half of {allowed:.2g}, got {angle:.2g}")
        return BlockCheck(self.planned.letter, cases, error, margin, angle, allowed), problems

    def _run(self, op: Op, values: np.ndarray) -> tuple[float, float, float]:
        """Return the largest error, the smallest margin and the largest angle error of one op on values (cases, wires)."""
        cases, order = len(values), self.generator.permutation(len(values))
        both = np.stack([values, values[order]], 1)  # (cases, 2 steps, wires)
        stream = self._streams(op, both)
        start = self.start.select_rows(torch.zeros(cases, dtype=torch.int64, device=stream.device))
        normed = self.norm(stream)
        written = self.block(normed, start).double().cpu()
        old, outputs = self.program.start(cases), []
        for step in range(2):
            new = np.zeros_like(old)
            before = old.copy()
            for i, wire in enumerate(op.wires):
                (before if wire.delayed else new)[:, wire.field] = both[:, step, i]
            self.program.apply(self.program.ops.index(op), before, new)
            old[:, op.output] = new[:, op.output]
            outputs.append(new[:, op.output])
        expected = np.stack(outputs, 1)
        error = self._error(written, self.plan.offsets[op.output], op.output, expected)
        if op.output in self.plan.delayed:
            shifted = np.stack([np.full(cases, self.program.fields[op.output].initial), expected[:, 0]], 1)
            error = max(error, self._error(written, self.plan.delayed[op.output], op.output, shifted))
        return error, self._margin(op, normed), self._angle_error(op, normed)

    def _streams(self, op: Op, both: np.ndarray) -> Tensor:
        """Return streams (cases, 2, d_model) with the given inputs of the op, and random values in the other fields."""
        stream = np.zeros((*both.shape[:2], self.plan.d_model))
        stream[..., self.plan.constant_position] = self.plan.constant
        self.fill(stream, {(wire.field, wire.delayed): both[..., i] for i, wire in enumerate(op.wires)})
        return self.tensor(stream)

    def fill(self, stream: np.ndarray, given: Mapping[tuple[int, bool], np.ndarray]) -> None:
        """Fill the fields that earlier blocks write in streams (..., d_model) with the given values, or with random ones."""
        for number in self.written:
            for position, delayed in ((self.plan.offsets.get(number), False), (self.plan.delayed.get(number), True)):
                if position is None:
                    continue
                size = self.program.fields[number].size
                values = given.get((number, delayed), self.generator.integers(0, size, stream.shape[:-1]))
                stream[..., position : position + self._width(number)] = self._encode_values(number, values)

    def _width(self, number: int) -> int:
        return 2 if self.program.fields[number].is_counter else self.program.fields[number].size

    def _encode_values(self, number: int, values: np.ndarray) -> np.ndarray:
        """Return the representation (..., width) in the stream of values (...) of a field."""
        f = self.program.fields[number]
        if f.is_counter:
            angle = 2 * np.pi * values / f.size
            return np.stack([np.cos(angle), np.sin(angle)], -1)
        return np.eye(f.size)[values]

    def _error(self, written: Tensor, position: int, number: int, expected: np.ndarray) -> float:
        """Return the largest difference between a written field and its expected values."""
        actual = written[..., position : position + self._width(number)].numpy()
        return float(np.abs(actual - self._encode_values(number, expected)).max(initial=0.0))

    def _row_sums(self, normed: Tensor) -> Tensor:
        """Return the inputs of the channels with the convolution's bias: K (s + 5/16) or K (s + 3/16) in the channels of rows."""
        return linear(normed, self.block.in_proj.weight[: self.block.d_inner], self.block.conv_bias)

    def _margin(self, op: Op, normed: Tensor) -> float:
        """Return the smallest distance of the sum of a row from -1/4."""
        first, count = row_channels(self.program, self.planned, self.program.ops.index(op))
        if not count:
            return math.inf
        sums = self._row_sums(normed)[..., first : first + 2 * count : 2].double() / SHARPNESS - UPPER_THRESHOLD
        return float((sums + 0.25).abs().min())

    def _angle_error(self, op: Op, normed: Tensor) -> float:
        """Return the largest distance of a counter's angles from multiples of 2 pi / size."""
        if op.kind != "counter":
            return 0.0
        layer = cast("AUSSM", self.block.layer)
        channel = int(torch.nonzero(self.block.out_proj.weight[self.plan.offsets[op.output]])[0])
        angle = layer.angles(silu(self._row_sums(normed)))[..., channel, 0].double()
        angle_step = 2 * math.pi / self.program.fields[op.output].size
        return float((angle - torch.round(angle / angle_step) * angle_step).abs().max())
