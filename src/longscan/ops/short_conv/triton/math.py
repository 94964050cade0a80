"""Device functions of `short_conv`: windows of K inputs, as tuples of blocks (BLOCK_D,), the oldest input first."""

import triton
import triton.language as tl

from longscan.ops._triton import append, where_positive


@triton.jit
def row_of_step(order, i_step, m_step):
    """Return the row of u of the valid step i_step: order[i_step], or i_step itself if `order` is None."""
    i_row = i_step
    if order is not None:
        i_row = tl.load(order + i_step, mask=m_step, other=0)
    return tl.cast(i_row, tl.int64)


@triton.jit
def load_parameters(weight, bias, i_group, o_d, D, K: tl.constexpr):
    """Return the K columns of the weight, and the bias or 0."""
    b_weight, b_bias = (), tl.zeros(o_d.shape, weight.dtype.element_ty)
    for k in tl.static_range(K):
        b_weight = append(b_weight, tl.load(weight + (i_group * D + o_d) * K + k, mask=o_d < D, other=0.0))
    if bias is not None:
        b_bias = tl.load(bias + i_group * D + o_d, mask=o_d < D, other=0.0)
    return b_weight, b_bias


@triton.jit
def load_window(p_u, p_initial, order, i_step, D, m_d, K: tl.constexpr):
    """Return the K - 1 inputs before a step: rows of u, and of the initial state (D, K - 1) before the first step.

    They are in the dtype of the initial state, which is that of the computation.
    """
    b_window = ()
    for k in tl.static_range(K - 1):
        i_input = i_step - (K - 1) + k
        p_input = p_u + row_of_step(order, i_input, i_input >= 0) * D
        b_input = tl.load(p_input, mask=where_positive(m_d, i_input + 1), other=0.0).to(p_initial.dtype.element_ty)
        b_input += tl.load(p_initial + (K - 1) + i_input, mask=where_positive(m_d, -i_input), other=0.0)
        b_window = append(b_window, b_input)
    return b_window


@triton.jit
def load_start(starts, i_step, m_step, K: tl.constexpr):
    """Return the first step of the segment of a step, or None without `starts`."""
    start = None
    if starts is not None:
        start = tl.load(starts + i_step, mask=m_step, other=1 - K)
    return start


@triton.jit
def select_segment(x, i_step, k: tl.constexpr, start, K: tl.constexpr):
    """Return x, a value of entry k of the window of a step, or 0 if the entry is before `start`."""
    if start is not None and k < K - 1:
        x = tl.where(i_step - (K - 1) + k >= start, x, 0.0)
    return x


@triton.jit
def convolve(b_window, b_weight, b_bias, i_step, start, K: tl.constexpr):
    """Return bias + sum_k weight_k window_k, where entries of other segments count as 0."""
    b_sum = b_bias
    for k in tl.static_range(K):
        b_sum += select_segment(b_weight[k] * b_window[k], i_step, k, start, K)
    return b_sum


@triton.jit
def add_products(b_sums, b_ds, b_factors, i_step, start, K: tl.constexpr):
    """Return the tuple of sums_k + ds factors_k, for the gradient ds of `convolve` at a step."""
    b_added = ()
    for k in tl.static_range(K):
        b_added = append(b_added, b_sums[k] + select_segment(b_ds * b_factors[k], i_step, k, start, K))
    return b_added


@triton.jit
def zeros(b_like, number: tl.constexpr):
    """Return a tuple of `number` blocks of zeros like `b_like`."""
    b_zeros = ()
    for _ in tl.static_range(number):
        b_zeros = append(b_zeros, tl.zeros(b_like.shape, b_like.dtype))
    return b_zeros
