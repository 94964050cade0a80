"""Generated calls of every op for the contract tests, and the backends on which they run."""

import math
import os
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any
from unittest.mock import patch

import torch
from hypothesis import strategies as st
from torch import Tensor

from longscan.ops import OPS
from longscan.ops._examples import ARGUMENTS, example_inputs
from longscan.ops.dispatch import NATIVE, unsupported_reason
from longscan.ops.unitary_scan import reference as unitary_reference
from tolerances import perturb

LENGTHS = [0, 1, 2, 3, 63, 65] * 4 + [1000]
if os.environ.get("TRITON_INTERPRET") == "1":  # a thousand steps take the interpreter seconds
    LENGTHS.remove(1000)
PRECISIONS = [torch.float32] * 3 + [torch.float64, torch.bfloat16, torch.float16]

DEVICE = torch.device(os.environ.get("LONGSCAN_DEVICE", "cpu"))  # of the Triton kernels; all else runs on the CPU
ONLY_BACKEND = os.environ.get("LONGSCAN_BACKEND")  # the only backend to test, if it is set
# The argument whose shape and dtype the output has, where it is not `u`.
OUTPUT_LIKE = {"linear_scan": "b", "block2_scan": "f", "ssd_scan": "x", "delta_scan": "v", "mamba_step": "x"}
# The name of `eager` with the code path of compiled graphs, where some ops compute longer chunks, or all chunks together. The
# tests do not compile.
EAGER_IN_GRAPHS = "eager in graphs"
SINGLE_DTYPE_OPS = ("mamba_step",)  # all tensors in float32 or all in float64
# Arguments with or without a time axis. The output has the dtype to which theirs and that of the argument in OUTPUT_LIKE promote.
TRANSITIONS = {"linear_scan": "a", "block2_scan": "M"}


def find_skip_reason(op: str, backend: str) -> str | None:
    """Return why a backend cannot run an op on this machine; None if it can."""
    return unsupported_reason(op, backend, DEVICE if backend == "triton" else torch.device("cpu"), torch.float32, OPS[op].native)


def has_code_for_graphs(op: str) -> bool:
    """Return whether the eager backend of an op computes other chunks in graphs that are compiled than in plain calls."""
    module = import_module(f"longscan.ops.{op}.eager")
    return any(hasattr(module, name) for name in ("chunk_of_graph", "scan_batched_chunks"))


FAST_BACKENDS = {
    op: [b for b in ("eager", *OPS[op].native) if ONLY_BACKEND in (None, b) and find_skip_reason(op, b) is None] for op in OPS
}
for _op, _backends in FAST_BACKENDS.items():
    if "eager" in _backends and has_code_for_graphs(_op):
        _backends.append(EAGER_IN_GRAPHS)
OP_BACKENDS = [
    (op, backend) for op in OPS for backend in (["reference"] if ONLY_BACKEND in (None, "reference") else []) + FAST_BACKENDS[op]
]


def argument_like_output(op: str) -> str:
    """Return the name of the argument whose shape and dtype the output of `op` has."""
    return OUTPUT_LIKE.get(op, "u")


@dataclass(frozen=True)
class Case:
    """One call: differentiable inputs by argument name in float64 or complex128, and the other arguments.

    mixed_precision: whether fp16 and bf16 apply only to the inputs with a time axis.
    cotangents: random weights of y and of the final state; gradients are those of the weighted sum.
    """

    op: str
    inputs: dict[str, Tensor]
    options: dict[str, Any]
    seed: int
    mixed_precision: bool = False
    masks: dict[str, Tensor] = field(default_factory=dict)
    cotangents: tuple[Tensor, ...] = ()

    def __repr__(self) -> str:
        shapes = {name: f"{tuple(x.shape)}{' complex' if x.is_complex() else ''}" for name, x in self.inputs.items()}
        return f"Case({self.op}, {shapes}, {self.options}, masks {sorted(self.masks)}, seed {self.seed})"

    @property
    def batch(self) -> int:
        return self._leading.shape[0]

    @property
    def length(self) -> int:
        return self._leading.shape[1]

    @property
    def _leading(self) -> Tensor:
        return self.inputs[self._output_like]

    @property
    def _output_like(self) -> str:
        return argument_like_output(self.op)

    def has_time_axis(self, name: str) -> bool:
        """Return whether the input `name` has axes (B, L, ...)."""
        if TRANSITIONS.get(self.op) == name:
            return self.inputs[name].ndim >= self._leading.ndim
        return name in OPS[self.op].per_step

    def in_precision(self, dtype: torch.dtype) -> "Case":
        """Return the same call with its inputs in `dtype`; inputs that are never in fp16 or bf16 are in float32."""

        if self.op in SINGLE_DTYPE_OPS and dtype != torch.float64:
            dtype = torch.float32

        def convert(name: str, x: Tensor) -> Tensor:
            full = torch.float64 if dtype == torch.float64 else torch.float32
            if x.is_complex():
                return x.to(full.to_complex())
            return x.to(full if name == "initial_state" or (self.mixed_precision and not self.has_time_axis(name)) else dtype)

        inputs = {name: convert(name, x) for name, x in self.inputs.items()}
        names = (self._output_like, *("initial_state",) * (len(self.cotangents) - 1))
        cotangents = tuple(convert(name, x) for name, x in zip(names, self.cotangents, strict=True))
        return replace(self, inputs=inputs, cotangents=cotangents)

    def in_double(self) -> "Case":
        """Return the same call in float64, with equal values."""
        return self.map(lambda x: x.to(torch.complex128 if x.is_complex() else torch.float64))

    def map(self, change: Callable[[Tensor], Tensor]) -> "Case":
        """Return the same call with `change` applied to every input and cotangent."""
        inputs = {name: change(x) for name, x in self.inputs.items()}
        return replace(self, inputs=inputs, cotangents=tuple(change(x) for x in self.cotangents))

    def neighbours(self, dtype: torch.dtype, count: int = 2) -> list["Case"]:
        """Return `count` such calls in `dtype`, every number moved to the next one above or below it, at random."""
        cases = []
        for i in range(count):
            generator = torch.Generator().manual_seed(self.seed + i)
            cases.append(self.in_double().map(lambda x, g=generator: perturb(x, torch.finfo(dtype).eps, g)).in_precision(dtype))
        return cases

    def steps(self, start: int, stop: int) -> "Case":
        """Return the same call on the steps from `start` to `stop` only."""
        cut = {name: x[:, start:stop] if self.has_time_axis(name) else x for name, x in self.inputs.items()}
        return replace(self, inputs=cut, masks={name: x[:, start:stop] for name, x in self.masks.items()})


def call(case: Case, backend: str) -> tuple[Tensor, ...]:
    """Return the op's results, (y, final state) or (y,) for an op without state, on the device of the inputs."""
    input_device = next(iter(case.inputs.values())).device
    device = DEVICE if backend == "triton" else input_device
    tensors = {name: x.to(device) for name, x in (case.inputs | case.masks).items()}
    in_graph = backend == EAGER_IN_GRAPHS
    with patch.object(torch.compiler, "is_compiling", lambda: True) if in_graph else nullcontext():
        results = OPS[case.op].function(**tensors, **case.options, backend="eager" if in_graph else backend)
    return tuple(x.to(input_device) for x in (results if isinstance(results, tuple) else (results,)))


def run_plain_arithmetic(case: Case) -> dict[str, Tensor]:
    """Return the results of the reference with every operation rounded to the precision of the inputs.

    The reference of unitary_scan computes in float64 for inputs of any dtype; here it computes in theirs.
    """
    with patch.object(unitary_reference, "carry_dtype", lambda x: x.dtype):
        return run(case, "reference")


def run(case: Case, backend: str) -> dict[str, Tensor]:
    """Return the results and, if the backend has gradients, those of every input for the cotangents of the case."""
    if backend in NATIVE and not OPS[case.op].native_gradients:
        with torch.no_grad():
            return name_results(call(case, backend))
    case = replace(case, inputs={name: x.detach().clone().requires_grad_() for name, x in case.inputs.items()})
    results = call(case, backend)
    return name_results(results) | compute_gradients(results, case)


def name_results(results: tuple[Tensor, ...]) -> dict[str, Tensor]:
    """Return the results of an op by name."""
    names = ("y", "conv state", "ssm state") if len(results) == 3 else ("y", "final state")
    return {name: x.detach() for name, x in zip(names, results, strict=False)}


def compute_gradients(results: tuple[Tensor, ...], case: Case) -> dict[str, Tensor]:
    """Return the gradients of every input by name, zeros for an input on which no result depends."""
    used = [(x, weight.to(x.dtype)) for x, weight in zip(results, case.cotangents, strict=True) if x.requires_grad]
    leaves = list(case.inputs.values())
    grads = torch.autograd.grad([x for x, _ in used], leaves, [weight for _, weight in used], allow_unused=True)
    filled = [torch.zeros_like(x) if grad is None else grad for x, grad in zip(leaves, grads, strict=True)]
    return {f"gradient of {name}": grad for name, grad in zip(case.inputs, filled, strict=True)}


def randn(shape: tuple[int, ...], generator: torch.Generator, is_complex: bool = False) -> Tensor:
    """Return standard normal numbers in float64 or complex128."""
    return torch.randn(shape, generator=generator, dtype=torch.complex128 if is_complex else torch.float64)


def _draw_masks(draw: st.DrawFn, batch: int, length: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Return `valid`, `seq_idx`, both or neither, with any pattern of invalid steps and any packing."""
    masks = {}
    counts = torch.randint(0, length + 1, (batch, 1), generator=generator)
    steps = torch.arange(length).expand(batch, length)
    kind = draw(st.sampled_from(["all", "all", "left", "right", "any", "none"]))
    if kind != "all":
        masks["valid"] = {
            "left": steps >= length - counts,
            "right": steps < counts,
            "any": torch.rand(batch, length, generator=generator) < 0.7,
            "none": torch.zeros(batch, length, dtype=torch.bool),
        }[kind]
    if draw(st.booleans()):
        probability = draw(st.sampled_from([0.02, 0.3]))
        masks["seq_idx"] = (torch.rand(batch, length, generator=generator) < probability).cumsum(1) % 3
    return masks


Arguments = tuple[dict[str, Tensor], dict[str, Any]]


def _make_inputs(
    op: str, batch: int, length: int, generator: torch.Generator, is_complex: bool = False, **sizes: int
) -> dict[str, Tensor]:
    return example_inputs(op, {"B": batch, "L": length, **sizes}, generator=generator, is_complex=is_complex, long=True)


def _draw_form(draw: st.DrawFn, op: str, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the inputs without some of the optional ones, and complex inputs either as pairs or as complex numbers."""
    inputs = {name: x for name, x in inputs.items() if not ARGUMENTS[op][name].optional or draw(st.booleans())}
    if draw(st.booleans()):
        return inputs
    pairs = [name for name, x in inputs.items() if ARGUMENTS[op][name].pair or x.ndim > len(ARGUMENTS[op][name].axes)]
    return inputs | {name: torch.view_as_complex(inputs[name]) for name in pairs}


def _draw_linear_scan(draw: st.DrawFn, batch: int, length: int, generator: torch.Generator) -> Arguments:
    axes = draw(st.sampled_from([(), (3,), (2, 3)]))
    kind = draw(st.sampled_from(["real", "complex", "real a", "real b", "pairs"]))
    leading = () if draw(st.booleans()) else (batch, length)
    near_one = draw(st.booleans())
    radius = torch.rand((*leading, *axes), generator=generator, dtype=torch.float64)
    radius = 1 - 1e-3 * radius if near_one else 1.2 * radius
    angle = 2 * math.pi * torch.rand((*leading, *axes), generator=generator, dtype=torch.float64)
    a = torch.polar(radius, angle) if kind in ("complex", "real b", "pairs") else radius * (torch.cos(angle)).sign()
    b = randn((batch, length, *axes), generator, kind in ("complex", "real a", "pairs"))
    inputs = {"a": a, "b": b, "initial_state": randn((batch, *axes), generator, kind != "real")}
    if kind == "pairs":
        inputs = {name: torch.view_as_real(x) for name, x in inputs.items()}
    return inputs, {"reverse": draw(st.booleans()), "pairs": kind == "pairs"}


def _draw_block2_scan(draw: st.DrawFn, batch: int, length: int, generator: torch.Generator) -> Arguments:
    """Generate damped rotations in a sheared basis, and the limiting case of a double eigenvalue 1."""
    axes = draw(st.sampled_from([(), (3,), (2, 3)]))
    kind = draw(st.sampled_from(["real", "complex", "pairs"]))
    leading = () if draw(st.booleans()) else (batch, length)
    angle = 2 * math.pi * torch.rand((*leading, *axes), generator=generator, dtype=torch.float64)
    rotation = torch.stack([torch.stack([angle.cos(), -angle.sin()], -1), torch.stack([angle.sin(), angle.cos()], -1)], -2)
    shear = torch.tensor([[1.0, 0.7], [0.0, 1.0]], dtype=torch.float64)
    radius = draw(st.sampled_from([0.5, 0.999, 1.0]))
    M = shear.expand_as(rotation).clone() if draw(st.integers(0, 4)) == 4 else radius * shear @ rotation @ torch.linalg.inv(shear)
    f, start = (randn((*shape, *axes, 2), generator, kind != "real") for shape in ((batch, length), (batch,)))
    if kind == "pairs":
        f, start = torch.view_as_real(f), torch.view_as_real(start)
    return {"M": M, "f": f, "initial_state": start}, {"pairs": kind == "pairs"}


def _draw_selective_scan(draw: st.DrawFn, batch: int, length: int, generator: torch.Generator) -> Arguments:
    channels, states = draw(st.integers(1, 9)), draw(st.sampled_from([1, 2, 5, 16]))
    is_complex, softplus = draw(st.booleans()), draw(st.booleans())
    scale = draw(st.sampled_from([1e-4, 0.1, 1.0]))  # with 1e-4 every decay factor exceeds 0.999
    inputs = _make_inputs("selective_scan", batch, length, generator, is_complex, D=channels, N=states)
    dt = randn((batch, length, channels), generator)
    inputs["dt"] = dt + math.log(scale) if softplus else dt.abs() * scale
    inputs["dt_bias"] = inputs["dt_bias"].abs() * scale
    inputs["dt_scale"] = 3 * inputs["dt_scale"]
    if is_complex:
        inputs["A"][..., 1] *= 4
    return _draw_form(draw, "selective_scan", inputs), {"dt_softplus": softplus, "paired": draw(st.booleans())}


def _draw_unitary_scan(draw: st.DrawFn, batch: int, length: int, generator: torch.Generator) -> Arguments:
    channels, states = draw(st.integers(1, 9)), draw(st.sampled_from([1, 2, 5, 16]))
    inputs = _make_inputs("unitary_scan", batch, length, generator, D=channels, N=states)
    if draw(st.booleans()):  # coefficients for all channels together, or for each
        inputs["C"] = inputs["C"][0]
    if draw(st.booleans()):
        inputs["B"] = inputs["B"].expand(channels, states, 2).clone()
    return _draw_form(draw, "unitary_scan", inputs), {"phase_dt": draw(st.booleans())}


def _draw_ssd_scan(draw: st.DrawFn, batch: int, length: int, generator: torch.Generator) -> Arguments:
    heads, groups = draw(st.sampled_from([(1, 1), (2, 1), (3, 3), (4, 2)]))
    width, states = draw(st.sampled_from([1, 2, 5])), draw(st.sampled_from([1, 2, 5, 16]))
    sizes = {"H": heads, "G": groups, "P": width, "N": states, "R": draw(st.integers(0, states // 2))}
    inputs = _make_inputs("ssd_scan", batch, length, generator, **sizes)
    inputs["dt"] = inputs["dt"] * draw(st.sampled_from([1e-4, 0.1, 1.0]))
    inputs["A"], inputs["angle"] = 4 * inputs["A"], 4 * inputs["angle"]
    return _draw_form(draw, "ssd_scan", inputs), {}


def _draw_delta_scan(draw: st.DrawFn, batch: int, length: int, generator: torch.Generator) -> Arguments:
    width, states = draw(st.sampled_from([1, 2, 5])), draw(st.sampled_from([1, 2, 5, 16]))
    inputs = _make_inputs("delta_scan", batch, length, generator, H=draw(st.integers(1, 3)), P=width, N=states)
    inputs["log_alpha"] *= draw(st.sampled_from([0, 1e-4, 0.1, 1.0]))
    inputs["beta"] *= draw(st.sampled_from([1, 2]))  # with 2, eigenvalues of I - beta k k^T down to -1
    return _draw_form(draw, "delta_scan", inputs), {}


def _draw_short_conv(draw: st.DrawFn, batch: int, length: int, generator: torch.Generator) -> Arguments:
    sizes = {"D": draw(st.integers(1, 9)), "K": draw(st.sampled_from([1, 2, 4, 7]))}
    inputs = _draw_form(draw, "short_conv", _make_inputs("short_conv", batch, length, generator, **sizes))
    return inputs, {"activation": draw(st.sampled_from([None, "silu"]))}


def _draw_long_conv(draw: st.DrawFn, batch: int, length: int, generator: torch.Generator) -> Arguments:
    inputs = _make_inputs("long_conv", batch, length, generator, D=draw(st.integers(1, 5)))
    inputs["k"] *= torch.exp(-torch.arange(length) / draw(st.sampled_from([3, 300])))
    return inputs, {}


def _draw_mamba_step(draw: st.DrawFn, batch: int, length: int, generator: torch.Generator) -> Arguments:
    sizes = {"M": draw(st.integers(1, 9)), "D": draw(st.integers(1, 9)), "K": draw(st.sampled_from([1, 2, 4]))}
    sizes |= {"R": draw(st.integers(1, 3)), "N": draw(st.sampled_from([1, 2, 5, 16]))}
    inputs = _draw_form(draw, "mamba_step", _make_inputs("mamba_step", batch, length, generator, **sizes))
    return inputs, {"selects_raw": draw(st.booleans())}


DRAW_ARGUMENTS = {
    "linear_scan": _draw_linear_scan,
    "block2_scan": _draw_block2_scan,
    "selective_scan": _draw_selective_scan,
    "unitary_scan": _draw_unitary_scan,
    "ssd_scan": _draw_ssd_scan,
    "delta_scan": _draw_delta_scan,
    "short_conv": _draw_short_conv,
    "long_conv": _draw_long_conv,
    "mamba_step": _draw_mamba_step,
}


@st.composite
def cases(draw: st.DrawFn, op: str, masked: bool = True, lengths: tuple[int, ...] = tuple(LENGTHS)) -> Case:
    """Generate any call of `op`, as a hypothesis strategy."""
    seed = draw(st.integers(0, 2**31))
    generator = torch.Generator().manual_seed(seed)
    batch, length = draw(st.integers(1, 3)), draw(st.sampled_from(lengths))
    inputs, options = DRAW_ARGUMENTS[op](draw, batch, length, generator)
    masks = _draw_masks(draw, batch, length, generator) if masked and OPS[op].stateful else {}
    if op == "mamba_step" and draw(st.booleans()):
        masks["active"] = torch.rand(batch, generator=generator) < 0.7
    case = Case(op, inputs, options, seed, draw(st.booleans()), masks)
    return replace(case, cotangents=tuple(randn(shape, generator, is_complex) for shape, is_complex in list_results(case)))


def list_results(case: Case) -> list[tuple[tuple[int, ...], bool]]:
    """Return the shape of each result of a call, and whether it is complex, by a call on the first step alone."""
    start = replace(case, masks={})
    if OPS[case.op].stateful and case.op != "mamba_step":
        start = start.steps(0, 1)
    y, *states = call(start, "eager")
    return [(case._leading.shape, y.is_complex()), *((x.shape, x.is_complex()) for x in states)]
