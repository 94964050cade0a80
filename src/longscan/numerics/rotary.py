"""Rotations of pairs of neighbouring features, as rotary positions use them (Su et al. 2021, RoFormer, equation 34)."""

import math

import torch
from torch import Tensor


def frequencies(width: int, base: float) -> list[float]:
    """Return base^(-2i/width) for the width / 2 pairs of a rotated vector, in radians per step (RoFormer, section 3.3).

    Raises ValueError unless `width` is even and at least 0 and `base` is positive.
    """
    if width < 0 or width % 2:
        raise ValueError(f"the rotary width must be an even number of features (pairs that are rotated), got {width}")
    if not base > 0:
        raise ValueError(f"`base` must be positive, got {base}")
    return [base ** (-2 * i / width) for i in range(width // 2)]


def frequency_tensor(width: int, base: float, like: Tensor) -> Tensor:
    """Return `frequencies` as a tensor (width / 2,), of the dtype and on the device of `like`.

    It is computed on the device, because a CUDA graph cannot record a copy from the host.
    """
    return (torch.arange(0, width, 2, dtype=like.dtype, device=like.device) * (-math.log(base) / max(width, 1))).exp()


def rotate_pairs(x: Tensor, angle: Tensor) -> Tensor:
    """Return x (..., N) with its first 2R entries, as R neighbouring pairs, rotated by angle (..., R) radians.

    Sine and cosine are taken in the dtype of `angle`, the rotation in that of `x`; leading axes broadcast.
    """
    width = 2 * angle.shape[-1]
    cosine, sine = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    first, second = x[..., 0:width:2], x[..., 1:width:2]
    rotated = torch.stack([first * cosine - second * sine, first * sine + second * cosine], -1).flatten(-2)
    if width == x.shape[-1]:
        return rotated
    return torch.cat([rotated, x[..., width:].expand(*rotated.shape[:-1], x.shape[-1] - width)], -1)
