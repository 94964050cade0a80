"""Times and errors of single ops: the CPU kernels and their peers (suite cpu), and the Triton kernels (suite gpu)."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

import op_calls
import peers
from harness import GPU, Case, Implementation, Shape, differentiable
from op_calls import SELECTIVE, SSD, UNITARY, OpCall, parse_sizes


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


def on_gpu(name: str, op_call: OpCall, sizes: str, dtype: str, limits: tuple[float, float] | None) -> Case:
    """Return a case of the suite gpu. limits: the milliseconds that forward, and forward and backward, may take."""
    shape = parse_sizes(sizes)
    tolerance = 1e-4 if dtype == "float32" else 2e-2
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


LIMITS = {
    ("unitary", "16 1024 32 64", "float32"): (0.09, 0.32),
    ("unitary", "16 8192 32 64", "float32"): (0.8, 2.7),
    ("unitary", "8 2048 64 64", "float32"): (0.25, 0.9),
    ("unitary", "16 2048 128 128", "float32"): (3.0, 9.0),
    ("selective", "8 2048 2048 16", "bfloat16"): (0.45, 2.0),
    ("selective", "8 2048 2048 16", "float32"): (0.8, 2.9),
    ("selective", "16 8192 32 64", "float32"): (0.6, 2.0),
    ("selective complex", "8 8192 64 64", "float32"): (1.1, 3.4),
    ("heads", "8 2048 2048 128", "bfloat16"): (0.792, 7.6),
    ("heads", "2 8192 2048 128", "bfloat16"): (0.714, 5.95),
    ("rotating heads", "8 2048 2048 128 32", "bfloat16"): (1.33, 6.2),
    ("rotating heads", "2 8192 2048 128 32", "bfloat16"): (3.62, 8.0),
    ("linear", "8 4096 2048", "float32"): linear_limits("8 4096 2048", 4, 0.85, 0.75),
    ("linear complex", "8 4096 2048", "float32"): linear_limits("8 4096 2048", 8, 0.85, 0.75),
    ("linear long", "1 65536 256", "float32"): linear_limits("1 65536 256", 4, 0.55, 0.55),
}
ON_GPU = tuple(on_gpu(name, call, sizes, dtype, LIMITS.get((name, sizes, dtype))) for name, call, sizes, dtype in op_calls.ON_GPU)
CASES = (*ON_CPU, *ON_GPU)
