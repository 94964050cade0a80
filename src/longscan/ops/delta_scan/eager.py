"""`delta_scan` by matrix products: the corrections of a chunk solve a triangular system, across chunks a state is carried.

The algorithm is described in the README.md of this folder.
"""

from functools import partial

import torch
from torch import Tensor

from longscan.numerics.symbolic import is_symbolic
from longscan.ops.arguments import flag_masks, reset_mask, zero_invalid
from longscan.ops.chunk_decay import chunk_decay, zero_unless
from longscan.ops.chunks import CHUNK, scan_chunks
from longscan.ops.masked_products import masked_products, masked_sums
from longscan.ops.tracing import record_length

LONGEST_OPEN = 2**12  # steps of a chunk in a graph of make_fx whose length is open


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
            # Graphs of make_fx hold no check that the steps are one chunk, but `narrow` raises in every graph for more.
            largest = LONGEST_OPEN
            lower = lower + lower.new_zeros(1).expand(largest).narrow(0, 0, length)
    steps = torch.arange(length, device=lower.device)
    inverse = torch.eye(length, dtype=lower.dtype, device=lower.device).expand_as(lower)
    # Two steps are in neighbouring blocks of a size that make one block of twice the size, if this is the highest bit in which
    # they differ. The same with quotients of steps is computed wrongly for the last steps by the C++ code of inductor, torch 2.11
    # and 2.13, where the size is 32 and gradients are wanted.
    differing_bits = steps.unsqueeze(1) ^ steps
    size = 1  # size of the diagonal blocks whose inverses are known
    while size < largest:
        left = torch.where((differing_bits >= size) & (differing_bits < 2 * size), lower, 0)
        # the inverse of the first blocks, of size 1, is the identity
        inverse = inverse - (left if size == 1 else _sums(inverse, _sums(left, inverse, mask), mask))
        size *= 2
    return inverse


def _chunk(
    v: Tensor, k: Tensor, q: Tensor, log_alpha: Tensor, beta: Tensor, flags: Tensor | None, state: Tensor, *, packed: bool
) -> tuple[Tensor, Tensor]:
    v, k, q, log_alpha, beta = zero_invalid(flags, v, k, q, log_alpha, beta)
    v, k, q, log_alpha, beta = (part.transpose(1, 2) for part in (v, k, q, log_alpha, beta.unsqueeze(-1)))
    decay = chunk_decay(log_alpha, reset_mask(flags, packed, 2))
    mask = None if decay.in_first is None else decay.included
    from_start = decay.from_start.unsqueeze(-1)

    def read(keys: Tensor) -> Tensor:
        """Return what the state before the chunk, decayed, gives for the keys (B, H, L, N) of its steps: (B, H, L, P)."""
        return zero_unless(decay.in_first, from_start * (zero_unless(decay.in_first, keys) @ state.mT))

    lower = torch.where(decay.is_earlier, decay.between * _products(beta * k, k, mask), 0)
    correction = _sums(_inverse(lower, mask), beta * (v - read(k)), mask)
    y = read(q) + _sums(decay.between * _products(q, k, mask), correction, mask)
    to_end = decay.between[..., -1, :].unsqueeze(-1)
    added_state = zero_unless(decay.in_last, correction * to_end).mT @ zero_unless(decay.in_last, k)
    before = zero_unless(None if decay.in_first is None else decay.in_first[:, :, -1:], state)  # zero after a restart
    y = y.transpose(1, 2)
    y = y if flags is None else torch.where(flag_masks(flags, 4)[0], 0, y)
    return y, from_start[..., -1:, :] * before + added_state


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

    packed: whether `flags` may contain RESET.
    """
    per_step = (v, k, q, log_alpha, beta, flags)
    return scan_chunks(partial(_chunk, packed=packed), per_step, (), initial_state, empty=v)
