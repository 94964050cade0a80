"""Heads of Mamba-2 and Mamba-3 and causal attention as ops in bfloat16, beside the published ops: a part of systems.py.

Mamba-2: `ssd_scan` of 2,048 channels in heads of 64 with 128 states, from x, dt, A, B, C and D. Mamba-3: `Mamba3Heads.run` of the
same size with one group, half of the states turning: from the input and all that the projection selects, in bfloat16 (B and C of
the group, dt, and what the decay, the trapezoid's share and the angles are computed from), to y without a gate. Beside what the
published op computes (biases of B and C, trapezoid, angles summed up, turns, scan, skip) it holds the norm of B and C, softplus,
sigmoid and tanh, which there stand before the op. Attention: torch's `scaled_dot_product_attention` of 1,024 channels in heads of
64, as torch chooses and by each of its kernels alone, and our layer, with its projections and rotary positions; `kernels` are the
names of the fused attention kernels that ran. Backward: gradients of all tensors that go in, the layers' weights included.
"""

import re
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import gpu
from attempts import timed
from longscan.layers import Attention
from longscan.layers.base import SequenceInfo
from longscan.layers.mamba3 import Mamba3Heads
from longscan.ops import ssd_scan
from registry import Shape, ssd_inputs

FUSED = re.compile(r"\w*(?:flash|fmha|sdpa|attention)\w*(?!\w|::)", re.IGNORECASE)  # in a kernel's name, less its namespace
Inputs = list[Tensor]
Built = tuple[Callable[..., Tensor], Inputs]


def drawn(*shape: int) -> Tensor:
    """Normal numbers of the device's bfloat16."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(gpu.DEVICE, torch.bfloat16)


def mamba2(shape: Shape) -> Built:
    """The scan of Mamba-2's heads; what has axes (B, L, ...) is bfloat16."""

    def call(*inputs: Tensor) -> Tensor:
        return ssd_scan(*inputs)[0]

    case = gpu.Case("heads", "ssd_scan", shape, partial(ssd_inputs, dtype=torch.float32), call, dtype="bfloat16")
    return call, gpu.tensors(case, shape)


def mamba3(shape: Shape) -> Built:
    """The heads of Mamba-3 behind their projection."""
    torch.manual_seed(0)
    heads = Mamba3Heads(shape["D"], shape["N"], min(shape["D"], 64), 1, 0.5, (1e-3, 0.1), "auto").to(gpu.DEVICE)

    def call(x: Tensor, selected: Tensor, *_: Tensor) -> Tensor:
        return heads.run(x, selected, None, SequenceInfo())[0]

    inputs = [drawn(shape["B"], shape["L"], width) for width in (shape["D"], heads.selected)]
    return call, [*inputs, *heads.parameters()]


def attention(shape: Shape, backend: SDPBackend | None = None) -> Built:
    """torch's op on queries, keys and values (B, heads, L, 64), as it chooses or by one of its kernels."""

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with nullcontext() if backend is None else sdpa_kernel(backend):
            return scaled_dot_product_attention(q, k, v, is_causal=True)

    width = min(shape["D"], 64)
    return call, [drawn(shape["B"], shape["D"] // width, shape["L"], width) for _ in range(3)]


def attention_layer(shape: Shape) -> Built:
    """Our layer of the same width."""
    torch.manual_seed(0)
    layer = Attention(shape["D"]).to(gpu.DEVICE, torch.bfloat16)

    def call(x: Tensor, *_: Tensor) -> Tensor:
        return layer(x)

    return call, [drawn(shape["B"], shape["L"], shape["D"]), *layer.parameters()]


def fused_kernels(call: Callable[[], object]) -> list[str]:
    """The fused attention kernels that a call runs; on the CPU torch's own names of them."""
    activity = torch.profiler.ProfilerActivity
    with torch.profiler.profile(activities=[activity.CUDA if gpu.DEVICE.type == "cuda" else activity.CPU]) as profile:
        call()
        if gpu.DEVICE.type == "cuda":
            torch.cuda.synchronize()
    found = (FUSED.search(event.key) for event in profile.key_averages())
    return sorted({match.group() for match in found if match})


@dataclass(frozen=True)
class Case:
    """What to measure. peers: length -> ms of forward, of forward and backward, and peak MiB of the published op, on one H200
    with torch 2.11 and Triton 3.6 (median of `triton.testing.do_bench`, one run); bar: how many times these ours may take.
    """

    name: str
    op: str
    build: Callable[[Shape], Built]
    width: int
    states: int = 0
    peers: dict[int, tuple[float, float, float]] | None = None
    bar: float | None = None
    attends: bool = False

    def shape(self, batch: int, length: int, quick: bool) -> Shape:
        """The sizes, as records have them."""
        sizes = {"B": batch, "L": length, "D": 128 if quick else self.width}
        return sizes | ({"N": 16 if quick else self.states} if self.states else {})

    def measure(self, shape: Shape) -> gpu.Row:
        """Times, memory beyond the inputs, and for attention the kernels."""
        call, inputs = self.build(shape)
        weight = torch.ones_like(call(*inputs).detach())
        for x in inputs:
            x.requires_grad_()

        def train() -> object:
            return torch.autograd.grad(call(*inputs), inputs, weight)

        def forward() -> object:
            with torch.no_grad():
                return call(*inputs)

        train()
        found: gpu.Row = {"forward_backward_ms": timed(train), "peak_mib": gpu.peak_of(train), "forward_ms": timed(forward)}
        return found | ({"kernels": fused_kernels(train)} if self.attends else {})

    def row(self, shape: Shape, found: gpu.Row) -> gpu.Row:
        """A row of the records."""
        return gpu.record(self.op, "auto", shape, dtype="bfloat16", variant=self.name, figure="heads", **found)


SDPA = "scaled_dot_product_attention"
KERNELS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cuDNN": SDPBackend.CUDNN_ATTENTION,
    "memory-efficient": SDPBackend.EFFICIENT_ATTENTION,
    "no fused kernel": SDPBackend.MATH,
}
MAMBA2 = {2048: (0.528, 5.065, 494.0), 8192: (0.476, 3.966, 488.0)}
MAMBA3 = {2048: (0.667, 3.105, 1120.0), 8192: (1.812, 3.994, 1120.0)}
ATTENTION = {2048: (0.184, 0.725, 195.0), 8192: (0.626, 2.308, 195.0)}
CASES = (
    Case("Mamba-2", "ssd_scan", mamba2, 2048, 128, MAMBA2, 1.5),
    Case("Mamba-3", "Mamba3Heads", mamba3, 2048, 128, MAMBA3, 2.0),
    Case("attention", SDPA, attention, 1024, 0, ATTENTION, attends=True),
    *(
        Case(f"attention, {name}", SDPA, partial(attention, backend=backend), 1024, attends=True)
        for name, backend in KERNELS.items()
    ),
    Case("attention layer", "Attention", attention_layer, 1024, attends=True),
)
