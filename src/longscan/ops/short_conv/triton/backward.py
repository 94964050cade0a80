"""Backward kernels of `short_conv`: the gradients of u and of the initial state, and the sums for those of the parameters."""

import triton
import triton.language as tl

from longscan.ops._triton import append, silu_derivative, where_positive
from longscan.ops.short_conv.triton.math import (
    add_products,
    convolve,
    load_parameters,
    load_start,
    load_window,
    row_of_step,
    zeros,
)


@triton.jit(do_not_specialize=["L", "CHUNK", "rows_per_weight"])
def short_conv_bwd_kernel(
    dy, d_final, u, weight, bias, initial_state, order, starts, counts, du, d_initial, sums, L, D, CHUNK, rows_per_weight,
    SILU: tl.constexpr, K: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr, NUM_STAGES: tl.constexpr,
):  # fmt: skip
    """Compute du of CHUNK valid steps of a row, their sums (B, chunks, K + 1, D) for weight and bias, and d_initial.

    A step adds to the gradients of the K inputs of its window, of which the oldest is then complete. So a program goes through
    the K - 1 steps after its chunk, too, and the first one completes the gradients of the K - 1 entries of the initial state.
    """
    n_d, n_c = tl.cdiv(D, BLOCK_D), tl.cdiv(L, CHUNK)
    i_d, i_c, i_b = tl.program_id(0) % n_d, tl.program_id(0) // n_d % n_c, (tl.program_id(0) // n_d // n_c).to(tl.int64)
    o_d = i_d * BLOCK_D + tl.arange(0, BLOCK_D)
    m_d = o_d < D
    p_u, p_dy, p_du = u + i_b * L * D + o_d, dy + i_b * L * D + o_d, du + i_b * L * D + o_d
    o_state = (i_b * D + o_d) * (K - 1)
    count = L
    if counts is not None:
        count = tl.load(counts + i_b)
        order += i_b * L
        starts += i_b * L
    last_start = load_start(starts, count - 1, count > 0, K)
    b_weight, b_bias = load_parameters(weight, bias, i_b // rows_per_weight, o_d, D, K)
    t_first, t_stop = tl.minimum(i_c * CHUNK, count), tl.minimum(i_c * CHUNK + CHUNK, count)
    b_window = load_window(p_u, initial_state + o_state, order, t_first, D, m_d, K)
    b_du, b_dweight, b_dbias = zeros(b_bias, K - 1), zeros(b_bias, K), tl.zeros_like(b_bias)
    for t in tl.range(t_first, t_stop + K - 1, num_stages=NUM_STAGES, loop_unroll_factor=BLOCK_T):
        m_t = where_positive(m_d, count - t)
        o_row = row_of_step(order, t, t < count) * D
        b_ds = tl.load(p_dy + o_row, mask=m_t, other=0.0).to(b_bias.dtype)
        b_window = append(b_window, tl.load(p_u + o_row, mask=m_t, other=0.0).to(b_bias.dtype))
        start = load_start(starts, t, t < count, K)
        if SILU:
            b_ds *= silu_derivative(convolve(b_window, b_weight, b_bias, t, start, K))
        b_ds = tl.where(m_t, b_ds, 0.0)  # 0 times the derivative at NaN is NaN
        b_own = tl.where(t < t_stop, b_ds, 0.0)
        b_dweight, b_dbias = add_products(b_dweight, b_own, b_window, t, start, K), b_dbias + b_own
        b_du = add_products(append(b_du, tl.zeros_like(b_bias)), b_ds, b_weight, t, start, K)
        i_input = t - (K - 1)
        i_state = i_input - (count - (K - 1))  # the entry of the final state
        m_state = where_positive(m_d, i_state + 1)
        if last_start is not None:
            m_state = where_positive(m_state, i_input - last_start + 1)
        b_done = b_du[0] + tl.load(d_final + o_state + i_state, mask=m_state, other=0.0)
        p_done = p_du + row_of_step(order, i_input, i_input >= t_first) * D
        tl.store(p_done, b_done, mask=where_positive(m_d, i_input - t_first + 1))
        tl.store(d_initial + o_state + t, b_done, mask=where_positive(m_d, tl.minimum(-i_input, 1 - i_c)))
        b_window, b_du = b_window[1:], b_du[1:]
    p_sums = sums + (i_b * n_c + i_c) * (K + 1) * D + o_d
    for k in tl.static_range(K):
        tl.store(p_sums + k * D, b_dweight[k], mask=m_d)
    tl.store(p_sums + K * D, b_dbias, mask=m_d)


@triton.jit(do_not_specialize=["count"])
def sum_parameter_gradients_kernel(
    sums, d_weight, d_bias, count, D, K: tl.constexpr, ROWS: tl.constexpr, BLOCK_D: tl.constexpr
):  # fmt: skip
    """Store the gradients of the weight and the bias of a group: sums of `count` rows (K + 1, D) of `sums`, in a fixed order."""
    i_k, i_group = tl.program_id(1), tl.program_id(2).to(tl.int64)
    o_d, o_row = tl.program_id(0) * BLOCK_D + tl.arange(0, BLOCK_D), tl.arange(0, ROWS)
    b_sums = tl.zeros((ROWS, BLOCK_D), sums.dtype.element_ty)
    for first in range(0, count, ROWS):
        m_rows = (first + o_row < count)[:, None] & (o_d < D)[None, :]
        p_rows = sums + ((i_group * count + first + o_row[:, None]) * (K + 1) + i_k) * D + o_d[None, :]
        b_sums += tl.load(p_rows, mask=m_rows, other=0.0)
    b_sum = tl.sum(b_sums, 0)
    if i_k < K:
        tl.store(d_weight + (i_group * D + o_d) * K + i_k, b_sum, mask=o_d < D)
    elif d_bias is not None:
        tl.store(d_bias + i_group * D + o_d, b_sum, mask=o_d < D)
