"""Arithmetic of `block2_scan` on blocks of matrices: tuples of their entries, row by row, each a vector (BLOCK_S,).

In memory the entries of a matrix lie next to each other: a block is a tile (BLOCK_S, entries).
"""

import triton
import triton.language as tl

from longscan.ops._triton import append


@triton.jit
def block_offsets(i_s, S, N: tl.constexpr, BLOCK_S: tl.constexpr):
    """Return the offsets of block `i_s` in a row of S matrices of N entries, and the mask of those that exist."""
    o_s = (i_s * BLOCK_S + tl.arange(0, BLOCK_S))[:, None] * N + tl.arange(0, N)[None, :]
    return o_s, o_s < S * N


@triton.jit
def unpack(tile, K: tl.constexpr):
    """Return the entries of the 2 x K matrices that are the rows of a tile."""
    if K == 1:
        entries = tl.split(tile)
    else:
        left, right = tl.split(tl.reshape(tile, (tile.shape[0], 2, 2)))
        a, c = tl.split(left)
        b, d = tl.split(right)
        entries = (a, b, c, d)
    return entries


@triton.jit
def pack(entries, K: tl.constexpr):
    """Return the tile whose rows are 2 x K matrices with these entries."""
    if K == 1:
        tile = tl.join(entries[0], entries[1])
    else:
        left, right = tl.join(entries[0], entries[2]), tl.join(entries[1], entries[3])
        tile = tl.reshape(tl.join(left, right), (left.shape[0], 4))
    return tile


@triton.jit
def multiply(M, x, K: tl.constexpr):
    """Return M x of 2 x 2 matrices M and 2 x K matrices x."""
    upper, lower = (), ()
    for k in tl.static_range(K):
        upper = append(upper, M[0] * x[k] + M[1] * x[K + k])
        lower = append(lower, M[2] * x[k] + M[3] * x[K + k])
    return upper + lower


@triton.jit
def multiply_add(M, x, f, K: tl.constexpr):
    """Return M x + f."""
    upper, lower = (), ()
    for k in tl.static_range(K):
        upper = append(upper, M[0] * x[k] + (M[1] * x[K + k] + f[k]))
        lower = append(lower, M[2] * x[k] + (M[3] * x[K + k] + f[K + k]))
    return upper + lower


@triton.jit
def transpose(M):
    """Return the transpose of 2 x 2 matrices."""
    return (M[0], M[2], M[1], M[3])


@triton.jit
def add(x, y):
    """Return x + y."""
    total = ()
    for i in tl.static_range(len(x)):
        total = append(total, x[i] + y[i])
    return total


@triton.jit
def add_outer(total, g, x, K: tl.constexpr):
    """Return total + g x^T of 2 x K matrices g and x."""
    for k in tl.static_range(K):
        total = (
            total[0] + g[k] * x[k], total[1] + g[k] * x[K + k], total[2] + g[K + k] * x[k], total[3] + g[K + k] * x[K + k],
        )  # fmt: skip
    return total


@triton.jit
def where(condition, x, y):
    """Return x where the condition holds, otherwise y."""
    chosen = ()
    for i in tl.static_range(len(x)):
        chosen = append(chosen, tl.where(condition, x[i], y[i]))
    return chosen


@triton.jit
def cast(x, dtype: tl.constexpr):
    """Return the entries as numbers of this type."""
    converted = ()
    for i in tl.static_range(len(x)):
        converted = append(converted, x[i].to(dtype))
    return converted


@triton.jit
def zeros(N: tl.constexpr, BLOCK_S: tl.constexpr, dtype: tl.constexpr):
    """Return matrices of N entries that are 0."""
    entries = ()
    for _ in tl.static_range(N):
        entries = append(entries, tl.zeros((BLOCK_S,), dtype))
    return entries


@triton.jit
def identity(BLOCK_S: tl.constexpr, dtype: tl.constexpr):
    """Return 2 x 2 identity matrices."""
    b_zero, b_one = tl.zeros((BLOCK_S,), dtype), tl.full((BLOCK_S,), 1.0, dtype)
    return (b_one, b_zero, b_zero, b_one)


@triton.jit
def apply_chunk_maps(
    b_x, mult, local, restarted, o_M, m_M, o_x, m_x, S, first, step: tl.constexpr, n_chunks, K: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):  # fmt: skip
    """Return the state x after the maps x -> mult x + local of `n_chunks` chunks, from chunk `first` on in steps of `step`."""
    b_wide = cast(b_x, tl.float64)
    p_m, p_l = mult + first * S * 4 + o_M, local + first * S * (2 * K) + o_x
    for i in tl.range(0, n_chunks, num_stages=NUM_STAGES, loop_unroll_factor=4):
        b_m = unpack(tl.load(p_m, mask=m_M, other=0.0), 2)
        b_l = cast(unpack(tl.load(p_l, mask=m_x, other=0.0), K), tl.float64)
        b_next = multiply_add(b_m, b_wide, b_l, K)
        if restarted is not None:
            b_next = where(tl.load(restarted + first + i * step) != 0, b_l, b_next)
        b_wide = b_next
        p_m += step * S * 4
        p_l += step * S * (2 * K)
    return cast(b_wide, b_x[0].dtype)
