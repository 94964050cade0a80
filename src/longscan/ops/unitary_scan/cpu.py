"""`unitary_scan` on the compiled CPU kernels of csrc/unitary_scan.cpp."""

import torch
from torch import Tensor

from longscan.ops import _native
from longscan.ops._cpu import addresses, threads_for


def chunk_length(states: int) -> int:
    """Return the number of steps between saved states: at least 64, and such that they take less memory than two inputs."""
    return max(64, -(-states // 4) * 8)


def chunk_states_shape(u: Tensor, states: int) -> tuple[int, ...]:
    """Return the shape of the saved states: (B, chunks * D * N * 3)."""
    batch, length, channels = u.shape
    return batch, -(-length // chunk_length(states)) * channels * states * 3


def forward(
    u: Tensor,
    dt: Tensor,
    W: Tensor,
    bias: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    initial_state: Tensor,
    flags: Tensor | None,
    phase_dt: bool,
    save_states: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return y (B, L, D), the final state (B, D, N, 2) and the chunk states, which are empty unless `save_states`.

    Contiguous tensors of one real dtype, shapes as in csrc/unitary_scan.h; L, D and N at least 1.
    """
    batch, length, channels = u.shape
    states = bias.shape[1]
    y, final = torch.empty_like(u), torch.empty_like(initial_state)
    chunk_states = u.new_empty(chunk_states_shape(u, states) if save_states else (0,))
    _native.unitary_scan_forward(
        batch, length, channels, states, chunk_length(states),
        *addresses(u, dt, W, bias, B, C, D, z, initial_state, flags, y, final, chunk_states),
        phase_dt, u.dtype == torch.float64, threads_for(length, 4 * batch * length * bias.numel()),
    )  # fmt: skip
    return y, final, chunk_states


def backward(
    grad_y: Tensor,
    grad_final: Tensor,
    u: Tensor,
    dt: Tensor,
    W: Tensor,
    bias: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    initial_state: Tensor,
    flags: Tensor | None,
    chunk_states: Tensor,
    phase_dt: bool,
) -> tuple[Tensor, ...]:
    """Return the gradients of u, dt, W, bias, B, C, D, z and initial_state; empty tensors for absent inputs."""
    batch, length, channels = u.shape
    states = bias.shape[1]
    inputs = (u, dt, W, bias, B, C, D, z, initial_state)
    gradients = [u.new_empty(0) if x is None else torch.empty_like(x) for x in inputs]
    _native.unitary_scan_backward(
        batch, length, channels, states, chunk_length(states),
        *addresses(grad_y, grad_final, *inputs, flags, chunk_states, *gradients),
        phase_dt, u.dtype == torch.float64, threads_for(length, 4 * batch * length * bias.numel()),
    )  # fmt: skip
    return tuple(gradients)
