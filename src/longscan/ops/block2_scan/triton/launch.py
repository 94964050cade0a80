"""Launches of the kernels of `block2_scan`."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from longscan.ops._gpu import ChunkedLaunch, ChunkMaps, ceil_div, divide_time, launch, on_device, power_of_two, select_chunks
from longscan.ops._triton_steps import previous_steps
from longscan.ops.block2_scan.triton.backward import chunk_map_bwd_kernel, scan_bwd_kernel
from longscan.ops.block2_scan.triton.forward import all_chunk_maps_kernel, chunk_map_fwd_kernel, scan_fwd_kernel


class Blocks(NamedTuple):
    """Block sizes: steps of an unrolled iteration, matrices of a step in a program, and stages of the software pipeline."""

    BLOCK_T: int
    BLOCK_S: int
    NUM_STAGES: int


FORWARD, BACKWARD = Blocks(8, 32, 4), Blocks(4, 32, 5)  # one warp for each program


def plan(M: Tensor, f: Tensor, blocks: Blocks) -> ChunkedLaunch:
    """Return the launch for M and f."""
    batch, length, size, _, columns = f.shape
    blocks = blocks._replace(BLOCK_S=min(blocks.BLOCK_S, power_of_two(size)))
    blocks_of_rows = batch * ceil_div(size, blocks.BLOCK_S)
    chunks = divide_time(length, blocks.BLOCK_T, blocks_of_rows, f.device)
    groups = M.shape[0] if M.ndim == f.ndim - 1 else 1
    constants = {"CONSTANT_M": M.ndim < f.ndim, "K": columns, **blocks._asdict(), "num_warps": 1}
    return ChunkedLaunch(chunks, blocks_of_rows, (length, size, chunks.length, batch // groups), constants)


def chunk_maps(kernel: Any, M: Tensor, f: Tensor, flags: Tensor | None, call: ChunkedLaunch, first: int, stop: int) -> ChunkMaps:
    """Return the maps of the chunks [first, stop)."""
    number = stop - first
    if number == 0:
        return ChunkMaps()
    mult = f.new_empty((f.shape[0], number, f.shape[2], 2, 2), dtype=torch.float64)
    local = f.new_empty((f.shape[0], number, *f.shape[2:]))
    maps = ChunkMaps(mult, local, None if flags is None else flags.new_empty((f.shape[0], number)))
    launch(kernel, (call.blocks_of_rows, number), M, f, flags, *maps, first, *call.sizes, constants=call.constants)
    return maps


def apply_all(maps: ChunkMaps, call: ChunkedLaunch, factor: Tensor | None = None, *, backward: bool = False) -> Tensor:
    """Return the state (B, S, 2, K) after the maps of all chunks, from zero; write the product of their factors to `factor`."""
    number, size = maps.local.shape[1:3]
    state = torch.empty_like(maps.local[:, 0], memory_format=torch.contiguous_format)
    constants = {name: call.constants[name] for name in ("K", "BLOCK_S", "NUM_STAGES", "num_warps")}
    grid = (call.blocks_of_rows,)
    launch(all_chunk_maps_kernel, grid, *maps, state, factor, size, number, constants={"BACKWARD": backward, **constants})
    return state


def forward(
    M: Tensor,
    f: Tensor,
    initial_state: Tensor,
    flags: Tensor | None,
    exchange_state: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Return x (B, L, S, 2, K) and the final state (B, S, 2, K), for contiguous tensors of one real dtype; K = 1 or 2.

    A constant M (S, 2, 2) may have a leading axis of groups: equal runs of batch rows then belong to different groups.
    exchange_state: function that returns the initial state, given the product (B, S, 2, 2) of the factors of all steps and the
    final state for an initial state of 0.
    """
    x, final_state = torch.empty_like(f), torch.empty_like(initial_state)
    call = plan(M, f, FORWARD)
    with on_device(f):
        maps = chunk_maps(chunk_map_fwd_kernel, M, f, flags, call, 0, call.chunks.number - int(exchange_state is None))
        if exchange_state is not None:
            factor = f.new_empty((*initial_state.shape[:3], 2))
            final = apply_all(maps, call, factor)
            initial_state = exchange_state(factor, final).contiguous()
            maps = select_chunks(maps, 0, -1)
        grid = call.blocks_of_rows, call.chunks.number
        launch(scan_fwd_kernel, grid, M, f, initial_state, flags, *maps, x, final_state, *call.sizes, constants=call.constants)
    return x, final_state


def backward(
    grad_x: Tensor,
    grad_final: Tensor,
    M: Tensor,
    x: Tensor,
    initial_state: Tensor,
    flags: Tensor | None,
    exchange_gradient: Callable[[Tensor], Tensor] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of M, f and initial_state.

    exchange_gradient: function that returns the gradient of the final state, which replaces grad_final, given the gradient of the
    initial state for a zero gradient of the final state.
    """
    call = plan(M, x, BACKWARD)
    previous = None if flags is None else previous_steps(flags)
    constant = M.ndim < x.ndim
    dM = M.new_empty((x.shape[0], call.chunks.number, *M.shape[-3:])) if constant else torch.empty_like(M)
    df, d_initial = torch.empty_like(x), torch.empty_like(initial_state)
    with on_device(x):
        maps = chunk_maps(chunk_map_bwd_kernel, M, grad_x, flags, call, int(exchange_gradient is None), call.chunks.number)
        if exchange_gradient is not None:
            grad_final = exchange_gradient(apply_all(maps, call, backward=True)).contiguous()
            maps = select_chunks(maps, 1, None)
        grid = call.blocks_of_rows, call.chunks.number
        given = grad_x, grad_final, M, x, initial_state, previous, *maps
        launch(scan_bwd_kernel, grid, *given, dM, df, d_initial, *call.sizes, constants=call.constants)
    if constant:
        dM = dM.view(x.shape[0] // call.sizes[3], -1, *M.shape[-3:]).sum(1).view(M.shape)
    return dM, df, d_initial
