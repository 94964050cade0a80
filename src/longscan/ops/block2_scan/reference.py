"""x_t = M_t x_{t-1} + f_t as a loop over time: the definition of `block2_scan`."""

import torch
from torch import Tensor

from longscan.ops.arguments import INVALID, RESET
from longscan.ops.tracing import fix_length


def block2_scan(M: Tensor, f: Tensor, initial_state: Tensor, flags: Tensor | None) -> tuple[Tensor, Tensor]:
    """Run the recurrence step by step; x, f and the state are 2 x K matrices, K = 2 for complex numbers, otherwise 1.

    M: (B, L, *S, 2, 2) or (*S, 2, 2); f: (B, L, *S, 2, K); initial_state: (B, *S, 2, K); flags: (B, L) of `step_flags` or None.
    Returns x, shaped as f, 0 at invalid steps, and the final state.
    """
    f, length = fix_length(f)
    per_row = (f.shape[0],) + (1,) * (f.ndim - 2)
    state, outputs = initial_state, []
    for t in range(length):
        M_t, f_t = M[:, t] if M.ndim == f.ndim else M, f[:, t]
        if flags is None:
            state = M_t @ state + f_t
            outputs.append(state)
            continue
        invalid, reset = (flags[:, t] == INVALID).view(per_row), (flags[:, t] == RESET).view(per_row)
        # an invalid step has M = 1 and f = 0, so that a NaN in its inputs reaches no gradient
        M_t, f_t = torch.where(invalid, torch.eye(2, dtype=M.dtype, device=M.device), M_t), torch.where(invalid, 0, f_t)
        state = torch.where(invalid, state, M_t @ torch.where(reset, 0, state) + f_t)  # 0 times infinity would be NaN
        outputs.append(torch.where(invalid, 0, state))
    return (torch.stack(outputs, 1) if outputs else f.clone()), state.clone()
