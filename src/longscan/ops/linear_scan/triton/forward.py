"""Forward kernels of `linear_scan`: the states x_t = a_t x_{t-1} + b_t, and the map of each chunk of steps."""

import triton
import triton.language as tl

from longscan.ops._triton import INVALID, RESET
from longscan.ops.linear_scan.triton.math import apply_chunk_maps, block_offsets, multiply, multiply_add, ones


@triton.jit(do_not_specialize=["L", "CHUNK", "rows_per_a"])
def chunk_map_fwd_kernel(
    a, b, flags, mult, local, restarted, L, S, CHUNK, rows_per_a,
    CONSTANT_A: tl.constexpr, COMPLEX: tl.constexpr, REVERSE: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_S: tl.constexpr, NUM_STAGES: tl.constexpr,
):  # fmt: skip
    """Compute the map x -> mult x + local of a chunk from its last step to its first. The last chunk has no program.

    After this order of steps the L2 cache contains the first steps of the chunks, with which `scan_fwd_kernel` begins.
    """
    n_s = tl.cdiv(S, BLOCK_S)
    i_b, i_s, i_c = (tl.program_id(0) // n_s).to(tl.int64), tl.program_id(0) % n_s, tl.program_id(1)
    o_s, m_s = block_offsets(i_s, S, COMPLEX, BLOCK_S)
    width = tl.cast(S, tl.int64) * (2 if COMPLEX else 1)
    t_last = tl.minimum((i_c + 1) * CHUNK, L) - 1
    row, sign = i_b * L + (L - 1 - t_last if REVERSE else t_last), 1 if REVERSE else -1
    p_b = b + row * width + o_s
    if CONSTANT_A:
        b_a = tl.load(a + i_b // rows_per_a * width + o_s, mask=m_s, other=0.0)
    else:
        p_a = a + row * width + o_s
    b_mult, b_local = ones(o_s, COMPLEX, b.dtype.element_ty), tl.zeros(o_s.shape, b.dtype.element_ty)
    is_restarted = i_c < 0
    for i in tl.range(0, t_last + 1 - i_c * CHUNK, num_stages=NUM_STAGES, loop_unroll_factor=BLOCK_T):
        b_b = tl.load(p_b, mask=m_s, other=0.0)
        if not CONSTANT_A:
            b_a = tl.load(p_a, mask=m_s, other=0.0)
            p_a += sign * width
        b_longer, b_product = multiply_add(b_mult, b_b, b_local, COMPLEX), multiply(b_a, b_mult, COMPLEX)
        if flags is not None:
            flag = tl.load(flags + row + sign * i)
            counts = (flag != INVALID) & ~is_restarted
            b_longer, b_product = tl.where(counts, b_longer, b_local), tl.where(counts, b_product, b_mult)
            is_restarted |= flag == RESET
        b_local, b_mult = b_longer, b_product
        p_b += sign * width
    chunk = i_b * tl.num_programs(1) + i_c
    tl.store(mult + chunk * width + o_s, b_mult, mask=m_s)
    tl.store(local + chunk * width + o_s, b_local, mask=m_s)
    if flags is not None:
        tl.store(restarted + chunk, is_restarted.to(tl.uint8), mask=i_s == 0)


@triton.jit(do_not_specialize=["L", "CHUNK", "rows_per_a"])
def scan_fwd_kernel(
    a, b, initial_state, flags, mult, local, restarted, x, final_state, L, S, CHUNK, rows_per_a,
    CONSTANT_A: tl.constexpr, COMPLEX: tl.constexpr, REVERSE: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_S: tl.constexpr, NUM_STAGES: tl.constexpr,
):  # fmt: skip
    """Compute x of one chunk, and after the last chunk the final state. mult, local, restarted: None if there is one chunk."""
    n_s = tl.cdiv(S, BLOCK_S)
    i_b, i_s, i_c = (tl.program_id(0) // n_s).to(tl.int64), tl.program_id(0) % n_s, tl.program_id(1)
    o_s, m_s = block_offsets(i_s, S, COMPLEX, BLOCK_S)
    width = tl.cast(S, tl.int64) * (2 if COMPLEX else 1)
    b_x = tl.load(initial_state + i_b * width + o_s, mask=m_s, other=0.0)
    if mult is not None:
        first = i_b * (tl.num_programs(1) - 1)
        b_x = apply_chunk_maps(b_x, mult, local, restarted, width, o_s, m_s, first, 1, i_c, COMPLEX, NUM_STAGES)
    t_first = i_c * CHUNK
    row, sign = i_b * L + (L - 1 - t_first if REVERSE else t_first), -1 if REVERSE else 1
    p_b, p_x = b + row * width + o_s, x + row * width + o_s
    if CONSTANT_A:
        b_a = tl.load(a + i_b // rows_per_a * width + o_s, mask=m_s, other=0.0)
    else:
        p_a = a + row * width + o_s
    for i in tl.range(0, tl.minimum(CHUNK, L - t_first), num_stages=NUM_STAGES, loop_unroll_factor=BLOCK_T):
        b_b = tl.load(p_b, mask=m_s, other=0.0)
        if not CONSTANT_A:
            b_a = tl.load(p_a, mask=m_s, other=0.0)
            p_a += sign * width
        b_next = multiply_add(b_a, b_x, b_b, COMPLEX)
        if flags is None:
            b_x = b_next
            tl.store(p_x, b_x, mask=m_s)
        else:
            flag = tl.load(flags + row + sign * i)
            b_x = tl.where(flag == INVALID, b_x, tl.where(flag == RESET, b_b, b_next))
            tl.store(p_x, tl.where(flag == INVALID, 0.0, b_x), mask=m_s)
        p_b += sign * width
        p_x += sign * width
    if i_c == tl.num_programs(1) - 1:
        tl.store(final_state + i_b * width + o_s, b_x, mask=m_s)
