"""LRU, the linear recurrent unit (Orvieto et al. 2023, "Resurrecting recurrent neural networks for long sequences").

    x_k = lambda * x_{k-1} + gamma * (B u_k)        y_k = Re(C x_k) + skip u_k        lambda = e^{-e^nu + i e^phi}

u: input (B, L, D). x: state (B, N), complex, shared by all channels. B: (N, D), C: (D, N), complex. gamma: (N,), real.

gamma is initially sqrt(1 - |lambda|^2), and its logarithm is trained. By default the initial lambda cover the disc |lambda| in
[0, 1] with any phase, as in the code of the works that compare with LRU; the paper's long-range runs take |lambda| near 1 and
small phases (r_min, r_max, max_phase). With elapsed time tau the factor of the state is e^{tau (-e^nu + i e^phi)}, and gamma is
unchanged.
"""

import torch
from torch import Tensor, nn

from longscan._types import FractionBelowOne, PositiveFloat, PositiveFraction, PositiveInt
from longscan.layers._registry import LAYERS
from longscan.layers._settings import check_backend
from longscan.layers.base import SequenceInfo, SequenceLayer, mask_padding, start_state
from longscan.layers.parameters import float32_parameter, mark
from longscan.layers.state import ScanState, State, no_sequence
from longscan.numerics.initialisers import complex_normal, ring
from longscan.numerics.pairs import exponential, from_real, real_part
from longscan.ops import linear_scan
from longscan.ops.dispatch import Backend


@LAYERS.register("lru")
class LRU(SequenceLayer):
    """One diagonal complex recurrence over all channels, linear and time-invariant.

    Args:
        d_model: channels D.
        d_state: complex states N.
        r_min, r_max: initial range of |lambda|.
        max_phase: largest initial phase of lambda, in radians.
        backend: of `longscan.ops.linear_scan`.

    The state is `ScanState` with ssm (B, N, 2). nu, phi and gamma learn at a quarter of the rate, without weight decay.
    """

    context_parallel = True
    time_invariant = True
    op_names = ("linear_scan",)

    def __init__(
        self,
        d_model: PositiveInt,
        *,
        d_state: PositiveInt = 64,
        r_min: FractionBelowOne = 0.0,
        r_max: PositiveFraction = 1.0,
        max_phase: PositiveFloat = 6.28,
        backend: Backend = "auto",
    ) -> None:
        super().__init__()
        self.d_model, self.d_state, self.backend = d_model, d_state, backend

        def parameter(values: Tensor) -> nn.Parameter:
            return nn.Parameter(values.to(torch.get_default_dtype()))

        nu, phi, log_gamma = ring(d_state, r_min, r_max, max_phase)
        self.nu = float32_parameter(nu, lr_scale=0.25)
        self.phi = float32_parameter(phi, lr_scale=0.25)
        self.log_gamma = float32_parameter(log_gamma, lr_scale=0.25)
        self.B = mark(parameter(complex_normal((d_state, d_model), variance=1 / d_model)), "ssm")
        self.C = mark(parameter(complex_normal((d_model, d_state), variance=2 / d_state)), "ssm")
        self.D = mark(parameter(torch.randn(d_model)), "ssm", keep_float32=True)
        check_backend(self, backend)

    def forward_impl(self, x: Tensor, state: State, info: SequenceInfo) -> tuple[Tensor, State]:
        """Return the outputs (B, L, D) and the state after the last step by the equations at the top of the file."""
        initial, last_seq_idx = start_state(state, x.shape[0], info, x.device)
        log_a = torch.stack([-self.nu.exp(), self.phi.exp()], -1)
        if info.elapsed is not None:
            log_a = info.elapsed[..., None, None].to(log_a.dtype) * log_a
        states, ssm = linear_scan(
            exponential(log_a),
            from_real(x, self.B).to(log_a.dtype) * self.log_gamma.exp().unsqueeze(-1),
            initial,
            valid=info.valid,
            seq_idx=info.seq_idx,
            pairs=True,
            backend=self.backend,
        )
        y = real_part(states, self.C) + (self.D * x).to(x.dtype)
        return mask_padding(y, info.valid), ScanState(ssm, last_seq_idx)

    def initial_state(self, batch: int) -> ScanState:
        """Return zeros: ssm (batch, N, 2)."""
        ssm = torch.zeros(batch, self.d_state, 2, dtype=self.state_dtype, device=self.device)
        return ScanState(ssm, no_sequence(batch, self.device))
