"""The dtypes that ops accumulate in."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def state_dtype(*inputs: Tensor | None) -> torch.dtype:
    """The real dtype scans accumulate in: float64 where any input is float64 or complex128, else float32."""
    wide = (torch.float64, torch.complex128)
    return torch.float64 if any(x is not None and x.dtype in wide for x in inputs) else torch.float32


def carry_dtype(like: Tensor) -> torch.dtype:
    """The dtype of what is carried over many steps: float64, but on Apple's GPUs, which have none, that of `like`."""
    return like.dtype if like.device.type == "mps" else torch.float64


def without_autocast(like: Tensor) -> AbstractContextManager[object]:
    """A context in which autocast changes nothing: ops accumulate in their own dtype whatever surrounds them."""
    kind = like.device.type
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        return nullcontext()
    return torch.autocast(kind, enabled=False)
