"""`linear_scan` in vectorised torch: an associative scan inside chunks, chunks one after another."""

from functools import partial

import torch
from torch import Tensor

from longscan.numerics.pairs import multiply
from longscan.ops.arguments import flag_masks, reset_mask
from longscan.ops.associative import affine_scan
from longscan.ops.chunks import chunk_of_graph, scan_chunks


def _masked(a: Tensor, b: Tensor, flags: Tensor, is_complex: bool) -> tuple[Tensor, Tensor]:
    """Return a and b with a = 1 and b = 0 at invalid steps."""
    invalid, _ = flag_masks(flags, b.ndim)
    one = torch.ones((), dtype=a.dtype, device=a.device)
    identity = torch.stack([one, torch.zeros_like(one)]) if is_complex else one
    return torch.where(invalid, identity, a), torch.where(invalid, 0, b)


def _chunk(a: Tensor, b: Tensor, flags: Tensor | None, state: Tensor, *, is_complex: bool, packed: bool) -> tuple[Tensor, Tensor]:
    if flags is not None:
        a, b = _masked(a, b, flags, is_complex)
    states = affine_scan(a, b, state, multiply if is_complex else torch.mul, reset=reset_mask(flags, packed, b.ndim))
    final = states[:, -1].clone()
    return (states if flags is None else torch.where(flag_masks(flags, b.ndim)[0], 0, states)), final


def linear_scan(
    a: Tensor, b: Tensor, initial_state: Tensor, flags: Tensor | None, *, is_complex: bool, packed: bool = True
) -> tuple[Tensor, Tensor]:
    """Compute `reference.linear_scan` chunk by chunk; memory beyond the output is bounded by a chunk.

    Complex numbers are pairs (..., 2). packed: whether `flags` may contain RESET.
    """
    a = a.expand_as(b) if a.ndim < b.ndim else a
    step = partial(_chunk, is_complex=is_complex, packed=packed)
    return scan_chunks(step, (a, b, flags), (), initial_state, empty=b, size=chunk_of_graph(initial_state))
