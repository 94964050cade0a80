"""The largest error that a result may have, by the same rule in the tests and in `longscan doctor`.

The reference is computed in float64. A fast result may have twice the error of plain arithmetic of the same precision, plus a few
times the change of the float64 result when every input is replaced by a neighbouring number of that precision, plus the
rounding of the result itself. So each tolerance follows from the inputs and outputs, and none is chosen by hand.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

PLAIN_FACTOR = 2  # factor of the error of plain arithmetic
INPUT_FACTOR = 4  # an element of a scan passes about eight operations, of half an eps each, for each input that it depends on
PERTURBED_COPIES = 2  # number of perturbed copies of the inputs


def real_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of the real and imaginary parts of numbers of `dtype`."""
    return torch.zeros((), dtype=dtype).abs().dtype


def perturb(x: Tensor, eps: float, generator: torch.Generator) -> Tensor:
    """Return `x` with every real and imaginary part changed by a relative eps, up or down at random."""
    parts = torch.view_as_real(x) if x.is_complex() else x
    signs = torch.randint(0, 2, parts.shape, generator=generator, device=generator.device).to(parts) * 2 - 1
    perturbed = parts * (1 + signs * eps)
    return torch.view_as_complex(perturbed) if x.is_complex() else perturbed


def largest_error(x: Tensor, truth: Tensor) -> float:
    """Return the largest absolute error of `x`; infinite if `x` has a NaN or another shape than `truth`.

    Elements whose true value exceeds half the largest number of the dtype of `x` are left out.
    """
    if x.shape != truth.shape:
        return float("inf")
    wide = torch.complex128 if truth.is_complex() else torch.float64
    representable = truth.abs() < torch.finfo(real_dtype(x.dtype)).max / 2
    error = (x.to(wide) - truth.to(wide)).abs()[representable]
    return float("inf") if error.isnan().any() else error.max().item() if error.numel() else 0.0


def largest_value(truth: Tensor) -> float:
    """Return the largest absolute value in `truth`; 0 if it is empty."""
    return truth.abs().max().item() if truth.numel() else 0.0


def allowed_error(
    dtype: torch.dtype,
    plain: Sequence[Tensor],
    truth: Tensor,
    perturbed: Sequence[Tensor],
    plain_perturbed: Sequence[Tensor] = (),
    operations: float = 1,
    precision: float = 1,
) -> float:
    """Return the largest error that a fast result of `dtype` may have.

    Args:
        dtype: the dtype of the fast result.
        plain: the same result by plain arithmetic of one precision, computed in one or more ways; the worst one counts.
        truth: the result in float64.
        perturbed: the results in float64 for perturbed inputs.
        plain_perturbed: the plain results for the inputs of `perturbed`, so that an accidentally small rounding error of `plain`
            does not decide.
        operations: number of rounded operations of the fast result for one of `plain`.
        precision: machine epsilon of the fast result divided by that of `plain` and `perturbed`.
    """
    compared = [(result, truth) for result in plain] + list(zip(plain_perturbed, perturbed, strict=bool(plain_perturbed)))
    plain_error = max((largest_error(result, exact) for result, exact in compared), default=0.0)
    input_error = max(largest_error(other, truth) for other in perturbed)
    rounding = torch.finfo(real_dtype(dtype)).eps * largest_value(truth)
    return precision * (PLAIN_FACTOR * operations * plain_error + INPUT_FACTOR * input_error) + rounding
