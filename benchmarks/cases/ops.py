"""Times and errors of single ops: the CPU kernels and their peers (suite cpu), and the Triton kernels (suite gpu)."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

import peers
from harness import CPU, GPU, Case, Implementation, Shape, differentiable, to_double
from longscan.numerics.oscillators import oscillator_step
from longscan.ops import OPS
from longscan.ops._examples import example_inputs

Inputs = dict[str, Tensor]


@dataclass(frozen=True)
class OpCall:
    """An op, the arguments that are passed to it, and how their values are made from the op's example inputs.

    names: names of the tensor arguments, in the order in which peers take them. options: further arguments. adjust: function of
    the example inputs and the shape that returns the inputs of this call. float32_only: arguments that are float32 in a call with
    a dtype of 16 bits.
    """

    op: str
    names: tuple[str, ...]
    options: dict[str, Any] = field(default_factory=dict)
    adjust: Callable[[Inputs, Shape], Inputs] = lambda inputs, _: inputs
    is_complex: bool = False
    float32_only: tuple[str, ...] = ()

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
        y: Tensor = OPS[self.op].function(**dict(zip(self.names, inputs, strict=True)), **self.options, backend=backend)[0]
        return y

    def truth(self, shape: Shape, dtype: str = "float32") -> list[Tensor]:
        """Return y and the gradients by the reference backend in float64, for inputs that are rounded to `dtype`."""
        inputs = [to_double(x) for x in self.inputs(shape, dtype)]
        return differentiable(partial(self.call, backend="reference"), inputs).results()


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
SELECTIVE = OpCall("selective_scan", S6, {"dt_softplus": True}, mamba_scales)
SELECTIVE_COMPLEX = OpCall("selective_scan", S6, {"dt_softplus": True}, mamba_scales, is_complex=True)
SSD = OpCall("ssd_scan", HEADS, adjust=small_steps)
SSD_ROTATING = OpCall("ssd_scan", HEADS + ROTATING, adjust=small_steps, float32_only=("dt", "input_scale", "own_scale", "angle"))
LINEAR = OpCall("linear_scan", ("a", "b"))
LINEAR_COMPLEX = OpCall("linear_scan", ("a", "b"), {"pairs": True}, is_complex=True)
BLOCK2 = OpCall("block2_scan", ("M", "f"), {"pairs": True}, oscillators, is_complex=True)
SHORT_CONV = OpCall("short_conv", ("u", "weight", "bias"), {"activation": "silu"})


@dataclass(frozen=True)
class Peer:
    """Another implementation of an op. compiled: whether to call it by torch.compile. trains: whether to time its gradients."""

    function: Callable[..., Tensor]
    compiled: bool = False
    trains: bool = True


def with_peers(op_call: OpCall, backend: str, others: dict[str, Peer], shape: Shape) -> dict[str, Implementation]:
    """Return our op and its peers on the same inputs."""
    inputs = op_call.inputs(shape)
    made = {"longscan": differentiable(partial(op_call.call, backend=backend), inputs, backend=backend)}
    for label, peer in others.items():
        if peer.compiled and shape["L"] < 256:  # not worth the time of compilation
            continue
        function = torch.compile(peer.function, fullgraph=True) if peer.compiled else peer.function
        made[label] = differentiable(function, inputs, trains=peer.trains, peer=label)
    return made


def parse_sizes(text: str) -> Shape:
    """Return the shape for sizes of B, L, D, N and R, in this order, as many as there are."""
    return dict(zip("BLDNR", map(int, text.split()), strict=False))


def on_cpu(
    name: str, op_call: OpCall, sizes: str, quick: str, memory: str, others: dict[str, Peer], backend: str = "cpu", **more: Any
) -> Case:
    """Return a case of the suite cpu. sizes, quick, memory: sizes of the timed, the quick and the memory shape."""
    return Case(
        suite="cpu", name=name, op=op_call.op, shapes=[parse_sizes(sizes)], quick_shape=parse_sizes(quick),
        memory_shape=parse_sizes(memory), truth=op_call.truth, build=partial(with_peers, op_call, backend, others),
        check_shape={"B": 2, "L": 1024}, **more,
    )  # fmt: skip


ON_CPU = (
    on_cpu(
        *("s6", SELECTIVE, "8 1024 256 16", "2 70 33 5", "1 65536 128 16"),
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
        *("aussm", UNITARY, "4 1024 64 64", "2 70 9 5", "1 65536 64 64"),
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
        *("ssd", SSD, "2 1024 512 128", "2 70 128 5", "1 16384 512 128"),
        {"plain torch loop": Peer(peers.ssd_loop), "transformers, slow path": Peer(peers.ssd_transformers)},
        backend="eager",
        needs={("transformers, slow path", "forward"): 2.0, ("transformers, slow path", "forward_backward"): 1.5},
        extra_memory=3.0,
    ),
)


def triton(op_call: OpCall, dtype: str, shape: Shape) -> dict[str, Implementation]:
    """Return the implementation that calls the Triton kernel of an op."""
    inputs = op_call.inputs(shape, dtype, GPU)
    return {"triton": differentiable(partial(op_call.call, backend="triton"), inputs, backend="triton")}


def on_gpu(name: str, op_call: OpCall, sizes: str, *limits: float, dtype: str = "float32") -> Case:
    """Return a case of the suite gpu. limits: the milliseconds that forward, and forward and backward, may take."""
    shape = parse_sizes(sizes)
    # Matrix products of bfloat16 are wrong in Triton's interpreter.
    tolerance = 1e-4 if dtype == "float32" else 2e-2 if GPU.type == "cuda" else float("inf")
    tiny = {name: size for name, size in {"B": 1, "L": 20, "D": 3, "N": 2, "R": 1}.items() if name in shape}
    return Case(
        suite="gpu", name=f"{name} {sizes} {dtype}", op=op_call.op, shapes=[shape], quick_shape=tiny, device=GPU, replays=True,
        build=partial(triton, op_call, dtype), truth=partial(op_call.truth, dtype=dtype), limits=[limits] if limits else [],
        tolerance=tolerance, fields={"dtype": dtype, "variant": name},
    )  # fmt: skip


COPY_SPEED = 4.24e9  # bytes that a copy on one H200 reads and writes in a millisecond


def linear_limits(sizes: str, bytes_each: int, forward: float, both: float) -> tuple[float, float]:
    """Return the limits in milliseconds of a linear scan that must reach a share of the speed of a copy.

    forward, both: the shares for forward, which moves three tensors (a, b and x), and for forward and backward, which move eight.
    """
    copy_ms = math.prod(map(int, sizes.split())) * bytes_each / COPY_SPEED
    return 3 * copy_ms / forward, 8 * copy_ms / both


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
