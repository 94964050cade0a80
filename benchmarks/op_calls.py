"""Calls of single ops on example inputs, which benchmarks time. Needs nothing but torch and longscan.ops."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor

from longscan.numerics.oscillators import oscillator_step
from longscan.ops import OPS
from longscan.ops._examples import example_inputs, example_masks

CPU = torch.device("cpu")
Inputs = dict[str, Tensor]
Shape = dict[str, int]


@dataclass(frozen=True)
class OpCall:
    """An op, the arguments that are passed to it, and how their values are made from the op's example inputs.

    names: names of the tensor arguments, in the order in which peers take them. options: further arguments. adjust: function of
    the example inputs and the shape that returns the inputs of this call. float32_only: arguments that are float32 in a call with
    a dtype of 16 bits. masked: whether the call has `valid` and `seq_idx`, which are not among its inputs.
    """

    op: str
    names: tuple[str, ...]
    options: dict[str, Any] = field(default_factory=dict)
    adjust: Callable[[Inputs, Shape], Inputs] = lambda inputs, _: inputs
    is_complex: bool = False
    float32_only: tuple[str, ...] = ()
    masked: bool = False

    def inputs(self, shape: Shape, dtype: str = "float32", device: torch.device = CPU) -> list[Tensor]:
        """Return the tensors of one call. With a dtype of 16 bits, only those with axes (B, L, ...) have this dtype."""
        heads = max(1, shape["D"] // 64)
        angles = min(shape.get("R", 0), shape.get("N", 0) // 2)
        sizes = {**shape, "H": heads, "P": shape["D"] // heads, "G": 1, "R": angles, "K": 4}
        generator = torch.Generator().manual_seed(0)
        examples = example_inputs(self.op, sizes, generator=generator, is_complex=self.is_complex, long=True)
        inputs = self.adjust(examples, shape)
        real = {"float64": torch.float64}.get(dtype, torch.float32)

        def convert(name: str, x: Tensor) -> Tensor:
            if x.is_complex():
                return x.to(torch.complex128 if real == torch.float64 else torch.complex64)
            per_step = x.shape[:2] == (shape["B"], shape["L"]) and name not in self.float32_only
            return x.to(real).to(getattr(torch, dtype) if per_step else real)

        return [convert(name, inputs[name]).to(device) for name in self.names]

    def call(self, *inputs: Tensor, backend: str) -> Tensor:
        """Return the output y of the op, without its final state."""
        given = dict(zip(self.names, inputs, strict=True))
        masks = packed_masks(*inputs[0].shape[:2], inputs[0].device) if self.masked else {}
        y: Tensor = OPS[self.op].function(**given, **masks, **self.options, backend=backend)[0]
        return y

    def results(self, inputs: list[Tensor], backend: str) -> list[Tensor]:
        """Return y and the gradients of its sum by all inputs."""
        leaves = [x.detach().requires_grad_() for x in inputs]
        y = self.call(*leaves, backend=backend)
        return [y.detach(), *torch.autograd.grad(y, leaves, torch.ones_like(y))]

    def truth(self, shape: Shape, dtype: str = "float32") -> list[Tensor]:
        """Return y and the gradients by the reference backend in float64, for inputs that are rounded to `dtype`."""
        inputs = [x.to(torch.complex128 if x.is_complex() else torch.float64) for x in self.inputs(shape, dtype)]
        return self.results(inputs, "reference")


@cache
def packed_masks(batch: int, length: int, device: torch.device) -> Inputs:
    """Return `valid` and `seq_idx`, the same for each call of these sizes."""
    masks = example_masks(batch, length, torch.Generator().manual_seed(0))
    return {name: mask.to(device) for name, mask in masks.items()}


def mamba_scales(inputs: Inputs, shape: Shape) -> Inputs:
    """Return the inputs with Mamba's initial values of A and step sizes from 0.001 to 0.1."""
    steps = torch.exp(torch.linspace(-6.9, -2.3, shape["D"], dtype=torch.float64))
    A = -torch.arange(1, shape["N"] + 1, dtype=torch.float64).repeat(shape["D"], 1)
    A = torch.stack([A, inputs["A"][..., 1]], -1) if inputs["A"].ndim == 3 else A
    return inputs | {"A": A, "dt": inputs["dt"] - 0.5, "dt_bias": steps + torch.log(-torch.expm1(-steps))}


def complex_coefficients(inputs: Inputs, _: Shape) -> Inputs:
    """Return the inputs with B and C of unitary_scan as complex numbers, the form that the peers take."""
    return inputs | {name: torch.view_as_complex(inputs[name]) for name in "BC"}


def small_steps(inputs: Inputs, _: Shape) -> Inputs:
    """Return the inputs with the step sizes and decays of Mamba-2's and Mamba-3's heads."""
    small = {name: 0.1 * inputs[name] for name in ("dt", "input_scale", "own_scale", "angle")}
    return inputs | small | {"A": 8 * inputs["A"] - 1}


def oscillators(inputs: Inputs, shape: Shape) -> Inputs:
    """Return the inputs with an M of shape (D, 2, 2) that is constant in time, as in a LinOSS layer at initialisation."""
    generator = torch.Generator().manual_seed(0)
    stiffness, dt = (torch.rand(shape["D"], generator=generator, dtype=torch.float64) for _ in range(2))
    return inputs | {"M": oscillator_step(stiffness, dt.sigmoid())[0]}


S6 = ("u", "dt", "A", "B", "C", "D", "z", "dt_bias")
HEADS = ("x", "dt", "A", "B", "C", "D")
ROTATING = ("input_scale", "own_scale", "angle", "B_bias", "C_bias")  # the further arguments of Mamba-3
UNITARY = OpCall("unitary_scan", ("u", "dt", "W", "bias", "B", "C", "D", "z"), adjust=complex_coefficients)
UNITARY_MASKED = OpCall("unitary_scan", UNITARY.names, adjust=complex_coefficients, masked=True)
SELECTIVE = OpCall("selective_scan", S6, {"dt_softplus": True}, mamba_scales)
SELECTIVE_MASKED = OpCall("selective_scan", S6, {"dt_softplus": True}, mamba_scales, masked=True)
SELECTIVE_COMPLEX = OpCall("selective_scan", S6, {"dt_softplus": True}, mamba_scales, is_complex=True)
SSD = OpCall("ssd_scan", HEADS, adjust=small_steps)
SSD_ROTATING = OpCall("ssd_scan", HEADS + ROTATING, adjust=small_steps, float32_only=("dt", "input_scale", "own_scale", "angle"))
LINEAR = OpCall("linear_scan", ("a", "b"))
LINEAR_COMPLEX = OpCall("linear_scan", ("a", "b"), {"pairs": True}, is_complex=True)
BLOCK2 = OpCall("block2_scan", ("M", "f"), {"pairs": True}, oscillators, is_complex=True)
SHORT_CONV = OpCall("short_conv", ("u", "weight", "bias"), {"activation": "silu"})


def replayed_ms(call: Callable[[], object]) -> float:
    """Return the median time of a call that is replayed as a CUDA graph: that of its kernels."""
    from triton.testing import do_bench_cudagraph

    return float(do_bench_cudagraph(call, rep=40, return_mode="median"))


def peak_mib(call: Callable[[], object]) -> float:
    """Return the peak of the GPU memory that a call allocates, in MiB."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def parse_sizes(text: str) -> Shape:
    """Return the shape for sizes of B, L, D, N and R, in this order, as many as there are."""
    return dict(zip("BLDNR", map(int, text.split()), strict=False))


ON_GPU = (  # name, call, sizes and dtype of each case of the suite gpu
    ("unitary", UNITARY, "16 1024 32 64", "float32"),
    ("unitary", UNITARY, "16 8192 32 64", "float32"),
    ("unitary", UNITARY, "8 2048 64 64", "float32"),
    ("unitary", UNITARY, "16 2048 128 128", "float32"),
    ("unitary", UNITARY, "1 131072 32 64", "float32"),
    ("selective", SELECTIVE, "8 2048 2048 16", "bfloat16"),
    ("selective", SELECTIVE, "8 2048 2048 16", "float32"),
    ("selective", SELECTIVE, "16 8192 32 64", "float32"),
    ("selective complex", SELECTIVE_COMPLEX, "8 8192 64 64", "float32"),
    ("heads", SSD, "8 2048 2048 128", "bfloat16"),
    ("heads", SSD, "2 8192 2048 128", "bfloat16"),
    ("heads", SSD, "8 2048 2048 128", "float32"),
    ("rotating heads", SSD_ROTATING, "8 2048 2048 128 32", "bfloat16"),
    ("rotating heads", SSD_ROTATING, "2 8192 2048 128 32", "bfloat16"),
    ("linear", LINEAR, "8 4096 2048", "float32"),
    ("linear complex", LINEAR_COMPLEX, "8 4096 2048", "float32"),
    ("linear long", LINEAR, "1 65536 256", "float32"),
    ("block2", BLOCK2, "4 1024 64", "float32"),
    ("block2", BLOCK2, "8 8192 256", "float32"),
    ("convolution", SHORT_CONV, "8 2048 2048", "float32"),
)
