"""Steps of forced oscillators y'' = -A y + f, written with the velocity z = y' (Rusch and Rus 2025, LinOSS, section 2)."""

from typing import Literal

import torch
from torch import Tensor

OscillatorRule = Literal["im", "imex"]
OSCILLATOR_RULES = ("im", "imex")


def oscillator_step(stiffness: Tensor, dt: Tensor, rule: OscillatorRule = "im") -> tuple[Tensor, Tensor]:
    """Return M (..., 2, 2) and F (..., 2) of one step (z, y)_k = M (z, y)_{k-1} + F f_k of length dt.

    im: z_k = z_{k-1} + dt (-A y_k + f_k), y_k = y_{k-1} + dt z_k, implicit: both eigenvalues of M have the modulus
    1 / sqrt(1 + dt^2 A) (equations 3 and 4). imex: the same with A y_{k-1}, symplectic: modulus 1 while dt^2 A < 4 (equations 5
    and 6). Both are of first order.

    Args:
        stiffness: A (...), not negative.
        dt: (...), positive, broadcast against A.
        rule: "im" or "imex"; anything else raises ValueError.
    """
    if rule not in OSCILLATOR_RULES:
        raise ValueError(f"`rule` must be one of {OSCILLATOR_RULES}, got {rule!r}")
    dt_stiffness = dt * stiffness
    dt = dt.expand_as(dt_stiffness)
    if rule == "im":
        schur = 1 / (1 + dt * dt_stiffness)
        entries = (schur, -dt_stiffness * schur, dt * schur, schur)
        inputs = (dt * schur, dt.square() * schur)
    else:
        entries = (torch.ones_like(dt_stiffness), -dt_stiffness, dt, 1 - dt * dt_stiffness)
        inputs = (dt, dt.square())
    return torch.stack(entries, -1).view(*dt_stiffness.shape, 2, 2), torch.stack(inputs, -1)
