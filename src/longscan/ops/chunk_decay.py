"""Decays between the steps of a chunk, for scans of heads with one decay per step that are computed by matrix products."""

from typing import NamedTuple

import torch
from torch import Tensor


class ChunkDecay(NamedTuple):
    """Products of decays inside a chunk of L steps. In rows with several sequences, masks exclude pairs of different sequences.

    Attributes:
        between: (B, H, L, L), a_{s+1} ... a_t for row t and column s; 0 for s > t and where `included` is False.
        from_start: (B, H, L), a_1 ... a_t; 0 outside the first sequence.
        is_earlier: (L, L) bool, s < t.
        included: bool, broadcasts to (B, H, L, L): s <= t, and both steps belong to one sequence.
        in_first, in_last: (B, 1, L, 1) bool, whether a step belongs to the first or last sequence of the chunk; None if the chunk
            has one sequence.
    """

    between: Tensor
    from_start: Tensor
    is_earlier: Tensor
    included: Tensor
    in_first: Tensor | None
    in_last: Tensor | None


def chunk_decay(log_decay: Tensor, reset: Tensor | None) -> ChunkDecay:
    """Return the products of the decays exp(log_decay) (B, H, L) of a chunk; `reset` is a bool mask (B, L) or None."""
    length = log_decay.shape[2]
    is_earlier = torch.ones(length, length, dtype=torch.bool, device=log_decay.device).tril(-1)
    # Sums over the steps between s and t only. Differences of running sums would lose digits, most of all in the gradient.
    between = torch.where(is_earlier, log_decay.unsqueeze(3), 0).cumsum(2)
    since_start = log_decay.cumsum(2)
    excluded, in_first, in_last = is_earlier.T, None, None
    if reset is not None:
        segment = reset.cumsum(1).unsqueeze(1)  # (B, 1, L)
        excluded = excluded | (segment.unsqueeze(3) != segment.unsqueeze(2))
        in_first, in_last = (segment == 0).unsqueeze(3), (segment == segment[..., -1:]).unsqueeze(3)
        since_start = since_start.masked_fill(segment != 0, -torch.inf)
    between = between.masked_fill(excluded, -torch.inf).exp()
    return ChunkDecay(between, since_start.exp(), is_earlier, ~excluded, in_first, in_last)


def zero_unless(steps: Tensor | None, x: Tensor) -> Tensor:
    """Return x with zeros where `steps` (bool) is False; x itself if `steps` is None."""
    return x if steps is None else torch.where(steps, x, 0)
