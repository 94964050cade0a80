"""Which recordings make a batch, and how batches of unequal lengths are laid out."""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from longscan.tasks._random import CounterRNG

_POOL = 16  # batches whose recordings are sorted by length among themselves


def bucketed_rows(lengths: tuple[int, ...], step: int, batch_size: int, seed: int) -> np.ndarray:
    """The recordings of a training step when batches hold recordings of about equal length.

    Each epoch a permutation is cut into pools of 16 batches, a pool sorted by length and cut into batches, and all batches are
    put in random order; each recording comes once, and the smallest batch is one of any length.
    """
    epoch, position = divmod(step, -(-len(lengths) // batch_size))
    return _epoch(lengths, epoch, batch_size, seed)[position]


@lru_cache(maxsize=4)
def _epoch(lengths: tuple[int, ...], epoch: int, batch_size: int, seed: int) -> list[np.ndarray]:
    rng = CounterRNG(("buckets", len(lengths), seed), epoch)
    order, sizes = rng.permutation(len(lengths)), np.array(lengths)
    batches: list[np.ndarray] = []
    for start in range(0, len(order), _POOL * batch_size):
        pool = order[start : start + _POOL * batch_size]
        pool = pool[np.argsort(sizes[pool], kind="stable")]
        batches += [pool[first : first + batch_size] for first in range(0, len(pool), batch_size)]
    return [batches[number] for number in rng.permutation(len(batches))]


class Packed(NamedTuple):
    """Where sequences stand in rows: rows (n,), starts (n,), and how many rows there are and how wide."""

    rows: np.ndarray
    starts: np.ndarray
    height: int
    width: int


def packed(lengths: Sequence[int]) -> Packed:
    """Rows as wide as the longest sequence, filled with the longest first, each into the first row with room for it."""
    width = max(lengths)
    rows, starts = np.zeros(len(lengths), np.int64), np.zeros(len(lengths), np.int64)
    used: list[int] = []
    for number in sorted(range(len(lengths)), key=lambda number: -lengths[number]):
        row = next((row for row, taken in enumerate(used) if taken + lengths[number] <= width), len(used))
        if row == len(used):
            used.append(0)
        rows[number], starts[number] = row, used[row]
        used[row] += lengths[number]
    return Packed(rows, starts, len(used), width)
