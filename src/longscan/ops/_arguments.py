"""Argument checks and conversions that the ops share: shapes, dtypes, masks, complex numbers as pairs.

Errors name the argument, what came and what was needed.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

_DENSE = torch.strided
INVALID, RESET = 1, 2  # flags of a step, uint8: it does not count; the state restarts here


def _spell(shape: tuple[int, ...]) -> str:
    return "(" + ", ".join("*" if size == -1 else str(size) for size in shape) + ")"


def _matches(value: Tensor, shape: tuple[int, ...]) -> bool:
    if value.shape == shape:
        return True
    return value.ndim == len(shape) and all(want in (-1, got) for got, want in zip(value.shape, shape, strict=True))


def check_tensor(name: str, value: object, shape: tuple[int, ...], like: Tensor | None = None) -> None:
    """Raise unless `value` is a dense tensor of this shape on the device of `like`; -1 in `shape` matches any size."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name}: got {type(value).__name__}, expected a tensor")
    if value.layout is not _DENSE:
        raise TypeError(f"{name}: got layout {value.layout}, expected torch.strided, a dense tensor")
    if not _matches(value, shape):
        raise ValueError(f"{name}: got shape {tuple(value.shape)}, expected {_spell(shape)}")
    if like is not None and value.device != like.device:
        raise ValueError(f"{name}: is on {value.device}, expected {like.device} like the other inputs")


def check_real(name: str, value: object, shape: tuple[int, ...], like: Tensor | None = None) -> None:
    """As `check_tensor`, and raise unless `value` holds real floating-point numbers."""
    check_tensor(name, value, shape, like)
    if not value.is_floating_point():  # type: ignore[attr-defined]
        raise TypeError(f"{name}: got dtype {value.dtype}, expected a real floating-point dtype")  # type: ignore[attr-defined]


def check_complex(name: str, value: object, shape: tuple[int, ...], like: Tensor | None = None) -> None:
    """Raise unless `value` holds complex numbers of this shape: a complex tensor, or real pairs (*shape, 2)."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name}: got {type(value).__name__}, expected a tensor")
    if value.layout is not _DENSE:
        raise TypeError(f"{name}: got layout {value.layout}, expected torch.strided, a dense tensor")
    if not _matches(value, shape if value.is_complex() else (*shape, 2)):
        kind = "complex" if value.is_complex() else "real"
        wanted = f"{_spell(shape)} complex or {_spell((*shape, 2))} real pairs"
        raise ValueError(f"{name}: got shape {tuple(value.shape)} {kind}, expected {wanted}")
    if not value.is_complex():
        check_real(name, value, (*shape, 2), like)
    elif like is not None and value.device != like.device:
        raise ValueError(f"{name}: is on {value.device}, expected {like.device} like the other inputs")


def state_dtype(*inputs: Tensor | None) -> torch.dtype:
    """The real dtype scans accumulate in: float64 where any input is float64 or complex128, else float32."""
    wide = (torch.float64, torch.complex128)
    return torch.float64 if any(x is not None and x.dtype in wide for x in inputs) else torch.float32


def carry_dtype(like: Tensor) -> torch.dtype:
    """The dtype of what is carried over many steps: float64, but on Apple's GPUs, which have none, that of `like`."""
    return like.dtype if like.device.type == "mps" else torch.float64


def to_pairs(x: Tensor, dtype: torch.dtype) -> Tensor:
    """A complex tensor as real pairs (..., 2) of `dtype`; a real one, which is taken to hold pairs already, in this dtype."""
    if x.dtype == dtype:
        return x
    return (torch.view_as_real(x.resolve_conj()) if x.is_complex() else x).to(dtype)


def in_form_of(pairs: Tensor, like: Tensor) -> Tensor:
    """Pairs (..., 2) as complex numbers where `like` is complex, unchanged where it is real."""
    return torch.view_as_complex(pairs) if like.is_complex() else pairs


def without_autocast(like: Tensor) -> AbstractContextManager[object]:
    """A context in which autocast changes nothing: ops accumulate in their own dtype whatever surrounds them."""
    kind = like.device.type
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        return nullcontext()
    return torch.autocast(kind, enabled=False)


def step_flags(batch: int, length: int, valid: Tensor | None, seq_idx: Tensor | None, like: Tensor) -> Tensor | None:
    """`valid` and `seq_idx` as one uint8 tensor (B, L) of INVALID and RESET marks; None where every step is an ordinary one.

    Invalid steps count for nothing: a segment starts at a valid step whose seq_idx differs from that of the last valid step.
    """
    if valid is not None:
        check_tensor("valid", valid, (batch, length), like)
        if valid.dtype != torch.bool:
            raise TypeError(f"valid: got dtype {valid.dtype}, expected torch.bool")
    if seq_idx is None:
        return None if valid is None else (~valid).to(torch.uint8) * INVALID
    check_tensor("seq_idx", seq_idx, (batch, length), like)
    if seq_idx.is_floating_point() or seq_idx.is_complex() or seq_idx.dtype == torch.bool:
        raise TypeError(f"seq_idx: got dtype {seq_idx.dtype}, expected an integer dtype")
    first = torch.zeros(batch, min(length, 1), dtype=torch.bool, device=like.device)
    if valid is None:
        return torch.cat([first, seq_idx[:, 1:] != seq_idx[:, :-1]], 1).to(torch.uint8) * RESET
    steps = torch.arange(length, device=like.device)
    last_valid = torch.where(valid, steps, -1).cummax(1).values  # index of the latest valid step so far, -1 before the first
    previous = last_valid[:, :-1]
    changed = valid[:, 1:] & (previous >= 0) & (seq_idx[:, 1:] != seq_idx.gather(1, previous.clamp(min=0)))
    return torch.cat([first, changed], 1).to(torch.uint8) * RESET + (~valid).to(torch.uint8) * INVALID


def last_valid(flags: Tensor) -> Tensor:
    """The last valid step before each, (B, L) int64; -1 where there is none."""
    steps = torch.arange(flags.shape[1], device=flags.device).expand_as(flags)
    latest = torch.where(flags == INVALID, -1, steps).cummax(1).values
    return torch.cat([torch.full_like(latest[:, :1], -1), latest[:, :-1]], 1)


def flag_masks(flags: Tensor, ndim: int) -> tuple[Tensor, Tensor]:
    """Where `flags` (B, L) say INVALID and where they say RESET, each shaped (B, L, 1, ...) with `ndim` axes."""
    per_step = flags.view(*flags.shape, *(1,) * (ndim - flags.ndim))
    return per_step == INVALID, per_step == RESET


def resets(flags: Tensor | None, packed: bool, ndim: int) -> Tensor | None:
    """Where a sequence starts inside a row, bool (B, L, 1, ...) with `ndim` axes; None unless rows are `packed`."""
    return flag_masks(flags, ndim)[1] if packed and flags is not None else None


def mask(flags: Tensor | None, *inputs: Tensor | None) -> list[Any]:
    """Per-step inputs (B, L, ...) with zeros at invalid steps, so that what stands there reaches no result and no gradient."""
    if flags is None:
        return list(inputs)
    return [None if x is None else torch.where(flag_masks(flags, x.ndim)[0], 0, x) for x in inputs]
