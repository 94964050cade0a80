"""Triton kernels of `ssd_scan`: a program scans the chunks of one head with the state in registers, by matrix products.

With cum_t the running sum of the log decays dt A in a chunk of Q steps, and S the state (P, N) before it (section 6 of Dao and
Gu, "Transformers are SSMs", arXiv:2405.21060),

    y  = (C B^T * decay) (s x) + exp(cum) C S^T + D x,   decay_ts = exp(cum_t - cum_s) for s <= t, otherwise 0
    S' = exp(cum_Q) S + sum_s exp(cum_Q - cum_s) s_s x_s B_s^T.

The backward pass goes from the last chunk to the first with the gradient of the state. It reads the states before the chunks,
which the forward pass stores in the dtype of x.

Rounding. Differences of running sums would lose digits. So each log decay is divided into a multiple of a unit, which is so large
that sums of these multiples are exact in a chunk, and a small remainder. The gradient of a log decay is a sum over the pairs of
steps on both sides of it, not a difference of two sums.

Names. Q: steps of a chunk. PB, NB: channels and states of a program, powers of 2; the P channels of a head are divided into
blocks of PB. x: (B, L, H, P); B, C: (B, L, G, N); dt and the scales: (B, L, H).
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from longscan.ops import _triton_launch as tables
from longscan.ops._gpu import ceil_div, launch, on_device, power_of_two
from longscan.ops._triton import state_passing_kernel
from longscan.ops.ssd_scan import cumulative_rotation as rotation

PASS_BLOCK = 128  # numbers of a state in a program that passes states from split to split


# ---------------------------------------------------------------------------------------------- chunks


@triton.jit
def _hi_lo_cumsum(a, Q: tl.constexpr):
    """Return running sums of a (Q,) as an exact part and a remainder, and the two parts of the sum of all."""
    unit = tl.minimum(tl.max(tl.abs(a)) * (4.0 * Q), 1e37)  # its last place is the unit; no sum has more than 24 bits of these
    hi = (a + unit) - unit
    lo = a - hi
    return tl.cumsum(hi), tl.cumsum(lo), tl.sum(hi), tl.sum(lo)


@triton.jit
def _sequence_flags(flags, position, step, length, Q: tl.constexpr):
    """Return for the steps of a chunk whether they exist, whether they are valid, and the number of the sequence they belong to.

    The last result is the number of sequences that start in the chunk. position: those of `step` (Q,) in (B, L). A matrix product
    adds over steps, and 0 times NaN is NaN. So a chunk is computed once for each of its sequences (and for the one that continues
    from before), with the steps of the others as if they were invalid.
    """
    in_range = step < length
    valid, sequence, restarts = in_range, tl.zeros((Q,), tl.int32), 0
    if flags is not None:
        flag = tl.load(flags + position, mask=in_range, other=1)
        valid, sequence = in_range & (flag != 1), tl.cumsum((flag == 2).to(tl.int32))
        restarts = tl.max(sequence)
    return in_range, valid, sequence, restarts


@triton.jit
def _chunk_decays(dt, scale, A, valid, position, heads, Q: tl.constexpr):
    """Return dt and the weights of the inputs of a head's steps (Q,), and the decays of the state.

    The decays are those between two steps (Q, Q), from the start of the chunk (Q,), to its end (Q,), and over all of it.
    position: of the steps in (B, L).
    """
    dt_value = tl.load(dt + position * heads, mask=valid, other=0.0)
    input_weight = dt_value
    if scale is not None:
        input_weight = tl.load(scale + position * heads, mask=valid, other=0.0)
    hi, lo, hi_total, lo_total = _hi_lo_cumsum(dt_value * A, Q)
    index = tl.arange(0, Q)
    difference = (hi[:, None] - hi[None, :]) + (lo[:, None] - lo[None, :])
    decay = tl.exp(tl.where(index[:, None] >= index[None, :], difference, float("-inf")))
    end_decay = tl.exp((hi_total - hi) + (lo_total - lo))
    return dt_value, input_weight, decay, tl.exp(hi + lo), end_decay, tl.exp(hi_total + lo_total)


@triton.jit
def _output_weights(input_weight, own_scale, position, valid, heads, Q: tl.constexpr):
    """Return the weights of inputs in the outputs of all steps, (Q, Q) or (1, Q), and in those of their own steps, (Q,)."""
    own_weight, weights = input_weight, input_weight[None, :]
    if own_scale is not None:
        index = tl.arange(0, Q)
        own_weight = tl.load(own_scale + position * heads, mask=valid, other=0.0)
        weights = tl.where(index[:, None] == index[None, :], own_weight[None, :], weights)
    return weights, own_weight


@triton.jit
def _dot(a, b, sums, PRECISION: tl.constexpr):
    """Return sums + a b. Float64 is not computed by tensor cores, because Triton 3.6 generates wrong code for some tiles."""
    if a.dtype == tl.float64:
        inner: tl.constexpr = a.shape[1]
        index = tl.arange(0, inner)
        for k in range(inner):
            column = tl.sum(tl.where((index == k)[None, :], a, 0.0), 1)
            sums += column[:, None] * tl.sum(tl.where((index == k)[:, None], b, 0.0), 0)[None, :]
    else:
        sums = tl.dot(a, b, sums, input_precision=PRECISION)
    return sums


@triton.jit
def _load_rows(source, position, stride, columns, width, valid):
    """Load rows of a matrix, (Q, columns), with 0 at invalid steps and in columns from `width` on."""
    state_offset = position[:, None] * stride + columns[None, :]
    return tl.load(source + state_offset, mask=valid[:, None] & (columns < width)[None, :], other=0.0)


@triton.jit
def _d_rotation(gradient, state):
    """Return the gradient of a rotation of the pairs of a state, (NB / 2,), from the state (PB, NB) and its gradient."""
    PB: tl.constexpr = state.shape[0]
    NB: tl.constexpr = state.shape[1]
    d_first, d_second = tl.split(tl.reshape(gradient, (PB, NB // 2, 2)))
    first, second = tl.split(tl.reshape(state.to(gradient.dtype), (PB, NB // 2, 2)))
    return tl.sum(d_second * first - d_first * second, 0)


@triton.jit
def _program_indices(heads, channel_blocks, groups, P, N, PB: tl.constexpr, NB: tl.constexpr):
    """Return what a program computes: batch row, head, group, block of channels; channels p, states n, their offsets and mask."""
    head, channel_block = tl.program_id(0) // channel_blocks % heads, tl.program_id(0) % channel_blocks
    b = (tl.program_id(0) // (channel_blocks * heads)).to(tl.int64)
    p, n = channel_block * PB + tl.arange(0, PB), tl.arange(0, NB)
    state_offset = (head * P + p[:, None]) * N + n[None, :]
    return b, head, head // (heads // groups), channel_block, p, n, state_offset, (p < P)[:, None] & (n < N)[None, :]


# ---------------------------------------------------------------------------------------------- scans


@triton.jit(do_not_specialize=["length", "chunks", "splits", "span", "rows", "groups", "parts"])
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
    b, head, group, _block, p, n, state_offset, state_mask = _program_indices(heads, channel_blocks, groups, P, N, PB, NB)
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
        in_range, is_valid, sequence, restarts = _sequence_flags(flags, position, step, length, Q)
        for j in range(restarts + 1):
            valid, in_sequence = is_valid, in_range
            if flags is not None:
                in_sequence = in_range & (sequence == j)
                valid = is_valid & in_sequence
                state = tl.where(j > 0, 0.0, state)
            _dt, input_weight, decay, start_decay, end_decay, chunk_decay = _chunk_decays(
                dt, scale, A_head, valid, position, heads, Q
            )
            x_tile = _load_rows(x, position, heads * P, p, P, valid)
            B_tile = _load_rows(B, position, groups * N, n, N, valid)
            if not SUMMARY:
                if chunk_states is not None:
                    first_mask = state_mask if flags is None else state_mask & (state_offset * 0 + j == 0)
                    tl.store(chunk_states + b * stride + chunk * state_size + state_offset, state.to(dtype), mask=first_mask)
                C_tile = _load_rows(C + group * N, position, groups * N, n, N, valid)
                weights, _own = _output_weights(input_weight, own_scale, position, valid, heads, Q)
                scores = _dot(C_tile, tl.trans(B_tile), zeros_qq, PRECISION) * decay * weights
                y_tile = _dot(C_tile, tl.trans(state.to(dtype)), zeros_qp, PRECISION) * start_decay[:, None]
                y_tile = _dot(scores.to(dtype), x_tile, y_tile, PRECISION)
                if D is not None:
                    y_tile += D_head * x_tile
                offset = position[:, None] * (heads * P) + head * P + p[None, :]
                y_mask = in_sequence[:, None] & (p < P)[None, :]
                tl.store(y + offset, tl.where(valid[:, None], y_tile, 0.0).to(dtype), mask=y_mask)
            weighted_B = (B_tile * (end_decay * input_weight)[:, None]).to(dtype)
            state = _dot(tl.trans(x_tile), weighted_B, state * chunk_decay, PRECISION)
            total_decay *= chunk_decay
    if SUMMARY:
        offset = (b * splits + split) * state_size + state_offset
        tl.store(local_states + offset, state, mask=state_mask)
        tl.store(split_decay + offset, tl.full((PB, NB), 0.0, total_decay.dtype) + total_decay, mask=state_mask)
    elif split == splits - 1:
        tl.store(final + b * state_size + state_offset, state, mask=state_mask)


@triton.jit(do_not_specialize=["batch", "length", "chunks", "splits", "span", "rows", "groups", "parts"])
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
    b, head, group, channel_block, p, n, state_offset, state_mask = _program_indices(heads, channel_blocks, groups, P, N, PB, NB)
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
        in_range, is_valid, sequence, restarts = _sequence_flags(flags, position, step, length, Q)
        for j in range(restarts + 1):  # from the last sequence to the first
            valid, in_sequence = is_valid, in_range
            if flags is not None:
                in_sequence = in_range & (sequence == restarts - j)
                valid = is_valid & in_sequence
            dt_value, input_weight, decay, start_decay, end_decay, chunk_decay = _chunk_decays(
                dt, scale, A_head, valid, position, heads, Q
            )
            C_tile = _load_rows(C + group * N, position, groups * N, n, N, valid)
            dy_tile = _load_rows(grad_y + head * P, position, heads * P, p, P, valid)
            dy_from_start = (dy_tile * start_decay[:, None]).to(dtype)
            if not SUMMARY:
                x_tile = _load_rows(x + head * P, position, heads * P, p, P, valid)
                B_tile = _load_rows(B + group * N, position, groups * N, n, N, valid)
                last_mask = state_mask if flags is None else state_mask & (state_offset * 0 + j == restarts)
                state_before = tl.load(chunk_states + b * stride + chunk * state_size + state_offset, mask=last_mask, other=0.0)
                d_state_cast = d_state.to(dtype)
                sequence_mask = in_sequence[:, None]
                # gradient of x: through the outputs and the next state
                scores = _dot(C_tile, tl.trans(B_tile), zeros_qq, PRECISION) * decay
                dx_of_state = _dot(B_tile, tl.trans(d_state_cast), zeros_qp, PRECISION) * end_decay[:, None]
                earlier_scores = scores if own_scale is None else tl.where(index[:, None] == index[None, :], 0.0, scores)
                d_weighted_x = _dot(tl.trans(earlier_scores.to(dtype)), dy_tile, dx_of_state, PRECISION)
                dx_tile = d_weighted_x * input_weight[:, None]
                weights, own_weight = _output_weights(input_weight, own_scale, position, valid, heads, Q)
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
                dy_x = _dot(dy_tile, tl.trans(x_tile), zeros_qq, PRECISION) * weights
                weighted_dy_x = (dy_x * decay).to(dtype)
                dC_of_state = _dot(dy_from_start, state_before, zeros_qn, PRECISION)
                d_decay_from_start = tl.sum(C_tile * dC_of_state, 1)
                offset = ((channel_block * batch + b) * length + step)[:, None] * (heads * N) + head * N + n[None, :]
                row_mask = sequence_mask & (n < N)[None, :]
                dC_tile = _dot(weighted_dy_x, B_tile, dC_of_state, PRECISION)
                tl.store(dC + offset, tl.where(valid[:, None], dC_tile, 0.0).to(dC.dtype.element_ty), mask=row_mask)
                dB_of_state = _dot((x_tile * (end_decay * input_weight)[:, None]).to(dtype), d_state_cast, zeros_qn, PRECISION)
                dB_tile = _dot(tl.trans(weighted_dy_x), C_tile, dB_of_state, PRECISION)
                tl.store(dB + offset, tl.where(valid[:, None], dB_tile, 0.0).to(dB.dtype.element_ty), mask=row_mask)
                # gradient of a step's log decay: through pairs of steps, the last state, outputs of the first state, and both
                not_before = (index[None, :] >= index[:, None]).to(dtype)
                pairs_over_step = _dot(not_before, (dy_x * scores).to(dtype), zeros_qq, PRECISION)
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
            d_state = _dot(tl.trans(dy_from_start), C_tile, d_state * chunk_decay, PRECISION)
            if flags is not None:
                d_state = tl.where(j < restarts, 0.0, d_state)
            total_decay *= chunk_decay
            if d_end_phase is not None and not SUMMARY:
                pair = tl.arange(0, NB // 2)
                offset = (((channel_block * batch + b) * chunks + chunk - 1) * heads + head) * R + pair
                pair_mask = (pair < R) & (pair * 0 + chunk > 0)
                if flags is not None:
                    pair_mask = pair_mask & (pair * 0 + j == restarts)
                tl.store(d_end_phase + offset, _d_rotation(d_state, state_before), mask=pair_mask)
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


# ---------------------------------------------------------------------------------------------- launches


class _Problem(NamedTuple):
    """Sizes of a call.

    rows: batch rows of a model; several models have separate A and D. channel_blocks: programs that share the channels of a head.
    """

    batch: int
    length: int
    heads: int
    groups: int
    channel_blocks: int
    width: int
    states: int
    rows: int
    split: tables.Plan
    constants: dict[str, Any]

    @property
    def size(self) -> int:
        return self.heads * self.width * self.states

    @property
    def grid(self) -> tuple[int, int]:
        return self.batch * self.heads * self.channel_blocks, self.split.splits

    def sizes(self, stride: int) -> tuple[int, ...]:
        """Return the sizes in the order of the arguments of both scan kernels."""
        split, own = self.split, (self.heads, self.groups, self.channel_blocks, self.width, self.states)
        return self.length, split.tiles, split.splits, split.span, self.rows, stride, *own


def _problem(x: Tensor, A: Tensor, B: Tensor, op: str) -> _Problem:
    batch, length, heads, width = x.shape
    groups, states = B.shape[2:]
    if states > tables.MAX_MATRIX_STATES:
        raise ValueError(f"`N` must be at most {tables.MAX_MATRIX_STATES} states on the triton backend, got {states}")
    table, Q = tables.TABLE[op if x.element_size() == 2 else f"{op}_exact"], _steps(x.element_size(), states)
    NB = max(16, power_of_two(states))
    PB = max(16, min(power_of_two(width), table.lanes // NB, 64))
    channel_blocks = ceil_div(width, PB)
    split = tables.plan(op, length, batch * heads * channel_blocks, x.device, chunk=Q)
    warps = max(1, min(table.warps, max(Q * Q, Q * NB, PB * NB) // 1024))
    constants = {
        "Q": Q, "PB": PB, "NB": NB, "PRECISION": "tf32x3" if x.dtype == torch.float32 else "ieee", "num_warps": warps,
        "num_stages": table.stages,
    }  # fmt: skip
    models = len(A) if A.ndim == 2 else 1
    return _Problem(batch, length, heads, groups, channel_blocks, width, states, batch // models, split, constants)


def _steps(element_size: int, states: int) -> int:
    """Return the number of steps of a chunk for elements of x of a number of bytes: tiles must fit into shared memory."""
    table = tables.TABLE["ssd_scan" if element_size == 2 else "ssd_scan_exact"]
    return max(16, min(table.steps, 8192 // power_of_two(states)))


def chunk_states_shape(
    batch: int, length: int, element_size: int, state_element_size: int, heads: int, width: int, states: int
) -> tuple[int, int]:
    """Return the shape of the states before chunks that `forward` stores for `backward`.

    They have elements of `element_size` bytes, and are stored in a tensor of the dtype of the states.
    """
    chunks = ceil_div(length, _steps(element_size, states))
    return batch, ceil_div(chunks * heads * width * states * element_size, state_element_size)


def forward(
    x: Tensor,
    dt: Tensor,
    input_scale: Tensor | None,
    own_scale: Tensor | None,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    B_bias: Tensor | None,
    C_bias: Tensor | None,
    angle: Tensor | None,
    initial_state: Tensor,
    flags: Tensor | None,
    save_states: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return y (B, L, H, P), the final state (B, H, P, N), and what `backward` needs, empty unless `save_states`.

    Tensors are contiguous. x, B and C have one dtype, fp16 and bf16 among them; the others have that of the state. A, D and the
    biases may have a leading axis of models: equal runs of batch rows then belong to different models.
    """
    with on_device(x):
        maps = _maps(x, A, B, C, B_bias, C_bias, angle, flags)
        start_phase, end_phase = rotation.cumulative_phases(maps)
        if maps.differs_per_head:
            B, C = rotation.rotate_maps(maps, start_phase)
        y, final, chunk_states = _forward(x, dt, input_scale, own_scale, A, B, C, D, initial_state, flags, save_states)
        if end_phase is not None:
            final, _ = rotation.rotate_state(final, end_phase)
    return y, final, chunk_states


def _maps(
    x: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    B_bias: Tensor | None,
    C_bias: Tensor | None,
    angle: Tensor | None,
    flags: Tensor | None,
) -> rotation.GroupMaps:
    rows, chunk = len(x) // (len(A) if A.ndim == 2 else 1), _steps(x.element_size(), B.shape[-1])
    return rotation.GroupMaps(B, C, B_bias, C_bias, angle, flags, x.shape[2], rows, chunk)


def _forward(
    x: Tensor,
    dt: Tensor,
    input_scale: Tensor | None,
    own_scale: Tensor | None,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    initial_state: Tensor,
    flags: Tensor | None,
    save_states: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute `forward` without rotations and biases."""
    p = _problem(x, A, B, "ssd_scan")
    y, final = torch.empty_like(x), torch.empty_like(initial_state)
    shape = chunk_states_shape(p.batch, p.length, x.element_size(), initial_state.element_size(), *initial_state.shape[1:])
    chunk_states = initial_state.new_empty(shape if save_states else (0,))
    states = chunk_states.view(x.dtype) if save_states else None
    inputs = (x, dt, input_scale, own_scale, A, B, C, D, flags)
    first_states = initial_state
    if p.split.splits > 1:
        split_decay, local_states = (initial_state.new_empty((p.batch, p.split.splits, p.size)) for _ in range(2))
        first_states = initial_state.new_empty((p.batch, p.split.splits + 1, p.size))
        _launch_scan(p, (*inputs, None, None, None, None, split_decay, local_states), 0, True)
        _pass_states(p, split_decay, local_states, initial_state, flags, first_states, False)
    _launch_scan(p, (*inputs, first_states, y, final, states, None, None), 0 if states is None else states.stride(0), False)
    return y, final, chunk_states


def _launch_scan(p: _Problem, tensors: tuple[Tensor | None, ...], stride: int, summary: bool) -> None:
    constants = {"SUMMARY": summary, "SPLIT": p.split.splits > 1, **p.constants}
    launch(chunk_scan_kernel, p.grid, *tensors, *p.sizes(stride), constants=constants)


def _pass_states(
    p: _Problem, split_decay: Tensor, local: Tensor, first: Tensor, flags: Tensor | None, out: Tensor, reverse: bool
) -> None:
    constants = {"COMPLEX": False, "REVERSE": reverse, "BLOCK": PASS_BLOCK}
    grid, restarts = (p.batch, ceil_div(p.size, PASS_BLOCK)), tables.restarts(flags, p.split.span * p.split.T)
    launch(state_passing_kernel, grid, split_decay, local, first, restarts, out, p.split.splits, p.size, constants=constants)


def backward(
    grad_y: Tensor,
    grad_final: Tensor,
    x: Tensor,
    dt: Tensor,
    input_scale: Tensor | None,
    own_scale: Tensor | None,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    B_bias: Tensor | None,
    C_bias: Tensor | None,
    angle: Tensor | None,
    initial_state: Tensor,
    flags: Tensor | None,
    final: Tensor,
    chunk_states: Tensor,
) -> tuple[Tensor, ...]:
    """Return the gradients of x, dt, both scales, A, B, C, D, both biases, angle and initial_state; empty for None."""
    others: tuple[Tensor | None, ...] = (None, None, None)
    with on_device(x):
        maps = _maps(x, A, B, C, B_bias, C_bias, angle, flags)
        start_phase, end_phase = rotation.cumulative_phases(maps)
        if end_phase is not None:
            grad_final, grad_end = rotation.rotate_state(grad_final, end_phase, final)
        if maps.differs_per_head:
            B, C = rotation.rotate_maps(maps, start_phase)
        dx, d_dt, *scales, dA, dB, dC, dD, d_initial, d_end_phase = _backward(
            grad_y, grad_final, x, dt, input_scale, own_scale, A, B, C, D, initial_state, flags, chunk_states, maps.n_pairs
        )
        if end_phase is not None:
            d_end_phase[:, -1] = grad_end
        if maps.differs_per_head:
            del B, C  # the rotated maps
            dB, dC, others = rotation.rotate_maps_bwd(maps, start_phase, dB, dC, d_end_phase)
    gradients = (dx, d_dt, *scales, dA, dB, dC, dD, *others, d_initial)
    return tuple(initial_state.new_empty(0) if grad is None else grad for grad in gradients)


def _backward(
    grad_y: Tensor,
    grad_final: Tensor,
    x: Tensor,
    dt: Tensor,
    input_scale: Tensor | None,
    own_scale: Tensor | None,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    initial_state: Tensor,
    flags: Tensor | None,
    chunk_states: Tensor,
    pairs: int,
) -> tuple[Any, ...]:
    """Return the gradients of x, dt, both scales, A, B, C, D and initial_state, None where the input is None; without rotations.

    The last result is the gradient of rotations of `pairs` pairs of the states after all chunks but the last,
    (B, chunks, H, pairs).
    """
    p = _problem(x, A, B, "ssd_scan_backward")
    split, like = p.split, initial_state
    dx, d_initial, states = torch.empty_like(x), torch.empty_like(initial_state), chunk_states.view(x.dtype)
    d_dt = like.new_empty((p.channel_blocks, *dt.shape))
    d_scale, d_own = (None if given is None else torch.empty_like(d_dt) for given in (input_scale, own_scale))
    dB, dC = ((like if pairs else x).new_empty((p.channel_blocks, *dt.shape, B.shape[-1])) for _ in range(2))
    sums = like.new_empty((2, p.batch, split.splits, p.channel_blocks, p.heads))
    d_end_phase = like.new_empty((p.channel_blocks, p.batch, split.tiles, p.heads, pairs)) if pairs else None
    inputs = (grad_y, x, dt, input_scale, own_scale, A, B, C, D, flags)
    adjoint = grad_final
    if split.splits > 1:
        split_decay, local_states = (like.new_empty((p.batch, split.splits, p.size)) for _ in range(2))
        adjoint = like.new_empty((p.batch, split.splits + 1, p.size))
        _launch_scan_bwd(p, (*inputs, *[None] * 11, split_decay, local_states), pairs, 0, True)
        _pass_states(p, split_decay, local_states, grad_final, flags, adjoint, True)
    outputs = (adjoint, states, dx, d_dt, d_scale, d_own, dB, dC, d_initial, sums, d_end_phase, None, None)
    _launch_scan_bwd(p, (*inputs, *outputs), pairs, states.stride(0), False)
    dA, dD = (block.view(p.batch // p.rows, -1, p.heads).sum(1) for block in sums)  # new tensors
    if dB.numel() > B.numel():
        dB, dC = (block.view(p.channel_blocks, *B.shape[:3], -1, B.shape[-1]).sum((0, 4)) for block in (dB, dC))
    scales = (None if block is None else block.sum(0) for block in (d_scale, d_own))
    return (
        dx, d_dt.sum(0), *scales, dA.view(A.shape), dB.view(B.shape), dC.view(B.shape),
        None if D is None else dD.view(D.shape), d_initial, None if d_end_phase is None else d_end_phase.sum(0),
    )  # fmt: skip


def _launch_scan_bwd(p: _Problem, tensors: tuple[Tensor | None, ...], pairs: int, stride: int, summary: bool) -> None:
    constants = {"SUMMARY": summary, "SPLIT": p.split.splits > 1, **p.constants}
    launch(chunk_scan_bwd_kernel, p.grid, *tensors, p.batch, pairs, *p.sizes(stride), constants=constants)
