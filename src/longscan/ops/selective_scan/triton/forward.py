"""Forward kernels of the selective scan, real and complex.

Names as in Triton's and fla's kernels: an argument has the name of its tensor; p_ is a pointer that a kernel computes, o_
offsets, m_ a mask, b_ a tile, i_ the index of a program, T the steps of a tile. Programs are (rows of the batch times blocks of
BD channels, chunks of the steps). `rows`: number of rows that have the same parameters. README.md has a table of the
compile-time constants.
"""

import triton
import triton.language as tl

from longscan.ops._triton import silu
from longscan.ops.selective_scan.triton.math import (
    compute_tile_states,
    decay,
    expand_channels,
    load_and_pass,
    load_channels,
    load_pair_parts,
    load_states,
    load_step_sizes,
    load_tile_masks,
    locate_pairs,
    pick,
    read_states,
    select_row,
    stack_steps,
    store_map,
    store_pair_parts,
    tile_offsets,
    transposed_offsets,
)


@triton.jit(do_not_specialize=["length", "chunks", "chunk_tiles", "rows"])
def chunk_state_fwd_kernel(
    u, dt, A, B, dt_bias, dt_scale, flags, maps, length, channels, states, chunks, chunk_tiles, rows,
    SOFTPLUS: tl.constexpr, COMPLEX: tl.constexpr, T: tl.constexpr, SHAPE: tl.constexpr, MATERIALIZE: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Store the product of the factors of a chunk of `chunk_tiles` tiles, and its final state from zero.

    maps: (2, B, chunks, D N[, 2]). The product is undefined if a sequence starts in the chunk.
    """
    P: tl.constexpr = 2 if COMPLEX else 1
    BD: tl.constexpr = SHAPE[0] * SHAPE[2] * SHAPE[4]
    BN: tl.constexpr = SHAPE[1] * SHAPE[3]
    blocks, tiles = tl.cdiv(channels, BD), tl.cdiv(length, T)
    i_b, i_d, i_c = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks, tl.program_id(1)
    o_t, o_d, o_n = tl.arange(0, T), i_d * BD + tl.arange(0, BD), tl.arange(0, BN * P)
    o_pair, m_pair = locate_pairs(i_d * BD, channels, states, SHAPE)
    size = channels * states
    A_re, A_im = load_pair_parts(A + (i_b // rows) * size * P + o_pair * P, 1, m_pair, COMPLEX)
    h_re, h_im = A_re * 0.0, A_re * 0.0
    bias = load_channels(dt_bias, i_b // rows, channels, o_d, A_re.dtype)
    time = tl.zeros((BD,), A_re.dtype)
    last = tl.reshape(o_t == T - 1, (T, 1, 1, 1, 1, 1))
    begin = i_c * chunk_tiles
    for i in tl.range(tl.minimum(chunk_tiles, tiles - begin), num_stages=STAGES):
        first = i_b * length + (begin + i) * T
        m_t = (begin + i) * T + o_t < length
        valid, restart, m_td, m_tn = load_tile_masks(flags, first, m_t, o_t, o_d, o_n, channels, states * P)
        o_td, o_tn = tile_offsets(first, o_t, o_d, o_n, channels, states * P)
        b_u = tl.load(u + o_td, mask=m_td, other=0.0).to(A_re.dtype)
        b_dt, _ = load_step_sizes(dt, dt_scale, o_td, first, o_t, bias, valid, m_td, SOFTPLUS, MATERIALIZE)
        expanded = expand_channels(stack_steps(b_dt, b_dt * b_u), T, A_re)
        a_re, a_im = decay(pick(expanded, 0), A_re[None], A_im[None], COMPLEX)
        b_B = load_states(B, o_tn, m_tn, A_re, COMPLEX)
        x_re, x_im = compute_tile_states(a_re, a_im, pick(expanded, 1), b_B, h_re, h_im, flags, restart, COMPLEX)
        h_re = select_row(x_re, last)
        if COMPLEX:
            h_im = select_row(x_im, last)
        time += tl.sum(b_dt, 0)
    a_re, a_im = decay(tl.reshape(time, (SHAPE[0], 1, SHAPE[2], 1, SHAPE[4])), A_re, A_im, COMPLEX)
    store_map(maps, i_b, i_c, chunks, size, o_pair, m_pair, a_re, a_im, h_re, h_im, blocks, COMPLEX)


@triton.jit(do_not_specialize=["length", "chunks", "chunk_tiles", "rows", "interval"])
def chunk_scan_fwd_kernel(
    u, dt, A, B, C, D, z, dt_bias, dt_scale, initial_state, first_states, maps, flags, y, final_state,
    checkpoints, length, channels, states, chunks, chunk_tiles, rows, interval,
    PAIR_FACTOR: tl.constexpr, SOFTPLUS: tl.constexpr, COMPLEX: tl.constexpr, T: tl.constexpr, SHAPE: tl.constexpr,
    NW: tl.constexpr, MATERIALIZE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Compute the outputs of a chunk of `chunk_tiles` tiles, the final state, and a checkpoint before every `interval` tiles.

    first_states (B, chunks + 1, D N[, 2]): the states before the chunks, or None. If it is None, the state before the chunk is
    computed from initial_state (zero if that is None, too) and the maps of the earlier chunks, which `chunk_state_fwd_kernel`
    stored in `maps`. checkpoints (B, tiles / interval, [2,] N, D), or None to store none. PAIR_FACTOR: 2 if a complex state
    stands for a conjugate pair, otherwise 1.
    """
    P: tl.constexpr = 2 if COMPLEX else 1
    BD: tl.constexpr = SHAPE[0] * SHAPE[2] * SHAPE[4]
    BN: tl.constexpr = SHAPE[1] * SHAPE[3]
    blocks, tiles = tl.cdiv(channels, BD), tl.cdiv(length, T)
    i_b, i_d, i_c = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks, tl.program_id(1)
    o_t, o_d, o_n = tl.arange(0, T), i_d * BD + tl.arange(0, BD), tl.arange(0, BN * P)
    o_pair, m_pair = locate_pairs(i_d * BD, channels, states, SHAPE)
    o_checkpoint, size = i_d * BD + transposed_offsets(channels, SHAPE), channels * states
    A_re, A_im = load_pair_parts(A + (i_b // rows) * size * P + o_pair * P, 1, m_pair, COMPLEX)
    p_h = initial_state
    if first_states is not None:
        p_h = first_states + (i_b * (chunks + 1) + i_c) * size * P
    elif initial_state is not None:
        p_h = initial_state + i_b * size * P
    zero = tl.zeros(A_re.shape, A_re.dtype)
    h_re, h_im = load_and_pass(p_h, maps, i_b, 0, chunks, 1, i_c, size, o_pair, m_pair, blocks, zero, COMPLEX)
    bias = load_channels(dt_bias, i_b // rows, channels, o_d, A_re.dtype)
    skip = load_channels(D, i_b // rows, channels, o_d, A_re.dtype)
    last = tl.reshape(o_t == T - 1, (T, 1, 1, 1, 1, 1))
    begin = i_c * chunk_tiles
    for i in tl.range(tl.minimum(chunk_tiles, tiles - begin), num_stages=STAGES):
        tile = begin + i
        m_t, first = tile * T + o_t < length, i_b * length + tile * T
        valid, restart, m_td, m_tn = load_tile_masks(flags, first, m_t, o_t, o_d, o_n, channels, states * P)
        o_td, o_tn = tile_offsets(first, o_t, o_d, o_n, channels, states * P)
        b_u = tl.load(u + o_td, mask=m_td, other=0.0).to(A_re.dtype)
        b_dt, _ = load_step_sizes(dt, dt_scale, o_td, first, o_t, bias, valid, m_td, SOFTPLUS, MATERIALIZE)
        expanded = expand_channels(stack_steps(b_dt, b_dt * b_u), T, A_re)
        a_re, a_im = decay(pick(expanded, 0), A_re[None], A_im[None], COMPLEX)
        b_B = load_states(B, o_tn, m_tn, A_re, COMPLEX)
        x_re, x_im = compute_tile_states(a_re, a_im, pick(expanded, 1), b_B, h_re, h_im, flags, restart, COMPLEX)
        if checkpoints is not None:
            o_out = (i_b * tl.cdiv(tiles, interval) + tile // interval) * size * P + o_checkpoint
            m_out = m_pair & (o_pair * 0 + tile % interval == 0)
            tl.store(checkpoints + o_out, h_re, mask=m_out)
            if COMPLEX:
                tl.store(checkpoints + o_out + size, h_im, mask=m_out)
        h_re = select_row(x_re, last)
        b_C = load_states(C, o_tn, m_tn, A_re, COMPLEX)
        if COMPLEX:
            h_im = select_row(x_im, last)
        b_y = read_states(x_re, x_im, b_C, b_u, skip, PAIR_FACTOR, COMPLEX, NW)
        if z is not None:
            b_y *= silu(tl.load(z + o_td, mask=m_td, other=0.0).to(A_re.dtype))
        tl.store(y + o_td, tl.where(m_td, b_y, 0.0), mask=m_t[:, None] & (o_d < channels)[None, :])
    if i_c == chunks - 1:
        store_pair_parts(final_state + i_b * size * P + o_pair * P, h_re, h_im, m_pair, COMPLEX)
