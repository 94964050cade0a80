"""The maps B and C of `ssd_scan` as its heads take them, with their biases, in a frame that turns with the state, in Triton.

In that frame the state does not turn. Instead B_t and C_t turn, by minus phase_t: the sum of the angles up to that of step t,
less whole turns. Mamba-3's authors compute the same (Lahoti et al. 2026, "Mamba-3").

Tiles of steps are worked on side by side. `sum_tiles` adds up the angles of each, `run_up` adds these up from tile to tile, and
`turn_maps` goes on from there, all in float64. Where packed rows restart, the phase is 0, and the sums start again.

The gradient of an angle is the sum of the gradients of the phases of its step and of all later ones. What passes between two of
these steps cancels there, but its roundings do not, and over many steps they outgrow the rest. So the sum goes to the end of a
chunk of the scan only, in `turn_maps_back` within tiles and in `add_later` within the chunk. What passes over that end is known
from the state there.

B, C: (B, L, G, N); angle: (B, L, H, R) for the first R of the pairs; a bias: (H, N), or of a group of models (models, H, N).
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from longscan.ops import _triton_launch as tables
from longscan.ops._gpu import ceil_div, launch, power_of_two, programs_to_fill
from longscan.ops._triton import row_of, segmented_add, sincos, wrap

COLUMNS = 32  # sums that a program of `run_up` carries on
ELEMENTS = 4096  # of a tile of one map: more of them do not stay in registers


# ---------------------------------------------------------------------------------------------- tiles


@triton.jit
def _steps(flags, tile, tiles, length, T: tl.constexpr):
    """Places in (B, L) of the steps of a tile of a row, which of them count, and which there are."""
    b = (tile // tiles).to(tl.int64)
    step = tile % tiles * T + tl.arange(0, T)
    there = step < length
    ok = there
    if flags is not None:
        ok = there & (tl.load(flags + b * length + step, mask=there, other=1) != 1)
    return b, b * length + step, ok, there


@triton.jit
def _restarts(flags, at, there):
    """Which steps of a tile start a sequence, and how many of them there were up to each step of the tile."""
    fresh = tl.load(flags + at, mask=there, other=1) == 2
    return fresh, tl.cumsum(fresh.to(tl.int32))


@triton.jit
def _pairs(source, place, ok):
    """Two tiles, (T, NB / 2), of at least float32: the first and the second entries of the pairs at `place` (T, NB)."""
    x = tl.load(source + place, mask=ok, other=0.0)
    if x.dtype != tl.float64:
        x = x.to(tl.float32)
    return tl.split(tl.reshape(x, (x.shape[0], x.shape[1] // 2, 2)))


@triton.jit
def _biased(first, second, bias, row, n, N):
    """Pairs, to which row `row` of `bias`, of N numbers, is added where there is one."""
    if bias is not None:
        x, y = _pairs(bias, row * N + n[None, :], (n < N)[None, :])
        first, second = first + x, second + y
    return first, second


@triton.jit
def _turn(first, second, sine, cosine):
    """Pairs turned by angles of these sines and cosines."""
    return first * cosine - second * sine, first * sine + second * cosine


@triton.jit
def _phase(angle, flags, starts, at, place, tile, head, heads, R, ok, n):
    """Sine and cosine of the phases of a tile, (T, NB / 2): 0 and 1 for pairs that do not turn."""
    live = n < R
    start = tl.load(starts + (tile.to(tl.int64) * heads + head) * R + n, mask=live, other=0.0)
    if flags is not None:
        fresh, _ = _restarts(flags, at, ok)
        turns = tl.load(angle + place, mask=(ok & ~fresh)[:, None] & live[None, :], other=0.0)
        summed = turns.to(tl.float64)
        restarted, summed = tl.associative_scan((tl.broadcast_to(fresh[:, None], summed.shape), summed), 0, segmented_add)
        phase = tl.where(ok[:, None], tl.where(restarted, 0.0, start[None, :]) + summed, 0.0)
    else:
        turns = tl.load(angle + place, mask=ok[:, None] & live[None, :], other=0.0)
        phase = start[None, :] + tl.cumsum(turns.to(tl.float64), 0)
    return sincos(wrap(phase).to(turns.dtype))


# ---------------------------------------------------------------------------------------------- sums over steps


@triton.jit(do_not_specialize=["length", "tiles"])
def sum_tiles(x, flags, sums, length, tiles, width, T: tl.constexpr, BLOCK: tl.constexpr):
    """sums (B, tiles, width), float64, of x (B, L, width) over the steps of a tile that count, after its latest restart."""
    tile = tl.program_id(0)
    _b, at, ok, there = _steps(flags, tile, tiles, length, T)
    if flags is not None:
        fresh, sequence = _restarts(flags, at, there)
        ok = ok & ~fresh & (sequence == tl.max(sequence))
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    live = column < width
    values = tl.load(x + at[:, None] * width + column[None, :], mask=ok[:, None] & live[None, :], other=0.0)
    tl.store(sums + tile.to(tl.int64) * width + column, tl.sum(values.to(tl.float64), 0), mask=live)


@triton.jit(do_not_specialize=["tiles"])
def run_up(sums, restarts, before, total, tiles, width, T: tl.constexpr, BLOCK: tl.constexpr):
    """before (B, tiles, width): the sums of all tiles before, less whole turns; total (B, width): of all.

    restarts: (B, tiles), not 0 where a sequence starts in a tile, so that the sums before it do not count; or None.
    """
    b, column = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    live = column < width
    carried = tl.zeros((BLOCK,), tl.float64)
    if restarts is not None:
        tl.store(before + b * tiles * width + column, carried, mask=live)
    for i in range(0, tiles, T):
        tile = i + tl.arange(0, T)
        here = (tile < tiles)[:, None] & live[None, :]
        place = (b * tiles + tile)[:, None] * width + column[None, :]
        x = tl.load(sums + place, mask=here, other=0.0)
        if restarts is not None:
            fresh = tl.load(restarts + b * tiles + tile, mask=tile < tiles, other=0) != 0
            restarted, summed = tl.associative_scan((tl.broadcast_to(fresh[:, None], x.shape), x), 0, segmented_add)
            after = wrap(tl.where(restarted, 0.0, carried[None, :]) + summed)
            tl.store(before + place + width, after, mask=here & (tile + 1 < tiles)[:, None])
            carried = row_of(after, (tl.arange(0, T) == T - 1)[:, None])
        else:
            tl.store(before + place, wrap(carried[None, :] + (tl.cumsum(x, 0) - x)), mask=here)
            carried = wrap(carried + tl.sum(x, 0))
    tl.store(total + b * width + column, carried.to(total.dtype.element_ty), mask=live)


@triton.jit(do_not_specialize=["length", "tiles", "chunks"])
def add_later(
    x, sums, edges, flags, restarts, length, tiles, chunks, width, PER: tl.constexpr, T: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """To x (B, L, width) are added the sums (B, tiles, width) of all later tiles of a chunk of PER, and the `edges` of the chunk.

    edges: (B, chunks, width). restarts: (B, tiles), not 0 where a sequence starts in a tile, beyond which no sum goes. Steps that
    do not count, and those that start a sequence, get 0.
    """
    tile = tl.program_id(0)
    b, at, ok, there = _steps(flags, tile, tiles, length, T)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    live = column < width
    here = tile % tiles
    chunk = here // PER
    more = tl.load(edges + (b * chunks + chunk) * width + column, mask=live, other=0.0)
    stop = tl.minimum((chunk + 1) * PER, tiles)
    if restarts is not None:
        for i in range(1, stop - here):
            other = b * tiles + stop - i
            more = tl.where(tl.load(restarts + other) != 0, 0.0, more)
            more += tl.load(sums + other * width + column, mask=live, other=0.0)
        fresh, sequence = _restarts(flags, at, there)
        ok = ok & ~fresh
        more = tl.where((sequence == tl.max(sequence))[:, None], more[None, :], 0.0)
    else:
        for other in range(here + 1, stop):
            more += tl.load(sums + (b * tiles + other) * width + column, mask=live, other=0.0)
        more = more[None, :]
    place = at[:, None] * width + column[None, :]
    values = tl.load(x + place, mask=ok[:, None] & live[None, :], other=0.0) + more
    tl.store(x + place, tl.where(ok[:, None], values, 0.0), mask=there[:, None] & live[None, :])


# ---------------------------------------------------------------------------------------------- maps


@triton.jit(do_not_specialize=["length", "tiles", "rows", "groups", "each"])
def turn_maps(
    B, C, B_bias, C_bias, angle, flags, starts, turned_B, turned_C, length, tiles, rows, heads, groups, each, N, R,
    T: tl.constexpr, NB: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """turned_B and turned_C, (B, L, H, N): those of a group with each head's bias, turned by minus the phase.

    A program has a tile of steps and `each` heads of a group. starts: phases before the tiles, (B, tiles, H, R). Nothing is
    written at steps that do not count.
    """
    tile, per_group = tl.program_id(0), heads // groups
    b, at, ok, _there = _steps(flags, tile, tiles, length, T)
    blocks = tl.cdiv(per_group, each)
    group, block = tl.program_id(1) // blocks, tl.program_id(1) % blocks
    n, pair = tl.arange(0, NB), tl.arange(0, NB // 2)
    live = ok[:, None] & (n < N)[None, :]
    source = (at * groups + group)[:, None] * N + n[None, :]
    b0, b1 = _pairs(B, source, live)
    c0, c1 = _pairs(C, source, live)
    first, last = group * per_group + block * each, group * per_group + tl.minimum(per_group, (block + 1) * each)
    for head in tl.range(first, last, num_stages=STAGES):
        parameters = (b // rows) * heads + head
        into0, into1 = _biased(b0, b1, B_bias, parameters, n, N)
        out0, out1 = _biased(c0, c1, C_bias, parameters, n, N)
        if angle is not None:
            place = (at * heads + head)[:, None] * R + pair[None, :]
            sine, cosine = _phase(angle, flags, starts, at, place, tile, head, heads, R, ok, pair)
            into0, into1 = _turn(into0, into1, -sine, cosine)
            out0, out1 = _turn(out0, out1, -sine, cosine)
        to = (at * heads + head)[:, None] * N + n[None, :]
        tl.store(turned_B + to, tl.interleave(into0, into1).to(B.dtype.element_ty), mask=live)
        tl.store(turned_C + to, tl.interleave(out0, out1).to(B.dtype.element_ty), mask=live)


@triton.jit(do_not_specialize=["batch", "length", "tiles", "rows", "groups", "each"])
def turn_maps_back(
    grad_B, grad_C, B, C, B_bias, C_bias, angle, flags, starts, dB, dC, dB_bias, dC_bias, d_angle, sums, batch, length, tiles,
    rows, heads, groups, each, N, R, T: tl.constexpr, NB: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """From the gradients of what `turn_maps` gave: dB and dC, (blocks, B, L, G, N), and parts of the others.

    dB_bias and dC_bias: (B, tiles, H, N). d_angle: (B, L, H, R), the gradients of the phases, summed from a step to the end of
    its tile or sequence; sums: (B, tiles, H, R), from the start of tiles.
    """
    tile, per_group = tl.program_id(0), heads // groups
    b, at, ok, there = _steps(flags, tile, tiles, length, T)
    blocks = tl.cdiv(per_group, each)
    group, block = tl.program_id(1) // blocks, tl.program_id(1) % blocks
    n, pair = tl.arange(0, NB), tl.arange(0, NB // 2)
    live = ok[:, None] & (n < N)[None, :]
    source = (at * groups + group)[:, None] * N + n[None, :]
    b0, b1 = _pairs(B, source, live)
    c0, c1 = _pairs(C, source, live)
    all_b0, all_b1, all_c0, all_c1 = b0 * 0.0, b0 * 0.0, b0 * 0.0, b0 * 0.0
    first, last = group * per_group + block * each, group * per_group + tl.minimum(per_group, (block + 1) * each)
    for head in tl.range(first, last, num_stages=STAGES):
        parameters, tiled = (b // rows) * heads + head, tile.to(tl.int64) * heads + head
        to = (at * heads + head)[:, None] * N + n[None, :]
        db0, db1 = _pairs(grad_B, to, live)
        dc0, dc1 = _pairs(grad_C, to, live)
        if angle is not None:
            place = (at * heads + head)[:, None] * R + pair[None, :]
            sine, cosine = _phase(angle, flags, starts, at, place, tile, head, heads, R, ok, pair)
            db0, db1 = _turn(db0, db1, sine, cosine)
            into0, into1 = _biased(b0, b1, B_bias, parameters, n, N)
            of_phase = db0 * into1 - db1 * into0
            dc0, dc1 = _turn(dc0, dc1, sine, cosine)
            out0, out1 = _biased(c0, c1, C_bias, parameters, n, N)
            of_phase += dc0 * out1 - dc1 * out0
            if flags is not None:
                within = (tl.arange(0, T) < T - 1) & (at + 1 < (b + 1) * length)
                stop = tl.load(flags + at + 1, mask=within, other=1) == 2
                stop = tl.broadcast_to(stop[:, None], of_phase.shape)
                _, summed = tl.associative_scan((stop, of_phase), 0, segmented_add, reverse=True)
                _, sequence = _restarts(flags, at, there)
                of_phase = tl.where((sequence == 0)[:, None], of_phase, 0.0)
            else:
                summed = tl.cumsum(of_phase, 0, reverse=True)
            tl.store(d_angle + place, summed, mask=ok[:, None] & (pair < R)[None, :])
            tl.store(sums + tiled * R + pair, tl.sum(of_phase, 0), mask=pair < R)
        if dB_bias is not None:
            tl.store(dB_bias + tiled * N + n, tl.interleave(tl.sum(db0, 0), tl.sum(db1, 0)), mask=n < N)
        if dC_bias is not None:
            tl.store(dC_bias + tiled * N + n, tl.interleave(tl.sum(dc0, 0), tl.sum(dc1, 0)), mask=n < N)
        all_b0, all_b1, all_c0, all_c1 = all_b0 + db0, all_b1 + db1, all_c0 + dc0, all_c1 + dc1
    present = there[:, None] & (n < N)[None, :]
    source += block * batch * length * groups * N
    tl.store(dB + source, tl.interleave(all_b0, all_b1).to(dB.dtype.element_ty), mask=present)
    tl.store(dC + source, tl.interleave(all_c0, all_c1).to(dB.dtype.element_ty), mask=present)


@triton.jit
def turn_state(x, phase, forth, out, d_phase, P, N, R, BACK: tl.constexpr, PB: tl.constexpr, NB: tl.constexpr):
    """out (B, H, P, N): x turned by phase (B, H, R).

    With BACK x is the gradient of a state that was turned so, `forth`: it is turned back, and d_phase gets the gradient of phase.
    """
    row = tl.program_id(0).to(tl.int64)
    n, pair = tl.arange(0, NB), tl.arange(0, NB // 2)
    sine, cosine = sincos(tl.load(phase + row * R + pair, mask=pair < R, other=0.0)[None, :])
    sine = -sine if BACK else sine
    of_phase = tl.zeros((NB // 2,), x.dtype.element_ty)
    for start in range(0, P, PB):
        p = start + tl.arange(0, PB)
        place, live = (row * P + p[:, None]) * N + n[None, :], (p < P)[:, None] & (n < N)[None, :]
        first, second = _pairs(x, place, live)
        if BACK:
            turned0, turned1 = _pairs(forth, place, live)
            of_phase += tl.sum(second * turned0 - first * turned1, 0)
        first, second = _turn(first, second, sine, cosine)
        tl.store(out + place, tl.interleave(first, second), mask=live)
    if BACK:
        tl.store(d_phase + row * R + pair, of_phase, mask=pair < R)


# ---------------------------------------------------------------------------------------------- launches


class Maps(NamedTuple):
    """B and C of a call, as the groups have them, and what makes those of the heads of them.

    rows: batch rows of a model. chunk: steps of a chunk of the scan.
    """

    B: Tensor
    C: Tensor
    B_bias: Tensor | None
    C_bias: Tensor | None
    angle: Tensor | None
    flags: Tensor | None
    heads: int
    rows: int
    chunk: int

    @property
    def change(self) -> bool:
        """Whether the heads take anything but what the groups have."""
        return any(x is not None for x in (self.B_bias, self.C_bias, self.angle))

    @property
    def pairs(self) -> int:
        """R, or 0 where nothing turns."""
        return 0 if self.angle is None else self.angle.shape[-1]

    @property
    def steps(self) -> int:
        """Of a tile."""
        most = min(tables.TABLE["turns"].steps, max(1, ELEMENTS // self.places), self.chunk)
        return min(most, power_of_two(self.B.shape[1]))

    @property
    def places(self) -> int:
        """A power of 2 for the N of a head."""
        return max(2, power_of_two(self.B.shape[-1]))

    @property
    def tiles(self) -> int:
        """Of a row."""
        return ceil_div(self.B.shape[1], self.steps)

    @property
    def each(self) -> int:
        """Heads of a group that a program has."""
        batch, _, groups, _ = self.B.shape
        per_group = self.heads // groups
        return ceil_div(per_group, min(per_group, ceil_div(programs_to_fill(self.B.device), batch * self.tiles * groups)))

    @property
    def blocks(self) -> int:
        """Programs that share the heads of a group."""
        return ceil_div(self.heads // self.B.shape[2], self.each)


def phases(maps: Maps) -> tuple[Tensor | None, Tensor | None]:
    """Before each tile, (B, tiles, H, R) in float64, and after the last step, (B, H, R) in the dtype of the angles."""
    if maps.angle is None or not maps.pairs:
        return None, None
    batch = maps.angle.shape[0]
    sums = maps.angle.new_empty((batch, maps.tiles, maps.heads, maps.pairs), dtype=torch.float64)
    before, total = torch.empty_like(sums), maps.angle.new_empty((batch, maps.heads, maps.pairs))
    _along_steps(sum_tiles, maps, (maps.angle, maps.flags, sums), (maps.tiles, maps.heads * maps.pairs), {})
    width, steps = maps.heads * maps.pairs, min(tables.TABLE["turns"].steps, power_of_two(maps.tiles))
    constants = {"T": steps, "BLOCK": COLUMNS, "num_warps": tables.TABLE["turns"].warps}
    tensors = sums, tables.restarts(maps.flags, maps.steps), before, total
    launch(run_up, (batch, ceil_div(width, COLUMNS)), *tensors, maps.tiles, width, constants=constants)
    return before, total


def turn(maps: Maps, starts: Tensor | None) -> tuple[Tensor, Tensor]:
    """B and C (B, L, H, N) as the scan takes them; starts: the first of `phases`."""
    B, C = (maps.B.new_empty((*maps.B.shape[:2], maps.heads, maps.B.shape[-1])) for _ in range(2))
    _of_maps(turn_maps, maps, (), starts, (B, C))
    return B, C


def turn_back(
    maps: Maps, starts: Tensor | None, grad_B: Tensor, grad_C: Tensor, edges: Tensor | None
) -> tuple[Tensor, Tensor, tuple[Tensor | None, ...]]:
    """Gradients of B, of C, and of B_bias, C_bias and the angles, None where the input is.

    edges: (B, chunks, H, R), what turning the states after the chunks would change.
    """
    batch, blocks = maps.B.shape[0], maps.blocks
    like = next(x for x in (maps.angle, maps.B_bias, maps.C_bias) if x is not None)  # of the dtype that all is added up in
    dB, dC = (like.new_empty((blocks, *maps.B.shape), dtype=None if blocks > 1 else maps.B.dtype) for _ in range(2))
    tiled = (batch, maps.tiles, maps.heads, maps.B.shape[-1])
    dB_bias, dC_bias = (None if x is None else like.new_empty(tiled) for x in (maps.B_bias, maps.C_bias))
    d_angle = sums = None
    if maps.angle is not None:
        d_angle, sums = torch.empty_like(maps.angle), like.new_empty((*tiled[:3], maps.pairs))
    _of_maps(turn_maps_back, maps, (grad_B, grad_C), starts, (dB, dC, dB_bias, dC_bias, d_angle, sums, batch))
    if edges is not None:
        sizes = maps.tiles, edges.shape[1], maps.heads * maps.pairs
        tensors = d_angle, sums, edges, maps.flags, tables.restarts(maps.flags, maps.steps)
        _along_steps(add_later, maps, tensors, sizes, {"PER": maps.chunk // maps.steps})
    dB_bias, dC_bias = (
        None if part is None or x is None else part.view(batch // maps.rows, -1, *tiled[2:]).sum(1).view(x.shape)
        for part, x in ((dB_bias, maps.B_bias), (dC_bias, maps.C_bias))
    )
    dB, dC = (part.sum(0).to(maps.B.dtype) if blocks > 1 else part[0] for part in (dB, dC))
    return dB, dC, (dB_bias, dC_bias, d_angle)


def turn_final(state: Tensor, phase: Tensor, forth: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The state (B, H, P, N), turned by `phase` (B, H, R).

    Or, where `forth` is such a state and `state` its gradient, the gradients of the state as it was before, and of phase.
    """
    batch, heads, width, states = state.shape
    out, d_phase = torch.empty_like(state), torch.empty_like(phase)
    NB = max(2, power_of_two(states))
    constants = {"BACK": forth is not None, "PB": max(1, ELEMENTS // NB), "NB": NB, "num_warps": tables.TABLE["turns"].warps}
    tensors = (state, phase, forth, out, d_phase)
    launch(turn_state, (batch * heads,), *tensors, width, states, phase.shape[-1], constants=constants)
    return out, d_phase


def _of_maps(kernel: Any, maps: Maps, first: tuple[Tensor, ...], starts: Tensor | None, last: tuple[Any, ...]) -> None:
    batch, length, groups, states = maps.B.shape
    sizes = (length, maps.tiles, maps.rows, maps.heads, groups, maps.each, states, maps.pairs)
    table = tables.TABLE["turns"]
    constants = {"T": maps.steps, "NB": maps.places, "STAGES": table.stages, "num_warps": table.warps}
    angle = maps.angle if maps.pairs else None
    tensors = (*first, maps.B, maps.C, maps.B_bias, maps.C_bias, angle, maps.flags, starts, *last)
    launch(kernel, (batch * maps.tiles, groups * maps.blocks), *tensors, *sizes, constants=constants)


def _along_steps(
    kernel: Any, maps: Maps, tensors: tuple[Tensor | None, ...], sizes: tuple[int, ...], own: dict[str, int]
) -> None:
    """own: compile-time arguments of this kernel alone."""
    batch, length, _, _ = maps.B.shape
    table = tables.TABLE["turns"]
    block = min(table.lanes, power_of_two(sizes[-1]))
    constants = {**own, "T": maps.steps, "BLOCK": block, "num_warps": table.warps}
    launch(kernel, (batch * maps.tiles, ceil_div(sizes[-1], block)), *tensors, length, *sizes, constants=constants)
