"""LinOSS (Rusch and Rus 2025, "Oscillatory state-space models"): a layer of forced harmonic oscillators.

    y'' = -A y + B u       (z, y)_k = M (z, y)_{k-1} + F (B u_k)       o_k = Re(C y_k) + skip u_k            (equations 1 to 6)

u: input (B, L, D). y: positions, z = y': velocities, (B, P), complex since B is. A: (P,), at least 0. B: (P, D), C: (D, P),
complex. dt: step sizes (P,). M, F: matrices of the step, see `longscan.numerics.oscillators`. A = relu(a), dt = sigmoid(s), with
a and s initially from U(0, 1).

The implicit step "im" dissipates energy. The symplectic step "imex" conserves it if dt^2 A < 4. Initial values satisfy this, but
A has no upper bound in training: then the states grow without bound in the authors' code, and this layer raises ValueError.
With elapsed times tau a step is dt tau long. B and C are not halves of conjugate pairs, so the real part of C y has no factor 2.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from longscan._types import PositiveInt
from longscan.layers._registry import LAYERS
from longscan.layers._settings import check_backend
from longscan.layers.base import SequenceInfo, SequenceLayer, mask_padding, start_state
from longscan.layers.checks import values_unavailable
from longscan.layers.parameters import mark
from longscan.layers.state import ScanState, State, no_sequence
from longscan.numerics.initialisers import uniform_fan_in
from longscan.numerics.oscillators import OscillatorRule, oscillator_step
from longscan.numerics.pairs import from_real, real_part
from longscan.ops import block2_scan
from longscan.ops.dispatch import Backend


@LAYERS.register("linoss")
class LinOSS(SequenceLayer):
    """Uncoupled oscillators driven by all channels; linear and time-invariant.

    Args:
        d_model: channels D.
        d_state: number of oscillators P.
        discretisation: "im", implicit, or "imex", alternately implicit and explicit.
        backend: of `longscan.ops.block2_scan`.

    With "imex" an unstable step raises ValueError, except in compiled graphs and transforms, where values are not available.
    The state is `ScanState` with ssm (B, P, 2, 2): velocity and position, real and imaginary part.
    """

    context_parallel = True
    time_invariant = True
    op_names = ("block2_scan",)

    def __init__(
        self,
        d_model: PositiveInt,
        *,
        d_state: PositiveInt = 64,
        discretisation: OscillatorRule = "im",
        backend: Backend = "auto",
    ) -> None:
        super().__init__()
        self.d_model, self.d_state, self.backend = d_model, d_state, backend
        self.discretisation: OscillatorRule = discretisation

        self.A, self.dt = (mark(nn.Parameter(torch.rand(d_state)), "ssm", decay=False, keep_float32=True) for _ in range(2))
        self.B = mark(nn.Parameter(uniform_fan_in(d_state, d_model, 2, fan_in=d_model)), "ssm")
        self.C = mark(nn.Parameter(uniform_fan_in(d_model, d_state, 2, fan_in=d_state)), "ssm")
        self.D = mark(nn.Parameter(torch.randn(d_model)), "ssm", keep_float32=True)
        check_backend(self, backend)

    def forward_impl(self, x: Tensor, state: State, info: SequenceInfo) -> tuple[Tensor, State]:
        """Return the outputs (B, L, D) and the state after the last step by the equations at the top of the file."""
        initial, last_seq_idx = start_state(state, x.shape[0], info, x.device)
        stiffness, dt = relu(self.A), self.dt.sigmoid()
        if info.elapsed is not None:
            dt = dt * info.elapsed.unsqueeze(-1).to(dt.dtype)
        self._check_stability(stiffness, dt, "A" if info.elapsed is None else "elapsed")
        M, F = oscillator_step(stiffness, dt, self.discretisation)
        drive = from_real(x, self.B).to(F.dtype)
        states, ssm = block2_scan(
            M,
            F.unsqueeze(-1) * drive.unsqueeze(-2),
            initial,
            valid=info.valid,
            seq_idx=info.seq_idx,
            pairs=True,
            backend=self.backend,
        )
        y = real_part(states[..., 1, :], self.C) + (self.D * x).to(x.dtype)
        return mask_padding(y, info.valid), ScanState(ssm, last_seq_idx)

    def _check_stability(self, stiffness: Tensor, dt: Tensor, name: str) -> None:
        """Raise ValueError if a step of the symplectic rule is unstable; not checked where values are unavailable."""
        if self.discretisation == "im" or values_unavailable(dt) or dt.device.type == "meta" or not dt.numel():
            return
        largest = (dt.square() * stiffness).max().item()
        if largest >= 4:
            raise ValueError(
                f"`{name}` must be such that dt^2 A < 4, where 'imex' is stable ('im' always is), got dt^2 A = {largest:.3g}"
            )

    def initial_state(self, batch: int) -> ScanState:
        """Return zeros: ssm (batch, P, 2, 2)."""
        ssm = torch.zeros(batch, self.d_state, 2, 2, dtype=self.state_dtype, device=self.device)
        return ScanState(ssm, no_sequence(batch, self.device))
