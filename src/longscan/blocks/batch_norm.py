"""Batch normalisation of sequences (Ioffe and Szegedy 2015) over the valid steps.

    y = (x - mean) / sqrt(variance + epsilon)   (times a scale, plus a shift, where these are learned)

In training mean and variance are those of each channel over all valid steps of the batch, in all pieces of sequences that are
split over processes, and the running statistics are updated by them. In evaluation, and always in `step`, the running statistics
are used, so that a step does not depend on its batch.
"""

from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor, nn

from longscan._types import PositiveFloat, PositiveFraction, PositiveInt
from longscan.distributed.collectives import sum_pieces
from longscan.layers.base import mask_padding
from longscan.layers.parameters import Marked, mark


class BatchNorm(Marked):
    """Normalisation of x (B, L, D) over batch and length, without the padding, where y is 0.

    Args:
        d_model: channels D.
        affine: learn a scale and a shift.
        momentum: step size of the running mean and variance towards those of a batch.
        epsilon: added to the variance.

    The running mean and variance stay float32 when the module is cast to fp16 or bf16. A batch without a valid step does not
    change them. The running variance is the unbiased one, as in torch.
    """

    running_mean: Tensor
    running_variance: Tensor

    def __init__(
        self,
        d_model: PositiveInt,
        *,
        affine: bool = False,
        momentum: PositiveFraction = 0.05,
        epsilon: PositiveFloat = 1e-5,
    ) -> None:
        super().__init__()
        self.momentum, self.epsilon = momentum, epsilon
        self.register_buffer("running_mean", torch.zeros(d_model))
        self.register_buffer("running_variance", torch.ones(d_model))
        self.weight: nn.Parameter | None = None
        self.bias: nn.Parameter | None = None
        if affine:
            self.weight = mark(nn.Parameter(torch.ones(d_model)), "norm", decay=False)
            self.bias = mark(nn.Parameter(torch.zeros(d_model)), "norm", decay=False)

    def forward(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        """Return y (B, L, D) in the dtype of x; valid (B, L) bool."""
        x = mask_padding(x, valid)  # first, so that no NaN in the padding reaches a gradient
        if not self.training or not x.numel():
            return mask_padding(self.step(x), valid)
        wide = x.to(self.running_mean.dtype)
        count = torch.full((), x.shape[0] * x.shape[1], device=x.device) if valid is None else valid.sum()
        count = sum_pieces(count)
        n = count.clamp(min=1)
        mean = sum_pieces(wide.sum((0, 1))) / n
        variance = sum_pieces(mask_padding(wide - mean, valid).square().sum((0, 1))) / n
        with torch.no_grad():
            momentum = torch.where(count > 0, self.momentum, 0.0).to(mean.dtype)
            self.running_mean.lerp_(mean.detach(), momentum)
            self.running_variance.lerp_(variance.detach() * n / (n - 1).clamp(min=1), momentum)
        return mask_padding(self._scale(x, mean, variance), valid)

    def step(self, x: Tensor) -> Tensor:
        """Return x (..., D) normalised by the running statistics."""
        return self._scale(x, self.running_mean, self.running_variance)

    def _scale(self, x: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        y = (x.to(mean.dtype) - mean) * torch.rsqrt(variance + self.epsilon)
        if self.weight is not None and self.bias is not None:
            y = y * self.weight + self.bias
        return y.to(x.dtype)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        exact = (self.running_mean, self.running_variance)
        super()._apply(fn, recurse)
        if self.running_mean.dtype in (torch.bfloat16, torch.float16):
            self.running_mean, self.running_variance = (x.to(self.running_mean.device, torch.float32) for x in exact)
        return self
