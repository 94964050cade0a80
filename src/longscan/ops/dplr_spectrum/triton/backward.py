"""Backward kernels of `dplr_spectrum`: gradients of the four sums, sums over frequencies, gradients of the parameters."""

import triton
import triton.language as tl

from longscan.ops.dplr_spectrum.triton.math import (
    load_frequencies,
    load_pair,
    multiply,
    multiply_conjugate,
    numerators,
    poles,
    spectrum_terms,
    store_pair,
)


@triton.jit(do_not_specialize=["F", "N"])
def dplr_spectrum_bwd_sums_kernel(
    d_spectrum, table, eigenvalues, P, B, C, dt, d_sums, d_dt, F, N, BLOCK_F: tl.constexpr
):  # fmt: skip
    """Compute the gradients of S_cb, S_cp, S_pp and S_pb, planes (D, 8, F), for BLOCK_F frequencies of one channel.

    d_dt: (D, blocks of frequencies), the gradient of dt without what it contributes to the sums.
    """
    n_f = tl.cdiv(F, BLOCK_F)
    i_f, i_d = tl.program_id(0) % n_f, (tl.program_id(0) // n_f).to(tl.int64)
    o_f, o_pole = i_f * BLOCK_F + tl.arange(0, BLOCK_F), i_d * N * 2
    m_f = o_f < F
    b_dt = tl.load(dt + i_d)
    c_r, c_i, e_r, e_i, cb_r, cb_i, cp_r, cp_i, pb_r, pb_i, m_r, m_i, rank_r, rank_i = spectrum_terms(
        table, eigenvalues + o_pole, P + o_pole, B + o_pole, C + o_pole, b_dt, o_f, F, N
    )
    gain_r, gain_i = multiply(m_r, m_i, c_r * b_dt, c_i * b_dt)
    g_r, g_i = load_pair(d_spectrum + (i_d * F + o_f) * 2, m_f, 0.0)
    # The spectrum is dt e^w y with y = S_cb - (m t) S_cp S_pb and m = 1 / (1 + t S_pp), so that m t has the derivatives m^2 by t
    # and -(m t)^2 by S_pp.
    used_r, used_i = multiply(gain_r, gain_i, rank_r, rank_i)
    y_r, y_i = multiply(e_r, e_i, cb_r - used_r, cb_i - used_i)
    b_dt_sum = g_r * y_r + g_i * y_i
    g_r, g_i = multiply_conjugate(e_r * b_dt, e_i * b_dt, g_r, g_i)
    plane = tl.cast(F, tl.int64)
    p_sums = d_sums + i_d * 8 * F + o_f
    tl.store(p_sums, g_r, mask=m_f)
    tl.store(p_sums + plane, g_i, mask=m_f)
    d_r, d_i = multiply(gain_r, gain_i, pb_r, pb_i)
    d_r, d_i = multiply_conjugate(d_r, d_i, -g_r, -g_i)
    tl.store(p_sums + 2 * plane, d_r, mask=m_f)
    tl.store(p_sums + 3 * plane, d_i, mask=m_f)
    d_r, d_i = multiply(gain_r, gain_i, used_r, used_i)
    d_r, d_i = multiply_conjugate(d_r, d_i, g_r, g_i)
    tl.store(p_sums + 4 * plane, d_r, mask=m_f)
    tl.store(p_sums + 5 * plane, d_i, mask=m_f)
    d_r, d_i = multiply(gain_r, gain_i, cp_r, cp_i)
    d_r, d_i = multiply_conjugate(d_r, d_i, -g_r, -g_i)
    tl.store(p_sums + 6 * plane, d_r, mask=m_f)
    tl.store(p_sums + 7 * plane, d_i, mask=m_f)
    m_r, m_i = multiply(m_r, m_i, m_r, m_i)
    d_r, d_i = multiply(m_r, m_i, rank_r, rank_i)
    d_r, d_i = multiply(d_r, d_i, c_r, c_i)
    b_dt_sum -= d_r * g_r + d_i * g_i
    tl.store(d_dt + i_d * n_f + i_f, tl.sum(b_dt_sum, 0))


@triton.jit(do_not_specialize=["F", "N", "CHUNK"])
def dplr_spectrum_bwd_states_kernel(
    d_sums, table, eigenvalues, P, B, C, dt, partials, F, N, CHUNK, ROWS: tl.constexpr, BLOCK_N: tl.constexpr
):  # fmt: skip
    """Add up, over CHUNK frequencies of one channel, the gradients of numerators and eigenvalues of BLOCK_N states.

    partials: (D, chunks, 9, N): Re and Im of C B and C P, P* P, Re and Im of P* B and of dt times the eigenvalue.
    """
    n_n, n_c = tl.cdiv(N, BLOCK_N), tl.cdiv(F, CHUNK)
    i_n, i_c = tl.program_id(0) % n_n, tl.program_id(0) // n_n % n_c
    i_d = (tl.program_id(0) // n_n // n_c).to(tl.int64)
    o_n, o_row = i_n * BLOCK_N + tl.arange(0, BLOCK_N)[None, :], tl.arange(0, ROWS)[:, None]
    m_n, o_pole = o_n < N, (i_d * N + o_n) * 2
    b_dt = tl.load(dt + i_d)
    lambda_r, lambda_i = load_pair(eigenvalues + o_pole, m_n, -1.0)
    P_r, P_i = load_pair(P + o_pole, m_n, 0.0)
    B_r, B_i = load_pair(B + o_pole, m_n, 0.0)
    C_r, C_i = load_pair(C + o_pole, m_n, 0.0)
    cb_r, cb_i, cp_r, cp_i, pp, pb_r, pb_i = numerators(P_r, P_i, B_r, B_i, C_r, C_i)
    zero = tl.zeros((ROWS, BLOCK_N), partials.dtype.element_ty)
    s_cb_r, s_cb_i, s_cp_r, s_cp_i, s_pp, s_pb_r, s_pb_i, s_lambda_r, s_lambda_i = (
        zero, zero, zero, zero, zero, zero, zero, zero, zero
    )  # fmt: skip
    stop, plane = tl.minimum(i_c * CHUNK + CHUNK, F), tl.cast(F, tl.int64)
    for first in range(i_c * CHUNK, stop, ROWS):
        o_f = first + o_row
        m_f = o_f < stop
        a_r, a_i = load_frequencies(table, 0, o_f, F)
        c_r, c_i = load_frequencies(table, 1, o_f, F)
        t_r, t_i = c_r * b_dt, c_i * b_dt
        p_sums = d_sums + i_d * 8 * F + o_f
        g_cb_r = tl.load(p_sums, mask=m_f, other=0.0)
        g_cb_i = tl.load(p_sums + plane, mask=m_f, other=0.0)
        g_cp_r = tl.load(p_sums + 2 * plane, mask=m_f, other=0.0)
        g_cp_i = tl.load(p_sums + 3 * plane, mask=m_f, other=0.0)
        g_pp_r = tl.load(p_sums + 4 * plane, mask=m_f, other=0.0)
        g_pp_i = tl.load(p_sums + 5 * plane, mask=m_f, other=0.0)
        g_pb_r = tl.load(p_sums + 6 * plane, mask=m_f, other=0.0)
        g_pb_i = tl.load(p_sums + 7 * plane, mask=m_f, other=0.0)
        X_r, X_i, Y_r, Y_i = poles(a_r, a_i, t_r, t_i, lambda_r, lambda_i)
        even_r, even_i, odd_r, odd_i = X_r + Y_r, X_i + Y_i, Y_i - X_i, X_r - Y_r
        s_cb_r += g_cb_r * even_r + g_cb_i * even_i
        s_cb_i += g_cb_r * odd_r + g_cb_i * odd_i
        s_cp_r += g_cp_r * even_r + g_cp_i * even_i
        s_cp_i += g_cp_r * odd_r + g_cp_i * odd_i
        s_pp += g_pp_r * even_r + g_pp_i * even_i
        s_pb_r += g_pb_r * even_r + g_pb_i * even_i
        s_pb_i += g_pb_r * odd_r + g_pb_i * odd_i
        # The gradients of X + Y and of i (X - Y), and with them the conjugate gradients of X and of Y. The derivative of X by
        # dt lambda is cosh(w) X^2, that of Y by its conjugate is cosh(w) Y^2.
        d_even_r = cb_r * g_cb_r + cp_r * g_cp_r + pp * g_pp_r + pb_r * g_pb_r
        d_even_i = cb_r * g_cb_i + cp_r * g_cp_i + pp * g_pp_i + pb_r * g_pb_i
        d_odd_r = cb_i * g_cb_r + cp_i * g_cp_r + pb_i * g_pb_r
        d_odd_i = cb_i * g_cb_i + cp_i * g_cp_i + pb_i * g_pb_i
        X_r, X_i = multiply(X_r, X_i, X_r, X_i)
        Y_r, Y_i = multiply(Y_r, Y_i, Y_r, Y_i)
        X_r, X_i = multiply(X_r, X_i, d_even_r + d_odd_i, d_odd_r - d_even_i)
        Y_r, Y_i = multiply(Y_r, Y_i, d_even_r - d_odd_i, -d_odd_r - d_even_i)
        s_lambda_r += c_r * (X_r + Y_r) - c_i * (X_i + Y_i)
        s_lambda_i += c_r * (Y_i - X_i) + c_i * (Y_r - X_r)
    p_partials = partials + (i_d * n_c + i_c) * 9 * N + i_n * BLOCK_N + tl.arange(0, BLOCK_N)
    m_out = i_n * BLOCK_N + tl.arange(0, BLOCK_N) < N
    tl.store(p_partials, tl.sum(s_cb_r, 0), mask=m_out)
    tl.store(p_partials + N, tl.sum(s_cb_i, 0), mask=m_out)
    tl.store(p_partials + 2 * N, tl.sum(s_cp_r, 0), mask=m_out)
    tl.store(p_partials + 3 * N, tl.sum(s_cp_i, 0), mask=m_out)
    tl.store(p_partials + 4 * N, tl.sum(s_pp, 0), mask=m_out)
    tl.store(p_partials + 5 * N, tl.sum(s_pb_r, 0), mask=m_out)
    tl.store(p_partials + 6 * N, tl.sum(s_pb_i, 0), mask=m_out)
    tl.store(p_partials + 7 * N, tl.sum(s_lambda_r, 0), mask=m_out)
    tl.store(p_partials + 8 * N, tl.sum(s_lambda_i, 0), mask=m_out)


@triton.jit
def add_chunks(p_partials, i_row, o_chunk, m_chunk, o_n, m_n, N):
    """Return the sum of row `i_row` of partial sums (chunks, 9, N) over the chunks, in a fixed order."""
    mask = m_chunk[:, None] & m_n[None, :]
    return tl.sum(tl.load(p_partials + (o_chunk[:, None] * 9 + i_row) * N + o_n[None, :], mask=mask, other=0.0), 0)


@triton.jit(do_not_specialize=["N", "n_chunks", "n_blocks"])
def dplr_spectrum_bwd_parameters_kernel(
    partials, d_dt_blocks, eigenvalues, P, B, C, dt, d_eigenvalues, d_P, d_B, d_C, d_dt, N, n_chunks, n_blocks,
    BLOCK_N: tl.constexpr, BLOCK_CHUNKS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of all parameters of one channel from those of numerators and eigenvalues."""
    i_d = tl.program_id(0).to(tl.int64)
    o_n, o_c, o_block = tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_CHUNKS), tl.arange(0, BLOCK)
    m_c = o_c < n_chunks
    m_n, o_pole = o_n < N, (i_d * N + o_n) * 2
    lambda_r, lambda_i = load_pair(eigenvalues + o_pole, m_n, 0.0)
    P_r, P_i = load_pair(P + o_pole, m_n, 0.0)
    B_r, B_i = load_pair(B + o_pole, m_n, 0.0)
    C_r, C_i = load_pair(C + o_pole, m_n, 0.0)
    p_partials = partials + i_d * n_chunks * 9 * N
    g_r = add_chunks(p_partials, 0, o_c, m_c, o_n, m_n, N)
    g_i = add_chunks(p_partials, 1, o_c, m_c, o_n, m_n, N)
    d_B_r, d_B_i = multiply_conjugate(C_r, C_i, g_r, g_i)
    d_C_r, d_C_i = multiply_conjugate(B_r, B_i, g_r, g_i)
    g_r = add_chunks(p_partials, 2, o_c, m_c, o_n, m_n, N)
    g_i = add_chunks(p_partials, 3, o_c, m_c, o_n, m_n, N)
    d_P_r, d_P_i = multiply_conjugate(C_r, C_i, g_r, g_i)
    more_r, more_i = multiply_conjugate(P_r, P_i, g_r, g_i)
    d_C_r, d_C_i = d_C_r + more_r, d_C_i + more_i
    g_r = 2.0 * add_chunks(p_partials, 4, o_c, m_c, o_n, m_n, N)
    d_P_r, d_P_i = d_P_r + g_r * P_r, d_P_i + g_r * P_i
    g_r = add_chunks(p_partials, 5, o_c, m_c, o_n, m_n, N)
    g_i = add_chunks(p_partials, 6, o_c, m_c, o_n, m_n, N)
    more_r, more_i = multiply(P_r, P_i, g_r, g_i)
    d_B_r, d_B_i = d_B_r + more_r, d_B_i + more_i
    more_r, more_i = multiply_conjugate(g_r, g_i, B_r, B_i)
    d_P_r, d_P_i = d_P_r + more_r, d_P_i + more_i
    g_r = add_chunks(p_partials, 7, o_c, m_c, o_n, m_n, N)
    g_i = add_chunks(p_partials, 8, o_c, m_c, o_n, m_n, N)
    b_dt = tl.load(dt + i_d)
    store_pair(d_eigenvalues + o_pole, b_dt * g_r, b_dt * g_i, m_n)
    store_pair(d_P + o_pole, d_P_r, d_P_i, m_n)
    store_pair(d_B + o_pole, d_B_r, d_B_i, m_n)
    store_pair(d_C + o_pole, d_C_r, d_C_i, m_n)
    # In the four sums, dt multiplies the eigenvalues only.
    b_d_dt = tl.sum(lambda_r * g_r + lambda_i * g_i, 0)
    for first in range(0, n_blocks, BLOCK):
        b_blocks = tl.load(d_dt_blocks + i_d * n_blocks + first + o_block, mask=first + o_block < n_blocks, other=0.0)
        b_d_dt += tl.sum(b_blocks, 0)
    tl.store(d_dt + i_d, b_d_dt)
