"""Forward kernel of `dplr_spectrum`."""

import triton
import triton.language as tl

from longscan.ops.dplr_spectrum.triton.math import multiply, spectrum_terms, store_pair


@triton.jit(do_not_specialize=["F", "N"])
def dplr_spectrum_fwd_kernel(table, eigenvalues, P, B, C, dt, spectrum, F, N, BLOCK_F: tl.constexpr):
    """Compute BLOCK_F frequencies of one channel: dt e^w (S_cb - t S_cp S_pb / (1 + t S_pp)), t = dt cosh(w)."""
    n_f = tl.cdiv(F, BLOCK_F)
    i_f, i_d = tl.program_id(0) % n_f, (tl.program_id(0) // n_f).to(tl.int64)
    o_f, o_pole = i_f * BLOCK_F + tl.arange(0, BLOCK_F), i_d * N * 2
    m_f = o_f < F
    b_dt = tl.load(dt + i_d)
    c_r, c_i, e_r, e_i, cb_r, cb_i, _, _, _, _, m_r, m_i, rank_r, rank_i = spectrum_terms(
        table, eigenvalues + o_pole, P + o_pole, B + o_pole, C + o_pole, b_dt, o_f, F, N
    )
    gain_r, gain_i = multiply(m_r, m_i, c_r * b_dt, c_i * b_dt)
    rank_r, rank_i = multiply(gain_r, gain_i, rank_r, rank_i)
    y_r, y_i = multiply(e_r * b_dt, e_i * b_dt, cb_r - rank_r, cb_i - rank_i)
    store_pair(spectrum + (i_d * F + o_f) * 2, y_r, y_i, m_f)
