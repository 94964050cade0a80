"""Backward kernels of the selective scan, real and complex.

README.md has the equations and a table of the compile-time constants; names are as in forward.py.

A scan from the last step of a tile to the first gives the gradients of the states: `g_re`, `g_im` are those of the state after a
step, `w_re`, `w_im` those of the state before it.
"""

import triton
import triton.language as tl

from longscan.ops._triton import INVALID, RESET, sigmoid, silu, silu_derivative, where_positive
from longscan.ops.selective_scan.triton.math import (
    compute_tile_states,
    decay,
    expand_channels,
    expand_restarts,
    flip,
    load_and_pass,
    load_channels,
    load_pair_parts,
    load_states,
    load_step_sizes,
    load_tile_masks,
    locate_pairs,
    materialize,
    pick,
    read_states,
    scan_steps,
    select_row,
    shift_steps,
    stack_steps,
    store_map,
    store_pair_parts,
    sum_over_channels,
    sum_over_states,
    tile_offsets,
    transposed_offsets,
)
from longscan.ops.selective_scan.triton.ordered_sums import dependency_token, poll, previous_counter, signal, spin_wait


@triton.jit
def load_next_restart(flags, first, tile, o_t, length):
    """Return which steps of a tile reversed in time, (T,), precede a step that restarts the state; None without flags."""
    restart = None
    if flags is not None:
        T: tl.constexpr = o_t.shape[0]
        following = T - o_t
        flag = tl.load(flags + first + following, mask=(o_t > 0) & (tile * T + following < length), other=INVALID)
        restart = flag == RESET
    return restart


@triton.jit
def differentiate_outputs(e_dy, b_C, COMPLEX: tl.constexpr):
    """Return e_dy conj(C), the gradients that the outputs of a tile give to its states. e_dy: gradients of the outputs."""
    v_re = e_dy * pick(b_C, 0)
    v_im = v_re
    if COMPLEX:
        v_im = 0.0 - e_dy * pick(b_C, 1)
    return v_re, v_im


@triton.jit
def scan_gradients(a_re, a_im, v_re, v_im, dh_re, dh_im, flags, restart, next_restart, COMPLEX: tl.constexpr):
    """Return g_t = v_t + conj(a_{t+1}) g_{t+1} and w_t = conj(a_t) g_t of a tile; dh (CR, NR, CW, NL, CL): the w after the tile.

    w is 0 at steps that restart the state, and is not added to g of the step before them.
    """
    T: tl.constexpr = a_re.shape[0]
    last = tl.reshape(tl.arange(0, T) == T - 1, (T, 1, 1, 1, 1, 1))
    v_re += tl.where(last, dh_re[None], 0.0)
    a_next_re = shift_steps(flip(a_re), a_re)
    a_next_im, restarts = a_next_re, None
    if flags is not None:
        restarts = expand_restarts(next_restart, a_re)
    if COMPLEX:
        v_im += tl.where(last, dh_im[None], 0.0)
        a_next_im = shift_steps(flip(a_im), a_im)
        g_re, g_im = scan_steps(a_next_re, -a_next_im, flip(v_re), flip(v_im), restarts, COMPLEX)
        g_re, g_im = flip(g_re), flip(g_im)
        w_re, w_im = a_re * g_re + a_im * g_im, a_re * g_im - a_im * g_re
    else:
        g_re, _ = scan_steps(a_next_re, a_next_re, flip(v_re), v_re, restarts, COMPLEX)
        g_re = flip(g_re)
        w_re, w_im, g_im = a_re * g_re, g_re, g_re
    if flags is not None:
        restarted = expand_restarts(restart, a_re)
        w_re, w_im = tl.where(restarted, 0.0, w_re), tl.where(restarted, 0.0, w_im)
    return g_re, g_im, w_re, w_im


@triton.jit
def load_output_gradients(dy, z, o_td, m_td, dtype: tl.constexpr, MATERIALIZE: tl.constexpr):
    """Return the gradients of y and of y before the gate silu(z), and z, all (T, BD). If z is None, they are all that of y."""
    b_dout = tl.load(dy + o_td, mask=m_td, other=0.0).to(dtype)
    b_dy, b_z = b_dout, b_dout
    if z is not None:
        b_z = tl.load(z + o_td, mask=m_td, other=0.0).to(dtype)
        b_dy = b_dout * silu(b_z)
    return b_dout, materialize(b_dy, MATERIALIZE), b_z


@triton.jit(do_not_specialize=["length", "chunks", "chunk_tiles", "rows"])
def chunk_state_bwd_kernel(
    dy, dt, A, C, z, dt_bias, dt_scale, flags, maps, counters, length, channels, states, chunks, chunk_tiles, rows,
    PAIR_FACTOR: tl.constexpr, SOFTPLUS: tl.constexpr, COMPLEX: tl.constexpr, T: tl.constexpr, SHAPE: tl.constexpr,
    MATERIALIZE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Store the product of the factors of a chunk, and the gradient of the state before it if that after it is 0.

    maps: (2, B, chunks, D N[, 2]). The product is not conjugated; it is undefined if a sequence starts in the chunk.
    counters: counters of the programs of the backward scan, which are set to 0, or None.
    """
    if counters is not None:
        program, last = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0), tl.num_programs(0) * chunks
        tl.store(counters + program, 0)
        tl.store(counters + last, 0, mask=program == 0)
    P: tl.constexpr = 2 if COMPLEX else 1
    BD: tl.constexpr = SHAPE[0] * SHAPE[2] * SHAPE[4]
    BN: tl.constexpr = SHAPE[1] * SHAPE[3]
    blocks, tiles = tl.cdiv(channels, BD), tl.cdiv(length, T)
    i_b, i_d, i_c = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks, tl.program_id(1)
    o_t, o_d, o_n = tl.arange(0, T), i_d * BD + tl.arange(0, BD), tl.arange(0, BN * P)
    o_pair, m_pair = locate_pairs(i_d * BD, channels, states, SHAPE)
    size = channels * states
    A_re, A_im = load_pair_parts(A + (i_b // rows) * size * P + o_pair * P, 1, m_pair, COMPLEX)
    dh_re, dh_im = A_re * 0.0, A_re * 0.0
    bias = load_channels(dt_bias, i_b // rows, channels, o_d, A_re.dtype)
    time = tl.zeros((BD,), A_re.dtype)
    top = tl.reshape(o_t == 0, (T, 1, 1, 1, 1, 1))
    count = tl.minimum(chunk_tiles, tiles - i_c * chunk_tiles)
    for i in tl.range(count, num_stages=STAGES):
        tile = i_c * chunk_tiles + count - 1 - i
        first = i_b * length + tile * T
        valid, restart, m_td, m_tn = load_tile_masks(flags, first, tile * T + o_t < length, o_t, o_d, o_n, channels, states * P)
        o_td, o_tn = tile_offsets(first, o_t, o_d, o_n, channels, states * P)
        b_dt, _ = load_step_sizes(dt, dt_scale, o_td, first, o_t, bias, valid, m_td, SOFTPLUS, MATERIALIZE)
        _, b_dy, _ = load_output_gradients(dy, z, o_td, m_td, A_re.dtype, MATERIALIZE)
        expanded = expand_channels(stack_steps(b_dt, PAIR_FACTOR * b_dy), T, A_re)
        a_re, a_im = decay(pick(expanded, 0), A_re[None], A_im[None], COMPLEX)
        b_C = load_states(C, o_tn, m_tn, A_re, COMPLEX)
        v_re, v_im = differentiate_outputs(pick(expanded, 1), b_C, COMPLEX)
        next_restart = load_next_restart(flags, first, tile, o_t, length)
        _, _, w_re, w_im = scan_gradients(a_re, a_im, v_re, v_im, dh_re, dh_im, flags, restart, next_restart, COMPLEX)
        dh_re = select_row(w_re, top)
        if COMPLEX:
            dh_im = select_row(w_im, top)
        time += tl.sum(b_dt, 0)
    a_re, a_im = decay(tl.reshape(time, (SHAPE[0], 1, SHAPE[2], 1, SHAPE[4])), A_re, A_im, COMPLEX)
    store_map(maps, i_b, i_c, chunks, size, o_pair, m_pair, a_re, a_im, dh_re, dh_im, blocks, COMPLEX)


@triton.jit
def recompute_tile_states(
    p_checkpoint, p_tile_states, u, dt, B, dt_scale, flags, bias, A_re, A_im, m_pair, begin, stop, o_d, o_n, channels, states,
    SOFTPLUS: tl.constexpr, COMPLEX: tl.constexpr, EVERY: tl.constexpr, T: tl.constexpr, MATERIALIZE: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Store the states before every EVERY steps of a checkpoint interval to p_tile_states, from its checkpoint.

    EVERY: steps of a tile of the backward scan. T: steps of a tile here, a multiple of EVERY (`RECOMPUTE` of the kernel). begin,
    stop: the first step of the interval in (B L), and the first one after it.
    """
    P: tl.constexpr = 2 if COMPLEX else 1
    PAIRS: tl.constexpr = A_re.numel
    o_t = tl.arange(0, T)
    h_re, h_im = load_pair_parts(p_checkpoint, channels * states, m_pair, COMPLEX)
    for first in tl.range(begin, stop, T, num_stages=STAGES):
        valid, restart, m_td, m_tn = load_tile_masks(flags, first, first + o_t < stop, o_t, o_d, o_n, channels, states * P)
        o_td, o_tn = tile_offsets(first, o_t, o_d, o_n, channels, states * P)
        b_u = tl.load(u + o_td, mask=m_td, other=0.0).to(A_re.dtype)
        b_dt, _ = load_step_sizes(dt, dt_scale, o_td, first, o_t, bias, valid, m_td, SOFTPLUS, MATERIALIZE)
        expanded = expand_channels(stack_steps(b_dt, b_dt * b_u), T, A_re)
        a_re, a_im = decay(pick(expanded, 0), A_re[None], A_im[None], COMPLEX)
        b_B = load_states(B, o_tn, m_tn, A_re, COMPLEX)
        x_re, x_im = compute_tile_states(a_re, a_im, pick(expanded, 1), b_B, h_re, h_im, flags, restart, COMPLEX)
        for i in tl.static_range(T // EVERY):
            p_out = p_tile_states + ((first - begin) // EVERY + i) * (P * PAIRS)
            tl.store(p_out, h_re)
            if COMPLEX:
                tl.store(p_out + PAIRS, h_im)
            end = tl.reshape(o_t == (i + 1) * EVERY - 1, (T, 1, 1, 1, 1, 1))
            h_re = select_row(x_re, end)
            h_im = h_re
            if COMPLEX:
                h_im = select_row(x_im, end)


@triton.jit
def delay_states(x_re, x_im, h_re, h_im, flags, restart, COMPLEX: tl.constexpr):
    """Return the states before the steps of a tile, zero where `restart`: x after the steps, and h before the tile."""
    before_re = shift_steps(x_re, h_re[None])
    before_im = before_re
    if COMPLEX:
        before_im = shift_steps(x_im, h_im[None])
    if flags is not None:
        restarted = expand_restarts(restart, x_re)
        before_re, before_im = tl.where(restarted, 0.0, before_re), tl.where(restarted, 0.0, before_im)
    return before_re, before_im


@triton.jit
def differentiate_states(
    e_dt, e_dy, e_input, a_re, a_im, x_re, x_im, before_re, before_im, dh_re, dh_im, dA_re, dA_im, A_re, A_im, b_C, B, o_tn,
    m_tn, flags, restart, next_restart, COMPLEX: tl.constexpr,
):  # fmt: skip
    """Scan the gradients of the states of a tile in reverse and return all that follow from them, not summed over other pairs.

    e_dt, e_dy, e_input: dt, the gradients of the outputs and dt u, as tiles. a: factors. x, before: states after and before the
    steps. dh: gradient of the state after the tile. dA: that of A by the later tiles. Returns the gradients of dt u, of dt
    through the factors, of B and of C, dA with the terms of this tile, and the gradient of the state before the tile. Those of B
    and C are (2 T, ...) tiles for complex A, first the real parts.
    """
    T: tl.constexpr = a_re.shape[0]
    v_re, v_im = differentiate_outputs(e_dy, b_C, COMPLEX)
    g_re, g_im, w_re, w_im = scan_gradients(a_re, a_im, v_re, v_im, dh_re, dh_im, flags, restart, next_restart, COMPLEX)
    b_B = load_states(B, o_tn, m_tn, A_re, COMPLEX)  # not before, so that it needs no registers during the scan
    d_input, b_dB, b_dC = g_re * pick(b_B, 0), g_re * e_input, e_dy * x_re
    top = tl.reshape(tl.arange(0, T) == 0, (T, 1, 1, 1, 1, 1))
    dh_re = select_row(w_re, top)
    if COMPLEX:
        dh_im = select_row(w_im, top)
        d_input += g_im * pick(b_B, 1)
        d_re = w_re * before_re + w_im * before_im  # with d_im, the gradients of dt A
        d_im = w_im * before_re - w_re * before_im
        d_step = d_re * A_re[None] + d_im * A_im[None]
        b_dB, b_dC = stack_steps(b_dB, g_im * e_input), stack_steps(b_dC, -e_dy * x_im)
        d_im = tl.sum(d_im * e_dt, 0)
    else:
        d_re = w_re * before_re
        d_step = d_re * A_re[None]
    dA_re += tl.sum(d_re * e_dt, 0)
    if COMPLEX:
        dA_im += d_im
    return d_input, d_step, b_dB, b_dC, dA_re, dA_im, dh_re, dh_im


@triton.jit
def store_gate_gradients(
    dz, o_td, m_td, m_out, x_re, x_im, b_C, b_u, b_dout, b_z, skip, PAIR_FACTOR: tl.constexpr, COMPLEX: tl.constexpr,
    NW: tl.constexpr,
):  # fmt: skip
    """Store the gradients of z of a tile. x: the states after its steps. b_dout: the gradients of y."""
    b_y = read_states(x_re, x_im, b_C, b_u, skip, PAIR_FACTOR, COMPLEX, NW)
    tl.store(dz + o_td, tl.where(m_td, b_dout * b_y * silu_derivative(b_z), 0.0), mask=m_out)


@triton.jit
def store_channel_gradients(
    du, ddt, d_scale, o_td, o_scale, m_t, m_td, m_out, b_sums, b_u, b_dt, dt_terms, b_dy, skip, SOFTPLUS: tl.constexpr
):  # fmt: skip
    """Store the gradients of u and dt, and a program's term of that of the scale. Return that of dt + bias.

    b_sums: gradients of dt u, and after them of dt through dt A, summed over the states, (2 T, BD). b_dt, dt_terms: as returned
    by `load_step_sizes`.
    """
    dt_raw, scale, unscaled = dt_terms
    T: tl.constexpr = b_u.shape[0]
    b_dinput, b_ddt = tl.split(tl.permute(tl.reshape(b_sums, (2, T, b_u.shape[1])), (1, 2, 0)))
    b_ddt = tl.where(m_td, b_dinput * b_u + b_ddt, 0.0)
    tl.store(du + o_td, tl.where(m_td, skip[None, :] * b_dy + b_dt * b_dinput, 0.0), mask=m_out)
    if d_scale is not None:
        tl.store(d_scale + o_scale, tl.sum(b_ddt * unscaled, 1), mask=m_t)
        b_ddt *= scale
    if SOFTPLUS:
        b_ddt *= sigmoid(dt_raw)
    tl.store(ddt + o_td, b_ddt, mask=m_out)
    return b_ddt


@triton.jit
def sum_state_gradients(b_dB, b_dC, flags, first, tile, length, P: tl.constexpr):
    """Return the sums over the channels of the gradients of B and C, (2 T, N P): first those of B.

    b_dB, b_dC: (P T, ...) tiles. P: number of components, 2 for complex numbers.
    """
    T: tl.constexpr = b_dB.shape[0] // P
    BN: tl.constexpr = b_dB.shape[2] * b_dB.shape[4]
    b_sums = tl.reshape(sum_over_channels(stack_steps(b_dB, b_dC)), (2, P, T, BN))
    b_sums = tl.reshape(tl.permute(b_sums, (0, 2, 3, 1)), (2 * T, BN * P))
    if flags is not None:  # the state at an invalid step may be infinite, and its product with 0 NaN
        step = tl.arange(0, 2 * T) % T
        flag = tl.load(flags + first + step, mask=tile * T + step < length, other=INVALID)
        b_sums = tl.where((flag != INVALID)[:, None], b_sums, 0.0)
    return b_sums


@triton.jit
def add_state_gradients(
    dB, dC, b_sums, first_row, left, width, position, T: tl.constexpr, ORDERED: tl.constexpr, FENCED: tl.constexpr
):  # fmt: skip
    """Store the sums of a tile (2 T, N P) to rows of dB and dC, or add them if ORDERED; return what an addition found there.

    first_row: the row of the first step. left: number of steps from the first one to the end of the sequence. width: numbers of a
    row. position: that of the program in its chain; with FENCED the first one stores, so that dB and dC need not be zeros before.
    """
    row, o_n = tl.arange(0, 2 * T), tl.arange(0, b_sums.shape[1])
    o_sum = ((first_row + row % T) * width)[:, None] + o_n[None, :]
    m_sum = (o_n < width)[None, :] & (row % T < left)[:, None]
    p_sum, before = tl.where((row < T)[:, None], dB + o_sum, dC + o_sum), b_sums
    if ORDERED and FENCED:
        m_add, m_store = m_sum & (o_sum * 0 + position != 0), m_sum & (o_sum * 0 + position == 0)
        tl.store(p_sum, b_sums, mask=m_store)
        tl.atomic_add(dB + o_sum, b_sums, mask=m_add & (row < T)[:, None], sem="relaxed")
        tl.atomic_add(dC + o_sum, b_sums, mask=m_add & (row >= T)[:, None], sem="relaxed")
    elif ORDERED:
        before = tl.atomic_add(p_sum, b_sums, mask=m_sum, sem="relaxed")
    else:
        tl.store(p_sum, b_sums, mask=m_sum)
    return before


@triton.jit
def load_next_gradient(
    grad_final, d_states, p_d_initial, maps, i_b, i_c, chunks, size, o_pair, m_pair, blocks, like, SEQUENTIAL: tl.constexpr,
    COMPLEX: tl.constexpr,
):  # fmt: skip
    """Return the gradient of the state after a chunk, real and imaginary.

    like: tensor of its shape and dtype. p_d_initial: `d_initial` of the program's row. The other arguments: as of
    `chunk_scan_bwd_kernel`.
    """
    P: tl.constexpr = 2 if COMPLEX else 1
    p_dh = grad_final
    if SEQUENTIAL and i_c < chunks - 1:
        p_dh = p_d_initial  # the gradient of the state before the next chunk, which the launch before has stored
    elif d_states is not None:
        p_dh = d_states + (i_b * (chunks + 1) + i_c + 1) * size * P
    elif grad_final is not None:
        p_dh += i_b * size * P
    zero = tl.zeros(like.shape, like.dtype)
    dh_re, dh_im = load_and_pass(
        p_dh, maps, i_b, chunks - 1, chunks, -1, chunks - 1 - i_c, size, o_pair, m_pair, blocks, zero, COMPLEX
    )
    if SEQUENTIAL:
        tl.debug_barrier()  # before the gradient of the state before this chunk is stored in the same place
    return dh_re, dh_im


@triton.jit
def first_sum_row(i_chain, first_step, steps, length, ORDERED: tl.constexpr):
    """Return the row of the sums of a chain that belongs to the step 0 of a sequence.

    A chain adds the terms of all steps. Without chains each program stores those of a round of `steps` steps from first_step on.
    """
    row = i_chain * length
    if not ORDERED:
        row = i_chain * (tl.minimum(first_step + steps, length) - first_step) - first_step
    return row


@triton.jit
def store_parameter_gradients(
    sums, i_b, i_c, chunks, size, channels, o_pair, m_pair, o_d, dA_re, dA_im, d_bias, d_skip, SEQUENTIAL: tl.constexpr,
    COMPLEX: tl.constexpr,
):  # fmt: skip
    """Store the sums of a chunk for the gradients of A, the bias and D; if SEQUENTIAL, add those of the chunks after it first."""
    P: tl.constexpr = 2 if COMPLEX else 1
    p_sums = sums + (i_b if SEQUENTIAL else i_b * chunks + i_c) * (size * P + 2 * channels)
    p_dA, p_dchannels, m_d = p_sums + o_pair * P, p_sums + size * P + o_d, o_d < channels
    if SEQUENTIAL:
        later = chunks - 1 - i_c
        later_re, later_im = load_pair_parts(p_dA, 1, where_positive(m_pair, later), COMPLEX)
        dA_re += later_re
        dA_im += later_im
        d_bias += tl.load(p_dchannels, mask=where_positive(m_d, later), other=0.0)
        d_skip += tl.load(p_dchannels + channels, mask=where_positive(m_d, later), other=0.0)
    store_pair_parts(p_dA, dA_re, dA_im, m_pair, COMPLEX)
    tl.store(p_dchannels, d_bias, mask=m_d)
    tl.store(p_dchannels + channels, d_skip, mask=m_d)


@triton.jit
def number_program(counters, blocks, chunks, first_chunk):
    """Return the number of a program in its launch, its batch row and the number of rows, its block of channels, and its chunk.

    With counters, programs are numbered in the order in which they start, so that a program waits only for running ones. The
    counter for that follows those of the programs of all chunks.
    """
    program = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    if counters is not None:
        program = tl.atomic_add(counters + tl.num_programs(0) * chunks, 1)
    i_b, batch = (program % tl.num_programs(0) // blocks).to(tl.int64), tl.num_programs(0) // blocks
    return program, i_b, batch, program % blocks, first_chunk + program // tl.num_programs(0)


@triton.jit(do_not_specialize=["length", "chunks", "chunk_tiles", "rows", "interval", "chain_length", "first_chunk"])
def chunk_scan_bwd_kernel(
    dy, u, dt, A, B, C, D, z, dt_bias, dt_scale, flags, checkpoints, tile_states, grad_final, d_states, maps, d_initial, du, ddt,
    dz, d_scale, dB, dC, sums, counters, length, channels, states, chunks, chunk_tiles, rows, interval, chain_length, first_chunk,
    PAIR_FACTOR: tl.constexpr, SOFTPLUS: tl.constexpr, COMPLEX: tl.constexpr, SEQUENTIAL: tl.constexpr, FENCED: tl.constexpr,
    PTX: tl.constexpr, RECOMPUTE: tl.constexpr, T: tl.constexpr, SHAPE: tl.constexpr, NW: tl.constexpr, MATERIALIZE: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of a chunk of `chunk_tiles` tiles, from its last tile to its first. README.md lists the buffers.

    SEQUENTIAL: chunks are in separate launches, from the last to the first; each stores the gradient of the state before it in
    d_initial and adds to the same `sums`. d_states (B, chunks + 1, D N[, 2]): the gradients of the states before and after all
    chunks, or None. If it is None, the gradient of the state after a chunk follows from grad_final (B, D N[, 2]), the gradient of
    the final state: by `maps`, the maps of the chunks, or, if SEQUENTIAL, through d_initial. grad_final: None for zero, if `maps`
    is given, and None with d_states. interval: number of tiles between two checkpoints. counters: counters of chains of
    `chain_length` programs, which add to the same dB and dC in order (ordered_sums.py); if it is None, each program stores
    separate partial sums for the chunks of a round.
    """
    P: tl.constexpr = 2 if COMPLEX else 1
    BD: tl.constexpr = SHAPE[0] * SHAPE[2] * SHAPE[4]
    BN: tl.constexpr = SHAPE[1] * SHAPE[3]
    ORDERED: tl.constexpr = counters is not None
    blocks, tiles = tl.cdiv(channels, BD), tl.cdiv(length, T)
    program, i_b, batch, i_d, i_c = number_program(counters, blocks, chunks, first_chunk)
    o_t, o_d, o_n = tl.arange(0, T), i_d * BD + tl.arange(0, BD), tl.arange(0, BN * P)
    o_pair, m_pair = locate_pairs(i_d * BD, channels, states, SHAPE)
    size, o_tile_states = channels * states, transposed_offsets(BD, SHAPE)
    o_checkpoint = i_d * BD + transposed_offsets(channels, SHAPE)
    p_d_initial = d_initial + i_b * size * P
    A_re, A_im = load_pair_parts(A + (i_b // rows) * size * P + o_pair * P, 1, m_pair, COMPLEX)
    dA_re, dA_im = A_re * 0.0, A_re * 0.0
    dh_re, dh_im = load_next_gradient(
        grad_final, d_states, p_d_initial, maps, i_b, i_c, chunks, size, o_pair, m_pair, blocks, A_re, SEQUENTIAL, COMPLEX
    )
    bias = load_channels(dt_bias, i_b // rows, channels, o_d, A_re.dtype)
    skip = load_channels(D, i_b // rows, channels, o_d, A_re.dtype)
    d_bias, d_skip = tl.zeros((BD,), A_re.dtype), tl.zeros((BD,), A_re.dtype)
    begin, intervals = i_c * chunk_tiles, tl.cdiv(tl.minimum(chunk_tiles, tiles - i_c * chunk_tiles), interval)
    added, token, is_first, i_chain = 0, 0, i_d % chain_length == 0, i_d // chain_length * batch + i_b
    first_row = first_sum_row(i_chain, first_chunk * chunk_tiles * T, tl.num_programs(1) * chunk_tiles * T, length, ORDERED)
    p_previous = previous_counter(counters, program, is_first)
    for j in range(intervals):
        interval_begin = begin + (intervals - 1 - j) * interval
        count = tl.minimum(interval, tl.minimum(begin + chunk_tiles, tiles) - interval_begin)
        p_tile_states = tile_states + program.to(tl.int64) * interval * (P * BN * BD) + o_tile_states
        p_checkpoint = checkpoints + (i_b * tl.cdiv(tiles, interval) + interval_begin // interval) * size * P + o_checkpoint
        recompute_tile_states(
            p_checkpoint, p_tile_states, u, dt, B, dt_scale, flags, bias, A_re, A_im, m_pair, i_b * length + interval_begin * T,
            i_b * length + tl.minimum((interval_begin + count) * T, length), o_d, o_n, channels, states,
            SOFTPLUS, COMPLEX, T, RECOMPUTE, MATERIALIZE, STAGES,
        )  # fmt: skip
        tl.debug_barrier()  # a thread may read what another has stored
        for i in tl.range(count, num_stages=STAGES):
            tile = interval_begin + count - 1 - i
            m_t, first = tile * T + o_t < length, i_b * length + tile * T
            valid, restart, m_td, m_tn = load_tile_masks(flags, first, m_t, o_t, o_d, o_n, channels, states * P)
            o_td, o_tn = tile_offsets(first, o_t, o_d, o_n, channels, states * P)
            m_out = m_t[:, None] & (o_d < channels)[None, :]
            b_dt, dt_terms = load_step_sizes(dt, dt_scale, o_td, first, o_t, bias, valid, m_td, SOFTPLUS, MATERIALIZE)
            b_dout, b_dy, b_z = load_output_gradients(dy, z, o_td, m_td, A_re.dtype, MATERIALIZE)
            b_u = tl.load(u + o_td, mask=m_td, other=0.0).to(A_re.dtype)
            seen, least = poll(p_previous, is_first, added, PTX)
            expanded = expand_channels(stack_steps(stack_steps(b_dt, PAIR_FACTOR * b_dy), stack_steps(b_dt * b_u, b_u)), T, A_re)
            e_dt, e_dy, e_input = pick(expanded, 0), pick(expanded, 1), pick(expanded, 2)
            a_re, a_im = decay(e_dt, A_re[None], A_im[None], COMPLEX)
            h_re, h_im = load_pair_parts(p_tile_states + (tile - interval_begin) * (P * BN * BD), BN * BD, m_pair, COMPLEX)
            b_B = load_states(B, o_tn, m_tn, A_re, COMPLEX)
            x_re, x_im = compute_tile_states(a_re, a_im, e_input, b_B, h_re, h_im, flags, restart, COMPLEX)
            before_re, before_im = delay_states(x_re, x_im, h_re, h_im, flags, restart, COMPLEX)
            b_C = load_states(C, o_tn, m_tn, A_re, COMPLEX)
            if z is not None:
                store_gate_gradients(dz, o_td, m_td, m_out, x_re, x_im, b_C, b_u, b_dout, b_z, skip, PAIR_FACTOR, COMPLEX, NW)
            next_restart = load_next_restart(flags, first, tile, o_t, length)
            d_input, d_step, b_dB, b_dC, dA_re, dA_im, dh_re, dh_im = differentiate_states(
                e_dt, e_dy, e_input, a_re, a_im, x_re, x_im, before_re, before_im, dh_re, dh_im, dA_re, dA_im, A_re, A_im, b_C, B,
                o_tn, m_tn, flags, restart, next_restart, COMPLEX,
            )  # fmt: skip
            b_sums = sum_state_gradients(b_dB, b_dC, flags, first, tile, length, P)
            added += 1
            spin_wait(p_previous, seen, least, FENCED, PTX)
            sums_before = add_state_gradients(
                dB, dC, b_sums, first_row + tile * T, length - tile * T, states * P, i_d % chain_length, T, ORDERED, FENCED
            )
            b_sums = sum_over_states(stack_steps(d_input, d_step), NW)
            if ORDERED and FENCED:
                signal(counters + program, added, True, PTX)  # late, so that the fence finds the additions completed
            o_scale = (i_d.to(tl.int64) * batch + i_b) * length + tile * T + o_t
            b_ddt = store_channel_gradients(
                du, ddt, d_scale, o_td, o_scale, m_t, m_td, m_out, b_sums, b_u, b_dt, dt_terms, b_dy, skip, SOFTPLUS
            )
            d_bias, d_skip = d_bias + tl.sum(b_ddt, 0), d_skip + tl.sum(b_dy * b_u, 0)
            if ORDERED and not FENCED:
                token |= dependency_token(sums_before)
                signal(counters + program, added | token, False, PTX)
        tl.debug_barrier()  # before the states of the next interval overwrite these
    store_parameter_gradients(
        sums, i_b, i_c, chunks, size, channels, o_pair, m_pair, o_d, dA_re, dA_im, d_bias, d_skip, SEQUENTIAL, COMPLEX
    )
    m_first = m_pair & (o_pair * 0 + (0 if SEQUENTIAL else i_c) == 0)
    store_pair_parts(p_d_initial + o_pair * P, dh_re, dh_im, m_first, COMPLEX)


@triton.jit(do_not_specialize=["count"])
def sum_parameter_gradients_kernel(
    sums, dA, d_bias, dD, count, size, channels, ROWS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Store the gradients of A (`size` numbers), the bias and D of a group: sums of `count` rows of `sums`, in fixed order.

    ROWS, BLOCK: number of rows and of numbers of a row that a program loads together.
    """
    i_g, o_sum, row = tl.program_id(1).to(tl.int64), tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, ROWS)
    width = size + 2 * channels
    b_sums = tl.zeros((ROWS, BLOCK), sums.dtype.element_ty)
    for first in range(0, count, ROWS):
        m_in = (first + row < count)[:, None] & (o_sum < width)[None, :]
        b_sums += tl.load(sums + (i_g * count + first + row[:, None]) * width + o_sum[None, :], mask=m_in, other=0.0)
    total = tl.sum(b_sums, 0)
    tl.store(dA + i_g * size + o_sum, total, mask=o_sum < size)
    if d_bias is not None:
        tl.store(d_bias + i_g * channels + o_sum - size, total, mask=(o_sum >= size) & (o_sum < size + channels))
    if dD is not None:
        tl.store(dD + i_g * channels + o_sum - size - channels, total, mask=(o_sum >= size + channels) & (o_sum < width))


@triton.jit(do_not_specialize=["blocks", "stride", "count", "row_count", "row_stride", "begin"])
def sum_partials_kernel(
    partials, dB, dC, blocks, stride, count, row_count, row_stride, begin, ROWS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Sum partials (2, blocks, B, steps, N[, 2]) of dB and dC over the blocks, in a fixed order, into the steps of a round.

    dC: None if there are only partials of dB (1, blocks, ...), with a grid of one program along the second axis.
    stride: numbers from the partials of dB to those of dC. count: numbers of one block. row_count: numbers of a row in the round;
    row_stride: in dB. begin: first number of the round in a row. ROWS, BLOCK: number of blocks of partials, and of their numbers,
    that a program loads together.
    """
    i_map, o_sum = tl.program_id(1).to(tl.int64), tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    block, m_sum = tl.arange(0, ROWS).to(tl.int64), o_sum < count
    b_sums = tl.zeros((ROWS, BLOCK), partials.dtype.element_ty)
    for first in range(0, blocks, ROWS):
        p_partials = partials + i_map * stride + (first + block[:, None]) * count + o_sum[None, :]
        b_sums += tl.load(p_partials, mask=(first + block < blocks)[:, None] & m_sum[None, :], other=0.0)
    o_out = o_sum // row_count * row_stride + begin + o_sum % row_count
    if dC is None:
        tl.store(dB + o_out, tl.sum(b_sums, 0), mask=m_sum)
    else:
        if i_map == 0:
            tl.store(dB + o_out, tl.sum(b_sums, 0), mask=m_sum)
        else:
            tl.store(dC + o_out, tl.sum(b_sums, 0), mask=m_sum)
