"""Complex arithmetic on real pairs: a number is the last axis (real part, imaginary part).

Layers use these instead of complex tensors, so that compiled graphs contain real arithmetic only and casts preserve both parts.
"""

import torch
from torch import Tensor
from torch.nn.functional import linear


def constant(like: Tensor, real: float, imaginary: float) -> Tensor:
    """Return a constant as a pair (2,), of the dtype and on the device of `like`.

    It is filled on the device, because a CUDA graph cannot record a copy from the host.
    """
    return torch.stack([like.new_full((), real), like.new_full((), imaginary)])


def multiply(x: Tensor, y: Tensor) -> Tensor:
    """Return x y for pairs (..., 2), broadcasting over the other axes."""
    (xr, xi), (yr, yi) = x.unbind(-1), y.unbind(-1)
    return torch.stack([xr * yr - xi * yi, xr * yi + xi * yr], -1)


def divide(x: Tensor, y: Tensor) -> Tensor:
    """Return x / y for pairs (..., 2); y must not be zero."""
    (xr, xi), (yr, yi) = x.unbind(-1), y.unbind(-1)
    size = yr.square() + yi.square()
    return torch.stack([(xr * yr + xi * yi) / size, (xi * yr - xr * yi) / size], -1)


def _parts(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return real and imaginary parts, each contiguous: torch does not vectorise transcendental functions of strided data."""
    return x[..., 0].contiguous(), x[..., 1].contiguous()


def polar(modulus: Tensor, angle: Tensor) -> Tensor:
    """Return modulus e^{i angle} as pairs (..., 2); angle in radians."""
    return torch.stack([modulus * angle.cos(), modulus * angle.sin()], -1)


def exponential(x: Tensor) -> Tensor:
    """Return e^x for pairs (..., 2)."""
    real, angle = _parts(x)
    return polar(real.exp(), angle)


def exponential_minus_one(x: Tensor) -> Tensor:
    """Return e^x - 1 for pairs (..., 2), without cancellation near x = 0.

    With g = e^r - 1 and s, c the sine and cosine of half the angle: e^r cos a - 1 = g - 2 (1 + g) s^2, e^r sin a = 2 (1 + g) s c.
    """
    real, angle = _parts(x)
    growth, half = real.expm1(), angle / 2
    sine = half.sin()
    twice = 2 * (growth + 1) * sine
    return torch.stack([growth - twice * sine, twice * half.cos()], -1)


def from_real(x: Tensor, matrix: Tensor) -> Tensor:
    """Return matrix x for real x (..., D) and a complex matrix (N, D, 2): pairs (..., N, 2)."""
    rows = matrix.transpose(1, 2).reshape(-1, matrix.shape[1])
    return linear(x, rows).view(*x.shape[:-1], len(matrix), 2)


def real_part(x: Tensor, matrix: Tensor) -> Tensor:
    """Return Re(matrix x) for pairs x (..., N, 2) and a complex matrix (D, N, 2): real (..., D), in the dtype of the matrix."""
    rows = torch.cat([matrix[..., :1], -matrix[..., 1:]], -1).flatten(1)
    return linear(x.flatten(-2).to(rows.dtype), rows)
