"""Backward kernels of `linear_scan`: g_t = dx_t + conj(a_{t+1}) g_{t+1}, db_t = g_t, da_t = g_t conj(x_{t-1}).

The kernels go through the steps in reverse, with m_t = conj(a_t) g_t in registers; m_1 is the gradient of the initial state.
"""

import triton
import triton.language as tl

from longscan.ops._triton import INVALID, RESET
from longscan.ops.linear_scan.triton.math import (
    apply_chunk_maps,
    block_offsets,
    conj_multiply,
    multiply_add,
    ones,
)


@triton.jit(do_not_specialize=["L", "CHUNK", "rows_per_a"])
def chunk_map_bwd_kernel(
    a, dx, flags, mult, local, restarted, L, S, CHUNK, rows_per_a,
    CONSTANT_A: tl.constexpr, COMPLEX: tl.constexpr, REVERSE: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_S: tl.constexpr, NUM_STAGES: tl.constexpr,
):  # fmt: skip
    """Compute the map m -> mult m + local of a chunk from its first step to its last. Programs have the last chunks."""
    n_s = tl.cdiv(S, BLOCK_S)
    i_b, i_s, i_c = (tl.program_id(0) // n_s).to(tl.int64), tl.program_id(0) % n_s, tl.program_id(1)
    o_s, m_s = block_offsets(i_s, S, COMPLEX, BLOCK_S)
    width = tl.cast(S, tl.int64) * (2 if COMPLEX else 1)
    t_first = (tl.cdiv(L, CHUNK) - tl.num_programs(1) + i_c) * CHUNK
    row, sign = i_b * L + (L - 1 - t_first if REVERSE else t_first), -1 if REVERSE else 1
    p_dx = dx + row * width + o_s
    if CONSTANT_A:
        b_a = tl.load(a + i_b // rows_per_a * width + o_s, mask=m_s, other=0.0)
    else:
        p_a = a + row * width + o_s
    b_mult, b_local = ones(o_s, COMPLEX, dx.dtype.element_ty), tl.zeros(o_s.shape, dx.dtype.element_ty)
    is_restarted = i_c < 0
    for i in tl.range(0, tl.minimum(CHUNK, L - t_first), num_stages=NUM_STAGES, loop_unroll_factor=BLOCK_T):
        b_dx = tl.load(p_dx, mask=m_s, other=0.0)
        if not CONSTANT_A:
            b_a = tl.load(p_a, mask=m_s, other=0.0)
            p_a += sign * width
        b_product = conj_multiply(b_a, b_mult, COMPLEX)
        b_longer = multiply_add(b_product, b_dx, b_local, COMPLEX)
        if flags is not None:
            flag = tl.load(flags + row + sign * i)
            is_restarted |= flag == RESET
            counts = (flag != INVALID) & ~is_restarted
            b_longer, b_product = tl.where(counts, b_longer, b_local), tl.where(counts, b_product, b_mult)
        b_local, b_mult = b_longer, b_product
        p_dx += sign * width
    chunk = i_b * tl.num_programs(1) + i_c
    tl.store(mult + chunk * width + o_s, b_mult, mask=m_s)
    tl.store(local + chunk * width + o_s, b_local, mask=m_s)
    if flags is not None:
        tl.store(restarted + chunk, is_restarted.to(tl.uint8), mask=i_s == 0)


@triton.jit(do_not_specialize=["L", "CHUNK", "rows_per_a"])
def scan_bwd_kernel(
    dx, d_final_state, a, x, initial_state, previous, mult, local, restarted, da, db, d_initial_state, L, S, CHUNK, rows_per_a,
    CONSTANT_A: tl.constexpr, COMPLEX: tl.constexpr, REVERSE: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_S: tl.constexpr, NUM_STAGES: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of one chunk, from its last step to its first.

    da: as a, or (B, chunks, S[, 2]) sums of the chunks if CONSTANT_A. previous: see `previous_steps`; None if every step is valid
    and the state never restarts.
    """
    n_s = tl.cdiv(S, BLOCK_S)
    i_b, i_s, i_c = (tl.program_id(0) // n_s).to(tl.int64), tl.program_id(0) % n_s, tl.program_id(1)
    n_chunks = tl.num_programs(1)
    o_s, m_s = block_offsets(i_s, S, COMPLEX, BLOCK_S)
    width = tl.cast(S, tl.int64) * (2 if COMPLEX else 1)
    b_m = tl.load(d_final_state + i_b * width + o_s, mask=m_s, other=0.0)
    if mult is not None:
        first = (i_b + 1) * (n_chunks - 1) - 1
        b_m = apply_chunk_maps(b_m, mult, local, restarted, width, o_s, m_s, first, -1, n_chunks - 1 - i_c, COMPLEX, NUM_STAGES)
    t_last = tl.minimum((i_c + 1) * CHUNK, L) - 1
    row, sign = i_b * L + (L - 1 - t_last if REVERSE else t_last), 1 if REVERSE else -1
    p_dx, p_db = dx + row * width + o_s, db + row * width + o_s
    if CONSTANT_A:
        b_a = tl.load(a + i_b // rows_per_a * width + o_s, mask=m_s, other=0.0)
        b_da = tl.zeros(o_s.shape, x.dtype.element_ty)
    else:
        p_a, p_da = a + row * width + o_s, da + row * width + o_s
    p_x = x + (row + sign) * width
    for i in tl.range(0, t_last + 1 - i_c * CHUNK, num_stages=NUM_STAGES, loop_unroll_factor=BLOCK_T):
        i_h = t_last - i - 1  # the step before
        if previous is not None:
            i_h = tl.load(previous + i_b * L + t_last - i)
            p_x = x + (i_b * L + (L - 1 - i_h if REVERSE else i_h)) * width
        p_h = tl.where(i_h >= 0, p_x, initial_state + i_b * width)
        b_dx = tl.load(p_dx, mask=m_s, other=0.0)
        b_h = tl.load(p_h + o_s, mask=m_s, other=0.0)
        if not CONSTANT_A:
            b_a = tl.load(p_a, mask=m_s, other=0.0)
            p_a += sign * width
        b_g = b_dx + b_m
        b_product, b_before = conj_multiply(b_h, b_g, COMPLEX), conj_multiply(b_a, b_g, COMPLEX)
        if previous is None:
            b_m = b_before
        else:
            b_product = tl.where(i_h >= -1, b_product, 0.0)
            b_m = tl.where(i_h == -3, b_m, tl.where(i_h == -2, 0.0, b_before))
            b_g = tl.where(i_h == -3, 0.0, b_g)
        tl.store(p_db, b_g, mask=m_s)
        if CONSTANT_A:
            b_da += b_product
        else:
            tl.store(p_da, b_product, mask=m_s)
            p_da += sign * width
        p_x += sign * width
        p_dx += sign * width
        p_db += sign * width
    if CONSTANT_A:
        tl.store(da + (i_b * n_chunks + i_c) * width + o_s, b_da, mask=m_s)
    if i_c == 0:
        tl.store(d_initial_state + i_b * width + o_s, b_m, mask=m_s)
