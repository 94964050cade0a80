"""`selective_scan` by the compiled kernels of csrc/selective_scan.cpp: contiguous CPU tensors of one real dtype."""

import math

import torch
from torch import Tensor

from longscan.ops import _native
from longscan.ops._cpu import addresses, empty, empty_like, threads_for


def chunk_states_shape(batch: int, length: int, channels: int, states: int, *pair: int) -> tuple[int, ...]:
    """Return the shape (B, chunks * N * [2 *] D) of the states that `forward` saves for `backward`: one before each chunk."""
    chunks = (length + _native.SELECTIVE_SCAN_CHUNK - 1) // _native.SELECTIVE_SCAN_CHUNK
    return batch, chunks * states * math.prod(pair) * channels  # no axis of chunks: it would fix a symbolic length


def forward(
    u: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    dt_bias: Tensor | None,
    initial_state: Tensor | None,
    dt_scale: Tensor | None,
    flags: Tensor | None,
    dt_softplus: bool,
    paired: bool,
    save_states: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return y, the final state and the chunk states, which are empty unless `save_states`. Complex if A has three axes."""
    batch, length, channels = u.shape
    y, final = empty(u, u.shape), u.new_empty((batch, *A.shape))
    chunk_states = empty(u, chunk_states_shape(batch, length, channels, *A.shape[1:]) if save_states else (0,))
    _native.selective_scan_forward(
        batch,
        length,
        channels,
        A.shape[1],
        *addresses(u, dt, A, B, C, D, z, dt_bias, initial_state, dt_scale, flags, y, final, chunk_states),
        dt_softplus,
        paired,
        A.ndim == 3,
        u.dtype == torch.float64,
        threads_for(length, batch * length * A.numel()),
    )
    return y, final, chunk_states


def backward(
    grad_y: Tensor,
    grad_final: Tensor | None,
    u: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    dt_bias: Tensor | None,
    initial_state: Tensor | None,
    dt_scale: Tensor | None,
    flags: Tensor | None,
    chunk_states: Tensor,
    dt_softplus: bool,
    paired: bool,
) -> tuple[Tensor, ...]:
    """Return the gradients of u, dt, A, B, C, D, z, dt_bias, initial_state and dt_scale; empty if the input is None."""
    inputs = (u, dt, A, B, C, D, z, dt_bias, initial_state, dt_scale)
    gradients = tuple(empty_like(x, u) for x in inputs)
    _native.selective_scan_backward(
        *u.shape,
        A.shape[1],
        *addresses(*inputs, flags, chunk_states, grad_y, grad_final, *gradients),
        dt_softplus,
        paired,
        A.ndim == 3,
        u.dtype == torch.float64,
        threads_for(u.shape[1], u.shape[0] * u.shape[1] * A.numel()),
    )
    return gradients
