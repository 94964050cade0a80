"""Forward kernel of `dplr_spectrum`."""

import triton
import triton.language as tl

from longscan.ops.dplr_spectrum.triton.math import cauchy_sums, load_frequencies, multiply, reciprocal, store_pair


@triton.jit(do_not_specialize=["F", "N"])
def dplr_spectrum_fwd_kernel(table, eigenvalues, P, B, C, dt, spectrum, F, N, BLOCK_F: tl.constexpr):
    """Compute BLOCK_F frequencies of one channel: dt e^w (S_cb - t S_cp S_pb / (1 + t S_pp)), t = dt cosh(w)."""
    n_f = tl.cdiv(F, BLOCK_F)
    i_f, i_d = tl.program_id(0) % n_f, (tl.program_id(0) // n_f).to(tl.int64)
    o_f, o_pole = i_f * BLOCK_F + tl.arange(0, BLOCK_F), i_d * N * 2
    m_f = o_f < F
    b_dt = tl.load(dt + i_d)
    a_r, a_i = load_frequencies(table, 0, o_f, F)
    t_r, t_i = load_frequencies(table, 1, o_f, F)
    e_r, e_i = load_frequencies(table, 2, o_f, F)
    t_r, t_i = t_r * b_dt, t_i * b_dt
    cb_r, cb_i, cp_r, cp_i, pp_r, pp_i, pb_r, pb_i = cauchy_sums(
        eigenvalues + o_pole, P + o_pole, B + o_pole, C + o_pole, N, a_r, a_i, t_r, t_i
    )
    pp_r, pp_i = multiply(t_r, t_i, pp_r, pp_i)
    gain_r, gain_i = reciprocal(1.0 + pp_r, pp_i)
    gain_r, gain_i = multiply(gain_r, gain_i, t_r, t_i)
    rank_r, rank_i = multiply(cp_r, cp_i, pb_r, pb_i)
    rank_r, rank_i = multiply(gain_r, gain_i, rank_r, rank_i)
    y_r, y_i = multiply(e_r * b_dt, e_i * b_dt, cb_r - rank_r, cb_i - rank_i)
    store_pair(spectrum + (i_d * F + o_f) * 2, y_r, y_i, m_f)
