"""Run a scan chunk by chunk, recomputing a chunk's intermediates in the backward instead of keeping them."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

CHUNK = 64

Chunk = Callable[..., tuple[Tensor, Tensor]]


def _run(step: Chunk, *inputs: Tensor | None) -> tuple[Tensor, Tensor]:
    """One chunk; its intermediates are recomputed in the backward where autograd records at all.

    The transforms of torch.func take no saved-tensor hooks: under them intermediates are kept.
    """
    if not torch.is_grad_enabled():
        return step(*inputs)
    if not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active():
        return step(*inputs)
    return checkpoint(step, *inputs, use_reentrant=False, preserve_rng_state=False)


def scan_chunks(
    step: Chunk, inputs: tuple[Tensor | None, ...], state: Tensor, length: int, size: int, empty: Tensor
) -> tuple[Tensor, Tensor]:
    """Apply `step(*chunk_of_inputs, state) -> (y, state)` to consecutive slices of `size` steps along axis 1.

    Returns y joined over time (`empty`, cloned, where there is no step) and the last state, which aliases no input.
    """
    if length == 0:
        return empty.clone(), state.clone()
    if length <= size:
        return step(*inputs, state)
    outputs = []
    for start in range(0, length, size):
        y, state = _run(step, *(None if x is None else x[:, start : start + size] for x in inputs), state)
        outputs.append(y)
    return torch.cat(outputs, 1), state
