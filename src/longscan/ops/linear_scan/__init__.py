"""The first-order linear recurrence x_t = a_t x_{t-1} + b_t, real or complex, a constant or one for every step."""

from collections.abc import Callable

import torch
from torch import Tensor

from longscan.distributed.context import SequenceSplit, current_split, reversed_split
from longscan.numerics.pairs import constant, multiply
from longscan.ops._native_op import NativeOp
from longscan.ops.arguments import check_tensor, connect_gradients, state_dtype, step_flags, to_pairs, without_autocast
from longscan.ops.dispatch import NATIVE, probe, resolve
from longscan.ops.linear_scan import eager, reference
from longscan.ops.pieces import PieceMap, product_of_factors, scan_piece

NATIVE_BACKENDS = probe("linear_scan", "cpu", "triton")

_native = NativeOp(
    "linear_scan",
    NATIVE_BACKENDS,
    inputs=("a: [B L | models] S [2]", "b: B L S [2]", "initial_state: B S [2]", "flags?: B L, uint8"),
    constants=("reverse", "is_complex: 2"),
    outputs=("x: b", "final: initial_state"),
    saved=("a", "x", "initial_state", "flags", "reverse", "is_complex"),
    gradients={"a": "a", "b": "x", "initial_state": "initial_state"},
    batched=lambda axes: ("b", "initial_state", "flags", *(("a",) if axes["a"] == axes.get("b", axes.get("x")) else ())),
    pieces=("triton",),
)


def linear_scan(
    a: Tensor,
    b: Tensor,
    initial_state: Tensor | None = None,
    *,
    reverse: bool = False,
    pairs: bool = False,
    valid: Tensor | None = None,
    seq_idx: Tensor | None = None,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Run the linear recurrence x_t = a_t x_{t-1} + b_t for t = 1..L, elementwise over the axes S.

    Args:
        a: `(B, L, *S)`, or `(*S)` when it does not change over time.
        b: `(B, L, *S)`. a and b are real or complex; their promoted dtype is that of x.
        initial_state: `(B, *S)`, the x before the first step; zeros when None. Complex where a or b is.
        reverse: run from t = L to t = 1, from the initial state x_{L+1}.
        pairs: a, b and initial_state are real pairs (..., 2) that stand for complex numbers.
        valid: (B, L) bool; where it is False, the step leaves the state unchanged and x is 0.
        seq_idx: (B, L) integers; where it changes from one valid step to the next, the state restarts from zero.
        backend: "auto", "reference", "eager", "cpu" or "triton".

    Returns:
        x `(B, L, *S)` and the final state `(B, *S)` in float32, complex64 or their double forms (pairs when `pairs`).

    Raises:
        TypeError, ValueError: an argument's type, dtype, shape or device is wrong, or the backend cannot run.

    >>> linear_scan(torch.tensor([0.5]), torch.ones(1, 3, 1))[0].flatten()
    tensor([1.0000, 1.5000, 1.7500])
    """
    check_tensor("b", b, None)
    if b.ndim < 2 + pairs or (pairs and b.shape[-1] != 2):
        raise ValueError(f"`b` must be of shape (B, L, ...{', 2' if pairs else ''}), got {tuple(b.shape)}")
    check_tensor("a", a, None, b)
    batch, length, *rest = b.shape
    # Shapes of different numbers of axes are not compared: in a traced graph this would tie a symbolic batch size to the states.
    if a.shape != (b.shape if a.ndim == b.ndim else b.shape[2:]):
        raise ValueError(f"`a` must be of shape {tuple(b.shape)} or {tuple(rest)} like b, got {tuple(a.shape)}")
    is_complex = pairs or a.is_complex() or b.is_complex()
    if initial_state is None:
        initial_state = b.new_zeros((batch, *rest), dtype=None if pairs else torch.promote_types(a.dtype, b.dtype))
    check_tensor("initial_state", initial_state, (batch, *rest), b)
    for name, value in (("a", a), ("b", b), ("initial_state", initial_state)):
        if not value.is_floating_point() and (pairs or not value.is_complex()):
            kind = "real" if pairs else "real or complex"
            raise TypeError(f"`{name}` must be of a {kind} floating-point dtype, got {value.dtype}")
    if not pairs and initial_state.is_complex() != is_complex:
        kind = "complex" if is_complex else "real"
        raise TypeError(f"`initial_state` must be of a {kind} dtype like a and b together, got {initial_state.dtype}")
    if reverse and current_split() is not None:
        with reversed_split():
            masks = [None if mask is None else mask.flip(1) for mask in (valid, seq_idx)]
            x, final = linear_scan(
                a.flip(1) if a.ndim == b.ndim else a, b.flip(1), initial_state,
                pairs=pairs, valid=masks[0], seq_idx=masks[1], backend=backend,
            )  # fmt: skip
        return x.flip(1), final
    flags = step_flags(batch, length, valid, seq_idx, b)
    if reverse and seq_idx is not None:
        flags = step_flags(batch, length, None if valid is None else valid.flip(1), seq_idx.flip(1), b)
        flags = None if flags is None else flags.flip(1)

    out, wide = torch.promote_types(a.dtype, b.dtype), state_dtype(a, b, initial_state)
    form = initial_state
    if is_complex and not a.is_complex() and not pairs:  # a real factor multiplies both parts
        a, is_complex = torch.stack([a, a], -1), False
    elif is_complex and not b.is_complex() and not pairs:
        b = torch.stack([b, torch.zeros_like(b)], -1)
    a, b, initial_state = (to_pairs(x, wide) for x in (a, b, initial_state))
    chosen = resolve("linear_scan", backend, b, NATIVE_BACKENDS)
    with without_autocast(b):
        x, final = scan_piece(
            lambda state: run_backend(a, b, state, flags, reverse, is_complex, chosen, seq_idx is not None),
            initial_state,
            flags,
            lambda: factor_map(a, b, flags, is_complex),
            native=_piece(a, b, initial_state, flags, is_complex, chosen),
        )
        if length == 0:
            x, final = connect_gradients((x, final), a, b, initial_state)
    if not form.is_complex():
        return x.to(out), final
    return torch.view_as_complex(x).to(out), torch.view_as_complex(final)


def factor_map(a: Tensor, b: Tensor, flags: Tensor | None, is_complex: bool) -> PieceMap:
    """Return the map of states by the factors of a piece; arguments as in `run_backend`."""
    times = multiply if is_complex else torch.mul
    identity = constant(a, 1.0, 0.0) if is_complex else a.new_ones(())
    factor = product_of_factors(a, flags, b.shape[1], b.ndim, times, identity)
    return PieceMap([factor], lambda state, factor: times(factor, state))


def _flat(a: Tensor, b: Tensor, initial_state: Tensor, is_complex: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return a, b and the initial state with one axis S, and the last axis of pairs."""
    tail = (2,) if is_complex else ()
    if initial_state.ndim == 2 + is_complex:  # a reshape would only add nodes to the autograd graph
        return a, b, initial_state
    return (
        a.reshape(*a.shape[: a.ndim - initial_state.ndim + 1], -1, *tail),
        b.reshape(*b.shape[:2], -1, *tail),
        initial_state.reshape(b.shape[0], -1, *tail),
    )


def _piece(
    a: Tensor, b: Tensor, initial_state: Tensor, flags: Tensor | None, is_complex: bool, backend: str
) -> Callable[[SequenceSplit], tuple[Tensor, Tensor]] | None:
    """Return the scan of a piece of split sequences by a native kernel, for `scan_piece`, or None."""
    if current_split() is None or not b.numel():
        return None
    flat = _flat(a, b, initial_state, is_complex)
    native = _native.of_piece(*flat, flags, False, is_complex, backend, factors="complex" if is_complex else "real")
    if native is None:
        return None

    def run(split: SequenceSplit) -> tuple[Tensor, Tensor]:
        x, final = native(split)
        return x.reshape(b.shape), final.reshape(initial_state.shape)

    return run


def run_backend(
    a: Tensor,
    b: Tensor,
    initial_state: Tensor,
    flags: Tensor | None,
    reverse: bool,
    is_complex: bool,
    backend: str,
    packed: bool = True,
) -> tuple[Tensor, Tensor]:
    """Return x and the final state by one backend, for real tensors of one dtype; pairs (..., 2) if `is_complex`.

    a: `(B, L, *S)` or `(*S)`; b: `(B, L, *S)`; initial_state: `(B, *S)`; flags: (B, L), see `step_flags`, in the order of time;
    packed: whether they may contain RESET.
    """
    if backend in NATIVE and b.numel():
        x, final = _native(*_flat(a, b, initial_state, is_complex), flags, reverse, is_complex, backend)
        return (x, final) if x.shape == b.shape else (x.reshape(b.shape), final.reshape(initial_state.shape))
    if reverse:
        a, b, flags = a.flip(1) if a.ndim == b.ndim else a, b.flip(1), None if flags is None else flags.flip(1)
    if backend != "reference":
        x, final = eager.linear_scan(a, b, initial_state, flags, is_complex=is_complex, packed=packed)
    elif is_complex:
        a, b, initial_state = (torch.complex(*x.unbind(-1)) for x in (a, b, initial_state))
        x, final = reference.linear_scan(a, b, initial_state, flags)
        x, final = torch.view_as_real(x), torch.view_as_real(final)
    else:
        x, final = reference.linear_scan(a, b, initial_state, flags)
    return (x.flip(1) if reverse else x), final
