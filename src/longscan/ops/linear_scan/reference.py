"""x_t = a_t x_{t-1} + b_t as a loop over time: the definition of `linear_scan`."""

import torch
from torch import Tensor

from longscan.ops.arguments import INVALID, RESET
from longscan.ops.tracing import fix_length


def linear_scan(a: Tensor, b: Tensor, initial_state: Tensor, flags: Tensor | None) -> tuple[Tensor, Tensor]:
    """Run the recurrence step by step, on real or complex tensors.

    a: (B, L, *S) or (*S); b: (B, L, *S); initial_state: (B, *S); flags: (B, L) from `step_flags`, or None. Returns x (B, L, *S)
    and the final state (B, *S); x is 0 at invalid steps.
    """
    b, length = fix_length(b)
    per_row = (b.shape[0],) + (1,) * (b.ndim - 2)
    state, outputs = initial_state, []
    for t in range(length):
        a_t, b_t = a[:, t] if a.ndim == b.ndim else a, b[:, t]
        if flags is None:
            state = a_t * state + b_t
            outputs.append(state)
            continue
        invalid, reset = (flags[:, t] == INVALID).view(per_row), (flags[:, t] == RESET).view(per_row)
        # an invalid step has a = 1 and b = 0, so that a NaN in its inputs reaches no gradient
        a_t, b_t = torch.where(invalid, 1, a_t), torch.where(invalid, 0, b_t)
        state = a_t * torch.where(reset, 0, state) + b_t
        outputs.append(torch.where(invalid, 0, state))
    return (torch.stack(outputs, 1) if outputs else b.clone()), state.clone()
