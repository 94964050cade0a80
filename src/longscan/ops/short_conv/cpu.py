"""`short_conv` by the compiled kernels of csrc/short_conv.cpp: contiguous CPU tensors of one real dtype."""

import torch
from torch import Tensor

from longscan.ops import _native
from longscan.ops._cpu import addresses, empty, empty_like, threads_for


def forward(
    u: Tensor, weight: Tensor, bias: Tensor | None, initial_state: Tensor, flags: Tensor | None, silu: bool
) -> tuple[Tensor, Tensor]:
    """Return y (B, L, D) and the final state (B, D, K-1)."""
    y, final = empty(u, u.shape), torch.empty_like(initial_state)
    _native.short_conv_forward(
        *u.shape,
        weight.shape[1],
        *addresses(u, weight, bias, initial_state, flags, y, final),
        silu,
        u.dtype == torch.float64,
        threads_for(u.shape[1], 4 * u.numel()),
    )
    return y, final


def backward(
    grad_y: Tensor,
    grad_final: Tensor | None,
    u: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    initial_state: Tensor,
    flags: Tensor | None,
    silu: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of u, weight, bias (empty if it is None) and initial_state."""
    gradients = empty(u, u.shape), torch.empty_like(weight), empty_like(bias, u), torch.empty_like(initial_state)
    _native.short_conv_backward(
        *u.shape,
        weight.shape[1],
        *addresses(u, weight, bias, initial_state, flags, grad_y, grad_final, *gradients),
        silu,
        u.dtype == torch.float64,
        threads_for(u.shape[1], 4 * u.numel()),
    )
    return gradients
