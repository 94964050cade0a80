"""What the Triton kernels share: range reduction and elementary functions, operators of associative scans,
walks over the steps of a split, chains of splits.

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


# Packed rows: what a sequence holds must not reach the next one, and 0 times NaN is NaN. So restarts are operands of the scans,
# and values from before a restart are never used, instead of being multiplied by 0.
@triton.jit
def segmented_add(restart1, x1, restart2, x2):
    """Whether there was a restart, and the sum since the latest one: first 1, then 2."""
    return restart1 | restart2, tl.where(restart2, x2, x1 + x2)


@triton.jit
def segmented_add_pair(restart1, x1, y1, restart2, x2, y2):
    """`segmented_add` of two numbers, of which each has its own sum."""
    return restart1 | restart2, tl.where(restart2, x2, x1 + x2), tl.where(restart2, y2, y1 + y2)


@triton.jit
def segmented_affine(restart1, a1, b1, restart2, a2, b2):
    """`affine`, where x is 0 before a restart, whatever it was."""
    return restart1 | restart2, a1 * a2, tl.where(restart2, b2, a2 * b1 + b2)


# ---------------------------------------------------------------------------------------------- tiles


@triton.jit
def row_of(x, which):
    """The row of a tile (steps, lanes) that `which` (steps, 1) marks. Sums with -0, unlike those with 0, cost nothing."""
    return tl.sum(tl.where(which, x, -0.0), 0)


@triton.jit
def extended(items, item):
    """A tuple and one item more."""
    return items + (item,)  # noqa: RUF005


@triton.jit
def where_positive(live, count):
    """`live` where `count` is positive, else nothing."""
    return live & (tl.zeros(live.shape, tl.int32) < count)


# ---------------------------------------------------------------------------------------------- walks over the steps of a split


@triton.jit
def walk(split, span, length, REVERSE: tl.constexpr, BACKWARDS: tl.constexpr, T: tl.constexpr):
    """The first step of a split, how many it has, and at which step of the tensors a walk over it begins."""
    first = (split * span).to(tl.int64) * T
    steps = tl.minimum(length - first, span * T).to(tl.int32)
    start = first + steps - 1 if BACKWARDS else first
    if REVERSE:
        start = length - 1 - start
    return first, steps, start


@triton.jit
def next_rows(source, stride, live, T: tl.constexpr):
    """The next T rows of a walk."""
    rows = ()
    for j in tl.static_range(T):
        rows = extended(rows, tl.load(source + j * stride, mask=live, other=0.0))
    return rows


@triton.jit
def next_numbers(source, sign, T: tl.constexpr):
    """What stands at the next T steps of a walk, a number each; nothing where source is None."""
    numbers = ()
    for j in tl.static_range(T):
        if source is not None:
            numbers = extended(numbers, tl.load(source + j * sign))
    return numbers


# ---------------------------------------------------------------------------------------------- chains of splits


@triton.jit(do_not_specialize=["splits"])
def chain(mult, local, first, restarts, out, splits, size, COMPLEX: tl.constexpr, REVERSE: tl.constexpr, BLOCK: tl.constexpr):
    """States between splits of the time axis: x <- mult x + local, split after split.

    mult, local: (B, splits, size[, 2]); first: (B, size[, 2]); out: (B, splits + 1, size[, 2]), out[:, 0] = first. With REVERSE
    from the last split to the first, by conj(mult), and out[:, splits] = first. restarts: (B, splits), not 0 where a sequence
    starts in a split, for which x <- local; None where none does.
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
        if restarts is not None:
            goes_on = tl.load(restarts + b * splits + split, mask=i < splits, other=0) == 0
            mr, xr = tl.where(goes_on, mr, 0.0), tl.where(goes_on, xr, 0.0)
        if COMPLEX:
            mi = tl.load(mult + source + 1, mask=ours, other=0.0)
            bi = tl.load(local + source + 1, mask=ours, other=0.0)
            mi = -mi if REVERSE else mi
            if restarts is not None:
                mi, xi = tl.where(goes_on, mi, 0.0), tl.where(goes_on, xi, 0.0)
            moved = mr * xr - mi * xi
            xi = mr * xi + mi * xr + bi
            xr = moved + br
        else:
            xr = mr * xr + br
