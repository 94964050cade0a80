"""Generated calls of every op for the contract tests, and the backends on which they run."""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
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
COMPLEX = {torch.float64: torch.complex128}
DEVICE = torch.device(os.environ.get("LONGSCAN_DEVICE", "cpu"))  # of the Triton kernels; all else runs on the CPU
CHOSEN = os.environ.get("LONGSCAN_BACKEND")  # the only backend to test, if it is set
LEADS = {"linear_scan": "b", "block2_scan": "f", "ssd_scan": "x", "delta_scan": "v", "mamba_step": "x"}
ONE_DTYPE = ("mamba_step",)  # every tensor is of float32, or every one of float64
FACTORS = {
    "linear_scan": "a",
    "block2_scan": "M",
}  # with a time axis or not; the output has the dtype of both, promoted


def why_not(op: str, backend: str) -> str | None:
    """Return why a backend cannot run an op on this machine; None if it can."""
    return unsupported_reason(op, backend, DEVICE if backend == "triton" else torch.device("cpu"), torch.float32, OPS[op].native)


FAST = {op: [b for b in ("eager", *OPS[op].native) if CHOSEN in (None, b) and why_not(op, b) is None] for op in OPS}
PAIRS = [(op, backend) for op in OPS for backend in (["reference"] if CHOSEN in (None, "reference") else []) + FAST[op]]


def lead_name(op: str) -> str:
    """The argument of `op` whose shape and dtype its output has."""
    return LEADS.get(op, "u")


@dataclass(frozen=True)
class Case:
    """One call: differentiable inputs by argument name in float64 or complex128, and the other arguments.

    half: whether half precisions apply to the inputs that change from step to step only, as under mixed precision.
    cotangents: random weights of y and of the final state, of which gradients are taken.
    """

    op: str
    inputs: dict[str, Tensor]
    options: dict[str, Any]
    seed: int
    half: bool = False
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
        return self.inputs[self._lead_name]

    @property
    def _lead_name(self) -> str:
        return lead_name(self.op)

    def changes_in_time(self, name: str) -> bool:
        """Whether the input `name` has axes (B, L, ...)."""
        if FACTORS.get(self.op) == name:
            return self.inputs[name].ndim >= self._leading.ndim
        return name in OPS[self.op].per_step

    def in_precision(self, dtype: torch.dtype) -> "Case":
        """The same call with its inputs rounded to `dtype`; those that never come in half precision stay in float32."""

        if self.op in ONE_DTYPE and dtype != torch.float64:
            dtype = torch.float32

        def convert(name: str, x: Tensor) -> Tensor:
            wide = torch.float64 if dtype == torch.float64 else torch.float32
            if x.is_complex():
                return x.to(COMPLEX.get(wide, torch.complex64))
            return x.to(wide if name == "initial_state" or (self.half and not self.changes_in_time(name)) else dtype)

        inputs = {name: convert(name, x) for name, x in self.inputs.items()}
        names = (self._lead_name, *("initial_state",) * (len(self.cotangents) - 1))
        cotangents = tuple(convert(name, x) for name, x in zip(names, self.cotangents, strict=True))
        return replace(self, inputs=inputs, cotangents=cotangents)

    def in_double(self) -> "Case":
        """The same call in float64, exactly."""
        return self.map(lambda x: x.to(torch.complex128 if x.is_complex() else torch.float64))

    def map(self, change: Callable[[Tensor], Tensor]) -> "Case":
        """The same call with every input and cotangent changed."""
        inputs = {name: change(x) for name, x in self.inputs.items()}
        return replace(self, inputs=inputs, cotangents=tuple(change(x) for x in self.cotangents))

    def neighbours(self, dtype: torch.dtype, count: int = 2) -> list["Case"]:
        """The same call, in `dtype`, with every number moved to one next to it, up or down at random."""
        found = []
        for i in range(count):
            generator = torch.Generator().manual_seed(self.seed + i)
            found.append(self.in_double().map(lambda x, g=generator: perturb(x, torch.finfo(dtype).eps, g)).in_precision(dtype))
        return found

    def steps(self, start: int, stop: int) -> "Case":
        """The same call on steps start..stop only."""
        cut = {name: x[:, start:stop] if self.changes_in_time(name) else x for name, x in self.inputs.items()}
        return replace(self, inputs=cut, masks={name: x[:, start:stop] for name, x in self.masks.items()})


def call(case: Case, backend: str) -> tuple[Tensor, ...]:
    """The op's results as a tuple: (y, final state), or (y,) for an op without state; on the device of the inputs."""
    home = next(iter(case.inputs.values())).device
    place = DEVICE if backend == "triton" else home
    tensors = {name: x.to(place) for name, x in (case.inputs | case.masks).items()}
    results = OPS[case.op].function(**tensors, **case.options, backend=backend)
    return tuple(x.to(home) for x in (results if isinstance(results, tuple) else (results,)))


def run_plain(case: Case) -> dict[str, Tensor]:
    """The results of the loop that defines the op, every operation rounded to the precision of the inputs.

    The reference of unitary_scan computes in float64 whatever its inputs are; here its loop keeps their precision.
    """
    with patch.object(unitary_reference, "carry_dtype", lambda x: x.dtype):
        return run(case, "reference")


def run(case: Case, backend: str) -> dict[str, Tensor]:
    """Return the results, and the gradients of every input for the case's cotangents unless the backend has none."""
    if backend in NATIVE and not OPS[case.op].native_gradients:
        with torch.no_grad():
            return named(call(case, backend))
    case = replace(case, inputs={name: x.detach().clone().requires_grad_() for name, x in case.inputs.items()})
    results = call(case, backend)
    return named(results) | gradients(results, case)


def named(results: tuple[Tensor, ...]) -> dict[str, Tensor]:
    """The results of an op by name."""
    names = ("y", "conv state", "ssm state") if len(results) == 3 else ("y", "final state")
    return {name: x.detach() for name, x in zip(names, results, strict=False)}


def gradients(results: tuple[Tensor, ...], case: Case) -> dict[str, Tensor]:
    """The gradients of every input, by name; zeros where no result depends on an input."""
    used = [(x, weight.to(x.dtype)) for x, weight in zip(results, case.cotangents, strict=True) if x.requires_grad]
    leaves = list(case.inputs.values())
    found = torch.autograd.grad([x for x, _ in used], leaves, [weight for _, weight in used], allow_unused=True)
    filled = [torch.zeros_like(x) if grad is None else grad for x, grad in zip(leaves, found, strict=True)]
    return {f"gradient of {name}": grad for name, grad in zip(case.inputs, filled, strict=True)}


def random(shape: tuple[int, ...], generator: torch.Generator, is_complex: bool = False) -> Tensor:
    """Normal numbers in float64, or complex ones of variance 1."""
    return torch.randn(shape, generator=generator, dtype=torch.complex128 if is_complex else torch.float64)


def _masks(draw: st.DrawFn, batch: int, length: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Any pattern of invalid steps and any packing."""
    masks = {}
    kept = torch.randint(0, length + 1, (batch, 1), generator=generator)
    steps = torch.arange(length).expand(batch, length)
    kind = draw(st.sampled_from(["none", "none", "left", "right", "any", "nothing"]))
    if kind != "none":
        masks["valid"] = {
            "left": steps >= length - kept,
            "right": steps < kept,
            "any": torch.rand(batch, length, generator=generator) < 0.7,
            "nothing": torch.zeros(batch, length, dtype=torch.bool),
        }[kind]
    if draw(st.booleans()):
        often = draw(st.sampled_from([0.02, 0.3]))
        masks["seq_idx"] = (torch.rand(batch, length, generator=generator) < often).cumsum(1) % 3
    return masks


Made = tuple[dict[str, Tensor], dict[str, Any]]


def _inputs(
    op: str, batch: int, length: int, generator: torch.Generator, is_complex: bool = False, **sizes: int
) -> dict[str, Tensor]:
    return example_inputs(op, {"B": batch, "L": length, **sizes}, generator=generator, is_complex=is_complex, long=True)


def _in_some_form(draw: st.DrawFn, op: str, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Optional inputs, each there or not; complex inputs as pairs or, by chance, as complex numbers."""
    inputs = {name: x for name, x in inputs.items() if not ARGUMENTS[op][name].optional or draw(st.booleans())}
    if draw(st.booleans()):
        return inputs
    pairs = [name for name, x in inputs.items() if ARGUMENTS[op][name].pair or x.ndim > len(ARGUMENTS[op][name].axes)]
    return inputs | {name: torch.view_as_complex(inputs[name]) for name in pairs}


def _linear(draw: st.DrawFn, batch: int, length: int, generator: torch.Generator) -> Made:
    axes = draw(st.sampled_from([(), (3,), (2, 3)]))
    kind = draw(st.sampled_from(["real", "complex", "real a", "real b", "pairs"]))
    lead = () if draw(st.booleans()) else (batch, length)
    near_one = draw(st.booleans())
    size = torch.rand((*lead, *axes), generator=generator, dtype=torch.float64)
    size = 1 - 1e-3 * size if near_one else 1.2 * size
    angle = 2 * math.pi * torch.rand((*lead, *axes), generator=generator, dtype=torch.float64)
    a = torch.polar(size, angle) if kind in ("complex", "real b", "pairs") else size * (torch.cos(angle)).sign()
    b = random((batch, length, *axes), generator, kind in ("complex", "real a", "pairs"))
    inputs = {"a": a, "b": b, "initial_state": random((batch, *axes), generator, kind != "real")}
    if kind == "pairs":
        inputs = {name: torch.view_as_real(x) for name, x in inputs.items()}
    return inputs, {"reverse": draw(st.booleans()), "pairs": kind == "pairs"}


def _block2(draw: st.DrawFn, batch: int, length: int, generator: torch.Generator) -> Made:
    """Turns with a little decay or growth, in a slanted basis; the marginal case of a double eigenvalue 1 among them."""
    axes = draw(st.sampled_from([(), (3,), (2, 3)]))
    kind = draw(st.sampled_from(["real", "complex", "pairs"]))
    lead = () if draw(st.booleans()) else (batch, length)
    angle = 2 * math.pi * torch.rand((*lead, *axes), generator=generator, dtype=torch.float64)
    turn = torch.stack([torch.stack([angle.cos(), -angle.sin()], -1), torch.stack([angle.sin(), angle.cos()], -1)], -2)
    slant = torch.tensor([[1.0, 0.7], [0.0, 1.0]], dtype=torch.float64)
    size = draw(st.sampled_from([0.5, 0.999, 1.0]))
    M = slant.expand_as(turn).clone() if draw(st.integers(0, 4)) == 4 else size * slant @ turn @ torch.linalg.inv(slant)
    f, start = (random((*shape, *axes, 2), generator, kind != "real") for shape in ((batch, length), (batch,)))
    if kind == "pairs":
        f, start = torch.view_as_real(f), torch.view_as_real(start)
    return {"M": M, "f": f, "initial_state": start}, {"pairs": kind == "pairs"}


def _selective(draw: st.DrawFn, batch: int, length: int, generator: torch.Generator) -> Made:
    channels, states = draw(st.integers(1, 9)), draw(st.sampled_from([1, 2, 5, 16]))
    is_complex, softplus = draw(st.booleans()), draw(st.booleans())
    scale = draw(st.sampled_from([1e-4, 0.1, 1.0]))  # 1e-4: every factor beyond 0.999
    inputs = _inputs("selective_scan", batch, length, generator, is_complex, D=channels, N=states)
    dt = random((batch, length, channels), generator)
    inputs["dt"] = dt + math.log(scale) if softplus else dt.abs() * scale
    inputs["dt_bias"] = inputs["dt_bias"].abs() * scale
    inputs["dt_scale"] = 3 * inputs["dt_scale"]
    if is_complex:
        inputs["A"][..., 1] *= 4
    return _in_some_form(draw, "selective_scan", inputs), {"dt_softplus": softplus, "paired": draw(st.booleans())}


def _unitary(draw: st.DrawFn, batch: int, length: int, generator: torch.Generator) -> Made:
    channels, states = draw(st.integers(1, 9)), draw(st.sampled_from([1, 2, 5, 16]))
    inputs = _inputs("unitary_scan", batch, length, generator, D=channels, N=states)
    if draw(st.booleans()):  # coefficients of all channels, or of each
        inputs["C"] = inputs["C"][0]
    if draw(st.booleans()):
        inputs["B"] = inputs["B"].expand(channels, states, 2).clone()
    return _in_some_form(draw, "unitary_scan", inputs), {"phase_dt": draw(st.booleans())}


def _ssd(draw: st.DrawFn, batch: int, length: int, generator: torch.Generator) -> Made:
    heads, groups = draw(st.sampled_from([(1, 1), (2, 1), (3, 3), (4, 2)]))
    width, states = draw(st.sampled_from([1, 2, 5])), draw(st.sampled_from([1, 2, 5, 16]))
    sizes = {"H": heads, "G": groups, "P": width, "N": states, "R": draw(st.integers(0, states // 2))}
    inputs = _inputs("ssd_scan", batch, length, generator, **sizes)
    inputs["dt"] = inputs["dt"] * draw(st.sampled_from([1e-4, 0.1, 1.0]))
    inputs["A"], inputs["angle"] = 4 * inputs["A"], 4 * inputs["angle"]
    return _in_some_form(draw, "ssd_scan", inputs), {}


def _delta(draw: st.DrawFn, batch: int, length: int, generator: torch.Generator) -> Made:
    width, states = draw(st.sampled_from([1, 2, 5])), draw(st.sampled_from([1, 2, 5, 16]))
    inputs = _inputs("delta_scan", batch, length, generator, H=draw(st.integers(1, 3)), P=width, N=states)
    inputs["log_alpha"] *= draw(st.sampled_from([0, 1e-4, 0.1, 1.0]))
    inputs["beta"] *= draw(st.sampled_from([1, 2]))  # with 2, eigenvalues of I - beta k k^T down to -1
    return _in_some_form(draw, "delta_scan", inputs), {}


def _short(draw: st.DrawFn, batch: int, length: int, generator: torch.Generator) -> Made:
    sizes = {"D": draw(st.integers(1, 9)), "K": draw(st.sampled_from([1, 2, 4, 7]))}
    inputs = _in_some_form(draw, "short_conv", _inputs("short_conv", batch, length, generator, **sizes))
    return inputs, {"activation": draw(st.sampled_from([None, "silu"]))}


def _long(draw: st.DrawFn, batch: int, length: int, generator: torch.Generator) -> Made:
    inputs = _inputs("long_conv", batch, length, generator, D=draw(st.integers(1, 5)))
    inputs["k"] *= torch.exp(-torch.arange(length) / draw(st.sampled_from([3, 300])))
    return inputs, {}


def _mamba(draw: st.DrawFn, batch: int, length: int, generator: torch.Generator) -> Made:
    sizes = {"M": draw(st.integers(1, 9)), "D": draw(st.integers(1, 9)), "K": draw(st.sampled_from([1, 2, 4]))}
    sizes |= {"R": draw(st.integers(1, 3)), "N": draw(st.sampled_from([1, 2, 5, 16]))}
    inputs = _in_some_form(draw, "mamba_step", _inputs("mamba_step", batch, length, generator, **sizes))
    return inputs, {"selects_raw": draw(st.booleans())}


MAKERS = {
    "linear_scan": _linear,
    "block2_scan": _block2,
    "selective_scan": _selective,
    "unitary_scan": _unitary,
    "ssd_scan": _ssd,
    "delta_scan": _delta,
    "short_conv": _short,
    "long_conv": _long,
    "mamba_step": _mamba,
}


@st.composite
def cases(draw: st.DrawFn, op: str, masked: bool = True, lengths: tuple[int, ...] = tuple(LENGTHS)) -> Case:
    """Any call of `op`."""
    seed = draw(st.integers(0, 2**31))
    generator = torch.Generator().manual_seed(seed)
    batch, length = draw(st.integers(1, 3)), draw(st.sampled_from(lengths))
    inputs, options = MAKERS[op](draw, batch, length, generator)
    masks = _masks(draw, batch, length, generator) if masked and OPS[op].stateful else {}
    if op == "mamba_step" and draw(st.booleans()):
        masks["active"] = torch.rand(batch, generator=generator) < 0.7
    case = Case(op, inputs, options, seed, draw(st.booleans()), masks)
    shapes = call(replace(case, inputs={name: x.to("meta") for name, x in inputs.items()}, masks={}), "eager")
    return replace(case, cotangents=tuple(random(x.shape, generator, x.is_complex()) for x in shapes))
