"""x_t = a_t x_{t-1} + b_t as a loop over time: the definition of `linear_scan`."""

import torch
from torch import Tensor

from longscan.ops._arguments import INVALID, RESET


def linear_scan(a: Tensor, b: Tensor, initial_state: Tensor, flags: Tensor | None) -> tuple[Tensor, Tensor]:
    """The recurrence step by step.

    a: (B, L, *S) or (*S); b: (B, L, *S); initial_state: (B, *S); flags: (B, L) marks or None. Returns x (B, L, *S) and the
    final state (B, *S); x is 0 at invalid steps.
    """
    batch, length = b.shape[:2]
    steps = a.expand_as(b) if a.ndim == b.ndim - 2 else a
    per_row = (batch,) + (1,) * (b.ndim - 2)
    state, outputs = initial_state, []
    for t in range(length):
        if flags is None:
            state = steps[:, t] * state + b[:, t]
            outputs.append(state)
            continue
        invalid = (flags[:, t] == INVALID).view(per_row)
        before = torch.where((flags[:, t] == RESET).view(per_row), 0, state)
        state = torch.where(invalid, state, steps[:, t] * before + b[:, t])
        outputs.append(torch.where(invalid, 0, state))
    return (torch.stack(outputs, 1) if outputs else b.clone()), state.clone()
