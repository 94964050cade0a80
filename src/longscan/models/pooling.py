"""From one vector a step to one a sequence, chunk by chunk: a running mean over the valid steps, or the last valid step."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from longscan.layers.base import mask_padding
from longscan.layers.state import layer_state

Pooling = Literal["mean", "last", "none"]
POOLINGS = ("mean", "last", "none")


@layer_state
class PoolState(NamedTuple):
    """`value` (B, D): the sum of the steps seen, or the last one; `steps` (B,): how many there were."""

    value: Tensor
    steps: Tensor


def pool(kind: Pooling, x: Tensor, valid: Tensor | None, state: PoolState) -> tuple[Tensor, PoolState]:
    """The pooled features (B, D) of all steps up to the end of x (B, L, D), zeros before any step; and the state then."""
    batch, length = x.shape[:2]
    new = torch.full_like(state.steps, length) if valid is None else valid.sum(1)
    if kind == "mean":
        state = PoolState(state.value + mask_padding(x, valid).sum(1, dtype=state.value.dtype), state.steps + new)
        return (state.value / state.steps.clamp(min=1).unsqueeze(-1)).to(x.dtype), state
    if length == 0:
        return state.value.to(x.dtype), state
    position = torch.arange(length, device=x.device)
    last = torch.full_like(state.steps, length - 1) if valid is None else torch.where(valid, position, 0).amax(1)
    latest = x[torch.arange(batch, device=x.device), last].to(state.value.dtype)
    value = torch.where((new > 0).unsqueeze(-1), latest, state.value)
    return value.to(x.dtype), PoolState(value, state.steps + new)
