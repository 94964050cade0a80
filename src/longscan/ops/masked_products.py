"""Matrix products over the pairs of steps that belong to one sequence, in rows with several sequences.

With weights of 0, a plain product propagates a NaN or an infinity, forward (0 times the value) and backward (0 times the
gradient). Here a masked pair contributes to no result or gradient, whatever its values. The two functions
are each other's derivatives, so that gradients of any order respect the mask.
"""

from typing import Any

import torch
from torch import Tensor


def masked_products(a: Tensor, b: Tensor, mask: Tensor) -> Tensor:
    """Return <a_t, b_s> where mask[t, s], else 0: (..., T, S) for a (..., T, K), b (..., S, K) and a mask that broadcasts."""
    return _select_function(_Products, _ForwardProducts).apply(a, b, mask)


def masked_sums(weights: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """Return sum_s weights[t, s] values[s] over the s with mask[t, s]. If one of these values is not finite, row t is NaN.

    weights: (..., T, S); values: (..., S, K); mask: bool, broadcast to `weights`. Returns (..., T, K).
    """
    return _select_function(_Sums, _ForwardSums).apply(weights, values, mask)


def _select_function(plain: Any, with_forward_mode: Any) -> Any:
    """Return the function with forward-mode derivatives; inside torch.compile, which does not support these, the plain one."""
    return plain if torch.compiler.is_compiling() else with_forward_mode


class _SavesInputs(torch.autograd.Function):
    """Base class of functions whose backward and forward-mode derivatives need all inputs."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:  # noqa: ARG004
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)


class _Products(_SavesInputs):
    @staticmethod
    def forward(a: Tensor, b: Tensor, mask: Tensor) -> Tensor:
        return torch.where(mask, a @ b.mT, 0)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        a, b, mask = ctx.saved_tensors
        return masked_sums(grads[0], b, mask), masked_sums(grads[0].mT, a, mask.mT), None


class _ForwardProducts(_Products):
    generate_vmap_rule = True

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        a, b, mask = ctx.saved_tensors
        return masked_products(tangents[0], b, mask) + masked_products(a, tangents[1], mask)


class _Sums(_SavesInputs):
    @staticmethod
    def forward(weights: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        not_finite = ~values.isfinite().all(-1, keepdim=True)
        total = torch.where(mask, weights, 0) @ torch.where(not_finite, 0, values)
        n_not_finite = mask.to(total.dtype) @ not_finite.to(total.dtype)
        return torch.where(n_not_finite > 0, torch.nan, total)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        weights, values, mask = ctx.saved_tensors
        return masked_products(grads[0], values, mask), masked_sums(weights.mT, grads[0], mask.mT), None


class _ForwardSums(_Sums):
    generate_vmap_rule = True

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        weights, values, mask = ctx.saved_tensors
        return masked_sums(tangents[0], values, mask) + masked_sums(weights, tangents[1], mask)
