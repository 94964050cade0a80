"""What is measured: functions, shapes, peers, and the ratios that must hold.

A new measurement is one entry here; `run.py` times, checks and records whatever it finds.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

import peers
from longscan.blocks import MambaBlock
from longscan.blocks.residual import Residual
from longscan.ops import selective_scan, ssd_scan, unitary_scan

Shape = dict[str, int]


@dataclass(frozen=True)
class Peer:
    """An implementation to compare with. published_ns: PERFORMANCE's ns per (batch, step, channel, state), forward and
    forward+backward, where it has them. trains: whether forward+backward is measured (some take minutes).
    """

    function: Callable[..., Tensor]
    compiled: bool = False
    trains: bool = True
    published_ns: tuple[float | None, float | None] = (None, None)


@dataclass(frozen=True)
class Scan:
    """A scan op. needs: (peer, "forward" or "forward_backward") -> how many times faster ours must be; backend: of ours."""

    op: str
    inputs: Callable[..., list[Tensor]]
    ours: Callable[..., Tensor]
    reference: Callable[..., Tensor]
    shape: Shape
    quick_shape: Shape
    long_shape: Shape
    peers: dict[str, Peer]
    needs: dict[tuple[str, str], float]
    tolerance: float = 1e-4  # of y and every gradient against float64, relative to the largest entry
    extra_memory: float = 0.5  # at long_shape, as a share of inputs, outputs and gradients
    backend: str = "cpu"


def _draw(seed: int = 0) -> tuple[torch.Generator, Callable[..., Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return generator, lambda *shape: torch.randn(shape, generator=generator, dtype=torch.float64)


def _finish(tensors: list[Tensor], dtype: torch.dtype, gradients: bool) -> list[Tensor]:
    wide = {torch.float32: torch.complex64, torch.float64: torch.complex128}[dtype]
    return [x.to(wide if x.is_complex() else dtype).requires_grad_(gradients) for x in tensors]


def s6_inputs(shape: Shape, dtype: torch.dtype, *, gradients: bool = False) -> list[Tensor]:
    """u, dt, A, B, C, D, z, dt_bias with Mamba's initial A and step sizes."""
    B, L, D, N = (shape[name] for name in "BLDN")
    generator, normal = _draw()
    step = torch.exp(torch.rand(D, generator=generator, dtype=torch.float64) * 4.6 - 6.9)  # 0.001 to 0.1
    dt_bias = step + torch.log(-torch.expm1(-step))
    A = -torch.arange(1, N + 1, dtype=torch.float64).repeat(D, 1)
    drawn = normal(B, L, D), normal(B, L, D) * 0.5, A, normal(B, L, N), normal(B, L, N), normal(D), normal(B, L, D), dt_bias
    return _finish(list(drawn), dtype, gradients)


def s6(*inputs: Tensor) -> Tensor:
    """Our op."""
    return selective_scan(*inputs, dt_softplus=True, backend="cpu")[0]


def aussm_inputs(shape: Shape, dtype: torch.dtype, *, gradients: bool = False) -> list[Tensor]:
    """u, dt, W, bias, B, C, D, z at the scales of the layer's initialisation."""
    B, L, D, N = (shape[name] for name in "BLDN")
    generator, normal = _draw()
    dt = torch.rand(B, L, D, generator=generator, dtype=torch.float64)
    W = (torch.rand(D, N, D, generator=generator, dtype=torch.float64) * 2 - 1) / D
    bias = (torch.rand(D, N, generator=generator, dtype=torch.float64) * 2 - 1) * torch.pi
    coefficients = [torch.complex(normal(D, N), normal(D, N)) for _ in range(2)]
    drawn = [normal(B, L, D), dt, W, bias, *coefficients, normal(D), normal(B, L, D)]
    return _finish(drawn, dtype, gradients)


def aussm(*inputs: Tensor) -> Tensor:
    """Our op."""
    return unitary_scan(*inputs, backend="cpu")[0]


def ssd_inputs(shape: Shape, dtype: torch.dtype, *, gradients: bool = False) -> list[Tensor]:
    """x, dt, A, B, C, D of heads of width 64 (or D), with Mamba-2's initial A and step sizes."""
    B, L, D, N = (shape[name] for name in "BLDN")
    generator, normal = _draw()
    width = min(D, 64)
    heads = D // width
    step = torch.exp(torch.rand(B, L, heads, generator=generator, dtype=torch.float64) * 4.6 - 6.9)  # 0.001 to 0.1
    A = -1 - 15 * torch.rand(heads, generator=generator, dtype=torch.float64)
    return _finish([normal(B, L, heads, width), step, A, normal(B, L, 1, N), normal(B, L, 1, N), normal(heads)], dtype, gradients)


def ssd(*inputs: Tensor) -> Tensor:
    """Our op."""
    return ssd_scan(*inputs, backend="eager")[0]


SCANS: dict[str, Scan] = {
    "s6": Scan(
        op="selective_scan",
        inputs=s6_inputs,
        ours=s6,
        reference=peers.s6_loop,
        shape={"B": 8, "L": 1024, "D": 256, "N": 16},
        quick_shape={"B": 2, "L": 70, "D": 33, "N": 5},
        long_shape={"B": 1, "L": 65536, "D": 128, "N": 16},
        peers={
            "plain torch loop": Peer(peers.s6_loop, published_ns=(2.8, 21.0)),
            "transformers, slow path": Peer(peers.s6_transformers, trains=False, published_ns=(7.2, None)),
            "mambapy pscan": Peer(peers.s6_mambapy, published_ns=(13.0, 30.0)),
            "torch associative_scan, compiled": Peer(peers.s6_associative, compiled=True, published_ns=(5.9, 17.0)),
        },
        needs={("plain torch loop", "forward"): 25.0, ("plain torch loop", "forward_backward"): 40.0},
    ),
    "aussm": Scan(
        op="unitary_scan",
        inputs=aussm_inputs,
        ours=aussm,
        reference=peers.aussm_loop,
        shape={"B": 4, "L": 1024, "D": 64, "N": 64},
        quick_shape={"B": 2, "L": 70, "D": 9, "N": 5},
        long_shape={"B": 1, "L": 65536, "D": 64, "N": 64},
        peers={
            "plain torch loop": Peer(peers.aussm_loop, published_ns=(11.0, 82.0)),
            "plain torch separable": Peer(peers.aussm_separable, published_ns=(43.0, 137.0)),
            "torch associative_scan, eager": Peer(peers.aussm_associative, published_ns=(39.0, 165.0)),
        },
        needs={
            ("plain torch loop", "forward"): 15.0,
            ("plain torch separable", "forward"): 60.0,
            ("plain torch separable", "forward_backward"): 40.0,
        },
    ),
    "ssd": Scan(
        op="ssd_scan",
        backend="eager",
        inputs=ssd_inputs,
        ours=ssd,
        reference=peers.ssd_loop,
        shape={"B": 2, "L": 1024, "D": 512, "N": 128},
        quick_shape={"B": 2, "L": 70, "D": 128, "N": 5},
        long_shape={"B": 1, "L": 16384, "D": 512, "N": 128},
        peers={
            "plain torch loop": Peer(peers.ssd_loop),
            "transformers, slow path": Peer(peers.ssd_transformers),
        },
        needs={("transformers, slow path", "forward"): 2.0, ("transformers, slow path", "forward_backward"): 1.5},
        extra_memory=3.0,
    ),
}


@dataclass(frozen=True)
class Block:
    """A Mamba block, forward and backward, against mambapy's with the same weights."""

    shape: Shape = field(default_factory=lambda: {"B": 32, "L": 1024, "d_model": 128, "N": 16})
    quick_shape: Shape = field(default_factory=lambda: {"B": 2, "L": 64, "d_model": 16, "N": 4})
    need: float = 10.0
    tolerance: float = 1e-4


@dataclass(frozen=True)
class Recompute:
    """Our Mamba block with and without `recompute`: one, and a stack, where what every block keeps adds up."""

    shapes: dict[str, Shape] = field(
        default_factory=lambda: {"block": Block().shape, "stack": {"layers": 8, "B": 8, "L": 1024, "d_model": 128, "N": 16}}
    )
    quick_shapes: dict[str, Shape] = field(
        default_factory=lambda: {"block": Block().quick_shape, "stack": {"layers": 2, "B": 2, "L": 64, "d_model": 16, "N": 4}}
    )
    tolerance: float = 1e-4

    def model(self, shape: Shape, *, recompute: bool = False, backend: str = "auto") -> nn.Module:
        """The block, or the stack of residual blocks, with weights that depend on nothing but the shape."""
        torch.manual_seed(0)
        options = {"layer_options": {"d_state": shape["N"]}, "recompute": recompute, "backend": backend}
        if "layers" not in shape:
            return MambaBlock(shape["d_model"], **options)
        return nn.Sequential(*(Residual(MambaBlock(shape["d_model"], **options)) for _ in range(shape["layers"])))


@dataclass(frozen=True)
class Token:
    """One token through a stack of Mamba blocks, against mambapy's stack with the same weights, and transformers'."""

    shape: Shape = field(default_factory=lambda: {"B": 1, "layers": 4, "d_model": 256, "N": 16})
    quick_shape: Shape = field(default_factory=lambda: {"B": 1, "layers": 2, "d_model": 32, "N": 4})
    need: float = 2.0
    tolerance: float = 1e-4


BLOCK, RECOMPUTE, TOKEN = Block(), Recompute(), Token()
