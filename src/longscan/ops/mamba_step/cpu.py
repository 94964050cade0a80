"""`mamba_step` by the compiled kernel of csrc/mamba_step.cpp: contiguous CPU tensors of one real dtype."""

import torch
from torch import Tensor

from longscan.ops import _native
from longscan.ops._cpu import addresses


def mamba_step(
    x: Tensor,
    conv_state: Tensor,
    ssm_state: Tensor,
    in_proj: Tensor,
    conv_weight: Tensor,
    conv_bias: Tensor | None,
    x_proj: Tensor,
    dt_proj: Tensor,
    dt_bias: Tensor,
    A_log: Tensor,
    D: Tensor | None,
    out_proj: Tensor,
    norm_weight: Tensor | None,
    elapsed: Tensor | None,
    active: Tensor | None,
    *,
    norm_eps: float,
    selects_raw: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return y (B, M) and the two states after the token; arguments as in `longscan.ops.mamba_step`."""
    outputs = torch.empty_like(x), torch.empty_like(conv_state), torch.empty_like(ssm_state)
    tensors = (x, conv_state, ssm_state, in_proj, conv_weight, conv_bias, x_proj, dt_proj, dt_bias, A_log, D, out_proj)
    _native.mamba_step_forward(
        *x.shape,
        *conv_weight.shape,
        dt_proj.shape[1],
        A_log.shape[1],
        *addresses(*tensors, norm_weight, elapsed, active, *outputs),
        norm_eps,
        selects_raw,
        x.dtype == torch.float64,
        torch.get_num_threads(),
    )
    return outputs
