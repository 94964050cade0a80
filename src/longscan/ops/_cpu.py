"""What the bindings of the compiled CPU kernels share: tensors travel as addresses, sizes beside them."""

from collections.abc import Sequence

from torch import Tensor

from longscan.ops import _native

HUGE_PAGE = 2**21


def address(x: Tensor | None) -> int:
    """The address of a contiguous CPU tensor's first element; 0 for None."""
    return 0 if x is None else x.data_ptr()


def empty(like: Tensor, shape: Sequence[int]) -> Tensor:
    """Uninitialised memory for a result, of the dtype of `like`; on huge pages where it is large."""
    x = like.new_empty(shape)
    if x.nbytes >= 2 * HUGE_PAGE:
        _native.prefer_huge_pages(x.data_ptr(), x.nbytes)
    return x


def empty_like(x: Tensor | None, like: Tensor) -> Tensor:
    """Room for a gradient of `x`, or an empty tensor where the input is absent."""
    return like.new_empty(0) if x is None else empty(x, x.shape)
