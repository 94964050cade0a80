"""`valid` and `seq_idx` as flags of the steps of a batch, and masks made of the flags."""

from typing import Any

import torch
from torch import Tensor

from longscan.ops._arguments import check_tensor

INVALID, RESET = 1, 2  # flags of a step, uint8: the step does not count; the state restarts from zero at this step


def step_flags(batch: int, length: int, valid: Tensor | None, seq_idx: Tensor | None, like: Tensor) -> Tensor | None:
    """Return `valid` and `seq_idx` as one uint8 tensor (B, L) of the flags INVALID and RESET; None if both are None.

    A RESET stands at a valid step whose seq_idx differs from that of the last valid step before it.
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
