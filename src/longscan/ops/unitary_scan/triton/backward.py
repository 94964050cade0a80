"""Backward kernels of `unitary_scan`. Names as in forward.py.

The buffers of a round are in reverse order of time and begin with the last step of the round, `origin`, so that all sums over
the steps of a tile run in the same direction. The first tile of a program is the last one in time. m is the gradient of the state
in the rotating frame.
"""

import triton
import triton.language as tl

from longscan.ops._triton import INVALID, RESET, row_of, segmented_add_pair, silu, silu_derivative, wrap
from longscan.ops.unitary_scan.triton.forward import preprocess_tile, sum_partials, zero_if_restarted
from longscan.ops.unitary_scan.triton.gemm import interleave_weights, multiply_tile, split_weights
from longscan.ops.unitary_scan.triton.math import (
    U_SCALE,
    add_wrapped_exclusive,
    add_wrapped_segmented,
    fp16_scale,
    load_angles,
    load_bias_tile,
    load_channels,
    load_coefficients,
    load_pairs,
    load_state,
    load_weights,
    program_lanes,
    rotate_back,
    sincos_of_phase,
    split_fp16_hi_lo,
    sum_over_states,
)


@triton.jit(do_not_specialize=["L", "padded", "origin", "tiles", "round_programs", "step_programs"])
def preprocess_bwd_kernel(
    u, dt, z, dy, flags, W, u_hi, u_lo, step_sizes, valid, x, g, u_parts, W_hi, W_lo,
    L, D, N, K, padded, origin, tiles, round_programs, step_programs,
    T: tl.constexpr, BD: tl.constexpr, SLOTS: tl.constexpr, SLOTS_PER_CHANNEL: tl.constexpr,
):  # fmt: skip
    """Store the inputs of the backward scans and of the matrix products: a tile of the steps, or rows of W in two fp16 parts.

    The first `step_programs` programs store tiles (`preprocess_tile`), the others W (`split_weights`). The tiles belong to rounds
    of `padded` steps, `round_programs` programs for each. Rounds follow each other in the buffers, from the step `origin` on.
    """
    i = tl.program_id(0)
    if i < step_programs:
        i_round = i // round_programs
        first_row = i_round.to(tl.int64) * (round_programs // tiles) * padded
        preprocess_tile(
            u, dt, flags, u_hi, u_lo, step_sizes, valid, x, L, D, K, padded, origin - i_round * padded, tiles, i % round_programs,
            True, T, BD, z=z, dy=dy, g=g, u_parts=u_parts, first_row=first_row,
        )  # fmt: skip
    elif W is not None:
        split_weights(W, W_hi, W_lo, i - step_programs, tl.program_id(1), D, N, SLOTS, SLOTS_PER_CHANNEL, K, BD)


@triton.jit
def phases_backward(theta, phase, first, last):
    """Return the phases of a tile in reverse order, and the phase before the tile in time. phase: that after the tile in time."""
    phases = tl.where(first, wrap(phase[None, :] - theta), -theta)
    phases, G = tl.associative_scan((phases, tl.where(first, phase[None, :], -0.0)), 0, add_wrapped_exclusive)
    return G, row_of(phases, last)


@triton.jit
def phases_with_restarts(theta, phase, restart, last):
    """Return the phases of a tile in reverse order, and whether the state restarts in it up to each step in time.

    phase: the phase before the tile in time, which cannot be computed by subtraction if the state restarts in the tile.
    """
    theta = tl.where(restart, wrap(theta), theta)
    theta = tl.where(last & ~restart, wrap(theta + phase[None, :]), theta)
    restarted, G = tl.associative_scan((restart, theta), 0, add_wrapped_segmented, reverse=True)
    return G, restarted


@triton.jit
def load_flags_backward(flags, row, origin, o_step, o_t, L, R: tl.constexpr):
    """Return the flags of a tile (T,), and the masks (T, R) of steps that restart the state and of those before such a step."""
    step = origin - o_step
    b_flag = tl.load(flags + row + step, mask=step < L, other=INVALID)
    b_next = tl.load(flags + row + step + 1, mask=(o_t > 0) & (step + 1 < L), other=INVALID)
    restart = tl.broadcast_to((b_flag == RESET)[:, None], (o_t.shape[0], R))
    return b_flag, restart, tl.broadcast_to((b_next == RESET)[:, None], (o_t.shape[0], R))


@triton.jit
def sums_of_gradients(b_g, s, c, m_re, m_im, C_re, C_im, stop):
    """Return the gradient of the state in the rotating frame after each step. stop (T, R): the state restarts after the step."""
    stopped, R_re, R_im = tl.associative_scan((stop, b_g * c, -(b_g * s)), 0, segmented_add_pair)
    step_m_re = tl.where(stopped, 0.0, m_re[None, :]) + C_re[None, :] * R_re + C_im[None, :] * R_im
    step_m_im = tl.where(stopped, 0.0, m_im[None, :]) + C_re[None, :] * R_im - C_im[None, :] * R_re
    return step_m_re, step_m_im


@triton.jit(do_not_specialize=["bias", "L", "tiles", "chunks", "rows", "origin", "first_chunk", "stride"])
def chunk_state_bwd_kernel(
    u_hi, u_lo, dt, valid, g, W, bias, C, chunk_states, flags, tile_states, local,
    L, padded, tiles, chunks, rows, origin, first_chunk, stride,
    D: tl.constexpr, N: tl.constexpr, STATE_BLOCKS: tl.constexpr, BLOCKS: tl.constexpr, T: tl.constexpr, BD: tl.constexpr,
    BN: tl.constexpr, K: tl.constexpr, FAST: tl.constexpr, STAGES: tl.constexpr, SHARED_C: tl.constexpr,
):  # fmt: skip
    """Store the term that a chunk adds to m in `local` (B, chunks, D N, 3).

    The three numbers are its real and imaginary part, and 0 if the state restarts in the chunk, otherwise 1.

    tile_states: as `tile_states_kernel` stores them; None without flags.
    """
    size: tl.constexpr = D * N
    i_b, i_p = (tl.program_id(0) // BLOCKS).to(tl.int64), tl.program_id(1)
    i_c = first_chunk + tl.num_programs(1) - 1 - i_p
    _i_n, first_channel, m_r, o_r = program_lanes(D, N, STATE_BLOCKS, BLOCKS, BD, BN)
    o_parameter = (i_b // rows) * size
    C_re, C_im = load_coefficients(C + 2 * o_parameter, o_r, m_r, N, SHARED_C)
    phase = tl.load(chunk_states + i_b * stride + (i_c + 1).to(tl.int64) * 3 * size + o_r, mask=m_r, other=0.0)
    m_re, m_im = tl.zeros((BD * BN,), C_re.dtype), tl.zeros((BD * BN,), C_re.dtype)
    carry = m_re + 1.0
    W_hi, W_lo = load_weights(W + o_parameter * D, o_r, m_r, D, K)
    o_t, o_d = tl.arange(0, T), first_channel + tl.arange(0, BD)
    m_d, first, last = o_d < D, (o_t == 0)[:, None], (o_t == T - 1)[:, None]
    b_bias = load_bias_tile(bias + o_parameter, o_r, m_r, T)
    for i in tl.range(tiles, num_stages=STAGES):
        o_step = (i_p * tiles + i) * T + o_t
        o_td = i_b * D * padded + (o_d[None, :].to(tl.int64) * padded + o_step[:, None])
        theta, _, _ = load_angles(
            u_hi, u_lo, dt, valid, W_hi, W_lo, b_bias, i_b * padded, o_step, o_td, o_r, m_r, m_d, D, T, BD, BN, K
        )
        b_g = load_channels(g, o_td, m_d, T, BD, BN)
        if flags is not None:
            b_flag, restart, stop = load_flags_backward(flags, i_b * L, origin, o_step, o_t, L, BD * BN)
            n_tiles = tl.num_programs(1) * tiles
            p_state = tile_states + (i_b * n_tiles + n_tiles - 1 - (i_p * tiles + i)) * 3 * size + o_r
            G, _ = phases_with_restarts(theta, tl.load(p_state, mask=m_r, other=0.0), restart, last)
            s, c = sincos_of_phase(G, FAST)
            step_m_re, step_m_im = sums_of_gradients(b_g, s, c, m_re, m_im, C_re, C_im, stop)
            carry = zero_if_restarted(carry, b_flag)
            m_re, m_im = row_of(tl.where(restart, 0.0, step_m_re), last), row_of(tl.where(restart, 0.0, step_m_im), last)
        else:
            G, phase = phases_backward(theta, phase, first, last)
            s, c = sincos_of_phase(G, FAST)
            R_re, R_im = row_of(tl.cumsum(b_g * c, 0), last), row_of(tl.cumsum(-(b_g * s), 0), last)
            m_re += C_re * R_re + C_im * R_im
            m_im += C_re * R_im - C_im * R_re
    p_out = local + (i_b * chunks + i_c) * size * 3 + o_r * 3
    tl.store(p_out, m_re, mask=m_r)
    tl.store(p_out + 1, m_im, mask=m_r)
    tl.store(p_out + 2, carry, mask=m_r)


@triton.jit(do_not_specialize=["chunks", "stride"])
def state_passing_bwd_kernel(local, chunk_states, d_final_state, d_rotated, chunks, size, stride, BLOCK: tl.constexpr):
    """Store m after all chunks and before the first, d_rotated (B, chunks + 1, size, 2), from those of `chunk_state_bwd_kernel`.

    d_final_state (B, size, 2): the gradient of the final state, which is rotated back by the last phase; None for zero.
    """
    i_b = tl.program_id(0).to(tl.int64)
    o_r = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    m_r = o_r < size
    m_re = tl.zeros((BLOCK,), local.dtype.element_ty)
    m_im = m_re
    if d_final_state is not None:
        m_re, m_im = load_pairs(d_final_state + i_b * size * 2, o_r, m_r)
        p_phase = chunk_states + i_b * stride + tl.cast(chunks, tl.int64) * 3 * size + o_r
        m_re, m_im = rotate_back(m_re, m_im, tl.load(p_phase, mask=m_r, other=0.0))
    for i in range(chunks + 1):
        i_c = chunks - i
        p_out = d_rotated + ((i_b * (chunks + 1) + i_c) * size + o_r) * 2
        tl.store(p_out, m_re, mask=m_r)
        tl.store(p_out + 1, m_im, mask=m_r)
        p_in, m_in = local + ((i_b * chunks + i_c - 1) * size + o_r) * 3, m_r & (o_r * 0 + i_c > 0)
        carry = tl.load(p_in + 2, mask=m_in, other=0.0) > 0
        m_re = tl.where(carry, m_re, 0.0) + tl.load(p_in, mask=m_in, other=0.0)
        m_im = tl.where(carry, m_im, 0.0) + tl.load(p_in + 1, mask=m_in, other=0.0)


@triton.jit
def load_m(d_rotated, d_final_state, phase, i_b, i_c, chunks, o_r, m_r, size, sequential):
    """Load m after a chunk.

    sequential: 1 if the launch of the next chunk in time stored it to d_rotated (B, size, 2), where after the last chunk
    it is computed from d_final_state; 0 if d_rotated (B, chunks + 1, size, 2) has m of all chunks. d_final_state: the gradient
    of the final state, None for zero.
    """
    if (sequential == 1) & (i_c == chunks - 1):
        m_re, m_im = tl.zeros_like(phase), tl.zeros_like(phase)
        if d_final_state is not None:
            m_re, m_im = load_pairs(d_final_state + i_b * size * 2, o_r, m_r)
            m_re, m_im = rotate_back(m_re, m_im, phase)
    else:
        i_m = tl.where(sequential == 1, i_b, i_b * (chunks + 1) + i_c + 1)
        m_re, m_im = load_pairs(d_rotated + i_m * size * 2, o_r, m_r)
    return m_re, m_im


@triton.jit
def store_sums(
    sums, d_rotated, d_initial, m_re, m_im, d_bias, dB_re, dB_im, dC_re, dC_im, i_b, i_c, chunks, o_r, m_r, size,
    sequential, program_chunks=1,
):  # fmt: skip
    """Store the sums of a program's chunks (B, chunks, 5, size), and before the first chunk the gradient of the initial state.

    sequential: 1 to add them to those of the last launch, (B, 1, 5, size), and to store m for the next launch; otherwise 0.
    """
    p_sum = sums + tl.where(sequential == 1, i_b, i_b * chunks + i_c) * size * 5 + o_r
    if (sequential == 1) & (i_c + program_chunks < chunks):
        d_bias += tl.load(p_sum, mask=m_r, other=0.0)
        dB_re += tl.load(p_sum + size, mask=m_r, other=0.0)
        dB_im += tl.load(p_sum + 2 * size, mask=m_r, other=0.0)
        dC_re += tl.load(p_sum + 3 * size, mask=m_r, other=0.0)
        dC_im += tl.load(p_sum + 4 * size, mask=m_r, other=0.0)
    tl.store(p_sum, d_bias, mask=m_r)
    tl.store(p_sum + size, dB_re, mask=m_r)
    tl.store(p_sum + 2 * size, dB_im, mask=m_r)
    tl.store(p_sum + 3 * size, dC_re, mask=m_r)
    tl.store(p_sum + 4 * size, dC_im, mask=m_r)
    if sequential == 1:
        p_out = d_rotated + i_b * size * 2 + o_r * 2
        tl.store(p_out, m_re, mask=m_r)
        tl.store(p_out + 1, m_im, mask=m_r)
    if i_c == 0:
        p_out = d_initial + i_b * size * 2 + o_r * 2
        tl.store(p_out, m_re, mask=m_r)
        tl.store(p_out + 1, m_im, mask=m_r)


@triton.jit
def reduce_channels(x, o_first, m_d, steps, MAXIMUM: tl.constexpr, BD: tl.constexpr, BN: tl.constexpr):
    """Return for each lane the sum, or with MAXIMUM the maximum, of |x| over `steps` steps of its channel, from o_first on."""
    COLUMNS: tl.constexpr = 512 // BD if BD < 32 else 16
    reduced = tl.zeros((BD, COLUMNS), tl.float32)
    for begin in range(0, steps, COLUMNS):
        o_t = begin + tl.arange(0, COLUMNS)
        b_x = tl.abs(tl.load(x + o_first[:, None] + o_t[None, :], mask=m_d[:, None] & (o_t < steps)[None, :], other=0.0))
        reduced = tl.maximum(reduced, b_x) if MAXIMUM else reduced + b_x
    result = tl.max(reduced, 1) if MAXIMUM else tl.sum(reduced, 1)
    return tl.reshape(tl.broadcast_to(result[:, None], (BD, BN)), (BD * BN,))


@triton.jit
def chunk_scale(
    dt, x, g, p_state, B_re, B_im, C_re, C_im, m_re, m_im, o_first, m_d, m_r, steps, size, BD: tl.constexpr, BN:
    tl.constexpr, WARPS: tl.constexpr
):  # fmt: skip
    """Return the power of two that scales the gradients of the angles of a chunk into the range of fp16, and its inverse.

    The power follows from |d_theta| <= |state| |gradient of the state|, where sums of |x| and |g| over the chunk bound both
    factors. p_state: the state before the chunk. WARPS: the number of groups of lanes with a power each, which is returned for
    all lanes; without groups, 0, there is only one power.
    """
    state = tl.abs(tl.load(p_state + size, mask=m_r, other=0.0)) + tl.abs(tl.load(p_state + 2 * size, mask=m_r, other=0.0))
    state += (tl.abs(B_re) + tl.abs(B_im)) * reduce_channels(x, o_first, m_d, steps, False, BD, BN)
    gradient = tl.abs(m_re) + tl.abs(m_im)
    gradient += (tl.abs(C_re) + tl.abs(C_im)) * reduce_channels(g, o_first, m_d, steps, False, BD, BN)
    peak = state * gradient
    if dt is not None:
        peak *= reduce_channels(dt, o_first, m_d, steps, True, BD, BN)
    if WARPS:
        LANES: tl.constexpr = BD * BN // WARPS
        peaks = tl.max(tl.reshape(peak, (WARPS, LANES)), 1)
        peak = tl.reshape(tl.broadcast_to(peaks[:, None], (WARPS, LANES)), (BD * BN,))
    else:
        peak = tl.max(peak, 0)
    return fp16_scale(peak)


@triton.jit
def store_sums_over_states(
    out, x, i_b, i_n, first_channel, o_step, batch, padded, D, T: tl.constexpr, BD: tl.constexpr, BN: tl.constexpr, SUM:
    tl.constexpr
):  # fmt: skip
    """Store sums of x (T, BD BN) over SUM states each, which one warp has, in `out` (blocks of SUM states, B, D, padded)."""
    o_sum = tl.arange(0, BD * BN // SUM) * SUM
    o_d, i_block = first_channel + o_sum // BN, i_n * (BN // SUM) + o_sum % BN // SUM
    o_out = ((i_block.to(tl.int64) * batch + i_b) * D + o_d) * padded
    tl.store(out + o_out[None, :] + o_step[:, None], sum_over_states(x, T, BD * BN // SUM, SUM), mask=(o_d < D)[None, :])


@triton.jit
def load_chunk_end(
    W, B, C, chunk_states, d_final_state, d_rotated, i_b, i_c, rows, stride, chunks, o_r, m_r, sequential,
    D: tl.constexpr, N: tl.constexpr, K: tl.constexpr, SHARED_B: tl.constexpr, SHARED_C: tl.constexpr,
):  # fmt: skip
    """Return what a program needs at the end of chunk i_c: B and C, the phase and state w, m, and both parts of W."""
    size: tl.constexpr = D * N
    o_parameter = (i_b // rows) * size
    B_re, B_im = load_coefficients(B + 2 * o_parameter, o_r, m_r, N, SHARED_B)
    C_re, C_im = load_coefficients(C + 2 * o_parameter, o_r, m_r, N, SHARED_C)
    phase, w_re, w_im = load_state(chunk_states + i_b * stride + (i_c + 1).to(tl.int64) * 3 * size + o_r, m_r, size)
    m_re, m_im = load_m(d_rotated, d_final_state, phase, i_b, i_c, chunks, o_r, m_r, size, sequential)
    W_hi, W_lo = load_weights(W + o_parameter * D, o_r, m_r, D, K)
    return B_re, B_im, C_re, C_im, phase, w_re, w_im, m_re, m_im, W_hi, W_lo


@triton.jit
def differentiate_tile(
    g, x, o_td, m_d, theta, phase, w_re, w_im, m_re, m_im, B_re, B_im, C_re, C_im, CB_re, CB_im,
    T: tl.constexpr, BD: tl.constexpr, BN: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Return the gradients of x and of the angles of a tile, phase, w and m before it, and its terms of P, dB and dC.

    The equations are those of README.md; phase, w and m are given after the tile.
    """
    o_t = tl.arange(0, T)
    first, last = (o_t == 0)[:, None], (o_t == T - 1)[:, None]
    G, phase = phases_backward(theta, phase, first, last)
    s, c = sincos_of_phase(G, FAST)
    b_g, b_x = load_channels(g, o_td, m_d, T, BD, BN), load_channels(x, o_td, m_d, T, BD, BN)
    R_re, R_im = tl.cumsum(b_g * c, 0), tl.cumsum(-(b_g * s), 0)
    all_R_re, all_R_im = row_of(R_re, last), row_of(R_im, last)
    x_re, x_im = b_x * c, -(b_x * s)
    S_re, S_im = tl.cumsum(x_re, 0), tl.cumsum(x_im, 0)
    all_S_re, all_S_im = row_of(S_re, last), row_of(S_im, last)
    rho_re = (B_re * m_re + B_im * m_im)[None, :] + CB_re[None, :] * R_re + CB_im[None, :] * R_im
    rho_im = (B_re * m_im - B_im * m_re)[None, :] + CB_re[None, :] * R_im - CB_im[None, :] * R_re
    dx = c * rho_re - s * rho_im
    d_theta = (m_im * w_re - m_re * w_im)[None, :]
    d_theta = d_theta + (C_re * w_re - C_im * w_im)[None, :] * R_im - (C_re * w_im + C_im * w_re)[None, :] * R_re
    d_theta += rho_re * S_im - rho_im * S_re
    P_re = tl.sum(x_re * R_re, 0) + tl.sum(x_im * R_im, 0)
    P_im = tl.sum(x_re * R_im, 0) - tl.sum(x_im * R_re, 0)
    dB_re = m_re * all_S_re + m_im * all_S_im
    dB_im = m_im * all_S_re - m_re * all_S_im
    w_re += B_im * all_S_im - B_re * all_S_re
    w_im -= B_re * all_S_im + B_im * all_S_re
    dC_re = all_R_re * w_re + all_R_im * w_im
    dC_im = all_R_im * w_re - all_R_re * w_im
    m_re += C_re * all_R_re + C_im * all_R_im
    m_im += C_re * all_R_im - C_im * all_R_re
    return dx, d_theta, phase, w_re, w_im, m_re, m_im, P_re, P_im, dB_re, dB_im, dC_re, dC_im


@triton.jit
def add_products(P_re, P_im, dB_re, dB_im, dC_re, dC_im, B_re, B_im, C_re, C_im):
    """Return the gradients of B and C with the terms conj(C) P and conj(B) P."""
    dB_re += C_re * P_re + C_im * P_im
    dB_im += C_re * P_im - C_im * P_re
    dC_re += B_re * P_re + B_im * P_im
    dC_im += B_re * P_im - B_im * P_re
    return dB_re, dB_im, dC_re, dC_im


@triton.jit(
    do_not_specialize=[
        "bias", "d_theta", "d_theta_lo", "batch", "L", "tiles", "chunks", "rows", "origin", "first_chunk", "program_chunks",
        "stride", "sequential",
    ]
)  # fmt: skip
def chunk_scan_bwd_kernel(
    u_hi, u_lo, dt, valid, x, g, W, bias, B, C, chunk_states, d_final_state, d_rotated,
    dx, d_dt, d_theta, d_theta_lo, inverse, sums, d_initial,
    batch, L, padded, tiles, chunks, rows, origin, first_chunk, program_chunks, stride, sequential,  # noqa: ARG001
    D: tl.constexpr, N: tl.constexpr, STATE_BLOCKS: tl.constexpr, BLOCKS: tl.constexpr,
    T: tl.constexpr, BD: tl.constexpr, BN: tl.constexpr, K: tl.constexpr, FAST: tl.constexpr, STAGES: tl.constexpr,
    SHARED_B: tl.constexpr, SHARED_C: tl.constexpr,
):  # fmt: skip
    """Store the gradients of `program_chunks` chunks without masks: of the angles, of x and, with dt, of dt; and sums.

    Gradients of x and dt: (STATE_BLOCKS, B, D, padded). d_theta (B, padded, BLOCKS, R): the gradients of W u. With d_theta_lo
    they are in two fp16 parts, times a power of two whose inverse is stored in `inverse` (B, programs of a row, BLOCKS).
    sequential: see `load_m` and `store_sums`.
    """
    R: tl.constexpr = BD * BN
    size: tl.constexpr = D * N
    i_b, i_p, i_r = (tl.program_id(0) // BLOCKS).to(tl.int64), tl.program_id(1), tl.program_id(0) % BLOCKS
    i_c = first_chunk + (tl.num_programs(1) - 1 - i_p) * program_chunks
    i_n, first_channel, m_r, o_r = program_lanes(D, N, STATE_BLOCKS, BLOCKS, BD, BN)
    B_re, B_im, C_re, C_im, phase, w_re, w_im, m_re, m_im, W_hi, W_lo = load_chunk_end(
        W, B, C, chunk_states, d_final_state, d_rotated, i_b, i_c + program_chunks - 1, rows, stride, chunks, o_r, m_r,
        sequential, D, N, K, SHARED_B, SHARED_C,
    )  # fmt: skip
    zero = tl.zeros((R,), B_re.dtype)
    d_bias, dB_re, dB_im, dC_re, dC_im, P_re, P_im = zero, zero, zero, zero, zero, zero, zero
    CB_re, CB_im = C_re * B_re - C_im * B_im, C_re * B_im + C_im * B_re
    o_t, o_d = tl.arange(0, T), first_channel + tl.arange(0, BD)
    m_d, o_channel, o_column = o_d < D, o_d[None, :].to(tl.int64) * padded, i_r * R + tl.arange(0, R)
    if d_theta_lo is not None:
        p_state = chunk_states + i_b * stride + i_c.to(tl.int64) * 3 * size + o_r
        o_first = (i_b * D + o_d.to(tl.int64)) * padded + i_p * tiles * T
        scale, b_inverse = chunk_scale(
            dt, x, g, p_state, B_re, B_im, C_re, C_im, m_re, m_im, o_first, m_d, m_r, tiles * T, size, BD, BN, 0
        )
        tl.store(inverse + (i_b * tl.num_programs(1) + i_p) * BLOCKS + i_r, b_inverse)
    b_bias = load_bias_tile(bias + (i_b // rows) * size, o_r, m_r, T)
    for i in tl.range(tiles, num_stages=STAGES):
        i_t = i_p * tiles + i
        o_step = i_t * T + o_t
        o_td = i_b * D * padded + o_channel + o_step[:, None]
        theta, b_Wu, factor = load_angles(
            u_hi, u_lo, dt, valid, W_hi, W_lo, b_bias, i_b * padded, o_step, o_td, o_r, m_r, m_d, D, T, BD, BN, K
        )
        b_dx, b_d_theta, phase, w_re, w_im, m_re, m_im, t_P_re, t_P_im, t_B_re, t_B_im, t_C_re, t_C_im = differentiate_tile(
            g, x, o_td, m_d, theta, phase, w_re, w_im, m_re, m_im, B_re, B_im, C_re, C_im, CB_re, CB_im, T, BD, BN, FAST
        )
        P_re, P_im = P_re + t_P_re, P_im + t_P_im
        dB_re, dB_im, dC_re, dC_im = dB_re + t_B_re, dB_im + t_B_im, dC_re + t_C_re, dC_im + t_C_im
        if dt is not None:
            store_sums_over_states(d_dt, b_d_theta * b_Wu, i_b, i_n, first_channel, o_step, batch, padded, D, T, BD, BN, BN)
            b_d_theta *= factor
            d_bias += tl.sum(b_d_theta, 0)
        else:
            d_bias += tl.sum(b_d_theta * factor, 0)
        o_theta = (i_b * padded + i_t * T) * (BLOCKS * R) + (o_t[:, None] * (BLOCKS * R) + o_column[None, :])
        if d_theta_lo is not None:
            b_hi, b_lo = split_fp16_hi_lo(b_d_theta, scale)
            tl.store(d_theta + o_theta, b_hi)
            tl.store(d_theta_lo + o_theta, b_lo)
        else:
            tl.store(d_theta + o_theta, b_d_theta)
        store_sums_over_states(dx, b_dx, i_b, i_n, first_channel, o_step, batch, padded, D, T, BD, BN, BN)
    dB_re, dB_im, dC_re, dC_im = add_products(P_re, P_im, dB_re, dB_im, dC_re, dC_im, B_re, B_im, C_re, C_im)
    store_sums(
        sums, d_rotated, d_initial, m_re, m_im, d_bias, dB_re, dB_im, dC_re, dC_im, i_b, i_c, chunks, o_r, m_r, size, sequential,
        program_chunks,
    )  # fmt: skip


@triton.jit(
    do_not_specialize=[
        "bias", "batch", "L", "tiles", "chunks", "rows", "origin", "first_chunk", "program_chunks", "stride", "sequential",
    ]
)  # fmt: skip
def chunk_scan_products_bwd_kernel(
    u_hi, u_lo, dt, valid, x, g, W, bias, B, C, chunk_states, d_final_state, d_rotated,
    dx, d_dt, sums, d_initial, u_parts, du, dW,
    batch, L, padded, tiles, chunks, rows, origin, first_chunk, program_chunks, stride, sequential,  # noqa: ARG001
    D: tl.constexpr, N: tl.constexpr, STATE_BLOCKS: tl.constexpr, BLOCKS: tl.constexpr,
    T: tl.constexpr, BD: tl.constexpr, BN: tl.constexpr, K: tl.constexpr, FAST: tl.constexpr, STAGES: tl.constexpr,
    SHARED_B: tl.constexpr, SHARED_C: tl.constexpr,
):  # fmt: skip
    """Store the gradients of a program's chunks as `chunk_scan_bwd_kernel`, but products of those of the angles, in float32.

    du (BLOCKS, B, padded, K): times W. dW (programs of a group, groups, BLOCKS R, K): times u, to which later launches add.
    Gradients of x and dt are sums over at most 32 states. u_parts: u in the order of `interleaved_rows`.
    """
    R: tl.constexpr = BD * BN
    size: tl.constexpr = D * N
    SUM: tl.constexpr = 32 if BN > 32 else BN
    i_b, i_p, i_r = (tl.program_id(0) // BLOCKS).to(tl.int64), tl.program_id(1), tl.program_id(0) % BLOCKS
    i_c = first_chunk + (tl.num_programs(1) - 1 - i_p) * program_chunks
    i_n, first_channel, m_r, o_r = program_lanes(D, N, STATE_BLOCKS, BLOCKS, BD, BN)
    B_re, B_im, C_re, C_im, phase, w_re, w_im, m_re, m_im, W_hi, W_lo = load_chunk_end(
        W, B, C, chunk_states, d_final_state, d_rotated, i_b, i_c + program_chunks - 1, rows, stride, chunks, o_r, m_r,
        sequential, D, N, K, SHARED_B, SHARED_C,
    )  # fmt: skip
    zero = tl.zeros((R,), B_re.dtype)
    d_bias, dB_re, dB_im, dC_re, dC_im, P_re, P_im = zero, zero, zero, zero, zero, zero, zero
    CB_re, CB_im = C_re * B_re - C_im * B_im, C_re * B_im + C_im * B_re
    o_t, o_d = tl.arange(0, T), first_channel + tl.arange(0, BD)
    m_d, o_channel, o_parameter = o_d < D, o_d[None, :].to(tl.int64) * padded, (i_b // rows) * size
    p_state = chunk_states + i_b * stride + i_c.to(tl.int64) * 3 * size + o_r
    o_first = (i_b * D + o_d.to(tl.int64)) * padded + i_p * tiles * T
    scale, b_inverse = chunk_scale(
        dt, x, g, p_state, B_re, B_im, C_re, C_im, m_re, m_im, o_first, m_d, m_r, tiles * T, size, BD, BN, R // 32
    )
    W_parts, du_scale = interleave_weights(W + o_parameter * D, o_r, m_r, b_inverse, D, K)
    b_dW, dW_scale = tl.zeros((K, R), tl.float32), b_inverse * U_SCALE
    b_bias = load_bias_tile(bias + o_parameter, o_r, m_r, T)
    for i in tl.range(tiles, num_stages=STAGES):
        o_step = (i_p * tiles + i) * T + o_t
        o_row, o_td = i_b * padded + o_step, i_b * D * padded + o_channel + o_step[:, None]
        theta, b_Wu, factor = load_angles(
            u_hi, u_lo, dt, valid, W_hi, W_lo, b_bias, i_b * padded, o_step, o_td, o_r, m_r, m_d, D, T, BD, BN, K, True
        )
        b_dx, b_d_theta, phase, w_re, w_im, m_re, m_im, t_P_re, t_P_im, t_B_re, t_B_im, t_C_re, t_C_im = differentiate_tile(
            g, x, o_td, m_d, theta, phase, w_re, w_im, m_re, m_im, B_re, B_im, C_re, C_im, CB_re, CB_im, T, BD, BN, FAST
        )
        P_re, P_im = P_re + t_P_re, P_im + t_P_im
        dB_re, dB_im, dC_re, dC_im = dB_re + t_B_re, dB_im + t_B_im, dC_re + t_C_re, dC_im + t_C_im
        if dt is not None:
            store_sums_over_states(d_dt, b_d_theta * b_Wu, i_b, i_n, first_channel, o_step, batch, padded, D, T, BD, BN, SUM)
            b_d_theta *= factor
            d_bias += tl.sum(b_d_theta, 0)
        else:
            d_bias += tl.sum(b_d_theta * factor, 0)
        b_hi, b_lo = split_fp16_hi_lo(b_d_theta, scale[None, :])
        store_sums_over_states(dx, b_dx, i_b, i_n, first_channel, o_step, batch, padded, D, T, BD, BN, SUM)
        p_tile = du + i_r * tl.cast(batch, tl.int64) * padded * K
        b_dW += multiply_tile(b_hi, b_lo, W_parts, du_scale, dW_scale, u_parts, p_tile, o_row, K)
    i_partial, i_g = i_p.to(tl.int64) * rows + i_b % rows, i_b // rows
    o_slot = (i_partial * (batch // rows) + i_g) * (BLOCKS * R) + i_r * R + tl.arange(0, R)
    p_out = dW + o_slot[None, :] * K + tl.arange(0, K)[:, None]
    if first_chunk + tl.num_programs(1) * program_chunks < chunks:
        b_dW += tl.load(p_out)
    tl.store(p_out, b_dW)
    dB_re, dB_im, dC_re, dC_im = add_products(P_re, P_im, dB_re, dB_im, dC_re, dC_im, B_re, B_im, C_re, C_im)
    store_sums(
        sums, d_rotated, d_initial, m_re, m_im, d_bias, dB_re, dB_im, dC_re, dC_im, i_b, i_c, chunks, o_r, m_r, size, sequential,
        program_chunks,
    )  # fmt: skip


@triton.jit(
    do_not_specialize=[
        "bias", "d_theta", "d_theta_lo", "batch", "L", "tiles", "chunks", "rows", "origin", "first_chunk", "stride",
        "sequential",
    ]
)  # fmt: skip
def chunk_scan_masked_bwd_kernel(
    u_hi, u_lo, dt, valid, x, g, W, bias, B, C, chunk_states, flags, tile_states, d_final_state, d_rotated,
    dx, d_dt, d_theta, d_theta_lo, inverse, sums, d_initial,
    batch, L, padded, tiles, chunks, rows, origin, first_chunk, stride, sequential,
    D: tl.constexpr, N: tl.constexpr, STATE_BLOCKS: tl.constexpr, BLOCKS: tl.constexpr,
    T: tl.constexpr, BD: tl.constexpr, BN: tl.constexpr, K: tl.constexpr, FAST: tl.constexpr, STAGES: tl.constexpr,
    SHARED_B: tl.constexpr, SHARED_C: tl.constexpr,
):  # fmt: skip
    """Store the gradients of a chunk with masks, as `chunk_scan_bwd_kernel` does without; each step has its own power of two.

    inverse: (B, padded, BLOCKS). tile_states: as `tile_states_kernel` stores them.
    """
    R: tl.constexpr = BD * BN
    size: tl.constexpr = D * N
    i_b, i_p, i_r = (tl.program_id(0) // BLOCKS).to(tl.int64), tl.program_id(1), tl.program_id(0) % BLOCKS
    i_c = first_chunk + tl.num_programs(1) - 1 - i_p
    i_n, first_channel, m_r, o_r = program_lanes(D, N, STATE_BLOCKS, BLOCKS, BD, BN)
    o_parameter = (i_b // rows) * size
    B_re, B_im = load_coefficients(B + 2 * o_parameter, o_r, m_r, N, SHARED_B)
    C_re, C_im = load_coefficients(C + 2 * o_parameter, o_r, m_r, N, SHARED_C)
    phase = tl.load(chunk_states + i_b * stride + (i_c + 1).to(tl.int64) * 3 * size + o_r, mask=m_r, other=0.0)
    m_re, m_im = load_m(d_rotated, d_final_state, phase, i_b, i_c, chunks, o_r, m_r, size, sequential)
    zero = tl.zeros((R,), B_re.dtype)
    d_bias, dB_re, dB_im, dC_re, dC_im = zero, zero, zero, zero, zero
    W_hi, W_lo = load_weights(W + o_parameter * D, o_r, m_r, D, K)
    o_t, o_d = tl.arange(0, T), first_channel + tl.arange(0, BD)
    m_d, last = o_d < D, (o_t == T - 1)[:, None]
    o_channel, o_column = o_d[None, :].to(tl.int64) * padded, i_r * R + tl.arange(0, R)
    b_bias = load_bias_tile(bias + o_parameter, o_r, m_r, T)
    for i in tl.range(tiles, num_stages=STAGES):
        i_t, n_tiles = i_p * tiles + i, tl.num_programs(1) * tiles
        o_step = i_t * T + o_t
        o_td = i_b * D * padded + o_channel + o_step[:, None]
        theta, b_Wu, factor = load_angles(
            u_hi, u_lo, dt, valid, W_hi, W_lo, b_bias, i_b * padded, o_step, o_td, o_r, m_r, m_d, D, T, BD, BN, K
        )
        _, restart, stop = load_flags_backward(flags, i_b * L, origin, o_step, o_t, L, R)
        phase, w_re, w_im = load_state(tile_states + (i_b * n_tiles + n_tiles - 1 - i_t) * 3 * size + o_r, m_r, size)
        G, restarted = phases_with_restarts(theta, phase, restart, last)
        s, c = sincos_of_phase(G, FAST)
        b_g, b_x = load_channels(g, o_td, m_d, T, BD, BN), load_channels(x, o_td, m_d, T, BD, BN)
        step_m_re, step_m_im = sums_of_gradients(b_g, s, c, m_re, m_im, C_re, C_im, stop)
        x_re, x_im = b_x * c, -(b_x * s)
        _, S_re, S_im = tl.associative_scan((restart, x_re, x_im), 0, segmented_add_pair, reverse=True)
        S_re, S_im = S_re - x_re, S_im - x_im
        before_re = tl.where(restarted, 0.0, w_re[None, :]) + B_re[None, :] * S_re - B_im[None, :] * S_im
        before_im = tl.where(restarted, 0.0, w_im[None, :]) + B_re[None, :] * S_im + B_im[None, :] * S_re
        before_re, before_im = tl.where(restart, 0.0, before_re), tl.where(restart, 0.0, before_im)
        dh_re, dh_im = c * step_m_re - s * step_m_im, c * step_m_im + s * step_m_re
        rotated_re, rotated_im = c * before_re - s * before_im, c * before_im + s * before_re
        b_d_theta = dh_im * rotated_re - dh_re * rotated_im
        b_dx = B_re[None, :] * dh_re + B_im[None, :] * dh_im
        dB_re += tl.sum(b_x * dh_re, 0)
        dB_im += tl.sum(b_x * dh_im, 0)
        dC_re += tl.sum(b_g * (rotated_re + B_re[None, :] * b_x), 0)
        dC_im -= tl.sum(b_g * (rotated_im + B_im[None, :] * b_x), 0)
        m_re, m_im = row_of(tl.where(restart, 0.0, step_m_re), last), row_of(tl.where(restart, 0.0, step_m_im), last)
        o_out = i_n.to(tl.int64) * batch * D * padded + o_td
        if dt is not None:
            tl.store(d_dt + o_out, sum_over_states(b_d_theta * b_Wu, T, BD, BN), mask=m_d[None, :])
            b_d_theta *= factor
            d_bias += tl.sum(b_d_theta, 0)
        else:
            d_bias += tl.sum(b_d_theta * factor, 0)
        o_theta = (i_b * padded + i_t * T) * (BLOCKS * R) + (o_t[:, None] * (BLOCKS * R) + o_column[None, :])
        if d_theta_lo is not None:
            scale, b_inverse = fp16_scale(tl.max(tl.abs(b_d_theta), 1))
            tl.store(inverse + (i_b * padded + o_step) * BLOCKS + i_r, b_inverse)
            b_hi, b_lo = split_fp16_hi_lo(b_d_theta, scale[:, None])
            tl.store(d_theta + o_theta, b_hi)
            tl.store(d_theta_lo + o_theta, b_lo)
        else:
            tl.store(d_theta + o_theta, b_d_theta)
        tl.store(dx + o_out, sum_over_states(b_dx, T, BD, BN), mask=m_d[None, :])
    store_sums(
        sums, d_rotated, d_initial, m_re, m_im, d_bias, dB_re, dB_im, dC_re, dC_im, i_b, i_c, chunks, o_r, m_r, size, sequential
    )


@triton.jit(
    do_not_specialize=["batch", "L", "padded", "origin", "split_k", "tiles", "rows", "stride", "first_tile", "all_tiles"]
)  # fmt: skip
def epilogue_bwd_kernel(
    dy, u, dt, skip_weight, z, flags, raw, dx, d_dt, du_angles, du, ddt, dz, skips,
    batch, L, D, K, padded, origin, state_blocks, split_k, tiles, rows, stride, first_tile, all_tiles,
    T: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Store the gradients of u, dt and z at the steps of a round, and sums for that of D, `skips` (B, all_tiles, D).

    raw: y before skip and gate, in order of time. d_dt: gradients of dt through the angles, or None. du_angles (split_k, B,
    padded, K): partial sums of the gradient of u through the angles.
    """
    i_b, i_t = (tl.program_id(0) // tiles).to(tl.int64), tl.program_id(0) % tiles
    o_t, o_d = i_t * T + tl.arange(0, T), tl.program_id(1) * BD + tl.arange(0, BD)
    step = origin - o_t
    m_t = (o_t < padded) & (step < L)
    m_valid = m_t
    if flags is not None:
        m_valid = m_t & (tl.load(flags + i_b * L + step, mask=m_t, other=INVALID) != INVALID)
    o_td = step[:, None].to(tl.int64) * D + o_d[None, :]
    m_in, m_out = m_valid[:, None] & (o_d < D)[None, :], m_t[:, None] & (o_d < D)[None, :]
    b_y = tl.load(raw + i_b * stride + o_td, mask=m_in, other=0.0)
    o_td += i_b * L * D
    b_u = tl.load(u + o_td, mask=m_in, other=0.0)
    activated = silu(b_u)
    b_dy = tl.load(dy + o_td, mask=m_in, other=0.0)
    skip = tl.zeros((BD,), b_u.dtype)
    if skip_weight is not None:
        skip = tl.load(skip_weight + (i_b // rows) * D + o_d, mask=o_d < D, other=0.0)
        b_y += skip[None, :] * activated
    if z is not None:
        b_z = tl.load(z + o_td, mask=m_in, other=0.0)
        tl.store(dz + o_td, b_dy * b_y * silu_derivative(b_z), mask=m_out)
        b_dy *= silu(b_z)
    if skip_weight is not None:
        tl.store(skips + (i_b * all_tiles + first_tile + i_t) * D + o_d, tl.sum(b_dy * activated, 0), mask=o_d < D)
    o_dx, block_stride = (i_b * D + o_d[None, :]) * padded + o_t[:, None], tl.cast(batch, tl.int64) * D * padded
    b_dx = sum_partials(dx + o_dx, block_stride, state_blocks, m_in)
    b_dt = tl.load(dt + o_td, mask=m_in, other=0.0)
    b_du = (b_dt * b_dx + skip[None, :] * b_dy) * silu_derivative(b_u)
    o_du = (i_b * padded + o_t[:, None]) * K + o_d[None, :]
    b_du += sum_partials(du_angles + o_du, tl.cast(batch, tl.int64) * padded * K, split_k, m_in)
    tl.store(du + o_td, tl.where(m_in, b_du, 0.0), mask=m_out)
    b_ddt = b_dx * activated
    if d_dt is not None:
        b_ddt += sum_partials(d_dt + o_dx, block_stride, state_blocks, m_in)
    tl.store(ddt + o_td, tl.where(m_in, b_ddt, 0.0), mask=m_out)


@triton.jit
def sum_states(
    sums, d_bias, dB, dC, i_g, i, count, size, SHARED_B: tl.constexpr, SHARED_C: tl.constexpr, ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Store the gradients of the bias, B and C of BLOCK lanes: sums of the `count` sums (5, size) of a group, in fixed order.

    The gradients of B with SHARED_B and of C with SHARED_C are not stored here but by `sum_channels`.
    """
    o_r, o_i = i * BLOCK + tl.arange(0, BLOCK), tl.arange(0, ROWS)
    m_r = o_r < size
    b_d_bias = tl.zeros((ROWS, BLOCK), sums.dtype.element_ty)
    dB_re, dB_im, dC_re, dC_im = b_d_bias, b_d_bias, b_d_bias, b_d_bias
    for first in range(0, count, ROWS):
        p_in = sums + (i_g * count + first + o_i[:, None]) * 5 * size + o_r[None, :]
        m_in = (first + o_i < count)[:, None] & m_r[None, :]
        b_d_bias += tl.load(p_in, mask=m_in, other=0.0)
        if not SHARED_B:
            dB_re += tl.load(p_in + size, mask=m_in, other=0.0)
            dB_im += tl.load(p_in + 2 * size, mask=m_in, other=0.0)
        if not SHARED_C:
            dC_re += tl.load(p_in + 3 * size, mask=m_in, other=0.0)
            dC_im += tl.load(p_in + 4 * size, mask=m_in, other=0.0)
    o_out = i_g * size + o_r
    tl.store(d_bias + o_out, tl.sum(b_d_bias, 0), mask=m_r)
    if not SHARED_B:
        store_pairs(dB, o_out, dB_re, dB_im, m_r)
    if not SHARED_C:
        store_pairs(dC, o_out, dC_re, dC_im, m_r)


@triton.jit
def store_pairs(x, o_x, re, im, m_x):
    """Sum the real parts `re` and the imaginary parts `im` over the first axis, and store the results as pairs."""
    tl.store(x + 2 * o_x, tl.sum(re, 0), mask=m_x)
    tl.store(x + 2 * o_x + 1, tl.sum(im, 0), mask=m_x)


@triton.jit
def sum_channels(sums, d_coefficients, i, first, count, D, N, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Store the gradient of B or C (N, 2), which all channels share, for BLOCK states.

    It is the sum over channels, in fixed order, of the entries `first` and `first` + 1 of `count` sums (5, D, N).
    """
    o_n, o_i = i * BLOCK + tl.arange(0, BLOCK), tl.arange(0, ROWS)
    m_n = o_n < N
    re = tl.zeros((ROWS, BLOCK), sums.dtype.element_ty)
    im = re
    for begin in range(0, count * D, ROWS):
        o_row = begin + o_i
        o_in = (o_row // D * 5 + first).to(tl.int64) * D + o_row % D
        p_in = sums + o_in[:, None] * N + o_n[None, :]
        m_in = (o_row < count * D)[:, None] & m_n[None, :]
        re += tl.load(p_in, mask=m_in, other=0.0)
        im += tl.load(p_in + D * N, mask=m_in, other=0.0)
    store_pairs(d_coefficients, o_n, re, im, m_n)


@triton.jit
def sum_weights(
    partials, dW, i_g, groups, i, split_k, D, N, SLOTS: tl.constexpr, SLOTS_PER_CHANNEL: tl.constexpr, K: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Store BLOCK numbers of the gradient of W (groups, D, N, D), sums of `partials` (split_k, groups, SLOTS, K), in order."""
    o_w, o_i = i * BLOCK + tl.arange(0, BLOCK), tl.arange(0, ROWS)
    o_r, m_w = o_w // D, o_w < D * N * D
    o_in = (i_g * SLOTS + o_r // N * SLOTS_PER_CHANNEL + o_r % N) * K + o_w % D
    b_dW = tl.zeros((ROWS, BLOCK), partials.dtype.element_ty)
    for first in range(0, split_k, ROWS):
        m_in = (first + o_i < split_k)[:, None] & m_w[None, :]
        o_partial = (first + o_i)[:, None] * tl.cast(groups, tl.int64) * SLOTS * K
        b_dW += tl.load(partials + o_partial + o_in[None, :], mask=m_in, other=0.0)
    tl.store(dW + i_g * D * N * D + o_w, tl.sum(b_dW, 0), mask=m_w)


@triton.jit
def sum_skips(partials, dD, i_g, i, count, D, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Store the gradient of D (groups, D) of BLOCK channels: sums of the `count` partial sums (D,) of a group, in fixed order."""
    o_d, o_i = i * BLOCK + tl.arange(0, BLOCK), tl.arange(0, ROWS)
    m_d = o_d < D
    b_dD = tl.zeros((ROWS, BLOCK), partials.dtype.element_ty)
    for first in range(0, count, ROWS):
        m_in = (first + o_i < count)[:, None] & m_d[None, :]
        b_dD += tl.load(partials + (i_g * count + first + o_i[:, None]) * D + o_d[None, :], mask=m_in, other=0.0)
    tl.store(dD + i_g * D + o_d, tl.sum(b_dD, 0), mask=m_d)


@triton.jit(do_not_specialize=["count", "skip_count", "split_k", "state_programs", "shared_programs", "skip_programs"])
def sum_parameter_gradients_kernel(
    sums, d_bias, dB, dC, skips, dD, dW_partials, dW, count, skip_count, split_k, state_programs, shared_programs,
    skip_programs, D, N,
    SLOTS: tl.constexpr, SLOTS_PER_CHANNEL: tl.constexpr, K: tl.constexpr, SHARED_B: tl.constexpr, SHARED_C: tl.constexpr,
    STATE_ROWS: tl.constexpr, STATE_BLOCK: tl.constexpr, SKIP_ROWS: tl.constexpr, SKIP_BLOCK: tl.constexpr,
    WEIGHT_ROWS: tl.constexpr, WEIGHT_BLOCK: tl.constexpr,
):  # fmt: skip
    """Store the gradients of the parameters of a group.

    The first `state_programs` programs store those of the bias, and of B and C that belong to single channels; the next
    `shared_programs` that of a shared B, the next `shared_programs` that of a shared C, the next `skip_programs` that of D, and
    the others that of W.
    """
    i, i_g = tl.program_id(0), tl.program_id(1).to(tl.int64)
    first_skip = state_programs + 2 * shared_programs
    if i < state_programs:
        sum_states(sums, d_bias, dB, dC, i_g, i, count, D * N, SHARED_B, SHARED_C, STATE_ROWS, STATE_BLOCK)
    elif i < state_programs + shared_programs:
        if SHARED_B:
            sum_channels(sums, dB, i - state_programs, 1, count, D, N, SKIP_ROWS, SKIP_BLOCK)
    elif i < first_skip:
        if SHARED_C:
            sum_channels(sums, dC, i - state_programs - shared_programs, 3, count, D, N, SKIP_ROWS, SKIP_BLOCK)
    elif i < first_skip + skip_programs:
        if skips is not None:
            sum_skips(skips, dD, i_g, i - first_skip, skip_count, D, SKIP_ROWS, SKIP_BLOCK)
    else:
        sum_weights(
            dW_partials, dW, i_g, tl.num_programs(1), i - first_skip - skip_programs, split_k, D, N, SLOTS, SLOTS_PER_CHANNEL,
            K, WEIGHT_ROWS, WEIGHT_BLOCK,
        )  # fmt: skip
