"""Triton kernels that rotate the maps B and C of `ssd_scan` into the frame of the state, and add the biases of the heads.

The phase of step t is phase_t = angle_1 + ... + angle_t modulo 2 pi. In a frame that rotates by phase_t the state does not
rotate, and B_t and C_t are rotated by -phase_t, as in the code of Mamba-3's authors (Lahoti et al. 2026).

Time is divided into tiles. `tile_sums_kernel` adds up the angles of each tile, `tile_prefix_kernel` adds these sums from tile to
tile, and `cumulative_rotation_kernel` adds the angles inside its tile, all in float64. A sequence that starts in a packed row has
phase 0 at its first step, and sums begin again there.

The gradient of an angle is the sum of the gradients of the phases of its step and of all later steps. The product of C at one
step and B at another contributes to the gradients of both phases with opposite signs, which cancel in the sums for all angles
before both steps. Their rounding errors do not cancel, and would grow with the length. The sums therefore end at the end of a
chunk of the scan: `cumulative_rotation_bwd_kernel` adds inside tiles, and `later_tiles_kernel` adds the later tiles of the chunk.
The part of the gradient that comes from later chunks is the gradient of a rotation of the state after the chunk, which the scan
computes.

Shapes: B, C (B, L, G, N); angle (B, L, H, R) for the first R of the N / 2 pairs; a bias (H, N), or (models, H, N) if runs of
batch rows belong to different models. The flags are those of `longscan.ops.arguments.step_flags`. Names of indices are as in
math.py. Compile-time constants: T, the steps of a tile; BLOCK, the columns of a program; NB, N rounded up to a power of 2;
STAGES, the heads that Triton's pipeliner loads ahead.
"""

import triton
import triton.language as tl

from longscan.ops._triton import INVALID, RESET, row_of, segmented_add, sincos, wrap

# ---------------------------------------------------------------------------------------------- tiles


@triton.jit
def _tile_steps(flags, i_tile, tiles, length, T: tl.constexpr):
    """Return the batch row of a tile, the positions of its T steps in (B, L), whether they are valid, and whether they exist."""
    i_b = (i_tile // tiles).to(tl.int64)
    step = i_tile % tiles * T + tl.arange(0, T)
    in_range = step < length
    valid = in_range
    if flags is not None:
        valid = in_range & (tl.load(flags + i_b * length + step, mask=in_range, other=INVALID) != INVALID)
    return i_b, i_b * length + step, valid, in_range


@triton.jit
def _sequence_starts(flags, position, in_range):
    """Return whether each step of a tile starts a sequence, and the number of such steps up to each step."""
    is_start = tl.load(flags + position, mask=in_range, other=INVALID) == RESET
    return is_start, tl.cumsum(is_start.to(tl.int32))


@triton.jit
def _load_pairs(source, offset, valid):
    """Return the first and the second entries, (T, NB / 2) each, of the pairs at `offset` (T, NB), in float32 or float64."""
    x = tl.load(source + offset, mask=valid, other=0.0)
    if x.dtype != tl.float64:
        x = x.to(tl.float32)
    return tl.split(tl.reshape(x, (x.shape[0], x.shape[1] // 2, 2)))


@triton.jit
def _add_bias(first, second, bias, row, o_n, N):
    """Return the entries of pairs plus those of row `row` of `bias` (rows, N); unchanged if `bias` is None."""
    if bias is not None:
        x, y = _load_pairs(bias, row * N + o_n[None, :], (o_n < N)[None, :])
        first, second = first + x, second + y
    return first, second


@triton.jit
def _rotate(first, second, sine, cosine):
    """Return the entries of pairs that are rotated by angles with these sines and cosines."""
    return first * cosine - second * sine, first * sine + second * cosine


@triton.jit
def _phase_sincos(angle, flags, start_phase, position, offset, i_tile, i_h, heads, R, valid, o_r):
    """Return sines and cosines (T, NB / 2) of the phases of a tile; those of the pairs from R on are 0 and 1."""
    mask = o_r < R
    start = tl.load(start_phase + (i_tile.to(tl.int64) * heads + i_h) * R + o_r, mask=mask, other=0.0)
    if flags is not None:
        is_start, _ = _sequence_starts(flags, position, valid)
        angles = tl.load(angle + offset, mask=(valid & ~is_start)[:, None] & mask[None, :], other=0.0)
        summed = angles.to(tl.float64)
        restarted, summed = tl.associative_scan((tl.broadcast_to(is_start[:, None], summed.shape), summed), 0, segmented_add)
        phase = tl.where(valid[:, None], tl.where(restarted, 0.0, start[None, :]) + summed, 0.0)
    else:
        angles = tl.load(angle + offset, mask=valid[:, None] & mask[None, :], other=0.0)
        phase = start[None, :] + tl.cumsum(angles.to(tl.float64), 0)
    return sincos(wrap(phase).to(angles.dtype))


# ---------------------------------------------------------------------------------------------- sums over steps


@triton.jit(do_not_specialize=["length", "tiles"])
def tile_sums_kernel(x, flags, sums, length, tiles, width, T: tl.constexpr, BLOCK: tl.constexpr):
    """Store the sums of x (B, L, width) over the valid steps of each tile in `sums` (B, tiles, width), float64.

    If sequences start in a tile, only the steps after the first step of the last of them are added.
    """
    i_tile = tl.program_id(0)
    _i_b, position, valid, in_range = _tile_steps(flags, i_tile, tiles, length, T)
    if flags is not None:
        is_start, sequence = _sequence_starts(flags, position, in_range)
        valid = valid & ~is_start & (sequence == tl.max(sequence))
    o_column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = o_column < width
    values = tl.load(x + position[:, None] * width + o_column[None, :], mask=valid[:, None] & mask[None, :], other=0.0)
    tl.store(sums + i_tile.to(tl.int64) * width + o_column, tl.sum(values.to(tl.float64), 0), mask=mask)


@triton.jit(do_not_specialize=["tiles"])
def tile_prefix_kernel(sums, restarts, before, total, tiles, width, T: tl.constexpr, BLOCK: tl.constexpr):
    """Store the sums of all earlier tiles modulo 2 pi in `before` (B, tiles, width), and of all tiles in `total` (B, width).

    restarts: (B, tiles), not 0 where a sequence starts in a tile, so that earlier tiles are not added; or None.
    """
    i_b, o_column = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = o_column < width
    running = tl.zeros((BLOCK,), tl.float64)
    if restarts is not None:
        tl.store(before + i_b * tiles * width + o_column, running, mask=mask)
    for i in range(0, tiles, T):
        o_tile = i + tl.arange(0, T)
        tile_mask = (o_tile < tiles)[:, None] & mask[None, :]
        offset = (i_b * tiles + o_tile)[:, None] * width + o_column[None, :]
        x = tl.load(sums + offset, mask=tile_mask, other=0.0)
        if restarts is not None:
            is_start = tl.load(restarts + i_b * tiles + o_tile, mask=o_tile < tiles, other=0) != 0
            restarted, summed = tl.associative_scan((tl.broadcast_to(is_start[:, None], x.shape), x), 0, segmented_add)
            after = wrap(tl.where(restarted, 0.0, running[None, :]) + summed)
            tl.store(before + offset + width, after, mask=tile_mask & (o_tile + 1 < tiles)[:, None])
            running = row_of(after, (tl.arange(0, T) == T - 1)[:, None])
        else:
            tl.store(before + offset, wrap(running[None, :] + (tl.cumsum(x, 0) - x)), mask=tile_mask)
            running = wrap(running + tl.sum(x, 0))
    tl.store(total + i_b * width + o_column, running.to(total.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["length", "tiles", "chunks"])
def later_tiles_kernel(
    x, sums, d_end_phase, flags, restarts, length, tiles, chunks, width, TILES_PER_CHUNK: tl.constexpr, T: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Add to x (B, L, width) the `sums` (B, tiles, width) of the later tiles of its chunk, and `d_end_phase` of the chunk.

    A chunk has TILES_PER_CHUNK tiles. d_end_phase: (B, chunks, width). restarts: (B, tiles), not 0 where a sequence starts in a
    tile: tiles from there on are not added to the steps before. Invalid steps and first steps of sequences get 0.
    """
    i_tile = tl.program_id(0)
    i_b, position, valid, in_range = _tile_steps(flags, i_tile, tiles, length, T)
    o_column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = o_column < width
    tile_in_row = i_tile % tiles
    i_c = tile_in_row // TILES_PER_CHUNK
    later_sum = tl.load(d_end_phase + (i_b * chunks + i_c) * width + o_column, mask=mask, other=0.0)
    chunk_end = tl.minimum((i_c + 1) * TILES_PER_CHUNK, tiles)
    if restarts is not None:
        for i in range(1, chunk_end - tile_in_row):
            later_tile = i_b * tiles + chunk_end - i
            later_sum = tl.where(tl.load(restarts + later_tile) != 0, 0.0, later_sum)
            later_sum += tl.load(sums + later_tile * width + o_column, mask=mask, other=0.0)
        is_start, sequence = _sequence_starts(flags, position, in_range)
        valid = valid & ~is_start
        later_sum = tl.where((sequence == tl.max(sequence))[:, None], later_sum[None, :], 0.0)
    else:
        for later_tile in range(tile_in_row + 1, chunk_end):
            later_sum += tl.load(sums + (i_b * tiles + later_tile) * width + o_column, mask=mask, other=0.0)
        later_sum = later_sum[None, :]
    offset = position[:, None] * width + o_column[None, :]
    values = tl.load(x + offset, mask=valid[:, None] & mask[None, :], other=0.0) + later_sum
    tl.store(x + offset, tl.where(valid[:, None], values, 0.0), mask=in_range[:, None] & mask[None, :])


# ---------------------------------------------------------------------------------------------- maps


@triton.jit(do_not_specialize=["length", "tiles", "rows", "groups", "heads_per_program"])
def cumulative_rotation_kernel(
    B, C, B_bias, C_bias, angle, flags, start_phase, rotated_B, rotated_C, length, tiles, rows, heads, groups,
    heads_per_program, N, R, T: tl.constexpr, NB: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Store the maps of the heads in rotated_B and rotated_C, (B, L, H, N): those of the group plus bias, rotated by -phase.

    A program has a tile of steps and `heads_per_program` heads of a group. start_phase: (B, tiles, H, R), the phases before the
    tiles. Nothing is stored at invalid steps.
    """
    i_tile, heads_per_group = tl.program_id(0), heads // groups
    i_b, position, valid, _in_range = _tile_steps(flags, i_tile, tiles, length, T)
    blocks = tl.cdiv(heads_per_group, heads_per_program)
    i_g, i_block = tl.program_id(1) // blocks, tl.program_id(1) % blocks
    o_n, o_r = tl.arange(0, NB), tl.arange(0, NB // 2)
    mask = valid[:, None] & (o_n < N)[None, :]
    group_offset = (position * groups + i_g)[:, None] * N + o_n[None, :]
    b0, b1 = _load_pairs(B, group_offset, mask)
    c0, c1 = _load_pairs(C, group_offset, mask)
    first_head = i_g * heads_per_group + i_block * heads_per_program
    end_head = tl.minimum(first_head + heads_per_program, (i_g + 1) * heads_per_group)
    for i_h in tl.range(first_head, end_head, num_stages=STAGES):
        bias_row = (i_b // rows) * heads + i_h
        head_b0, head_b1 = _add_bias(b0, b1, B_bias, bias_row, o_n, N)
        head_c0, head_c1 = _add_bias(c0, c1, C_bias, bias_row, o_n, N)
        if angle is not None:
            offset = (position * heads + i_h)[:, None] * R + o_r[None, :]
            sine, cosine = _phase_sincos(angle, flags, start_phase, position, offset, i_tile, i_h, heads, R, valid, o_r)
            head_b0, head_b1 = _rotate(head_b0, head_b1, -sine, cosine)
            head_c0, head_c1 = _rotate(head_c0, head_c1, -sine, cosine)
        out_offset = (position * heads + i_h)[:, None] * N + o_n[None, :]
        tl.store(rotated_B + out_offset, tl.interleave(head_b0, head_b1).to(B.dtype.element_ty), mask=mask)
        tl.store(rotated_C + out_offset, tl.interleave(head_c0, head_c1).to(B.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["length", "tiles", "rows", "groups", "heads_per_program"])
def cumulative_rotation_bwd_kernel(
    grad_B, grad_C, B, C, B_bias, C_bias, angle, flags, start_phase, dB, dC, dB_bias, dC_bias, d_angle, sums, length, tiles,
    rows, heads, groups, heads_per_program, N, R, T: tl.constexpr, NB: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of the inputs of `cumulative_rotation_kernel` from grad_B and grad_C, (B, L, H, N).

    dB, dC: (blocks, B, L, G, N), a block for each program of a group's heads. dB_bias, dC_bias: (B, tiles, H, N).
    d_angle: (B, L, H, R), the gradients of the phases summed from a step to the end of its tile or sequence. sums:
    (B, tiles, H, R), the same from the start of the tile.
    """
    i_tile, heads_per_group = tl.program_id(0), heads // groups
    i_b, position, valid, in_range = _tile_steps(flags, i_tile, tiles, length, T)
    blocks = tl.cdiv(heads_per_group, heads_per_program)
    i_g, i_block = tl.program_id(1) // blocks, tl.program_id(1) % blocks
    o_n, o_r = tl.arange(0, NB), tl.arange(0, NB // 2)
    mask = valid[:, None] & (o_n < N)[None, :]
    group_offset = (position * groups + i_g)[:, None] * N + o_n[None, :]
    b0, b1 = _load_pairs(B, group_offset, mask)
    c0, c1 = _load_pairs(C, group_offset, mask)
    sum_b0, sum_b1, sum_c0, sum_c1 = b0 * 0.0, b0 * 0.0, b0 * 0.0, b0 * 0.0
    first_head = i_g * heads_per_group + i_block * heads_per_program
    end_head = tl.minimum(first_head + heads_per_program, (i_g + 1) * heads_per_group)
    for i_h in tl.range(first_head, end_head, num_stages=STAGES):
        bias_row, i_tile_head = (i_b // rows) * heads + i_h, i_tile.to(tl.int64) * heads + i_h
        out_offset = (position * heads + i_h)[:, None] * N + o_n[None, :]
        db0, db1 = _load_pairs(grad_B, out_offset, mask)
        dc0, dc1 = _load_pairs(grad_C, out_offset, mask)
        if angle is not None:
            offset = (position * heads + i_h)[:, None] * R + o_r[None, :]
            sine, cosine = _phase_sincos(angle, flags, start_phase, position, offset, i_tile, i_h, heads, R, valid, o_r)
            db0, db1 = _rotate(db0, db1, sine, cosine)
            head_b0, head_b1 = _add_bias(b0, b1, B_bias, bias_row, o_n, N)
            d_phase = db0 * head_b1 - db1 * head_b0
            dc0, dc1 = _rotate(dc0, dc1, sine, cosine)
            head_c0, head_c1 = _add_bias(c0, c1, C_bias, bias_row, o_n, N)
            d_phase += dc0 * head_c1 - dc1 * head_c0
            if flags is not None:
                has_next = (tl.arange(0, T) < T - 1) & (position + 1 < (i_b + 1) * length)
                next_starts = tl.load(flags + position + 1, mask=has_next, other=INVALID) == RESET
                next_starts = tl.broadcast_to(next_starts[:, None], d_phase.shape)
                _, summed = tl.associative_scan((next_starts, d_phase), 0, segmented_add, reverse=True)
                _, sequence = _sequence_starts(flags, position, in_range)
                d_phase = tl.where((sequence == 0)[:, None], d_phase, 0.0)
            else:
                summed = tl.cumsum(d_phase, 0, reverse=True)
            tl.store(d_angle + offset, summed, mask=valid[:, None] & (o_r < R)[None, :])
            tl.store(sums + i_tile_head * R + o_r, tl.sum(d_phase, 0), mask=o_r < R)
        if dB_bias is not None:
            tl.store(dB_bias + i_tile_head * N + o_n, tl.interleave(tl.sum(db0, 0), tl.sum(db1, 0)), mask=o_n < N)
        if dC_bias is not None:
            tl.store(dC_bias + i_tile_head * N + o_n, tl.interleave(tl.sum(dc0, 0), tl.sum(dc1, 0)), mask=o_n < N)
        sum_b0, sum_b1, sum_c0, sum_c1 = sum_b0 + db0, sum_b1 + db1, sum_c0 + dc0, sum_c1 + dc1
    store_mask = in_range[:, None] & (o_n < N)[None, :]
    batch = (tl.num_programs(0) // tiles).to(tl.int64)
    group_offset += i_block * batch * length * groups * N  # of the rows of the batch before this block
    tl.store(dB + group_offset, tl.interleave(sum_b0, sum_b1).to(dB.dtype.element_ty), mask=store_mask)
    tl.store(dC + group_offset, tl.interleave(sum_c0, sum_c1).to(dB.dtype.element_ty), mask=store_mask)


@triton.jit
def rotate_state_kernel(x, phase, rotated, out, d_phase, P, N, R, BACKWARD: tl.constexpr, PB: tl.constexpr, NB: tl.constexpr):
    """Store x (B, H, P, N), rotated by phase (B, H, R), in `out`.

    With BACKWARD x is the gradient of `rotated`, the result of such a rotation: x is rotated by -phase, and the gradient of phase
    is stored in d_phase.
    """
    row = tl.program_id(0).to(tl.int64)
    o_n, o_r = tl.arange(0, NB), tl.arange(0, NB // 2)
    sine, cosine = sincos(tl.load(phase + row * R + o_r, mask=o_r < R, other=0.0)[None, :])
    sine = -sine if BACKWARD else sine
    d_phase_sum = tl.zeros((NB // 2,), x.dtype.element_ty)
    for start in range(0, P, PB):
        o_p = start + tl.arange(0, PB)
        offset, mask = (row * P + o_p[:, None]) * N + o_n[None, :], (o_p < P)[:, None] & (o_n < N)[None, :]
        first, second = _load_pairs(x, offset, mask)
        if BACKWARD:
            rotated0, rotated1 = _load_pairs(rotated, offset, mask)
            d_phase_sum += tl.sum(second * rotated0 - first * rotated1, 0)
        first, second = _rotate(first, second, sine, cosine)
        tl.store(out + offset, tl.interleave(first, second), mask=mask)
    if BACKWARD:
        tl.store(d_phase + row * R + o_r, d_phase_sum, mask=o_r < R)
