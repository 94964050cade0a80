"""Compare the CPU kernels with what the processor can do at best: its exponentials, sines, multiplications and copies.

    python benchmarks/cpu_floor.py
    LONGSCAN_CPU_ISA=avx2 python benchmarks/cpu_floor.py --out build/floor.jsonl

Everything runs on one thread in float32. benchmarks/cpu_floor.cpp is compiled for the instruction set of the kernels and
measures the time of an exponential, of a sine with its cosine (the functions of csrc/simd.h and csrc/phase.h, on an array in
the cache), of a fused multiplication and addition, and of a copied number, into a new tensor of the size of the call's, because
an op returns new tensors. `counts` has how many of these an element of each op needs at least. The floor is the sum of its
exponentials, sines and multiplications, or the time of its copies if that is longer. A row is a call, in nanoseconds per
element. Freed memory is kept, as in the commands of longscan: otherwise a call of a few megabytes may take several times as long,
because its new tensors are new pages. The exit status is 1 if a call takes over 1.5 times its floor. Needs a C++ compiler.
"""

import ctypes
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from cpu_rows import make_parser, write_row
from longscan._allocator import keep_freed_memory
from longscan.ops import _native
from longscan.ops._cpu import empty
from op_calls import LINEAR, SELECTIVE, SHORT_CONV, UNITARY, OpCall, Shape, parse_sizes

ROOT = Path(__file__).parents[1]
CACHED = 2**10  # size of an array that fits into the first-level cache


@dataclass(frozen=True)
class Count:
    """The least work for an element. copied: numbers that are read and written, half of them counted, as a copy has both."""

    exponentials: float
    sines: float
    multiply_adds: float
    copied: float


# An element is one state at one step (B L D N) of the scans, and one value (B L D) of linear_scan and short_conv.
#
# selective_scan, forward: the decay is an exponential of a product; the input is a product, state and output are multiplied and
# added to. Backward: decays and states again (one exponential, three multiplications), then the gradients of the state, C, B,
# the input, the decay (two), dt and A, and the gradient passed on: nine.
# unitary_scan, forward: D multiplications for the angle, one sine with its cosine, adding and wrapping the phase (3), B times
# the input (2) in the rotating frame (4), the state back (4), times C (2). Backward: angle, sine and state again (D + 9), the
# gradient of the state (2 + 4 + 4), of the input (4), of the angle (4), of B and C (8); D each for the gradients of u and W.
# linear_scan: forward reads a and b and writes x; backward reads three and writes two. short_conv with four taps and SiLU:
# forward reads one and writes one, backward reads two and writes one; a SiLU counts as an exponential and four multiplications.
def counts(op: str, shape: Shape, backward: bool) -> Count:
    """Return the least work for an element of an op's forward pass, or of its forward and backward pass."""
    D, N = shape["D"], shape.get("N", 1)
    forward_and_both = {
        "selective_scan": (Count(1, 0, 4, 2 / N), Count(2, 0, 16, 5.5 / N)),
        "unitary_scan": (Count(0, 1, D + 15, 2 / N), Count(0, 2, 4 * D + 50, 5.5 / N)),
        "linear_scan": (Count(0, 0, 1, 1.5), Count(0, 0, 3, 4)),
        "short_conv": (Count(1, 0, 8, 1), Count(2, 0, 24, 2.5)),
    }
    return forward_and_both[op][backward]


CASES = (
    ("selective", SELECTIVE, "8 1024 256 16"),
    ("unitary", UNITARY, "4 1024 64 64"),
    ("unitary", UNITARY, "4 1024 32 32"),
    ("linear", LINEAR, "4 1024 256"),
    ("convolution", SHORT_CONV, "4 1024 256"),
)


def compile_probe(folder: Path) -> ctypes.CDLL:
    """Return the functions of cpu_floor.cpp, compiled as CMakeLists.txt compiles the kernels of the instruction set in use."""
    text, isa = (ROOT / "CMakeLists.txt").read_text("utf-8"), _native.isa()
    (common,) = re.findall(r"\$\{flags_\$\{isa\}\} (-O3 .*)", text)
    own = re.findall(rf"set\(flags_{isa} (-.*)\)", text)
    flags = [*common.split(), *(own[0].split() if own else ()), f"-DLONGSCAN_ISA={isa}", f"-I{ROOT / 'csrc'}"]
    library = folder / "probe.so"
    source = Path(__file__).with_suffix(".cpp")
    subprocess.run(["c++", "-std=c++17", "-shared", "-fPIC", *flags, str(source), "-o", str(library)], check=True)
    return ctypes.CDLL(str(library))


def least_seconds(call: Callable[[], object], seconds: float) -> float:
    """Return the shortest time of a call that is repeated for `seconds`, and at least five times.

    The least elapsed time is little changed by other processes. Processor time is too coarse on some virtual machines.
    """
    call()
    begin, least, runs = time.perf_counter(), float("inf"), 0
    while runs < 5 or time.perf_counter() - begin < seconds:
        start = time.perf_counter()
        call()
        least, runs = min(least, time.perf_counter() - start), runs + 1
    return least


def unit_times(probe: ctypes.CDLL, seconds: float) -> Count:
    """Return the nanoseconds of one exponential, one sine with its cosine, and one multiplication and addition."""

    def nanoseconds(name: str, repeats: int) -> float:
        x, y = torch.linspace(-0.5, 0.5, CACHED), torch.empty(CACHED)
        function, pointers = getattr(probe, name), [ctypes.c_void_p(a.data_ptr()) for a in (x, y)]
        function.restype = ctypes.c_int64
        counts = ctypes.c_int64(CACHED), ctypes.c_int64(repeats)
        results: list[int] = []
        least = least_seconds(lambda: results.append(function(*pointers, *counts)), seconds)
        return least * 1e9 / (results[-1] if name == "multiply_adds" else CACHED * repeats)

    return Count(nanoseconds("exponentials", 1000), nanoseconds("sines", 1000), nanoseconds("multiply_adds", 100000), 0.0)


def copy_time(numbers: int, seconds: float) -> float:
    """Return the nanoseconds for each number that is copied into a new tensor of `numbers` numbers."""
    x = torch.ones(1, numbers)
    return least_seconds(lambda: empty(x, x.shape).copy_(x), seconds) * 1e9 / numbers


def measure(call: OpCall, shape: Shape, backward: bool, seconds: float) -> float:
    """Return the least time of a call's forward pass, or of its forward and backward pass, in nanoseconds per element."""
    inputs = call.inputs(shape)
    if backward:
        leaves = [x.requires_grad_() for x in inputs]
        dy = torch.ones_like(call.call(*leaves, backend="cpu"))

        def run() -> object:
            return torch.autograd.grad(call.call(*leaves, backend="cpu"), leaves, dy)
    else:

        def run() -> object:
            return call.call(*inputs, backend="cpu")

    elements = shape["B"] * shape["L"] * shape["D"] * shape.get("N", 1)
    return least_seconds(run, seconds) * 1e9 / elements


def main() -> int:
    """Read the command line and measure; the exit status is 1 if a call takes over 1.5 times its floor."""
    options = make_parser(__doc__, seconds=1.0).parse_args()
    keep_freed_memory()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        unit = unit_times(compile_probe(Path(folder)), options.seconds)
    units = {name: f"{value:.4f}" for name, value in vars(unit).items() if value}
    print("nanoseconds:", *(f"{name} {value}" for name, value in units.items()), _native.isa(), flush=True)
    within = True
    for name, call, sizes in CASES:
        shape = parse_sizes(sizes)
        copied = copy_time(shape["B"] * shape["L"] * shape["D"], options.seconds)
        for backward in (False, True):
            least = counts(call.op, shape, backward)
            arithmetic = sum(getattr(least, kind) * getattr(unit, kind) for kind in ("exponentials", "sines", "multiply_adds"))
            floor = max(arithmetic, least.copied * copied)
            taken = measure(call, shape, backward, options.seconds)
            kind = "forward and backward" if backward else "forward"
            row = {"call": f"{name} {sizes}", "pass": kind, "ns": taken, "floor_ns": floor, "ratio": taken / floor}
            row |= {"unit_ns": vars(unit) | {"copied": copied}, "isa": _native.isa()}
            print(f"{name} {sizes}, {kind}: {taken:.4f} ns, floor {floor:.4f}, ratio {taken / floor:.2f}", flush=True)
            within &= taken <= 1.5 * floor
            write_row(options.out, row)
    return int(not within)


if __name__ == "__main__":
    sys.exit(main())
