"""Backward kernels of `ssd_scan`. Names of sizes are as in README.md, others as in math.py.

Programs are those of forward.py; chunks, and the sequences of a chunk, are computed from the last to the first. d_last_states
(B, row_states, H, P, N): the gradients of the final states, or of the states before all splits and after the last one.
"""

import triton
import triton.language as tl

from longscan.ops.ssd_scan.triton.math import (
    chunk_decays,
    d_log_decays,
    d_rotation,
    dot,
    load_rows,
    output_weights,
    program_indices,
    sequence_flags,
    state_entry,
)


@triton.jit(do_not_specialize=["length", "split_chunks", "rows", "groups"])
def chunk_state_bwd_kernel(
    dy, dt, A, C, flags, split_decay, d_local_states, length, split_chunks, rows, heads, groups, P, N,
    Q: tl.constexpr, PB: tl.constexpr, NB: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Store the gradient of the state before a split if that of the state after it is 0, and the product of its decays.

    d_local_states, split_decay: (B, splits, H, P, N). The product is undefined if a sequence starts in the split.
    """
    i_b, i_h, i_g, _i_p, o_p, o_n, o_state, state_mask = program_indices(heads, groups, P, N, PB, NB)
    A_head = tl.load(A + (i_b // rows) * heads + i_h)
    dtype: tl.constexpr = dy.dtype.element_ty
    dt += i_h
    d_state, total_decay = tl.zeros((PB, NB), A_head.dtype), A_head * 0.0 + 1.0
    first_chunk = tl.program_id(1) * split_chunks
    end_chunk = tl.minimum(first_chunk + split_chunks, tl.cdiv(length, Q))
    for i in range(end_chunk - first_chunk):
        step = (end_chunk - 1 - i) * Q + tl.arange(0, Q)
        position = i_b * length + step
        _exists, is_valid, sequence, restarts = sequence_flags(flags, position, step, length, Q)
        for j in range(restarts + 1):
            valid = is_valid
            if flags is not None:
                valid = is_valid & (sequence == restarts - j)
            _dt, _weight, _decay, start_decay, _end, chunk_decay = chunk_decays(dt, None, A_head, valid, position, heads, Q)
            C_tile = load_rows(C + i_g * N, position, groups * N, o_n, N, valid)
            dy_tile = load_rows(dy + i_h * P, position, heads * P, o_p, P, valid)
            dy_from_start = (dy_tile * start_decay[:, None]).to(dtype)
            d_state = dot(tl.trans(dy_from_start), C_tile, d_state * chunk_decay, PRECISION)
            if flags is not None:
                d_state = tl.where(j < restarts, 0.0, d_state)
            total_decay *= chunk_decay
    offset = (i_b * tl.num_programs(1) + tl.program_id(1)) * heads * P * N + o_state
    tl.store(d_local_states + offset, d_state, mask=state_mask)
    tl.store(split_decay + offset, tl.full((PB, NB), 0.0, total_decay.dtype) + total_decay, mask=state_mask)


@triton.jit
def sequence_masks(flags, in_range, is_valid, sequence, restarts, j, state_mask):
    """Return for the j-th last sequence of a chunk which steps belong to it, which of these are valid, and a mask of the state.

    That mask is `state_mask` for the first sequence in time, which continues from the state before the chunk, otherwise False.
    The other arguments are those of `sequence_flags` and its results.
    """
    in_sequence, valid, first_mask = in_range, is_valid, state_mask
    if flags is not None:
        in_sequence = in_range & (sequence == restarts - j)
        valid = is_valid & in_sequence
        first_mask = state_mask & (tl.zeros(state_mask.shape, tl.int32) + j == restarts)
    return in_sequence, valid, first_mask


@triton.jit
def store_d_end_phase(d_end_phase, d_state, state, i_c, j, restarts, R):
    """Store the gradient of a rotation of the first R pairs of the state before a chunk, unless that is the initial state.

    d_state: the gradient of `state`, complete at the first sequence of the chunk in time, where j is `restarts`.
    """
    o_r = tl.arange(0, d_state.shape[1] // 2)
    mask = (o_r < R) & (o_r * 0 + i_c > 0) & (o_r * 0 + j == restarts)
    tl.store(d_end_phase + o_r, d_rotation(d_state, state), mask=mask)


@triton.jit(do_not_specialize=["length", "split_chunks", "rows", "row_states", "groups"])
def chunk_scan_bwd_kernel(
    dy, x, dt, scale, own_scale, A, B, C, D, flags, d_last_states, chunk_states, dx, d_steps, dB, dC, d_initial, sums,
    d_end_phase, length, split_chunks, rows, row_states, stride, heads, groups, P, N, R,
    Q: tl.constexpr, PB: tl.constexpr, NB: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Store dx, the gradients of the initial states and, for each block of channels, the terms of the other gradients.

    d_steps: (3, channel blocks, B, L, H), terms for dt, for `scale` and for `own_scale`. dB, dC: (channel blocks, B, L, H, N).
    sums: (2, B, splits, channel blocks, H), terms for A and D. d_end_phase: (channel blocks, B, chunks, H, R), gradients of
    rotations of the first R pairs of the states after all chunks but the last, or None.
    """
    i_b, i_h, i_g, i_p, o_p, o_n, o_state, state_mask = program_indices(heads, groups, P, N, PB, NB)
    channel_blocks, state_size = tl.cdiv(P, PB), i_b * 0 + heads * P * N
    batch = tl.num_programs(0) // (channel_blocks * heads)
    A_head = tl.load(A + (i_b // rows) * heads + i_h)
    dtype: tl.constexpr = x.dtype.element_ty
    zeros_qq, zeros_qp = tl.zeros((Q, Q), A_head.dtype), tl.zeros((Q, PB), A_head.dtype)
    zeros_qn, index = tl.zeros((Q, NB), A_head.dtype), tl.arange(0, Q)
    dt += i_h
    if scale is not None:
        scale += i_h
    if own_scale is not None:
        own_scale += i_h
    sum_A, sum_D, steps_size = A_head * 0.0, A_head * 0.0, (i_b * 0 + channel_blocks) * batch * length * heads
    d_state = tl.load(d_last_states + state_entry(i_b, row_states, 1) * state_size + o_state, mask=state_mask, other=0.0)
    first_chunk, chunks = tl.program_id(1) * split_chunks, tl.cdiv(length, Q)
    end_chunk = tl.minimum(first_chunk + split_chunks, chunks)
    for i in range(end_chunk - first_chunk):
        i_c = end_chunk - 1 - i
        step = i_c * Q + index
        position = i_b * length + step
        in_range, is_valid, sequence, restarts = sequence_flags(flags, position, step, length, Q)
        for j in range(restarts + 1):
            in_sequence, valid, first_mask = sequence_masks(flags, in_range, is_valid, sequence, restarts, j, state_mask)
            dt_value, input_weight, decay, start_decay, end_decay, chunk_decay = chunk_decays(
                dt, scale, A_head, valid, position, heads, Q
            )
            x_tile = load_rows(x + i_h * P, position, heads * P, o_p, P, valid)
            B_tile = load_rows(B + i_g * N, position, groups * N, o_n, N, valid)
            C_tile = load_rows(C + i_g * N, position, groups * N, o_n, N, valid)
            dy_tile = load_rows(dy + i_h * P, position, heads * P, o_p, P, valid)
            dy_from_start = (dy_tile * start_decay[:, None]).to(dtype)
            state_before = tl.load(chunk_states + i_b * stride + i_c * state_size + o_state, mask=first_mask, other=0.0)
            d_state_cast = d_state.to(dtype)
            row = (i_p * batch + i_b) * length + step
            p_steps = d_steps + row * heads + i_h
            # The gradient of x, through the outputs and the next state.
            scores = dot(C_tile, tl.trans(B_tile), zeros_qq, PRECISION) * decay
            dx_of_state = dot(B_tile, tl.trans(d_state_cast), zeros_qp, PRECISION) * end_decay[:, None]
            earlier_scores = scores if own_scale is None else tl.where(index[:, None] == index[None, :], 0.0, scores)
            d_weighted_x = dot(tl.trans(earlier_scores.to(dtype)), dy_tile, dx_of_state, PRECISION)
            dx_tile = d_weighted_x * input_weight[:, None]
            d_weight, d_decay_to_end = tl.sum(x_tile * d_weighted_x, 1), tl.sum(x_tile * dx_of_state, 1) * input_weight
            weights, own_weight = output_weights(input_weight, own_scale, position, valid, heads, Q)
            if own_scale is not None:
                own_score = tl.sum(scores - earlier_scores, 1)
                dx_tile += dy_tile * (own_score * own_weight)[:, None]
                d_own = own_score * tl.sum(dy_tile.to(A_head.dtype) * x_tile, 1)
                tl.store(p_steps + 2 * steps_size, tl.where(valid, d_own, 0.0), mask=in_sequence)
            if D is not None:
                dx_tile += tl.load(D + (i_b // rows) * heads + i_h) * dy_tile
                sum_D += tl.sum(tl.sum(dy_tile.to(A_head.dtype) * x_tile, 1), 0)
            offset = position[:, None] * (heads * P) + i_h * P + o_p[None, :]
            dx_mask = in_sequence[:, None] & (o_p < P)[None, :]
            tl.store(dx + offset, tl.where(valid[:, None], dx_tile, 0.0).to(dtype), mask=dx_mask)
            # The gradients of B and C.
            dy_x = dot(dy_tile, tl.trans(x_tile), zeros_qq, PRECISION) * weights
            weighted_dy_x = (dy_x * decay).to(dtype)
            offset = (row * heads + i_h)[:, None] * N + o_n[None, :]
            row_mask = in_sequence[:, None] & (o_n < N)[None, :]
            dC_of_state = dot(dy_from_start, state_before, zeros_qn, PRECISION)
            d_decay_from_start = tl.sum(C_tile * dC_of_state, 1)
            dC_tile = dot(weighted_dy_x, B_tile, dC_of_state, PRECISION)
            tl.store(dC + offset, tl.where(valid[:, None], dC_tile, 0.0).to(dC.dtype.element_ty), mask=row_mask)
            dB_of_state = dot((x_tile * (end_decay * input_weight)[:, None]).to(dtype), d_state_cast, zeros_qn, PRECISION)
            dB_tile = dot(tl.trans(weighted_dy_x), C_tile, dB_of_state, PRECISION)
            tl.store(dB + offset, tl.where(valid[:, None], dB_tile, 0.0).to(dB.dtype.element_ty), mask=row_mask)
            # The gradients of the log decays, dt A, and of the weights of the inputs.
            d_log = d_log_decays(dy_x, scores, d_decay_from_start, d_decay_to_end, zeros_qq, dtype, PRECISION)
            d_log += chunk_decay * tl.sum(tl.sum(d_state * state_before, 1), 0)
            sum_A += tl.sum(tl.where(valid, d_log * dt_value, 0.0), 0)
            d_dt = d_log * A_head
            if scale is None:
                d_dt += d_weight
            else:
                tl.store(p_steps + steps_size, tl.where(valid, d_weight, 0.0), mask=in_sequence)
            tl.store(p_steps, tl.where(valid, d_dt, 0.0), mask=in_sequence)
            d_state = dot(tl.trans(dy_from_start), C_tile, d_state * chunk_decay, PRECISION)
            if flags is not None:
                d_state = tl.where(j < restarts, 0.0, d_state)
            if d_end_phase is not None:
                end = ((i_p * batch + i_b) * chunks + i_c - 1) * heads + i_h
                store_d_end_phase(d_end_phase + end * R, d_state, state_before, i_c, j, restarts, R)
    offset = ((i_b * tl.num_programs(1) + tl.program_id(1)) * channel_blocks + i_p) * heads + i_h
    tl.store(sums + offset, sum_A)
    tl.store(sums + batch * tl.num_programs(1) * channel_blocks * heads + offset, sum_D)
    if tl.program_id(1) == 0:
        tl.store(d_initial + i_b * state_size + o_state, d_state, mask=state_mask)
