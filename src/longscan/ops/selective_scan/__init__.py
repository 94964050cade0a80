"""The selective scan of S6 (Mamba), real or complex, with step sizes, skip and gate fused."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from longscan._tensor_types import OptionalTensor
from longscan.numerics.pairs import multiply
from longscan.ops._native_op import NativeOp, keeps_chunk_states
from longscan.ops._plain_calls import PlainCall, pairs_or_zeros, restore_gradients
from longscan.ops.arguments import (
    check_complex,
    check_real,
    connect_gradients,
    restore_complex,
    state_dtype,
    step_flags,
    to_pairs,
    without_autocast,
    zero_invalid,
)
from longscan.ops.chunks import run_chunk
from longscan.ops.dispatch import NATIVE, probe, resolve
from longscan.ops.pieces import FactorKind, PieceMap, scan_piece, sum_steps
from longscan.ops.selective_scan import eager, reference

NATIVE_BACKENDS = probe("selective_scan", "cpu", "triton")
REDUCED = (0, 1, 3, 4, 6, 9)  # indices of u, dt, B, C, z and dt_scale, which the Triton kernels read in fp16 and bf16

_inputs = ("u", "dt", "A", "B", "C", "D", "z", "dt_bias", "initial_state", "dt_scale")
_native = NativeOp(
    "selective_scan",
    NATIVE_BACKENDS,
    inputs=(
        "u: B L D, reduced", "dt: B L D, reduced", "A: [models] D N [2]", "B: B L N [2], reduced", "C: B L N [2], reduced",
        "D?: [models] D", "z?: B L D, reduced", "dt_bias?: [models] D", "initial_state: B D N [2]", "dt_scale?: B L, reduced",
        "flags?: B L, uint8",
    ),
    constants=("dt_softplus", "paired"),
    outputs=("y: u", "final: initial_state"),
    saved=(*_inputs, "flags", "chunk_states", "dt_softplus", "paired"),
    gradients={name: name for name in _inputs},
    batched=lambda _: ("u", "dt", "B", "C", "z", "initial_state", "dt_scale", "flags"),
    chunk_states=lambda module, u, initial_state: module.chunk_states_shape(*u.shape, *initial_state.shape[2:]),
    pieces=("triton",),
)  # fmt: skip


def selective_scan(
    u: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    initial_state: Tensor | None = None,
    *,
    dt_softplus: bool = False,
    dt_scale: Tensor | None = None,
    paired: bool = True,
    valid: Tensor | None = None,
    seq_idx: Tensor | None = None,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Run the selective scan of S6 over the steps.

        h_t = exp(s_t A) h_{t-1} + s_t B_t u_t        y_t = (C_t h_t + D u_t) silu(z_t)

    The step sizes are s = softplus(dt + dt_bias) dt_scale; bias, softplus and scale are optional. Gu and Dao, "Mamba"
    (arXiv:2312.00752), equations 1-2 and algorithm 2: zero-order hold for A, Euler for B.

    Args:
        u: (B, L, D) inputs; y has their dtype.
        dt: (B, L, D) step sizes before bias, softplus and scale.
        A: (D, N), real or complex. Complex numbers may be given as real pairs, with one more axis of size 2: (D, N, 2).
        B, C: (B, L, N), complex (or pairs) where A is.
        D: (D,) skip. z: (B, L, D) gate. dt_bias: (D,).
        initial_state: (B, D, N), complex (or pairs) where A is; zeros when None.
        dt_softplus: whether softplus is applied to dt + dt_bias.
        dt_scale: (B, L), multiplies the step sizes after bias and softplus: the elapsed time.
        paired: with complex A, y takes 2 Re(C h): N states stand for N conjugate pairs. False: Re(C h). No effect for real A.
        valid: (B, L) bool; where it is False, the step leaves the state unchanged and y is 0.
        seq_idx: (B, L) integers; where it changes from one valid step to the next, the state restarts from zero.
        backend: "auto", "reference", "eager", "cpu" or "triton".

    Returns:
        y (B, L, D) and the final state (B, D, N) in float32 or float64 numbers, complex (or pairs) as A is.

    Raises:
        TypeError, ValueError: an argument's type, dtype, shape or device is wrong, or the backend cannot run.
    """
    given = (u, dt, A, B, C, D, z, dt_bias, initial_state, dt_scale)
    if valid is None and seq_idx is None and _plain_call.runs(given, backend):
        return _plain_call(*given, dt_softplus, paired)
    return _general_call(*given, dt_softplus, paired, valid, seq_idx, backend)


def _general_call(
    u: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    dt_bias: Tensor | None,
    initial_state: Tensor | None,
    dt_scale: Tensor | None,
    dt_softplus: bool,
    paired: bool,
    valid: Tensor | None = None,
    seq_idx: Tensor | None = None,
    backend: str = "triton",
) -> tuple[Tensor, Tensor]:
    """Return the results of `selective_scan`, for every backend and also for compiled, transformed and split calls."""
    is_complex = _check_inputs(u, dt, A, B, C, D, z, dt_bias, initial_state, dt_scale)
    batch, length = u.shape[:2]
    flags = step_flags(batch, length, valid, seq_idx, u)
    chosen = resolve("selective_scan", backend, u, NATIVE_BACKENDS)

    form, out = A, u.dtype
    if initial_state is None:
        shape = batch, u.shape[2], A.shape[1], *(2,) * is_complex
        initial_state = torch.zeros(shape, dtype=torch.float32, device=u.device)
    wide, converted = _convert((u, dt, A, B, C, D, z, dt_bias, initial_state, dt_scale), chosen)
    tensors: list[Any] = [*converted, flags]
    initial_state = tensors[8]
    assert initial_state is not None
    factors: FactorKind = "complex" if is_complex else "real"
    save_states = keeps_chunk_states(*tensors)

    def run(state: Tensor, skip: OptionalTensor = tensors[5], gate: OptionalTensor = tensors[6]) -> tuple[Tensor, Tensor]:
        given = [*tensors[:5], skip, gate, tensors[7], state, *tensors[9:]]
        return _run_backend(given, dt_softplus, paired, seq_idx is not None, save_states, chosen)

    def add_step_sizes(dt: Tensor, dt_bias: OptionalTensor, dt_scale: OptionalTensor) -> Tensor:
        dt, dt_scale = zero_invalid(flags, dt.to(wide), dt_scale if dt_scale is None else dt_scale.to(wide))
        return sum_steps(reference.step_sizes(dt, dt_bias, dt_scale, dt_softplus), flags).to(wide)

    def make_map() -> PieceMap:  # stores no step sizes for the backward pass
        return decay_map(run_chunk(add_step_sizes, (tensors[1], tensors[7], tensors[9])), tensors[2])

    with without_autocast(u):
        y, final = scan_piece(
            run,
            initial_state,
            flags,
            make_map,
            lambda: run(torch.zeros_like(initial_state), None, None)[1],
            _native.of_piece(*tensors, dt_softplus, paired, save_states, chosen, factors=factors),
        )
        if length == 0:
            y, final = connect_gradients((y, final), *converted)
    return y.to(out), restore_complex(final, form) if is_complex else final


def _check_inputs(
    u: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    dt_bias: Tensor | None,
    initial_state: Tensor | None,
    dt_scale: Tensor | None,
) -> bool:
    """Return whether A is complex. Raise TypeError or ValueError, naming the argument, if a tensor is wrong."""
    check_real("u", u, (-1, -1, -1))
    batch, length, channels = u.shape
    check_real("dt", dt, (batch, length, channels), u)
    is_complex = isinstance(A, Tensor) and (A.is_complex() or A.ndim == 3)
    check = check_complex if is_complex else check_real
    check("A", A, (channels, -1), u)
    states = A.shape[1]
    check("B", B, (batch, length, states), u)
    check("C", C, (batch, length, states), u)
    if initial_state is not None:
        check("initial_state", initial_state, (batch, channels, states), u)
    for name, value, shape in (
        ("D", D, (channels,)),
        ("z", z, (batch, length, channels)),
        ("dt_bias", dt_bias, (channels,)),
        ("dt_scale", dt_scale, (batch, length)),
    ):
        if value is not None:
            check_real(name, value, shape, u)
    return is_complex


def _convert(given: Sequence[Tensor | None], backend: str) -> tuple[torch.dtype, list[Tensor | None]]:
    """Return the dtype of the computation, and the tensors in it, complex ones as pairs."""
    wide = state_dtype(*given)
    narrow = (torch.bfloat16, torch.float16) if backend == "triton" and wide == torch.float32 else ()
    return wide, [x if x is None or (i in REDUCED and x.dtype in narrow) else to_pairs(x, wide) for i, x in enumerate(given)]


def _plain_forward(*args: Any) -> tuple[Tensor, ...]:
    """Return y, the final state and the chunk states, as `PlainCall` takes them."""
    *given, dt_softplus, paired, save_states = args
    _check_inputs(*given)
    tensors = [x if x is None else x.contiguous() for x in _convert(given, "triton")[1]]
    y, final, kept = _native.module("triton").forward(*tensors, None, dt_softplus, paired, save_states)
    y, final = y.to(given[0].dtype), restore_complex(final, given[2])
    return (y, final, kept) if save_states else (y, final)


def _plain_backward(grad_y: Tensor | None, grad_final: Tensor | None, *args: Any) -> tuple[Tensor, ...]:
    """Return the gradients of the tensors, as `PlainCall` takes them."""
    *given, kept, dt_softplus, paired = args
    tensors: list[Any] = [x if x is None else x.contiguous() for x in _convert(given, "triton")[1]]
    u, A = tensors[0], tensors[2]
    grad_final = grad_final if grad_final is None else to_pairs(grad_final, A.dtype).contiguous()
    grad_y = pairs_or_zeros(grad_y, u.shape, u).contiguous()
    found = _native.module("triton").backward(grad_y, grad_final, *tensors, None, kept, dt_softplus, paired)
    return restore_gradients(found, given)


_plain_call = PlainCall("selective_scan", NATIVE_BACKENDS, 10, _plain_forward, _plain_backward, _general_call, REDUCED)


def decay_map(time: Tensor, A: Tensor) -> PieceMap:
    """Return the map of states by exp(time A), for the total time (B, D) of a piece and A (D, N), or pairs (D, N, 2)."""
    if A.ndim == 2:
        return PieceMap([time], lambda state, time: eager.decay(time, A) * state)
    return PieceMap([time], lambda state, time: multiply(eager.decay(time, A), state))


def _run_backend(
    tensors: list[Any], dt_softplus: bool, paired: bool, packed: bool, save_states: bool, backend: str
) -> tuple[Tensor, Tensor]:
    """Return y and the final state by one backend. tensors: u to dt_scale in the order of `selective_scan`, then flags."""
    u, A = tensors[0], tensors[2]
    if backend in NATIVE and u.numel() and A.numel():
        y, final, _ = _native(*tensors, dt_softplus, paired, save_states, backend)
        return y, final
    if backend != "reference":
        return eager.selective_scan(*tensors, dt_softplus=dt_softplus, paired=paired, packed=packed)
    if A.ndim == 2:
        return reference.selective_scan(*tensors, dt_softplus=dt_softplus, paired=paired)
    tensors = [torch.complex(*x.unbind(-1)) if i in (2, 3, 4, 8) else x for i, x in enumerate(tensors)]  # A, B, C, the state
    y, final = reference.selective_scan(*tensors, dt_softplus=dt_softplus, paired=paired)
    return y, torch.view_as_real(final)
