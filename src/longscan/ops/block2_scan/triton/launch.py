"""Launches of the kernels of `block2_scan`."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from longscan.ops._gpu import Chunks, ceil_div, divide_time, launch, on_device, power_of_two
from longscan.ops._triton_steps import previous_steps
from longscan.ops.block2_scan.triton.backward import chunk_map_bwd_kernel, scan_bwd_kernel
from longscan.ops.block2_scan.triton.forward import chunk_map_fwd_kernel, scan_fwd_kernel


class Blocks(NamedTuple):
    """Steps that are loaded together, matrices of a step for each program, and blocks of steps that are loaded in advance."""

    BLOCK_T: int
    BLOCK_S: int
    NUM_STAGES: int


FORWARD, BACKWARD = Blocks(8, 32, 4), Blocks(4, 32, 5)  # one warp for each program


class Launch(NamedTuple):
    """The division of a call among programs, and the last arguments of all kernels."""

    chunks: Chunks
    blocks_of_rows: int
    sizes: tuple[int, int, int, int]
    constants: dict[str, int]


class ChunkMaps(NamedTuple):
    """The map of the state, or of its gradient, by each chunk but one; `restarted`: whether a sequence starts in it."""

    mult: Tensor | None = None
    local: Tensor | None = None
    restarted: Tensor | None = None


def plan(M: Tensor, f: Tensor, blocks: Blocks) -> Launch:
    """Return the launch for M and f."""
    batch, length, size, _, columns = f.shape
    blocks = blocks._replace(BLOCK_S=min(blocks.BLOCK_S, power_of_two(size)))
    blocks_of_rows = batch * ceil_div(size, blocks.BLOCK_S)
    chunks = divide_time(length, blocks.BLOCK_T, blocks_of_rows, f.device)
    groups = len(M) if M.ndim == f.ndim - 1 else 1
    constants = {"CONSTANT_M": M.ndim < f.ndim, "K": columns, **blocks._asdict(), "num_warps": 1}
    return Launch(chunks, blocks_of_rows, (length, size, chunks.length, batch // groups), constants)


def chunk_maps(kernel: Any, M: Tensor, f: Tensor, flags: Tensor | None, call: Launch) -> ChunkMaps:
    """Return the maps of all chunks but the one whose map is not needed; none for one chunk."""
    number = call.chunks.number - 1
    if number == 0:
        return ChunkMaps()
    mult = f.new_empty((len(f), number, f.shape[2], 2, 2), dtype=torch.float64)
    local = f.new_empty((len(f), number, *f.shape[2:]))
    maps = ChunkMaps(mult, local, None if flags is None else flags.new_empty((len(f), number)))
    launch(kernel, (call.blocks_of_rows, number), M, f, flags, *maps, *call.sizes, constants=call.constants)
    return maps


def forward(M: Tensor, f: Tensor, initial_state: Tensor, flags: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return x (B, L, S, 2, K) and the final state (B, S, 2, K), for contiguous tensors of one real dtype; K = 1 or 2.

    A constant M (S, 2, 2) may have one more leading axis, of groups: as many runs of batch rows then have an M of their own.
    """
    x, final_state = torch.empty_like(f), torch.empty_like(initial_state)
    call = plan(M, f, FORWARD)
    with on_device(f):
        maps = chunk_maps(chunk_map_fwd_kernel, M, f, flags, call)
        grid = call.blocks_of_rows, call.chunks.number
        launch(scan_fwd_kernel, grid, M, f, initial_state, flags, *maps, x, final_state, *call.sizes, constants=call.constants)
    return x, final_state


def backward(
    grad_x: Tensor, grad_final: Tensor, M: Tensor, x: Tensor, initial_state: Tensor, flags: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of M, f and initial_state."""
    call = plan(M, x, BACKWARD)
    previous = None if flags is None else previous_steps(flags)
    constant = M.ndim < x.ndim
    dM = M.new_empty((len(x), call.chunks.number, *M.shape[-3:])) if constant else torch.empty_like(M)
    df, d_initial = torch.empty_like(x), torch.empty_like(initial_state)
    with on_device(x):
        maps = chunk_maps(chunk_map_bwd_kernel, M, grad_x, flags, call)
        grid = call.blocks_of_rows, call.chunks.number
        given = grad_x, grad_final, M, x, initial_state, previous, *maps
        launch(scan_bwd_kernel, grid, *given, dM, df, d_initial, *call.sizes, constants=call.constants)
    if constant:
        dM = dM.view(len(x) // call.sizes[3], -1, *M.shape[-3:]).sum(1).view(M.shape)
    return dM, df, d_initial
