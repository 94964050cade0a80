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
from longscan.ops.chunk_decay import chunk_decay, zero_unless
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
    groups = B.shape[2]
    drive = x * (dt if input_scale is None else input_scale).unsqueeze(-1)
    y = None
    if own_scale is not None:
        c_dot_b = (C * B).sum(-1).repeat_interleave(heads // groups, 2)
        y = (c_dot_b * own_scale).unsqueeze(-1) * x
    log_decay = dt * A
    B, C, drive, log_decay = (part.transpose(1, 2) for part in (B, C, drive, log_decay))  # (rows, heads or groups, steps, .)
    decay, from_start, is_earlier, included, in_first, in_last = chunk_decay(log_decay, reset)
    to_end = decay[..., -1, :]

    per_group = (rows, groups, heads // groups)
    weighted_drive = (
        zero_unless(in_last, drive * to_end.unsqueeze(-1)).reshape(*per_group, steps, width).transpose(3, 4).flatten(2, 3)
    )
    added_state = (weighted_drive @ zero_unless(in_last, B)).reshape(rows, *state.shape[1:])
    restarts = None if in_first is None else ~in_first[:, :, -1:]
    before, state = _states_before_and_after(state, from_start[..., -1:, None], added_state, restarts, count)

    pair_weights = decay if own_scale is None else torch.where(is_earlier, decay, 0)
    products = C @ B.transpose(2, 3) if reset is None else masked_products(C, B, included)
    weights = (products.unsqueeze(2) * pair_weights.reshape(*per_group, steps, steps)).flatten(1, 2)
    y_chunk = weights @ drive if reset is None else masked_sums(weights, drive, included)
    states = before.reshape(rows, groups, heads // groups * width, before.shape[-1])
    y_carried = zero_unless(in_first, C) @ states.transpose(2, 3)  # (rows, G, steps, heads of a group * P)
    y_carried = y_carried.reshape(rows, groups, steps, heads // groups, width).transpose(2, 3).flatten(1, 2)
    y_scan = (y_chunk + zero_unless(in_first, y_carried * from_start.unsqueeze(-1))).transpose(1, 2)
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
