"""Initial values of parameters: eigenvalues and complex coefficients, float64 as real pairs (..., 2); weights of linear maps."""

import math
from typing import Literal

import torch
from torch import Tensor

from longscan.numerics.hippo import legs_normal

Diagonal = Literal["lin", "inv", "legs", "real"]
DIAGONALS = ("lin", "inv", "legs", "real")


def uniform_fan_in(*shape: int, fan_in: int, dtype: torch.dtype | None = None) -> Tensor:
    """Return numbers that are uniform on [-fan_in^-1/2, fan_in^-1/2], as PyTorch initialises linear maps.

    fan_in: number of inputs of the map. dtype: None for torch's default dtype.
    """
    return torch.empty(shape, dtype=dtype).uniform_(-1 / math.sqrt(fan_in), 1 / math.sqrt(fan_in))


def complex_normal(shape: tuple[int, ...], *, variance: float = 1.0) -> Tensor:
    """Return complex normal numbers as pairs (*shape, 2): both parts N(0, variance / 2)."""
    return torch.randn(*shape, 2, dtype=torch.float64) * math.sqrt(variance / 2)


def diagonal_eigenvalues(d_state: int, kind: Diagonal = "lin") -> Tensor:
    """Return the S4D initial eigenvalues (N/2, 2), one of each conjugate pair (Gu et al. 2022, S4D, section 4.3).

    lin: -1/2 + i pi n. inv: -1/2 + i (N/pi) (N/(2n+1) - 1). legs: eigenvalues of the normal part of HiPPO-LegS, real part
    -1/2. real: -(n+1). n runs over 0..N/2-1; N = d_state must be even (ValueError).
    """
    if d_state < 2 or d_state % 2:
        raise ValueError(f"`d_state` must be an even number of at least 2 (conjugate pairs), got {d_state}")
    n = torch.arange(d_state // 2, dtype=torch.float64)
    half = torch.full_like(n, -0.5)
    if kind == "lin":
        return torch.stack([half, math.pi * n], -1)
    if kind == "inv":
        return torch.stack([half, d_state / math.pi * (d_state / (2 * n + 1) - 1)], -1)
    if kind == "legs":
        return torch.view_as_real(legs_normal(d_state)[0])
    if kind == "real":
        return torch.stack([-(n + 1), torch.zeros_like(n)], -1)
    raise ValueError(f"`init` must be one of {DIAGONALS}, got {kind!r}")


def diagonal_input(d_state: int, kind: Diagonal = "lin") -> Tensor:
    """Return the input coefficients B (N/2, 2) for `diagonal_eigenvalues`: HiPPO's in its eigenbasis for legs, else ones."""
    if kind == "legs":
        return torch.view_as_real(legs_normal(d_state)[1])
    return torch.stack([torch.ones(d_state // 2, dtype=torch.float64), torch.zeros(d_state // 2, dtype=torch.float64)], -1)


def ring(size: int, r_min: float, r_max: float, max_phase: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return (nu, phi, log_gamma), each (N,), of eigenvalues e^{-e^nu + i e^phi} uniform on a ring (Orvieto 2023, lemma 3.2).

    |lambda|^2 is uniform on [r_min^2, r_max^2], the phase on [0, max_phase]; gamma = sqrt(1 - |lambda|^2) normalises the input.
    Raises ValueError unless 0 <= r_min < r_max <= 1 and max_phase > 0.
    """
    if not 0 <= r_min < r_max <= 1:
        raise ValueError(f"`r_min` and `r_max` must be 0 <= r_min < r_max <= 1, got {r_min} and {r_max}")
    if not max_phase > 0:
        raise ValueError(f"`max_phase` must be a positive angle, got {max_phase}")
    # The open interval (0, 1): at its ends a logarithm below would be infinite.
    uniform = torch.rand(2, size, dtype=torch.float64).clamp(1e-12, 1 - 1e-12)
    squared = uniform[0] * (r_max**2 - r_min**2) + r_min**2
    nu = torch.log(-0.5 * torch.log(squared))
    phi = torch.log(max_phase * uniform[1])
    return nu, phi, 0.5 * torch.log1p(-squared)
