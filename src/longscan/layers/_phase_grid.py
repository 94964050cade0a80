"""The AUSSM recurrence with angles on a grid of `grid` steps a turn, summed as integers.

h_t = e^{i G_t} S_t with G_t = 2 pi k_t / grid, k_t the sum of the rounded angles modulo grid, and S_t = S_{t-1} + e^{-i G_t}
dt_t B silu(u_t), as in `longscan.ops.unitary_scan`. Sums of integers are exact, so G_t is exact to one rounding at every t.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import silu

from longscan.layers.base import SequenceInfo, mask_padding
from longscan.ops import linear_scan
from longscan.ops.associative import running_sum
from longscan.ops.masks import RESET, resets, step_flags
from longscan.ops.precision import without_autocast


def grid_scan(
    u: Tensor,
    dt: Tensor,
    angles: Callable[[Tensor], Tensor],
    B: Tensor,
    C: Tensor,
    D: Tensor,
    initial: Tensor | None,
    phase: Tensor | None,
    info: SequenceInfo,
    *,
    grid: int,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """y_t = (Re sum_n C h_t + D silu(u_t)) silu(gate_t), and the state.

    u, dt: (B, L, D). angles: u -> (B, L, D, N), in radians. B, C: pairs (N, 2) or (D, N, 2). D: (D,). initial, phase: S and k
    before the first step, pairs (B, D, N, 2) and (B, D, N); zeros where None. The gradient of an angle is taken as if it were not
    rounded. Returns y, and S and k after the last step.
    """
    with without_autocast(u):
        wide = dt.dtype
        inputs = u.to(wide)
        theta = mask_padding(angles(inputs), info.valid)
        rounded = torch.round(theta.detach() * (grid / (2 * math.pi))).to(torch.int64)
        flags = step_flags(u.shape[0], u.shape[1], info.valid, info.seq_idx, u)
        counted = torch.remainder(_counted(rounded, phase, flags), grid)
        turned = counted.to(wide) * (2 * math.pi / grid)
        if theta.requires_grad and theta.shape[1]:
            running = running_sum(theta, resets(flags, info.seq_idx is not None, theta.ndim))
            turned = turned + (running - running.detach())
        cos, sin = torch.cos(turned), torch.sin(turned)
        gated = silu(inputs)
        entering = (dt * gated).unsqueeze(-1)
        B_re, B_im = B.unbind(-1)
        added = torch.stack([(cos * B_re + sin * B_im) * entering, (cos * B_im - sin * B_re) * entering], -1)
        sums, final = linear_scan(
            added.new_ones(added.shape[2:]),
            added,
            initial,
            valid=info.valid,
            seq_idx=info.seq_idx,
            backend=backend,
        )
        re, im = cos * sums[..., 0] - sin * sums[..., 1], cos * sums[..., 1] + sin * sums[..., 0]
        y = (C[..., 0] * re - C[..., 1] * im).sum(-1) + D * gated
        if info.gate is not None:
            y = y * silu(info.gate.to(wide))
        if counted.shape[1]:
            phase = counted[:, -1].clone()
        elif phase is None:
            phase = torch.zeros(final.shape[:-1], dtype=torch.int64, device=u.device)
        return mask_padding(y, info.valid).to(u.dtype), final, phase


def _counted(steps: Tensor, phase: Tensor | None, flags: Tensor | None) -> Tensor:
    """The running sum of steps (B, L, D, N) from `phase` on, from zero again where the state restarts."""
    total = torch.cumsum(steps, 1)
    started = total if phase is None else total + phase.unsqueeze(1)
    if flags is None or not steps.shape[1]:
        return started
    time = torch.arange(steps.shape[1], device=steps.device)
    restart = torch.where(flags == RESET, time, -1).cummax(1).values[..., None, None]
    before = (total - steps).gather(1, restart.clamp(min=0).expand_as(steps))
    return torch.where(restart >= 0, total - before, started)
