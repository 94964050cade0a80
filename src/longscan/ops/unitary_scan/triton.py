"""`unitary_scan` in Triton. Nothing of size (B, L, D, N) is in memory but, in the backward, slices of bounded size.

Algebra, as in csrc/unitary_scan.cpp. With G_t the running sum of the angles and V_t = e^{-i G_t}, the state in the rotating frame
is a plain sum, h_t = e^{i G_t} w_t with w_t = w_0 + B sum_{k<=t} x_k V_k and x = dt silu(u): nothing is multiplied by a rounded
rotation and fed back. A state is three numbers: G less whole turns, and w. With g = dL/dy silu(z) and
mu_t = conj(C) sum_{k>=t} g_k V_k + (what the final state contributes), the gradient of w, turned m_t = e^{i G_t} mu_t and
q_t = e^{i G_t} w_{t-1}:
  dL/dtheta_t = Im(m_t conj(q_t))           dL/dx_t = sum_n Re(conj(B) m_t)
  dL/dB = sum_t x_t m_t                     dL/dC = conj sum_t g_t (q_t + B x_t)
A tile without restarts needs neither m nor q. With R_t and S_t the sums of g V and x V from its latest step to t, mu and w the
numbers after it, rho_t = conj(B) (mu + conj(C) R_t) and P = sum_t x_t conj(V_t) R_t:
  dL/dtheta_t = Im(mu conj(w) + conj(C w) R_t - rho_t conj(S_t))      dL/dx_t = sum_n Re(e^{i G_t} rho_t)
  dL/dB = mu conj(S) + conj(C) P                                      dL/dC = R conj(w before the tile) + conj(B) P
The backward is reversible: G and w go back from split to split as they came, by subtraction, so that a state is kept for a split,
not for a tile. Its arrays run backwards in time, so that every sum over a tile goes the same way.

Where packed rows restart, G starts again from the angle of the step, so that no number of a sequence depends on another one.
What was before cannot be got back by subtraction: with flags a forward pass over the slice finds G and w where tiles start.

A tile's lanes are states, fastest, and channels; its steps lie in the registers of one thread. The angles are a matrix product
whose factors are given as two numbers of 11 bits each, so that matrix units keep float32. In the backward the gradients of the
angles, "slopes", would have to be summed over all programs: a slice of them goes to memory, and a kernel of products takes it to
u and W. They go as numbers of half precision, ready for matrix units, by a power of two that is known before they are: sums of
|x| and |g| bound the states and their gradients, whose product no slope exceeds. With flags each step has a power of two of its
own, from the largest of its slopes. SiLUs, skip and gate are elementwise kernels before and after, so that a program's lanes do
not all compute them again; what they hand to a scan has the time axis last.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from longscan._tensor_types import OptionalTensor
from longscan.numerics.pairs import multiply, polar
from longscan.ops import _triton_launch as launch
from longscan.ops._gpu import ceil_div, power_of_two
from longscan.ops._triton import fast_sincos, row_of, segmented_add_pair, silu, silu_slope, sincos, wrap

U_STEP = tl.constexpr(16.0)  # u is divided by it, and W multiplied, before they become half precision: inf beyond 65504


# ---------------------------------------------------------------------------------------------- tiles


@triton.jit
def _turned(a, b):
    """Angles added, less whole turns."""
    return wrap(a + b)


@triton.jit
def _turned_back(a, before_a, b, before_b):  # noqa: ARG001
    """Angles added, less whole turns, and the sum without the last of them."""
    return wrap(a + b), a + before_b


@triton.jit
def _segmented_add_wrapped(restart1, a, restart2, b):
    """Whether there was a restart, and the angles since the latest one added, less whole turns."""
    return restart1 | restart2, tl.where(restart2, b, wrap(a + b))


@triton.jit
def _back(re, im, angle):
    """A complex number turned back by an angle."""
    s, c = sincos(angle)
    return c * re + s * im, c * im - s * re


@triton.jit
def _unit(angle, FAST: tl.constexpr):
    """sin, cos of angles within a turn or so of 0; by the special function unit where FAST."""
    if FAST:
        s, c = fast_sincos(angle)
    else:
        s, c = sincos(angle)
    return s, c


@triton.jit
def _halves(x, scale):
    """x scale as high + low / 2048 with numbers of half precision: 22 bits, or as many as lie above 2^-36."""
    x *= scale
    high = x.to(tl.float16)
    return high, ((x - high.to(tl.float32)) * 2048.0).to(tl.float16)


@triton.jit
def _product(high, low, other_high, other_low, sums, scale):
    """sums + (high + low / 2048) (other_high + other_low / 2048) scale, but for low times low.

    Matrix units cut off what they add up, so only the products of a tile are added there: by the multiplication the compiler
    cannot hand them the sums.
    """
    small = tl.dot(low, other_high, tl.dot(high, other_low)) * (1.0 / 2048.0)
    return tl.fma(tl.dot(high, other_high, small), scale, sums)


@triton.jit
def _projected(high, low, weights_high, weights_low, at, row, live, width, T: tl.constexpr, R: tl.constexpr, K: tl.constexpr):
    """W u of a tile, (T, R): `high` and `low` point to u, `at` (T,) are its rows there; float64 has no K, and points to W."""
    if K:
        place = at[None, :] * K + tl.arange(0, K)[:, None]
        inputs_high, inputs_low = tl.trans(tl.load(high + place)), tl.trans(tl.load(low + place))
        more = tl.dot(inputs_high, weights_low, tl.dot(inputs_low, weights_high))
        sums = tl.dot(inputs_high, weights_high) + more * (1.0 / 2048.0)
        # A scan over one element changes nothing but the layout: a thread then has all steps of its lanes. Without it what the
        # angles are computed with is first brought to the layout of matrix units, and all of it back.
        sums = tl.reshape(tl.cumsum(tl.reshape(sums, (T, R, 1)), 2), (T, R))
    else:
        sums = tl.zeros((T, R), high.dtype.element_ty)
        for p in range(width):
            weights = tl.load(weights_high + row * width + p, mask=live, other=0.0)
            sums += tl.load(high + at * width + p)[:, None] * weights[None, :]
    return sums


@triton.jit
def _weights(W, row, live, width, K: tl.constexpr):
    """W U_STEP of the lanes in two parts, (K, R); where K is 0 they are loaded later."""
    high, low = W, W
    if K:
        k = tl.arange(0, K)[:, None]
        high, low = _halves(tl.load(W + row[None, :] * width + k, mask=live[None, :] & (k < width), other=0.0), U_STEP)
    return high, low


@triton.jit
def _lanes_of(
    channels: tl.constexpr, states: tl.constexpr, parts: tl.constexpr, blocks: tl.constexpr, BD: tl.constexpr, NB: tl.constexpr,
):  # fmt: skip
    """Which part of the states a program has, its first channel, which lanes it needs, and their places in (D, N)."""
    block, lane = tl.program_id(0) % blocks, tl.arange(0, BD * NB)
    part, first = block % parts, (block // parts) * BD
    d, n = first + lane // NB, part * NB + lane % NB
    return part, first, (d < channels) & (n < states), d * states + n


@triton.jit
def _pairs(source, place, live):
    """Real and imaginary parts from memory."""
    return tl.load(source + place * 2, mask=live, other=0.0), tl.load(source + place * 2 + 1, mask=live, other=0.0)


@triton.jit
def _of_channels(x, at, present, T: tl.constexpr, BD: tl.constexpr, NB: tl.constexpr):
    """What belongs to channels, for all lanes: (T, BD * NB) from pointers x to (T, BD)."""
    found = tl.load(x + at, mask=present[None, :], other=0.0)
    return tl.reshape(tl.broadcast_to(found[:, :, None], (T, BD, NB)), (T, BD * NB))


@triton.jit
def _over_states(x, T: tl.constexpr, BD: tl.constexpr, NB: tl.constexpr):
    """A tile of channels and states summed over the states, (T, BD): neighbours are added as long as there are two.

    Half the lanes have nothing to do once two are added, so the compiler gives them steps: a sum costs each lane one exchange,
    not five.
    """
    if NB > 1:
        first, second = tl.split(tl.reshape(x, (T, BD, NB // 2, 2)))
        sums = _over_states(first + second, T, BD, NB // 2)
    else:
        sums = tl.reshape(x, (T, BD))
    return sums


# ---------------------------------------------------------------------------------------------- scans


@triton.jit(do_not_specialize=["bias", "length", "tiles", "splits", "span", "rows", "origin", "first_split", "bounds_stride"])
def scan(
    high, low, rate, x, W, bias, B, C, initial, bounds, flags, y, final, ends, resume, batch, length, splits, span,
    tiles, rows, padded, origin, first_split, bounds_stride, SUMMARY: tl.constexpr, RECORD: tl.constexpr,
    channels: tl.constexpr, states: tl.constexpr, parts: tl.constexpr, blocks: tl.constexpr, PHASE_DT: tl.constexpr,
    T: tl.constexpr, BD: tl.constexpr, NB: tl.constexpr, K: tl.constexpr, FAST: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Some tiles of one batch row for BD channels and NB of their states: y (parts, B, D, padded) = Re sum_n C h.

    bounds: in each row the state before every split, (splits + 1, 3, D N). Without `initial` (B, D N, 2) the run starts from
    there and is `tiles` long, all of a split; else it is the whole row, and with RECORD fills `bounds`. With SUMMARY a split is
    run from a state of 0: `ends` (B, splits, D N, 4) gets its turn, its w, and 0 where it forgets what came before. resume:
    (B, tiles of all runs, 3, D N), the state before every tile. origin: the step of the arrays' first.
    """
    R: tl.constexpr = BD * NB
    size: tl.constexpr = channels * states
    b, run = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(1)
    part, first_channel, live, place = _lanes_of(channels, states, parts, blocks, BD, NB)
    parameter = (b // rows) * size
    Br, Bi = _pairs(B + 2 * parameter, place, live)
    Cr, Ci = _pairs(C + 2 * parameter, place, live)
    pr, pi = Cr * Br - Ci * Bi, Cr * Bi + Ci * Br
    phase = tl.zeros((R,), Br.dtype)
    wr, wi, alive = phase, phase, phase + 1.0
    if not SUMMARY:
        if initial is not None:
            wr, wi = _pairs(initial + b * size * 2, place, live)
        else:
            source = bounds + b * bounds_stride + (first_split + run).to(tl.int64) * 3 * size + place
            phase = tl.load(source, mask=live, other=0.0)
            wr, wi = tl.load(source + size, mask=live, other=0.0), tl.load(source + 2 * size, mask=live, other=0.0)
    weights_high, weights_low = _weights(W + parameter * channels, place, live, channels, K)
    steps, own = tl.arange(0, T), first_channel + tl.arange(0, BD)
    present = own < channels
    top, last = (steps == 0)[:, None], (steps == T - 1)[:, None]
    by_channel = own[None, :].to(tl.int64) * padded
    # a tile in memory's own layout: from it the compiler takes that of the scans, and leaves a thread all steps of its lanes
    angles = tl.load(bias + parameter + place[None, :] + steps[:, None] * 0, mask=live[None, :], other=0.0)
    for i in tl.range(tiles, num_stages=STAGES):
        tile = run * tiles + i
        here = tile * T + steps
        if RECORD:
            to = bounds + b * bounds_stride + (i // span) * 3 * size + place
            starts = live & (place * 0 + i % span == 0)
            tl.store(to, phase, mask=starts)
            tl.store(to + size, wr, mask=starts)
            tl.store(to + 2 * size, wi, mask=starts)
        if resume is not None:
            to = resume + (b * (tl.num_programs(1) * tiles) + tile) * 3 * size + place
            tl.store(to, phase, mask=live)
            tl.store(to + size, wr, mask=live)
            tl.store(to + 2 * size, wi, mask=live)
        theta = _projected(high, low, weights_high, weights_low, b * padded + here, place, live, channels, T, R, K)
        at = b * channels * padded + by_channel + here[:, None]
        if PHASE_DT:
            theta = (theta + angles) * _of_channels(rate, at, present, T, BD, NB)
        else:
            theta += tl.load(rate + b * padded + here)[:, None] * angles
        if flags is not None:
            mark = tl.load(flags + b * length + origin + here, mask=origin + here < length, other=1)
            restart = tl.broadcast_to((mark == 2)[:, None], (T, R))
            theta = tl.where(restart, wrap(theta), theta)
            theta = tl.where(top & ~restart, wrap(theta + phase[None, :]), theta)
            restarted, total = tl.associative_scan((restart, theta), 0, _segmented_add_wrapped)
        else:
            total = tl.associative_scan(tl.where(top, wrap(theta + phase[None, :]), theta), 0, _turned)
        s, c = _unit(total, FAST)
        entering = _of_channels(x, at, present, T, BD, NB)
        if flags is not None:
            _, Sr, Si = tl.associative_scan((restart, entering * c, -(entering * s)), 0, segmented_add_pair)
        else:
            Sr, Si = tl.cumsum(entering * c, 0), tl.cumsum(-(entering * s), 0)
        if y is not None:
            read_r, read_i = (Cr * wr - Ci * wi)[None, :], (Cr * wi + Ci * wr)[None, :]
            if flags is not None:
                read_r, read_i = tl.where(restarted, 0.0, read_r), tl.where(restarted, 0.0, read_i)
            read_r = read_r + pr[None, :] * Sr - pi[None, :] * Si
            read_i = read_i + pr[None, :] * Si + pi[None, :] * Sr
            to = y + part.to(tl.int64) * batch * channels * padded + at
            tl.store(to, _over_states(c * read_r - s * read_i, T, BD, NB), mask=present[None, :])
        phase = row_of(total, last)
        end_r, end_i = row_of(Sr, last), row_of(Si, last)
        if flags is not None:
            forgets = tl.max((mark == 2).to(tl.int32), 0) > 0
            wr, wi, alive = tl.where(forgets, 0.0, wr), tl.where(forgets, 0.0, wi), tl.where(forgets, 0.0, alive)
        wr += Br * end_r - Bi * end_i
        wi += Br * end_i + Bi * end_r
    if SUMMARY:
        to = ends + (b * splits + run) * size * 4 + place * 4
        tl.store(to, phase, mask=live)
        tl.store(to + 1, wr, mask=live)
        tl.store(to + 2, wi, mask=live)
        tl.store(to + 3, alive, mask=live)
    elif final is not None:  # noqa: SIM102
        if run == tl.num_programs(1) - 1:
            s, c = sincos(phase)
            to = final + b * size * 2 + place * 2
            tl.store(to, c * wr - s * wi, mask=live)
            tl.store(to + 1, c * wi + s * wr, mask=live)
            if RECORD:
                to = bounds + b * bounds_stride + splits * 3 * size + place
                tl.store(to, phase, mask=live)
                tl.store(to + size, wr, mask=live)
                tl.store(to + 2 * size, wi, mask=live)


@triton.jit(do_not_specialize=["splits", "bounds_stride"])
def turn_chain(ends, initial, bounds, splits, size, bounds_stride, BLOCK: tl.constexpr):
    """The state before every split, each row (splits + 1, 3, size), from what splits do to a state of 0 (B, splits, size, 4)."""
    b = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    here = place < size
    wr = tl.load(initial + b * size * 2 + place * 2, mask=here, other=0.0)
    wi = tl.load(initial + b * size * 2 + place * 2 + 1, mask=here, other=0.0)
    phase = tl.zeros((BLOCK,), wr.dtype)
    for split in range(splits + 1):
        to = bounds + b * bounds_stride + split * 3 * size + place
        tl.store(to, phase, mask=here)
        tl.store(to + size, wr, mask=here)
        tl.store(to + 2 * size, wi, mask=here)
        source = ends + (b * splits + split) * size * 4 + place * 4
        ours = here & (place * 0 + split < splits)
        s, c = sincos(phase)
        addr = tl.load(source + 1, mask=ours, other=0.0)
        addi = tl.load(source + 2, mask=ours, other=0.0)
        holds = tl.load(source + 3, mask=ours, other=0.0) > 0
        turn = tl.load(source, mask=ours, other=0.0)
        wr = tl.where(holds, wr + (c * addr + s * addi), addr)
        wi = tl.where(holds, wi + (c * addi - s * addr), addi)
        phase = tl.where(holds, wrap(phase + turn), turn)


@triton.jit
def _powers(peak):
    """The power of two that takes numbers up to `peak` below 2^15, and its inverse, NaN where `peak` is not finite."""
    exponent = peak.to(tl.int32, bitcast=True) & 0x7F800000
    inverse = tl.maximum(exponent - (14 << 23), 1 << 23)
    undone = tl.where(exponent == 0x7F800000, 0x7FC00000, inverse)
    return ((254 << 23) - inverse).to(tl.float32, bitcast=True), undone.to(tl.float32, bitcast=True)


@triton.jit
def _reach(x, first, present, steps, LARGEST: tl.constexpr, BD: tl.constexpr, NB: tl.constexpr):
    """Over `steps` steps of each channel the sum of |x|, or the largest, for all lanes; x + first (BD,): where they begin."""
    COLUMNS: tl.constexpr = 512 // BD if BD < 32 else 16
    found = tl.zeros((BD, COLUMNS), tl.float32)
    for begin in range(0, steps, COLUMNS):
        step = begin + tl.arange(0, COLUMNS)
        more = tl.abs(tl.load(x + first[:, None] + step[None, :], mask=present[:, None] & (step < steps)[None, :], other=0.0))
        found = tl.maximum(found, more) if LARGEST else found + more
    found = tl.max(found, 1) if LARGEST else tl.sum(found, 1)
    return tl.reshape(tl.broadcast_to(found[:, None], (BD, NB)), (BD * NB,))


@triton.jit(
    do_not_specialize=[
        "bias", "slopes", "slopes_low", "length", "tiles", "splits", "rows", "origin", "first_split", "bounds_stride",
    ]
)  # fmt: skip
def scan_backward(
    high, low, rate, x, g, W, bias, B, C, bounds, flags, resume, grad_final, mu, dx, d_rate, slopes, slopes_low, unscale, sums,
    d_initial, batch, length, splits, tiles, rows, padded, origin, first_split, bounds_stride, SUMMARY: tl.constexpr,
    CHAINED: tl.constexpr, channels: tl.constexpr, states: tl.constexpr, parts: tl.constexpr,
    blocks: tl.constexpr, PHASE_DT: tl.constexpr, T: tl.constexpr, BD: tl.constexpr, NB: tl.constexpr, K: tl.constexpr,
    FAST: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """One split of one batch row for BD channels and NB of their states, backwards: a tile's first step is its latest.

    Arrays of a slice run backwards, from the step `origin`; the run 0 is the latest split. dx, d_rate (with PHASE_DT):
    (parts, B, D, padded). slopes: (B, padded, programs of a row, lanes), the gradients of the projection, by a power of two the
    sum of two numbers of half precision; unscale: one over that power, (B, runs, programs of a row), or with flags (B, padded,
    programs of a row). sums: of the bias, B and C; d_initial (B, D N, 2): of the initial state. resume: as `scan` found it;
    None where flags is.
    With CHAINED one split follows another: mu (B, D N, 2), the gradient of w, and sums (B, 5, D N) go from launch to launch.
    Else mu (B, splits + 1, D N, 2) is there for every split, and each has its sums (B, splits, 5, D N): SUMMARY stores what a
    split adds to mu in `sums` (B, splits, D N, 3), and 0 beside it where it forgets mu after it.
    """
    R: tl.constexpr = BD * NB
    size: tl.constexpr = channels * states
    b, run = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(1)
    split = first_split + tl.num_programs(1) - 1 - run
    part, first_channel, live, place = _lanes_of(channels, states, parts, blocks, BD, NB)
    parameter = (b // rows) * size
    Br, Bi = _pairs(B + 2 * parameter, place, live)
    Cr, Ci = _pairs(C + 2 * parameter, place, live)
    source = bounds + b * bounds_stride + (split + 1).to(tl.int64) * 3 * size + place
    phase = tl.load(source, mask=live, other=0.0)
    wr, wi = tl.load(source + size, mask=live, other=0.0), tl.load(source + 2 * size, mask=live, other=0.0)
    zero = tl.zeros((R,), Br.dtype)
    mr, mi, alive = zero, zero, zero + 1.0
    if not SUMMARY:
        if CHAINED and split == splits - 1:
            mr, mi = _pairs(grad_final + b * size * 2, place, live)
            mr, mi = _back(mr, mi, phase)
        else:
            mr, mi = _pairs(mu + (b if CHAINED else b * (splits + 1) + split + 1) * size * 2, place, live)
    sum_bias, sum_Br, sum_Bi, sum_Cr, sum_Ci, cross_r, cross_i = zero, zero, zero, zero, zero, zero, zero
    pr, pi = Cr * Br - Ci * Bi, Cr * Bi + Ci * Br
    weights_high, weights_low = _weights(W + parameter * channels, place, live, channels, K)
    steps, own = tl.arange(0, T), first_channel + tl.arange(0, BD)
    present = own < channels
    top, last = (steps == 0)[:, None], (steps == T - 1)[:, None]
    by_channel, column = own[None, :].to(tl.int64) * padded, tl.program_id(0) % blocks * R + tl.arange(0, R)
    scale = 1.0
    if slopes_low is not None and flags is None and not SUMMARY:
        first = (b * channels + own.to(tl.int64)) * padded + run * tiles * T
        reach = _reach(x, first, present, tiles * T, False, BD, NB), _reach(g, first, present, tiles * T, False, BD, NB)
        source = bounds + b * bounds_stride + split.to(tl.int64) * 3 * size + place
        begin = tl.abs(tl.load(source + size, mask=live, other=0.0)) + tl.abs(tl.load(source + 2 * size, mask=live, other=0.0))
        largest = begin + (tl.abs(Br) + tl.abs(Bi)) * reach[0]
        largest *= tl.abs(mr) + tl.abs(mi) + (tl.abs(Cr) + tl.abs(Ci)) * reach[1]
        if PHASE_DT:
            largest *= _reach(rate, first, present, tiles * T, True, BD, NB)
        scale, inverse = _powers(tl.max(largest, 0))
        tl.store(unscale + (b * tl.num_programs(1) + run) * blocks + tl.program_id(0) % blocks, inverse)
    # a tile in memory's own layout: from it the compiler takes that of the scans, and leaves a thread all steps of its lanes
    angles = tl.load(bias + parameter + place[None, :] + steps[:, None] * 0, mask=live[None, :], other=0.0)
    for i in tl.range(tiles, num_stages=STAGES):
        tile = run * tiles + i
        here = tile * T + steps
        at = b * channels * padded + by_channel + here[:, None]
        projected = _projected(high, low, weights_high, weights_low, b * padded + here, place, live, channels, T, R, K)
        if PHASE_DT:
            projected += angles
            step = _of_channels(rate, at, present, T, BD, NB)
            theta = projected * step
        else:
            counts = tl.load(rate + b * padded + here)[:, None]
            theta = projected + counts * angles
        if flags is not None:
            time = origin - here
            mark = tl.load(flags + b * length + time, mask=time < length, other=1)
            later = tl.load(flags + b * length + time + 1, mask=(steps > 0) & (time + 1 < length), other=1)
            restart = tl.broadcast_to((mark == 2)[:, None], (T, R))
            stop = tl.broadcast_to((later == 2)[:, None], (T, R))
            tiles_of_row = tl.num_programs(1) * tiles
            source = resume + (b * tiles_of_row + tiles_of_row - 1 - tile) * 3 * size + place
            phase = tl.load(source, mask=live, other=0.0)
            theta = tl.where(restart, wrap(theta), theta)
            theta = tl.where(last & ~restart, wrap(theta + phase[None, :]), theta)
            restarted, total = tl.associative_scan((restart, theta), 0, _segmented_add_wrapped, reverse=True)
        else:
            before = tl.where(top, wrap(phase[None, :] - theta), -theta)
            before, total = tl.associative_scan((before, tl.where(top, phase[None, :], -0.0)), 0, _turned_back)
            phase = row_of(before, last)
        s, c = _unit(total, FAST)
        out, entering, entry, slope = _of_channels(g, at, present, T, BD, NB), 0.0, 0.0, 0.0
        if not SUMMARY:
            entering = _of_channels(x, at, present, T, BD, NB)
        if flags is not None:
            stopped, Rr, Ri = tl.associative_scan((stop, out * c, -(out * s)), 0, segmented_add_pair)
            mur = tl.where(stopped, 0.0, mr[None, :]) + Cr[None, :] * Rr + Ci[None, :] * Ri
            mui = tl.where(stopped, 0.0, mi[None, :]) + Cr[None, :] * Ri - Ci[None, :] * Rr
            if not SUMMARY:
                wr, wi = tl.load(source + size, mask=live, other=0.0), tl.load(source + 2 * size, mask=live, other=0.0)
                turned = restart, entering * c, -(entering * s)
                _, Sr, Si = tl.associative_scan(turned, 0, segmented_add_pair, reverse=True)
                Sr -= entering * c
                Si += entering * s
                before_r = tl.where(restarted, 0.0, wr[None, :]) + Br[None, :] * Sr - Bi[None, :] * Si
                before_i = tl.where(restarted, 0.0, wi[None, :]) + Br[None, :] * Si + Bi[None, :] * Sr
                before_r, before_i = tl.where(restart, 0.0, before_r), tl.where(restart, 0.0, before_i)
                m_r, m_i = c * mur - s * mui, c * mui + s * mur
                q_r, q_i = c * before_r - s * before_i, c * before_i + s * before_r
                slope = m_i * q_r - m_r * q_i
                entry = Br[None, :] * m_r + Bi[None, :] * m_i
                sum_Br += tl.sum(entering * m_r, 0)
                sum_Bi += tl.sum(entering * m_i, 0)
                sum_Cr += tl.sum(out * (q_r + Br[None, :] * entering), 0)
                sum_Ci -= tl.sum(out * (q_i + Bi[None, :] * entering), 0)
            alive = tl.where(tl.max((mark == 2).to(tl.int32), 0) > 0, 0.0, alive)
            mr, mi = row_of(tl.where(restart, 0.0, mur), last), row_of(tl.where(restart, 0.0, mui), last)
        else:
            Rr, Ri = tl.cumsum(out * c, 0), tl.cumsum(-(out * s), 0)
            all_Rr, all_Ri = row_of(Rr, last), row_of(Ri, last)
            if not SUMMARY:
                turned_r, turned_i = entering * c, -(entering * s)
                Sr, Si = tl.cumsum(turned_r, 0), tl.cumsum(turned_i, 0)
                all_Sr, all_Si = row_of(Sr, last), row_of(Si, last)
                rho_r = (Br * mr + Bi * mi)[None, :] + pr[None, :] * Rr + pi[None, :] * Ri
                rho_i = (Br * mi - Bi * mr)[None, :] + pr[None, :] * Ri - pi[None, :] * Rr
                entry = c * rho_r - s * rho_i
                slope = (mi * wr - mr * wi)[None, :] + (Cr * wr - Ci * wi)[None, :] * Ri - (Cr * wi + Ci * wr)[None, :] * Rr
                slope += rho_r * Si - rho_i * Sr
                cross_r += tl.sum(turned_r * Rr, 0) + tl.sum(turned_i * Ri, 0)
                cross_i += tl.sum(turned_r * Ri, 0) - tl.sum(turned_i * Rr, 0)
                sum_Br += mr * all_Sr + mi * all_Si
                sum_Bi += mi * all_Sr - mr * all_Si
                wr += Bi * all_Si - Br * all_Sr
                wi -= Br * all_Si + Bi * all_Sr
                sum_Cr += all_Rr * wr + all_Ri * wi
                sum_Ci += all_Ri * wr - all_Rr * wi
            mr += Cr * all_Rr + Ci * all_Ri
            mi += Cr * all_Ri - Ci * all_Rr
        if not SUMMARY:
            if PHASE_DT:
                to = d_rate + part.to(tl.int64) * batch * channels * padded + at
                tl.store(to, _over_states(slope * projected, T, BD, NB), mask=present[None, :])
                slope *= step
                sum_bias += tl.sum(slope, 0)
            else:
                sum_bias += tl.sum(slope * counts, 0)
            to = (b * padded + tile * T) * (blocks * R) + (steps[:, None] * (blocks * R) + column[None, :])
            if slopes_low is not None:
                if flags is not None:
                    powers, inverse = _powers(tl.max(tl.abs(slope), 1))
                    tl.store(unscale + (b * padded + here) * blocks + tl.program_id(0) % blocks, inverse)
                    first_half, second_half = _halves(slope, powers[:, None])
                else:
                    first_half, second_half = _halves(slope, scale)
                tl.store(slopes + to, first_half)
                tl.store(slopes_low + to, second_half)
            else:
                tl.store(slopes + to, slope)
            to = dx + part.to(tl.int64) * batch * channels * padded + at
            tl.store(to, _over_states(entry, T, BD, NB), mask=present[None, :])
    if SUMMARY:
        to = sums + (b * splits + split) * size * 3 + place * 3
        tl.store(to, mr, mask=live)
        tl.store(to + 1, mi, mask=live)
        tl.store(to + 2, alive, mask=live)
    else:
        to = sums + (b if CHAINED else b * splits + split) * size * 5 + place
        sum_Br += Cr * cross_r + Ci * cross_i
        sum_Bi += Cr * cross_i - Ci * cross_r
        sum_Cr += Br * cross_r + Bi * cross_i
        sum_Ci += Br * cross_i - Bi * cross_r
        if CHAINED and split < splits - 1:
            sum_bias += tl.load(to, mask=live, other=0.0)
            sum_Br += tl.load(to + size, mask=live, other=0.0)
            sum_Bi += tl.load(to + 2 * size, mask=live, other=0.0)
            sum_Cr += tl.load(to + 3 * size, mask=live, other=0.0)
            sum_Ci += tl.load(to + 4 * size, mask=live, other=0.0)
        tl.store(to, sum_bias, mask=live)
        tl.store(to + size, sum_Br, mask=live)
        tl.store(to + 2 * size, sum_Bi, mask=live)
        tl.store(to + 3 * size, sum_Cr, mask=live)
        tl.store(to + 4 * size, sum_Ci, mask=live)
        if CHAINED:
            to = mu + b * size * 2 + place * 2
            tl.store(to, mr, mask=live)
            tl.store(to + 1, mi, mask=live)
        if split == 0:
            to = d_initial + b * size * 2 + place * 2
            tl.store(to, mr, mask=live)
            tl.store(to + 1, mi, mask=live)


@triton.jit(do_not_specialize=["splits", "bounds_stride"])
def turn_chain_back(ends, bounds, grad_final, mu, splits, size, bounds_stride, BLOCK: tl.constexpr):
    """The gradient of w after every split, mu (B, splits + 1, size, 2), from what splits add to it and whether they forget it,
    (B, splits, size, 3), and from that of the final state, turned back into the frame of w.
    """
    b = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    here = place < size
    mr, mi = _pairs(grad_final + b * size * 2, place, here)
    mr, mi = _back(mr, mi, tl.load(bounds + b * bounds_stride + splits.to(tl.int64) * 3 * size + place, mask=here, other=0.0))
    for i in range(splits + 1):
        split = splits - i
        to = mu + ((b * (splits + 1) + split) * size + place) * 2
        tl.store(to, mr, mask=here)
        tl.store(to + 1, mi, mask=here)
        source = ends + ((b * splits + split - 1) * size + place) * 3
        ours = here & (place * 0 + split > 0)
        holds = tl.load(source + 2, mask=ours, other=0.0) > 0
        mr = tl.where(holds, mr, 0.0) + tl.load(source, mask=ours, other=0.0)
        mi = tl.where(holds, mi, 0.0) + tl.load(source + 1, mask=ours, other=0.0)


@triton.jit(do_not_specialize=["count"])
def add_up(sums, d_bias, dB, dC, count, size, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """The gradients of the bias, B and C: `count` sums (5, D N) of every group, added in a fixed order."""
    group, place = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    here, row = place < size, tl.arange(0, ROWS)
    bias = tl.zeros((ROWS, BLOCK), sums.dtype.element_ty)
    Br, Bi, Cr, Ci = bias, bias, bias, bias
    for first in range(0, count, ROWS):
        source = sums + (group * count + first + row[:, None]) * 5 * size + place[None, :]
        there = (first + row < count)[:, None] & here[None, :]
        bias += tl.load(source, mask=there, other=0.0)
        Br += tl.load(source + size, mask=there, other=0.0)
        Bi += tl.load(source + 2 * size, mask=there, other=0.0)
        Cr += tl.load(source + 3 * size, mask=there, other=0.0)
        Ci += tl.load(source + 4 * size, mask=there, other=0.0)
    to = group * size + place
    tl.store(d_bias + to, tl.sum(bias, 0), mask=here)
    tl.store(dB + 2 * to, tl.sum(Br, 0), mask=here)
    tl.store(dB + 2 * to + 1, tl.sum(Bi, 0), mask=here)
    tl.store(dC + 2 * to, tl.sum(Cr, 0), mask=here)
    tl.store(dC + 2 * to + 1, tl.sum(Ci, 0), mask=here)


@triton.jit(do_not_specialize=["shares"])
def add_parts(
    parts, dW, shares, size, states, width, SLOTS: tl.constexpr, NB: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """The gradient of W (groups, D, N, D): parts (shares, groups, SLOTS, K), NB rows a channel, added in a fixed order."""
    group, place, row = tl.program_id(1).to(tl.int64), tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, ROWS)
    pair, here = place // width, place < size * width
    source = (group * SLOTS + pair // states * NB + pair % states) * K + place % width
    stride = tl.num_programs(1).to(tl.int64) * SLOTS * K
    sums = tl.zeros((ROWS, BLOCK), parts.dtype.element_ty)
    for first in range(0, shares, ROWS):
        there = (first + row < shares)[:, None] & here[None, :]
        sums += tl.load(parts + (first + row)[:, None] * stride + source[None, :], mask=there, other=0.0)
    tl.store(dW + group * size * width + place, tl.sum(sums, 0), mask=here)


# ---------------------------------------------------------------------------------------------- products with W


@triton.jit
def halve(W, high, low, channels, states, SLOTS: tl.constexpr, NB: tl.constexpr, K: tl.constexpr, BS: tl.constexpr):
    """W (groups, D, N, D) U_STEP in two parts (groups, SLOTS, K), rows in the order of slopes: NB for the states of a channel."""
    group, slot = tl.program_id(1).to(tl.int64), tl.program_id(0) * BS + tl.arange(0, BS)
    k, d, n = tl.arange(0, K), slot // NB, slot % NB
    source = W + ((group * channels + d) * states + n)[:, None] * channels + k[None, :]
    there = ((d < channels) & (n < states))[:, None] & (k < channels)[None, :]
    first, second = _halves(tl.load(source, mask=there, other=0.0), U_STEP)
    to = (group * SLOTS + slot)[:, None] * K + k[None, :]
    tl.store(high + to, first, mask=(slot < SLOTS)[:, None])
    tl.store(low + to, second, mask=(slot < SLOTS)[:, None])


@triton.jit
def _tile(x, row, column, inside, within, width, EVEN: tl.constexpr):
    """A tile of x (.., width), with 0 in the rows that are not inside and the columns that are not within."""
    at = row[:, None] * width + column[None, :]
    return tl.load(x + at) if EVEN else tl.load(x + at, mask=inside[:, None] & within[None, :], other=0.0)


@triton.jit
def _through(
    slopes, slopes_low, unscale, W_high, W_low, through, group, tile, share, k, runs, steps, tiles, chunks, BLOCKS: tl.constexpr,
    R: tl.constexpr, K: tl.constexpr, BK: tl.constexpr, BR: tl.constexpr, STAGES: tl.constexpr, EVEN: tl.constexpr,
    BY_STEP: tl.constexpr,
):  # fmt: skip
    """BR steps of what comes to u through the angles: of the lanes of `chunks` of the scan's programs, added up."""
    run, inner = group * runs + tile // tiles, tile % tiles * BR + tl.arange(0, BR)
    row, inside = run * steps + inner, inner < steps
    sums = tl.zeros((BR, BK), tl.float32)
    for chunk in tl.range(share * chunks, tl.minimum((share + 1) * chunks, BLOCKS), num_stages=STAGES):
        slot = chunk * R + tl.arange(0, R)
        all_of = slot >= 0
        high = _tile(slopes, row, slot, inside, all_of, BLOCKS * R, EVEN)
        low = _tile(slopes_low, row, slot, inside, all_of, BLOCKS * R, EVEN)
        weights = (group * BLOCKS * R + slot)[:, None] * K + k[None, :]
        if BY_STEP:
            scale = tl.load(unscale + row * BLOCKS + chunk, mask=inside, other=0.0)[:, None] * (1.0 / U_STEP)
        else:
            scale = tl.load(unscale + run * BLOCKS + chunk) * (1.0 / U_STEP)
        sums = _product(high, low, tl.load(W_high + weights), tl.load(W_low + weights), sums, scale)
    to = through + (share * (tl.num_programs(2) * runs * steps) + row[:, None]) * K + k[None, :]
    tl.store(to, sums, mask=inside[:, None])


@triton.jit
def _gradient(
    slopes, slopes_low, unscale, high, low, parts, group, block, share, k, runs, steps, tiles, count, more, BLOCKS: tl.constexpr,
    R: tl.constexpr, K: tl.constexpr, BK: tl.constexpr, BR: tl.constexpr, BS: tl.constexpr, STAGES: tl.constexpr,
    EVEN: tl.constexpr, BY_STEP: tl.constexpr,
):  # fmt: skip
    """BS rows of W's gradient: of `count` tiles of BR steps, added up, and to what is there if `more`."""
    slot = block * BS + tl.arange(0, BS)
    there = slot < BLOCKS * R
    sums = tl.zeros((BS, BK), tl.float32)
    for tile in tl.range(share * count, tl.minimum((share + 1) * count, runs * tiles), num_stages=STAGES):
        run, inner = group * runs + tile // tiles, tile % tiles * BR + tl.arange(0, BR)
        row, inside = run * steps + inner, inner < steps
        first = _tile(slopes, row, slot, inside, there, BLOCKS * R, EVEN)
        second = _tile(slopes_low, row, slot, inside, there, BLOCKS * R, EVEN)
        inputs, inputs_low = _tile(high, row, k, inside, k < K, K, EVEN), _tile(low, row, k, inside, k < K, K, EVEN)
        if BY_STEP:  # brought to the largest of the tile's powers, exactly but for what is far below the largest slopes
            E: tl.constexpr = BS // R if BS > R else 1  # of the scan's programs that have these lanes
            chunk = block * BS // R + tl.arange(0, E)
            place = row[:, None] * BLOCKS + chunk[None, :]
            powers = tl.load(unscale + place, mask=inside[:, None] & (chunk < BLOCKS)[None, :], other=0.0)
            scale = tl.max(powers, 0)
            powers = tl.where((scale > 0)[None, :], powers / scale[None, :], powers).to(tl.float16)
            powers = tl.reshape(tl.broadcast_to(powers[:, :, None], (BR, E, BS // E)), (BR, BS))
            first, second = first * powers, second * powers
            scale = tl.reshape(tl.broadcast_to(scale[:, None], (E, BS // E)), (BS,)) * U_STEP
        else:
            scale = tl.load(unscale + run * BLOCKS + slot // R, mask=there, other=0.0) * U_STEP
        sums = _product(tl.trans(first), tl.trans(second), inputs, inputs_low, sums, scale[:, None])
    to = parts + ((share * tl.num_programs(2) + group) * (BLOCKS * R) + slot[:, None]) * K + k[None, :]
    if more > 0:
        sums += tl.load(to, mask=there[:, None], other=0.0)
    tl.store(to, sums, mask=there[:, None])


@triton.jit(do_not_specialize=["runs", "steps", "tiles", "tiles_of_W", "chunks", "count", "first", "blocks", "more"])
def products(
    slopes, slopes_low, unscale, W_high, W_low, high, low, through, parts, runs, steps, tiles, tiles_of_W, chunks, count, first,
    blocks, more, BLOCKS: tl.constexpr, R: tl.constexpr, K: tl.constexpr, BK: tl.constexpr, BR: tl.constexpr,
    BS: tl.constexpr, BW: tl.constexpr, STAGES: tl.constexpr, EVEN: tl.constexpr, BY_STEP: tl.constexpr,
):  # fmt: skip
    """What slopes do to u, by the first programs, and to W, by the others; for BK of the channels, of one group.

    slopes (groups, runs, steps, BLOCKS R), times unscale (groups, runs, BLOCKS) for R of them, or where BY_STEP (groups, runs,
    steps, BLOCKS). through: (shares of the slopes,
    groups, runs, steps, K), of tiles of BR steps, `tiles` a run; parts: (shares of the steps, groups, BLOCKS R, K), of `blocks`
    tiles of BS and of BW steps, `tiles_of_W` a run. EVEN: no tile reaches beyond the arrays.
    """
    group, program = tl.program_id(2).to(tl.int64), tl.program_id(0)
    k = tl.program_id(1) * BK + tl.arange(0, BK)
    if program < first:
        _through(
            slopes, slopes_low, unscale, W_high, W_low, through, group, program % (runs * tiles), program // (runs * tiles), k,
            runs, steps, tiles, chunks, BLOCKS, R, K, BK, BR, STAGES, EVEN, BY_STEP,
        )  # fmt: skip
    else:
        _gradient(
            slopes, slopes_low, unscale, high, low, parts, group, (program - first) % blocks, (program - first) // blocks, k,
            runs, steps, tiles_of_W, count, more, BLOCKS, R, K, BK, BW, BS, STAGES, EVEN, BY_STEP,
        )  # fmt: skip


# ---------------------------------------------------------------------------------------------- before and after the scans


@triton.jit(do_not_specialize=["length", "padded", "origin", "tiles"])
def enter(
    u, dt, z, grad_y, flags, high, low, rate, x, g, length, channels, width, padded, origin, tiles, REVERSE: tl.constexpr,
    PHASE_DT: tl.constexpr, T: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """What a scan reads, 0 at invalid steps and beyond the row: u in two parts (B, padded, width), and with the time axis last
    x = dt silu(u), the gradient g before the gate, and the rate, dt with PHASE_DT, else 1 for a step that counts (B, padded).

    The arrays begin with the step `origin` and go on from there, backwards with REVERSE.
    """
    b, tile = (tl.program_id(0) // tiles).to(tl.int64), tl.program_id(0) % tiles
    place, d = tile * T + tl.arange(0, T), tl.program_id(1) * BD + tl.arange(0, BD)
    time = origin - place if REVERSE else origin + place
    valid = (place < padded) & (time < length)
    if flags is not None:
        valid = valid & (tl.load(flags + b * length + time, mask=valid, other=1) != 1)
    at = (b * length + time[:, None]) * channels + d[None, :]
    here = valid[:, None] & (d < channels)[None, :]
    within, there = (place < padded)[:, None] & (d < width)[None, :], (place < padded)[:, None] & (d < channels)[None, :]
    value = tl.load(u + at, mask=here, other=0.0)
    to = (b * padded + place[:, None]) * width + d[None, :]
    if low is not None:
        first, second = _halves(value, 1.0 / U_STEP)
        tl.store(high + to, first, mask=within)
        tl.store(low + to, second, mask=within)
    else:
        tl.store(high + to, value, mask=within)
    to = (b * channels + d[None, :]) * padded + place[:, None]
    step = tl.load(dt + at, mask=here, other=0.0)
    tl.store(x + to, step * silu(value), mask=there)
    if PHASE_DT:
        tl.store(rate + to, step, mask=there)
    else:
        counts = tl.where(valid, 1.0, 0.0).to(value.dtype)
        tl.store(rate + b * padded + place, counts, mask=(place < padded) & (place * 0 + tl.program_id(1) == 0))
    if grad_y is not None:
        slope = tl.load(grad_y + at, mask=here, other=0.0)
        if z is not None:
            slope *= silu(tl.load(z + at, mask=here, other=0.0))
        tl.store(g + to, slope, mask=there)


@triton.jit
def _added(source, stride, parts, there):
    """The sum of `parts` tiles that lie `stride` apart."""
    found = tl.load(source, mask=there, other=0.0)
    for i in range(1, parts):
        found += tl.load(source + i * stride, mask=there, other=0.0)
    return found


@triton.jit(do_not_specialize=["batch", "length", "padded", "tiles", "rows", "raw_stride"])
def leave(
    sums, u, D, z, flags, y, raw, batch, length, channels, padded, parts, tiles, rows, raw_stride, T: tl.constexpr,
    BD: tl.constexpr,
):  # fmt: skip
    """y = (sums + D silu(u)) silu(z), 0 at invalid steps, and the sums (B, L, D) to `raw`; from (parts, B, D, padded)."""
    b, tile = (tl.program_id(0) // tiles).to(tl.int64), tl.program_id(0) % tiles
    time, d = tile * T + tl.arange(0, T), tl.program_id(1) * BD + tl.arange(0, BD)
    inside = time < length
    valid = inside
    if flags is not None:
        valid = inside & (tl.load(flags + b * length + time, mask=inside, other=1) != 1)
    at = time[:, None] * channels + d[None, :]
    here, there = valid[:, None] & (d < channels)[None, :], inside[:, None] & (d < channels)[None, :]
    stride = batch.to(tl.int64) * channels * padded
    value = _added(sums + (b * channels + d[None, :]) * padded + time[:, None], stride, parts, here)
    if raw is not None:
        tl.store(raw + b * raw_stride + at, value, mask=there)
    at += b * length * channels
    if D is not None:
        skip = tl.load(D + (b // rows) * channels + d, mask=d < channels, other=0.0)
        value += skip[None, :] * silu(tl.load(u + at, mask=here, other=0.0))
    if z is not None:
        value *= silu(tl.load(z + at, mask=here, other=0.0))
    tl.store(y + at, value, mask=there)


@triton.jit(do_not_specialize=["batch", "length", "padded", "origin", "tiles", "rows", "raw_stride", "first_tile", "all_tiles"])
def leave_backward(
    grad_y, u, dt, D, z, flags, raw, dx, d_rate, through, du, ddt, dz, dD, batch, length, channels, width, padded, origin, parts,
    shares, tiles, rows, raw_stride, first_tile, all_tiles, PHASE_DT: tl.constexpr, T: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """The gradients of u, dt and z at a slice's steps. through: (shares, B, padded, width), what comes to u through the angles;
    dD: (B, all_tiles, D) sums.
    """
    b, tile = (tl.program_id(0) // tiles).to(tl.int64), tl.program_id(0) % tiles
    place, d = tile * T + tl.arange(0, T), tl.program_id(1) * BD + tl.arange(0, BD)
    time = origin - place
    inside = (place < padded) & (time < length)
    valid = inside
    if flags is not None:
        valid = inside & (tl.load(flags + b * length + time, mask=inside, other=1) != 1)
    at = time[:, None] * channels + d[None, :]
    here, there = valid[:, None] & (d < channels)[None, :], inside[:, None] & (d < channels)[None, :]
    value = tl.load(raw + b * raw_stride + at, mask=here, other=0.0)
    at += b * length * channels
    entry = tl.load(u + at, mask=here, other=0.0)
    activated = silu(entry)
    slope = tl.load(grad_y + at, mask=here, other=0.0)
    skip = tl.zeros((BD,), entry.dtype)
    if D is not None:
        skip = tl.load(D + (b // rows) * channels + d, mask=d < channels, other=0.0)
        value += skip[None, :] * activated
    if z is not None:
        gate = tl.load(z + at, mask=here, other=0.0)
        tl.store(dz + at, slope * value * silu_slope(gate), mask=there)
        slope *= silu(gate)
    if D is not None:
        tl.store(dD + (b * all_tiles + first_tile + tile) * channels + d, tl.sum(slope * activated, 0), mask=d < channels)
    source, stride = (b * channels + d[None, :]) * padded + place[:, None], batch.to(tl.int64) * channels * padded
    entering = _added(dx + source, stride, parts, here)
    step = tl.load(dt + at, mask=here, other=0.0)
    more = (step * entering + skip[None, :] * slope) * silu_slope(entry)
    angles = through + (b * padded + place[:, None]) * width + d[None, :]
    more += _added(angles, batch.to(tl.int64) * padded * width, shares, here)
    tl.store(du + at, tl.where(here, more, 0.0), mask=there)
    change = entering * activated
    if PHASE_DT:
        change += _added(d_rate + source, stride, parts, here)
    tl.store(ddt + at, tl.where(here, change, 0.0), mask=there)


# ---------------------------------------------------------------------------------------------- launches

WIDE, WIDER = 32, 128  # channels, beyond which the scans have launches of their own
FEW = 128  # steps of a slice, for which it may take four times the memory: what starts with a slice costs more than memory saves
UNIT = 64  # steps, of which longer splits are multiples, so that fewer tiles of the products reach beyond them
BLOCK = {"BLOCK": 128}  # pairs of channel and state a program, between splits
SUMS = {"ROWS": 16, "BLOCK": 32}  # of `add_up`
PARTS = {"ROWS": 8, "BLOCK": 256}  # of `add_parts`


class _Problem:
    """Sizes of a call, and how channels, states and steps are divided.

    rows: batch rows a group; each group has its own parameters. A split is `tiles` tiles of T steps; `parallel`: splits run side
    by side, as they do in a `piece` of split sequences, whose states are exchanged after a first pass. A program has BD channels
    and NB states of each; `parts` programs have the states of a channel.
    """

    def __init__(self, u: Tensor, W: Tensor, states: int, phase_dt: bool, has_flags: bool, piece: bool) -> None:
        self.batch, self.length, self.channels = u.shape
        self.states, self.size, self.phase_dt = states, self.channels * states, phase_dt
        self.groups = len(W) if W.ndim == 4 else 1
        self.rows = self.batch // self.groups
        self.single = u.dtype == torch.float32
        table = _table(self.channels)
        self.NB, self.BD, self.parts, self.blocks = _lanes(self.channels, states)
        self.T = table.steps
        if not self.single:
            self.T = max(1, table.steps // 2)
        elif has_flags and table.steps > 16:  # a product on matrix units has 16 rows; with flags more would not stay in registers
            self.T = table.steps // 2
        steps, self.splits, parallel = _splits(self.batch, self.length, self.channels, states)
        self.parallel = parallel or piece
        self.tiles = steps // self.T
        self.steps = steps
        self.K = max(16, power_of_two(self.channels)) if self.single else 0
        self.width = self.K or self.channels
        self.warps = min(launch.MAX_WARPS, max(1, self.BD * self.NB * table.warps // table.lanes))
        self.fast = self.single and launch.special_functions(u)

    @property
    def programs(self) -> int:
        return self.batch * self.blocks

    def constants(self) -> dict[str, Any]:
        """The compile-time arguments of both scans."""
        return {
            "channels": self.channels, "states": self.states, "parts": self.parts, "blocks": self.blocks,
            "PHASE_DT": self.phase_dt, "T": self.T, "BD": self.BD, "NB": self.NB, "K": self.K, "FAST": self.fast,
            "STAGES": _table(self.channels).stages,
            "num_warps": self.warps,
        }  # fmt: skip


def _table(channels: int) -> launch.Launch:
    """The launch of the scans; with many channels tiles of u and W fill the shared memory and the registers sooner."""
    return launch.TABLE["unitary_scan" + ("_wider" if channels > WIDER else "_wide" if channels > WIDE else "")]


def _lanes(channels: int, states: int) -> tuple[int, int, int, int]:
    """States and channels of a program, programs for the states of a channel, and programs for a step."""
    lanes = _table(channels).lanes
    NB = min(lanes, power_of_two(states))
    BD = lanes // NB
    parts = ceil_div(states, NB)
    return NB, BD, parts, ceil_div(channels, BD) * parts


def _splits(batch: int, length: int, channels: int, states: int) -> tuple[int, int, bool]:
    """The steps of a split, how many splits there are, and whether they run side by side."""
    T = _table(channels).steps
    NB, BD, _, blocks = _lanes(channels, states)
    programs, row = batch * blocks, 4 * batch * blocks * BD * NB
    parallel, most = programs * 2 <= launch.PROGRAMS, launch.SCRATCH // row
    if parallel:
        side_by_side = ceil_div(launch.PROGRAMS, programs)
        most = min(ceil_div(length, side_by_side), most // side_by_side)
    elif most < FEW:
        most = min(FEW, 4 * launch.SCRATCH // row)
    count = ceil_div(length, min(max(most, T), length))
    steps = ceil_div(length, count)
    unit = max(T, UNIT) if steps >= 4 * UNIT else T
    steps = ceil_div(steps, unit) * unit
    count = ceil_div(length, steps)
    return steps, count, parallel and count > 1


def chunk_states_shape(batch: int, length: int, channels: int, states: int) -> tuple[int, int]:
    """Of what `forward` keeps for `backward`, row by row: the state before every split first, and y before the gate last."""
    channels, states = int(channels), int(states)
    splits = _most_splits(batch, length, channels, states)
    return batch, channels * states * 3 * (splits + 1) + length * channels


def _most_splits(batch: int, length: int, channels: int, states: int) -> int:
    """An upper bound of the number of `_splits`, without the comparisons of B and L that would tie a recorded graph to them."""
    NB, BD, _, blocks = _lanes(channels, states)
    row = 4 * batch * blocks * BD * NB
    side_by_side, most = ceil_div(launch.PROGRAMS, batch * blocks), launch.SCRATCH // row
    most = launch.largest(most, launch.smallest(FEW, 4 * launch.SCRATCH // row))
    longest = launch.largest(1, most // side_by_side)
    return launch.smallest(ceil_div(length, _table(channels).steps), side_by_side + ceil_div(length, longest))


class _Entered(NamedTuple):
    """What scans read of a slice of the steps; backwards, with g, where they run backwards. padded: how many steps, 0 beyond."""

    high: Tensor
    low: Tensor | None
    rate: Tensor
    x: Tensor
    g: Tensor | None
    padded: int
    origin: int


class _Slice:
    """The arrays of a slice of at most `steps` steps, filled again where another slice is asked for."""

    def __init__(self, p: _Problem, like: Tensor, steps: int, backward: bool) -> None:
        self.p = p
        rate = p.channels if p.phase_dt else 1
        self.high = like.new_empty(p.batch * steps * p.width, dtype=torch.float16 if p.single else like.dtype)
        self.low = torch.empty_like(self.high) if p.single else None
        self.rate = like.new_empty(p.batch * steps * rate)
        self.x = like.new_empty(p.batch * steps * p.channels)
        self.g = torch.empty_like(self.x) if backward else None
        self.held: tuple[int, bool] | None = None  # where they begin, and whether they go backwards

    def fill(self, tensors: tuple[Tensor | None, ...], origin: int, padded: int, reverse: bool) -> _Entered:
        """From u, dt, z, grad_y (None where nothing runs backwards) and flags."""
        p = self.p
        if self.held != (origin, reverse):
            grid, tiles, each = launch.elementwise(p.batch, padded, p.width)
            launch.run(
                enter, grid, *tensors, self.high, self.low, self.rate, self.x, self.g, p.length, p.channels, p.width, padded,
                origin, tiles, constants={"REVERSE": reverse, "PHASE_DT": p.phase_dt, **each},
            )  # fmt: skip
        self.held = origin, reverse
        return _Entered(self.high, self.low, self.rate, self.x, self.g, padded, origin)


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
    enter: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """y (B, L, D), the final state (B, D, N, 2) and what `backward` needs where `keep`.

    Contiguous tensors of one real dtype; L, D and N at least 1. The parameters W (D, N, D), bias, B, C and D may have one more
    leading axis, of groups: as many runs of batch rows then have parameters of their own. enter: the initial state, from the
    factor of these steps and the state that they leave from 0.
    """
    p = _Problem(u, W, initial_state.shape[2], phase_dt, flags is not None, enter is not None)
    y, final = torch.empty_like(u), torch.empty_like(initial_state)
    kept = u.new_empty(chunk_states_shape(p.batch, p.length, p.channels, p.states) if keep else (0,))
    bounds, raw = (kept, kept[:, -p.length * p.channels :]) if keep else (None, None)
    padded = p.splits * p.steps
    sums = u.new_empty(p.parts * p.batch * padded * p.channels)
    with launch.on_device(u):
        entered = _Slice(p, u, padded, False).fill((u, dt, None, None, flags), 0, padded, False)
        weights = W, bias, B, C
        if p.parallel:
            ends = u.new_empty((p.batch, p.splits, p.size, 4))
            _scan(p, entered, weights, (None, None, flags, None, None, ends, None), 0, p.splits, "SUMMARY")
            if bounds is None:
                bounds = u.new_empty((p.batch, 3 * p.size * (p.splits + 1)))
            grid = p.batch, ceil_div(p.size, 128)
            if enter is not None:
                zero = torch.zeros_like(initial_state)
                launch.run(turn_chain, grid, ends, zero, bounds, p.splits, p.size, bounds.stride(0), constants=BLOCK)
                end = bounds[:, 3 * p.size * p.splits : 3 * p.size * (p.splits + 1)].view(p.batch, 3, p.channels, p.states)
                factor = polar(torch.ones_like(end[:, 0]), end[:, 0])
                initial_state = enter(factor, multiply(factor, torch.stack([end[:, 1], end[:, 2]], -1))).contiguous()
            launch.run(turn_chain, grid, ends, initial_state, bounds, p.splits, p.size, bounds.stride(0), constants=BLOCK)
            _scan(p, entered, weights, (None, bounds, flags, sums, final, None, None), 0, p.splits, "")
        else:
            _scan(p, entered, weights, (initial_state, bounds, flags, sums, final, None, None), 0, 1, "RECORD" if keep else "")
        grid, tiles, each = launch.elementwise(p.batch, p.length, p.channels)
        launch.run(
            leave, grid, sums, u, D, z, flags, y, raw, p.batch, p.length, p.channels, padded, p.parts, tiles, p.rows,
            kept.stride(0), constants=each,
        )  # fmt: skip
    return y, final, kept


def _scan(
    p: _Problem,
    entered: _Entered,
    weights: tuple[Tensor, ...],
    tensors: tuple[Tensor | None, ...],
    first_split: int,
    runs: int,
    kind: str,
) -> None:
    bounds = tensors[1]
    launch.run(
        scan, (p.programs, runs), *entered[:4], *weights, *tensors, p.batch, p.length, p.splits, p.tiles,
        entered.padded // (p.T * runs), p.rows, entered.padded, entered.origin, first_split,
        0 if bounds is None else bounds.stride(0),
        constants={"SUMMARY": kind == "SUMMARY", "RECORD": kind == "RECORD", **p.constants()},
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
    leave: Callable[[Tensor], Tensor] | None = None,
) -> tuple[Tensor, ...]:
    """The gradients of u, dt, W, bias, B, C, D, z and initial_state; empty tensors for absent inputs.

    leave: in place of grad_final, that of the final state from that of the initial state if it is 0.
    """
    p = _Problem(u, W, initial_state.shape[2], phase_dt, flags is not None, leave is not None)
    du, ddt, dz = torch.empty_like(u), torch.empty_like(u), u.new_empty(0) if z is None else torch.empty_like(z)
    mu = u.new_empty((p.batch, p.splits + 1 if p.parallel else 1, p.size, 2))
    sums = u.new_empty((p.batch, p.splits if p.parallel else 1, 5, p.size))
    d_bias, dB, dC, d_initial = map(torch.empty_like, (bias, B, C, initial_state))
    stride, raw = chunk_states.stride(0), chunk_states[:, -p.length * p.channels :]
    at_once = max(1, launch.SCRATCH // (4 * p.programs * p.BD * p.NB * p.steps)) if p.parallel else 1
    slices = list(launch.slices(p.splits, at_once))
    most = min(at_once, p.splits) * p.steps
    tiles_of = [launch.elementwise(p.batch, (stop - first) * p.steps, p.channels)[1] for first, stop in slices]
    dD = None if D is None else u.new_empty((p.batch, sum(tiles_of), p.channels))
    with launch.on_device(u, repeats=True):
        weights = W, bias, B, C
        arrays, resume = _Slice(p, u, most, True), None

        def tile_states(first: int, stop: int) -> OptionalTensor:
            """The states before the tiles of the splits [first, stop), where they cannot be found by subtraction."""
            if flags is None:
                return None
            states = u.new_empty((p.batch, (stop - first) * p.tiles, 3, p.size))
            entered = arrays.fill((u, dt, z, grad_y, flags), first * p.steps, (stop - first) * p.steps, False)
            tensors = (None, chunk_states, flags, None, None, None, states)
            _scan(p, entered, weights, tensors, first, stop - first, "")
            return states

        if p.parallel:
            ends = u.new_empty((p.batch, p.splits, p.size, 3))
            for first, stop in slices:
                resume = tile_states(first, stop)
                entered = arrays.fill((u, dt, z, grad_y, flags), stop * p.steps - 1, (stop - first) * p.steps, True)
                tensors = (chunk_states, flags, resume, grad_final, mu, *(None,) * 5, ends, None)
                _scan_backward(p, entered, weights, tensors, first, stop, True)
            grid = p.batch, ceil_div(p.size, 128)
            if leave is not None:
                zero = torch.zeros_like(grad_final)
                launch.run(turn_chain_back, grid, ends, chunk_states, zero, mu, p.splits, p.size, stride, constants=BLOCK)
                grad_final = leave(mu[:, 0].reshape(grad_final.shape)).contiguous()
            launch.run(turn_chain_back, grid, ends, chunk_states, grad_final, mu, p.splits, p.size, stride, constants=BLOCK)
        dx = u.new_empty(p.parts * p.batch * most * p.channels)
        d_rate = torch.empty_like(dx) if phase_dt else None
        product = _Products(p, W, most, flags is not None)
        for index, (first, stop) in enumerate(slices):
            padded, origin = (stop - first) * p.steps, stop * p.steps - 1
            if not p.parallel or len(slices) > 1:
                resume = tile_states(first, stop)
            entered = arrays.fill((u, dt, z, grad_y, flags), origin, padded, True)
            outputs = (chunk_states, flags, resume, grad_final, mu, dx, d_rate, *product.slopes, sums, d_initial)
            _scan_backward(p, entered, weights, outputs, first, stop, False)
            through, shares = product.add(entered, stop - first)
            grid, tiles, each = launch.elementwise(p.batch, padded, p.channels)
            launch.run(
                leave_backward, grid, grad_y, u, dt, D, z, flags, raw, dx, d_rate, through, du, ddt, dz, dD, p.batch, p.length,
                p.channels, p.width, padded, origin, p.parts, shares, tiles, p.rows, stride, sum(tiles_of[:index]),
                sum(tiles_of), constants={"PHASE_DT": phase_dt, **each},
            )  # fmt: skip
        count = sums.shape[1] * p.rows
        launch.run(add_up, (p.groups, ceil_div(p.size, 32)), sums, d_bias, dB, dC, count, p.size, constants=SUMS)
        dW = product.total()
    skip = u.new_empty(0) if D is None or dD is None else dD.view(p.groups, -1, p.channels).sum(1).reshape(D.shape)
    return du, ddt, dW, d_bias, dB, dC, skip, dz, d_initial


def _scan_backward(
    p: _Problem,
    entered: _Entered,
    weights: tuple[Tensor, ...],
    tensors: tuple[Tensor | None, ...],
    first: int,
    stop: int,
    summary: bool,
) -> None:
    bounds = tensors[0]
    assert bounds is not None
    launch.run(
        scan_backward, (p.programs, stop - first), *entered[:5], *weights, *tensors, p.batch, p.length, p.splits, p.tiles,
        p.rows, entered.padded, entered.origin, first, bounds.stride(0),
        constants={"SUMMARY": summary, "CHAINED": not p.parallel, **p.constants()},
    )  # fmt: skip


class _Products:
    """From the gradients of the projection, slice after slice, to those of u and W.

    slopes: as scan_backward stores them, for slices of at most `most` steps; by_step: with a power of two for each step.
    """

    def __init__(self, p: _Problem, W: Tensor, most: int, by_step: bool) -> None:
        self.p, self.W, self.more, self.by_step = p, W, False, by_step
        self.lanes, self.width = p.BD * p.NB, p.parts * p.NB  # of a program; for the states of a channel
        self.slots, rows = p.blocks * self.lanes, p.batch * most
        if p.single:
            self._divide(rows, p.rows * (most // p.steps))
            return
        self.slopes: tuple[Tensor, Tensor | None, Tensor | None] = W.new_empty(rows * self.slots), None, None
        self.weights = W.new_zeros(p.groups, self.slots, p.channels)
        there = self.weights.view(p.groups, -1, self.width, p.channels)[:, : p.channels, : p.states]
        there.copy_(W.view(there.shape))
        self.sums = torch.zeros_like(self.weights)

    def _divide(self, rows: int, runs: int) -> None:
        """Room for `rows` steps, `runs` runs a group; W in two parts; and which programs there are."""
        p, W = self.p, self.W
        high = torch.empty(rows * self.slots, dtype=torch.float16, device=W.device)
        self.slopes = high, torch.empty_like(high), W.new_empty((rows if self.by_step else rows // p.steps) * p.blocks)
        self.weights = high.new_empty(p.groups * self.slots * p.K)
        self.low_weights = torch.empty_like(self.weights)
        grid = ceil_div(self.slots, 16), p.groups
        launch.run(
            halve, grid, W, self.weights, self.low_weights, p.channels, p.states,
            constants={"SLOTS": self.slots, "NB": self.width, "K": p.K, "BS": 16},
        )  # fmt: skip
        self.tile = table = launch.PRODUCTS[min(p.K, max(launch.PRODUCTS))]
        self.columns, self.blocks = p.K // table.columns, ceil_div(self.slots, table.slots)
        programs = ceil_div(table.programs, self.columns * p.groups)
        tiles, tiles_of_W = (runs * ceil_div(p.steps, each) for each in (table.rows, table.steps))
        self.chunks = ceil_div(p.blocks, ceil_div(programs, tiles))  # of lanes, in a program for u
        self.count = ceil_div(tiles_of_W, ceil_div(programs, self.blocks))  # of tiles, in a program for W
        self.shares, self.parts = ceil_div(p.blocks, self.chunks), ceil_div(tiles_of_W, self.count)
        self.sums = W.new_empty((self.parts, p.groups, self.slots, p.K))
        self.through = W.new_empty(self.shares * rows * p.K)

    def add(self, entered: _Entered, runs: int) -> tuple[Tensor, int]:
        """One slice of `runs` splits: what comes to u, (shares, B, padded, width), and how many shares. W's gradient grows."""
        p, padded = self.p, entered.padded
        if self.slopes[1] is None:
            slopes = self.slopes[0][: p.batch * padded * self.slots].view(p.groups, -1, self.slots)
            rows = entered.high[: p.batch * padded * p.channels].view(p.groups, -1, p.channels)
            self.sums.baddbmm_(slopes.mT, rows)
            return torch.bmm(slopes, self.weights), 1
        table, runs = self.tile, runs * p.rows
        tiles, tiles_of_W = ceil_div(p.steps, table.rows), ceil_div(p.steps, table.steps)
        first = runs * tiles * self.shares
        grid = first + self.blocks * self.parts, self.columns, p.groups
        even = p.steps % table.rows == p.steps % table.steps == self.slots % table.slots == 0
        launch.run(
            products, grid, *self.slopes, self.weights, self.low_weights, entered.high, entered.low, self.through, self.sums,
            runs, p.steps, tiles, tiles_of_W, self.chunks, self.count, first, self.blocks, int(self.more), constants={
                "BLOCKS": p.blocks, "R": self.lanes, "K": p.K, "BK": table.columns, "BR": table.rows, "BS": table.slots,
                "BW": table.steps, "STAGES": table.stages, "EVEN": even, "BY_STEP": self.by_step, "num_warps": table.warps,
            },
        )  # fmt: skip
        self.more = True
        return self.through, self.shares

    def total(self) -> Tensor:
        """The gradient of W."""
        p, dW = self.p, torch.empty_like(self.W)
        grid, shares = (ceil_div(p.size * p.channels, PARTS["BLOCK"]), p.groups), self.sums.numel() // self.weights.numel()
        launch.run(
            add_parts, grid, self.sums, dW, shares, p.size, p.states, p.channels,
            constants={"SLOTS": self.slots, "NB": self.width, "K": p.width, **PARTS},
        )  # fmt: skip
        return dW
