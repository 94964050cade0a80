"""`linear_scan` in Triton, for CUDA GPUs."""

from longscan.ops.linear_scan.triton.launch import backward, forward

__all__ = ["backward", "forward"]
