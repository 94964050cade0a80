"""Matrix products of the gradients of the angles, d_theta, with W (the gradient of u) and with u (the gradient of W).

The scan computes them for a tile (`multiply_tile`), or stores d_theta for `d_theta_gemm_kernel`. All factors
are in two fp16 parts. d_theta is scaled by a power of two for each chunk, or with BY_STEP for each step. Rows of W
are in the order of the lanes of the scans: SLOTS = BLOCKS R rows for each group, and SLOTS_PER_CHANNEL of these for a channel.
"""

import triton
import triton.language as tl

from longscan.ops.unitary_scan.triton.math import U_SCALE, dot_hi_lo, split_fp16_hi_lo

WEIGHT_ROWS = tl.constexpr(16)  # rows of W of a program of `split_weights`


@triton.jit
def split_weights(W, W_hi, W_lo, i, i_k, D, N, SLOTS: tl.constexpr, SLOTS_PER_CHANNEL: tl.constexpr, K, BK: tl.constexpr):
    """Store WEIGHT_ROWS rows and BK columns of W (groups, D, N, D) times U_SCALE in two fp16 parts (groups, SLOTS, K)."""
    blocks: tl.constexpr = (SLOTS + WEIGHT_ROWS - 1) // WEIGHT_ROWS
    i_g, o_k = (i // blocks).to(tl.int64), i_k * BK + tl.arange(0, BK)
    o_slot = i % blocks * WEIGHT_ROWS + tl.arange(0, WEIGHT_ROWS)
    o_d, o_n = o_slot // SLOTS_PER_CHANNEL, o_slot % SLOTS_PER_CHANNEL
    m_in = ((o_d < D) & (o_n < N))[:, None] & (o_k < D)[None, :]
    b_W = tl.load(W + ((i_g * D + o_d) * N + o_n)[:, None] * D + o_k[None, :], mask=m_in, other=0.0)
    b_hi, b_lo = split_fp16_hi_lo(b_W, U_SCALE)
    o_out, m_out = (i_g * SLOTS + o_slot)[:, None] * K + o_k[None, :], (o_slot < SLOTS)[:, None] & (o_k < K)[None, :]
    tl.store(W_hi + o_out, b_hi, mask=m_out)
    tl.store(W_lo + o_out, b_lo, mask=m_out)


@triton.jit
def interleaved_rows(K: tl.constexpr):
    """Return for the 2 K rows of an interleaved factor their columns of u or W, and whether they are low parts.

    The high parts of eight columns are followed by their low parts. A thread then has both products of a column, so that no other
    thread is needed for their sum.
    """
    o_i = tl.arange(0, 2 * K)
    return o_i // 16 * 8 + o_i % 8, o_i // 8 % 2 > 0


@triton.jit
def interleave_weights(p_W, o_r, m_r, inverse, D, K: tl.constexpr):
    """Return the interleaved factor (2 K, R) of W times `inverse` of its lanes, and the scale of its products.

    inverse (R,): powers of two. The largest becomes part of the scale, so that W only becomes smaller, where d_theta is small.
    """
    largest = tl.max(inverse, 0)
    o_k, is_low = interleaved_rows(K)
    b_W = tl.load(p_W + o_r[None, :] * D + o_k[:, None], mask=(o_k < D)[:, None] & m_r[None, :], other=0.0)
    b_hi, b_lo = split_fp16_hi_lo(b_W, (inverse / largest * U_SCALE)[None, :])
    return tl.where(is_low[:, None], b_lo, b_hi), largest * (1.0 / U_SCALE)


@triton.jit
def dot_interleaved(a, b_hi, b_lo, scale, K: tl.constexpr, COLUMNS: tl.constexpr):
    """Return the product (K, COLUMNS) of an interleaved factor a (2 K, rows) and b (rows, COLUMNS) in two parts, times `scale`.

    The product of the low parts, which `dot_hi_lo` leaves out, costs nothing here.
    """
    product = tl.dot(a, b_hi, tl.dot(a, b_lo) * (1.0 / 2048.0))
    _, is_low = interleaved_rows(K)
    product *= tl.where(is_low, 1.0 / 2048.0, 1.0)[:, None]
    return tl.reshape(tl.sum(tl.reshape(product, (K // 8, 2, 8, COLUMNS)), 1), (K, COLUMNS)) * scale


@triton.jit
def multiply_tile(b_hi, b_lo, W_parts, du_scale, dW_scale, u_parts, p_du, o_row, K: tl.constexpr):
    """Store the product of a tile of d_theta (T, R) and W in the rows o_row of p_du, and return that of u and the tile (K, R).

    p_du: (B padded, K). u_parts (B padded, 2 K): u in the order of `interleaved_rows`. dW_scale: (R,).
    """
    T: tl.constexpr = b_hi.shape[0]
    R: tl.constexpr = b_hi.shape[1]
    b_u_parts = tl.trans(tl.load(u_parts + o_row[:, None] * (2 * K) + tl.arange(0, 2 * K)[None, :]))
    du = dot_interleaved(W_parts, tl.trans(b_hi), tl.trans(b_lo), du_scale, K, T)
    tl.store(p_du + o_row[None, :] * K + tl.arange(0, K)[:, None], du)
    return dot_interleaved(b_u_parts, b_hi, b_lo, dW_scale[None, :], K, R)


@triton.jit
def load_tile(x, o_row, o_column, m_row, m_column, width, EVEN: tl.constexpr):
    """Return a tile of x (rows, width); EVEN: without masks."""
    o_x = o_row[:, None] * width + o_column[None, :]
    return tl.load(x + o_x) if EVEN else tl.load(x + o_x, mask=m_row[:, None] & m_column[None, :], other=0.0)


@triton.jit
def grad_inputs_tile(
    d_theta, d_theta_lo, inverse, W_hi, W_lo, du, i_g, i_m, i_split, o_k, chunks, steps, tiles, blocks_per_split,
    BLOCKS: tl.constexpr, R: tl.constexpr, K: tl.constexpr, BK: tl.constexpr, BT: tl.constexpr, STAGES: tl.constexpr,
    EVEN: tl.constexpr, BY_STEP: tl.constexpr,
):  # fmt: skip
    """Store BT rows of d_theta W, summed over the lanes of `blocks_per_split` of the scan's blocks."""
    i_c, o_t = i_g * chunks + i_m // tiles, i_m % tiles * BT + tl.arange(0, BT)
    o_row, m_row = i_c * steps + o_t, o_t < steps
    acc = tl.zeros((BT, BK), tl.float32)
    for i_r in tl.range(i_split * blocks_per_split, tl.minimum((i_split + 1) * blocks_per_split, BLOCKS), num_stages=STAGES):
        o_slot = i_r * R + tl.arange(0, R)
        b_hi = load_tile(d_theta, o_row, o_slot, m_row, o_slot >= 0, BLOCKS * R, EVEN)
        b_lo = load_tile(d_theta_lo, o_row, o_slot, m_row, o_slot >= 0, BLOCKS * R, EVEN)
        o_W = (i_g * BLOCKS * R + o_slot)[:, None] * K + o_k[None, :]
        if BY_STEP:
            scale = tl.load(inverse + o_row * BLOCKS + i_r, mask=m_row, other=0.0)[:, None] * (1.0 / U_SCALE)
        else:
            scale = tl.load(inverse + i_c * BLOCKS + i_r) * (1.0 / U_SCALE)
        acc = dot_hi_lo(b_hi, b_lo, tl.load(W_hi + o_W), tl.load(W_lo + o_W), acc, scale)
    o_out = (i_split.to(tl.int64) * tl.num_programs(2) * chunks * steps + o_row[:, None]) * K + o_k[None, :]
    tl.store(du + o_out, acc, mask=m_row[:, None])


@triton.jit
def grad_weights_tile(
    d_theta, d_theta_lo, inverse, u_hi, u_lo, dW, i_g, i_m, i_split, o_k, chunks, steps, tiles, tiles_per_split,
    accumulate, BLOCKS: tl.constexpr, R: tl.constexpr, K: tl.constexpr, BK: tl.constexpr, BT: tl.constexpr, BS: tl.constexpr,
    STAGES: tl.constexpr, EVEN: tl.constexpr, BY_STEP: tl.constexpr,
):  # fmt: skip
    """Store BS rows of d_theta^T u, summed over `tiles_per_split` tiles of BT steps; add them to dW if `accumulate` > 0."""
    o_slot = i_m * BS + tl.arange(0, BS)
    m_slot = o_slot < BLOCKS * R
    acc = tl.zeros((BS, BK), tl.float32)
    for i in tl.range(i_split * tiles_per_split, tl.minimum((i_split + 1) * tiles_per_split, chunks * tiles), num_stages=STAGES):
        i_c, o_t = i_g * chunks + i // tiles, i % tiles * BT + tl.arange(0, BT)
        o_row, m_row = i_c * steps + o_t, o_t < steps
        b_hi = load_tile(d_theta, o_row, o_slot, m_row, m_slot, BLOCKS * R, EVEN)
        b_lo = load_tile(d_theta_lo, o_row, o_slot, m_row, m_slot, BLOCKS * R, EVEN)
        b_u_hi = load_tile(u_hi, o_row, o_k, m_row, o_k < K, K, EVEN)
        b_u_lo = load_tile(u_lo, o_row, o_k, m_row, o_k < K, K, EVEN)
        if BY_STEP:  # rescaled to the largest power of the tile; only numbers far below the largest gradients are rounded
            E: tl.constexpr = BS // R if BS > R else 1  # blocks of the scan that have these lanes
            i_r = i_m * BS // R + tl.arange(0, E)
            m_power = m_row[:, None] & (i_r < BLOCKS)[None, :]
            powers = tl.load(inverse + o_row[:, None] * BLOCKS + i_r[None, :], mask=m_power, other=0.0)
            scale = tl.max(powers, 0)
            powers = tl.where((scale > 0)[None, :], powers / scale[None, :], powers).to(tl.float16)
            powers = tl.reshape(tl.broadcast_to(powers[:, :, None], (BT, E, BS // E)), (BT, BS))
            b_hi, b_lo = b_hi * powers, b_lo * powers
            scale = tl.reshape(tl.broadcast_to(scale[:, None], (E, BS // E)), (BS,)) * U_SCALE
        else:
            scale = tl.load(inverse + i_c * BLOCKS + o_slot // R, mask=m_slot, other=0.0) * U_SCALE
        acc = dot_hi_lo(tl.trans(b_hi), tl.trans(b_lo), b_u_hi, b_u_lo, acc, scale[:, None])
    p_out = dW + ((i_split * tl.num_programs(2) + i_g) * (BLOCKS * R) + o_slot[:, None]) * K + o_k[None, :]
    if accumulate > 0:
        acc += tl.load(p_out, mask=m_slot[:, None], other=0.0)
    tl.store(p_out, acc, mask=m_slot[:, None])


@triton.jit(
    do_not_specialize=[
        "chunks", "steps", "u_tiles", "W_tiles", "blocks_per_split", "tiles_per_split", "u_programs", "W_blocks", "accumulate",
    ]
)  # fmt: skip
def d_theta_gemm_kernel(
    d_theta, d_theta_lo, inverse, W_hi, W_lo, u_hi, u_lo, du, dW,
    chunks, steps, u_tiles, W_tiles, blocks_per_split, tiles_per_split, u_programs, W_blocks, accumulate,
    BLOCKS: tl.constexpr, R: tl.constexpr, K: tl.constexpr, BK: tl.constexpr, BT_U: tl.constexpr, BS: tl.constexpr,
    BT_W: tl.constexpr, STAGES: tl.constexpr, EVEN: tl.constexpr, BY_STEP: tl.constexpr,
):  # fmt: skip
    """Compute partial sums of the gradient of u (the first `u_programs` programs) or W (the others), for BK columns of a group.

    d_theta (groups, chunks, steps, SLOTS), times inverse (groups, chunks, BLOCKS), or with BY_STEP (groups, chunks, steps,
    BLOCKS). du (split_k, groups, chunks, steps, K): `u_tiles` tiles of BT_U steps for each chunk. dW (weight_split_k, groups,
    SLOTS, K): `W_blocks` blocks of BS rows, which are sums over `W_tiles` tiles of BT_W steps for each chunk. EVEN: no tile
    reaches beyond the buffers.
    """
    i_g, i, o_k = tl.program_id(2).to(tl.int64), tl.program_id(0), tl.program_id(1) * BK + tl.arange(0, BK)
    if i < u_programs:
        grad_inputs_tile(
            d_theta, d_theta_lo, inverse, W_hi, W_lo, du, i_g, i % (chunks * u_tiles), i // (chunks * u_tiles), o_k,
            chunks, steps, u_tiles, blocks_per_split, BLOCKS, R, K, BK, BT_U, STAGES, EVEN, BY_STEP,
        )  # fmt: skip
    else:
        grad_weights_tile(
            d_theta, d_theta_lo, inverse, u_hi, u_lo, dW, i_g, (i - u_programs) % W_blocks,
            (i - u_programs) // W_blocks, o_k, chunks, steps, W_tiles, tiles_per_split, accumulate, BLOCKS, R, K, BK, BT_W, BS,
            STAGES, EVEN, BY_STEP,
        )  # fmt: skip
