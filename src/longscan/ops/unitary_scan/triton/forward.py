"""Forward kernels of `unitary_scan`.

Names as in Triton's and fla's kernels: an argument has the name of its tensor; p_ is a pointer that a kernel computes, o_
offsets, m_ a mask, b_ a tile, i_ the index of a program. Programs of the scans are (batch rows times BLOCKS blocks of R = BD BN
lanes, chunks of the steps); STATE_BLOCKS blocks have the states of a channel. `rows`: number of batch rows that have the
same parameters. What the scans read was written by `preprocess_fwd_kernel`.
"""

import triton
import triton.language as tl

from longscan.ops._triton import INVALID, RESET, row_of, segmented_add_pair, silu, sincos, wrap
from longscan.ops.unitary_scan.triton.math import (
    U_SCALE,
    add_wrapped,
    add_wrapped_segmented,
    load_angles,
    load_bias_tile,
    load_channels,
    load_coefficients,
    load_pairs,
    load_state,
    load_weights,
    program_lanes,
    sincos_of_phase,
    split_fp16_hi_lo,
    store_state,
    sum_over_states,
)


@triton.jit
def preprocess_tile(
    u, dt, flags, u_hi, u_lo, step_sizes, valid, x, L, D, K, padded, origin, tiles, i,
    REVERSE: tl.constexpr, T: tl.constexpr, BD: tl.constexpr,
    z=None, dy=None, g=None, u_parts=None, first_row=0,
):  # fmt: skip
    """Store the inputs of a scan for T steps and BD channels, with 0 at invalid steps and from step L on.

    These are u (B, padded, K) in two fp16 parts, or in one part of its own dtype without u_lo; `step_sizes` (B, D,
    padded), or, without it, `valid`, the mask of valid steps as floating-point numbers (B, padded); x = dt silu(u) and, with dy,
    g = dy silu(z), (B, D, padded). With u_parts both parts of u are also stored in the order of `interleaved_rows`,
    (B, padded, 2 K). They begin with the step `origin`, after `first_row` steps of other rounds in the buffers;
    with REVERSE the steps are in reverse order. i: index of the program among the tiles of all batch rows.
    """
    i_b, i_t = (i // tiles).to(tl.int64), i % tiles
    o_t, o_d = i_t * T + tl.arange(0, T), tl.program_id(1) * BD + tl.arange(0, BD)
    step = origin - o_t if REVERSE else origin + o_t
    m_t = (o_t < padded) & (step < L)
    if flags is not None:
        m_t = m_t & (tl.load(flags + i_b * L + step, mask=m_t, other=INVALID) != INVALID)
    o_in = (i_b * L + step[:, None]) * D + o_d[None, :]
    m_in = m_t[:, None] & (o_d < D)[None, :]
    m_u, m_out = (o_t < padded)[:, None] & (o_d < K)[None, :], (o_t < padded)[:, None] & (o_d < D)[None, :]
    b_u = tl.load(u + o_in, mask=m_in, other=0.0)
    o_u = (first_row + i_b * padded + o_t[:, None]) * K + o_d[None, :]
    if u_lo is not None:
        b_hi, b_lo = split_fp16_hi_lo(b_u, 1.0 / U_SCALE)
        tl.store(u_hi + o_u, b_hi, mask=m_u)
        tl.store(u_lo + o_u, b_lo, mask=m_u)
        if u_parts is not None:
            o_parts = (first_row + i_b * padded + o_t[:, None]) * (2 * K) + (o_d // 8 * 16 + o_d % 8)[None, :]
            tl.store(u_parts + o_parts, b_hi, mask=m_u)
            tl.store(u_parts + o_parts + 8, b_lo, mask=m_u)
    else:
        tl.store(u_hi + o_u, b_u, mask=m_u)
    o_out = first_row * D + (i_b * D + o_d[None, :]) * padded + o_t[:, None]
    b_dt = tl.load(dt + o_in, mask=m_in, other=0.0)
    tl.store(x + o_out, b_dt * silu(b_u), mask=m_out)
    if step_sizes is not None:
        tl.store(step_sizes + o_out, b_dt, mask=m_out)
    else:
        b_valid = tl.where(m_t, 1.0, 0.0).to(b_u.dtype)
        tl.store(valid + first_row + i_b * padded + o_t, b_valid, mask=(o_t < padded) & (o_t * 0 + tl.program_id(1) == 0))
    if dy is not None:
        b_g = tl.load(dy + o_in, mask=m_in, other=0.0)
        if z is not None:
            b_g *= silu(tl.load(z + o_in, mask=m_in, other=0.0))
        tl.store(g + o_out, b_g, mask=m_out)


@triton.jit(do_not_specialize=["L", "padded", "origin", "tiles"])
def preprocess_fwd_kernel(
    u, dt, flags, u_hi, u_lo, step_sizes, valid, x, L, D, K, padded, origin, tiles, T: tl.constexpr, BD: tl.constexpr
):  # fmt: skip
    """Store what the forward scans read of a tile: see `preprocess_tile`."""
    preprocess_tile(
        u, dt, flags, u_hi, u_lo, step_sizes, valid, x, L, D, K, padded, origin, tiles, tl.program_id(0), False, T, BD
    )


@triton.jit
def phases_forward(theta, phase, b_flag, first):
    """Return for a tile (T, R) the phases G, the mask of restarts, and whether the state restarted at a step or before it.

    phase: the phase before the tile. b_flag (T,): flags of the steps, or None without masks; then both masks are undefined. first
    (T, 1): mask of the first step.
    """
    restart, restarted = first, first
    if b_flag is not None:
        restart = tl.broadcast_to((b_flag == RESET)[:, None], theta.shape)
        theta = tl.where(restart, wrap(theta), theta)
        theta = tl.where(first & ~restart, wrap(theta + phase[None, :]), theta)
        restarted, G = tl.associative_scan((restart, theta), 0, add_wrapped_segmented)
    else:
        G = tl.associative_scan(tl.where(first, wrap(theta + phase[None, :]), theta), 0, add_wrapped)
    return G, restart, restarted


@triton.jit
def sum_inputs(b_x, s, c, restart, b_flag):
    """Return the real and imaginary parts of the running sums S of x e^{-iG}, which restart from 0 where the state does."""
    if b_flag is not None:
        _, S_re, S_im = tl.associative_scan((restart, b_x * c, -(b_x * s)), 0, segmented_add_pair)
    else:
        S_re, S_im = tl.cumsum(b_x * c, 0), tl.cumsum(-(b_x * s), 0)
    return S_re, S_im


@triton.jit
def load_flags(flags, row, step, L):
    """Return the flags of the steps (T,). Steps from L on are invalid."""
    return tl.load(flags + row + step, mask=step < L, other=INVALID)


@triton.jit
def zero_if_restarted(x, b_flag):
    """Return 0 if the state restarts at a step with one of the flags, otherwise x."""
    return tl.where(tl.max((b_flag == RESET).to(tl.int32), 0) > 0, 0.0, x)


@triton.jit
def add_tile(w_re, w_im, B_re, B_im, S_re, S_im, b_flag, last):
    """Return the state in the rotating frame after a tile."""
    end_re, end_im = row_of(S_re, last), row_of(S_im, last)
    if b_flag is not None:
        w_re, w_im = zero_if_restarted(w_re, b_flag), zero_if_restarted(w_im, b_flag)
    return w_re + (B_re * end_re - B_im * end_im), w_im + (B_re * end_im + B_im * end_re)


@triton.jit(do_not_specialize=["bias", "L", "tiles", "rows"])
def chunk_state_fwd_kernel(
    u_hi, u_lo, dt, valid, x, W, bias, B, flags, local, L, padded, tiles, rows,
    D: tl.constexpr, N: tl.constexpr, STATE_BLOCKS: tl.constexpr, BLOCKS: tl.constexpr, T: tl.constexpr, BD: tl.constexpr,
    BN: tl.constexpr, K: tl.constexpr, FAST: tl.constexpr, STAGES: tl.constexpr, SHARED_B: tl.constexpr,
):  # fmt: skip
    """Store the phase and the state in the rotating frame after a chunk of `tiles` tiles, if both are 0 before it.

    local: (B, chunks, D N, 4), phase, both parts of the state, and 0 if the state restarts in the chunk, else 1.
    """
    i_b, i_c = (tl.program_id(0) // BLOCKS).to(tl.int64), tl.program_id(1)
    _i_n, first_channel, m_r, o_r = program_lanes(D, N, STATE_BLOCKS, BLOCKS, BD, BN)
    o_parameter = (i_b // rows) * D * N
    B_re, B_im = load_coefficients(B + 2 * o_parameter, o_r, m_r, N, SHARED_B)
    W_hi, W_lo = load_weights(W + o_parameter * D, o_r, m_r, D, K)
    b_bias = load_bias_tile(bias + o_parameter, o_r, m_r, T)
    o_t, o_d = tl.arange(0, T), first_channel + tl.arange(0, BD)
    m_d, first, last = o_d < D, (o_t == 0)[:, None], (o_t == T - 1)[:, None]
    phase = tl.zeros((BD * BN,), B_re.dtype)
    w_re, w_im, carry = phase, phase, phase + 1.0
    for i in tl.range(tiles, num_stages=STAGES):
        o_step = (i_c * tiles + i) * T + o_t
        o_td = i_b * D * padded + (o_d[None, :].to(tl.int64) * padded + o_step[:, None])
        theta, _, _ = load_angles(
            u_hi, u_lo, dt, valid, W_hi, W_lo, b_bias, i_b * padded, o_step, o_td, o_r, m_r, m_d, D, T, BD, BN, K
        )
        b_flag = None  # not by the function: Triton 3.6 cannot return None
        if flags is not None:
            b_flag = load_flags(flags, i_b * L, o_step, L)
        G, restart, _ = phases_forward(theta, phase, b_flag, first)
        s, c = sincos_of_phase(G, FAST)
        S_re, S_im = sum_inputs(load_channels(x, o_td, m_d, T, BD, BN), s, c, restart, b_flag)
        phase = row_of(G, last)
        w_re, w_im = add_tile(w_re, w_im, B_re, B_im, S_re, S_im, b_flag, last)
        if flags is not None:
            carry = zero_if_restarted(carry, b_flag)
    p_out = local + (i_b * tl.num_programs(1) + i_c) * D * N * 4 + o_r * 4
    tl.store(p_out, phase, mask=m_r)
    tl.store(p_out + 1, w_re, mask=m_r)
    tl.store(p_out + 2, w_im, mask=m_r)
    tl.store(p_out + 3, carry, mask=m_r)


@triton.jit(do_not_specialize=["chunks", "stride"])
def state_passing_fwd_kernel(local, initial_state, chunk_states, chunks, size, stride, BLOCK: tl.constexpr):
    """Store the states before all chunks and after the last, rows of (chunks + 1, 3, size), from `local`, the local states.

    initial_state: the state before the first chunk; zero if it is None.
    """
    i_b = tl.program_id(0).to(tl.int64)
    o_r = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    m_r = o_r < size
    phase = tl.zeros((BLOCK,), local.dtype.element_ty)
    w_re, w_im = phase, phase
    if initial_state is not None:
        w_re, w_im = load_pairs(initial_state + i_b * size * 2, o_r, m_r)
    for i in range(chunks + 1):
        p_state = chunk_states + i_b * stride + tl.cast(i, tl.int64) * 3 * size + o_r
        store_state(p_state, phase, w_re, w_im, m_r, size)
        p_in, m_in = local + (i_b * chunks + i) * size * 4 + o_r * 4, m_r & (o_r * 0 + i < chunks)
        s, c = sincos(phase)
        local_re = tl.load(p_in + 1, mask=m_in, other=0.0)
        local_im = tl.load(p_in + 2, mask=m_in, other=0.0)
        carry = tl.load(p_in + 3, mask=m_in, other=0.0) > 0
        local_phase = tl.load(p_in, mask=m_in, other=0.0)
        w_re = tl.where(carry, w_re + (c * local_re + s * local_im), local_re)
        w_im = tl.where(carry, w_im + (c * local_im - s * local_re), local_im)
        phase = tl.where(carry, wrap(phase + local_phase), local_phase)


@triton.jit(do_not_specialize=["bias", "batch", "L", "chunks", "chunk_tiles", "tiles", "rows", "stride", "sequential"])
def chunk_scan_fwd_kernel(
    u_hi, u_lo, dt, valid, x, W, bias, B, C, initial_state, chunk_states, flags, y, final_state,
    batch, L, padded, chunks, chunk_tiles, tiles, rows, stride, sequential,
    D: tl.constexpr, N: tl.constexpr, STATE_BLOCKS: tl.constexpr, BLOCKS: tl.constexpr,
    T: tl.constexpr, BD: tl.constexpr, BN: tl.constexpr, K: tl.constexpr, FAST: tl.constexpr, STAGES: tl.constexpr,
    SHARED_B: tl.constexpr, SHARED_C: tl.constexpr,
):  # fmt: skip
    """Store y before skip and gate, (STATE_BLOCKS, B, D, padded), of `tiles` tiles, and the final state of a row.

    sequential: 1 if a program has all chunks of a row, from initial_state (B, D N, 2) on, or from zero if that is None; 0 if
    it has one chunk, whose first state is in chunk_states. The states before the chunks and after the last are stored there, rows
    of (chunks + 1, 3, D N), if it is not None.
    """
    size: tl.constexpr = D * N
    i_b, i_c = (tl.program_id(0) // BLOCKS).to(tl.int64), tl.program_id(1)
    i_n, first_channel, m_r, o_r = program_lanes(D, N, STATE_BLOCKS, BLOCKS, BD, BN)
    o_parameter = (i_b // rows) * size
    B_re, B_im = load_coefficients(B + 2 * o_parameter, o_r, m_r, N, SHARED_B)
    C_re, C_im = load_coefficients(C + 2 * o_parameter, o_r, m_r, N, SHARED_C)
    CB_re, CB_im = C_re * B_re - C_im * B_im, C_re * B_im + C_im * B_re
    phase = tl.zeros((BD * BN,), B_re.dtype)
    w_re, w_im = phase, phase
    if initial_state is not None:
        w_re, w_im = load_pairs(initial_state + i_b * size * 2, o_r, m_r)
    if chunk_states is not None:  # noqa: SIM102  # the compiler knows this condition alone
        if sequential == 0:
            phase, w_re, w_im = load_state(chunk_states + i_b * stride + i_c.to(tl.int64) * 3 * size + o_r, m_r, size)
    W_hi, W_lo = load_weights(W + o_parameter * D, o_r, m_r, D, K)
    o_t, o_d = tl.arange(0, T), first_channel + tl.arange(0, BD)
    m_d, first, last = o_d < D, (o_t == 0)[:, None], (o_t == T - 1)[:, None]
    o_channel = o_d[None, :].to(tl.int64) * padded
    b_bias = load_bias_tile(bias + o_parameter, o_r, m_r, T)
    for i in tl.range(tiles, num_stages=STAGES):
        o_step = (i_c * tiles + i) * T + o_t
        if chunk_states is not None:
            m_start = m_r & (o_r * 0 + i % chunk_tiles == 0)
            p_state = chunk_states + i_b * stride + tl.cast(i_c + i // chunk_tiles, tl.int64) * 3 * size + o_r
            store_state(p_state, phase, w_re, w_im, m_start, size)
        o_td = i_b * D * padded + o_channel + o_step[:, None]
        theta, _, _ = load_angles(
            u_hi, u_lo, dt, valid, W_hi, W_lo, b_bias, i_b * padded, o_step, o_td, o_r, m_r, m_d, D, T, BD, BN, K
        )
        b_flag = None  # not by the function: Triton 3.6 cannot return None
        if flags is not None:
            b_flag = load_flags(flags, i_b * L, o_step, L)
        G, restart, restarted = phases_forward(theta, phase, b_flag, first)
        s, c = sincos_of_phase(G, FAST)
        S_re, S_im = sum_inputs(load_channels(x, o_td, m_d, T, BD, BN), s, c, restart, b_flag)
        read_re, read_im = (C_re * w_re - C_im * w_im)[None, :], (C_re * w_im + C_im * w_re)[None, :]
        if flags is not None:
            read_re, read_im = tl.where(restarted, 0.0, read_re), tl.where(restarted, 0.0, read_im)
        read_re = read_re + CB_re[None, :] * S_re - CB_im[None, :] * S_im
        read_im = read_im + CB_re[None, :] * S_im + CB_im[None, :] * S_re
        p_out = y + i_n.to(tl.int64) * batch * D * padded + o_td
        tl.store(p_out, sum_over_states(c * read_re - s * read_im, T, BD, BN), mask=m_d[None, :])
        phase = row_of(G, last)
        w_re, w_im = add_tile(w_re, w_im, B_re, B_im, S_re, S_im, b_flag, last)
    if i_c == tl.num_programs(1) - 1:
        s, c = sincos(phase)
        p_out = final_state + i_b * size * 2 + o_r * 2
        tl.store(p_out, c * w_re - s * w_im, mask=m_r)
        tl.store(p_out + 1, c * w_im + s * w_re, mask=m_r)
        if chunk_states is not None:
            p_state = chunk_states + i_b * stride + tl.cast(chunks, tl.int64) * 3 * size + o_r
            store_state(p_state, phase, w_re, w_im, m_r, size)


@triton.jit(do_not_specialize=["bias", "L", "chunk_tiles", "rows", "origin", "first_chunk", "stride"])
def tile_states_kernel(
    u_hi, u_lo, dt, valid, x, W, bias, B, chunk_states, flags, tile_states,
    L, padded, chunk_tiles, rows, origin, first_chunk, stride,
    D: tl.constexpr, N: tl.constexpr, STATE_BLOCKS: tl.constexpr, BLOCKS: tl.constexpr, T: tl.constexpr, BD: tl.constexpr,
    BN: tl.constexpr, K: tl.constexpr, FAST: tl.constexpr, STAGES: tl.constexpr, SHARED_B: tl.constexpr,
):  # fmt: skip
    """Store the states before all tiles of a chunk, tile_states (B, tiles of all programs of a row, 3, D N).

    Chunks of one round, from `first_chunk` on; the round begins with the step `origin`.
    """
    size: tl.constexpr = D * N
    i_b, i_c = (tl.program_id(0) // BLOCKS).to(tl.int64), tl.program_id(1)
    _i_n, first_channel, m_r, o_r = program_lanes(D, N, STATE_BLOCKS, BLOCKS, BD, BN)
    o_parameter = (i_b // rows) * size
    B_re, B_im = load_coefficients(B + 2 * o_parameter, o_r, m_r, N, SHARED_B)
    phase, w_re, w_im = load_state(chunk_states + i_b * stride + (first_chunk + i_c).to(tl.int64) * 3 * size + o_r, m_r, size)
    W_hi, W_lo = load_weights(W + o_parameter * D, o_r, m_r, D, K)
    b_bias = load_bias_tile(bias + o_parameter, o_r, m_r, T)
    o_t, o_d = tl.arange(0, T), first_channel + tl.arange(0, BD)
    m_d, first, last = o_d < D, (o_t == 0)[:, None], (o_t == T - 1)[:, None]
    for i in tl.range(chunk_tiles, num_stages=STAGES):
        i_t = i_c * chunk_tiles + i
        p_out = tile_states + (i_b * (tl.num_programs(1) * chunk_tiles) + i_t) * 3 * size + o_r
        store_state(p_out, phase, w_re, w_im, m_r, size)
        o_step = i_t * T + o_t
        o_td = i_b * D * padded + (o_d[None, :].to(tl.int64) * padded + o_step[:, None])
        theta, _, _ = load_angles(
            u_hi, u_lo, dt, valid, W_hi, W_lo, b_bias, i_b * padded, o_step, o_td, o_r, m_r, m_d, D, T, BD, BN, K
        )
        b_flag = None  # not by the function: Triton 3.6 cannot return None
        if flags is not None:
            b_flag = load_flags(flags, i_b * L, origin + o_step, L)
        G, restart, _ = phases_forward(theta, phase, b_flag, first)
        s, c = sincos_of_phase(G, FAST)
        S_re, S_im = sum_inputs(load_channels(x, o_td, m_d, T, BD, BN), s, c, restart, b_flag)
        phase = row_of(G, last)
        w_re, w_im = add_tile(w_re, w_im, B_re, B_im, S_re, S_im, b_flag, last)


@triton.jit
def sum_partials(p_x, stride, count, m_x):
    """Return the sum of `count` tiles that lie `stride` apart."""
    b_x = tl.load(p_x, mask=m_x, other=0.0)
    for i in range(1, count):
        b_x += tl.load(p_x + i * stride, mask=m_x, other=0.0)
    return b_x


@triton.jit(do_not_specialize=["batch", "L", "padded", "tiles", "rows", "stride"])
def epilogue_fwd_kernel(
    sums, u, skip_weight, z, flags, y, raw, batch, L, D, padded, state_blocks, tiles, rows, stride,
    T: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Store y = (raw + D silu(u)) silu(z), 0 at invalid steps, and `raw` (B, L, D), the sum of `sums` (blocks, B, D, padded)."""
    i_b, i_t = (tl.program_id(0) // tiles).to(tl.int64), tl.program_id(0) % tiles
    o_t, o_d = i_t * T + tl.arange(0, T), tl.program_id(1) * BD + tl.arange(0, BD)
    m_valid = o_t < L
    if flags is not None:
        m_valid = m_valid & (tl.load(flags + i_b * L + o_t, mask=o_t < L, other=INVALID) != INVALID)
    o_td = o_t[:, None].to(tl.int64) * D + o_d[None, :]
    m_in, m_out = m_valid[:, None] & (o_d < D)[None, :], (o_t < L)[:, None] & (o_d < D)[None, :]
    o_sums = (i_b * D + o_d[None, :]) * padded + o_t[:, None]
    b_y = sum_partials(sums + o_sums, tl.cast(batch, tl.int64) * D * padded, state_blocks, m_in)
    if raw is not None:
        tl.store(raw + i_b * stride + o_td, b_y, mask=m_out)
    o_td += i_b * L * D
    if skip_weight is not None:
        skip = tl.load(skip_weight + (i_b // rows) * D + o_d, mask=o_d < D, other=0.0)
        b_y += skip[None, :] * silu(tl.load(u + o_td, mask=m_in, other=0.0))
    if z is not None:
        b_y *= silu(tl.load(z + o_td, mask=m_in, other=0.0))
    tl.store(y + o_td, b_y, mask=m_out)
