"""The causal convolution as a sum over the past, step by step: the definition of `long_conv`."""

import torch
from torch import Tensor

from longscan.ops.tracing import fix_length


def long_conv(u: Tensor, k: Tensor) -> Tensor:
    """Compute y_t = sum_{s<=t} k_{t-s} u_s. u: (B, L, D); k: (D, L); returns (B, L, D)."""
    u, length = fix_length(u)
    outputs = [(k[:, : t + 1].flip(1).T * u[:, : t + 1]).sum(1) for t in range(length)]
    return torch.stack(outputs, 1) if outputs else u.clone()
