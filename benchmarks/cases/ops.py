"""Ops by themselves: the CPU kernels next to their peers (suite cpu), and the Triton kernels (suite gpu)."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

import peers
from harness import CPU, GPU, Case, Implementation, Shape, differentiable, double
from longscan.numerics.oscillators import oscillator_step
from longscan.ops import OPS
from longscan.ops._examples import example_inputs

Inputs = dict[str, Tensor]


@dataclass(frozen=True)
class Kind:
    """A way to call an op: which arguments it takes, and how they are made of the example inputs for long sequences.

    names: the arguments, in the order in which peers take them. wide: those that stay float32 whatever the dtype.
    """

    op: str
    names: tuple[str, ...]
    options: dict[str, Any] = field(default_factory=dict)
    change: Callable[[Inputs, Shape], Inputs] = lambda inputs, _: inputs
    is_complex: bool = False
    wide: tuple[str, ...] = ()

    def inputs(self, shape: Shape, dtype: str = "float32", device: torch.device = CPU) -> list[Tensor]:
        """Return the tensors of one call. Of less than float32 are only those with axes (B, L, ...) that are not wide."""
        heads = max(1, shape["D"] // 64)
        angles = min(shape.get("R", 0), shape.get("N", 0) // 2)
        sizes = {**shape, "H": heads, "P": shape["D"] // heads, "G": 1, "R": angles, "K": 4}
        generator = torch.Generator().manual_seed(0)
        drawn = example_inputs(self.op, sizes, generator=generator, is_complex=self.is_complex, long=True)
        made = self.change(drawn, shape)
        real = {"float64": torch.float64}.get(dtype, torch.float32)
        inputs = []
        for name in self.names:
            x = made[name]
            x = x.to(real if not x.is_complex() else torch.complex128 if real == torch.float64 else torch.complex64)
            if x.shape[:2] == (shape["B"], shape["L"]) and not x.is_complex() and name not in self.wide:
                x = x.to(getattr(torch, dtype))
            inputs.append(x.to(device))
        return inputs

    def call(self, *inputs: Tensor, backend: str) -> Tensor:
        """Return y of the op."""
        found = OPS[self.op].function(**dict(zip(self.names, inputs, strict=True)), **self.options, backend=backend)
        y: Tensor = found[0]
        return y

    def truth(self, shape: Shape, dtype: str = "float32") -> list[Tensor]:
        """Return y and the gradients by the reference in float64, of the inputs as they are in `dtype`."""
        inputs = [double(x) for x in self.inputs(shape, dtype)]
        return differentiable(partial(self.call, backend="reference"), inputs).results()


def mamba_scales(inputs: Inputs, shape: Shape) -> Inputs:
    """Return the inputs with Mamba's initial A and steps of 0.001 to 0.1."""
    steps = torch.exp(torch.linspace(-6.9, -2.3, shape["D"], dtype=torch.float64))
    A = -torch.arange(1, shape["N"] + 1, dtype=torch.float64).repeat(shape["D"], 1)
    A = torch.stack([A, inputs["A"][..., 1]], -1) if inputs["A"].ndim == 3 else A
    return inputs | {"A": A, "dt": inputs["dt"] - 0.5, "dt_bias": steps + torch.log(-torch.expm1(-steps))}


def complex_coefficients(inputs: Inputs, _: Shape) -> Inputs:
    """Return the inputs with B and C of unitary_scan as complex numbers, which the peers take."""
    return inputs | {name: torch.view_as_complex(inputs[name]) for name in "BC"}


def small_steps(inputs: Inputs, _: Shape) -> Inputs:
    """Return the inputs with the step sizes and decays of Mamba-2's and Mamba-3's heads."""
    small = {name: 0.1 * inputs[name] for name in ("dt", "input_scale", "own_scale", "angle")}
    return inputs | small | {"A": 8 * inputs["A"] - 1}


def oscillators(inputs: Inputs, shape: Shape) -> Inputs:
    """Return the inputs with a constant M of shape (D, 2, 2), as LinOSS has it at first."""
    generator = torch.Generator().manual_seed(0)
    stiffness, dt = (torch.rand(shape["D"], generator=generator, dtype=torch.float64) for _ in range(2))
    return inputs | {"M": oscillator_step(stiffness, dt.sigmoid())[0]}


S6 = ("u", "dt", "A", "B", "C", "D", "z", "dt_bias")
HEADS = ("x", "dt", "A", "B", "C", "D")
ROTATING = ("input_scale", "own_scale", "angle", "B_bias", "C_bias")  # what Mamba-3 has beside
UNITARY = Kind("unitary_scan", ("u", "dt", "W", "bias", "B", "C", "D", "z"), change=complex_coefficients)
SELECTIVE = Kind("selective_scan", S6, {"dt_softplus": True}, mamba_scales)
SELECTIVE_COMPLEX = Kind("selective_scan", S6, {"dt_softplus": True}, mamba_scales, is_complex=True)
SSD = Kind("ssd_scan", HEADS, change=small_steps)
SSD_ROTATING = Kind("ssd_scan", HEADS + ROTATING, change=small_steps, wide=("dt", "input_scale", "own_scale", "angle"))
LINEAR = Kind("linear_scan", ("a", "b"))
LINEAR_COMPLEX = Kind("linear_scan", ("a", "b"), {"pairs": True}, is_complex=True)
BLOCK2 = Kind("block2_scan", ("M", "f"), {"pairs": True}, oscillators, is_complex=True)
SHORT_CONV = Kind("short_conv", ("u", "weight", "bias"), {"activation": "silu"})


@dataclass(frozen=True)
class Peer:
    """An implementation of the same function. trains: whether its gradients are timed, which take minutes for some."""

    function: Callable[..., Tensor]
    compiled: bool = False
    trains: bool = True


def with_peers(kind: Kind, backend: str, others: dict[str, Peer], shape: Shape) -> dict[str, Implementation]:
    """Return our op and its peers on the same inputs."""
    inputs = kind.inputs(shape)
    made = {"longscan": differentiable(partial(kind.call, backend=backend), inputs, backend=backend)}
    for label, peer in others.items():
        if peer.compiled and shape["L"] < 256:  # compilation takes longer than anything that is learnt of small shapes
            continue
        function = torch.compile(peer.function, fullgraph=True) if peer.compiled else peer.function
        made[label] = differentiable(function, inputs, trains=peer.trains, peer=label)
    return made


def on_cpu(
    name: str, kind: Kind, sizes: Shape, quick: Shape, memory: Shape, others: dict[str, Peer], backend: str = "cpu", **more: Any
) -> Case:
    """Return a case of the suite cpu."""
    return Case(
        suite="cpu", name=name, op=kind.op, shapes=[sizes], quick_shape=quick, memory_shape=memory, truth=kind.truth,
        build=partial(with_peers, kind, backend, others), check_shape={"B": 2, "L": 1024}, **more,
    )  # fmt: skip


ON_CPU = (
    on_cpu(
        "s6",
        SELECTIVE,
        {"B": 8, "L": 1024, "D": 256, "N": 16},
        {"B": 2, "L": 70, "D": 33, "N": 5},
        {"B": 1, "L": 65536, "D": 128, "N": 16},
        {
            "plain torch loop": Peer(peers.s6_loop),
            "transformers, slow path": Peer(peers.s6_transformers, trains=False),
            "mambapy pscan": Peer(peers.s6_mambapy),
            "torch associative_scan, compiled": Peer(peers.s6_associative, compiled=True),
        },
        needs={("plain torch loop", "forward"): 25.0, ("plain torch loop", "forward_backward"): 40.0},
        extra_memory=0.5,
    ),
    on_cpu(
        "aussm",
        UNITARY,
        {"B": 4, "L": 1024, "D": 64, "N": 64},
        {"B": 2, "L": 70, "D": 9, "N": 5},
        {"B": 1, "L": 65536, "D": 64, "N": 64},
        {
            "plain torch loop": Peer(peers.aussm_loop),
            "plain torch separable": Peer(peers.aussm_separable),
            "torch associative_scan, eager": Peer(peers.aussm_associative),
        },
        needs={
            ("plain torch loop", "forward"): 15.0,
            ("plain torch separable", "forward"): 60.0,
            ("plain torch separable", "forward_backward"): 40.0,
        },
        extra_memory=0.5,
    ),
    on_cpu(
        "ssd",
        SSD,
        {"B": 2, "L": 1024, "D": 512, "N": 128},
        {"B": 2, "L": 70, "D": 128, "N": 5},
        {"B": 1, "L": 16384, "D": 512, "N": 128},
        {"plain torch loop": Peer(peers.ssd_loop), "transformers, slow path": Peer(peers.ssd_transformers)},
        backend="eager",
        needs={("transformers, slow path", "forward"): 2.0, ("transformers, slow path", "forward_backward"): 1.5},
        extra_memory=3.0,
    ),
)


def triton(kind: Kind, dtype: str, shape: Shape) -> dict[str, Implementation]:
    """Return the Triton kernel of an op."""
    return {"triton": differentiable(partial(kind.call, backend="triton"), kind.inputs(shape, dtype, GPU), backend="triton")}


def on_gpu(name: str, kind: Kind, sizes: str, *limits: float, dtype: str = "float32") -> Case:
    """Return a case of the suite gpu at sizes B, L, D and N. limits: milliseconds of forward, and of forward and backward."""
    shape = dict(zip("BLDNR", map(int, sizes.split()), strict=False))
    # Matrix products of bfloat16 are wrong in Triton's interpreter.
    tolerance = 1e-4 if dtype == "float32" else 2e-2 if GPU.type == "cuda" else float("inf")
    tiny = {name: size for name, size in {"B": 1, "L": 20, "D": 3, "N": 2, "R": 1}.items() if name in shape}
    return Case(
        suite="gpu", name=f"{name} {sizes} {dtype}", op=kind.op, shapes=[shape], quick_shape=tiny, device=GPU, replays=True,
        build=partial(triton, kind, dtype), truth=partial(kind.truth, dtype=dtype), limits=[limits] if limits else [],
        tolerance=tolerance, fields={"dtype": dtype, "variant": name},
    )  # fmt: skip


COPY_SPEED = 4.24e9  # bytes read and written in a millisecond by a copy on one H200, of which linear scans need a share


def linear_limits(sizes: str, bytes_each: int, forward: float, both: float) -> tuple[float, float]:
    """Return the limits of a linear scan as shares of the speed of a copy: a, b and x move forward, eight tensors in both."""
    B, L, D = map(int, sizes.split())
    one = B * L * D * bytes_each / COPY_SPEED
    return 3 * one / forward, 8 * one / both


ON_GPU = (
    on_gpu("unitary", UNITARY, "16 1024 32 64", 0.09, 0.32),
    on_gpu("unitary", UNITARY, "16 8192 32 64", 0.8, 2.7),
    on_gpu("unitary", UNITARY, "8 2048 64 64", 0.25, 0.9),
    on_gpu("unitary", UNITARY, "16 2048 128 128", 3.0, 9.0),
    on_gpu("unitary", UNITARY, "1 131072 32 64"),
    on_gpu("selective", SELECTIVE, "8 2048 2048 16", 0.45, 2.0, dtype="bfloat16"),
    on_gpu("selective", SELECTIVE, "8 2048 2048 16", 0.8, 2.9),
    on_gpu("selective", SELECTIVE, "16 8192 32 64", 0.6, 2.0),
    on_gpu("selective complex", SELECTIVE_COMPLEX, "8 8192 64 64", 1.1, 3.4),
    on_gpu("heads", SSD, "8 2048 2048 128", 0.792, 7.6, dtype="bfloat16"),
    on_gpu("heads", SSD, "2 8192 2048 128", 0.714, 5.95, dtype="bfloat16"),
    on_gpu("heads", SSD, "8 2048 2048 128"),
    on_gpu("rotating heads", SSD_ROTATING, "8 2048 2048 128 32", 1.33, 6.2, dtype="bfloat16"),
    on_gpu("rotating heads", SSD_ROTATING, "2 8192 2048 128 32", 3.62, 8.0, dtype="bfloat16"),
    on_gpu("linear", LINEAR, "8 4096 2048", *linear_limits("8 4096 2048", 4, 0.85, 0.75)),
    on_gpu("linear complex", LINEAR_COMPLEX, "8 4096 2048", *linear_limits("8 4096 2048", 8, 0.85, 0.75)),
    on_gpu("linear long", LINEAR, "1 65536 256", *linear_limits("1 65536 256", 4, 0.55, 0.55)),
    on_gpu("block2", BLOCK2, "4 1024 64"),
    on_gpu("block2", BLOCK2, "8 8192 256"),
    on_gpu("convolution", SHORT_CONV, "8 2048 2048"),
)
CASES = (*ON_CPU, *ON_GPU)
