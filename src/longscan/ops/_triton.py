"""Functions that several Triton kernels use: elementary functions, operators of associative scans, loads of tiles, state passing.

Inner loops use plain arithmetic instead of a vendor's library, so that results are the same on every GPU and in Triton's
interpreter, in float32 and float64. A complex number is two tensors. A tile has consecutive steps along axis 0.
"""

import triton
import triton.language as tl

from longscan.ops import arguments

INVALID, RESET = tl.constexpr(arguments.INVALID), tl.constexpr(arguments.RESET)  # flags of a step, see `arguments.step_flags`

# ---------------------------------------------------------------------------------------------- elementary functions


@triton.jit
def wrap(x):
    """Return the angle x wrapped to [-pi, pi].

    2 pi is subtracted in two parts, the first of which has 12 bits, so that its product with a whole number is exact. With |x|
    below 25,000 (float32) the error is that of one rounding of the result.
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
    """Return sin(x) and cos(x).

    Multiples of pi are subtracted from x, polynomials that are nearly minimax are evaluated, and the sign is changed for an odd
    multiple.
    """
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
    """Return sin(x) and cos(x) by NVIDIA's special function unit, with errors of at most 2^-20.5 for |x| <= pi."""
    s = tl.inline_asm_elementwise("sin.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
    c = tl.inline_asm_elementwise("cos.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
    return s, c


@triton.jit
def sigmoid(x):
    """Return 1 / (1 + e^-x)."""
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def silu(x):
    """Return x sigmoid(x)."""
    return x * sigmoid(x)


@triton.jit
def silu_derivative(x):
    """Return the derivative of silu at x."""
    gate = sigmoid(x)
    return gate * (1.0 + x * (1.0 - gate))


@triton.jit
def softplus(x):
    """Return log(1 + e^x).

    With y = e^-|x|, log(1 + y) is computed as a polynomial times y (float32) or as 2 atanh(y / (2 + y)) (float64).
    """
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
    """Return the composition of the maps x -> a x + b: first that of index 1, then that of index 2."""
    return a1 * a2, a2 * b1 + b2


# Packed rows: no value of a sequence may reach the next one, and 0 times NaN is NaN. So values from before a restart are not
# multiplied by 0: restarts are operands of the scans, whose operators do not select those values.
@triton.jit
def segmented_add(restart1, x1, restart2, x2):
    """Return whether one of two consecutive runs has a restart, and the sum since the latest restart."""
    return restart1 | restart2, tl.where(restart2, x2, x1 + x2)


@triton.jit
def segmented_add_pair(restart1, x1, y1, restart2, x2, y2):
    """Apply `segmented_add` to two separate sums, x and y."""
    return restart1 | restart2, tl.where(restart2, x2, x1 + x2), tl.where(restart2, y2, y1 + y2)


@triton.jit
def segmented_affine(restart1, a1, b1, restart2, a2, b2):
    """Compose maps as `affine` does; a restart replaces x by 0 before its map."""
    return restart1 | restart2, a1 * a2, tl.where(restart2, b2, a2 * b1 + b2)


# ---------------------------------------------------------------------------------------------- tiles


@triton.jit
def row_of(x, which):
    """Return the row of a tile (steps, lanes) where `which` (steps, 1) is True.

    It is the sum of this row and of -0 elsewhere; the compiler removes additions of -0, but not of 0.
    """
    return tl.sum(tl.where(which, x, -0.0), 0)


@triton.jit
def append(items, item):
    """Return a tuple with one more item."""
    return items + (item,)  # noqa: RUF005


@triton.jit
def where_positive(mask, count):
    """Return the mask `mask` if `count` is positive, otherwise a mask that is False everywhere."""
    return mask & (tl.zeros(mask.shape, tl.int32) < count)


# ---------------------------------------------------------------------------------------------- state passing


@triton.jit
def load_rows(source, stride, mask, count, T: tl.constexpr):
    """Return the rows at source, source + stride, ... as a tuple of T tiles, which are 0 from `count` on."""
    rows = ()
    for k in tl.static_range(T):
        rows = append(rows, tl.load(source + k * stride, mask=where_positive(mask, count - k), other=0.0))
    return rows


@triton.jit
def load_numbers(source, stride, count, T: tl.constexpr):
    """Return the numbers at source, source + stride, ... as a tuple of T scalars, which are 0 from `count` on."""
    numbers = ()
    for k in tl.static_range(T):
        numbers = append(numbers, tl.load(source + k * stride, mask=k < count, other=0))
    return numbers


@triton.jit(do_not_specialize=["chunks"])
def state_passing_kernel(
    mult, local, first, restarts, out, chunks, size, COMPLEX: tl.constexpr, REVERSE: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Pass a state from chunk to chunk, x <- mult x + local, and store it before and after every chunk.

    mult, local: (B, chunks, size[, 2]); first: (B, size[, 2]); out: (B, chunks + 1, size[, 2]), out[:, 0] = first. With REVERSE
    the state passes from the last chunk to the first, with conj(mult), and out[:, chunks] = first. first: None for zero.
    restarts: (B, chunks), not 0 where a sequence starts in a chunk, so that x <- local there; None if no sequence does. BLOCK:
    numbers of a state in a program.
    """
    n_components: tl.constexpr = 2 if COMPLEX else 1
    b = tl.program_id(0).to(tl.int64)
    offset = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = offset < size
    xr = tl.zeros((BLOCK,), mult.dtype.element_ty)
    if first is not None:
        xr = tl.load(first + (b * size + offset) * n_components, mask=mask, other=0.0)
    xi = xr
    if COMPLEX and first is not None:
        xi = tl.load(first + (b * size + offset) * 2 + 1, mask=mask, other=0.0)
    AHEAD: tl.constexpr = 16  # chunks whose numbers are loaded together, so that their loads overlap
    for i in range(0, chunks + 1, AHEAD):
        chunk, left = chunks - i - 1 if REVERSE else i, chunks - i
        source = ((b * chunks + chunk) * size + offset) * n_components
        stride = -size * n_components if REVERSE else size * n_components
        mult_re = load_rows(mult + source, stride, mask, left, AHEAD)
        local_re = load_rows(local + source, stride, mask, left, AHEAD)
        if COMPLEX:
            mult_im = load_rows(mult + source + 1, stride, mask, left, AHEAD)
            local_im = load_rows(local + source + 1, stride, mask, left, AHEAD)
        if restarts is not None:
            starts = load_numbers(restarts + b * chunks + chunk, -1 if REVERSE else 1, left, AHEAD)
        for k in tl.static_range(AHEAD):
            before = chunks - i - k if REVERSE else i + k
            target = ((b * (chunks + 1) + before) * size + offset) * n_components
            target_mask = mask & (offset * 0 + i + k <= chunks)
            tl.store(out + target, xr, mask=target_mask)
            if COMPLEX:
                tl.store(out + target + 1, xi, mask=target_mask)
            mr, br = mult_re[k], local_re[k]
            if restarts is not None:
                continues = starts[k] == 0
                mr, xr = tl.where(continues, mr, 0.0), tl.where(continues, xr, 0.0)
            if COMPLEX:
                mi, bi = -mult_im[k] if REVERSE else mult_im[k], local_im[k]
                if restarts is not None:
                    mi, xi = tl.where(continues, mi, 0.0), tl.where(continues, xi, 0.0)
                moved = mr * xr - mi * xi
                xi = mr * xi + mi * xr + bi
                xr = moved + br
            else:
                xr = mr * xr + br
