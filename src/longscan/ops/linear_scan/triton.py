"""`linear_scan` in Triton: each number is read once and written once, but where splits of the time axis run side by side.

A program owns a strip of S and walks over a split of the scan step after step. The rows of a tile of steps are loaded together,
tiles before they are needed, and a thread keeps to its own numbers; what is left of the steps follows one by one.
The backward walks against the scan: g_t = dL/dx_t + m_{t+1} and m_t = conj(a_t) g_t give db_t = g_t, da_t = g_t conj(x_{t-1}),
which is written where the walk meets x_{t-1}, and m_1, the gradient of the initial state. An invalid step has a = 1 and b = 0, a
step where the state restarts a = 0.
Where there are several splits, a first pass finds the affine map of each. It walks the other way, so that the caches hold what
the second pass reads first.
With REVERSE, step i of the scan is the step L - 1 - i of the tensors. Complex numbers are pairs, the last axis of a tile.
"""

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from longscan.ops import _triton_launch as launch
from longscan.ops._triton import chain, next_numbers, next_rows, walk, where_positive
from longscan.ops.arguments import last_valid


@triton.jit
def _times(a, b, COMPLEX: tl.constexpr, CONJUGATE: tl.constexpr = False):
    """a b, or conj(a) b."""
    if COMPLEX:
        ar, ai = tl.split(a)
        br, bi = tl.split(b)
        if CONJUGATE:
            ai = -ai
        product = tl.join(ar * br - ai * bi, ar * bi + ai * br)
    else:
        product = a * b
    return product


@triton.jit
def _affine(a, x, b, COMPLEX: tl.constexpr):
    """a x + b."""
    if COMPLEX:
        ar, ai = tl.split(a)
        xr, xi = tl.split(x)
        br, bi = tl.split(b)
        value = tl.join(ar * xr + (br - ai * xi), ar * xi + (ai * xr + bi))
    else:
        value = a * x + b
    return value


@triton.jit
def _strip(block, size, COMPLEX: tl.constexpr, R: tl.constexpr):
    """Of a program's numbers: where they lie in a row, which of them exist, and the number 1."""
    place = block * R + tl.arange(0, R)
    if COMPLEX:
        part = tl.arange(0, 2)[None, :]
        offsets = place[:, None] * 2 + part
        live = offsets < size * 2
        one = offsets * 0 + 1 - part
    else:
        offsets = place
        live = place < size
        one = place * 0 + 1
    return offsets, live, one


# ---------------------------------------------------------------------------------------------- splits side by side


@triton.jit
def _summary_tiles(
    product, entry, restarted, a, b, flags, constant, one, stride, sign, live, tiles, COMPLEX: tl.constexpr,
    ADJOINT: tl.constexpr, T: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The map x -> product x + entry, after that of as many tiles of T steps.

    restarted: whether a sequence started in the steps behind; then the product says nothing and the entry stays as it is.
    """
    for _ in tl.range(0, tiles, num_stages=STAGES):
        if constant is None:
            factors = next_rows(a, stride, live, T)
        entries, marks = next_rows(b, stride, live, T), next_numbers(flags, sign, T)
        for j in tl.static_range(T):
            factor = factors[j] if constant is None else constant
            value = entries[j]
            counts = live
            if flags is not None:
                factor = tl.where(marks[j] == 1, one, factor)
                if ADJOINT:
                    restarted |= marks[j] == 2
                counts = live & (marks[j] != 1) & ~restarted
            if ADJOINT:
                product = _times(factor, product, COMPLEX, True)
                longer = _affine(product, value, entry, COMPLEX)
            else:
                longer = _affine(product, value, entry, COMPLEX)
                product = _times(factor, product, COMPLEX)
            if flags is not None:
                longer = tl.where(counts, longer, entry)
                restarted |= marks[j] == 2
            entry = longer
        a += T * stride
        b += T * stride
        if flags is not None:
            flags += T * sign
    return product, entry, restarted


@triton.jit(do_not_specialize=["length", "blocks", "span", "rows"])
def summary(
    a, b, flags, mult, ends, length, size, blocks, span, rows, CONSTANT: tl.constexpr, COMPLEX: tl.constexpr,
    REVERSE: tl.constexpr, ADJOINT: tl.constexpr, T: tl.constexpr, R: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """What a split does to the state, or where ADJOINT to m, b being the gradient of x: mult and ends (B, splits, S[, 2])."""
    BACKWARDS: tl.constexpr = not ADJOINT
    row, split = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(1)
    offsets, live, one = _strip(tl.program_id(0) % blocks, size, COMPLEX, R)
    width = tl.cast(size, tl.int64) * (2 if COMPLEX else 1)
    sign = -1 if REVERSE != BACKWARDS else 1
    _, steps, start = walk(split, span, length, REVERSE, BACKWARDS, T)
    one = one.to(b.dtype.element_ty)
    product, entry, constant = one, one * 0.0, None
    begin = row * length + start
    b += begin * width + offsets
    if CONSTANT:
        constant = tl.load(a + (row // rows) * width + offsets, mask=live, other=0.0)
    else:
        a += begin * width + offsets
    if flags is not None:
        flags += begin
    stride = sign * width
    restarted = steps < 0
    product, entry, restarted = _summary_tiles(
        product, entry, restarted, a, b, flags, constant, one, stride, sign, live, steps // T, COMPLEX, ADJOINT, T, STAGES
    )
    done = steps - steps % T
    if flags is not None:
        flags += done * sign
    product, entry, restarted = _summary_tiles(
        product, entry, restarted, a + done * stride, b + done * stride, flags, constant, one, stride, sign, live,
        steps % T, COMPLEX, ADJOINT, 1, 8,
    )  # fmt: skip
    to = (row * tl.num_programs(1) + split) * width + offsets
    tl.store(mult + to, product, mask=live)
    tl.store(ends + to, entry, mask=live)


@triton.jit
def _arrive(
    state, mult, ends, restarts, stride, sign, splits, live, COMPLEX: tl.constexpr, T: tl.constexpr, STAGES: tl.constexpr
):  # fmt: skip
    """The state after as many times T splits, whose maps lie `stride` apart."""
    for _ in tl.range(0, splits, num_stages=STAGES):
        products, entries = next_rows(mult, stride, live, T), next_rows(ends, stride, live, T)
        fresh = next_numbers(restarts, sign, T)
        for j in tl.static_range(T):
            after = _affine(products[j], state, entries[j], COMPLEX)
            state = after if restarts is None else tl.where(fresh[j] != 0, entries[j], after)
        mult += T * stride
        ends += T * stride
        if restarts is not None:
            restarts += T * sign
    return state


@triton.jit
def _after(state, mult, ends, restarts, stride, sign, splits, live, COMPLEX: tl.constexpr, STAGES: tl.constexpr):
    """The state after as many splits, whose maps are loaded four at a time."""
    state = _arrive(state, mult, ends, restarts, stride, sign, splits // 4, live, COMPLEX, 4, STAGES)
    done = splits - splits % 4
    if restarts is not None:
        restarts += done * sign
    return _arrive(state, mult + done * stride, ends + done * stride, restarts, stride, sign, splits % 4, live, COMPLEX, 1, 4)


# ---------------------------------------------------------------------------------------------- the scan and its backward


@triton.jit
def _scan_tiles(
    state, a, b, flags, x, constant, one, stride, sign, live, tiles, COMPLEX: tl.constexpr, T: tl.constexpr, STAGES: tl.constexpr
):
    """The state after as many tiles of T steps."""
    for _ in tl.range(0, tiles, num_stages=STAGES):
        if constant is None:
            factors = next_rows(a, stride, live, T)
        entries, marks = next_rows(b, stride, live, T), next_numbers(flags, sign, T)
        for j in tl.static_range(T):
            factor = factors[j] if constant is None else constant
            value = entries[j]
            if flags is not None:
                factor = tl.where(marks[j] == 1, one, tl.where(marks[j] == 2, 0.0, factor))
                value = tl.where(marks[j] == 1, 0.0, value)
                state = tl.where(marks[j] == 2, 0.0, state)
            state = _affine(factor, state, value, COMPLEX)
            shown = state if flags is None else tl.where(marks[j] == 1, 0.0, state)
            tl.store(x + j * stride, shown, mask=live, eviction_policy="evict_first")
        a += T * stride
        b += T * stride
        x += T * stride
        if flags is not None:
            flags += T * sign
    return state


@triton.jit(do_not_specialize=["length", "blocks", "span", "rows"])
def scan(
    a, b, initial, mult, ends, restarts, flags, x, final, length, size, blocks, span, rows, CONSTANT: tl.constexpr,
    COMPLEX: tl.constexpr, REVERSE: tl.constexpr, T: tl.constexpr, R: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """x of one split of one batch row for R numbers of S. mult, ends: of `summary`, None where the split is the whole row.

    restarts: (B, splits), not 0 where a sequence starts in a split; None where none does, or there is one split.
    """
    row, split, splits = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    offsets, live, one = _strip(tl.program_id(0) % blocks, size, COMPLEX, R)
    width = tl.cast(size, tl.int64) * (2 if COMPLEX else 1)
    sign = -1 if REVERSE else 1
    _, steps, start = walk(split, span, length, REVERSE, False, T)
    one = one.to(b.dtype.element_ty)
    constant = None
    state = tl.load(initial + row * width + offsets, mask=live, other=0.0)
    if mult is not None:
        at = row * splits * width + offsets
        if restarts is not None:
            restarts += row * splits
        state = _after(state, mult + at, ends + at, restarts, width, 1, split, live, COMPLEX, STAGES)
    begin = row * length + start
    b += begin * width + offsets
    x += begin * width + offsets
    if CONSTANT:
        constant = tl.load(a + (row // rows) * width + offsets, mask=live, other=0.0)
    else:
        a += begin * width + offsets
    if flags is not None:
        flags += begin
    stride = sign * width
    state = _scan_tiles(state, a, b, flags, x, constant, one, stride, sign, live, steps // T, COMPLEX, T, STAGES)
    done = steps - steps % T
    if flags is not None:
        flags += done * sign
    state = _scan_tiles(
        state, a + done * stride, b + done * stride, flags, x + done * stride, constant, one, stride, sign,
        live, steps % T, COMPLEX, 1, 8,
    )  # fmt: skip
    if split == splits - 1:
        tl.store(final + row * width + offsets, state, mask=live)


@triton.jit
def _backward_tiles(
    m, waiting, place, fresh, total, done, grad_x, a, x, flags, da, db, constant, one, stride, sign, live, tiles,
    COMPLEX: tl.constexpr, T: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """m before as many tiles of T steps, `done` steps of the walk lying behind.

    waiting: g of the last valid step, which waits for x; place: which step of the walk that was, -1 if there was none; fresh:
    whether a sequence starts with it. total: the sum of da where a is constant.
    """
    for i in tl.range(0, tiles, num_stages=STAGES):
        if constant is None:
            factors = next_rows(a, stride, live, T)
        grads, states, marks = next_rows(grad_x, stride, live, T), next_rows(x, stride, live, T), next_numbers(flags, sign, T)
        for j in tl.static_range(T):
            now = done + i * T + j
            factor = factors[j] if constant is None else constant
            value = grads[j]
            more = _times(states[j], waiting, COMPLEX, True)
            to = place
            if flags is not None:
                skip = marks[j] == 1
                factor = tl.where(skip, one, factor)
                value = tl.where(skip, 0.0, value)
                more = tl.where(skip | fresh, 0.0, more)
                to = tl.where(skip, now, place)
            if constant is None:
                at = da + (to - now + j) * stride
                tl.store(at, more, mask=where_positive(live, to + 1), eviction_policy="evict_first")
            else:
                total += tl.where(to >= 0, more, 0.0)
            g = value + m
            m = _times(factor, g, COMPLEX, True)
            if flags is not None:
                m = tl.where(marks[j] == 2, 0.0, m)
                waiting = tl.where(skip, waiting, g)
                fresh = tl.where(skip, fresh, marks[j] == 2)
                place = tl.where(skip, place, now)
                g = tl.where(skip, 0.0, g)
            else:
                waiting = g
                place = now
            tl.store(db + j * stride, g, mask=live, eviction_policy="evict_first")
        grad_x += T * stride
        a += T * stride
        x += T * stride
        da += T * stride
        db += T * stride
        if flags is not None:
            flags += T * sign
    return m, waiting, place, fresh, total


@triton.jit(do_not_specialize=["length", "blocks", "span", "rows"])
def scan_backward(
    grad_x, grad_final, a, x, initial, mult, ends, restarts, flags, previous, da, db, d_initial, length, size, blocks, span, rows,
    CONSTANT: tl.constexpr, COMPLEX: tl.constexpr, REVERSE: tl.constexpr, T: tl.constexpr, R: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """One split of one batch row for R numbers of S. mult, ends: of `summary`, None where the split is the whole row.

    restarts: as in `scan`. da: as a, or (B, splits, S[, 2]) sums of the splits where a is CONSTANT. previous: (B, L), which step
    of the scan was the last valid one before each, -1 before the first; None where every step is valid.
    """
    row, split, splits = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    offsets, live, one = _strip(tl.program_id(0) % blocks, size, COMPLEX, R)
    width = tl.cast(size, tl.int64) * (2 if COMPLEX else 1)
    sign = 1 if REVERSE else -1
    first, steps, start = walk(split, span, length, REVERSE, True, T)
    one = one.to(x.dtype.element_ty)
    constant = None
    m = tl.load(grad_final + row * width + offsets, mask=live, other=0.0)
    if mult is not None:
        at = (row * splits + splits - 1) * width + offsets
        if restarts is not None:
            restarts += row * splits + splits - 1
        m = _after(m, mult + at, ends + at, restarts, -width, -1, splits - 1 - split, live, COMPLEX, STAGES)
    sums = da
    begin, first_x = row * length + start, x + row * length * width + offsets
    grad_x += begin * width + offsets
    x += begin * width + offsets
    db += begin * width + offsets
    if CONSTANT:
        constant = tl.load(a + (row // rows) * width + offsets, mask=live, other=0.0)
    else:
        a += begin * width + offsets
        da += begin * width + offsets
    if flags is not None:
        flags += begin
    stride = sign * width
    waiting, total, place, fresh = one * 0.0, one * 0.0, tl.cast(-1, tl.int32), steps < 0
    m, waiting, place, fresh, total = _backward_tiles(
        m, waiting, place, fresh, total, 0, grad_x, a, x, flags, da, db, constant, one, stride, sign, live, steps // T, COMPLEX,
        T, STAGES,
    )  # fmt: skip
    done = steps - steps % T
    if flags is not None:
        flags += done * sign
    m, waiting, place, fresh, total = _backward_tiles(
        m, waiting, place, fresh, total, done, grad_x + done * stride, a + done * stride, x + done * stride, flags,
        da + done * stride, db + done * stride, constant, one, stride, sign, live, steps % T, COMPLEX, 1, 8,
    )  # fmt: skip
    before = first - 1  # the step of the scan whose x the first valid step of the split waits for
    if flags is not None:
        before = tl.load(previous + row * length + first + steps - 1 - place, mask=place >= 0, other=-1)
    time = length - 1 - before if REVERSE else before
    h = tl.load(first_x + time * width, mask=where_positive(live, before + 1), other=0.0)
    h = tl.where(before >= 0, h, tl.load(initial + row * width + offsets, mask=live, other=0.0))
    more = _times(h, waiting, COMPLEX, True)
    if flags is not None:
        more = tl.where(fresh, 0.0, more)
    if CONSTANT:
        total += tl.where(place >= 0, more, 0.0)
        tl.store(sums + (row * splits + split) * width + offsets, total, mask=live)
    else:
        tl.store(da + place * stride, more, mask=where_positive(live, place + 1))
    if split == 0:
        tl.store(d_initial + row * width + offsets, m, mask=live)


# ---------------------------------------------------------------------------------------------- launches


class _Problem:
    """Sizes of a call, and how S and the time axis are divided. rows: batch rows a group; each group has an `a` of its own."""

    def __init__(self, op: str, a: Tensor, b: Tensor, reverse: bool, is_complex: bool) -> None:
        self.batch, self.length, self.size = b.shape[:3]
        self.parts = 2 if is_complex else 1
        if self._programs(op) * 2 <= launch.PROGRAMS:
            op += "_splits"
        table, strip = launch.TABLE[op], self._strip(op)
        self.blocks = launch.ceil_div(self.size, strip)
        self.split = launch.plan(op, self.length, self._programs(op))
        self.constant = a.ndim < b.ndim
        self.groups = len(a) if a.ndim == b.ndim - 1 else 1
        self.options = {
            "CONSTANT": self.constant, "COMPLEX": is_complex, "REVERSE": reverse, "T": table.steps, "R": strip, "STAGES":
            table.stages, "num_warps": self._warps(op),
        }  # fmt: skip

    def _strip(self, op: str) -> int:
        """How much of S a program of an entry in the table of launches owns."""
        return min(launch.TABLE[op].lanes, launch.power_of_two(self.size))

    def _warps(self, op: str) -> int:
        return max(1, launch.TABLE[op].warps * self._strip(op) // launch.TABLE[op].lanes)

    def _programs(self, op: str) -> int:
        """Programs of one split, each counted as many times as it has warps."""
        return self.batch * launch.ceil_div(self.size, self._strip(op)) * self._warps(op)

    @property
    def grid(self) -> tuple[int, int]:
        return self.batch * self.blocks, self.split.splits

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.length, self.size, self.blocks, self.split.span, self.batch // self.groups

    def of_splits(self, like: Tensor) -> Tensor:
        """Room for a row for each split."""
        return like.new_empty((self.batch, self.split.splits, self.size, self.parts))

    def summaries(self, a: Tensor, b: Tensor, flags: Tensor | None, adjoint: bool, piece: bool) -> tuple[Any, Any, Tensor | None]:
        """What each split does to the state, or to m, and whether a sequence starts there.

        None where there is one split, unless it is the `piece` of a sequence, whose map other processes wait for.
        """
        if self.split.splits == 1 and not piece:
            return None, None, None
        mult, ends = self.of_splits(b), self.of_splits(b)
        launch.run(summary, self.grid, a, b, flags, mult, ends, *self.sizes, constants={"ADJOINT": adjoint, **self.options})
        if flags is not None and self.options["REVERSE"]:
            flags = flags.flip(1)
        return mult, ends, launch.restarts(flags, self.split.span * self.split.T)

    def after_all(self, mult: Any, ends: Any, restarts: Tensor | None, first: Tensor) -> Tensor:
        """The state (B, S[, 2]) after all splits, from the `first`."""
        out = first.new_empty((self.batch, self.split.splits + 1, self.size, self.parts))
        grid = self.batch, launch.ceil_div(self.size, 128)
        constants = {"COMPLEX": self.parts == 2, "REVERSE": False, "BLOCK": 128}
        launch.run(chain, grid, mult, ends, first, restarts, out, self.split.splits, self.size, constants=constants)
        return out[:, -1].clone().view(first.shape)


def forward(
    a: Tensor,
    b: Tensor,
    initial_state: Tensor,
    flags: Tensor | None,
    reverse: bool,
    is_complex: bool,
    enter: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """x (B, L, S[, 2]) and the final state (B, S[, 2]), of contiguous tensors of one real dtype.

    A constant a (S[, 2]) may have one more leading axis, of groups: as many runs of batch rows then have an `a` of their own.
    enter: the initial state, from the factor of these steps and the state that they leave from 0.
    """
    p = _Problem("linear_scan", a, b, reverse, is_complex)
    x, final = torch.empty_like(b), torch.empty_like(initial_state)
    with launch.on_device(b):
        maps = p.summaries(a, b, flags, False, enter is not None)
        if enter is not None:
            zero, one = torch.zeros_like(initial_state), torch.zeros_like(initial_state)
            (one[..., 0] if is_complex else one).fill_(1)
            factor = p.after_all(maps[0], torch.zeros_like(maps[1]), None, one)
            initial_state = enter(factor, p.after_all(*maps, zero)).contiguous()
        launch.run(scan, p.grid, a, b, initial_state, *maps, flags, x, final, *p.sizes, constants=p.options)
    return x, final


def backward(
    grad_x: Tensor,
    grad_final: Tensor,
    a: Tensor,
    x: Tensor,
    initial_state: Tensor,
    flags: Tensor | None,
    reverse: bool,
    is_complex: bool,
    leave: Callable[[Tensor], Tensor] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of a, b and initial_state.

    leave: in place of grad_final, that of the final state from that of the initial state if it is 0.
    """
    p = _Problem("linear_scan_backward", a, x, reverse, is_complex)
    previous = None
    if flags is not None:
        previous = last_valid(flags.flip(1) if reverse else flags)
    da = p.of_splits(x) if p.constant else torch.empty_like(a)
    db, d_initial = torch.empty_like(x), torch.empty_like(initial_state)
    with launch.on_device(x):
        maps = p.summaries(a, grad_x, flags, True, leave is not None)
        if leave is not None:
            mult, ends, restarts = (None if x is None else x.flip(1) for x in maps)
            grad_final = leave(p.after_all(mult, ends, restarts, torch.zeros_like(grad_final))).contiguous()
        launch.run(
            scan_backward, p.grid, grad_x, grad_final, a, x, initial_state, *maps, flags, previous, da, db, d_initial, *p.sizes,
            constants=p.options,
        )  # fmt: skip
    return da.view(p.groups, -1, p.size, p.parts).sum(1).view(a.shape) if p.constant else da, db, d_initial
