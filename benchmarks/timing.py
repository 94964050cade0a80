"""Times side by side, and memory in a process of its own."""

import gc
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Runs:
    """Milliseconds of each run of one implementation."""

    each: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle run."""
        return statistics.median(self.each)

    @property
    def low(self) -> float:
        """The fastest run."""
        return min(self.each)

    @property
    def high(self) -> float:
        """The slowest run."""
        return max(self.each)


def once(call: Callable[[], object]) -> float:
    """Milliseconds of one call."""
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e3


def side_by_side(calls: Mapping[str, Callable[[], object]], runs: int, least_ms: float = 200.0) -> dict[str, Runs]:
    """`runs` runs of every call, taking turns, after one warm-up each; a run is the median of as many calls as fit in least_ms.

    The turns let a slow stretch of the machine fall on all alike.
    """
    repeats = {}
    for name, call in calls.items():
        call()
        repeats[name] = max(1, min(200, round(least_ms / max(once(call), 1e-3))))
    found: dict[str, list[float]] = {name: [] for name in calls}
    gc.collect()
    gc.disable()
    try:
        for _ in range(runs):
            for name, call in calls.items():
                found[name].append(statistics.median(once(call) for _ in range(repeats[name])))
    finally:
        gc.enable()
    return {name: Runs(tuple(times)) for name, times in found.items()}


@dataclass(frozen=True)
class Memory:
    """MiB: what a forward and backward took at its peak beyond the inputs, and what outputs and gradients account for."""

    peak: float
    inputs: float
    outputs_and_gradients: float

    @property
    def extra(self) -> float:
        """Beyond inputs, outputs and gradients."""
        return self.peak - self.outputs_and_gradients

    @property
    def share(self) -> float:
        """The extra as a share of inputs, outputs and gradients together."""
        return self.extra / (self.inputs + self.outputs_and_gradients)


def memory_of(name: str, quick: bool) -> Memory:
    """Of one registered measurement, in a fresh process (Linux; peak of the resident set)."""
    command = [sys.executable, str(Path(__file__).with_name("memory.py")), name, *(("--quick",) if quick else ())]
    # Memory that was freed goes back at once: the peak is that of live tensors, not of holes between them.
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536"}
    result = subprocess.run(command, capture_output=True, text=True, env=environment)
    if result.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}\n{result.stderr}")
    return Memory(*map(float, result.stdout.split()))
