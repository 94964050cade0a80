"""Device functions of the selective scan: factors, scans over the steps of a tile, sums over states and over channels.

A tile of states has the axes (T, CR, NR, CW, NL, CL): T steps, channels (CR, CW, CL) and states (NR, NL). Triton distributes the
last axes over the 32 lanes of a warp and then over the warps: CL channels and NL states over lanes, CW channels and a part of NR
over warps. The rest, with all steps, is in the registers of a thread, so a scan over the steps needs no communication.
Values of a channel alone are (T, BD) tiles, values of a state alone (T, BN) tiles. Complex numbers are two tensors.
"""

import triton
import triton.language as tl

from longscan.ops._triton import INVALID, RESET, affine, segmented_affine, sincos, softplus, where_positive

# ---------------------------------------------------------------------------------------------- elements of tiles


@triton.jit
def as_integers(x):
    """Return the bits of x as integers, whose sums and differences are exact also where x is infinite or NaN."""
    return x.to(tl.int64 if x.dtype == tl.float64 else tl.int32, bitcast=True)


@triton.jit
def select_row(x, mask):
    """Return the one element along axis 0 of x that `mask` selects."""
    return tl.sum(tl.where(mask, as_integers(x), 0), 0).to(x.dtype, bitcast=True)


@triton.jit
def pick(x, index: tl.constexpr):
    """Return x[index] for x (n, T, CR, NR, CW, NL, CL)."""
    return select_row(x, tl.reshape(tl.arange(0, x.shape[0]) == index, (x.shape[0], 1, 1, 1, 1, 1, 1)))


@triton.jit
def stack_steps(a, b):
    """Return two tiles, or two (T, BD) tensors, one after the other along the steps."""
    if len(a.shape) == 2:
        both = tl.where((tl.arange(0, 2) == 0)[:, None, None], a[None], b[None])
        both = tl.reshape(both, (2 * a.shape[0], a.shape[1]))
    else:
        both = tl.permute(tl.join(a, b), (6, 0, 1, 2, 3, 4, 5))
        both = tl.reshape(both, (2 * a.shape[0], a.shape[1], a.shape[2], a.shape[3], a.shape[4], a.shape[5]))
    return both


@triton.jit
def swap_pair(x, axis: tl.constexpr):
    """Return x with the two elements along an axis of size 2 exchanged, computed as their sum minus each, in integers."""
    bits = as_integers(x)
    return (tl.sum(bits, axis, keep_dims=True) - bits).to(x.dtype, bitcast=True)


@triton.jit
def flip(x):
    """Return a tile reversed in time."""
    shape: tl.constexpr = x.shape
    for i in tl.static_range(10):
        if 2**i < shape[0]:
            x = tl.reshape(x, (2**i, 2, shape[0] // 2 ** (i + 1), shape[1], shape[2], shape[3], shape[4], shape[5]))
            first, second = tl.split(tl.permute(x, (0, 2, 3, 4, 5, 6, 7, 1)))
            x = tl.permute(tl.join(second, first), (0, 7, 1, 2, 3, 4, 5, 6))
    return tl.reshape(x, shape)


@triton.jit
def _keep_previous(x1, previous1, has1, x2, previous2, has2):  # noqa: ARG001
    """Combine for `shift_steps`: each x, the one before it, and whether there is one."""
    return x2, tl.where(has2, previous2, x1), has1 | True


@triton.jit
def shift_steps(x, first):
    """Return a tile delayed by one step, with `first` at its first step. Only a scan can shift within registers in Triton."""
    first, _ = tl.broadcast(first, x)
    _, before, _ = tl.associative_scan((x, first, tl.full(x.shape, 0, tl.int1)), 0, _keep_previous)
    return before


# ---------------------------------------------------------------------------------------------- loads


@triton.jit
def channel_offsets(SHAPE: tl.constexpr):
    """Return the channels of a program, (CR, 1, CW, 1, CL). SHAPE: (CR, NR, CW, NL, CL)."""
    CR: tl.constexpr = SHAPE[0]
    CW: tl.constexpr = SHAPE[2]
    CL: tl.constexpr = SHAPE[4]
    first = (tl.arange(0, CR) * (CW * CL))[:, None, None] + (tl.arange(0, CW) * CL)[None, :, None]
    return (first + tl.arange(0, CL)[None, None, :])[:, None, :, None, :]


@triton.jit
def state_offsets(SHAPE: tl.constexpr):
    """Return the states of a channel, (1, NR, 1, NL, 1). SHAPE: (CR, NR, CW, NL, CL)."""
    NR: tl.constexpr = SHAPE[1]
    NL: tl.constexpr = SHAPE[3]
    return ((tl.arange(0, NR) * NL)[:, None] + tl.arange(0, NL)[None, :])[None, :, None, :, None]


@triton.jit
def locate_pairs(first_channel, channels, states, SHAPE: tl.constexpr):
    """Return the offsets in (D, N) of the pairs of a channel and a state of a program, (CR, NR, CW, NL, CL), and which exist."""
    o_channel, o_state = first_channel + channel_offsets(SHAPE), state_offsets(SHAPE)
    return o_channel * states + o_state, (o_channel < channels) & (o_state < states)


@triton.jit
def transposed_offsets(stride, SHAPE: tl.constexpr):
    """Return the offsets of the pairs of a program in a matrix (N, stride) whose first column is the program's first channel."""
    return state_offsets(SHAPE) * stride + channel_offsets(SHAPE)


@triton.jit
def load_pairs(pointers, mask):
    """Load one number for each pair of a channel and a state, (CR, NR, CW, NL, CL)."""
    x = tl.load(pointers, mask=mask, other=0.0)
    return tl.reshape(x[None], x.shape)


@triton.jit
def store_pair_parts(pointers, re, im, mask, COMPLEX: tl.constexpr):
    """Store the real parts of numbers for pairs at `pointers`, and the imaginary parts one number later if they are complex."""
    tl.store(pointers, re, mask=mask)
    if COMPLEX:
        tl.store(pointers + 1, im, mask=mask)


@triton.jit
def store_map(maps, i_b, i_c, chunks, size, o_pair, m_pair, a_re, a_im, h_re, h_im, blocks, COMPLEX: tl.constexpr):
    """Store the map h -> a h + b of a chunk: a in the first and b, given as h, in the second half of `maps`."""
    P: tl.constexpr = 2 if COMPLEX else 1
    half = (tl.num_programs(0) // blocks).to(tl.int64) * chunks * size * P
    p_out = maps + (i_b * chunks + i_c) * size * P + o_pair * P
    store_pair_parts(p_out, a_re, a_im, m_pair, COMPLEX)
    store_pair_parts(p_out + half, h_re, h_im, m_pair, COMPLEX)


@triton.jit
def load_and_pass(
    p_h, maps, i_b, first, chunks, sign: tl.constexpr, count, size, o_pair, m_pair, blocks, zero, COMPLEX: tl.constexpr
):  # fmt: skip
    """Load the state at p_h (`zero` if that is None) and apply the maps of `count` chunks to it unless `maps` is None.

    Returns the real and the imaginary part. maps: as `store_map` stores it, for real A. first: index of the first of these
    chunks. sign: 1 for chunks in the order of time; -1 in reversed time, for gradients.
    """
    P: tl.constexpr = 2 if COMPLEX else 1
    h_re, h_im = zero, zero
    if p_h is not None:
        h_re = tl.load(p_h + o_pair * P, mask=m_pair, other=0.0)
        h_im = h_re
        if COMPLEX:
            h_im = tl.load(p_h + o_pair * P + 1, mask=m_pair, other=0.0)
    if maps is not None:
        half = (tl.num_programs(0) // blocks).to(tl.int64) * chunks * size
        p_first = maps + (i_b * chunks + first) * size + o_pair
        AHEAD: tl.constexpr = 4  # chunks whose maps are loaded together, so that their loads overlap
        for i in range(0, count, AHEAD):
            for k in tl.static_range(AHEAD):
                p_map, m_map = p_first + sign * (i + k) * size, where_positive(m_pair, count - i - k)
                factor = tl.load(p_map, mask=m_map, other=1.0)  # beyond the last chunk the map is the identity
                h_re = factor * h_re + tl.load(p_map + half, mask=m_map, other=0.0)
        h_im = h_re
    return tl.reshape(h_re[None], h_re.shape), tl.reshape(h_im[None], h_im.shape)


@triton.jit
def expand_channels(x, T: tl.constexpr, like):
    """Return n stacked tensors, x (n T, BD), as n tiles. like: tensor of the shape of the pairs (CR, NR, CW, NL, CL).

    The new axis keeps Triton from using the layout of x in the scans.
    """
    n: tl.constexpr = x.shape[0] // T
    x = tl.reshape(x[:, None, :], (n, T, like.shape[0], 1, like.shape[2], 1, like.shape[4]))
    return tl.broadcast_to(x, (n, T, like.shape[0], like.shape[1], like.shape[2], like.shape[3], like.shape[4]))


@triton.jit
def materialize(x, MATERIALIZE: tl.constexpr):
    """Return x (T, BD), computed once. Without this sum Triton computes it in every thread if threads outnumber elements."""
    if MATERIALIZE:
        first = (tl.arange(0, 4) == 0)[None, None, :]
        x = tl.sum(tl.where(first, x[:, :, None], 0.0), 2)
    return x


@triton.jit
def load_states(source, offsets, mask, like, COMPLEX: tl.constexpr):
    """Load (T, BN) real numbers of the states as one tile, or (T, 2 BN) parts of complex ones as two stacked tiles.

    like: tensor of the shape of the pairs (CR, NR, CW, NL, CL), with the dtype of the result.
    """
    P: tl.constexpr = 2 if COMPLEX else 1
    NR: tl.constexpr = like.shape[1]
    NL: tl.constexpr = like.shape[3]
    x = tl.load(source + offsets, mask=mask, other=0.0).to(like.dtype)
    T: tl.constexpr = x.shape[0]
    x = tl.permute(tl.reshape(x, (T, NR * NL, P)), (2, 0, 1))
    x = tl.reshape(x[:, :, :, None], (P, T, 1, NR, 1, NL, 1))
    return tl.broadcast_to(x, (P, T, like.shape[0], NR, like.shape[2], NL, like.shape[4]))


@triton.jit
def load_pair_parts(pointers, distance, mask, COMPLEX: tl.constexpr):
    """Load the real and the imaginary parts of numbers for pairs, `distance` apart; twice the real parts if they are real."""
    re = load_pairs(pointers, mask)
    im = re
    if COMPLEX:
        im = load_pairs(pointers + distance, mask)
    return re, im


@triton.jit
def load_channels(source, i_group, channels, o_d, dtype: tl.constexpr):
    """Load the numbers of a group for the channels o_d (BD,); zeros if `source` is None."""
    x = tl.zeros(o_d.shape, dtype)
    if source is not None:
        x = tl.load(source + i_group * channels + o_d, mask=o_d < channels, other=0.0)
    return x


@triton.jit
def load_flags(flags, first, o_t, m_t):
    """Return which steps of a tile are valid and which restart the state. first: the tile's first step in (B L)."""
    valid, restart = m_t, o_t < 0
    if flags is not None:
        flag = tl.load(flags + first + o_t, mask=m_t, other=INVALID)
        valid, restart = m_t & (flag != INVALID), flag == RESET
    return valid, restart


@triton.jit
def load_tile_masks(flags, first, m_t, o_t, o_d, o_n, channels, width):
    """Return which steps of a tile are valid and which restart the state, and the masks of the numbers of valid steps.

    The masks are for the channels o_d, (T, BD), and for `width` numbers of the states, o_n. first: the first step in (B L). m_t:
    which steps exist.
    """
    valid, restart = load_flags(flags, first, o_t, m_t)
    return valid, restart, valid[:, None] & (o_d < channels)[None, :], valid[:, None] & (o_n < width)[None, :]


@triton.jit
def tile_offsets(first, o_t, o_d, o_n, channels, width):
    """Return the offsets of a tile: of its channels, (T, BD), and of `width` numbers of the states. first: its first step."""
    o_td = first * channels + (o_t[:, None] * channels + o_d[None, :])
    return o_td, first * width + (o_t[:, None] * width + o_n[None, :])


@triton.jit
def load_step_sizes(
    dt, dt_scale, o_td, first, o_t, bias, valid, m_td, SOFTPLUS: tl.constexpr, MATERIALIZE: tl.constexpr
):  # fmt: skip
    """Return the step sizes (T, BD), which are 0 at invalid steps, and the tuple of all from which they follow.

    The tuple has dt + bias, the scale, and the step sizes before they are multiplied by the scale.
    """
    dt_raw = tl.load(dt + o_td, mask=m_td, other=0.0).to(bias.dtype) + bias[None, :]
    unscaled = dt_raw
    if SOFTPLUS:
        unscaled = softplus(dt_raw)
    b_dt, scale = unscaled, 1.0
    if dt_scale is not None:
        scale = tl.load(dt_scale + first + o_t, mask=valid, other=0.0).to(bias.dtype)[:, None]
        b_dt *= scale
    return materialize(tl.where(m_td, b_dt, 0.0), MATERIALIZE), (dt_raw, scale, unscaled)


# ---------------------------------------------------------------------------------------------- sums


@triton.jit
def sum_over_lanes(x):
    """Return x (T, M, L) summed over L, an axis that is distributed over the lanes of a warp; the T steps are in registers.

    At each level of this sum pairs of lanes exchange one half of their steps and add, so that each lane has half as many steps
    left, T' in the end. The result is (T', M * T / T'); `restore_step_order` brings it into the order of the steps.
    """
    half = tl.arange(0, 2)
    for _ in tl.static_range(5):
        if x.shape[0] > 1 and x.shape[2] > 1:
            x = tl.reshape(x, (2, x.shape[0] // 2, x.shape[1], 2, x.shape[2] // 2))
            first, second = tl.split(tl.permute(x, (1, 2, 3, 4, 0)))
            is_lower = (half == 0)[None, None, :, None]
            x = tl.where(is_lower, first, second) + swap_pair(tl.where(is_lower, second, first), 2)
            x = tl.reshape(x, (x.shape[0], x.shape[1] * 2, x.shape[3]))
    return tl.sum(x, 2)


@triton.jit
def restore_step_order(x, T: tl.constexpr):
    """Return the result of `sum_over_lanes` for (T, M, L) as (T, M)."""
    shape: tl.constexpr = (x.shape[0], x.shape[0] * x.shape[1] // T, T // x.shape[0])
    return tl.reshape(tl.permute(tl.reshape(x, shape), (2, 0, 1)), (T, shape[1]))


@triton.jit
def sum_over_states(x, NW: tl.constexpr):
    """Return a tile summed over the states, (T, BD). NW: number of warps among which the states are divided."""
    T: tl.constexpr = x.shape[0]
    CR: tl.constexpr = x.shape[1]
    CW: tl.constexpr = x.shape[3]
    NL: tl.constexpr = x.shape[4]
    CL: tl.constexpr = x.shape[5]
    x = tl.sum(tl.reshape(x, (T, CR, x.shape[2] // NW, NW, CW, NL, CL)), 2)
    x = sum_over_lanes(tl.reshape(tl.permute(x, (0, 1, 2, 3, 5, 4)), (T, CR * NW * CW * CL, NL)))
    left: tl.constexpr = x.shape[0]
    x = tl.sum(tl.reshape(x, (left, CR, NW, CW * CL * (T // left))), 2)
    return restore_step_order(tl.reshape(x, (left, CR * CW * CL * (T // left))), T)


@triton.jit
def sum_over_channels(x):
    """Return a tile summed over the channels, (T, BN)."""
    T: tl.constexpr = x.shape[0]
    NR: tl.constexpr = x.shape[2]
    CW: tl.constexpr = x.shape[3]
    NL: tl.constexpr = x.shape[4]
    x = sum_over_lanes(tl.reshape(tl.sum(x, 1), (T, NR * CW * NL, x.shape[5])))
    left: tl.constexpr = x.shape[0]
    x = tl.sum(tl.reshape(x, (left, NR, CW, NL * (T // left))), 2)
    return restore_step_order(tl.reshape(x, (left, NR * NL * (T // left))), T)


# ---------------------------------------------------------------------------------------------- factors and scans


@triton.jit
def decay(dt, A_re, A_im, COMPLEX: tl.constexpr):
    """Return the real and imaginary part of exp(dt A).

    In float32 the angle is measured in half turns. The nearest whole number of them is subtracted, so that the rest r is between
    -1/2 and 1/2, and the sign is changed for an odd number. sin(pi r) and cos(pi r) are near-minimax polynomials, whose largest
    errors are 5.3e-9 and 2.5e-10 in exact arithmetic, and 2e-7 and 1.5e-7 in float32.
    """
    size = tl.exp2(dt * (A_re * 1.4426950408889634))
    if COMPLEX and dt.dtype == tl.float64:
        s, c = sincos(dt * A_im)
        re, im = size * c, size * s
    elif COMPLEX:
        half_turns = A_im * 0.3183098861837907
        shifted = dt * half_turns + 12582912.0  # 1.5 * 2^23: the sum has no fraction, and its last bit says whether it is odd
        r = dt * half_turns - (shifted - 12582912.0)
        q = r * r
        s = q * 0.07756038697733733 - 0.5982421264103598
        s = q * s + 2.550069726333355
        s = q * s - 5.167709684798838
        s = q * s + 3.141592636895391
        c = q * -0.024420699929364294 + 0.2349539256378065
        c = q * c - 1.3352161048711328
        c = q * c + 4.058709599759716
        c = q * c - 4.934802156087734
        odd = shifted.to(tl.int32, bitcast=True) << 31  # the sign bit for an odd number of half turns
        size = (size.to(tl.int32, bitcast=True) ^ odd).to(tl.float32, bitcast=True)
        re, im = size * (q * c + 1.0), size * r * s
    else:
        re, im = size, size
    return re, im


@triton.jit
def complex_affine(ar1, ai1, br1, bi1, ar2, ai2, br2, bi2):
    """Compose x -> a1 x + b1 and x -> a2 x + b2 for complex numbers, with one multiplication or FMA for each real product."""
    return (
        ar1 * ar2 - ai1 * ai2,
        ar1 * ai2 + ai1 * ar2,
        ar2 * br1 + (br2 - ai2 * bi1),
        ar2 * bi1 + (bi2 + ai2 * br1),
    )


@triton.jit
def segmented_complex_affine(restart1, ar1, ai1, br1, bi1, restart2, ar2, ai2, br2, bi2):
    """Compose as `complex_affine`, but ignore the first map where the second restarts the state."""
    ar, ai, br, bi = complex_affine(ar1, ai1, br1, bi1, ar2, ai2, br2, bi2)
    return restart1 | restart2, ar, ai, tl.where(restart2, br2, br), tl.where(restart2, bi2, bi)


@triton.jit
def expand_restarts(restart, x):
    """Return `restart` (T,) broadcast to the shape of the tile x."""
    return tl.broadcast_to(tl.reshape(restart, (x.shape[0], 1, 1, 1, 1, 1)), x.shape)


@triton.jit
def scan_steps(a_re, a_im, b_re, b_im, restart, COMPLEX: tl.constexpr):
    """Return x_t = a_t x_{t-1} + b_t from x = 0, and x_t = b_t where `restart` (a tile, or None)."""
    if COMPLEX:
        if restart is not None:
            operands = (restart, a_re, a_im, b_re, b_im)
            _, _, _, x_re, x_im = tl.associative_scan(operands, 0, segmented_complex_affine)
        else:
            _, _, x_re, x_im = tl.associative_scan((a_re, a_im, b_re, b_im), 0, complex_affine)
    else:
        if restart is not None:
            _, _, x_re = tl.associative_scan((restart, a_re, b_re), 0, segmented_affine)
        else:
            _, x_re = tl.associative_scan((a_re, b_re), 0, affine)
        x_im = x_re
    return x_re, x_im


@triton.jit
def compute_tile_states(a_re, a_im, b_input, b_B, h_re, h_im, flags, restart, COMPLEX: tl.constexpr):
    """Return the states after each step of a tile, from the state h before it. b_input: dt u. restart: (T,), used with flags."""
    T: tl.constexpr = a_re.shape[0]
    first, restarts = tl.reshape(tl.arange(0, T) == 0, (T, 1, 1, 1, 1, 1)), None
    if flags is not None:
        restarts = expand_restarts(restart, a_re)
        first = first & ~restarts
    b_re = b_input * pick(b_B, 0)
    b_im = b_re
    if COMPLEX:
        b_re += tl.where(first, a_re * h_re[None] - a_im * h_im[None], 0.0)
        b_im = b_input * pick(b_B, 1) + tl.where(first, a_re * h_im[None] + a_im * h_re[None], 0.0)
    else:
        b_re += tl.where(first, a_re * h_re[None], 0.0)
    return scan_steps(a_re, a_im, b_re, b_im, restarts, COMPLEX)


@triton.jit
def read_states(
    x_re, x_im, b_C, b_u, skip, PAIR_FACTOR: tl.constexpr, COMPLEX: tl.constexpr, NW: tl.constexpr
):  # fmt: skip
    """Return the outputs of a tile before the gate, (T, BD), from the states after its steps."""
    b_read = x_re * pick(b_C, 0)
    if COMPLEX:
        b_read -= x_im * pick(b_C, 1)
    return PAIR_FACTOR * sum_over_states(b_read, NW) + skip[None, :] * b_u
