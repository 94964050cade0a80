"""Initial step sizes dt of the layers: their distribution, and the form in which they are stored.

dt is log-uniform on [dt_min, dt_max] (S4D, section 4; Mamba, section 3.6), stored as its logarithm or as the inverse of
the softplus that later makes it positive.
"""

import math

import torch
from torch import Tensor


def inverse_softplus(x: Tensor) -> Tensor:
    """Return the y with softplus(y) = x > 0, as x + log(1 - e^{-x}), which is exact for small and for large x."""
    return x + torch.log(-torch.expm1(-x))


def log_uniform(
    shape: tuple[int, ...], low: float, high: float, *, floor: float = 0.0, generator: torch.Generator | None = None
) -> Tensor:
    """Return positive numbers whose logarithms are uniform on [log low, log high], raised to at least `floor`; float64.

    Raises ValueError unless 0 < low <= high.
    """
    if not 0 < low <= high:
        raise ValueError(f"`dt_min` and `dt_max` must be 0 < dt_min <= dt_max, got {low} and {high}")
    uniform = torch.rand(shape, dtype=torch.float64, generator=generator)
    return torch.exp(math.log(low) + uniform * (math.log(high) - math.log(low))).clamp(min=floor)


def initial_dt(
    shape: tuple[int, ...], dt_min: float, dt_max: float, *, stored_as: str, generator: torch.Generator | None = None
) -> Tensor:
    """Return the stored parameter of random initial step sizes, float64.

    stored_as: "log" (read back by exp; S4D) or "softplus" (read back by softplus; Mamba, which also floors dt at 1e-4).
    """
    if stored_as == "log":
        return log_uniform(shape, dt_min, dt_max, generator=generator).log()
    if stored_as == "softplus":
        return inverse_softplus(log_uniform(shape, dt_min, dt_max, floor=1e-4, generator=generator))
    raise ValueError(f"`stored_as` must be 'log' or 'softplus', got {stored_as!r}")
