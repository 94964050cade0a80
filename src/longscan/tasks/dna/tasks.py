"""Tasks on windows of genomes: classify the species, or predict the next base."""

import re
from abc import abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from longscan._types import Doc, PositiveInt
from longscan.tasks._random import CounterRNG
from longscan.tasks._store import Arrays, Ragged, cached_arrays, data_folder
from longscan.tasks.base import TASKS, Batch, Split, Task, TestSize, ValidSize, check_request, rows_of_step
from longscan.tasks.classification import ClassificationTask, majority_share, most_probable
from longscan.tasks.dna.fasta import BASES, read_fasta, reverse_complement
from longscan.tasks.language.base import LanguageTask

_NEEDED_FILES = "FASTA files (.fa, .fasta, .fna): SPECIES/*.fa, or SPECIES.REGION.fa at any depth (`longscan data get ENCODE`)"
_SUFFIXES = (".fa", ".fasta", ".fna")
_TEST, _VALID = {5, 7, 9, 10, 11}, {1, 3, 12, 13}  # chromosomes, as in the thesis' code
_BLOCK_SIZE = 256
_MAX_ATTEMPTS = 4


@dataclass(frozen=True, kw_only=True)
class _GenomeTask(Task):
    """Random windows of genomes, an endless training stream and fixed validation and test sets.

    A window is sampled as in the thesis: a species, one of its sequences, a start, each uniform; a window that is mostly N is
    sampled again, up to three times. Both ways to split avoid leaks: by position, regions that species share belong to the same
    split.
    """

    vocab_size: ClassVar[int] = len(BASES)
    d_input: ClassVar[None] = None
    symbols: ClassVar[tuple[str, ...]] = BASES
    data_dir: Annotated[str | None, Doc("folder of FASTA files, in a folder for each species or named SPECIES.REGION.fa")] = None
    window: Annotated[PositiveInt, Doc("number of bases of an example")] = 1024
    split: Annotated[
        Literal["position", "chromosome"],
        Doc(
            "position: the first 70 % of every sequence are train, then valid to 85 %, then test; chromosome: 5, 7, 9, 10 and 11 "
            "are test, 1, 3, 12 and 13 valid, all others train"
        ),
    ] = "position"
    reverse_complement: Annotated[bool, Doc("replace half of the training windows by their reverse complement")] = False
    valid_size: ValidSize = 1_000
    test_size: TestSize = 5_000

    @property
    def length(self) -> int:
        """Number of bases of an input."""
        return self.window

    @property
    @abstractmethod
    def _sample_length(self) -> int:
        """Number of bases of a sampled window."""

    def size(self, split: Split) -> int | None:
        """Return the number of windows of a split, None for the training stream."""
        check_request(self, split)
        _window_ranges(self)
        return {"train": None, "valid": self.valid_size, "test": self.test_size}[split]

    def _windows(self, split: Split, step: int, batch_size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Return bases (n, window) and species (n,) of a batch."""
        size = self.size(split)
        if size is None:
            rng = CounterRNG(("dna", "stream", self._sample_length, batch_size, seed), step)
            return self._sample_windows(split, rng, batch_size)
        rows = rows_of_step(size, split, step, batch_size, seed)
        blocks = [_load_block(self, split, int(number)) for number in range(rows[0] // _BLOCK_SIZE, rows[-1] // _BLOCK_SIZE + 1)]
        bases, species = (np.concatenate(part) for part in zip(*blocks, strict=True))
        inside = rows - rows[0] // _BLOCK_SIZE * _BLOCK_SIZE
        return bases[inside], species[inside]

    def _sample_windows(self, split: Split, rng: CounterRNG, count: int) -> tuple[np.ndarray, np.ndarray]:
        data, ranges = _load(self.data_dir), _window_ranges(self)[split]
        species = rng.integers(0, len(data.species), count)
        numbers = rng.integers(0, np.array([len(species_ranges) for species_ranges in ranges])[species], count)
        chosen = np.array([ranges[kind][number] for kind, number in zip(species, numbers, strict=True)])
        bases = np.zeros((count, self._sample_length), np.uint8)
        pending = np.arange(count)
        for _ in range(_MAX_ATTEMPTS):
            starts = chosen[pending, 0] + rng.integers(0, chosen[pending, 1] - self._sample_length + 1, len(pending))
            bases[pending] = data.bases.values[starts[:, None] + np.arange(self._sample_length)]
            pending = pending[(bases[pending] == 4).mean(1) > 0.5]
            if not len(pending):
                break
        if split == "train" and self.reverse_complement:
            reversed_rows = rng.integers(0, 2, count) == 1
            bases[reversed_rows] = reverse_complement(bases[reversed_rows])
        return bases, species

    def read_inputs(self, path: str | Path) -> Batch:
        """Read the sequences of a FASTA file, truncated to `window` bases; `valid` is False at the padding of shorter ones."""
        sequences = Ragged.from_sequences([bases[: self.window] for _, bases in read_fasta(Path(path))])
        table, lengths = sequences.pad(None, 4)
        valid = torch.from_numpy(np.arange(table.shape[1]) < lengths[:, None])
        return Batch(torch.from_numpy(table.astype(np.int64)), valid=valid)

    def _describe_bases(self, batch: Batch, row: int) -> str:
        bases = "".join(BASES[base] for base in batch.inputs[row, :24].tolist())
        return f"{bases}… {batch.inputs.shape[1]} bases"


@TASKS.register("species")
@dataclass(frozen=True, kw_only=True)
class Species(_GenomeTask, ClassificationTask):
    """Classify the species of a window of DNA.

        TCTTTACATAACAAGGTTGGAGAT… 1024 bases | human

    `longscan.tasks.dna.tasks` explains how windows are sampled and split. A species that has no window in a split is an error.
    """

    source: ClassVar[str] = "any FASTA files, such as ENCODE's regions"
    has_imbalanced_classes: ClassVar[bool] = True
    per_step: ClassVar[bool] = False

    @property
    def num_classes(self) -> int:
        """Number of species."""
        return len(self.classes)

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the species in alphabetical order."""
        return _load(self.data_dir).species

    @property
    def _sample_length(self) -> int:
        return self.window

    def batch(self, split: Split, step: int, batch_size: int, seed: int = 0) -> Batch:
        """Return the batch of a step: inputs (B, window) int64, targets (B,)."""
        check_request(self, split, step, batch_size, seed)
        bases, species = self._windows(split, step, batch_size, seed)
        return Batch(torch.from_numpy(bases.astype(np.int64)), torch.from_numpy(species))

    def constant_score(self, split: Split = "test") -> float:
        """Return the accuracy on a split of always giving its most frequent species; for train, 1 / number of species."""
        size = self.size(split)
        if size is None:
            return 1 / self.num_classes
        targets = np.concatenate([_load_block(self, split, number)[1] for number in range(-(-size // _BLOCK_SIZE))])[:size]
        return majority_share(targets)

    def describe(self, batch: Batch, row: int = 0) -> str:
        """Return an example as text: the first bases, the number of bases, the species."""
        return self._append_class(self._describe_bases(batch, row), batch, row)


@TASKS.register("dna_language")
@dataclass(frozen=True, kw_only=True)
class DnaLanguage(_GenomeTask, LanguageTask):
    """Predict the next base in the windows of the task `species`, for pretraining.

    TCTTTACATAACAAGGTTGGAGAT… 1024 bases | A
    """

    source: ClassVar[str] = "any FASTA files, such as ENCODE's regions"
    num_classes: ClassVar[int] = len(BASES)
    classes: ClassVar[tuple[str, ...]] = BASES

    @property
    def _sample_length(self) -> int:
        return self.window + 1

    def batch(self, split: Split, step: int, batch_size: int, seed: int = 0) -> Batch:
        """Return the batch of a step: inputs and targets (B, window) int64."""
        check_request(self, split, step, batch_size, seed)
        return self._next_token_batch(self._windows(split, step, batch_size, seed)[0])

    def _token_counts(self, split: Split) -> np.ndarray:
        size = self.size(split)
        count = 4 * _BLOCK_SIZE if size is None else size
        windows = np.concatenate([_load_block(self, split, number)[0] for number in range(-(-count // _BLOCK_SIZE))])[:count, 1:]
        return np.bincount(windows.ravel(), minlength=len(BASES))

    def describe(self, batch: Batch, row: int = 0) -> str:
        """Return an example as text: the first bases, the number of bases, the last target."""
        text = self._describe_bases(batch, row)
        return text if batch.targets is None else f"{text} | {BASES[int(batch.targets[row, -1])]}"

    def decode(self, output: Tensor, batch: Batch) -> list[dict[str, str | float]]:
        """Return the most probable next base after each sequence and its probability. output: (B, L, 5)."""
        last = torch.full((len(output),), output.shape[1] - 1) if batch.valid is None else batch.valid.sum(1) - 1
        return most_probable(output[torch.arange(len(output)), last], BASES, column="next")


class _GenomeData(NamedTuple):
    """All sequences, the number of the species (N,) and the name (N,) of each, and the names of the species."""

    bases: Ragged
    owners: np.ndarray
    names: tuple[str, ...]
    species: tuple[str, ...]


@lru_cache(maxsize=2)
def _load(data_dir: str | None) -> _GenomeData:
    folder = data_folder(data_dir, "dna", _NEEDED_FILES)
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in _SUFFIXES)
    if not paths:
        raise FileNotFoundError(f"`data_dir` must be a folder with {_NEEDED_FILES}, got {folder} without such files")
    kinds = [path.name.split(".")[0] if path.name.count(".") > 1 else path.parent.name for path in paths]
    species = tuple(sorted(set(kinds)))
    if len(species) < 2:
        raise ValueError(f"`data_dir` must have at least two species in {_NEEDED_FILES}, got {len(species)} in {folder}")

    def read() -> Arrays:
        sequences, owners, names = [], [], []
        for path, kind in zip(paths, kinds, strict=True):
            for name, bases in read_fasta(path):
                sequences.append(bases)
                owners.append(species.index(kind))
                names.append(f"{path.stem} {name}".encode()[:100])
        return {**Ragged.from_sequences(sequences)._asdict(), "owners": np.array(owners), "names": np.array(names)}

    arrays = cached_arrays("dna", paths, species, read)
    names = tuple(name.decode("utf-8", "replace") for name in arrays["names"].tolist())
    return _GenomeData(Ragged(arrays["values"], arrays["offsets"]), np.array(arrays["owners"]), names, species)


@lru_cache(maxsize=8)
def _window_ranges(task: _GenomeTask) -> dict[Split, list[np.ndarray]]:
    """Return the ranges that contain the windows of each split and species: (n, 2), first base and length of each range."""
    data = _load(task.data_dir)
    ranges: dict[Split, list[list[tuple[int, int]]]] = {split: [[] for _ in data.species] for split in task.splits}
    for owner, name, first, length in zip(data.owners, data.names, data.bases.offsets, data.bases.lengths, strict=False):
        for split, (start, end) in _split_ranges(task.split, name, int(length)).items():
            if end - start >= task._sample_length:
                ranges[split][owner].append((int(first) + start, end - start))
    for split, kinds in ranges.items():
        for kind, species_ranges in zip(data.species, kinds, strict=True):
            if not species_ranges:
                ranges_of = f"the ranges of {kind} in split {split} by {task.split}"
                raise ValueError(f"`window` must be shorter than {ranges_of}, got windows of {task._sample_length} bases")
    return {split: [np.array(species_ranges) for species_ranges in kinds] for split, kinds in ranges.items()}


def _split_ranges(method: str, name: str, length: int) -> dict[Split, tuple[int, int]]:
    """Return the range of a sequence, (first base, end), that belongs to each split; method: the setting `split`."""
    if method == "position":
        first, second = int(0.7 * length), int(0.85 * length)
        return {"train": (0, first), "valid": (first, second), "test": (second, length)}
    match = re.search(r"(?:chr|chromosome[ _]?)([0-9]+|[XYxy])\b", name)
    number = int(match[1]) if match and match[1].isdigit() else 0
    return {"test" if number in _TEST else "valid" if number in _VALID else "train": (0, length)}


@lru_cache(maxsize=64)
def _load_block(task: _GenomeTask, split: Split, number: int) -> tuple[np.ndarray, np.ndarray]:
    return task._sample_windows(split, CounterRNG(("dna", split, task._sample_length), number), _BLOCK_SIZE)
