"""Scans computed chunk by chunk; the backward pass recomputes the intermediates of a chunk instead of storing them."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from longscan.numerics.symbolic import is_symbolic
from longscan.ops.tracing import fix_length, in_func_transform

CHUNK = 64
CHUNK_ELEMENTS = 2**20  # elements of a tensor; with fewer, the overhead of an operation is a large share of its time
SYMBOLIC_BATCH_ROWS = 16  # batch size assumed if it is symbolic, so that the number of chunks does not depend on it

Chunk = Callable[..., tuple[Tensor, Tensor]]
T = TypeVar("T")


def run_chunk(step: Callable[..., T], inputs: Sequence[Tensor | None]) -> T:
    """Return `step(*inputs)` for one chunk; its intermediates are recomputed in the backward pass if autograd is recording.

    Intermediates are stored under the transforms of torch.func, which do not support the hooks for saved tensors, and under
    torch.export, whose graph does not contain `checkpoint`: where an autograd function saves tensors inside a checkpoint, export
    records that gradients are switched off, but not that they are switched on again.
    """
    if not torch.is_grad_enabled() or in_func_transform() or torch.compiler.is_exporting():
        return step(*inputs)
    return checkpoint(step, *inputs, use_reentrant=False, preserve_rng_state=False)


def long_chunk(x: Tensor, elements: int | None = None) -> int:
    """Return the chunk length for operations whose memory is a small multiple of x (B, L, ...).

    It is CHUNK steps, or more as long as a chunk has at most `elements` numbers (CHUNK_ELEMENTS when None). For a symbolic batch
    size it is the length for SYMBOLIC_BATCH_ROWS rows.
    """
    if any(is_symbolic(size) for size in x.shape[2:]):
        return CHUNK
    rows = SYMBOLIC_BATCH_ROWS if is_symbolic(x.shape[0]) else x.shape[0]
    return max(CHUNK, (elements or CHUNK_ELEMENTS) // max(1, rows * math.prod(x.shape[2:])))


def chunk_of_graph(state: Tensor) -> int:
    """Return the chunk length for an op that stores a state (B, ...) for each step of a chunk.

    It is CHUNK, except in a graph that is compiled. Such a graph contains the operations of every chunk, and takes minutes to
    compile if there are many; so its chunks are long where the state is small.
    """
    return long_chunk(state.unsqueeze(1)) if torch.compiler.is_compiling() else CHUNK


def scan_chunks(
    step: Chunk,
    per_step: Sequence[Tensor | None],
    shared: Sequence[Tensor | None],
    state: Tensor,
    empty: Tensor,
    size: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Apply `step(*chunk_of_per_step, *shared, state) -> (y, state)` to consecutive chunks of `size` steps along axis 1.

    size: CHUNK when None. Returns y, concatenated over time (a copy of `empty` if there is no step), and the last state, which
    aliases no input.
    """
    length, size = empty.shape[1], size or CHUNK
    if length == 0:
        return empty.clone(), state.clone()
    if length <= size:
        return step(*per_step, *shared, state)
    per_step = [x if x is None else fix_length(x)[0] for x in per_step]
    count = -(-length // size)
    # split, not slices: its backward concatenates the gradients once; that of a slice fills a whole tensor for every chunk
    pieces = [(None,) * count if x is None else torch.split(x, size, 1) for x in per_step]
    outputs = []
    for chunk in zip(*pieces, strict=True):
        y, state = run_chunk(step, (*chunk, *shared, state))
        outputs.append(y)
    return torch.cat(outputs, 1), state


def scan_batched_chunks(
    step: Callable[..., tuple[Tensor, Tensor]],
    per_step: Sequence[Tensor | None],
    shared: Sequence[Tensor | None],
    state: Tensor,
    empty: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return what `scan_chunks` returns, for a `step(..., count=n)` that computes n consecutive chunks of CHUNK steps.

    n is 1, so that memory is bounded by a chunk, except in a graph that is compiled. Such a graph contains the operations of
    every call of `step`, and takes minutes to compile if there are many; so there one call computes all chunks. Steps of zeros
    after the last one make its last chunk as long as the others; they must not change the state.
    """
    length = empty.shape[1]
    if length <= CHUNK or not torch.compiler.is_compiling():
        return scan_chunks(step, per_step, shared, state, empty)
    count = -(-length // CHUNK)
    padded = [x if x is None else _pad_steps(x, count * CHUNK - length) for x in per_step]
    y, state = run_chunk(partial(step, count=count), (*padded, *shared, state))
    return y[:, :length], state


def _pad_steps(x: Tensor, steps: int) -> Tensor:
    """Return x (B, L, ...) with this number of steps of zeros after the last one."""
    return torch.cat([x, x.new_zeros(x.shape[0], steps, *x.shape[2:])], 1)
