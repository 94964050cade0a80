"""The causal depthwise convolution over a sliding window, step by step: the definition of `short_conv`."""

import torch
from torch import Tensor
from torch.nn.functional import silu

from longscan.ops.arguments import flag_masks, zero_invalid
from longscan.ops.tracing import fix_length


def short_conv(
    u: Tensor, weight: Tensor, bias: Tensor | None, initial_state: Tensor, flags: Tensor | None, *, apply_silu: bool
) -> tuple[Tensor, Tensor]:
    """Compute y_t = bias + sum_k weight[:, k] u_{t-(K-1)+k} over the valid steps of one segment, with SiLU if `apply_silu`.

    u: (B, L, D); weight: (D, K); bias: (D,); initial_state: (B, D, K-1), the inputs before the first step, oldest first; flags:
    (B, L) from `step_flags`, or None. Returns y (B, L, D) and the last K-1 inputs (B, D, K-1).
    """
    (u,) = zero_invalid(flags, u)
    u, length = fix_length(u)
    state, outputs = initial_state, []
    for t in range(length):
        invalid, reset = (None, None) if flags is None else (mask.unsqueeze(-1) for mask in flag_masks(flags[:, t], 2))
        before = state if reset is None else torch.where(reset, 0, state)
        window = torch.cat([before, u[:, t, :, None]], -1)
        y = (window * weight).sum(-1)
        y = y if bias is None else y + bias
        y = silu(y) if apply_silu else y
        state = window[..., 1:] if invalid is None else torch.where(invalid, state, window[..., 1:])
        outputs.append(y if invalid is None else torch.where(invalid[..., 0], 0, y))
    return (torch.stack(outputs, 1) if outputs else u.clone()), state.clone()
