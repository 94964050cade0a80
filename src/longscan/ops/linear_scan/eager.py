"""`linear_scan` in vectorised torch: doubling inside chunks, chunks one after another.

Doubling (Hillis and Steele) combines (a, b) pairs at distances 1, 2, 4, ...: no division, so nothing overflows when a decays.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from longscan.ops._arguments import INVALID, RESET
from longscan.ops._chunks import CHUNK, scan_chunks


def doubling(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Inclusive scan of the maps x -> a x + b over axis 1: the products of a and the states from a zero start."""
    length, distance = b.shape[1], 1
    time_axis = (0, 0) * (b.ndim - 2)
    while distance < length:
        a_before = pad(a[:, :-distance], (*time_axis, distance, 0), value=1.0)
        b_before = pad(b[:, :-distance], (*time_axis, distance, 0))
        a, b = a * a_before, a * b_before + b
        distance *= 2
    return a, b


def _chunk(a: Tensor, b: Tensor, flags: Tensor | None, state: Tensor) -> tuple[Tensor, Tensor]:
    if flags is not None:
        marks = flags.view(*flags.shape, *(1,) * (b.ndim - 2))
        a = torch.where(marks == RESET, 0, torch.where(marks == INVALID, 1, a))
        b = torch.where(marks == INVALID, 0, b)
    products, states = doubling(a, b)
    states = states + products * state.unsqueeze(1)
    final = states[:, -1]
    return (states if flags is None else torch.where(marks == INVALID, 0, states)), final


def linear_scan(a: Tensor, b: Tensor, initial_state: Tensor, flags: Tensor | None) -> tuple[Tensor, Tensor]:
    """As `reference.linear_scan`; memory beyond the output is bounded by a chunk, gradients of any order."""
    a = a.expand_as(b) if a.ndim == b.ndim - 2 else a
    return scan_chunks(_chunk, (a, b, flags), initial_state, b.shape[1], CHUNK, empty=b)
