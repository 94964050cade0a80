"""Whole models on one GPU: time and memory against the length, what a variant of a block costs, and heads beside their peers.

    python benchmarks/systems.py                             all three, as far as --limit lets it: 330 seconds
    python benchmarks/systems.py --parts length --only S7    one of them, systems whose name holds one of these words
    python benchmarks/systems.py --quick                     tiny sizes on the CPU: does it work?

Length: a training step (forward, backward, AdamW) and an inference pass of every sequence layer in its own block, as a model of
about 600,000 parameters, from 1,024 to 65,536 steps, batch 4. Overhead: what thesis section 12.2.5 measures, 200 batches of 64
x 1024 x 3, of S6 and what the thesis puts around it. Heads: see `systems_heads.py`. Models run under autocast to bfloat16, their
weights and optimiser in float32; compilation is not timed, and no CUDA graph is used, so that short calls show the host's time.
Rows hold the training step in forward_backward_ms and the inference pass in forward_ms; memory is beyond weights, moments and
inputs.

Appends rows to DIR/systems.jsonl as they come, and writes its latest ones as DIR/systems.md and DIR/systems.png, DIR being
results/bench unless --out names another folder called bench. A system that runs out of memory, or would take over 4 s a step by
the time at half the length, has a row without times that says so, and its longer lengths are not tried. With --limit 0 nothing is
measured, and table and picture are made anew.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import gpu
import systems_heads
import systems_page
from attempts import attempt, finished, timed
from longscan.models import SequenceModel
from longscan.report.records import check_record
from timing import once

LENGTHS = tuple(2**power for power in range(10, 17))
BATCH = 4  # of the lengths
SLOWEST = 4000.0  # ms of a training step
REPLAYED = 500.0  # ms, likewise: recording takes seconds beyond
TURNS = 5  # that the variants take
CLASSES = 10
HEADS = ((8, 2048), (2, 8192))  # batch and length


@dataclass(frozen=True)
class System:
    """A model: its spec, width d_model, d_state of every layer that has it, and further options by block."""

    name: str
    spec: str
    width: int
    states: int = 64
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def model(self) -> SequenceModel:
        """Classifies the mean over a sequence of vectors of 3; the weights are the same in every call."""
        torch.manual_seed(0)
        sizes = {"d_model": self.width, "d_state": self.states, "d_input": 3, "d_output": CLASSES}
        return SequenceModel.from_spec(self.spec, **sizes, head="affine", block_options=self.options or None)

    @cached_property
    def sizes(self) -> tuple[int, int]:
        """The number of parameters, and that of blocks."""
        model = self.model()
        return sum(weight.numel() for weight in model.parameters()), len(model.entries)

    def row(self, batch: int, length: int, found: gpu.Row, figure: str) -> gpu.Row:
        """A row of the records."""
        count, blocks = self.sizes
        shape = {"B": batch, "L": length, "d_model": self.width, "d_state": self.states, "blocks": blocks}
        about = {"dtype": "autocast bfloat16", "variant": self.name, "parameters": count, "figure": figure}
        return gpu.record("SequenceModel", "auto", shape, **about, **found)


SYSTEMS = (  # of 600,000 parameters, give or take 4 in a hundred
    System("S4", "s4*6", 168),
    System("S4D", "s4d*6", 192),
    System("S5", "s5*6", 256),
    System("LRU", "lru*6", 168),
    System("LinOSS", "linoss*6", 168),
    System("S6 (Mamba)", "mamba*6", 116, 16),  # the thesis, Table 2
    System("S6, complex", "mamba*6", 110, 16, {"mamba": {"complex_state": True}}),
    System("Mamba-2", "mamba2*5", 128),
    System("Mamba-3", "mamba3*5", 128),
    System("S7", "s7*6", 54, 16),
    System("AUSSM", "aussm*6", 72, 16),
    # Mamba on LRA, Table 2, with heads of 64
    System("attention", "(attention feed_forward)*6", 128, options={"feed_forward": {"d_hidden": 128}}),
    System("GRU", "gru*6", 128),
    System("LSTM", "lstm*6", 112),
    System("mLSTM", "mlstm*3", 96),
    System("sLSTM", "slstm*3", 192),
)
VARIANTS = (  # widths: the thesis, Tables 2 and 6; the first is what the others are set against
    System("S6", "mamba*6", 116, 16),
    System("S6, recompute", "mamba*6", 116, 16, {"mamba": {"recompute": True}}),
    System("S6, rotary, fixed", "mamba*6", 116, 16, {"mamba": {"rotary": {}}}),
    System("S6, rotary, learned", "mamba*6", 116, 16, {"mamba": {"rotary": {"learned": True}}}),
    System("S6, bidirectional", "bidirectional*6", 107, 16),
    System("S6, placebo", "bidirectional*6", 107, 16, {"bidirectional": {"variant": "shared placebo"}}),
    System("S6, speed-matched", "mamba*6", 170, 16),
    System("S4D in Mamba's block", "mamba[s4d]*6", 116, 16),
)


@dataclass(frozen=True)
class Plan:
    """What is asked for. batches: of the overhead; end: when to begin nothing more, in seconds of `time.perf_counter`."""

    quick: bool
    only: Sequence[str]
    batches: int
    end: float

    def holds(self, name: str) -> bool:
        """Whether what has this name is measured."""
        return any(word in name for word in self.only)

    def late(self, left_out: str) -> bool:
        """Whether the time is over; if so, say what it leaves out."""
        over = time.perf_counter() > self.end
        if over:
            print(f"--limit leaves out {left_out}", flush=True)
        return over


class Trained:
    """A system on the device, with its optimiser."""

    def __init__(self, system: System) -> None:
        self.model = system.model().to(gpu.DEVICE)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), capturable=gpu.DEVICE.type == "cuda")

    def train(self, x: Tensor, classes: Tensor) -> None:
        """A training step on each of the batches x (K, B, L, 3), classes (K, B)."""
        self.model.train()
        for inputs, targets in zip(x, classes, strict=True):
            with torch.autocast(gpu.DEVICE.type, torch.bfloat16):
                loss = cross_entropy(self.model(inputs), targets)
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()

    def infer(self, x: Tensor, classes: Tensor) -> None:  # noqa: ARG002 - called in turns with `train`
        """An inference pass over each of the batches."""
        self.model.eval()
        for inputs in x:
            with torch.no_grad(), torch.autocast(gpu.DEVICE.type, torch.bfloat16):
                self.model(inputs)


def drawn(count: int, batch: int, length: int) -> tuple[Tensor, Tensor]:
    """Batches that hold nothing to learn, on the device: x (count, batch, length, 3) and classes (count, batch)."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, batch, length, 3, generator=generator)
    return x.to(gpu.DEVICE), torch.randint(0, CLASSES, (count, batch), generator=generator).to(gpu.DEVICE)


def peaks(trained: Trained, x: Tensor, classes: Tensor) -> gpu.Row:
    """MiB of a training step and of an inference pass; both run twice, so that nothing is left to compile."""
    found: gpu.Row = {}
    for name, call in (("peak_mib", trained.train), ("inference_peak_mib", trained.infer)):
        finished(partial(call, x, classes))
        found[name] = gpu.peak_of(partial(call, x, classes))
    return found


def replays(trained: Trained, x: Tensor, classes: Tensor) -> gpu.Row:
    """Times of a training step and an inference pass replayed as CUDA graphs, as `training.capture` does: no host in them."""
    found: gpu.Row = {}
    for name, call in (("forward_backward_ms", trained.train), ("forward_ms", trained.infer)):
        tried = attempt(lambda name=name, call=call: {f"replayed_{name}": gpu.replayed(partial(call, x, classes))})
        found |= tried if "reason" not in tried else {f"replayed_{name}": None, "replay": tried["reason"]}
    return found


def measure(system: System, batch: int, length: int) -> gpu.Row:
    """Times and memory at one length; replayed where a training step is no longer than `REPLAYED`."""
    trained, batches = Trained(system), drawn(1, batch, length)
    found = peaks(trained, *batches)
    found["forward_backward_ms"] = timed(partial(trained.train, *batches))
    found["forward_ms"] = timed(partial(trained.infer, *batches))
    return found | (replays(trained, *batches) if found["forward_backward_ms"] <= REPLAYED else {})


def of_lengths(plan: Plan) -> Iterator[gpu.Row]:
    """Every system at every length, short ones first, so that a limit takes the longest."""
    systems = [system for system in SYSTEMS if plan.holds(system.name)]
    steps: dict[str, float] = {}  # ms at the length before
    batch = 1 if plan.quick else BATCH
    for length in (8, 16) if plan.quick else LENGTHS:
        for system in list(systems):
            if plan.late(f"{system.name} from L {length}"):
                systems.remove(system)
                continue
            found: gpu.Row = {"reason": f"over {SLOWEST / 1e3:g} s a step"}
            if 2 * steps.get(system.name, 0.0) <= SLOWEST:
                found = attempt(partial(measure, system, batch, length))
            if "reason" in found:
                systems.remove(system)
            else:
                steps[system.name] = found["forward_backward_ms"]
            yield system.row(batch, length, found, "length")


def of_overhead(plan: Plan) -> Iterator[gpu.Row]:
    """The variants take turns, each with a share of the batches at a time, so that a ratio is of one moment."""
    systems = [system for system in VARIANTS if plan.holds(system.name)]
    if not systems or plan.late("the overhead"):
        return
    batch, length, count = (2, 16, 2) if plan.quick else (64, 1024, plan.batches)
    x, classes = drawn(count, batch, length)
    trained = {system.name: Trained(system) for system in systems}
    found = {name: attempt(partial(peaks, one, x[:1], classes[:1])) for name, one in trained.items()}
    calls = {
        (name, key): call
        for name, one in trained.items()
        for key, call in (("forward_ms", one.infer), ("forward_backward_ms", one.train))
        if "reason" not in found[name]
    }
    each: dict[tuple[str, str], list[float]] = {place: [] for place in calls}
    turns = min(TURNS, count)
    for turn in range(turns):
        if turn and plan.late(f"turns {turn + 1} to {turns} of the overhead"):
            break
        share = x[turn::turns], classes[turn::turns]
        for place, call in calls.items():
            each[place].append(once(partial(finished, partial(call, *share))) / len(share[0]))
    for (name, key), times in each.items():
        found[name][key] = statistics.median(times)
    for name, one in trained.items():
        if "reason" not in found[name] and not plan.late(f"{name} replayed"):
            found[name] |= replays(one, x[:1], classes[:1])
    for system in systems:
        row = system.row(batch, length, found[system.name], "overhead")
        yield row | {"runs": each.get((system.name, "forward_backward_ms"), 1)}


def of_heads(plan: Plan) -> Iterator[gpu.Row]:
    """Heads and attention as ops, beside their peers."""
    for case in systems_heads.CASES:
        for batch, length in ((1, 20),) if plan.quick else HEADS:
            if plan.holds(case.name) and not plan.late(f"{case.name} as an op, L {length}"):
                shape = case.shape(batch, length, plan.quick)
                yield case.row(shape, attempt(partial(case.measure, shape)))


PARTS = {"heads": of_heads, "overhead": of_overhead, "length": of_lengths}


def say(found: gpu.Row) -> None:
    """A line of progress."""
    words = [found["figure"], f"{found['variant']}:", *(f"{name} {size}" for name, size in found["shape"].items())]
    words += [f"{found['parameters']:,} parameters"] if "parameters" in found else []
    times = {name: found[name] for name in ("forward_ms", "forward_backward_ms", "peak_mib") if found[name] is not None}
    print(*words, *(f"{name} {value:.3f}" for name, value in times.items()), found.get("reason", ""), flush=True)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="what to measure")
    parser.add_argument("--only", nargs="+", default=[""], help="words of which a system's name holds one")
    parser.add_argument("--batches", type=int, default=200, help="of the overhead")
    parser.add_argument("--limit", type=float, default=330.0, metavar="SECONDS", help="nothing is begun after this time")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, no files unless --out is given")
    parser.add_argument("--out", type=Path, default=None, help="folder of systems.jsonl, .md and .png, called bench")
    options = parser.parse_args()
    if options.batches < 1:
        parser.error(f"--batches: got {options.batches}, expected at least 1")
    out = options.out or (None if options.quick else gpu.ROOT / "results" / "bench")
    plan = Plan(options.quick, options.only, options.batches, time.perf_counter() + options.limit)
    for part in options.parts:
        for found in PARTS[part](plan):
            check_record("bench", found)
            say(found)
            gpu.append(out, "systems.jsonl", [found])
    if out and (out / "systems.jsonl").exists():
        systems_page.write(out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
