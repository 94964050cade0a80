"""The arguments that ops share: checks of tensors, `valid` and `seq_idx` as masks, and the dtypes of computations."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from longscan.distributed.collectives import all_gather
from longscan.distributed.context import SequenceSplit, current_split

INVALID, RESET = 1, 2  # flags of a step, uint8: the step is skipped; the state restarts from zero at this step


def check_tensor(name: str, value: object, shape: tuple[int, ...] | None, like: Tensor | None = None) -> None:
    """Raise unless `value` is a dense tensor of this shape on the device of `like`.

    -1 in `shape` matches any size, and None any shape.
    """
    if not isinstance(value, Tensor):
        raise TypeError(f"`{name}` must be a tensor, got {type(value).__name__}")
    if value.layout is not torch.strided or value.is_nested:
        found = "a nested tensor" if value.is_nested else f"layout {value.layout}"
        raise TypeError(f"`{name}` must be dense, of layout torch.strided, got {found}")
    if (
        shape is not None
        and value.shape != shape
        and (value.ndim != len(shape) or any(size not in (-1, found) for size, found in zip(shape, value.shape, strict=True)))
    ):
        raise ValueError(f"`{name}` must be of shape {_spell(shape)}, got {tuple(value.shape)}")
    if like is not None and value.device != like.device:
        raise ValueError(f"`{name}` must be on {like.device} like the other inputs, got a tensor on {value.device}")


def check_real(name: str, value: object, shape: tuple[int, ...] | None, like: Tensor | None = None) -> None:
    """Raise unless `value` passes `check_tensor` and has a real floating-point dtype."""
    check_tensor(name, value, shape, like)
    if not value.is_floating_point():  # type: ignore[attr-defined]
        raise TypeError(f"`{name}` must be of a real floating-point dtype, got {value.dtype}")  # type: ignore[attr-defined]


def check_complex(name: str, value: Any, shape: tuple[int, ...], like: Tensor | None = None) -> None:
    """Raise unless `value` has complex numbers of this shape: a complex tensor, or real pairs (*shape, 2)."""
    check_tensor(name, value, None)
    if value.is_complex():
        check_tensor(name, value, shape, like)
        return
    if value.shape[-1:] != (2,):
        wanted = f"complex of shape {_spell(shape)} or real pairs of shape {_spell((*shape, 2))}"
        raise ValueError(f"`{name}` must be {wanted}, got a real tensor of shape {tuple(value.shape)}")
    check_real(name, value, (*shape, 2), like)


def _spell(shape: tuple[int, ...]) -> str:
    return "(" + ", ".join("*" if size == -1 else str(size) for size in shape) + ")"


def step_flags(batch: int, length: int, valid: Tensor | None, seq_idx: Tensor | None, like: Tensor) -> Tensor | None:
    """Return `valid` and `seq_idx` as one uint8 tensor (B, L) of the flags INVALID and RESET; None if both are None.

    RESET is set at each valid step whose seq_idx differs from that of the last valid step before it. If sequences are split over
    processes, this step may be in an earlier piece.
    """
    if valid is not None:
        check_tensor("valid", valid, (batch, length), like)
        if valid.dtype != torch.bool:
            raise TypeError(f"`valid` must be of dtype torch.bool, got {valid.dtype}")
    if seq_idx is None:
        return None if valid is None else (~valid).to(torch.uint8) * INVALID
    check_tensor("seq_idx", seq_idx, (batch, length), like)
    if seq_idx.is_floating_point() or seq_idx.is_complex() or seq_idx.dtype == torch.bool:
        raise TypeError(f"`seq_idx` must be of an integer dtype, got {seq_idx.dtype}")
    first = torch.zeros(batch, min(length, 1), dtype=torch.bool, device=like.device)
    split = current_split()
    if split is not None and length:
        return _piece_flags(valid, seq_idx, split)
    if valid is None:
        return torch.cat([first, seq_idx[:, 1:] != seq_idx[:, :-1]], 1).to(torch.uint8) * RESET
    steps = torch.arange(length, device=like.device)
    latest = torch.where(valid, steps, -1).cummax(1).values  # index of the latest valid step so far, -1 before the first
    previous = latest[:, :-1]
    changed = valid[:, 1:] & (previous >= 0) & (seq_idx[:, 1:] != seq_idx.gather(1, previous.clamp(min=0)))
    return torch.cat([first, changed], 1).to(torch.uint8) * RESET + (~valid).to(torch.uint8) * INVALID


def _piece_flags(valid: Tensor | None, seq_idx: Tensor, split: SequenceSplit) -> Tensor:
    """Return the flags of a piece of a split sequence, whose first valid step follows the last valid step of earlier pieces."""
    valid = torch.ones_like(seq_idx, dtype=torch.bool) if valid is None else valid
    ends = sequence_ends(valid, seq_idx, split)
    before = last_sequence(ends[: split.rank])
    valid = torch.cat([before[:, :1] > 0, valid], 1)
    seq_idx = torch.cat([before[:, 2:].to(seq_idx.dtype), seq_idx], 1)
    steps = torch.arange(seq_idx.shape[1], device=seq_idx.device)
    latest = torch.where(valid, steps, -1).cummax(1).values[:, :-1]
    changed = valid[:, 1:] & (latest >= 0) & (seq_idx[:, 1:] != seq_idx.gather(1, latest.clamp(min=0)))
    return changed.to(torch.uint8) * RESET + (~valid[:, 1:]).to(torch.uint8) * INVALID


def sequence_ends(valid: Tensor | None, seq_idx: Tensor, split: SequenceSplit) -> Tensor:
    """Return, for each piece of a split sequence, whether it has a valid step, and the seq_idx of its first and last one.

    valid, seq_idx: (B, L), L >= 1, of this process's piece. Returns (R, B, 3) int64.
    """
    valid = torch.ones_like(seq_idx, dtype=torch.bool) if valid is None else valid
    steps = torch.arange(valid.shape[1], device=valid.device)
    first, last = valid.to(torch.int8).argmax(1, keepdim=True), torch.where(valid, steps, 0).amax(1, keepdim=True)
    ends = [valid.any(1, keepdim=True), seq_idx.gather(1, first), seq_idx.gather(1, last)]
    return all_gather(torch.cat([end.to(torch.int64) for end in ends], 1), split)


def last_sequence(ends: Tensor) -> Tensor:
    """Return the row of `sequence_ends` (R, B, 3) of the last piece with a valid step, (B, 3); zeros if there is none."""
    found = ends.new_zeros(ends.shape[1:])
    for piece in ends:
        found = torch.where(piece[:, :1] > 0, piece, found)
    return found


def last_valid(flags: Tensor) -> Tensor:
    """Return the index of the last valid step before each step, (B, L) int64; -1 where there is none."""
    steps = torch.arange(flags.shape[1], device=flags.device).expand_as(flags)
    latest = torch.where(flags == INVALID, -1, steps).cummax(1).values
    return torch.cat([torch.full_like(latest[:, :1], -1), latest[:, :-1]], 1)


def flag_masks(flags: Tensor, ndim: int) -> tuple[Tensor, Tensor]:
    """Return the masks of INVALID and of RESET steps, each bool (B, L, 1, ...) with `ndim` axes, from flags (B, L)."""
    per_step = flags.view(*flags.shape, *(1,) * (ndim - flags.ndim))
    return per_step == INVALID, per_step == RESET


def reset_mask(flags: Tensor | None, packed: bool, ndim: int) -> Tensor | None:
    """Return the mask of RESET steps, bool (B, L, 1, ...) with `ndim` axes; None unless rows are `packed`."""
    return flag_masks(flags, ndim)[1] if packed and flags is not None else None


def zero_invalid(flags: Tensor | None, *inputs: Tensor | None) -> list[Any]:
    """Return inputs (B, L, ...) with zeros at invalid steps, so that the values there reach no result and no gradient."""
    if flags is None:
        return list(inputs)
    return [None if x is None else torch.where(flag_masks(flags, x.ndim)[0], 0, x) for x in inputs]


def to_pairs(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a complex tensor as real pairs (..., 2) of `dtype`; a real tensor, which contains pairs already, is only cast."""
    if x.dtype == dtype:
        return x
    return (torch.view_as_real(x.resolve_conj()) if x.is_complex() else x).to(dtype)


def restore_complex(pairs: Tensor, like: Tensor) -> Tensor:
    """Return pairs (..., 2) as a complex tensor if `like` is complex, otherwise unchanged."""
    return torch.view_as_complex(pairs) if like.is_complex() else pairs


def connect_gradients(results: tuple[Tensor, ...], *inputs: Tensor | None) -> tuple[Tensor, ...]:
    """Return copies of the results of a call without steps that depend on all inputs, with gradients of zeros.

    Without steps no operation reads most inputs, and autograd would return None for them. Gradients of torch's operations on
    tensors without elements are zeros, too. results: real tensors.
    """
    real = [torch.view_as_real(x.resolve_conj()) if x.is_complex() else x for x in inputs if x is not None]
    return tuple(torch.cat([y.reshape(-1), *[x.reshape(-1)[:0].to(y.dtype) for x in real]]).view(y.shape) for y in results)


def state_dtype(*inputs: Tensor | None) -> torch.dtype:
    """Return the real dtype in which scans accumulate: float64 if any input is float64 or complex128, otherwise float32."""
    wide = (torch.float64, torch.complex128)
    return torch.float64 if any(x is not None and x.dtype in wide for x in inputs) else torch.float32


def carry_dtype(like: Tensor) -> torch.dtype:
    """Return the dtype of values carried over many steps: float64, or the dtype of `like` on MPS, which has no float64."""
    return like.dtype if like.device.type == "mps" else torch.float64


def without_autocast(like: Tensor) -> AbstractContextManager[object]:
    """Return a context without autocast on the device of `like`, so that an op accumulates in the dtype that it chose."""
    kind = like.device.type
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        return nullcontext()
    return torch.autocast(kind, enabled=False)
