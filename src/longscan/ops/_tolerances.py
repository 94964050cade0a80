"""How far a result may lie from the truth: the one rule of the tests and of `longscan doctor`.

The truth is the reference in float64. A fast result may err twice what plain arithmetic of the same precision errs, and a few
times what the truth itself moves when every input moves to a number next to it in that precision, and the rounding of the
result. So no tolerance is a number that somebody chose for a test: it follows from the case.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

TWICE = 2  # times the error of plain arithmetic
ROUNDINGS = 4  # an element of a scan passes about eight operations, of half an eps each, for each input that it depends on
NEIGHBOURS = 2  # how often every input is moved to a number next to it


def real_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of the parts of a number of `dtype`."""
    return torch.zeros((), dtype=dtype).abs().dtype


def shake(x: Tensor, eps: float, generator: torch.Generator) -> Tensor:
    """`x` with every part of every number moved by a relative eps, up or down at random."""
    parts = torch.view_as_real(x) if x.is_complex() else x
    signs = torch.randint(0, 2, parts.shape, generator=generator, device=generator.device).to(parts) * 2 - 1
    moved = parts * (1 + signs * eps)
    return torch.view_as_complex(moved) if x.is_complex() else moved


def distance(x: Tensor, truth: Tensor) -> float:
    """The largest error in `x`, where the truth is a number of the precision of `x`; infinite for a NaN and for another shape."""
    if x.shape != truth.shape:
        return float("inf")
    wide = torch.complex128 if truth.is_complex() else torch.float64
    fits = truth.abs() < torch.finfo(real_dtype(x.dtype)).max / 2
    error = (x.to(wide) - truth.to(wide)).abs()[fits]
    return float("inf") if error.isnan().any() else error.max().item() if error.numel() else 0.0


def size(truth: Tensor) -> float:
    """The largest number in `truth`."""
    return truth.abs().max().item() if truth.numel() else 0.0


def allowed_error(
    dtype: torch.dtype,
    plain: Sequence[Tensor],
    truth: Tensor,
    moved: Sequence[Tensor],
    plain_moved: Sequence[Tensor] = (),
    operations: float = 1,
    precision: float = 1,
) -> float:
    """How much a fast result of `dtype` may err: twice the worst of `plain`, plus what roundings of the inputs do.

    plain: the same result by plain arithmetic, of one precision; truth: in float64; moved: the truth for inputs next to these;
    plain_moved: plain results for the inputs of `moved`, so that one lucky rounding decides nothing; operations: how many rounded
    operations the fast result needs for one of `plain`; precision: that of the fast result in units of that of `plain` and
    `moved`.
    """
    judged = [(result, truth) for result in plain] + list(zip(plain_moved, moved, strict=bool(plain_moved)))
    plainly = max((distance(result, exact) for result, exact in judged), default=0.0)
    floor = ROUNDINGS * max(distance(other, truth) for other in moved)
    return precision * (TWICE * operations * plainly + floor) + torch.finfo(real_dtype(dtype)).eps * size(truth)
