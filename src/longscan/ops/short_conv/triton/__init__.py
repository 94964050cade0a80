"""`short_conv` in Triton, for CUDA GPUs."""

from longscan.ops.short_conv.triton.launch import backward, forward

__all__ = ["backward", "forward"]
