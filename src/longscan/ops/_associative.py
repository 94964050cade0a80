"""The recurrence x_t = a_t x_{t-1} + b_t in plain torch without a loop over time.

Odd-even recursion: pairs of steps are joined into one, the scan of half the length gives the states at odd steps, one more
update gives those at even steps. About two updates an element, log2(L) deep, no division, so nothing overflows when a decays.
(Blelloch, "Prefix sums and their applications", 1990; Martin and Cundy, arXiv:1709.04057.)
"""

from collections.abc import Callable

import torch
from torch import Tensor

from longscan.ops._arguments import carry_dtype

Multiply = Callable[[Tensor, Tensor], Tensor]


def affine_scan(a: Tensor, b: Tensor, state: Tensor, multiply: Multiply = torch.mul) -> Tensor:
    """All states x_t = a_t x_{t-1} + b_t along axis 1, at least one step.

    a, b: (B, L, *S), a may have size 1 in any axis of S; state: (B, *S), the x before the first step. Returns (B, L, *S).

    Products of factors are formed in float64 and rounded where they are applied: in float32 the product of two numbers just
    below 1 loses its last term, (1 - d)^2 = 1 - 2d + d^2, always in the same direction, and long memories drift.
    """
    length, factor, wide = b.shape[1], a.to(b.dtype), carry_dtype(b)
    if length == 1:
        return multiply(factor, state.unsqueeze(1)) + b
    half = length // 2
    product = multiply(a[:, 1::2].to(wide), a[:, : 2 * half : 2].to(wide))
    joined = multiply(factor[:, 1::2], b[:, : 2 * half : 2]) + b[:, 1::2]
    odd = affine_scan(product, joined, state, multiply)
    before_even = torch.cat([state.unsqueeze(1), odd[:, : length - half - 1]], 1)
    even = multiply(factor[:, ::2], before_even) + b[:, ::2]
    interleaved = torch.stack([even[:, :half], odd], 2).flatten(1, 2)
    return interleaved if length % 2 == 0 else torch.cat([interleaved, even[:, half:]], 1)
