"""What a layer carries from one call to the next: NamedTuples of tensors with a batch axis first.

They are plain NamedTuples, so torch's pytree functions (compile, export, vmap) see through them. Leaves may be None or further
states.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

State = Any  # a NamedTuple under @layer_state: one class per layer
T = TypeVar("T", bound=type)


def map_state(function: Callable[[Tensor], Tensor], state: State) -> State:
    """The state with `function` applied to every tensor in it."""
    if state is None:
        return None
    if isinstance(state, Tensor):
        return function(state)
    entries = [map_state(function, entry) for entry in state]
    return type(state)(*entries) if hasattr(state, "_fields") else tuple(entries)


def state_tensors(state: State) -> list[Tensor]:
    """All tensors in the state, in order."""
    if state is None:
        return []
    if isinstance(state, Tensor):
        return [state]
    return [x for entry in state for x in state_tensors(entry)]


def _select_rows(self: State, index: Any) -> State:
    """The state of the batch rows `index` picks (anything that indexes a tensor's first axis)."""
    return map_state(lambda x: x[index], self)


def _to(self: State, target: torch.dtype | torch.device | str) -> State:
    """Cast to a dtype or moved to a device; integer tensors are moved, never cast."""

    def move(x: Tensor) -> Tensor:
        moved = x.to(target)
        return moved if x.is_floating_point() else moved.to(x.dtype)

    return map_state(move, self)


def _detach(self: State) -> State:
    """The same numbers, cut off from what made them: gradients go no further back."""
    return map_state(Tensor.detach, self)


def _nbytes(self: State) -> int:
    """Bytes of all tensors in the state."""
    return sum(x.nbytes for x in state_tensors(self))


def layer_state(cls: T) -> T:
    """Class decorator for NamedTuples: adds `select_rows(index)`, `to(dtype or device)`, `detach()` and the property `nbytes`."""
    cls.select_rows = _select_rows  # type: ignore[attr-defined]
    cls.to = _to  # type: ignore[attr-defined]
    cls.detach = _detach  # type: ignore[attr-defined]
    cls.nbytes = property(_nbytes)  # type: ignore[attr-defined]
    return cls


@layer_state
class ScanState(NamedTuple):
    """A recurrence's state: `ssm` (B, ...), and `last_seq_idx` (B,), the seq_idx of the last step seen, -1 before any."""

    ssm: Tensor
    last_seq_idx: Tensor


@layer_state
class PhaseState(NamedTuple):
    """A rotation's state in two parts: `ssm` (B, D, N, 2), in the frame that turns along, and `phase` (B, D, N) int64, how
    far that has turned, in steps of the grid; `last_seq_idx` (B,) as in `ScanState`.
    """

    ssm: Tensor
    phase: Tensor
    last_seq_idx: Tensor


def no_sequence(batch: int, device: torch.device) -> Tensor:
    """`last_seq_idx` before any step: -1."""
    return torch.full((batch,), -1, dtype=torch.int64, device=device)


def restarted_rows(last_seq_idx: Tensor, valid: Tensor | None, seq_idx: Tensor | None) -> tuple[Tensor | None, Tensor]:
    """Which rows start a new sequence at their first valid step, (B,) bool (None: none can), and the new `last_seq_idx`.

    A row without a valid step keeps what it had. `valid` is one contiguous run per row.
    """
    if seq_idx is None or seq_idx.shape[1] == 0:
        return None, last_seq_idx
    if valid is None:
        first, last = seq_idx[:, 0], seq_idx[:, -1].to(torch.int64)
        return (last_seq_idx >= 0) & (first != last_seq_idx), last
    start = valid.to(torch.int8).argmax(1, keepdim=True)
    count = valid.sum(1, keepdim=True)
    first = seq_idx.gather(1, start).squeeze(1)
    last = seq_idx.gather(1, (start + count - 1).clamp(min=0)).squeeze(1).to(torch.int64)
    some = count.squeeze(1) > 0
    return some & (last_seq_idx >= 0) & (first != last_seq_idx), torch.where(some, last, last_seq_idx)


def zero_rows(rows: Tensor | None, state: Tensor) -> Tensor:
    """`state` with the given rows set to zero."""
    return state if rows is None else torch.where(rows.view(-1, *(1,) * (state.ndim - 1)), 0, state)
