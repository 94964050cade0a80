"""`block2_scan` in vectorised torch: an associative scan of 2x2 matrices inside chunks, chunks one after another."""

import math
from functools import partial

import torch
from torch import Tensor

from longscan.ops.arguments import flag_masks, reset_mask
from longscan.ops.associative import affine_scan
from longscan.ops.chunks import long_chunk, scan_chunks


def _product(x: Tensor, y: Tensor) -> Tensor:
    """Return the matrix product x y; x (..., 2, 2, S), y (..., 2, K, S), the matrix axes before S."""
    (left, right), (upper, lower) = torch.split(x, 1, -2), torch.split(y, 1, -3)
    return torch.addcmul(left * upper, right, lower)


def _affine(x: Tensor, y: Tensor, f: Tensor) -> Tensor:
    """Return x y + f, with the layout of `_product`."""
    (left, right), (upper, lower) = torch.split(x, 1, -2), torch.split(y, 1, -3)
    return torch.addcmul(torch.addcmul(f, left, upper), right, lower)


def _chunk(f: Tensor, flags: Tensor | None, M: Tensor, state: Tensor, *, packed: bool) -> tuple[Tensor, Tensor]:
    M, f = M.contiguous(), f.contiguous()
    if flags is not None:
        invalid, _ = flag_masks(flags, f.ndim)
        identity = torch.eye(2, dtype=M.dtype, device=M.device).unsqueeze(-1)
        M, f = torch.where(invalid, identity, M), torch.where(invalid, 0, f)
    states = affine_scan(M, f, state, _product, _affine, reset_mask(flags, packed, f.ndim))
    final = states[:, -1].clone()
    return (states if flags is None else torch.where(invalid, 0, states)), final


def block2_scan(
    M: Tensor, f: Tensor, initial_state: Tensor, flags: Tensor | None, *, packed: bool = True
) -> tuple[Tensor, Tensor]:
    """Compute `reference.block2_scan` chunk by chunk; memory beyond the output is bounded by a chunk.

    packed: whether `flags` may contain RESET. Internally S is the last axis, so that every operation runs over contiguous rows.
    """
    batch, length, *axes, _, columns = f.shape
    size = math.prod(axes)
    constant = M.ndim < f.ndim
    planes = M.reshape(*((1, 1) if constant else (batch, length)), size, 2, 2).movedim(2, -1)
    drive = f.reshape(batch, length, size, 2, columns).movedim(2, -1)
    start = initial_state.reshape(batch, size, 2, columns).movedim(1, -1)
    per_step, shared = ((drive, flags), (planes,)) if constant else ((drive, flags, planes), ())
    x, final = scan_chunks(partial(_chunk, packed=packed), per_step, shared, start, empty=drive, size=long_chunk(drive))
    x, final = x.movedim(-1, 2), final.movedim(-1, 1)
    return x.reshape(batch, length, *axes, 2, columns), final.reshape(initial_state.shape)
