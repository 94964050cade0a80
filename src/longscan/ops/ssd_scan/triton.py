"""`ssd_scan` in Triton: a program goes over the chunks of one head with the state in registers, every product on matrix units.

With cum_t the running sum of the log decays dt A of a chunk and S the state (P, N) before it, a chunk of Q steps is, as in
section 6 of Dao and Gu, "Transformers are SSMs" (arXiv:2405.21060),
  y = (C B^T * decay) (s x) + exp(cum) C S^T + D x,   decay_ts = exp(cum_t - cum_s) for s <= t, else 0
  S' = exp(cum_Q) S + sum_s exp(cum_Q - cum_s) s_s x_s B_s^T.
The backward goes from the last chunk to the first with the gradient of the state, from the states before the chunks, which the
forward keeps in the dtype of x.

Differences of running sums would cancel. So every log decay is a multiple of a unit, so large that sums of a chunk are exact, and
a small rest; and the gradient of a log decay adds up what passes over its step, instead of all that comes after it less all that
comes before.

Q: steps of a chunk. x: (B, L, H, P), B and C: (B, L, G, N), dt and s: (B, L, H). A program has PB of a head's P channels.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from longscan.ops import _triton_launch as tables
from longscan.ops._gpu import ceil_div, launch, on_device, power_of_two
from longscan.ops._triton import chain
from longscan.ops.ssd_scan import triton_turns as turns

CHAIN = 128  # numbers of a state that a program hands from split to split


# ---------------------------------------------------------------------------------------------- chunks


@triton.jit
def _sums(a, Q: tl.constexpr):
    """Running sums of a (Q,), as a part that is exact and a rest, and the sum of all, likewise."""
    unit = tl.minimum(tl.max(tl.abs(a)) * (4.0 * Q), 1e37)  # its last place is the unit; no sum has more than 24 bits of these
    coarse = (a + unit) - unit
    fine = a - coarse
    return tl.cumsum(coarse), tl.cumsum(fine), tl.sum(coarse), tl.sum(fine)


@triton.jit
def _sequences(flags, at, step, length, Q: tl.constexpr):
    """Of the steps `step` (Q,), at the places `at` in (B, L): which there are, which count, how many restarts there were; of all.

    What is multiplied on matrix units is added up over steps, and 0 times NaN is NaN. So a chunk in which sequences start is
    gone over once for each of them, and for what goes on from before, the steps of the others as if they did not count.
    """
    inside = step < length
    ok, sequence, restarts = inside, tl.zeros((Q,), tl.int32), 0
    if flags is not None:
        mark = tl.load(flags + at, mask=inside, other=1)
        ok, sequence = inside & (mark != 1), tl.cumsum((mark == 2).to(tl.int32))
        restarts = tl.max(sequence)
    return inside, ok, sequence, restarts


@triton.jit
def _chunk(dt, scale, A, ok, at, heads, Q: tl.constexpr):
    """Of the steps of a head that count: dt, weights of inputs; decays: (Q, Q), from the start, to the end, of all.

    at: the places of the steps in (B, L).
    """
    size = tl.load(dt + at * heads, mask=ok, other=0.0)
    weight = size
    if scale is not None:
        weight = tl.load(scale + at * heads, mask=ok, other=0.0)
    coarse, fine, all_coarse, all_fine = _sums(size * A, Q)
    here = tl.arange(0, Q)
    apart = (coarse[:, None] - coarse[None, :]) + (fine[:, None] - fine[None, :])
    decay = tl.exp(tl.where(here[:, None] >= here[None, :], apart, float("-inf")))
    end = tl.exp((all_coarse - coarse) + (all_fine - fine))
    return size, weight, decay, tl.exp(coarse + fine), end, tl.exp(all_coarse + all_fine)


@triton.jit
def _weights(weight, own_scale, at, ok, heads, Q: tl.constexpr):
    """Weights of the inputs of a chunk in its outputs, (Q, Q) or (1, Q), and in those of their own steps, (Q,)."""
    own, weights = weight, weight[None, :]
    if own_scale is not None:
        here = tl.arange(0, Q)
        own = tl.load(own_scale + at * heads, mask=ok, other=0.0)
        weights = tl.where(here[:, None] == here[None, :], own[None, :], weights)
    return weights, own


@triton.jit
def _dot(a, b, sums, PRECISION: tl.constexpr):
    """sums + a b, on matrix units but for float64, whose instructions there Triton (3.6) gets wrong for some tiles."""
    if a.dtype == tl.float64:
        inner: tl.constexpr = a.shape[1]
        along = tl.arange(0, inner)
        for k in range(inner):
            column = tl.sum(tl.where((along == k)[None, :], a, 0.0), 1)
            sums += column[:, None] * tl.sum(tl.where((along == k)[:, None], b, 0.0), 0)[None, :]
    else:
        sums = tl.dot(a, b, sums, input_precision=PRECISION)
    return sums


@triton.jit
def _tile(source, at, stride, columns, width, ok):
    """Rows of a matrix, (Q, columns): 0 where a step does not count and beyond `width`."""
    place = at[:, None] * stride + columns[None, :]
    return tl.load(source + place, mask=ok[:, None] & (columns < width)[None, :], other=0.0)


@triton.jit
def _turning(gradient, state):
    """The gradient of turns of the pairs of a state, (NB / 2,), from the state (PB, NB) and its gradient."""
    PB: tl.constexpr = state.shape[0]
    NB: tl.constexpr = state.shape[1]
    by_first, by_second = tl.split(tl.reshape(gradient, (PB, NB // 2, 2)))
    first, second = tl.split(tl.reshape(state.to(gradient.dtype), (PB, NB // 2, 2)))
    return tl.sum(by_second * first - by_first * second, 0)


@triton.jit
def _program(heads, parts, groups, P, N, PB: tl.constexpr, NB: tl.constexpr):
    """Batch row, head, its group, part, and of that the channels, the states, their places in (H, P, N) and which there are."""
    head, part = tl.program_id(0) // parts % heads, tl.program_id(0) % parts
    b = (tl.program_id(0) // (parts * heads)).to(tl.int64)
    p, n = part * PB + tl.arange(0, PB), tl.arange(0, NB)
    place = (head * P + p[:, None]) * N + n[None, :]
    return b, head, head // (heads // groups), part, p, n, place, (p < P)[:, None] & (n < N)[None, :]


# ---------------------------------------------------------------------------------------------- scans


@triton.jit(do_not_specialize=["length", "chunks", "splits", "span", "rows", "groups", "parts"])
def scan(
    x, dt, scale, own_scale, A, B, C, D, flags, initial, y, final, kept, mult, ends, length, chunks, splits, span,
    rows, stride, heads, groups, parts, P, N, SUMMARY: tl.constexpr, SPLIT: tl.constexpr, Q: tl.constexpr, PB: tl.constexpr,
    NB: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """`span` chunks of one head: y, and where `kept` (B, stride) is given the state before every chunk, (chunks, H, P, N).

    initial: (B, H, P, N), or with SPLIT the states before the splits, (B, splits + 1, H, P, N). With SUMMARY a split is run from
    a state of 0 and leaves what it makes of that, `ends`, and by what it multiplies a state, `mult`, (B, splits, H, P, N), which
    says nothing where a sequence starts in the split.
    """
    b, head, group, _part, p, n, place, live = _program(heads, parts, groups, P, N, PB, NB)
    split, size = tl.program_id(1), b * 0 + heads * P * N
    rate = tl.load(A + (b // rows) * heads + head)
    dtype: tl.constexpr = x.dtype.element_ty
    square, by_p = tl.zeros((Q, Q), rate.dtype), tl.zeros((Q, PB), rate.dtype)
    x += head * P
    B += group * N
    dt += head
    if scale is not None:
        scale += head
    if own_scale is not None:
        own_scale += head
    if D is not None:
        skip = tl.load(D + (b // rows) * heads + head)
    held = rate * 0.0 + 1.0
    if SUMMARY:
        state = tl.zeros((PB, NB), rate.dtype)
    elif SPLIT:
        state = tl.load(initial + (b * (splits + 1) + split) * size + place, mask=live, other=0.0)
    else:
        state = tl.load(initial + b * size + place, mask=live, other=0.0)
    for chunk in range(split * span, tl.minimum((split + 1) * span, chunks)):
        step = chunk * Q + tl.arange(0, Q)
        at = b * length + step
        inside, counts, sequence, restarts = _sequences(flags, at, step, length, Q)
        for j in range(restarts + 1):
            ok, own_steps = counts, inside
            if flags is not None:
                own_steps = inside & (sequence == j)
                ok = counts & own_steps
                state = tl.where(j > 0, 0.0, state)
            _size, weight, decay, start, end, whole = _chunk(dt, scale, rate, ok, at, heads, Q)
            inputs = _tile(x, at, heads * P, p, P, ok)
            into = _tile(B, at, groups * N, n, N, ok)
            if not SUMMARY:
                if kept is not None:
                    goes_on = live if flags is None else live & (place * 0 + j == 0)
                    tl.store(kept + b * stride + chunk * size + place, state.to(dtype), mask=goes_on)
                out = _tile(C + group * N, at, groups * N, n, N, ok)
                weights, _own = _weights(weight, own_scale, at, ok, heads, Q)
                scores = _dot(out, tl.trans(into), square, PRECISION) * decay * weights
                found = _dot(out, tl.trans(state.to(dtype)), by_p, PRECISION) * start[:, None]
                found = _dot(scores.to(dtype), inputs, found, PRECISION)
                if D is not None:
                    found += skip * inputs
                to = at[:, None] * (heads * P) + head * P + p[None, :]
                tl.store(y + to, tl.where(ok[:, None], found, 0.0).to(dtype), mask=own_steps[:, None] & (p < P)[None, :])
            weighed = (into * (end * weight)[:, None]).to(dtype)
            state = _dot(tl.trans(inputs), weighed, state * whole, PRECISION)
            held *= whole
    if SUMMARY:
        to = (b * splits + split) * size + place
        tl.store(ends + to, state, mask=live)
        tl.store(mult + to, tl.full((PB, NB), 0.0, held.dtype) + held, mask=live)
    elif split == splits - 1:
        tl.store(final + b * size + place, state, mask=live)


@triton.jit(do_not_specialize=["batch", "length", "chunks", "splits", "span", "rows", "groups", "parts"])
def scan_backward(
    grad_y, x, dt, scale, own_scale, A, B, C, D, flags, adjoint, kept, dx, d_dt, d_scale, d_own, dB, dC, d_initial, sums, edges,
    mult, ends, batch, R, length, chunks, splits, span, rows, stride, heads, groups, parts, P, N, SUMMARY: tl.constexpr,
    SPLIT: tl.constexpr, Q: tl.constexpr, PB: tl.constexpr, NB: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """`span` chunks of one head from the last to the first: dx; parts of the others, (parts, B, L, H[, N]), and of dA and dD.

    adjoint: the gradient of the final state, (B, H, P, N), or with SPLIT of the states after splits: split i begins with entry
    i + 1 of (B, splits + 1, H, P, N). sums: (2, B, splits, parts, H). edges: (parts, B, chunks, H, R), the gradients of turns of
    the first R pairs of the states after all chunks but the last. SUMMARY as in `scan`, of gradients.
    """
    b, head, group, part, p, n, place, live = _program(heads, parts, groups, P, N, PB, NB)
    split, size = tl.program_id(1), b * 0 + heads * P * N
    rate = tl.load(A + (b // rows) * heads + head)
    dtype: tl.constexpr = x.dtype.element_ty
    square, by_p = tl.zeros((Q, Q), rate.dtype), tl.zeros((Q, PB), rate.dtype)
    by_n = tl.zeros((Q, NB), rate.dtype)
    here = tl.arange(0, Q)
    dt += head
    if scale is not None:
        scale += head
    if own_scale is not None:
        own_scale += head
    held, sum_A, sum_D = rate * 0.0 + 1.0, rate * 0.0, rate * 0.0
    if SUMMARY:
        after = tl.zeros((PB, NB), rate.dtype)
    elif SPLIT:
        after = tl.load(adjoint + (b * (splits + 1) + split + 1) * size + place, mask=live, other=0.0)
    else:
        after = tl.load(adjoint + b * size + place, mask=live, other=0.0)
    first = split * span
    for i in range(tl.minimum(span, chunks - first)):
        chunk = tl.minimum(first + span, chunks) - 1 - i
        step = chunk * Q + here
        at = b * length + step
        inside, counts, sequence, restarts = _sequences(flags, at, step, length, Q)
        for j in range(restarts + 1):  # from the last sequence to the first
            ok, own_steps = counts, inside
            if flags is not None:
                own_steps = inside & (sequence == restarts - j)
                ok = counts & own_steps
            size_of, weight, decay, start, end, whole = _chunk(dt, scale, rate, ok, at, heads, Q)
            out = _tile(C + group * N, at, groups * N, n, N, ok)
            grads = _tile(grad_y + head * P, at, heads * P, p, P, ok)
            from_start = (grads * start[:, None]).to(dtype)
            if not SUMMARY:
                inputs = _tile(x + head * P, at, heads * P, p, P, ok)
                into = _tile(B + group * N, at, groups * N, n, N, ok)
                goes_on = live if flags is None else live & (place * 0 + j == restarts)
                before = tl.load(kept + b * stride + chunk * size + place, mask=goes_on, other=0.0)
                carried = after.to(dtype)
                present = own_steps[:, None]
                # what the outputs and the next state make of the inputs
                scores = _dot(out, tl.trans(into), square, PRECISION) * decay
                late = _dot(into, tl.trans(carried), by_p, PRECISION) * end[:, None]
                later = scores if own_scale is None else tl.where(here[:, None] == here[None, :], 0.0, scores)
                both = _dot(tl.trans(later.to(dtype)), grads, late, PRECISION)
                found = both * weight[:, None]
                weights, own = _weights(weight, own_scale, at, ok, heads, Q)
                if own_scale is not None:
                    now = tl.sum(scores - later, 1)
                    found += grads * (now * own)[:, None]
                    to = ((part * batch + b) * length + step) * heads + head
                    d_now = now * tl.sum(grads.to(rate.dtype) * inputs, 1)
                    tl.store(d_own + to, tl.where(ok, d_now, 0.0), mask=own_steps)
                if D is not None:
                    found += tl.load(D + (b // rows) * heads + head) * grads
                    sum_D += tl.sum(tl.sum(grads.to(rate.dtype) * inputs, 1), 0)
                to = at[:, None] * (heads * P) + head * P + p[None, :]
                tl.store(dx + to, tl.where(ok[:, None], found, 0.0).to(dtype), mask=present & (p < P)[None, :])
                d_weight = tl.sum(inputs * both, 1)
                passed_on = tl.sum(inputs * late, 1) * weight
                # of B and C
                products = _dot(grads, tl.trans(inputs), square, PRECISION) * weights
                within = (products * decay).to(dtype)
                read = _dot(from_start, before, by_n, PRECISION)
                carried_out = tl.sum(out * read, 1)
                to = ((part * batch + b) * length + step)[:, None] * (heads * N) + head * N + n[None, :]
                mask = present & (n < N)[None, :]
                d_out = _dot(within, into, read, PRECISION)
                tl.store(dC + to, tl.where(ok[:, None], d_out, 0.0).to(dC.dtype.element_ty), mask=mask)
                written = _dot((inputs * (end * weight)[:, None]).to(dtype), carried, by_n, PRECISION)
                d_into = _dot(tl.trans(within), out, written, PRECISION)
                tl.store(dB + to, tl.where(ok[:, None], d_into, 0.0).to(dB.dtype.element_ty), mask=mask)
                # of a step's log decay: what passes over the step, within the chunk, to its end, from its start, and through it
                over = (here[None, :] >= here[:, None]).to(dtype)
                passing = _dot(over, (products * scores).to(dtype), square, PRECISION)
                d_log = tl.sum(tl.where(here[None, :] < here[:, None], passing, 0.0), 1)
                d_log += tl.sum(tl.where(here[None, :] >= here[:, None], carried_out[None, :], 0.0), 1)
                d_log += tl.sum(tl.where(here[None, :] < here[:, None], passed_on[None, :], 0.0), 1)
                d_log += whole * tl.sum(tl.sum(after * before, 1), 0)
                sum_A += tl.sum(tl.where(ok, d_log * size_of, 0.0), 0)
                to = ((part * batch + b) * length + step) * heads + head
                d_size = d_log * rate
                if scale is None:
                    d_size += d_weight
                else:
                    tl.store(d_scale + to, tl.where(ok, d_weight, 0.0), mask=own_steps)
                tl.store(d_dt + to, tl.where(ok, d_size, 0.0), mask=own_steps)
            after = _dot(tl.trans(from_start), out, after * whole, PRECISION)
            if flags is not None:
                after = tl.where(j < restarts, 0.0, after)
            held *= whole
            if edges is not None and not SUMMARY:
                pair = tl.arange(0, NB // 2)
                to = (((part * batch + b) * chunks + chunk - 1) * heads + head) * R + pair
                there = (pair < R) & (pair * 0 + chunk > 0)
                if flags is not None:
                    there = there & (pair * 0 + j == restarts)
                tl.store(edges + to, _turning(after, before), mask=there)
    if SUMMARY:
        to = (b * splits + split) * size + place
        tl.store(ends + to, after, mask=live)
        tl.store(mult + to, tl.full((PB, NB), 0.0, held.dtype) + held, mask=live)
    else:
        to = ((b * splits + split) * parts + part) * heads + head
        tl.store(sums + to, sum_A)
        tl.store(sums + batch * splits * parts * heads + to, sum_D)
        if split == 0:
            tl.store(d_initial + b * size + place, after, mask=live)


# ---------------------------------------------------------------------------------------------- launches


class _Problem(NamedTuple):
    """Sizes of a call. rows: batch rows a group of models, whose A and D are their own. parts: programs for the P of a head."""

    batch: int
    length: int
    heads: int
    groups: int
    parts: int
    width: int
    states: int
    rows: int
    split: tables.Plan
    constants: dict[str, Any]

    @property
    def size(self) -> int:
        return self.heads * self.width * self.states

    @property
    def grid(self) -> tuple[int, int]:
        return self.batch * self.heads * self.parts, self.split.splits

    def sizes(self, stride: int) -> tuple[int, ...]:
        """The sizes that both scans take, in their order."""
        split, own = self.split, (self.heads, self.groups, self.parts, self.width, self.states)
        return self.length, split.tiles, split.splits, split.span, self.rows, stride, *own


def _problem(x: Tensor, A: Tensor, B: Tensor, op: str) -> _Problem:
    batch, length, heads, width = x.shape
    groups, states = B.shape[2:]
    if states > tables.MAX_MATRIX_STATES:
        raise ValueError(f"`N` must be at most {tables.MAX_MATRIX_STATES} states on the triton backend, got {states}")
    table, Q = tables.TABLE[op if x.element_size() == 2 else f"{op}_exact"], _steps(x.element_size(), states)
    NB = max(16, power_of_two(states))
    PB = max(16, min(power_of_two(width), table.lanes // NB, 64))
    parts = ceil_div(width, PB)
    split = tables.plan(op, length, batch * heads * parts, x.device, chunk=Q)
    warps = max(1, min(table.warps, max(Q * Q, Q * NB, PB * NB) // 1024))
    constants = {
        "Q": Q, "PB": PB, "NB": NB, "PRECISION": "tf32x3" if x.dtype == torch.float32 else "ieee", "num_warps": warps,
        "num_stages": table.stages,
    }  # fmt: skip
    many = len(A) if A.ndim == 2 else 1
    return _Problem(batch, length, heads, groups, parts, width, states, batch // many, split, constants)


def _steps(item: int, states: int) -> int:
    """Steps of a chunk, by the bytes of a number of x: what matrix units multiply has to fit into shared memory."""
    table = tables.TABLE["ssd_scan" if item == 2 else "ssd_scan_exact"]
    return max(16, min(table.steps, 8192 // power_of_two(states)))


def chunk_states_shape(batch: int, length: int, item: int, wide: int, heads: int, width: int, states: int) -> tuple[int, int]:
    """Of what `forward` keeps for `backward`: states before chunks, numbers of `item` bytes as ones of `wide`."""
    chunks = ceil_div(length, _steps(item, states))
    return batch, ceil_div(chunks * heads * width * states * item, wide)


def forward(
    x: Tensor,
    dt: Tensor,
    input_scale: Tensor | None,
    own_scale: Tensor | None,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    B_bias: Tensor | None,
    C_bias: Tensor | None,
    angle: Tensor | None,
    initial_state: Tensor,
    flags: Tensor | None,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """y (B, L, H, P), the final state (B, H, P, N) and what `backward` needs where `keep`.

    Contiguous tensors; x, B and C of one dtype, half precision too, the others of that of the state. A, D and the biases may have
    one more leading axis, of groups: as many runs of batch rows then have parameters of their own.
    """
    with on_device(x):
        maps = _maps(x, A, B, C, B_bias, C_bias, angle, flags)
        starts, end = turns.phases(maps)
        if maps.change:
            B, C = turns.turn(maps, starts)
        y, final, kept = _forward(x, dt, input_scale, own_scale, A, B, C, D, initial_state, flags, keep)
        if end is not None:
            final, _ = turns.turn_final(final, end)
    return y, final, kept


def _maps(
    x: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    B_bias: Tensor | None,
    C_bias: Tensor | None,
    angle: Tensor | None,
    flags: Tensor | None,
) -> turns.Maps:
    rows, chunk = len(x) // (len(A) if A.ndim == 2 else 1), _steps(x.element_size(), B.shape[-1])
    return turns.Maps(B, C, B_bias, C_bias, angle, flags, x.shape[2], rows, chunk)


def _forward(
    x: Tensor,
    dt: Tensor,
    input_scale: Tensor | None,
    own_scale: Tensor | None,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    initial_state: Tensor,
    flags: Tensor | None,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """As `forward`, where nothing turns."""
    p = _problem(x, A, B, "ssd_scan")
    y, final = torch.empty_like(x), torch.empty_like(initial_state)
    shape = chunk_states_shape(p.batch, p.length, x.element_size(), initial_state.element_size(), *initial_state.shape[1:])
    kept = initial_state.new_empty(shape if keep else (0,))
    states = kept.view(x.dtype) if keep else None
    inputs = (x, dt, input_scale, own_scale, A, B, C, D, flags)
    start = initial_state
    if p.split.splits > 1:
        mult, ends = (initial_state.new_empty((p.batch, p.split.splits, p.size)) for _ in range(2))
        start = initial_state.new_empty((p.batch, p.split.splits + 1, p.size))
        _scan(p, (*inputs, None, None, None, None, mult, ends), 0, True)
        _chain(p, mult, ends, initial_state, flags, start, False)
    _scan(p, (*inputs, start, y, final, states, None, None), 0 if states is None else states.stride(0), False)
    return y, final, kept


def _scan(p: _Problem, tensors: tuple[Tensor | None, ...], stride: int, summary: bool) -> None:
    constants = {"SUMMARY": summary, "SPLIT": p.split.splits > 1, **p.constants}
    launch(scan, p.grid, *tensors, *p.sizes(stride), constants=constants)


def _chain(p: _Problem, mult: Tensor, local: Tensor, first: Tensor, flags: Tensor | None, out: Tensor, reverse: bool) -> None:
    constants = {"COMPLEX": False, "REVERSE": reverse, "BLOCK": CHAIN}
    grid, restarts = (p.batch, ceil_div(p.size, CHAIN)), tables.restarts(flags, p.split.span * p.split.T)
    launch(chain, grid, mult, local, first, restarts, out, p.split.splits, p.size, constants=constants)


def backward(
    grad_y: Tensor,
    grad_final: Tensor,
    x: Tensor,
    dt: Tensor,
    input_scale: Tensor | None,
    own_scale: Tensor | None,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    B_bias: Tensor | None,
    C_bias: Tensor | None,
    angle: Tensor | None,
    initial_state: Tensor,
    flags: Tensor | None,
    final: Tensor,
    chunk_states: Tensor,
) -> tuple[Tensor, ...]:
    """Gradients of x, dt, both scales, A, B, C, D, both biases, angle and initial_state; empty where the input is None."""
    others: tuple[Tensor | None, ...] = (None, None, None)
    with on_device(x):
        maps = _maps(x, A, B, C, B_bias, C_bias, angle, flags)
        starts, end = turns.phases(maps)
        if end is not None:
            grad_final, grad_end = turns.turn_final(grad_final, end, final)
        if maps.change:
            B, C = turns.turn(maps, starts)
        dx, d_dt, *scales, dA, dB, dC, dD, d_initial, edges = _backward(
            grad_y, grad_final, x, dt, input_scale, own_scale, A, B, C, D, initial_state, flags, chunk_states, maps.pairs
        )
        if end is not None:
            edges[:, -1] = grad_end
        if maps.change:
            del B, C  # what was turned
            dB, dC, others = turns.turn_back(maps, starts, dB, dC, edges)
    found = (dx, d_dt, *scales, dA, dB, dC, dD, *others, d_initial)
    return tuple(initial_state.new_empty(0) if grad is None else grad for grad in found)


def _backward(
    grad_y: Tensor,
    grad_final: Tensor,
    x: Tensor,
    dt: Tensor,
    input_scale: Tensor | None,
    own_scale: Tensor | None,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    initial_state: Tensor,
    flags: Tensor | None,
    chunk_states: Tensor,
    pairs: int,
) -> tuple[Any, ...]:
    """Gradients of x, dt, both scales, A, B, C, D and initial_state, None where the input is; nothing turns.

    And of turns of `pairs` pairs of the states after all chunks but the last, (B, chunks, H, pairs).
    """
    p = _problem(x, A, B, "ssd_scan_backward")
    split, like = p.split, initial_state
    dx, d_initial, states = torch.empty_like(x), torch.empty_like(initial_state), chunk_states.view(x.dtype)
    d_dt = like.new_empty((p.parts, *dt.shape))
    d_scale, d_own = (None if given is None else torch.empty_like(d_dt) for given in (input_scale, own_scale))
    dB, dC = ((like if pairs else x).new_empty((p.parts, *dt.shape, B.shape[-1])) for _ in range(2))
    sums = like.new_empty((2, p.batch, split.splits, p.parts, p.heads))
    edges = like.new_empty((p.parts, p.batch, split.tiles, p.heads, pairs)) if pairs else None
    inputs = (grad_y, x, dt, input_scale, own_scale, A, B, C, D, flags)
    adjoint = grad_final
    if split.splits > 1:
        mult, ends = (like.new_empty((p.batch, split.splits, p.size)) for _ in range(2))
        adjoint = like.new_empty((p.batch, split.splits + 1, p.size))
        _scan_backward(p, (*inputs, *[None] * 11, mult, ends), pairs, 0, True)
        _chain(p, mult, ends, grad_final, flags, adjoint, True)
    outputs = (adjoint, states, dx, d_dt, d_scale, d_own, dB, dC, d_initial, sums, edges, None, None)
    _scan_backward(p, (*inputs, *outputs), pairs, states.stride(0), False)
    dA, dD = (part.view(p.batch // p.rows, -1, p.heads).sum(1) for part in sums)  # in memory of their own
    if dB.numel() > B.numel():
        dB, dC = (part.view(p.parts, *B.shape[:3], -1, B.shape[-1]).sum((0, 4)) for part in (dB, dC))
    scales = (None if part is None else part.sum(0) for part in (d_scale, d_own))
    return (
        dx, d_dt.sum(0), *scales, dA.view(A.shape), dB.view(B.shape), dC.view(B.shape),
        None if D is None else dD.view(D.shape), d_initial, None if edges is None else edges.sum(0),
    )  # fmt: skip


def _scan_backward(p: _Problem, tensors: tuple[Tensor | None, ...], pairs: int, stride: int, summary: bool) -> None:
    constants = {"SUMMARY": summary, "SPLIT": p.split.splits > 1, **p.constants}
    launch(scan_backward, p.grid, *tensors, p.batch, pairs, *p.sizes(stride), constants=constants)
