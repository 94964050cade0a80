"""The convolution with a kernel K_l = 2 Re sum_n c_n a_n^l, computed in chunks of T steps by matrix products.

With the states s_j that a recurrence x_k = a x_{k-1} + u_k has before chunk j, and i = 0..T-1,

    y_{jT+i} = sum_{l<=i} K_{i-l} u_{jT+l} + 2 Re sum_n c_n a_n^{i+1} s_{j,n}
    s_{j+1} = a^T s_j + sum_l a^{T-1-l} u_{jT+l}

u: input (B, L, D). a, c, s: pairs (..., 2) of one of each conjugate pair, (D, N/2, 2) and (B, D, N/2, 2). All sums over l and n
are products with one matrix for each channel, and the second line is `linear_scan` over L / T steps.

Chunks store less for the backward pass than an FFT, but the time of their products grows with N. A forward and backward pass of
S4D in float32 took, relative to the FFT (`python benchmarks/s4d_forms.py`, one H200, 706b4056, `results/s4d_forms.jsonl`):

    N     sizes   replayed as a CUDA graph   called from Python   peak of memory
    16    3       .89 to .91                 1.10 to 1.16         .47 to .51
    32    1       .94                        .99                  .52
    64    5       1.00 to 1.10               1.07 to 1.18         .53 to .80
    128   1       1.30                       1.08                 .79

Chunks are used up to N = 64. Up to there they save more of the memory, 20 to 53 %, than they cost of the time: at most 10 % if
the updates are replayed, as in training on a GPU by default, and 18 % if they are called from Python. With N = 16 and 32
replayed updates take 6 to 11 % less time as well. With N = 128 they cost more time than they save memory, and the FFT is used.
No N between 64 and 128 was measured.

Six Mamba blocks with S4D, width 116, N = 16, B = 64, took 3.6 instead of 4.7 GB of an H200 and 9.1 instead of 9.2 ms of kernels
for an update at L = 1,024, and 13.1 instead of 18.1 GB and 33.5 instead of 35.2 ms at L = 4,096. All powers are computed
together: with one product after another there are 51 instead of 57 updates a second at L = 1,024 (H200, bfloat16, CUDA graphs).
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from longscan.numerics.kernels import powers
from longscan.numerics.symbolic import is_symbolic
from longscan.ops.dispatch import NATIVE, resolve
from longscan.ops.linear_scan import NATIVE_BACKENDS, run_backend

MAX_LENGTH = 2**14  # largest number of steps, for which chunks have at most 256
MAX_STATES = 64  # largest N for which chunks were measured to save more memory than they cost time


def uses_chunks(u: Tensor, length: int, d_state: int, backend: str) -> bool:
    """Return whether `chunked_convolution` replaces the FFT: on a GPU with few states, but not in compiled and traced graphs.

    u: (B, L, D). d_state: N. backend: that of the layer; "eager" and "reference" name the algorithms of `longscan.ops.long_conv`.
    """
    if u.device.type != "cuda" or d_state > MAX_STATES or backend not in ("auto", *NATIVE):
        return False
    is_traced = torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
    if torch.compiler.is_compiling() or is_traced:  # the number of chunks would be a constant of the graph
        return False
    return not is_symbolic(length) and 0 < length <= MAX_LENGTH and u.numel() > 0


def chunk_length(length: int) -> int:
    """Return T, the power of two that is at least sqrt(length), doubled, but not more than the power of two above the length."""
    return min(2 << max(0, -(-(length - 1).bit_length() // 2)), 1 << (length - 1).bit_length())


def chunked_convolution(log_a: Tensor, coefficients: Tensor, u: Tensor, backend: str) -> Tensor:
    """Return the convolution y (B, L, D) of inputs u (B, L, D).

    log_a: (D, N/2, 2), as in `longscan.numerics.kernels`. coefficients: c, (D, N/2, 2). backend: that of
    `longscan.ops.linear_scan`.
    """
    batch, length, channels = u.shape
    size = chunk_length(length)
    count = -(-length // size)
    padded = pad(u, (0, 0, 0, count * size - length)) if count * size > length else u
    rows = padded.reshape(-1, channels).mT.contiguous().view(channels, batch * count, size)

    # All powers that follow are computed together: on a GPU the many small kernels of an update cost more than the products.
    a_real, a_imag = powers(log_a, size + 1).unbind(-1)  # (D, N/2, T+1)
    c_real, c_imag = (2 * coefficients).unsqueeze(-2).unbind(-1)
    response = c_real * a_real - c_imag * a_imag  # 2 Re(c a^l)
    kernel = response[..., :size].sum(1)
    toeplitz = pad(kernel, (size - 1, 0)).unfold(-1, size, 1).flip(-1).mT  # (D, l, i): K_{i-l}, 0 for l > i
    y = rows @ toeplitz
    if count > 1:
        states = _states_before_chunks(torch.cat([a_real, a_imag], 1), rows, batch, backend)
        readout = torch.cat([response, -(c_real * a_imag + c_imag * a_real)], 1)[..., 1:]  # (D, N, T)
        y = torch.baddbmm(y, states, readout)
    return y.reshape(channels, -1).mT.reshape(batch, count * size, channels)[:, :length].contiguous()


def _states_before_chunks(a: Tensor, rows: Tensor, batch: int, backend: str) -> Tensor:
    """Return the states before each chunk, (D, B J, N), of inputs in J chunks, (D, B J, T).

    a: (D, N, T+1), real parts of a^0, ..., a^T, then imaginary parts; so are the states.
    """
    channels, _, size = rows.shape
    ends = a[..., :size].flip(-1).mT  # (D, T, N): a^{T-1-l}
    local = (rows @ ends).view(channels, batch, -1, 2, a.shape[1] // 2).permute(1, 2, 0, 4, 3).contiguous()  # (B, J, D, N/2, 2)
    factor = a[..., size].view(channels, 2, -1).mT.contiguous()
    chosen = resolve("linear_scan", backend, local, NATIVE_BACKENDS)
    after, _ = run_backend(factor, local, torch.zeros_like(local[:, 0]), None, False, True, chosen, False)
    before = pad(after[:, :-1], (0, 0, 0, 0, 0, 0, 1, 0))
    return before.permute(2, 0, 1, 4, 3).reshape(channels, -1, a.shape[1])
