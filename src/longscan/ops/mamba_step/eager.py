"""`mamba_step` in plain torch: matrix products of torch and elementwise operations on the states."""

import torch
from torch import Tensor
from torch.nn.functional import linear, rms_norm, silu, softplus

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
    in_proj, conv_weight, conv_bias, x_proj, dt_proj, dt_bias, A_log, D, out_proj, norm_weight = weights
    states = A_log.shape[1]
    normed = x if norm_weight is None else rms_norm(x, (x.shape[-1],), norm_weight, norm_eps)
    u, z = linear(normed, in_proj).chunk(2, -1)
    window = torch.cat([conv_state, u.unsqueeze(-1)], -1)
    raw = (window * conv_weight).sum(-1)
    raw = raw if conv_bias is None else raw + conv_bias
    u = silu(raw)
    q, B, C = torch.split(linear(raw if selects_raw else u, x_proj), [dt_proj.shape[1], states, states], -1)
    dt = softplus(linear(q, dt_proj) + dt_bias, threshold=40)
    dt = dt if elapsed is None else dt * elapsed.unsqueeze(-1)
    decay = torch.exp(dt.unsqueeze(-1) * -A_log.exp())
    ssm = decay * ssm_state + (dt * u).unsqueeze(-1) * B.unsqueeze(1)
    out = (ssm * C.unsqueeze(1)).sum(-1)
    out = out if D is None else out + D * u
    y, conv = linear(out * silu(z), out_proj), window[..., 1:].clone()
    if active is not None:
        y = torch.where(active[:, None], y, 0)
        conv, ssm = (torch.where(active[:, None, None], new, old) for new, old in ((conv, conv_state), (ssm, ssm_state)))
    return (y if norm_weight is None else x + y), conv, ssm
