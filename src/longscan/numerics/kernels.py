"""Long convolutions that equal a diagonal recurrence with constant eigenvalues: kernels and final states, as in S4D, section 3.3.

A power a^l is a product of a coarse and a fine one, a^{qT} a^r with l = qT + r, T about sqrt(L): a kernel is then one matrix
product per channel, and only 2 sqrt(L) exponentials per eigenvalue are taken, with exponents in float64 (l times a float32
angle would lose the phase of long kernels). Numbers are real pairs (..., 2).
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

from longscan.numerics.pairs import exponential, multiply
from longscan.numerics.symbolic import is_symbolic


def power(log_a: Tensor, exponents: Tensor) -> Tensor:
    """Return a^exponents, pairs (..., 2), for log_a = (log |a|, angle), (..., 2), and integers `exponents` (...); broadcasts.

    Exponents times logarithms are float64, except on devices without it (MPS).
    """
    wide = log_a.dtype if log_a.device.type == "mps" else torch.float64
    logs = exponents.to(wide).unsqueeze(-1) * log_a.to(wide)
    return exponential(torch.stack([logs[..., 0], logs[..., 1].remainder(2 * math.pi)], -1).to(log_a.dtype))


def powers(log_a: Tensor, count: int, stride: int = 1) -> Tensor:
    """Return a^0, a^stride, ..., a^{(count-1) stride}, (..., count, 2), for log_a (..., 2) as in `power`."""
    return power(log_a.unsqueeze(-2), torch.arange(0, count * stride, stride, device=log_a.device))


def _split(length: int) -> tuple[int, int]:
    """Return (Q, T) with Q T >= length and T about sqrt(length).

    A symbolic length gives T = 32 and a Q of at least 2 with Q T > length, so that a graph does not depend on whether Q is 1 or
    Q T is equal to the length.
    """
    if is_symbolic(length):
        return length // 32 + 2, 32
    fine = max(1, math.isqrt(length))
    return -(-length // fine), fine


def diagonal_kernel(log_a: Tensor, coefficients: Tensor, length: int) -> Tensor:
    """Return the kernel K_l = 2 Re sum_n c_n a_n^l, l = 0..length-1.

    log_a: (D, N, 2), from `discretisation.log_step`. coefficients c: (..., D, N, 2). Returns (..., D, length).
    """
    coarse_count, fine_count = _split(length)
    fine = powers(log_a, fine_count)  # (D, N, T, 2)
    coarse = multiply(coefficients.unsqueeze(-2), powers(log_a, coarse_count, fine_count))  # (..., D, N, Q, 2)
    left = torch.cat([coarse[..., 0], -coarse[..., 1]], -2).transpose(-1, -2)
    right = torch.cat([fine[..., 0], fine[..., 1]], -2)
    return 2 * (left @ right).flatten(-2)[..., :length]


def diagonal_final_state(log_a: Tensor, u: Tensor) -> Tensor:
    """Return sum_l a^{L-1-l} u_l, the final state of the recurrence x_l = a x_{l-1} + u_l.

    log_a: (D, N, 2); u: (B, L, D), real. Returns (B, D, N, 2).
    """
    length = u.shape[1]
    coarse_count, fine_count = _split(length)
    latest_first = pad(u.flip(1).transpose(1, 2), (0, coarse_count * fine_count - length))
    latest_first = latest_first.view(*latest_first.shape[:2], coarse_count, fine_count)
    fine = powers(log_a, fine_count).permute(0, 2, 1, 3).flatten(-2)  # (D, T, 2N)
    inner = (latest_first @ fine).view(*latest_first.shape[:3], log_a.shape[1], 2)  # (B, D, Q, N, 2)
    return multiply(inner, powers(log_a, coarse_count, fine_count).transpose(1, 2)).sum(2)
