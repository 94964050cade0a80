"""Backward kernels of `block2_scan`: g_t = dx_t + M_{t+1}^T g_{t+1}, df_t = g_t, dM_t = g_t x_{t-1}^T.

The kernels go through the steps in reverse, with m_t = M_t^T g_t in registers; m_1 is the gradient of the initial state.
"""

import triton
import triton.language as tl

from longscan.ops._triton import INVALID, RESET
from longscan.ops.block2_scan.triton.math import (
    add,
    add_outer,
    apply_chunk_maps,
    block_offsets,
    cast,
    identity,
    multiply,
    pack,
    transpose,
    unpack,
    where,
    zeros,
)


@triton.jit(do_not_specialize=["first", "L", "CHUNK", "rows_per_M"])
def chunk_map_bwd_kernel(
    M, dx, flags, mult, local, restarted, first, L, S, CHUNK, rows_per_M,
    CONSTANT_M: tl.constexpr, K: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_S: tl.constexpr, NUM_STAGES: tl.constexpr,
):  # fmt: skip
    """Compute the maps m -> mult m + local of the chunks from index `first` on. mult is a product of matrices, in float64."""
    n_s, width = tl.cdiv(S, BLOCK_S), tl.cast(S, tl.int64)
    i_b, i_s, i_c = (tl.program_id(0) // n_s).to(tl.int64), tl.program_id(0) % n_s, first + tl.program_id(1)
    o_x, m_x = block_offsets(i_s, S, 2 * K, BLOCK_S)
    o_M, m_M = block_offsets(i_s, S, 4, BLOCK_S)
    t_last = tl.minimum((i_c + 1) * CHUNK, L) - 1
    row = i_b * L + t_last
    p_dx = dx + row * width * (2 * K) + o_x
    if CONSTANT_M:
        b_MT = transpose(unpack(tl.load(M + i_b // rows_per_M * width * 4 + o_M, mask=m_M, other=0.0), 2))
    else:
        p_M = M + row * width * 4 + o_M
    b_mult, b_local = identity(BLOCK_S, tl.float64), zeros(2 * K, BLOCK_S, dx.dtype.element_ty)
    b_zero = b_local
    is_restarted = i_c < 0
    for i in tl.range(0, t_last + 1 - i_c * CHUNK, num_stages=NUM_STAGES, loop_unroll_factor=BLOCK_T):
        b_dx = unpack(tl.load(p_dx, mask=m_x, other=0.0), K)
        if not CONSTANT_M:
            b_MT = transpose(unpack(tl.load(p_M, mask=m_M, other=0.0), 2))
            p_M -= width * 4
        b_before, b_product = multiply(b_MT, add(b_dx, b_local), K), multiply(cast(b_MT, tl.float64), b_mult, 2)
        if flags is not None:
            flag = tl.load(flags + row - i)
            b_before = where(flag == INVALID, b_local, where(flag == RESET, b_zero, b_before))
            b_product = where(flag == INVALID, b_mult, b_product)
            is_restarted |= flag == RESET
        b_local, b_mult = b_before, b_product
        p_dx -= width * (2 * K)
    chunk = i_b * tl.num_programs(1) + i_c - first
    tl.store(mult + chunk * width * 4 + o_M, pack(b_mult, 2), mask=m_M)
    tl.store(local + chunk * width * (2 * K) + o_x, pack(b_local, K), mask=m_x)
    if flags is not None:
        tl.store(restarted + chunk, is_restarted.to(tl.uint8), mask=i_s == 0)


@triton.jit(do_not_specialize=["L", "CHUNK", "rows_per_M"])
def scan_bwd_kernel(
    dx, d_final_state, M, x, initial_state, previous, mult, local, restarted, dM, df, d_initial_state, L, S, CHUNK, rows_per_M,
    CONSTANT_M: tl.constexpr, K: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_S: tl.constexpr, NUM_STAGES: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of one chunk, from its last step to its first.

    dM: as M, or (B, chunks, S, 2, 2) sums of the chunks if CONSTANT_M. previous: see `previous_steps`; None if every step is
    valid and the state never restarts.
    """
    n_s, width, n_chunks = tl.cdiv(S, BLOCK_S), tl.cast(S, tl.int64), tl.num_programs(1)
    i_b, i_s, i_c = (tl.program_id(0) // n_s).to(tl.int64), tl.program_id(0) % n_s, tl.program_id(1)
    o_x, m_x = block_offsets(i_s, S, 2 * K, BLOCK_S)
    o_M, m_M = block_offsets(i_s, S, 4, BLOCK_S)
    b_m = unpack(tl.load(d_final_state + i_b * width * (2 * K) + o_x, mask=m_x, other=0.0), K)
    if mult is not None:
        first, after = (i_b + 1) * (n_chunks - 1) - 1, n_chunks - 1 - i_c
        b_m = apply_chunk_maps(b_m, mult, local, restarted, o_M, m_M, o_x, m_x, width, first, -1, after, K, NUM_STAGES)
    t_last = tl.minimum((i_c + 1) * CHUNK, L) - 1
    row = i_b * L + t_last
    p_dx, p_df = dx + row * width * (2 * K) + o_x, df + row * width * (2 * K) + o_x
    b_zero = zeros(2 * K, BLOCK_S, x.dtype.element_ty)
    if CONSTANT_M:
        b_MT = transpose(unpack(tl.load(M + i_b // rows_per_M * width * 4 + o_M, mask=m_M, other=0.0), 2))
        b_dM = zeros(4, BLOCK_S, x.dtype.element_ty)
    else:
        p_M, p_dM = M + row * width * 4 + o_M, dM + row * width * 4 + o_M
    for i in tl.range(0, t_last + 1 - i_c * CHUNK, num_stages=NUM_STAGES, loop_unroll_factor=BLOCK_T):
        i_h = t_last - i - 1  # the step before
        if previous is not None:
            i_h = tl.load(previous + row - i)
        p_h = tl.where(i_h >= 0, x + (i_b * L + i_h) * width * (2 * K), initial_state + i_b * width * (2 * K))
        b_h = unpack(tl.load(p_h + o_x, mask=m_x, other=0.0), K)
        b_g = add(unpack(tl.load(p_dx, mask=m_x, other=0.0), K), b_m)
        if not CONSTANT_M:
            b_MT = transpose(unpack(tl.load(p_M, mask=m_M, other=0.0), 2))
            p_M -= width * 4
        b_before = multiply(b_MT, b_g, K)
        if previous is not None:
            b_before = where(i_h == -3, b_m, where(i_h == -2, b_zero, b_before))
            b_g = where(i_h == -3, b_zero, b_g)
            b_h = where(i_h == -2, b_zero, b_h)
        b_m = b_before
        tl.store(p_df, pack(b_g, K), mask=m_x)
        if CONSTANT_M:
            b_dM = add_outer(b_dM, b_g, b_h, K)
        else:
            tl.store(p_dM, pack(add_outer(zeros(4, BLOCK_S, x.dtype.element_ty), b_g, b_h, K), 2), mask=m_M)
            p_dM -= width * 4
        p_dx -= width * (2 * K)
        p_df -= width * (2 * K)
    if CONSTANT_M:
        tl.store(dM + (i_b * n_chunks + i_c) * width * 4 + o_M, pack(b_dM, 2), mask=m_M)
    if i_c == 0:
        tl.store(d_initial_state + i_b * width * (2 * K) + o_x, pack(b_m, K), mask=m_x)
