"""Checks of `elapsed`, `valid` and `seq_idx`, the arguments that accompany a batch of sequences."""

import torch
from torch import Tensor

from longscan.ops.tracing import is_compiled_or_transformed


def values_unavailable(*tensors: Tensor | None) -> bool:
    """Return whether Python must not read tensor values: in compiled, traced or transformed calls and CUDA graph capture."""
    if is_compiled_or_transformed(*tensors):
        return True
    return bool(torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())  # type: ignore[no-untyped-call]


def check_steps(shape: tuple[int, int], elapsed: Tensor | None, valid: Tensor | None, seq_idx: Tensor | None) -> None:
    """Raise ValueError or TypeError unless `elapsed`, `valid` and `seq_idx` suit a batch of shape (B, L).

    Shapes and dtypes are always checked. Values (one run of valid steps per row, elapsed and seq_idx not negative) are checked
    unless `values_unavailable`.
    """
    for name, value in (("elapsed", elapsed), ("valid", valid), ("seq_idx", seq_idx)):
        if value is not None and tuple(value.shape) != shape:
            raise ValueError(f"{name}: got shape {tuple(value.shape)}, expected {shape}")
    if elapsed is not None and not elapsed.is_floating_point():
        raise TypeError(f"elapsed: got dtype {elapsed.dtype}, expected a floating-point dtype")
    if valid is not None and valid.dtype != torch.bool:
        raise TypeError(f"valid: got dtype {valid.dtype}, expected torch.bool")
    if seq_idx is not None and (seq_idx.is_floating_point() or seq_idx.is_complex() or seq_idx.dtype == torch.bool):
        raise TypeError(f"seq_idx: got dtype {seq_idx.dtype}, expected an integer dtype")
    if values_unavailable(elapsed, valid, seq_idx):
        return
    if valid is not None and shape[1] > 1:
        edges = (valid[:, 1:] != valid[:, :-1]).sum(1) + valid[:, 0] + valid[:, -1]
        if bool((edges > 2).any()):
            row = int((edges > 2).nonzero()[0])
            raise ValueError(f"valid: row {row} has more than one run of valid steps, expected one (padding left or right)")
    if elapsed is not None:
        wrong = ~(elapsed.isfinite() & (elapsed >= 0))
        wrong = wrong if valid is None else wrong & valid
        if bool(wrong.any()):
            found = elapsed[wrong][0].item()
            raise ValueError(f"elapsed: got a time of {found}, expected finite times of at least 0 since the previous step")
    if seq_idx is not None and bool((seq_idx < 0).any()):
        raise ValueError("seq_idx: got a negative number, expected numbers from 0")
