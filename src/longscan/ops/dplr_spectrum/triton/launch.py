"""Launches of the kernels of `dplr_spectrum`."""

import torch
from torch import Tensor

from longscan.ops._gpu import ceil_div, launch, on_device, power_of_two
from longscan.ops.dplr_spectrum.triton.backward import (
    dplr_spectrum_bwd_parameters_kernel,
    dplr_spectrum_bwd_states_kernel,
    dplr_spectrum_bwd_sums_kernel,
)
from longscan.ops.dplr_spectrum.triton.forward import dplr_spectrum_fwd_kernel

FREQUENCIES = {"BLOCK_F": 64, "num_warps": 2}  # of a program that adds up all states, a thread for each frequency
TILE, MAX_BLOCK_N, WARPS = 128, 32, 4  # of a program that adds up frequencies: pairs of a frequency and a state, most states
CHUNK, MAX_CHUNKS = 128, 16  # frequencies of such a program, more where there would be too many partial sums
SUMS = {"BLOCK_CHUNKS": MAX_CHUNKS, "BLOCK": 64}  # partial sums of a sum over chunks, and over blocks of frequencies


def forward(table: Tensor, eigenvalues: Tensor, P: Tensor, B: Tensor, C: Tensor, dt: Tensor) -> Tensor:
    """Return the spectrum (D, F, 2), for contiguous tensors of one dtype, float32 or float64.

    table: (3, F, 2), the rows 2 sinh(w), cosh(w) and e^w; eigenvalues, P, B, C: (D, N, 2); dt: (D,).
    """
    channels, states, _ = eigenvalues.shape
    frequencies = table.shape[1]
    spectrum = table.new_empty((channels, frequencies, 2))
    with on_device(table):
        grid = (channels * ceil_div(frequencies, FREQUENCIES["BLOCK_F"]),)
        given = table, eigenvalues, P, B, C, dt
        launch(dplr_spectrum_fwd_kernel, grid, *given, spectrum, frequencies, states, constants=FREQUENCIES)
    return spectrum


def backward(
    grad: Tensor, table: Tensor, eigenvalues: Tensor, P: Tensor, B: Tensor, C: Tensor, dt: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of eigenvalues, P, B, C and dt; arguments as in `forward`, grad (D, F, 2)."""
    channels, states, _ = eigenvalues.shape
    frequencies = table.shape[1]
    blocks = ceil_div(frequencies, FREQUENCIES["BLOCK_F"])
    BLOCK_N = min(MAX_BLOCK_N, power_of_two(states))
    rows = TILE // BLOCK_N
    chunk = ceil_div(frequencies, min(MAX_CHUNKS, ceil_div(frequencies, CHUNK)) * rows) * rows
    chunks = ceil_div(frequencies, chunk)
    d_sums = table.new_empty((channels, 8, frequencies))
    d_dt_blocks = table.new_empty((channels, blocks))
    partials = table.new_empty((channels, chunks, 9, states))
    gradients = [torch.empty_like(x) for x in (eigenvalues, P, B, C, dt)]
    given = eigenvalues, P, B, C, dt
    with on_device(table):
        launch(
            dplr_spectrum_bwd_sums_kernel, (channels * blocks,), grad, table, *given, d_sums, d_dt_blocks, frequencies, states,
            constants=FREQUENCIES,
        )  # fmt: skip
        launch(
            dplr_spectrum_bwd_states_kernel, (channels * chunks * ceil_div(states, BLOCK_N),), d_sums, table, *given, partials,
            frequencies, states, chunk, constants={"ROWS": rows, "BLOCK_N": BLOCK_N, "num_warps": WARPS},
        )  # fmt: skip
        launch(
            dplr_spectrum_bwd_parameters_kernel, (channels,), partials, d_dt_blocks, *given, *gradients, states, chunks, blocks,
            constants={**SUMS, "BLOCK_N": power_of_two(states), "num_warps": min(8, power_of_two(states) // 32 or 1)},
        )  # fmt: skip
    d_eigenvalues, d_P, d_B, d_C, d_dt = gradients
    return d_eigenvalues, d_P, d_B, d_C, d_dt
