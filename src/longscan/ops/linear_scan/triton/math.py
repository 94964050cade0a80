"""Arithmetic of `linear_scan` on blocks of real numbers (BLOCK_S,) or complex numbers (BLOCK_S, 2)."""

import triton
import triton.language as tl


@triton.jit
def block_offsets(i_s, S, COMPLEX: tl.constexpr, BLOCK_S: tl.constexpr):
    """Return the offsets of block `i_s` in a row of S numbers, and the mask of those that exist."""
    o_s = i_s * BLOCK_S + tl.arange(0, BLOCK_S)
    if COMPLEX:
        o_s = o_s[:, None] * 2 + tl.arange(0, 2)[None, :]
        m_s = o_s < S * 2
    else:
        m_s = o_s < S
    return o_s, m_s


@triton.jit
def ones(o_s, COMPLEX: tl.constexpr, dtype: tl.constexpr):
    """Return a block of the number 1."""
    b_one = tl.full(o_s.shape, 1.0, dtype)
    if COMPLEX:
        b_one = tl.where(o_s % 2 == 0, b_one, 0.0)
    return b_one


@triton.jit
def multiply(a, b, COMPLEX: tl.constexpr):
    """Return a b."""
    if COMPLEX:
        ar, ai = tl.split(a)
        br, bi = tl.split(b)
        product = tl.join(ar * br - ai * bi, ar * bi + ai * br)
    else:
        product = a * b
    return product


@triton.jit
def conj_multiply(a, b, COMPLEX: tl.constexpr):
    """Return conj(a) b."""
    if COMPLEX:
        ar, ai = tl.split(a)
        br, bi = tl.split(b)
        product = tl.join(ar * br + ai * bi, ar * bi - ai * br)
    else:
        product = a * b
    return product


@triton.jit
def multiply_add(a, x, b, COMPLEX: tl.constexpr):
    """Return a x + b."""
    if COMPLEX:
        ar, ai = tl.split(a)
        xr, xi = tl.split(x)
        br, bi = tl.split(b)
        value = tl.join(ar * xr + (br - ai * xi), ar * xi + (ai * xr + bi))
    else:
        value = a * x + b
    return value


@triton.jit
def apply_chunk_maps(
    b_x, mult, local, restarted, width, o_s, m_s, first, step: tl.constexpr, n_chunks, COMPLEX: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):  # fmt: skip
    """Return the state x after the maps x -> mult x + local of `n_chunks` chunks, from chunk `first` on in steps of `step`."""
    p_m, p_l = mult + first * width + o_s, local + first * width + o_s
    for i in tl.range(0, n_chunks, num_stages=NUM_STAGES, loop_unroll_factor=4):
        b_m = tl.load(p_m, mask=m_s, other=0.0)
        b_l = tl.load(p_l, mask=m_s, other=0.0)
        b_x = multiply_add(b_m, b_x, b_l, COMPLEX)
        if restarted is not None:
            b_x = tl.where(tl.load(restarted + first + i * step) != 0, b_l, b_x)
        p_m += step * width
        p_l += step * width
    return b_x
