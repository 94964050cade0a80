"""Triton kernels of `unitary_scan`. README.md has their equations, tiles and buffers."""

from longscan.ops.unitary_scan.triton.launch import backward, chunk_states_shape, forward

__all__ = ["backward", "chunk_states_shape", "forward"]
