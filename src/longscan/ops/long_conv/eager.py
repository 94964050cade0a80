"""`long_conv` by the fast Fourier transform, padded so that the circular convolution does not wrap around."""

import torch
from torch import Tensor

from longscan.numerics.symbolic import is_symbolic
from longscan.ops.tracing import record_length


def fft_length(needed: int) -> int:
    """Return the smallest of 2^k, 3 2^k, 5 2^k, 9 2^k, 15 2^k that is at least `needed`; every FFT library is fast at these.

    A symbolic length is returned unchanged, because rounding it up would fix it in the graph.
    """
    if is_symbolic(needed):
        return needed
    return min(odd << max(0, -(-needed // odd) - 1).bit_length() for odd in (1, 3, 5, 9, 15))


def long_conv(u: Tensor, k: Tensor) -> Tensor:
    """Compute `reference.long_conv` by FFT."""
    u, length = record_length(u)
    if u.numel() == 0:
        return u.clone()
    size = fft_length(2 * length)
    # Along the last axis, because the compiler of torch 2.11 expects wrong strides of a transform along another axis on a CPU.
    product = torch.fft.rfft(u.mT.contiguous(), n=size) * torch.fft.rfft(k, n=size)
    return torch.fft.irfft(product, n=size)[..., :length].mT.clone(memory_format=torch.contiguous_format)
