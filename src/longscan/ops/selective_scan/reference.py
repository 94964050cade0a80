"""S6 as a loop over time: the definition of `selective_scan`.

Gu and Dao, "Mamba" (arXiv:2312.00752), section 3.2, with the simplified discretisation of its code: exact for A, Euler for B.
"""

import torch
from torch import Tensor
from torch.nn.functional import silu, softplus

from longscan.ops.arguments import flag_masks, zero_invalid
from longscan.ops.tracing import fix_length


def step_sizes(dt: Tensor, dt_bias: Tensor | None, dt_scale: Tensor | None, dt_softplus: bool) -> Tensor:
    """Return the step sizes (B, L, D) that multiply A and B: dt with bias, softplus and elapsed time (B, L), in this order."""
    dt = dt if dt_bias is None else dt + dt_bias
    dt = softplus(dt, threshold=40) if dt_softplus else dt  # beyond 40 the identity is exact in float64
    return dt if dt_scale is None else dt * dt_scale.unsqueeze(-1)


def selective_scan(
    u: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    dt_bias: Tensor | None,
    initial_state: Tensor,
    dt_scale: Tensor | None,
    flags: Tensor | None,
    *,
    dt_softplus: bool,
    paired: bool,
) -> tuple[Tensor, Tensor]:
    """Compute h_t = exp(dt_t A) h_{t-1} + dt_t B_t u_t and y_t = (C_t h_t + D u_t) silu(z_t), with dt as `step_sizes` returns it.

    u, dt, z: (B, L, D); A: (D, N); B, C: (B, L, N); D, dt_bias: (D,); initial_state: (B, D, N); dt_scale: (B, L). A, B, C and
    the state are all real or all complex. Returns y (B, L, D) and the final state (B, D, N).
    """
    u, dt, B, C, z, dt_scale = zero_invalid(flags, u, dt, B, C, z, dt_scale)
    u, length = fix_length(u)
    dt = step_sizes(dt, dt_bias, dt_scale, dt_softplus)
    state, outputs = initial_state, []
    for t in range(length):
        decay, input_term = torch.exp(dt[:, t, :, None] * A), (dt[:, t] * u[:, t]).unsqueeze(-1) * B[:, t, None]
        if flags is None:
            state = decay * state + input_term
        else:
            invalid, reset = (mask.unsqueeze(-1) for mask in flag_masks(flags[:, t], 2))
            state = torch.where(invalid, state, decay * torch.where(reset, 0, state) + input_term)
        y = (C[:, t, None] * state).sum(-1)
        outputs.append((2 * y.real if paired else y.real) if A.is_complex() else y)
    y = torch.stack(outputs, 1) if outputs else u.clone()
    y = y if D is None else y + D * u
    y = y if z is None else y * silu(z)
    return y if flags is None else torch.where(flag_masks(flags, 3)[0], 0, y), state.clone()
