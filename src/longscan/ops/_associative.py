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
Affine = Callable[[Tensor, Tensor, Tensor], Tensor]


def affine_scan(a: Tensor, b: Tensor, state: Tensor, multiply: Multiply = torch.mul, affine: Affine | None = None) -> Tensor:
    """All states x_t = a_t x_{t-1} + b_t along axis 1, at least one step.

    a, b: (B, L, *S), a may have size 1 in any axis, in L where it does not change in time; state: (B, *S), the x before the first
    step; multiply: the product of two; affine: a x + b, given a, x and b, of fewer operations than `multiply` and a sum. Returns
    (B, L, *S).

    Products of factors are formed in float64 and rounded where they are applied: in float32 the product of two numbers just
    below 1 loses its last term, (1 - d)^2 = 1 - 2d + d^2, always in the same direction, and long memories drift.
    """

    def apply(a: Tensor, x: Tensor, b: Tensor) -> Tensor:
        return multiply(a, x) + b if affine is None else affine(a, x, b)

    length, factor, wide = b.shape[1], a.to(b.dtype), carry_dtype(b)
    if length == 1:
        return apply(factor, state.unsqueeze(1), b)
    if length % 2:
        (a, _), (_, last_factor), (b, last) = (_split(x, [length - 1, 1]) for x in (a, factor, b))
        states = affine_scan(a, b, state, multiply, affine)
        return torch.cat([states, apply(last_factor, states[:, -1:], last)], 1)
    (a1, a2), (factor1, factor2), (b1, b2) = (_pairs(x) for x in (a, factor, b))
    second = affine_scan(multiply(a2.to(wide), a1.to(wide)), apply(factor2, b1, b2), state, multiply, affine)
    before = torch.cat([state.unsqueeze(1), second[:, :-1]], 1)
    return torch.stack([apply(factor1, before, b1), second], 2).flatten(1, 2)


def _split(x: Tensor, lengths: list[int]) -> tuple[Tensor, ...]:
    """Steps of both parts; a constant factor stands for all of them."""
    return (x, x) if x.shape[1] == 1 else torch.split(x, lengths, 1)


def _pairs(x: Tensor) -> tuple[Tensor, ...]:
    """The first and the second step of every pair; a constant factor stands for both."""
    return (x, x) if x.shape[1] == 1 else x.reshape(x.shape[0], x.shape[1] // 2, 2, *x.shape[2:]).unbind(2)
