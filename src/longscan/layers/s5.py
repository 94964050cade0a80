"""S5 (Smith, Warrington and Linderman 2023, "Simplified state space layers for sequence modeling").

    x' = Lambda x + B u       x_k = a x_{k-1} + g (B u_k)       y_k = 2 Re(C x_k) + skip u_k            (equations 2, 5 and 6)

u: input (B, L, D). x: state (B, P/2), complex, one of each conjugate pair, shared by all channels. Lambda: eigenvalues (P/2,).
B: (P/2, D), C: (D, P/2), complex. dt: step sizes (P/2,), one for each state. a, g: discretised Lambda and input factor. J: number
of blocks.

Initially the system consists of J copies of HiPPO-N, the normal part of HiPPO-LegS, of size P/J each, in their eigenbasis V:
B = V* B', C = C' V with random B' and C' (section 3.3). The discretisations are zero-order hold and the bilinear rule, and for
events "dirac" and "async" as in event-ssm (Schoene et al. 2024). With elapsed times tau a step is dt tau long. Without
`conjugate` x has all P states, and y_k = Re(C x_k).

Two initial values differ from the authors' code. B' has variance 1/D for any P (their initialiser takes the state as fan-in,
1/P). By default the real parts of Lambda are clipped at -1e-4, which is an option of theirs: without it training may make the
system unstable.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from longscan._types import PositiveFloat, PositiveInt
from longscan.layers._registry import LAYERS
from longscan.layers._settings import check_backend
from longscan.layers.base import SequenceInfo, SequenceLayer, mask_padding, start_state
from longscan.layers.parameters import float32_parameter, mark
from longscan.layers.state import ScanState, State, no_sequence
from longscan.numerics.discretisation import EventRule, discretise_events
from longscan.numerics.hippo import legs_basis
from longscan.numerics.initialisers import complex_normal
from longscan.numerics.pairs import from_real, multiply, real_part
from longscan.numerics.timescales import initial_dt
from longscan.ops import linear_scan
from longscan.ops.dispatch import Backend

LARGEST_REAL_PART = -1e-4


@LAYERS.register("s5")
class S5(SequenceLayer):
    """One diagonal complex system over all channels, initialised as blocks of HiPPO-N.

    Args:
        d_model: channels D.
        d_state: states P.
        blocks: number J of blocks of HiPPO-N in the initial system, a divisor of P.
        conjugate: compute one state of each conjugate pair; P / J must be even.
        discretisation: "zoh", "bilinear", "dirac" or "async".
        c_init: "lecun", C = C' V with both parts of C' of variance 1/P, or "complex_normal", C of variance 1.
        clip: clip the real parts of the eigenvalues at -1e-4.
        dt_min, dt_max: initial range of dt, log-uniform.
        backend: of `longscan.ops.linear_scan`.

    The state is `ScanState` with ssm (B, P/2, 2), (B, P, 2) without `conjugate`. Eigenvalues, dt and B learn at a quarter of the
    rate, without weight decay.
    """

    context_parallel = True
    time_invariant = True
    op_names = ("linear_scan",)

    def __init__(
        self,
        d_model: PositiveInt,
        *,
        d_state: PositiveInt = 64,
        blocks: PositiveInt = 1,
        conjugate: bool = True,
        discretisation: EventRule = "zoh",
        c_init: Literal["lecun", "complex_normal"] = "lecun",
        clip: bool = True,
        dt_min: PositiveFloat = 1e-3,
        dt_max: PositiveFloat = 0.1,
        backend: Backend = "auto",
    ) -> None:
        super().__init__()
        if d_state % blocks:
            raise ValueError(f"`blocks` must divide d_state ({d_state}), got {blocks}")
        if conjugate and d_state // blocks % 2:
            raise ValueError(f"`d_state` must be even in each of the {blocks} blocks (conjugate pairs), got {d_state}")
        self.d_model, self.conjugate, self.clip, self.backend = d_model, conjugate, clip, backend
        self.discretisation: EventRule = discretisation
        eigenvalues, vectors = legs_basis(d_state // blocks, pairs=conjugate)
        n_states = blocks * len(eigenvalues)  # P/2, or P without `conjugate`
        B_real = torch.randn(blocks, d_state // blocks, d_model, dtype=torch.float64) / d_model**0.5  # B', block by block
        B = torch.einsum("rk,jrd->jkd", vectors.conj(), B_real.to(vectors.dtype)).flatten(0, 1)  # (P/2, D)
        if c_init == "lecun":
            C_full = torch.view_as_complex(complex_normal((d_model, blocks, d_state // blocks), variance=2 / d_state))  # C'
            C = torch.view_as_real(torch.einsum("djr,rk->djk", C_full, vectors).flatten(1))  # (D, P/2, 2)
        else:
            C = complex_normal((d_model, n_states))

        def parameter(values: Tensor) -> nn.Parameter:
            return nn.Parameter(values.to(torch.get_default_dtype()).clone())

        self.A_real = float32_parameter(eigenvalues.real.repeat(blocks), lr_scale=0.25)
        self.A_imag = float32_parameter(eigenvalues.imag.repeat(blocks), lr_scale=0.25)
        self.log_dt = float32_parameter(initial_dt((n_states,), dt_min, dt_max, stored_as="log"), lr_scale=0.25)
        self.B = mark(parameter(torch.view_as_real(B)), "ssm", lr_scale=0.25, decay=False)
        self.C = mark(parameter(C), "ssm")
        self.D = mark(parameter(torch.randn(d_model)), "ssm", keep_float32=True)
        check_backend(self, backend)

    def eigenvalues(self) -> Tensor:
        """Return the eigenvalues Lambda as pairs (P/2, 2), or (P, 2) without `conjugate`."""
        return torch.stack([self.A_real.clamp(max=LARGEST_REAL_PART) if self.clip else self.A_real, self.A_imag], -1)

    def forward_impl(self, x: Tensor, state: State, info: SequenceInfo) -> tuple[Tensor, State]:
        """Return the outputs (B, L, D) and the state after the last step by the equations at the top of the file."""
        initial, last_seq_idx = start_state(state, x.shape[0], info, x.device)
        elapsed = None if info.elapsed is None else info.elapsed.unsqueeze(-1).to(self.log_dt.dtype)
        a, gamma = discretise_events(self.eigenvalues(), self.log_dt.exp(), elapsed, self.discretisation)
        states, ssm = linear_scan(
            a,
            multiply(gamma, from_real(x, self.B).to(gamma.dtype)),
            initial,
            valid=info.valid,
            seq_idx=info.seq_idx,
            pairs=True,
            backend=self.backend,
        )
        y = real_part(states, 2 * self.C if self.conjugate else self.C) + (self.D * x).to(x.dtype)
        return mask_padding(y, info.valid), ScanState(ssm, last_seq_idx)

    def initial_state(self, batch: int) -> ScanState:
        """Return zeros: ssm (batch, P/2, 2), (batch, P, 2) without `conjugate`."""
        ssm = torch.zeros(batch, len(self.log_dt), 2, dtype=self.state_dtype, device=self.device)
        return ScanState(ssm, no_sequence(batch, self.device))
