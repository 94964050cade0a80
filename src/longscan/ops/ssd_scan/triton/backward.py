"""The backward kernel of `ssd_scan`. Names of sizes as in README.md."""

import triton
import triton.language as tl

from longscan.ops.ssd_scan.triton.math import (
    chunk_decays,
    d_rotation,
    dot,
    load_rows,
    output_weights,
    program_indices,
    sequence_flags,
)


@triton.jit(do_not_specialize=["batch", "length", "chunks", "splits", "span", "rows", "groups", "channel_blocks"])
def chunk_scan_bwd_kernel(
    grad_y, x, dt, scale, own_scale, A, B, C, D, flags, adjoint, chunk_states, dx, d_dt, d_scale, d_own, dB, dC, d_initial,
    sums, d_end_phase, split_decay, local_states, batch, R, length, chunks, splits, span, rows, stride, heads, groups,
    channel_blocks, P, N, SUMMARY: tl.constexpr, SPLIT: tl.constexpr, Q: tl.constexpr, PB: tl.constexpr, NB: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Scan `span` chunks of one head from the last to the first: store dx, and shares of the other gradients.

    A program has a block of a head's channels. Gradients of what the blocks share have a leading axis of blocks,
    (channel_blocks, B, L, H[, N]); `sums` has those of A and D, (2, B, splits, channel_blocks, H). adjoint: the gradient of the
    final state, (B, H, P, N), or with SPLIT those of the states after the splits: split i begins with entry i + 1 of
    (B, splits + 1, H, P, N). d_end_phase: (channel_blocks, B, chunks, H, R), the gradients of rotations of the first R pairs of
    the states after all chunks but the last. SUMMARY as in `chunk_scan_kernel`, of gradients.
    """
    b, head, group, channel_block, p, n, state_offset, state_mask = program_indices(heads, channel_blocks, groups, P, N, PB, NB)
    split, state_size = tl.program_id(1), b * 0 + heads * P * N
    A_head = tl.load(A + (b // rows) * heads + head)
    dtype: tl.constexpr = x.dtype.element_ty
    zeros_qq, zeros_qp = tl.zeros((Q, Q), A_head.dtype), tl.zeros((Q, PB), A_head.dtype)
    zeros_qn = tl.zeros((Q, NB), A_head.dtype)
    index = tl.arange(0, Q)
    dt += head
    if scale is not None:
        scale += head
    if own_scale is not None:
        own_scale += head
    total_decay, sum_A, sum_D = A_head * 0.0 + 1.0, A_head * 0.0, A_head * 0.0
    if SUMMARY:
        d_state = tl.zeros((PB, NB), A_head.dtype)
    elif SPLIT:
        d_state = tl.load(adjoint + (b * (splits + 1) + split + 1) * state_size + state_offset, mask=state_mask, other=0.0)
    else:
        d_state = tl.load(adjoint + b * state_size + state_offset, mask=state_mask, other=0.0)
    first_chunk = split * span
    for i in range(tl.minimum(span, chunks - first_chunk)):
        chunk = tl.minimum(first_chunk + span, chunks) - 1 - i
        step = chunk * Q + index
        position = b * length + step
        in_range, is_valid, sequence, restarts = sequence_flags(flags, position, step, length, Q)
        for j in range(restarts + 1):  # from the last sequence to the first
            valid, in_sequence = is_valid, in_range
            if flags is not None:
                in_sequence = in_range & (sequence == restarts - j)
                valid = is_valid & in_sequence
            dt_value, input_weight, decay, start_decay, end_decay, chunk_decay = chunk_decays(
                dt, scale, A_head, valid, position, heads, Q
            )
            C_tile = load_rows(C + group * N, position, groups * N, n, N, valid)
            dy_tile = load_rows(grad_y + head * P, position, heads * P, p, P, valid)
            dy_from_start = (dy_tile * start_decay[:, None]).to(dtype)
            if not SUMMARY:
                x_tile = load_rows(x + head * P, position, heads * P, p, P, valid)
                B_tile = load_rows(B + group * N, position, groups * N, n, N, valid)
                last_mask = state_mask if flags is None else state_mask & (state_offset * 0 + j == restarts)
                state_before = tl.load(chunk_states + b * stride + chunk * state_size + state_offset, mask=last_mask, other=0.0)
                d_state_cast = d_state.to(dtype)
                sequence_mask = in_sequence[:, None]
                # gradient of x: through the outputs and the next state
                scores = dot(C_tile, tl.trans(B_tile), zeros_qq, PRECISION) * decay
                dx_of_state = dot(B_tile, tl.trans(d_state_cast), zeros_qp, PRECISION) * end_decay[:, None]
                earlier_scores = scores if own_scale is None else tl.where(index[:, None] == index[None, :], 0.0, scores)
                d_weighted_x = dot(tl.trans(earlier_scores.to(dtype)), dy_tile, dx_of_state, PRECISION)
                dx_tile = d_weighted_x * input_weight[:, None]
                weights, own_weight = output_weights(input_weight, own_scale, position, valid, heads, Q)
                if own_scale is not None:
                    own_score = tl.sum(scores - earlier_scores, 1)
                    dx_tile += dy_tile * (own_score * own_weight)[:, None]
                    offset = ((channel_block * batch + b) * length + step) * heads + head
                    d_own_value = own_score * tl.sum(dy_tile.to(A_head.dtype) * x_tile, 1)
                    tl.store(d_own + offset, tl.where(valid, d_own_value, 0.0), mask=in_sequence)
                if D is not None:
                    dx_tile += tl.load(D + (b // rows) * heads + head) * dy_tile
                    sum_D += tl.sum(tl.sum(dy_tile.to(A_head.dtype) * x_tile, 1), 0)
                offset = position[:, None] * (heads * P) + head * P + p[None, :]
                tl.store(dx + offset, tl.where(valid[:, None], dx_tile, 0.0).to(dtype), mask=sequence_mask & (p < P)[None, :])
                d_weight = tl.sum(x_tile * d_weighted_x, 1)
                d_decay_to_end = tl.sum(x_tile * dx_of_state, 1) * input_weight
                # gradients of B and C
                dy_x = dot(dy_tile, tl.trans(x_tile), zeros_qq, PRECISION) * weights
                weighted_dy_x = (dy_x * decay).to(dtype)
                dC_of_state = dot(dy_from_start, state_before, zeros_qn, PRECISION)
                d_decay_from_start = tl.sum(C_tile * dC_of_state, 1)
                offset = ((channel_block * batch + b) * length + step)[:, None] * (heads * N) + head * N + n[None, :]
                row_mask = sequence_mask & (n < N)[None, :]
                dC_tile = dot(weighted_dy_x, B_tile, dC_of_state, PRECISION)
                tl.store(dC + offset, tl.where(valid[:, None], dC_tile, 0.0).to(dC.dtype.element_ty), mask=row_mask)
                dB_of_state = dot((x_tile * (end_decay * input_weight)[:, None]).to(dtype), d_state_cast, zeros_qn, PRECISION)
                dB_tile = dot(tl.trans(weighted_dy_x), C_tile, dB_of_state, PRECISION)
                tl.store(dB + offset, tl.where(valid[:, None], dB_tile, 0.0).to(dB.dtype.element_ty), mask=row_mask)
                # gradient of a step's log decay: through pairs of steps, the last state, outputs of the first state, and both
                not_before = (index[None, :] >= index[:, None]).to(dtype)
                pairs_over_step = dot(not_before, (dy_x * scores).to(dtype), zeros_qq, PRECISION)
                d_log = tl.sum(tl.where(index[None, :] < index[:, None], pairs_over_step, 0.0), 1)
                d_log += tl.sum(tl.where(index[None, :] >= index[:, None], d_decay_from_start[None, :], 0.0), 1)
                d_log += tl.sum(tl.where(index[None, :] < index[:, None], d_decay_to_end[None, :], 0.0), 1)
                d_log += chunk_decay * tl.sum(tl.sum(d_state * state_before, 1), 0)
                sum_A += tl.sum(tl.where(valid, d_log * dt_value, 0.0), 0)
                offset = ((channel_block * batch + b) * length + step) * heads + head
                d_dt_value = d_log * A_head
                if scale is None:
                    d_dt_value += d_weight
                else:
                    tl.store(d_scale + offset, tl.where(valid, d_weight, 0.0), mask=in_sequence)
                tl.store(d_dt + offset, tl.where(valid, d_dt_value, 0.0), mask=in_sequence)
            d_state = dot(tl.trans(dy_from_start), C_tile, d_state * chunk_decay, PRECISION)
            if flags is not None:
                d_state = tl.where(j < restarts, 0.0, d_state)
            total_decay *= chunk_decay
            if d_end_phase is not None and not SUMMARY:
                pair = tl.arange(0, NB // 2)
                offset = (((channel_block * batch + b) * chunks + chunk - 1) * heads + head) * R + pair
                pair_mask = (pair < R) & (pair * 0 + chunk > 0)
                if flags is not None:
                    pair_mask = pair_mask & (pair * 0 + j == restarts)
                tl.store(d_end_phase + offset, d_rotation(d_state, state_before), mask=pair_mask)
    if SUMMARY:
        offset = (b * splits + split) * state_size + state_offset
        tl.store(local_states + offset, d_state, mask=state_mask)
        tl.store(split_decay + offset, tl.full((PB, NB), 0.0, total_decay.dtype) + total_decay, mask=state_mask)
    else:
        offset = ((b * splits + split) * channel_blocks + channel_block) * heads + head
        tl.store(sums + offset, sum_A)
        tl.store(sums + batch * splits * channel_blocks * heads + offset, sum_D)
        if split == 0:
            tl.store(d_initial + b * state_size + state_offset, d_state, mask=state_mask)
