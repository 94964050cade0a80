"""Heads with a matrix state as a loop over time: the definition of `ssd_scan`.

Dao and Gu, "Transformers are SSMs" (arXiv:2405.21060), section 6: the recurrence that state space duality computes in blocks.
"""

import torch
from torch import Tensor
from torch.nn.functional import silu

from longscan.numerics.rotary import rotate_pairs
from longscan.ops.arguments import flag_masks, zero_invalid
from longscan.ops.tracing import fix_length


def repeat_for_heads(part: Tensor, heads: int, bias: Tensor | None) -> Tensor:
    """Return B or C (B, L, G, N) repeated for the heads of each group, (B, L, H, N), plus the `bias` (H, N) of the heads."""
    part = part.repeat_interleave(heads // part.shape[2], 2)
    return part if bias is None else part + bias


def ssd_scan(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    initial_state: Tensor,
    input_scale: Tensor | None,
    own_scale: Tensor | None,
    angle: Tensor | None,
    B_bias: Tensor | None,
    C_bias: Tensor | None,
    flags: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Compute h_t = exp(dt_t A) R(angle_t) h_{t-1} + s_t x_t B_t^T and y_t = (h_t C_t + D x_t) silu(z_t), s = input_scale or dt.

    In y_t the input of the same step has the weight own_scale, if given. x, z: (B, L, H, P); dt, input_scale, own_scale:
    (B, L, H); A, D: (H,); B, C: (B, L, G, N), shared by the H / G heads of a group, which add their rows of the biases (H, N);
    angle: (B, L, H, R); initial_state: (B, H, P, N). R(angle) rotates the first R pairs of the N entries. Returns y and the final
    state.
    """
    x, dt, B, C, z, input_scale, own_scale, angle = zero_invalid(flags, x, dt, B, C, z, input_scale, own_scale, angle)
    x, length = fix_length(x)
    scale = dt if input_scale is None else input_scale
    B, C = repeat_for_heads(B, x.shape[2], B_bias), repeat_for_heads(C, x.shape[2], C_bias)
    state, outputs = initial_state, []
    for t in range(length):
        decay = torch.exp(dt[:, t] * A)[..., None, None]
        input_term = x[:, t].unsqueeze(-1) * B[:, t, :, None]
        before = state
        if flags is not None:
            before = torch.where(flag_masks(flags[:, t], 4)[1], 0, state)
        if angle is not None:
            before = rotate_pairs(before, angle[:, t, :, None])
        before = decay * before
        after = before + scale[:, t, :, None, None] * input_term
        seen = after if own_scale is None else before + own_scale[:, t, :, None, None] * input_term
        state = after if flags is None else torch.where(flag_masks(flags[:, t], 4)[0], state, after)
        outputs.append((seen * C[:, t, :, None]).sum(-1))
    y = torch.stack(outputs, 1) if outputs else x.clone()
    y = y if D is None else y + D.unsqueeze(-1) * x
    y = y if z is None else y * silu(z)
    return y if flags is None else torch.where(flag_masks(flags, 4)[0], 0, y), state.clone()
