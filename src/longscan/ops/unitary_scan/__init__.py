"""The scan of AUSSM: rotations by input-dependent angles, with the angle projection, SiLU, skip and gate fused."""

import math
from typing import Any

import torch
from torch import Tensor

from longscan._tensor_types import OptionalTensor
from longscan.numerics.pairs import multiply, polar
from longscan.ops._native_op import NativeOp, keeps_chunk_states
from longscan.ops._plain_calls import PlainCall, pairs_or_zeros, restore_gradients
from longscan.ops.arguments import (
    carry_dtype,
    check_complex,
    check_real,
    check_tensor,
    connect_gradients,
    restore_complex,
    state_dtype,
    step_flags,
    to_pairs,
    without_autocast,
    zero_invalid,
)
from longscan.ops.dispatch import NATIVE, probe, resolve
from longscan.ops.pieces import PieceMap, count_steps, scan_piece, sum_steps
from longscan.ops.unitary_scan import eager, reference
from longscan.ops.unitary_scan.phase_grid import unitary_scan as on_grid

NATIVE_BACKENDS = probe("unitary_scan", "cpu", "triton")

_inputs = ("u", "dt", "W", "bias", "B", "C", "D", "z", "initial_state")
_native = NativeOp(
    "unitary_scan",
    NATIVE_BACKENDS,
    inputs=(
        "u: B L D", "dt: B L D", "W: [models] D N D", "bias: [models] D N", "B: [models] D N 2", "C: [models] D N 2",
        "D?: [models] D", "z?: B L D", "initial_state: B D N 2", "flags?: B L, uint8",
    ),
    constants=("phase_dt",),
    outputs=("y: u", "final: initial_state"),
    saved=(*_inputs, "flags", "chunk_states", "phase_dt"),
    gradients={name: name for name in _inputs},
    batched=lambda _: ("u", "dt", "z", "initial_state", "flags"),
    chunk_states=lambda module, u, initial_state: module.chunk_states_shape(u, initial_state.shape[2]),
    pieces=("triton",),
)  # fmt: skip


def unitary_scan(
    u: Tensor,
    dt: Tensor,
    W: Tensor,
    bias: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    initial_state: Tensor | tuple[Tensor, Tensor] | None = None,
    *,
    phase_dt: bool = False,
    phase_grid: int | None = None,
    valid: Tensor | None = None,
    seq_idx: Tensor | None = None,
    backend: str = "auto",
) -> tuple[Tensor, Any]:
    """Run the recurrence of AUSSM over the steps: a rotation by input-dependent angles, and a gated output.

        h_t = e^{i theta_t} h_{t-1} + dt_t B silu(u_t)        y_t = (Re sum_n C h_t + D silu(u_t)) silu(z_t)

    The angles are theta_t[d, n] = sum_p W[d, n, p] u_t[p] + bias[d, n], as in the published code of the AUSSM paper. With
    `phase_dt` they are multiplied by dt_t[d], as in the paper's equations 4 and 10-19. Phases are summed modulo 2 pi so that
    neither the modulus nor the phase of h drifts over long sequences. With `phase_grid` = Q every angle is rounded to a multiple
    of 2 pi / Q and the multiples are summed as integers: errors of an angle below pi / Q have no effect at any length.

    Args:
        u: (B, L, D) inputs; y has their dtype. In float32 the triton backend needs |u| < 2^20 and |W| < 4,094; beyond that
            angles are not finite.
        dt: (B, L, D) positive step sizes.
        W: (D, N, D) angle weights, already scaled. bias: (D, N) angles.
        B, C: complex coefficients, (D, N), or (N,) if all channels share them. Complex numbers may be given as real pairs, with
            one more axis of size 2.
        D: (D,) skip. z: (B, L, D) gate.
        initial_state: (B, D, N) complex or pairs; zeros when None. With `phase_grid` a tuple (S, k), h = e^{2 pi i k / Q} S: the
            state in the rotating frame, (B, D, N, 2) pairs, and the phase of the frame, (B, D, N) int64.
        phase_dt: multiply the whole angle, bias included, by dt.
        phase_grid: None, or the number Q >= 2 of angles in a full turn; not with `phase_dt`. The recurrence then runs on
            `linear_scan` with this backend.
        valid: (B, L) bool; where it is False, the step leaves the state unchanged and y is 0.
        seq_idx: (B, L) integers; where it changes from one valid step to the next, the state restarts from zero.
        backend: "auto", "reference", "eager", "cpu" or "triton".

    Returns:
        y (B, L, D) and the final state (B, D, N), complex where B is, else pairs (B, D, N, 2); with `phase_grid` a tuple (S, k).

    Raises:
        TypeError, ValueError: an argument's type, dtype, shape or device is wrong, or the backend cannot run.
    """
    given = (u, dt, W, bias, B, C, D, z, initial_state)
    if phase_grid is None and valid is None and seq_idx is None and _plain_call.runs(given, backend):
        return _plain_call(*given, phase_dt)
    return _general_call(*given, phase_dt, phase_grid, valid, seq_idx, backend)


def _general_call(
    u: Tensor,
    dt: Tensor,
    W: Tensor,
    bias: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    initial_state: Tensor | tuple[Tensor, Tensor] | None,
    phase_dt: bool,
    phase_grid: int | None = None,
    valid: Tensor | None = None,
    seq_idx: Tensor | None = None,
    backend: str = "triton",
) -> tuple[Tensor, Any]:
    """Return the results of `unitary_scan`, for every backend and also for compiled, transformed and split calls."""
    phase = None
    tensors: list[Any]
    _check_parameters(u, dt, W, bias, B, C)
    batch, length, channels = u.shape
    if isinstance(initial_state, tuple):
        if phase_grid is None:
            raise TypeError("`initial_state` must be a tensor where phase_grid is None, got a tuple")
        initial_state, phase = initial_state
        check_tensor("initial_state[1]", phase, (batch, channels, bias.shape[1]), u)
        if phase.dtype != torch.int64:
            raise TypeError(f"`initial_state[1]` must be of dtype torch.int64, got {phase.dtype}")
    _check_optional(u, bias, D, z, initial_state)
    if initial_state is None:
        initial_state = torch.zeros(batch, channels, bias.shape[1], 2, dtype=torch.float32, device=u.device)
    if phase_grid is not None:
        if phase_grid < 2 or phase_dt:
            raise ValueError(f"`phase_grid` must be at least 2, without phase_dt, got {phase_grid} with phase_dt={phase_dt}")
        tensors = [*_convert(u, dt, W, bias, B, C, D, z, initial_state), phase]
        y, (state, phase) = on_grid(*tensors, phase_grid=phase_grid, valid=valid, seq_idx=seq_idx, backend=backend)
        if length == 0:
            y, state = connect_gradients((y, state), *tensors[:9])
        return y.to(u.dtype), (state, phase)
    flags = step_flags(batch, length, valid, seq_idx, u)
    chosen = resolve("unitary_scan", backend, u, NATIVE_BACKENDS)

    form, out = B, u.dtype
    tensors = [*_convert(u, dt, W, bias, B, C, D, z, initial_state), flags]
    for i in (4, 5):
        if tensors[i].ndim == 2:  # one coefficient for every channel
            tensors[i] = tensors[i].expand(channels, -1, 2)
    save_states = keeps_chunk_states(*tensors)

    def run(state: Tensor, skip: OptionalTensor = tensors[6], gate: OptionalTensor = tensors[7]) -> tuple[Tensor, Tensor]:
        return _run_backend([*tensors[:6], skip, gate, state, flags], phase_dt, seq_idx is not None, save_states, chosen)

    with without_autocast(u):
        y, final = scan_piece(
            run,
            tensors[8],
            flags,
            lambda: _rotation_map(tensors, flags, phase_dt),
            lambda: run(torch.zeros_like(tensors[8]), None, None)[1],
            _native.of_piece(*tensors, phase_dt, save_states, chosen, factors="complex"),
        )
        if length == 0:
            y, final = connect_gradients((y, final), *tensors[:9])
    return y.to(out), restore_complex(final, form)


def _check_parameters(u: Tensor, dt: Tensor, W: Tensor, bias: Tensor, B: Tensor, C: Tensor) -> None:
    """Raise TypeError or ValueError, naming the argument, if one of the required tensors is wrong."""
    check_real("u", u, (-1, -1, -1))
    channels = u.shape[2]
    check_real("dt", dt, tuple(u.shape), u)
    check_real("bias", bias, (channels, -1), u)
    states = bias.shape[1]
    check_real("W", W, (channels, states, channels), u)
    for name, value in (("B", B), ("C", C)):
        check_tensor(name, value, None, u)
        shared = value.ndim == (1 if value.is_complex() else 2)
        check_complex(name, value, (states,) if shared else (channels, states), u)


def _check_optional(u: Tensor, bias: Tensor, D: Tensor | None, z: Tensor | None, initial_state: Tensor | None) -> None:
    """Raise TypeError or ValueError, naming the argument, if one of the optional tensors is wrong."""
    batch, length, channels = u.shape
    if initial_state is not None:
        check_complex("initial_state", initial_state, (batch, channels, bias.shape[1]), u)
    for name, optional, shape in (("D", D, (channels,)), ("z", z, (batch, length, channels))):
        if optional is not None:
            check_real(name, optional, shape, u)


def _convert(
    u: Tensor,
    dt: Tensor,
    W: Tensor,
    bias: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    initial_state: Tensor | None,
) -> list[Any]:
    """Return the tensors in the dtype of the computation, complex ones as pairs."""
    given = (u, dt, W, bias, B, C, D, z, initial_state)
    wide = state_dtype(*given)
    return [None if x is None else to_pairs(x, wide) for x in given]


def _plain_forward(
    u: Tensor,
    dt: Tensor,
    W: Tensor,
    bias: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    initial_state: Tensor | None,
    phase_dt: bool,
    save_states: bool,
) -> tuple[Tensor, ...]:
    """Return y, the final state and the chunk states, as `PlainCall` takes them."""
    _check_parameters(u, dt, W, bias, B, C)
    _check_optional(u, bias, D, z, initial_state)
    tensors = [x if x is None else x.contiguous() for x in _convert(u, dt, W, bias, B, C, D, z, initial_state)]
    y, final, kept = _native.module("triton").forward(*tensors, None, phase_dt, save_states)
    y, final = y.to(u.dtype), restore_complex(final, B)
    return (y, final, kept) if save_states else (y, final)


def _plain_backward(grad_y: Tensor | None, grad_final: Tensor | None, *args: Any) -> tuple[Tensor, ...]:
    """Return the gradients of the tensors, as `PlainCall` takes them."""
    *given, kept, phase_dt = args
    tensors: list[Any] = [x if x is None else x.contiguous() for x in _convert(*given)]
    u = tensors[0]
    grad_final = grad_final if grad_final is None else to_pairs(grad_final, u.dtype).contiguous()
    grad_y = pairs_or_zeros(grad_y, u.shape, u).contiguous()
    found = _native.module("triton").backward(grad_y, grad_final, *tensors, None, kept, phase_dt)
    return restore_gradients(found, given)


_plain_call = PlainCall("unitary_scan", NATIVE_BACKENDS, 9, _plain_forward, _plain_backward, _general_call)


def _rotation_map(tensors: list[Any], flags: Tensor | None, phase_dt: bool) -> PieceMap:
    """Return the map of states by the sums of the angles of a piece, (B, D, N), without the angles of single steps.

    tensors: u, dt, W and bias, and any others after them.
    """
    u, dt, W, bias = tensors[:4]
    wide = carry_dtype(u)
    u, dt = zero_invalid(flags, u, dt)
    if phase_dt:
        inputs, weights = torch.einsum("bld,blp->bdp", dt.to(wide), u.to(wide)), sum_steps(dt, flags)
        angle = torch.einsum("bdp,dnp->bdn", inputs, W.to(wide)) + weights.unsqueeze(-1) * bias.to(wide)
    else:
        counts = count_steps(flags, u.shape[1], u).view(-1, 1, 1)
        angle = torch.einsum("bp,dnp->bdn", sum_steps(u, flags), W.to(wide)) + counts * bias.to(wide)
    angle = torch.remainder(angle, 2 * math.pi).to(u.dtype)
    return PieceMap([angle], lambda state, angle: multiply(polar(torch.ones_like(angle), angle), state))


def _run_backend(tensors: list[Any], phase_dt: bool, packed: bool, save_states: bool, backend: str) -> tuple[Tensor, Tensor]:
    """Return y and the final state by one backend. tensors: u to initial_state in the order of `unitary_scan`, then flags."""
    if backend in NATIVE and tensors[0].numel() and tensors[2].numel():
        y, final, _ = _native(*tensors, phase_dt, save_states, backend)
        return y, final
    if backend != "reference":
        return eager.unitary_scan(*tensors, phase_dt=phase_dt, packed=packed)
    tensors = [torch.complex(*x.unbind(-1)) if i in (4, 5, 8) else x for i, x in enumerate(tensors)]  # B, C and the state
    y, final = reference.unitary_scan(*tensors, phase_dt=phase_dt)
    return y, torch.view_as_real(final)
