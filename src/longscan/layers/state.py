"""States of layers between calls: NamedTuples of tensors whose first axis is the batch.

They are plain NamedTuples, so that torch's pytree functions (compile, export, vmap) handle them. A field may be None or another
state.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from longscan._errors import quote
from longscan.distributed.context import current_split
from longscan.ops.arguments import last_sequence, sequence_ends

State = Any  # a NamedTuple under @layer_state: one class per layer
T = TypeVar("T", bound=type)


def map_state(function: Callable[[Tensor], Tensor], state: State) -> State:
    """Return the state with `function` applied to every tensor in it."""
    if state is None:
        return None
    if isinstance(state, Tensor):
        return function(state)
    entries = [map_state(function, entry) for entry in state]
    return type(state)(*entries) if hasattr(state, "_fields") else tuple(entries)


def state_tensors(state: State) -> list[Tensor]:
    """Return all tensors of a state, in the order of its fields."""
    if state is None:
        return []
    if isinstance(state, Tensor):
        return [state]
    return [x for entry in state for x in state_tensors(entry)]


def state_rows(state: State) -> int | None:
    """Return the number of rows of the first tensor of a state; None if the state has no tensor."""
    if isinstance(state, Tensor):
        return state.shape[0]
    return next((rows for entry in state or () if (rows := state_rows(entry)) is not None), None)


def _select_rows(self: State, index: Any) -> State:
    """Return the state of some rows of the batch.

    index: the number of a row, a slice, numbers of rows (m,), or a mask of the rows (B,) bool; the last two as a tensor, an
        array, a list or a tuple.

    Raises TypeError for any other index, and IndexError for rows that do not exist and for a mask of another length.
    """
    rows = index if isinstance(index, slice) else _row_index(index)
    if isinstance(rows, Tensor) and rows.dtype == torch.bool and len(rows) != (count := state_rows(self) or 0):
        raise IndexError(f"`index` must be a mask of {count} rows, got one of {len(rows)}")
    return map_state(lambda x: x[rows], self)


def _row_index(index: Any) -> Tensor:
    """Return the numbers or the mask of rows as a tensor; that of one number has one entry, which keeps the axis of the rows."""
    try:
        rows = torch.as_tensor(index)
    except (TypeError, ValueError, RuntimeError):  # such as None, text and nested lists
        rows = torch.zeros(())
    if rows.ndim == 0 and rows.dtype != torch.bool:
        rows = rows.unsqueeze(0)
    is_number = not (rows.is_floating_point() or rows.is_complex()) or not rows.numel()  # an empty list has no dtype
    if rows.ndim != 1 or not is_number:
        needed = "the number of a row, a slice, numbers of rows or a mask of the rows"
        raise TypeError(f"`index` must be {needed}, got {quote(index)}")
    return rows if rows.dtype == torch.bool else rows.long()  # torch would take uint8 for a mask


def _to(self: State, target: torch.dtype | torch.device | str) -> State:
    """Return the state cast to a dtype or moved to a device; integer tensors are moved, never cast."""

    def move(x: Tensor) -> Tensor:
        moved = x.to(target)
        return moved if x.is_floating_point() else moved.to(x.dtype)

    return map_state(move, self)


def _detach(self: State) -> State:
    """Return the state detached from the graph, with the same values."""
    return map_state(Tensor.detach, self)


def _nbytes(self: State) -> int:
    """The number of bytes of all tensors in the state."""
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
    """State of a recurrence: `ssm` (B, ...), and `last_seq_idx` (B,), the seq_idx of the last valid step, -1 before the first."""

    ssm: Tensor
    last_seq_idx: Tensor


@layer_state
class PhaseState(NamedTuple):
    """State of `unitary_scan` with a phase grid of Q angles: h = e^{2 pi i phase / Q} ssm.

    Attributes:
        ssm: (B, D, N, 2), the state in the rotating frame.
        phase: (B, D, N) int64, the angle of the frame in multiples of 2 pi / Q.
        last_seq_idx: (B,), as in `ScanState`.
    """

    ssm: Tensor
    phase: Tensor
    last_seq_idx: Tensor


def no_sequence(batch: int, device: torch.device) -> Tensor:
    """Return `last_seq_idx` (batch,) before the first step: -1."""
    return torch.full((batch,), -1, dtype=torch.int64, device=device)


def restarted_rows(last_seq_idx: Tensor, valid: Tensor | None, seq_idx: Tensor | None) -> tuple[Tensor | None, Tensor]:
    """Return which rows start a new sequence at their first valid step, (B,) bool, and the new `last_seq_idx` (B,).

    The first result is None without `seq_idx`. The `last_seq_idx` of a row without a valid step is unchanged. If sequences are
    split over processes, both results are those for the whole sequences.

    Args:
        last_seq_idx: (B,) int64, the seq_idx of the last valid step before these, -1 if there was none.
        valid: (B, L) bool, one run of valid steps per row; None if all are valid.
        seq_idx: (B, L), or None.
    """
    if seq_idx is None or seq_idx.shape[1] == 0:
        return None, last_seq_idx
    split = current_split()
    if split is not None:
        ends = sequence_ends(valid, seq_idx, split)
        (_, first, _), (found, _, last) = last_sequence(ends.flip(0)).unbind(1), last_sequence(ends).unbind(1)
        has_step = found > 0
        return has_step & (last_seq_idx >= 0) & (first != last_seq_idx), torch.where(has_step, last, last_seq_idx)
    if valid is None:
        first, last = seq_idx[:, 0], seq_idx[:, -1].to(torch.int64)
        return (last_seq_idx >= 0) & (first != last_seq_idx), last
    start = valid.to(torch.int8).argmax(1, keepdim=True)
    count = valid.sum(1, keepdim=True)
    first = seq_idx.gather(1, start).squeeze(1)
    last = seq_idx.gather(1, (start + count - 1).clamp(min=0)).squeeze(1).to(torch.int64)
    has_step = count.squeeze(1) > 0
    return has_step & (last_seq_idx >= 0) & (first != last_seq_idx), torch.where(has_step, last, last_seq_idx)


def zero_rows(rows: Tensor | None, state: Tensor) -> Tensor:
    """Return `state` (B, ...) with zeros in the rows where `rows` (B,) is True; `state` itself if `rows` is None."""
    return state if rows is None else torch.where(rows.view(-1, *(1,) * (state.ndim - 1)), 0, state)
