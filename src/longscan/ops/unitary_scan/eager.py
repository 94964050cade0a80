"""`unitary_scan` in vectorised torch: running sums inside chunks, chunks one after another, complex numbers as real pairs.

Inside a chunk that starts in state h_s, with G the sum of the angles since its start and S the sum of e^{-iG} dt silu(u):
h_t = e^{i G_t} (h_s + B S_t). The angles are summed in float64, and the state is passed from chunk to chunk in float64, so that
rounding errors do not grow with the number of chunks. S is also summed in float64 where chunks are longer than CHUNK steps, in
graphs that are compiled. Where a sequence starts inside the row, both sums restart from 0.
"""

import math
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import silu

from longscan.ops.arguments import carry_dtype, flag_masks, reset_mask, zero_invalid
from longscan.ops.associative import running_sum
from longscan.ops.chunks import CHUNK, chunk_of_graph, scan_chunks


def _angles(u: Tensor, dt: Tensor, W: Tensor, bias: Tensor, flags: Tensor | None, phase_dt: bool) -> Tensor:
    """Return theta (B, L, D, N), 0 at invalid steps."""
    angles = torch.nn.functional.linear(u, W.flatten(0, 1), bias.flatten()).view(*u.shape[:-1], *bias.shape)
    angles = angles * dt.unsqueeze(-1) if phase_dt else angles
    return angles if flags is None else torch.where(flag_masks(flags, 4)[0], 0, angles)


def _wrap_angle(phase: Tensor) -> Tensor:
    """Return the phase wrapped to [-pi, pi]."""
    return phase - 2 * math.pi * torch.round(phase / (2 * math.pi))


def _rotate(cos: Tensor, sin: Tensor, re: Tensor, im: Tensor) -> tuple[Tensor, Tensor]:
    return cos * re - sin * im, cos * im + sin * re


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
    packed: bool,
    sum_dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    u, dt, z = zero_invalid(flags, u, dt, z)
    gated = silu(u)
    weighted_input = (dt * gated).unsqueeze(-1)
    # Angles are wrapped before they are summed, since sums of small angles have small rounding errors.
    angles = _wrap_angle(_angles(u, dt, W, bias, flags, phase_dt).to(state.dtype))
    start_re, start_im = state.unsqueeze(1).unbind(-1)
    reset = reset_mask(flags, packed, 4)
    if reset is not None:  # the angle of a sequence's first step rotates only the state before it, which is dropped
        angles = torch.where(reset, 0, angles)
        dropped = reset.cumsum(1) > 0
        start_re, start_im = torch.where(dropped, 0, start_re), torch.where(dropped, 0, start_im)
    phase = _wrap_angle(running_sum(angles, reset))
    cos, sin = torch.cos(phase.to(u.dtype)), torch.sin(phase.to(u.dtype))
    sum_re, sum_im = (running_sum((part * weighted_input).to(sum_dtype), reset) for part in (cos, -sin))
    added_re, added_im = _rotate(B[..., 0], B[..., 1], sum_re, sum_im)
    re, im = ((start.to(sum_dtype) + added).to(u.dtype) for start, added in ((start_re, added_re), (start_im, added_im)))
    re, im = _rotate(cos, sin, re, im)
    y = (C[..., 0] * re - C[..., 1] * im).sum(-1)
    y = y if D is None else y + D * gated
    y = y if z is None else y * silu(z)
    y = y if flags is None else torch.where(flag_masks(flags, 3)[0], 0, y)
    last = phase[:, -1]
    final = _rotate(torch.cos(last), torch.sin(last), start_re[:, -1] + added_re[:, -1], start_im[:, -1] + added_im[:, -1])
    return y, torch.stack(final, -1)


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
    packed: bool = True,
) -> tuple[Tensor, Tensor]:
    """Compute `reference.unitary_scan` chunk by chunk; memory beyond the output is bounded by a chunk.

    Complex numbers are pairs (..., 2). packed: whether `flags` may contain RESET.
    """
    state = initial_state.to(carry_dtype(initial_state))
    size = chunk_of_graph(initial_state)
    if state.dtype == u.dtype:  # sums in the dtype of their terms have smaller rounding errors in shorter chunks
        size = max(1, size // 4)
    step = partial(_chunk, phase_dt=phase_dt, packed=packed, sum_dtype=state.dtype if size > CHUNK else u.dtype)
    y, final = scan_chunks(step, (u, dt, z, flags), (W, bias, B, C, D), state, empty=u, size=size)
    return y, final.to(initial_state.dtype, copy=True)
