"""Show where the host's time of a call of a Triton op goes: autograd, allocations, Triton's launcher and the CUDA driver.

    python benchmarks/host_time.py --out build/host_time.jsonl
    python benchmarks/host_time.py --ops UNITARY --sizes "4 64 8 16"
    TRITON_INTERPRET=1 python benchmarks/host_time.py --sizes "1 64 4 8"       without a GPU and without launches

A part is the least and the median time, over --runs measurements of 20 calls each, after which the GPU is waited for, in
microseconds. Parts of a forward and backward pass whose launches are repeated:

    call_forward, call_forward_backward    the op as a user calls it
    host, host_backward                    (x * 2).sum(), without and with its gradient, for comparison
    ..._one_thread                         the same with the backward pass in the calling thread, not in autograd's of the device
    autograd                               an autograd function with the same inputs that only allocates its results
    describe                               the key of the recorded call from the arguments
    repeat_forward, repeat_backward        the recorded calls: allocations and launches
    allocations                            the results and workspaces of both recorded calls
    launches                               the launches of both recorded calls, by Triton's launcher
    driver                                 as many launches, by the same launcher, of a kernel of one argument that does nothing
    replayed                               the same kernels as one CUDA graph: the time of the GPU

Without a GPU recorded calls launch nothing, so that all but the last three parts are measured: what Python and torch cost. x of
the comparison has 524,288 numbers on a GPU, as many as the ops' inputs have, and 64 on a CPU.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import triton
import triton.language as tl
from torch import Tensor

import op_calls
from longscan.ops import _gpu
from longscan.ops._repeated_calls import RecordedCall, describe
from longscan.training.run import commit, device_name
from op_calls import replayed_ms

Call = Callable[[], object]
CALLS = 20  # calls of a measurement
Repeated = tuple[RecordedCall, tuple[Any, ...], tuple[int, ...]]  # a recorded call, its inputs and their addresses


@triton.jit
def nothing_kernel(x_ptr, n: tl.constexpr):
    """Return at once, so that a call takes the time of its launch."""


class Nothing(torch.autograd.Function):
    """Allocates a result like the first input, and gradients like all inputs."""

    @staticmethod
    def forward(ctx: Any, *inputs: Tensor) -> Tensor:
        """Return a tensor like the first input, which is not initialised."""
        ctx.save_for_backward(*inputs)
        return torch.empty_like(inputs[0])

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> Any:
        """Return gradients that are not initialised."""
        return tuple([torch.empty_like(x) for x in ctx.saved_tensors])


def measure(call: Call, runs: int) -> tuple[float, float]:
    """Return the least and the median time of a call in microseconds."""
    times = []
    wait = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    for _ in range(runs + 2):
        wait()
        start = time.perf_counter()
        for _ in range(CALLS):
            call()
        wait()
        times.append((time.perf_counter() - start) / CALLS * 1e6)
    return min(times[2:]), statistics.median(times[2:])


def in_one_thread(call: Call) -> object:
    """Return the result of `call`, with backward passes in the calling thread instead of autograd's thread of the device."""
    with torch.autograd.set_multithreading_enabled(False):
        return call()


def repeated_calls(call: Call) -> list[Repeated]:
    """Return the recorded calls that `call` repeats."""
    found: list[Repeated] = []
    repeat = RecordedCall.repeat

    def note(recorded: RecordedCall, inputs: Sequence[Any], addresses: Sequence[int]) -> tuple[Tensor, ...]:
        found.append((recorded, tuple(inputs), tuple(addresses)))
        return repeat(recorded, inputs, addresses)

    with patch.object(RecordedCall, "repeat", note):
        call()
    return found


def allocate(repeated: Repeated) -> list[Tensor]:
    """Allocate the results and the workspace of a recorded call."""
    recorded, inputs, _ = repeated
    buffers = [
        torch.empty(shape, dtype=dtype, device=recorded.device) if like is None else torch.empty_like(inputs[like])
        for shape, dtype, _, like in recorded.results
    ]
    return [*buffers, torch.empty(recorded.workspace, dtype=torch.uint8, device=recorded.device)]


def launches(repeated: Repeated) -> tuple[Call, list[Tensor]]:
    """Return a function that launches the kernels of a recorded call on buffers of its own, and these buffers."""
    recorded, inputs, addresses = repeated
    buffers = allocate(repeated)
    if recorded.zeros:
        buffers.append(torch.zeros(recorded.zeros, dtype=torch.uint8, device=recorded.device))
    roots = [*addresses, *[x.data_ptr() for x in buffers]]
    found = [None if x is None else roots[x.root] + x.offset for x in recorded.locations]
    stream = _gpu.current_stream(buffers[-1])

    def run() -> None:
        for kernel, select, others in recorded.launches:
            kernel(*select(found), *others, stream=stream)

    return run, [*buffers, *[x for x in inputs if isinstance(x, Tensor)]]


def parts(name: str, sizes: str, dtype: str, runs: int) -> dict[str, Any]:
    """Return the row of an op of `op_calls`."""
    call: op_calls.OpCall = getattr(op_calls, name)
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda" if on_gpu else "cpu")
    inputs = call.inputs(op_calls.parse_sizes(sizes), dtype, device)
    leaves = [x.detach().requires_grad_() for x in inputs]
    dy = torch.ones_like(call.call(*inputs, backend="triton"))

    def forward_backward() -> object:
        return torch.autograd.grad(call.call(*leaves, backend="triton"), leaves, dy)

    for _ in range(4):
        forward_backward()
        call.call(*inputs, backend="triton")
    recorded = repeated_calls(forward_backward)
    assert len(recorded) == 2, f"{len(recorded)} calls were repeated, not a forward and a backward pass"
    count = sum(len(x[0].launches) for x in recorded)
    x = torch.randn((16, 1024, 32) if on_gpu else (64,), device=device)
    leaf = x.clone().requires_grad_()
    measured: dict[str, Call] = {
        "host": lambda: (x * 2).sum(),
        "host_backward": lambda: torch.autograd.grad((leaf * 2).sum(), leaf),
        "host_backward_one_thread": lambda: in_one_thread(measured["host_backward"]),
        "call_forward": lambda: call.call(*inputs, backend="triton"),
        "call_forward_backward": forward_backward,
        "call_forward_backward_one_thread": lambda: in_one_thread(forward_backward),
        "autograd": lambda: torch.autograd.grad(Nothing.apply(*leaves), leaves, dy),
        "describe": lambda: describe(inputs),
        "repeat_forward": lambda: recorded[0][0].repeat(*recorded[0][1:]),
        "repeat_backward": lambda: recorded[1][0].repeat(*recorded[1][1:]),
        "allocations": lambda: [allocate(x) for x in recorded],
    }
    row: dict[str, Any] = {"name": call.op, "shape": op_calls.parse_sizes(sizes), "dtype": dtype, "launches_number": count}
    if on_gpu:
        both = [launches(x) for x in recorded]
        run_nothing, stream, address = nothing_kernel.warmup(x, 1, grid=(1,))[1, 1, 1], _gpu.current_stream(x), x.data_ptr()
        measured["launches"] = lambda: [run() for run, _ in both]
        measured["driver"] = lambda: [run_nothing(address, 1, stream=stream) for _ in range(count)]
        row["replayed_us"] = round(1e3 * replayed_ms(forward_backward), 1)
    with nullcontext() if on_gpu else patch.object(RecordedCall, "_interpret", lambda *_: None):
        times = {part: measure(call, runs) for part, call in measured.items()}
    row |= {"least_us": {part: round(low, 1) for part, (low, _) in times.items()}}
    return row | {"median_us": {part: round(middle, 1) for part, (_, middle) in times.items()}}


def main(args: Sequence[str] | None = None) -> None:
    """Measure the ops and append a row for each to the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ops", nargs="+", default=["UNITARY", "SELECTIVE"], metavar="NAME", help="names of op_calls.py")
    parser.add_argument("--sizes", default="16 1024 32 64", help="B L D N (default: %(default)s)")
    parser.add_argument("--dtype", default="float32", help="dtype of the inputs (default: %(default)s)")
    parser.add_argument("--runs", type=int, default=20, help="measurements of 20 calls (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="file to which the rows are appended")
    options = parser.parse_args(args)
    device = device_name(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    about = {
        "device": device, "processors": os.cpu_count(), "load": round(os.getloadavg()[0], 1),
        "torch": torch.__version__, "triton": triton.__version__, "commit": commit(), "date": f"{datetime.now(UTC):%Y-%m-%d}",
    }  # fmt: skip
    for name in options.ops:
        row = json.dumps(parts(name, options.sizes, options.dtype, options.runs) | about)
        print(row, flush=True)
        if options.out:
            with options.out.open("a", encoding="utf-8") as file:
                file.write(row + "\n")


if __name__ == "__main__":
    main()
