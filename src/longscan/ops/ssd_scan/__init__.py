"""The scan of heads with a matrix state: Mamba-2's state space duality, with the rotations and input weights of Mamba-3."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import silu

from longscan._tensor_types import OptionalTensor
from longscan.numerics.rotary import rotate_pairs
from longscan.ops._native_op import NativeOp, keeps_chunk_states
from longscan.ops._signature import Sizes
from longscan.ops.arguments import (
    INVALID,
    RESET,
    carry_dtype,
    check_real,
    connect_gradients,
    flag_masks,
    state_dtype,
    step_flags,
    without_autocast,
    zero_invalid,
)
from longscan.ops.chunks import long_chunk, run_chunk
from longscan.ops.dispatch import NATIVE, probe, resolve
from longscan.ops.pieces import PieceMap, scan_piece, sum_steps
from longscan.ops.ssd_scan import eager, reference

NATIVE_BACKENDS = probe("ssd_scan", "triton")
# Triton's interpreter multiplies tiles of bfloat16 wrongly; tests that correct it set this to True.
INTERPRETER_MULTIPLIES_BFLOAT16 = False
PIECE_ELEMENTS = 2**24  # largest number of elements of the terms that the state before a piece adds to outputs, computed together
AUTO_STATES = 128  # with more states the Triton kernel spills registers, so "auto" chooses "eager"

_inputs = ("x", "dt", "input_scale", "own_scale", "A", "B", "C", "D", "B_bias", "C_bias", "angle", "initial_state")


def _limits(sizes: Sizes) -> str | None:
    if sizes["H"] % sizes["G"]:
        return f"the groups of `B` must be a divisor of the {sizes['H']} heads of x, got {sizes['G']}"
    if 2 * sizes.get("R", 0) > sizes["N"]:
        return f"the angles of `angle` must be at most {sizes['N'] // 2} (pairs of the {sizes['N']} states), got {sizes['R']}"
    return None


def _chunk_states_shape(module: Any, x: Tensor, initial_state: Tensor) -> tuple[int, ...]:
    sizes = x.element_size(), initial_state.element_size(), *initial_state.shape[1:]
    shape: tuple[int, ...] = module.chunk_states_shape(*x.shape[:2], *sizes)
    return shape


_native = NativeOp(
    "ssd_scan",
    NATIVE_BACKENDS,
    inputs=(
        "x: B L H P, bfloat16", "dt: B L H", "input_scale?: B L H", "own_scale?: B L H", "A: [models] H", "B: B L G N, bfloat16",
        "C: B L G N, bfloat16", "D?: [models] H", "B_bias?: [models] H N", "C_bias?: [models] H N", "angle?: B L H R",
        "initial_state: B H P N", "flags?: B L, uint8",
    ),
    constants=(),
    outputs=("y: x", "final: initial_state"),
    saved=(*_inputs, "flags", "final", "chunk_states"),
    gradients={name: name for name in _inputs},
    batched=lambda _: ("x", "dt", "input_scale", "own_scale", "B", "C", "angle", "initial_state", "flags"),
    chunk_states=_chunk_states_shape,
    may_be_empty=("R",),
    limits=_limits,
)  # fmt: skip


def ssd_scan(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    initial_state: Tensor | None = None,
    *,
    input_scale: Tensor | None = None,
    own_scale: Tensor | None = None,
    angle: Tensor | None = None,
    B_bias: Tensor | None = None,
    C_bias: Tensor | None = None,
    valid: Tensor | None = None,
    seq_idx: Tensor | None = None,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Run the scan of Mamba-2 or Mamba-3 over the steps, for each head separately.

        h_t = exp(dt_t A) R(angle_t) h_{t-1} + s_t x_t B_t^T        y_t = (h_t C_t + D x_t) silu(z_t)

    The inputs have the weights s = dt, or `input_scale`. Dao and Gu, "Transformers are SSMs" (arXiv:2405.21060), section 6.
    `own_scale`, o, replaces s for the input of the same step: y_t is computed from h_t + (o_t - s_t) x_t B_t^T in place of h_t.
    This makes Mamba-3's trapezoidal rule one scan: there an input has one weight in the output of its step, and in all later
    outputs the sum of this weight and the weight that the rule gives it at the next step (`longscan.layers.Mamba3`).

    Args:
        x: (B, L, H, P) inputs of H heads of width P; y has their dtype.
        dt: (B, L, H) step sizes, already positive.
        A: (H,), negative where the state should decay.
        B, C: (B, L, G, N), G groups, a divisor of H: head h takes those of group h G // H.
        D: (H,) skip. z: (B, L, H, P) gate.
        initial_state: (B, H, P, N); zeros when None.
        input_scale: (B, L, H) weights of the inputs; dt when None.
        own_scale: (B, L, H) weights of the inputs in the outputs of the same steps; s when None.
        angle: (B, L, H, R), 2R <= N: R(angle) rotates the first R pairs of neighbouring entries of the N by these radians.
        B_bias, C_bias: (H, N), which each head adds to the B or C of its group.
        valid: (B, L) bool; where it is False, the step leaves the state unchanged and y is 0.
        seq_idx: (B, L) integers; where it changes from one valid step to the next, the state restarts from zero.
        backend: "auto", "reference", "eager" or "triton", which supports up to 256 states N. "auto" chooses "eager" for more than
            128 states and for float64, for which the kernel does not use tensor cores.

    Returns:
        y (B, L, H, P) and the final state (B, H, P, N) in float32 (float64 where an input is).

    Raises:
        TypeError, ValueError: an argument's type, dtype, shape or device is wrong, or the backend cannot run.
    """
    check_real("x", x, (-1, -1, -1, -1))
    batch, length, heads, width = x.shape
    check_real("dt", dt, (batch, length, heads), x)
    check_real("A", A, (heads,), x)
    check_real("B", B, (batch, length, -1, -1), x)
    groups, states = B.shape[2:]
    if groups < 1 or heads % groups:
        raise ValueError(f"the groups of `B` must be a divisor of the {heads} heads of x, got {groups} in shape {tuple(B.shape)}")
    check_real("C", C, (batch, length, groups, states), x)
    for name, value, shape in (
        ("D", D, (heads,)),
        ("z", z, (batch, length, heads, width)),
        ("initial_state", initial_state, (batch, heads, width, states)),
        ("input_scale", input_scale, (batch, length, heads)),
        ("own_scale", own_scale, (batch, length, heads)),
        ("angle", angle, (batch, length, heads, -1)),
        ("B_bias", B_bias, (heads, states)),
        ("C_bias", C_bias, (heads, states)),
    ):
        if value is not None:
            check_real(name, value, shape, x)
    if angle is not None and 2 * angle.shape[3] > states:
        raise ValueError(
            f"the angles of `angle` must be at most {states // 2} (pairs of the {states} states), got {angle.shape[3]}"
        )
    flags = step_flags(batch, length, valid, seq_idx, x)
    out = x.dtype
    if initial_state is None:
        initial_state = torch.zeros(batch, heads, width, states, dtype=torch.float32, device=x.device)
    given = (x, dt, A, B, C, D, z, initial_state, input_scale, own_scale, angle, B_bias, C_bias)
    wide = state_dtype(*given)
    unsuited = f"more than {AUTO_STATES} states" if states > AUTO_STATES else "float64" if wide == torch.float64 else None
    chosen = resolve("ssd_scan", backend, x, NATIVE_BACKENDS, unsuited)
    native = chosen in NATIVE and x.numel() > 0 and states > 0
    narrow = native and wide == torch.float32 and all(value.dtype == torch.bfloat16 for value in (x, B, C))
    narrow = narrow and (INTERPRETER_MULTIPLIES_BFLOAT16 or x.device.type != "cpu")
    tensors: list[Any] = [
        None if value is None else value.to(torch.bfloat16 if narrow and i in (0, 3, 4) else wide)  # x, B, C: what is multiplied
        for i, value in enumerate(given)
    ]
    tensors.append(flags)

    def run(state: Tensor) -> tuple[Tensor, Tensor]:
        return _run_backend([*tensors[:7], state, *tensors[8:]], native, seq_idx is not None, chosen)

    def outputs_of(state: Tensor) -> Tensor:
        return _outputs_of_state(state, tensors[1], tensors[2], tensors[4], tensors[6], tensors[10], tensors[12], flags)

    with without_autocast(x):
        y, final = scan_piece(
            run,
            tensors[7],
            flags,
            lambda: _decay_map(tensors[1], tensors[2], tensors[10], flags),
            outputs_of=outputs_of,
        )
        if length == 0:
            y, final = connect_gradients((y, final), *tensors[:13])
    return y.to(out), final


def _decay_map(dt: Tensor, A: Tensor, angle: Tensor | None, flags: Tensor | None) -> PieceMap:
    """Return the map of states by the decays and rotations of a piece; arguments as in `reference`."""
    dt, angle = zero_invalid(flags, dt, angle)
    time = sum_steps(dt, flags).to(dt.dtype)
    if angle is None:
        return PieceMap([time], lambda state, time: torch.exp(time * A)[..., None, None] * state)
    total = torch.remainder(sum_steps(angle, flags), 2 * math.pi).to(dt.dtype)

    def apply(state: Tensor, time: Tensor, total: Tensor) -> Tensor:
        return torch.exp(time * A)[..., None, None] * rotate_pairs(state, total.unsqueeze(2))

    return PieceMap([time, total], apply)


def _outputs_of_state(
    state: Tensor,
    dt: Tensor,
    A: Tensor,
    C: Tensor,
    z: OptionalTensor,
    angle: OptionalTensor,
    C_bias: OptionalTensor,
    flags: OptionalTensor,
) -> Tensor:
    """Return what a state (B, H, P, N) before the first step adds to the outputs (B, L, H, P); arguments as in `reference`."""
    if flags is not None:  # no step of a later sequence reads this state
        is_first = (flags == RESET).cumsum(1) == 0
        flags = torch.where(is_first, flags, INVALID)
        dt, C, z, angle = zero_invalid(flags, dt, C, z, angle)
    time, rotation = torch.cumsum(dt, 1, dtype=carry_dtype(dt)).to(dt.dtype), None
    if angle is not None:
        rotation = torch.remainder(torch.cumsum(angle, 1, dtype=carry_dtype(angle)), 2 * math.pi).to(angle.dtype)

    def outputs(C: Tensor, z: OptionalTensor, time: Tensor, rotation: OptionalTensor, flags: OptionalTensor) -> Tensor:
        C = C.to(state.dtype)
        if rotation is not None or C_bias is not None:
            C = reference.repeat_for_heads(C, state.shape[1], C_bias)
        C = C if rotation is None else rotate_pairs(C, -rotation)
        batch, heads, width, states = state.shape
        rows = state.reshape(batch, C.shape[2], heads // C.shape[2] * width, states)  # of the heads of each group
        y = (C.transpose(1, 2) @ rows.mT).transpose(1, 2).reshape(*C.shape[:2], *state.shape[1:3])
        y = y * torch.exp(time * A).unsqueeze(-1)
        y = y if flags is None else torch.where(flag_masks(flags, 4)[0], 0, y)  # C_bias is not 0 there
        return y if z is None else y * silu(z)

    size = long_chunk(state[..., 0].unsqueeze(1), PIECE_ELEMENTS)
    count = max(1, -(-C.shape[1] // size))
    parts = [(None,) * count if x is None else torch.split(x, size, 1) for x in (C, z, time, rotation, flags)]
    return torch.cat([run_chunk(outputs, part) for part in zip(*parts, strict=True)], 1)


def _run_backend(tensors: list[Any], native: bool, packed: bool, backend: str) -> tuple[Tensor, Tensor]:
    """Return y and the final state by one backend; tensors as in `reference`."""
    if not native:
        return reference.ssd_scan(*tensors) if backend == "reference" else eager.ssd_scan(*tensors, packed=packed)
    x, dt, A, B, C, D, z, initial_state, input_scale, own_scale, angle, B_bias, C_bias, flags = tensors
    inputs = (x, dt, input_scale, own_scale, A, B, C, D, B_bias, C_bias, angle, initial_state)
    y, final, _ = _native(*inputs, flags, keeps_chunk_states(*inputs), backend)
    return (y if z is None else y * silu(zero_invalid(flags, z)[0])), final  # the kernels have no gate
