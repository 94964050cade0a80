"""Triton kernels of `ssd_scan`. README.md has their equations, kernels and buffers."""

from longscan.ops.ssd_scan.triton.launch import backward, chunk_states_shape, forward

__all__ = ["backward", "chunk_states_shape", "forward"]
