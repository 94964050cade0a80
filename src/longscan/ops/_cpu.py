"""Helpers of the bindings of the compiled CPU kernels, which take tensors as addresses and sizes."""

from collections.abc import Sequence

from torch import Tensor

from longscan.ops import _native

HUGE_PAGE = 2**21


def addresses(*tensors: Tensor | None) -> list[int]:
    """Return the addresses of the first elements of contiguous CPU tensors; 0 for None and for a tensor without elements."""
    return [0 if x is None else x.data_ptr() for x in tensors]


def empty(like: Tensor, shape: Sequence[int]) -> Tensor:
    """Return an uninitialised tensor of this shape and the dtype of `like`; a large one is placed on huge pages."""
    x = like.new_empty(shape)
    if x.nbytes >= 2 * HUGE_PAGE:
        _native.prefer_huge_pages(x.data_ptr(), x.nbytes)
    return x


def empty_like(x: Tensor | None, like: Tensor) -> Tensor:
    """Return an uninitialised tensor for the gradient of `x`, or an empty tensor if `x` is None."""
    return like.new_empty(0) if x is None else empty(x, x.shape)
