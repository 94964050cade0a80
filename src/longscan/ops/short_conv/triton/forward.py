"""Forward kernel of `short_conv`."""

import triton
import triton.language as tl

from longscan.ops._triton import append, silu
from longscan.ops.short_conv.triton.math import (
    convolve,
    load_parameters,
    load_start,
    load_window,
    row_of_step,
    select_segment,
)


@triton.jit(do_not_specialize=["L", "CHUNK", "rows_per_weight"])
def short_conv_fwd_kernel(
    u, weight, bias, initial_state, order, starts, counts, y, final_state, L, D, CHUNK, rows_per_weight,
    SILU: tl.constexpr, K: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr, NUM_STAGES: tl.constexpr,
):  # fmt: skip
    """Compute y of CHUNK valid steps of a row, and after the last chunk the final state.

    order, starts, counts: tables of the valid steps (`_triton_steps.valid_steps`), None if all steps are valid.
    """
    n_d, n_c = tl.cdiv(D, BLOCK_D), tl.cdiv(L, CHUNK)
    i_d, i_c, i_b = tl.program_id(0) % n_d, tl.program_id(0) // n_d % n_c, (tl.program_id(0) // n_d // n_c).to(tl.int64)
    o_d = i_d * BLOCK_D + tl.arange(0, BLOCK_D)
    m_d = o_d < D
    p_u, p_y, p_initial = u + i_b * L * D + o_d, y + i_b * L * D + o_d, initial_state + (i_b * D + o_d) * (K - 1)
    count = L
    if counts is not None:
        count = tl.load(counts + i_b)
        order += i_b * L
        starts += i_b * L
    b_weight, b_bias = load_parameters(weight, bias, i_b // rows_per_weight, o_d, D, K)
    t_first = tl.minimum(i_c * CHUNK, count)
    b_window = load_window(p_u, p_initial, order, t_first, D, m_d, K)
    for t in tl.range(t_first, tl.minimum(t_first + CHUNK, count), num_stages=NUM_STAGES, loop_unroll_factor=BLOCK_T):
        o_row = row_of_step(order, t, True) * D
        b_window = append(b_window, tl.load(p_u + o_row, mask=m_d, other=0.0).to(b_bias.dtype))
        b_y = convolve(b_window, b_weight, b_bias, t, load_start(starts, t, True, K), K)
        tl.store(p_y + o_row, silu(b_y) if SILU else b_y, mask=m_d)
        b_window = b_window[1:]
    if i_c == n_c - 1:
        b_window = load_window(p_u, p_initial, order, count, D, m_d, K)
        start = load_start(starts, count - 1, count > 0, K)
        for k in tl.static_range(K - 1):
            b_state = select_segment(b_window[k], count, k, start, K)
            tl.store(final_state + (i_b * D + o_d) * (K - 1) + k, b_state, mask=m_d)
