"""Pooling of a sequence to one vector, with a state: the mean over the valid steps so far, or the last valid step."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from longscan.distributed.collectives import all_gather
from longscan.distributed.context import current_split
from longscan.layers.base import mask_padding
from longscan.layers.state import layer_state

Pooling = Literal["mean", "last", "none"]


@layer_state
class PoolState(NamedTuple):
    """State of the pooling of a model.

    Attributes:
        value: (B, D), the sum of the valid steps so far, or the last valid step.
        steps: (B,), the number of valid steps so far.
    """

    value: Tensor
    steps: Tensor


def pool(kind: Pooling, x: Tensor, valid: Tensor | None, state: PoolState) -> tuple[Tensor, PoolState]:
    """Return the pooled features (B, D) of all steps up to the end of x, and the state after them.

    Args:
        kind: "mean" or "last".
        x: (B, L, D), the next steps.
        valid: (B, L) bool, False for padding; None if there is none.
        state: the state before x.

    The features of a row without any valid step so far are zeros. If x is a piece of split sequences, the results are those after
    the last piece, on every process.
    """
    batch, length = x.shape[:2]
    new = torch.full_like(state.steps, length) if valid is None else valid.sum(1)
    split = current_split()
    steps = new.unsqueeze(0) if split is None else all_gather(new, split)  # numbers of steps of each piece, (R, B)
    if kind == "mean":
        total = mask_padding(x, valid).sum(1, dtype=state.value.dtype)
        total = total if split is None else all_gather(total, split).sum(0)
        state = PoolState(state.value + total, state.steps + steps.sum(0))
        return (state.value / state.steps.clamp(min=1).unsqueeze(-1)).to(x.dtype), state
    if length == 0:
        return state.value.to(x.dtype), state
    position = torch.arange(length, device=x.device)
    last = torch.full_like(state.steps, length - 1) if valid is None else torch.where(valid, position, 0).amax(1)
    latest, value = x[torch.arange(batch, device=x.device), last].to(state.value.dtype), state.value
    for count, found in zip(steps, latest.unsqueeze(0) if split is None else all_gather(latest, split), strict=True):
        value = torch.where((count > 0).unsqueeze(-1), found, value)
    return value.to(x.dtype), PoolState(value, state.steps + steps.sum(0))
