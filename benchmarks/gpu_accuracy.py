"""How far the Triton kernels err on a GPU, against float64, beside plain float32 torch; and what they count without a mistake.

    python benchmarks/gpu_accuracy.py                             every kernel and dtype, phases, counters: a minute
    TRITON_INTERPRET=1 python benchmarks/gpu_accuracy.py --quick    tiny shapes on the CPU: does it work?

Appends rows to DIR/gpu_accuracy.jsonl and rewrites DIR/gpu_accuracy.md, DIR being results/bench unless --out names another
folder called bench.
"""

import argparse
import math
import sys
from pathlib import Path

import torch
from torch import Tensor

import gpu
from longscan.ops import unitary_scan
from longscan.training.records import device_name

KINDS = ("unitary", "selective", "selective complex", "linear", "linear complex", "convolution")
DTYPES = ("float32", "bfloat16", "float16", "float64")


def errors(quick: bool) -> list[gpu.Row]:
    """Over y and every gradient, relative to the largest entry of each, of every kernel for every dtype."""
    rows = []
    for name in KINDS:
        case = next(case for case in gpu.CASES if case.name == name)
        shape = {**case.shape, "B": 2, "L": 20 if quick else 1024, "D": 3 if quick else 48}
        shape |= {"N": 4 if quick else 16} if "N" in shape else {}
        for dtype in DTYPES:
            of_dtype = gpu.replace(case, shape=shape, dtype=dtype)
            for backend in ("triton", "eager"):
                error = gpu.largest_error(of_dtype, backend, length=shape["L"])
                check = f"{name}: y and gradients"
                rows.append(gpu.record(case.op, backend, shape, dtype=dtype, error_vs_float64=error, check=check))
                print(name, dtype, backend, f"{error:.1e}", flush=True)
    return rows


def phases(quick: bool) -> list[gpu.Row]:
    """The phase of the final state, u up to 10 in size, in radians: the largest error over batch, channels and states."""
    length, channels, states = (64, 3, 4) if quick else (8192, 32, 64)
    generator = torch.Generator().manual_seed(0)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator) * 2 - 1

    u, W, bias = 10 * uniform(2, length, channels), uniform(channels, states, channels), math.pi * uniform(channels, states)
    start = torch.zeros(2, channels, states, 2)
    start[..., 0] = 1
    none = torch.zeros(channels, states, 2)

    def final(backend: str, dtype: torch.dtype, device: torch.device) -> Tensor:
        u_, W_, bias_, none_, start_ = (x.to(device, dtype) for x in (u, W, bias, none, start))
        _, state = unitary_scan(u_, torch.ones_like(u_), W_, bias_, none_, none_, initial_state=start_, backend=backend)
        return torch.view_as_complex(state.cpu().double())

    truth, rows = final("reference", torch.float64, torch.device("cpu")), []
    for backend, name in (("triton", "triton"), ("reference", "plain float32")):
        error = float((final(backend, torch.float32, gpu.DEVICE) * truth.conj()).angle().abs().max())
        shape = {"B": 2, "L": length, "D": channels, "N": states}
        check = f"phase after {length} steps, |u| <= 10, {name}"
        rows.append(gpu.record("unitary_scan", backend, shape, error_vs_float64=error, check=check))
        print(rows[-1]["check"], f"{error:.1e}", flush=True)
    return rows


def counters(quick: bool) -> list[gpu.Row]:
    """Letters 1 counted modulo 2 and 97 by rotations, read at every step: the share of steps read wrongly."""
    length, rows = 200 if quick else 65536, []
    letters = torch.randint(0, 2, (4, length, 1), generator=torch.Generator().manual_seed(0))
    for modulus in (2, 97):
        W, bias = torch.full((1, 1, 1), 2 * math.pi / modulus), torch.zeros(1, 1)
        start = torch.tensor([1.0, 0.0]).expand(4, 1, 1, 2).contiguous()
        read = []
        for C in ((1.0, 0.0), (0.0, -1.0)):
            tensors = [letters.float(), letters.float(), W, bias, torch.zeros(1, 1, 2), torch.tensor(C).view(1, 1, 2)]
            y, _ = unitary_scan(*(x.to(gpu.DEVICE) for x in tensors), initial_state=start.to(gpu.DEVICE), backend="triton")
            read.append(y.cpu())
        counted = (torch.atan2(read[1], read[0]) / (2 * math.pi / modulus)).round().long() % modulus
        wrong = float((counted != letters.cumsum(1) % modulus).double().mean())
        shape = {"B": 4, "L": length, "D": 1, "N": 1}
        check = f"share of steps counted wrongly modulo {modulus}"
        rows.append(gpu.record("unitary_scan", "triton", shape, error_vs_float64=wrong, check=check))
        print(rows[-1]["check"], wrong, flush=True)
    return rows


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="tiny shapes, no files unless --out is given")
    parser.add_argument("--out", type=Path, default=None, help="folder of gpu_accuracy.jsonl and gpu_accuracy.md, called bench")
    options = parser.parse_args()
    rows = [*errors(options.quick), *phases(options.quick), *counters(options.quick)]
    out = options.out or (None if options.quick else gpu.ROOT / "results" / "bench")
    gpu.append(out, "gpu_accuracy.jsonl", rows)
    if out:
        lines = [f"# Errors of the Triton kernels on {device_name(gpu.DEVICE)}\n"]
        lines += ["Largest error over y and every gradient, relative to the largest entry of each, against float64 on the same"]
        lines += ["(rounded) numbers; eager: plain torch in the same dtype.\n"]
        lines += ["| check | dtype | triton | eager |", "|---|---|---|---|"]
        pairs = [rows[i : i + 2] for i in range(0, 2 * len(KINDS) * len(DTYPES), 2)]
        for ours, plain in pairs:
            figures = f"{ours['error_vs_float64']:.1e} | {plain['error_vs_float64']:.1e}"
            lines.append(f"| {ours['check']} | {ours['dtype']} | {figures} |")
        lines += ["", *(f"- {found['check']}: {found['error_vs_float64']:.2g}" for found in rows[2 * len(pairs) :])]
        (out / "gpu_accuracy.md").write_text("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
