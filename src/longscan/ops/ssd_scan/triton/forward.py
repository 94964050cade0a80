"""The forward kernel of `ssd_scan`. Names of sizes as in README.md."""

import triton
import triton.language as tl

from longscan.ops.ssd_scan.triton.math import chunk_decays, dot, load_rows, output_weights, program_indices, sequence_flags


@triton.jit(do_not_specialize=["length", "chunks", "splits", "span", "rows", "groups", "channel_blocks"])
def chunk_scan_kernel(
    x, dt, scale, own_scale, A, B, C, D, flags, initial, y, final, chunk_states, split_decay, local_states, length, chunks,
    splits, span, rows, stride, heads, groups, channel_blocks, P, N, SUMMARY: tl.constexpr, SPLIT: tl.constexpr, Q: tl.constexpr,
    PB: tl.constexpr, NB: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Scan `span` chunks of one head: store y and, if `chunk_states` (B, stride) is given, the states before all chunks.

    initial: (B, H, P, N), or with SPLIT the states before the splits, (B, splits + 1, H, P, N). chunk_states has the states as
    (chunks, H, P, N). With SUMMARY a split is scanned from a state of 0, and only its last state (`local_states`) and the
    product of its decays (`split_decay`) are stored, (B, splits, H, P, N) each. This product has no meaning if a sequence starts
    in the split.
    """
    b, head, group, _block, p, n, state_offset, state_mask = program_indices(heads, channel_blocks, groups, P, N, PB, NB)
    split, state_size = tl.program_id(1), b * 0 + heads * P * N
    A_head = tl.load(A + (b // rows) * heads + head)
    dtype: tl.constexpr = x.dtype.element_ty
    zeros_qq, zeros_qp = tl.zeros((Q, Q), A_head.dtype), tl.zeros((Q, PB), A_head.dtype)
    x += head * P
    B += group * N
    dt += head
    if scale is not None:
        scale += head
    if own_scale is not None:
        own_scale += head
    if D is not None:
        D_head = tl.load(D + (b // rows) * heads + head)
    total_decay = A_head * 0.0 + 1.0
    if SUMMARY:
        state = tl.zeros((PB, NB), A_head.dtype)
    elif SPLIT:
        state = tl.load(initial + (b * (splits + 1) + split) * state_size + state_offset, mask=state_mask, other=0.0)
    else:
        state = tl.load(initial + b * state_size + state_offset, mask=state_mask, other=0.0)
    for chunk in range(split * span, tl.minimum((split + 1) * span, chunks)):
        step = chunk * Q + tl.arange(0, Q)
        position = b * length + step
        in_range, is_valid, sequence, restarts = sequence_flags(flags, position, step, length, Q)
        for j in range(restarts + 1):
            valid, in_sequence = is_valid, in_range
            if flags is not None:
                in_sequence = in_range & (sequence == j)
                valid = is_valid & in_sequence
                state = tl.where(j > 0, 0.0, state)
            _dt, input_weight, decay, start_decay, end_decay, chunk_decay = chunk_decays(
                dt, scale, A_head, valid, position, heads, Q
            )
            x_tile = load_rows(x, position, heads * P, p, P, valid)
            B_tile = load_rows(B, position, groups * N, n, N, valid)
            if not SUMMARY:
                if chunk_states is not None:
                    first_mask = state_mask if flags is None else state_mask & (state_offset * 0 + j == 0)
                    tl.store(chunk_states + b * stride + chunk * state_size + state_offset, state.to(dtype), mask=first_mask)
                C_tile = load_rows(C + group * N, position, groups * N, n, N, valid)
                weights, _own = output_weights(input_weight, own_scale, position, valid, heads, Q)
                scores = dot(C_tile, tl.trans(B_tile), zeros_qq, PRECISION) * decay * weights
                y_tile = dot(C_tile, tl.trans(state.to(dtype)), zeros_qp, PRECISION) * start_decay[:, None]
                y_tile = dot(scores.to(dtype), x_tile, y_tile, PRECISION)
                if D is not None:
                    y_tile += D_head * x_tile
                offset = position[:, None] * (heads * P) + head * P + p[None, :]
                y_mask = in_sequence[:, None] & (p < P)[None, :]
                tl.store(y + offset, tl.where(valid[:, None], y_tile, 0.0).to(dtype), mask=y_mask)
            weighted_B = (B_tile * (end_decay * input_weight)[:, None]).to(dtype)
            state = dot(tl.trans(x_tile), weighted_B, state * chunk_decay, PRECISION)
            total_decay *= chunk_decay
    if SUMMARY:
        offset = (b * splits + split) * state_size + state_offset
        tl.store(local_states + offset, state, mask=state_mask)
        tl.store(split_decay + offset, tl.full((PB, NB), 0.0, total_decay.dtype) + total_decay, mask=state_mask)
    elif split == splits - 1:
        tl.store(final + b * state_size + state_offset, state, mask=state_mask)
