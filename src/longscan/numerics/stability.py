"""Factors of a recurrence that stay stable whatever their parameter is (Wang and Li 2024, "StableSSM"; S7, equation 4)."""

import torch
from torch import Tensor


def stable_factor(w: Tensor, a: float = 1.0, b: float = 0.5) -> Tensor:
    """Return the factor f(w) = 1 - 1 / (a w^2 + b), in [-1, 1) for a > 0 and b >= 1/2.

    Its derivative f'(w) = 2 a w / (a w^2 + b)^2 is 0 at w = 0 and vanishes towards f = 1 as (1 - f)^{3/2}, so that the gradient
    of a loss with respect to w stays bounded however long the memory is.
    """
    return 1 - 1 / (a * w.square() + b)


def stable_parameter(factor: Tensor, a: float = 1.0, b: float = 0.5) -> Tensor:
    """Return the w >= 0 with f(w) = factor, for factors in [1 - 1/b, 1); NaN elsewhere."""
    return torch.sqrt((1 / (1 - factor) - b) / a)
