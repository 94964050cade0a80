"""S4 (Gu, Goel and Re 2022, "Efficiently modeling long sequences with structured state spaces").

    x' = (Lambda - P P*) x + B u, sampled with step dt by the bilinear rule:
    x_k = a x_{k-1} + b u_k       y_k = 2 Re sum_n C x_k + skip u_k                                         (equations 1 to 3)

u: input (B, L, D). x: state (B, D, N/2), complex, one of each conjugate pair. Lambda: (D, N/2), diagonal. P: (D, N/2), the vector
of the rank-1 term. B, C: (D, N/2), complex. dt: (D,). a: a matrix for each channel, which couples all its states.

Initially Lambda - P P* is HiPPO-LegS in the eigenbasis of its normal part, B is that of HiPPO, and C is complex normal. Rows with
evenly spaced steps are convolved with the kernel of algorithm 1, whose Fourier transform is computed from four Cauchy sums and
Woodbury's identity. Single steps, elapsed times and packed rows run step by step, with one diagonal and one rank-1 product per
step (appendix C.2). The parameter is C, from which C (1 - a^L) is computed for each length L; the authors train the latter. So
kernel and steps agree at any length. Kernels are computed in float64. The phases of the eigenvectors are chosen such that B > 0,
where the authors' code clips B.
"""

import math
from typing import Literal

import torch
from torch import Tensor, nn

from longscan._tensor_types import OptionalTensor
from longscan._types import EvenInt, PositiveFloat, PositiveInt
from longscan.layers._registry import LAYERS
from longscan.layers._settings import check_backend
from longscan.layers.base import SequenceInfo
from longscan.layers.convolution import ConvolutionForm, ConvolutionLayer, count_map
from longscan.layers.parameters import float32_parameter, mark
from longscan.numerics.dense import decay, final_state
from longscan.numerics.dplr import bilinear_solver, bilinear_step, dense_step
from longscan.numerics.hippo import legs_dplr
from longscan.numerics.initialisers import complex_normal
from longscan.numerics.pairs import constant
from longscan.numerics.timescales import initial_dt
from longscan.ops import long_conv
from longscan.ops.arguments import carry_dtype, flag_masks, step_flags
from longscan.ops.chunks import run_chunk, scan_chunks
from longscan.ops.dispatch import Backend, plain_backend
from longscan.ops.dplr_spectrum import dplr_spectrum
from longscan.ops.pieces import PieceMap, count_steps, power
from longscan.ops.tracing import record_length

ALIASING = 1e-7  # factor with which step l + L of a float32 kernel is added to step l, see `S4.kernel`


@LAYERS.register("s4")
class S4(ConvolutionLayer):
    """One linear time-invariant system per channel, with a state matrix that is diagonal plus rank 1.

    Args:
        d_model: channels D.
        d_state: N, even: N/2 conjugate pairs per channel.
        n_ssm: number of different Lambda, P and B, which are repeated over the channels; a divisor of D; None for D.
        dt_min, dt_max: initial range of dt, log-uniform.
        D_init: initial skip, "normal" for a standard Gaussian as in the authors' code, or "ones".
        backend: backend of the convolution and of the sums of its kernel: "auto", "reference" or "eager". "auto" computes the
            sums by the native kernels of `longscan.ops.dplr_spectrum`; `longscan.ops.long_conv` has none.

    The state is `ScanState` with ssm (B, D, N/2, 2). Lambda, P, B and dt learn at a tenth of the rate, without weight decay.
    """

    op_names = ("long_conv",)

    def __init__(
        self,
        d_model: PositiveInt,
        *,
        d_state: EvenInt = 64,
        n_ssm: PositiveInt | None = None,
        dt_min: PositiveFloat = 1e-3,
        dt_max: PositiveFloat = 0.1,
        D_init: Literal["normal", "ones"] = "normal",
        backend: Backend = "auto",
    ) -> None:
        super().__init__()
        systems = d_model if n_ssm is None else n_ssm
        if d_model % systems:
            raise ValueError(f"`n_ssm` must divide d_model ({d_model}), got {systems}")
        self.d_model, self.d_state, self.backend = d_model, d_state, backend

        eigenvalues, low_rank, B = (torch.view_as_real(part).repeat(systems, 1, 1) for part in legs_dplr(d_state))
        self.A_log, self.A_imag = (
            float32_parameter((-eigenvalues[..., 0]).log(), lr_scale=0.1),
            float32_parameter(eigenvalues[..., 1], lr_scale=0.1),
        )
        self.P, self.B = float32_parameter(low_rank, lr_scale=0.1), float32_parameter(B, lr_scale=0.1)
        self.log_dt = float32_parameter(initial_dt((d_model,), dt_min, dt_max, stored_as="log"), lr_scale=0.1)
        C = complex_normal((d_model, d_state // 2)).to(torch.get_default_dtype())
        self.C = mark(nn.Parameter(C), "ssm", keep_float32=True)
        self.D = mark(nn.Parameter(torch.ones(d_model) if D_init == "ones" else torch.randn(d_model)), "ssm", keep_float32=True)
        check_backend(self, backend)

    def system(self, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        """Return Lambda, P and B of every channel in this dtype, each as pairs (D, N/2, 2)."""
        eigenvalues = torch.stack([-self.A_log.to(dtype).exp(), self.A_imag.to(dtype)], -1)
        repeats = self.d_model // len(self.P)
        first, second, third = (part.to(dtype).repeat(repeats, 1, 1) for part in (eigenvalues, self.P, self.B))
        return first, second, third

    def recur(self, u: Tensor, initial: Tensor, info: SequenceInfo, flags: Tensor | None) -> tuple[Tensor, Tensor]:
        """See `ConvolutionLayer.recur`."""
        eigenvalues, low_rank, B = self.system(u.dtype)
        readout = self.C * constant(self.C, 2.0, -2.0)

        def chunk(u: Tensor, elapsed: OptionalTensor, flags: OptionalTensor, state: Tensor) -> tuple[Tensor, Tensor]:
            u, length = record_length(u)
            dt = self.log_dt.exp()
            if elapsed is not None:
                dt = dt * elapsed.unsqueeze(-1).to(dt.dtype)
            diagonal, correction = bilinear_solver(eigenvalues, low_rank, dt)
            drive = (dt * u)[..., None, None] * B
            outputs = []
            for t in range(length):
                solver = (diagonal, correction) if elapsed is None else (diagonal[:, t], correction[:, t])
                before = state
                if flags is not None:
                    invalid, reset = flag_masks(flags[:, t], state.ndim)
                    before = torch.where(reset, 0, state)
                after = bilinear_step(solver, low_rank, before, drive[:, t])
                state = after if flags is None else torch.where(invalid, state, after)
                outputs.append((after * readout).sum((-2, -1)))
            return torch.stack(outputs, 1), state

        return scan_chunks(chunk, (u, info.elapsed, flags), (), initial, empty=u)

    def recurrence_map(self, u: Tensor, info: SequenceInfo) -> PieceMap:
        """See `ConvolutionLayer.recurrence_map`. Raises ValueError for elapsed times: their maps are dense matrices."""
        if info.elapsed is not None:
            raise ValueError("`elapsed` must be None for S4 inside `context_parallel`, got a tensor")
        batch, length, _ = u.shape
        flags = step_flags(batch, length, info.valid, None, u)
        return count_map(self.convolution_form(length), count_steps(flags, length, u))

    def kernel(self, length: int, A_bar: Tensor | None = None) -> Tensor:
        """Return the kernel K_l = 2 Re(C a^l b), (D, length), in float64 where the device supports it.

        A float32 layer computes the transform of K_l e^{-sigma l}, with e^{-sigma L} = `ALIASING`, instead of that of the kernel
        truncated after L steps, which needs the power a^L. The inverse transform then adds ALIASING K_{l+L} to K_l, and the
        factor e^{sigma l} multiplies rounding errors of float64 by at most 1 / ALIASING. Both errors are below the rounding of
        float32.

        A_bar: the matrices a (D, N, N) in real form, which other layers need; None to compute them.
        """
        length, wide = int(length), carry_dtype(self.C)  # a traced graph has a fixed length: the numbers below depend on it
        eigenvalues, low_rank, B = self.system(wide)
        dt, C = self.log_dt.to(wide).exp(), self.C.to(wide)
        damping = 0.0
        if self.C.dtype != wide:
            damping = -math.log(ALIASING) / length
        else:
            sign = constant(self.C, 1.0, -1.0)
            A_bar = dense_step(eigenvalues, low_rank, B, dt)[0] if A_bar is None else A_bar

            def truncate(row: Tensor, A_bar: Tensor) -> Tensor:
                return row - row @ torch.linalg.matrix_power(A_bar, length)

            row = (C * sign).flatten(-2).unsqueeze(-2)
            C = run_chunk(truncate, (row, A_bar)).view_as(B) * sign  # C (1 - a^L)

        angle = torch.arange(length // 2 + 1, dtype=wide, device=dt.device) * (2 * math.pi / length)
        values = dplr_spectrum(angle, eigenvalues, low_rank, B, C, dt, damping, backend=plain_backend(self.backend))
        kernel = torch.fft.irfft(torch.view_as_complex(values), n=length)
        return kernel * (damping * torch.arange(length, dtype=wide, device=dt.device)).exp() if damping else kernel

    def convolution_form(self, length: int) -> ConvolutionForm:
        """See `ConvolutionLayer.convolution_form`."""
        wide, narrow = carry_dtype(self.C), self.C.dtype
        found: list[tuple[Tensor, Tensor]] = []

        def matrices() -> tuple[Tensor, Tensor]:  # which training, without states, does not need
            if not found:
                found.append(dense_step(*self.system(wide), self.log_dt.to(wide).exp()))
            return found[0]

        def free_response(initial: Tensor) -> Tensor:
            readout = (self.C * constant(self.C, 2.0, -2.0)).to(wide).flatten(-2)
            return decay(matrices()[0], readout, initial.to(wide).flatten(-2), length).to(narrow)

        def final(u: Tensor, initial: OptionalTensor, count: Tensor) -> Tensor:
            start = None if initial is None else initial.to(wide).flatten(-2)
            ssm = final_state(*matrices(), u.to(wide), start, count)
            return ssm.view(u.shape[0], self.d_model, self.d_state // 2, 2).to(self.state_dtype)

        def propagate(state: Tensor, count: Tensor) -> Tensor:
            A_bar, identity = matrices()[0], torch.eye(self.d_state, dtype=wide, device=state.device)
            powers = power(A_bar, count, length, torch.matmul, identity)
            return (powers @ state.to(wide).flatten(-2).unsqueeze(-1)).view_as(state).to(self.state_dtype)

        def convolve(u: Tensor) -> Tensor:
            kernel = self.kernel(length, matrices()[0] if narrow == wide else None)
            return long_conv(u, kernel.to(narrow), backend=plain_backend(self.backend))

        return ConvolutionForm(convolve, free_response, final, propagate)
