"""Weights against tables: every block is run on every row of its finite alphabet, and what it writes is compared with the
program.

The proof of the program (certificate.py) lists the values that the inputs of every op can have. No weight may stand where the
construction has none, so an op depends on its inputs alone. Each block is given streams that hold all of their values, two steps
in a row from the model's own start, so that delayed copies, counters and flip-flops are seen both at the start and later. What is
measured:

    one-hot error   how far a written field is from its one-hot vector or its point on the circle
    margin          how far, in literals, a row's sum is from its threshold -1/4 (0.25 where it holds, 0.75 elsewhere)
    angle error     how far a counter's angle is from its multiple of 2 pi / q

Rows saturate: with a margin above 1/16 they are 16 or 0 up to rounding, so what one block writes does not depend on the small
errors of the blocks before. On a phase grid the angle's error must stay below half a step, and the counter is exact for ever;
otherwise errors add up, and the certified length is what the literals' tolerance leaves room for.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import linear, silu

from longscan.automata.certificate import LocalProof
from longscan.automata.layout import Plan, row_channels
from longscan.automata.program import Op, Program
from longscan.automata.weights import HALF, ON, SHARPNESS, Arrays, weight_arrays
from longscan.layers.state import State
from longscan.models import SequenceModel
from longscan.ops import OPS
from longscan.ops.dispatch import resolve

if TYPE_CHECKING:
    from longscan.blocks.gated import GatedBlock
    from longscan.layers import AUSSM

LEAST_MARGIN = 1 / 16
WORST_ERROR = 1e-2
SLICE = 4096
# Radians that a running phase may lose a step, in float32: two roundings of a sum below 3 pi and of its reduction.
ROUNDING = {"reference": 7e-7, "eager": 2.5e-7, "cpu": 5e-7, "triton": 7e-7}
USED = ("linear_scan", "selective_scan", "short_conv", "unitary_scan")  # ops


@dataclass(frozen=True)
class BlockCheck:
    """What was measured in one block; `allowed_angle` is half a step of its phase grid, None without one."""

    letter: str
    cases: int
    error: float
    margin: float
    angle_error: float
    allowed_angle: float | None


@dataclass(frozen=True)
class Certificate:
    """holds: the program is proved and the weights do what its tables say. safe_length: the longest word for which that gives
    right answers, None for every length. dtype, backend: what this is about; the backend is that which runs, where the model's is
    "auto". problems: what fails, in words.
    """

    holds: bool
    safe_length: int | None
    dtype: str
    backend: str
    cases: int
    blocks: tuple[BlockCheck, ...]
    problems: tuple[str, ...] = field(default=())

    @property
    def margin(self) -> float:
        """The least margin of all blocks."""
        return min((block.margin for block in self.blocks), default=math.inf)

    @property
    def error(self) -> float:
        """The largest error of a written field."""
        return max((block.error for block in self.blocks), default=0.0)

    def __str__(self) -> str:
        if not self.holds:
            return "not certified: " + "; ".join(self.problems)
        length = "words of every length" if self.safe_length is None else f"words of up to {self.safe_length:,} letters"
        return (
            f"certified for {length} in {self.dtype} on the backend {self.backend}: {self.cases} cases of the cascade, "
            f"{sum(block.cases for block in self.blocks)} of the weights, largest error {self.error:.1e}, "
            f"least margin {self.margin:.3f}"
        )


@torch.no_grad()
def inspect_weights(model: SequenceModel, program: Program, plan: Plan, proof: LocalProof, accept: frozenset[int]) -> Certificate:
    """See the top of the file; `proof` comes with the domains of the ops, `accept` are the accepting states."""
    problems = [*proof.problems, *_stray(model, weight_arrays(program, plan, accept)), *_readout(model, program, plan, accept)]
    checks = []
    start = model.initial_state(1)
    for number, planned in enumerate(plan.blocks):
        domain = {i: proof.domains[i] for i in planned.ops if i in proof.domains}
        check, wrong = _Inspector(model, program, plan, number, start.blocks[number]).check(domain)
        checks.append(check)
        problems += [f"block {number}: {text}" for text in wrong]
    dtype = str(model.norm.weight.dtype).removeprefix("torch.")
    weight = model.encoder.weight
    backends = sorted({resolve(op, model.backend, weight, OPS[op].native) for op in USED})
    length = 0 if problems else _safe_length(program, plan, checks, max(map(ROUNDING.__getitem__, backends)), dtype)
    return Certificate(not problems, length, dtype, " and ".join(backends), proof.cases, tuple(checks), tuple(problems))


def _stray(model: SequenceModel, arrays: Arrays) -> list[str]:
    """The parameters that have weights where the construction has none."""
    parameters = dict(model.named_parameters())
    return [
        f"{name} has weights where none belong"
        for name, array in arrays.items()
        if bool((parameters[name].cpu() != 0)[torch.from_numpy(array == 0)].any())
    ]


def _readout(model: SequenceModel, program: Program, plan: Plan, accept: frozenset[int]) -> list[str]:
    """What the last norm and the head answer for every state, the other fields being random."""
    last = program.levels[-1]
    streams = np.zeros((len(last.sets), plan.d_model))
    streams[:, plan.dummy] = plan.constant
    inspector = _Inspector(model, program, plan, len(plan.blocks) - 1, None)
    inspector.written += [program.ops[i].output for i in plan.blocks[-1].ops]
    inspector.fill(streams, {} if last.field is None else {(last.field, False): np.arange(len(last.sets))})
    logits = model.head(model.norm(inspector.tensor(streams))).double().cpu()
    told = logits[:, 1] - logits[:, 0]
    right = torch.tensor([1.0 if mask.bit_length() - 1 in accept else -1.0 for mask in last.sets])
    return [] if bool((told * right > 0.5 * logits.abs().max()).all()) else ["the head does not tell the states apart"]


def _safe_length(program: Program, plan: Plan, checks: list[BlockCheck], rounding: float, dtype: str) -> int | None:
    """The length up to which the phases of all counters stay within the tolerance of the rows that read them."""
    shortest = None
    rounding *= 2.0**-29 if dtype == "float64" else 1
    for planned, check in zip(plan.blocks, checks, strict=True):
        moduli = [program.fields[program.ops[i].output].size for i in planned.ops if program.ops[i].kind == "counter"]
        if not moduli or check.allowed_angle is not None:
            continue
        for q in moduli:
            readers = max((sum(program.fields[w.field].is_counter for w in op.wires) for op in program.ops), default=1)
            gap = 1 - math.cos(2 * math.pi / q)
            room = math.acos(max(-1.0, 1 - (ON - HALF) * gap)) / math.sqrt(max(1, readers))
            length = int(room / (check.angle_error + rounding))
            shortest = length if shortest is None else min(shortest, length)
    return shortest


class _Inspector:
    """Runs one block on streams of our making."""

    def __init__(self, model: SequenceModel, program: Program, plan: Plan, number: int, start: State) -> None:
        self.program, self.plan, self.start = program, plan, start
        self.norm = model.stack[number].norm
        self.block = cast("GatedBlock", model.stack[number].block)
        self.planned = plan.blocks[number]
        self.written = [0, *(program.ops[i].output for block in plan.blocks[:number] for i in block.ops)]
        self.generator = np.random.default_rng(number)

    def tensor(self, stream: np.ndarray) -> Tensor:
        """A stream in the dtype and on the device of the block."""
        return torch.from_numpy(stream).to(self.block.in_proj.weight)

    def check(self, domains: dict[int, np.ndarray]) -> tuple[BlockCheck, list[str]]:
        """Every op on every value of its inputs; what was measured, and what is wrong."""
        error, margin, angle, cases = 0.0, math.inf, 0.0, 0
        problems: list[str] = []
        grid = cast("AUSSM", self.block.layer).phase_grid if self.planned.letter == "a" else None
        for number, domain in domains.items():
            op = self.program.ops[number]
            for values in np.array_split(domain, 1 + len(domain) // SLICE):
                cases += len(values)
                measured = self._run(op, values)
                error, margin, angle = max(error, measured[0]), min(margin, measured[1]), max(angle, measured[2])
            name = self.program.fields[op.output].name
            if not error <= WORST_ERROR:
                problems.append(f"{name} is written with an error of {error:.2g}")
            if not margin >= LEAST_MARGIN:
                problems.append(f"a row of {name} is {margin:.2g} from its threshold, expected at least {LEAST_MARGIN}")
        allowed = None if grid is None else math.pi / grid
        if allowed is not None and not angle < allowed / 2:
            problems.append(f"an angle is wrong by {angle:.2g}, expected less than half of {allowed:.2g}")
        return BlockCheck(self.planned.letter, cases, error, margin, angle, allowed), problems

    def _run(self, op: Op, values: np.ndarray) -> tuple[float, float, float]:
        """Largest error, least margin and largest angle error of one op on values (cases, wires) of its inputs."""
        cases, order = len(values), self.generator.permutation(len(values))
        both = np.stack([values, values[order]], 1)  # (cases, 2 steps, wires)
        stream = self._streams(op, both)
        start = self.start.select_rows(torch.zeros(cases, dtype=torch.int64, device=stream.device))
        normed = self.norm(stream)
        written = self.block(normed, start).double().cpu()
        old, told = self.program.start(cases), []
        for step in range(2):
            now = np.zeros_like(old)
            before = old.copy()
            for i, wire in enumerate(op.wires):
                (before if wire.delayed else now)[:, wire.field] = both[:, step, i]
            self.program.apply(self.program.ops.index(op), before, now)
            old[:, op.output] = now[:, op.output]
            told.append(now[:, op.output])
        expected = np.stack(told, 1)
        error = self._error(written, self.plan.offsets[op.output], op.output, expected)
        if op.output in self.plan.delayed:
            shifted = np.stack([np.full(cases, self.program.fields[op.output].initial), expected[:, 0]], 1)
            error = max(error, self._error(written, self.plan.delayed[op.output], op.output, shifted))
        return error, self._margin(op, normed), self._angle_error(op, normed)

    def _streams(self, op: Op, both: np.ndarray) -> Tensor:
        """Streams (cases, 2, d_model) whose fields hold the given inputs of the op, and random values elsewhere."""
        stream = np.zeros((*both.shape[:2], self.plan.d_model))
        stream[..., self.plan.dummy] = self.plan.constant
        self.fill(stream, {(wire.field, wire.delayed): both[..., i] for i, wire in enumerate(op.wires)})
        return self.tensor(stream)

    def fill(self, stream: np.ndarray, given: Mapping[tuple[int, bool], np.ndarray]) -> None:
        """Write all fields that the blocks before have written into streams (..., d_model): given values, or random ones."""
        for number in self.written:
            for place, delayed in ((self.plan.offsets.get(number), False), (self.plan.delayed.get(number), True)):
                if place is None:
                    continue
                size = self.program.fields[number].size
                drawn = given.get((number, delayed), self.generator.integers(0, size, stream.shape[:-1]))
                stream[..., place : place + self._width(number)] = self._shown(number, drawn)

    def _width(self, number: int) -> int:
        return 2 if self.program.fields[number].is_counter else self.program.fields[number].size

    def _shown(self, number: int, values: np.ndarray) -> np.ndarray:
        """Values (...) of a field as it stands in the stream (..., width)."""
        f = self.program.fields[number]
        if f.is_counter:
            angle = 2 * np.pi * values / f.size
            return np.stack([np.cos(angle), np.sin(angle)], -1)
        return np.eye(f.size)[values]

    def _error(self, written: Tensor, place: int, number: int, expected: np.ndarray) -> float:
        got = written[..., place : place + self._width(number)].numpy()
        return float(np.abs(got - self._shown(number, expected)).max(initial=0.0))

    def _sums(self, normed: Tensor) -> Tensor:
        """The channels' inputs before the convolution, and its bias: with it, K (s + 5/16) or K (s + 3/16) in the rows'
        channels.
        """
        return linear(normed, self.block.in_proj.weight[: self.block.d_inner], self.block.conv_bias)

    def _margin(self, op: Op, normed: Tensor) -> float:
        """The least distance of the sum of a row from -1/4."""
        first, count = row_channels(self.program, self.planned, self.program.ops.index(op))
        if not count:
            return math.inf
        sums = self._sums(normed)[..., first : first + 2 * count : 2].double() / SHARPNESS - ON
        return float((sums + 0.25).abs().min())

    def _angle_error(self, op: Op, normed: Tensor) -> float:
        """How far the angles of a counter are from their multiples of a turn by its length."""
        if op.kind != "counter":
            return 0.0
        layer = cast("AUSSM", self.block.layer)
        channel = int(torch.nonzero(self.block.out_proj.weight[self.plan.offsets[op.output]])[0])
        angle = layer.angles(silu(self._sums(normed)))[..., channel, 0].double()
        turn = 2 * math.pi / self.program.fields[op.output].size
        return float((angle - torch.round(angle / turn) * turn).abs().max())
