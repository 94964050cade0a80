"""Launches of the kernels of `linear_scan`."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from longscan.ops._gpu import ChunkedLaunch, ChunkMaps, ceil_div, divide_time, launch, on_device, power_of_two, select_chunks
from longscan.ops._triton import state_passing_kernel
from longscan.ops._triton_launch import state_passing_grid
from longscan.ops._triton_steps import previous_steps
from longscan.ops.linear_scan.triton.backward import chunk_map_bwd_kernel, scan_bwd_kernel
from longscan.ops.linear_scan.triton.forward import chunk_map_fwd_kernel, scan_fwd_kernel


class Blocks(NamedTuple):
    """Block sizes: steps of an unrolled iteration, elements of S of a program, and stages of the software pipeline."""

    BLOCK_T: int
    BLOCK_S: int
    NUM_STAGES: int


FORWARD, BACKWARD = Blocks(8, 32, 5), Blocks(8, 32, 4)  # one warp for each program
CHUNKED_FORWARD, CHUNKED_BACKWARD = Blocks(8, 64, 5), Blocks(8, 64, 4)


def plan(a: Tensor, b: Tensor, reverse: bool, is_complex: bool, one_chunk: Blocks, chunked: Blocks) -> ChunkedLaunch:
    """Return the launch for a and b, with the blocks for one chunk or for parallel chunks."""
    batch, length, size = b.shape[:3]
    blocks = one_chunk
    chunks = divide_time(length, blocks.BLOCK_T, batch * ceil_div(size, blocks.BLOCK_S), b.device)
    if chunks.number > 1:
        blocks = chunked
        chunks = divide_time(length, blocks.BLOCK_T, batch * ceil_div(size, blocks.BLOCK_S), b.device)
    blocks = blocks._replace(BLOCK_S=min(blocks.BLOCK_S, power_of_two(size)))
    constant = a.ndim < b.ndim
    groups = a.shape[0] if a.ndim == b.ndim - 1 else 1
    constants = {"CONSTANT_A": constant, "COMPLEX": is_complex, "REVERSE": reverse, **blocks._asdict(), "num_warps": 1}
    return ChunkedLaunch(
        chunks, batch * ceil_div(size, blocks.BLOCK_S), (length, size, chunks.length, batch // groups), constants
    )


def chunk_maps(kernel: Any, a: Tensor, b: Tensor, flags: Tensor | None, call: ChunkedLaunch, number: int) -> ChunkMaps:
    """Return the maps of the first `number` chunks of each row or, in the backward pass, of the last ones."""
    if number == 0:
        return ChunkMaps()
    shape = (b.shape[0], number, *b.shape[2:])
    restarted = None if flags is None else flags.new_empty((b.shape[0], number))
    maps = ChunkMaps(b.new_empty(shape), b.new_empty(shape), restarted)
    launch(kernel, (call.blocks_of_rows, number), a, b, flags, *maps, *call.sizes, constants=call.constants)
    return maps


def apply_all(maps: ChunkMaps, state: Tensor, is_complex: bool, backward: bool = False) -> Tensor:
    """Return the state (B, S[, 2]) after the maps of all chunks, in the order of the forward or the backward pass."""
    if backward:
        maps = ChunkMaps(*(None if x is None else x.flip(1) for x in maps))
    batch, number, size = maps.local.shape[:3]
    states = maps.local.new_empty((batch, number + 1, *maps.local.shape[2:]))
    grid, block = state_passing_grid(batch, size)
    constants = {"COMPLEX": is_complex, "REVERSE": False, "BLOCK": block}
    tensors = maps.mult, maps.local, state, maps.restarted, states
    launch(state_passing_kernel, grid, *tensors, number, size, constants=constants)
    return states[:, -1].clone()


def forward(
    a: Tensor,
    b: Tensor,
    initial_state: Tensor,
    flags: Tensor | None,
    reverse: bool,
    is_complex: bool,
    exchange_state: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Return x (B, L, S[, 2]) and the final state (B, S[, 2]), for contiguous tensors of one real dtype.

    A constant a (S[, 2]) may have a leading axis of groups: equal runs of batch rows then belong to different groups.
    exchange_state: function that returns the initial state, given the product of the factors of all steps and the final state for
    an initial state of 0.
    """
    x, final_state = torch.empty_like(b), torch.empty_like(initial_state)
    call = plan(a, b, reverse, is_complex, FORWARD, CHUNKED_FORWARD)
    with on_device(b):
        maps = chunk_maps(chunk_map_fwd_kernel, a, b, flags, call, call.chunks.number - int(exchange_state is None))
        if exchange_state is not None:
            zero, one = torch.zeros_like(initial_state), torch.zeros_like(initial_state)
            (one[..., 0] if is_complex else one).fill_(1)
            factor = apply_all(ChunkMaps(maps.mult, torch.zeros_like(maps.local)), one, is_complex)
            initial_state = exchange_state(factor, apply_all(maps, zero, is_complex)).contiguous()
            maps = select_chunks(maps, 0, -1)
        grid = call.blocks_of_rows, call.chunks.number
        launch(scan_fwd_kernel, grid, a, b, initial_state, flags, *maps, x, final_state, *call.sizes, constants=call.constants)
    return x, final_state


def backward(
    grad_x: Tensor,
    grad_final: Tensor,
    a: Tensor,
    x: Tensor,
    initial_state: Tensor,
    flags: Tensor | None,
    reverse: bool,
    is_complex: bool,
    exchange_gradient: Callable[[Tensor], Tensor] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of a, b and initial_state.

    exchange_gradient: function that returns the gradient of the final state, which replaces grad_final, given the gradient of the
    initial state for a zero gradient of the final state.
    """
    call = plan(a, x, reverse, is_complex, BACKWARD, CHUNKED_BACKWARD)
    previous = None if flags is None else previous_steps(flags, reverse)
    constant = a.ndim < x.ndim
    da = x.new_empty((x.shape[0], call.chunks.number, *x.shape[2:])) if constant else torch.empty_like(a)
    db, d_initial = torch.empty_like(x), torch.empty_like(initial_state)
    with on_device(x):
        maps = chunk_maps(chunk_map_bwd_kernel, a, grad_x, flags, call, call.chunks.number - int(exchange_gradient is None))
        if exchange_gradient is not None:
            grad_final = exchange_gradient(apply_all(maps, torch.zeros_like(grad_final), is_complex, backward=True)).contiguous()
            maps = select_chunks(maps, 1, None)
        grid = call.blocks_of_rows, call.chunks.number
        given = grad_x, grad_final, a, x, initial_state, previous, *maps
        launch(scan_bwd_kernel, grid, *given, da, db, d_initial, *call.sizes, constants=call.constants)
    if constant:
        da = da.view(x.shape[0] // call.sizes[3], -1, *x.shape[2:]).sum(1).view(a.shape)
    return da, db, d_initial
