"""One token through a Mamba block as the block computes it: the definition of `mamba_step`.

The convolution and the scan are the references of `short_conv` and `selective_scan` on rows of one step.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear, rms_norm, silu

from longscan.ops.arguments import step_flags
from longscan.ops.selective_scan.reference import selective_scan
from longscan.ops.short_conv.reference import short_conv


class Weights(NamedTuple):
    """The parameters of a block as tensors, shapes as in `longscan.ops.mamba_step`; None where the block has none."""

    in_proj: Tensor
    conv_weight: Tensor
    conv_bias: Tensor | None
    x_proj: Tensor
    dt_proj: Tensor
    dt_bias: Tensor
    A_log: Tensor
    D: Tensor | None
    out_proj: Tensor
    norm_weight: Tensor | None


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
    in_proj, conv_weight, conv_bias, x_proj, dt_proj, dt_bias, A_log, D, out_proj, norm_weight = weights
    rank, states = dt_proj.shape[1], A_log.shape[1]
    row = x.unsqueeze(1)  # (B, 1, M): one step
    flags = step_flags(x.shape[0], 1, None if active is None else active.unsqueeze(1), None, x)
    normed = row if norm_weight is None else rms_norm(row, norm_weight.shape, norm_weight, norm_eps)
    u, z = linear(normed, in_proj).chunk(2, -1)
    c, conv = short_conv(u, conv_weight, conv_bias, conv_state, flags, apply_silu=False)
    v = silu(c)
    q, B, C = torch.split(linear(c if selects_raw else v, x_proj), [rank, states, states], -1)
    dt_scale = None if elapsed is None else elapsed.unsqueeze(1)
    out, ssm = selective_scan(
        v, linear(q, dt_proj), -A_log.exp(), B, C, D, z, dt_bias, ssm_state, dt_scale, flags, dt_softplus=True, paired=False
    )
    y = linear(out, out_proj).squeeze(1)
    return (y if norm_weight is None else x + y), conv, ssm
