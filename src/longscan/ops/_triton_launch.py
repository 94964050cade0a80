"""Launch parameters of the Triton kernels: a table of all numbers that were tuned by measurements, and the grids that follow.

A program of a scan kernel computes `lanes` pairs of a channel and a state (whole channels) of one batch row, over one chunk of
the steps, in tiles of `steps`. If channels and rows alone do not fill the GPU, there are several chunks: a first pass computes
the effect of each chunk on the state, `state_passing_kernel` passes the state from chunk to chunk, and a second pass computes the
outputs.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor

from longscan.ops._gpu import ceil_div, power_of_two, programs_to_fill


@dataclass(frozen=True)
class Launch:
    """Launch parameters of a kernel.

    Attributes:
        steps: number of steps of a tile.
        lanes: smallest number of (channel, state) pairs of a program.
        warps: number of warps for `lanes` pairs.
        stages: number of tiles that Triton's pipeliner loads ahead; 1 for kernels that do not use it.
    """

    steps: int
    lanes: int
    warps: int
    stages: int = 1


TABLE = {
    "selective_scan": Launch(steps=16, lanes=256, warps=1, stages=3),
    "selective_scan_wide": Launch(steps=8, lanes=1024, warps=4, stages=3),
    "selective_scan_backward": Launch(steps=4, lanes=256, warps=1, stages=3),
    "selective_scan_wide_backward": Launch(steps=8, lanes=256, warps=2, stages=3),
    "selective_scan_pairs": Launch(steps=4, lanes=512, warps=4, stages=3),
    "selective_scan_pairs_backward": Launch(steps=4, lanes=256, warps=2, stages=3),
    "ssd_scan": Launch(steps=64, lanes=8192, warps=4, stages=2),
    "ssd_scan_backward": Launch(steps=64, lanes=8192, warps=4, stages=1),
    "ssd_scan_exact": Launch(steps=16, lanes=4096, warps=4),
    "ssd_scan_backward_exact": Launch(steps=16, lanes=4096, warps=4),
    "rotation": Launch(steps=16, lanes=128, warps=4, stages=3),
}


SCRATCH = 2**24  # bytes of partial sums of a backward pass; beyond that it runs in rounds of a few chunks
MAX_STATES = 1024  # largest number of states of a channel, all of which one program computes
MAX_MATRIX_STATES = 256  # largest N of a head's state (P, N): one program computes all N, with factors in shared memory
MAX_WARPS = 16
PASS_BLOCK = 128  # numbers of a state in a program of `state_passing_kernel`, more for states of over 8,388,480 numbers
MAX_GRID = 65535  # largest number of programs along the second axis of a grid (CUDA)


class Layout(NamedTuple):
    """Division of (channel, state) pairs: `blocks` programs of BD channels with up to NB states each (powers of 2)."""

    BD: int
    NB: int
    blocks: int
    warps: int


class Plan(NamedTuple):
    """Division of the steps: `tiles` of T steps, in `chunks` of `chunk_tiles` tiles, which run in parallel CTAs if `parallel`."""

    T: int
    tiles: int
    chunks: int
    chunk_tiles: int
    parallel: bool


def smallest(*sizes: int) -> int:
    """Return the minimum; for symbolic sizes an expression, as a comparison would restrict the graph to its result."""
    for x in sizes:
        if isinstance(x, torch.SymInt):
            return reduce(torch.sym_min, sizes)
    return min(sizes)


def largest(one: int, other: int) -> int:
    """Return the maximum; for symbolic sizes an expression."""
    return torch.sym_max(one, other) if isinstance(one, torch.SymInt) or isinstance(other, torch.SymInt) else max(one, other)


def layout(op: str, channels: int, states: int) -> Layout:
    """Return how channels and states are divided among programs. Raises ValueError for more than MAX_STATES states."""
    if states > MAX_STATES:
        raise ValueError(f"`N` must be at most {MAX_STATES} states for each channel on the triton backend, got {states}")
    launch, NB = TABLE[op], power_of_two(states)
    BD = min(max(1, launch.lanes // NB), power_of_two(channels))
    warps = min(MAX_WARPS, max(1, power_of_two(BD * NB * launch.warps // launch.lanes)))
    return Layout(BD, NB, ceil_div(channels, BD), warps)


def plan(
    op: str, length: int, programs: int, device: torch.device, most: int | None = None, tile_steps: int | None = None
) -> Plan:
    """Return how the steps are divided.

    Args:
        op: key of TABLE.
        length: number of steps.
        programs: number of programs for one chunk.
        device: the device that the programs should fill.
        most: largest number of tiles of a chunk; None for no limit.
        tile_steps: number of steps of a tile; None for the number in the table.
    """
    T = tile_steps or TABLE[op].steps
    tiles = ceil_div(length, T)
    fill = programs_to_fill(device)
    wanted = 1 if programs * 2 > fill else smallest(tiles, ceil_div(fill, programs))
    chunk_tiles = ceil_div(tiles, wanted)
    chunk_tiles = chunk_tiles if most is None else largest(1, smallest(chunk_tiles, most))
    parallel = wanted > 1 if isinstance(wanted, int) else True  # a graph has the same kernels for every symbolic length
    return Plan(T, tiles, ceil_div(tiles, chunk_tiles), chunk_tiles, parallel)


def state_passing_grid(batch: int, size: int) -> tuple[tuple[int, int], int]:
    """Return the grid of `state_passing_kernel` for states of `size` numbers, and how many of them a program has."""
    block = PASS_BLOCK
    while ceil_div(size, block) > MAX_GRID:
        block *= 2
    return (batch, ceil_div(size, block)), block


def rounds(chunks: int, each: int) -> Iterator[tuple[int, int]]:
    """Yield rounds: runs [start, stop) of at most `each` chunks, from the last to the first.

    A traced graph depends only on the number of rounds.
    """
    for i in range(ceil_div(chunks, each)):
        stop = chunks - i * each
        yield largest(0, stop - each), stop


def special_functions(like: Tensor) -> bool:
    """Return whether the GPU of `like` has instructions for sine and cosine that Triton can use (`_triton.fast_sincos`)."""
    return like.is_cuda and torch.version.hip is None
