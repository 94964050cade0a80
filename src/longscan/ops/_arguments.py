"""Argument checks and conversions that the ops share: shapes, dtypes, masks, complex numbers as pairs.

Errors name the argument, what came and what was needed.
"""

import torch
from torch import Tensor

INVALID, RESET = 1, 2  # flags of a step, uint8: it does not count; the state restarts here


def check_tensor(name: str, value: object, shape: tuple[int, ...], like: Tensor | None = None) -> None:
    """Raise unless `value` is a tensor of this shape on the device of `like`; -1 in `shape` matches any size."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name}: got {type(value).__name__}, expected a tensor")
    if value.ndim != len(shape) or any(want not in (-1, got) for got, want in zip(value.shape, shape, strict=True)):
        wanted = "(" + ", ".join("*" if size == -1 else str(size) for size in shape) + ")"
        raise ValueError(f"{name}: got shape {tuple(value.shape)}, expected {wanted}")
    if like is not None and value.device != like.device:
        raise ValueError(f"{name}: is on {value.device}, expected {like.device} like the other inputs")


def check_real(name: str, value: Tensor) -> None:
    """Raise unless `value` holds real floating-point numbers."""
    if not value.is_floating_point():
        raise TypeError(f"{name}: got dtype {value.dtype}, expected a real floating-point dtype")


def state_dtype(*inputs: Tensor | None) -> torch.dtype:
    """The real dtype scans accumulate in: float64 where any input is float64 or complex128, else float32."""
    wide = (torch.float64, torch.complex128)
    return torch.float64 if any(x is not None and x.dtype in wide for x in inputs) else torch.float32


def to_pairs(x: Tensor) -> Tensor:
    """A complex tensor as real pairs (..., 2); a real tensor is taken to hold pairs already."""
    return torch.view_as_real(x.resolve_conj()) if x.is_complex() else x


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
    if valid is None:
        starts = torch.zeros(batch, length, dtype=torch.bool, device=like.device)
        starts[:, 1:] = seq_idx[:, 1:] != seq_idx[:, :-1]
        return starts.to(torch.uint8) * RESET
    steps = torch.arange(length, device=like.device).expand(batch, length)
    last_valid = torch.where(valid, steps, -1).cummax(1).values  # index of the latest valid step so far, -1 before the first
    previous = torch.cat([torch.full_like(last_valid[:, :1], -1), last_valid[:, :-1]], 1)
    starts = valid & (previous >= 0) & (seq_idx != seq_idx.gather(1, previous.clamp(min=0)))
    return starts.to(torch.uint8) * RESET + (~valid).to(torch.uint8) * INVALID
