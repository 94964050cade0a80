"""Time a selective scan in plain Triton next to the kernels of the op, to show what the six-axis tiles of the op gain.

    python benchmarks/plain_selective_scan.py --out build/plain.jsonl
    python benchmarks/plain_selective_scan.py --ordered --out build/ordered.jsonl

Real A without masks, in float32. Tiles are (T steps, N states, BD channels) in Triton's default layout; the passes are those of
src/longscan/ops/selective_scan/triton/README.md, with a state stored before every 64 steps. The first command times both for
several tile sizes, replayed as CUDA graphs, after a comparison with the reference in float64. The second times the backward pass
of the op with sums of dB and dC in order and with partial sums in slices. A row is one measurement. Needs a GPU.
"""

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from longscan.ops import _triton_launch, selective_scan
from longscan.ops.selective_scan.triton import launch as op
from longscan.training.run import commit
from op_calls import peak_mib, replayed_ms

K = 64  # steps between two stored states
SHAPES = ((8, 2048, 2048, 16), (16, 8192, 32, 64))  # B, L, D, N
# states -> tiles to try: steps, channels, warps, stages of the software pipeline
FORWARD = {64: ((4, 16, 2, 3), (4, 8, 1, 3), (2, 16, 1, 3)), 16: ((8, 16, 1, 3), (4, 16, 1, 3), (8, 8, 1, 3), (4, 32, 1, 3))}
BACKWARD = {64: ((2, 8, 1, 3), (4, 4, 1, 3), (2, 16, 2, 3), (4, 16, 4, 3)), 16: ((4, 16, 1, 3), (4, 8, 1, 3), (8, 8, 1, 3))}


@triton.jit
def affine(a1, b1, a2, b2):
    """Compose x -> a1 x + b1 and x -> a2 x + b2."""
    return a1 * a2, a2 * b1 + b2


@triton.jit
def softplus(x):
    """Return log(1 + e^x)."""
    return tl.maximum(x, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(x)))


@triton.jit
def second(x1, p1, m1, x2, p2, m2):  # noqa: ARG001
    """Combine for shifts: each x, the one before it, and whether there is one."""
    return x2, tl.where(m2, p2, x1), m1 | True


@triton.jit
def shift_down(x, first):
    """Return x one step later, with `first` at step 0."""
    first, _ = tl.broadcast(first, x)
    _, before, _ = tl.associative_scan((x, first, tl.full(x.shape, 0, tl.int1)), 0, second)
    return before


@triton.jit
def shift_up(x, last):
    """Return x one step earlier, with `last` at the last step."""
    last, _ = tl.broadcast(last, x)
    _, after, _ = tl.associative_scan((x, last, tl.full(x.shape, 0, tl.int1)), 0, second, reverse=True)
    return after


@triton.jit
def bits(x):
    """Return the bits of x as integers, whose sums with 0 are exact."""
    return x.to(tl.int32, bitcast=True)


@triton.jit
def select_half(x, which: tl.constexpr):
    """Return x[which] for x (2, ...): a sum of integers, of which all but one are 0."""
    mask = tl.reshape(tl.arange(0, 2) == which, (2, 1, 1, 1, 1))
    return tl.sum(tl.where(mask, bits(x), 0), 0).to(tl.float32, bitcast=True)


@triton.jit
def swap_pair(x, axis: tl.constexpr):
    """Return x with the two elements along an axis of size 2 in exchanged places."""
    b = bits(x)
    return (tl.sum(b, axis, keep_dims=True) - b).to(tl.float32, bitcast=True)


@triton.jit
def sum_over_lanes(x, ROWS: tl.constexpr):
    """Return the sums of x (T, N, L) over L, which lies over the lanes of a warp. ROWS: rows in the registers of a thread.

    In each round two lanes exchange one half of their rows and add: one exchange for each number in all, instead of log2(L).
    """
    T: tl.constexpr = x.shape[0]
    N: tl.constexpr = x.shape[1]
    M: tl.constexpr = T * N // ROWS
    x = tl.reshape(x, (ROWS, M, x.shape[2]))
    bit = tl.arange(0, 2)
    for _ in tl.static_range(5):
        if x.shape[0] > 1 and x.shape[2] > 1:
            x = tl.reshape(x, (2, x.shape[0] // 2, x.shape[1], 2, x.shape[2] // 2))
            first, second = select_half(x, 0), select_half(x, 1)
            lower = (bit == 0)[None, None, :, None]
            x = tl.where(lower, first, second) + swap_pair(tl.where(lower, second, first), 2)
            x = tl.reshape(x, (x.shape[0], x.shape[1] * 2, x.shape[3]))
    rest: tl.constexpr = x.shape[0]
    x = tl.reshape(tl.sum(x, 2), (rest, M, ROWS // rest))
    return tl.reshape(tl.permute(x, (2, 0, 1)), (T, N))


@triton.jit
def load_step(p_dt, p_u, bias, offsets, mask):
    """Return dt + bias, the step sizes and the inputs of a tile, (T, BD) each."""
    raw = tl.load(p_dt + offsets, mask=mask, other=0.0).to(tl.float32) + bias[None, :]
    dt = tl.where(mask, softplus(raw), 0.0)
    return raw, dt, tl.load(p_u + offsets, mask=mask, other=0.0).to(tl.float32)


@triton.jit(do_not_specialize=["L", "span"])
def chunk_state_fwd(
    p_u, p_dt, p_A, p_B, p_bias, p_local, p_decay, L, D, N, span,
    T: tl.constexpr, BD: tl.constexpr, BN: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Store the final state of a piece from zero and the product of its factors, (B, pieces, N, D) each."""
    i_d, i_p, i_b = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    o_d, o_n, o_t = i_d * BD + tl.arange(0, BD), tl.arange(0, BN), tl.arange(0, T)
    m_s = (o_n < N)[:, None] & (o_d < D)[None, :]
    b_A = tl.load(p_A + o_d[None, :] * N + o_n[:, None], mask=m_s, other=0.0) * 1.4426950408889634
    bias = tl.load(p_bias + o_d, mask=o_d < D, other=0.0)
    b_h, total = tl.zeros((BN, BD), tl.float32), tl.zeros((BD,), tl.float32)
    last = (o_t == T - 1)[:, None, None]
    stop = tl.minimum((i_p + 1) * span, L)
    for t0 in tl.range(i_p * span, stop, T, num_stages=STAGES):
        o_row = t0 + o_t
        m_td = (o_row < stop)[:, None] & (o_d < D)[None, :]
        m_tn = (o_row < stop)[:, None] & (o_n < N)[None, :]
        _, dt, u = load_step(p_dt, p_u, bias, (i_b * L + o_row)[:, None] * D + o_d[None, :], m_td)
        b_B = tl.load(p_B + (i_b * L + o_row)[:, None] * N + o_n[None, :], mask=m_tn, other=0.0).to(tl.float32)
        a = tl.exp2(dt[:, None, :] * b_A[None])
        b = (dt * u)[:, None, :] * b_B[:, :, None]
        b += tl.where((o_t == 0)[:, None, None], a * b_h[None], 0.0)
        _, x = tl.associative_scan((a, b), 0, affine)
        b_h = tl.sum(tl.where(last, x, 0.0), 0)
        total += tl.sum(dt, 0)
    o_out = (i_b * tl.num_programs(1) + i_p) * N * D + o_n[:, None] * D + o_d[None, :]
    tl.store(p_local + o_out, b_h, mask=m_s)
    tl.store(p_decay + o_out, tl.exp2(total[None, :] * b_A), mask=m_s)


@triton.jit(do_not_specialize=["pieces"])
def state_passing(p_local, p_decay, p_first, p_states, pieces, size, REVERSE: tl.constexpr, BLOCK: tl.constexpr):
    """Store the states between pieces, (B, pieces + 1, size); REVERSE: from the last piece to the first."""
    i_b, o = tl.program_id(1).to(tl.int64), tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    h = tl.load(p_first + i_b * size + o, mask=o < size, other=0.0)
    for i in range(pieces):
        piece = pieces - 1 - i if REVERSE else i
        here = piece + 1 if REVERSE else piece
        tl.store(p_states + (i_b * (pieces + 1) + here) * size + o, h, mask=o < size)
        at = (i_b * pieces + piece) * size + o
        h = tl.load(p_decay + at, mask=o < size, other=0.0) * h + tl.load(p_local + at, mask=o < size, other=0.0)
    tl.store(p_states + (i_b * (pieces + 1) + (0 if REVERSE else pieces)) * size + o, h, mask=o < size)


@triton.jit(do_not_specialize=["L", "span", "chunks"])
def chunk_scan_fwd(
    p_u, p_dt, p_A, p_B, p_C, p_D, p_z, p_bias, p_states, p_y, p_checkpoints, L, D, N, span, chunks,
    GATE: tl.constexpr, SAVE: tl.constexpr, K: tl.constexpr, T: tl.constexpr, BD: tl.constexpr, BN: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Store the outputs of a piece from the state before it, and the state before every K steps, (B, chunks, N, D)."""
    i_d, i_p, i_b = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    o_d, o_n, o_t = i_d * BD + tl.arange(0, BD), tl.arange(0, BN), tl.arange(0, T)
    m_s = (o_n < N)[:, None] & (o_d < D)[None, :]
    o_s = o_n[:, None] * D + o_d[None, :]
    b_A = tl.load(p_A + o_d[None, :] * N + o_n[:, None], mask=m_s, other=0.0) * 1.4426950408889634
    bias = tl.load(p_bias + o_d, mask=o_d < D, other=0.0)
    skip = tl.load(p_D + o_d, mask=o_d < D, other=0.0)
    b_h = tl.load(p_states + (i_b * (tl.num_programs(1) + 1) + i_p) * N * D + o_s, mask=m_s, other=0.0)
    last = (o_t == T - 1)[:, None, None]
    stop = tl.minimum((i_p + 1) * span, L)
    for t0 in tl.range(i_p * span, stop, T, num_stages=STAGES):
        o_row = t0 + o_t
        m_td = (o_row < stop)[:, None] & (o_d < D)[None, :]
        m_tn = (o_row < stop)[:, None] & (o_n < N)[None, :]
        o_td = (i_b * L + o_row)[:, None] * D + o_d[None, :]
        o_tn = (i_b * L + o_row)[:, None] * N + o_n[None, :]
        _, dt, u = load_step(p_dt, p_u, bias, o_td, m_td)
        b_B = tl.load(p_B + o_tn, mask=m_tn, other=0.0).to(tl.float32)
        b_C = tl.load(p_C + o_tn, mask=m_tn, other=0.0).to(tl.float32)
        if SAVE:
            starts = m_s & (o_n * 0 + t0 % K == 0)[:, None]
            tl.store(p_checkpoints + (i_b * chunks + t0 // K) * N * D + o_s, b_h, mask=starts)
        a = tl.exp2(dt[:, None, :] * b_A[None])
        b = (dt * u)[:, None, :] * b_B[:, :, None]
        b += tl.where((o_t == 0)[:, None, None], a * b_h[None], 0.0)
        _, x = tl.associative_scan((a, b), 0, affine)
        b_h = tl.sum(tl.where(last, x, 0.0), 0)
        y = tl.sum(x * b_C[:, :, None], 1) + skip[None, :] * u
        if GATE:
            z = tl.load(p_z + o_td, mask=m_td, other=0.0).to(tl.float32)
            y *= z * tl.sigmoid(z)
        tl.store(p_y + o_td, y, mask=m_td)


@triton.jit(do_not_specialize=["L", "span"])
def chunk_state_bwd(
    p_dy, p_dt, p_A, p_C, p_z, p_bias, p_local, p_decay, L, D, N, span,
    GATE: tl.constexpr, T: tl.constexpr, BD: tl.constexpr, BN: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Store the gradient of the state before a piece if that after it is zero, and the product of the factors."""
    i_d, i_p, i_b = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    o_d, o_n, o_t = i_d * BD + tl.arange(0, BD), tl.arange(0, BN), tl.arange(0, T)
    m_s = (o_n < N)[:, None] & (o_d < D)[None, :]
    b_A = tl.load(p_A + o_d[None, :] * N + o_n[:, None], mask=m_s, other=0.0) * 1.4426950408889634
    bias = tl.load(p_bias + o_d, mask=o_d < D, other=0.0)
    b_m, total = tl.zeros((BN, BD), tl.float32), tl.zeros((BD,), tl.float32)
    top, last = (o_t == 0)[:, None, None], (o_t == T - 1)[:, None, None]
    begin, stop = i_p * span, tl.minimum((i_p + 1) * span, L)
    count = tl.cdiv(stop - begin, T)
    for i in tl.range(count, num_stages=STAGES):
        o_row = begin + (count - 1 - i) * T + o_t
        m_td = (o_row < stop)[:, None] & (o_d < D)[None, :]
        m_tn = (o_row < stop)[:, None] & (o_n < N)[None, :]
        o_td = (i_b * L + o_row)[:, None] * D + o_d[None, :]
        raw = tl.load(p_dt + o_td, mask=m_td, other=0.0).to(tl.float32) + bias[None, :]
        dt = tl.where(m_td, softplus(raw), 0.0)
        dy = tl.load(p_dy + o_td, mask=m_td, other=0.0).to(tl.float32)
        if GATE:
            z = tl.load(p_z + o_td, mask=m_td, other=0.0).to(tl.float32)
            dy *= z * tl.sigmoid(z)
        b_C = tl.load(p_C + (i_b * L + o_row)[:, None] * N + o_n[None, :], mask=m_tn, other=0.0).to(tl.float32)
        a = tl.exp2(dt[:, None, :] * b_A[None])
        v = a * (dy[:, None, :] * b_C[:, :, None] + tl.where(last, b_m[None], 0.0))
        _, m = tl.associative_scan((a, v), 0, affine, reverse=True)
        b_m = tl.sum(tl.where(top, m, 0.0), 0)
        total += tl.sum(dt, 0)
    o_out = (i_b * tl.num_programs(1) + i_p) * N * D + o_n[:, None] * D + o_d[None, :]
    tl.store(p_local + o_out, b_m, mask=m_s)
    tl.store(p_decay + o_out, tl.exp2(total[None, :] * b_A), mask=m_s)


@triton.jit(do_not_specialize=["L", "span", "chunks"])
def chunk_scan_bwd(
    p_dy, p_u, p_dt, p_A, p_B, p_C, p_D, p_z, p_bias, p_checkpoints, p_scratch, p_dstates, p_du, p_ddt, p_dz, p_dB, p_dC, p_dA,
    p_dchannel, L, D, N, span, chunks,
    GATE: tl.constexpr, K: tl.constexpr, T: tl.constexpr, BD: tl.constexpr, BN: tl.constexpr, ROWS: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Store the gradients of a piece. dB, dC (blocks, B, L, N), dA (B, pieces, N, D), dchannel (B, pieces, 2, D) of bias and D.

    Chunks of K steps, from the last to the first. The states before the tiles of a chunk are recomputed from the state before the
    chunk into `scratch` (programs, K / T, BN, BD).
    """
    i_d, i_p, i_b = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    batch, pieces = tl.num_programs(2), tl.num_programs(1)
    o_d, o_n, o_t = i_d * BD + tl.arange(0, BD), tl.arange(0, BN), tl.arange(0, T)
    m_s = (o_n < N)[:, None] & (o_d < D)[None, :]
    o_s = o_n[:, None] * D + o_d[None, :]
    b_A = tl.load(p_A + o_d[None, :] * N + o_n[:, None], mask=m_s, other=0.0)
    A2 = (b_A * 1.4426950408889634)[None]
    bias = tl.load(p_bias + o_d, mask=o_d < D, other=0.0)
    skip = tl.load(p_D + o_d, mask=o_d < D, other=0.0)
    b_m = tl.load(p_dstates + (i_b * (pieces + 1) + i_p + 1) * N * D + o_s, mask=m_s, other=0.0)
    b_dA, b_dbias, b_dskip = tl.zeros((BN, BD), tl.float32), tl.zeros((BD,), tl.float32), tl.zeros((BD,), tl.float32)
    top, last = (o_t == 0)[:, None, None], (o_t == T - 1)[:, None, None]
    program = ((i_b * pieces + i_p) * tl.num_programs(0) + i_d) * (K // T)
    p_own = p_scratch + program * (BN * BD) + tl.arange(0, BN)[:, None] * BD + tl.arange(0, BD)[None, :]
    begin, stop = i_p * span, tl.minimum((i_p + 1) * span, L)
    for j in range(tl.cdiv(stop - begin, K)):
        chunk = begin + (tl.cdiv(stop - begin, K) - 1 - j) * K
        count = tl.cdiv(tl.minimum(stop - chunk, K), T)
        b_h = tl.load(p_checkpoints + (i_b * chunks + chunk // K) * N * D + o_s, mask=m_s, other=0.0)
        for i in tl.range(count, num_stages=STAGES):
            tl.store(p_own + i * (BN * BD), b_h)
            o_row = chunk + i * T + o_t
            m_td = (o_row < stop)[:, None] & (o_d < D)[None, :]
            m_tn = (o_row < stop)[:, None] & (o_n < N)[None, :]
            _, dt, u = load_step(p_dt, p_u, bias, (i_b * L + o_row)[:, None] * D + o_d[None, :], m_td)
            b_B = tl.load(p_B + (i_b * L + o_row)[:, None] * N + o_n[None, :], mask=m_tn, other=0.0).to(tl.float32)
            a = tl.exp2(dt[:, None, :] * A2)
            b = (dt * u)[:, None, :] * b_B[:, :, None] + tl.where(top, a * b_h[None], 0.0)
            _, x = tl.associative_scan((a, b), 0, affine)
            b_h = tl.sum(tl.where(last, x, 0.0), 0)
        tl.debug_barrier()
        for i in tl.range(count, num_stages=STAGES):
            o_row = chunk + (count - 1 - i) * T + o_t
            m_td = (o_row < stop)[:, None] & (o_d < D)[None, :]
            m_tn = (o_row < stop)[:, None] & (o_n < N)[None, :]
            o_td = (i_b * L + o_row)[:, None] * D + o_d[None, :]
            o_tn = (i_b * L + o_row)[:, None] * N + o_n[None, :]
            raw, dt, u = load_step(p_dt, p_u, bias, o_td, m_td)
            dout = tl.load(p_dy + o_td, mask=m_td, other=0.0).to(tl.float32)
            b_B = tl.load(p_B + o_tn, mask=m_tn, other=0.0).to(tl.float32)
            b_C = tl.load(p_C + o_tn, mask=m_tn, other=0.0).to(tl.float32)
            b_h = tl.load(p_own + (count - 1 - i) * (BN * BD))
            a = tl.exp2(dt[:, None, :] * A2)
            b = (dt * u)[:, None, :] * b_B[:, :, None]
            _, x = tl.associative_scan((a, b + tl.where(top, a * b_h[None], 0.0)), 0, affine)
            dy = dout
            if GATE:
                z = tl.load(p_z + o_td, mask=m_td, other=0.0).to(tl.float32)
                gate = tl.sigmoid(z)
                value = tl.sum(x * b_C[:, :, None], 1) + skip[None, :] * u
                tl.store(p_dz + o_td, dout * value * gate * (1.0 + z * (1.0 - gate)), mask=m_td)
                dy = dout * z * gate
            v = dy[:, None, :] * b_C[:, :, None]
            _, m = tl.associative_scan((a, a * (v + tl.where(last, b_m[None], 0.0))), 0, affine, reverse=True)
            o_part = ((i_d * batch + i_b) * L + o_row)[:, None] * N + o_n[None, :]
            tl.store(p_dC + o_part, sum_over_lanes(x * dy[:, None, :], ROWS), mask=m_tn)
            w = m * shift_down(x, b_h[None])
            b_dA += tl.sum(w * dt[:, None, :], 0)
            d_dt = tl.sum(w * b_A[None], 1)
            g = v + shift_up(m, b_m[None])
            b_m = tl.sum(tl.where(top, m, 0.0), 0)
            tl.store(p_dB + o_part, sum_over_lanes(g * (dt * u)[:, None, :], ROWS), mask=m_tn)
            d_input = tl.sum(g * b_B[:, :, None], 1)
            d_raw = tl.where(m_td, (d_dt + d_input * u) * tl.sigmoid(raw), 0.0)
            tl.store(p_du + o_td, skip[None, :] * dy + dt * d_input, mask=m_td)
            tl.store(p_ddt + o_td, d_raw, mask=m_td)
            b_dbias += tl.sum(d_raw, 0)
            b_dskip += tl.sum(dy * u, 0)
        tl.debug_barrier()
    o_piece = i_b * pieces + i_p
    tl.store(p_dA + o_piece * N * D + o_s, b_dA, mask=m_s)
    tl.store(p_dchannel + o_piece * 2 * D + o_d, b_dbias, mask=o_d < D)
    tl.store(p_dchannel + (o_piece * 2 + 1) * D + o_d, b_dskip, mask=o_d < D)


class Tiles:
    """Sizes of a call, its grid and the compile-time arguments of its kernels. tile: steps, channels, warps, stages."""

    def __init__(self, u: Tensor, A: Tensor, tile: tuple[int, int, int, int], warps_per_multiprocessor: int = 8) -> None:
        self.batch, self.length, self.channels = u.shape
        self.states, self.device = A.shape[1], u.device
        T, BD, warps, stages = tile
        BD, BN = min(BD, triton.next_power_of_2(self.channels)), triton.next_power_of_2(self.states)
        self.blocks = triton.cdiv(self.channels, BD)
        processors = torch.cuda.get_device_properties(u.device).multi_processor_count if u.is_cuda else 1
        pieces = max(1, processors * warps_per_multiprocessor // warps // (self.batch * self.blocks))
        self.span = triton.cdiv(triton.cdiv(self.length, pieces), K) * K
        self.pieces, self.chunks = triton.cdiv(self.length, self.span), triton.cdiv(self.length, K)
        self.grid = self.blocks, self.pieces, self.batch
        self.sizes = self.length, self.channels, self.states, self.span
        self.constants = {"T": T, "BD": BD, "BN": BN, "STAGES": stages, "num_warps": warps}
        self.rows = max(1, T * BN // max(1, 32 * warps // BD))  # of the registers of a thread

    def new(self, *shape: int) -> Tensor:
        """Return memory for float32 numbers."""
        return torch.empty(shape, dtype=torch.float32, device=self.device)

    def pass_states(self, local: Tensor, decay: Tensor, reverse: bool) -> Tensor:
        """Return the states between pieces, (B, pieces + 1, N, D), from a state of zero."""
        states, size = self.new(self.batch, self.pieces + 1, self.states, self.channels), self.states * self.channels
        grid = triton.cdiv(size, 128), self.batch
        state_passing[grid](local, decay, torch.zeros_like(local[:, 0]), states, self.pieces, size, REVERSE=reverse, BLOCK=128)
        return states

    def zero_states(self) -> Tensor:
        """Return states of zero, (B, 2, N, D), for a single piece."""
        return torch.zeros((self.batch, 2, self.states, self.channels), device=self.device)


def forward(inputs: list[Tensor], tile: tuple[int, int, int, int]) -> tuple[Tensor, Tensor]:
    """Return y and the stored states. inputs: u, dt, A, B, C, D, z, dt_bias."""
    u, dt, A, B, C, D, z, bias = inputs
    p = Tiles(u, A, tile)
    y, stored = torch.empty_like(u), p.new(p.batch, p.chunks, p.states, p.channels)
    states = p.zero_states()
    if p.pieces > 1:
        local, decay = (p.new(p.batch, p.pieces, p.states, p.channels) for _ in range(2))
        chunk_state_fwd[p.grid](u, dt, A, B, bias, local, decay, *p.sizes, **p.constants)
        states = p.pass_states(local, decay, reverse=False)
    chunk_scan_fwd[p.grid](
        u, dt, A, B, C, D, z, bias, states, y, stored, *p.sizes, p.chunks, GATE=True, SAVE=True, K=K, **p.constants
    )
    return y, stored


def backward(dy: Tensor, inputs: list[Tensor], stored: Tensor, tile: tuple[int, int, int, int]) -> list[Tensor]:
    """Return the gradients of the inputs."""
    u, dt, A, B, C, D, z, bias = inputs
    p = Tiles(u, A, tile)
    d_states = p.zero_states()
    if p.pieces > 1:
        local, decay = (p.new(p.batch, p.pieces, p.states, p.channels) for _ in range(2))
        chunk_state_bwd[p.grid](dy, dt, A, C, z, bias, local, decay, *p.sizes, GATE=True, **p.constants)
        d_states = p.pass_states(local, decay, reverse=True)
    du, ddt, dz = (torch.empty_like(x) for x in (u, dt, z))
    dB, dC = (p.new(p.blocks, p.batch, p.length, p.states) for _ in range(2))
    dA, channels = p.new(p.batch, p.pieces, p.states, p.channels), p.new(p.batch, p.pieces, 2, p.channels)
    scratch = p.new(p.batch * p.pieces * p.blocks, K // p.constants["T"], p.constants["BN"], p.constants["BD"])
    chunk_scan_bwd[p.grid](
        dy, u, dt, A, B, C, D, z, bias, stored, scratch, d_states, du, ddt, dz, dB, dC, dA, channels, *p.sizes, p.chunks,
        GATE=True, K=K, ROWS=p.rows, **p.constants,
    )  # fmt: skip
    d_bias, dD = channels.sum((0, 1))
    return [du, ddt, dA.sum((0, 1)).T, dB.sum(0), dC.sum(0), dD, dz, d_bias]


def make_inputs(shape: tuple[int, int, int, int], device: str) -> list[Tensor]:
    """Return u, dt, A, B, C, D, z and dt_bias, with Mamba's A."""
    batch, length, channels, states = shape
    generator = torch.Generator().manual_seed(0)
    sizes = ((batch, length, channels), (batch, length, states), (channels,))
    sequence, of_state, of_channel = (partial(torch.randn, size, generator=generator) for size in sizes)
    A = -torch.arange(1.0, states + 1).repeat(channels, 1)
    inputs = [sequence(), sequence() - 3, A, of_state(), of_state(), of_channel(), sequence(), of_channel() / 10]
    return [x.to(device) for x in inputs]


def largest_error(device: str, tile: tuple[int, int, int, int] = (4, 16, 1, 1)) -> float:
    """Return the largest relative error of y and the gradients against the reference in float64, for a small call."""
    inputs = make_inputs((2, 150, 20, 5), device)
    exact = [x.double().requires_grad_() for x in inputs]
    y, _ = selective_scan(*exact[:7], dt_bias=exact[7], dt_softplus=True, backend="reference")
    dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(device)
    truth = [y.detach(), *torch.autograd.grad(y, exact, dy.double())]
    found, stored = forward(inputs, tile)
    errors = zip([found, *backward(dy, inputs, stored, tile)], truth, strict=True)
    return max(((a - b).norm() / b.norm()).item() for a, b in errors)


def op_backward(inputs: list[Tensor]) -> Callable[[], Any]:
    """Return the backward pass of the op's kernels."""
    batch, _, channels = inputs[0].shape
    initial = torch.zeros(batch, channels, inputs[2].shape[1], device=inputs[0].device)
    y, final, stored = op.forward(*inputs, initial, None, None, True, False, True)
    given = torch.ones_like(y), torch.zeros_like(final), *inputs, initial, None, None, stored, True, False
    return lambda: op.backward(*given)


def plain_rows(shape: tuple[int, int, int, int]) -> list[dict[str, Any]]:
    """Return times of the op and of all tiles."""
    inputs, rows = make_inputs(shape, "cuda"), []
    initial = torch.zeros(shape[0], shape[2], shape[3], device="cuda")
    calls: list[tuple[str, str, Callable[[], Any]]] = [
        ("forward", "op", lambda: op.forward(*inputs, initial, None, None, True, False, True)),
        ("backward", "op", op_backward(inputs)),
        *(("forward", str(tile), partial(forward, inputs, tile)) for tile in FORWARD[shape[3]]),
    ]
    y, stored = forward(inputs, FORWARD[shape[3]][0])
    calls += [("backward", str(tile), partial(backward, torch.ones_like(y), inputs, stored, tile)) for tile in BACKWARD[shape[3]]]
    for direction, kernels, call in calls:
        rows.append({"direction": direction, "kernels": kernels, "ms": replayed_ms(call), "peak_mib": peak_mib(call)})
    return rows


def ordered_rows(shape: tuple[int, int, int, int]) -> list[dict[str, Any]]:
    """Return times of the op's backward pass with ordered sums, and with partial sums in slices of several sizes."""
    call, rows, scratch, ordered = op_backward(make_inputs(shape, "cuda")), [], _triton_launch.SCRATCH, op.ORDERED_SUMS
    for name, entries, size in (("ordered", ordered, 1), ("slices", {}, 1), ("slices", {}, 3), ("one launch", {}, 1000)):
        op.ORDERED_SUMS, _triton_launch.SCRATCH = entries, size * scratch
        about = {"sums": name, "scratch_mib": size * scratch / 2**20}
        rows.append(about | {"ms": replayed_ms(call), "peak_mib": peak_mib(call)})
    op.ORDERED_SUMS, _triton_launch.SCRATCH = ordered, scratch
    return rows


def main() -> None:
    """Measure, and add the rows to the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ordered", action="store_true", help="ordered and partial sums of dB and dC in the backward pass")
    parser.add_argument("--out", type=Path, required=True, help="file of JSON lines, to which rows are added")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("plain_selective_scan: a CUDA GPU is needed, got none")
    about: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "commit": commit()}
    about["error"] = largest_error("cuda")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with options.out.open("a", encoding="utf-8") as file:
        for shape in SHAPES:
            for row in ordered_rows(shape) if options.ordered else plain_rows(shape):
                file.write(json.dumps({"shape": shape, **row, **about}) + "\n")
                file.flush()


if __name__ == "__main__":
    main()
