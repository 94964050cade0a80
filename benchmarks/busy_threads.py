"""Time the CPU kernels with one and with two threads on two processors, alone and while another process keeps one of them busy.

    python benchmarks/busy_threads.py
    python benchmarks/busy_threads.py --always-teams --out build/threads.jsonl

A row is a call: the mean times of its forward and backward pass, in milliseconds, with one and with two threads, without and with
the busy process. `token` is a step of one token through four Mamba blocks of 256 channels, without gradients. The exit status is
1 if, with the busy process, two threads take more than 1.1 times the time of one. --always-teams starts a team of threads in
every call except that of the token. OMP_WAIT_POLICY=passive in the environment lets waiting threads sleep, as the command
longscan does. `torch alone` is a product and a sum of a million numbers and their gradient, and `block` a training step of a
Mamba block, most of which are torch's own operations: torch always starts a team for these, so that their rows do not count for
the exit status. Linux only.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from cpu_rows import make_parser, write_row
from longscan.blocks import MambaBlock
from longscan.ops import _cpu
from op_calls import LINEAR, SELECTIVE, SHORT_CONV, UNITARY, OpCall, parse_sizes

CALLS = {"selective": SELECTIVE, "unitary": UNITARY, "linear": LINEAR, "convolution": SHORT_CONV}
SIZES = {
    "selective": ("1 1 256 16", "1 64 256 16", "8 64 256 16", "8 256 256 16", "8 1024 256 16"),
    "unitary": ("4 1 32 32", "4 64 32 32", "4 256 32 32", "4 1024 32 32"),
    "linear": ("4 64 256", "4 1024 256"),
    "convolution": ("4 64 256", "4 1024 256"),
}
ROUNDS = 4  # number of rounds of a measurement
ALLOWED = 1.1  # largest time with two threads, in units of that with one
REFERENCES = ("torch alone", "block")  # calls with torch's own teams


def token_step() -> Callable[[], Tensor]:
    """Return a function that computes one token through four Mamba blocks."""
    blocks = [MambaBlock(256).eval() for _ in range(4)]
    states = [block.initial_state(1) for block in blocks]

    @torch.no_grad()
    def step() -> Tensor:
        x = torch.ones(1, 256)
        for block, state in zip(blocks, states, strict=True):
            x, _ = block.step(x, state)
        return x

    return step


def op_call(call: OpCall, sizes: str) -> Callable[[], object]:
    """Return a function that runs the forward and backward pass of an op with its CPU kernel."""
    inputs = [x.requires_grad_() for x in call.inputs(parse_sizes(sizes))]
    dy = torch.ones_like(call.call(*inputs, backend="cpu"))  # once, because torch would start a team for it in each call
    return lambda: torch.autograd.grad(call.call(*inputs, backend="cpu"), inputs, dy)


def torch_call() -> Callable[[], object]:
    """Return a function that computes a product, a sum and their gradient with torch alone."""
    x = torch.ones(4, 1024, 256, requires_grad=True)
    return lambda: torch.autograd.grad((x * 2).sum(), x)


def block_step() -> Callable[[], object]:
    """Return a function that computes a Mamba block on 4 sequences of 256 steps and the gradients of its parameters."""
    block, x = MambaBlock(64), torch.ones(4, 256, 64)
    parameters = list(block.parameters())
    return lambda: torch.autograd.grad(block(x).sum(), parameters)


@contextmanager
def busy_process(processor: int) -> Iterator[None]:
    """Keep a processor busy inside the `with` statement."""
    loop = f"import os; os.sched_setaffinity(0, [{processor}])\nwhile True: pass"
    process = subprocess.Popen([sys.executable, "-c", loop])
    try:
        time.sleep(0.3)
        yield
    finally:
        process.kill()
        process.wait()


def mean_ms(call: Callable[[], object], seconds: float) -> list[float]:
    """Return the mean times of a call with one and with two threads, measured for `seconds` each, in alternating rounds."""
    totals, counts = [0.0, 0.0], [0, 0]
    for _ in range(ROUNDS):
        for i in (0, 1):
            torch.set_num_threads(i + 1)
            call()
            start, spent = time.perf_counter(), 0.0
            while spent < seconds / ROUNDS:
                call()
                counts[i] += 1
                spent = time.perf_counter() - start
            totals[i] += spent
    return [total / count * 1e3 for total, count in zip(totals, counts, strict=True)]


def main() -> int:
    """Read the command line and measure; the exit status is 1 if two threads are slower than they may be."""
    parser = make_parser(__doc__, seconds=2.0)
    parser.add_argument("--always-teams", action="store_true", help="start a team of threads in every call")
    options = parser.parse_args()
    if options.always_teams:
        _cpu.threads_for = lambda *_: torch.get_num_threads()  # before the modules that import it
    processors = sorted(os.sched_getaffinity(0))[-2:]
    if len(processors) < 2:
        parser.error("two processors are needed, got one")
    os.sched_setaffinity(0, processors)
    calls = {"token": token_step()} | {f"{name} {x}": op_call(CALLS[name], x) for name in CALLS for x in SIZES[name]}
    calls |= dict(zip(REFERENCES, (torch_call(), block_step()), strict=True))
    within = True
    for name, call in calls.items():
        times = dict(zip(("1_alone_ms", "2_alone_ms"), mean_ms(call, options.seconds), strict=True))
        with busy_process(processors[1]):
            times |= dict(zip(("1_busy_ms", "2_busy_ms"), mean_ms(call, options.seconds), strict=True))
        row = {"call": name, **times, "always_teams": options.always_teams, "seconds": options.seconds}
        row["wait_policy"] = os.environ.get("OMP_WAIT_POLICY")
        print(name, *(f"{kind} {ms:.3f}" for kind, ms in times.items()), flush=True)
        within &= name in REFERENCES or times["2_busy_ms"] <= ALLOWED * times["1_busy_ms"]
        write_row(options.out, row)
    return int(not within)


if __name__ == "__main__":
    sys.exit(main())
