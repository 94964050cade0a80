"""Examples that are drawn by seed in blocks, kept on disk as a fixed set or drawn afresh as an endless training stream."""

import os
from abc import abstractmethod
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields
from functools import lru_cache, partial
from multiprocessing import get_context
from typing import Literal

import numpy as np
import torch

from longscan.tasks._random import CounterRNG
from longscan.tasks._store import Arrays, Ragged, stored
from longscan.tasks.base import Batch, Split, check_request
from longscan.tasks.classification import largest_share
from longscan.tasks.examples import Labelled, SequenceClassification

Block = tuple[Ragged, np.ndarray]  # sequences and targets
_LAYOUT_ALONE = ("data", "train_size", "valid_size", "test_size", "data_dir", "pixels")  # settings that change no drawn example


@dataclass(frozen=True, kw_only=True)
class DrawnTask(SequenceClassification):
    """data: "samples", train_size examples drawn once and kept on disk (`longscan.tasks._store`), or "stream", new ones for ever.

    Valid and test are fixed sets either way. Two examples of these generators practically never coincide, so the splits are
    disjoint.
    """

    data: Literal["samples", "stream"] = "samples"
    train_size: int = 96_000
    valid_size: int = 2_000
    test_size: int = 2_000

    def __post_init__(self) -> None:
        if self.data not in ("samples", "stream"):
            raise ValueError(f"data: must be one of 'samples', 'stream', not {self.data!r}")
        for setting in ("train_size", "valid_size", "test_size"):
            if getattr(self, setting) < 1:
                raise ValueError(f"{setting}: must be positive, not {getattr(self, setting)}")

    @property
    @abstractmethod
    def _block_size(self) -> int:
        """Examples that are drawn together."""

    @abstractmethod
    def _draw(self, rng: CounterRNG, count: int) -> Block:
        """`count` examples."""

    @property
    def _streams(self) -> bool:
        """Whether training examples are endless."""
        return self.data == "stream"

    def _key(self, split: Split) -> tuple[object, ...]:
        settings = tuple((field.name, getattr(self, field.name)) for field in fields(self) if field.name not in _LAYOUT_ALONE)
        return (self.name, settings, split)

    def size(self, split: Split) -> int | None:
        """Examples of a split, None for the training stream."""
        check_request(self, split, 0, 1, 0)
        if split == "train":
            return None if self._streams else self.train_size
        return self.valid_size if split == "valid" else self.test_size

    def batch(self, split: Split, step: int, batch_size: int, seed: int = 0) -> Batch:
        """The batch of a step; a batch of the stream is drawn for itself."""
        check_request(self, split, step, batch_size, seed)
        if self.size(split) is not None:
            return super().batch(split, step, batch_size, seed)
        sequences, targets = self._draw(CounterRNG((*self._key("train"), "stream", batch_size, seed), step), batch_size)
        return self._arranged(sequences, np.arange(batch_size))._replace(targets=torch.from_numpy(targets))

    def constant_score(self, split: Split = "test") -> float:
        """The accuracy on a split of always giving its most frequent class; of the stream, on valid."""
        check_request(self, split, 0, 1, 0)
        data = self._labelled()
        return largest_share(data.targets[data.rows["valid" if split == "train" and self._streams else split]])

    def _labelled(self) -> Labelled:
        return _labelled(self)


@lru_cache(maxsize=4)
def _labelled(task: DrawnTask) -> Labelled:
    sizes: dict[Split, int] = {"valid": task.valid_size, "test": task.test_size}
    if not task._streams:
        sizes = {"train": task.train_size, **sizes}
    values, lengths, targets = [], [], []
    rows: dict[Split, np.ndarray] = {}
    start = 0
    for split, size in sizes.items():
        key = task._key(split)
        arrays = stored(task.name, [], (key, size, task._block_size), partial(_draw_all, task, split, size))
        values.append(arrays["values"])
        lengths.append(np.diff(arrays["offsets"]))
        targets.append(arrays["targets"])
        rows[split] = np.arange(start, start + size)
        start += size
    offsets = np.concatenate([[0], np.concatenate(lengths).cumsum()])
    whole = values[0] if len(values) == 1 else np.concatenate(values)
    return Labelled(Ragged(whole, offsets), np.concatenate(targets), rows)


def _draw_all(task: DrawnTask, split: Split, size: int) -> Arrays:
    """A whole split, by several processes where there is much to draw."""
    starts = range(0, size, task._block_size)
    jobs = [(task, split, start // task._block_size, min(task._block_size, size - start)) for start in starts]
    workers = min(len(jobs) // 8, os.cpu_count() or 1)
    if workers > 1:
        with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
            blocks = list(pool.map(_draw_block, jobs))
    else:
        blocks = [_draw_block(job) for job in jobs]
    offsets = np.concatenate([[0], np.concatenate([block[0].lengths for block in blocks]).cumsum()])
    values, targets = (np.concatenate(part) for part in ([block[0].values for block in blocks], [block[1] for block in blocks]))
    return {"values": values, "offsets": offsets, "targets": targets}


def _draw_block(job: tuple[DrawnTask, Split, int, int]) -> Block:
    task, split, index, count = job
    return task._draw(CounterRNG((*task._key(split), "block"), index), count)
