"""`block2_scan` in Triton: each number is read once and written once, but where splits of the time axis run side by side.

A program owns a strip of S and walks over a split of the steps one after another, a thread over one pair of coupled states. The
rows of a tile of steps are loaded together, tiles before they are needed: of f and x the 2 x K numbers of a step, which lie next
to each other, and of M its 4, which stay in registers where they do not change in time.
The backward walks against time: g_t = dL/dx_t + m_{t+1} and m_t = M_t^T g_t give df_t = g_t, dM_t = g_t x_{t-1}^T and m_1, the
gradient of the initial state. An invalid step leaves the state and m as they are; where the state restarts, it is 0 before the
step, and m is 0.
Where there are several splits, a first pass finds the affine map of each. Its matrix is a product of many that may all be the
same, so that roundings would all go one way: it is formed in float64, and so is the state on its way from split to split.
The kernels hold a matrix as a tuple of its entries, row by row, each a vector over the strip.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from longscan.ops import _triton_launch as launch
from longscan.ops._triton import extended, next_numbers, next_rows, walk, where_positive
from longscan.ops.arguments import INVALID, RESET, last_valid


@triton.jit
def _strip(block, size, N: tl.constexpr, R: tl.constexpr):
    """Of a program's matrices, N numbers each: where these lie in a row, and which of them exist."""
    offsets = (block * R + tl.arange(0, R))[:, None] * N + tl.arange(0, N)[None, :]
    return offsets, offsets < size * N


@triton.jit
def _entries(tile, K: tl.constexpr):
    """Of the 2 x K matrices that the rows of a tile are."""
    if K == 1:
        entries = tl.split(tile)
    else:
        left, right = tl.split(tl.reshape(tile, (tile.shape[0], 2, 2)))
        a, c = tl.split(left)
        b, d = tl.split(right)
        entries = (a, b, c, d)
    return entries


@triton.jit
def _tile(entries, K: tl.constexpr):
    """The tile of which these are the `_entries`."""
    if K == 1:
        tile = tl.join(entries[0], entries[1])
    else:
        left, right = tl.join(entries[0], entries[2]), tl.join(entries[1], entries[3])
        tile = tl.reshape(tl.join(left, right), (left.shape[0], 4))
    return tile


@triton.jit
def _affine(M, x, added, TRANSPOSED: tl.constexpr, K: tl.constexpr):
    """M x + added, or M^T x + added; M is 2 x 2. added: None for nothing."""
    b = M[2] if TRANSPOSED else M[1]
    c = M[1] if TRANSPOSED else M[2]
    upper, lower = (), ()
    for k in tl.static_range(K):
        first, second = b * x[K + k], M[3] * x[K + k]
        if added is not None:
            first += added[k]
            second += added[K + k]
        upper = extended(upper, M[0] * x[k] + first)
        lower = extended(lower, c * x[k] + second)
    return upper + lower


@triton.jit
def _sum(x, y):
    """x + y."""
    found = ()
    for i in tl.static_range(len(x)):
        found = extended(found, x[i] + y[i])
    return found


@triton.jit
def _chosen(condition, x, y):
    """x where the condition holds, else y."""
    found = ()
    for i in tl.static_range(len(x)):
        found = extended(found, tl.where(condition, x[i], y[i]))
    return found


@triton.jit
def _repeated(x, N: tl.constexpr):
    """N times x."""
    found = ()
    for _ in tl.static_range(N):
        found = extended(found, x)
    return found


@triton.jit
def _cast(x, dtype: tl.constexpr):
    """x as numbers of this type."""
    found = ()
    for i in tl.static_range(len(x)):
        found = extended(found, x[i].to(dtype))
    return found


# ---------------------------------------------------------------------------------------------- the scan and its backward


@triton.jit
def _arrive(
    state, mult, ends, restarts, M_stride, stride, sign, M_live, live, splits, K: tl.constexpr, T: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """The state after as many times T splits, whose maps lie one after another."""
    for _ in tl.range(0, splits, num_stages=STAGES):
        products, entries = next_rows(mult, M_stride, M_live, T), next_rows(ends, stride, live, T)
        fresh = next_numbers(restarts, sign, T)
        for j in tl.static_range(T):
            local = _cast(_entries(entries[j], K), tl.float64)
            after = _affine(_entries(products[j], 2), state, local, False, K)
            state = after if restarts is None else _chosen(fresh[j] != 0, local, after)
        mult += T * M_stride
        ends += T * stride
        if restarts is not None:
            restarts += T * sign
    return state


@triton.jit
def _after(
    state, mult, ends, restarts, M_stride, stride, sign, M_live, live, splits, K: tl.constexpr, STAGES: tl.constexpr
):  # fmt: skip
    """The state after as many splits, whose maps are loaded four at a time."""
    wide = _cast(state, tl.float64)
    wide = _arrive(wide, mult, ends, restarts, M_stride, stride, sign, M_live, live, splits // 4, K, 4, STAGES)
    done = splits - splits % 4
    if restarts is not None:
        restarts += done * sign
    wide = _arrive(
        wide, mult + done * M_stride, ends + done * stride, restarts, M_stride, stride, sign, M_live, live, splits % 4, K, 1, 4
    )
    return _cast(wide, state[0].dtype)


@triton.jit
def _scan_tiles(
    state, product, M, f, flags, x, constant, M_stride, stride, sign, M_live, live, tiles, SUMMARY: tl.constexpr,
    ADJOINT: tl.constexpr, K: tl.constexpr, T: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The state, or where ADJOINT m, f being the gradient of x, after as many tiles of T steps; and the product of the matrices.

    SUMMARY: whether the product is wanted, which says nothing where a sequence starts; else it is empty, and the states go to x.
    """
    nothing = _repeated(tl.zeros_like(state[0]), 2 * K)
    for _ in tl.range(0, tiles, num_stages=STAGES):
        if constant is None:
            matrices = next_rows(M, M_stride, M_live, T)
        drives, marks = next_rows(f, stride, live, T), next_numbers(flags, sign, T)
        for j in tl.static_range(T):
            matrix = _entries(matrices[j], 2) if constant is None else constant
            drive = _entries(drives[j], K)
            if ADJOINT:
                after = _affine(matrix, _sum(state, drive), None, True, K)
                if flags is not None:
                    after = _chosen(marks[j] == 2, nothing, after)
            else:
                before = state if flags is None else _chosen(marks[j] == 2, nothing, state)
                after = _affine(matrix, before, drive, False, K)
            state = after if flags is None else _chosen(marks[j] == 1, state, after)
            if SUMMARY:
                longer = _affine(_cast(matrix, tl.float64), product, None, ADJOINT, 2)
                if flags is not None:
                    longer = _chosen(marks[j] == 1, product, longer)
                product = longer
            else:
                shown = state if flags is None else _chosen(marks[j] == 1, nothing, state)
                tl.store(x + j * stride, _tile(shown, K), mask=live, eviction_policy="evict_first")
        M += T * M_stride
        f += T * stride
        if not SUMMARY:
            x += T * stride
        if flags is not None:
            flags += T * sign
    return state, product


@triton.jit(do_not_specialize=["length", "blocks", "span", "rows"])
def scan(
    M, f, initial, mult, ends, restarts, flags, x, final, length, size, blocks, span, rows, SUMMARY: tl.constexpr,
    ADJOINT: tl.constexpr, CONSTANT: tl.constexpr, K: tl.constexpr, T: tl.constexpr, R: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """x of one split of one batch row for R places of S. mult, ends: of the splits, None where the split is the whole row.

    restarts: (B, splits), not 0 where a sequence starts in a split; None where none does, or there is one split.
    With SUMMARY what the split does to the state goes to mult (B, splits, S, 4) and ends (B, splits, S, 2 K); with ADJOINT, too,
    what it does to m, f being the gradient of x.
    """
    row, split, splits = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    offsets, live = _strip(tl.program_id(0) % blocks, size, 2 * K, R)
    M_offsets, M_live = _strip(tl.program_id(0) % blocks, size, 4, R)
    width, M_width = tl.cast(size, tl.int64) * (2 * K), tl.cast(size, tl.int64) * 4
    sign = -1 if ADJOINT else 1
    _, steps, start = walk(split, span, length, False, ADJOINT, T)
    begin, at = row * length + start, row * splits
    f += begin * width + offsets
    constant = None
    if CONSTANT:
        constant = _entries(tl.load(M + (row // rows) * M_width + M_offsets, mask=M_live, other=0.0), 2)
    else:
        M += begin * M_width + M_offsets
    if flags is not None:
        flags += begin
    if SUMMARY:
        zero = tl.zeros((R,), f.dtype.element_ty)
        state, product = _repeated(zero, 2 * K), _cast((zero + 1.0, zero, zero, zero + 1.0), tl.float64)
        steps = tl.where(split == (0 if ADJOINT else splits - 1), 0, steps)  # no split needs what the last one does
    else:
        x += begin * width + offsets
        state, product = _entries(tl.load(initial + row * width + offsets, mask=live, other=0.0), K), ()
        if mult is not None:
            maps = mult + at * M_width + M_offsets
            if restarts is not None:
                restarts += at
            state = _after(state, maps, ends + at * width + offsets, restarts, M_width, width, 1, M_live, live, split, K, STAGES)
    stride, M_stride, done = sign * width, sign * M_width, steps - steps % T
    state, product = _scan_tiles(
        state, product, M, f, flags, x, constant, M_stride, stride, sign, M_live, live, steps // T, SUMMARY, ADJOINT, K, T,
        STAGES,
    )  # fmt: skip
    if flags is not None:
        flags += done * sign
    if not SUMMARY:
        x += done * stride
    state, product = _scan_tiles(
        state, product, M + done * M_stride, f + done * stride, flags, x, constant, M_stride, stride, sign, M_live, live,
        steps % T, SUMMARY, ADJOINT, K, 1, 8,
    )  # fmt: skip
    if SUMMARY:
        tl.store(mult + (at + split) * M_width + M_offsets, _tile(product, 2), mask=M_live)
        tl.store(ends + (at + split) * width + offsets, _tile(state, K), mask=live)
    elif split == splits - 1:
        tl.store(final + row * width + offsets, _tile(state, K), mask=live)


@triton.jit
def _outer(total, g, x, K: tl.constexpr):
    """total + g x^T."""
    for k in tl.static_range(K):
        total = (
            total[0] + g[k] * x[k], total[1] + g[k] * x[K + k], total[2] + g[K + k] * x[k], total[3] + g[K + k] * x[K + k]
        )  # fmt: skip
    return total


@triton.jit
def _backward_tiles(
    m, total, time, grad_x, M, x, first_state, previous, dM, df, constant, M_width, width, M_live, live, tiles,
    EDGE: tl.constexpr, K: tl.constexpr, T: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """m before as many tiles of T steps, of which `time` is the last; total: the sum of dM where M is constant.

    EDGE: whether the state before a step may be another than that of the step before.
    """
    nothing = _repeated(tl.zeros_like(m[0]), 2 * K)
    for i in tl.range(0, tiles, num_stages=STAGES):
        if constant is None:
            matrices = next_rows(M, -M_width, M_live, T)
        grads, before = next_rows(grad_x, -width, live, T), next_numbers(previous, -1, T)
        if EDGE:
            states = ()
            for j in tl.static_range(T):
                if previous is None:
                    before = extended(before, time - i * T - j - 1)
                there = where_positive(live, before[j] + 1)
                row = tl.load(x + before[j] * width, mask=there, other=0.0)
                states = extended(states, tl.where(before[j] == -1, first_state, row))
        else:
            states = next_rows(x + (time - i * T - 1) * width, -width, live, T)
        for j in tl.static_range(T):
            matrix = _entries(matrices[j], 2) if constant is None else constant
            state = _entries(states[j], K)
            g = _sum(_entries(grads[j], K), m)
            if previous is None:
                m = _affine(matrix, g, None, True, K)
            else:
                g = _chosen(before[j] == -3, nothing, g)
                after = _chosen(before[j] == -2, nothing, _affine(matrix, g, None, True, K))
                m = _chosen(before[j] == -3, m, after)
            tl.store(df - j * width, _tile(g, K), mask=live, eviction_policy="evict_first")
            if constant is None:
                each = _outer(_repeated(nothing[0], 4), g, state, K)
                tl.store(dM - j * M_width, _tile(each, 2), mask=M_live, eviction_policy="evict_first")
            else:
                total = _outer(total, g, state, K)
        grad_x -= T * width
        df -= T * width
        if constant is None:
            M -= T * M_width
            dM -= T * M_width
        if previous is not None:
            previous -= T
    return m, total


@triton.jit(do_not_specialize=["length", "blocks", "span", "rows"])
def scan_backward(
    grad_x, grad_final, M, x, initial, mult, ends, restarts, previous, dM, df, d_initial, length, size, blocks, span, rows,
    CONSTANT: tl.constexpr, K: tl.constexpr, T: tl.constexpr, R: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """One split of one batch row for R places of S. mult, ends: of `scan` with ADJOINT, None where the split is the whole row.
    restarts: as in `scan`.

    dM: as M, or (B, splits, S, 4) sums of the splits where M is CONSTANT. previous: (B, L), at which step the state before each
    step is: -1 where that is the initial state, -2 where the state restarts, -3 where the step is invalid; None where it is
    always the step before.
    """
    row, split, splits = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    offsets, live = _strip(tl.program_id(0) % blocks, size, 2 * K, R)
    M_offsets, M_live = _strip(tl.program_id(0) % blocks, size, 4, R)
    width, M_width = tl.cast(size, tl.int64) * (2 * K), tl.cast(size, tl.int64) * 4
    _, steps, time = walk(split, span, length, False, True, T)
    begin, at = row * length + time, row * splits
    m = _entries(tl.load(grad_final + row * width + offsets, mask=live, other=0.0), K)
    if mult is not None:
        last = at + splits - 1
        maps = mult + last * M_width + M_offsets
        if restarts is not None:
            restarts += last
        m = _after(
            m, maps, ends + last * width + offsets, restarts, -M_width, -width, -1, M_live, live, splits - 1 - split, K, STAGES
        )
    first_state = tl.load(initial + row * width + offsets, mask=live, other=0.0)
    grad_x += begin * width + offsets
    df += begin * width + offsets
    x += row * length * width + offsets
    constant = None
    if CONSTANT:
        constant = _entries(tl.load(M + (row // rows) * M_width + M_offsets, mask=M_live, other=0.0), 2)
        dM += (at + split) * M_width + M_offsets
    else:
        M += begin * M_width + M_offsets
        dM += begin * M_width + M_offsets
    if previous is not None:
        previous += begin
    total = _repeated(tl.zeros_like(m[0]), 4)
    tiles = (steps - (split == 0).to(tl.int32)) // T  # without the first step of all, before which is the initial state
    done = tiles * T
    m, total = _backward_tiles(
        m, total, time, grad_x, M, x, first_state, previous, dM, df, constant, M_width, width, M_live, live, tiles,
        previous is not None, K, T, STAGES,
    )  # fmt: skip
    if previous is not None:
        previous -= done
    m, total = _backward_tiles(
        m, total, time - done, grad_x - done * width, M - done * M_width, x, first_state, previous, dM - done * M_width,
        df - done * width, constant, M_width, width, M_live, live, steps - done, True, K, 1, 8,
    )  # fmt: skip
    if CONSTANT:
        tl.store(dM, _tile(total, 2), mask=M_live)
    if split == 0:
        tl.store(d_initial + row * width + offsets, _tile(m, K), mask=live)


# ---------------------------------------------------------------------------------------------- launches


class _Problem:
    """Sizes of a call, and how S and the time axis are divided. rows: batch rows a group; each group has an M of its own."""

    def __init__(self, op: str, M: Tensor, f: Tensor) -> None:
        self.batch, self.length, self.size, _, self.columns = f.shape
        table = launch.TABLE[op]
        strip = min(table.lanes, launch.power_of_two(self.size))
        self.blocks = launch.ceil_div(self.size, strip)
        warps = max(1, table.warps * strip // table.lanes)
        self.split = launch.plan(op, self.length, self.batch * self.blocks * warps)
        self.constant = M.ndim < f.ndim
        self.groups = len(M) if M.ndim == f.ndim - 1 else 1
        self.options: dict[str, Any] = {
            "CONSTANT": self.constant, "K": self.columns, "T": table.steps, "R": strip, "STAGES": table.stages, "num_warps": warps
        }  # fmt: skip

    @property
    def grid(self) -> tuple[int, int]:
        return self.batch * self.blocks, self.split.splits

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.length, self.size, self.blocks, self.split.span, self.batch // self.groups

    def of_splits(self, like: Tensor, columns: int, dtype: torch.dtype) -> Tensor:
        """Room for matrices of each split."""
        return like.new_empty((self.batch, self.split.splits, self.size, 2, columns), dtype=dtype)

    def maps(self, M: Tensor, f: Tensor, flags: Tensor | None, adjoint: bool) -> tuple[Tensor | None, ...]:
        """What each split does to the state, or to m, and whether a sequence starts there; None where there is one split."""
        if self.split.splits == 1:
            return None, None, None
        mult, ends = self.of_splits(f, 2, torch.float64), self.of_splits(f, self.columns, f.dtype)
        constants = {"SUMMARY": True, "ADJOINT": adjoint, **self.options}
        launch.run(scan, self.grid, M, f, None, mult, ends, None, flags, None, None, *self.sizes, constants=constants)
        return mult, ends, launch.restarts(flags, self.split.span * self.split.T)


def forward(M: Tensor, f: Tensor, initial_state: Tensor, flags: Tensor | None) -> tuple[Tensor, Tensor]:
    """x (B, L, S, 2, K) and the final state (B, S, 2, K), of contiguous tensors of one real dtype; K = 1 or 2.

    A constant M (S, 2, 2) may have one more leading axis, of groups: as many runs of batch rows then have an M of their own.
    """
    p = _Problem("block2_scan", M, f)
    x, final = torch.empty_like(f), torch.empty_like(initial_state)
    constants = {"SUMMARY": False, "ADJOINT": False, **p.options}
    with launch.on_device(f):
        maps = p.maps(M, f, flags, False)
        launch.run(scan, p.grid, M, f, initial_state, *maps, flags, x, final, *p.sizes, constants=constants)
    return x, final


def backward(
    grad_x: Tensor, grad_final: Tensor, M: Tensor, x: Tensor, initial_state: Tensor, flags: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of M, f and initial_state."""
    p = _Problem("block2_scan_backward", M, x)
    previous = None
    if flags is not None:
        previous = torch.where(flags == INVALID, -3, torch.where(flags == RESET, -2, last_valid(flags)))
    dM = p.of_splits(M, 2, M.dtype) if p.constant else torch.empty_like(M)
    df, d_initial = torch.empty_like(x), torch.empty_like(initial_state)
    with launch.on_device(x):
        maps = p.maps(M, grad_x, flags, True)
        launch.run(
            scan_backward, p.grid, grad_x, grad_final, M, x, initial_state, *maps, previous, dM, df, d_initial, *p.sizes,
            constants=p.options,
        )  # fmt: skip
    return dM.view(p.groups, -1, p.size, 2, 2).sum(1).view(M.shape) if p.constant else dM, df, d_initial
