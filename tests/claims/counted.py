"""Functions that the tests of claims share: scans and counters of operations, published figures, and records."""

import itertools
import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from longscan.report.published import published_row

ROOT = Path(__file__).parents[2]
Combine = Callable[[Any, Any], Any]


def blelloch(items: list[Any], combine: Combine, identity: Any) -> tuple[list[Any], list[int]]:
    """Return the inclusive prefixes of 2^k items by an up- and a down-sweep, and the number of combinations of each level."""
    tree, levels, half = list(items), [], 1
    while half < len(tree):
        places = range(2 * half - 1, len(tree), 2 * half)
        for right in places:
            tree[right] = combine(tree[right - half], tree[right])
        levels.append(len(places))
        half *= 2
    total, tree[-1] = tree[-1], identity
    while half > 1:
        half //= 2
        places = range(2 * half - 1, len(tree), 2 * half)
        for right in places:
            tree[right - half], tree[right] = tree[right], combine(tree[right], tree[right - half])
        levels.append(len(places))
    return [*tree[1:], total], levels


def compose(first: Any, then: Any) -> tuple[Any, Any]:
    """Return the pair (a, b) of the map x -> a x + b that applies `first` and then `then`."""
    return then[0] * first[0], then[0] * first[1] + then[1]


class Entries(TorchDispatchMode):
    """Counts the entries of the tensors that operations make, without views and changes in place."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if not any(result.alias_info for result in func._schema.returns):
            sizes = [part.numel() for part in tree_leaves(made) if isinstance(part, Tensor)]
            self.count += sum(sizes)
            self.largest = max(self.largest, *sizes, 0)
        return made


def entries(function: Callable[[], object]) -> Entries:
    """Return the counts of the entries that a call makes."""
    with Entries() as counter:
        function()
    return counter


def orders(sizes: list[int], amounts: list[float]) -> list[float]:
    """Return the exponents of growth between neighbours: log(ratio of amounts) / log(ratio of sizes)."""
    return (np.diff(np.log(amounts)) / np.diff(np.log(sizes))).tolist()


def peak(function: Callable[[], object]) -> int:
    """Return the peak of the memory that a call allocates on the CPU, in bytes, with the temporary memory of operations."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        function()
    assert profiled.profiler is not None
    changes = [event.nbytes() for event in profiled.profiler.kineto_results.events() if event.name() == "[memory]"]
    return max(itertools.accumulate(changes))


@cache
def records(name: str) -> tuple[dict[str, Any], ...]:
    """Return the rows of a file in results/, oldest first."""
    lines = (ROOT / "results" / name).read_text("utf-8").splitlines()
    return tuple(sorted((json.loads(line) for line in lines), key=lambda row: row["date"]))


def scaling(op: str, backend: str | None, peer: str | None) -> dict[int, tuple[float, float]]:
    """Return length -> (forward and backward in ms, peak in MiB), of the latest measurement on an H200."""
    rows = [row for row in records("bench/gpu_scaling.jsonl") if row.get("figure") == "length" and "H200" in row["device"]]
    return {
        row["shape"]["L"]: (row["forward_backward_ms"], row["peak_mib"])
        for row in rows
        if (row["op"], row["backend"], row["peer"]) == (op, backend, peer)
    }


def seeds(name: str) -> dict[str, Any]:
    """Return the record of seeds that were trained together."""
    return json.loads((ROOT / "results/seeds" / f"{name}.json").read_text("utf-8"))


def printed(first: int, count: int) -> list[float]:
    """Return `count` published figures from r<first> on, as printed."""
    return [published_row(f"r{number:03}")["value"] for number in range(first, first + count)]


def words(alphabet: int, count: int, length: int, seed: int = 0) -> np.ndarray:
    """Return random words (count, length) of letters 0 .. alphabet - 1."""
    return np.random.default_rng(seed).integers(0, alphabet, (count, length))


def loop(a: Tensor, b: Tensor, start: Tensor | None = None) -> Iterator[Tensor]:
    """Yield x_t = a_t x_{t-1} + b_t for every step of the first axis."""
    x = torch.zeros_like(b[0]) if start is None else start
    for a_t, b_t in zip(a, b, strict=True):
        x = a_t * x + b_t
        yield x
