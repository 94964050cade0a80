"""Exchanges of tensors between the pieces of a sequence, with gradients of any order."""

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, distributed
from torch.distributed import ProcessGroup

from longscan.distributed.context import SequenceSplit, current_split


class _AllGather(torch.autograd.Function):
    """(*S) on each rank to (R, *S) on all ranks. The gradient of what a rank sent is the sum of the ranks' gradients of it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        gathered = x.new_empty(distributed.get_world_size(group), *x.shape)
        distributed.all_gather(list(gathered.unbind(0)), x.contiguous(), group)
        return gathered

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _ReduceScatter.apply(grad, ctx.group), None  # type: ignore[no-untyped-call]


class _ReduceScatter(torch.autograd.Function):
    """(R, *S) on each rank to (*S): rank r gets the sum over the ranks of their row r."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        own = torch.empty_like(x[0], memory_format=torch.contiguous_format)
        distributed.reduce_scatter(own, list(x.contiguous().unbind(0)), group=group)
        return own

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _AllGather.apply(grad, ctx.group), None  # type: ignore[no-untyped-call]


def all_gather(x: Tensor, split: SequenceSplit) -> Tensor:
    """Return the tensors x (*S) of all pieces, (R, *S), in the order of time. Every rank must have the same shape."""
    gathered = cast("Tensor", _AllGather.apply(x, split.group))  # type: ignore[no-untyped-call]
    return gathered.flip(0) if split.is_reversed else gathered


def all_gather_together(tensors: Sequence[Tensor], split: SequenceSplit) -> list[Tensor]:
    """Return `all_gather` of each of several tensors of one dtype, by one exchange."""
    whole = all_gather(torch.cat([x.reshape(-1) for x in tensors]), split)
    parts = torch.split(whole, [x.numel() for x in tensors], 1)
    return [part.reshape(split.size, *x.shape) for part, x in zip(parts, tensors, strict=True)]


def gather_steps(x: Tensor, split: SequenceSplit) -> Tensor:
    """Return the pieces x (B, L, ...) of all ranks as whole sequences (B, R L, ...)."""
    return all_gather(x, split).transpose(0, 1).flatten(1, 2)


def sum_pieces(x: Tensor) -> Tensor:
    """Return the sum of x over the pieces of split sequences, on every rank; x itself if sequences are not split."""
    split = current_split()
    return x if split is None else all_gather(x, split).sum(0)
