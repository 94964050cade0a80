"""Measure the first forward and backward passes of a process by Triton ops, which compile their kernels.

    python benchmarks/first_calls.py --out build/first_calls.jsonl
    python benchmarks/first_calls.py --ops UNITARY --sizes "4 64 8 16" --others "2 100 8 16"

Each op has two processes, one after another: in the first one Triton's cache is empty, in the second one it has the kernels of
the first. A process imports torch, starts CUDA and makes the inputs before the clock starts. It then measures a forward and
backward pass at --sizes, and one at each of --others, which have the same D and N, in this order. A row has the seconds of both
processes, and for each kernel that the first process compiled the seconds of Triton's stages: its front end (ast), its own
representations (ttir, ttgir), LLVM (llir, ptx) and ptxas (cubin), and at "end" the seconds from the first pass to the end of its
compilation. Kernels are compiled in parallel threads, which share one interpreter, so the seconds of a kernel include waiting for
other kernels. The kernels need a GPU, or TRITON_INTERPRET=1 for a check of the script with small sizes, where nothing is
compiled.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import triton

import op_calls
from longscan.training.run import commit, device_name
from row_files import write_row

OTHERS = ["16 777 32 64", "8 1024 32 64", "3 77 32 64", "16 2048 32 64"]


def note_stages(stages: list[dict[str, Any]]) -> None:
    """Append the name and the seconds of the stages of each kernel that this process compiles to `stages`."""
    begin = time.perf_counter()

    def note(*, metadata: dict[str, Any], times: Any, cache_hit: bool, **_: object) -> None:
        found = {"ast": times.ir_initialization, **dict(times.lowering_stages)}
        if not cache_hit:
            seconds = {name: round(us / 1e6, 3) for name, us in found.items()}
            stages.append({"kernel": metadata["name"], **seconds, "end": round(time.perf_counter() - begin, 3)})

    triton.knobs.compilation.listener = note


def seconds_of_passes(name: str, dtype: str, sizes: Sequence[str]) -> dict[str, Any]:
    """Return the seconds of one forward and backward pass at each of the sizes, and those of Triton's stages."""
    call: op_calls.OpCall = getattr(op_calls, name)
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda" if on_gpu else "cpu")
    leaves = [[x.requires_grad_() for x in call.inputs(op_calls.parse_sizes(text), dtype, device)] for text in sizes]
    torch.autograd.grad((leaves[0][0] * 2).sum(), leaves[0][0])  # starts CUDA and autograd's thread
    seconds: list[float] = []
    stages: list[dict[str, Any]] = []
    note_stages(stages)
    for inputs in leaves:
        start = time.perf_counter()
        torch.autograd.grad(call.call(*inputs, backend="triton").sum(), inputs)
        if on_gpu:
            torch.cuda.synchronize()
        seconds.append(round(time.perf_counter() - start, 4))
    return {"seconds": seconds, "stages": stages}


def measure(options: argparse.Namespace, name: str) -> dict[str, Any]:
    """Run the two processes of an op and return its row."""
    command = [sys.executable, __file__, "--worker", "--ops", name, "--dtype", options.dtype, "--sizes", options.sizes]
    command += ["--others", *options.others]
    row: dict[str, Any] = {"name": name, "dtype": options.dtype, "sizes": [options.sizes, *options.others]}
    with tempfile.TemporaryDirectory() as cache:
        for key in ("empty_cache_s", "filled_cache_s"):
            environment = os.environ | {"TRITON_CACHE_DIR": cache}
            output = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
            found = json.loads(output)
            row[key] = found["seconds"]
            row.setdefault("stages_s", found["stages"])
    return row


def main(args: Sequence[str] | None = None) -> None:
    """Measure the ops and append a row for each to the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ops = [name for name, value in vars(op_calls).items() if isinstance(value, op_calls.OpCall)]
    parser.add_argument("--ops", nargs="+", choices=ops, default=["UNITARY", "SELECTIVE"], metavar="NAME", help=", ".join(ops))
    parser.add_argument("--sizes", default="16 1024 32 64", help="B L D N of the first pass (default: %(default)s)")
    parser.add_argument("--others", nargs="*", default=OTHERS, help="B L D N of the passes after it (default: %(default)s)")
    dtypes = ("float32", "float64", "bfloat16", "float16")
    parser.add_argument("--dtype", choices=dtypes, default="float32", help="dtype of the inputs (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="file to which the rows are appended")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(args)
    if options.worker:
        sys.stdout.write(json.dumps(seconds_of_passes(options.ops[0], options.dtype, [options.sizes, *options.others])))
        return
    about = {
        "device": device_name(torch.device("cuda" if torch.cuda.is_available() else "cpu")),
        "processors": os.cpu_count(), "torch": torch.__version__, "triton": triton.__version__,
        "commit": commit(), "date": f"{datetime.now(UTC):%Y-%m-%d}",
    }  # fmt: skip
    for name in options.ops:
        load = round(os.getloadavg()[0], 1)
        write_row(measure(options, name) | {"load": load} | about, options.out)


if __name__ == "__main__":
    main()
