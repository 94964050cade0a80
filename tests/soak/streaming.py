"""A million steps of every streaming layer in chunks: constant memory, and the state and outputs of one pass.

One unit is one layer with one of the settings of the contract suite. Chunks have random lengths from 1 step to 4,096, in
float32 and again in float64, and compared with one pass over all steps in float64; each pass is a process. Attention without a
window, whose state has an entry for each step, is tested on fewer steps, and its state must have exactly that length.
"""

import multiprocessing
import random
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from typing import Any

import torch
from test_layers import OPTIONS
from torch import Tensor

from longscan.layers import LAYERS
from longscan.layers.state import State, state_tensors

STEPS = 1_000_000
STEPS_OF_GROWING_STATE = 8_192  # steps for a layer whose state grows
WIDTH, BLOCK = 4, 65_536
GROWTH = 48 * 2**20  # bytes by which the memory of a process may grow after the first tenth of the steps
NAMES = [name for name in LAYERS if LAYERS[name].streaming]


def memory_in_use() -> int:
    """Return the bytes of memory that this process uses."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


class Inputs:
    """Random inputs (1, L, WIDTH) that are functions of the position, so that a pass needs only a part of them in memory."""

    def __init__(self, seed: int) -> None:
        self.seed, self.number, self.block = seed, -1, torch.empty(0)

    def between(self, start: int, stop: int) -> Tensor:
        parts = []
        for number in range(start // BLOCK, (stop - 1) // BLOCK + 1):
            if number != self.number:
                generator = torch.Generator().manual_seed(self.seed * 1000 + number)
                self.number, self.block = number, torch.randn(1, BLOCK, WIDTH, generator=generator)
            first = number * BLOCK
            parts.append(self.block[:, max(start - first, 0) : stop - first])
        return torch.cat(parts, 1)


def chunk_ends(steps: int, seed: int) -> list[int]:
    """Return the positions at which chunks end; the logarithms of chunk lengths are uniform up to 4,096."""
    draw, ends = random.Random(seed), [0]
    while ends[-1] < steps:
        ends.append(min(steps, ends[-1] + int(2 ** draw.uniform(0, 12))))
    return ends


def build_layer(name: str, options: dict[str, Any], seed: int, dtype: torch.dtype) -> Any:
    torch.manual_seed(seed)
    return LAYERS[name](WIDTH, **options).to(dtype).eval()


@torch.no_grad()
def run_in_chunks(
    name: str, options: dict[str, Any], seed: int, steps: int, dtype: torch.dtype
) -> tuple[Tensor, State, int, int]:
    """Return the outputs of the last chunk, the final state, and in bytes the growth of memory and the largest state."""
    layer, inputs, ends = build_layer(name, options, seed, dtype), Inputs(seed), chunk_ends(steps, seed)
    state, memory_at_start, largest, y = layer.initial_state(1), 0, 0, torch.empty(0)
    for number, (start, stop) in enumerate(pairwise(ends)):
        x = inputs.between(start, stop).to(dtype)
        if stop - start == 1:
            y, state = layer.step(x[:, 0], state)
            y = y.unsqueeze(1)
        else:
            y, state = layer(x, state, return_state=True)
        largest = max(largest, state.nbytes)
        if number == len(ends) // 10:
            memory_at_start = memory_in_use()
    return y, state, memory_in_use() - memory_at_start, largest


@torch.no_grad()
def run_in_one_pass(name: str, options: dict[str, Any], seed: int, steps: int, dtype: torch.dtype) -> tuple[Tensor, State]:
    """Return the outputs of the steps of the last chunk, and the final state."""
    y, state = build_layer(name, options, seed, dtype)(Inputs(seed).between(0, steps).to(dtype), return_state=True)
    return y[:, chunk_ends(steps, seed)[-2] :].clone(), state


def relative_error(result: Any, expected: Any) -> float:
    """Return the largest difference of two states or tensors, relative to the largest number in each tensor."""
    pairs = list(zip(state_tensors(result), state_tensors(expected), strict=True))
    worst = 0.0
    for x, reference in pairs:
        if not torch.isfinite(x).all():
            return float("inf")
        if x.numel():
            scale = max(reference.abs().max().item(), 1e-30)
            worst = max(worst, (x.double() - reference.double()).abs().max().item() / scale)
    return worst


def contract_options(name: str, number: int) -> dict[str, Any]:
    """Return one of the settings of the contract suite."""
    options = OPTIONS.get(f"layer {name}", [{}])
    return options[number % len(options)]


def find_fault(name: str, options: dict[str, Any], seed: int, steps: int) -> str | None:
    """Return the fault of a layer over a number of steps, or None if there is none."""
    grows = name == "attention" and options.get("window") is None
    steps = min(steps, STEPS_OF_GROWING_STATE) if grows else steps
    passes = [(function, dtype) for function in (run_in_chunks, run_in_one_pass) for dtype in (torch.float32, torch.float64)]
    with ProcessPoolExecutor(len(passes), multiprocessing.get_context("fork")) as pool:
        futures = [pool.submit(function, name, options, seed, steps, dtype) for function, dtype in passes]
        (y32, state32, growth, largest), (y64, state64, _, _), plain, whole = (future.result() for future in futures)
    _, first = build_layer(name, options, seed, torch.float32)(Inputs(seed).between(0, min(steps, 4096)), return_state=True)
    if grows and state32.keys.shape[1] != steps:
        return f"the state has {state32.keys.shape[1]} steps, needed {steps}"
    if not grows and largest > first.nbytes:
        return f"a state of {largest} bytes, {first.nbytes} after 4,096 steps"
    if not grows and growth > GROWTH:
        return f"memory grew by {growth / 2**20:.0f} MiB after the first tenth of the steps"
    exact, single, rounding = (relative_error(result, whole) for result in ((y64, state64), (y32, state32), plain))
    if not exact <= 1e-7:
        return f"in float64 chunks differ from one pass by {exact:.1e}"
    if not single <= 4 * rounding + 1e-5:
        return f"in float32 chunks differ by {single:.1e} from float64, one pass in float32 by {rounding:.1e}"
    return None


def run(seed: int, until: float, write: Callable[..., None], steps: int = STEPS) -> None:
    name = NAMES[seed % len(NAMES)]
    options = contract_options(name, seed // len(NAMES))
    write(begin=f"{name} {options}")
    failure = find_fault(name, options, seed, steps)
    write(subject=name, cases=1, failure=failure and f"{options}: {failure}", outcomes={"steps": steps})
