"""`linear_scan` in vectorised torch: an associative scan inside chunks, chunks one after another."""

import torch
from torch import Tensor

from longscan.numerics.pairs import multiply
from longscan.ops._arguments import marks
from longscan.ops._associative import affine_scan
from longscan.ops._chunks import scan_chunks


def _masked(a: Tensor, b: Tensor, flags: Tensor, is_complex: bool) -> tuple[Tensor, Tensor]:
    """Invalid steps as the identity map, steps at which the state restarts as maps that forget it.

    They forget by a factor of 0: a state that was infinite or NaN stays NaN, where the reference starts afresh.
    """
    invalid, reset = marks(flags, b.ndim)
    one = torch.ones((), dtype=a.dtype, device=a.device)
    identity = torch.stack([one, torch.zeros_like(one)]) if is_complex else one
    return torch.where(reset, 0, torch.where(invalid, identity, a)), torch.where(invalid, 0, b)


def _chunk(
    a: Tensor, b: Tensor, flags: Tensor | None, state: Tensor, *, is_complex: bool
) -> tuple[Tensor, Tensor]:
    if flags is not None:
        a, b = _masked(a, b, flags, is_complex)
    states = affine_scan(a, b, state, multiply if is_complex else torch.mul)
    final = states[:, -1].clone()
    return (states if flags is None else torch.where(marks(flags, b.ndim)[0], 0, states)), final


def _real_chunk(a: Tensor, b: Tensor, flags: Tensor | None, state: Tensor) -> tuple[Tensor, Tensor]:
    return _chunk(a, b, flags, state, is_complex=False)


def _pairs_chunk(a: Tensor, b: Tensor, flags: Tensor | None, state: Tensor) -> tuple[Tensor, Tensor]:
    return _chunk(a, b, flags, state, is_complex=True)


def linear_scan(
    a: Tensor, b: Tensor, initial_state: Tensor, flags: Tensor | None, *, is_complex: bool
) -> tuple[Tensor, Tensor]:
    """As `reference.linear_scan`, complex numbers as pairs (..., 2); memory beyond the output is bounded by a chunk."""
    a = a.expand_as(b) if a.ndim < b.ndim else a
    return scan_chunks(_pairs_chunk if is_complex else _real_chunk, (a, b, flags), (), initial_state, empty=b)
