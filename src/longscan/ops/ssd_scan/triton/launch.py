"""Launches of the Triton kernels of `ssd_scan`."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from longscan.ops import _triton_launch as tables
from longscan.ops._gpu import ceil_div, launch, on_device, power_of_two
from longscan.ops._triton import state_passing_kernel
from longscan.ops._triton_steps import restarts
from longscan.ops.ssd_scan.triton import launch_rotation as rotation
from longscan.ops.ssd_scan.triton.backward import chunk_scan_bwd_kernel, chunk_state_bwd_kernel
from longscan.ops.ssd_scan.triton.forward import chunk_scan_fwd_kernel, chunk_state_fwd_kernel


class ScanInputs(NamedTuple):
    """Tensors that the kernels of the scan read: the arguments of `forward` except the initial state, angles and biases.

    B and C are those of the groups, (B, L, G, N), or rotated ones of all heads, (B, L, H, N).
    """

    x: Tensor
    dt: Tensor
    input_scale: Tensor | None
    own_scale: Tensor | None
    A: Tensor
    B: Tensor
    C: Tensor
    D: Tensor | None
    flags: Tensor | None


class _Problem(NamedTuple):
    """Sizes of a call.

    channel_blocks: number of programs that share the channels of a head. models: number of models, which have equal numbers of
    batch rows and separate A and D. chunk_steps, chunks: steps of a chunk, and chunks of a row. splits, split_chunks: splits
    of a row, and chunks of a split, all of which one program computes. parallel: whether the splits of a row run in parallel.
    constants: compile-time arguments of all kernels.
    """

    batch: int
    length: int
    heads: int
    groups: int
    channel_blocks: int
    width: int
    states: int
    models: int
    chunk_steps: int
    chunks: int
    splits: int
    split_chunks: int
    parallel: bool
    constants: dict[str, Any]

    @property
    def row_states(self) -> int:
        """Number of states of a batch row: one before each split and one after the last; 1 if splits are not parallel."""
        return self.splits + 1 if self.parallel else 1

    @property
    def size(self) -> int:
        """Number of elements of the states of a batch row."""
        return self.heads * self.width * self.states

    def launch(
        self, kernel: Any, tensors: tuple[Tensor | None, ...], rows: tuple[int, ...] = (), n_pairs: tuple[int, ...] = ()
    ) -> None:
        """Launch a kernel of the scan.

        rows: number of states of a batch row, and stride of the rows of `chunk_states`, for kernels with these arguments.
        n_pairs: the number R of rotated pairs, for kernels with this argument. Otherwise empty.
        """
        grid = self.batch * self.heads * self.channel_blocks, self.splits
        steps = self.length, self.split_chunks, self.batch // self.models
        sizes = self.heads, self.groups, self.width, self.states
        launch(kernel, grid, *tensors, *steps, *rows, *sizes, *n_pairs, constants=self.constants)


def _problem(x: Tensor, A: Tensor, B: Tensor, op: str) -> _Problem:
    batch, length, heads, width = x.shape
    groups, states = B.shape[2:]
    if states > tables.MAX_MATRIX_STATES:
        raise ValueError(f"`N` must be at most {tables.MAX_MATRIX_STATES} states on the triton backend, got {states}")
    table, Q = tables.TABLE[op if x.element_size() == 2 else f"{op}_exact"], _steps(x.element_size(), states)
    NB = max(16, power_of_two(states))
    PB = max(16, min(power_of_two(width), table.lanes // NB, 64))
    channel_blocks = ceil_div(width, PB)
    plan = tables.plan(op, length, batch * heads * channel_blocks, x.device, tile_steps=Q)  # its tiles are chunks here
    warps = max(1, min(table.warps, max(Q * Q, Q * NB, PB * NB) // 1024))
    constants = {
        "Q": Q, "PB": PB, "NB": NB, "PRECISION": "tf32x3" if x.dtype == torch.float32 else "ieee", "num_warps": warps,
        "num_stages": table.stages,
    }  # fmt: skip
    return _Problem(batch, length, heads, groups, channel_blocks, width, states, _models(A), *plan, constants)


def _models(A: Tensor) -> int:
    """Return the number of models of the parameters A, (H,) or (models, H)."""
    return A.shape[0] if A.ndim == 2 else 1


def _steps(element_size: int, states: int) -> int:
    """Return the number of steps of a chunk, for elements of x of this size in bytes: tiles must fit into shared memory."""
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

    Tensors are contiguous. x, B and C have one dtype, which may be fp16 or bf16; the others have the dtype of the state. A, D and
    the biases may have a leading axis of models: equal runs of batch rows then belong to different models.
    """
    with on_device(x):
        maps = _group_maps(x, A, B, C, B_bias, C_bias, angle, flags)
        start_phase, end_phase = rotation.cumulative_phases(maps)
        if maps.differs_per_head:
            B, C = rotation.rotate_maps(maps, start_phase)
        scan = ScanInputs(x, dt, input_scale, own_scale, A, B, C, D, flags)
        y, final, chunk_states = _forward(scan, initial_state, save_states)
        if end_phase is not None:
            final, _ = rotation.rotate_state(final, end_phase)
    return y, final, chunk_states


def _group_maps(x: Tensor, A: Tensor, B: Tensor, C: Tensor, *others: Tensor | None) -> rotation.GroupMaps:
    """Return the maps of the groups. others: B_bias, C_bias, angle and flags."""
    B_bias, C_bias, angle, flags = others
    chunk = _steps(x.element_size(), B.shape[-1])
    return rotation.GroupMaps(B, C, B_bias, C_bias, angle, flags, x.shape[2], _models(A), chunk)


def _forward(scan: ScanInputs, initial_state: Tensor, save_states: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Compute `forward` without rotations and biases."""
    x, dt, input_scale, _, A, B, _, _, flags = scan
    problem = _problem(x, A, B, "ssd_scan")
    y, final = torch.empty_like(x), torch.empty_like(initial_state)
    shape = chunk_states_shape(
        problem.batch, problem.length, x.element_size(), initial_state.element_size(), *initial_state.shape[1:]
    )
    chunk_states = initial_state.new_empty(shape if save_states else (0,))
    states = chunk_states.view(x.dtype) if save_states else None
    first_states = initial_state
    if problem.parallel:
        split_decay, local_states, first_states = _new_split_states(problem, initial_state)
        problem.launch(chunk_state_fwd_kernel, (x, dt, input_scale, A, B, flags, split_decay, local_states))
        _pass_states(problem, split_decay, local_states, initial_state, flags, first_states, False)
    rows = problem.row_states, 0 if states is None else states.stride(0)
    problem.launch(chunk_scan_fwd_kernel, (*scan, first_states, y, final, states), rows)
    return y, final, chunk_states


def _new_split_states(problem: _Problem, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return buffers for the decays and the local states of the splits, and for the states between them."""
    split_decay, local_states = (like.new_empty((problem.batch, problem.splits, problem.size)) for _ in range(2))
    return split_decay, local_states, like.new_empty((problem.batch, problem.row_states, problem.size))


def _pass_states(
    problem: _Problem, split_decay: Tensor, local: Tensor, first: Tensor, flags: Tensor | None, out: Tensor, reverse: bool
) -> None:
    grid, block = tables.state_passing_grid(problem.batch, problem.size)
    constants = {"COMPLEX": False, "REVERSE": reverse, "BLOCK": block}
    starts = restarts(flags, problem.split_chunks * problem.chunk_steps)
    launch(state_passing_kernel, grid, split_decay, local, first, starts, out, problem.splits, problem.size, constants=constants)


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
        maps = _group_maps(x, A, B, C, B_bias, C_bias, angle, flags)
        start_phase, end_phase = rotation.cumulative_phases(maps)
        if end_phase is not None:
            grad_final, grad_end = rotation.rotate_state(grad_final, end_phase, final)
        if maps.differs_per_head:
            B, C = rotation.rotate_maps(maps, start_phase)
        scan = ScanInputs(x, dt, input_scale, own_scale, A, B, C, D, flags)
        dx, d_dt, *scales, dA, dB, dC, dD, d_initial, d_end_phase = _backward(
            grad_y, grad_final, scan, initial_state, chunk_states, maps.n_pairs
        )
        if end_phase is not None:
            d_end_phase[:, -1] = grad_end
        if maps.differs_per_head:
            del scan, B, C  # the rotated maps
            dB, dC, others = rotation.rotate_maps_bwd(maps, start_phase, dB, dC, d_end_phase)
    gradients = (dx, d_dt, *scales, dA, dB, dC, dD, *others, d_initial)
    return tuple(initial_state.new_empty(0) if grad is None else grad for grad in gradients)


def _backward(
    grad_y: Tensor, grad_final: Tensor, scan: ScanInputs, initial_state: Tensor, chunk_states: Tensor, pairs: int
) -> tuple[Any, ...]:
    """Return the gradients of x, dt, both scales, A, B, C, D and initial_state, None where the input is None; without rotations.

    The last result is the gradient of rotations of `pairs` pairs of the states after all chunks but the last,
    (B, chunks, H, pairs).
    """
    x, dt, input_scale, own_scale, A, B, C, D, flags = scan
    problem, like = _problem(x, A, B, "ssd_scan_backward"), initial_state
    dx, d_initial, states = torch.empty_like(x), torch.empty_like(initial_state), chunk_states.view(x.dtype)
    d_steps = like.new_empty((3, problem.channel_blocks, *dt.shape))  # of dt, and of both scales where they are given
    dB, dC = ((like if pairs else x).new_empty((problem.channel_blocks, *dt.shape, B.shape[-1])) for _ in range(2))
    sums = like.new_empty((2, problem.batch, problem.splits, problem.channel_blocks, problem.heads))
    d_end_phase = like.new_empty((problem.channel_blocks, problem.batch, problem.chunks, problem.heads, pairs)) if pairs else None
    d_last_states = grad_final
    if problem.parallel:
        split_decay, d_local_states, d_last_states = _new_split_states(problem, like)
        problem.launch(chunk_state_bwd_kernel, (grad_y, dt, A, C, flags, split_decay, d_local_states))
        _pass_states(problem, split_decay, d_local_states, grad_final, flags, d_last_states, True)
    outputs = (dx, d_steps, dB, dC, d_initial, sums, d_end_phase)
    rows = problem.row_states, states.stride(0)
    problem.launch(chunk_scan_bwd_kernel, (grad_y, *scan, d_last_states, states, *outputs), rows, (pairs,))
    dA, dD = (block.view(problem.models, -1, problem.heads).sum(1) for block in sums)  # new tensors
    if problem.channel_blocks * problem.heads > problem.groups:
        dB, dC = (block.view(problem.channel_blocks, *B.shape[:3], -1, B.shape[-1]).sum((0, 4)) for block in (dB, dC))
    given = (dt, input_scale, own_scale)
    d_dt, d_scale, d_own = (None if x is None else block.sum(0) for x, block in zip(given, d_steps, strict=True))
    return (
        dx, d_dt, d_scale, d_own, dA.view(A.shape), dB.view(B.shape), dC.view(B.shape), None if D is None else dD.view(D.shape),
        d_initial, None if d_end_phase is None else d_end_phase.sum(0),
    )  # fmt: skip
