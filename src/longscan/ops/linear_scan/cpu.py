"""`linear_scan` by the compiled kernels of csrc/linear_scan.cpp: contiguous CPU tensors of one real dtype, complex as pairs."""

import torch
from torch import Tensor

from longscan.ops import _native
from longscan.ops._cpu import addresses, empty, threads_for


def forward(
    a: Tensor, b: Tensor, initial_state: Tensor, flags: Tensor | None, reverse: bool, is_complex: bool
) -> tuple[Tensor, Tensor]:
    """Return x (B, L, S[, 2]) and the final state (B, S[, 2])."""
    x, final = empty(b, b.shape), torch.empty_like(initial_state)
    _native.linear_scan_forward(
        *b.shape[:2],
        b.shape[2:].numel(),
        *addresses(a, b, initial_state, flags, x, final),
        a.ndim < b.ndim,
        reverse,
        is_complex,
        b.dtype == torch.float64,
        threads_for(b.shape[1], 4 * b.numel()),
    )
    return x, final


def backward(
    grad_x: Tensor,
    grad_final: Tensor | None,
    a: Tensor,
    x: Tensor,
    initial_state: Tensor,
    flags: Tensor | None,
    reverse: bool,
    is_complex: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of a, b and initial_state."""
    gradients = empty(a, a.shape), empty(x, x.shape), torch.empty_like(initial_state)
    _native.linear_scan_backward(
        *x.shape[:2],
        x.shape[2:].numel(),
        *addresses(a, initial_state, flags, x, grad_x, grad_final, *gradients),
        a.ndim < x.ndim,
        reverse,
        is_complex,
        x.dtype == torch.float64,
        threads_for(x.shape[1], 4 * x.numel()),
    )
    return gradients
