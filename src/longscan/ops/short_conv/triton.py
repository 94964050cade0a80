"""`short_conv` in Triton: a program goes over a split of the time axis step by step; no two programs write the same numbers.

A thread keeps the last K - 1 inputs, the window of the present step without its newest entry. The backward keeps beside each
what of its gradient is known: a step adds to the K inputs of its window, and what is the oldest there is done. It goes K - 1
steps beyond its split, for the gradients of the inputs whose windows reach there.
Invalid steps are left out: steps are counted without them, a table (B, L) says where each lies in the tensors, and another
which step its segment starts with. The steps before the first, -(K - 1) to -1, are the initial state.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from longscan.ops import _triton_launch as tables
from longscan.ops._gpu import ceil_div, launch, on_device, power_of_two
from longscan.ops._triton import extended, silu, silu_slope, where_positive
from longscan.ops.arguments import INVALID, RESET

# steps a program at most, where channels alone would fill the GPU; a program loads up to 2 (K - 1) more
SPANS = {"short_conv": 128, "short_conv_backward": 256}


@triton.jit
def _row(j, order, known):
    """Which row of the tensors, counted from where their pointers stand, the step j is; order points to step 0, or is None."""
    row = j
    if order is not None:
        row = tl.load(order + j, mask=known, other=0)
    return row


@triton.jit
def _rows(source, order, left, channels, live, T: tl.constexpr, RAGGED: tl.constexpr):
    """The rows of T steps, `left` of them where RAGGED."""
    rows = ()
    for j in tl.static_range(T):
        at = source + _row(j, order, j < left) * channels
        rows = extended(rows, tl.load(at, mask=where_positive(live, left - j) if RAGGED else live, other=0.0))
    return rows


@triton.jit
def _starts(starts, left, T: tl.constexpr):
    """With which steps the segments of T steps start."""
    found = ()
    for j in tl.static_range(T):
        if starts is not None:
            found = extended(found, tl.load(starts + j, mask=j < left, other=0))
    return found


@triton.jit
def _window(u, initial, order, step, channels, live, K: tl.constexpr):
    """The K - 1 inputs before a step, oldest first; the pointers stand at step 0."""
    rows = ()
    for k in tl.static_range(K - 1):
        place = tl.cast(step - (K - 1) + k, tl.int64)
        row = tl.load(u + _row(place, order, place >= 0) * channels, mask=where_positive(live, place + 1), other=0.0)
        rows = extended(rows, row + tl.load(initial + (K - 1) + place, mask=where_positive(live, -place), other=0.0))
    return rows


@triton.jit
def _parameters(weight, bias, group, d, channels, K: tl.constexpr):
    """The columns of the weight, and the bias or 0."""
    columns, shift = (), tl.zeros(d.shape, weight.dtype.element_ty)
    for k in tl.static_range(K):
        columns = extended(columns, tl.load(weight + (group * channels + d) * K + k, mask=d < channels, other=0.0))
    if bias is not None:
        shift = tl.load(bias + group * channels + d, mask=d < channels, other=0.0)
    return columns, shift


@triton.jit
def _counted(x, step, k: tl.constexpr, start, K: tl.constexpr):
    """x, of entry k of the window of a step, where the entry belongs to the segment from `start` on; else 0."""
    if start is not None and k < K - 1:
        x = tl.where(step - (K - 1) + k >= start, x, 0.0)
    return x


@triton.jit
def _convolve(window, columns, shift, step, start, K: tl.constexpr):
    """The sum over a window of all K entries."""
    total = shift
    for k in tl.static_range(K):
        total += _counted(columns[k] * window[k], step, k, start, K)
    return total


@triton.jit
def _added(totals, value, others, step, start, K: tl.constexpr):
    """totals and value times others, for each entry of a window."""
    found = ()
    for k in tl.static_range(K):
        found = extended(found, totals[k] + _counted(value * others[k], step, k, start, K))
    return found


@triton.jit
def _extent(counts, b, split, span, length, T: tl.constexpr):
    """The first step of a split, the one after its last, and how many steps the row has."""
    count = length
    if counts is not None:
        count = tl.load(counts + b).to(tl.int32)
    first = split * span * T
    return first, tl.maximum(tl.minimum(first + span * T, count), first), count


@triton.jit
def _last_start(starts, count, K: tl.constexpr):
    """With which step the segment of the last of `count` steps starts, or None."""
    start = None
    if starts is not None:
        start = tl.load(starts + count - 1, mask=count > 0, other=1 - K)
    return start


@triton.jit
def _forward_tiles(
    window, u, y, order, starts, columns, shift, step, tiles, channels, live, SILU: tl.constexpr, K: tl.constexpr,
    T: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The window after as many tiles of T steps from `step` on, where the pointers stand."""
    for i in tl.range(0, tiles, num_stages=STAGES):
        rows, begun = _rows(u, order, T, channels, live, T, False), _starts(starts, T, T)
        for j in tl.static_range(T):
            window = extended(window, rows[j])
            value = _convolve(window, columns, shift, step + i * T + j, None if starts is None else begun[j], K)
            if SILU:
                value = silu(value)
            tl.store(y + _row(j, order, True) * channels, value, mask=live)
            window = window[1:]
        if order is None:
            u += T * channels
            y += T * channels
        else:
            order += T
            starts += T
    return window


@triton.jit(do_not_specialize=["length", "blocks", "span", "rows"])
def convolve(
    u, weight, bias, initial, order, starts, counts, y, final, length, channels, blocks, span, rows, SILU: tl.constexpr,
    K: tl.constexpr, T: tl.constexpr, BD: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """y of one split of one batch row, and the final state.

    order, starts: (B, L), where each valid step lies and with which its segment starts; counts: (B,), how many there are; None
    where every step is valid.
    """
    b, split = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(1)
    d = (tl.program_id(0) % blocks) * BD + tl.arange(0, BD)
    live = d < channels
    first, stop, count = _extent(counts, b, split, span, length, T)
    columns, shift = _parameters(weight, bias, b // rows, d, channels, K)
    u += b * length * channels + d
    y += b * length * channels + d
    initial += (b * channels + d) * (K - 1)
    if order is not None:
        order += b * length
        starts += b * length
    window = _window(u, initial, order, first, channels, live, K)
    start = _last_start(starts, count, K)
    if split == tl.num_programs(1) - 1:
        last = _window(u, initial, order, count, channels, live, K)
        for k in tl.static_range(K - 1):
            state = _counted(last[k], count, k, start, K)
            tl.store(final + (b * channels + d) * (K - 1) + k, state, mask=live)
    if order is None:
        u += first.to(tl.int64) * channels
        y += first.to(tl.int64) * channels
    else:
        order += first
        starts += first
    steps = stop - first
    window = _forward_tiles(window, u, y, order, starts, columns, shift, first, steps // T, channels, live, SILU, K, T, STAGES)
    done = steps - steps % T
    if order is None:
        u += done * channels
        y += done * channels
    else:
        order += done
        starts += done
    _forward_tiles(window, u, y, order, starts, columns, shift, first + done, steps % T, channels, live, SILU, K, 1, 8)


@triton.jit
def _backward_tile(
    window, parts, sums, grad_y, grad_final, u, du, d_initial, order, starts, columns, shift, step, first, count, last_start,
    channels, live, SILU: tl.constexpr, K: tl.constexpr, T: tl.constexpr, BEYOND: tl.constexpr, INITIAL: tl.constexpr,
):  # fmt: skip
    """The window after T steps from `step` on, and the parts of the gradients of its entries; sums: of the weight and the bias.

    What is done are gradients of inputs from `first` on, or of the initial state where INITIAL. BEYOND the split steps do not
    count in sums, and there are none from `count` on.
    """
    left = count - step if BEYOND else T
    rows, slopes = _rows(u, order, left, channels, live, T, BEYOND), _rows(grad_y, order, left, channels, live, T, BEYOND)
    begun = _starts(starts, left, T)
    for j in tl.static_range(T):
        now = step + j
        start = None if starts is None else begun[j]
        window = extended(window, rows[j])
        slope = slopes[j]
        if SILU:
            slope *= silu_slope(_convolve(window, columns, shift, now, start, K))
        if BEYOND:
            slope = tl.where(now < count, slope, 0.0)
        else:
            sums = extended(_added(sums, slope, window, now, start, K), sums[K] + slope)
        parts = _added(extended(parts, slope * 0.0), slope, columns, now, start, K)
        place, done = now - (K - 1), parts[0]
        if BEYOND:
            entry = place - count + (K - 1)
            kept = tl.minimum(entry + 1, count - place)
            if last_start is not None:
                kept = tl.minimum(kept, place - last_start + 1)
            done += tl.load(grad_final + entry, mask=where_positive(live, kept), other=0.0)
        if INITIAL:
            tl.store(d_initial + (K - 1) + place, done, mask=live)
        else:
            to = du + _row(j - (K - 1), order, place >= first) * channels
            tl.store(to, done, mask=where_positive(live, place - first + 1))
        window, parts = window[1:], parts[1:]
    return window, parts, sums


@triton.jit
def _backward_tiles(
    window, parts, sums, grad_y, grad_final, u, du, d_initial, order, starts, columns, shift, step, tiles, first, count,
    last_start, channels, live, SILU: tl.constexpr, K: tl.constexpr, T: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """As many tiles of the split."""
    for i in tl.range(0, tiles, num_stages=STAGES):
        window, parts, sums = _backward_tile(
            window, parts, sums, grad_y, grad_final, u, du, d_initial, order, starts, columns, shift, step + i * T, first, count,
            last_start, channels, live, SILU, K, T, False, False,
        )  # fmt: skip
        if order is None:
            u += T * channels
            du += T * channels
            grad_y += T * channels
        else:
            order += T
            starts += T
    return window, parts, sums


@triton.jit(do_not_specialize=["length", "blocks", "span", "rows"])
def convolve_backward(
    grad_y, grad_final, u, weight, bias, initial, order, starts, counts, du, d_initial, sums, length, channels, blocks, span,
    rows, SILU: tl.constexpr, K: tl.constexpr, T: tl.constexpr, BD: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """du of one split of one batch row, its sums (B, splits, K + 1, D) for weight and bias, and d_initial."""
    b, split = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(1)
    d = (tl.program_id(0) % blocks) * BD + tl.arange(0, BD)
    live = d < channels
    first, stop, count = _extent(counts, b, split, span, length, T)
    columns, shift = _parameters(weight, bias, b // rows, d, channels, K)
    u += b * length * channels + d
    du += b * length * channels + d
    grad_y += b * length * channels + d
    initial += (b * channels + d) * (K - 1)
    d_initial += (b * channels + d) * (K - 1)
    grad_final += (b * channels + d) * (K - 1)
    if order is not None:
        order += b * length
        starts += b * length
    last_start = _last_start(starts, count, K)
    window = _window(u, initial, order, first, channels, live, K)
    parts, totals = (), (shift * 0.0,)
    for _ in tl.static_range(K - 1):
        parts = extended(parts, shift * 0.0)
    for _ in tl.static_range(K):
        totals = extended(totals, shift * 0.0)
    if order is None:
        u += first.to(tl.int64) * channels
        du += first.to(tl.int64) * channels
        grad_y += first.to(tl.int64) * channels
    else:
        order += first
        starts += first
    if split == 0:
        _backward_tile(
            window, parts, totals, grad_y, grad_final, u, du, d_initial, order, starts, columns, shift, first, first, count,
            last_start, channels, live, SILU, K, K - 1, True, True,
        )  # fmt: skip
    steps = stop - first
    window, parts, totals = _backward_tiles(
        window, parts, totals, grad_y, grad_final, u, du, d_initial, order, starts, columns, shift, first, steps // T, first,
        count, last_start, channels, live, SILU, K, T, STAGES,
    )  # fmt: skip
    done = steps - steps % T
    if order is None:
        u += done * channels
        du += done * channels
        grad_y += done * channels
    else:
        order += done
        starts += done
    window, parts, totals = _backward_tiles(
        window, parts, totals, grad_y, grad_final, u, du, d_initial, order, starts, columns, shift, first + done, steps % T,
        first, count, last_start, channels, live, SILU, K, 1, 8,
    )  # fmt: skip
    left = steps % T
    if order is None:
        u += left * channels
        du += left * channels
        grad_y += left * channels
    else:
        order += left
        starts += left
    _backward_tile(
        window, parts, totals, grad_y, grad_final, u, du, d_initial, order, starts, columns, shift, stop, first, count,
        last_start, channels, live, SILU, K, K - 1, True, False,
    )  # fmt: skip
    to = sums + (b * tl.num_programs(1) + split) * (K + 1) * channels + d
    for k in tl.static_range(K + 1):
        tl.store(to + k * channels, totals[k], mask=live)


# ---------------------------------------------------------------------------------------------- launches


class _Steps(NamedTuple):
    """Where the valid steps lie, with which the segment of each starts, how many there are; all None where there are no marks."""

    order: Tensor | None = None
    starts: Tensor | None = None
    counts: Tensor | None = None


def _steps(flags: Tensor | None, taps: int) -> _Steps:
    if flags is None:
        return _Steps()
    invalid = flags == INVALID
    order = invalid.to(torch.uint8).argsort(dim=1, stable=True)
    index = torch.arange(flags.shape[1], device=flags.device).expand_as(flags)
    starts = torch.where(flags.gather(1, order) == RESET, index, 1 - taps).cummax(1).values
    return _Steps(order, starts, (~invalid).sum(1))


class _Problem:
    """Sizes of a call and its grid. rows: batch rows a group, groups having weights of their own."""

    def __init__(self, op: str, u: Tensor, weight: Tensor, silu: bool) -> None:
        self.batch, self.length, self.channels = u.shape
        self.taps = weight.shape[-1]
        self.groups = len(weight) if weight.ndim == 3 else 1
        table = tables.TABLE[op]
        BD = min(table.lanes, power_of_two(self.channels))
        blocks = ceil_div(self.channels, BD)
        most = max(1, SPANS[op] // table.steps, ceil_div(self.length, 65535 * table.steps))  # a grid is that long at most
        self.split = tables.plan(op, self.length, self.batch * blocks, u.device, most)
        self.grid = self.batch * blocks, self.split.splits
        self.sizes = self.length, self.channels, blocks, self.split.span, self.batch // self.groups
        self.options: dict[str, Any] = {
            "SILU": silu, "K": self.taps, "T": table.steps, "BD": BD, "STAGES": table.stages, "num_warps":
            max(1, table.warps * BD // table.lanes),
        }  # fmt: skip


def forward(
    u: Tensor, weight: Tensor, bias: Tensor | None, initial_state: Tensor, flags: Tensor | None, silu: bool
) -> tuple[Tensor, Tensor]:
    """y (B, L, D) and the final state (B, D, K-1), of contiguous tensors of one real dtype.

    weight (D, K) and bias may have one more leading axis, of groups: as many runs of batch rows then have weights of their own.
    """
    p = _Problem("short_conv", u, weight, silu)
    y, final = torch.empty_like(u) if flags is None else torch.zeros_like(u), torch.empty_like(initial_state)
    with on_device(u):
        steps = _steps(flags, p.taps)
        launch(convolve, p.grid, u, weight, bias, initial_state, *steps, y, final, *p.sizes, constants=p.options)
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
    """Gradients of u, weight, bias (empty where it is None) and initial_state."""
    p = _Problem("short_conv_backward", u, weight, silu)
    du, d_initial = torch.empty_like(u) if flags is None else torch.zeros_like(u), torch.empty_like(initial_state)
    sums = u.new_empty((p.batch, p.split.splits, p.taps + 1, p.channels))
    with on_device(u):
        launch(
            convolve_backward, p.grid, grad_y, grad_final, u, weight, bias, initial_state, *_steps(flags, p.taps), du, d_initial,
            sums, *p.sizes, constants=p.options,
        )  # fmt: skip
    total = sums.view(p.groups, -1, p.taps + 1, p.channels).sum(1)
    d_weight = tables.result(total[:, :-1].mT, weight.shape)
    return du, d_weight, u.new_empty(0) if bias is None else tables.result(total[:, -1], bias.shape), d_initial
