"""The split of sequences over processes: the mesh, the number of this process's piece, and the function that cuts pieces."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, distributed
from torch.cuda import is_current_stream_capturing
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh

CONTEXT = "context"  # the dimension of a mesh along which sequences are split


class SequenceSplit(NamedTuple):
    """How sequences are split: piece `rank` of `size` pieces of equal length, in the order of time, is on this process.

    Attributes:
        group: the processes that share each sequence.
        rank: number of this process's piece, from 0.
        size: number of pieces.
        is_reversed: whether time runs from the last rank of the group to the first one.
    """

    group: ProcessGroup
    rank: int
    size: int
    is_reversed: bool = False


# Module variables instead of a `ContextVar`, for two reasons: torch.compile guards on module variables and cannot trace a
# `ContextVar`; and recomputed blocks run again in autograd's threads, which do not have the context of the thread that called
# `backward`.
_split: SequenceSplit | None = None
_lengths_checked = True  # False from the entry into `context_parallel` until its first call has compared the pieces' lengths


def current_split() -> SequenceSplit | None:
    """Return how the sequences of this process are split, or None outside of `context_parallel`."""
    return _split


@contextmanager
def use_split(split: SequenceSplit | None) -> Iterator[None]:
    """Let layers and ops use this split inside the `with` statement; None for whole sequences."""
    global _split
    before, _split = _split, split
    try:
        yield
    finally:
        _split = before


@contextmanager
def context_parallel(mesh: DeviceMesh | ProcessGroup) -> Iterator[SequenceSplit | None]:
    """Let models, blocks, layers and scans read their inputs as pieces of longer sequences, one piece on each process.

    Inside the `with` statement, inputs, `elapsed`, `valid` and `seq_idx` (axis 1 of each) are piece r of the sequences on rank r
    of the mesh. All pieces have the same length, which the first call checks (`shard_sequence` cuts them). Outputs are pieces,
    too. Initial states are those before the first piece and must be the same on all ranks. Final states and pooled outputs are
    those after the last piece, and every rank gets them. All ranks make the same calls, forward and backward.

    The gradient of a parameter on a rank is that of the sum of all ranks' losses with respect to this rank's copy. So the mean of
    the gradients over the ranks, which `DistributedDataParallel` and FSDP2 compute, is the gradient of the mean of the losses. If
    a loss is a mean over the steps of a piece, or is computed from pooled outputs, this is the gradient for the whole sequence.

    Args:
        mesh: a `DeviceMesh` of one dimension, a mesh with a dimension "context", or a process group.

    Yields the split, or None if the mesh has one process, which then computes as usual. Raises TypeError or ValueError if `mesh`
    is none of these. Calls inside the `with` statement raise ValueError for pieces of unequal length and for modules that cannot
    compute pieces, such as GRU, LSTM and PD-SSM.
    """
    global _lengths_checked
    group = _group_of(mesh)
    size = distributed.get_world_size(group)
    split = SequenceSplit(group, distributed.get_rank(group), size) if size > 1 else None
    before, _lengths_checked = _lengths_checked, split is None
    try:
        with use_split(split):
            yield split
    finally:
        _lengths_checked = before


def check_piece_lengths(x: Tensor) -> None:
    """Raise ValueError if the pieces x (B, L, ...) differ in length, in the first call inside `context_parallel`.

    Calls in graphs of torch.compile and in CUDA graphs are not checked, because there the host cannot read the lengths.
    """
    global _lengths_checked
    if torch.compiler.is_compiling() or _split is None or _lengths_checked or (x.is_cuda and is_current_stream_capturing()):
        return
    _lengths_checked = True
    lengths = torch.full((_split.size, 1), x.shape[1], device=x.device)
    distributed.all_gather(list(lengths.unbind(0)), lengths[_split.rank].clone(), _split.group)
    found = lengths.flatten().tolist()
    if len(set(found)) > 1:
        raise ValueError(f"`x` must have the same length in all pieces of the sequences, got {found}")


@contextmanager
def reversed_split() -> Iterator[None]:
    """Let time run from the last rank to the first inside the `with` statement, for pieces that are reversed in time."""
    split = current_split()
    if split is not None:
        split = split._replace(rank=split.size - 1 - split.rank, is_reversed=not split.is_reversed)
    with use_split(split):
        yield


def shard_sequence(x: Tensor, mesh: DeviceMesh | ProcessGroup, axis: int = 1) -> Tensor:
    """Return this process's piece of `x`, which has the whole length in `axis`.

    Raises ValueError if `x` has no such axis, or if the length is not a multiple of the number of processes: pad such a batch,
    and pass `valid`, which is False at the padding.
    """
    group = _group_of(mesh)
    if not -x.ndim <= axis < x.ndim:
        raise ValueError(f"`axis` must be from {-x.ndim} to {x.ndim - 1} for `x` of shape {tuple(x.shape)}, got {axis}")
    size, length = distributed.get_world_size(group), x.shape[axis]
    if length % size:
        raise ValueError(
            f"`x` must have a length that is a multiple of the {size} processes of the mesh, got {length}: "
            f"pad it by {-length % size} to {length + -length % size}, and mask the padding by `valid`"
        )
    return x.chunk(size, axis)[distributed.get_rank(group)]


def _group_of(mesh: DeviceMesh | ProcessGroup) -> ProcessGroup:
    if isinstance(mesh, ProcessGroup):
        return mesh
    if not isinstance(mesh, DeviceMesh):
        raise TypeError(f"`mesh` must be a DeviceMesh or a process group, got {type(mesh).__name__}")
    names = mesh.mesh_dim_names or ()
    if CONTEXT in names:
        return mesh.get_group(CONTEXT)
    if mesh.ndim != 1:
        found = f"{mesh.ndim} dimensions with the names {names}" if names else f"{mesh.ndim} dimensions without names"
        raise ValueError(f"`mesh` must have one dimension, or one of the name {CONTEXT!r}, got {found}")
    return mesh.get_group()
