"""`unitary_scan` with every angle rounded to a multiple of 2 pi / Q, and the multiples added as integers.

    k_t = (k_{t-1} + round(theta_t Q / 2 pi)) mod Q        G_t = 2 pi k_t / Q
    S_t = S_{t-1} + e^{-i G_t} dt_t B silu(u_t)             h_t = e^{i G_t} S_t

Sums of integers are exact, so that G_t has the error of one rounding at every t. The gradient of an angle is that without the
rounding (straight-through). The sum S runs on `linear_scan`, whose backend is used.
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import silu

from longscan.distributed.context import current_split
from longscan.ops.arguments import RESET, reset_mask, step_flags, without_autocast, zero_invalid
from longscan.ops.associative import running_sum
from longscan.ops.linear_scan import linear_scan
from longscan.ops.pieces import PieceMap, pass_states

SUM = PieceMap([], lambda state: state)  # the linear part of the map of a running sum is the identity


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
    initial_phase: Tensor | None,
    *,
    phase_grid: int,
    valid: Tensor | None,
    seq_idx: Tensor | None,
    backend: str,
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Return y (B, L, D), and S (B, D, N, 2) and k (B, D, N) int64 after the last step.

    B, C: pairs (N, 2) or (D, N, 2). initial_state, initial_phase: S and k before the first step; k is zero where None. The other
    arguments are those of `longscan.ops.unitary_scan`. All floating-point tensors are of one dtype, that of the computation.
    """
    with without_autocast(u):
        flags = step_flags(u.shape[0], u.shape[1], valid, seq_idx, u)
        u, dt, z = zero_invalid(flags, u, dt, z)
        theta = torch.einsum("...p,inp->...in", u, W) + bias  # (B, L, D, N)
        theta = theta if valid is None else torch.where(valid[..., None, None], theta, 0)
        rounded = torch.round(theta.detach() * (phase_grid / (2 * math.pi))).to(torch.int64)
        split, last_phase = current_split(), None
        if split is not None:
            start = torch.zeros_like(rounded[:, 0]) if initial_phase is None else initial_phase
            initial_phase, last_phase = pass_states(split, start, _integer_sum(rounded, None, flags)[:, -1], SUM, flags)
        phase = torch.remainder(_integer_sum(rounded, initial_phase, flags), phase_grid)
        angle = phase.to(u.dtype) * (2 * math.pi / phase_grid)
        if theta.requires_grad and theta.shape[1]:
            unrounded = running_sum(theta, reset_mask(flags, seq_idx is not None, theta.ndim))
            if split is not None:  # the gradients of angles of earlier pieces include terms of this piece
                before, _ = pass_states(split, torch.zeros_like(theta[:, 0]), unrounded[:, -1], SUM, flags)
                continues = torch.ones_like(theta[..., 0, 0]) if flags is None else (flags == RESET).cumsum(1) == 0
                unrounded = unrounded + torch.where(continues[..., None, None] > 0, before.unsqueeze(1), 0)
            angle = angle + (unrounded - unrounded.detach())
        cos, sin = torch.cos(angle), torch.sin(angle)
        gated = silu(u)
        weight = (dt * gated).unsqueeze(-1)
        B_re, B_im = B.unbind(-1)
        added = torch.stack([(cos * B_re + sin * B_im) * weight, (cos * B_im - sin * B_re) * weight], -1)
        sums, final = linear_scan(
            added.new_ones(added.shape[2:]), added, initial_state, valid=valid, seq_idx=seq_idx, backend=backend
        )
        re, im = cos * sums[..., 0] - sin * sums[..., 1], cos * sums[..., 1] + sin * sums[..., 0]
        y = (C[..., 0] * re - C[..., 1] * im).sum(-1)
        y = y if D is None else y + D * gated
        y = y if z is None else y * silu(z)
        y = y if valid is None else torch.where(valid.unsqueeze(-1), y, 0)
        if last_phase is not None:
            final_phase = torch.remainder(last_phase, phase_grid)
        elif phase.shape[1]:
            final_phase = phase[:, -1].clone()
        elif initial_phase is not None:
            final_phase = initial_phase.clone()
        else:
            final_phase = torch.zeros(final.shape[:-1], dtype=torch.int64, device=u.device)
        return y, (final, final_phase)


def _integer_sum(x: Tensor, start: Tensor | None, flags: Tensor | None) -> Tensor:
    """Return the running sum of integers x (B, L, D, N) from `start` (B, D, N); it restarts from zero where the state does."""
    total = torch.cumsum(x, 1)
    started = total if start is None else total + start.unsqueeze(1)
    if flags is None or not x.shape[1]:
        return started
    time = torch.arange(x.shape[1], device=x.device)
    restart = torch.where(flags == RESET, time, -1).cummax(1).values[..., None, None]
    before = (total - x).gather(1, restart.clamp(min=0).expand_as(x))
    return torch.where(restart >= 0, total - before, started)
