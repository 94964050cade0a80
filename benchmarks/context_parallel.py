"""Time, memory and exchanged bytes of training steps with sequences that are split over processes.

    python benchmarks/context_parallel.py --lengths 65536 131072
    torchrun --nproc-per-node 2 benchmarks/context_parallel.py --lengths 65536 131072 --out results/context_parallel.jsonl
    torchrun --nproc-per-node 2 benchmarks/context_parallel.py --longest --recompute 1 --out results/context_parallel.jsonl
    torchrun --nproc-per-node 2 benchmarks/context_parallel.py --check --lengths 32768
    torchrun --nproc-per-node 2 benchmarks/context_parallel.py --stacks --exchanges 1024 1048576
    python benchmarks/context_parallel.py --alternatives
    python benchmarks/context_page.py results/context_parallel.jsonl

The first two measure stacks on one process and on two: forward and backward pass of a batch of one sequence of random tokens, in
bfloat16 autocast on GPUs and in float32 on CPUs, and print a row for each length. Lengths are those of whole sequences. A length
for which the memory does not suffice ends the measurement of a stack; its row has the message of the allocator. --longest then
looks for the longest sequence that can be trained, in multiples of 65,536 steps: from the memory of two lengths it predicts the
length, and it tries shorter ones until one fits. --check compares the gradients of float32 with those of one process, which each
process computes itself. --twice scans each piece twice, as backends do whose kernels have no exchange of their own.
--alternatives times, in one process, the two ways to scan a piece without such kernels: again from the entering state (rerun), or
a scan of zeros from the entering state whose outputs are added (correct). context_page.py compares the rows with a model of the
time and of the bytes, and draws them.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, distributed
from torch.nn.parallel import DistributedDataParallel

from longscan.blocks.gated import GatedBlock
from longscan.distributed import context_parallel, gather_steps, record_exchanges, shard_sequence
from longscan.models import SequenceModel
from longscan.ops import linear_scan, selective_scan
from longscan.ops._native_op import NativeOp
from longscan.training.run import commit, device_name

VOCABULARY = 256
TIMEOUT = timedelta(minutes=1)  # after which the other processes stop if one of them has died
UNIT = 65_536  # steps, of which --longest tries multiples


def synchronize(device: torch.device) -> None:
    """Wait until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def times_of(call: Callable[[], object], device: torch.device, repeats: int) -> list[float]:
    """Return the seconds of each call, after one call that is not counted."""
    times = []
    for _ in range(repeats + 1):
        synchronize(device)
        start = time.perf_counter()
        call()
        synchronize(device)
        times.append(time.perf_counter() - start)
    return times[1:]


class Case(NamedTuple):
    """A stack, and whether its blocks are recomputed in the backward pass."""

    spec: str
    recompute: bool


class Stack:
    """A model, random tokens, and training steps on this process's piece of them."""

    def __init__(self, options: argparse.Namespace, case: Case, length: int, device: torch.device) -> None:
        torch.manual_seed(0)
        sizes = {"d_model": options.d_model, "d_state": options.d_state, "d_output": 1, "vocab_size": VOCABULARY}
        self.model: Any = SequenceModel.from_spec(case.spec, pooling="none", **sizes).to(device)
        for block in self.model.modules():
            if isinstance(block, GatedBlock):
                block.recompute = case.recompute
        self.wrapped = self.model
        self.tokens = torch.randint(VOCABULARY, (1, length), device=device)
        self.device, self.autocast = device, device.type == "cuda" and not options.check

    def split(self) -> None:
        """Split the sequence over all processes."""
        if distributed.get_world_size() > 1:
            self.wrapped = DistributedDataParallel(self.model)
        self.tokens = shard_sequence(self.tokens, distributed.group.WORLD)

    def step(self) -> Tensor:
        """Return the loss after a forward and a backward pass, on this process's piece if the sequence is split."""
        self.model.zero_grad()
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast):
            loss = self.wrapped(self.tokens).float().square().mean()
        loss.backward()
        return loss.detach()


def measure_stack(options: argparse.Namespace, case: Case, length: int, repeats: int, device: torch.device) -> dict[str, Any]:
    """Return the row of a stack at a length: seconds of a step, largest memory of this process, and bytes that it receives."""
    row = describe(options, case, length, device)
    loss = torch.zeros((), device=device)
    try:
        stack = Stack(options, case, length, device)
        stack.split()
        if device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)
        with context_parallel(distributed.group.WORLD):
            with record_exchanges() as exchanges:
                loss = stack.step()
            times = times_of(stack.step, device, repeats) if repeats else []
    except torch.OutOfMemoryError as error:
        row["error"] = str(error).split(". ")[0]
    failures = torch.tensor([float("error" in row), 0.0])
    distributed.all_reduce(failures)  # on the CPU: the processes end the measurement together
    if failures[0]:
        return row | {"error": row.get("error", "another process is out of memory")}
    distributed.all_reduce(loss)
    return row | {
        "seconds": round(statistics.median(times), 6) if times else None, "all_seconds": [round(x, 6) for x in times],
        "memory": torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None,
        "received": sum(exchange.received for exchange in exchanges), "exchanges": len(exchanges),
        "loss": loss.item() / distributed.get_world_size(),
    }  # fmt: skip


def check_stack(options: argparse.Namespace, case: Case, length: int, device: torch.device) -> dict[str, Any]:
    """Return the largest error of a gradient on all processes against this process alone, by norm, and that of the loss."""
    stack = Stack(options, case, length, device)
    expected_loss = stack.step()
    expected = {name: x.grad.clone() for name, x in stack.model.named_parameters() if x.grad is not None}
    stack.split()
    with context_parallel(distributed.group.WORLD):
        loss = stack.step()
    distributed.all_reduce(loss)
    errors = {name: ((stack.model.get_parameter(name).grad - x).norm() / x.norm()).item() for name, x in expected.items()}
    worst = max(errors, key=lambda name: errors[name])
    return describe(options, case, length, device) | {
        "check": "gradients", "parameter": worst, "error": errors[worst], "median_error": statistics.median(errors.values()),
        "loss_error": abs(loss.item() / distributed.get_world_size() / expected_loss.item() - 1),
    }  # fmt: skip


def describe(options: argparse.Namespace, case: Case, length: int, device: torch.device) -> dict[str, Any]:
    """Return what was run, and where."""
    return {
        "stack": case.spec, "d_model": options.d_model, "d_state": options.d_state, "recompute": case.recompute,
        "length": length, "processes": distributed.get_world_size(), "twice": options.twice, "device": device_name(device),
        "torch": torch.__version__, "commit": commit(),
    }  # fmt: skip


def measure_stacks(options: argparse.Namespace) -> None:
    """Measure or check each stack at each length, and print the rows, which are also appended to `options.out`."""
    local = int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cuda", local) if torch.cuda.is_available() else torch.device("cpu")
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if "RANK" in os.environ:
        distributed.init_process_group(backend, timeout=TIMEOUT)
    else:
        distributed.init_process_group(backend, store=distributed.HashStore(), rank=0, world_size=1)

    def report(row: dict[str, Any]) -> dict[str, Any]:
        if distributed.get_rank() == 0:
            print(json.dumps(row), flush=True)
            if options.out is not None:
                with options.out.open("a") as file:
                    file.write(json.dumps(row) + "\n")
        return row

    try:
        for case in (Case(spec, bool(recompute)) for spec in options.stacks for recompute in options.recompute):
            for length in options.lengths:
                if options.check:
                    report(check_stack(options, case, length, device))
                elif "error" in report(measure_stack(options, case, length, options.repeats, device)):
                    break
            if options.longest:
                find_longest(lambda length, case=case: report(measure_stack(options, case, length, 0, device)), device)
        for size in options.exchanges:
            report(measure_exchange(size, device))
    finally:
        distributed.destroy_process_group()


def measure_exchange(size: int, device: torch.device) -> dict[str, Any]:
    """Return the row of a gather of `size` bytes of each process: seconds of one of a hundred in a row."""
    x = torch.zeros(size // 4, device=device)

    def gather() -> None:
        for _ in range(100):
            gather_steps(x.view(1, -1), split)

    with context_parallel(distributed.group.WORLD) as split:
        seconds = statistics.median(times_of(gather, device, 5)) / 100
    return {
        "exchange": size, "processes": distributed.get_world_size(), "seconds": round(seconds, 9),
        "device": device_name(device), "torch": torch.__version__, "commit": commit(),
    }  # fmt: skip


def find_longest(measure: Callable[[int], dict[str, Any]], device: torch.device) -> None:
    """Measure the longest sequence that can be trained, whose length is predicted from the memory of two short ones."""
    size = distributed.get_world_size()
    lengths = 2 * size * UNIT, 4 * size * UNIT
    rows = [measure(length) for length in lengths]
    memory = torch.tensor([row["memory"] for row in rows])  # of this process; the largest decides
    distributed.all_reduce(memory, distributed.ReduceOp.MAX)
    slope = (memory[1] - memory[0]).item() / (lengths[1] - lengths[0])
    room = torch.cuda.get_device_properties(device).total_memory - 1.5e9  # without what CUDA and NCCL take for themselves
    length = lengths[1] + int((room - memory[1].item()) / slope)
    length -= length % (size * UNIT)
    while "error" in measure(length):
        length -= size * UNIT


def measure_alternatives(options: argparse.Namespace) -> None:
    """Print the times of one scan, of a scan that is run again, and of one that is corrected, forward and backward."""
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    length, width, states = options.lengths[0], options.d_model, options.d_state

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, device=device, requires_grad=True)

    u, dt, B, C = draw(1, length, width), draw(1, length, width), draw(1, length, states), draw(1, length, states)
    A = (-torch.rand(width, states, device=device)).requires_grad_()
    a, b = (0.9 + 0.1 * torch.rand(width, device=device)).requires_grad_(), draw(1, length, width)

    def selective(inputs: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        return selective_scan(inputs, dt, A, B, C, initial_state=state, dt_softplus=True, backend=options.backend)

    def linear(inputs: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        return linear_scan(a, inputs, state, backend=options.backend)

    def once(scan: Callable[..., tuple[Tensor, Tensor]], inputs: Tensor) -> None:
        scan(inputs, None)[0].sum().backward()

    def rerun(scan: Callable[..., tuple[Tensor, Tensor]], inputs: Tensor) -> None:
        scan(inputs, scan(inputs, None)[1])[0].sum().backward()

    def correct(scan: Callable[..., tuple[Tensor, Tensor]], inputs: Tensor) -> None:
        y, final = scan(inputs, None)
        (y + scan(torch.zeros_like(inputs), final)[0]).sum().backward()

    print("| op | one scan, s | rerun, s | correct, s |\n|---|---|---|---|")
    for name, scan, inputs in (("selective_scan", selective, u), ("linear_scan", linear, b)):
        ways = [times_of(partial(way, scan, inputs), device, options.repeats) for way in (once, rerun, correct)]
        times = [statistics.median(way) for way in ways]
        print(f"| `{name}` | {' | '.join(f'{value:.3f}' for value in times)} |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stacks", nargs="*", default=["mamba*8", "(ma)*4"])
    parser.add_argument("--d-model", type=int, default=256)
    parser.add_argument("--d-state", type=int, default=16)
    parser.add_argument("--lengths", type=int, nargs="*", default=[65_536])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--backend", default="auto", help="of the scans of --alternatives")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--recompute", type=int, nargs="+", default=[0], choices=[0, 1], help="blocks in the backward pass")
    parser.add_argument("--exchanges", type=int, nargs="*", default=[], help="bytes of each process, whose gather is timed")
    parser.add_argument("--twice", action="store_true")
    parser.add_argument("--longest", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--alternatives", action="store_true")
    given = parser.parse_args()
    if given.twice:
        NativeOp.of_piece = lambda *_, **__: None  # type: ignore[method-assign]
    if given.alternatives:
        measure_alternatives(given)
    else:
        measure_stacks(given)
