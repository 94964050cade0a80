"""`dplr_spectrum` in Triton, for CUDA GPUs."""

from longscan.ops.dplr_spectrum.triton.launch import backward, forward

__all__ = ["backward", "forward"]
