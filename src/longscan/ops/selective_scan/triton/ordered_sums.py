"""Sums of several programs at the same addresses in a fixed order: each program waits for the additions of the one before it.

The programs of a chain add terms of the same tiles, all from the last tile to the first. Each is a few tiles behind the program
before it, so that they seldom wait. `counters` contains, for each program, the number of tiles that it has added. The fixed order
makes the result deterministic, and no memory is needed for the terms of single programs.

Waiting loops and barriers are written in PTX on NVIDIA GPUs, because Triton's would keep the compiler from loading the next tile
in advance. On other GPUs and in Triton's interpreter, plain Triton code does the same (PTX = False).
"""

import triton
import triton.language as tl

from longscan.ops.selective_scan.triton.math import as_integers


@triton.jit
def previous_counter(counters, program, is_first):
    """Return a pointer to the counter of the program before this one in its chain; None without counters.

    is_first: whether the program is the first one of its chain. Its own counter stands for that of the missing one.
    """
    counter = None
    if counters is not None:
        counter = counters + tl.where(is_first, program, program - 1)
    return counter


@triton.jit
def signal(counter, count, FENCED: tl.constexpr, PTX: tl.constexpr):
    """Store `count`, at least 1, in the counter. FENCED: with release semantics, after all earlier stores of this program.

    All threads of a program must come to the barrier together. Triton does not tell LLVM so, which might copy this code into
    branches of single threads: call it where all threads are in the same branch. `tests/ops/test_ordered_sums.py` compiles it.
    """
    if PTX and FENCED:
        code: tl.constexpr = """{
            .reg .pred first;
            mov.u32 $0, %tid.x;
            setp.eq.u32 first, $0, 0;
            bar.sync 0;
            @first st.release.gpu.global.s32 [$1], $2;
        }"""
        args = [counter.to(tl.int64), count]
        tl.inline_asm_elementwise(code, "=&r,l,r", args, dtype=tl.int32, is_pure=False, pack=1)
    elif PTX:
        relaxed: tl.constexpr = """{
            .reg .pred first;
            mov.u32 $0, %tid.x;
            setp.eq.u32 first, $0, 0;
            @first st.relaxed.gpu.global.s32 [$1], $2;
        }"""
        args = [counter.to(tl.int64), count]
        tl.inline_asm_elementwise(relaxed, "=&r,l,r", args, dtype=tl.int32, is_pure=False, pack=1)
    else:
        tl.debug_barrier()
        tl.atomic_xchg(counter, count, sem="release")


@triton.jit
def poll(counter, is_first, added, PTX: tl.constexpr):
    """Return the present value of the counter of the program before, and the least value at which a program may add a tile.

    The load is asynchronous: the first use of the value waits for it. added: number of tiles that the program has added. With PTX
    nothing is loaded, and 0 returned, by the first program of a chain (`is_first`), which waits for none. Without counters both
    are 0.
    """
    seen, least = 0, 0
    if counter is not None:
        least = tl.where(is_first, 0, added + 1)
    if counter is not None and PTX:
        code: tl.constexpr = """{
            .reg .pred due;
            mov.s32 $0, 0;
            setp.gt.s32 due, $2, 0;
            @due ld.relaxed.gpu.global.s32 $0, [$1];
        }"""
        args = [counter.to(tl.int64), least]
        seen = tl.inline_asm_elementwise(code, "=&r,l,r", args, dtype=tl.int32, is_pure=False, pack=1)
    elif counter is not None:
        seen = tl.atomic_add(counter, 0)
    return seen, least


@triton.jit
def spin_wait(counter, seen, least, FENCED: tl.constexpr, PTX: tl.constexpr):
    """Wait until the counter, whose last known value is `seen`, is at least `least`; not without a counter (None).

    FENCED: a fence after the last read orders it before all later accesses to memory, so that the stores before `signal` are
    visible, also where `poll` has read the final value. The first program of a chain needs none.
    """
    if counter is not None and PTX:
        code: tl.constexpr = """{
            .reg .pred late, due;
            mov.s32 $0, $2;
            again: setp.lt.s32 late, $0, $3;
            @late ld.relaxed.gpu.global.s32 $0, [$1];
            @late bra again;
            setp.gt.s32 due, $3, 0;
            FENCE
        }""".replace("FENCE", "@due fence.acq_rel.gpu;" if FENCED else "")
        args = [counter.to(tl.int64), seen, least]
        tl.inline_asm_elementwise(code, "=&r,l,r,r", args, dtype=tl.int32, is_pure=False, pack=1)
    elif counter is not None:
        while seen < least:
            seen = tl.atomic_add(counter, 0)


@triton.jit
def dependency_token(x):
    """Return 0 with a data dependency on every element of x, so that a store of it cannot be reordered before their loads."""
    bits = as_integers(x)
    size: tl.constexpr = bits.dtype.primitive_bitwidth - 1
    return (tl.max(tl.ravel(bits & ((1 << size) - 1)), 0) >> size).to(tl.int32)
