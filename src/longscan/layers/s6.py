"""S6, the selective state space model of Mamba (Gu and Dao 2023, algorithm 2), with real or complex diagonal A.

    (q_t, B_t, C_t) = W_x u_t           Delta_t = softplus(W_D q_t + bias)       (times the elapsed time)
    h_t = e^{Delta_t A} h_{t-1} + Delta_t B_t u_t       y_t = C_t h_t + skip u_t,  times silu(gate_t)

u: input (B, L, D). h: state (B, D, N). A: (D, N), with negative real part. B_t, C_t: (B, L, N). Delta: (B, L, D).
R: rank of the map to Delta. A is discretised by zero-order hold and B by Euler's rule, as in the authors' code. The paper writes
zero-order hold for both, which `discretisation="zoh"` computes: (e^{Delta_t A} - 1) / A B_t u_t in place of Delta_t B_t u_t. This
factor differs between channels and states, so that this form runs by `longscan.ops.linear_scan`, several times slower.

The defaults are the authors' initialisation: A = -(1..N), Delta log-uniform by its bias, skip 1. The hybrid models of the AUSSM
paper use a variant with three options: `dt_init="linear"` initialises the map to Delta as an ordinary linear map, `dt_bias_twice`
adds its bias twice, `activates_input` computes q, B and C from the input and scans SiLU of the input. With `complex_state`
A = -1/2 + i pi n and y = 2 Re(C h), where N counts conjugate pairs; the authors' op allows this, but no released model uses it.
With `complex_state="A"` only A is complex and B and C are real, as the parameter counts of "Long range tasks with Mamba" imply.
"""

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, silu, softplus

from longscan._tensor_types import OptionalTensor
from longscan._types import PositiveFloat, PositiveInt
from longscan.layers._registry import LAYERS
from longscan.layers._settings import check_backend
from longscan.layers.base import SequenceInfo, SequenceLayer, mask_padding, start_state
from longscan.layers.parameters import float32_parameter, mark
from longscan.layers.state import ScanState, State, no_sequence
from longscan.numerics.initialisers import diagonal_eigenvalues, uniform_fan_in
from longscan.numerics.pairs import constant, divide, exponential_minus_one, multiply
from longscan.numerics.timescales import initial_dt
from longscan.ops import selective_scan
from longscan.ops.arguments import step_flags, without_autocast
from longscan.ops.chunks import scan_chunks
from longscan.ops.dispatch import Backend, resolve
from longscan.ops.linear_scan import NATIVE_BACKENDS, run_backend
from longscan.ops.pieces import scan_piece, sum_steps
from longscan.ops.selective_scan import decay_map
from longscan.ops.selective_scan.reference import step_sizes


@LAYERS.register("s6")
class S6(SequenceLayer):
    """A diagonal recurrence whose step size, input and output maps depend on the input.

    Args:
        d_model: channels D.
        d_state: number of states N per channel (of conjugate pairs with `complex_state`).
        dt_rank: rank R of the map to Delta; None for D / 16, rounded up.
        dt_min, dt_max: initial range of Delta with dt_init="mamba".
        dt_init: "mamba", or "linear" for weights and bias from U(-R^-1/2, R^-1/2).
        dt_bias_twice: add the bias of Delta twice.
        activates_input: compute Delta, B and C from x, and scan silu(x).
        complex_state: True for complex A, B and C; "A" for complex A and real B and C.
        discretisation: of B, "euler" or "zoh", zero-order hold; A has zero-order hold in both cases.
        backend: of `longscan.ops.selective_scan`, or with zero-order hold of `longscan.ops.linear_scan`.

    Elapsed time multiplies Delta. The state is `ScanState` with ssm (B, D, N), or (B, D, N, 2) with `complex_state`.
    """

    fuses_gate = True
    context_parallel = True
    op_names = ("selective_scan",)

    def __init__(
        self,
        d_model: PositiveInt,
        *,
        d_state: PositiveInt = 16,
        dt_rank: PositiveInt | None = None,
        dt_min: PositiveFloat = 1e-3,
        dt_max: PositiveFloat = 0.1,
        dt_init: Literal["mamba", "linear"] = "mamba",
        dt_bias_twice: bool = False,
        activates_input: bool = False,
        complex_state: bool | Literal["A"] = False,
        discretisation: Literal["euler", "zoh"] = "euler",
        backend: Backend = "auto",
    ) -> None:
        super().__init__()
        rank = math.ceil(d_model / 16) if dt_rank is None else dt_rank
        self.d_model, self.d_state, self.dt_rank = d_model, d_state, rank
        self.dt_bias_twice, self.activates_input, self.complex_state = dt_bias_twice, activates_input, bool(complex_state)
        self.complex_maps = complex_state is True
        self.discretisation, self.backend = discretisation, backend
        if discretisation == "zoh":
            self.op_names = ("linear_scan",)
        dtype = torch.get_default_dtype()

        dt_bias = initial_dt((d_model,), dt_min, dt_max, stored_as="softplus") if dt_init == "mamba" else None
        numbers = 2 if self.complex_maps else 1
        self.x_proj = mark(nn.Parameter(uniform_fan_in(rank + 2 * numbers * d_state, d_model, fan_in=d_model)), "selector")
        self.dt_proj = mark(nn.Parameter(uniform_fan_in(d_model, rank, fan_in=rank)), "selector")
        self.dt_bias = float32_parameter(uniform_fan_in(d_model, fan_in=rank) if dt_bias is None else dt_bias, "selector")
        if complex_state:
            eigenvalues = diagonal_eigenvalues(2 * d_state, "lin").to(dtype).expand(d_model, d_state, 2)
            self.A_log = float32_parameter((-eigenvalues[..., 0]).log())
            self.A_imag: nn.Parameter | None = float32_parameter(eigenvalues[..., 1])
        else:
            self.A_log = float32_parameter(torch.arange(1, d_state + 1).to(dtype).log().repeat(d_model, 1))
            self.register_parameter("A_imag", None)
        self.D = float32_parameter(torch.ones(d_model))
        check_backend(self, backend)

    def eigenvalues(self) -> Tensor:
        """Return A: real (D, N), or pairs (D, N, 2) if the state is complex."""
        real = -self.A_log.exp()
        return real if self.A_imag is None else torch.stack([real, self.A_imag], -1)

    def select(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return Delta (..., D) before bias and softplus, and B and C (..., N[, 2]), for inputs x (..., D)."""
        numbers = 2 * self.d_state if self.complex_maps else self.d_state
        q, B, C = torch.split(linear(x, self.x_proj), [self.dt_rank, numbers, numbers], -1)
        if self.complex_maps:
            B, C = (part.reshape(*x.shape[:-1], self.d_state, 2) for part in (B, C))
        elif self.complex_state:
            B, C = (torch.stack([part, torch.zeros_like(part)], -1) for part in (B, C))
        return linear(q, self.dt_proj), B, C

    def forward_impl(self, x: Tensor, state: State, info: SequenceInfo) -> tuple[Tensor, State]:
        """Return the outputs (B, L, D) and the state after the last step by the equations at the top of the file."""
        return self.scan(x, self.select(x), state, info)

    def map_values(self, x: Tensor, values: Tensor, state: State, info: SequenceInfo) -> Tensor:
        """See `SequenceLayer.map_values`; of SiLU, x sigmoid(x), the sigmoid is a coefficient."""
        u = values * torch.sigmoid(x) if self.activates_input else values
        return self.scan_activated(u, self.select(x), state, info)[0]

    def scan(self, x: Tensor, selected: tuple[Tensor, Tensor, Tensor], state: State, info: SequenceInfo) -> tuple[Tensor, State]:
        """Return the outputs and the final state for inputs x (B, L, D) with given Delta, B and C.

        selected: Delta (B, L, D) before bias and softplus, B and C, as `select` returns them, of x or of another sequence.
        """
        return self.scan_activated(silu(x) if self.activates_input else x, selected, state, info)

    def scan_activated(
        self, u: Tensor, selected: tuple[Tensor, Tensor, Tensor], state: State, info: SequenceInfo
    ) -> tuple[Tensor, State]:
        """Return what `scan` returns, for inputs u (B, L, D) after the activation."""
        initial, last_seq_idx = start_state(state, u.shape[0], info, u.device)
        dt, B, C = selected
        dt_bias = 2 * self.dt_bias if self.dt_bias_twice else self.dt_bias
        if self.discretisation == "zoh":
            y, ssm = self._scan_with_hold(u, (dt, B, C), dt_bias, initial, info)
            return y, ScanState(ssm, last_seq_idx)
        y, ssm = selective_scan(
            u,
            dt,
            self.eigenvalues(),
            B,
            C,
            self.D,
            info.gate,
            dt_bias,
            initial,
            dt_softplus=True,
            dt_scale=info.elapsed,
            valid=info.valid,
            seq_idx=info.seq_idx,
            backend=self.backend,
        )
        return y, ScanState(ssm, last_seq_idx)

    def _scan_with_hold(
        self,
        u: Tensor,
        selected: tuple[Tensor, Tensor, Tensor],
        dt_bias: Tensor,
        initial: Tensor | None,
        info: SequenceInfo,
    ) -> tuple[Tensor, Tensor]:
        """Return the gated outputs and the final state with zero-order hold. Memory is bounded by a chunk of steps.

        initial: the state before the first step; None for zeros.
        """
        wide, length = self.state_dtype, u.shape[1]
        A, is_complex = self.eigenvalues(), self.complex_state
        flags = step_flags(u.shape[0], length, info.valid, info.seq_idx, u)
        backend = resolve("linear_scan", self.backend, u.to(wide), NATIVE_BACKENDS)
        start = self.initial_state(u.shape[0]).ssm if initial is None else initial

        def chunk(
            u: Tensor,
            dt: Tensor,
            B: Tensor,
            C: Tensor,
            elapsed: OptionalTensor,
            flags: OptionalTensor,
            A: Tensor,
            dt_bias: Tensor,
            state: Tensor,
        ) -> tuple[Tensor, Tensor]:
            dt = softplus(dt + dt_bias)
            if elapsed is not None:
                dt = dt * elapsed.unsqueeze(-1).to(wide)
            if is_complex:
                less_one = exponential_minus_one(A * dt[..., None, None])
                a, drive = less_one + constant(less_one, 1.0, 0.0), multiply(divide(less_one, A), B.unsqueeze(2))
                drive = drive * u[..., None, None]
            else:
                less_one = torch.expm1(A * dt.unsqueeze(-1))
                a, drive = less_one + 1, less_one / A * B.unsqueeze(2) * u.unsqueeze(-1)
            h, state = run_backend(a, drive, state, flags, False, is_complex, backend, info.seq_idx is not None)
            products = multiply(h, C.unsqueeze(2))[..., 0] * 2 if is_complex else h * C.unsqueeze(2)
            return products.sum(-1), state

        with without_autocast(u):
            u_wide, steps = u.to(wide), [part.to(wide) for part in selected]
            y, ssm = scan_piece(
                lambda state: scan_chunks(chunk, (u_wide, *steps, info.elapsed, flags), (A, dt_bias), state, empty=u_wide),
                start,
                flags,
                lambda: decay_map(sum_steps(step_sizes(steps[0], dt_bias, info.elapsed, True), flags).to(wide), A),
            )
            y = y + self.D * u_wide
            y = y if info.gate is None else y * silu(info.gate.to(wide))
        return mask_padding(y, info.valid).to(u.dtype), ssm

    def initial_state(self, batch: int) -> ScanState:
        """Return zeros: ssm (batch, D, N), with a last axis of 2 where the state is complex."""
        shape = (batch, self.d_model, self.d_state) + ((2,) if self.complex_state else ())
        return ScanState(torch.zeros(shape, dtype=self.state_dtype, device=self.device), no_sequence(batch, self.device))
