"""Launches of the Triton kernels of `ssd_scan`."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from longscan.ops import _triton_launch as tables
from longscan.ops._gpu import ceil_div, launch, on_device, power_of_two
from longscan.ops._triton import state_passing_kernel
from longscan.ops.ssd_scan.triton import cumulative_rotation as rotation
from longscan.ops.ssd_scan.triton.backward import chunk_scan_bwd_kernel
from longscan.ops.ssd_scan.triton.forward import chunk_scan_kernel

PASS_BLOCK = 128  # numbers of a state in a program that passes states from split to split


class _Problem(NamedTuple):
    """Sizes of a call.

    rows: batch rows of a model; several models have separate A and D. channel_blocks: programs that share the channels of a head.
    """

    batch: int
    length: int
    heads: int
    groups: int
    channel_blocks: int
    width: int
    states: int
    rows: int
    split: tables.Plan
    constants: dict[str, Any]

    @property
    def size(self) -> int:
        return self.heads * self.width * self.states

    @property
    def grid(self) -> tuple[int, int]:
        return self.batch * self.heads * self.channel_blocks, self.split.splits

    def sizes(self, stride: int) -> tuple[int, ...]:
        """Return the sizes in the order of the arguments of both scan kernels."""
        split, own = self.split, (self.heads, self.groups, self.channel_blocks, self.width, self.states)
        return self.length, split.tiles, split.splits, split.span, self.rows, stride, *own


def _problem(x: Tensor, A: Tensor, B: Tensor, op: str) -> _Problem:
    batch, length, heads, width = x.shape
    groups, states = B.shape[2:]
    if states > tables.MAX_MATRIX_STATES:
        raise ValueError(f"`N` must be at most {tables.MAX_MATRIX_STATES} states on the triton backend, got {states}")
    table, Q = tables.TABLE[op if x.element_size() == 2 else f"{op}_exact"], _steps(x.element_size(), states)
    NB = max(16, power_of_two(states))
    PB = max(16, min(power_of_two(width), table.lanes // NB, 64))
    channel_blocks = ceil_div(width, PB)
    split = tables.plan(op, length, batch * heads * channel_blocks, x.device, chunk=Q)
    warps = max(1, min(table.warps, max(Q * Q, Q * NB, PB * NB) // 1024))
    constants = {
        "Q": Q, "PB": PB, "NB": NB, "PRECISION": "tf32x3" if x.dtype == torch.float32 else "ieee", "num_warps": warps,
        "num_stages": table.stages,
    }  # fmt: skip
    models = len(A) if A.ndim == 2 else 1
    return _Problem(batch, length, heads, groups, channel_blocks, width, states, batch // models, split, constants)


def _steps(element_size: int, states: int) -> int:
    """Return the number of steps of a chunk for elements of x of a number of bytes: tiles must fit into shared memory."""
    table = tables.TABLE["ssd_scan" if element_size == 2 else "ssd_scan_exact"]
    return max(16, min(table.steps, 8192 // power_of_two(states)))


def chunk_states_shape(
    batch: int, length: int, element_size: int, state_element_size: int, heads: int, width: int, states: int
) -> tuple[int, int]:
    """Return the shape of the states before chunks that `forward` stores for `backward`.

    They have elements of `element_size` bytes, and are stored in a tensor of the dtype of the states.
    """
    chunks = ceil_div(length, _steps(element_size, states))
    return batch, ceil_div(chunks * heads * width * states * element_size, state_element_size)


def forward(
    x: Tensor,
    dt: Tensor,
    input_scale: Tensor | None,
    own_scale: Tensor | None,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    B_bias: Tensor | None,
    C_bias: Tensor | None,
    angle: Tensor | None,
    initial_state: Tensor,
    flags: Tensor | None,
    save_states: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return y (B, L, H, P), the final state (B, H, P, N), and what `backward` needs, empty unless `save_states`.

    Tensors are contiguous. x, B and C have one dtype, fp16 and bf16 among them; the others have that of the state. A, D and the
    biases may have a leading axis of models: equal runs of batch rows then belong to different models.
    """
    with on_device(x):
        maps = _maps(x, A, B, C, B_bias, C_bias, angle, flags)
        start_phase, end_phase = rotation.cumulative_phases(maps)
        if maps.differs_per_head:
            B, C = rotation.rotate_maps(maps, start_phase)
        y, final, chunk_states = _forward(x, dt, input_scale, own_scale, A, B, C, D, initial_state, flags, save_states)
        if end_phase is not None:
            final, _ = rotation.rotate_state(final, end_phase)
    return y, final, chunk_states


def _maps(
    x: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    B_bias: Tensor | None,
    C_bias: Tensor | None,
    angle: Tensor | None,
    flags: Tensor | None,
) -> rotation.GroupMaps:
    rows, chunk = len(x) // (len(A) if A.ndim == 2 else 1), _steps(x.element_size(), B.shape[-1])
    return rotation.GroupMaps(B, C, B_bias, C_bias, angle, flags, x.shape[2], rows, chunk)


def _forward(
    x: Tensor,
    dt: Tensor,
    input_scale: Tensor | None,
    own_scale: Tensor | None,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    initial_state: Tensor,
    flags: Tensor | None,
    save_states: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute `forward` without rotations and biases."""
    p = _problem(x, A, B, "ssd_scan")
    y, final = torch.empty_like(x), torch.empty_like(initial_state)
    shape = chunk_states_shape(p.batch, p.length, x.element_size(), initial_state.element_size(), *initial_state.shape[1:])
    chunk_states = initial_state.new_empty(shape if save_states else (0,))
    states = chunk_states.view(x.dtype) if save_states else None
    inputs = (x, dt, input_scale, own_scale, A, B, C, D, flags)
    first_states = initial_state
    if p.split.splits > 1:
        split_decay, local_states = (initial_state.new_empty((p.batch, p.split.splits, p.size)) for _ in range(2))
        first_states = initial_state.new_empty((p.batch, p.split.splits + 1, p.size))
        _launch_scan(p, (*inputs, None, None, None, None, split_decay, local_states), 0, True)
        _pass_states(p, split_decay, local_states, initial_state, flags, first_states, False)
    _launch_scan(p, (*inputs, first_states, y, final, states, None, None), 0 if states is None else states.stride(0), False)
    return y, final, chunk_states


def _launch_scan(p: _Problem, tensors: tuple[Tensor | None, ...], stride: int, summary: bool) -> None:
    constants = {"SUMMARY": summary, "SPLIT": p.split.splits > 1, **p.constants}
    launch(chunk_scan_kernel, p.grid, *tensors, *p.sizes(stride), constants=constants)


def _pass_states(
    p: _Problem, split_decay: Tensor, local: Tensor, first: Tensor, flags: Tensor | None, out: Tensor, reverse: bool
) -> None:
    constants = {"COMPLEX": False, "REVERSE": reverse, "BLOCK": PASS_BLOCK}
    grid, restarts = (p.batch, ceil_div(p.size, PASS_BLOCK)), tables.restarts(flags, p.split.span * p.split.T)
    launch(state_passing_kernel, grid, split_decay, local, first, restarts, out, p.split.splits, p.size, constants=constants)


def backward(
    grad_y: Tensor,
    grad_final: Tensor,
    x: Tensor,
    dt: Tensor,
    input_scale: Tensor | None,
    own_scale: Tensor | None,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    B_bias: Tensor | None,
    C_bias: Tensor | None,
    angle: Tensor | None,
    initial_state: Tensor,
    flags: Tensor | None,
    final: Tensor,
    chunk_states: Tensor,
) -> tuple[Tensor, ...]:
    """Return the gradients of x, dt, both scales, A, B, C, D, both biases, angle and initial_state; empty for None."""
    others: tuple[Tensor | None, ...] = (None, None, None)
    with on_device(x):
        maps = _maps(x, A, B, C, B_bias, C_bias, angle, flags)
        start_phase, end_phase = rotation.cumulative_phases(maps)
        if end_phase is not None:
            grad_final, grad_end = rotation.rotate_state(grad_final, end_phase, final)
        if maps.differs_per_head:
            B, C = rotation.rotate_maps(maps, start_phase)
        dx, d_dt, *scales, dA, dB, dC, dD, d_initial, d_end_phase = _backward(
            grad_y, grad_final, x, dt, input_scale, own_scale, A, B, C, D, initial_state, flags, chunk_states, maps.n_pairs
        )
        if end_phase is not None:
            d_end_phase[:, -1] = grad_end
        if maps.differs_per_head:
            del B, C  # the rotated maps
            dB, dC, others = rotation.rotate_maps_bwd(maps, start_phase, dB, dC, d_end_phase)
    gradients = (dx, d_dt, *scales, dA, dB, dC, dD, *others, d_initial)
    return tuple(initial_state.new_empty(0) if grad is None else grad for grad in gradients)


def _backward(
    grad_y: Tensor,
    grad_final: Tensor,
    x: Tensor,
    dt: Tensor,
    input_scale: Tensor | None,
    own_scale: Tensor | None,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    initial_state: Tensor,
    flags: Tensor | None,
    chunk_states: Tensor,
    pairs: int,
) -> tuple[Any, ...]:
    """Return the gradients of x, dt, both scales, A, B, C, D and initial_state, None where the input is None; without rotations.

    The last result is the gradient of rotations of `pairs` pairs of the states after all chunks but the last,
    (B, chunks, H, pairs).
    """
    p = _problem(x, A, B, "ssd_scan_backward")
    split, like = p.split, initial_state
    dx, d_initial, states = torch.empty_like(x), torch.empty_like(initial_state), chunk_states.view(x.dtype)
    d_dt = like.new_empty((p.channel_blocks, *dt.shape))
    d_scale, d_own = (None if given is None else torch.empty_like(d_dt) for given in (input_scale, own_scale))
    dB, dC = ((like if pairs else x).new_empty((p.channel_blocks, *dt.shape, B.shape[-1])) for _ in range(2))
    sums = like.new_empty((2, p.batch, split.splits, p.channel_blocks, p.heads))
    d_end_phase = like.new_empty((p.channel_blocks, p.batch, split.tiles, p.heads, pairs)) if pairs else None
    inputs = (grad_y, x, dt, input_scale, own_scale, A, B, C, D, flags)
    adjoint = grad_final
    if split.splits > 1:
        split_decay, local_states = (like.new_empty((p.batch, split.splits, p.size)) for _ in range(2))
        adjoint = like.new_empty((p.batch, split.splits + 1, p.size))
        _launch_scan_bwd(p, (*inputs, *[None] * 11, split_decay, local_states), pairs, 0, True)
        _pass_states(p, split_decay, local_states, grad_final, flags, adjoint, True)
    outputs = (adjoint, states, dx, d_dt, d_scale, d_own, dB, dC, d_initial, sums, d_end_phase, None, None)
    _launch_scan_bwd(p, (*inputs, *outputs), pairs, states.stride(0), False)
    dA, dD = (block.view(p.batch // p.rows, -1, p.heads).sum(1) for block in sums)  # new tensors
    if dB.numel() > B.numel():
        dB, dC = (block.view(p.channel_blocks, *B.shape[:3], -1, B.shape[-1]).sum((0, 4)) for block in (dB, dC))
    scales = (None if block is None else block.sum(0) for block in (d_scale, d_own))
    return (
        dx, d_dt.sum(0), *scales, dA.view(A.shape), dB.view(B.shape), dC.view(B.shape),
        None if D is None else dD.view(D.shape), d_initial, None if d_end_phase is None else d_end_phase.sum(0),
    )  # fmt: skip


def _launch_scan_bwd(p: _Problem, tensors: tuple[Tensor | None, ...], pairs: int, stride: int, summary: bool) -> None:
    constants = {"SUMMARY": summary, "SPLIT": p.split.splits > 1, **p.constants}
    launch(chunk_scan_bwd_kernel, p.grid, *tensors, p.batch, pairs, *p.sizes(stride), constants=constants)
