"""Kernels that turn the flags of steps (see `arguments.step_flags`) into tables of steps.

A program goes over one batch row in blocks of steps.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from longscan.ops._gpu import ceil_div, launch, on_device
from longscan.ops._triton import INVALID, RESET

BLOCK_T, NUM_WARPS = 1024, 4
RUN_BLOCK = 64  # steps that a program of `restarts_kernel` loads together


@triton.jit
def maximum(a, b):
    """Return the larger of two integers; an operator for `tl.associative_scan`."""
    return a * (a > b) + b * (a <= b)  # arithmetic alone: Triton's interpreter is slow at scans that call functions


@triton.jit(do_not_specialize=["L"])
def previous_steps_kernel(flags, previous, L, REVERSE: tl.constexpr, BLOCK_T: tl.constexpr):
    """Store for each step the index of the last valid step before it; -1: none, -2: the state restarts, -3: invalid step."""
    i_b = tl.program_id(0).to(tl.int64)
    last = tl.cast(-1, tl.int32)
    for t in range(0, L, BLOCK_T):
        o_t = t + tl.arange(0, BLOCK_T)
        o_row = L - 1 - o_t if REVERSE else o_t
        b_flag = tl.load(flags + i_b * L + o_row, mask=o_t < L, other=INVALID)
        b_before = tl.load(flags + i_b * L + (o_row + 1 if REVERSE else o_row - 1), mask=(o_t < L) & (o_t > 0), other=INVALID)
        b_last = tl.associative_scan(tl.where(b_before != INVALID, o_t - 1, -1), 0, maximum)
        b_last = tl.maximum(b_last, last)
        b_previous = tl.where(b_flag == INVALID, -3, tl.where(b_flag == RESET, -2, b_last))
        tl.store(previous + i_b * L + o_t, b_previous, mask=o_t < L)
        last = tl.max(b_last, 0)


@triton.jit(do_not_specialize=["L"])
def valid_steps_kernel(flags, order, starts, counts, L, FIRST: tl.constexpr, BLOCK_T: tl.constexpr):
    """Store for each valid step, in order, its row and the index, among the valid steps, of the first step of its segment.

    FIRST is stored as the start of the segment before the first restart. counts: how many steps are valid.
    """
    i_b = tl.program_id(0).to(tl.int64)
    count = tl.cast(0, tl.int32)
    start = tl.cast(FIRST, tl.int32)
    for t in range(0, L, BLOCK_T):
        o_t = t + tl.arange(0, BLOCK_T)
        b_flag = tl.load(flags + i_b * L + o_t, mask=o_t < L, other=INVALID)
        b_valid = (b_flag != INVALID).to(tl.int32)
        o_step = count + tl.cumsum(b_valid, 0) - b_valid
        b_start = tl.maximum(tl.associative_scan(tl.where(b_flag == RESET, o_step, FIRST), 0, maximum), start)
        tl.store(order + i_b * L + o_step, o_t, mask=b_flag != INVALID)
        tl.store(starts + i_b * L + o_step, b_start, mask=b_flag != INVALID)
        count += tl.sum(b_valid, 0)
        start = tl.max(b_start, 0)
    tl.store(counts + i_b, count)


@triton.jit(do_not_specialize=["L", "runs", "steps"])
def restarts_kernel(flags, restarts, L, runs, steps, BLOCK_T: tl.constexpr):
    """Store for each run of `steps` steps, (B, runs), 1 if a sequence starts in it, otherwise 0."""
    i = tl.program_id(0)
    i_b, i_r = (i // runs).to(tl.int64), i % runs
    found = tl.zeros((BLOCK_T,), tl.int32)
    for t in range(0, steps, BLOCK_T):
        o_t = t + tl.arange(0, BLOCK_T)
        o_step = i_r * steps + o_t
        b_flag = tl.load(flags + i_b * L + o_step, mask=(o_t < steps) & (o_step < L), other=INVALID)
        found = tl.maximum(found, (b_flag == RESET).to(tl.int32))
    tl.store(restarts + i, tl.max(found, 0).to(tl.uint8))


def restarts(flags: Tensor | None, steps: int) -> Tensor | None:
    """Return whether a sequence starts in each run of `steps` steps, (B, runs) uint8; None if `flags` (B, L) is None."""
    if flags is None:
        return None
    batch, length = flags.shape
    runs = ceil_div(length, steps)
    found = flags.new_empty((batch, runs))
    with on_device(flags):
        launch(
            restarts_kernel, (batch * runs,), flags, found, length, runs, steps,
            constants={"BLOCK_T": RUN_BLOCK, "num_warps": 1},
        )  # fmt: skip
    return found


def previous_steps(flags: Tensor, reverse: bool = False) -> Tensor:
    """Return the step whose state precedes each step of the scan, (B, L) int32, for flags (B, L) in the order of time.

    -1 stands for the initial state, -2 for none, as the state restarts, and -3 for an invalid step.
    """
    previous = torch.empty_like(flags, dtype=torch.int32)
    with on_device(flags):
        launch(
            previous_steps_kernel, (flags.shape[0],), flags, previous, flags.shape[1],
            constants={"REVERSE": reverse, "BLOCK_T": BLOCK_T, "num_warps": NUM_WARPS},
        )  # fmt: skip
    return previous


def valid_steps(flags: Tensor, first: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the tables of `valid_steps_kernel`: order and starts, (B, L) int32, and counts, (B,) int32.

    Only the first counts[b] entries of a row are initialised.
    """
    order, starts = torch.empty_like(flags, dtype=torch.int32), torch.empty_like(flags, dtype=torch.int32)
    counts = order.new_empty(flags.shape[0])
    with on_device(flags):
        launch(
            valid_steps_kernel, (flags.shape[0],), flags, order, starts, counts, flags.shape[1],
            constants={"FIRST": first, "BLOCK_T": BLOCK_T, "num_warps": NUM_WARPS},
        )  # fmt: skip
    return order, starts, counts
