"""Tasks whose examples are generated from a seed: fixed sets that are cached on disk, or an endless training stream."""

import os
import pickle
import subprocess
import sys
from abc import abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from functools import lru_cache, partial
from typing import Annotated, Literal

import numpy as np
import torch

from longscan._types import Doc
from longscan.tasks._random import CounterRNG
from longscan.tasks._store import Arrays, Ragged, cached_arrays
from longscan.tasks.base import Batch, Split, TestSize, TrainSize, ValidSize, check_request
from longscan.tasks.classification import majority_share
from longscan.tasks.examples import LabelledSequences, SequenceClassification, consecutive_rows

Block = tuple[Ragged, np.ndarray]  # sequences and targets
Job = tuple["GeneratedTask", Split, int, int]  # number and size of a block of a split
_WORKER = "from longscan.tasks.lra._generated import work; work()"
# Settings that do not affect the examples; they are not part of the generator's key.
_LAYOUT_SETTINGS = ("data", "train_size", "valid_size", "test_size", "data_dir", "pixels")


@dataclass(frozen=True, kw_only=True)
class GeneratedTask(SequenceClassification):
    """A task with generated sequences.

    Fixed sets are generated once and cached on disk (`longscan.tasks._store`); valid and test are fixed sets in any case. Two
    examples of the default settings practically never coincide, so the splits are disjoint; very short expressions do.
    """

    data: Annotated[
        Literal["samples", "stream"], Doc("training examples: a fixed set of train_size examples, or an endless stream")
    ] = "samples"
    train_size: TrainSize = 96_000
    valid_size: ValidSize = 2_000
    test_size: TestSize = 2_000

    @property
    @abstractmethod
    def _block_size(self) -> int:
        """Number of examples that are generated together."""

    @abstractmethod
    def _generate(self, rng: CounterRNG, count: int) -> Block:
        """Generate `count` sequences and their targets (count,)."""

    @property
    def _is_stream(self) -> bool:
        """Whether the training split is an endless stream."""
        return self.data == "stream"

    def _rng_key(self, split: Split) -> tuple[object, ...]:
        """Return the key of the random numbers of a split."""
        settings = tuple((field.name, getattr(self, field.name)) for field in fields(self) if field.name not in _LAYOUT_SETTINGS)
        return (self.name, settings, split)

    def size(self, split: Split) -> int | None:
        """Return the number of examples of a split, None for the training stream."""
        check_request(self, split)
        if split == "train":
            return None if self._is_stream else self.train_size
        return self.valid_size if split == "valid" else self.test_size

    def batch(self, split: Split, step: int, batch_size: int, seed: int = 0) -> Batch:
        """Return the batch of a step; each batch of the stream has other random numbers."""
        check_request(self, split, step, batch_size, seed)
        if self.size(split) is not None:
            return super().batch(split, step, batch_size, seed)
        sequences, targets = self._generate(CounterRNG((*self._rng_key("train"), "stream", batch_size, seed), step), batch_size)
        return self._to_batch(sequences)._replace(targets=torch.from_numpy(targets))

    def constant_score(self, split: Split = "test") -> float:
        """Return the accuracy on a split of always giving its most frequent class; for the stream, that on valid."""
        check_request(self, split)
        data = self._data()
        return majority_share(data.targets[data.rows["valid" if split == "train" and self._is_stream else split]])

    def _data(self) -> LabelledSequences:
        return _load(self)


@lru_cache(maxsize=4)
def _load(task: GeneratedTask) -> LabelledSequences:
    sizes: dict[Split, int] = {"valid": task.valid_size, "test": task.test_size}
    if not task._is_stream:
        sizes = {"train": task.train_size, **sizes}
    values, lengths, targets = [], [], []
    for split, size in sizes.items():
        key = task._rng_key(split)
        arrays = cached_arrays(task.name, [], (key, size, task._block_size), partial(_generate_split, task, split, size))
        values.append(arrays["values"])
        lengths.append(np.diff(arrays["offsets"]))
        targets.append(arrays["targets"])
    offsets = np.concatenate([[0], np.concatenate(lengths).cumsum()])
    return LabelledSequences(Ragged(np.concatenate(values), offsets), np.concatenate(targets), consecutive_rows(sizes))


def _generate_split(task: GeneratedTask, split: Split, size: int) -> Arrays:
    """Generate a whole split, in several processes if it has many blocks."""
    starts = range(0, size, task._block_size)
    jobs = [(task, split, start // task._block_size, min(task._block_size, size - start)) for start in starts]
    workers = min(len(jobs) // 8, os.cpu_count() or 1)
    if workers > 1:
        with ThreadPoolExecutor(workers) as threads:
            parts = list(threads.map(_generate_in_process, [jobs[first::workers] for first in range(workers)]))
        blocks = [parts[number % workers][number // workers] for number in range(len(jobs))]
    else:
        blocks = [_generate_block(job) for job in jobs]
    offsets = np.concatenate([[0], np.concatenate([block[0].lengths for block in blocks]).cumsum()])
    values, targets = (np.concatenate(part) for part in ([block[0].values for block in blocks], [block[1] for block in blocks]))
    return {"values": values, "offsets": offsets, "targets": targets}


def _generate_in_process(jobs: Sequence[Job]) -> list[Block]:
    """Return the blocks of jobs from another process, which imports this package alone.

    A process of `multiprocessing` would import the user's script, too, and run it unless it has `if __name__ == "__main__"`.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run([sys.executable, "-c", _WORKER], input=pickle.dumps(jobs), stdout=subprocess.PIPE, env=environment)
    if done.returncode:
        raise RuntimeError(f"a process that generates examples ended with code {done.returncode}")
    found: list[Block] | ValueError = pickle.loads(done.stdout)
    if isinstance(found, ValueError):
        raise found
    return found


def work() -> None:
    """Read pickled jobs from the standard input; write their blocks, or a ValueError, to the standard output, pickled."""
    found: list[Block] | ValueError
    try:
        found = [_generate_block(job) for job in pickle.load(sys.stdin.buffer)]
    except ValueError as error:
        found = error
    sys.stdout.buffer.write(pickle.dumps(found))


def _generate_block(job: Job) -> Block:
    task, split, index, count = job
    return task._generate(CounterRNG((*task._rng_key(split), "block"), index), count)
