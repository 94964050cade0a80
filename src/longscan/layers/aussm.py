"""AUSSM, from "Bridging Expressivity and Scalability with Adaptive Unitary SSMs" (2025, equations 8-19).

    q_t = W_x u_t                       Delta_t = softplus(W_D q_t + bias)       (times the elapsed time)
    theta_t = W u_t / sqrt(D) + beta    h_t = e^{i theta_t} h_{t-1} + Delta_t B silu(u_t)
    y_t = Re sum_n C h_t + skip silu(u_t),  times silu(gate_t)

u: input (B, L, D). theta: angles (B, L, D, N). h: state (B, D, N), complex. Delta: step sizes (B, L, D). W: (D, N, D).
beta: (D, N). B, C: softplus(magnitude) e^{i phase}, (N,) shared by the channels. R: rank of the map to Delta.

By default the layer computes what the authors' released code computes. Options for what the paper states, or for what may not be
intended in the code: with `phase_dt` Delta multiplies the angle (equations 10-19); `dt_bias_twice=False` adds the bias of Delta
once (the code adds it twice); `phase_scale="one"` omits the factor 1/sqrt(D) (the paper has none); with `shared=False` each
channel has separate B and C. `angle_spread=s` samples W from U(-s, s) instead of U(-1/sqrt(D), 1/sqrt(D)), with which training
finds exact rotations sooner. `phase_grid=Q` rounds every angle to a multiple of 2 pi / Q and adds the multiples as integers:
errors of the angle below pi / Q have no effect at any length. The gradient is that without the rounding.
"""

import math
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, silu, softplus

from longscan._types import PositiveFloat, PositiveInt, at_least
from longscan.layers._registry import LAYERS
from longscan.layers._settings import check_backend
from longscan.layers.base import SequenceInfo, SequenceLayer, mask_padding, start_state
from longscan.layers.parameters import mark
from longscan.layers.state import PhaseState, ScanState, State, no_sequence, restarted_rows, zero_rows
from longscan.numerics.initialisers import complex_normal
from longscan.numerics.pairs import multiply, polar
from longscan.ops import linear_scan, unitary_scan
from longscan.ops.dispatch import Backend

AtLeastTwo = Annotated[int, at_least(2)]


@LAYERS.register("aussm")
class AUSSM(SequenceLayer):
    """Scan of a state that is rotated by input-dependent angles and neither decays nor grows without input.

    Args:
        d_model: channels D.
        d_state: number of states N per channel.
        dt_rank: rank R of the map to Delta; None for N.
        phase_dt: multiply the angle by Delta (and the elapsed time).
        dt_bias_twice: add the bias of Delta twice.
        phase_scale: "inverse_sqrt" divides the angle projection by sqrt(D), "one" does not.
        shared: whether all channels have the same B and C.
        angle_spread: bound s of the initial angle projection; None for 1/sqrt(D).
        phase_grid: number Q of grid angles in a full circle; None for no rounding, and with phase_dt.
        backend: backend of `longscan.ops.unitary_scan`, or of `linear_scan` with phase_grid.

    Elapsed time multiplies Delta. The state is `ScanState` with ssm (B, D, N, 2), or `PhaseState` with phase_grid.
    """

    context_parallel = True
    fuses_gate = True
    activates_input = True

    def __init__(
        self,
        d_model: PositiveInt,
        *,
        d_state: PositiveInt = 16,
        dt_rank: PositiveInt | None = None,
        phase_dt: bool = False,
        dt_bias_twice: bool = True,
        phase_scale: Literal["inverse_sqrt", "one"] = "inverse_sqrt",
        shared: bool = True,
        angle_spread: PositiveFloat | None = None,
        phase_grid: AtLeastTwo | None = None,
        backend: Backend = "auto",
    ) -> None:
        super().__init__()
        rank = d_state if dt_rank is None else dt_rank
        if phase_grid is not None and phase_dt:
            raise ValueError(f"`phase_grid` must be None with phase_dt=True, got {phase_grid}")
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
        """Return the outputs (B, L, D) and the state after the last step by the equations at the top of the file."""
        initial: Any
        if self.phase_grid is None or state is None:
            initial, last_seq_idx = start_state(state, x.shape[0], info, x.device)
        else:
            rows, last_seq_idx = restarted_rows(state.last_seq_idx, info.valid, info.seq_idx)
            initial = (zero_rows(rows, state.ssm), zero_rows(rows, state.phase))
        dt = self._step_sizes(x, info)
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

    def _step_sizes(self, x: Tensor, info: SequenceInfo) -> Tensor:
        """Return dt (B, L, D) for inputs x (B, L, D)."""
        raw = linear(linear(x, self.x_proj), self.dt_proj).to(self.dt_bias.dtype)
        dt = softplus(raw + (2 * self.dt_bias if self.dt_bias_twice else self.dt_bias))
        return dt if info.elapsed is None else dt * info.elapsed.unsqueeze(-1).to(dt.dtype)

    def map_values(self, x: Tensor, values: Tensor, state: State, info: SequenceInfo) -> Tensor:
        """See `SequenceLayer.map_values`; of SiLU, x sigmoid(x), the sigmoid is a coefficient.

        `unitary_scan` computes angles and values from one input. So a `linear_scan` runs here, which stores all states.
        """
        initial, _ = start_state(state, x.shape[0], info, x.device)
        dt, angle = self._step_sizes(x, info), self.angles(x)
        if self.phase_grid is not None:
            spacing = 2 * math.pi / self.phase_grid
            angle = torch.round(angle / spacing) * spacing
            if initial is not None:
                initial = multiply(polar(torch.ones_like(initial[..., 0]), spacing * state.phase.to(dt.dtype)), initial)
        elif self.phase_dt:
            angle = angle * dt.unsqueeze(-1)
        B, C = (polar(softplus(pairs[..., 0]), pairs[..., 1]) for pairs in (self.B, self.C))
        u = values.to(dt.dtype) * torch.sigmoid(x.to(dt.dtype))
        states, _ = linear_scan(
            polar(torch.ones_like(angle), angle),
            (dt * u)[..., None, None] * B,
            initial,
            valid=info.valid,
            seq_idx=info.seq_idx,
            pairs=True,
            backend=self.backend,
        )
        y = multiply(states, C)[..., 0].sum(-1) + self.D * u
        y = y if info.gate is None else y * silu(info.gate.to(y.dtype))
        return mask_padding(y.to(x.dtype), info.valid)

    def initial_state(self, batch: int) -> ScanState | PhaseState:
        """Return zeros: ssm (batch, D, N, 2)."""
        ssm = torch.zeros(batch, self.d_model, self.d_state, 2, dtype=self.state_dtype, device=self.device)
        if self.phase_grid is not None:
            phase = torch.zeros(batch, self.d_model, self.d_state, dtype=torch.int64, device=self.device)
            return PhaseState(ssm, phase, no_sequence(batch, self.device))
        return ScanState(ssm, no_sequence(batch, self.device))
