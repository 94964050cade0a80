"""Mamba-2's heads, from "Transformers are SSMs" (Dao and Gu 2024, sections 6 and 7).

    (B_t, C_t, dt_t) = W u_t        Delta_t = softplus(dt_t + bias)        (times the elapsed time)
    h_t = e^{Delta_t A} h_{t-1} + Delta_t u_t B_t^T         y_t = h_t C_t + skip u_t,  times silu(gate_t)

u: input (B, L, D) of H heads of width P, D = H P. h: state (B, H, P, N). A: (H,), negative, one for each head. Delta: (B, L, H).
B_t, C_t: (B, L, G, N), the same for all heads of one of G groups. skip: (H,).

In the paper's block one projection of the block's input computes u, B, C and dt together: `longscan.blocks.Mamba2Block`, which
uses the heads of this layer. The layer itself computes B, C and dt from its input u, as S6 does. `dt_limit` clamps Delta, an
option of the authors' code.
"""

from collections.abc import Sequence
from typing import Annotated

import torch
from torch import Tensor
from torch.nn.functional import softplus

from longscan._types import Number, PositiveFloat, PositiveInt, Rule
from longscan.layers._registry import LAYERS
from longscan.layers._settings import check_backend
from longscan.layers.base import SequenceInfo, start_state
from longscan.layers.heads import Heads, HeadsLayer
from longscan.layers.parameters import float32_parameter
from longscan.layers.state import ScanState, State
from longscan.numerics.timescales import initial_dt
from longscan.ops import ssd_scan
from longscan.ops.dispatch import Backend

StepSizeLimits = Annotated[
    Sequence[Number],
    Rule(lambda limits: len(limits) == 2 and 0 <= limits[0] < limits[1], "two step sizes, the smaller one first"),
]


class Mamba2Heads(Heads):
    """Heads of Mamba-2: parameters A, dt_bias and D, and their scan. Arguments as in `Mamba2`."""

    op_names = ("ssd_scan",)

    def __init__(
        self,
        d_model: int,
        d_state: int,
        head_dim: int | None,
        groups: int,
        dt_range: tuple[float, float],
        dt_limit: StepSizeLimits | None,
        backend: Backend,
    ) -> None:
        super().__init__(d_model, d_state, head_dim, groups, backend)
        self.dt_limit = dt_limit
        self.convolved = 2 * groups * d_state
        self.selected = self.convolved + self.heads
        self.A_log = float32_parameter(torch.empty(self.heads).uniform_(1, 16).log())
        self.dt_bias = float32_parameter(initial_dt((self.heads,), *dt_range, stored_as="softplus"), "selector")
        self.D = float32_parameter(torch.ones(self.heads))

    def forward_impl(self, x: Tensor, selected: Tensor, state: State, info: SequenceInfo) -> tuple[Tensor, State]:
        """Return the outputs (B, L, D) and the state after the last step by the equations at the top of the file."""
        initial, last_seq_idx = start_state(state, x.shape[0], info, x.device)
        size = self.groups * self.d_state
        B, C, dt = torch.split(selected, [size, size, self.heads], -1)
        dt = softplus(dt.to(self.dt_bias.dtype) + self.dt_bias)
        if self.dt_limit is not None:
            dt = dt.clamp(*self.dt_limit)
        if info.elapsed is not None:
            dt = dt * info.elapsed.unsqueeze(-1).to(dt.dtype)
        per_group = (*x.shape[:2], self.groups, self.d_state)
        y, ssm = ssd_scan(
            self.split(x),
            dt,
            -self.A_log.exp(),
            B.reshape(per_group),
            C.reshape(per_group),
            self.D,
            None if info.gate is None else self.split(info.gate),
            initial,
            valid=info.valid,
            seq_idx=info.seq_idx,
            backend=self.backend,
        )
        return y.flatten(2), ScanState(ssm, last_seq_idx)


@LAYERS.register("mamba2")
class Mamba2(HeadsLayer):
    """Heads with a matrix state and one decay per head, computed by matrix products.

    Args:
        d_model: channels D.
        d_state: number of states N per channel.
        head_dim: channels P of a head; None for the largest divisor of D up to 64.
        groups: number G of groups of heads with the same B and C.
        dt_min, dt_max: initial range of Delta.
        dt_limit: smallest and largest Delta, to which it is clamped; None for no limits.
        backend: of `longscan.ops.ssd_scan`.

    Elapsed time multiplies Delta. The state is `ScanState` with ssm (B, H, P, N).
    """

    def __init__(
        self,
        d_model: PositiveInt,
        *,
        d_state: PositiveInt = 128,
        head_dim: PositiveInt | None = None,
        groups: PositiveInt = 1,
        dt_min: PositiveFloat = 1e-3,
        dt_max: PositiveFloat = 0.1,
        dt_limit: StepSizeLimits | None = None,
        backend: Backend = "auto",
    ) -> None:
        super().__init__(Mamba2Heads(d_model, d_state, head_dim, groups, (dt_min, dt_max), dt_limit, backend))
        check_backend(self, backend)
