"""The short causal depthwise convolution that Mamba and AUSSM put before their scan, with the state that streaming needs."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from longscan.distributed.collectives import all_gather_coalesced
from longscan.distributed.context import current_split
from longscan.ops._native_op import NativeOp
from longscan.ops._plain_calls import PlainCall, pairs_or_zeros, restore_gradients
from longscan.ops.arguments import check_real, connect_gradients, state_dtype, step_flags, without_autocast
from longscan.ops.dispatch import NATIVE, probe, resolve
from longscan.ops.pieces import PieceMap, count_steps, scan_piece
from longscan.ops.short_conv import eager, reference
from longscan.ops.tracing import is_compiled_or_transformed

NATIVE_BACKENDS = probe("short_conv", "cpu", "triton")
ACTIVATIONS = (None, "silu")

_inputs = ("u", "weight", "bias", "initial_state")
_native = NativeOp(
    "short_conv",
    NATIVE_BACKENDS,
    inputs=("u: B L D, reduced", "weight: [models] D K", "bias?: [models] D", "initial_state: B D K-1", "flags?: B L, uint8"),
    constants=("silu",),
    outputs=("y: u", "final: initial_state"),
    saved=(*_inputs, "flags", "silu"),
    gradients={name: name for name in _inputs},
    batched=lambda _: ("u", "initial_state", "flags"),
)


def short_conv(
    u: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    initial_state: Tensor | None = None,
    *,
    activation: str | None = None,
    valid: Tensor | None = None,
    seq_idx: Tensor | None = None,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Compute a causal depthwise convolution with K taps, whose state is the last K - 1 inputs.

        y_t = activation(bias + sum_k weight[:, k] u_{t-(K-1)+k}),  k = 0..K-1,  with u = initial_state before the first step

    Args:
        u: (B, L, D) inputs; y has their dtype.
        weight: (D, K), the last column multiplies the present input. bias: (D,).
        initial_state: (B, D, K-1), the inputs before the first step, oldest first; zeros when None.
        activation: None or "silu".
        valid: (B, L) bool; where it is False, windows and state leave the step out, and y is 0.
        seq_idx: (B, L) integers; where it changes from one valid step to the next, earlier inputs count as zeros.
        backend: "auto", "reference", "eager", "cpu" or "triton".

    Returns:
        y (B, L, D) and the final state (B, D, K-1) in float32 (float64 where an input is).

    Raises:
        TypeError, ValueError: an argument's type, dtype, shape or device is wrong, or the backend cannot run.
    """
    if activation not in ACTIVATIONS:
        raise ValueError(f"`activation` must be one of {ACTIVATIONS}, got {activation!r}")
    given = (u, weight, bias, initial_state)
    if valid is None and seq_idx is None and _plain_call.runs(given, backend):
        return _plain_call(*given, activation)
    return _general_call(*given, activation, valid, seq_idx, backend)


def _general_call(
    u: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    initial_state: Tensor | None,
    activation: str | None,
    valid: Tensor | None = None,
    seq_idx: Tensor | None = None,
    backend: str = "triton",
) -> tuple[Tensor, Tensor]:
    """Return the results of `short_conv`, for every backend and also for compiled, transformed and split calls."""
    _check_inputs(u, weight, bias, initial_state)
    batch, length, _ = u.shape
    taps = weight.shape[1]
    flags = step_flags(batch, length, valid, seq_idx, u)
    chosen = resolve("short_conv", backend, u, NATIVE_BACKENDS)

    out = u.dtype
    u, weight, bias, initial_state = _convert(u, weight, bias, initial_state, chosen)
    apply_silu = activation == "silu"

    newest: Tensor | None = None
    is_split = current_split() is not None and flags is None
    if is_split and chosen in NATIVE and u.numel() and length >= taps - 1 and not is_compiled_or_transformed(u):
        u, newest = _TakeNewest.apply(u, taps, initial_state.dtype)  # type: ignore[no-untyped-call]

    def run(state: Tensor) -> tuple[Tensor, Tensor]:
        if chosen in NATIVE and u.numel():
            y, final = _native(u, weight, bias, state, flags, apply_silu, chosen)
            return y, final
        conv = reference.short_conv if chosen == "reference" else eager.short_conv
        return conv(u, weight, bias, state, flags, apply_silu=apply_silu)

    def make_map() -> PieceMap:
        return _delay_map(count_steps(flags, length, u).clamp(max=taps - 1), taps)

    with without_autocast(u):
        if newest is None:
            local_final = None if flags is not None else lambda: _newest(u, taps).to(initial_state.dtype)
            y, final = scan_piece(run, initial_state, flags, make_map, local_final)
        else:
            before, final = _pass_newest(initial_state, newest, count_steps(None, length, u))
            y = run(before)[0]
        if length == 0:
            y, final = connect_gradients((y, final), u, weight, bias, initial_state)
    return y.to(out), final


def _check_inputs(u: Tensor, weight: Tensor, bias: Tensor | None, initial_state: Tensor | None) -> None:
    """Raise TypeError or ValueError, naming the argument, if one of the tensors is wrong."""
    check_real("u", u, (-1, -1, -1))
    batch, _, channels = u.shape
    check_real("weight", weight, (channels, -1), u)
    taps = weight.shape[1]
    if taps < 1:
        raise ValueError(f"`weight` must be of shape ({channels}, K) with K of at least 1, got {tuple(weight.shape)}")
    if bias is not None:
        check_real("bias", bias, (channels,), u)
    if initial_state is not None:
        check_real("initial_state", initial_state, (batch, channels, taps - 1), u)


def _convert(
    u: Tensor, weight: Tensor, bias: Tensor | None, initial_state: Tensor | None, backend: str
) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """Return the tensors in the dtype of the computation, with an initial state. For Triton u stays in fp16 or bf16."""
    if initial_state is None:
        initial_state = torch.zeros(u.shape[0], u.shape[2], weight.shape[1] - 1, dtype=torch.float32, device=u.device)
    wide = state_dtype(u, weight, bias, initial_state)
    narrow = backend == "triton" and wide == torch.float32 and u.element_size() == 2
    bias = None if bias is None else bias.to(wide)
    return u if narrow else u.to(wide), weight.to(wide), bias, initial_state.to(wide)


def _plain_forward(*args: Any) -> tuple[Tensor, ...]:
    """Return y and the final state, as `PlainCall` takes them."""
    u, weight, bias, initial_state, activation, _ = args
    _check_inputs(u, weight, bias, initial_state)
    converted = _convert(u, weight, bias, initial_state, "triton")
    y, final = _native.forward(*converted, None, activation == "silu", "triton")
    return y.to(u.dtype), final


def _plain_backward(grad_y: Tensor | None, grad_final: Tensor | None, *args: Any) -> tuple[Tensor, ...]:
    """Return the gradients of the tensors, as `PlainCall` takes them."""
    *given, activation = args
    weight, bias, initial_state = given[1:]
    tensors = _convert(given[0], weight, bias, initial_state, "triton")
    u, state = tensors[0], tensors[3]
    grads = [pairs_or_zeros(grad_y, u.shape, u), pairs_or_zeros(grad_final, state.shape, state)]
    return restore_gradients(_native.backward(*grads, *tensors, None, activation == "silu", "triton"), given)


_plain_call = PlainCall("short_conv", NATIVE_BACKENDS, 4, _plain_forward, _plain_backward, _general_call, reduced=(0,))


def _newest(u: Tensor, taps: int) -> Tensor:
    """Return the state after u (B, L, D) from a zero state, (B, D, K-1): the last K-1 inputs, oldest first."""
    newest = u[:, max(0, u.shape[1] - taps + 1) :].transpose(1, 2)
    return pad(newest, (taps - 1 - newest.shape[2], 0))


def _pass_newest(initial_state: Tensor, newest: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """Return the states before this process's piece and after the last one, for pieces of at least K - 1 steps.

    The state after such a piece consists of the last inputs of the piece. `pass_states`, which also handles shorter pieces and
    masks, computes the same numbers with more operations. `count` is the number of steps of the piece.
    """
    split = current_split()
    assert split is not None
    received = all_gather_coalesced([newest, count.to(newest.dtype)], split)[0]
    states = torch.cat([initial_state.unsqueeze(0), received])  # of all pieces, so that every rank exchanges gradients
    return states[split.rank], states[-1]


class _TakeNewest(torch.autograd.Function):
    """Return u (B, L, D) and `_newest(u)` in a dtype, and add the gradient of the latter in place to the last steps of that of u.

    Autograd would write zeros for all steps and add them. In place is allowed because the only other use of u is the native
    kernel, whose backward pass returns a new tensor as the gradient.
    """

    @staticmethod
    def forward(ctx: Any, u: Tensor, taps: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:  # noqa: ARG004
        return u.view_as(u), _newest(u, taps).to(dtype, copy=True)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, grad_newest: Tensor) -> tuple[Tensor, None, None]:  # noqa: ARG004
        steps = grad_newest.shape[2]
        if torch.is_grad_enabled():  # for derivatives of a higher order
            padded = pad(grad_newest.transpose(1, 2), (0, 0, grad.shape[1] - steps, 0))
            return grad + padded.to(grad.dtype), None, None
        grad[:, grad.shape[1] - steps :] += grad_newest.transpose(1, 2)
        return grad, None, None


def _delay_map(count: Tensor, taps: int) -> PieceMap:
    """Return the map that moves a state (B, D, K-1) by `count` (B,) or (1,) entries, at most K-1, with zeros as the new ones."""

    def apply(state: Tensor, count: Tensor) -> Tensor:
        source = torch.arange(taps - 1, device=state.device) + count.view(-1, 1, 1).to(torch.int64)
        return pad(state, (0, taps - 1)).gather(2, source.expand_as(state))

    return PieceMap([count], apply)
