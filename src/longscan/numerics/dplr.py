"""Diagonal plus low rank: systems x' = (Lambda - P P*) x + B u under the bilinear rule (Gu, Goel and Ré 2022, S4, appendix C).

Of every conjugate pair of states one is stored, as a real pair: x, Lambda, P, B are (..., N/2, 2). In real form a state is one
vector of the N numbers stored; matrices (N, N) act on that. Products with P* go over both halves: P* x = 2 sum Re(conj(P) x).
"""

import math

import torch
from torch import Tensor

from longscan.numerics.pairs import constant, divide, multiply


def _inner(p: Tensor, x: Tensor) -> Tensor:
    """Return the inner product P* x, (..., 1, 1)."""
    return 2 * (p * x).sum((-2, -1), keepdim=True)


def bilinear_solver(eigenvalues: Tensor, low_rank: Tensor, dt: Tensor) -> tuple[Tensor, Tensor]:
    """Return (r, g) with (1 - dt/2 A)^{-1} v = r v - g P* (r v), by Woodbury's identity; dt (...) without the last two axes."""
    half = dt[..., None, None] / 2
    one = constant(eigenvalues, 1.0, 0.0)
    diagonal = divide(one, one - half * eigenvalues)
    direction = multiply(diagonal, low_rank)
    return diagonal, half * direction / (1 + half * _inner(low_rank, direction))


def bilinear_step(solver: tuple[Tensor, Tensor], low_rank: Tensor, x: Tensor, drive: Tensor) -> Tensor:
    """Return the next state (1 - dt/2 A)^{-1} ((1 + dt/2 A) x + drive) in O(N), drive = dt B u; solver from `bilinear_solver`.

    It is (1 - dt/2 A)^{-1} (2 x + drive) - x, one diagonal and one rank-1 product.
    """
    diagonal, correction = solver
    scaled = multiply(diagonal, 2 * x + drive)
    return scaled - correction * _inner(low_rank, scaled) - x


def dense_step(eigenvalues: Tensor, low_rank: Tensor, B: Tensor, dt: Tensor) -> tuple[Tensor, Tensor]:
    """Return the step of `bilinear_step` in real form, A_bar (D, N, N) and B_bar (D, N); parameters (D, N/2, 2), dt (D,)."""
    size = 2 * eigenvalues.shape[-2]
    solver = bilinear_solver(eigenvalues, low_rank, dt)
    basis = torch.eye(size, dtype=B.dtype, device=B.device).view(size, 1, size // 2, 2)
    columns = bilinear_step(solver, low_rank, basis, torch.zeros_like(B))
    zero = torch.zeros_like(B)
    return columns.flatten(-2).permute(1, 2, 0), bilinear_step(solver, low_rank, zero, dt[:, None, None] * B).flatten(-2)


def bilinear_frequencies(angle: Tensor, damping: float = 0.0) -> Tensor:
    """Return 2 sinh(w), cosh(w) and e^w for w = (damping + i angle) / 2, as pairs (3, F, 2); angle: (F,).

    The transform of the kernel at damping + i angle is dt e^w C (2 sinh(w) - dt cosh(w) A)^{-1} B.
    """
    cosine, sine = (angle / 2).cos(), (angle / 2).sin()
    sinh, cosh, exp = (function(damping / 2) for function in (math.sinh, math.cosh, math.exp))
    rows = ((2 * sinh * cosine, 2 * cosh * sine), (cosh * cosine, sinh * sine), (exp * cosine, exp * sine))
    return torch.stack([torch.stack(row, -1) for row in rows])


def spectrum(
    angle: Tensor, eigenvalues: Tensor, low_rank: Tensor, B: Tensor, C: Tensor, dt: Tensor, damping: float = 0.0
) -> Tensor:
    """Return sum_{l>=0} K_l e^{-(damping + i angle) l}, K_l = 2 Re(C A_bar^l B_bar), as pairs (D, F, 2).

    angle: (F,) in [0, pi]; damping: at least 0. Parameters are (D, N/2, 2), dt (D,). With w = (damping + i angle) / 2,
    a = 2 sinh(w) and t = dt cosh(w) it is dt e^w C (a - t A)^{-1} B: four sums of Cauchy's kind over the N/2 poles, (C, B),
    (C, P), (P, P), (P, B), and Woodbury's identity. No pole lies on the unit circle. For the kernel cut off after L steps take
    C (1 - A_bar^L) for C, at the L-th roots of unity, without damping.
    """
    conjugate = low_rank * constant(low_rank, 1.0, -1.0)
    products = torch.stack([multiply(C, B), multiply(C, low_rank), multiply(conjugate, low_rank), multiply(conjugate, B)])
    # v / (a - t lambda) + its partner is (2 a Re v - 2 t Re(v conj(lambda))) / (a^2 - 2 a t Re lambda + t^2 |lambda|^2)
    weights = 2 * torch.cat([products[..., 0], (products * eigenvalues).sum(-1)]).permute(1, 2, 0)  # (D, N/2, 8)
    a, cosh, exponential = bilinear_frequencies(angle, damping)
    powers = torch.stack([multiply(a, a), multiply(a, cosh), multiply(cosh, cosh)], -2)  # (F, 3, 2)
    step = dt.unsqueeze(-1)
    negative = -2 * step * eigenvalues[..., 0]
    factors = torch.stack([torch.ones_like(negative), negative, step.square() * eigenvalues.square().sum(-1)], 1)
    real, imaginary = powers[..., 0] @ factors, powers[..., 1] @ factors  # of the denominators, (D, F, N/2)
    # rsqrt: the gradient of reciprocal has the square of `inverse`, which overflows float32 for steps below 3e-5.
    inverse = (real.square() + imaginary.square()).rsqrt().square()
    # Real and imaginary parts of the sums with a and of those with t, (D, F, 4) each: pairs of them would take a tenth more time.
    (u_r, v_r), (u_i, v_i) = (((part * inverse) @ weights).chunk(2, -1) for part in (real, -imaginary))
    t = step.unsqueeze(-1) * cosh  # (D, F, 2)
    (a_r, a_i), (t_r, t_i) = (x.unsqueeze(-2).unbind(-1) for x in (a, t))
    sums_r, sums_i = a_r * u_r - a_i * u_i - t_r * v_r + t_i * v_i, a_r * u_i + a_i * u_r - t_r * v_i - t_i * v_r
    cb, cp, pp, pb = torch.stack([sums_r, sums_i], -1).unbind(-2)
    correction = divide(multiply(cp, pb), constant(t, 1.0, 0.0) + multiply(t, pp))
    return step.unsqueeze(-1) * multiply(exponential, cb - multiply(t, correction))
