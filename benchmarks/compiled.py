"""Compile the Triton kernels on a machine without a GPU and print registers, spills, shared memory and instructions of loops.

    python benchmarks/compiled.py                                 the cases of the suite gpu, for Hopper
    python benchmarks/compiled.py --only unitary --capability 80
    python benchmarks/compiled.py --only unitary --set unitary_scan=16,64,1
    python benchmarks/compiled.py --only S4                       the transform of S4's kernel
    python benchmarks/compiled.py --only selective --without-ptx  as for GPUs of other vendors than NVIDIA

Every launch of a kernel is replaced by its compilation. Instructions of a loop are counted for one thread and iteration, by
opcode, the most frequent first. LDL and STL are spills; SHFL, STS and LDS exchange data between threads; MUFU is the special
function unit; HMMA and HGMMA are matrix units.
"""

import argparse
import collections
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from cases.ops import ON_GPU
from harness import set_launches
from longscan.ops import _gpu, _triton_launch, dispatch, dplr_spectrum

TYPES = {
    torch.float32: "*fp32", torch.float64: "*fp64", torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.uint8: "*u8",
    torch.int32: "*i32", torch.int64: "*i64",
}  # fmt: skip
TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
MAX_STEPS = 512  # length of a case: the compiled code of longer ones is the same
MIN_INSTRUCTIONS = 60  # smallest number of instructions of a loop that is printed


class Compiler:
    """Compiles a kernel for the arguments of a launch, once for equal types, and prints the result."""

    def __init__(self, capability: int) -> None:
        self.target, self.seen = GPUTarget("cuda", capability, 32), set()

    def __call__(self, kernel: JITFunction, args: tuple[Any, ...], given: dict[str, Any]) -> None:
        """Compile `kernel` for these arguments; given: its compile-time arguments and the compiler's options."""
        bound = dict(zip(kernel.arg_names, args, strict=False)) | {k: v for k, v in given.items() if k in kernel.arg_names}
        options = {k: v for k, v in given.items() if k not in kernel.arg_names}
        signature, constants, aligned = {}, {}, {}
        for i, parameter in enumerate(kernel.params):
            value = bound[parameter.name]
            fixed = value is None or parameter.is_constexpr or (type(value) is int and value == 1)
            if fixed and (parameter.is_constexpr or value is None or not parameter.do_not_specialize):
                signature[parameter.name], constants[(i,)] = "constexpr", value
                continue
            signature[parameter.name] = self._type(value)
            even = isinstance(value, torch.Tensor) or (isinstance(value, int) and value % 16 == 0)
            if even and not parameter.do_not_specialize:
                aligned[(i,)] = [["tt.divisibility", 16]]
        key = kernel, tuple(signature.values()), tuple(constants.values()), tuple(options.values()), tuple(aligned)
        if key in self.seen:
            return
        self.seen.add(key)
        start = time.perf_counter()
        compiled = triton.compile(ASTSource(kernel, signature, constants, aligned), target=self.target, options=options)
        seconds = time.perf_counter() - start
        self._print(kernel.__name__, compiled, seconds)

    @staticmethod
    def _type(value: Any) -> str:
        if isinstance(value, torch.Tensor):
            return TYPES[value.dtype]
        if isinstance(value, float):
            return "fp32"
        return "i32" if -(2**31) <= value < 2**31 else "i64"

    @staticmethod
    def _print(name: str, compiled: Any, seconds: float) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "kernel.cubin"
            path.write_bytes(compiled.asm["cubin"])
            usage, code = (
                subprocess.run([TOOLS / "cuobjdump", option, path], capture_output=True, text=True, check=True).stdout
                for option in ("-res-usage", "-sass")
            )
        found = re.search(r"REG:(\d+) STACK:(\d+) SHARED:(\d+)", usage)
        registers, stack = found.group(1, 2) if found else ("?", "?")
        about = f"{registers} registers, {stack} bytes of stack, {compiled.metadata.shared} shared"
        print(f"{name}: {about}, {compiled.metadata.num_warps} warps, compiled in {seconds:.1f} s", flush=True)
        lines = [(int(m[1], 16), m[2]) for m in re.finditer(r"/\*([0-9a-f]{4,})\*/\s+(.*?);", code)]
        for end, line in lines:
            jump = re.search(r"\bBRA\S*\s.*?0x([0-9a-f]+)", line)
            if jump and int(jump[1], 16) < end:
                body = [re.sub(r"^@!?U?P\w+\s+", "", text) for at, text in lines if int(jump[1], 16) <= at <= end]
                if len(body) >= MIN_INSTRUCTIONS:
                    counted = collections.Counter(text.split()[0].split(".")[0] for text in body).most_common(16)
                    print(f"    loop of {len(body)}: " + ", ".join(f"{code} {count}" for code, count in counted), flush=True)


def transform_kernel_of_s4() -> None:
    """Compute the kernel of S4 and its gradient, for 168 channels, 64 states and 1,024 steps."""
    parts = torch.randn(4, 168, 32, 2, dtype=torch.float64, requires_grad=True).unbind()
    angle = torch.linspace(0, torch.pi, 513, dtype=torch.float64)
    dplr_spectrum.dplr_spectrum(angle, *parts, torch.ones(168, dtype=torch.float64), backend="triton").sum().backward()


def main() -> int:
    """Read the command line and compile the kernels of the cases; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[""], help="texts; only cases whose names contain one of them")
    parser.add_argument("--capability", type=int, default=90, help="compute capability of the GPU: 80, 90, 120")
    parser.add_argument("--set", nargs="*", default=[], metavar="OP=STEPS,LANES,WARPS[,STAGES]", help="launches of kernels")
    parser.add_argument("--without-ptx", action="store_true", help="kernels without inline PTX")
    options = parser.parse_args()
    set_launches(parser, options.set)
    compiler = Compiler(options.capability)

    def launch(kernel: JITFunction, grid: tuple[int, ...], *args: Any, constants: dict[str, Any]) -> None:  # noqa: ARG001
        compiler(kernel, args, constants)

    _gpu.launch = launch  # before the modules that import it
    _triton_launch.special_functions = lambda _: not options.without_ptx
    dispatch.unsupported_reason = lambda *_: None
    for case in ON_GPU:
        if any(word in case.name for word in options.only):
            print(f"\n{case.name}", flush=True)
            (shape,) = case.shapes
            case.build({**shape, "L": min(MAX_STEPS, shape["L"])})["triton"].train()
    if any(word in "S4" for word in options.only):
        print("\nS4", flush=True)
        transform_kernel_of_s4()
    return 0


if __name__ == "__main__":
    sys.exit(main())
