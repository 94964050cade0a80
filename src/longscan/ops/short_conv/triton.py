"""`short_conv` in Triton: a program owns a tile of steps and channels; no two programs write the same numbers.

What a step sees is a window of K inputs, found by going back from it K - 1 times: to the step before where there are no marks,
else to the last valid step of the segment, from a table (B, L). Before the first step come the places -1, -2, ... of the initial
state, newest first, and from -K on there are zeros; a step where the state restarts is preceded by -K. The backward finds the
steps whose windows hold an input by going forward in the same way.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from longscan.ops import _triton_launch as launch
from longscan.ops._arguments import INVALID, RESET
from longscan.ops._triton import silu, silu_slope


@triton.jit
def _step_back(place, previous, row):
    """The place before each of `place`; previous: (B, L) or None."""
    before = place - 1
    if previous is not None:
        before = tl.where(place >= 0, tl.load(previous + row + place, mask=place >= 0, other=0), before)
    return before


@triton.jit
def _inputs_at(u, initial, place, d, row, b, channels, known, K: tl.constexpr):
    """The inputs at `place`, steps or entries of the initial state: (T, BD). row: the first step of batch row b."""
    steps, entries = known & (place >= 0)[:, None], known & ((place < 0) & (place > -K))[:, None]
    found = tl.load(u + row * channels + place[:, None] * channels + d[None, :], mask=steps, other=0.0)
    source = initial + (b * channels + d[None, :]) * (K - 1) + (K - 1 + place)[:, None]
    return found + tl.load(source, mask=entries, other=0.0)


@triton.jit
def _convolve(u, weight, bias, initial, previous, times, valid, d, row, b, channels, K: tl.constexpr):
    """bias + sum_k weight_k window_k: (T, BD). weight and bias point to the group's."""
    known = valid[:, None] & (d < channels)[None, :]
    place = tl.where(valid, times, -K)
    total = tl.load(u + row * channels + times[:, None] * channels + d[None, :], mask=known, other=0.0)
    total *= tl.load(weight + d * K + K - 1, mask=d < channels, other=0.0)[None, :]
    for i in tl.static_range(1, K):
        place = _step_back(place, previous, row)
        w = tl.load(weight + d * K + (K - 1 - i), mask=d < channels, other=0.0)
        total += w[None, :] * _inputs_at(u, initial, place, d, row, b, channels, known, K)
    if bias is not None:
        total += tl.load(bias + d, mask=d < channels, other=0.0)[None, :]
    return total


@triton.jit(do_not_specialize=["length", "tiles", "rows"])
def convolve(
    u, weight, bias, initial, flags, previous, y, length, channels, tiles, rows, SILU: tl.constexpr, K: tl.constexpr,
    T: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """y of one tile, 0 at invalid steps."""
    b, tile = (tl.program_id(0) // tiles).to(tl.int64), tl.program_id(0) % tiles
    d = tl.program_id(1) * BD + tl.arange(0, BD)
    times, row, group = (tile * T + tl.arange(0, T)).to(tl.int64), b * length, b // rows
    inside = times < length
    valid = inside
    if flags is not None:
        valid = inside & (tl.load(flags + row + times, mask=inside, other=1) != 1)
    if bias is not None:
        bias += group * channels
    value = _convolve(u, weight + group * channels * K, bias, initial, previous, times, valid, d, row, b, channels, K)
    if SILU:
        value = silu(value)
    to = y + row * channels + times[:, None] * channels + d[None, :]
    tl.store(to, tl.where(valid[:, None], value, 0.0), mask=inside[:, None] & (d < channels)[None, :])


@triton.jit(do_not_specialize=["length"])
def last_inputs(u, initial, previous, last, final, length, channels, K: tl.constexpr, BD: tl.constexpr):
    """The last K - 1 inputs of each batch row, oldest first; last: (B,) its last valid step, -1 if there is none, or None."""
    b = tl.program_id(0).to(tl.int64)
    d = tl.program_id(1) * BD + tl.arange(0, BD)
    place = tl.zeros((1,), tl.int64) + length - 1
    if last is not None:
        place = tl.zeros((1,), tl.int64) + tl.load(last + b)
    known = (d < channels)[None, :]
    for i in tl.static_range(1, K):
        value = _inputs_at(u, initial, place, d, b * length, b, channels, known, K)
        tl.store(final + (b * channels + d[None, :]) * (K - 1) + (K - 1 - i), value, mask=known)
        place = _step_back(place, previous, b * length)


@triton.jit(do_not_specialize=["length", "tiles", "rows"])
def slopes(
    grad_y, u, weight, bias, initial, flags, previous, slope, sums, length, channels, tiles, rows, SILU: tl.constexpr,
    K: tl.constexpr, T: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """The gradients before the activation, and a tile's sums (B, tiles, K + 1, D) for the gradients of weight and bias."""
    b, tile = (tl.program_id(0) // tiles).to(tl.int64), tl.program_id(0) % tiles
    d = tl.program_id(1) * BD + tl.arange(0, BD)
    times, row, group = (tile * T + tl.arange(0, T)).to(tl.int64), b * length, b // rows
    inside = times < length
    valid = inside
    if flags is not None:
        valid = inside & (tl.load(flags + row + times, mask=inside, other=1) != 1)
    known = valid[:, None] & (d < channels)[None, :]
    at = row * channels + times[:, None] * channels + d[None, :]
    value = tl.load(grad_y + at, mask=known, other=0.0)
    if SILU:
        if bias is not None:
            bias += group * channels
        before = _convolve(u, weight + group * channels * K, bias, initial, previous, times, valid, d, row, b, channels, K)
        value *= silu_slope(before)
    tl.store(slope + at, value, mask=inside[:, None] & (d < channels)[None, :])
    to = sums + (b * tiles + tile) * (K + 1) * channels + d
    tl.store(to + K * channels, tl.sum(value, 0), mask=d < channels)
    place = tl.where(valid, times, -K)
    for i in tl.static_range(0, K):
        product = tl.sum(value * _inputs_at(u, initial, place, d, row, b, channels, known, K), 0)
        tl.store(to + (K - 1 - i) * channels, product, mask=d < channels)
        place = _step_back(place, previous, row)


@triton.jit(do_not_specialize=["length", "tiles", "rows"])
def spread(
    slope, weight, flags, following, du, length, channels, tiles, rows, K: tl.constexpr, T: tl.constexpr, BD: tl.constexpr
):
    """du of one tile; following: (B, L), the next valid step of the segment, L if there is none, or None."""
    b, tile = (tl.program_id(0) // tiles).to(tl.int64), tl.program_id(0) % tiles
    d = tl.program_id(1) * BD + tl.arange(0, BD)
    times, row = (tile * T + tl.arange(0, T)).to(tl.int64), b * length
    weight += (b // rows) * channels * K
    inside = times < length
    place = times
    total = tl.zeros((T, BD), slope.dtype.element_ty)
    for i in tl.static_range(0, K):
        known = (place < length)[:, None] & (d < channels)[None, :]
        value = tl.load(slope + row * channels + place[:, None] * channels + d[None, :], mask=known, other=0.0)
        total += value * tl.load(weight + d * K + (K - 1 - i), mask=d < channels, other=0.0)[None, :]
        if following is not None:
            place = tl.load(following + row + place, mask=place < length, other=length)
        else:
            place += 1
    if flags is not None:
        total = tl.where((tl.load(flags + row + times, mask=inside, other=1) != 1)[:, None], total, 0.0)
    to = du + row * channels + times[:, None] * channels + d[None, :]
    tl.store(to, total, mask=inside[:, None] & (d < channels)[None, :])


@triton.jit(do_not_specialize=["length", "rows"])
def ends(
    slope, weight, grad_final, previous, following, first, last, du, d_initial, length, channels, rows, K: tl.constexpr,
    BD: tl.constexpr,
):  # fmt: skip
    """The gradient of the initial state, and what that of the final state adds to either end.

    first, last: (B,) the first valid step of the row's first segment, L if there is none, and the row's last valid step; or None.
    """
    b = tl.program_id(0).to(tl.int64)
    d = tl.program_id(1) * BD + tl.arange(0, BD)
    known, row = d < channels, b * length
    weight += (b // rows) * channels * K
    state = d_initial + (b * channels + d) * (K - 1)
    for i in tl.static_range(1, K):  # the entry i places before the first step, in the windows of the first K - i steps
        total = tl.zeros((BD,), slope.dtype.element_ty)
        place = b * 0
        if first is not None:
            place = tl.load(first + b)
        for j in tl.static_range(i, K):
            value = tl.load(slope + (row + place) * channels + d, mask=known & (place + d * 0 < length), other=0.0)
            total += value * tl.load(weight + d * K + (K - 1 - j), mask=known, other=0.0)
            if following is not None:
                place = tl.load(following + row + place, mask=place < length, other=length)
            else:
                place += 1
        tl.store(state + (K - 1 - i), total, mask=known)
    place = b * 0 + length - 1
    if last is not None:
        place = tl.load(last + b)
    for i in tl.static_range(1, K):
        more = tl.load(grad_final + (b * channels + d) * (K - 1) + (K - 1 - i), mask=known, other=0.0)
        step, entry = known & (place + d * 0 >= 0), known & (place + d * 0 < 0) & (place + d * 0 > -K)
        to = du + (row + place) * channels + d
        tl.store(to, tl.load(to, mask=step, other=0.0) + more, mask=step)
        to = state + (K - 1 + place)
        tl.store(to, tl.load(to, mask=entry, other=0.0) + more, mask=entry)
        if previous is not None:
            before = tl.load(previous + row + place, mask=place >= 0, other=0)
            place = tl.where(place >= 0, before, place - 1)
        else:
            place -= 1


# ---------------------------------------------------------------------------------------------- launches


class _Chains(NamedTuple):
    """Where to go from a step, as the kernels read it; all None where there are no marks."""

    previous: Tensor | None = None
    last: Tensor | None = None
    following: Tensor | None = None
    first: Tensor | None = None


def _chains(flags: Tensor | None, taps: int) -> _Chains:
    if flags is None:
        return _Chains()
    length = flags.shape[1]
    steps = torch.arange(length, device=flags.device).expand_as(flags)
    invalid, fresh = flags == INVALID, flags == RESET
    latest = torch.where(invalid, -1, steps).cummax(1).values
    previous = torch.cat([torch.full_like(latest[:, :1], -1), latest[:, :-1]], 1)
    soonest = torch.where(invalid, length, steps).flip(1).cummin(1).values.flip(1)
    following = torch.cat([soonest[:, 1:], torch.full_like(soonest[:, :1], length)], 1)
    padded = torch.cat([fresh, torch.ones_like(fresh[:, :1])], 1)  # the step after a segment's last one is that of a restart
    following = torch.where(padded.gather(1, following), length, following)
    first = soonest[:, 0]
    first = torch.where(padded.gather(1, first.unsqueeze(1)).squeeze(1), length, first)
    return _Chains(torch.where(fresh, -taps, previous), latest[:, -1].contiguous(), following, first)


class _Problem:
    """Sizes of a call and its grids. rows: batch rows a group, groups having weights of their own."""

    def __init__(self, u: Tensor, weight: Tensor) -> None:
        self.batch, self.length, self.channels = u.shape
        self.taps = weight.shape[-1]
        self.groups = len(weight) if weight.ndim == 3 else 1
        self.rows = self.batch // self.groups
        table = launch.TABLE["short_conv"]
        T, BD = table.steps, min(table.lanes, launch.power_of_two(self.channels))
        self.tiles, self.blocks = launch.ceil_div(self.length, T), launch.ceil_div(self.channels, BD)
        self.grid, self.row_grid = (self.batch * self.tiles, self.blocks), (self.batch, self.blocks)
        self.sizes = self.length, self.channels, self.tiles, self.rows
        self.row_options: dict[str, Any] = {"K": self.taps, "BD": BD, "num_warps": table.warps}
        self.options = {**self.row_options, "T": T}


def forward(
    u: Tensor, weight: Tensor, bias: Tensor | None, initial_state: Tensor, flags: Tensor | None, silu: bool
) -> tuple[Tensor, Tensor]:
    """y (B, L, D) and the final state (B, D, K-1), of contiguous tensors of one real dtype.

    weight (D, K) and bias may have one more leading axis, of groups: as many runs of batch rows then have weights of their own.
    """
    p, chains = _Problem(u, weight), _chains(flags, weight.shape[-1])
    y, final = torch.empty_like(u), torch.empty_like(initial_state)
    with launch.on_device(u):
        convolve[p.grid](u, weight, bias, initial_state, flags, chains.previous, y, *p.sizes, SILU=silu, **p.options)
        if p.taps > 1:
            last_inputs[p.row_grid](
                u, initial_state, chains.previous, chains.last, final, p.length, p.channels, **p.row_options
            )
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
    p, chains = _Problem(u, weight), _chains(flags, weight.shape[-1])
    slope, du, d_initial = torch.empty_like(u), torch.empty_like(u), torch.empty_like(initial_state)
    sums = u.new_empty((p.batch, p.tiles, p.taps + 1, p.channels))
    with launch.on_device(u):
        slopes[p.grid](
            grad_y, u, weight, bias, initial_state, flags, chains.previous, slope, sums, *p.sizes, SILU=silu, **p.options
        )
        spread[p.grid](slope, weight, flags, chains.following, du, *p.sizes, **p.options)
        if p.taps > 1:
            ends[p.row_grid](
                slope, weight, grad_final, *chains[:1], chains.following, chains.first, chains.last, du, d_initial, p.length,
                p.channels, p.rows, **p.row_options,
            )  # fmt: skip
    total = sums.view(p.groups, -1, p.taps + 1, p.channels).sum(1)
    d_weight = total[:, :-1].mT.reshape(weight.shape).contiguous()
    return du, d_weight, u.new_empty(0) if bias is None else total[:, -1].reshape(bias.shape).contiguous(), d_initial
