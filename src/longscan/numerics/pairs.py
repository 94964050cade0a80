"""Complex arithmetic on real pairs: a number is the last axis (real part, imaginary part).

Layers use these instead of complex tensors, so that compiled graphs hold real arithmetic only and casts keep both parts.
"""

import torch
from torch import Tensor


def multiply(x: Tensor, y: Tensor) -> Tensor:
    """x y for pairs (..., 2), broadcasting over the other axes."""
    (xr, xi), (yr, yi) = x.unbind(-1), y.unbind(-1)
    return torch.stack([xr * yr - xi * yi, xr * yi + xi * yr], -1)


def divide(x: Tensor, y: Tensor) -> Tensor:
    """x / y for pairs (..., 2); y must not be zero."""
    (xr, xi), (yr, yi) = x.unbind(-1), y.unbind(-1)
    size = yr.square() + yi.square()
    return torch.stack([(xr * yr + xi * yi) / size, (xi * yr - xr * yi) / size], -1)


def polar(modulus: Tensor, angle: Tensor) -> Tensor:
    """modulus e^{i angle} as pairs (..., 2); angle in radians."""
    return torch.stack([modulus * angle.cos(), modulus * angle.sin()], -1)


def exponential(x: Tensor) -> Tensor:
    """e^x for pairs (..., 2)."""
    return polar(x[..., 0].exp(), x[..., 1])


def exponential_minus_one(x: Tensor) -> Tensor:
    """e^x - 1 for pairs (..., 2), without cancellation near x = 0: e^r cos a - 1 = expm1(r) cos a - 2 sin^2(a/2)."""
    real, angle = x.unbind(-1)
    return torch.stack([real.expm1() * angle.cos() - 2 * (angle / 2).sin().square(), real.exp() * angle.sin()], -1)
