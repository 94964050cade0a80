"""Device functions of the kernels of `unitary_scan`: angles, lanes of a program, and numbers in two fp16 parts.

A lane is a pair of a channel and a state. Tiles are (T steps, R lanes), states fastest; complex numbers are two tensors.
"""

import triton
import triton.language as tl

from longscan.ops._triton import fast_sincos, sincos, wrap

U_SCALE = tl.constexpr(16.0)  # u is divided by it, and W multiplied, before they become fp16, which is infinite beyond 65504

# ---------------------------------------------------------------------------------------------- angles


@triton.jit
def add_wrapped(a, b):
    """Add two angles and wrap the sum to [-pi, pi]."""
    return wrap(a + b)


@triton.jit
def add_wrapped_exclusive(a, before_a, b, before_b):  # noqa: ARG001
    """Return the wrapped sum of two angles, and the sum before the last term; an operator for an exclusive scan."""
    return wrap(a + b), a + before_b


@triton.jit
def add_wrapped_segmented(restart1, a, restart2, b):
    """Return whether there was a restart, and the wrapped sum of the angles since the last one."""
    return restart1 | restart2, tl.where(restart2, b, wrap(a + b))


@triton.jit
def rotate_back(re, im, angle):
    """Return a complex number times e^{-i angle}."""
    s, c = sincos(angle)
    return c * re + s * im, c * im - s * re


@triton.jit
def sincos_of_phase(angle, FAST: tl.constexpr):
    """Return sin and cos of angles in about [-2 pi, 2 pi], by the special function unit with FAST."""
    if FAST:
        s, c = fast_sincos(angle)
    else:
        s, c = sincos(angle)
    return s, c


# ---------------------------------------------------------------------------------------------- two fp16 parts


@triton.jit
def split_fp16_hi_lo(x, scale):
    """Return hi and lo in fp16 with x scale = hi + lo / 2048: 22 bits, or as many as lie above 2^-36."""
    x *= scale
    hi = x.to(tl.float16)
    return hi, ((x - hi.to(tl.float32)) * 2048.0).to(tl.float16)


@triton.jit
def dot_hi_lo(a_hi, a_lo, b_hi, b_lo, acc, scale):
    """Return acc + a b scale for factors in two parts, without the product of the low parts.

    Tensor cores truncate the sums that they accumulate, so only products of one tile are accumulated there. The multiplication
    by `scale` keeps the compiler from passing `acc` to them.
    """
    low = tl.dot(a_lo, b_hi, tl.dot(a_hi, b_lo)) * (1.0 / 2048.0)
    return tl.fma(tl.dot(a_hi, b_hi, low), scale, acc)


@triton.jit
def fp16_scale(peak):
    """Return the power of two that scales numbers up to `peak` to below 2^15, and its inverse, NaN if `peak` is not finite."""
    exponent = peak.to(tl.int32, bitcast=True) & 0x7F800000
    inverse = tl.maximum(exponent - (14 << 23), 1 << 23)
    finite_inverse = tl.where(exponent == 0x7F800000, 0x7FC00000, inverse)
    return ((254 << 23) - inverse).to(tl.float32, bitcast=True), finite_inverse.to(tl.float32, bitcast=True)


# ---------------------------------------------------------------------------------------------- lanes


@triton.jit
def program_lanes(
    D: tl.constexpr, N: tl.constexpr, STATE_BLOCKS: tl.constexpr, BLOCKS: tl.constexpr, BD: tl.constexpr, BN: tl.constexpr
):
    """Return the block of states of a program, its first channel, the mask of its lanes and their offsets in (D, N)."""
    i_r, o_r = tl.program_id(0) % BLOCKS, tl.arange(0, BD * BN)
    i_n, first_channel = i_r % STATE_BLOCKS, (i_r // STATE_BLOCKS) * BD
    o_d, o_n = first_channel + o_r // BN, i_n * BN + o_r % BN
    return i_n, first_channel, (o_d < D) & (o_n < N), o_d * N + o_n


@triton.jit
def load_pairs(p_x, o_r, m_r):
    """Return real and imaginary parts of numbers that are stored as pairs."""
    return tl.load(p_x + o_r * 2, mask=m_r, other=0.0), tl.load(p_x + o_r * 2 + 1, mask=m_r, other=0.0)


@triton.jit
def load_coefficients(p_x, o_r, m_r, N: tl.constexpr, SHARED: tl.constexpr):
    """Return both parts of B or C of the lanes, from pairs (D, N, 2), or (N, 2) with SHARED: all channels have the same."""
    return load_pairs(p_x, o_r % N if SHARED else o_r, m_r)


@triton.jit
def load_state(p_state, m_r, size):
    """Return the phase and both parts of the state in the rotating frame, from (3, size)."""
    phase = tl.load(p_state, mask=m_r, other=0.0)
    return phase, tl.load(p_state + size, mask=m_r, other=0.0), tl.load(p_state + 2 * size, mask=m_r, other=0.0)


@triton.jit
def store_state(p_state, phase, w_re, w_im, m_r, size):
    """Store what `load_state` reads."""
    tl.store(p_state, phase, mask=m_r)
    tl.store(p_state + size, w_re, mask=m_r)
    tl.store(p_state + 2 * size, w_im, mask=m_r)


@triton.jit
def load_channels(x, o_td, m_d, T: tl.constexpr, BD: tl.constexpr, BN: tl.constexpr):
    """Return a tile of x (T, BD) for all states of the channels, (T, BD BN)."""
    b_x = tl.load(x + o_td, mask=m_d[None, :], other=0.0)
    return tl.reshape(tl.broadcast_to(b_x[:, :, None], (T, BD, BN)), (T, BD * BN))


@triton.jit
def sum_over_states(x, T: tl.constexpr, BD: tl.constexpr, BN: tl.constexpr):
    """Return x (T, BD BN) summed over the states, (T, BD).

    Two neighbours are added at each level, after which half of the lanes would be idle. The compiler gives these lanes other
    steps, so that a sum takes each lane about one exchange instead of log2(BN).
    """
    if BN > 1:
        even, odd = tl.split(tl.reshape(x, (T, BD, BN // 2, 2)))
        sums = sum_over_states(even + odd, T, BD, BN // 2)
    else:
        sums = tl.reshape(x, (T, BD))
    return sums


# ---------------------------------------------------------------------------------------------- projection


@triton.jit
def load_weights(p_W, o_r, m_r, D, K: tl.constexpr):
    """Load W U_SCALE of the lanes in two fp16 parts, (K, R) each. With K = 0 return p_W twice, from which `project` loads W."""
    W_hi, W_lo = p_W, p_W
    if K:
        o_k = tl.arange(0, K)[:, None]
        W_hi, W_lo = split_fp16_hi_lo(tl.load(p_W + o_r[None, :] * D + o_k, mask=m_r[None, :] & (o_k < D), other=0.0), U_SCALE)
    return W_hi, W_lo


@triton.jit
def project(
    u_hi, u_lo, W_hi, W_lo, o_row, o_r, m_r, D, T: tl.constexpr, R: tl.constexpr, K: tl.constexpr, WARPGROUP: tl.constexpr
):  # fmt: skip
    """Return W u (T, R) of the rows o_row of u. In float64 (K = 0) u_hi points to u and W_hi to W, without parts.

    WARPGROUP: the program has four warps, whose common instructions need at least 64 rows: W is the first factor then.
    """
    if K:
        o_u = o_row[None, :] * K + tl.arange(0, K)[:, None]
        b_u_hi, b_u_lo = tl.trans(tl.load(u_hi + o_u)), tl.trans(tl.load(u_lo + o_u))
        if WARPGROUP:
            b_u_hi, b_u_lo, W_hi, W_lo = tl.trans(b_u_hi), tl.trans(b_u_lo), tl.trans(W_hi), tl.trans(W_lo)
            low = tl.dot(W_lo, b_u_hi, tl.dot(W_hi, b_u_lo))
            b_Wu = tl.trans(tl.dot(W_hi, b_u_hi) + low * (1.0 / 2048.0))
        else:
            low = tl.dot(b_u_hi, W_lo, tl.dot(b_u_lo, W_hi))
            b_Wu = tl.dot(b_u_hi, W_hi) + low * (1.0 / 2048.0)
        # The scan over an axis of size 1 changes only the layout, so that a thread has all steps of its lanes. Without it, the
        # compiler would convert the other operands to the layout of tensor cores, and the angles back.
        b_Wu = tl.reshape(tl.cumsum(tl.reshape(b_Wu, (T, R, 1)), 2), (T, R))
    else:
        b_Wu = tl.zeros((T, R), u_hi.dtype.element_ty)
        for k in range(D):
            b_W = tl.load(W_hi + o_r * D + k, mask=m_r, other=0.0)
            b_Wu += tl.load(u_hi + o_row * D + k)[:, None] * b_W[None, :]
    return b_Wu


@triton.jit
def load_bias_tile(p_bias, o_r, m_r, T: tl.constexpr):
    """Load the bias as a tile (T, R). The compiler derives the layout of the scans over time from the layout of this load."""
    return tl.load(p_bias + o_r[None, :] + tl.arange(0, T)[:, None] * 0, mask=m_r[None, :], other=0.0)


@triton.jit
def load_angles(
    u_hi, u_lo, dt, valid, W_hi, W_lo, b_bias, row, o_t, o_td, o_r, m_r, m_d, D,
    T: tl.constexpr, BD: tl.constexpr, BN: tl.constexpr, K: tl.constexpr, WARPGROUP: tl.constexpr = False,
):  # fmt: skip
    """Return the angles of a tile (T, R), and two factors of them.

    With dt the factors are W u + bias and dt, (T, R) each. Otherwise the angles are W u + bias at valid steps, and the factors
    are W u and the mask `valid` (T, 1). row: offset of the batch row in u and `valid`, in steps.
    """
    b_Wu = project(u_hi, u_lo, W_hi, W_lo, row + o_t, o_r, m_r, D, T, BD * BN, K, WARPGROUP)
    if dt is not None:
        b_Wu += b_bias
        factor = load_channels(dt, o_td, m_d, T, BD, BN)
        theta = b_Wu * factor
    else:
        factor = tl.load(valid + row + o_t)[:, None]
        theta = b_Wu + factor * b_bias
    return theta, b_Wu, factor
