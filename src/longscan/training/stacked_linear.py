"""Linear layers of several models under `torch.vmap`, with gradients of the weights by products that fill the GPU (split-K).

The gradient of a weight is a product dy.T @ x whose inner dimension is the number of steps of a batch, 10,000 for the formal
languages of AUSSM, and whose result has one or two tiles of 32 x 32. In a batched product cuBLAS computes a tile by a single CTA,
so that five models use five to ten CTAs of a GPU: such a product took 266 us on an H200, and the eight of a stack of two blocks
2.1 ms of the 3.7 ms of an update. Here the inner dimension is split into pieces, whose products are computed in parallel and
summed (split-K): the update takes 1.7 ms (results/stacked_seeds.jsonl).
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

TILE = 32  # rows and columns of the result that a CTA computes
WANTED_CTAS = 264  # two for each SM of an H100 or H200
SHORTEST_PIECE = 128  # smallest length of a piece; the products of shorter ones would take no less time


def split_k_bmm(a: Tensor, b: Tensor) -> Tensor:
    """Return a @ b for a: (K, M, R) and b: (K, R, N), with R split into pieces if the result has few tiles."""
    k, m, r = a.shape
    n = b.shape[2]
    tiles = k * -(-m // TILE) * -(-n // TILE)
    pieces = min(WANTED_CTAS // tiles, r // SHORTEST_PIECE) if tiles else 0
    if pieces < 2:
        return torch.bmm(a, b)
    length = r // pieces
    split = pieces * length
    left = a[:, :, :split].view(k, m, pieces, length).transpose(1, 2).reshape(k * pieces, m, length)
    right = b[:, :split].reshape(k * pieces, length, n)
    result = torch.bmm(left, right).view(k, pieces, m, n).sum(1)
    return result if split == r else torch.baddbmm(result, a[:, :, split:], b[:, split:])


class _BatchedLinear(torch.autograd.Function):
    """x @ W.T of several models, x: (K, R, I) and W: (K, O, I)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return torch.bmm(x, weight.mT)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None]:
        (dy,) = gradients
        x, weight = ctx.saved_tensors
        needs_x, needs_weight = ctx.needs_input_grad
        return torch.bmm(dy, weight) if needs_x else None, split_k_bmm(dy.mT, x) if needs_weight else None


class _Linear(torch.autograd.Function):
    """x @ W.T of one model, x: (..., I) and W: (O, I). Under `torch.vmap` over weights it is `_BatchedLinear`."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor) -> Tensor:
        return functional.linear(x, weight)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:  # noqa: ARG004
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        (dy,) = gradients
        x, weight = ctx.saved_tensors
        return dy @ weight, dy.flatten(0, -2).mT @ x.flatten(0, -2)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, int | None], x: Tensor, weight: Tensor) -> tuple[Tensor, int]:
        x_axis, weight_axis = in_dims
        x = x.expand(info.batch_size, *x.shape) if x_axis is None else x.movedim(x_axis, 0)
        if weight_axis is None:
            return functional.linear(x, weight), 0
        y = _BatchedLinear.apply(x.flatten(1, -2), weight.movedim(weight_axis, 0))  # type: ignore[no-untyped-call]
        return y.unflatten(1, x.shape[1:-1]), 0


class SplitLinear(TorchFunctionMode):
    """A mode in which `torch.nn.functional.linear` under `torch.vmap` is computed by this module, for use in a `with` statement.

    Its gradients are those of torch up to the rounding of sums. It is for float32 without autocast.
    """

    only_observes = True  # read by `longscan.ops.tracing`, so that ops run as without this mode

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        """Call a function; `linear` is computed by `_Linear`."""
        kwargs = kwargs or {}
        return _linear(*args, **kwargs) if func is functional.linear else func(*args, **kwargs)


# Parameters are named as those of `torch.nn.functional.linear`, which callers may give by name.
def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:  # noqa: A002
    """Return input @ weight.T + bias."""
    if input.ndim < 2 or weight.ndim != 2:
        return functional.linear(input, weight, bias)
    y: Tensor = _Linear.apply(input, weight)  # type: ignore[no-untyped-call]
    return y if bias is None else y + bias
