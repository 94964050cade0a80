"""How far a result may lie from the truth.

The truth is the reference in float64. A fast result may err twice what plain arithmetic of the same precision errs, and a few
times what the truth itself moves when every input moves to a number next to it in that precision, and the rounding of the
result. So no tolerance is a number that somebody chose for a test: it follows from the case.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

TWICE = 2  # times the error of plain arithmetic
ROUNDINGS = 4  # an element of a scan passes about eight operations, of half an eps each, for each input that it depends on
DOUBLE = 2 * torch.finfo(torch.float64).eps / torch.finfo(torch.float32).eps  # float64 against float64: both sides err

Results = Mapping[str, Tensor]


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
    """The largest error in `x`, where the truth is a number of the precision of `x`."""
    assert x.shape == truth.shape, f"shape {tuple(x.shape)}, expected {tuple(truth.shape)}"
    wide = torch.complex128 if truth.is_complex() else torch.float64
    fits = truth.abs() < torch.finfo(real_dtype(x.dtype)).max / 2
    error = (x.to(wide) - truth.to(wide)).abs()[fits]
    return float("inf") if error.isnan().any() else error.max().item() if error.numel() else 0.0


def size(truth: Tensor) -> float:
    """The largest number in `truth`."""
    return truth.abs().max().item() if truth.numel() else 0.0


def assert_as_accurate(
    fast: Results,
    plain: Sequence[Results],
    truth: Results,
    moved: Sequence[Results],
    plain_moved: Sequence[Results] = (),
    operations: float = 1,
    precision: float = 1,
    label: str = "",
) -> None:
    """Every result of `fast` errs at most twice the worst of `plain`, plus what roundings of the inputs do.

    fast, plain: results of one precision, by name; truth: the same in float64; moved: the truth for inputs next to these;
    plain_moved: plain results for the inputs of `moved`, so that one lucky rounding decides nothing; operations: how many rounded
    operations `fast` needs for one of `plain`; precision: that of `fast` in units of that of `plain` and `moved`.
    """
    judged = [(result, truth) for result in plain] + list(zip(plain_moved, moved, strict=bool(plain_moved)))
    for name, value in fast.items():
        eps = torch.finfo(real_dtype(value.dtype)).eps
        floor = ROUNDINGS * max(distance(other[name], truth[name]) for other in moved)
        plainly = max((distance(other[name], true[name]) for other, true in judged), default=0.0)
        allowed = precision * (TWICE * operations * plainly + floor) + eps * size(truth[name])
        error = distance(value, truth[name])
        assert error <= allowed, f"{label}{name}: error {error:.3g}, allowed {allowed:.3g}, largest value {size(truth[name]):.3g}"


def assert_same(one: Results, other: Results, single: Sequence[Results], moved: Sequence[Results], label: str = "") -> None:
    """Two ways of computing the same numbers in float64 agree.

    single: results of plain arithmetic in float32; moved: those in float64 for inputs next to these in float32.
    """
    assert_as_accurate(one, single, other, moved, operations=2, precision=DOUBLE, label=label)
