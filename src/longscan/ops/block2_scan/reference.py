"""x_t = M_t x_{t-1} + f_t as a loop over time: the definition of `block2_scan`."""

import torch
from torch import Tensor

from longscan.ops.arguments import INVALID, RESET
from longscan.ops.tracing import fix_length


def block2_scan(M: Tensor, f: Tensor, initial_state: Tensor, flags: Tensor | None) -> tuple[Tensor, Tensor]:
    """The recurrence step by step; x, f and the state are 2 x K matrices, K = 2 for the two parts of complex numbers, else 1.

    M: (B, L, *S, 2, 2) or (*S, 2, 2); f: (B, L, *S, 2, K); initial_state: (B, *S, 2, K); flags: (B, L) marks or None. Returns
    x, shaped as f, 0 at invalid steps, and the final state.
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
        # an invalid step takes part with M = 1, f = 0, so that not even a NaN standing there reaches a gradient
        M_t, f_t = torch.where(invalid, torch.eye(2, dtype=M.dtype, device=M.device), M_t), torch.where(invalid, 0, f_t)
        state = torch.where(invalid, state, M_t @ torch.where(reset, 0, state) + f_t)  # 0 times an infinite entry is no 0
        outputs.append(torch.where(invalid, 0, state))
    return (torch.stack(outputs, 1) if outputs else f.clone()), state.clone()
