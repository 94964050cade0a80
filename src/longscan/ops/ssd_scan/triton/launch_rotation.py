"""Launches of the kernels of cumulative_rotation.py."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from longscan.ops import _triton_launch as tables
from longscan.ops._gpu import ceil_div, launch, power_of_two, programs_to_fill
from longscan.ops._triton_steps import restarts
from longscan.ops.ssd_scan.triton.cumulative_rotation import (
    cumulative_rotation_bwd_kernel,
    cumulative_rotation_kernel,
    later_tiles_kernel,
    rotate_state_kernel,
    tile_prefix_kernel,
    tile_sums_kernel,
)

PREFIX_COLUMNS = 32  # columns of a program of `tile_prefix_kernel`
MAX_TILE_ELEMENTS = 4096  # largest number of elements of B or C in a tile, which must fit into the registers


class GroupMaps(NamedTuple):
    """B and C of the groups of heads, and the biases and angles from which those of the heads are computed.

    models: number of models, which have equal numbers of batch rows and separate biases. chunk: number of steps of a chunk of the
    scan.
    """

    B: Tensor
    C: Tensor
    B_bias: Tensor | None
    C_bias: Tensor | None
    angle: Tensor | None
    flags: Tensor | None
    heads: int
    models: int
    chunk: int

    @property
    def differs_per_head(self) -> bool:
        """Whether the maps of the heads differ from those of their groups."""
        return any(x is not None for x in (self.B_bias, self.C_bias, self.angle))

    @property
    def n_pairs(self) -> int:
        """Number of pairs that are rotated, R; 0 without angles."""
        return 0 if self.angle is None else self.angle.shape[-1]

    @property
    def tile_steps(self) -> int:
        """Number of steps of a tile."""
        return min(tables.TABLE["rotation"].steps, max(1, MAX_TILE_ELEMENTS // self.padded_states), self.chunk)

    @property
    def padded_states(self) -> int:
        """N, rounded up to a power of 2."""
        return max(2, power_of_two(self.B.shape[-1]))

    @property
    def n_tiles(self) -> int:
        """Number of tiles of a row."""
        return ceil_div(self.B.shape[1], self.tile_steps)

    @property
    def heads_per_program(self) -> int:
        """Number of heads of a group that a program computes."""
        batch, _, groups, _ = self.B.shape
        heads_per_group = self.heads // groups
        if heads_per_group == 1:
            return 1
        programs = ceil_div(programs_to_fill(self.B.device), batch * self.n_tiles * groups)
        return ceil_div(heads_per_group, tables.smallest(heads_per_group, programs))

    @property
    def programs_per_group(self) -> int:
        """Number of programs that share the heads of a group."""
        return ceil_div(self.heads // self.B.shape[2], self.heads_per_program)

    @property
    def shares_groups(self) -> bool:
        """Whether several programs may share the heads of a group; a graph with a symbolic length always computes the same."""
        programs = self.programs_per_group
        return programs > 1 if isinstance(programs, int) else True


def cumulative_phases(maps: GroupMaps) -> tuple[Tensor | None, Tensor | None]:
    """Return the phases before each tile, (B, tiles, H, R) float64, and after the last step, (B, H, R); None without angles."""
    if maps.angle is None or not maps.n_pairs:
        return None, None
    batch = maps.angle.shape[0]
    sums = maps.angle.new_empty((batch, maps.n_tiles, maps.heads, maps.n_pairs), dtype=torch.float64)
    before, total = torch.empty_like(sums), maps.angle.new_empty((batch, maps.heads, maps.n_pairs))
    _launch_over_columns(tile_sums_kernel, maps, (maps.angle, maps.flags, sums), (maps.n_tiles, maps.heads * maps.n_pairs), {})
    width, table = maps.heads * maps.n_pairs, tables.TABLE["rotation"]
    constants = {"T": table.steps, "BLOCK": PREFIX_COLUMNS, "num_warps": table.warps}
    tensors = sums, restarts(maps.flags, maps.tile_steps), before, total
    launch(tile_prefix_kernel, (batch, ceil_div(width, PREFIX_COLUMNS)), *tensors, maps.n_tiles, width, constants=constants)
    return before, total


def rotate_maps(maps: GroupMaps, start_phase: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the maps of the heads, B and C (B, L, H, N). start_phase: the first result of `cumulative_phases`."""
    B, C = (maps.B.new_empty((*maps.B.shape[:2], maps.heads, maps.B.shape[-1])) for _ in range(2))
    _launch_over_heads(cumulative_rotation_kernel, maps, (), start_phase, (B, C))
    return B, C


def rotate_maps_bwd(
    maps: GroupMaps, start_phase: Tensor | None, grad_B: Tensor, grad_C: Tensor, d_end_phase: Tensor | None
) -> tuple[Tensor, Tensor, tuple[Tensor | None, ...]]:
    """Return the gradients of B, C, and (B_bias, C_bias, angle), None where the input is None.

    d_end_phase: (B, chunks, H, R), the gradients of rotations of the states after the chunks; None without angles.
    """
    batch = maps.B.shape[0]
    like = next(x for x in (maps.angle, maps.B_bias, maps.C_bias) if x is not None)  # has the dtype of sums
    dtype = like.dtype if maps.shares_groups else maps.B.dtype
    dB, dC = (like.new_empty((maps.programs_per_group, *maps.B.shape), dtype=dtype) for _ in range(2))
    tile_shape = (batch, maps.n_tiles, maps.heads, maps.B.shape[-1])
    dB_bias, dC_bias = (None if x is None else like.new_empty(tile_shape) for x in (maps.B_bias, maps.C_bias))
    d_angle = sums = None
    if maps.angle is not None:
        d_angle, sums = torch.empty_like(maps.angle), like.new_empty((*tile_shape[:3], maps.n_pairs))
    gradients = (dB, dC, dB_bias, dC_bias, d_angle, sums)
    _launch_over_heads(cumulative_rotation_bwd_kernel, maps, (grad_B, grad_C), start_phase, gradients)
    if d_end_phase is not None:
        sizes = maps.n_tiles, d_end_phase.shape[1], maps.heads * maps.n_pairs
        tensors = d_angle, sums, d_end_phase, maps.flags, restarts(maps.flags, maps.tile_steps)
        _launch_over_columns(later_tiles_kernel, maps, tensors, sizes, {"TILES_PER_CHUNK": maps.chunk // maps.tile_steps})
    dB_bias, dC_bias = (
        None if terms is None or x is None else terms.view(maps.models, -1, *tile_shape[2:]).sum(1).view(x.shape)
        for terms, x in ((dB_bias, maps.B_bias), (dC_bias, maps.C_bias))
    )
    dB, dC = (terms.sum(0).to(maps.B.dtype) if maps.shares_groups else terms[0] for terms in (dB, dC))
    return dB, dC, (dB_bias, dC_bias, d_angle)


def rotate_state(state: Tensor, phase: Tensor, rotated: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return a state (B, H, P, N), rotated by `phase` (B, H, R), and a tensor that is not initialised.

    If `rotated` is given, it is the result of such a rotation and `state` is its gradient. Then the results are the gradients of
    the state before the rotation and of phase.
    """
    batch, heads, width, states = state.shape
    out, d_phase = torch.empty_like(state), torch.empty_like(phase)
    NB = max(2, power_of_two(states))
    constants = {"BACKWARD": rotated is not None, "PB": max(1, MAX_TILE_ELEMENTS // NB), "NB": NB}
    constants["num_warps"] = tables.TABLE["rotation"].warps
    tensors = (state, phase, rotated, out, d_phase)
    launch(rotate_state_kernel, (batch * heads,), *tensors, width, states, phase.shape[-1], constants=constants)
    return out, d_phase


def _launch_over_heads(
    kernel: Any, maps: GroupMaps, first: tuple[Tensor, ...], start_phase: Tensor | None, last: tuple[Any, ...]
) -> None:
    """Launch a kernel with a program for each tile of steps and block of heads."""
    batch, length, groups, states = maps.B.shape
    sizes = (length, maps.n_tiles, batch // maps.models, maps.heads, groups, maps.heads_per_program, states, maps.n_pairs)
    table = tables.TABLE["rotation"]
    constants = {"T": maps.tile_steps, "NB": maps.padded_states, "STAGES": table.stages, "num_warps": table.warps}
    angle = maps.angle if maps.n_pairs else None
    tensors = (*first, maps.B, maps.C, maps.B_bias, maps.C_bias, angle, maps.flags, start_phase, *last)
    launch(kernel, (batch * maps.n_tiles, groups * maps.programs_per_group), *tensors, *sizes, constants=constants)


def _launch_over_columns(
    kernel: Any, maps: GroupMaps, tensors: tuple[Tensor | None, ...], sizes: tuple[int, ...], extra_constants: dict[str, int]
) -> None:
    """Launch a kernel with a program for each tile of steps and block of columns.

    extra_constants: compile-time arguments that other kernels do not have.
    """
    batch, length, _, _ = maps.B.shape
    table = tables.TABLE["rotation"]
    block = min(table.lanes, power_of_two(sizes[-1]))
    constants = {**extra_constants, "T": maps.tile_steps, "BLOCK": block, "num_warps": table.warps}
    launch(kernel, (batch * maps.n_tiles, ceil_div(sizes[-1], block)), *tensors, length, *sizes, constants=constants)
