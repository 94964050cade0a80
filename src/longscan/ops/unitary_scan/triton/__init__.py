"""Triton kernels of `unitary_scan`. README.md has their equations, tiles and buffers."""

from longscan.ops.unitary_scan.triton.launch import (
    backward,
    chunk_states_shape,
    expand_coefficients,
    forward,
    sum_coefficients,
)

__all__ = ["backward", "chunk_states_shape", "expand_coefficients", "forward", "sum_coefficients"]
