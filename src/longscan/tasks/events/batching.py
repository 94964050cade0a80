"""Selection of the recordings of a batch by length, and packing of sequences of unequal lengths into rows."""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from longscan.tasks._random import CounterRNG

_BATCHES_PER_POOL = 16  # number of batches whose recordings are sorted by length together


def bucketed_rows(lengths: tuple[int, ...], step: int, batch_size: int, seed: int) -> np.ndarray:
    """Return the numbers of the recordings of a training step, for batches of about equal length.

    In each epoch a random permutation is divided into pools of 16 batches, each pool is sorted by length and divided into
    batches, and the batches are shuffled. Each recording occurs once; one batch may be smaller than the others.
    """
    epoch, position = divmod(step, -(-len(lengths) // batch_size))
    return _bucketed_epoch(lengths, epoch, batch_size, seed)[position]


@lru_cache(maxsize=4)
def _bucketed_epoch(lengths: tuple[int, ...], epoch: int, batch_size: int, seed: int) -> list[np.ndarray]:
    rng = CounterRNG(("buckets", len(lengths), seed), epoch)
    order, sizes = rng.permutation(len(lengths)), np.array(lengths)
    batches: list[np.ndarray] = []
    for start in range(0, len(order), _BATCHES_PER_POOL * batch_size):
        pool = order[start : start + _BATCHES_PER_POOL * batch_size]
        pool = pool[np.argsort(sizes[pool], kind="stable")]
        batches += [pool[first : first + batch_size] for first in range(0, len(pool), batch_size)]
    return [batches[number] for number in rng.permutation(len(batches))]


class PackedLayout(NamedTuple):
    """Positions of sequences in rows: rows (n,) and starts (n,); number of rows and their width."""

    rows: np.ndarray
    starts: np.ndarray
    height: int
    width: int


def pack_rows(lengths: Sequence[int]) -> PackedLayout:
    """Pack sequences into rows as wide as the longest: the longest first, each into the first row with enough space."""
    width = max(lengths)
    rows, starts = np.zeros(len(lengths), np.int64), np.zeros(len(lengths), np.int64)
    occupied: list[int] = []
    for number in sorted(range(len(lengths)), key=lambda number: -lengths[number]):
        row = next((row for row, count in enumerate(occupied) if count + lengths[number] <= width), len(occupied))
        if row == len(occupied):
            occupied.append(0)
        rows[number], starts[number] = row, occupied[row]
        occupied[row] += lengths[number]
    return PackedLayout(rows, starts, len(occupied), width)
