"""Time, memory and exchanged bytes of training steps with sequences that are split over processes.

    python benchmarks/context_parallel.py --lengths 65536 131072
    torchrun --nproc-per-node 2 benchmarks/context_parallel.py --lengths 65536 131072 --out results/context_parallel.jsonl
    torchrun --nproc-per-node 2 benchmarks/context_parallel.py --lengths --longest plain --out results/context_parallel.jsonl
    torchrun --nproc-per-node 2 benchmarks/context_parallel.py --check --lengths 32768
    torchrun --nproc-per-node 4 benchmarks/context_parallel.py --data 2 --shard --lengths 65536
    torchrun --nproc-per-node 2 benchmarks/context_parallel.py --stacks --exchanges 1024 1048576
    python benchmarks/context_parallel.py --alternatives
    python benchmarks/context_page.py results/context_parallel.jsonl

The first two measure stacks on one process and on two: forward and backward pass of a batch of one sequence of random tokens, in
bfloat16 autocast on GPUs and in float32 on CPUs, and print a row for each length. Lengths are those of whole sequences. A length
for which the memory does not suffice ends the measurement of a stack; its row has the message of the allocator. One of several
processes that is out of memory ends the program, because the others wait for its exchanges.

--data gives the number of groups of processes, each of which has another sequence, so that a mesh has data x context processes;
--shard splits the model over all of them by FSDP2 instead of DDP.

--ways says how steps are made: "plain"; "recompute", whose blocks are recomputed in the backward pass; "captured", replayed as
a CUDA graph with its exchanges; "twice", with two scans of each piece, as backends make whose kernels have no exchange of their
own. --longest looks, in the ways that it names, for the longest sequence that can be trained, in multiples of 65,536 steps for
each process: from the memory of a shorter one, the longest of --lengths if it names any, it predicts the length, and it tries
longer ones until the memory does not suffice. --check compares the gradients of float32 with those of one process, which each
process computes itself, and these with float64, without dropout. --alternatives times, in one process, the two ways to scan a
piece without kernels that exchange states: again from the entering state (rerun), or corrected by what the entering state adds
to the outputs. context_page.py compares the rows with a model of the time and of the bytes, and draws them.
"""

import argparse
import gc
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, distributed
from torch.nn.functional import normalize
from torch.nn.parallel import DistributedDataParallel

from longscan.blocks.gated import GatedBlock
from longscan.distributed import SequenceSplit, context_parallel, gather_steps, record_exchanges, shard_sequence
from longscan.distributed.context import use_split
from longscan.engine.graphed_step import WARMUP_CALLS, GraphedStep
from longscan.models import SequenceModel
from longscan.ops import block2_scan, delta_scan, linear_scan, selective_scan, ssd_scan
from longscan.ops._native_op import NativeOp
from longscan.training import shard_model
from longscan.training.context import average_gradients, build_group
from longscan.training.run import commit, device_name

VOCABULARY = 256
Scan = Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor]]
TIMEOUT = timedelta(minutes=1)  # time after which the other processes stop if one of them has ended
UNIT = 65_536  # --longest tries multiples of this number of steps
MARGIN = 1e9  # bytes that --longest leaves free in its predictions
HEAD = 64  # width of the heads, and of the keys, of --alternatives
WAYS = ("plain", "recompute", "captured", "twice")


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def times_of(call: Callable[[], object], device: torch.device, repeats: int) -> list[float]:
    """Return the seconds of each call."""
    times = []
    for _ in range(repeats):
        synchronize(device)
        start = time.perf_counter()
        call()
        synchronize(device)
        times.append(time.perf_counter() - start)
    return times


class Case(NamedTuple):
    """A stack, and the way in which its steps are made, one of WAYS."""

    spec: str
    way: str


class Tokens(NamedTuple):
    """The batch of a captured step."""

    tokens: Tensor


@contextmanager
def scanning(way: str) -> Iterator[None]:
    """Scan each piece twice inside the `with` statement if the way is "twice"."""
    of_piece = NativeOp.of_piece
    if way == "twice":
        NativeOp.of_piece = lambda *_, **__: None  # type: ignore[method-assign]
    try:
        yield
    finally:
        NativeOp.of_piece = of_piece  # type: ignore[method-assign]


class Stack:
    """A model, random tokens, and training steps on this process's piece of them."""

    def __init__(self, options: argparse.Namespace, case: Case, length: int, device: torch.device) -> None:
        torch.manual_seed(0)
        sizes = {"d_model": options.d_model, "d_state": options.d_state, "d_output": 1, "vocab_size": VOCABULARY}
        self.model: Any = SequenceModel.from_spec(case.spec, pooling="none", **sizes).to(device)
        self.model.train(not options.check)
        for block in self.model.modules():
            if isinstance(block, GatedBlock):
                block.recompute = case.way == "recompute"
        self.wrapped, self.captured = self.model, case.way == "captured"
        self.tokens = torch.randint(VOCABULARY, (options.data, length), device=device)
        self.group, self.shard = options.group, options.shard
        self.device, self.autocast = device, device.type == "cuda" and not options.check
        self.step: Callable[[], Tensor] = lambda: self.run(Tokens(self.tokens))
        self.graphed: GraphedStep | None = None

    def split(self) -> None:
        """Split the sequences over the processes of their groups; steps to come are captured if the case says so."""
        row = distributed.get_rank() // distributed.get_world_size(self.group)
        self.tokens = shard_sequence(self.tokens[row : row + 1], self.group)
        if self.captured and self.device.type == "cuda":
            graphed = self.graphed = GraphedStep(self.run, self.device)
            self.step = lambda: graphed(Tokens(self.tokens))
        elif self.shard:
            shard_model(self.model)
        elif distributed.get_world_size() > 1 and not self.captured:
            self.wrapped = DistributedDataParallel(self.model)

    def release(self) -> None:
        """Free the graph of a captured step."""
        if self.graphed is not None:
            self.graphed.release()

    def run(self, batch: Tokens) -> Tensor:
        """Return the loss after a forward and a backward pass, on this process's piece if the sequence is split."""
        self.model.zero_grad()
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast):
            y = self.wrapped(batch.tokens)
            loss = (y.float() if self.autocast else y).square().mean()
        loss.backward()
        if self.captured:
            average_gradients(self.model.parameters(), distributed.group.WORLD)
        return loss.detach()


def measure_stack(options: argparse.Namespace, case: Case, length: int, repeats: int, device: torch.device) -> dict[str, Any]:
    """Return the row of a stack at a length: seconds of a step, largest memory of this process, and bytes that it receives."""
    row = describe(options, case, length, device)
    loss = torch.zeros((), device=device)
    try:
        stack = Stack(options, case, length, device)
        stack.split()
        gc.collect()  # earlier stacks, which refer to themselves
        if device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)
        with scanning(case.way), context_parallel(options.group):
            with record_exchanges() as exchanges:
                loss = stack.step().clone()
            for _ in range(WARMUP_CALLS if stack.captured else 0):
                stack.step()
            times = times_of(stack.step, device, options.warm_up + repeats)[options.warm_up :] if repeats else []
        stack.release()
        synchronize(device)
    except torch.OutOfMemoryError as error:
        return row | {"error": str(error).split(". ")[0]}
    distributed.all_reduce(loss)
    return row | {
        "seconds": round(statistics.median(times), 6) if times else None, "all_seconds": [round(x, 6) for x in times],
        "memory": torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None,
        "reserved": torch.cuda.max_memory_reserved(device) if device.type == "cuda" else None,
        "received": sum(exchange.received for exchange in exchanges), "exchanges": len(exchanges),
        "loss": loss.item() / distributed.get_world_size(),
    }  # fmt: skip


def relative_error(found: Tensor, expected: Tensor) -> float:
    """Return the norm of the error over that of what is expected."""
    return ((found - expected).norm() / expected.norm()).item()


def check_stack(options: argparse.Namespace, case: Case, length: int, device: torch.device) -> dict[str, Any]:
    """Return the largest error of a gradient on all processes against this process alone, by norm, and that of the loss.

    "float32_error" is the largest error of this process alone in float32 against float64, "pieces_float32_error" that of all
    processes together.
    """
    stack = Stack(options, case, length, device)
    exact = Stack(options, case, length, device)
    exact.model.double()
    exact.step()
    expected_loss = stack.step()
    expected = {name: x.grad.clone() for name, x in stack.model.named_parameters() if x.grad is not None}
    stack.split()
    with scanning(case.way), context_parallel(options.group):
        for _ in range(WARMUP_CALLS + 1 if stack.captured else 1):
            loss = stack.step().clone()
    distributed.all_reduce(loss)
    found = {name: stack.model.get_parameter(name).grad for name in expected}
    if options.shard:
        found = {name: x.full_tensor() for name, x in found.items()}
    errors = {name: relative_error(found[name], x) for name, x in expected.items()}
    float64 = {name: exact.model.get_parameter(name).grad for name in expected}
    own = max(relative_error(x, float64[name]) for name, x in expected.items())
    pieces = max(relative_error(found[name], x) for name, x in float64.items())
    stack.release()
    worst = max(errors, key=lambda name: errors[name])
    return describe(options, case, length, device) | {
        "check": "gradients", "parameter": worst, "error": errors[worst], "median_error": statistics.median(errors.values()),
        "float32_error": own, "pieces_float32_error": pieces,
        "loss_error": abs(loss.item() / distributed.get_world_size() / expected_loss.item() - 1),
    }  # fmt: skip


def describe(options: argparse.Namespace, case: Case, length: int, device: torch.device) -> dict[str, Any]:
    """Return what was run, and where."""
    return {
        "stack": case.spec, "d_model": options.d_model, "d_state": options.d_state, "recompute": case.way == "recompute",
        "length": length, "processes": distributed.get_world_size(), "data": options.data, "shard": options.shard,
        "twice": case.way == "twice", "captured": case.way == "captured",
        "allocator": os.environ.get("PYTORCH_CUDA_ALLOC_CONF", ""),
        "device": device_name(device), "torch": torch.__version__, "commit": commit(),
    }  # fmt: skip


def report(options: argparse.Namespace, row: dict[str, Any]) -> dict[str, Any]:
    """Print a row, append it to `options.out`, and return it.

    If one of several processes is out of memory, the others wait on their GPUs for exchanges that it does not make. So this
    process, which alone knows the row, reports it and ends without waiting for them; torchrun then stops them.
    """
    rank, out_of_memory = distributed.get_rank(), "error" in row and "check" not in row
    ends = out_of_memory and distributed.get_world_size() > 1
    if ends:
        row |= {"rank": rank}
    if rank == 0 or ends:
        print(json.dumps(row), flush=True)
        if options.out is not None:
            with options.out.open("a") as file:
                file.write(json.dumps(row) + "\n")
    if ends:
        os._exit(1)  # the end of the process group would wait
    return row


def measure_stacks(options: argparse.Namespace) -> None:
    """Measure or check each stack at each length, and report the rows."""
    local = int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cuda", local) if torch.cuda.is_available() else torch.device("cpu")
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if "RANK" in os.environ:
        distributed.init_process_group(backend, timeout=TIMEOUT)
    else:
        distributed.init_process_group(backend, store=distributed.HashStore(), rank=0, world_size=1)
    size = distributed.get_world_size()
    options.group = build_group(size, size // options.data) if options.data > 1 else distributed.group.WORLD

    try:
        rows: dict[Case, list[dict[str, Any]]] = {}
        for case in (Case(spec, way) for spec in options.stacks for way in options.ways):
            for length in options.lengths:
                if options.check:
                    report(options, check_stack(options, case, length, device))
                    continue
                row = report(options, measure_stack(options, case, length, options.repeats, device))
                if "error" in row:
                    break
                rows.setdefault(case, []).append(row)
        for case in (Case(spec, way) for spec in options.stacks for way in options.longest):
            find_longest(options, case, rows.get(case, []), device)
        for size in options.exchanges:
            report(options, measure_exchange(size, device))
    finally:
        distributed.destroy_process_group()


def measure_exchange(size: int, device: torch.device) -> dict[str, Any]:
    """Return the row of a gather of `size` bytes of each process: seconds of one of a hundred in a row."""
    x = torch.zeros(size // 4, device=device)

    def gather() -> None:
        for _ in range(100):
            gather_steps(x.view(1, -1), split)

    with context_parallel(distributed.group.WORLD) as split:
        gather()
        seconds = statistics.median(times_of(gather, device, 5)) / 100
    return {
        "exchange": size, "processes": distributed.get_world_size(), "seconds": round(seconds, 9),
        "device": device_name(device), "torch": torch.__version__, "commit": commit(),
    }  # fmt: skip


def find_longest(options: argparse.Namespace, case: Case, rows: list[dict[str, Any]], device: torch.device) -> None:
    """Measure ever longer sequences, in multiples of UNIT steps for each process, until the memory does not suffice.

    The next length is the longest one that fits if the memory grows in proportion to the length, or the next multiple if that
    is no longer than what has fitted. (It grows a little less, so that predicted lengths fit.) Ends without an attempt if by this
    estimate the next multiple needs more than the whole memory of the device. `rows` are the rows of the stack so far; those of
    the search have "search".
    """
    unit = distributed.get_world_size() * UNIT
    row = max(rows, key=lambda row: row["length"]) if rows else measure_stack(options, case, 4 * unit, 0, device)
    if not rows:
        report(options, row)
    while "error" not in row:
        # what PyTorch has reserved and what nobody has, less the remainders of the allocator's blocks
        room = torch.cuda.memory_reserved(device) + torch.cuda.mem_get_info(device)[0] - MARGIN
        fitting = torch.tensor([room, torch.cuda.get_device_properties(device).total_memory]) / row["reserved"] * row["length"]
        distributed.all_reduce(fitting, distributed.ReduceOp.MIN)  # the process with the least room decides
        predicted, largest = (int(length) // unit * unit for length in fitting.tolist())
        length = max(predicted, row["length"] // unit * unit + unit)
        if length > largest:
            return
        row = report(options, measure_stack(options, case, length, options.repeats, device) | {"search": True})


def make_scans(options: argparse.Namespace, device: torch.device) -> dict[str, tuple[Scan, Tensor]]:
    """Return the scans by the names of their ops: functions of the inputs and of a state or None, and inputs."""
    torch.manual_seed(0)
    length, width, states, heads = options.lengths[0], options.d_model, options.d_state, options.d_model // HEAD
    steps, by_head = (1, length), (1, length, heads)
    backend = {"backend": options.backend}

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, device=device, requires_grad=True)

    def decays(*shape: int) -> Tensor:
        return (0.9 + 0.1 * torch.rand(shape, device=device)).requires_grad_()

    dt, B, C = draw(*steps, width), draw(*steps, states), draw(*steps, states)
    A, rates = ((-decays(*shape).detach()).requires_grad_() for shape in ((width, states), (heads,)))
    a, M = decays(width), (0.5 * torch.eye(2, device=device).expand(width, 2, 2)).clone().requires_grad_()
    k, q, sizes = draw(*by_head, HEAD), draw(*by_head, HEAD), decays(*by_head)

    def delta(v: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        return delta_scan(v, normalize(k, dim=-1), normalize(q, dim=-1), -sizes, sizes, state, **backend)

    return {
        "selective_scan": (
            lambda u, state: selective_scan(u, dt, A, B, C, initial_state=state, dt_softplus=True, **backend), draw(*steps, width)
        ),
        "linear_scan": (lambda b, state: linear_scan(a, b, state, **backend), draw(*steps, width)),
        "block2_scan": (lambda f, state: block2_scan(M, f, state, **backend), draw(*steps, width, 2)),
        "ssd_scan": (
            lambda x, state: ssd_scan(x, sizes, rates, k[:, :, :1], q[:, :, :1], initial_state=state, **backend),
            draw(*by_head, HEAD),
        ),
        "delta_scan": (delta, draw(*by_head, HEAD)),
    }  # fmt: skip


def measure_alternatives(options: argparse.Namespace) -> None:
    """Print the times of one scan, of a scan that is run again, and of one that is corrected, forward and backward.

    For ssd_scan and delta_scan "correct" is what they do inside `context_parallel`, here with a single process. For the others it
    is a scan of zeros from the entering state.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    backend = "nccl" if device.type == "cuda" else "gloo"
    distributed.init_process_group(backend, store=distributed.HashStore(), rank=0, world_size=1)
    world = distributed.group.WORLD

    def once(scan: Scan, inputs: Tensor) -> None:
        scan(inputs, None)[0].sum().backward()

    def rerun(scan: Scan, inputs: Tensor) -> None:
        scan(inputs, scan(inputs, None)[1])[0].sum().backward()

    def rerun_with_map(scan: Scan, inputs: Tensor) -> None:
        identity = torch.eye(HEAD, device=device).expand(1, inputs.shape[2], HEAD, HEAD)
        scan(inputs, scan(inputs, None)[1] + scan(torch.zeros_like(inputs), identity)[1])[0].sum().backward()

    def correct(scan: Scan, inputs: Tensor) -> None:
        y, final = scan(inputs, None)
        (y + scan(torch.zeros_like(inputs), final)[0]).sum().backward()

    def inside(scan: Scan, inputs: Tensor) -> None:
        with use_split(SequenceSplit(world, 0, 1)):
            scan(inputs, None)[0].sum().backward()

    print("| op | one scan, s | rerun, s | correct, s |\n|---|---|---|---|")
    for name, (scan, inputs) in make_scans(options, device).items():
        corrected = inside if name in ("ssd_scan", "delta_scan") else correct
        again = rerun_with_map if name == "delta_scan" else rerun  # the product of its factors is a scan of the identity
        calls = [partial(way, scan, inputs) for way in (once, again, corrected)]
        ways = [times_of(call, device, options.repeats + 1)[1:] for call in calls]
        print(f"| `{name}` | {' | '.join(f'{statistics.median(way):.4f}' for way in ways)} |", flush=True)
    distributed.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stacks", nargs="*", default=["mamba*8", "(ma)*4"])
    parser.add_argument("--d-model", type=int, default=256)
    parser.add_argument("--d-state", type=int, default=16)
    parser.add_argument("--lengths", type=int, nargs="*", default=[65_536])
    parser.add_argument("--data", type=int, default=1, help="groups of processes with sequences of their own")
    parser.add_argument("--shard", action="store_true", help="split the model by FSDP2")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--warm-up", type=int, default=1, help="steps before the timed ones, after the first one")
    parser.add_argument("--backend", default="auto", help="of the scans of --alternatives")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--ways", nargs="+", default=["plain"], choices=WAYS)
    parser.add_argument("--exchanges", type=int, nargs="*", default=[], help="bytes of each process, whose gather is timed")
    parser.add_argument("--longest", nargs="+", default=[], choices=WAYS)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--alternatives", action="store_true")
    given = parser.parse_args()
    if given.alternatives:
        measure_alternatives(given)
    else:
        measure_stacks(given)
