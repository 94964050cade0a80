"""`selective_scan` in vectorised torch: an associative scan inside chunks, chunks one after another, complex as real pairs."""

from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import silu

from longscan.numerics.pairs import multiply
from longscan.ops.arguments import flag_masks, reset_mask, zero_invalid
from longscan.ops.associative import affine_scan
from longscan.ops.chunks import chunk_of_graph, scan_chunks
from longscan.ops.selective_scan.reference import step_sizes


def decay(dt: Tensor, A: Tensor) -> Tensor:
    """Return exp(dt A) for dt (..., D): (..., D, N) for A (D, N), pairs (..., D, N, 2) for A (D, N, 2)."""
    if A.ndim == 2:
        return torch.exp(dt.unsqueeze(-1) * A)
    exponent = dt[..., None, None] * A
    size, angle = torch.exp(exponent[..., 0]), exponent[..., 1]
    return torch.stack([size * torch.cos(angle), size * torch.sin(angle)], -1)


def _chunk(
    u: Tensor,
    dt: Tensor,
    B: Tensor,
    C: Tensor,
    z: Tensor | None,
    dt_scale: Tensor | None,
    flags: Tensor | None,
    A: Tensor,
    D: Tensor | None,
    dt_bias: Tensor | None,
    state: Tensor,
    *,
    dt_softplus: bool,
    paired: bool,
    packed: bool,
) -> tuple[Tensor, Tensor]:
    u, dt, B, C, z, dt_scale = zero_invalid(flags, u, dt, B, C, z, dt_scale)
    dt = step_sizes(dt, dt_bias, dt_scale, dt_softplus)
    if flags is not None:  # a step of length 0 leaves the state unchanged
        dt = torch.where(flag_masks(flags, 3)[0], 0, dt)
    is_complex = A.ndim == 3
    factors = decay(dt, A)
    input_term = (dt * u)[(..., *(None,) * (A.ndim - 1))] * B.unsqueeze(2)
    reset = reset_mask(flags, packed, factors.ndim)
    states = affine_scan(factors, input_term, state, multiply if is_complex else torch.mul, reset=reset)
    products = states * C.unsqueeze(2)
    y = (products[..., 0] - products[..., 1]).sum(-1) * (2 if paired else 1) if is_complex else products.sum(-1)
    y = y if D is None else y + D * u
    y = y if z is None else y * silu(z)
    return y if flags is None else torch.where(flag_masks(flags, 3)[0], 0, y), states[:, -1].clone()


def selective_scan(
    u: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    dt_bias: Tensor | None,
    initial_state: Tensor,
    dt_scale: Tensor | None,
    flags: Tensor | None,
    *,
    dt_softplus: bool,
    paired: bool,
    packed: bool = True,
) -> tuple[Tensor, Tensor]:
    """Compute `reference.selective_scan` chunk by chunk; memory beyond the output is bounded by a chunk.

    Complex numbers are pairs (..., 2). packed: whether `flags` may contain RESET.
    """
    step = partial(_chunk, dt_softplus=dt_softplus, paired=paired, packed=packed)
    size = chunk_of_graph(initial_state)
    return scan_chunks(step, (u, dt, B, C, z, dt_scale, flags), (A, D, dt_bias), initial_state, empty=u, size=size)
