"""Forward kernels of `ssd_scan`. Names of sizes are as in README.md, others as in math.py.

A program has a block of PB channels of a head of a batch row, and one split: several chunks of steps, one after another. With
flags, a chunk is computed once for each of its sequences (`sequence_flags`). rows: number of batch rows with the same A and D.
"""

import triton
import triton.language as tl

from longscan.ops.ssd_scan.triton.math import (
    chunk_decays,
    dot,
    load_rows,
    output_weights,
    program_indices,
    sequence_flags,
    state_entry,
)


@triton.jit(do_not_specialize=["length", "split_chunks", "rows", "groups"])
def chunk_state_fwd_kernel(
    x, dt, scale, A, B, flags, split_decay, local_states, length, split_chunks, rows, heads, groups, P, N,
    Q: tl.constexpr, PB: tl.constexpr, NB: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Store the last state of a split of `split_chunks` chunks that begins with a state of 0, and the product of its decays.

    local_states, split_decay: (B, splits, H, P, N). The product is undefined if a sequence starts in the split.
    """
    i_b, i_h, i_g, _i_p, o_p, o_n, o_state, state_mask = program_indices(heads, groups, P, N, PB, NB)
    A_head = tl.load(A + (i_b // rows) * heads + i_h)
    dtype: tl.constexpr = x.dtype.element_ty
    dt += i_h
    if scale is not None:
        scale += i_h
    state, total_decay = tl.zeros((PB, NB), A_head.dtype), A_head * 0.0 + 1.0
    first_chunk = tl.program_id(1) * split_chunks
    for i_c in range(first_chunk, tl.minimum(first_chunk + split_chunks, tl.cdiv(length, Q))):
        step = i_c * Q + tl.arange(0, Q)
        position = i_b * length + step
        _exists, is_valid, sequence, restarts = sequence_flags(flags, position, step, length, Q)
        for j in range(restarts + 1):
            valid = is_valid
            if flags is not None:
                valid = is_valid & (sequence == j)
                state = tl.where(j > 0, 0.0, state)
            _dt, input_weight, _decay, _start, end_decay, chunk_decay = chunk_decays(dt, scale, A_head, valid, position, heads, Q)
            x_tile = load_rows(x + i_h * P, position, heads * P, o_p, P, valid)
            B_tile = load_rows(B + i_g * N, position, groups * N, o_n, N, valid)
            weighted_B = (B_tile * (end_decay * input_weight)[:, None]).to(dtype)
            state = dot(tl.trans(x_tile), weighted_B, state * chunk_decay, PRECISION)
            total_decay *= chunk_decay
    offset = (i_b * tl.num_programs(1) + tl.program_id(1)) * heads * P * N + o_state
    tl.store(local_states + offset, state, mask=state_mask)
    tl.store(split_decay + offset, tl.full((PB, NB), 0.0, total_decay.dtype) + total_decay, mask=state_mask)


@triton.jit(do_not_specialize=["length", "split_chunks", "rows", "row_states", "groups"])
def chunk_scan_fwd_kernel(
    x, dt, scale, own_scale, A, B, C, D, flags, first_states, y, final, chunk_states, length, split_chunks, rows, row_states,
    stride, heads, groups, P, N, Q: tl.constexpr, PB: tl.constexpr, NB: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Store y of a split of `split_chunks` chunks, the final state, and if `chunk_states` is given the states before all chunks.

    first_states: (B, row_states, H, P, N), the initial states, or those before the splits and after the last (`state_entry`).
    chunk_states: (B, stride), whose rows have the states as (chunks, H, P, N).
    """
    i_b, i_h, i_g, _i_p, o_p, o_n, o_state, state_mask = program_indices(heads, groups, P, N, PB, NB)
    state_size = i_b * 0 + heads * P * N
    A_head = tl.load(A + (i_b // rows) * heads + i_h)
    dtype: tl.constexpr = x.dtype.element_ty
    zeros_qq, zeros_qp = tl.zeros((Q, Q), A_head.dtype), tl.zeros((Q, PB), A_head.dtype)
    dt += i_h
    if scale is not None:
        scale += i_h
    if own_scale is not None:
        own_scale += i_h
    if D is not None:
        D_head = tl.load(D + (i_b // rows) * heads + i_h)
    state = tl.load(first_states + state_entry(i_b, row_states, 0) * state_size + o_state, mask=state_mask, other=0.0)
    first_chunk, chunks = tl.program_id(1) * split_chunks, tl.cdiv(length, Q)
    for i_c in range(first_chunk, tl.minimum(first_chunk + split_chunks, chunks)):
        step = i_c * Q + tl.arange(0, Q)
        position = i_b * length + step
        in_range, is_valid, sequence, restarts = sequence_flags(flags, position, step, length, Q)
        for j in range(restarts + 1):
            valid, in_sequence, store_mask = is_valid, in_range, state_mask
            if flags is not None:
                in_sequence = in_range & (sequence == j)
                valid = is_valid & in_sequence
                state = tl.where(j > 0, 0.0, state)
                store_mask = state_mask & (o_state * 0 + j == 0)
            if chunk_states is not None:
                tl.store(chunk_states + i_b * stride + i_c * state_size + o_state, state.to(dtype), mask=store_mask)
            _dt, input_weight, decay, start_decay, end_decay, chunk_decay = chunk_decays(
                dt, scale, A_head, valid, position, heads, Q
            )
            x_tile = load_rows(x + i_h * P, position, heads * P, o_p, P, valid)
            B_tile = load_rows(B + i_g * N, position, groups * N, o_n, N, valid)
            C_tile = load_rows(C + i_g * N, position, groups * N, o_n, N, valid)
            weights, _own = output_weights(input_weight, own_scale, position, valid, heads, Q)
            scores = dot(C_tile, tl.trans(B_tile), zeros_qq, PRECISION) * decay * weights
            y_tile = dot(C_tile, tl.trans(state.to(dtype)), zeros_qp, PRECISION) * start_decay[:, None]
            y_tile = dot(scores.to(dtype), x_tile, y_tile, PRECISION)
            if D is not None:
                y_tile += D_head * x_tile
            offset = position[:, None] * (heads * P) + i_h * P + o_p[None, :]
            y_mask = in_sequence[:, None] & (o_p < P)[None, :]
            tl.store(y + offset, tl.where(valid[:, None], y_tile, 0.0).to(dtype), mask=y_mask)
            weighted_B = (B_tile * (end_decay * input_weight)[:, None]).to(dtype)
            state = dot(tl.trans(x_tile), weighted_B, state * chunk_decay, PRECISION)
    if tl.program_id(1) == tl.num_programs(1) - 1:
        tl.store(final + i_b * state_size + o_state, state, mask=state_mask)
