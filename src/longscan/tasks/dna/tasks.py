"""Tasks on windows of genomes: classify the species, or predict the next base or masked bases, for pretraining."""

import re
from abc import abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from longscan._errors import setting_error
from longscan._types import Doc, PositiveInt
from longscan.tasks._random import CounterRNG
from longscan.tasks._store import Arrays, Ragged, cached_arrays, data_folder, visible_paths
from longscan.tasks.base import TASKS, Batch, Split, Task, TestSize, ValidSize, check_request, rows_of_step
from longscan.tasks.classification import ClassificationTask, majority_share, most_probable
from longscan.tasks.dna.fasta import BASES, read_fasta, reverse_complement
from longscan.tasks.language.base import LanguageTask

_NEEDED_FILES = "FASTA files (.fa, .fasta, .fna): SPECIES/*.fa, or SPECIES.REGION.fa at any depth (`longscan data get ENCODE`)"
_SUFFIXES = (".fa", ".fasta", ".fna")
_TEST, _VALID = {5, 7, 9, 10, 11}, {1, 3, 12, 13}  # chromosomes, as in the thesis' code
_MASK_SHARE, _MASK_SPLIT = 0.15, (0.8, 0.9)  # share of masked bases; below 0.8 the mask token, then to 0.9 a random base
_BLOCK_SIZE = 256
_MAX_ATTEMPTS = 4


@dataclass(frozen=True, kw_only=True)
class _GenomeTask(Task):
    """Random windows of genomes, an endless training stream and fixed validation and test sets.

    A window is sampled as in the thesis: a species, one of its sequences, a start, each uniform; a window that is mostly N is
    sampled again, up to three times. Both ways to split avoid leaks: by position, regions that species share belong to the same
    split.
    """

    d_input: ClassVar[None] = None
    data_dir: Annotated[str | None, Doc("folder of FASTA files, in a folder for each species or named SPECIES.REGION.fa")] = None
    window: Annotated[PositiveInt, Doc("number of bases of an example")] = 1024
    split: Annotated[
        Literal["position", "chromosome"],
        Doc(
            "position: the first 70 % of every sequence are train, then valid to 85 %, then test; chromosome: 5, 7, 9, 10 and 11 "
            "are test, 1, 3, 12 and 13 valid, all others train; the name of a file or the header of a sequence says which it is, "
            "as in chr5 or chromosome 5"
        ),
    ] = "position"
    species: Annotated[tuple[str, ...], Doc("names of the species to use; none for all in the folder")] = ()
    train_part: Annotated[
        Literal["all", "first", "rest"],
        Doc(
            "part of the training ranges of each species: all, the first train_first bases in the order of the files, or the "
            "rest, so that a model can be pretrained on the rest and fine-tuned on little data"
        ),
    ] = "all"
    train_first: Annotated[PositiveInt, Doc("number of bases of each species in the first part")] = 1_000_000
    reverse_complement: Annotated[bool, Doc("replace half of the training windows by their reverse complement")] = False
    valid_size: ValidSize = 1_000
    test_size: TestSize = 5_000

    @property
    def vocab_size(self) -> int:
        """Number of tokens."""
        return len(self.symbols)

    @property
    def symbols(self) -> tuple[str, ...]:
        """The bases, and N for an unknown one."""
        return BASES

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
        numbers, rows = self._blocks(size, split, step, batch_size, seed)
        blocks = [_load_block(self, split, number) for number in numbers]
        bases, species = (np.concatenate(part) for part in zip(*blocks, strict=True))
        return bases[rows], species[rows]

    def _blocks(self, size: int, split: Split, step: int, batch_size: int, seed: int) -> tuple[range, np.ndarray]:
        """Return the numbers of the blocks of a fixed split that contain the rows of a step, and these rows within them."""
        rows = rows_of_step(size, split, step, batch_size, seed)
        numbers = range(int(rows[0]) // _BLOCK_SIZE, int(rows[-1]) // _BLOCK_SIZE + 1)
        return numbers, rows - numbers[0] * _BLOCK_SIZE

    def _sample_windows(self, split: Split, rng: CounterRNG, count: int) -> tuple[np.ndarray, np.ndarray]:
        data, ranges = _load_species(self.data_dir, self.species), _window_ranges(self)[split]
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
        """Read the sequences of a FASTA file, truncated to `window` bases; `valid` is False at the padding of shorter ones.

        Raises ValueError for a sequence without bases, for which there is no answer.
        """
        records = read_fasta(Path(path))
        for number, (header, bases) in enumerate(records, 1):
            if not len(bases):
                raise ValueError(f"{path}: each sequence must have bases, got none in sequence {number}, {header[:40]!r}")
        sequences = Ragged.from_sequences([self._in_order(bases[: self.window]) for _, bases in records])
        table, lengths = sequences.pad(None, 4)
        valid = torch.from_numpy(np.arange(table.shape[1]) < lengths[:, None])
        return Batch(torch.from_numpy(table.astype(np.int64)), valid=valid)

    def _in_order(self, bases: np.ndarray) -> np.ndarray:
        """Return bases (..., L) in the order in which the model reads them."""
        return bases

    def _describe_bases(self, batch: Batch, row: int) -> str:
        bases = "".join(self.symbols[base] for base in batch.inputs[row, :24].tolist())
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

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(set(self.species)) == 1:
            raise setting_error("species", self.species[0], "at least two names of species, or none")

    @property
    def num_classes(self) -> int:
        """Number of species."""
        return len(self.classes)

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the species in alphabetical order."""
        return _load_species(self.data_dir, self.species).species

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
    """Predict the next base, or masked bases, in the windows of the task `species`, for pretraining.

        TCTTTACATAACAAGGTTGGAGAT… 1024 bases | A

    With objective="masked" (Devlin et al. 2019) 15 % of the bases of a window, but at least one, are targets: 80 % of them are
    replaced by the mask token ?, the last of the vocabulary, 10 % by a random base, and 10 % are kept.
    """

    source: ClassVar[str] = "any FASTA files, such as ENCODE's regions"
    num_classes: ClassVar[int] = len(BASES)
    classes: ClassVar[tuple[str, ...]] = BASES
    objective: Annotated[
        Literal["next", "reverse", "masked"],
        Doc(
            "what is predicted: the next base, the next base of reversed windows, or masked bases, which models may predict from "
            "both sides"
        ),
    ] = "next"

    @property
    def symbols(self) -> tuple[str, ...]:
        """The bases, N for an unknown one, and with masked bases the mask token."""
        return (*BASES, "?") if self.objective == "masked" else BASES

    @property
    def needs_causal(self) -> bool:
        """Whether the inputs of later steps contain the targets: not with masked bases."""
        return self.objective != "masked"

    @property
    def _sample_length(self) -> int:
        return self.window if self.objective == "masked" else self.window + 1

    def _in_order(self, bases: np.ndarray) -> np.ndarray:
        return bases[..., ::-1] if self.objective == "reverse" else bases

    def batch(self, split: Split, step: int, batch_size: int, seed: int = 0) -> Batch:
        """Return the batch of a step: inputs and targets (B, window) int64; loss_mask with masked bases."""
        check_request(self, split, step, batch_size, seed)
        windows = self._windows(split, step, batch_size, seed)[0]
        if self.objective != "masked":
            return self._next_token_batch(self._in_order(windows))
        choice, replacement, base = self._mask_numbers(split, step, batch_size, seed)
        chosen = choice <= np.maximum(choice.min(1, keepdims=True), _MASK_SHARE)
        replaced = np.where(replacement < _MASK_SPLIT[0], len(BASES), (base * len(BASES)).astype(np.int64))
        inputs = np.where(chosen & (replacement < _MASK_SPLIT[1]), replaced, windows)
        return Batch(torch.from_numpy(inputs), torch.from_numpy(windows.astype(np.int64)), loss_mask=torch.from_numpy(chosen))

    def _mask_numbers(self, split: Split, step: int, batch_size: int, seed: int) -> np.ndarray:
        """Return uniform numbers (3, n, window) that choose the targets of a batch, how each is replaced, and random bases."""
        size = self.size(split)
        if size is None:
            rng = CounterRNG(("dna", "mask", "stream", self.window, batch_size, seed), step)
            return rng.uniform((3, batch_size, self.window))
        numbers, rows = self._blocks(size, split, step, batch_size, seed)
        keys = [CounterRNG(("dna", "mask", split, self.window), number) for number in numbers]
        return np.concatenate([rng.uniform((3, _BLOCK_SIZE, self.window)) for rng in keys], 1)[:, rows]

    def _token_counts(self, split: Split) -> np.ndarray:
        size = self.size(split)
        if size is None:  # a sample of the stream
            windows = np.concatenate([_load_block(self, split, number)[0] for number in range(4)])
            return np.bincount(self._in_order(windows)[:, self._sample_length - self.window :].ravel(), minlength=len(BASES))
        counts = np.zeros(len(BASES), np.int64)
        for step in range(-(-size // _BLOCK_SIZE)):
            batch = self.batch(split, step, _BLOCK_SIZE)
            assert batch.targets is not None
            targets = batch.targets if batch.loss_mask is None else batch.targets[batch.loss_mask]
            counts += np.bincount(targets.numpy().ravel(), minlength=len(BASES))
        return counts

    def describe(self, batch: Batch, row: int = 0) -> str:
        """Return an example as text: the first bases, the number of bases, the last target."""
        text = self._describe_bases(batch, row)
        if batch.targets is None:
            return text
        targets = batch.targets[row] if batch.loss_mask is None else batch.targets[row, batch.loss_mask[row]]
        return f"{text} | {BASES[int(targets[-1])]}"

    def decode(self, output: Tensor, batch: Batch) -> list[dict[str, str | float]]:
        """Return the most probable base at the last step of each sequence and its probability. output: (B, L, 5).

        It is the base after the sequence, with objective="reverse" the one before it, with "masked" the last one.
        """
        last = torch.full((len(output),), output.shape[1] - 1) if batch.valid is None else batch.valid.sum(1) - 1
        column = {"next": "next", "reverse": "previous", "masked": "last"}[self.objective]
        return most_probable(output[torch.arange(len(output)), last], BASES, column=column)


class _GenomeData(NamedTuple):
    """All sequences of a folder of FASTA files.

    Attributes:
        bases: the N sequences.
        owners: (N,), the position in `species` of the species of each sequence; -1 for a species that is not used.
        names: (N,), the name of the file and the header of each sequence, as one text.
        species: names of the species that are used.
    """

    bases: Ragged
    owners: np.ndarray
    names: tuple[str, ...]
    species: tuple[str, ...]


def _load_species(data_dir: str | None, species: tuple[str, ...]) -> _GenomeData:
    """Return the sequences of these species, or of all in the folder if there are none."""
    data = _load(data_dir)
    if unknown := set(species) - set(data.species):
        raise setting_error("species", sorted(unknown)[0], f"names of species in the folder ({', '.join(data.species)})")
    if not species:
        return data
    names = tuple(sorted(set(species)))
    owners = np.array([names.index(name) if name in names else -1 for name in data.species])
    return data._replace(owners=owners[data.owners], species=names)


@lru_cache(maxsize=2)
def _load(data_dir: str | None) -> _GenomeData:
    folder = data_folder(data_dir, "dna", _NEEDED_FILES)
    paths = [path for path in visible_paths(folder) if path.suffix.lower() in _SUFFIXES]
    if not paths:
        raise FileNotFoundError(f"`data_dir` must be a folder with {_NEEDED_FILES}, got {folder} without such files")
    if loose := [path for path in paths if path.parent == folder and path.name.count(".") == 1]:
        raise ValueError(f"`data_dir` must be a folder with {_NEEDED_FILES}, got {loose[0]}, which names no species")
    kinds = [path.name.split(".")[0] if path.name.count(".") > 1 else path.parent.name for path in paths]
    species = tuple(sorted(set(kinds)))
    if len(species) < 2:
        raise ValueError(f"`data_dir` must have at least two species in {_NEEDED_FILES}, got {len(species)} in {folder}")

    def read() -> Arrays:
        sequences, owners, names = [], [], []
        for path, kind in zip(paths, kinds, strict=True):
            for header, bases in read_fasta(path):
                if len(bases):
                    sequences.append(bases)
                    owners.append(species.index(kind))
                    names.append(f"{path.stem} {header}".encode()[:200])
        return {**Ragged.from_sequences(sequences)._asdict(), "owners": np.array(owners), "names": np.array(names)}

    arrays = cached_arrays("genomes", paths, species, read)
    names = tuple(name.decode("utf-8", "replace") for name in arrays["names"].tolist())
    return _GenomeData(Ragged(arrays["values"], arrays["offsets"]), np.array(arrays["owners"]), names, species)


@lru_cache(maxsize=8)
def _window_ranges(task: _GenomeTask) -> dict[Split, list[np.ndarray]]:
    """Return the ranges that contain the windows of each split and species: (n, 2), first base and length of each range."""
    data = _load_species(task.data_dir, task.species)
    ranges: dict[Split, list[list[tuple[int, int]]]] = {split: [[] for _ in data.species] for split in task.splits}
    n_train = [0] * len(data.species)  # bases of training ranges so far
    for owner, name, first, length in zip(data.owners, data.names, data.bases.offsets, data.bases.lengths, strict=False):
        if owner < 0:
            continue
        for split, (start, end) in _split_ranges(task.split, name, int(length)).items():
            if split == "train" and task.train_part != "all":
                border = min(max(start + task.train_first - n_train[owner], start), end)
                n_train[owner] += end - start
                start, end = (start, border) if task.train_part == "first" else (border, end)
            if end - start >= task._sample_length:
                ranges[split][owner].append((int(first) + start, end - start))
    for split, kinds in ranges.items():
        for kind, species_ranges in zip(data.species, kinds, strict=True):
            if not species_ranges and task.split == "chromosome" and split != "train":
                numbers = " or ".join(map(str, sorted(_TEST if split == "test" else _VALID)))
                raise ValueError(
                    f"`data_dir` must have a sequence of {kind} of at least {task._sample_length} bases on chromosome {numbers} "
                    f"for the split {split}, as the name of its file or its header says (chr5, chromosome 5), got none"
                )
            if not species_ranges:
                ranges_of = f"the ranges of {kind} in split {split} by {task.split}"
                if split == "train" and task.train_part != "all":
                    ranges_of += f", part {task.train_part} with train_first {task.train_first}"
                raise ValueError(f"`window` must be shorter than {ranges_of}, got windows of {task._sample_length} bases")
    return {split: [np.array(species_ranges) for species_ranges in kinds] for split, kinds in ranges.items()}


def _split_ranges(method: str, name: str, length: int) -> dict[Split, tuple[int, int]]:
    """Return the range of a sequence, (first base, end), that belongs to each split; method: the setting `split`."""
    if method == "position":
        first, second = int(0.7 * length), int(0.85 * length)
        return {"train": (0, first), "valid": (first, second), "test": (second, length)}
    match = re.search(r"(?:chr|chromosome)[ _]?([0-9]+)", name, re.IGNORECASE)
    number = int(match[1]) if match else 0
    return {"test" if number in _TEST else "valid" if number in _VALID else "train": (0, length)}


@lru_cache(maxsize=64)
def _load_block(task: _GenomeTask, split: Split, number: int) -> tuple[np.ndarray, np.ndarray]:
    return task._sample_windows(split, CounterRNG(("dna", split, task._sample_length), number), _BLOCK_SIZE)
