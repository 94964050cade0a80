"""`block2_scan` in Triton, for CUDA GPUs."""

from longscan.ops.block2_scan.triton.launch import backward, forward

__all__ = ["backward", "forward"]
