"""`selective_scan` in Triton, real and complex: no tensor of size (B, L, D, N) in memory in either direction.

A program owns BD channels with all their states and goes over the steps tile by tile. The states of a tile are an associative
scan of x -> a x + b with a = exp(s A), b = s B u, s the step size; the state before the first step enters its b. The backward
goes tile by tile from the last to the first. Of the states only those where chunks of many tiles start were kept, and a chunk is
run again for those of its tiles. Each tile is run again for all its states and scanned backwards for the adjoint
  g_t = gy_t conj(C_t) + conj(a_{t+1}) g_{t+1}
  dC_t = sum_d gy_t conj(h_t)      dB_t = sum_d g_t s_t u_t        d(s_t u_t) = sum_n Re(g_t conj(B_t))
  dA = sum_t s_t w_t               ds_t = sum_n Re(w_t conj(A)),   w_t = g_t conj(a_t h_{t-1})
with gy = k dL/dy silu(z), k = 2 for conjugate pairs. dB and dC are summed over a program's channels in registers and over
programs in memory, always in the same order. Of channels with few states that is done after each slice of the steps, for which
every program has a part of its own. Of others a program adds what it has of a tile after the one before it did, and as all go
from the last tile to the first, each a little behind another, they seldom wait. An invalid step has s = 0 and B = C = 0.

Axes of a tile: (steps T, CR, NR, CW, NL, CL), channel (CR, CW, CL) and state (NR, NL). From the last axis on, Triton fills the
32 lanes of a warp and then the warps: CL channels and NL states lie over lanes, CW channels and some of NR over warps, the rest
and all steps in the registers of a thread. So steps are scanned, and most states summed, without a word to another thread. What
belongs to a channel alone is (T, BD), what belongs to a state (T, NB): loaded once, and softplus and silu taken once.
"""

from collections.abc import Callable
from math import isqrt
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from longscan.ops import _triton_launch as launch
from longscan.ops._triton import (
    affine,
    chain,
    segmented_affine,
    sigmoid,
    silu,
    silu_slope,
    sincos,
    softplus,
)


@triton.jit
def _bits(x):
    """The same bits as integers: sums with 0 and differences of equal ones are exact, and vanish where they are in registers."""
    return x.to(tl.int64 if x.dtype == tl.float64 else tl.int32, bitcast=True)


@triton.jit
def _at(x, place):
    """Of numbers along the first axis those at the one `place` that is marked."""
    return tl.sum(tl.where(place, _bits(x), 0), 0).to(x.dtype, bitcast=True)


@triton.jit
def _channels(CR: tl.constexpr, CW: tl.constexpr, CL: tl.constexpr):
    """The channels of a program, (CR, 1, CW, 1, CL)."""
    first = (tl.arange(0, CR) * (CW * CL))[:, None, None] + (tl.arange(0, CW) * CL)[None, :, None]
    return (first + tl.arange(0, CL)[None, None, :])[:, None, :, None, :]


@triton.jit
def _states(NR: tl.constexpr, NL: tl.constexpr):
    """The states of a channel, (1, NR, 1, NL, 1)."""
    return ((tl.arange(0, NR) * NL)[:, None] + tl.arange(0, NL)[None, :])[None, :, None, :, None]


@triton.jit
def _load(source, mask):
    """Numbers of the pairs of channel and state."""
    x = tl.load(source, mask=mask, other=0.0)
    return tl.reshape(x[None], x.shape)


@triton.jit
def _stack(a, b):
    """Tiles, or numbers (T, BD), one after the other along the steps."""
    first = tl.arange(0, 2) == 0
    if len(a.shape) == 2:
        both = tl.where(first[:, None, None], a[None], b[None])
        both = tl.reshape(both, (2 * a.shape[0], a.shape[1]))
    else:
        both = tl.where(tl.reshape(first, (2, 1, 1, 1, 1, 1, 1)), a[None], b[None])
        both = tl.reshape(both, (2 * a.shape[0], a.shape[1], a.shape[2], a.shape[3], a.shape[4], a.shape[5]))
    return both


@triton.jit
def _pick(x, which: tl.constexpr):
    """Of tiles along a first axis the one at `which`."""
    return _at(x, tl.reshape(tl.arange(0, x.shape[0]) == which, (x.shape[0], 1, 1, 1, 1, 1, 1)))


@triton.jit
def _by_channel(x, T: tl.constexpr, CR: tl.constexpr, NR: tl.constexpr, CW: tl.constexpr, NL: tl.constexpr, CL: tl.constexpr):
    """Stacked (T, BD) as tiles. The layout of x goes no further than its new axis: scans have Triton's default."""
    x = tl.reshape(x[:, None, :], (x.shape[0] // T, T, CR, 1, CW, 1, CL))
    return tl.broadcast_to(x, (x.shape[0], T, CR, NR, CW, NL, CL))


@triton.jit
def _once(x, FEW: tl.constexpr):
    """x (T, BD). Where a program has more threads than FEW x, Triton would compute x anew in every thread, but for this sum."""
    if FEW:
        first = (tl.arange(0, 4) == 0)[None, None, :]
        x = tl.sum(tl.where(first, x[:, :, None], 0.0), 2)
    return x


@triton.jit
def _by_state(
    source, offsets, mask, dtype: tl.constexpr, P: tl.constexpr, CR: tl.constexpr, NR: tl.constexpr, CW: tl.constexpr,
    NL: tl.constexpr, CL: tl.constexpr,
):  # fmt: skip
    """(T, NB * P) numbers from memory as P tiles."""
    x = tl.load(source + offsets, mask=mask, other=0.0).to(dtype)
    T: tl.constexpr = x.shape[0]
    x = tl.permute(tl.reshape(x, (T, NR * NL, P)), (2, 0, 1))
    x = tl.reshape(x[:, :, :, None], (P, T, 1, NR, 1, NL, 1))
    return tl.broadcast_to(x, (P, T, CR, NR, CW, NL, CL))


@triton.jit
def _exchange(x, axis: tl.constexpr):
    """The two numbers along an axis, each in the place of the other: as integers, their sum less each."""
    bits = _bits(x)
    return (tl.sum(bits, axis, keep_dims=True) - bits).to(x.dtype, bitcast=True)


@triton.jit
def _backwards(x):
    """A tile, its last step first."""
    shape: tl.constexpr = x.shape
    for i in tl.static_range(10):
        if 2**i < shape[0]:
            x = _exchange(tl.reshape(x, (2**i, 2, shape[0] // 2 ** (i + 1), shape[1], shape[2], shape[3], shape[4], shape[5])), 1)
    return tl.reshape(x, shape)


@triton.jit
def _over_lanes(x):
    """(T, M, L) of T steps in the registers and L numbers in the lanes of a warp, summed over L: (T, M), steps in the lanes.

    Two lanes that differ in one bit exchange halves: each keeps the steps of one half and sends those of the other, so that every
    exchange leaves half as many numbers.
    """
    half = tl.arange(0, 2)
    for _ in tl.static_range(5):
        if x.shape[0] > 1 and x.shape[2] > 1:
            x = tl.reshape(x, (2, x.shape[0] // 2, x.shape[1], 2, x.shape[2] // 2))
            first = _at(x, (half == 0)[:, None, None, None, None])
            second = _at(x, (half == 1)[:, None, None, None, None])
            lower = (half == 0)[None, None, :, None]
            x = tl.where(lower, first, second) + _exchange(tl.where(lower, second, first), 2)
            x = tl.reshape(x, (x.shape[0], x.shape[1] * 2, x.shape[3]))
    return tl.sum(x, 2)


@triton.jit
def _in_order(x, T: tl.constexpr):
    """What `_over_lanes` made of (T, M, L), as (T, M)."""
    shape: tl.constexpr = (x.shape[0], x.shape[0] * x.shape[1] // T, T // x.shape[0])
    return tl.reshape(tl.permute(tl.reshape(x, shape), (2, 0, 1)), (T, shape[1]))


@triton.jit
def _over_states(x, NW: tl.constexpr):
    """A tile, summed over the states, which lie over NW warps: (T, BD)."""
    T: tl.constexpr = x.shape[0]
    CR: tl.constexpr = x.shape[1]
    CW: tl.constexpr = x.shape[3]
    NL: tl.constexpr = x.shape[4]
    CL: tl.constexpr = x.shape[5]
    x = tl.sum(tl.reshape(x, (T, CR, x.shape[2] // NW, NW, CW, NL, CL)), 2)
    x = _over_lanes(tl.reshape(tl.permute(x, (0, 1, 2, 3, 5, 4)), (T, CR * NW * CW * CL, NL)))
    rest: tl.constexpr = x.shape[0]
    x = tl.sum(tl.reshape(x, (rest, CR, NW, CW * CL * (T // rest))), 2)
    return _in_order(tl.reshape(x, (rest, CR * CW * CL * (T // rest))), T)


@triton.jit
def _over_channels(x):
    """A tile, summed over the channels: (T, NB)."""
    T: tl.constexpr = x.shape[0]
    NR: tl.constexpr = x.shape[2]
    CW: tl.constexpr = x.shape[3]
    NL: tl.constexpr = x.shape[4]
    x = _over_lanes(tl.reshape(tl.sum(x, 1), (T, NR * CW * NL, x.shape[5])))
    rest: tl.constexpr = x.shape[0]
    x = tl.sum(tl.reshape(x, (rest, NR, CW, NL * (T // rest))), 2)
    return _in_order(tl.reshape(x, (rest, NR * NL * (T // rest))), T)


@triton.jit
def _complex(ar1, ai1, br1, bi1, ar2, ai2, br2, bi2):
    """`affine` for complex numbers, in as few operations as there are products."""
    return (
        ar1 * ar2 - ai1 * ai2,
        ar1 * ai2 + ai1 * ar2,
        ar2 * br1 + (br2 - ai2 * bi1),
        ar2 * bi1 + (bi2 + ai2 * br1),
    )


@triton.jit
def _segmented_complex(restart1, ar1, ai1, br1, bi1, restart2, ar2, ai2, br2, bi2):
    """`segmented_affine` for complex numbers."""
    ar, ai, br, bi = _complex(ar1, ai1, br1, bi1, ar2, ai2, br2, bi2)
    return restart1 | restart2, ar, ai, tl.where(restart2, br2, br), tl.where(restart2, bi2, bi)


@triton.jit
def _marked(flags, first, steps, inside):
    """Which steps of a tile count, and which start a sequence."""
    valid, fresh = inside, steps < 0
    if flags is not None:
        mark = tl.load(flags + first + steps, mask=inside, other=1)
        valid, fresh = inside & (mark != 1), mark == 2
    return valid, fresh


@triton.jit
def _step_sizes(dt, dt_scale, at, first, steps, bias, valid, here, SOFTPLUS: tl.constexpr, FEW: tl.constexpr):
    """s (T, BD) of a tile: what dt is with the bias, what that is scaled by, s before it is scaled, and s, 0 at invalid steps."""
    before = tl.load(dt + at, mask=here, other=0.0).to(bias.dtype) + bias[None, :]
    unscaled = before
    if SOFTPLUS:
        unscaled = softplus(before)
    s, scale = unscaled, 1.0
    if dt_scale is not None:
        scale = tl.load(dt_scale + first + steps, mask=valid, other=0.0).to(bias.dtype)[:, None]
        s *= scale
    return before, scale, unscaled, _once(tl.where(here, s, 0.0), FEW)


@triton.jit
def _tile_restarts(fresh, x):
    """Which numbers of a tile like x are of a step that starts a sequence."""
    return tl.broadcast_to(tl.reshape(fresh, (x.shape[0], 1, 1, 1, 1, 1)), x.shape)


@triton.jit
def _states_of_tile(ar, ai, entering, at_B, hr, hi, flags, fresh, COMPLEX: tl.constexpr):
    """The states after each step of a tile, from the state h before it; from 0 at steps that are `fresh`."""
    T: tl.constexpr = ar.shape[0]
    top = tl.reshape(tl.arange(0, T) == 0, (T, 1, 1, 1, 1, 1))
    if flags is not None:
        restart = _tile_restarts(fresh, ar)
        top = top & ~restart
    br = entering * _pick(at_B, 0)
    if COMPLEX:
        br += tl.where(top, ar * hr[None] - ai * hi[None], 0.0)
        bi = entering * _pick(at_B, 1) + tl.where(top, ar * hi[None] + ai * hr[None], 0.0)
        if flags is not None:
            _, _, _, xr, xi = tl.associative_scan((restart, ar, ai, br, bi), 0, _segmented_complex)
        else:
            _, _, xr, xi = tl.associative_scan((ar, ai, br, bi), 0, _complex)
    else:
        br += tl.where(top, ar * hr[None], 0.0)
        if flags is not None:
            _, _, xr = tl.associative_scan((restart, ar, br), 0, segmented_affine)
        else:
            _, xr = tl.associative_scan((ar, br), 0, affine)
        xi = xr
    return xr, xi


@triton.jit
def _before(x1, p1, many1, x2, p2, many2):  # noqa: ARG001
    """Of an associative scan: each x, the one before it, and whether there is one. p of a single x is what stands before all."""
    return x2, tl.where(many2, p2, x1), many1 | True


@triton.jit
def _previous(x, first):
    """A tile one step later; `first` stands at its first step."""
    first, _ = tl.broadcast(first, x)
    _, before, _ = tl.associative_scan((x, first, tl.full(x.shape, 0, tl.int1)), 0, _before)
    return before


@triton.jit
def _decay(step, Ar, Ai, COMPLEX: tl.constexpr):
    """exp(step A). In float32 the angle is counted in half turns r, and sin(pi r) and cos(pi r) are near-minimax polynomials."""
    size = tl.exp2(step * (Ar * 1.4426950408889634))
    if COMPLEX and step.dtype == tl.float64:
        s, c = sincos(step * Ai)
        re, im = size * c, size * s
    elif COMPLEX:
        half_turns = Ai * 0.3183098861837907
        shifted = step * half_turns + 12582912.0
        r = step * half_turns - (shifted - 12582912.0)
        q = r * r
        s = q * 0.07756038697733733 - 0.5982421264103598
        s = q * s + 2.550069726333355
        s = q * s - 5.167709684798838
        s = q * s + 3.141592636895391
        c = q * -0.024420699929364294 + 0.2349539256378065
        c = q * c - 1.3352161048711328
        c = q * c + 4.058709599759716
        c = q * c - 4.934802156087734
        size = (size.to(tl.int32, bitcast=True) ^ (shifted.to(tl.int32, bitcast=True) << 31)).to(tl.float32, bitcast=True)
        re, im = size * (q * c + 1.0), size * r * s
    else:
        re, im = size, size
    return re, im


@triton.jit(do_not_specialize=["length", "blocks", "tiles", "splits", "span", "rows", "each"])
def scan(
    u, dt, A, B, C, D, z, dt_bias, dt_scale, initial, start, flags, y, final, kept, mult, ends, length, channels, states, blocks,
    tiles, splits, span, rows, each, k: tl.constexpr, SOFTPLUS: tl.constexpr, COMPLEX: tl.constexpr, SUMMARY: tl.constexpr,
    EACH: tl.constexpr, T: tl.constexpr, CR: tl.constexpr, NR: tl.constexpr, CW: tl.constexpr, NL: tl.constexpr,
    CL: tl.constexpr, NW: tl.constexpr, FEW: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """One split of one batch row for BD channels: y, and the state before every `each` steps, to `kept` (B, L / each, [2,] N, D).
    EACH: the smaller of `each` and T.

    start: (B, splits + 1, D N[, 2]), or None where the split is the whole row; then `initial` (B, D N[, 2]) holds. With SUMMARY
    the split is run from a state of 0: `ends` (B, splits, D N[, 2]) gets its last state, `mult` the factor of the state before
    it, which says nothing where a sequence starts in the split.
    """
    P: tl.constexpr = 2 if COMPLEX else 1
    BD: tl.constexpr = CR * CW * CL
    NB: tl.constexpr = NR * NL
    b = (tl.program_id(0) // blocks).to(tl.int64)
    block, split = tl.program_id(0) % blocks, tl.program_id(1)
    steps, d, numbers = tl.arange(0, T), block * BD + tl.arange(0, BD), tl.arange(0, NB * P)
    lane_d, lane_n = block * BD + _channels(CR, CW, CL), _states(NR, NL)
    live = (lane_d < channels) & (lane_n < states)
    place, size = lane_d * states + lane_n, channels * states
    source = A + (b // rows) * size * P + place * P
    Ar = _load(source, live)
    Ai = Ar
    hr, hi = Ar * 0.0, Ar * 0.0
    if COMPLEX:
        Ai = _load(source + 1, live)
    if not SUMMARY:
        if start is not None:
            source = start + (b * (splits + 1) + split) * size * P + place * P
        else:
            source = initial + b * size * P + place * P
        hr = _load(source, live)
        if COMPLEX:
            hi = _load(source + 1, live)
    bias, skip, elapsed = tl.zeros((BD,), Ar.dtype), tl.zeros((BD,), Ar.dtype), tl.zeros((BD,), Ar.dtype)
    if dt_bias is not None:
        bias = tl.load(dt_bias + (b // rows) * channels + d, mask=d < channels, other=0.0)
    if D is not None:
        skip = tl.load(D + (b // rows) * channels + d, mask=d < channels, other=0.0)
    last = tl.reshape(steps == T - 1, (T, 1, 1, 1, 1, 1))
    begin = split * span
    for i in tl.range(tl.minimum(span, tiles - begin), num_stages=STAGES):
        tile = begin + i
        inside = tile * T + steps < length
        first = b * length + tile * T
        at = first * channels + (steps[:, None] * channels + d[None, :])
        by_state = first * states * P + (steps[:, None] * states * P + numbers[None, :])
        valid, fresh = _marked(flags, first, steps, inside)
        here, there = valid[:, None] & (d < channels)[None, :], inside[:, None] & (d < channels)[None, :]
        with_state = valid[:, None] & (numbers < states * P)[None, :]
        entry = tl.load(u + at, mask=here, other=0.0).to(Ar.dtype)
        _, _, _, s = _step_sizes(dt, dt_scale, at, first, steps, bias, valid, here, SOFTPLUS, FEW)
        lifted = _by_channel(_stack(s, s * entry), T, CR, NR, CW, NL, CL)
        ar, ai = _decay(_pick(lifted, 0), Ar[None], Ai[None], COMPLEX)
        at_B = _by_state(B, by_state, with_state, Ar.dtype, P, CR, NR, CW, NL, CL)
        xr, xi = _states_of_tile(ar, ai, _pick(lifted, 1), at_B, hr, hi, flags, fresh, COMPLEX)
        if kept is not None:
            for part in tl.static_range(T // EACH):
                if part > 0:
                    before = tl.reshape(steps == part * EACH - 1, (T, 1, 1, 1, 1, 1))
                    hr = _at(xr, before)
                    if COMPLEX:
                        hi = _at(xi, before)
                t = tile * T + part * EACH
                to = kept + (b * tl.cdiv(length, each) + t // each) * size * P + (lane_n * channels + lane_d)
                starts = live & (lane_d * 0 + t < length) & (lane_d * 0 + t % each == 0)
                tl.store(to, hr, mask=starts)
                if COMPLEX:
                    tl.store(to + size, hi, mask=starts)
        hr = _at(xr, last)
        if COMPLEX:
            hi = _at(xi, last)
        if SUMMARY:
            elapsed += tl.sum(s, 0)
        else:
            at_C = _by_state(C, by_state, with_state, Ar.dtype, P, CR, NR, CW, NL, CL)
            read = xr * _pick(at_C, 0)
            if COMPLEX:
                read -= xi * _pick(at_C, 1)
            value = k * _over_states(read, NW) + skip[None, :] * entry
            if z is not None:
                value *= silu(tl.load(z + at, mask=here, other=0.0).to(Ar.dtype))
            tl.store(y + at, tl.where(here, value, 0.0), mask=there)
    if SUMMARY:
        to = (b * splits + split) * size * P + place * P
        tl.store(ends + to, hr, mask=live)
        ar, ai = _decay(tl.reshape(elapsed, (CR, 1, CW, 1, CL)), Ar, Ai, COMPLEX)
        tl.store(mult + to, ar, mask=live)
        if COMPLEX:
            tl.store(ends + to + 1, hi, mask=live)
            tl.store(mult + to + 1, ai, mask=live)
    elif split == splits - 1:
        to = final + b * size * P + place * P
        tl.store(to, hr, mask=live)
        if COMPLEX:
            tl.store(to + 1, hi, mask=live)


@triton.jit
def _run_again(
    kept, own, u, dt, B, dt_scale, flags, bias, Ar, Ai, live, begin, stop, d, channels, states, SOFTPLUS: tl.constexpr,
    COMPLEX: tl.constexpr, EACH: tl.constexpr, T: tl.constexpr, CR: tl.constexpr, NR: tl.constexpr, CW: tl.constexpr,
    NL: tl.constexpr, CL: tl.constexpr, FEW: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """From the state before the row `begin` of u, at `kept`, the states before every EACH rows on to `stop`, to `own`."""
    P: tl.constexpr = 2 if COMPLEX else 1
    pairs: tl.constexpr = CR * NR * CW * NL * CL
    steps, numbers = tl.arange(0, T), tl.arange(0, NR * NL * P)
    hr = _load(kept, live)
    hi = hr
    if COMPLEX:
        hi = _load(kept + channels * states, live)
    for first in tl.range(begin, stop, T, num_stages=STAGES):
        at = first * channels + (steps[:, None] * channels + d[None, :])
        by_state = first * states * P + (steps[:, None] * states * P + numbers[None, :])
        valid, fresh = _marked(flags, first, steps, first + steps < stop)
        here, with_state = valid[:, None] & (d < channels)[None, :], valid[:, None] & (numbers < states * P)[None, :]
        entry = tl.load(u + at, mask=here, other=0.0).to(Ar.dtype)
        _, _, _, s = _step_sizes(dt, dt_scale, at, first, steps, bias, valid, here, SOFTPLUS, FEW)
        lifted = _by_channel(_stack(s, s * entry), T, CR, NR, CW, NL, CL)
        ar, ai = _decay(_pick(lifted, 0), Ar[None], Ai[None], COMPLEX)
        at_B = _by_state(B, by_state, with_state, Ar.dtype, P, CR, NR, CW, NL, CL)
        xr, xi = _states_of_tile(ar, ai, _pick(lifted, 1), at_B, hr, hi, flags, fresh, COMPLEX)
        for part in tl.static_range(T // EACH):
            to = own + ((first - begin) // EACH + part) * (P * pairs)
            tl.store(to, hr)
            if COMPLEX:
                tl.store(to + pairs, hi)
            end = tl.reshape(steps == (part + 1) * EACH - 1, (T, 1, 1, 1, 1, 1))
            hr = _at(xr, end)
            hi = hr
            if COMPLEX:
                hi = _at(xi, end)


# Loops and barriers of Triton's own in a loop would keep it from loading ahead there: where it can be, they are assembly.
@triton.jit
def _announce(counter, count, FENCED: tl.constexpr, PTX: tl.constexpr):
    """Where `count` is not 0, store it. FENCED: once all threads have done what is before, and whoever sees it sees that, too."""
    if PTX and FENCED:
        code: tl.constexpr = """{
            .reg .pred due, first;
            mov.u32 $0, %tid.x;
            setp.gt.s32 due, $2, 0;
            setp.eq.and.u32 first, $0, 0, due;
            @due bar.sync 0;
            @first st.release.gpu.global.s32 [$1], $2;
        }"""
        args = [counter.to(tl.int64), count]
        tl.inline_asm_elementwise(code, "=&r,l,r", args, dtype=tl.int32, is_pure=False, pack=1)
    elif PTX:
        relaxed: tl.constexpr = """{
            .reg .pred first;
            mov.u32 $0, %tid.x;
            setp.eq.u32 first, $0, 0;
            setp.gt.and.s32 first, $2, 0, first;
            @first st.relaxed.gpu.global.s32 [$1], $2;
        }"""
        args = [counter.to(tl.int64), count]
        tl.inline_asm_elementwise(relaxed, "=&r,l,r", args, dtype=tl.int32, is_pure=False, pack=1)
    elif count > 0:
        tl.debug_barrier()
        tl.atomic_xchg(counter, count, sem="release")


@triton.jit
def _look(counter, least, PTX: tl.constexpr):
    """Where `least` is not 0 the number at `counter`, asked for now, and waited for where it is needed."""
    if PTX:
        code: tl.constexpr = """{
            .reg .pred due;
            mov.s32 $0, 0;
            setp.gt.s32 due, $2, 0;
            @due ld.relaxed.gpu.global.s32 $0, [$1];
        }"""
        args = [counter.to(tl.int64), least]
        seen = tl.inline_asm_elementwise(code, "=&r,l,r", args, dtype=tl.int32, is_pure=False, pack=1)
    else:
        seen = tl.atomic_add(counter, 0)
    return seen


@triton.jit
def _wait(counter, seen, least, FENCED: tl.constexpr, PTX: tl.constexpr):
    """Wait until the number at `counter`, last `seen`, is at least `least`."""
    if PTX:
        code: tl.constexpr = """{
            .reg .pred late;
            mov.s32 $0, $2;
            again: setp.lt.s32 late, $0, $3;
            @late ld.HOW.gpu.global.s32 $0, [$1];
            @late bra again;
        }""".replace("HOW", "acquire" if FENCED else "relaxed")
        args = [counter.to(tl.int64), seen, least]
        tl.inline_asm_elementwise(code, "=&r,l,r,r", args, dtype=tl.int32, is_pure=False, pack=1)
    else:
        while seen < least:
            seen = tl.atomic_add(counter, 0)


@triton.jit
def _zero_of(x):
    """0, known once all of x are. No compiler finds that out: it would have to know the sign of what other threads have."""
    bits = _bits(x)
    size: tl.constexpr = bits.dtype.primitive_bitwidth - 1
    return (tl.max(tl.ravel(bits & ((1 << size) - 1)), 0) >> size).to(tl.int32)


@triton.jit(
    do_not_specialize=["length", "blocks", "tiles", "splits", "span", "rows", "group", "links", "first_split", "slice_steps"]
)  # fmt: skip
def scan_backward(
    grad_y, u, dt, A, B, C, D, z, dt_bias, dt_scale, flags, kept, fine, adjoints, du, ddt, dz, d_scale, dB, dC, by_channel, sums,
    mult, counters, length, channels, states, blocks, tiles, splits, span, rows, group, links, first_split, slice_steps,
    k: tl.constexpr, SOFTPLUS: tl.constexpr, COMPLEX: tl.constexpr, SUMMARY: tl.constexpr, CHAINED: tl.constexpr,
    LINKED: tl.constexpr, FENCED: tl.constexpr, PTX: tl.constexpr, T: tl.constexpr, AGAIN: tl.constexpr, CR: tl.constexpr,
    NR: tl.constexpr, CW: tl.constexpr, NL: tl.constexpr, CL: tl.constexpr, NW: tl.constexpr, FEW: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """One split of one batch row for BD channels, backwards; adjoints (B, splits + 1, D N[, 2]): dL/dh after each split.

    A split, `span` tiles, goes chunk by chunk of `group` tiles. kept: the states where tiles start; with AGAIN, where chunks
    start, and those of a chunk's tiles, found in tiles of AGAIN steps, are in `fine` (programs, group, [2,] NB, BD) meanwhile.

    A program's parts of what is summed over programs: d_scale (blocks, B, L); by_channel (B, splits, 2, D), of dt_bias and D;
    sums (B, splits, D N[, 2]), of A. Where LINKED a chain of `links` programs adds to the same dB and dC (blocks / links, B, L,
    N[, 2]), tile by tile one after the other. counters: the tiles that each program has added; last, how many programs have
    started, by which and not by its place in the grid a program is the next one, so that those it waits for run. That tiles are
    added is known by a fence where FENCED, else because the sums before have come back. Else dB and dC (blocks, B, slice_steps,
    N[, 2]) are of the slice of the steps that begins with `first_split`, and each program has its own.

    With CHAINED splits go one after the other: there is one place for all of them in adjoints, by_channel and sums, where dL/dh
    is changed and the others are added to. Else dL/dh was there already: SUMMARY stores what the split adds, to `sums`, and the
    factor of dL/dh after it, unconjugated, to `mult`, which says nothing where a sequence starts in the split.
    """
    P: tl.constexpr = 2 if COMPLEX else 1
    BD: tl.constexpr = CR * CW * CL
    NB: tl.constexpr = NR * NL
    program = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    if LINKED and not SUMMARY:
        program = tl.atomic_add(counters + tl.num_programs(0) * splits, 1)
    b, batch = (program % tl.num_programs(0) // blocks).to(tl.int64), tl.num_programs(0) // blocks
    block, split = program % blocks, first_split + program // tl.num_programs(0)
    steps, d, numbers = tl.arange(0, T), block * BD + tl.arange(0, BD), tl.arange(0, NB * P)
    lane_d, lane_n = block * BD + _channels(CR, CW, CL), _states(NR, NL)
    live = (lane_d < channels) & (lane_n < states)
    place, size = lane_d * states + lane_n, channels * states
    source = A + (b // rows) * size * P + place * P
    Ar = _load(source, live)
    Ai = Ar
    qr, qi, sum_r, sum_i = Ar * 0.0, Ar * 0.0, Ar * 0.0, Ar * 0.0
    if COMPLEX:
        Ai = _load(source + 1, live)
    if not SUMMARY:
        after = b if CHAINED else b * (splits + 1) + split + 1
        source = adjoints + after * size * P + place * P
        qr = _load(source, live)
        if COMPLEX:
            qi = _load(source + 1, live)
        if CHAINED:
            tl.debug_barrier()  # before what comes to the same place
    bias, skip, elapsed = tl.zeros((BD,), Ar.dtype), tl.zeros((BD,), Ar.dtype), tl.zeros((BD,), Ar.dtype)
    sum_bias, sum_skip = elapsed, elapsed
    if dt_bias is not None:
        bias = tl.load(dt_bias + (b // rows) * channels + d, mask=d < channels, other=0.0)
    if D is not None:
        skip = tl.load(D + (b // rows) * channels + d, mask=d < channels, other=0.0)
    top, last = tl.reshape(steps == 0, (T, 1, 1, 1, 1, 1)), tl.reshape(steps == T - 1, (T, 1, 1, 1, 1, 1))
    begin = split * span
    total = tl.minimum(span, tiles - begin)
    chunks = tl.cdiv(total, group)
    done, added, leads, chain = 0, 0, block % links == 0, block // links * batch + b
    first_row = chain * length if LINKED else chain * slice_steps - first_split * span * T
    if LINKED and not SUMMARY:
        previous = counters + tl.where(leads, program, program - 1)
    for j in range(chunks):
        chunk = begin + (chunks - 1 - j) * group
        count = tl.minimum(group, tl.minimum(begin + span, tiles) - chunk)
        if AGAIN and not SUMMARY:
            own = fine + program.to(tl.int64) * group * (P * NB * BD) + (lane_n * BD + lane_d - block * BD)
            source = kept + (b * tl.cdiv(tiles, group) + chunk // group) * size * P + (lane_n * channels + lane_d)
            stop = b * length + tl.minimum((chunk + count) * T, length)
            _run_again(
                source, own, u, dt, B, dt_scale, flags, bias, Ar, Ai, live, b * length + chunk * T, stop, d, channels,
                states, SOFTPLUS, COMPLEX, T, AGAIN, CR, NR, CW, NL, CL, FEW, STAGES,
            )  # fmt: skip
            tl.debug_barrier()  # what one thread stored another may read
        for i in tl.range(count, num_stages=STAGES):
            tile = chunk + count - 1 - i
            inside = tile * T + steps < length
            first = b * length + tile * T
            at = first * channels + (steps[:, None] * channels + d[None, :])
            by_state = first * states * P + (steps[:, None] * states * P + numbers[None, :])
            valid, fresh = _marked(flags, first, steps, inside)
            here, there = valid[:, None] & (d < channels)[None, :], inside[:, None] & (d < channels)[None, :]
            with_state = valid[:, None] & (numbers < states * P)[None, :]
            before, scale, unscaled, s = _step_sizes(dt, dt_scale, at, first, steps, bias, valid, here, SOFTPLUS, FEW)
            outer = tl.load(grad_y + at, mask=here, other=0.0).to(Ar.dtype)
            slope = outer
            if z is not None:
                gate = tl.load(z + at, mask=here, other=0.0).to(Ar.dtype)
                slope = outer * silu(gate)
            slope = _once(slope, FEW)
            if not SUMMARY:
                entry = tl.load(u + at, mask=here, other=0.0).to(Ar.dtype)
                if LINKED:
                    least = tl.where(leads, 0, done + 1)
                    seen = _look(previous, least, PTX)
            stacked = _stack(s, k * slope)
            if not SUMMARY:
                stacked = _stack(stacked, _stack(s * entry, entry))
            lifted = _by_channel(stacked, T, CR, NR, CW, NL, CL)
            step, gy = _pick(lifted, 0), _pick(lifted, 1)
            ar, ai = _decay(step, Ar[None], Ai[None], COMPLEX)
            if not SUMMARY:
                if AGAIN:
                    source, imaginary = own + (tile - chunk) * (P * NB * BD), NB * BD
                else:
                    source, imaginary = kept + (b * tiles + tile) * size * P + (lane_n * channels + lane_d), size
                hr = _load(source, live)
                hi = hr
                if COMPLEX:
                    hi = _load(source + imaginary, live)
                at_B = _by_state(B, by_state, with_state, Ar.dtype, P, CR, NR, CW, NL, CL)
                entering = _pick(lifted, 2)
                xr, xi = _states_of_tile(ar, ai, entering, at_B, hr, hi, flags, fresh, COMPLEX)
                if COMPLEX:
                    hi = _previous(xi, hi[None])
                hr = _previous(xr, hr[None])
                if flags is not None:
                    restart = _tile_restarts(fresh, ar)
                    hr, hi = tl.where(restart, 0.0, hr), tl.where(restart, 0.0, hi)
            at_C = _by_state(C, by_state, with_state, Ar.dtype, P, CR, NR, CW, NL, CL)
            Cr = _pick(at_C, 0)
            if COMPLEX:
                Ci = _pick(at_C, 1)
            if not SUMMARY and z is not None:
                read = xr * Cr
                if COMPLEX:
                    read -= xi * Ci
                value = k * _over_states(read, NW) + skip[None, :] * entry
                tl.store(dz + at, tl.where(here, outer * value * silu_slope(gate), 0.0), mask=there)
            vr = gy * Cr + tl.where(last, qr[None], 0.0)
            next_r = _previous(_backwards(ar), ar)
            if flags is not None:  # the last step first: a sequence starts with the step after it
                following = T - steps
                mark = tl.load(flags + first + following, mask=(steps > 0) & (tile * T + following < length), other=1)
                cut = _tile_restarts(mark == 2, ar)
            if COMPLEX:
                vi = tl.where(last, qi[None], 0.0) - gy * Ci
                next_i = _previous(_backwards(ai), ai)
                vr, vi = _backwards(vr), _backwards(vi)
                if flags is not None:
                    _, _, _, lr, li = tl.associative_scan((cut, next_r, -next_i, vr, vi), 0, _segmented_complex)
                else:
                    _, _, lr, li = tl.associative_scan((next_r, -next_i, vr, vi), 0, _complex)
                lr, li = _backwards(lr), _backwards(li)
                movedr, movedi = ar * lr + ai * li, ar * li - ai * lr
            else:
                if flags is not None:
                    _, _, lr = tl.associative_scan((cut, next_r, _backwards(vr)), 0, segmented_affine)
                else:
                    _, lr = tl.associative_scan((next_r, _backwards(vr)), 0, affine)
                lr = _backwards(lr)
                movedr, movedi = ar * lr, lr
            if flags is not None:
                restart = _tile_restarts(fresh, ar)
                movedr, movedi = tl.where(restart, 0.0, movedr), tl.where(restart, 0.0, movedi)
            qr = _at(movedr, top)
            if COMPLEX:
                qi = _at(movedi, top)
            if SUMMARY:
                elapsed += tl.sum(s, 0)
            else:
                at_B = _by_state(B, by_state, with_state, Ar.dtype, P, CR, NR, CW, NL, CL)
                by_input, of_B, of_C = lr * _pick(at_B, 0), lr * entering, gy * xr
                if COMPLEX:
                    by_input += li * _pick(at_B, 1)
                    wr, wi = movedr * hr + movedi * hi, movedi * hr - movedr * hi
                    by_step = wr * Ar[None] + wi * Ai[None]
                    sum_i += tl.sum(wi * step, 0)
                    of_B, of_C = _stack(of_B, li * entering), _stack(of_C, -gy * xi)
                else:
                    wr = movedr * hr
                    by_step = wr * Ar[None]
                sum_r += tl.sum(wr * step, 0)
                of_both = tl.reshape(_over_channels(_stack(of_B, of_C)), (2, P, T, NB))
                of_both = tl.reshape(tl.permute(of_both, (0, 2, 3, 1)), (2 * T, NB * P))
                row = tl.arange(0, 2 * T)
                to = (first_row + tile * T + row % T) * states * P
                to, on_state = to[:, None] + numbers[None, :], (numbers < states * P)[None, :]
                on_state &= (tile * T + row % T < length)[:, None]
                if flags is not None:  # the state and its gradient pass steps that do not count, whatever they are
                    mark = tl.load(flags + first + row % T, mask=tile * T + row % T < length, other=1)
                    of_both = tl.where((mark != 1)[:, None], of_both, 0.0)
                done += 1
                if LINKED:
                    _wait(previous, seen, least, FENCED, PTX)
                if LINKED and FENCED:
                    tl.atomic_add(dB + to, of_both, mask=on_state & (row < T)[:, None], sem="relaxed")
                    tl.atomic_add(dC + to, of_both, mask=on_state & (row >= T)[:, None], sem="relaxed")
                elif LINKED:
                    to = tl.where((row < T)[:, None], dB + to, dC + to)
                    sums_before = tl.atomic_add(to, of_both, mask=on_state, sem="relaxed")
                else:
                    tl.store(tl.where((row < T)[:, None], dB + to, dC + to), of_both, mask=on_state)
                both = _over_states(_stack(by_input, by_step), NW)
                if LINKED and FENCED:
                    _announce(counters + program, done, True, PTX)  # not at once: what was added is in memory by now
                by = tl.reshape(both, (2, T, BD))
                half = (tl.arange(0, 2) == 0)[:, None, None]
                entered, change = _at(by, half), _at(by, ~half)
                change = tl.where(here, entered * entry + change, 0.0)
                tl.store(du + at, tl.where(here, skip[None, :] * slope + s * entered, 0.0), mask=there)
                if dt_scale is not None:
                    to_scale = d_scale + (block.to(tl.int64) * batch + b) * length + tile * T + steps
                    tl.store(to_scale, tl.sum(change * unscaled, 1), mask=inside)
                    change *= scale
                if SOFTPLUS:
                    change *= sigmoid(before)
                tl.store(ddt + at, change, mask=there)
                sum_bias += tl.sum(change, 0)
                sum_skip += tl.sum(slope * entry, 0)
                if LINKED and not FENCED:
                    added |= _zero_of(sums_before)
                    _announce(counters + program, done | added, False, PTX)
        if AGAIN and not SUMMARY:
            tl.debug_barrier()  # before the next chunk's states take their place
    own_sums = b if CHAINED else b * splits + split
    to = own_sums * size * P + place * P
    if SUMMARY:
        tl.store(sums + to, qr, mask=live)
        ar, ai = _decay(tl.reshape(elapsed, (CR, 1, CW, 1, CL)), Ar, Ai, COMPLEX)
        tl.store(mult + to, ar, mask=live)
        if COMPLEX:
            tl.store(sums + to + 1, qi, mask=live)
            tl.store(mult + to + 1, ai, mask=live)
    else:
        to_channel = by_channel + own_sums * 2 * channels + d
        if CHAINED:
            stop = begin + span  # where splits begin, if any, that were before this one and left their sums
            later, later_channel = live & (lane_d * 0 + stop < tiles), (d < channels) & (d * 0 + stop < tiles)
            sum_r += _load(sums + to, later)
            if COMPLEX:
                sum_i += _load(sums + to + 1, later)
            sum_bias += tl.load(to_channel, mask=later_channel, other=0.0)
            sum_skip += tl.load(to_channel + channels, mask=later_channel, other=0.0)
            tl.store(adjoints + to, qr, mask=live)
            if COMPLEX:
                tl.store(adjoints + to + 1, qi, mask=live)
        tl.store(sums + to, sum_r, mask=live)
        if COMPLEX:
            tl.store(sums + to + 1, sum_i, mask=live)
        tl.store(to_channel, sum_bias, mask=d < channels)
        tl.store(to_channel + channels, sum_skip, mask=d < channels)


@triton.jit(do_not_specialize=["blocks", "room", "count", "each", "row", "begin"])
def add_parts(parts, dB, dC, blocks, room, count, each, row, begin, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """dB and dC (B, L, N[, 2]) of a slice from parts (blocks, B, slice_steps, N[, 2]), added in a fixed order.

    room: numbers from the parts of dB to those of dC. count: numbers of a part; each: those of a batch row, `row` of them with
    all steps; the slice begins with the number `begin`.
    """
    which, place = tl.program_id(1).to(tl.int64), tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    block, here = tl.arange(0, ROWS).to(tl.int64), place < count
    sums = tl.zeros((ROWS, BLOCK), parts.dtype.element_ty)
    for first in range(0, blocks, ROWS):
        source = parts + which * room + (first + block[:, None]) * count + place[None, :]
        sums += tl.load(source, mask=(first + block < blocks)[:, None] & here[None, :], other=0.0)
    to = place // each * row + begin + place % each
    if which == 0:
        tl.store(dB + to, tl.sum(sums, 0), mask=here)
    else:
        tl.store(dC + to, tl.sum(sums, 0), mask=here)


# ---------------------------------------------------------------------------------------------- launches

AGAIN = {1: 16, 2: 4}  # steps of a tile, at least, where states, real or pairs, are only found again
ROOTS = tuple(2 * 4**i for i in range(1, 8))  # near the square roots that there are
MANY = 32  # real states of a channel, beyond which it has launches of its own
LAG = 12  # tiles of a split for each program of a chain, at least
CHAINS = {  # whose programs add to the same dB and dC: whether a fence is before another's turn, else sums that have come back
    "selective_scan_wide_backward": True,
    "selective_scan_pairs_backward": False,
}
ADD = {"ROWS": 64, "BLOCK": 32}  # of `add_parts`


class _Problem(NamedTuple):
    """Sizes of a call. rows: batch rows a group; each has its own parameters. blocks: programs for the channels of a row,
    each with `lanes` pairs of a channel and a state. each: steps between two states that are kept. ptx: NVIDIA's assembler runs.

    op: its entry in the table of launches. constants: compile-time arguments of both scans.
    """

    op: str
    batch: int
    length: int
    channels: int
    states: int
    parts: int
    groups: int
    blocks: int
    lanes: int
    each: int
    ptx: bool
    constants: dict[str, Any]

    @property
    def rows(self) -> int:
        return self.batch // self.groups

    @property
    def size(self) -> int:
        return self.channels * self.states

    @property
    def again(self) -> bool:
        """Whether the backward has to find the states where its tiles start."""
        return self.each > launch.TABLE[_op(self.parts, "_backward", self.states)].steps

    @property
    def programs(self) -> int:
        return self.batch * self.blocks


def _op(parts: int, direction: str, states: int) -> str:
    """The entry in the table of launches; real channels of many states go otherwise than those of few."""
    return f"selective_scan{'_pairs' * (parts == 2)}{'_wide' * (parts == 1 and states > MANY)}{direction}"


def _problem(u: Tensor, A: Tensor, initial_state: Tensor, dt_softplus: bool, paired: bool, direction: str) -> _Problem:
    batch, length, channels = u.shape
    states, parts = initial_state.shape[2], 2 if initial_state.ndim == 4 else 1
    op = _op(parts, direction, states)
    lay = launch.layout(op, channels, states)
    of_thread = max(1, lay.BD * lay.NB // (32 * lay.warps))  # pairs of channel and state: states of one channel if it can be
    NL = min(8, max(1, lay.NB // of_thread))
    CL = min(32 // NL, lay.BD)
    CW = min(lay.warps, lay.BD // CL)
    few = launch.TABLE[op].steps * lay.BD <= 32 * lay.warps
    stages = launch.TABLE[op].stages if lay.NB <= 128 else 1  # the tiles of more states would fill the shared memory
    constants = {
        "k": 2.0 if parts == 2 and paired else 1.0, "SOFTPLUS": dt_softplus, "COMPLEX": parts == 2, "T": launch.TABLE[op].steps,
        "CR": lay.BD // (CL * CW), "NR": lay.NB // NL, "CW": CW, "NL": NL, "CL": CL,
        "NW": min(lay.NB // NL, lay.warps // CW), "FEW": few, "STAGES": stages, "num_warps": lay.warps,
    }  # fmt: skip
    groups = len(A) if A.ndim > initial_state.ndim - 1 else 1
    each, ptx = _kept_each(batch, length, channels, states, parts), launch.special_functions(u)
    return _Problem(op, batch, length, channels, states, parts, groups, lay.blocks, lay.BD * lay.NB, each, ptx, constants)


def _kept_each(batch: int, length: int, channels: int, states: int, parts: int) -> int:
    """Steps between two states that are kept: chunks that leave the kept states and those of a chunk's tiles few together.

    With K steps a chunk, L / K states of every pair of channel and state are kept, and K / T found again in each split at once.
    """
    op = _op(parts, "_backward", states)
    lay = launch.layout(op, channels, states)
    chunk = launch.power_of_two(isqrt(length * launch.TABLE[op].steps // _side_by_side(batch * lay.blocks, lay.warps)))
    return max(_least_each(states, parts), chunk)


def _least_each(states: int, parts: int) -> int:
    """The least of `_kept_each`: whole tiles of both directions."""
    forward, backward = launch.TABLE[_op(parts, "", states)], launch.TABLE[_op(parts, "_backward", states)]
    return max(AGAIN[parts], forward.steps, backward.steps)


def _side_by_side(programs: int, warps: int) -> int:
    """Splits of so many programs that run at once: eight warps a multiprocessor are all of the GPU."""
    return launch.largest(1, launch.PROGRAMS // launch.ceil_div(programs * warps, 2))


def chunk_states_shape(batch: int, length: int, channels: int, states: int, *pair: int) -> tuple[int, int]:
    """The shape (B, chunks * [2 *] N * D) of what `forward` keeps for `backward`: the state before every tile or chunk.

    The states (B, L / each, [2,] N, D), real parts before imaginary ones, are at the beginning. L / each depends on B and L
    through a square root and a power of 2, which no graph can hold in which B and L stay open: `chunks` is an upper bound. With
    S splits at once, tiles of T steps and m the least of `each`, L / each is at most 1 + sqrt(x), x = L S (m + 1)^2 / (T m^2),
    and sqrt(x) <= (x / c + c) / 2 for every c. With the c of ROOTS, factors of 4 apart, it exceeds sqrt(x) by at most a quarter.
    """
    channels, states, parts = int(channels), int(states), 1 + len(pair)  # a graph is for these alone
    op, least = _op(parts, "_backward", states), _least_each(states, parts)
    lay = launch.layout(op, channels, states)
    above = length * _side_by_side(batch * lay.blocks, lay.warps) * (least + 1) ** 2
    below = 2 * launch.TABLE[op].steps * least**2
    chunks = launch.smallest(launch.ceil_div(length, least), *(above // (below * c) + c // 2 + 1 for c in ROOTS))
    return batch, chunks * parts * states * channels


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
    enter: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """y (B, L, D), the final state (B, D, N[, 2]) and what `backward` needs where `keep`. Complex where the state has four axes.

    Contiguous tensors, the state and the parameters of one real dtype; L, D and N at least 1. The parameters A (D, N[, 2]), D and
    dt_bias may have one more leading axis, of groups: as many runs of batch rows then have parameters of their own. enter: the
    initial state, from the factor of these steps and the state that they leave from 0.
    """
    p = _problem(u, A, initial_state, dt_softplus, paired, "")
    split = launch.plan(p.op, p.length, p.programs)
    y, final = torch.empty_like(u), torch.empty_like(initial_state)
    shape = chunk_states_shape(p.batch, p.length, p.channels, *initial_state.shape[2:]) if keep else (0,)
    kept = initial_state.new_empty(shape)
    inputs = (u, dt, A, B, C, D, z, dt_bias, dt_scale, initial_state)
    with launch.on_device(u):
        start = None
        if enter is not None or (split.parallel and split.splits > 1):
            mult, ends = (initial_state.new_empty((p.batch, split.splits, p.size, p.parts)) for _ in range(2))
            start = initial_state.new_empty((p.batch, split.splits + 1, p.size, p.parts))
            _scan(p, split, (*inputs, None, flags, None, None, None, mult, ends), True)
            if enter is not None:
                one = torch.zeros_like(initial_state)
                (one if p.parts == 1 else one[..., 0]).fill_(1)
                _chain(p, split, mult, torch.zeros_like(ends), one, flags, start, False)
                factor = start[:, -1].clone().view(initial_state.shape)
                _chain(p, split, mult, ends, torch.zeros_like(initial_state), flags, start, False)
                initial_state = enter(factor, start[:, -1].clone().view(initial_state.shape)).contiguous()
            _chain(p, split, mult, ends, initial_state, flags, start, False)
        _scan(p, split, (*inputs, start, flags, y, final, kept if keep else None, None, None), False)
    return y, final, kept


def _scan(p: _Problem, split: launch.Plan, tensors: tuple[Tensor | None, ...], summary: bool) -> None:
    launch.run(
        scan, (p.programs, split.splits), *tensors, p.length, p.channels, p.states, p.blocks, split.tiles, split.splits,
        split.span, p.rows, p.each,
        constants={"SUMMARY": summary, "EACH": min(p.each, p.constants["T"]), **p.constants},
    )  # fmt: skip


def _chain(
    p: _Problem, split: launch.Plan, mult: Tensor, local: Tensor, first: Tensor, flags: Tensor | None, out: Tensor, reverse: bool
) -> None:
    grid, restarts = (p.batch, launch.ceil_div(p.size, 128)), launch.restarts(flags, split.span * split.T)
    constants = {"COMPLEX": p.parts == 2, "REVERSE": reverse, "BLOCK": 128}
    launch.run(chain, grid, mult, local, first, restarts, out, split.splits, p.size, constants=constants)


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
    leave: Callable[[Tensor], Tensor] | None = None,
) -> tuple[Tensor, ...]:
    """Gradients of u, dt, A, B, C, D, z, dt_bias, initial_state and dt_scale; empty where the input is None.

    leave: in place of grad_final, that of the final state from that of the initial state if it is 0.
    """
    p, like = _problem(u, A, initial_state, dt_softplus, paired, "_backward"), initial_state
    split, links, at_once = _plan_backward(p, like.element_size(), leave is not None)
    steps, held = split.span * split.T, split.splits if split.parallel else 1
    sliced, chains = links == 1 and p.blocks > 1, launch.ceil_div(p.blocks, links)
    du, ddt, dz = (u.new_empty(0) if x is None else torch.empty_like(x) for x in (u, dt, z))
    adjoints = like.new_empty((p.batch, held + split.parallel, p.size, p.parts))
    sums = like.new_empty((p.batch, held, p.size, p.parts))
    by_channel = like.new_empty((p.batch, held, 2, p.channels))
    d_scale = None if dt_scale is None else like.new_empty((p.blocks, p.batch, p.length))
    inputs = (grad_y, u, dt, A, B, C, D, z, dt_bias, dt_scale, flags, chunk_states)
    with launch.on_device(u, repeats=sliced):
        if split.parallel:
            mult, local = (torch.empty_like(sums) for _ in range(2))
            _scan_backward(p, split, (*inputs, None, adjoints, *[None] * 7, local, mult, None), links, True)
            if leave is not None:
                _chain(p, split, mult, local, torch.zeros_like(grad_final), flags, adjoints, True)
                grad_final = leave(adjoints[:, 0].reshape(grad_final.shape)).contiguous()
            _chain(p, split, mult, local, grad_final, flags, adjoints, True)
        else:
            adjoints[:, 0] = grad_final.view(p.batch, p.size, p.parts)
        counters = torch.zeros(p.programs * split.splits + 1, dtype=torch.int32, device=u.device) if links > 1 else None
        chunk = p.each // launch.TABLE[p.op].steps
        fine = like.new_empty((p.programs * at_once, chunk, p.parts, p.lanes)) if p.again else None
        outputs = fine, adjoints, du, ddt, dz, d_scale
        others = by_channel, sums, None, counters
        if sliced:
            dB, dC = torch.empty_like(B), torch.empty_like(C)
            row = p.states * p.parts  # numbers of a step
            parts = like.new_empty((2, p.programs * row * min(at_once * steps, p.length)))
            for first, stop in launch.slices(split.splits, at_once):
                begin, end = first * steps, min(stop * steps, p.length)
                _scan_backward(p, split, (*inputs, *outputs, *parts, *others), links, False, (first, stop))
                each = (end - begin) * row
                launch.run(
                    add_parts, (launch.ceil_div(p.batch * each, ADD["BLOCK"]), 2), parts, dB, dC, p.blocks, parts.shape[1],
                    p.batch * each, each, p.length * row, begin * row, constants=ADD,
                )  # fmt: skip
            del parts
        else:
            both = [like.new_zeros((chains, *x.shape)) for x in (B, C)]
            _scan_backward(p, split, (*inputs, *outputs, *both, *others), links, False)
            dB, dC = ((x.sum(0) if len(x) > 1 else x[0]).to(like.dtype) for x, like in zip(both, (B, C), strict=True))
        del fine, outputs
    by_channel = by_channel.view(p.groups, -1, 2, p.channels).sum(1)
    d_bias, dD = (u.new_empty(0) if x is None else launch.result(by_channel[:, i], x.shape) for i, x in enumerate((dt_bias, D)))
    dA = sums.view(p.groups, -1, p.size * p.parts).sum(1).view(A.shape)
    d_scale = u.new_empty(0) if d_scale is None or dt_scale is None else d_scale.sum(0).to(dt_scale.dtype)
    d_initial = launch.result(adjoints[:, 0], initial_state.shape)
    return du, ddt, dA, dB, dC, dD, dz, d_bias, d_initial, d_scale


def _plan_backward(p: _Problem, number: int, piece: bool) -> tuple[launch.Plan, int, int]:
    """How the backward divides the steps, the programs of a chain, and how many splits are in a launch.

    number: bytes of one. piece: whether the gradient of the final state is found between two passes, so that splits are parallel,
    whose first pass that is. Where chains have one link, slices leave the parts of dB and dC in 2 / 5 of `SCRATCH`, if it can be.
    """
    splits, tile = _side_by_side(p.programs, p.constants["num_warps"]), launch.TABLE[p.op].steps
    programs = launch.ceil_div(launch.PROGRAMS, splits)
    split = launch.plan(p.op, p.length, programs, chunk=p.each)
    split = split._replace(parallel=split.parallel or piece)
    longest = max(1, split.span * split.T // (tile * LAG)) if p.op in CHAINS else 1
    links = launch.ceil_div(p.blocks, launch.ceil_div(p.blocks, longest))
    if links > 1 or p.blocks == 1:
        return split, links, split.splits
    chunks = 2 * launch.SCRATCH // 5 // (2 * p.programs * p.states * p.parts * number * p.each)  # whose parts have room
    split = launch.plan(p.op, p.length, programs, max(1, chunks // splits), p.each)
    split = split._replace(parallel=split.parallel or piece)
    return split, links, min(split.splits, max(1, chunks // split.span)) if split.parallel else 1


def _scan_backward(
    p: _Problem, split: launch.Plan, tensors: tuple[Tensor | None, ...], links: int, summary: bool,
    which: tuple[int, int] | None = None,
) -> None:  # fmt: skip
    """The splits [first, stop) of `which`, or all."""
    first, stop = which or (0, split.splits)
    T, steps = launch.TABLE[p.op].steps, split.span * split.T
    span, again = steps // T, max(T, AGAIN[p.parts]) if p.again else 0
    group, of_slice = split.T // T if again else span, min(stop * steps, p.length) - first * steps
    launch.run(
        scan_backward, (p.programs, stop - first), *tensors, p.length, p.channels, p.states, p.blocks,
        launch.ceil_div(p.length, T), split.splits, span, p.rows, group, links, first, of_slice,
        constants={
            "SUMMARY": summary, "CHAINED": not split.parallel, "LINKED": links > 1, "FENCED": CHAINS.get(p.op, False),
            "PTX": p.ptx, "AGAIN": again, **p.constants,
        },
    )  # fmt: skip
