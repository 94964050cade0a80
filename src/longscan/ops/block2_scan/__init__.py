"""The recurrence x_t = M_t x_{t-1} + f_t with 2x2 matrices, constant or one for every step: a pair of coupled states (LinOSS)."""

from collections.abc import Callable

import torch
from torch import Tensor

from longscan.distributed.context import SequenceSplit, current_split
from longscan.ops._native_op import NativeOp
from longscan.ops.arguments import (
    check_real,
    check_tensor,
    connect_gradients,
    restore_complex,
    state_dtype,
    step_flags,
    to_pairs,
    without_autocast,
)
from longscan.ops.block2_scan import eager, reference
from longscan.ops.dispatch import NATIVE, probe, resolve
from longscan.ops.pieces import PieceMap, product_of_factors, scan_piece

NATIVE_BACKENDS = probe("block2_scan", "triton")

_native = NativeOp(
    "block2_scan",
    NATIVE_BACKENDS,
    inputs=("M: [B L | models] S 2 2", "f: B L S 2 K", "initial_state: B S 2 K", "flags?: B L, uint8"),
    constants=(),
    outputs=("x: f", "final: initial_state"),
    saved=("M", "x", "initial_state", "flags"),
    gradients={"M": "M", "f": "x", "initial_state": "initial_state"},
    batched=lambda axes: ("f", "initial_state", "flags", *(("M",) if axes["M"] == axes.get("f", axes.get("x")) else ())),
    pieces=("triton",),
    limits=lambda sizes: None if sizes["K"] in (1, 2) else f"`f` must be of 1 or 2 columns, got {sizes['K']}",
)


def block2_scan(
    M: Tensor,
    f: Tensor,
    initial_state: Tensor | None = None,
    *,
    pairs: bool = False,
    valid: Tensor | None = None,
    seq_idx: Tensor | None = None,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Run the recurrence x_t = M_t x_{t-1} + f_t with 2x2 matrices for t = 1..L, for every index of the axes S.

    Rusch and Rus 2025, "LinOSS", equations 3 to 6.

    Args:
        M: real, `(B, L, *S, 2, 2)`, or `(*S, 2, 2)` when it does not change over time.
        f: `(B, L, *S, 2)`, real or complex; M acts on both parts of complex numbers alike.
        initial_state: `(B, *S, 2)`, the x before the first step; zeros when None. Complex where f is.
        pairs: f and initial_state are real with one more axis (..., 2, 2), whose last is real and imaginary part.
        valid: (B, L) bool; where it is False, the step leaves the state unchanged and x is 0.
        seq_idx: (B, L) integers; where it changes from one valid step to the next, the state restarts from zero.
        backend: "auto", "reference", "eager" or "triton".

    Returns:
        x, shaped as f, of the dtype of M and f together, and the final state `(B, *S, 2)` in float32, complex64 or their double
        forms (pairs when `pairs`).

    Raises:
        TypeError, ValueError: an argument's type, dtype, shape or device is wrong, or the backend cannot run.

    >>> turn = torch.tensor([[0.0, -1.0], [1.0, 0.0]])
    >>> block2_scan(turn, torch.tensor([[[1.0, 0.0], [0.0, 0.0], [0.0, 0.0]]]))[0]
    tensor([[[ 1.,  0.],
             [ 0.,  1.],
             [-1.,  0.]]])
    """
    check_tensor("f", f, None)
    tail = (2, 2) if pairs else (2,)
    if f.ndim < 2 + len(tail) or f.shape[-len(tail) :] != tail:
        raise ValueError(f"`f` must be of shape (B, L, ..., {'2, 2' if pairs else '2'}), got {tuple(f.shape)}")
    if not f.is_floating_point() and (pairs or not f.is_complex()):
        raise TypeError(f"`f` must be of a {'real' if pairs else 'real or complex'} floating-point dtype, got {f.dtype}")
    batch, length, *axes = f.shape[: f.ndim - len(tail)]
    check_real("M", M, None, f)
    steps = (batch, length) if M.ndim == len(axes) + 4 else ()
    if tuple(M.shape) != (*steps, *axes, 2, 2):
        wanted = f"{(batch, length, *axes, 2, 2)} or {(*axes, 2, 2)}"
        raise ValueError(f"`M` must be of shape {wanted}, as f is {tuple(f.shape)}, got {tuple(M.shape)}")
    if initial_state is None:
        initial_state = f.new_zeros((batch, *axes, *tail))
    check_tensor("initial_state", initial_state, (batch, *axes, *tail), f)
    if initial_state.is_complex() != f.is_complex() or not (initial_state.is_floating_point() or initial_state.is_complex()):
        kind = "complex" if f.is_complex() else "real floating-point"
        raise TypeError(f"`initial_state` must be of a {kind} dtype like f, got {initial_state.dtype}")
    flags = step_flags(batch, length, valid, seq_idx, f)

    out, wide = torch.promote_types(M.dtype, f.dtype), state_dtype(M, f, initial_state)
    columns = pairs or f.is_complex()
    drive, start = (to_pairs(part, wide) if columns else part.to(wide).unsqueeze(-1) for part in (f, initial_state))
    chosen = resolve("block2_scan", backend, f, NATIVE_BACKENDS)
    with without_autocast(f):
        matrices = M.to(wide)
        x, final = scan_piece(
            lambda state: _run(matrices, drive, state, flags, seq_idx is not None, chosen),
            start,
            flags,
            lambda: _matrix_map(matrices, drive, flags),
            native=_piece(matrices, drive, start, flags, chosen),
        )
        if length == 0:
            x, final = connect_gradients((x, final), matrices, drive, start)
    if not columns:
        return x.squeeze(-1).to(out), final.squeeze(-1)
    return restore_complex(x.contiguous(), f).to(out), restore_complex(final.contiguous(), f)


def _matrix_map(M: Tensor, f: Tensor, flags: Tensor | None) -> PieceMap:
    """Return the map of states by the matrices of a piece; arguments as in `_run`."""
    factor = product_of_factors(M, flags, f.shape[1], f.ndim, torch.matmul, torch.eye(2, device=M.device))
    return PieceMap([factor], lambda state, factor: factor @ state)


def _flat(M: Tensor, f: Tensor, initial_state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return M, f and the initial state with one axis S."""
    if f.ndim == 5:  # a reshape would only add nodes to the autograd graph
        return M, f, initial_state
    batch, length, *_, columns = f.shape
    return (
        M.reshape(*M.shape[: M.ndim - initial_state.ndim + 1], -1, 2, 2),
        f.reshape(batch, length, -1, 2, columns),
        initial_state.reshape(batch, -1, 2, columns),
    )


def _piece(
    M: Tensor, f: Tensor, initial_state: Tensor, flags: Tensor | None, backend: str
) -> Callable[[SequenceSplit], tuple[Tensor, Tensor]] | None:
    """Return the scan of a piece of split sequences by a native kernel, for `scan_piece`, or None."""
    if current_split() is None or not f.numel():
        return None
    native = _native.of_piece(*_flat(M, f, initial_state), flags, backend, factors="matrix")
    if native is None:
        return None

    def run(split: SequenceSplit) -> tuple[Tensor, Tensor]:
        x, final = native(split)
        return x.reshape(f.shape), final.reshape(initial_state.shape)

    return run


def _run(M: Tensor, f: Tensor, initial_state: Tensor, flags: Tensor | None, packed: bool, backend: str) -> tuple[Tensor, Tensor]:
    """Return x and the final state by one backend, for real tensors of one dtype; arguments as in `reference`."""
    if backend in NATIVE and f.numel():
        x, final = _native(*_flat(M, f, initial_state), flags, backend)
        return (x, final) if x.shape == f.shape else (x.reshape(f.shape), final.reshape(initial_state.shape))
    if backend == "reference":
        return reference.block2_scan(M, f, initial_state, flags)
    return eager.block2_scan(M, f, initial_state, flags, packed=packed)
