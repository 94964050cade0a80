"""Forward kernels of `block2_scan`: the states x_t = M_t x_{t-1} + f_t, and the map of each chunk of steps."""

import triton
import triton.language as tl

from longscan.ops._triton import INVALID, RESET
from longscan.ops.block2_scan.triton.math import (
    apply_chunk_maps,
    block_offsets,
    cast,
    identity,
    multiply,
    multiply_add,
    pack,
    unpack,
    where,
    zeros,
)


@triton.jit(do_not_specialize=["first", "L", "CHUNK", "rows_per_M"])
def chunk_map_fwd_kernel(
    M, f, flags, mult, local, restarted, first, L, S, CHUNK, rows_per_M,
    CONSTANT_M: tl.constexpr, K: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_S: tl.constexpr, NUM_STAGES: tl.constexpr,
):  # fmt: skip
    """Compute the maps x -> mult x + local of the chunks from index `first` on. mult is a product of matrices, in float64."""
    n_s, width = tl.cdiv(S, BLOCK_S), tl.cast(S, tl.int64)
    i_b, i_s, i_c = (tl.program_id(0) // n_s).to(tl.int64), tl.program_id(0) % n_s, first + tl.program_id(1)
    o_x, m_x = block_offsets(i_s, S, 2 * K, BLOCK_S)
    o_M, m_M = block_offsets(i_s, S, 4, BLOCK_S)
    row = i_b * L + i_c * CHUNK
    p_f = f + row * width * (2 * K) + o_x
    if CONSTANT_M:
        b_M = unpack(tl.load(M + i_b // rows_per_M * width * 4 + o_M, mask=m_M, other=0.0), 2)
    else:
        p_M = M + row * width * 4 + o_M
    b_mult, b_local = identity(BLOCK_S, tl.float64), zeros(2 * K, BLOCK_S, f.dtype.element_ty)
    is_restarted = i_c < 0
    for i in tl.range(0, tl.minimum(CHUNK, L - i_c * CHUNK), num_stages=NUM_STAGES, loop_unroll_factor=BLOCK_T):
        b_f = unpack(tl.load(p_f, mask=m_x, other=0.0), K)
        if not CONSTANT_M:
            b_M = unpack(tl.load(p_M, mask=m_M, other=0.0), 2)
            p_M += width * 4
        b_next, b_product = multiply_add(b_M, b_local, b_f, K), multiply(cast(b_M, tl.float64), b_mult, 2)
        if flags is not None:
            flag = tl.load(flags + row + i)
            b_next = where(flag == INVALID, b_local, where(flag == RESET, b_f, b_next))
            b_product = where(flag == INVALID, b_mult, b_product)
            is_restarted |= flag == RESET
        b_local, b_mult = b_next, b_product
        p_f += width * (2 * K)
    chunk = i_b * tl.num_programs(1) + i_c - first
    tl.store(mult + chunk * width * 4 + o_M, pack(b_mult, 2), mask=m_M)
    tl.store(local + chunk * width * (2 * K) + o_x, pack(b_local, K), mask=m_x)
    if flags is not None:
        tl.store(restarted + chunk, is_restarted.to(tl.uint8), mask=i_s == 0)


@triton.jit(do_not_specialize=["n_chunks"])
def all_chunk_maps_kernel(
    mult, local, restarted, state, factor, S, n_chunks,
    BACKWARD: tl.constexpr, K: tl.constexpr, BLOCK_S: tl.constexpr, NUM_STAGES: tl.constexpr,
):  # fmt: skip
    """Apply the maps of all chunks to a zero state, and store the product of their factors unless `factor` is None.

    BACKWARD: whether the maps are applied from the last chunk to the first.
    """
    n_s, width = tl.cdiv(S, BLOCK_S), tl.cast(S, tl.int64)
    i_b, i_s = (tl.program_id(0) // n_s).to(tl.int64), tl.program_id(0) % n_s
    o_x, m_x = block_offsets(i_s, S, 2 * K, BLOCK_S)
    o_M, m_M = block_offsets(i_s, S, 4, BLOCK_S)
    first = (i_b + 1) * n_chunks - 1 if BACKWARD else i_b * n_chunks
    b_x = apply_chunk_maps(
        zeros(2 * K, BLOCK_S, local.dtype.element_ty), mult, local, restarted, o_M, m_M, o_x, m_x, width,
        first, -1 if BACKWARD else 1, n_chunks, K, NUM_STAGES,
    )  # fmt: skip
    tl.store(state + i_b * width * (2 * K) + o_x, pack(b_x, K), mask=m_x)
    if factor is not None:
        b_product = identity(BLOCK_S, tl.float64)
        for i in range(n_chunks):
            b_mult = unpack(tl.load(mult + (first - i if BACKWARD else first + i) * width * 4 + o_M, mask=m_M, other=0.0), 2)
            b_product = multiply(b_mult, b_product, 2)
        tl.store(factor + i_b * width * 4 + o_M, pack(b_product, 2), mask=m_M)


@triton.jit(do_not_specialize=["L", "CHUNK", "rows_per_M"])
def scan_fwd_kernel(
    M, f, initial_state, flags, mult, local, restarted, x, final_state, L, S, CHUNK, rows_per_M,
    CONSTANT_M: tl.constexpr, K: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_S: tl.constexpr, NUM_STAGES: tl.constexpr,
):  # fmt: skip
    """Compute x of one chunk, and after the last chunk the final state. mult, local, restarted: None if there is one chunk."""
    n_s, width = tl.cdiv(S, BLOCK_S), tl.cast(S, tl.int64)
    i_b, i_s, i_c = (tl.program_id(0) // n_s).to(tl.int64), tl.program_id(0) % n_s, tl.program_id(1)
    o_x, m_x = block_offsets(i_s, S, 2 * K, BLOCK_S)
    o_M, m_M = block_offsets(i_s, S, 4, BLOCK_S)
    b_x = unpack(tl.load(initial_state + i_b * width * (2 * K) + o_x, mask=m_x, other=0.0), K)
    if mult is not None:
        first = i_b * (tl.num_programs(1) - 1)
        b_x = apply_chunk_maps(b_x, mult, local, restarted, o_M, m_M, o_x, m_x, width, first, 1, i_c, K, NUM_STAGES)
    row = i_b * L + i_c * CHUNK
    p_f, p_x = f + row * width * (2 * K) + o_x, x + row * width * (2 * K) + o_x
    if CONSTANT_M:
        b_M = unpack(tl.load(M + i_b // rows_per_M * width * 4 + o_M, mask=m_M, other=0.0), 2)
    else:
        p_M = M + row * width * 4 + o_M
    for i in tl.range(0, tl.minimum(CHUNK, L - i_c * CHUNK), num_stages=NUM_STAGES, loop_unroll_factor=BLOCK_T):
        b_f = unpack(tl.load(p_f, mask=m_x, other=0.0), K)
        if not CONSTANT_M:
            b_M = unpack(tl.load(p_M, mask=m_M, other=0.0), 2)
            p_M += width * 4
        b_next = multiply_add(b_M, b_x, b_f, K)
        if flags is None:
            b_x = b_next
            tl.store(p_x, pack(b_x, K), mask=m_x)
        else:
            flag = tl.load(flags + row + i)
            b_x = where(flag == INVALID, b_x, where(flag == RESET, b_f, b_next))
            tl.store(p_x, tl.where(flag == INVALID, 0.0, pack(b_x, K)), mask=m_x)
        p_f += width * (2 * K)
        p_x += width * (2 * K)
    if i_c == tl.num_programs(1) - 1:
        tl.store(final_state + i_b * width * (2 * K) + o_x, pack(b_x, K), mask=m_x)
