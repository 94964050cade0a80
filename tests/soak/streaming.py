"""A million steps of every streaming layer in pieces: constant memory, and the state and outputs of one whole pass.

One unit is one layer with one of the settings of the contract suite. Pieces are of random lengths from 1 step to 4,096, in
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
UNBOUNDED = 8_192  # steps for a layer whose state grows
WIDTH, BLOCK = 4, 65_536
GROWTH = 48 * 2**20  # bytes of memory that a process may take more after the first tenth of the steps
NAMES = [name for name in LAYERS if LAYERS[name].streaming]


def memory() -> int:
    """Return the bytes of memory that this process uses."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


class Inputs:
    """Random inputs (1, L, WIDTH) that are a function of the position, so that no pass needs all of them in memory."""

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


def cuts(steps: int, seed: int) -> list[int]:
    """Return the positions at which pieces end; the lengths of pieces are spread evenly over the powers of two up to 4,096."""
    draw, ends = random.Random(seed), [0]
    while ends[-1] < steps:
        ends.append(min(steps, ends[-1] + int(2 ** draw.uniform(0, 12))))
    return ends


def build(name: str, options: dict[str, Any], seed: int, dtype: torch.dtype) -> Any:
    torch.manual_seed(seed)
    return LAYERS[name](WIDTH, **options).to(dtype).eval()


@torch.no_grad()
def in_pieces(name: str, options: dict[str, Any], seed: int, steps: int, dtype: torch.dtype) -> tuple[Tensor, State, int, int]:
    """Return the outputs of the last piece, the final state, and in bytes the growth of memory and the largest state."""
    layer, inputs, ends = build(name, options, seed, dtype), Inputs(seed), cuts(steps, seed)
    state, settled, largest, y = layer.initial_state(1), 0, 0, torch.empty(0)
    for number, (start, stop) in enumerate(pairwise(ends)):
        x = inputs.between(start, stop).to(dtype)
        if stop - start == 1:
            y, state = layer.step(x[:, 0], state)
            y = y.unsqueeze(1)
        else:
            y, state = layer(x, state, return_state=True)
        largest = max(largest, state.nbytes)
        if number == len(ends) // 10:
            settled = memory()
    return y, state, memory() - settled, largest


@torch.no_grad()
def in_one_pass(name: str, options: dict[str, Any], seed: int, steps: int, dtype: torch.dtype) -> tuple[Tensor, State]:
    """Return the outputs of the steps of the last piece, and the final state."""
    y, state = build(name, options, seed, dtype)(Inputs(seed).between(0, steps).to(dtype), return_state=True)
    return y[:, cuts(steps, seed)[-2] :].clone(), state


def error(found: Any, wanted: Any) -> float:
    """Return the largest difference of two states or tensors, relative to the largest number in each tensor."""
    pairs = list(zip(state_tensors(found), state_tensors(wanted), strict=True))
    worst = 0.0
    for one, other in pairs:
        if not torch.isfinite(one).all():
            return float("inf")
        if one.numel():
            scale = max(other.abs().max().item(), 1e-30)
            worst = max(worst, (one.double() - other.double()).abs().max().item() / scale)
    return worst


def settings(name: str, number: int) -> dict[str, Any]:
    """Return one of the settings of the contract suite."""
    options = OPTIONS.get(f"layer {name}", [{}])
    return options[number % len(options)]


def check(name: str, options: dict[str, Any], seed: int, steps: int) -> str | None:
    """Return the fault of a layer over so many steps, or None if there is none."""
    grows = name == "attention" and options.get("window") is None
    steps = min(steps, UNBOUNDED) if grows else steps
    passes = [(way, dtype) for way in (in_pieces, in_one_pass) for dtype in (torch.float32, torch.float64)]
    with ProcessPoolExecutor(len(passes), multiprocessing.get_context("fork")) as pool:
        started = [pool.submit(way, name, options, seed, steps, dtype) for way, dtype in passes]
        (y32, state32, growth, largest), (y64, state64, _, _), plain, whole = (one.result() for one in started)
    _, first = build(name, options, seed, torch.float32)(Inputs(seed).between(0, min(steps, 4096)), return_state=True)
    if grows and state32.keys.shape[1] != steps:
        return f"the state has {state32.keys.shape[1]} steps, needed {steps}"
    if not grows and largest > first.nbytes:
        return f"a state of {largest} bytes, {first.nbytes} after 4,096 steps"
    if not grows and growth > GROWTH:
        return f"memory grew by {growth / 2**20:.0f} MiB after the first tenth of the steps"
    exact, single, rounding = (error(found, whole) for found in ((y64, state64), (y32, state32), plain))
    if not exact <= 1e-7:
        return f"in float64 pieces differ from one pass by {exact:.1e}"
    if not single <= 4 * rounding + 1e-5:
        return f"in float32 pieces differ by {single:.1e} from float64, one pass in float32 by {rounding:.1e}"
    return None


def run(seed: int, until: float, write: Callable[..., None], steps: int = STEPS) -> None:
    name = NAMES[seed % len(NAMES)]
    options = settings(name, seed // len(NAMES))
    write(begin=f"{name} {options}")
    failure = check(name, options, seed, steps)
    write(subject=name, cases=1, failure=failure and f"{options}: {failure}", outcomes={"steps": steps})
