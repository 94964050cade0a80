"""Coefficients B and C that all channels share: copies for each channel, and the sums of the gradients of these."""

import triton
import triton.language as tl


@triton.jit
def expand_coefficients_kernel(p_B, p_C, p_B_all, p_C_all, size, total, BLOCK: tl.constexpr):
    """Store B and C, `size` numbers each, in every row of (D, size), which have `total` numbers; either may be None."""
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = o < total
    if p_B is not None:
        tl.store(p_B_all + o, tl.load(p_B + o % size, mask=m), mask=m)
    if p_C is not None:
        tl.store(p_C_all + o, tl.load(p_C + o % size, mask=m), mask=m)


@triton.jit
def sum_coefficients_kernel(p_dB_all, p_dC_all, p_dB, p_dC, size, channels, BLOCK: tl.constexpr):
    """Store the sums of the rows of the gradients (D, size) of B and C; either may be None."""
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = o < size
    if p_dB is not None:
        b_sum = tl.load(p_dB_all + o, mask=m, other=0.0)
        for i in range(1, channels):
            b_sum += tl.load(p_dB_all + i * size + o, mask=m, other=0.0)
        tl.store(p_dB + o, b_sum, mask=m)
    if p_dC is not None:
        b_sum = tl.load(p_dC_all + o, mask=m, other=0.0)
        for i in range(1, channels):
            b_sum += tl.load(p_dC_all + i * size + o, mask=m, other=0.0)
        tl.store(p_dC + o, b_sum, mask=m)
