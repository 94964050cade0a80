"""Event pooling: the output of a block with a stride has one step for every window of `stride` steps.

The windows of a row start at its first valid step and are left-aligned in the output. An incomplete last window is dropped. L:
length, J = L // stride: windows.
"""

from typing import Literal

import torch
from torch import Tensor

from longscan.layers.base import SequenceInfo, mask_padding

Pooling = Literal["last", "mean", "time"]
MIN_WEIGHT = 1e-6  # added to the weights (elapsed times), so that a window of simultaneous events has a positive total weight


def _windows(x: Tensor, valid: Tensor | None, stride: int) -> Tensor:
    """Return x (B, L, ...) as windows (B, J, stride, ...), each row shifted cyclically so that its valid steps come first."""
    length = x.shape[1]
    if valid is not None and length:
        source = (torch.arange(length, device=x.device) + valid.to(torch.int8).argmax(1, keepdim=True)) % length
        x = x.gather(1, source.view(*source.shape, *(1,) * (x.ndim - 2)).expand_as(x))
    count = length // stride
    return x[:, : count * stride].reshape(x.shape[0], count, stride, *x.shape[2:])


def shorten_info(info: SequenceInfo, stride: int) -> SequenceInfo:
    """Return `info` of the windows: `elapsed`, the time since the last window in units of `stride` steps, and `valid`."""
    valid = elapsed = None
    if info.valid is not None:
        count = info.valid.shape[1] // stride
        valid = torch.arange(count, device=info.valid.device) < info.valid.sum(1, keepdim=True) // stride
    if info.elapsed is not None:
        elapsed = _windows(info.elapsed, info.valid, stride).mean(2)
        elapsed = elapsed if valid is None else torch.where(valid, elapsed, 1)
    return SequenceInfo(elapsed, valid)


def shorten(x: Tensor, info: SequenceInfo, stride: int, pooling: Pooling) -> Tensor:
    """Return the last step of each window of x (B, L, D), its mean, or its mean weighted by the elapsed times: (B, J, D)."""
    windows, valid = _windows(x, info.valid, stride), shorten_info(SequenceInfo(valid=info.valid), stride).valid
    if pooling == "last":
        pooled = windows[:, :, -1]
    elif pooling == "mean" or info.elapsed is None:
        pooled = windows.mean(2)
    else:
        weights = _windows(info.elapsed, info.valid, stride).unsqueeze(-1).to(x.dtype) + MIN_WEIGHT
        pooled = (windows * weights).sum(2) / weights.sum(2)
    return mask_padding(pooled, valid)
