"""The recurrence x_t = a_t x_{t-1} + b_t in plain torch without a loop over time.

Odd-even recursion: pairs of steps are combined into one, the scan of half the length gives the states at odd steps, and one more
update gives those at even steps. It takes about two updates for each element and has depth log2(L). It does not divide, so
nothing overflows when a decays. (Blelloch, "Prefix sums and their applications", 1990; Martin and Cundy, arXiv:1709.04057.)

Where a sequence starts inside the row, the earlier state is dropped by a selection, not by a factor of 0 (the segmented scan of
Blelloch, section 1.5): a NaN or an infinity of one sequence reaches neither the states nor the gradients of another one.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from longscan._tensor_types import OptionalTensor
from longscan.ops.arguments import carry_dtype
from longscan.ops.tracing import fix_length

Multiply = Callable[[Tensor, Tensor], Tensor]
Affine = Callable[[Tensor, Tensor, Tensor], Tensor]


def affine_scan(
    a: Tensor,
    b: Tensor,
    state: Tensor,
    multiply: Multiply = torch.mul,
    affine: Affine | None = None,
    reset: Tensor | None = None,
) -> Tensor:
    """Return all states x_t = a_t x_{t-1} + b_t along axis 1; there must be at least one step.

    Args:
        a, b: (B, L, *S). a may have size 1 in any axis; its axis of length L has size 1 if it does not change over time.
        state: (B, *S), the x before the first step.
        multiply: function that returns the product of two factors, or of a factor and a state.
        affine: function that returns a x + b, given a, x and b, in fewer operations than `multiply` and a sum; None to use these.
        reset: bool (B, L, 1, ...) with the axes of b; where True, x_t = b_t. None if the state never restarts.

    Returns:
        x (B, L, *S).

    Products of factors are formed in float64 and rounded where they are applied: in float32 the product of two numbers just
    below 1 loses its last term, (1 - d)^2 = 1 - 2d + d^2, always in the same direction, so that states that decay slowly drift.
    """

    b, _ = fix_length(b)
    return _scan(_zero_where(reset, a), b, state, reset, multiply, affine)


# Not a function inside of `affine_scan`: one that calls itself is part of a reference cycle, which would keep `state` and its
# autograd graph allocated until Python's garbage collector runs.
def _scan(a: Tensor, b: Tensor, state: Tensor, reset: OptionalTensor, multiply: Multiply, affine: Affine | None) -> Tensor:
    """Return what `affine_scan` returns.

    a is 0 wherever `reset` is True, so that no factor of an earlier sequence is multiplied with a later gradient.
    """

    def apply(a: Tensor, x: Tensor, b: Tensor, reset: OptionalTensor) -> Tensor:
        x = _zero_where(reset, x)
        return multiply(a, x) + b if affine is None else affine(a, x, b)

    length, factor, wide = b.shape[1], a.to(b.dtype), carry_dtype(b)
    if length == 1:
        return apply(factor, state.unsqueeze(1), b, reset)
    if length % 2:
        (a, _), (_, last_factor), (b, last) = (_split_steps(x, [length - 1, 1]) for x in (a, factor, b))
        reset, last_reset = (None, None) if reset is None else torch.split(reset, [length - 1, 1], 1)
        states = _scan(a, b, state, reset, multiply, affine)
        return torch.cat([states, apply(last_factor, states[:, -1:], last, last_reset)], 1)
    (a1, a2), (factor1, factor2), (b1, b2) = (_split_pairs(x) for x in (a, factor, b))
    reset1, reset2 = (None, None) if reset is None else _split_pairs(reset)
    either = None if reset1 is None or reset2 is None else reset1 | reset2
    products, sums = multiply(a2.to(wide), _zero_where(reset2, a1).to(wide)), apply(factor2, b1, b2, reset2)
    second = _scan(products, sums, state, either, multiply, affine)
    before = torch.cat([state.unsqueeze(1), second[:, :-1]], 1)
    return torch.stack([apply(factor1, before, b1, reset1), second], 2).flatten(1, 2)


def running_sum(x: Tensor, reset: Tensor | None = None) -> Tensor:
    """Return the running sum of x (B, L, *S), L >= 1, along axis 1, restarted from 0 at each step where `reset` is True."""
    if reset is None:
        return torch.cumsum(x, 1)
    one = torch.ones((1,) * x.ndim, dtype=x.dtype, device=x.device)
    return affine_scan(one, x, torch.zeros_like(x[:, 0]), _first, _sum, reset)


def _first(x: Tensor, y: Tensor) -> Tensor:  # noqa: ARG001 - the factors of a sum are all 1 and are not used
    return x


def _sum(a: Tensor, x: Tensor, b: Tensor) -> Tensor:  # noqa: ARG001
    return x + b


def _zero_where(reset: Tensor | None, x: Tensor) -> Tensor:
    """Return x with zeros where `reset` is True; x itself if `reset` is None."""
    return x if reset is None else torch.where(reset, 0, x)


def _split_steps(x: Tensor, lengths: list[int]) -> tuple[Tensor, ...]:
    """Return x (B, L, ...) split into parts of these lengths; a factor that is constant in time (size 1) is returned for each."""
    return (x, x) if x.shape[1] == 1 else torch.split(x, lengths, 1)


def _split_pairs(x: Tensor) -> tuple[Tensor, ...]:
    """Return the first and the second step of every pair of steps; a factor constant in time is returned twice."""
    return (x, x) if x.shape[1] == 1 else x.reshape(x.shape[0], x.shape[1] // 2, 2, *x.shape[2:]).unbind(2)
