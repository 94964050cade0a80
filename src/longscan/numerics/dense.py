"""Recurrences x_k = A x_{k-1} + B u_k with a dense real matrix for every channel, computed for many steps together.

Powers A^l are split as A^{qT} A^r, l = qT + r with T about sqrt(L): T + Q vectors and one power are formed instead of L.
A: (D, N, N); B, c: (D, N).
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import pad


def _apply(A: Tensor, x: Tensor) -> Tensor:
    """Return A x for columns x (..., D, N, c); unlike `A @ x` it makes no copy of A for every row of a batch."""
    return torch.einsum("dnm,...dmc->...dnc", A, x)


def krylov(A: Tensor, v: Tensor, count: int) -> Tensor:
    """Return v, A v, ..., A^{count-1} v as columns (..., D, N, count), by doubling; v (..., D, N)."""
    columns = v.unsqueeze(-1)
    while columns.shape[-1] < count:
        columns = torch.cat([columns, _apply(A, columns)], -1)
        A = A @ A
    return columns[..., :count]


def _split(length: int) -> tuple[int, int]:
    """Return (Q, T) with Q T >= length and T about sqrt(length)."""
    fine = max(1, math.isqrt(length))
    return -(-length // fine), fine


def decay(A: Tensor, c: Tensor, start: Tensor, length: int) -> Tensor:
    """Return c A^{k+1} x_0, k = 0..length-1: the outputs (B, D, length) for an initial state x_0 (B, D, N) and no input."""
    coarse_count, fine_count = _split(length)
    fine = krylov(A, _apply(A, start.unsqueeze(-1)).squeeze(-1), fine_count)
    coarse = krylov(torch.linalg.matrix_power(A, fine_count).mT, c, coarse_count)
    return torch.einsum("dnq,bdnt->bdqt", coarse, fine).flatten(-2)[..., :length]


def final_state(A: Tensor, B: Tensor, u: Tensor, start: Tensor | None, count: Tensor) -> Tensor:
    """Return A^count x_0 + sum_l A^{L-1-l} B u_l, (B, D, N): the state after the last `count` (B,) steps of each row.

    u: (B, L, D), 0 before these steps; start x_0: (B, D, N), or None for 0.
    """
    length = u.shape[1]
    coarse_count, fine_count = _split(length)
    latest_first = pad(u.flip(1).transpose(1, 2), (0, coarse_count * fine_count - length))
    blocks = latest_first.unflatten(-1, (coarse_count, fine_count))  # type: ignore[no-untyped-call]
    inner = torch.einsum("bdqt,dnt->qbdn", blocks, krylov(A, B, fine_count))
    jump = torch.linalg.matrix_power(A, fine_count)
    advanced_start = torch.zeros_like(inner[0]) if start is None else _fine_power(A, start, count % fine_count, fine_count)
    quotient = (count // fine_count).view(-1, 1, 1)
    state = torch.zeros_like(advanced_start)
    for q in range(coarse_count - 1, -1, -1):  # x_0 is added where the number of remaining blocks equals its quotient
        before = state + torch.where(quotient == q + 1, advanced_start, 0)
        state = _apply(jump, before.unsqueeze(-1)).squeeze(-1) + inner[q]
    return state + torch.where(quotient == 0, advanced_start, 0)


def _fine_power(A: Tensor, start: Tensor, exponent: Tensor, limit: int) -> Tensor:
    """Return A^exponent x_0 for each row, with exponents (B,) below `limit`."""
    columns = krylov(A, start, limit)
    return columns.gather(-1, exponent.view(-1, 1, 1, 1).expand(*columns.shape[:-1], 1)).squeeze(-1)
