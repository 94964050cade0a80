"""What the Triton kernels share: range reduction and elementary functions, operators of associative scans, chains of splits.

Everything here is plain arithmetic, without calls to a vendor's library in inner loops, and the same on every GPU and in Triton's
interpreter; float32 and float64 alike. Complex numbers are two tensors. A tile holds consecutive steps along axis 0.
"""

import triton
import triton.language as tl

# ---------------------------------------------------------------------------------------------- elementary functions


@triton.jit
def wrap(x):
    """`x` less whole turns: within half a turn of 0. The first part of the turn has 12 bits, so its product is exact.

    With |x| below 25,000 (float32) the error is that of one rounding of the result.
    """
    if x.dtype == tl.float64:
        n = (x * 0.15915494309189535 + 6755399441055744.0) - 6755399441055744.0
        rest = (x - n * 6.283185243606567) - n * 6.357301909411279e-08
    else:
        n = (x * 0.15915494309189535 + 12582912.0) - 12582912.0
        rest = (x - n * 6.283203125) - n * -1.7817820413523074e-05
    return rest


@triton.jit
def sincos(x):
    """sin(x), cos(x): x less half turns, near-minimax polynomials, and the sign of an odd number of half turns."""
    if x.dtype == tl.float64:
        shifted = x * 0.3183098861837907 + 6755399441055744.0
        n = shifted - 6755399441055744.0
        r = (x - n * 3.1415926218032837) - n * 3.178650954705639e-08
        q = r * r
        s = 2.71847808555646080e-15
        s = q * s - 7.64271116775693643e-13
        s = q * s + 1.60589277674820232e-10
        s = q * s - 2.5052106605225255e-8
        s = q * s + 2.75573192077708485e-6
        s = q * s - 0.00019841269841185861
        s = q * s + 0.0083333333333331137
        s = q * s - 0.166666666666666645
        c = q * -1.51228493859344402e-16 + 4.77690764831524881e-14
        c = q * c - 1.14706719101165939e-11
        c = q * c + 2.08767557135584128e-9
        c = q * c - 2.7557319210405044e-7
        c = q * c + 0.0000248015873014998723
        c = q * c - 0.00138888888888885705
        c = q * c + 0.041666666666666661
        c = q * c - 0.5
        flip = shifted.to(tl.int64, bitcast=True) << 63
        sine = (((r * q) * s + r).to(tl.int64, bitcast=True) ^ flip).to(tl.float64, bitcast=True)
        cosine = ((q * c + 1.0).to(tl.int64, bitcast=True) ^ flip).to(tl.float64, bitcast=True)
    else:
        shifted = x * 0.31830988618379067 + 12582912.0
        n = shifted - 12582912.0
        r = (x - n * 3.1416015625) - n * -8.908910206761537e-06
        q = r * r
        s = q * 2.60002448459523376e-6 - 0.000198066015967426324
        s = q * s + 0.00833301710461481536
        s = q * s - 0.166666570889362478
        c = q * -2.60768168437181856e-7 + 0.00002476187063885143
        c = q * c - 0.00138884032207222194
        c = q * c + 0.041666640707521854
        c = q * c - 0.499999995491106717
        flip = shifted.to(tl.int32, bitcast=True) << 31
        sine = (((r * q) * s + r).to(tl.int32, bitcast=True) ^ flip).to(tl.float32, bitcast=True)
        cosine = ((q * c + 1.0).to(tl.int32, bitcast=True) ^ flip).to(tl.float32, bitcast=True)
    return sine, cosine


@triton.jit
def fast_sincos(x):
    """sin(x), cos(x) by NVIDIA's special function unit: off by at most 2^-20.5 for |x| <= pi."""
    s = tl.inline_asm_elementwise("sin.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
    c = tl.inline_asm_elementwise("cos.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
    return s, c


@triton.jit
def sigmoid(x):
    """1 / (1 + e^-x)."""
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def silu(x):
    """x sigmoid(x)."""
    return x * sigmoid(x)


@triton.jit
def silu_slope(x):
    """The derivative of silu."""
    gate = sigmoid(x)
    return gate * (1.0 + x * (1.0 - gate))


@triton.jit
def softplus(x):
    """log(1 + e^x). Of y = e^-|x|, log(1 + y) is a polynomial times y (float32), or 2 atanh(y / (2 + y)) (float64)."""
    y = tl.exp(-tl.abs(x))
    if x.dtype == tl.float64:
        s = y / (2.0 + y)
        q = s * s
        p = q * 0.05714285714285714 + 0.06060606060606061
        p = q * p + 0.06451612903225806
        p = q * p + 0.06896551724137931
        p = q * p + 0.07407407407407407
        p = q * p + 0.08
        p = q * p + 0.08695652173913043
        p = q * p + 0.09523809523809523
        p = q * p + 0.10526315789473684
        p = q * p + 0.11764705882352941
        p = q * p + 0.13333333333333333
        p = q * p + 0.15384615384615385
        p = q * p + 0.18181818181818182
        p = q * p + 0.2222222222222222
        p = q * p + 0.2857142857142857
        p = q * p + 0.4
        p = q * p + 0.6666666666666666
        p = q * p + 2.0
        log = s * p
    else:
        p = y * -0.00446621142 + 0.0252240542
        p = y * p - 0.0667577237
        p = y * p + 0.115618452
        p = y * p - 0.158475652
        p = y * p + 0.19854106
        p = y * p - 0.249865264
        p = y * p + 0.333328426
        p = y * p - 0.49999997
        p = y * p + 1.0
        log = y * p
    return tl.maximum(x, 0.0) + log


# ---------------------------------------------------------------------------------------------- operators of associative scans


@triton.jit
def affine(a1, b1, a2, b2):
    """Of x -> a x + b: first 1, then 2."""
    return a1 * a2, a2 * b1 + b2


@triton.jit
def affine_complex(ar1, ai1, br1, bi1, ar2, ai2, br2, bi2):
    """`affine` for complex numbers."""
    return (
        ar1 * ar2 - ai1 * ai2,
        ar1 * ai2 + ai1 * ar2,
        ar2 * br1 - ai2 * bi1 + br2,
        ar2 * bi1 + ai2 * br1 + bi2,
    )


@triton.jit
def affine_moved(a1, b1, m1, a2, b2, m2):  # noqa: ARG001
    """`affine`, and beside each state b the part m = a x of it that came from the state before: no difference is ever taken."""
    moved = a2 * b1
    return a1 * a2, moved + b2, moved + m2


@triton.jit
def affine_moved_complex(ar1, ai1, br1, bi1, mr1, mi1, ar2, ai2, br2, bi2, mr2, mi2):  # noqa: ARG001
    """`affine_moved` for complex numbers."""
    mr, mi = ar2 * br1 - ai2 * bi1, ar2 * bi1 + ai2 * br1
    return ar1 * ar2 - ai1 * ai2, ar1 * ai2 + ai1 * ar2, mr + br2, mi + bi2, mr + mr2, mi + mi2


@triton.jit
def adjoint(a1, p1, g1, a2, p2, g2):
    """Backwards in time (1 later, 2 earlier) g_t = v_t + a_{t+1} g_{t+1}: a is that of the earliest step, p x + g its g.

    A single step has p = 1 and g = v. The factor that belongs to the next step is taken from there, not loaded again.
    """
    return a2, p2 * (a1 * p1), p2 * (a1 * g1) + g2


@triton.jit
def adjoint_complex(ar1, ai1, pr1, pi1, gr1, gi1, ar2, ai2, pr2, pi2, gr2, gi2):
    """`adjoint` for complex numbers, the factors a conjugated already."""
    xr, xi = ar1 * pr1 - ai1 * pi1, ar1 * pi1 + ai1 * pr1
    yr, yi = ar1 * gr1 - ai1 * gi1, ar1 * gi1 + ai1 * gr1
    return (
        ar2,
        ai2,
        pr2 * xr - pi2 * xi,
        pr2 * xi + pi2 * xr,
        pr2 * yr - pi2 * yi + gr2,
        pr2 * yi + pi2 * yr + gi2,
    )


# ---------------------------------------------------------------------------------------------- tiles


@triton.jit
def row_of(x, which):
    """The row of a tile (steps, lanes) that `which` (steps, 1) marks."""
    return tl.sum(tl.where(which, x, 0.0), 0)


@triton.jit
def over_states(x, T: tl.constexpr, BD: tl.constexpr, NB: tl.constexpr):
    """A tile (T, BD * NB) of channels and states, summed over the states: (T, BD)."""
    return tl.sum(tl.reshape(x, (T, BD, NB)), 2)


@triton.jit
def over_channels(x, T: tl.constexpr, BD: tl.constexpr, NB: tl.constexpr):
    """A tile (T, BD * NB) of channels and states, summed over the channels: (T, NB)."""
    return tl.sum(tl.reshape(x, (T, BD, NB)), 1)


# ---------------------------------------------------------------------------------------------- chains of splits


@triton.jit(do_not_specialize=["splits"])
def chain(mult, local, first, out, splits, size, COMPLEX: tl.constexpr, REVERSE: tl.constexpr, BLOCK: tl.constexpr):
    """States between splits of the time axis: x <- mult x + local, split after split.

    mult, local: (B, splits, size[, 2]); first: (B, size[, 2]); out: (B, splits + 1, size[, 2]), out[:, 0] = first. With REVERSE
    from the last split to the first, by conj(mult), and out[:, splits] = first.
    """
    parts: tl.constexpr = 2 if COMPLEX else 1
    b = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    here = place < size
    xr = tl.load(first + (b * size + place) * parts, mask=here, other=0.0)
    xi = xr
    if COMPLEX:
        xi = tl.load(first + (b * size + place) * 2 + 1, mask=here, other=0.0)
    for i in range(splits + 1):
        before = splits - i if REVERSE else i
        to = ((b * (splits + 1) + before) * size + place) * parts
        tl.store(out + to, xr, mask=here)
        if COMPLEX:
            tl.store(out + to + 1, xi, mask=here)
        split = before - 1 if REVERSE else before
        ours = here & (place * 0 + i < splits)
        source = ((b * splits + split) * size + place) * parts
        mr = tl.load(mult + source, mask=ours, other=0.0)
        br = tl.load(local + source, mask=ours, other=0.0)
        if COMPLEX:
            mi = tl.load(mult + source + 1, mask=ours, other=0.0)
            bi = tl.load(local + source + 1, mask=ours, other=0.0)
            mi = -mi if REVERSE else mi
            moved = mr * xr - mi * xi
            xi = mr * xi + mi * xr + bi
            xr = moved + br
        else:
            xr = mr * xr + br


@triton.jit(do_not_specialize=["length", "tiles", "rows", "raw_stride"])
def leave(
    raw, u, D, z, flags, y, length, channels, tiles, rows, raw_stride, ACTIVATED: tl.constexpr,
    T: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """y = (raw + D u) silu(z), or with silu(u) for u where ACTIVATED; 0 at invalid steps."""
    b, tile = (tl.program_id(0) // tiles).to(tl.int64), tl.program_id(0) % tiles
    steps, d = tl.arange(0, T), tl.program_id(1) * BD + tl.arange(0, BD)
    inside = tile * T + steps < length
    first = b * length + tile * T
    valid = inside
    if flags is not None:
        valid = inside & (tl.load(flags + first + steps, mask=inside, other=1) != 1)
    offsets = steps[:, None] * channels + d[None, :]
    at = first * channels + offsets
    here, there = valid[:, None] & (d < channels)[None, :], inside[:, None] & (d < channels)[None, :]
    value = tl.load(raw + b * raw_stride + tile.to(tl.int64) * T * channels + offsets, mask=here, other=0.0)
    if D is not None:
        skip = tl.load(D + (b // rows) * channels + d, mask=d < channels, other=0.0)
        entry = tl.load(u + at, mask=here, other=0.0)
        value += skip[None, :] * (silu(entry) if ACTIVATED else entry)
    if z is not None:
        value *= silu(tl.load(z + at, mask=here, other=0.0))
    tl.store(y + at, value, mask=there)
