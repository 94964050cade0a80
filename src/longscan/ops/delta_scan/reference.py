"""The gated delta rule as a loop over time: the definition of `delta_scan`.

Yang, Kautz and Hatamizadeh, "Gated Delta Networks: Improving Mamba2 with Delta Rule" (arXiv:2412.06464), section 3.1.
"""

import torch
from torch import Tensor

from longscan.ops.arguments import flag_masks, zero_invalid
from longscan.ops.tracing import fix_length


def delta_scan(
    v: Tensor, k: Tensor, q: Tensor, log_alpha: Tensor, beta: Tensor, initial_state: Tensor, flags: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Compute S_t = alpha_t S_{t-1} (I - beta_t k_t k_t^T) + beta_t v_t k_t^T and y_t = S_t q_t, with alpha = exp(log_alpha).

    v: (B, L, H, P); k, q: (B, L, H, N); log_alpha, beta: (B, L, H); initial_state: (B, H, P, N). Returns y (B, L, H, P) and the
    final state.
    """
    v, k, q, log_alpha, beta = zero_invalid(flags, v, k, q, log_alpha, beta)
    v, length = fix_length(v)
    alpha = log_alpha.exp()
    state, outputs = initial_state, []
    for t in range(length):
        before = state
        if flags is not None:
            before = torch.where(flag_masks(flags[:, t], 4)[1], 0, state)
        before = alpha[:, t, :, None, None] * before
        key = k[:, t, :, None]
        correction = beta[:, t].unsqueeze(-1) * (v[:, t] - (before * key).sum(-1))
        after = before + correction.unsqueeze(-1) * key
        state = after if flags is None else torch.where(flag_masks(flags[:, t], 4)[0], state, after)
        outputs.append((after * q[:, t, :, None]).sum(-1))
    y = torch.stack(outputs, 1) if outputs else v.clone()
    return y if flags is None else torch.where(flag_masks(flags, 4)[0], 0, y), state.clone()
