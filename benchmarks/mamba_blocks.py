"""Time a training step of six Mamba blocks on a GPU: called, compiled by inductor, replayed as a CUDA graph, and both.

    python benchmarks/mamba_blocks.py [--modes MODE ...] [--width 128] [--batch 4] [--out FILE]

The model is Linear 8 -> width, 6 x [RMSNorm, Mamba block], mean over time, Linear -> 10, in bfloat16 autocast, trained with fused
AdamW. A row of the file is one mode: the median and the single values, in milliseconds, of --turns batches of --steps steps, and
next to them the host's own measure, (x * 2).sum() with its gradient, taken before each batch. The modes take turns. In a
mode that ends in one_thread the calling thread runs the backward pass, otherwise autograd's thread of the device does.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from longscan.blocks import MambaBlock
from longscan.blocks.residual import Residual
from longscan.training.run import commit
from row_files import write_row

MODES = ("called", "called_one_thread", "compiled", "compiled_one_thread", "replayed", "compiled_replayed")
CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")


class Model(nn.Module):
    """A classifier of six Mamba blocks."""

    def __init__(self, width: int, layer: str) -> None:
        super().__init__()
        self.encode, self.head = nn.Linear(8, width), nn.Linear(width, 10)
        self.blocks = nn.Sequential(*[Residual(MambaBlock(width, layer=layer)) for _ in range(6)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits (B, 10) of sequences (B, L, 8)."""
        logits: torch.Tensor = self.head(self.blocks(self.encode(x)).mean(1))
        return logits


def make_step(mode: str, width: int, x: torch.Tensor, labels: torch.Tensor, layer: str = "s6") -> Callable[[], object]:
    """Return a function that trains a new model for one step. mode: one of MODES, or "recorded" for a graph of the caller."""
    torch.manual_seed(0)
    model = Model(width, layer).to(DEVICE)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-3, fused=CUDA, capturable=CUDA and mode.endswith(("replayed", "recorded"))
    )
    run = torch.compile(model) if mode.startswith("compiled") else model
    in_threads = not mode.endswith("one_thread")

    def step() -> torch.Tensor:
        with torch.autocast(DEVICE.type, torch.bfloat16):
            loss = nn.functional.cross_entropy(run(x), labels)
        optimizer.zero_grad(set_to_none=True)
        with torch.autograd.set_multithreading_enabled(in_threads):
            loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss.detach()

    if not mode.endswith("replayed"):
        return step
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(4):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return partial(replay, graph, step)


def replay(graph: torch.cuda.CUDAGraph, step: Callable[[], object]) -> None:  # noqa: ARG001
    """Replay the graph of a step. The graph reads the memory of the model and the optimiser, which the step keeps allocated."""
    graph.replay()


def milliseconds(call: Callable[[], object], count: int) -> float:
    """Return the time of a call, the mean of `count` calls, after which the GPU is waited for."""
    if CUDA:
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(count):
        call()
    if CUDA:
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / count * 1e3


def main() -> None:
    """Read the command line, measure, and print and store the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    modes = [mode for mode in MODES if CUDA or not mode.endswith("replayed")]  # there are no graphs to replay on a CPU
    parser.add_argument("--modes", nargs="+", choices=modes, default=modes)
    parser.add_argument("--layer", default="s6", help="layer inside the blocks (default: %(default)s)")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--steps", type=int, default=10, help="steps of a batch")
    parser.add_argument("--tree", default=None, help="name of the source tree, for the rows")
    parser.add_argument("--out", type=Path, default=None, help="file of JSON lines, to which rows are added")
    options = parser.parse_args()
    x = torch.randn(options.batch, options.length, 8, device=DEVICE)
    labels = torch.randint(10, (options.batch,), device=DEVICE)
    ones = torch.randn(16, 1024, 32, device=DEVICE, requires_grad=True)
    steps = {mode: make_step(mode, options.width, x, labels, options.layer) for mode in options.modes}
    for step in steps.values():
        milliseconds(step, 4)
    times: dict[str, list[float]] = {mode: [] for mode in steps}
    host: dict[str, list[float]] = {mode: [] for mode in steps}
    for _ in range(options.turns):
        for mode, step in steps.items():
            host[mode].append(milliseconds(lambda: torch.autograd.grad((ones * 2).sum(), ones), 20))
            times[mode].append(milliseconds(step, options.steps))
    device = torch.cuda.get_device_name() if CUDA else "cpu"
    for mode, found in times.items():
        row: dict[str, Any] = {"case": "six Mamba blocks", "mode": mode, "layer": options.layer}
        row |= {"width": options.width, "batch": options.batch}
        row |= {"length": options.length, "ms": statistics.median(found), "runs_ms": found}
        row |= {"host_ms": statistics.median(host[mode]), "tree": options.tree, "commit": commit(), "device": device}
        row["torch"] = torch.__version__
        write_row(row, options.out)


if __name__ == "__main__":
    main()
