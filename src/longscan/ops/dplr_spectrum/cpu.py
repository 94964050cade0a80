"""`dplr_spectrum` by the compiled kernels of csrc/dplr_spectrum.cpp: contiguous CPU tensors of one real dtype."""

import torch
from torch import Tensor

from longscan.ops import _native
from longscan.ops._cpu import addresses, empty, threads_for

WORK = 4  # work of a term of the sums, in those of a state element of the selective scan


def forward(table: Tensor, eigenvalues: Tensor, P: Tensor, B: Tensor, C: Tensor, dt: Tensor) -> Tensor:
    """Return the spectrum (D, F, 2); arguments as in `triton.forward`."""
    channels, states, _ = eigenvalues.shape
    frequencies = table.shape[1]
    spectrum = empty(table, (channels, frequencies, 2))
    _native.dplr_spectrum_forward(
        channels,
        frequencies,
        states,
        *addresses(table, eigenvalues, P, B, C, dt, spectrum),
        dt.dtype == torch.float64,
        threads_for(frequencies, WORK * channels * frequencies * states),
    )
    return spectrum


def backward(
    grad: Tensor, table: Tensor, eigenvalues: Tensor, P: Tensor, B: Tensor, C: Tensor, dt: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of eigenvalues, P, B, C and dt; arguments as in `triton.backward`."""
    channels, states, _ = eigenvalues.shape
    frequencies = table.shape[1]
    d_eigenvalues, d_P, d_B, d_C, d_dt = (torch.empty_like(x) for x in (eigenvalues, P, B, C, dt))
    _native.dplr_spectrum_backward(
        channels,
        frequencies,
        states,
        *addresses(grad, table, eigenvalues, P, B, C, dt, d_eigenvalues, d_P, d_B, d_C, d_dt),
        dt.dtype == torch.float64,
        threads_for(frequencies, WORK * channels * frequencies * states),
    )
    return d_eigenvalues, d_P, d_B, d_C, d_dt
