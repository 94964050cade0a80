"""Functions that the tests of claims share: scans, counters of operations, and readers of records."""

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

ROOT = Path(__file__).parents[2]
Combine = Callable[[Any, Any], Any]


def blelloch_scan(items: list[Any], combine: Combine, identity: Any) -> tuple[list[Any], list[int]]:
    """Return the inclusive prefixes of 2^k items by an up- and a down-sweep, and the number of combinations of each level."""
    tree, levels, half = list(items), [], 1
    while half < len(tree):
        right_children = range(2 * half - 1, len(tree), 2 * half)
        for right in right_children:
            tree[right] = combine(tree[right - half], tree[right])
        levels.append(len(right_children))
        half *= 2
    total, tree[-1] = tree[-1], identity
    while half > 1:
        half //= 2
        right_children = range(2 * half - 1, len(tree), 2 * half)
        for right in right_children:
            tree[right - half], tree[right] = tree[right], combine(tree[right], tree[right - half])
        levels.append(len(right_children))
    return [*tree[1:], total], levels


def compose_affine_maps(first: Any, then: Any) -> tuple[Any, Any]:
    """Return the pair (a, b) of the map x -> a x + b that applies `first` and then `then`."""
    return then[0] * first[0], then[0] * first[1] + then[1]


class EntryCounter(TorchDispatchMode):
    """Count the entries of the tensors that operations create; views and changes in place do not count.

    Attributes:
        count: number of entries of all these tensors.
        largest: number of entries of the largest one.
    """

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not any(result.alias_info for result in func._schema.returns):
            sizes = [part.numel() for part in tree_leaves(result) if isinstance(part, Tensor)]
            self.count += sum(sizes)
            self.largest = max(self.largest, *sizes, 0)
        return result


def count_entries(function: Callable[[], object]) -> EntryCounter:
    """Return the counts of the entries of the tensors that a call creates."""
    with EntryCounter() as counter:
        function()
    return counter


def growth_exponents(sizes: list[int], amounts: list[float]) -> list[float]:
    """Return log(ratio of amounts) / log(ratio of sizes) for each two neighbouring sizes."""
    return (np.diff(np.log(amounts)) / np.diff(np.log(sizes))).tolist()


def peak_memory(function: Callable[[], object]) -> int:
    """Return the peak memory in bytes that a call allocates on the CPU, including temporary memory of operations."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        function()
    assert profiled.profiler is not None
    changes = [event.nbytes() for event in profiled.profiler.kineto_results.events() if event.name() == "[memory]"]
    return max(itertools.accumulate(changes))


@cache
def read_results(name: str) -> tuple[dict[str, Any], ...]:
    """Return the rows of a file in results/, oldest first."""
    lines = (ROOT / "results" / name).read_text("utf-8").splitlines()
    return tuple(sorted((json.loads(line) for line in lines), key=lambda row: row["date"]))


def read_scaling(op: str, backend: str | None, peer: str | None) -> dict[int, tuple[float, float]]:
    """Return (ms of forward and backward, peak memory in MiB) by sequence length, of the latest measurement on an H200."""
    rows = [row for row in read_results("bench/gpu_scaling.jsonl") if row.get("figure") == "length" and "H200" in row["device"]]
    return {
        row["shape"]["L"]: (row["forward_backward_ms"], row["peak_mib"])
        for row in rows
        if (row["op"], row["backend"], row["peer"]) == (op, backend, peer)
    }


def random_words(alphabet: int, count: int, length: int, seed: int = 0) -> np.ndarray:
    """Return random words (count, length), whose letters are numbers from 0 to alphabet - 1."""
    return np.random.default_rng(seed).integers(0, alphabet, (count, length))


def iterate_recurrence(a: Tensor, b: Tensor, start: Tensor | None = None) -> Iterator[Tensor]:
    """Yield x_t = a_t x_{t-1} + b_t for every step of the first axis."""
    x = torch.zeros_like(b[0]) if start is None else start
    for a_t, b_t in zip(a, b, strict=True):
        x = a_t * x + b_t
        yield x
