"""PTX of the counters of `selective_scan`'s chains, compiled for Hopper without a GPU and not run."""

import pytest

pytest.importorskip("triton", reason="Triton is not installed")
import triton
import triton.language as tl

from longscan.ops import _gpu
from longscan.ops.selective_scan.triton.ordered_sums import poll, previous_counter, signal, spin_wait

pytestmark = pytest.mark.skipif(_gpu.INTERPRETED, reason="the interpreter compiles nothing")


@triton.jit
def chain_kernel(counters, sums, tiles, FENCED: tl.constexpr):
    """Add 1 to each of `tiles` runs of 128 sums, each after the program before this one."""
    program = tl.program_id(0)
    previous = previous_counter(counters, program, program == 0)
    for i in tl.range(tiles, num_stages=3):
        seen, least = poll(previous, program == 0, i, True)
        spin_wait(previous, seen, least, FENCED, True)
        tl.atomic_add(sums + i * 128 + tl.arange(0, 128), 1.0, sem="relaxed")
        signal(counters + program, i + 1, FENCED, True)


@pytest.mark.parametrize("fenced", [True, False])
def test_ptx_of_ordered_sums_is_valid_and_in_order(fenced: bool) -> None:
    """A fence follows the wait and precedes the sums; a barrier of all threads and a release follow the sums."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature = {"counters": "*i32", "sums": "*fp32", "tiles": "i32", "FENCED": "constexpr"}
    source = ASTSource(chain_kernel, signature, {(3,): fenced})
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4, "enable_fp_fusion": True})
    assert compiled.asm["cubin"]  # assembled by ptxas
    ptx = compiled.asm["ptx"]
    store = "st.release.gpu.global.s32" if fenced else "st.relaxed.gpu.global.s32"
    parts = ["@late bra again", *["fence.acq_rel.gpu"] * fenced, "red.global.gpu", *["bar.sync 0;"] * fenced, store]
    copies = ptx.count("@late bra again")  # the compiler has one loop for the first program and one for the others
    assert [ptx.count(part) for part in parts] == [copies] * len(parts)
    assert ptx.count("fence.acq_rel.gpu") == copies * fenced
    places = [ptx.index(part) for part in parts]
    assert places == sorted(places)
