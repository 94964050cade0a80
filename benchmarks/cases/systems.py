"""Time and memory of whole models on one GPU against the length, of variants of a block, and of heads as ops (suite systems).

length: a training step (forward, backward, AdamW) and an inference pass of a model of about 600,000 parameters for every sequence
layer in its paper's block, from 1,024 to 65,536 steps, batch 4. overhead: the same for S6 and the variants of its block in the
thesis, on batches of 64 x 1024 x 3 (section 12.2.5). Models run under autocast to bfloat16; weights and optimizer are float32.
The field forward_backward_ms of a row is the training step, forward_ms the inference pass. Memory does not include weights,
moments and inputs.

heads: the heads of Mamba-2 and Mamba-3 and causal attention as ops in bfloat16; limits are times of the published ops. Mamba-2:
`ssd_scan` of 2,048 channels in heads of 64 with 128 states. Mamba-3: `Mamba3Heads` of the same size with one group, whose inputs
are x and the selected coefficients, without a gate; it computes the norm of B and C, softplus, sigmoid and tanh, which the
published op does not. Attention: torch's op of 1,024 channels in heads of 64, with the kernel that torch chooses and with each
kernel in turn, and our layer, with its projections and rotary positions; the field `kernels` lists the fused attention kernels
that ran. Gradients are of all inputs and of the weights of layers.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from harness import GPU, Case, Implementation, Shape, differentiable, profile_events
from longscan.layers import Attention
from longscan.layers.base import SequenceInfo
from longscan.layers.mamba3 import Mamba3Heads
from longscan.models import SequenceModel
from op_calls import SSD

CLASSES = 10
FUSED = re.compile(r"\w*(?:flash|fmha|sdpa|attention)\w*(?!\w|::)", re.IGNORECASE)  # name of a fused kernel without namespace


@dataclass(frozen=True)
class System:
    """A model: its spec, width d_model, d_state of every layer that has it, and further options by block."""

    name: str
    spec: str
    width: int
    states: int = 64
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def model(self) -> SequenceModel:
        """Return a classifier of the mean over a sequence of vectors of 3, with the same weights in every call."""
        torch.manual_seed(0)
        sizes = {"d_model": self.width, "d_state": self.states, "d_input": 3, "d_output": CLASSES}
        return SequenceModel.from_spec(self.spec, **sizes, head="affine", block_options=self.options or None)

    @cached_property
    def parameters(self) -> int:
        """The number of parameters."""
        return sum(weight.numel() for weight in self.model().parameters())

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of its rows."""
        return {"variant": self.name, "parameters": self.parameters, "backend": "auto"}

    def implementation(self, shape: Shape) -> Implementation:
        """Return a training step and an inference pass on a batch of random inputs and random classes."""
        model = self.model().to(GPU)
        optimizer = torch.optim.AdamW(model.parameters(), capturable=GPU.type == "cuda")
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(shape["B"], shape["L"], 3, generator=generator).to(GPU)
        classes = torch.randint(0, CLASSES, (shape["B"],), generator=generator).to(GPU)

        def train() -> None:
            model.train()
            with torch.autocast(GPU.type, torch.bfloat16):
                loss = cross_entropy(model(x), classes)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        def infer() -> None:
            model.eval()
            with torch.no_grad(), torch.autocast(GPU.type, torch.bfloat16):
                model(x)

        sizes = {"d_model": self.width, "d_state": self.states, "blocks": len(model.entries)}
        return Implementation(infer, train, fields=self.fields, sizes=sizes)


SYSTEMS = (  # each of 600,000 parameters, to 4 %
    System("S4", "s4*6", 168),
    System("S4D", "s4d*6", 192),
    System("S5", "s5*6", 256),
    System("LRU", "lru*6", 168),
    System("LinOSS", "linoss*6", 168),
    System("S6 (Mamba)", "mamba*6", 116, 16),  # the thesis, Table 2
    System("S6, complex", "mamba*6", 110, 16, {"mamba": {"complex_state": True}}),
    System("Mamba-2", "mamba2*5", 128),
    System("Mamba-3", "mamba3*5", 128),
    System("S7", "s7*6", 54, 16),
    System("AUSSM", "aussm*6", 72, 16),
    # Mamba on LRA, Table 2, with heads of 64
    System("attention", "(attention feed_forward)*6", 128, options={"feed_forward": {"d_hidden": 128}}),
    System("GRU", "gru*6", 128),
    System("LSTM", "lstm*6", 112),
    System("mLSTM", "mlstm*3", 96),
    System("sLSTM", "slstm*3", 192),
)
VARIANTS = (  # widths: the thesis, Tables 2 and 6; the first is what the others are compared with
    System("S6", "mamba*6", 116, 16),
    System("S6, recompute", "mamba*6", 116, 16, {"mamba": {"recompute": True}}),
    System("S6, rotary, fixed", "mamba*6", 116, 16, {"mamba": {"rotary": {}}}),
    System("S6, rotary, learned", "mamba*6", 116, 16, {"mamba": {"rotary": {"learned": True}}}),
    System("S6, bidirectional", "bidirectional*6", 107, 16),
    System("S6, placebo", "bidirectional*6", 107, 16, {"bidirectional": {"variant": "shared placebo"}}),
    System("S6, speed-matched", "mamba*6", 170, 16),
    System("S4D in Mamba's block", "mamba[s4d]*6", 116, 16),
)


def of_systems(name: str, systems: Sequence[System], lengths: Sequence[int], batch: int) -> Case:
    """Return the case that compares some systems at all lengths."""
    return Case(
        suite="systems", name=name, op="SequenceModel", device=GPU, replays=True, may_fail=True,
        shapes=[{"B": batch, "L": length} for length in lengths], quick_shape={"B": 1, "L": 8},
        build=lambda shape: {system.name: system.implementation(shape) for system in systems},
        fields={"figure": name.partition(" ")[0], "dtype": "autocast bfloat16", "variant": systems[0].name},
    )  # fmt: skip


def normal(*shape: int) -> Tensor:
    """Return normal random numbers in bfloat16 on the GPU."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(GPU, torch.bfloat16)


def mamba2(shape: Shape) -> Implementation:
    """Return the scan of Mamba-2's heads; tensors with axes (B, L, ...) are bfloat16."""
    return differentiable(partial(SSD.call, backend="auto"), SSD.inputs(shape, "bfloat16", GPU))


def mamba3(shape: Shape) -> Implementation:
    """Return the heads of Mamba-3 without the projection before them."""
    torch.manual_seed(0)
    heads = Mamba3Heads(shape["D"], shape["N"], min(shape["D"], 64), 1, 0.5, (1e-3, 0.1), "auto").to(GPU)

    def call(x: Tensor, selected: Tensor, *_: Tensor) -> Tensor:
        return heads.forward_impl(x, selected, None, SequenceInfo())[0]

    inputs = [normal(shape["B"], shape["L"], width) for width in (shape["D"], heads.selected)]
    return differentiable(call, [*inputs, *heads.parameters()])


def attention(shape: Shape, backend: SDPBackend | None = None) -> Implementation:
    """Return torch's attention on queries, keys and values (B, heads, L, 64). backend: its kernel; None: torch chooses."""

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with nullcontext() if backend is None else sdpa_kernel(backend):
            return scaled_dot_product_attention(q, k, v, is_causal=True)

    width = min(shape["D"], 64)
    return differentiable(call, [normal(shape["B"], shape["D"] // width, shape["L"], width) for _ in range(3)])


def attention_layer(shape: Shape) -> Implementation:
    """Return our attention layer of the same width."""
    torch.manual_seed(0)
    layer = Attention(shape["D"]).to(GPU, torch.bfloat16)
    return differentiable(lambda x, *_: layer(x), [normal(shape["B"], shape["L"], shape["D"]), *layer.parameters()])


def fused_kernels(call: Callable[[], object]) -> list[str]:
    """Return the names of the fused attention kernels that a call runs; on the CPU those of torch's operations."""
    found = (FUSED.search(event.key) for event in profile_events(call, GPU))
    return sorted({match.group() for match in found if match})


def of_heads(
    name: str,
    op: str,
    make: Callable[[Shape], Implementation],
    sizes: Shape,
    published: Sequence[tuple[float, float]] = (),
    allowed: float | None = None,
    attends: bool = False,
) -> Case:
    """Return the case of one op at 2,048 and 8,192 steps.

    published: milliseconds of forward, and of forward and backward, of the published op on one H200 with torch 2.11 and Triton
    3.6 (median of `triton.testing.do_bench`, one run). allowed: largest allowed ratio of our time to the published op's.
    attends: whether rows list the fused attention kernels that ran.
    """

    def build(shape: Shape) -> dict[str, Implementation]:
        made = make(shape)
        kernels = {"kernels": fused_kernels(made.train)} if attends else {}
        return {name: replace(made, fields={"variant": name, "backend": "auto", **kernels})}

    return Case(
        suite="systems", name=f"heads {name}", op=op, build=build, device=GPU, may_fail=True,
        shapes=[{"B": 8, "L": 2048, **sizes}, {"B": 2, "L": 8192, **sizes}],
        quick_shape={"B": 1, "L": 20, "D": 128, **({"N": 16} if "N" in sizes else {})},
        limits=[(allowed * forward, allowed * both) for forward, both in published] if allowed else (),
        fields={"figure": "heads", "dtype": "bfloat16", "variant": name},
    )  # fmt: skip


def heads() -> Iterator[Case]:
    """Yield the cases of heads and attention."""
    yield of_heads("Mamba-2", "ssd_scan", mamba2, {"D": 2048, "N": 128}, [(0.528, 5.065), (0.476, 3.966)], 1.5)
    yield of_heads("Mamba-3", "Mamba3Heads", mamba3, {"D": 2048, "N": 128}, [(0.667, 3.105), (1.812, 3.994)], 2.0)
    op, sizes = "scaled_dot_product_attention", {"D": 1024}
    yield of_heads("attention", op, attention, sizes, attends=True)
    kernels = {
        "flash": SDPBackend.FLASH_ATTENTION,
        "cuDNN": SDPBackend.CUDNN_ATTENTION,
        "memory-efficient": SDPBackend.EFFICIENT_ATTENTION,
        "no fused kernel": SDPBackend.MATH,
    }
    for name, backend in kernels.items():
        yield of_heads(f"attention, {name}", op, partial(attention, backend=backend), sizes, attends=True)
    yield of_heads("attention layer", "Attention", attention_layer, sizes, attends=True)


CASES = (
    *heads(),
    of_systems("overhead", VARIANTS, [1024], 64),
    *(of_systems(f"length {system.name}", [system], [2**power for power in range(10, 17)], 4) for system in SYSTEMS),
)
