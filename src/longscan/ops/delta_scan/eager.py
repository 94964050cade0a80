"""`delta_scan` by matrix products: the corrections of a chunk solve a triangular system; a state is passed between chunks.

The algorithm is described in the README.md of this folder.
"""

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from longscan.numerics.symbolic import is_symbolic
from longscan.ops.arguments import flag_masks, reset_mask, zero_invalid
from longscan.ops.chunk_decay import chunk_decay, zero_unless
from longscan.ops.chunks import CHUNK, scan_batched_chunks
from longscan.ops.masked_products import masked_products, masked_sums
from longscan.ops.tracing import record_length

MAX_SYMBOLIC_LENGTH = 2**12  # largest number of steps of a chunk in a graph of make_fx with a symbolic length


def _products(a: Tensor, b: Tensor, mask: Tensor | None) -> Tensor:
    return a @ b.mT if mask is None else masked_products(a, b, mask)


def _sums(weights: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    return weights @ values if mask is None else masked_sums(weights, values, mask)


def _inverse(lower: Tensor, mask: Tensor | None) -> Tensor:
    """Return (I + lower)^{-1} of a strictly lower triangular matrix (..., L, L), by inverting diagonal blocks of doubling size.

    mask: True for pairs of steps of one sequence; None if all are.
    """
    lower, length = record_length(lower, -1)
    largest = length
    if is_symbolic(length):  # the number of doublings must not depend on it
        largest = CHUNK
        if not torch.compiler.is_compiling():
            # Graphs of make_fx contain no check that the steps are one chunk, but `narrow` raises in every graph for more.
            largest = MAX_SYMBOLIC_LENGTH
            lower = lower + lower.new_zeros(1).expand(largest).narrow(0, 0, length)
    steps = torch.arange(length, device=lower.device)
    inverse = torch.eye(length, dtype=lower.dtype, device=lower.device).expand_as(lower)
    # Two steps are in neighbouring blocks that form one block of twice the size if the highest bit in which the steps differ is
    # the size. Integer division by the size would be the same test, but inductor of torch 2.11 and 2.13 generates C++ code for it
    # that is wrong for the last steps, if the size is 32 and gradients are computed.
    differing_bits = steps.unsqueeze(1) ^ steps
    size = 1  # size of the diagonal blocks whose inverses are known
    while size < largest:
        left = torch.where((differing_bits >= size) & (differing_bits < 2 * size), lower, 0)
        # the inverse of the first blocks, of size 1, is the identity
        inverse = inverse - (left if size == 1 else _sums(inverse, _sums(left, inverse, mask), mask))
        size *= 2
    return inverse


class _ChunkMaps(NamedTuple):
    """Tensors from which the state after a chunk and its corrections are computed, given the state before it.

    H: heads. L: steps of a chunk. The first axis is the batch (rows), or the batch times the chunks.

    Attributes:
        corrections: (rows, H, L, P), the corrections for a zero state before the chunk.
        keys_of_state: (rows, H, L, N), keys whose products with the state before the chunk are subtracted from the corrections.
        to_end: (rows, H, L, 1), decay from each step to the end of the chunk.
        last_keys: (rows, H, L, N), the keys; zeros outside the last sequence of the chunk.
        decay: (rows, H, 1, 1), of the state over the chunk.
        in_first, in_last: (rows, 1, L, 1), as in `ChunkDecay`.
    """

    corrections: Tensor
    keys_of_state: Tensor
    to_end: Tensor
    last_keys: Tensor
    decay: Tensor
    in_first: Tensor | None
    in_last: Tensor | None

    def apply(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return the corrections (B, H, L, P) of one chunk and the state after it, from the state (B, H, P, N) before it."""
        corrections = self.corrections - zero_unless(self.in_first, self.keys_of_state @ state.mT)
        added = zero_unless(self.in_last, corrections * self.to_end).mT @ self.last_keys
        before = zero_unless(None if self.in_first is None else self.in_first[:, :, -1:], state)  # zero after a restart
        return corrections, self.decay * before + added


def _chunks(
    v: Tensor,
    k: Tensor,
    q: Tensor,
    log_alpha: Tensor,
    beta: Tensor,
    flags: Tensor | None,
    state: Tensor,
    *,
    packed: bool,
    count: int = 1,
) -> tuple[Tensor, Tensor]:
    """Return y and the final state of `count` consecutive chunks of the same number of steps; arguments as in `reference`."""
    v, k, q, log_alpha, beta = zero_invalid(flags, v, k, q, log_alpha, beta)
    batch, length, heads, width = v.shape
    reset = reset_mask(flags, packed, 2)
    beta = beta.unsqueeze(-1)
    if count > 1:  # the chunks become rows of the batch
        chunks = batch * count, length // count
        v, k, q, log_alpha, beta = (part.reshape(*chunks, *part.shape[2:]) for part in (v, k, q, log_alpha, beta))
        reset = None if reset is None else reset.reshape(chunks)
    v, k, q, log_alpha, beta = (part.transpose(1, 2) for part in (v, k, q, log_alpha, beta))
    decay = chunk_decay(log_alpha, reset)
    mask = None if decay.in_first is None else decay.included
    from_start = decay.from_start.unsqueeze(-1)

    lower = torch.where(decay.is_earlier, decay.between * _products(beta * k, k, mask), 0)
    inverse = _inverse(lower, mask)
    keys_of_state = _sums(inverse, beta * zero_unless(decay.in_first, from_start * k), mask)
    maps = _ChunkMaps(
        corrections=_sums(inverse, beta * v, mask),
        keys_of_state=zero_unless(decay.in_first, keys_of_state),
        to_end=decay.between[..., -1, :].unsqueeze(-1),
        last_keys=zero_unless(decay.in_last, k),
        decay=from_start[..., -1:, :],
        in_first=decay.in_first,
        in_last=decay.in_last,
    )
    if count == 1:
        before = state
        corrections, state = maps.apply(state)
    else:
        before, corrections, state = _apply_one_after_another(maps, state, count)
    from_state = zero_unless(decay.in_first, from_start * (zero_unless(decay.in_first, q) @ before.mT))
    y = from_state + _sums(decay.between * _products(q, k, mask), corrections, mask)
    y = y.transpose(1, 2)
    y = y if count == 1 else y.reshape(batch, length, heads, width)
    return y if flags is None else torch.where(flag_masks(flags, 4)[0], 0, y), state


def _apply_one_after_another(maps: _ChunkMaps, state: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the states before `count` chunks and their corrections, (B * count, ...) each, and the state after the last one."""
    batch = state.shape[0]
    parts = [(None,) * count if x is None else x.reshape(batch, count, *x.shape[1:]).unbind(1) for x in maps]
    states, corrections = [], []
    for chunk in zip(*parts, strict=True):
        states.append(state)
        correction, state = _ChunkMaps(*chunk).apply(state)
        corrections.append(correction)
    return torch.stack(states, 1).flatten(0, 1), torch.stack(corrections, 1).flatten(0, 1), state


def delta_scan(
    v: Tensor,
    k: Tensor,
    q: Tensor,
    log_alpha: Tensor,
    beta: Tensor,
    initial_state: Tensor,
    flags: Tensor | None,
    *,
    packed: bool = True,
) -> tuple[Tensor, Tensor]:
    """Compute `reference.delta_scan` chunk by chunk; memory beyond the output is bounded by a chunk.

    In a graph that is compiled, all chunks are computed together, except for the loop that computes each state from the one
    before it; memory is a multiple of that of the inputs.

    packed: whether `flags` may contain RESET.
    """
    per_step = (v, k, q, log_alpha, beta, flags)
    return scan_batched_chunks(partial(_chunks, packed=packed), per_step, (), initial_state, empty=v)
