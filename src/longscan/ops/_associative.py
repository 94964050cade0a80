"""The recurrence x_t = a_t x_{t-1} + b_t in plain torch without a loop over time.

Odd-even recursion: pairs of steps are joined into one, the scan of half the length gives the states at odd steps, one more
update gives those at even steps. About two updates an element, log2(L) deep, no division, so nothing overflows when a decays.
(Blelloch, "Prefix sums and their applications", 1990; Martin and Cundy, arXiv:1709.04057.)
"""

from collections.abc import Callable

import torch
from torch import Tensor

Multiply = Callable[[Tensor, Tensor], Tensor]


def affine_scan(a: Tensor, b: Tensor, state: Tensor, multiply: Multiply = torch.mul) -> Tensor:
    """All states x_t = a_t x_{t-1} + b_t along axis 1, at least one step.

    a, b: (B, L, *S), a may have size 1 in any axis of S; state: (B, *S), the x before the first step. Returns (B, L, *S).
    """
    length = b.shape[1]
    if length == 1:
        return multiply(a, state.unsqueeze(1)) + b
    half = length // 2
    odd_a = a[:, 1::2]
    odd = affine_scan(
        multiply(odd_a, a[:, : 2 * half : 2]), multiply(odd_a, b[:, : 2 * half : 2]) + b[:, 1::2], state, multiply
    )
    before_even = torch.cat([state.unsqueeze(1), odd[:, : length - half - 1]], 1)
    even = multiply(a[:, ::2], before_even) + b[:, ::2]
    interleaved = torch.stack([even[:, :half], odd], 2).flatten(1, 2)
    return interleaved if length % 2 == 0 else torch.cat([interleaved, even[:, half:]], 1)
