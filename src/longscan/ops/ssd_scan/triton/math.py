"""Functions of the forward and the backward kernels of `ssd_scan`: decays and weights of a chunk, loads, matrix products.

Compile-time constants: Q, the steps of a chunk; PB, NB, the channels and states of a program, powers of 2; PRECISION, that of
`tl.dot` ("tf32x3" for float32, otherwise "ieee").

i_ begins the name of an index: i_b of the row of the batch, i_h of the head, i_g of the group of the head, i_p of the block of
channels, i_c of the chunk. o_ begins the name of offsets: o_p of the channels of a program, o_n of its states, o_r of the pairs
of states that are rotated, o_state of all numbers of a state.
"""

import triton
import triton.language as tl

from longscan.ops._triton import INVALID, RESET


@triton.jit
def hi_lo_cumsum(a, Q: tl.constexpr):
    """Return the running sums of a (Q,) as an exact part and a remainder, and both parts of the total."""
    # The exact parts are multiples of the unit in the last place of `unit`, and their sums need at most 24 bits.
    unit = tl.minimum(tl.max(tl.abs(a)) * (4.0 * Q), 1e37)
    hi = (a + unit) - unit
    lo = a - hi
    return tl.cumsum(hi), tl.cumsum(lo), tl.sum(hi), tl.sum(lo)


@triton.jit
def sequence_flags(flags, position, step, length, Q: tl.constexpr):
    """Return for the steps of a chunk whether they exist, whether they are valid, and the index of the sequence they belong to.

    The last result is the number of sequences that start in the chunk. position: indices of the steps `step` (Q,) in (B, L). A
    matrix product sums over steps, and 0 times NaN is NaN. So a chunk is computed once for each of its sequences, including the
    one that started before it, and treats the steps of the other sequences as invalid.
    """
    in_range = step < length
    valid, sequence, restarts = in_range, tl.zeros((Q,), tl.int32), 0
    if flags is not None:
        flag = tl.load(flags + position, mask=in_range, other=INVALID)
        valid, sequence = in_range & (flag != INVALID), tl.cumsum((flag == RESET).to(tl.int32))
        restarts = tl.max(sequence)
    return in_range, valid, sequence, restarts


@triton.jit
def chunk_decays(dt, scale, A, valid, position, heads, Q: tl.constexpr):
    """Return dt and the weights of the inputs of a head's steps (Q,), and the decays of the state.

    The decays are those between two steps (Q, Q), from the start of the chunk (Q,), to its end (Q,), and over all of it.
    position: indices of the steps in (B, L).
    """
    dt_value = tl.load(dt + position * heads, mask=valid, other=0.0)
    input_weight = dt_value
    if scale is not None:
        input_weight = tl.load(scale + position * heads, mask=valid, other=0.0)
    hi, lo, hi_total, lo_total = hi_lo_cumsum(dt_value * A, Q)
    index = tl.arange(0, Q)
    difference = (hi[:, None] - hi[None, :]) + (lo[:, None] - lo[None, :])
    decay = tl.exp(tl.where(index[:, None] >= index[None, :], difference, float("-inf")))
    end_decay = tl.exp((hi_total - hi) + (lo_total - lo))
    return dt_value, input_weight, decay, tl.exp(hi + lo), end_decay, tl.exp(hi_total + lo_total)


@triton.jit
def output_weights(input_weight, own_scale, position, valid, heads, Q: tl.constexpr):
    """Return the weights of inputs in the outputs of all steps, (Q, Q) or (1, Q), and in those of their own steps, (Q,)."""
    own_weight, weights = input_weight, input_weight[None, :]
    if own_scale is not None:
        index = tl.arange(0, Q)
        own_weight = tl.load(own_scale + position * heads, mask=valid, other=0.0)
        weights = tl.where(index[:, None] == index[None, :], own_weight[None, :], weights)
    return weights, own_weight


@triton.jit
def dot(a, b, sums, PRECISION: tl.constexpr):
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
def load_rows(source, position, stride, columns, width, valid):
    """Load rows of a matrix, (Q, columns), with 0 at invalid steps and in columns from `width` on."""
    offset = position[:, None] * stride + columns[None, :]
    return tl.load(source + offset, mask=valid[:, None] & (columns < width)[None, :], other=0.0)


@triton.jit
def d_log_decays(dy_x, scores, d_decay_from_start, d_decay_to_end, zeros, dtype: tl.constexpr, PRECISION: tl.constexpr):
    """Return the gradients of the log decays of the steps (Q,), through the decays between steps, from the start and to the end.

    dy_x (Q, Q): the gradients of the decayed scores, divided by their decays. The decay over the whole chunk is not included.
    """
    Q: tl.constexpr = scores.shape[0]
    index = tl.arange(0, Q)
    not_before = (index[None, :] >= index[:, None]).to(dtype)
    pairs_over_step = dot(not_before, (dy_x * scores).to(dtype), zeros, PRECISION)
    d_log = tl.sum(tl.where(index[None, :] < index[:, None], pairs_over_step, 0.0), 1)
    d_log += tl.sum(tl.where(index[None, :] >= index[:, None], d_decay_from_start[None, :], 0.0), 1)
    d_log += tl.sum(tl.where(index[None, :] < index[:, None], d_decay_to_end[None, :], 0.0), 1)
    return d_log


@triton.jit
def d_rotation(gradient, state):
    """Return the gradient of a rotation of the pairs of a state, (NB / 2,), from the state (PB, NB) and its gradient."""
    PB: tl.constexpr = state.shape[0]
    NB: tl.constexpr = state.shape[1]
    d_first, d_second = tl.split(tl.reshape(gradient, (PB, NB // 2, 2)))
    first, second = tl.split(tl.reshape(state.to(gradient.dtype), (PB, NB // 2, 2)))
    return tl.sum(d_second * first - d_first * second, 0)


@triton.jit
def program_indices(heads, groups, P, N, PB: tl.constexpr, NB: tl.constexpr):
    """Return i_b, i_h, i_g and i_p of a program, its channels o_p and states o_n, and offsets and mask of its state."""
    channel_blocks = tl.cdiv(P, PB)
    i_h, i_p = tl.program_id(0) // channel_blocks % heads, tl.program_id(0) % channel_blocks
    i_b = (tl.program_id(0) // (channel_blocks * heads)).to(tl.int64)
    o_p, o_n = i_p * PB + tl.arange(0, PB), tl.arange(0, NB)
    o_state = (i_h * P + o_p[:, None]) * N + o_n[None, :]
    return i_b, i_h, i_h // (heads // groups), i_p, o_p, o_n, o_state, (o_p < P)[:, None] & (o_n < N)[None, :]


@triton.jit
def state_entry(i_b, row_states, after):
    """Return the index, among the states of all rows, of the state before a split in time, or, if `after` is 1, after it.

    row_states: number of states of a row, one before each split and one after the last; or 1, if no states were passed between
    splits. It is not determined by the number of splits: graphs with a symbolic length pass states even if there is one split.
    """
    entry = i_b * row_states
    if row_states > 1:
        entry += tl.program_id(1) + after
    return entry
