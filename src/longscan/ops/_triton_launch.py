"""How the Triton kernels are launched: every number that a measurement may change, in one table, and what follows from it.

A scan kernel's program owns `lanes` pairs of a channel and a state (whole channels) of one batch row, and goes over a split of
the time axis in tiles of `steps`. Where channels and rows alone do not fill the GPU, there are several splits: a first pass
finds what each does to the state, `chain` brings the state from split to split, and a second pass does the work.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor

from longscan.ops._gpu import ceil_div, power_of_two, programs_to_fill
from longscan.ops.arguments import RESET


@dataclass(frozen=True)
class Launch:
    """steps: of a tile. lanes: at least so many pairs of channel and state a program. warps: of 32 threads for so many lanes.

    stages: tiles on their way from memory at once, where kernels of the op leave that to Triton's pipeliner; 1: it has no part.
    """

    steps: int
    lanes: int
    warps: int
    stages: int = 1


TABLE = {
    "selective_scan": Launch(steps=16, lanes=256, warps=1, stages=3),
    "selective_scan_wide": Launch(steps=8, lanes=1024, warps=4, stages=3),
    "selective_scan_backward": Launch(steps=4, lanes=256, warps=1, stages=3),
    "selective_scan_wide_backward": Launch(steps=16, lanes=256, warps=2, stages=3),
    "selective_scan_pairs": Launch(steps=4, lanes=512, warps=4, stages=3),
    "selective_scan_pairs_backward": Launch(steps=4, lanes=256, warps=2, stages=3),
    "ssd_scan": Launch(steps=64, lanes=8192, warps=4, stages=2),
    "ssd_scan_backward": Launch(steps=64, lanes=8192, warps=4, stages=1),
    "ssd_scan_exact": Launch(steps=16, lanes=4096, warps=4),
    "ssd_scan_backward_exact": Launch(steps=16, lanes=4096, warps=4),
    "turns": Launch(steps=16, lanes=128, warps=4, stages=3),
    "short_conv": Launch(steps=8, lanes=256, warps=4),
    "short_conv_backward": Launch(steps=4, lanes=256, warps=4),
}


SCRATCH = 5 * 2**23  # bytes of memory for what a backward hands from kernel to kernel, beyond which it goes slice by slice
MAX_STATES = 1024  # of a channel: they lie in one program
MAX_MATRIX_STATES = 256  # of a head's state (P, N): they lie in one program, and what they are multiplied with in shared memory
MAX_WARPS = 16
ALIGNMENT = 16  # bytes, of what an op returns


class Layout(NamedTuple):
    """Of (channel, state) pairs: `blocks` programs of BD channels with NB places for states (powers of 2)."""

    BD: int
    NB: int
    blocks: int
    warps: int


class Plan(NamedTuple):
    """Of the time axis: `tiles` of T steps in `splits` of `span` tiles, which run side by side where `parallel`."""

    T: int
    tiles: int
    splits: int
    span: int
    parallel: bool


def smallest(*sizes: int) -> int:
    """The minimum; of sizes that stay open in a graph as an expression, since a comparison would tie the graph to its outcome."""
    for x in sizes:
        if isinstance(x, torch.SymInt):
            return reduce(torch.sym_min, sizes)
    return min(sizes)


def largest(one: int, other: int) -> int:
    """The maximum, as `smallest`."""
    return torch.sym_max(one, other) if isinstance(one, torch.SymInt) or isinstance(other, torch.SymInt) else max(one, other)


def layout(op: str, channels: int, states: int) -> Layout:
    """How channels and states are divided among programs."""
    if states > MAX_STATES:
        raise ValueError(f"`N` must be at most {MAX_STATES} states for each channel on the triton backend, got {states}")
    launch, NB = TABLE[op], power_of_two(states)
    BD = min(max(1, launch.lanes // NB), power_of_two(channels))
    warps = min(MAX_WARPS, max(1, power_of_two(BD * NB * launch.warps // launch.lanes)))
    return Layout(BD, NB, ceil_div(channels, BD), warps)


def plan(op: str, length: int, programs: int, device: torch.device, most: int | None = None, chunk: int | None = None) -> Plan:
    """How the time axis is divided, where a split has `programs` programs and may not be longer than `most` tiles.

    chunk: steps that stay together, for tiles of the op's own.
    """
    T = chunk or TABLE[op].steps
    tiles = ceil_div(length, T)
    fill = programs_to_fill(device)
    wanted = 1 if programs * 2 > fill else min(tiles, ceil_div(fill, programs))
    span = ceil_div(tiles, wanted)
    span = span if most is None else max(1, min(span, most))
    return Plan(T, tiles, ceil_div(tiles, span), span, wanted > 1)


def slices(splits: int, each: int) -> Iterator[tuple[int, int]]:
    """Runs [start, stop) of at most `each` splits, from the last to the first."""
    for stop in range(splits, 0, -each):
        yield max(0, stop - each), stop


def restarts(flags: Tensor | None, steps: int) -> Tensor | None:
    """Whether a sequence starts in each run of `steps` steps, (B, runs) uint8; None where `flags` (B, L) is."""
    if flags is None:
        return None
    runs = ceil_div(flags.shape[1], steps)
    fresh = torch.nn.functional.pad(flags == RESET, (0, runs * steps - flags.shape[1]))
    return fresh.view(len(flags), runs, steps).any(2).view(torch.uint8)


def result(piece: Tensor, shape: Sequence[int]) -> Tensor:
    """A piece of a larger tensor as a contiguous result of an op, of this shape.

    It is copied only where it is not contiguous or does not begin at a multiple of ALIGNMENT bytes, as generated code expects.
    """
    x = piece.reshape(shape).contiguous()
    return x.clone() if x.storage_offset() * x.element_size() % ALIGNMENT else x


def special_functions(like: Tensor) -> bool:
    """Whether the GPU of `like` has a unit for sine and cosine that Triton reaches."""
    return like.is_cuda and torch.version.hip is None
