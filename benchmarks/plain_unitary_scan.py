"""Time a unitary scan in plain Triton next to the kernels of the op, to show what two fp16 parts and a chosen layout gain.

    python benchmarks/plain_unitary_scan.py --out build/plain_unitary.jsonl
    python benchmarks/plain_unitary_scan.py --sizes "16 1024 32 64" "8 2048 64 64" --out build/plain_unitary.jsonl

Without masks and `phase_dt`, in float32, for a power of two of states. Tiles are (T steps, BD channels times N states), products
are `tl.dot` of float32 with `input_precision="tf32x3"`, and SiLUs, skip and gate are computed in the scans. The passes and the
equations are those of src/longscan/ops/unitary_scan/triton/README.md. Each tile size is timed with the layout that Triton
chooses and with all steps of a lane in one thread, replayed as CUDA graphs, after a comparison with the reference in float64. A
row is one measurement. Needs a GPU.
"""

import argparse
import json
import re
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from longscan.ops import unitary_scan
from longscan.ops._triton import fast_sincos, row_of, silu, silu_derivative, sincos, wrap
from longscan.training.run import commit
from op_calls import peak_mib, replayed_ms

SCRATCH = 40 * 2**20  # bytes of gradients of the angles that are in memory at the same time, where pieces are that short
SIZES = ("16 1024 32 64", "16 8192 32 64", "8 2048 64 64", "16 2048 128 128", "1 131072 32 64")  # B L D N
CHECKED_STEPS, CHECKED_ANGLES = 400, 2**25  # at most in a comparison with the reference; two pieces where they follow each other
PRECISION = tl.constexpr("tf32x3")


class Tile(NamedTuple):
    """Steps, lanes (pairs of a channel and a state), warps, stages, and whether a thread has all steps of its lanes."""

    steps: int
    lanes: int
    warps: int
    stages: int
    anchored: bool


TILES = {
    32: (Tile(32, 64, 2, 2, True), Tile(32, 64, 2, 2, False), Tile(16, 64, 1, 2, True), Tile(16, 64, 1, 2, False)),
    64: (Tile(32, 64, 2, 2, True), Tile(32, 64, 2, 2, False), Tile(16, 64, 1, 2, True)),
    128: (Tile(16, 128, 4, 2, True), Tile(16, 128, 4, 2, False), Tile(32, 128, 4, 2, True)),
}


@triton.jit
def add_wrapped(a, b):
    """Add two angles and wrap the sum to half a turn around 0."""
    return wrap(a + b)


@triton.jit
def unit_vector(angle, FAST: tl.constexpr):
    """Return sin and cos of angles within a turn of 0."""
    if FAST:
        s, c = fast_sincos(angle)
    else:
        s, c = sincos(angle)
    return s, c


@triton.jit
def expand(x, BN: tl.constexpr):
    """Return x (T, BD) for all states of the channels, (T, BD BN)."""
    T: tl.constexpr = x.shape[0]
    BD: tl.constexpr = x.shape[1]
    return tl.reshape(tl.broadcast_to(x[:, :, None], (T, BD, BN)), (T, BD * BN))


@triton.jit
def sum_over_states(x, BN: tl.constexpr):
    """Return x (T, BD BN) summed over the states, (T, BD)."""
    T: tl.constexpr = x.shape[0]
    if BN > 1:  # neighbours first: half of the lanes are then free for other steps, so that a sum costs a lane about one exchange
        even, odd = tl.split(tl.reshape(x, (T, x.shape[1] // 2, 2)))
        x = sum_over_states(even + odd, BN // 2)
    return x


@triton.jit
def load_angles(p_u, b_W, b_bias, o_row, m_row, D, BK: tl.constexpr, ANCHORED: tl.constexpr):
    """Return W u + bias of the steps o_row (T, R), 0 where not m_row. b_W (BK, R), b_bias (T, R)."""
    o_k = tl.arange(0, BK)
    b_u = tl.load(p_u + o_row[:, None] * D + o_k[None, :], mask=m_row[:, None] & (o_k < D)[None, :], other=0.0)
    theta = tl.dot(b_u, b_W, input_precision=PRECISION)
    if ANCHORED:  # a scan over an axis of size 1, which moves the product to the layout of a tile that was loaded
        T: tl.constexpr = theta.shape[0]
        R: tl.constexpr = theta.shape[1]
        theta = tl.reshape(tl.cumsum(tl.reshape(theta, (T, R, 1)), 2), (T, R))
    return tl.where(m_row[:, None], theta + b_bias, 0.0)


@triton.jit
def load_parameters(p_W, p_bias, p_B, p_C, o_r, D, T: tl.constexpr, BK: tl.constexpr):
    """Return W (BK, R), the bias (T, R), and real and imaginary parts of B and C (R,) of the lanes o_r."""
    o_k = tl.arange(0, BK)
    b_W = tl.load(p_W + o_r[None, :] * D + o_k[:, None], mask=(o_k < D)[:, None], other=0.0)
    b_bias = tl.load(p_bias + o_r[None, :] + tl.arange(0, T)[:, None] * 0)
    return b_W, b_bias, tl.load(p_B + 2 * o_r), tl.load(p_B + 2 * o_r + 1), tl.load(p_C + 2 * o_r), tl.load(p_C + 2 * o_r + 1)


@triton.jit
def store_state(p_state, phase, w_re, w_im, size):
    """Store the phase and the state in the rotating frame."""
    tl.store(p_state, phase)
    tl.store(p_state + size, w_re)
    tl.store(p_state + 2 * size, w_im)


@triton.jit(do_not_specialize=["L", "span", "pieces", "count"])
def scan_fwd(
    p_u, p_dt, p_W, p_bias, p_B, p_C, p_D, p_z, p_states, p_y, p_raw, L, D, size, span, pieces, count,
    STATES_ONLY: tl.constexpr, FAST: tl.constexpr, ANCHORED: tl.constexpr,
    T: tl.constexpr, BD: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Store the outputs of `count` pieces of `span` steps, and the state before each and after the last.

    p_states: (B, pieces + 1, 3, size). STATES_ONLY: store the state after the piece if that before it is zero, and no outputs.
    """
    i_d, i_p, i_b = tl.program_id(0), tl.program_id(1) * count, tl.program_id(2).to(tl.int64)
    o_t, o_d, o_r = tl.arange(0, T), i_d * BD + tl.arange(0, BD), i_d * BD * BN + tl.arange(0, BD * BN)
    b_W, b_bias, B_re, B_im, C_re, C_im = load_parameters(p_W, p_bias, p_B, p_C, o_r, D, T, BK)
    CB_re, CB_im = C_re * B_re - C_im * B_im, C_re * B_im + C_im * B_re
    skip = tl.load(p_D + o_d)
    first, last = (o_t == 0)[:, None], (o_t == T - 1)[:, None]
    p_state = p_states + (i_b * (pieces + 1) + i_p) * 3 * size + o_r
    phase, w_re, w_im = B_re * 0.0, B_re * 0.0, B_re * 0.0
    if not STATES_ONLY:
        phase, w_re, w_im = tl.load(p_state), tl.load(p_state + size), tl.load(p_state + 2 * size)
    for i in range(count):
        if i > 0:
            store_state(p_state + i * 3 * size, phase, w_re, w_im, size)
        begin = (i_p + i) * span
        for t0 in tl.range(begin, tl.minimum(begin + span, L), T, num_stages=STAGES):
            o_row = t0 + o_t
            m_row = o_row < L
            o_td = (i_b * L + o_row)[:, None] * D + o_d[None, :]
            theta = load_angles(p_u, b_W, b_bias, i_b * L + o_row, m_row, D, BK, ANCHORED)
            theta = tl.where(first, wrap(theta + phase[None, :]), theta)
            G = tl.associative_scan(theta, 0, add_wrapped)
            s, c = unit_vector(G, FAST)
            b_u = tl.load(p_u + o_td, mask=m_row[:, None], other=0.0)
            gated = silu(b_u)
            x = expand(tl.load(p_dt + o_td, mask=m_row[:, None], other=0.0) * gated, BN)
            S_re, S_im = tl.cumsum(x * c, 0), tl.cumsum(-(x * s), 0)
            if not STATES_ONLY:
                read_re = (C_re * w_re - C_im * w_im)[None, :] + CB_re[None, :] * S_re - CB_im[None, :] * S_im
                read_im = (C_re * w_im + C_im * w_re)[None, :] + CB_re[None, :] * S_im + CB_im[None, :] * S_re
                raw = sum_over_states(c * read_re - s * read_im, BN)
                tl.store(p_raw + o_td, raw, mask=m_row[:, None])
                z = tl.load(p_z + o_td, mask=m_row[:, None], other=0.0)
                tl.store(p_y + o_td, (raw + skip[None, :] * gated) * silu(z), mask=m_row[:, None])
            phase = row_of(G, last)
            end_re, end_im = row_of(S_re, last), row_of(S_im, last)
            w_re, w_im = w_re + B_re * end_re - B_im * end_im, w_im + B_re * end_im + B_im * end_re
    if STATES_ONLY or i_p + count == pieces:
        store_state(p_state + count * 3 * size, phase, w_re, w_im, size)


@triton.jit(do_not_specialize=["pieces"])
def state_passing_fwd(p_states, pieces, size, BLOCK: tl.constexpr):
    """Replace the local states of pieces in p_states (B, pieces + 1, 3, size) by the states, from 0 before the first piece."""
    i_b, o = tl.program_id(1).to(tl.int64), tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    p_state = p_states + i_b * (pieces + 1) * 3 * size + o
    phase, w_re, w_im = tl.load(p_state), tl.load(p_state + size), tl.load(p_state + 2 * size)
    for i in range(1, pieces + 1):
        p = p_state + i * 3 * size
        s, c = sincos(phase)
        local_re, local_im = tl.load(p + size), tl.load(p + 2 * size)
        w_re, w_im = w_re + c * local_re + s * local_im, w_im + c * local_im - s * local_re
        phase = wrap(phase + tl.load(p))
        store_state(p, phase, w_re, w_im, size)


@triton.jit(do_not_specialize=["L", "span", "pieces", "first_piece", "rows"])
def scan_bwd(
    p_dy, p_u, p_dt, p_W, p_bias, p_B, p_C, p_D, p_z, p_states, p_raw, p_mu, p_du, p_ddt, p_dz, p_dtheta, p_sums, p_dD,
    L, D, size, span, pieces, first_piece, rows,
    STATES_ONLY: tl.constexpr, FAST: tl.constexpr, ANCHORED: tl.constexpr,
    T: tl.constexpr, BD: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Store the gradients of a piece: all of dt and z, of u without the angles, p_dtheta (B, rows, size) and sums over its steps.

    p_mu: (B, pieces + 1, 2, size), the gradient of the state in the rotating frame; that after the piece is read and that before
    it written. STATES_ONLY: what the piece adds to it is written, and nothing else.
    """
    i_d, i_p, i_b = tl.program_id(0), first_piece + tl.program_id(1), tl.program_id(2).to(tl.int64)
    o_t, o_d, o_r = tl.arange(0, T), i_d * BD + tl.arange(0, BD), i_d * BD * BN + tl.arange(0, BD * BN)
    b_W, b_bias, B_re, B_im, C_re, C_im = load_parameters(p_W, p_bias, p_B, p_C, o_r, D, T, BK)
    CB_re, CB_im = C_re * B_re - C_im * B_im, C_re * B_im + C_im * B_re
    skip = tl.load(p_D + o_d)
    last = (o_t == T - 1)[:, None]
    p_state = p_states + (i_b * (pieces + 1) + i_p + 1) * 3 * size + o_r
    phase, w_re, w_im = tl.load(p_state), tl.load(p_state + size), tl.load(p_state + 2 * size)
    p_m = p_mu + (i_b * (pieces + 1) + i_p) * 2 * size + o_r
    m_re, m_im = B_re * 0.0, B_re * 0.0
    if not STATES_ONLY:
        m_re, m_im = tl.load(p_m + 2 * size), tl.load(p_m + 3 * size)
    d_bias, dB_re, dB_im, dC_re, dC_im = m_re * 0.0, m_re * 0.0, m_re * 0.0, m_re * 0.0, m_re * 0.0
    P_re, P_im, dD = m_re * 0.0, m_re * 0.0, tl.zeros((BD,), tl.float32)
    begin = i_p * span
    tiles = tl.cdiv(tl.minimum(span, L - begin), T)
    for i in tl.range(tiles, num_stages=STAGES):
        o_row = begin + (tiles - i) * T - 1 - o_t  # the latest step first
        m_row = o_row < L
        m_td = m_row[:, None]
        o_td = (i_b * L + o_row)[:, None] * D + o_d[None, :]
        theta = load_angles(p_u, b_W, b_bias, i_b * L + o_row, m_row, D, BK, ANCHORED)
        to_end = tl.associative_scan(theta, 0, add_wrapped)
        s, c = unit_vector(wrap(phase[None, :] - (to_end - theta)), FAST)
        phase = wrap(phase - row_of(to_end, last))
        dy, z = tl.load(p_dy + o_td, mask=m_td, other=0.0), tl.load(p_z + o_td, mask=m_td, other=0.0)
        g_channel = dy * silu(z)
        g = expand(g_channel, BN)
        R_re, R_im = tl.cumsum(g * c, 0), tl.cumsum(-(g * s), 0)
        all_R_re, all_R_im = row_of(R_re, last), row_of(R_im, last)
        if not STATES_ONLY:
            b_u, b_dt = tl.load(p_u + o_td, mask=m_td, other=0.0), tl.load(p_dt + o_td, mask=m_td, other=0.0)
            gated = silu(b_u)
            x = expand(b_dt * gated, BN)
            x_re, x_im = x * c, -(x * s)
            S_re, S_im = tl.cumsum(x_re, 0), tl.cumsum(x_im, 0)
            all_S_re, all_S_im = row_of(S_re, last), row_of(S_im, last)
            rho_re = (B_re * m_re + B_im * m_im)[None, :] + CB_re[None, :] * R_re + CB_im[None, :] * R_im
            rho_im = (B_re * m_im - B_im * m_re)[None, :] + CB_re[None, :] * R_im - CB_im[None, :] * R_re
            dx = sum_over_states(c * rho_re - s * rho_im, BN)
            d_theta = (m_im * w_re - m_re * w_im)[None, :] + rho_re * S_im - rho_im * S_re
            d_theta += (C_re * w_re - C_im * w_im)[None, :] * R_im - (C_re * w_im + C_im * w_re)[None, :] * R_re
            d_theta = tl.where(m_td, d_theta, 0.0)
            o_out = (i_b * rows + o_row - first_piece * span)[:, None] * size + o_r[None, :]
            tl.store(p_dtheta + o_out, d_theta)
            d_bias += tl.sum(d_theta, 0)
            P_re += tl.sum(x_re * R_re, 0) + tl.sum(x_im * R_im, 0)
            P_im += tl.sum(x_re * R_im, 0) - tl.sum(x_im * R_re, 0)
            dB_re += m_re * all_S_re + m_im * all_S_im
            dB_im += m_im * all_S_re - m_re * all_S_im
            w_re += B_im * all_S_im - B_re * all_S_re
            w_im -= B_re * all_S_im + B_im * all_S_re
            dC_re += all_R_re * w_re + all_R_im * w_im
            dC_im += all_R_im * w_re - all_R_re * w_im
            raw = tl.load(p_raw + o_td, mask=m_td, other=0.0)
            tl.store(p_dz + o_td, dy * (raw + skip[None, :] * gated) * silu_derivative(z), mask=m_td)
            tl.store(p_ddt + o_td, dx * gated, mask=m_td)
            tl.store(p_du + o_td, (dx * b_dt + skip[None, :] * g_channel) * silu_derivative(b_u), mask=m_td)
            dD += tl.sum(g_channel * gated, 0)
        m_re += C_re * all_R_re + C_im * all_R_im
        m_im += C_re * all_R_im - C_im * all_R_re
    tl.store(p_m, m_re)
    tl.store(p_m + size, m_im)
    if not STATES_ONLY:
        p_sum = p_sums + (i_b * pieces + i_p) * 5 * size + o_r
        tl.store(p_sum, d_bias)
        tl.store(p_sum + size, dB_re + C_re * P_re + C_im * P_im)
        tl.store(p_sum + 2 * size, dB_im + C_re * P_im - C_im * P_re)
        tl.store(p_sum + 3 * size, dC_re + B_re * P_re + B_im * P_im)
        tl.store(p_sum + 4 * size, dC_im + B_re * P_im - B_im * P_re)
        tl.store(p_dD + (i_b * pieces + i_p) * D + o_d, dD)


@triton.jit(do_not_specialize=["first_row", "rows", "L"])
def grad_inputs_gemm(
    p_dtheta, p_W, p_du, first_row, rows, L, D, size, BM: tl.constexpr, BR: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr
):
    """Add d_theta W to BM rows of du (B, L, D)."""
    i_m, i_b = tl.program_id(0), tl.program_id(1).to(tl.int64)
    o_m, o_k, o_r = i_m * BM + tl.arange(0, BM), tl.arange(0, BK), tl.arange(0, BR)
    m_out = ((o_m < rows) & (first_row + o_m < L))[:, None] & (o_k < D)[None, :]
    acc = tl.zeros((BM, BK), tl.float32)
    for r in tl.range(0, size, BR, num_stages=STAGES):
        o_in = (i_b * rows + o_m)[:, None] * size + (r + o_r)[None, :]
        d_theta = tl.load(p_dtheta + o_in, mask=(o_m < rows)[:, None], other=0.0)
        b_W = tl.load(p_W + (r + o_r)[:, None] * D + o_k[None, :], mask=(o_k < D)[None, :], other=0.0)
        acc = tl.dot(d_theta, b_W, acc, input_precision=PRECISION)
    o_out = (i_b * L + first_row + o_m)[:, None] * D + o_k[None, :]
    tl.store(p_du + o_out, acc + tl.load(p_du + o_out, mask=m_out, other=0.0), mask=m_out)


@triton.jit(do_not_specialize=["first_row", "rows", "L", "accumulate"])
def grad_weights_gemm(
    p_dtheta, p_u, p_dW, first_row, rows, L, D, size, accumulate, BM: tl.constexpr, BR: tl.constexpr, BK: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Store, or add, the product of d_theta and u of one batch row for BR rows of p_dW (B, size, D)."""
    i_r, i_b = tl.program_id(0), tl.program_id(1).to(tl.int64)
    o_m, o_k, o_r = tl.arange(0, BM), tl.arange(0, BK), i_r * BR + tl.arange(0, BR)
    acc = tl.zeros((BR, BK), tl.float32)
    for m in tl.range(0, rows, BM, num_stages=STAGES):
        m_row = (m + o_m < rows) & (first_row + m + o_m < L)
        d_theta = tl.load(p_dtheta + (i_b * rows + m + o_m)[:, None] * size + o_r[None, :], mask=m_row[:, None], other=0.0)
        o_u = (i_b * L + first_row + m + o_m)[:, None] * D + o_k[None, :]
        b_u = tl.load(p_u + o_u, mask=m_row[:, None] & (o_k < D)[None, :], other=0.0)
        acc = tl.dot(tl.trans(d_theta), b_u, acc, input_precision=PRECISION)
    o_out = (i_b * size + o_r)[:, None] * D + o_k[None, :]
    if accumulate > 0:
        acc += tl.load(p_dW + o_out, mask=(o_k < D)[None, :], other=0.0)
    tl.store(p_dW + o_out, acc, mask=(o_k < D)[None, :])


class Division:
    """Sizes of a call and its division into pieces of the steps; the `parallel` pieces of a slice run at the same time."""

    def __init__(self, u: Tensor, bias: Tensor, tile: Tile) -> None:
        self.batch, self.length, self.channels = u.shape
        self.states, self.tile, self.device = bias.shape[1], tile, u.device
        self.size, BD = self.channels * self.states, max(1, tile.lanes // self.states)
        self.blocks = triton.cdiv(self.channels, BD)
        processors = torch.cuda.get_device_properties(u.device).multi_processor_count if u.is_cuda else 1
        programs = self.batch * self.blocks * tile.warps
        self.parallel = 1 if programs * 2 > processors * 4 else triton.cdiv(processors * 4, programs)
        row = 4 * self.batch * self.size
        span = min(triton.cdiv(self.length, self.parallel), max(SCRATCH // (row * self.parallel), tile.steps))
        self.span = triton.cdiv(span, 64) * 64
        self.pieces = triton.cdiv(self.length, self.span)
        self.parallel = min(self.parallel, self.pieces)
        self.constants = {
            "FAST": u.is_cuda, "ANCHORED": tile.anchored, "T": tile.steps, "BD": BD, "BN": self.states,
            "BK": max(16, triton.next_power_of_2(self.channels)), "STAGES": tile.stages, "num_warps": tile.warps,
        }  # fmt: skip

    def new(self, *shape: int) -> Tensor:
        """Return memory for float32 numbers."""
        return torch.empty(shape, dtype=torch.float32, device=self.device)


def forward(inputs: list[Tensor], tile: Tile) -> tuple[Tensor, Tensor, Tensor]:
    """Return y, y before skip and gate, and the states between pieces. inputs: u, dt, W, bias, B, C, D, z."""
    p = Division(inputs[0], inputs[3], tile)
    y, raw, states = torch.empty_like(inputs[0]), torch.empty_like(inputs[0]), p.new(p.batch, p.pieces + 1, 3, p.size)
    states[:, 0].zero_()
    count = 1 if p.parallel > 1 else p.pieces
    sizes = p.length, p.channels, p.size, p.span, p.pieces, count
    grid = p.blocks, p.pieces // count, p.batch
    if p.parallel > 1:
        scan_fwd[grid](*inputs, states, y, raw, *sizes, STATES_ONLY=True, **p.constants)
        state_passing_fwd[p.size // 32, p.batch](states, p.pieces, p.size, BLOCK=32, num_warps=1)
    scan_fwd[grid](*inputs, states, y, raw, *sizes, STATES_ONLY=False, **p.constants)
    return y, raw, states


def backward(dy: Tensor, inputs: list[Tensor], raw: Tensor, states: Tensor, tile: Tile) -> list[Tensor]:
    """Return the gradients of the inputs."""
    u, dt, W, _, _, _, _, z = inputs
    p = Division(u, inputs[3], tile)
    du, ddt, dz = (torch.empty_like(x) for x in (u, dt, z))
    rows, mu = p.parallel * p.span, p.new(p.batch, p.pieces + 1, 2, p.size)
    mu[:, p.pieces].zero_()
    d_theta, sums = p.new(p.batch, rows, p.size), p.new(p.batch, p.pieces, 5, p.size)
    dD, dW = p.new(p.batch, p.pieces, p.channels), p.new(p.batch, p.size, p.channels)
    tensors = (dy, *inputs, states, raw, mu, du, ddt, dz, d_theta, sums, dD)
    sizes = p.length, p.channels, p.size, p.span, p.pieces
    if p.parallel > 1:
        scan_bwd[p.blocks, p.pieces, p.batch](*tensors, *sizes, 0, 0, STATES_ONLY=True, **p.constants)
        mu.copy_(mu.flip(1).cumsum(1).flip(1))
    BK = p.constants["BK"]
    for stop in range(p.pieces, 0, -p.parallel):
        first = max(0, stop - p.parallel)
        count = (stop - first) * p.span
        scan_bwd[p.blocks, stop - first, p.batch](*tensors, *sizes, first, count, STATES_ONLY=False, **p.constants)
        grad_inputs_gemm[triton.cdiv(count, 32), p.batch](
            d_theta, W, du, first * p.span, count, p.length, p.channels, p.size, BM=32, BR=64, BK=BK, STAGES=3, num_warps=4
        )
        grad_weights_gemm[triton.cdiv(p.size, 64), p.batch](
            d_theta, u, dW, first * p.span, count, p.length, p.channels, p.size, int(stop < p.pieces),
            BM=32, BR=64, BK=BK, STAGES=3, num_warps=4,
        )  # fmt: skip
    d_bias, *of_pairs = sums.sum((0, 1)).view(5, p.channels, p.states)
    dB, dC = torch.stack(of_pairs[:2], -1), torch.stack(of_pairs[2:], -1)
    return [du, ddt, dW.sum(0).view(W.shape), d_bias, dB, dC, dD.sum((0, 1)), dz]


def make_inputs(shape: tuple[int, int, int, int], device: str) -> list[Tensor]:
    """Return u, dt, W, bias, B, C, D and z; B and C as pairs."""
    batch, length, channels, states = shape
    generator = torch.Generator().manual_seed(0)
    randn = partial(torch.randn, generator=generator)
    sequence, pairs = (batch, length, channels), (channels, states, 2)
    u, dt, z = randn(sequence), 0.1 * randn(sequence).abs(), randn(sequence)
    W, bias = randn(channels, states, channels) / channels**0.5, randn(channels, states)
    return [x.to(device) for x in (u, dt, W, bias, randn(pairs), randn(pairs), randn(channels), z)]


def largest_error(device: str, shape: tuple[int, int, int, int], tile: Tile) -> float:
    """Return the largest relative error of y and the gradients against the eager backend in float64, for a small call."""
    inputs = make_inputs(shape, device)
    exact = [x.double().requires_grad_() for x in inputs]
    y, _ = unitary_scan(*exact, backend="eager")
    dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(device)
    truth = [y.detach(), *torch.autograd.grad(y, exact, dy.double())]
    found, raw, states = forward(inputs, tile)
    errors = zip([found, *backward(dy, inputs, raw, states, tile)], truth, strict=True)
    return max(((a - b).abs().max() / b.abs().max()).item() for a, b in errors)


def op_calls(inputs: list[Tensor]) -> dict[str, Callable[[], Any]]:
    """Return the forward pass of the op's kernels, with what the backward pass needs, and the backward pass."""
    from longscan.ops.unitary_scan import triton as op

    u, dt, W, bias, B, C, D, z = inputs
    initial = torch.zeros(u.shape[0], *B.shape, device=u.device)
    given = u, dt, W, bias, B, C, D, z, initial, None
    y, final, kept = op.forward(*given, False, True)
    dy, d_final = torch.ones_like(y), torch.zeros_like(final)
    return {
        "forward": lambda: op.forward(*given, False, True),
        "backward": lambda: op.backward(dy, d_final, *given, kept, False),
    }


def parse_sizes(text: str) -> tuple[int, int, int, int]:
    """Return B, L, D and N, for which there are tiles. Raises argparse.ArgumentTypeError for other texts."""
    found = re.fullmatch(r"(\d+) (\d+) (\d+) (\d+)", text)
    if found is None or int(found[3]) not in TILES:
        raise argparse.ArgumentTypeError(f"must be B L D N with D of {', '.join(map(str, TILES))}, got {text!r}")
    batch, length, channels, states = map(int, found.groups())
    return batch, length, channels, states


def rows(shape: tuple[int, int, int, int], error: dict[Tile, float]) -> list[dict[str, Any]]:
    """Return times of the op and of all tiles."""
    inputs = make_inputs(shape, "cuda")
    calls = [(direction, "op", call, 0.0) for direction, call in op_calls(inputs).items()]
    for tile in TILES[shape[2]]:
        y, raw, states = forward(inputs, tile)
        given = torch.ones_like(y), inputs, raw, states, tile
        calls += [("forward", str(tuple(tile)), partial(forward, inputs, tile), error[tile])]
        calls += [("backward", str(tuple(tile)), partial(backward, *given), error[tile])]
    return [
        {"direction": direction, "kernels": kernels, "ms": replayed_ms(call), "peak_mib": peak_mib(call), "error": found}
        for direction, kernels, call, found in calls
    ]


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, and add the rows to the file. argv: the arguments, by default those of the process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="file of JSON lines, to which rows are added")
    parser.add_argument("--sizes", nargs="+", type=parse_sizes, default=[*map(parse_sizes, SIZES)], help="B L D N of each case")
    options = parser.parse_args(argv)
    if not torch.cuda.is_available():
        raise SystemExit("plain_unitary_scan: a CUDA GPU is needed, got none")
    about: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "commit": commit()}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with options.out.open("a", encoding="utf-8") as file:
        for shape in options.sizes:
            batch, length, channels, states = shape
            steps = min(length, CHECKED_STEPS, CHECKED_ANGLES // (batch * channels * states))
            small = (batch, max(1, steps), channels, states)
            start = time.perf_counter()
            error = {tile: largest_error("cuda", small, tile) for tile in TILES[shape[2]]}
            about["checked_s"] = time.perf_counter() - start
            for row in rows(shape, error):
                file.write(json.dumps({"shape": shape, **row, **about}) + "\n")
                file.flush()


if __name__ == "__main__":
    main()
