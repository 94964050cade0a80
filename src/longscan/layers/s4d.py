"""S4D (Gu, Gupta, Goel and Re 2022, "On the parameterization and initialization of diagonal state space models").

    x' = A x + u, sampled with step dt:   x_k = a x_{k-1} + b u_k       y_k = 2 Re sum_n C x_k + skip u_k

u: input (B, L, D). x: state (B, D, N/2), complex, one of each conjugate pair. A: eigenvalues (D, N/2). C: (D, N/2). dt: (D,).
a, b: of zero-order hold (section 3.1, the default) or of the bilinear rule. With elapsed times tau a step is dt tau long.

The layer runs as a convolution over rows with evenly spaced steps, by FFT or, on a GPU with N <= 64, in chunks, and as a
recurrence over single steps, elapsed times and packed rows; all give the same result. B is 1, absorbed in C as in the paper's
minimal form; with init="legs" the initial C is multiplied by HiPPO's B. The authors' full form trains B in addition to C: with
`trained_B`, C B replaces C in the output, and x is unchanged. The paper's GELU, dropout and GLU belong to the surrounding block.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from longscan._tensor_types import OptionalTensor
from longscan._types import EvenInt, PositiveFloat, PositiveInt
from longscan.layers._registry import LAYERS
from longscan.layers._settings import check_backend
from longscan.layers.base import SequenceInfo
from longscan.layers.chunked_convolution import chunked_convolution, uses_chunks
from longscan.layers.convolution import ConvolutionForm, ConvolutionLayer
from longscan.layers.parameters import float32_parameter, mark
from longscan.numerics.discretisation import change, discretise, log_step
from longscan.numerics.initialisers import complex_normal, diagonal_eigenvalues, diagonal_input
from longscan.numerics.kernels import diagonal_final_state, diagonal_kernel, power
from longscan.numerics.pairs import constant, divide, exponential, multiply
from longscan.numerics.timescales import initial_dt
from longscan.ops import long_conv
from longscan.ops.arguments import step_flags
from longscan.ops.chunks import scan_chunks
from longscan.ops.dispatch import Backend, plain_backend, resolve
from longscan.ops.linear_scan import NATIVE_BACKENDS, run_backend
from longscan.ops.pieces import PieceMap


@LAYERS.register("s4d")
class S4D(ConvolutionLayer):
    """One linear time-invariant system per channel, with a diagonal state matrix.

    Args:
        d_model: channels D.
        d_state: N, even: N/2 conjugate pairs per channel.
        init: initial eigenvalues, "lin", "inv", "legs" or "real", see `longscan.numerics.initialisers`.
        discretisation: "zoh", zero-order hold, or "bilinear".
        dt_min, dt_max: initial range of dt, log-uniform.
        trained_B: whether B is a parameter in addition to C.
        D_init: initial skip, "normal" for a standard Gaussian as in the authors' code, or "ones".
        backend: backend of the recurrence, `longscan.ops.linear_scan`. The convolution is `longscan.ops.long_conv`, by torch's
            FFT with "cpu" and "triton", too; on a GPU with "auto" or "triton" and at most 64 states N it is
            `longscan.layers.chunked_convolution`, which takes less memory. "eager" selects the FFT at every N.

    The state is `ScanState` with ssm (B, D, N/2, 2). Eigenvalues and dt learn at a tenth of the rate, without weight decay.
    """

    op_names = ("linear_scan", "long_conv")

    def __init__(
        self,
        d_model: PositiveInt,
        *,
        d_state: EvenInt = 64,
        init: Literal["lin", "inv", "legs", "real"] = "lin",
        discretisation: Literal["zoh", "bilinear"] = "zoh",
        dt_min: PositiveFloat = 1e-3,
        dt_max: PositiveFloat = 0.1,
        trained_B: bool = False,
        D_init: Literal["normal", "ones"] = "normal",
        backend: Backend = "auto",
    ) -> None:
        super().__init__()
        self.d_model, self.d_state, self.backend = d_model, d_state, backend
        self.discretisation: Literal["zoh", "bilinear"] = discretisation
        eigenvalues = diagonal_eigenvalues(d_state, init).expand(d_model, -1, -1)
        coefficients, start = complex_normal((d_model, d_state // 2)), diagonal_input(d_state, init)
        coefficients = coefficients if trained_B else multiply(coefficients, start)

        self.A_log = float32_parameter((-eigenvalues[..., 0]).log(), lr_scale=0.1)
        self.A_imag = float32_parameter(eigenvalues[..., 1], lr_scale=0.1)
        self.log_dt = float32_parameter(initial_dt((d_model,), dt_min, dt_max, stored_as="log"), lr_scale=0.1)
        self.B = float32_parameter(start.expand(d_model, -1, -1), lr_scale=0.1) if trained_B else None
        self.C = mark(nn.Parameter(coefficients.to(torch.get_default_dtype())), "ssm", keep_float32=True)
        self.D = mark(nn.Parameter(torch.ones(d_model) if D_init == "ones" else torch.randn(d_model)), "ssm", keep_float32=True)
        check_backend(self, backend)

    def eigenvalues(self) -> Tensor:
        """Return the eigenvalues A as pairs (D, N/2, 2)."""
        return torch.stack([-self.A_log.exp(), self.A_imag], -1)

    def coefficients(self) -> Tensor:
        """Return the products C B as pairs (D, N/2, 2)."""
        return self.C if self.B is None else multiply(self.C, self.B)

    def recur(self, u: Tensor, initial: Tensor, info: SequenceInfo, flags: Tensor | None) -> tuple[Tensor, Tensor]:
        """See `ConvolutionLayer.recur`.

        The scan computes A x instead of x: (A x)_k = a (A x)_{k-1} + (a - 1) u_k needs only a at each step, but x needs a and b.
        """
        eigenvalues = self.eigenvalues()
        readout = divide(self.coefficients(), eigenvalues) * constant(self.C, 2.0, -2.0)
        backend = resolve("linear_scan", self.backend, u, NATIVE_BACKENDS)

        def chunk(
            u: Tensor, elapsed: OptionalTensor, flags: OptionalTensor, readout: Tensor, state: Tensor
        ) -> tuple[Tensor, Tensor]:
            dt = self.log_dt.exp().unsqueeze(-1)
            if elapsed is not None:
                dt = dt * elapsed[..., None, None].to(dt.dtype)
            less_one = change(eigenvalues, dt, self.discretisation)
            a, drive = less_one + constant(less_one, 1.0, 0.0), less_one * u[..., None, None]
            x, state = run_backend(a, drive, state, flags, False, True, backend, info.seq_idx is not None)
            return (x * readout).sum((-1, -2)), state

        y, final = scan_chunks(chunk, (u, info.elapsed, flags), (readout,), multiply(eigenvalues, initial), empty=u)
        return y, divide(final, eigenvalues)

    def recurrence_map(self, u: Tensor, info: SequenceInfo) -> PieceMap:
        """See `ConvolutionLayer.recurrence_map`. The product of the factors is the final state from ones with zero input."""
        ones = constant(u, 1.0, 0.0).expand(len(u), self.d_model, self.d_state // 2, 2)
        flags = step_flags(u.shape[0], u.shape[1], info.valid, None, u)
        _, factor = self.recur(torch.zeros_like(u), ones, info._replace(seq_idx=None), flags)
        return PieceMap([factor], lambda state, factor: multiply(factor, state))

    def convolution_form(self, length: int) -> ConvolutionForm:
        """See `ConvolutionLayer.convolution_form`."""
        coefficients, eigenvalues, dt = self.coefficients(), self.eigenvalues(), self.log_dt.exp().unsqueeze(-1)
        log_a = log_step(eigenvalues, dt, self.discretisation)
        _, b = discretise(eigenvalues, dt, self.discretisation)

        def free_response(initial: Tensor) -> Tensor:
            return diagonal_kernel(log_a, multiply(multiply(coefficients, exponential(log_a)), initial), length)

        def propagate(state: Tensor, count: Tensor) -> Tensor:
            return multiply(power(log_a, count.view(-1, 1, 1)), state)

        def final_state(u: Tensor, initial: OptionalTensor, count: Tensor) -> Tensor:
            ssm = multiply(diagonal_final_state(log_a, u), b)
            return ssm if initial is None else ssm + propagate(initial, count)

        def convolve(u: Tensor) -> Tensor:
            return self._convolve(u, log_a, multiply(coefficients, b), length)

        return ConvolutionForm(convolve, free_response, final_state, propagate)

    def _convolve(self, u: Tensor, log_a: Tensor, weights: Tensor, length: int) -> Tensor:
        """Return the convolution (B, L, D) of u with the kernel 2 Re sum_n weights_n a_n^l; log_a, weights: pairs (D, N/2, 2)."""
        if uses_chunks(u, length, self.d_state, self.backend):
            return chunked_convolution(log_a, weights, u, self.backend)
        return long_conv(u, diagonal_kernel(log_a, weights, length), backend=plain_backend(self.backend))
