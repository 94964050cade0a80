"""`unitary_scan` in Triton. Nothing of size (B, L, D, N) is in memory but, in the backward, slices of bounded size.

Algebra, as in csrc/unitary_scan.cpp. With G_t the running sum of the angles and V_t = e^{-i G_t}, the state in the rotating frame
is a plain sum, h_t = e^{i G_t} w_t with w_t = w_0 + B sum_{k<=t} x_k V_k and x = dt silu(u): nothing is multiplied by a rounded
rotation and fed back. A state between tiles is three numbers: G less whole turns, and w. With g = dL/dy silu(z) and
mu_t = conj(C) sum_{k>=t} g_k V_k + (what the final state contributes), the gradient of w:
  dL/dtheta_t = Im(mu_t conj(w_{t-1}))      dL/dx_t = sum_n Re(B V_t conj(mu_t))
  dL/dB = sum_t x_t conj(V_t) mu_t          dL/dC = sum_t g_t V_t conj(w_t)
The frame is one for the whole row, so mu goes from tile to tile unchanged. Where the state restarts, sums start again.

A tile's angles are a small matrix product in registers. In the backward those of their gradients would have to be summed over all
programs: instead a slice of them goes to memory, and two matrix products take it to the gradients of u and W.
SiLUs, skip and gate are elementwise kernels before and after, so that a program's lanes do not all compute them again.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from longscan.ops import _triton_launch as launch
from longscan.ops._arguments import INVALID
from longscan.ops._triton import affine, chain, leave, over_states, row_of, silu, silu_slope, sincos, wrap


@triton.jit
def _angles(
    u, W, steps, valid, channels, row, live, bias, T: tl.constexpr, R: tl.constexpr, K: tl.constexpr, DOT: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """W u + bias of a tile, for the lanes' rows of W: (T, R). u points to the tile's first step."""
    sums = tl.zeros((T, R), bias.dtype)
    if DOT:
        for first in range(0, channels, K):
            p = first + tl.arange(0, K)
            inputs = tl.load(u + steps[:, None] * channels + p[None, :], mask=valid[:, None] & (p < channels)[None, :], other=0.0)
            weights = tl.load(W + row[None, :] * channels + p[:, None], mask=live[None, :] & (p < channels)[:, None], other=0.0)
            sums = tl.dot(inputs, weights, sums, input_precision=PRECISION)
    else:
        for p in range(channels):
            inputs = tl.load(u + steps * channels + p, mask=valid, other=0.0)
            weights = tl.load(W + row * channels + p, mask=live, other=0.0)
            sums += inputs[:, None] * weights[None, :]
    return sums + bias[None, :]


@triton.jit
def _running(x, c, s, keep, SEGMENTS: tl.constexpr):
    """How much of the tile's start is still there, and the sums over the steps so far of x e^{-iG}."""
    if SEGMENTS:
        kept, re = tl.associative_scan((keep, x * c), 0, affine)
        _, im = tl.associative_scan((keep, -(x * s)), 0, affine)
    else:
        kept, re, im = keep, tl.cumsum(x * c, 0), tl.cumsum(-(x * s), 0)
    return kept, re, im


@triton.jit
def _ahead(x, keep, SEGMENTS: tl.constexpr):
    """How much of the tile's end is still there, and the sums of x over the steps from each on; keep is that of the next step."""
    if SEGMENTS:
        kept, sums = tl.associative_scan((keep, x), 0, affine, reverse=True)
    else:
        kept, sums = keep, tl.cumsum(x, 0, reverse=True)
    return kept, sums


@triton.jit(do_not_specialize=["length", "tiles", "splits", "span", "rows", "kept_stride", "y_stride"])
def scan(
    u, dt, x, W, bias, B, C, initial, start, flags, y, final, kept, ends, length, channels, states, blocks, tiles, splits, span,
    rows, kept_stride, y_stride, PHASE_DT: tl.constexpr, SUMMARY: tl.constexpr, T: tl.constexpr, BD: tl.constexpr,
    NB: tl.constexpr, K: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One split of one batch row for BD channels: y = Re sum_n C h, and the state before every tile, to `kept`.

    start: (B, splits + 1, D N, 3), or None where the split is the whole row; then `initial` (B, D N, 2) holds. With SUMMARY the
    split is run from a state of 0, and `ends` (B, splits, D N, 4) gets its turn, its w, and 0 where it forgets what came before.
    kept: in each row the turn of the whole row (D N), then the states (tiles, D N, 3).
    """
    R: tl.constexpr = BD * NB
    b = (tl.program_id(0) // blocks).to(tl.int64)
    block, split = tl.program_id(0) % blocks, tl.program_id(1)
    lane = tl.arange(0, R)
    d, n = block * BD + lane // NB, lane % NB
    live = (d < channels) & (n < states)
    place, size = d * states + n, channels * states
    parameter = (b // rows) * size
    angle = tl.load(bias + parameter + place, mask=live, other=0.0)
    Br = tl.load(B + 2 * parameter + place * 2, mask=live, other=0.0)
    Bi = tl.load(B + 2 * parameter + place * 2 + 1, mask=live, other=0.0)
    Cr = tl.load(C + 2 * parameter + place * 2, mask=live, other=0.0)
    Ci = tl.load(C + 2 * parameter + place * 2 + 1, mask=live, other=0.0)
    pr, pi = Cr * Br - Ci * Bi, Cr * Bi + Ci * Br
    phase = tl.zeros((R,), angle.dtype)
    wr, wi, alive = phase, phase, phase + 1.0
    if not SUMMARY:
        if start is not None:
            source = start + (b * (splits + 1) + split) * size * 3 + place * 3
            phase = tl.load(source, mask=live, other=0.0)
            wr, wi = tl.load(source + 1, mask=live, other=0.0), tl.load(source + 2, mask=live, other=0.0)
        else:
            source = initial + b * size * 2 + place * 2
            wr, wi = tl.load(source, mask=live, other=0.0), tl.load(source + 1, mask=live, other=0.0)
    steps = tl.arange(0, T)
    last = (steps == T - 1)[:, None]
    offsets = steps[:, None] * channels + d[None, :]
    own = block * BD + tl.arange(0, BD)
    begin = split * span
    for i in range(tl.minimum(span, tiles - begin)):
        tile = begin + i
        valid = tile * T + steps < length
        inside = valid
        first = b * length + tile * T
        keep = tl.full((T, R), 1.0, angle.dtype)
        if flags is not None:
            mark = tl.load(flags + first + steps, mask=inside, other=1)
            valid = inside & (mark != 1)
            keep = tl.where((mark == 2)[:, None], 0.0, keep)
        here = valid[:, None] & live[None, :]
        if kept is not None:
            to = kept + b * kept_stride + size + tile.to(tl.int64) * size * 3 + place * 3
            tl.store(to, phase, mask=live)
            tl.store(to + 1, wr, mask=live)
            tl.store(to + 2, wi, mask=live)
        theta = _angles(
            u + first * channels, W + parameter * channels, steps, valid, channels, place, live, angle, T, R, K, DOT, PRECISION
        )
        if PHASE_DT:
            theta *= tl.load(dt + first * channels + offsets, mask=here, other=0.0)
        theta = tl.where(valid[:, None], wrap(theta), 0.0)
        total = phase[None, :] + tl.cumsum(theta, 0)
        s, c = sincos(total)
        entering = tl.load(x + first * channels + offsets, mask=here, other=0.0)
        carried, Sr, Si = _running(entering, c, s, keep, flags is not None)
        if not SUMMARY:
            read_r = carried * (Cr * wr - Ci * wi)[None, :] + pr[None, :] * Sr - pi[None, :] * Si
            read_i = carried * (Cr * wi + Ci * wr)[None, :] + pr[None, :] * Si + pi[None, :] * Sr
            sums = over_states(c * read_r - s * read_i, T, BD, NB)
            to = y + b * y_stride + tile.to(tl.int64) * T * channels + steps[:, None] * channels + own[None, :]
            tl.store(to, sums, mask=inside[:, None] & (own < channels)[None, :])
        phase = wrap(row_of(total, last))
        end_r, end_i, holds = row_of(Sr, last), row_of(Si, last), row_of(carried, last)
        wr = holds * wr + (Br * end_r - Bi * end_i)
        wi = holds * wi + (Br * end_i + Bi * end_r)
        alive *= holds
    if SUMMARY:
        to = ends + (b * splits + split) * size * 4 + place * 4
        tl.store(to, phase, mask=live)
        tl.store(to + 1, wr, mask=live)
        tl.store(to + 2, wi, mask=live)
        tl.store(to + 3, alive, mask=live)
    elif split == splits - 1:
        s, c = sincos(phase)
        to = final + b * size * 2 + place * 2
        tl.store(to, c * wr - s * wi, mask=live)
        tl.store(to + 1, c * wi + s * wr, mask=live)
        if kept is not None:
            tl.store(kept + b * kept_stride + place, phase, mask=live)


@triton.jit(do_not_specialize=["splits"])
def turn_chain(ends, initial, start, splits, size, BLOCK: tl.constexpr):
    """The state before every split (B, splits + 1, size, 3), from what splits do to a state of 0 (B, splits, size, 4)."""
    b = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    here = place < size
    wr = tl.load(initial + b * size * 2 + place * 2, mask=here, other=0.0)
    wi = tl.load(initial + b * size * 2 + place * 2 + 1, mask=here, other=0.0)
    phase = tl.zeros((BLOCK,), wr.dtype)
    for split in range(splits + 1):
        to = start + (b * (splits + 1) + split) * size * 3 + place * 3
        tl.store(to, phase, mask=here)
        tl.store(to + 1, wr, mask=here)
        tl.store(to + 2, wi, mask=here)
        source = ends + (b * splits + split) * size * 4 + place * 4
        ours = here & (place * 0 + split < splits)
        s, c = sincos(phase)
        addr = tl.load(source + 1, mask=ours, other=0.0)
        addi = tl.load(source + 2, mask=ours, other=0.0)
        holds = tl.load(source + 3, mask=ours, other=0.0)
        wr = holds * wr + (c * addr + s * addi)
        wi = holds * wi + (c * addi - s * addr)
        phase = wrap(phase + tl.load(source, mask=ours, other=0.0))


@triton.jit(
    do_not_specialize=["length", "tiles", "splits", "span", "rows", "kept_stride", "first_split", "slice_steps", "slice_start"]
)
def scan_backward(
    u, dt, x, g, W, bias, B, C, flags, kept, mu, dx, ddt, slopes, sums, holds, length, channels, states, blocks, tiles, splits,
    span, rows, kept_stride, first_split, slice_start, slice_steps, PHASE_DT: tl.constexpr, SUMMARY: tl.constexpr,
    CHAINED: tl.constexpr, T: tl.constexpr, BD: tl.constexpr, NB: tl.constexpr, K: tl.constexpr, DOT: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """One split of one batch row for BD channels, backwards; mu (B, splits + 1, D N, 2): the gradient of w after each split.

    dx, ddt (with PHASE_DT): (B, L, D). slopes (B, slice_steps, D, N): the gradients of the projection from step slice_start on.
    sums (B, splits, D N, 5): of the bias, B and C. With CHAINED mu after the split before is stored, else it was there already:
    SUMMARY stores what the split adds, to `sums` (B, splits, D N, 2), and 0 in `holds` (the same) where it forgets mu after it.
    """
    R: tl.constexpr = BD * NB
    b = (tl.program_id(0) // blocks).to(tl.int64)
    block, split = tl.program_id(0) % blocks, first_split + tl.program_id(1)
    lane = tl.arange(0, R)
    d, n = block * BD + lane // NB, lane % NB
    live = (d < channels) & (n < states)
    place, size = d * states + n, channels * states
    parameter = (b // rows) * size
    angle = tl.load(bias + parameter + place, mask=live, other=0.0)
    Br = tl.load(B + 2 * parameter + place * 2, mask=live, other=0.0)
    Bi = tl.load(B + 2 * parameter + place * 2 + 1, mask=live, other=0.0)
    Cr = tl.load(C + 2 * parameter + place * 2, mask=live, other=0.0)
    Ci = tl.load(C + 2 * parameter + place * 2 + 1, mask=live, other=0.0)
    zero = tl.zeros((R,), angle.dtype)
    mr, mi, alive = zero, zero, zero + 1.0
    if not SUMMARY:
        source = mu + (b * (splits + 1) + split + 1) * size * 2 + place * 2
        mr, mi = tl.load(source, mask=live, other=0.0), tl.load(source + 1, mask=live, other=0.0)
    sum_bias, sum_Br, sum_Bi, sum_Cr, sum_Ci = zero, zero, zero, zero, zero
    steps = tl.arange(0, T)
    top = (steps == 0)[:, None]
    offsets = steps[:, None] * channels + d[None, :]
    own = block * BD + tl.arange(0, BD)
    begin = split * span
    count = tl.minimum(span, tiles - begin)
    for i in range(count):
        tile = begin + count - 1 - i
        valid = tile * T + steps < length
        inside = valid
        first = b * length + tile * T
        keep = tl.full((T, R), 1.0, angle.dtype)
        keep_next = keep
        fresh = steps < 0
        if flags is not None:
            mark = tl.load(flags + first + steps, mask=inside, other=1)
            following = tl.load(flags + first + steps + 1, mask=tile * T + steps + 1 < length, other=1)
            valid, fresh = inside & (mark != 1), mark == 2
            keep = tl.where(fresh[:, None], 0.0, keep)
            keep_next = tl.where((following == 2)[:, None], 0.0, keep_next)
        here = valid[:, None] & live[None, :]
        source = kept + b * kept_stride + size + tile.to(tl.int64) * size * 3 + place * 3
        phase = tl.load(source, mask=live, other=0.0)
        wr, wi = tl.load(source + 1, mask=live, other=0.0), tl.load(source + 2, mask=live, other=0.0)
        projected = _angles(
            u + first * channels, W + parameter * channels, steps, valid, channels, place, live, angle, T, R, K, DOT, PRECISION
        )
        theta = projected
        if PHASE_DT:
            step = tl.load(dt + first * channels + offsets, mask=here, other=0.0)
            theta = projected * step
        theta = tl.where(valid[:, None], wrap(theta), 0.0)
        s, c = sincos(phase[None, :] + tl.cumsum(theta, 0))
        out = tl.load(g + first * channels + offsets, mask=here, other=0.0)
        carried, Rr = _ahead(out * c, keep_next, flags is not None)
        _, Ri = _ahead(-(out * s), keep_next, flags is not None)
        mur = carried * mr[None, :] + Cr[None, :] * Rr + Ci[None, :] * Ri
        mui = carried * mi[None, :] + Cr[None, :] * Ri - Ci[None, :] * Rr
        mr, mi = row_of(mur, top), row_of(mui, top)
        alive *= row_of(carried, top)
        if not SUMMARY:
            entering = tl.load(x + first * channels + offsets, mask=here, other=0.0)
            holding, Sr, Si = _running(entering, c, s, keep, flags is not None)
            now_r = holding * wr[None, :] + Br[None, :] * Sr - Bi[None, :] * Si
            now_i = holding * wi[None, :] + Br[None, :] * Si + Bi[None, :] * Sr
            Sr -= entering * c
            Si += entering * s
            before_r = tl.where(fresh[:, None], 0.0, holding * wr[None, :] + Br[None, :] * Sr - Bi[None, :] * Si)
            before_i = tl.where(fresh[:, None], 0.0, holding * wi[None, :] + Br[None, :] * Si + Bi[None, :] * Sr)
            slope = tl.where(here, mui * before_r - mur * before_i, 0.0)
            if PHASE_DT:
                to = ddt + first * channels + steps[:, None] * channels + own[None, :]
                more = over_states(slope * projected, T, BD, NB)
                tl.store(to, more, mask=inside[:, None] & (own < channels)[None, :])
                slope *= step
            to = slopes + (b * slice_steps + tile * T - slice_start) * size
            tl.store(to + steps[:, None] * size + place[None, :], slope, mask=inside[:, None] & live[None, :])
            to = dx + first * channels + steps[:, None] * channels + own[None, :]
            turned_r, turned_i = Br[None, :] * c + Bi[None, :] * s, Bi[None, :] * c - Br[None, :] * s
            more = over_states(turned_r * mur + turned_i * mui, T, BD, NB)
            tl.store(to, more, mask=inside[:, None] & (own < channels)[None, :])
            sum_bias += tl.sum(slope, 0)
            sum_Br += tl.sum(entering * (c * mur - s * mui), 0)
            sum_Bi += tl.sum(entering * (c * mui + s * mur), 0)
            sum_Cr += tl.sum(out * (c * now_r - s * now_i), 0)
            sum_Ci -= tl.sum(out * (c * now_i + s * now_r), 0)
        if flags is not None:
            holds_first = row_of(keep, top)
            mr, mi, alive = mr * holds_first, mi * holds_first, alive * holds_first
    if SUMMARY:
        to = (b * splits + split) * size * 2 + place * 2
        tl.store(sums + to, mr, mask=live)
        tl.store(sums + to + 1, mi, mask=live)
        tl.store(holds + to, alive, mask=live)
        tl.store(holds + to + 1, alive, mask=live)
    else:
        to = sums + (b * splits + split) * size * 5 + place * 5
        tl.store(to, sum_bias, mask=live)
        tl.store(to + 1, sum_Br, mask=live)
        tl.store(to + 2, sum_Bi, mask=live)
        tl.store(to + 3, sum_Cr, mask=live)
        tl.store(to + 4, sum_Ci, mask=live)
        if CHAINED:
            to = mu + (b * (splits + 1) + split) * size * 2 + place * 2
            tl.store(to, mr, mask=live)
            tl.store(to + 1, mi, mask=live)


@triton.jit(do_not_specialize=["kept_stride", "mu_stride"])
def turn_back(kept, grad_final, mu, kept_stride, mu_stride, size, BLOCK: tl.constexpr):
    """What the gradient of the final state is in the frame of w."""
    b = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    here = place < size
    s, c = sincos(tl.load(kept + b * kept_stride + place, mask=here, other=0.0))
    re = tl.load(grad_final + b * size * 2 + place * 2, mask=here, other=0.0)
    im = tl.load(grad_final + b * size * 2 + place * 2 + 1, mask=here, other=0.0)
    tl.store(mu + b * mu_stride + place * 2, c * re + s * im, mask=here)
    tl.store(mu + b * mu_stride + place * 2 + 1, c * im - s * re, mask=here)


@triton.jit(do_not_specialize=["length", "tiles"])
def enter(u, dt, z, grad_y, flags, x, g, length, channels, tiles, T: tl.constexpr, BD: tl.constexpr):
    """What a scan reads: x = dt silu(u), and of grad_y the gradient g before the gate. 0 at invalid steps."""
    b, tile = (tl.program_id(0) // tiles).to(tl.int64), tl.program_id(0) % tiles
    steps, d = tl.arange(0, T), tl.program_id(1) * BD + tl.arange(0, BD)
    inside = tile * T + steps < length
    first = b * length + tile * T
    valid = inside
    if flags is not None:
        valid = inside & (tl.load(flags + first + steps, mask=inside, other=1) != 1)
    at = first * channels + steps[:, None] * channels + d[None, :]
    here, there = valid[:, None] & (d < channels)[None, :], inside[:, None] & (d < channels)[None, :]
    value = tl.load(dt + at, mask=here, other=0.0) * silu(tl.load(u + at, mask=here, other=0.0))
    tl.store(x + at, value, mask=there)
    if grad_y is not None:
        slope = tl.load(grad_y + at, mask=here, other=0.0)
        if z is not None:
            slope *= silu(tl.load(z + at, mask=here, other=0.0))
        tl.store(g + at, slope, mask=there)


@triton.jit(do_not_specialize=["length", "tiles", "rows", "raw_stride"])
def leave_backward(
    grad_y, u, dt, D, z, flags, raw, dx, du, ddt, dz, dD, length, channels, tiles, rows, raw_stride, PHASE_DT: tl.constexpr,
    T: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """The gradients of u, dt and z: du and (with PHASE_DT) ddt hold what comes through the angles. dD: (B, tiles, D) sums."""
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
    entry = tl.load(u + at, mask=here, other=0.0)
    activated = silu(entry)
    slope = tl.load(grad_y + at, mask=here, other=0.0)
    value = tl.load(raw + b * raw_stride + tile.to(tl.int64) * T * channels + offsets, mask=here, other=0.0)
    skip = tl.zeros((BD,), entry.dtype)
    if D is not None:
        skip = tl.load(D + (b // rows) * channels + d, mask=d < channels, other=0.0)
        value += skip[None, :] * activated
    if z is not None:
        gate = tl.load(z + at, mask=here, other=0.0)
        tl.store(dz + at, slope * value * silu_slope(gate), mask=there)
        slope *= silu(gate)
    if D is not None:
        tl.store(dD + (b * tiles + tile) * channels + d, tl.sum(slope * activated, 0), mask=d < channels)
    entering = tl.load(dx + at, mask=here, other=0.0)
    step = tl.load(dt + at, mask=here, other=0.0)
    more = (step * entering + skip[None, :] * slope) * silu_slope(entry)
    tl.store(du + at, tl.where(here, tl.load(du + at, mask=here, other=0.0) + more, 0.0), mask=there)
    change = entering * activated
    if PHASE_DT:
        change += tl.load(ddt + at, mask=here, other=0.0)
    tl.store(ddt + at, tl.where(here, change, 0.0), mask=there)


# ---------------------------------------------------------------------------------------------- launches


class _Problem(NamedTuple):
    """Sizes of a call, and how channels and states are laid out. rows: batch rows a group; each has its own parameters."""

    batch: int
    length: int
    channels: int
    states: int
    groups: int
    single: bool
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

    def constants(self) -> dict[str, Any]:
        """The compile-time arguments of both scans."""
        K = max(16, min(32, launch.power_of_two(self.channels)))
        return {
            "T": launch.TABLE["unitary_scan"].steps, "BD": self.layout.BD, "NB": self.layout.NB, "K": K,
            "DOT": self.single, "PRECISION": launch.dot_precision(), "num_warps": self.layout.warps,
        }  # fmt: skip


def _problem(u: Tensor, W: Tensor, initial_state: Tensor) -> _Problem:
    batch, length, channels = u.shape
    states = initial_state.shape[2]
    groups = len(W) if W.ndim == 4 else 1
    lay = launch.layout("unitary_scan", channels, states)
    return _Problem(batch, length, channels, states, groups, u.dtype == torch.float32, lay)


def chunk_states_shape(batch: int, length: int, channels: int, states: int) -> tuple[int, int]:
    """Of what `forward` keeps for `backward`, row by row: the whole turn, the state before every tile, and y before the gate."""
    tiles = launch.ceil_div(length, launch.TABLE["unitary_scan"].steps)
    return batch, channels * states * (1 + 3 * tiles) + length * channels


def forward(
    u: Tensor,
    dt: Tensor,
    W: Tensor,
    bias: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    initial_state: Tensor,
    flags: Tensor | None,
    phase_dt: bool,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """y (B, L, D), the final state (B, D, N, 2) and what `backward` needs where `keep`.

    Contiguous tensors of one real dtype; L, D and N at least 1. The parameters W (D, N, D), bias, B, C and D may have one more
    leading axis, of groups: as many runs of batch rows then have parameters of their own.
    """
    p = _problem(u, W, initial_state)
    split = launch.plan("unitary_scan", p.length, p.programs)
    y, final, x = torch.empty_like(u), torch.empty_like(initial_state), torch.empty_like(u)
    kept = u.new_empty(chunk_states_shape(p.batch, p.length, p.channels, p.states) if keep else (0,))
    raw = kept[:, -p.length * p.channels :] if keep else y
    with launch.on_device(u):
        grid, tiles, each = launch.elementwise(p.batch, p.length, p.channels)
        enter[grid](u, dt, None, None, flags, x, None, p.length, p.channels, tiles, **each)
        start = None
        if split.splits > 1:
            ends = u.new_empty((p.batch, split.splits, p.size, 4))
            start = u.new_empty((p.batch, split.splits + 1, p.size, 3))
            _scan(p, split, (u, dt, x, W, bias, B, C, initial_state, None, flags, None, None, None, ends), 0, 0, phase_dt, True)
            chain_grid = p.batch, launch.ceil_div(p.size, 128)
            turn_chain[chain_grid](ends, initial_state, start, split.splits, p.size, BLOCK=128)
        outputs = (raw, final, kept if keep else None, None)
        inputs = (u, dt, x, W, bias, B, C, initial_state, start, flags)
        _scan(p, split, (*inputs, *outputs), kept.stride(0), raw.stride(0), phase_dt, False)
        leave[grid](raw, u, D, z, flags, y, p.length, p.channels, tiles, p.rows, raw.stride(0), ACTIVATED=True, **each)
    return y, final, kept


def _scan(
    p: _Problem,
    split: launch.Plan,
    tensors: tuple[Tensor | None, ...],
    kept_stride: int,
    y_stride: int,
    phase_dt: bool,
    summary: bool,
) -> None:
    scan[(p.programs, split.splits)](
        *tensors, p.length, p.channels, p.states, p.layout.blocks, split.tiles, split.splits, split.span, p.rows, kept_stride,
        y_stride, PHASE_DT=phase_dt, SUMMARY=summary, **p.constants(),
    )  # fmt: skip


def backward(
    grad_y: Tensor,
    grad_final: Tensor,
    u: Tensor,
    dt: Tensor,
    W: Tensor,
    bias: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    initial_state: Tensor,
    flags: Tensor | None,
    chunk_states: Tensor,
    phase_dt: bool,
) -> tuple[Tensor, ...]:
    """The gradients of u, dt, W, bias, B, C, D, z and initial_state; empty tensors for absent inputs."""
    p = _problem(u, W, initial_state)
    step_bytes = p.batch * p.size * u.element_size()
    most = max(1, launch.SCRATCH // (step_bytes * launch.TABLE["unitary_scan"].steps))
    split = launch.plan("unitary_scan", p.length, p.programs, most)
    if flags is not None:  # what stands at an invalid step meets a gradient of 0 in a matrix product: it must be finite
        u = u.masked_fill((flags == INVALID).unsqueeze(-1), 0)
    x, g, dx, du, ddt = (torch.empty_like(u) for _ in range(5))
    dz, dW = u.new_empty(0) if z is None else torch.empty_like(z), torch.zeros_like(W)
    mu = u.new_empty((p.batch, split.splits + 1, p.size, 2))
    sums = u.new_empty((p.batch, split.splits, p.size, 5))
    raw = chunk_states[:, -p.length * p.channels :]
    with launch.on_device(u):
        grid, tiles, each = launch.elementwise(p.batch, p.length, p.channels)
        enter[grid](u, dt, z, grad_y, flags, x, g, p.length, p.channels, tiles, **each)
        chain_grid = p.batch, launch.ceil_div(p.size, 128)
        turn_back[chain_grid](
            chunk_states, grad_final, mu[:, -1], chunk_states.stride(0), mu.stride(0), p.size, BLOCK=128
        )
        inputs, stride = (u, dt, x, g, W, bias, B, C, flags, chunk_states, mu), chunk_states.stride(0)
        if split.parallel:
            local, holds = (u.new_empty((p.batch, split.splits, p.size, 2)) for _ in range(2))
            _scan_backward(p, split, (*inputs, None, None, None, local, holds), stride, (0, split.splits), 0, phase_dt, True)
            end = mu[:, -1].contiguous()
            chain_grid = p.batch, launch.ceil_div(2 * p.size, 128)
            chain[chain_grid](holds, local, end, mu, split.splits, 2 * p.size, COMPLEX=False, REVERSE=True, BLOCK=128)
        steps_of_split = split.span * split.T
        at_once = max(1, launch.SCRATCH // (step_bytes * steps_of_split)) if split.parallel else 1
        scratch = u.new_empty(p.batch * min(at_once * steps_of_split, p.length) * p.size)
        for first, stop in launch.slices(split.splits, at_once):
            begin, end_step = first * steps_of_split, min(stop * steps_of_split, p.length)
            count = end_step - begin
            slopes = scratch[: p.batch * count * p.size]
            outputs = (dx, ddt, slopes, sums, None)
            _scan_backward(p, split, (*inputs, *outputs), stride, (first, stop), count, phase_dt, False)
            slopes = slopes.view(p.groups, p.rows * count, p.size)
            weights = W.view(p.groups, p.size, p.channels)
            du[:, begin:end_step] = torch.bmm(slopes, weights).view(p.batch, count, p.channels)
            rows = u[:, begin:end_step].reshape(p.groups, p.rows * count, p.channels)
            dW.view(p.groups, p.size, p.channels).baddbmm_(slopes.mT, rows)
        dD = None if D is None else u.new_empty((p.batch, tiles, p.channels))
        leave_backward[grid](
            grad_y, u, dt, D, z, flags, raw, dx, du, ddt, dz, dD, p.length, p.channels, tiles, p.rows, raw.stride(0),
            PHASE_DT=phase_dt, **each,
        )  # fmt: skip
    d_bias, dB, dC = (
        x.clone(memory_format=torch.contiguous_format) for x in sums.view(p.groups, -1, p.size, 5).sum(1).split([1, 2, 2], -1)
    )
    d_initial = torch.empty_like(initial_state)
    d_initial.view(p.batch, p.size, 2).copy_(mu[:, 0])
    skip = u.new_empty(0) if D is None or dD is None else dD.view(p.groups, -1, p.channels).sum(1).reshape(D.shape)
    return du, ddt, dW, d_bias.view(bias.shape), dB.view(B.shape), dC.view(C.shape), skip, dz, d_initial


def _scan_backward(
    p: _Problem,
    split: launch.Plan,
    tensors: tuple[Tensor | None, ...],
    kept_stride: int,
    which: tuple[int, int],
    count: int,
    phase_dt: bool,
    summary: bool,
) -> None:
    first, stop = which
    scan_backward[(p.programs, stop - first)](
        *tensors, p.length, p.channels, p.states, p.layout.blocks, split.tiles, split.splits, split.span, p.rows, kept_stride,
        first, first * split.span * split.T, count, PHASE_DT=phase_dt, SUMMARY=summary, CHAINED=not split.parallel,
        **p.constants(),
    )  # fmt: skip
