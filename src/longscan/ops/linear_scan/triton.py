"""`linear_scan` in Triton: each number is read once and written once, but where splits of the time axis run side by side.

A program owns a strip of S and goes over the steps tile by tile. The x of a tile are an associative scan of x -> a x + b; the
x before its first step enters the b of that. The backward is the same scan backwards in time,
g_t = dL/dx_t + conj(a_{t+1}) g_{t+1}, with db_t = g_t and da_t = g_t conj(x_{t-1}). An invalid step has a = 1 and b = 0, a step
where the state restarts a = 0.
With REVERSE, step i of the scan is the step L - 1 - i of the tensors.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from longscan.ops import _triton_launch as launch
from longscan.ops._arguments import INVALID
from longscan.ops._triton import affine, affine_complex, chain, row_of


@triton.jit
def _factor(a, place, size, times, inside, here, marks, CONSTANT: tl.constexpr, P: tl.constexpr, SEGMENTS: tl.constexpr):
    """a of a tile's steps `times`, 1 beyond the row and where `marks` say invalid, 0 where the state restarts.

    a points to a batch row. Where P is 2 the imaginary part comes second, else the same again.
    """
    if CONSTANT:
        re = tl.where(here, tl.load(a + place * P, mask=place < size, other=0.0)[None, :], 1.0)
        im = re
        if P == 2:
            im = tl.where(here, tl.load(a + place * P + 1, mask=place < size, other=0.0)[None, :], 0.0)
    else:
        at = a + (times[:, None] * size + place[None, :]) * P
        re = tl.load(at, mask=here, other=1.0)
        im = re
        if P == 2:
            im = tl.load(at + 1, mask=here, other=0.0)
    if SEGMENTS:
        fresh = (inside & (marks == 2))[:, None]
        re = tl.where(fresh, 0.0, re)
        if P == 2:
            im = tl.where(fresh, 0.0, im)
    return re, im


@triton.jit(do_not_specialize=["length", "tiles", "splits", "span", "rows"])
def scan(
    a, b, initial, start, flags, x, final, mult, ends, length, size, blocks, tiles, splits, span, rows, CONSTANT: tl.constexpr,
    COMPLEX: tl.constexpr, REVERSE: tl.constexpr, SUMMARY: tl.constexpr, T: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """One split of one batch row for R elements of S.

    start: (B, splits + 1, S[, 2]), or None where the split is the whole row; then `initial` (B, S[, 2]) holds. With SUMMARY the
    split is run from 0: `ends` (B, splits, S[, 2]) gets its last x, `mult` the factor of the x before it.
    """
    P: tl.constexpr = 2 if COMPLEX else 1
    row = (tl.program_id(0) // blocks).to(tl.int64)
    split = tl.program_id(1)
    place = (tl.program_id(0) % blocks) * R + tl.arange(0, R)
    live = place < size
    base = row * length * size * P
    a_row = a + (row // rows) * size * P if CONSTANT else a + base
    steps = tl.arange(0, T)
    top, last = (steps == 0)[:, None], (steps == T - 1)[:, None]
    xr = tl.load(initial + row * size * P + place * P, mask=live, other=0.0)
    xi = xr
    if COMPLEX:
        xi = tl.load(initial + row * size * P + place * P + 1, mask=live, other=0.0)
    if start is not None:
        source = start + (row * (splits + 1) + split) * size * P + place * P
        xr = tl.load(source, mask=live, other=0.0)
        if COMPLEX:
            xi = tl.load(source + 1, mask=live, other=0.0)
    factor_r, factor_i = xr * 0.0 + 1.0, xr * 0.0
    if SUMMARY:
        xr, xi = xr * 0.0, xi * 0.0
    begin = split * span
    for i in range(tl.minimum(span, tiles - begin)):
        order = ((begin + i) * T + steps).to(tl.int64)
        inside = order < length
        times = length - 1 - order if REVERSE else order
        valid, mark = inside, order
        if flags is not None:
            mark = tl.load(flags + row * length + times, mask=inside, other=1).to(tl.int64)
            valid = inside & (mark != 1)
        here = valid[:, None] & live[None, :]
        ar, ai = _factor(a_row, place, size, times, inside, here, mark, CONSTANT, P, flags is not None)
        at = (times[:, None] * size + place[None, :]) * P
        br = tl.load(b + base + at, mask=here, other=0.0)
        if COMPLEX:
            bi = tl.load(b + base + at + 1, mask=here, other=0.0)
            br += tl.where(top, ar * xr[None, :] - ai * xi[None, :], 0.0)
            bi += tl.where(top, ar * xi[None, :] + ai * xr[None, :], 0.0)
            pr, pi, yr, yi = tl.associative_scan((ar, ai, br, bi), 0, affine_complex)
            xr, xi = row_of(yr, last), row_of(yi, last)
        else:
            br += tl.where(top, ar * xr[None, :], 0.0)
            pr, yr = tl.associative_scan((ar, br), 0, affine)
            xr = row_of(yr, last)
        if SUMMARY:
            more = row_of(pr, last)
            if COMPLEX:
                more_i = row_of(pi, last)
                turned = more * factor_r - more_i * factor_i
                factor_i = more * factor_i + more_i * factor_r
                factor_r = turned
            else:
                factor_r = more * factor_r
        else:
            there = inside[:, None] & live[None, :]
            tl.store(x + base + at, tl.where(here, yr, 0.0), mask=there)
            if COMPLEX:
                tl.store(x + base + at + 1, tl.where(here, yi, 0.0), mask=there)
    if SUMMARY:
        to = (row * splits + split) * size * P + place * P
        tl.store(ends + to, xr, mask=live)
        tl.store(mult + to, factor_r, mask=live)
        if COMPLEX:
            tl.store(ends + to + 1, xi, mask=live)
            tl.store(mult + to + 1, factor_i, mask=live)
    elif split == splits - 1:
        to = final + row * size * P + place * P
        tl.store(to, xr, mask=live)
        if COMPLEX:
            tl.store(to + 1, xi, mask=live)


@triton.jit(do_not_specialize=["length", "tiles", "splits", "span", "rows"])
def scan_backward(
    grad_x, a, x, initial, flags, previous, adjoints, da, db, mult, ends, length, size, blocks, tiles, splits, span, rows,
    CONSTANT: tl.constexpr, COMPLEX: tl.constexpr, REVERSE: tl.constexpr, SUMMARY: tl.constexpr, T: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """One split of one batch row for R elements of S, backwards; adjoints (B, splits + 1, S[, 2]): g after each split.

    da: as a, or (B, splits, S[, 2]) sums of the splits where a is CONSTANT. previous: (B, L), which step of the scan was the
    last valid one before each, -1 before the first; None where every step is valid. With SUMMARY the split is run from 0: `ends`
    gets its first g, `mult` the factor, unconjugated, of the g after it.
    """
    P: tl.constexpr = 2 if COMPLEX else 1
    row = (tl.program_id(0) // blocks).to(tl.int64)
    split = tl.program_id(1)
    place = (tl.program_id(0) % blocks) * R + tl.arange(0, R)
    live = place < size
    base = row * length * size * P
    a_row = a + (row // rows) * size * P if CONSTANT else a + base
    steps = tl.arange(0, T)
    top, last = (steps == 0)[:, None], (steps == T - 1)[:, None]
    source = initial + row * size * P + place * P
    first_r = tl.load(source, mask=live, other=0.0)
    first_i = first_r
    if COMPLEX:
        first_i = tl.load(source + 1, mask=live, other=0.0)
    gr, gi, sum_r, sum_i, factor_r, factor_i = (
        first_r * 0.0, first_r * 0.0, first_r * 0.0, first_r * 0.0, first_r * 0.0 + 1.0, first_r * 0.0,
    )  # fmt: skip
    if not SUMMARY:
        source = adjoints + (row * (splits + 1) + split + 1) * size * P + place * P
        gr = tl.load(source, mask=live, other=0.0)
        if COMPLEX:
            gi = tl.load(source + 1, mask=live, other=0.0)
    begin = split * span
    count = tl.minimum(span, tiles - begin)
    for i in range(count):
        order = ((begin + count - 1 - i) * T + steps).to(tl.int64)
        inside, inside_next = order < length, order + 1 < length
        times = length - 1 - order if REVERSE else order
        times_next = times - 1 if REVERSE else times + 1
        valid, valid_next, mark, mark_next = inside, inside_next, order, order
        if flags is not None:
            mark = tl.load(flags + row * length + times, mask=inside, other=1).to(tl.int64)
            mark_next = tl.load(flags + row * length + times_next, mask=inside_next, other=1).to(tl.int64)
            valid, valid_next = inside & (mark != 1), inside_next & (mark_next != 1)
        here = valid[:, None] & live[None, :]
        here_next = valid_next[:, None] & live[None, :]
        ar, ai = _factor(a_row, place, size, times_next, inside_next, here_next, mark_next, CONSTANT, P, flags is not None)
        at = (times[:, None] * size + place[None, :]) * P
        vr = tl.load(grad_x + base + at, mask=here, other=0.0)
        if COMPLEX:
            vi = tl.load(grad_x + base + at + 1, mask=here, other=0.0)
            vr += tl.where(last, ar * gr[None, :] + ai * gi[None, :], 0.0)
            vi += tl.where(last, ar * gi[None, :] - ai * gr[None, :], 0.0)
            pr, pi, yr, yi = tl.associative_scan((ar, -ai, vr, vi), 0, affine_complex, reverse=True)
            gr, gi = row_of(yr, top), row_of(yi, top)
        else:
            vr += tl.where(last, ar * gr[None, :], 0.0)
            pr, yr = tl.associative_scan((ar, vr), 0, affine, reverse=True)
            gr = row_of(yr, top)
        if SUMMARY:
            more = row_of(pr, top)
            if COMPLEX:
                more_i = -row_of(pi, top)
                turned = more * factor_r - more_i * factor_i
                factor_i = more * factor_i + more_i * factor_r
                factor_r = turned
            else:
                factor_r = more * factor_r
        else:
            there = inside[:, None] & live[None, :]
            tl.store(db + base + at, tl.where(here, yr, 0.0), mask=there)
            before = order - 1
            if flags is not None:
                before = tl.load(previous + row * length + order, mask=inside, other=-1)
            before_time = length - 1 - before if REVERSE else before
            earlier = here & (before >= 0)[:, None]
            from_x = (before_time[:, None] * size + place[None, :]) * P
            hr = tl.load(x + base + from_x, mask=earlier, other=0.0)
            hr = tl.where((before < 0)[:, None], first_r[None, :], hr)
            moved = here
            if flags is not None:
                moved = here & (mark != 2)[:, None]
            if COMPLEX:
                tl.store(db + base + at + 1, tl.where(here, yi, 0.0), mask=there)
                hi = tl.load(x + base + from_x + 1, mask=earlier, other=0.0)
                hi = tl.where((before < 0)[:, None], first_i[None, :], hi)
                more_r = tl.where(moved, yr * hr + yi * hi, 0.0)
                more_i = tl.where(moved, yi * hr - yr * hi, 0.0)
                if CONSTANT:
                    sum_i += tl.sum(more_i, 0)
                else:
                    tl.store(da + base + at + 1, more_i, mask=there)
            else:
                more_r = tl.where(moved, yr * hr, 0.0)
            if CONSTANT:
                sum_r += tl.sum(more_r, 0)
            else:
                tl.store(da + base + at, more_r, mask=there)
    to = (row * splits + split) * size * P + place * P
    if SUMMARY:
        tl.store(ends + to, gr, mask=live)
        tl.store(mult + to, factor_r, mask=live)
        if COMPLEX:
            tl.store(ends + to + 1, gi, mask=live)
            tl.store(mult + to + 1, factor_i, mask=live)
    else:
        if CONSTANT:
            tl.store(da + to, sum_r, mask=live)
            if COMPLEX:
                tl.store(da + to + 1, sum_i, mask=live)
        to = adjoints + (row * (splits + 1) + split) * size * P + place * P
        if split == 0:
            tl.store(to, gr, mask=live)
            if COMPLEX:
                tl.store(to + 1, gi, mask=live)


@triton.jit(do_not_specialize=["length", "splits", "rows"])
def first_gradient(
    a, adjoints, flags, grad_initial, length, size, splits, rows, CONSTANT: tl.constexpr, COMPLEX: tl.constexpr,
    REVERSE: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """The gradient of the initial state, conj(a) g of the first step."""
    P: tl.constexpr = 2 if COMPLEX else 1
    row = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * R + tl.arange(0, R)
    live = place < size
    time = length - 1 if REVERSE else 0
    gr = tl.load(adjoints + row * (splits + 1) * size * P + place * P, mask=live, other=0.0)
    source = a + (row // rows) * size * P + place * P if CONSTANT else a + (row * length + time) * size * P + place * P
    kind = place * 0
    if flags is not None:
        kind += tl.load(flags + row * length + time).to(tl.int32)
    counts = live & (kind != 1)
    ar = tl.where(kind == 2, 0.0, tl.load(source, mask=counts, other=1.0))
    to = grad_initial + row * size * P + place * P
    if COMPLEX:
        gi = tl.load(adjoints + row * (splits + 1) * size * P + place * P + 1, mask=live, other=0.0)
        ai = tl.where(kind == 2, 0.0, tl.load(source + 1, mask=counts, other=0.0))
        tl.store(to, ar * gr + ai * gi, mask=live)
        tl.store(to + 1, ar * gi - ai * gr, mask=live)
    else:
        tl.store(to, ar * gr, mask=live)


# ---------------------------------------------------------------------------------------------- launches


class _Problem:
    """Sizes of a call, and how S and the time axis are divided. rows: batch rows a group; each group has an `a` of its own."""

    def __init__(self, a: Tensor, b: Tensor, reverse: bool, is_complex: bool) -> None:
        self.batch, self.length, self.size = b.shape[:3]
        self.parts = 2 if is_complex else 1
        table = launch.TABLE["linear_scan"]
        strip = min(table.lanes, launch.power_of_two(self.size))
        self.blocks = launch.ceil_div(self.size, strip)
        self.split = launch.plan("linear_scan", self.length, self.batch * self.blocks)
        self.constant = a.ndim < b.ndim
        self.groups = len(a) if a.ndim == b.ndim - 1 else 1
        self.rows = self.batch // self.groups
        warps = max(1, table.warps * strip // table.lanes)
        self.options = {
            "CONSTANT": self.constant, "COMPLEX": is_complex, "REVERSE": reverse, "T": table.steps, "R": strip, "num_warps":
            warps,
        }  # fmt: skip

    @property
    def grid(self) -> tuple[int, int]:
        return self.batch * self.blocks, self.split.splits

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.length, self.size, self.blocks, self.split.tiles, self.split.splits, self.split.span, self.rows

    def between_splits(self, like: Tensor, count: int) -> Tensor:
        """Room for a state for each of `count` places between splits."""
        return like.new_empty((self.batch, count, self.size, self.parts))

    def chain(self, mult: Tensor, local: Tensor, first: Tensor, backwards: bool) -> Tensor:
        """The state at each end of a split."""
        out = self.between_splits(first, self.split.splits + 1)
        grid = self.batch, launch.ceil_div(self.size, 128)
        chain[grid](
            mult, local, first, out, self.split.splits, self.size, COMPLEX=self.parts == 2, REVERSE=backwards, BLOCK=128
        )
        return out


def forward(
    a: Tensor, b: Tensor, initial_state: Tensor, flags: Tensor | None, reverse: bool, is_complex: bool
) -> tuple[Tensor, Tensor]:
    """x (B, L, S[, 2]) and the final state (B, S[, 2]), of contiguous tensors of one real dtype.

    A constant a (S[, 2]) may have one more leading axis, of groups: as many runs of batch rows then have an `a` of their own.
    """
    p = _Problem(a, b, reverse, is_complex)
    x, final, start = torch.empty_like(b), torch.empty_like(initial_state), None
    with launch.on_device(b):
        if p.split.splits > 1:
            mult, ends = (p.between_splits(b, p.split.splits) for _ in range(2))
            scan[p.grid](a, b, initial_state, None, flags, None, None, mult, ends, *p.sizes, SUMMARY=True, **p.options)
            start = p.chain(mult, ends, initial_state, False)
        scan[p.grid](a, b, initial_state, start, flags, x, final, None, None, *p.sizes, SUMMARY=False, **p.options)
    return x, final


def _previous(flags: Tensor, reverse: bool) -> Tensor:
    """The last valid step of the scan before each of its steps, (B, L) int64; -1 before the first."""
    flags = flags.flip(1) if reverse else flags
    steps = torch.arange(flags.shape[1], device=flags.device).expand_as(flags)
    latest = torch.where(flags == INVALID, -1, steps).cummax(1).values
    return torch.cat([torch.full_like(latest[:, :1], -1), latest[:, :-1]], 1)


def backward(
    grad_x: Tensor,
    grad_final: Tensor,
    a: Tensor,
    x: Tensor,
    initial_state: Tensor,
    flags: Tensor | None,
    reverse: bool,
    is_complex: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of a, b and initial_state."""
    p = _Problem(a, x, reverse, is_complex)
    previous = None if flags is None else _previous(flags, reverse)
    da = p.between_splits(x, p.split.splits) if p.constant else torch.empty_like(a)
    db, d_initial = torch.empty_like(x), torch.empty_like(initial_state)
    inputs = (grad_x, a, x, initial_state, flags, previous)
    with launch.on_device(x):
        if p.split.splits > 1:
            mult, ends = (p.between_splits(x, p.split.splits) for _ in range(2))
            scan_backward[p.grid](*inputs, None, None, None, mult, ends, *p.sizes, SUMMARY=True, **p.options)
            adjoints = p.chain(mult, ends, grad_final, True)
        else:
            adjoints = p.between_splits(x, 2)
            adjoints[:, 1] = grad_final.view(p.batch, p.size, p.parts)
        scan_backward[p.grid](*inputs, adjoints, da, db, None, None, *p.sizes, SUMMARY=False, **p.options)
        first_gradient[(p.batch, launch.ceil_div(p.size, 128))](
            a, adjoints, flags, d_initial, p.length, p.size, p.split.splits, p.rows, CONSTANT=p.constant, COMPLEX=is_complex,
            REVERSE=reverse, R=128,
        )  # fmt: skip
    return da.view(p.groups, -1, p.size, p.parts).sum(1).view(a.shape) if p.constant else da, db, d_initial
