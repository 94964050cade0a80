"""Helpers of the bindings of the compiled CPU kernels, which take tensors as addresses and sizes."""

from collections.abc import Sequence

import torch
from torch import Tensor

from longscan.ops import _native
from longscan.ops._signature import FLOATS

HUGE_PAGE = 2**21
MIN_TEAM_WORK = 2**20  # smallest work of a call that several threads share: about a third of a millisecond on one thread
_BYTES = (torch.uint8, torch.bool)


def addresses(*tensors: Tensor | None) -> list[int]:
    """Return the addresses of the first elements of the tensors; 0 for None and for a tensor without elements.

    Every tensor must be on the CPU and contiguous, and all of one dtype, float32 or float64, except for flags of one byte.
    """
    found, dtype = [], None
    for x in tensors:
        if x is not None:
            if x.device.type != "cpu" or not x.is_contiguous():
                got = f"strides {x.stride()} on {x.device}"
                raise ValueError(f"tensors of a CPU kernel must be contiguous and on the CPU, got {got}")
            if x.dtype is not dtype and x.dtype not in _BYTES:
                if dtype is not None or x.dtype not in FLOATS:
                    raise TypeError(f"tensors of a CPU kernel must be of {dtype or 'float32 or float64'}, got {x.dtype}")
                dtype = x.dtype
        found.append(0 if x is None else x.data_ptr())
    return found


def threads_for(length: int, work: int) -> int:
    """Return how many threads run a call over `length` steps: one for a single step and for little work, otherwise torch's.

    A team of threads waits for its slowest member at the end of every call. If another process runs on one of the processors,
    that wait takes milliseconds, far more than a short call.

    work: number of state elements, B L D N for the selective scan; other ops give the number of these that takes as long.
    """
    return torch.get_num_threads() if length > 1 and work >= MIN_TEAM_WORK else 1


def empty(like: Tensor, shape: Sequence[int]) -> Tensor:
    """Return an uninitialised tensor of this shape and the dtype of `like`; a large one is placed on huge pages."""
    x = like.new_empty(shape)
    if x.nbytes >= 2 * HUGE_PAGE:
        _native.prefer_huge_pages(x.data_ptr(), x.nbytes)
    return x


def empty_like(x: Tensor | None, like: Tensor) -> Tensor:
    """Return an uninitialised tensor for the gradient of `x`, or an empty tensor if `x` is None."""
    return like.new_empty(0) if x is None else empty(x, x.shape)
