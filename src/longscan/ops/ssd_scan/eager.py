"""`ssd_scan` by matrix products: every output is a weighted sum over its chunk of steps; a state is passed between chunks.

Dao and Gu, "Transformers are SSMs" (arXiv:2405.21060), section 6.2: with a_t = exp(dt_t A) the outputs of a chunk are
(decay * C B^T) (s x) from its inputs, decay_ts = a_{s+1} ... a_t, plus (a_1 ... a_t) C_t h from the state h before it.

In rows with several sequences the products include only pairs of steps of one sequence (`masked_products`, `masked_sums`). The
state before the chunk affects the first sequence only, and only the last sequence affects the state after the chunk.

A graph that is compiled contains the operations of every call of `_chunks`, and takes minutes to compile if there are many. There
all chunks are computed by one call, with the chunks as rows of the batch and an associative scan of their states.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import silu

from longscan.numerics.rotary import rotate_pairs
from longscan.ops.arguments import carry_dtype, flag_masks, reset_mask, zero_invalid
from longscan.ops.associative import affine_scan, running_sum
from longscan.ops.chunk_decay import ChunkDecay, chunk_decay, zero_unless
from longscan.ops.chunks import scan_batched_chunks
from longscan.ops.masked_products import masked_products, masked_sums
from longscan.ops.ssd_scan.reference import repeat_for_heads


def _split_first_angle(angle: Tensor, flags: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the angle (B, H, R) of the first step, which rotates the state before the chunk only, and the rest (B, L, H, R)."""
    if flags is None:
        return angle[:, 0], torch.cat([torch.zeros_like(angle[:, :1]), angle[:, 1:]], 1)
    invalid, reset = flag_masks(flags, 4)
    first = ~invalid & ((~invalid).cumsum(1) == 1)
    return torch.where(first & ~reset, angle, 0).sum(1), torch.where(first | reset, 0, angle)


def _states_before_and_after(
    state: Tensor, decay: Tensor, added: Tensor, restarts: Tensor | None, count: int
) -> tuple[Tensor, Tensor]:
    """Return the states before `count` consecutive chunks, (B * count, H, P, N), and the state after the last one.

    Args:
        state: (B, H, P, N), before the first chunk.
        decay: (B * count, H, 1, 1), of the state before a chunk over the steps of the chunk.
        added: (B * count, H, P, N), what the inputs of a chunk add to the state after it.
        restarts: (B * count, 1, 1, 1) bool, whether a sequence starts in a chunk; None if none does.
        count: number of chunks in each row.
    """
    if count == 1:
        return state, decay * zero_unless(None if restarts is None else ~restarts, state) + added
    batch = state.shape[0]
    decay, added = (part.reshape(batch, count, *part.shape[1:]) for part in (decay, added))
    after = affine_scan(decay, added, state, reset=None if restarts is None else restarts.reshape(batch, count, 1, 1, 1))
    return torch.cat([state.unsqueeze(1), after[:, :-1]], 1).flatten(0, 1), after[:, -1].clone()


def _added_to_states(B: Tensor, drive: Tensor, decay: ChunkDecay) -> Tensor:
    """Return what the inputs of each chunk add to the state after it, (rows, H, P, N).

    B: (rows, G, steps, N), of G groups of heads or of all heads. drive: (rows, H, steps, P), the inputs times their scale.
    """
    rows, heads, steps, width = drive.shape
    groups = B.shape[1]
    to_end = decay.between[..., -1, :].unsqueeze(-1)
    weighted = zero_unless(decay.in_last, drive * to_end).reshape(rows, groups, heads // groups, steps, width)
    added = weighted.transpose(3, 4).flatten(2, 3) @ zero_unless(decay.in_last, B)
    return added.reshape(rows, heads, width, B.shape[3])


def _outputs_from_inputs(C: Tensor, B: Tensor, drive: Tensor, pair_weights: Tensor, included: Tensor | None) -> Tensor:
    """Return the outputs (rows, H, steps, P) from the inputs of the chunk of each step.

    C: (rows, G, steps, N), as B in `_added_to_states`. pair_weights: (rows, H, steps, steps), decays from the step of an input
    to that of an output. included: pairs of steps of one sequence, None if there is one sequence in each row.
    """
    rows, heads, steps, _ = drive.shape
    groups = C.shape[1]
    products = C @ B.transpose(2, 3) if included is None else masked_products(C, B, included)
    weights = (products.unsqueeze(2) * pair_weights.reshape(rows, groups, heads // groups, steps, steps)).flatten(1, 2)
    return weights @ drive if included is None else masked_sums(weights, drive, included)


def _outputs_from_states(C: Tensor, before: Tensor, decay: ChunkDecay) -> Tensor:
    """Return the outputs (rows, H, steps, P) from the states `before` (rows, H, P, N) the chunks."""
    rows, groups, steps, _ = C.shape
    _, heads, width, n_states = before.shape
    states = before.reshape(rows, groups, heads // groups * width, n_states)
    y = zero_unless(decay.in_first, C) @ states.transpose(2, 3)  # (rows, G, steps, heads of a group * P)
    y = y.reshape(rows, groups, steps, heads // groups, width).transpose(2, 3).flatten(1, 2)
    return zero_unless(decay.in_first, y * decay.from_start.unsqueeze(-1))


def _chunks(
    x: Tensor,
    dt: Tensor,
    B: Tensor,
    C: Tensor,
    z: Tensor | None,
    input_scale: Tensor | None,
    own_scale: Tensor | None,
    angle: Tensor | None,
    flags: Tensor | None,
    A: Tensor,
    D: Tensor | None,
    B_bias: Tensor | None,
    C_bias: Tensor | None,
    state: Tensor,
    *,
    packed: bool,
    count: int = 1,
) -> tuple[Tensor, Tensor]:
    """Return y and the final state of `count` consecutive chunks of the same number of steps; arguments as in `reference`."""
    x, dt, B, C, z, input_scale, own_scale, angle = zero_invalid(flags, x, dt, B, C, z, input_scale, own_scale, angle)
    batch, length, heads, width = x.shape
    cumulative_angle = None
    if angle is not None:  # in the rotating frame of the state only B and C are rotated
        first_angle, angle = _split_first_angle(angle, flags)
        state = rotate_pairs(state, first_angle.unsqueeze(2))
        cumulative_angle = running_sum(angle.to(carry_dtype(angle)), reset_mask(flags, packed, 4))
    last_angle = None if cumulative_angle is None else cumulative_angle[:, -1]
    reset = reset_mask(flags, packed, 2)
    rows, steps = batch * count, length // count
    if count > 1:  # the chunks become rows of the batch
        per_step = (x, dt, B, C, input_scale, own_scale, cumulative_angle, reset)
        x, dt, B, C, input_scale, own_scale, cumulative_angle, reset = _rows_of_chunks(per_step, rows, steps)
        # A row has its own copy of what all steps share, so that gradients are summed within chunks first. One sum over all
        # steps has larger rounding errors.
        A = A.expand(rows, 1, *A.shape)
        D, B_bias, C_bias = (None if part is None else part.expand(rows, 1, *part.shape) for part in (D, B_bias, C_bias))

    if angle is not None or B_bias is not None or C_bias is not None:
        B, C = repeat_for_heads(B, heads, B_bias), repeat_for_heads(C, heads, C_bias)
    if cumulative_angle is not None:
        B, C = (rotate_pairs(part, -cumulative_angle) for part in (B, C))
    drive = x * (dt if input_scale is None else input_scale).unsqueeze(-1)
    y = None
    if own_scale is not None:
        c_dot_b = (C * B).sum(-1).repeat_interleave(heads // B.shape[2], 2)
        y = (c_dot_b * own_scale).unsqueeze(-1) * x
    log_decay = dt * A
    B, C, drive, log_decay = (part.transpose(1, 2) for part in (B, C, drive, log_decay))  # (rows, heads or groups, steps, .)
    decay = chunk_decay(log_decay, reset)
    restarts = None if decay.in_first is None else ~decay.in_first[:, :, -1:]
    added = _added_to_states(B, drive, decay)
    before, state = _states_before_and_after(state, decay.from_start[..., -1:, None], added, restarts, count)
    pair_weights = decay.between if own_scale is None else torch.where(decay.is_earlier, decay.between, 0)
    from_inputs = _outputs_from_inputs(C, B, drive, pair_weights, None if reset is None else decay.included)
    y_scan = (from_inputs + _outputs_from_states(C, before, decay)).transpose(1, 2)
    y = y_scan if y is None else y_scan + y
    y = y if D is None else y + D.unsqueeze(-1) * x
    y = y if count == 1 else y.reshape(batch, length, heads, width)
    y = y if z is None else y * silu(z)
    if last_angle is not None:
        state = rotate_pairs(state, last_angle.unsqueeze(2))
    return y if flags is None else torch.where(flag_masks(flags, 4)[0], 0, y), state


def _rows_of_chunks(per_step: Sequence[Tensor | None], rows: int, steps: int) -> list[Any]:
    """Return tensors (B, L, ...) as (rows, steps, ...): each chunk of `steps` steps is a row."""
    return [None if x is None else x.reshape(rows, steps, *x.shape[2:]) for x in per_step]


def ssd_scan(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    initial_state: Tensor,
    input_scale: Tensor | None,
    own_scale: Tensor | None,
    angle: Tensor | None,
    B_bias: Tensor | None,
    C_bias: Tensor | None,
    flags: Tensor | None,
    *,
    packed: bool = True,
) -> tuple[Tensor, Tensor]:
    """Compute `reference.ssd_scan` chunk by chunk; memory beyond the output is bounded by a chunk.

    In a graph that is compiled, all chunks are computed together, and memory is a multiple of that of the inputs.
    packed: whether `flags` may contain RESET.
    """
    per_step = (x, dt, B, C, z, input_scale, own_scale, angle, flags)
    return scan_batched_chunks(partial(_chunks, packed=packed), per_step, (A, D, B_bias, C_bias), initial_state, empty=x)
