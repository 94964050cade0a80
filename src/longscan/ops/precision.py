"""The dtypes in which ops accumulate, and a context without autocast."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def state_dtype(*inputs: Tensor | None) -> torch.dtype:
    """Return the real dtype in which scans accumulate: float64 if any input is float64 or complex128, otherwise float32."""
    wide = (torch.float64, torch.complex128)
    return torch.float64 if any(x is not None and x.dtype in wide for x in inputs) else torch.float32


def carry_dtype(like: Tensor) -> torch.dtype:
    """Return the dtype of values carried over many steps: float64, or the dtype of `like` on MPS, which has no float64."""
    return like.dtype if like.device.type == "mps" else torch.float64


def without_autocast(like: Tensor) -> AbstractContextManager[object]:
    """Return a context without autocast on the device of `like`, so that an op accumulates in the dtype that it chose."""
    kind = like.device.type
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        return nullcontext()
    return torch.autocast(kind, enabled=False)
