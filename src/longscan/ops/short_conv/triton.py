"""Triton kernels of `short_conv`: a program convolves one split of the time axis step by step.

No two programs write the same element.

A thread stores the last K - 1 inputs, the window of a step without its newest entry. The backward pass also stores the gradient
of each entry as far as it is known: a step adds to the gradients of the K inputs of its window, and that of the oldest input is
then complete. It reads K - 1 steps beyond its split, for the gradients of the inputs whose windows reach there.

Invalid steps are left out: valid steps are numbered without them. The table `order` (B, L) has the position of each valid step in
the tensors, and `starts` (B, L) the number of the first step of its sequence. Steps -(K - 1) to -1 are the initial state.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from longscan.ops import _triton_launch as tables
from longscan.ops._gpu import ceil_div, launch, on_device, power_of_two
from longscan.ops._triton import extended, silu, silu_derivative, where_positive
from longscan.ops.arguments import INVALID, RESET

# the largest numbers of steps of a program, used if the channels alone fill the GPU; a program loads up to 2 (K - 1) more
MAX_SPLIT_STEPS = {"short_conv": 128, "short_conv_backward": 256}


@triton.jit
def _row_index(j, order, is_known):
    """Return the row of step j in the tensors, relative to their pointers; `order` points to the entry of step 0, or is None."""
    row = j
    if order is not None:
        row = tl.load(order + j, mask=is_known, other=0)
    return row


@triton.jit
def _load_rows(source, order, remaining, channels, mask, T: tl.constexpr, RAGGED: tl.constexpr):
    """Load the rows of T steps, only the first `remaining` of them if RAGGED."""
    rows = ()
    for j in tl.static_range(T):
        pointer = source + _row_index(j, order, j < remaining) * channels
        rows = extended(rows, tl.load(pointer, mask=where_positive(mask, remaining - j) if RAGGED else mask, other=0.0))
    return rows


@triton.jit
def _load_starts(starts, remaining, T: tl.constexpr):
    """Load the numbers of the first steps of the sequences of T steps; empty if `starts` is None."""
    values = ()
    for j in tl.static_range(T):
        if starts is not None:
            values = extended(values, tl.load(starts + j, mask=j < remaining, other=0))
    return values


@triton.jit
def _load_window(u, initial, order, step, channels, mask, K: tl.constexpr):
    """Load the K - 1 inputs before a step, oldest first; the pointers are those of step 0."""
    rows = ()
    for k in tl.static_range(K - 1):
        position = tl.cast(step - (K - 1) + k, tl.int64)
        pointer = u + _row_index(position, order, position >= 0) * channels
        row = tl.load(pointer, mask=where_positive(mask, position + 1), other=0.0)
        rows = extended(rows, row + tl.load(initial + (K - 1) + position, mask=where_positive(mask, -position), other=0.0))
    return rows


@triton.jit
def _load_parameters(weight, bias, group, d, channels, K: tl.constexpr):
    """Load the K taps of the weight, and the bias or 0."""
    taps, bias_d = (), tl.zeros(d.shape, weight.dtype.element_ty)
    for k in tl.static_range(K):
        taps = extended(taps, tl.load(weight + (group * channels + d) * K + k, mask=d < channels, other=0.0))
    if bias is not None:
        bias_d = tl.load(bias + group * channels + d, mask=d < channels, other=0.0)
    return taps, bias_d


@triton.jit
def _mask_entry(x, step, k: tl.constexpr, start, K: tl.constexpr):
    """Return x, a value of entry k of a step's window, if the entry is in the sequence that begins at `start`, otherwise 0."""
    if start is not None and k < K - 1:
        x = tl.where(step - (K - 1) + k >= start, x, 0.0)
    return x


@triton.jit
def _window_sum(window, taps, bias_d, step, start, K: tl.constexpr):
    """Return the convolution at a step from its window of K entries."""
    total = bias_d
    for k in tl.static_range(K):
        total += _mask_entry(taps[k] * window[k], step, k, start, K)
    return total


@triton.jit
def _add_products(totals, value, others, step, start, K: tl.constexpr):
    """Return totals[k] + value * others[k] for each entry k of a window."""
    values = ()
    for k in tl.static_range(K):
        values = extended(values, totals[k] + _mask_entry(value * others[k], step, k, start, K))
    return values


@triton.jit
def _split_range(counts, b, split, span, length, T: tl.constexpr):
    """Return the first step of a split, the step after its last one, and the number of valid steps of the row."""
    n_valid = length
    if counts is not None:
        n_valid = tl.load(counts + b).to(tl.int32)
    first = split * span * T
    return first, tl.maximum(tl.minimum(first + span * T, n_valid), first), n_valid


@triton.jit
def _load_last_start(starts, n_valid, K: tl.constexpr):
    """Load the first step of the sequence of the last of `n_valid` steps; None if `starts` is None."""
    start = None
    if starts is not None:
        start = tl.load(starts + n_valid - 1, mask=n_valid > 0, other=1 - K)
    return start


@triton.jit
def _convolve_tiles(
    window, u, y, order, starts, taps, bias_d, step, tiles, channels, mask, SILU: tl.constexpr, K: tl.constexpr,
    T: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Convolve `tiles` tiles of T steps from `step` on, to which the pointers belong; return the window after them."""
    for i in tl.range(0, tiles, num_stages=STAGES):
        rows, start_steps = _load_rows(u, order, T, channels, mask, T, False), _load_starts(starts, T, T)
        for j in tl.static_range(T):
            window = extended(window, rows[j])
            value = _window_sum(window, taps, bias_d, step + i * T + j, None if starts is None else start_steps[j], K)
            if SILU:
                value = silu(value)
            tl.store(y + _row_index(j, order, True) * channels, value, mask=mask)
            window = window[1:]
        if order is None:
            u += T * channels
            y += T * channels
        else:
            order += T
            starts += T
    return window


@triton.jit(do_not_specialize=["length", "blocks", "span", "rows"])
def short_conv_kernel(
    u, weight, bias, initial, order, starts, counts, y, final, length, channels, blocks, span, rows, SILU: tl.constexpr,
    K: tl.constexpr, T: tl.constexpr, BD: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Store y of one split of one batch row, and the final state.

    order, starts: (B, L), see the top of the file; counts: (B,), the numbers of valid steps. All are None if every step is valid.
    """
    b, split = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(1)
    d = (tl.program_id(0) % blocks) * BD + tl.arange(0, BD)
    mask = d < channels
    first, end, n_valid = _split_range(counts, b, split, span, length, T)
    taps, bias_d = _load_parameters(weight, bias, b // rows, d, channels, K)
    u += b * length * channels + d
    y += b * length * channels + d
    initial += (b * channels + d) * (K - 1)
    if order is not None:
        order += b * length
        starts += b * length
    window = _load_window(u, initial, order, first, channels, mask, K)
    start = _load_last_start(starts, n_valid, K)
    if split == tl.num_programs(1) - 1:
        last = _load_window(u, initial, order, n_valid, channels, mask, K)
        for k in tl.static_range(K - 1):
            state = _mask_entry(last[k], n_valid, k, start, K)
            tl.store(final + (b * channels + d) * (K - 1) + k, state, mask=mask)
    if order is None:
        u += first.to(tl.int64) * channels
        y += first.to(tl.int64) * channels
    else:
        order += first
        starts += first
    steps = end - first
    window = _convolve_tiles(window, u, y, order, starts, taps, bias_d, first, steps // T, channels, mask, SILU, K, T, STAGES)
    n_whole = steps - steps % T
    if order is None:
        u += n_whole * channels
        y += n_whole * channels
    else:
        order += n_whole
        starts += n_whole
    _convolve_tiles(window, u, y, order, starts, taps, bias_d, first + n_whole, steps % T, channels, mask, SILU, K, 1, 8)


@triton.jit
def _backward_tile(
    window, d_window, sums, grad_y, grad_final, u, du, d_initial, order, starts, taps, bias_d, step, first, n_valid, last_start,
    channels, mask, SILU: tl.constexpr, K: tl.constexpr, T: tl.constexpr, AFTER_SPLIT: tl.constexpr, INITIAL: tl.constexpr,
):  # fmt: skip
    """Differentiate T steps from `step` on; return the window after them, the gradients of its entries, and the sums.

    The sums are the gradients of weight and bias. Complete gradients are stored: those of inputs from `first` on, or of the
    initial state if INITIAL. With AFTER_SPLIT the steps are beyond the split: they are not added to the sums, and steps from
    `n_valid` on have no gradient.
    """
    remaining = n_valid - step if AFTER_SPLIT else T
    rows = _load_rows(u, order, remaining, channels, mask, T, AFTER_SPLIT)
    dy_rows = _load_rows(grad_y, order, remaining, channels, mask, T, AFTER_SPLIT)
    start_steps = _load_starts(starts, remaining, T)
    for j in tl.static_range(T):
        current = step + j
        start = None if starts is None else start_steps[j]
        window = extended(window, rows[j])
        dy = dy_rows[j]
        if SILU:
            dy *= silu_derivative(_window_sum(window, taps, bias_d, current, start, K))
        if AFTER_SPLIT:
            dy = tl.where(current < n_valid, dy, 0.0)
        else:
            sums = extended(_add_products(sums, dy, window, current, start, K), sums[K] + dy)
        d_window = _add_products(extended(d_window, dy * 0.0), dy, taps, current, start, K)
        position, d_oldest = current - (K - 1), d_window[0]
        if AFTER_SPLIT:
            entry = position - n_valid + (K - 1)
            in_state = tl.minimum(entry + 1, n_valid - position)
            if last_start is not None:
                in_state = tl.minimum(in_state, position - last_start + 1)
            d_oldest += tl.load(grad_final + entry, mask=where_positive(mask, in_state), other=0.0)
        if INITIAL:
            tl.store(d_initial + (K - 1) + position, d_oldest, mask=mask)
        else:
            pointer = du + _row_index(j - (K - 1), order, position >= first) * channels
            tl.store(pointer, d_oldest, mask=where_positive(mask, position - first + 1))
        window, d_window = window[1:], d_window[1:]
    return window, d_window, sums


@triton.jit
def _backward_tiles(
    window, d_window, sums, grad_y, grad_final, u, du, d_initial, order, starts, taps, bias_d, step, tiles, first, n_valid,
    last_start, channels, mask, SILU: tl.constexpr, K: tl.constexpr, T: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Differentiate `tiles` tiles of the split; see `_backward_tile`."""
    for i in tl.range(0, tiles, num_stages=STAGES):
        window, d_window, sums = _backward_tile(
            window, d_window, sums, grad_y, grad_final, u, du, d_initial, order, starts, taps, bias_d, step + i * T, first,
            n_valid, last_start, channels, mask, SILU, K, T, False, False,
        )  # fmt: skip
        if order is None:
            u += T * channels
            du += T * channels
            grad_y += T * channels
        else:
            order += T
            starts += T
    return window, d_window, sums


@triton.jit(do_not_specialize=["length", "blocks", "span", "rows"])
def short_conv_bwd_kernel(
    grad_y, grad_final, u, weight, bias, initial, order, starts, counts, du, d_initial, sums, length, channels, blocks, span,
    rows, SILU: tl.constexpr, K: tl.constexpr, T: tl.constexpr, BD: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Store du of one split of one batch row, its share of the gradients of weight and bias, and d_initial.

    sums: (B, splits, K + 1, D), K rows for the weight and one for the bias.
    """
    b, split = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(1)
    d = (tl.program_id(0) % blocks) * BD + tl.arange(0, BD)
    mask = d < channels
    first, end, n_valid = _split_range(counts, b, split, span, length, T)
    taps, bias_d = _load_parameters(weight, bias, b // rows, d, channels, K)
    u += b * length * channels + d
    du += b * length * channels + d
    grad_y += b * length * channels + d
    initial += (b * channels + d) * (K - 1)
    d_initial += (b * channels + d) * (K - 1)
    grad_final += (b * channels + d) * (K - 1)
    if order is not None:
        order += b * length
        starts += b * length
    last_start = _load_last_start(starts, n_valid, K)
    window = _load_window(u, initial, order, first, channels, mask, K)
    d_window, totals = (), (bias_d * 0.0,)
    for _ in tl.static_range(K - 1):
        d_window = extended(d_window, bias_d * 0.0)
    for _ in tl.static_range(K):
        totals = extended(totals, bias_d * 0.0)
    if order is None:
        u += first.to(tl.int64) * channels
        du += first.to(tl.int64) * channels
        grad_y += first.to(tl.int64) * channels
    else:
        order += first
        starts += first
    if split == 0:
        _backward_tile(
            window, d_window, totals, grad_y, grad_final, u, du, d_initial, order, starts, taps, bias_d, first, first, n_valid,
            last_start, channels, mask, SILU, K, K - 1, True, True,
        )  # fmt: skip
    steps = end - first
    window, d_window, totals = _backward_tiles(
        window, d_window, totals, grad_y, grad_final, u, du, d_initial, order, starts, taps, bias_d, first, steps // T, first,
        n_valid, last_start, channels, mask, SILU, K, T, STAGES,
    )  # fmt: skip
    n_whole = steps - steps % T
    if order is None:
        u += n_whole * channels
        du += n_whole * channels
        grad_y += n_whole * channels
    else:
        order += n_whole
        starts += n_whole
    window, d_window, totals = _backward_tiles(
        window, d_window, totals, grad_y, grad_final, u, du, d_initial, order, starts, taps, bias_d, first + n_whole, steps % T,
        first, n_valid, last_start, channels, mask, SILU, K, 1, 8,
    )  # fmt: skip
    remaining = steps % T
    if order is None:
        u += remaining * channels
        du += remaining * channels
        grad_y += remaining * channels
    else:
        order += remaining
        starts += remaining
    _backward_tile(
        window, d_window, totals, grad_y, grad_final, u, du, d_initial, order, starts, taps, bias_d, end, first, n_valid,
        last_start, channels, mask, SILU, K, K - 1, True, False,
    )  # fmt: skip
    pointer = sums + (b * tl.num_programs(1) + split) * (K + 1) * channels + d
    for k in tl.static_range(K + 1):
        tl.store(pointer + k * channels, totals[k], mask=mask)


# ---------------------------------------------------------------------------------------------- launches


class _StepTable(NamedTuple):
    """Tables of the valid steps, see the top of the file, and their numbers (B,); all None if there are no flags."""

    order: Tensor | None = None
    starts: Tensor | None = None
    counts: Tensor | None = None


def _step_table(flags: Tensor | None, taps: int) -> _StepTable:
    if flags is None:
        return _StepTable()
    invalid = flags == INVALID
    order = invalid.to(torch.uint8).argsort(dim=1, stable=True)
    index = torch.arange(flags.shape[1], device=flags.device).expand_as(flags)
    starts = torch.where(flags.gather(1, order) == RESET, index, 1 - taps).cummax(1).values
    return _StepTable(order, starts, (~invalid).sum(1))


class _Problem:
    """Sizes of a call and its grid; each of `groups` equal runs of batch rows has separate weights."""

    def __init__(self, op: str, u: Tensor, weight: Tensor, silu: bool) -> None:
        self.batch, self.length, self.channels = u.shape
        self.taps = weight.shape[-1]
        self.groups = len(weight) if weight.ndim == 3 else 1
        table = tables.TABLE[op]
        BD = min(table.lanes, power_of_two(self.channels))
        blocks = ceil_div(self.channels, BD)
        # a grid has at most 65535 splits
        max_tiles = max(1, MAX_SPLIT_STEPS[op] // table.steps, ceil_div(self.length, 65535 * table.steps))
        self.split = tables.plan(op, self.length, self.batch * blocks, u.device, max_tiles)
        self.grid = self.batch * blocks, self.split.splits
        self.sizes = self.length, self.channels, blocks, self.split.span, self.batch // self.groups
        self.options: dict[str, Any] = {
            "SILU": silu, "K": self.taps, "T": table.steps, "BD": BD, "STAGES": table.stages, "num_warps":
            max(1, table.warps * BD // table.lanes),
        }  # fmt: skip


def forward(
    u: Tensor, weight: Tensor, bias: Tensor | None, initial_state: Tensor, flags: Tensor | None, silu: bool
) -> tuple[Tensor, Tensor]:
    """Return y (B, L, D) and the final state (B, D, K-1), from contiguous tensors of one real dtype.

    weight (D, K) and bias may have a leading axis of groups: equal runs of batch rows then belong to different groups.
    """
    p = _Problem("short_conv", u, weight, silu)
    y, final = torch.empty_like(u) if flags is None else torch.zeros_like(u), torch.empty_like(initial_state)
    with on_device(u):
        steps = _step_table(flags, p.taps)
        launch(short_conv_kernel, p.grid, u, weight, bias, initial_state, *steps, y, final, *p.sizes, constants=p.options)
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
    """Return the gradients of u, weight, bias (empty if it is None) and initial_state."""
    p = _Problem("short_conv_backward", u, weight, silu)
    du, d_initial = torch.empty_like(u) if flags is None else torch.zeros_like(u), torch.empty_like(initial_state)
    sums = u.new_empty((p.batch, p.split.splits, p.taps + 1, p.channels))
    with on_device(u):
        launch(
            short_conv_bwd_kernel, p.grid, grad_y, grad_final, u, weight, bias, initial_state, *_step_table(flags, p.taps), du,
            d_initial, sums, *p.sizes, constants=p.options,
        )  # fmt: skip
    total = sums.view(p.groups, -1, p.taps + 1, p.channels).sum(1)
    d_weight = tables.result(total[:, :-1].mT, weight.shape)
    return du, d_weight, u.new_empty(0) if bias is None else tables.result(total[:, -1], bias.shape), d_initial
