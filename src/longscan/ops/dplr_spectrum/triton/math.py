"""Complex arithmetic on pairs of tensors, and the sums over states that both kernels of `dplr_spectrum` compute."""

import triton
import triton.language as tl


@triton.jit
def multiply(a_r, a_i, b_r, b_i):
    """Return the product a b."""
    return a_r * b_r - a_i * b_i, a_r * b_i + a_i * b_r


@triton.jit
def multiply_conjugate(a_r, a_i, b_r, b_i):
    """Return the product conj(a) b."""
    return a_r * b_r + a_i * b_i, a_r * b_i - a_i * b_r


@triton.jit
def reciprocal(a_r, a_i):
    """Return 1 / a."""
    scale = 1.0 / (a_r * a_r + a_i * a_i)
    return a_r * scale, -a_i * scale


@triton.jit
def load_pair(pointer, mask, other):
    """Return the real and the imaginary part of pairs; masked ones are `other`, a real number."""
    return tl.load(pointer, mask=mask, other=other), tl.load(pointer + 1, mask=mask, other=0.0)


@triton.jit
def store_pair(pointer, x_r, x_i, mask):
    """Store real and imaginary parts as pairs."""
    tl.store(pointer, x_r, mask=mask)
    tl.store(pointer + 1, x_i, mask=mask)


@triton.jit
def load_frequencies(table, i_row, o_f, F):
    """Return a row of the table (3, F, 2) of a = 2 sinh(w), cosh(w) and e^w.

    From index F on, the entries are those of the last frequency: other numbers could be at a pole, and 0 times infinity is NaN.
    """
    p_f = table + (i_row * F + tl.minimum(o_f, F - 1).to(tl.int64)) * 2
    return tl.load(p_f), tl.load(p_f + 1)


@triton.jit
def poles(a_r, a_i, t_r, t_i, lambda_r, lambda_i):
    """Return 1 / (a - t lambda) and 1 / (a - t conj(lambda)), with one division.

    With e = a - t Re lambda and g = t Im lambda, the denominators are e - i g and e + i g.
    """
    e_r, e_i = a_r - t_r * lambda_r, a_i - t_i * lambda_r
    g_r, g_i = t_r * lambda_i, t_i * lambda_i
    x_r, x_i, y_r, y_i = e_r + g_i, e_i - g_r, e_r - g_i, e_i + g_r
    x_size, y_size = x_r * x_r + x_i * x_i, y_r * y_r + y_i * y_i
    scale = 1.0 / (x_size * y_size)
    x_scale, y_scale = y_size * scale, x_size * scale
    return x_r * x_scale, -x_i * x_scale, y_r * y_scale, -y_i * y_scale


@triton.jit
def numerators(P_r, P_i, B_r, B_i, C_r, C_i):
    """Return the numerators C B, C P, P* P (real) and P* B of the four sums."""
    cb_r, cb_i = multiply(C_r, C_i, B_r, B_i)
    cp_r, cp_i = multiply(C_r, C_i, P_r, P_i)
    pb_r, pb_i = multiply_conjugate(P_r, P_i, B_r, B_i)
    return cb_r, cb_i, cp_r, cp_i, P_r * P_r + P_i * P_i, pb_r, pb_i


@triton.jit
def cauchy_sums(p_lambda, p_P, p_B, p_C, N, a_r, a_i, t_r, t_i):
    """Return sum_n v_n / (a - t lambda_n) + conj(v_n) / (a - t conj(lambda_n)) for the numerators v of `numerators`.

    With X and Y of `poles` a term is Re(v) (X + Y) + Im(v) i (X - Y).
    """
    cb_r, cb_i, cp_r, cp_i = tl.zeros_like(a_r), tl.zeros_like(a_r), tl.zeros_like(a_r), tl.zeros_like(a_r)
    pp_r, pp_i, pb_r, pb_i = tl.zeros_like(a_r), tl.zeros_like(a_r), tl.zeros_like(a_r), tl.zeros_like(a_r)
    for n in range(N):
        X_r, X_i, Y_r, Y_i = poles(a_r, a_i, t_r, t_i, tl.load(p_lambda + 2 * n), tl.load(p_lambda + 2 * n + 1))
        even_r, even_i, odd_r, odd_i = X_r + Y_r, X_i + Y_i, Y_i - X_i, X_r - Y_r
        v_cb_r, v_cb_i, v_cp_r, v_cp_i, v_pp, v_pb_r, v_pb_i = numerators(
            tl.load(p_P + 2 * n), tl.load(p_P + 2 * n + 1), tl.load(p_B + 2 * n), tl.load(p_B + 2 * n + 1),
            tl.load(p_C + 2 * n), tl.load(p_C + 2 * n + 1),
        )  # fmt: skip
        cb_r += v_cb_r * even_r + v_cb_i * odd_r
        cb_i += v_cb_r * even_i + v_cb_i * odd_i
        cp_r += v_cp_r * even_r + v_cp_i * odd_r
        cp_i += v_cp_r * even_i + v_cp_i * odd_i
        pp_r += v_pp * even_r
        pp_i += v_pp * even_i
        pb_r += v_pb_r * even_r + v_pb_i * odd_r
        pb_i += v_pb_r * even_i + v_pb_i * odd_i
    return cb_r, cb_i, cp_r, cp_i, pp_r, pp_i, pb_r, pb_i


@triton.jit
def spectrum_terms(table, p_lambda, p_P, p_B, p_C, b_dt, o_f, F, N):
    """Return cosh(w), e^w, S_cb, S_cp, S_pb, m = 1 / (1 + t S_pp) and S_cp S_pb of one channel, for t = dt cosh(w).

    S are the sums of `cauchy_sums`; the spectrum is dt e^w (S_cb - m t S_cp S_pb).
    """
    a_r, a_i = load_frequencies(table, 0, o_f, F)
    c_r, c_i = load_frequencies(table, 1, o_f, F)
    e_r, e_i = load_frequencies(table, 2, o_f, F)
    t_r, t_i = c_r * b_dt, c_i * b_dt
    cb_r, cb_i, cp_r, cp_i, pp_r, pp_i, pb_r, pb_i = cauchy_sums(p_lambda, p_P, p_B, p_C, N, a_r, a_i, t_r, t_i)
    pp_r, pp_i = multiply(t_r, t_i, pp_r, pp_i)
    m_r, m_i = reciprocal(1.0 + pp_r, pp_i)
    rank_r, rank_i = multiply(cp_r, cp_i, pb_r, pb_i)
    return c_r, c_i, e_r, e_i, cb_r, cb_i, cp_r, cp_i, pb_r, pb_i, m_r, m_i, rank_r, rank_i
