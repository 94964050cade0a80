"""Time, memory and exchanged bytes of training steps with sequences that are split over processes.

    python benchmarks/context_parallel.py --lengths 65536 131072
    torchrun --nproc-per-node 2 benchmarks/context_parallel.py --lengths 65536 131072 --out results/bench/context_parallel.jsonl
    python benchmarks/context_parallel.py --alternatives

The first two measure a stack on one process and on two: forward and backward pass of a batch of one sequence of random tokens, in
bfloat16 autocast on GPUs and in float32 on CPUs, and print a row for each length. Lengths are those of whole sequences. A length
for which the memory does not suffice ends the measurement. The third times, in one process, the two ways to scan a piece: again
from the entering state (rerun), or a scan of zeros from the entering state whose outputs are added (correct).
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
from typing import Any

import torch
from torch import Tensor, distributed
from torch.nn.parallel import DistributedDataParallel

from longscan.distributed import context_parallel, record_exchanges, shard_sequence
from longscan.models import SequenceModel
from longscan.ops import linear_scan, selective_scan
from longscan.training.run import commit, device_name

VOCABULARY = 256
TIMEOUT = timedelta(minutes=1)  # after which the other processes stop if one of them has died


def seconds_of(call: Callable[[], object], device: torch.device, repeats: int) -> float:
    """Return the median time of a call, after one call that is not counted."""
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def measure_stack(options: argparse.Namespace, length: int, device: torch.device) -> dict[str, Any]:
    """Return the row of a stack at a length: seconds of a step, largest memory of this process, and bytes that it receives."""
    torch.manual_seed(0)
    sizes = {"d_model": options.d_model, "d_state": options.d_state, "d_output": 1, "vocab_size": VOCABULARY}
    model: Any = SequenceModel.from_spec(options.stack, pooling="none", **sizes).to(device)
    size = distributed.get_world_size()
    wrapped = DistributedDataParallel(model) if size > 1 else model
    tokens = shard_sequence(torch.randint(VOCABULARY, (1, length), device=device), distributed.group.WORLD)

    def step() -> None:
        model.zero_grad()
        autocast = torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")
        with autocast, context_parallel(distributed.group.WORLD):
            loss = wrapped(tokens).float().square().mean()
        loss.backward()

    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    seconds = seconds_of(step, device, options.repeats)
    with record_exchanges() as exchanges:
        step()
    memory = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
    return {
        "stack": options.stack, "d_model": options.d_model, "d_state": options.d_state, "length": length, "processes": size,
        "seconds": round(seconds, 6), "memory": memory, "received": sum(exchange.received for exchange in exchanges),
        "device": device_name(device), "torch": torch.__version__, "commit": commit(),
    }  # fmt: skip


def measure_stacks(options: argparse.Namespace) -> None:
    """Measure the stack at each length, and print the rows, which are also appended to `options.out`."""
    local = int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cuda", local) if torch.cuda.is_available() else torch.device("cpu")
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    if "RANK" in os.environ:
        distributed.init_process_group(backend, timeout=TIMEOUT)
    else:
        distributed.init_process_group(backend, store=distributed.HashStore(), rank=0, world_size=1)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    try:
        for length in options.lengths:
            try:
                row = measure_stack(options, length, device)
            except torch.OutOfMemoryError:
                print(json.dumps({"length": length, "error": "out of memory"}))
                break
            if distributed.get_rank() == 0:
                print(json.dumps(row), flush=True)
                if options.out is not None:
                    with options.out.open("a") as file:
                        file.write(json.dumps(row) + "\n")
    finally:
        distributed.destroy_process_group()


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
        times = [seconds_of(partial(way, scan, inputs), device, options.repeats) for way in (once, rerun, correct)]
        print(f"| `{name}` | {' | '.join(f'{value:.3f}' for value in times)} |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stack", default="mamba*8")
    parser.add_argument("--d-model", type=int, default=256)
    parser.add_argument("--d-state", type=int, default=16)
    parser.add_argument("--lengths", type=int, nargs="+", default=[65_536])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--backend", default="auto", help="of the scans of --alternatives")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--alternatives", action="store_true")
    given = parser.parse_args()
    if given.alternatives:
        measure_alternatives(given)
    else:
        measure_stacks(given)
