"""`selective_scan` in Triton, real and complex: no tensor of size (B, L, D, N) in memory in either direction.

A program owns BD channels with all their states and goes over the steps tile by tile. The states of a tile are an associative
scan of x -> a x + b with a = exp(s A), b = s B u, s the step size; the state before the first step enters its b. The backward
reads the states that were kept where tiles start, runs each tile again, and scans it backwards for the adjoint
  g_t = gy_t conj(C_t) + conj(a_{t+1}) g_{t+1}
  dC_t = sum_d gy_t conj(h_t)      dB_t = sum_d g_t s_t u_t        d(s_t u_t) = sum_n Re(g_t conj(B_t))
  dA = sum_t s_t w_t               ds_t = sum_n Re(w_t conj(A)),   w_t = g_t conj(a_t h_{t-1})
with gy = k dL/dy silu(z), k = 2 for conjugate pairs. dB and dC are summed over a program's channels in registers and over
programs from memory, a slice of the steps at a time, always in the same order.
Softplus, bias, elapsed time, skip and gate are elementwise kernels before and after. An invalid step has s = 0 and B = C = 0.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from longscan.ops import _triton_launch as launch
from longscan.ops._triton import (
    adjoint,
    adjoint_complex,
    affine,
    affine_complex,
    affine_moved,
    affine_moved_complex,
    chain,
    leave,
    over_channels,
    over_states,
    row_of,
    sigmoid,
    silu,
    silu_slope,
    sincos,
    softplus,
)


@triton.jit
def _decay(step, Ar, Ai, fresh, COMPLEX: tl.constexpr, SEGMENTS: tl.constexpr):
    """exp(step A) of a tile, A with its real part times log2(e); 0 where the state restarts."""
    size = tl.exp2(step * Ar[None, :])
    if SEGMENTS:
        size = tl.where(fresh[:, None], 0.0, size)
    if COMPLEX:
        s, c = sincos(step * Ai[None, :])
        re, im = size * c, size * s
    else:
        re, im = size, size
    return re, im


@triton.jit(do_not_specialize=["length", "tiles", "splits", "span", "rows", "kept_stride", "y_stride"])
def scan(
    u, step, A, B, C, initial, start, flags, y, final, kept, mult, ends, length, channels, states, blocks, tiles, splits, span,
    rows, kept_stride, y_stride, k: tl.constexpr, COMPLEX: tl.constexpr, SUMMARY: tl.constexpr, T: tl.constexpr, BD: tl.constexpr,
    NB: tl.constexpr,
):  # fmt: skip
    """One split of one batch row for BD channels: y = k Re sum_n C h, and the state before every tile, to `kept`.

    start: (B, splits + 1, D N[, 2]), or None where the split is the whole row; then `initial` (B, D N[, 2]) holds. With SUMMARY
    the split is run from a state of 0: `ends` (B, splits, D N[, 2]) gets its last state, `mult` the factor of the state before
    it.
    """
    R: tl.constexpr = BD * NB
    P: tl.constexpr = 2 if COMPLEX else 1
    b = (tl.program_id(0) // blocks).to(tl.int64)
    block, split = tl.program_id(0) % blocks, tl.program_id(1)
    lane = tl.arange(0, R)
    d, n = block * BD + lane // NB, lane % NB
    live = (d < channels) & (n < states)
    place, size = d * states + n, channels * states
    source = A + (b // rows) * size * P + place * P
    Ar = tl.load(source, mask=live, other=0.0) * 1.4426950408889634
    Ai = Ar
    hr, hi = Ar * 0.0, Ar * 0.0
    if COMPLEX:
        Ai = tl.load(source + 1, mask=live, other=0.0)
    if not SUMMARY:
        if start is not None:
            source = start + (b * (splits + 1) + split) * size * P + place * P
        else:
            source = initial + b * size * P + place * P
        hr = tl.load(source, mask=live, other=0.0)
        if COMPLEX:
            hi = tl.load(source + 1, mask=live, other=0.0)
    steps = tl.arange(0, T)
    top, last = (steps == 0)[:, None], (steps == T - 1)[:, None]
    offsets, by_state = steps[:, None] * channels + d[None, :], (steps[:, None] * states + n[None, :]) * P
    own = block * BD + tl.arange(0, BD)
    elapsed, alive = Ar * 0.0, 1.0
    begin = split * span
    for i in range(tl.minimum(span, tiles - begin)):
        tile = begin + i
        valid = tile * T + steps < length
        inside, fresh = valid, steps < 0
        first = b * length + tile * T
        if flags is not None:
            mark = tl.load(flags + first + steps, mask=inside, other=1)
            valid, fresh = inside & (mark != 1), mark == 2
        here = valid[:, None] & live[None, :]
        if kept is not None:
            to = kept + b * kept_stride + tile.to(tl.int64) * size * P + place * P
            tl.store(to, hr, mask=live)
            if COMPLEX:
                tl.store(to + 1, hi, mask=live)
        s = tl.load(step + first * channels + offsets, mask=here, other=0.0)
        entering = s * tl.load(u + first * channels + offsets, mask=here, other=0.0)
        ar, ai = _decay(s, Ar, Ai, fresh, COMPLEX, flags is not None)
        br = entering * tl.load(B + first * states * P + by_state, mask=here, other=0.0)
        if COMPLEX:
            bi = entering * tl.load(B + first * states * P + by_state + 1, mask=here, other=0.0)
            br += tl.where(top, ar * hr[None, :] - ai * hi[None, :], 0.0)
            bi += tl.where(top, ar * hi[None, :] + ai * hr[None, :], 0.0)
            _, _, xr, xi = tl.associative_scan((ar, ai, br, bi), 0, affine_complex)
            hr, hi = row_of(xr, last), row_of(xi, last)
        else:
            br += tl.where(top, ar * hr[None, :], 0.0)
            _, xr = tl.associative_scan((ar, br), 0, affine)
            hr = row_of(xr, last)
        if not SUMMARY:
            read = xr * tl.load(C + first * states * P + by_state, mask=here, other=0.0)
            if COMPLEX:
                read -= xi * tl.load(C + first * states * P + by_state + 1, mask=here, other=0.0)
            to = y + b * y_stride + tile.to(tl.int64) * T * channels + steps[:, None] * channels + own[None, :]
            tl.store(to, k * over_states(read, T, BD, NB), mask=inside[:, None] & (own < channels)[None, :])
        if SUMMARY:
            elapsed += tl.sum(s, 0)
            if flags is not None:
                alive *= 1.0 - tl.max(tl.where(fresh, 1.0, 0.0), 0)
    if SUMMARY:
        to = (b * splits + split) * size * P + place * P
        tl.store(ends + to, hr, mask=live)
        factor = tl.exp2(elapsed * Ar) * alive
        if COMPLEX:
            si, co = sincos(elapsed * Ai)
            tl.store(ends + to + 1, hi, mask=live)
            tl.store(mult + to, factor * co, mask=live)
            tl.store(mult + to + 1, factor * si, mask=live)
        else:
            tl.store(mult + to, factor, mask=live)
    elif split == splits - 1:
        to = final + b * size * P + place * P
        tl.store(to, hr, mask=live)
        if COMPLEX:
            tl.store(to + 1, hi, mask=live)


@triton.jit(
    do_not_specialize=["length", "tiles", "splits", "span", "rows", "kept_stride", "first_split", "slice_steps", "slice_start"]
)
def scan_backward(
    u, step, g, A, B, C, flags, kept, adjoints, d_input, d_step, dB, dC, sums, mult, length, channels, states, blocks, tiles,
    splits, span, rows, kept_stride, first_split, slice_start, slice_steps, k: tl.constexpr, COMPLEX: tl.constexpr,
    SUMMARY: tl.constexpr, CHAINED: tl.constexpr, T: tl.constexpr, BD: tl.constexpr, NB: tl.constexpr,
):  # fmt: skip
    """One split of one batch row for BD channels, backwards; adjoints (B, splits + 1, D N[, 2]): dL/dh after each split.

    d_input, d_step: (B, L, D), gradients of s u and, through the decay, of s. dB, dC: (B, slice_steps, blocks, N[, 2]), a
    program's part, from step slice_start on. sums: (B, splits, D N[, 2]), of A. With CHAINED dL/dh after the split before is
    stored, else it was there already: SUMMARY stores what the split adds, to `sums`, and the factor of dL/dh after it,
    unconjugated, to `mult`.
    """
    R: tl.constexpr = BD * NB
    P: tl.constexpr = 2 if COMPLEX else 1
    b = (tl.program_id(0) // blocks).to(tl.int64)
    block, split = tl.program_id(0) % blocks, first_split + tl.program_id(1)
    lane = tl.arange(0, R)
    d, n = block * BD + lane // NB, lane % NB
    live = (d < channels) & (n < states)
    place, size = d * states + n, channels * states
    source = A + (b // rows) * size * P + place * P
    A_re = tl.load(source, mask=live, other=0.0)
    Ar = A_re * 1.4426950408889634
    Ai = Ar
    qr, qi, sum_r, sum_i = Ar * 0.0, Ar * 0.0, Ar * 0.0, Ar * 0.0
    if COMPLEX:
        Ai = tl.load(source + 1, mask=live, other=0.0)
    if not SUMMARY:
        source = adjoints + (b * (splits + 1) + split + 1) * size * P + place * P
        qr = tl.load(source, mask=live, other=0.0)
        if COMPLEX:
            qi = tl.load(source + 1, mask=live, other=0.0)
    steps = tl.arange(0, T)
    top, last = (steps == 0)[:, None], (steps == T - 1)[:, None]
    offsets, by_state = steps[:, None] * channels + d[None, :], (steps[:, None] * states + n[None, :]) * P
    own, own_state = block * BD + tl.arange(0, BD), tl.arange(0, NB)
    one = tl.full((T, R), 1.0, Ar.dtype)
    elapsed, alive = Ar * 0.0, 1.0
    begin = split * span
    count = tl.minimum(span, tiles - begin)
    for i in range(count):
        tile = begin + count - 1 - i
        valid = tile * T + steps < length
        inside, fresh = valid, steps < 0
        first = b * length + tile * T
        if flags is not None:
            mark = tl.load(flags + first + steps, mask=inside, other=1)
            valid, fresh = inside & (mark != 1), mark == 2
        here = valid[:, None] & live[None, :]
        s = tl.load(step + first * channels + offsets, mask=here, other=0.0)
        ar, ai = _decay(s, Ar, Ai, fresh, COMPLEX, flags is not None)
        gy = k * tl.load(g + first * channels + offsets, mask=here, other=0.0)
        vr = gy * tl.load(C + first * states * P + by_state, mask=here, other=0.0) + tl.where(last, qr[None, :], 0.0)
        if COMPLEX:
            vi = tl.where(last, qi[None, :], 0.0) - gy * tl.load(C + first * states * P + by_state + 1, mask=here, other=0.0)
            _, _, _, _, lr, li = tl.associative_scan((ar, -ai, one, one * 0.0, vr, vi), 0, adjoint_complex, reverse=True)
            qr, qi = row_of(ar * lr + ai * li, top), row_of(ar * li - ai * lr, top)
        else:
            _, _, lr = tl.associative_scan((ar, one, vr), 0, adjoint, reverse=True)
            qr = row_of(ar * lr, top)
        if SUMMARY:
            elapsed += tl.sum(s, 0)
            if flags is not None:
                alive *= 1.0 - tl.max(tl.where(fresh, 1.0, 0.0), 0)
        else:
            source = kept + b * kept_stride + tile.to(tl.int64) * size * P + place * P
            hr = tl.load(source, mask=live, other=0.0)
            entering = s * tl.load(u + first * channels + offsets, mask=here, other=0.0)
            Br = tl.load(B + first * states * P + by_state, mask=here, other=0.0)
            if COMPLEX:
                hi = tl.load(source + 1, mask=live, other=0.0)
                Bi = tl.load(B + first * states * P + by_state + 1, mask=here, other=0.0)
                mr = tl.where(top, ar * hr[None, :] - ai * hi[None, :], 0.0)
                mi = tl.where(top, ar * hi[None, :] + ai * hr[None, :], 0.0)
                leaves = (ar, ai, entering * Br + mr, entering * Bi + mi, mr, mi)
                _, _, xr, xi, mr, mi = tl.associative_scan(leaves, 0, affine_moved_complex)
                wr, wi = lr * mr + li * mi, li * mr - lr * mi
                by_input, by_step = lr * Br + li * Bi, wr * A_re[None, :] + wi * Ai[None, :]
                sum_i += tl.sum(wi * s, 0)
            else:
                mr = tl.where(top, ar * hr[None, :], 0.0)
                _, xr, mr = tl.associative_scan((ar, entering * Br + mr, mr), 0, affine_moved)
                wr = lr * mr
                by_input, by_step = lr * Br, wr * A_re[None, :]
            sum_r += tl.sum(wr * s, 0)
            to = first * channels + steps[:, None] * channels + own[None, :]
            there = inside[:, None] & (own < channels)[None, :]
            tl.store(d_input + to, over_states(by_input, T, BD, NB), mask=there)
            tl.store(d_step + to, over_states(by_step, T, BD, NB), mask=there)
            base = (b * slice_steps + tile * T - slice_start) * blocks * states * P + block * states * P
            to = base + (steps[:, None] * blocks * states + own_state[None, :]) * P
            there = inside[:, None] & (own_state < states)[None, :]
            tl.store(dB + to, over_channels(tl.where(here, lr * entering, 0.0), T, BD, NB), mask=there)
            tl.store(dC + to, over_channels(tl.where(here, gy * xr, 0.0), T, BD, NB), mask=there)
            if COMPLEX:
                tl.store(dB + to + 1, over_channels(tl.where(here, li * entering, 0.0), T, BD, NB), mask=there)
                tl.store(dC + to + 1, over_channels(tl.where(here, -gy * xi, 0.0), T, BD, NB), mask=there)
    to = (b * splits + split) * size * P + place * P
    if SUMMARY:
        tl.store(sums + to, qr, mask=live)
        factor = tl.exp2(elapsed * Ar) * alive
        if COMPLEX:
            si, co = sincos(elapsed * Ai)
            tl.store(sums + to + 1, qi, mask=live)
            tl.store(mult + to, factor * co, mask=live)
            tl.store(mult + to + 1, factor * si, mask=live)
        else:
            tl.store(mult + to, factor, mask=live)
    else:
        tl.store(sums + to, sum_r, mask=live)
        if COMPLEX:
            tl.store(sums + to + 1, sum_i, mask=live)
        if CHAINED:
            to = adjoints + (b * (splits + 1) + split) * size * P + place * P
            tl.store(to, qr, mask=live)
            if COMPLEX:
                tl.store(to + 1, qi, mask=live)


@triton.jit(do_not_specialize=["length", "tiles", "rows"])
def enter(
    dt, dt_bias, dt_scale, z, grad_y, flags, step, g, length, channels, tiles, rows, SOFTPLUS: tl.constexpr, T: tl.constexpr,
    BD: tl.constexpr,
):  # fmt: skip
    """What a scan reads: the step sizes, 0 at invalid steps, and of grad_y the gradient g before the gate."""
    b, tile = (tl.program_id(0) // tiles).to(tl.int64), tl.program_id(0) % tiles
    steps, d = tl.arange(0, T), tl.program_id(1) * BD + tl.arange(0, BD)
    inside = tile * T + steps < length
    first = b * length + tile * T
    valid = inside
    if flags is not None:
        valid = inside & (tl.load(flags + first + steps, mask=inside, other=1) != 1)
    at = first * channels + steps[:, None] * channels + d[None, :]
    here, there = valid[:, None] & (d < channels)[None, :], inside[:, None] & (d < channels)[None, :]
    s = tl.load(dt + at, mask=here, other=0.0)
    if dt_bias is not None:
        s += tl.load(dt_bias + (b // rows) * channels + d, mask=d < channels, other=0.0)[None, :]
    if SOFTPLUS:
        s = softplus(s)
    if dt_scale is not None:
        s *= tl.load(dt_scale + first + steps, mask=valid, other=0.0)[:, None]
    tl.store(step + at, tl.where(here, s, 0.0), mask=there)
    if grad_y is not None:
        slope = tl.load(grad_y + at, mask=here, other=0.0)
        if z is not None:
            slope *= silu(tl.load(z + at, mask=here, other=0.0))
        tl.store(g + at, slope, mask=there)


@triton.jit(do_not_specialize=["length", "tiles", "rows", "raw_stride"])
def leave_backward(
    grad_y, g, u, dt, dt_bias, dt_scale, D, z, flags, raw, step, d_input, d_step, du, ddt, dz, d_scale, sums, length, channels,
    tiles, rows, raw_stride, SOFTPLUS: tl.constexpr, T: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """The gradients of u, dt and z; d_scale: (blocks, B, L), sums: (B, tiles, 2, D), of dt_bias and D: parts to be added up."""
    b, tile = (tl.program_id(0) // tiles).to(tl.int64), tl.program_id(0) % tiles
    steps, d = tl.arange(0, T), tl.program_id(1) * BD + tl.arange(0, BD)
    inside = tile * T + steps < length
    first = b * length + tile * T
    valid = inside
    if flags is not None:
        valid = inside & (tl.load(flags + first + steps, mask=inside, other=1) != 1)
    offsets = steps[:, None] * channels + d[None, :]
    at = first * channels + offsets
    here, there = valid[:, None] & (d < channels)[None, :], inside[:, None] & (d < channels)[None, :]
    slope, entry = tl.load(g + at, mask=here, other=0.0), tl.load(u + at, mask=here, other=0.0)
    by_input = tl.load(d_input + at, mask=here, other=0.0)
    s = tl.load(step + at, mask=here, other=0.0)
    skip = tl.zeros((BD,), entry.dtype)
    if D is not None:
        skip = tl.load(D + (b // rows) * channels + d, mask=d < channels, other=0.0)
    if z is not None:
        value = tl.load(raw + b * raw_stride + tile.to(tl.int64) * T * channels + offsets, mask=here, other=0.0)
        gate = tl.load(z + at, mask=here, other=0.0)
        outer = tl.load(grad_y + at, mask=here, other=0.0)
        tl.store(dz + at, outer * (value + skip[None, :] * entry) * silu_slope(gate), mask=there)
    tl.store(du + at, skip[None, :] * slope + s * by_input, mask=there)
    change = by_input * entry + tl.load(d_step + at, mask=here, other=0.0)
    before = tl.load(dt + at, mask=here, other=0.0)
    if dt_bias is not None:
        before += tl.load(dt_bias + (b // rows) * channels + d, mask=d < channels, other=0.0)[None, :]
    if dt_scale is not None:
        unscaled = before
        if SOFTPLUS:
            unscaled = softplus(before)
        to = d_scale + tl.program_id(1).to(tl.int64) * (tl.num_programs(0) // tiles) * length + first + steps
        tl.store(to, tl.sum(tl.where(here, change * unscaled, 0.0), 1), mask=inside)
        change *= tl.load(dt_scale + first + steps, mask=valid, other=0.0)[:, None]
    if SOFTPLUS:
        change *= sigmoid(before)
    change = tl.where(here, change, 0.0)
    tl.store(ddt + at, change, mask=there)
    to = sums + (b * tiles + tile) * 2 * channels + d
    tl.store(to, tl.sum(change, 0), mask=d < channels)
    tl.store(to + channels, tl.sum(slope * entry, 0), mask=d < channels)


# ---------------------------------------------------------------------------------------------- launches


class _Problem(NamedTuple):
    """Sizes of a call, and how channels and states are laid out. rows: batch rows a group; each has its own parameters."""

    batch: int
    length: int
    channels: int
    states: int
    parts: int
    groups: int
    layout: launch.Layout

    @property
    def rows(self) -> int:
        return self.batch // self.groups

    @property
    def size(self) -> int:
        return self.channels * self.states

    @property
    def programs(self) -> int:
        return self.batch * self.layout.blocks

    def constants(self, paired: bool) -> dict[str, Any]:
        """The compile-time arguments of both scans."""
        return {
            "k": 2.0 if self.parts == 2 and paired else 1.0, "COMPLEX": self.parts == 2, "BD": self.layout.BD, "NB":
            self.layout.NB, "T": launch.TABLE["selective_scan"].steps, "num_warps": self.layout.warps,
        }  # fmt: skip


def _problem(u: Tensor, A: Tensor, initial_state: Tensor) -> _Problem:
    states, parts = initial_state.shape[2], 2 if initial_state.ndim == 4 else 1
    groups = len(A) if A.ndim > initial_state.ndim - 1 else 1
    lay = launch.layout("selective_scan", u.shape[2], states)
    batch, length, channels = u.shape
    return _Problem(batch, length, channels, states, parts, groups, lay)


def chunk_states_shape(batch: int, length: int, channels: int, states: int, *pair: int) -> tuple[int, int]:
    """Of what `forward` keeps for `backward`, row by row: the state before every tile, and y before the gate."""
    tiles = launch.ceil_div(length, launch.TABLE["selective_scan"].steps)
    return batch, (tiles * states * (2 if pair else 1) + length) * channels


def forward(
    u: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    dt_bias: Tensor | None,
    initial_state: Tensor,
    dt_scale: Tensor | None,
    flags: Tensor | None,
    dt_softplus: bool,
    paired: bool,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """y (B, L, D), the final state (B, D, N[, 2]) and what `backward` needs where `keep`. Complex where the state has four axes.

    Contiguous tensors of one real dtype; L, D and N at least 1. The parameters A (D, N[, 2]), D and dt_bias may have one more
    leading axis, of groups: as many runs of batch rows then have parameters of their own.
    """
    p = _problem(u, A, initial_state)
    split = launch.plan("selective_scan", p.length, p.programs)
    y, final, step = torch.empty_like(u), torch.empty_like(initial_state), torch.empty_like(u)
    kept = u.new_empty(chunk_states_shape(p.batch, p.length, p.channels, *initial_state.shape[2:]) if keep else (0,))
    raw = kept[:, -p.length * p.channels :] if keep else y
    inputs = (u, step, A, B, C, initial_state)
    with launch.on_device(u):
        grid, tiles, each = launch.elementwise(p.batch, p.length, p.channels)
        enter[grid](
            dt, dt_bias, dt_scale, None, None, flags, step, None, p.length, p.channels, tiles, p.rows, SOFTPLUS=dt_softplus,
            **each,
        )  # fmt: skip
        start = None
        if split.parallel and split.splits > 1:
            mult, ends = (u.new_empty((p.batch, split.splits, p.size, p.parts)) for _ in range(2))
            start = u.new_empty((p.batch, split.splits + 1, p.size, p.parts))
            _scan(p, split, (*inputs, None, flags, None, None, None, mult, ends), 0, 0, paired, True)
            _chain(p, split, mult, ends, initial_state, start, False)
        outputs = (raw, final, kept if keep else None, None, None)
        _scan(p, split, (*inputs, start, flags, *outputs), kept.stride(0), raw.stride(0), paired, False)
        leave[grid](raw, u, D, z, flags, y, p.length, p.channels, tiles, p.rows, raw.stride(0), ACTIVATED=False, **each)
    return y, final, kept


def _scan(
    p: _Problem,
    split: launch.Plan,
    tensors: tuple[Tensor | None, ...],
    kept_stride: int,
    y_stride: int,
    paired: bool,
    summary: bool,
) -> None:
    scan[(p.programs, split.splits)](
        *tensors, p.length, p.channels, p.states, p.layout.blocks, split.tiles, split.splits, split.span, p.rows, kept_stride,
        y_stride, SUMMARY=summary, **p.constants(paired),
    )  # fmt: skip


def _chain(p: _Problem, split: launch.Plan, mult: Tensor, local: Tensor, first: Tensor, out: Tensor, reverse: bool) -> None:
    grid = p.batch, launch.ceil_div(p.size, 128)
    chain[grid](mult, local, first, out, split.splits, p.size, COMPLEX=p.parts == 2, REVERSE=reverse, BLOCK=128)


def backward(
    grad_y: Tensor,
    grad_final: Tensor,
    u: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    dt_bias: Tensor | None,
    initial_state: Tensor,
    dt_scale: Tensor | None,
    flags: Tensor | None,
    chunk_states: Tensor,
    dt_softplus: bool,
    paired: bool,
) -> tuple[Tensor, ...]:
    """Gradients of u, dt, A, B, C, D, z, dt_bias, initial_state and dt_scale; empty where the input is None."""
    p = _problem(u, A, initial_state)
    part = p.layout.blocks * p.states * p.parts  # numbers a step and batch row in the parts of dB, and of dC
    step_bytes = 2 * p.batch * part * u.element_size()
    most = max(1, launch.SCRATCH // (step_bytes * launch.TABLE["selective_scan"].steps))
    split = launch.plan("selective_scan", p.length, p.programs, most)
    step, g, d_input, d_step, du, ddt = (torch.empty_like(u) for _ in range(6))
    dz, dB, dC = u.new_empty(0) if z is None else torch.empty_like(z), torch.empty_like(B), torch.empty_like(C)
    adjoints = u.new_empty((p.batch, split.splits + 1, p.size, p.parts))
    sums = u.new_empty((p.batch, split.splits, p.size, p.parts))
    raw = chunk_states[:, -p.length * p.channels :]
    inputs, stride = (u, step, g, A, B, C, flags, chunk_states, adjoints), chunk_states.stride(0)
    with launch.on_device(u):
        grid, tiles, each = launch.elementwise(p.batch, p.length, p.channels)
        enter[grid](
            dt, dt_bias, dt_scale, z, grad_y, flags, step, g, p.length, p.channels, tiles, p.rows, SOFTPLUS=dt_softplus, **each
        )
        if split.parallel:
            mult, local = (torch.empty_like(sums) for _ in range(2))
            _scan_backward(p, split, (*inputs, None, None, None, None, local, mult), stride, (0, split.splits), 0, paired, True)
            _chain(p, split, mult, local, grad_final, adjoints, True)
        else:
            adjoints[:, -1] = grad_final.view(p.batch, p.size, p.parts)
        steps_of_split = split.span * split.T
        at_once = max(1, launch.SCRATCH // (step_bytes * steps_of_split)) if split.parallel else 1
        scratch = u.new_empty(2, p.batch * min(at_once * steps_of_split, p.length) * part)
        for first, stop in launch.slices(split.splits, at_once):
            begin, end = first * steps_of_split, min(stop * steps_of_split, p.length)
            parts = scratch[:, : p.batch * (end - begin) * part]
            outputs = (d_input, d_step, parts[0], parts[1], sums, None)
            _scan_backward(p, split, (*inputs, *outputs), stride, (first, stop), end - begin, paired, False)
            shape = p.batch, end - begin, p.layout.blocks, *B.shape[2:]
            for gradient, found in ((dB, parts[0]), (dC, parts[1])):
                gradient[:, begin:end] = found.view(shape).sum(2)
        d_scale = None if dt_scale is None else u.new_empty((grid[1], p.batch, p.length))
        by_channel = u.new_empty((p.batch, tiles, 2, p.channels))
        leave_backward[grid](
            grad_y, g, u, dt, dt_bias, dt_scale, D, z, flags, raw, step, d_input, d_step, du, ddt, dz, d_scale, by_channel,
            p.length, p.channels, tiles, p.rows, raw.stride(0), SOFTPLUS=dt_softplus, **each,
        )  # fmt: skip
    by_channel = by_channel.view(p.groups, -1, 2, p.channels).sum(1)
    d_bias, dD = (
        u.new_empty(0) if x is None else by_channel[:, i].reshape(x.shape).contiguous() for i, x in enumerate((dt_bias, D))
    )
    dA = sums.view(p.groups, -1, p.size * p.parts).sum(1).view(A.shape)
    d_initial = torch.empty_like(initial_state)
    d_initial.view(p.batch, p.size, p.parts).copy_(adjoints[:, 0])
    return du, ddt, dA, dB, dC, dD, dz, d_bias, d_initial, u.new_empty(0) if d_scale is None else d_scale.sum(0)


def _scan_backward(
    p: _Problem,
    split: launch.Plan,
    tensors: tuple[Tensor | None, ...],
    kept_stride: int,
    which: tuple[int, int],
    count: int,
    paired: bool,
    summary: bool,
) -> None:
    first, stop = which
    scan_backward[(p.programs, stop - first)](
        *tensors, p.length, p.channels, p.states, p.layout.blocks, split.tiles, split.splits, split.span, p.rows,
        kept_stride, first, first * split.span * split.T, count, SUMMARY=summary, CHAINED=not split.parallel,
        **p.constants(paired),
    )  # fmt: skip
