"""Exchanges of tensors between the pieces of a sequence, with gradients of any order."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor, distributed
from torch.distributed import ProcessGroup

from longscan.distributed.context import SequenceSplit, check_piece_lengths, current_split


class Exchange(NamedTuple):
    """One exchange between the pieces of sequences.

    Attributes:
        kind: "all_gather", or "reduce_scatter" in the backward pass.
        received: number of bytes that this process receives.
    """

    kind: Literal["all_gather", "reduce_scatter"]
    received: int


_records: list[list[Exchange]] = []


@contextmanager
def record_exchanges() -> Iterator[list[Exchange]]:
    """Record the exchanges of all layers inside the `with` statement, forward and backward, in a list.

    Those of compiled graphs are not recorded.
    """
    record: list[Exchange] = []
    _records.append(record)
    try:
        yield record
    finally:
        _records.remove(record)


def _record(kind: Literal["all_gather", "reduce_scatter"], received: int) -> None:
    for record in _records:
        record.append(Exchange(kind, received))


class _AllGather(torch.autograd.Function):
    """Gather a tensor (*S) from each of R ranks as (R, *S) on all ranks.

    The gradient with respect to what a rank sent is the sum of the gradients that the ranks have for it.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        gathered = x.new_empty(distributed.get_world_size(group), *x.shape)
        if x.is_cuda:  # into one tensor, because NCCL would copy each tensor of a list
            distributed.all_gather_into_tensor(gathered, x.contiguous(), group)
        else:
            distributed.all_gather(list(gathered.unbind(0)), x.contiguous(), group)
        _record("all_gather", gathered.nbytes - x.nbytes)
        return gathered

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _ReduceScatter.apply(grad, ctx.group), None  # type: ignore[no-untyped-call]


class _ReduceScatter(torch.autograd.Function):
    """Sum tensors (R, *S) over R ranks; rank r gets row r of the sum, (*S)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        own = torch.empty_like(x[0], memory_format=torch.contiguous_format)
        if x.is_cuda:
            distributed.reduce_scatter_tensor(own, x.contiguous(), group=group)
        else:
            distributed.reduce_scatter(own, list(x.contiguous().unbind(0)), group=group)
        _record("reduce_scatter", x.nbytes - own.nbytes)
        return own

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _AllGather.apply(grad, ctx.group), None  # type: ignore[no-untyped-call]


class _ContiguousGradient(torch.autograd.Function):
    """Return the input and make its gradient contiguous, which reduce_scatter in compiled graphs of torch 2.11 requires."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # noqa: ARG004
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # noqa: ARG004
        return grad.contiguous()


def all_gather(x: Tensor, split: SequenceSplit) -> Tensor:
    """Return the tensors x (*S) of all pieces, (R, *S), in the order of time. Every rank must have the same shape."""
    if torch.compiler.is_compiling():
        from torch.distributed._functional_collectives import all_gather_tensor_autograd

        gathered = all_gather_tensor_autograd(x.contiguous().unsqueeze(0), 0, split.group)
        gathered = cast("Tensor", _ContiguousGradient.apply(gathered))  # type: ignore[no-untyped-call]
    else:
        gathered = cast("Tensor", _AllGather.apply(x, split.group))  # type: ignore[no-untyped-call]
    return gathered.flip(0) if split.is_reversed else gathered


def all_gather_coalesced(tensors: Sequence[Tensor], split: SequenceSplit) -> list[Tensor]:
    """Return `all_gather` of each of several tensors of one dtype, by a single exchange."""
    whole = all_gather(torch.cat([x.reshape(-1) for x in tensors]), split)
    parts = torch.split(whole, [x.numel() for x in tensors], 1)
    return [part.reshape(split.size, *x.shape) for part, x in zip(parts, tensors, strict=True)]


def gather_steps(x: Tensor, split: SequenceSplit) -> Tensor:
    """Return the pieces x (B, L, ...) of all ranks as whole sequences (B, R L, ...)."""
    check_piece_lengths(x)
    return all_gather(x, split).transpose(0, 1).flatten(1, 2)


def sum_pieces(x: Tensor) -> Tensor:
    """Return the sum of x over the pieces of split sequences, on every rank; x itself if sequences are not split."""
    split = current_split()
    return x if split is None else all_gather(x, split).sum(0)
