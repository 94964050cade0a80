"""AUSSM, from "Bridging Expressivity and Scalability with Adaptive Unitary SSMs" (2025, equations 8-19).

    q_t = W_x u_t                       Delta_t = softplus(W_D q_t + bias)       (times the elapsed time)
    theta_t = W u_t / sqrt(D) + beta    h_t = e^{i theta_t} h_{t-1} + Delta_t B silu(u_t)
    y_t = Re sum_n C h_t + skip silu(u_t),  times silu(gate_t)

u: input (B, L, D). theta: angles (B, L, D, N). h: state (B, D, N), complex. Delta: step sizes (B, L, D). W: (D, N, D).
beta: (D, N). B, C: softplus(magnitude) e^{i phase}, (N,) shared by the channels. R: rank of the map to Delta.

The defaults are what the authors' released code computes. Where the paper says otherwise, or where the code looks unintended:
`phase_dt` lets Delta multiply the angle (the paper's equations 10-19); `dt_bias_twice=False` adds the bias of Delta once (the
code adds it twice); `phase_scale="one"` drops the 1/sqrt(D) (the paper has none); `shared=False` gives each channel its own B
and C. `angle_spread=s` draws W from U(-s, s) instead of U(-1/sqrt(D), 1/sqrt(D)),
with which exact rotations are found sooner. `phase_grid=Q` rounds every angle to a multiple of 2 pi / Q and adds the multiples
as integers: errors of the angle below pi / Q have no effect at any length (the gradient is that without the rounding).
"""

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, softplus

from longscan.layers._registry import LAYERS
from longscan.layers._settings import check_backend
from longscan.layers.base import SequenceInfo, SequenceLayer, start_state
from longscan.layers.parameters import mark
from longscan.layers.state import PhaseState, ScanState, State, no_sequence, restarted_rows, zero_rows
from longscan.numerics.initialisers import complex_normal
from longscan.numerics.pairs import polar
from longscan.ops import unitary_scan


@LAYERS.register("aussm")
class AUSSM(SequenceLayer):
    """Scan of a state that is rotated by input-dependent angles and neither decays nor grows without input.

    Args:
        d_model: channels D.
        d_state: states per channel N.
        dt_rank: rank R of the map to Delta; None: N.
        phase_dt: Delta (and the elapsed time) multiplies the whole angle.
        dt_bias_twice: add the bias of Delta twice.
        phase_scale: "inverse_sqrt", the angle projection is divided by sqrt(D), or "one".
        shared: B and C are shared by the channels.
        angle_spread: None, or the s of U(-s, s) for the angle projection.
        phase_grid: None, or the number of steps in a turn that angles are rounded to; not with phase_dt.
        backend: of `longscan.ops.unitary_scan`; of `linear_scan` with phase_grid.

    Elapsed time multiplies Delta. The state is `ScanState` with ssm (B, D, N, 2), or `PhaseState` with phase_grid.
    """

    fuses_gate = True
    activates_input = True

    def __init__(
        self,
        d_model: int,
        *,
        d_state: int = 16,
        dt_rank: int | None = None,
        phase_dt: bool = False,
        dt_bias_twice: bool = True,
        phase_scale: Literal["inverse_sqrt", "one"] = "inverse_sqrt",
        shared: bool = True,
        angle_spread: float | None = None,
        phase_grid: int | None = None,
        backend: str = "auto",
    ) -> None:
        super().__init__()
        rank = d_state if dt_rank is None else dt_rank
        for name, size in (("d_model", d_model), ("d_state", d_state), ("dt_rank", rank)):
            if size < 1:
                raise ValueError(f"{name}: got {size}, expected at least 1")
        if phase_scale not in ("inverse_sqrt", "one"):
            raise ValueError(f"phase_scale: got {phase_scale!r}, expected 'inverse_sqrt' or 'one'")
        if angle_spread is not None and not angle_spread > 0:
            raise ValueError(f"angle_spread: got {angle_spread}, expected a positive number or None")
        if phase_grid is not None and (phase_grid < 2 or phase_dt):
            raise ValueError(f"phase_grid: got {phase_grid} with phase_dt={phase_dt}, expected at least 2 without phase_dt")
        self.d_model, self.d_state, self.phase_grid = d_model, d_state, phase_grid
        self.op_names = ("unitary_scan",) if phase_grid is None else ("linear_scan",)
        self.phase_dt, self.dt_bias_twice, self.backend = phase_dt, dt_bias_twice, backend
        self.phase_factor = 1 / math.sqrt(d_model) if phase_scale == "inverse_sqrt" else 1.0

        def uniform(*shape: int, bound: float) -> nn.Parameter:
            return nn.Parameter(torch.empty(shape).uniform_(-bound, bound))

        def coefficients() -> nn.Parameter:  # (..., 2): magnitude before the softplus, phase in radians
            values = complex_normal((d_state,) if shared else (d_model, d_state))
            return mark(nn.Parameter(values.to(torch.get_default_dtype())), "ssm", decay=False, keep_float32=True)

        spread = 1 / math.sqrt(d_model) if angle_spread is None else angle_spread
        self.x_proj = mark(uniform(rank, d_model, bound=1 / math.sqrt(d_model)), "selector")
        self.dt_proj = mark(uniform(d_model, rank, bound=1 / math.sqrt(rank)), "selector")
        self.dt_bias = mark(uniform(d_model, bound=1 / math.sqrt(rank)), "selector", decay=False, keep_float32=True)
        self.angle_proj = mark(uniform(d_model, d_state, d_model, bound=spread), "ssm", decay=False, keep_float32=True)
        self.angle_bias = mark(uniform(d_model, d_state, bound=math.pi), "ssm", decay=False, keep_float32=True)
        self.B = coefficients()
        self.C = coefficients()
        self.D = mark(nn.Parameter(torch.ones(d_model)), "ssm", decay=False, keep_float32=True)
        check_backend(self, backend)

    def angles(self, u: Tensor) -> Tensor:
        """Return theta (..., D, N) in radians for inputs u (..., D) to the scan, without a factor Delta."""
        return torch.einsum("...p,inp->...in", u.to(self.angle_bias.dtype), self.angle_proj * self.phase_factor) + self.angle_bias

    def forward_impl(self, x: Tensor, state: State, info: SequenceInfo) -> tuple[Tensor, State]:
        """Run the recurrence of the module docstring."""
        initial: Any
        initial, last_seq_idx = start_state(state, x.shape[0], info, x.device)
        if self.phase_grid is not None and state is not None:
            rows, _ = restarted_rows(state.last_seq_idx, info.valid, info.seq_idx)
            initial = (initial, zero_rows(rows, state.phase))
        raw = linear(linear(x, self.x_proj), self.dt_proj).to(self.dt_bias.dtype)
        dt = softplus(raw + (2 * self.dt_bias if self.dt_bias_twice else self.dt_bias))
        if info.elapsed is not None:
            dt = dt * info.elapsed.unsqueeze(-1).to(dt.dtype)
        B, C = (polar(softplus(pairs[..., 0]), pairs[..., 1]) for pairs in (self.B, self.C))
        y, final = unitary_scan(
            x,
            dt,
            self.angle_proj * self.phase_factor,
            self.angle_bias,
            B,
            C,
            self.D,
            info.gate,
            initial,
            phase_dt=self.phase_dt,
            phase_grid=self.phase_grid,
            valid=info.valid,
            seq_idx=info.seq_idx,
            backend=self.backend,
        )
        if self.phase_grid is None:
            return y, ScanState(final, last_seq_idx)
        ssm, phase = final
        return y, PhaseState(ssm, phase, last_seq_idx)

    def initial_state(self, batch: int) -> ScanState | PhaseState:
        """Return zeros: ssm (batch, D, N, 2)."""
        ssm = torch.zeros(batch, self.d_model, self.d_state, 2, dtype=self.state_dtype, device=self.device)
        if self.phase_grid is not None:
            phase = torch.zeros(batch, self.d_model, self.d_state, dtype=torch.int64, device=self.device)
            return PhaseState(ssm, phase, no_sequence(batch, self.device))
        return ScanState(ssm, no_sequence(batch, self.device))
