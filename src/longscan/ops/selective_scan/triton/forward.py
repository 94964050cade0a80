"""Forward kernels of the selective scan, real and complex.

Names as in Triton's and fla's kernels: p_ is a pointer, o_ offsets, m_ a mask, b_ a tile, i_ the index of a program, T the steps
of a tile. Programs are (rows of the batch times blocks of BD channels, pieces of the steps). `rows`: number of rows that have the
same parameters.
"""

import triton
import triton.language as tl

from longscan.ops._triton import silu
from longscan.ops.selective_scan.triton.math import (
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
    tile_states,
    transposed_offsets,
)


@triton.jit(do_not_specialize=["length", "pieces", "span", "rows"])
def chunk_state_fwd_kernel(
    p_u, p_dt, p_A, p_B, p_bias, p_scale, p_flags, p_maps, length, channels, states, pieces, span, rows,
    SOFTPLUS: tl.constexpr, COMPLEX: tl.constexpr, T: tl.constexpr, SHAPE: tl.constexpr, MATERIALIZE: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Store the product of the factors of a piece of `span` tiles, and its final state from zero.

    p_maps: (2, B, pieces, D N[, 2]). The product is undefined if a sequence starts in the piece.
    """
    P: tl.constexpr = 2 if COMPLEX else 1
    BD: tl.constexpr = SHAPE[0] * SHAPE[2] * SHAPE[4]
    BN: tl.constexpr = SHAPE[1] * SHAPE[3]
    blocks, tiles = tl.cdiv(channels, BD), tl.cdiv(length, T)
    i_b, i_d, i_p = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks, tl.program_id(1)
    o_t, o_d, o_n = tl.arange(0, T), i_d * BD + tl.arange(0, BD), tl.arange(0, BN * P)
    o_pair, m_pair = locate_pairs(i_d * BD, channels, states, SHAPE)
    size = channels * states
    A_re, A_im = load_pair_parts(p_A + (i_b // rows) * size * P + o_pair * P, 1, m_pair, COMPLEX)
    h_re, h_im = A_re * 0.0, A_re * 0.0
    bias = load_channels(p_bias, i_b // rows, channels, o_d, A_re.dtype)
    time = tl.zeros((BD,), A_re.dtype)
    last = tl.reshape(o_t == T - 1, (T, 1, 1, 1, 1, 1))
    begin = i_p * span
    for i in tl.range(tl.minimum(span, tiles - begin), num_stages=STAGES):
        first = i_b * length + (begin + i) * T
        m_t = (begin + i) * T + o_t < length
        valid, restart, m_td, m_tn = load_tile_masks(p_flags, first, m_t, o_t, o_d, o_n, channels, states * P)
        o_td, o_tn = tile_offsets(first, o_t, o_d, o_n, channels, states * P)
        b_u = tl.load(p_u + o_td, mask=m_td, other=0.0).to(A_re.dtype)
        b_dt, _ = load_step_sizes(p_dt, p_scale, o_td, first, o_t, bias, valid, m_td, SOFTPLUS, MATERIALIZE)
        expanded = expand_channels(stack_steps(b_dt, b_dt * b_u), T, A_re)
        a_re, a_im = decay(pick(expanded, 0), A_re[None], A_im[None], COMPLEX)
        b_B = load_states(p_B, o_tn, m_tn, A_re, COMPLEX)
        x_re, x_im = tile_states(a_re, a_im, pick(expanded, 1), b_B, h_re, h_im, p_flags, restart, COMPLEX)
        h_re = select_row(x_re, last)
        if COMPLEX:
            h_im = select_row(x_im, last)
        time += tl.sum(b_dt, 0)
    a_re, a_im = decay(tl.reshape(time, (SHAPE[0], 1, SHAPE[2], 1, SHAPE[4])), A_re, A_im, COMPLEX)
    store_map(p_maps, i_b, i_p, pieces, size, o_pair, m_pair, a_re, a_im, h_re, h_im, blocks, COMPLEX)


@triton.jit(do_not_specialize=["length", "pieces", "span", "rows", "interval"])
def chunk_scan_fwd_kernel(
    p_u, p_dt, p_A, p_B, p_C, p_D, p_z, p_bias, p_scale, p_initial, p_first_states, p_maps, p_flags, p_y, p_final,
    p_checkpoints, length, channels, states, pieces, span, rows, interval,
    PAIR_FACTOR: tl.constexpr, SOFTPLUS: tl.constexpr, COMPLEX: tl.constexpr, T: tl.constexpr, SHAPE: tl.constexpr,
    NW: tl.constexpr, MATERIALIZE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Compute the outputs of a piece of `span` tiles, the final state of a row, and checkpoints: states before `interval` tiles.

    p_first_states (B, pieces + 1, D N[, 2]): the states before the pieces, or None. If it is None, the state before the piece is
    computed from p_initial (zero if that is None, too) and the maps of the earlier pieces, which `chunk_state_fwd_kernel` stored
    to p_maps. p_checkpoints (B, tiles / interval, [2,] N, D), or None to store none. PAIR_FACTOR: 2 if a complex state stands for
    a conjugate pair, otherwise 1.
    """
    P: tl.constexpr = 2 if COMPLEX else 1
    BD: tl.constexpr = SHAPE[0] * SHAPE[2] * SHAPE[4]
    BN: tl.constexpr = SHAPE[1] * SHAPE[3]
    blocks, tiles = tl.cdiv(channels, BD), tl.cdiv(length, T)
    i_b, i_d, i_p = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks, tl.program_id(1)
    o_t, o_d, o_n = tl.arange(0, T), i_d * BD + tl.arange(0, BD), tl.arange(0, BN * P)
    o_pair, m_pair = locate_pairs(i_d * BD, channels, states, SHAPE)
    o_checkpoint, size = i_d * BD + transposed_offsets(channels, SHAPE), channels * states
    A_re, A_im = load_pair_parts(p_A + (i_b // rows) * size * P + o_pair * P, 1, m_pair, COMPLEX)
    p_h = p_initial
    if p_first_states is not None:
        p_h = p_first_states + (i_b * (pieces + 1) + i_p) * size * P
    elif p_initial is not None:
        p_h = p_initial + i_b * size * P
    zero = tl.zeros(A_re.shape, A_re.dtype)
    h_re, h_im = load_and_pass(p_h, p_maps, i_b, 0, pieces, 1, i_p, size, o_pair, m_pair, blocks, zero, COMPLEX)
    bias = load_channels(p_bias, i_b // rows, channels, o_d, A_re.dtype)
    skip = load_channels(p_D, i_b // rows, channels, o_d, A_re.dtype)
    last = tl.reshape(o_t == T - 1, (T, 1, 1, 1, 1, 1))
    begin = i_p * span
    for i in tl.range(tl.minimum(span, tiles - begin), num_stages=STAGES):
        tile = begin + i
        m_t, first = tile * T + o_t < length, i_b * length + tile * T
        valid, restart, m_td, m_tn = load_tile_masks(p_flags, first, m_t, o_t, o_d, o_n, channels, states * P)
        o_td, o_tn = tile_offsets(first, o_t, o_d, o_n, channels, states * P)
        b_u = tl.load(p_u + o_td, mask=m_td, other=0.0).to(A_re.dtype)
        b_dt, _ = load_step_sizes(p_dt, p_scale, o_td, first, o_t, bias, valid, m_td, SOFTPLUS, MATERIALIZE)
        expanded = expand_channels(stack_steps(b_dt, b_dt * b_u), T, A_re)
        a_re, a_im = decay(pick(expanded, 0), A_re[None], A_im[None], COMPLEX)
        b_B = load_states(p_B, o_tn, m_tn, A_re, COMPLEX)
        x_re, x_im = tile_states(a_re, a_im, pick(expanded, 1), b_B, h_re, h_im, p_flags, restart, COMPLEX)
        if p_checkpoints is not None:
            o_out = (i_b * tl.cdiv(tiles, interval) + tile // interval) * size * P + o_checkpoint
            m_out = m_pair & (o_pair * 0 + tile % interval == 0)
            tl.store(p_checkpoints + o_out, h_re, mask=m_out)
            if COMPLEX:
                tl.store(p_checkpoints + o_out + size, h_im, mask=m_out)
        h_re = select_row(x_re, last)
        b_C = load_states(p_C, o_tn, m_tn, A_re, COMPLEX)
        if COMPLEX:
            h_im = select_row(x_im, last)
        b_y = read_states(x_re, x_im, b_C, b_u, skip, PAIR_FACTOR, COMPLEX, NW)
        if p_z is not None:
            b_y *= silu(tl.load(p_z + o_td, mask=m_td, other=0.0).to(A_re.dtype))
        tl.store(p_y + o_td, tl.where(m_td, b_y, 0.0), mask=m_t[:, None] & (o_d < channels)[None, :])
    if i_p == pieces - 1:
        store_pair_parts(p_final + i_b * size * P + o_pair * P, h_re, h_im, m_pair, COMPLEX)
