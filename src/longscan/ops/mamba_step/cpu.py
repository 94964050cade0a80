"""`mamba_step` by the compiled kernel of csrc/mamba_step.cpp: CPU tensors of one real dtype."""

import torch
from torch import Tensor

from longscan.ops import _native
from longscan.ops._cpu import addresses, threads_for
from longscan.ops.mamba_step.reference import Weights


def mamba_step(
    x: Tensor,
    conv_state: Tensor,
    ssm_state: Tensor,
    weights: Weights,
    elapsed: Tensor | None,
    active: Tensor | None,
    *,
    norm_eps: float,
    selects_raw: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return y (B, M) and the two states after the token; arguments as in `longscan.ops.mamba_step`."""
    x, conv_state, ssm_state = x.contiguous(), conv_state.contiguous(), ssm_state.contiguous()
    others = [None if value is None else value.contiguous() for value in (*weights, elapsed, active)]
    outputs = torch.empty_like(x), torch.empty_like(conv_state), torch.empty_like(ssm_state)
    _native.mamba_step_forward(
        *x.shape,
        *weights.conv_weight.shape,
        weights.dt_proj.shape[1],
        weights.A_log.shape[1],
        *addresses(x, conv_state, ssm_state, *others, *outputs),
        norm_eps,
        selects_raw,
        x.dtype == torch.float64,
        threads_for(len(x), len(x) * weights.in_proj.numel() // 4),  # one thread for a single row
    )
    return outputs
