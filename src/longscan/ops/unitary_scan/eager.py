"""`unitary_scan` in vectorised torch: running sums inside chunks, chunks one after another, complex numbers as real pairs.

Inside a chunk that starts in state h_s, with G the sum of the angles since its start and S the sum of e^{-iG} dt silu(u):
h_t = e^{i G_t} (h_s + B S_t). The angles are summed, and the state is carried from chunk to chunk, in float64: then nothing
drifts, however many chunks there are.
"""

import math
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import silu

from longscan.numerics.pairs import multiply
from longscan.ops._arguments import marks, mask
from longscan.ops._associative import affine_scan
from longscan.ops._chunks import scan_chunks


def _angles(u: Tensor, dt: Tensor, W: Tensor, bias: Tensor, flags: Tensor | None, phase_dt: bool) -> Tensor:
    """theta (B, L, D, N), 0 at invalid steps."""
    angles = torch.nn.functional.linear(u, W.flatten(0, 1), bias.flatten()).view(*u.shape[:-1], *bias.shape)
    angles = angles * dt.unsqueeze(-1) if phase_dt else angles
    return angles if flags is None else torch.where(marks(flags, 4)[0], 0, angles)


def _rotations(phase: Tensor) -> Tensor:
    """e^{i phase} as pairs (..., 2)."""
    return torch.stack([torch.cos(phase), torch.sin(phase)], -1)


def _chunk(
    u: Tensor,
    dt: Tensor,
    z: Tensor | None,
    flags: Tensor | None,
    W: Tensor,
    bias: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    state: Tensor,
    *,
    phase_dt: bool,
) -> tuple[Tensor, Tensor]:
    u, dt, z = mask(flags, u, dt, z)
    gated = silu(u)
    phase = torch.remainder(torch.cumsum(_angles(u, dt, W, bias, flags, phase_dt).to(state.dtype), 1), 2 * math.pi)
    rotation = _rotations(phase.to(u.dtype))
    back = torch.stack([rotation[..., 0], -rotation[..., 1]], -1) * (dt * gated)[..., None, None]
    if flags is None:
        sums, start = torch.cumsum(back, 1), state.unsqueeze(1)
    else:
        kept = (~marks(flags, 5)[1]).to(u.dtype)
        sums = affine_scan(kept, back, torch.zeros_like(back[:, 0]))
        start = torch.cumprod(kept, 1) * state.unsqueeze(1)
    held = multiply(B, sums)
    states = multiply(rotation, start.to(u.dtype) + held)
    products = C * states
    y = (products[..., 0] - products[..., 1]).sum(-1)
    y = y if D is None else y + D * gated
    y = y if z is None else y * silu(z)
    y = y if flags is None else torch.where(marks(flags, 3)[0], 0, y)
    return y, multiply(_rotations(phase[:, -1]), start[:, -1] + held[:, -1].to(state.dtype))


def unitary_scan(
    u: Tensor,
    dt: Tensor,
    W: Tensor,
    bias: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    initial_state: Tensor,
    flags: Tensor | None,
    *,
    phase_dt: bool,
) -> tuple[Tensor, Tensor]:
    """As `reference.unitary_scan`, complex numbers as pairs (..., 2); memory beyond the output is bounded by a chunk."""
    # Apple's GPUs have no float64: there the carried state rounds like any other float32 number
    wide = initial_state.dtype if u.device.type == "mps" else torch.float64
    step = partial(_chunk, phase_dt=phase_dt)
    y, final = scan_chunks(step, (u, dt, z, flags), (W, bias, B, C, D), initial_state.to(wide), empty=u)
    return y, final.to(initial_state.dtype, copy=True)
