"""Launches of the kernels of `short_conv`."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from longscan.ops._gpu import ceil_div, launch, on_device, power_of_two, programs_to_fill
from longscan.ops._triton_launch import largest, smallest
from longscan.ops._triton_steps import valid_steps
from longscan.ops.short_conv.triton.backward import short_conv_bwd_kernel, sum_parameter_gradients_kernel
from longscan.ops.short_conv.triton.forward import short_conv_fwd_kernel


class Blocks(NamedTuple):
    """Steps of an unrolled iteration, channels and warps of a program, pipeline stages, and the longest chunk in steps."""

    BLOCK_T: int
    BLOCK_D: int
    warps: int
    NUM_STAGES: int
    max_chunk: int


FORWARD, BACKWARD = Blocks(4, 64, 1, 5, 128), Blocks(4, 64, 1, 3, 256)
PROGRAMS_PER_SCHEDULER = 2  # in short calls, so that a warp scheduler has another program while one waits for memory
SUMS = {"ROWS": 64, "BLOCK_D": 32, "num_warps": 4}  # compile-time arguments of the kernel that adds the sums of all chunks


class Launch(NamedTuple):
    """The division of a call among programs, and the last arguments of a kernel. chunks: number of chunks of a row."""

    groups: int
    chunks: int
    grid: tuple[int]
    sizes: tuple[int, int, int, int]
    constants: dict[str, Any]


def plan(u: Tensor, weight: Tensor, silu: bool, blocks: Blocks) -> Launch:
    """Return the launch for u (B, L, D) and weight ([groups,] D, K). Chunks are shorter where they do not fill the device."""
    batch, length, channels = u.shape
    BLOCK_D = min(blocks.BLOCK_D, power_of_two(channels))
    programs = batch * ceil_div(channels, BLOCK_D)
    steps = ceil_div(length * programs, PROGRAMS_PER_SCHEDULER * programs_to_fill(u.device))
    chunk = largest(blocks.BLOCK_T, smallest(blocks.max_chunk, ceil_div(steps, blocks.BLOCK_T) * blocks.BLOCK_T))
    chunks, groups = ceil_div(length, chunk), weight.shape[0] if weight.ndim == 3 else 1
    constants = {
        "SILU": silu, "K": weight.shape[-1], "BLOCK_T": blocks.BLOCK_T, "BLOCK_D": BLOCK_D, "NUM_STAGES": blocks.NUM_STAGES,
        "num_warps": max(1, blocks.warps * BLOCK_D // blocks.BLOCK_D),
    }  # fmt: skip
    return Launch(groups, chunks, (programs * chunks,), (length, channels, chunk, batch // groups), constants)


def tables_of_steps(flags: Tensor | None, taps: int) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return the tables of the valid steps, each None without masks. The first segment includes the initial state."""
    return (None, None, None) if flags is None else valid_steps(flags, 1 - taps)


def forward(
    u: Tensor, weight: Tensor, bias: Tensor | None, initial_state: Tensor, flags: Tensor | None, silu: bool
) -> tuple[Tensor, Tensor]:
    """Return y (B, L, D) and the final state (B, D, K - 1), for contiguous tensors of one real dtype; u and y may be of 16 bits.

    weight (D, K) and bias (D,) may have a leading axis of groups: equal runs of batch rows then belong to different groups.
    """
    y, final = torch.empty_like(u) if flags is None else torch.zeros_like(u), torch.empty_like(initial_state)
    call = plan(u, weight, silu, FORWARD)
    with on_device(u):
        tables = tables_of_steps(flags, weight.shape[-1])
        launch(
            short_conv_fwd_kernel, call.grid, u, weight, bias, initial_state, *tables, y, final, *call.sizes,
            constants=call.constants,
        )  # fmt: skip
    return y, final


def backward(
    grad_y: Tensor,
    grad_final: Tensor,
    u: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    initial_state: Tensor,
    flags: Tensor | None,
    silu: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of u, weight, bias (empty where it is None) and initial_state."""
    batch, _, channels = u.shape
    taps = weight.shape[-1]
    du, d_initial = torch.empty_like(u) if flags is None else torch.zeros_like(u), torch.empty_like(initial_state)
    d_weight, d_bias = torch.empty_like(weight), u.new_empty(0) if bias is None else torch.empty_like(bias)
    call = plan(u, weight, silu, BACKWARD)
    sums = weight.new_empty((batch, call.chunks, taps + 1, channels))
    with on_device(u):
        tables = tables_of_steps(flags, taps)
        launch(
            short_conv_bwd_kernel, call.grid, grad_y, grad_final, u, weight, bias, initial_state, *tables, du, d_initial, sums,
            *call.sizes, constants=call.constants,
        )  # fmt: skip
        launch(
            sum_parameter_gradients_kernel, (ceil_div(channels, SUMS["BLOCK_D"]), taps + 1, call.groups), sums, d_weight,
            None if bias is None else d_bias, batch // call.groups * call.chunks, channels, constants={"K": taps, **SUMS},
        )  # fmt: skip
    return du, d_weight, d_bias, d_initial
