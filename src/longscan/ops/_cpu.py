"""What the bindings of the compiled CPU kernels share: tensors travel as addresses, sizes beside them."""

import torch
from torch import Tensor


def address(x: Tensor | None) -> int:
    """The address of a contiguous CPU tensor's first element; 0 for None."""
    return 0 if x is None else x.data_ptr()


def empty_like(x: Tensor | None, like: Tensor) -> Tensor:
    """Room for a gradient of `x`, or an empty tensor where the input is absent."""
    return like.new_empty(0) if x is None else torch.empty_like(x)
