"""Windows of genomes: which species they are of, or what base comes next."""

import re
from abc import abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from longscan.tasks._random import CounterRNG
from longscan.tasks._store import Arrays, Ragged, data_folder, stored
from longscan.tasks.base import TASKS, Batch, Split, Task, check_request, rows_of_step
from longscan.tasks.classification import ClassificationTask, largest_share
from longscan.tasks.dna.fasta import BASES, read_fasta, reverse_complement
from longscan.tasks.language.base import LanguageTask

_WANTED = "FASTA files (.fa, .fasta, .fna): SPECIES/*.fa, or SPECIES.REGION.fa at any depth, such as ENCODE's"
_ENDINGS = (".fa", ".fasta", ".fna")
_TEST, _VALID = {5, 7, 9, 10, 11}, {1, 3, 12, 13}  # chromosomes, as in the thesis' code
_BLOCK = 256
_TRIES = 4


@dataclass(frozen=True, kw_only=True)
class _Genomes(Task):
    """Windows of genomes. data_dir: FASTA files, a folder a species or a file SPECIES.REGION.fa each.

    window: bases. A window is drawn as in the thesis: a species, one of its sequences, a start, each uniform; one that is
    mostly N is drawn again, up to three times. split, without leaks: "position", the first 70 % of every sequence are train,
    then valid to 85 %, then test, so that regions which species share fall into the same split; or "chromosome", test 5, 7, 9,
    10, 11, valid 1, 3, 12, 13, all others train. Train is endless, valid and test are fixed sets. reverse_complement: half of
    the training windows are read from the other strand.
    """

    data_dir: str | None = None
    window: int = 1024
    split: Literal["position", "chromosome"] = "position"
    reverse_complement: bool = False
    valid_size: int = 1_000
    test_size: int = 5_000

    def __post_init__(self) -> None:
        if self.split not in ("position", "chromosome"):
            raise ValueError(f"split: must be one of 'position', 'chromosome', not {self.split!r}")
        for setting in ("window", "valid_size", "test_size"):
            if getattr(self, setting) < 1:
                raise ValueError(f"{setting}: must be positive, not {getattr(self, setting)}")

    @property
    def vocab_size(self) -> int:
        """A, C, G, T, N."""
        return len(BASES)

    @property
    def d_input(self) -> None:
        """None: the inputs are tokens."""
        return

    @property
    def symbols(self) -> tuple[str, ...]:
        """The bases."""
        return BASES

    @property
    def length(self) -> int:
        """Bases of an input."""
        return self.window

    @property
    @abstractmethod
    def _drawn(self) -> int:
        """Bases of a window that is drawn."""

    def size(self, split: Split) -> int | None:
        """Windows of a split, None for the training stream."""
        check_request(self, split, 0, 1, 0)
        _places(self)
        return {"train": None, "valid": self.valid_size, "test": self.test_size}[split]

    def _windows(self, split: Split, step: int, batch_size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Bases (n, window) and species (n,) of a batch."""
        size = self.size(split)
        if size is None:
            return self._draw(split, CounterRNG(("dna", "stream", self._drawn, batch_size, seed), step), batch_size)
        rows = rows_of_step(size, split, step, batch_size, seed)
        blocks = [_block(self, split, int(number)) for number in range(rows[0] // _BLOCK, rows[-1] // _BLOCK + 1)]
        bases, species = (np.concatenate(part) for part in zip(*blocks, strict=True))
        inside = rows - rows[0] // _BLOCK * _BLOCK
        return bases[inside], species[inside]

    def _draw(self, split: Split, rng: CounterRNG, count: int) -> tuple[np.ndarray, np.ndarray]:
        data, places = _load(self.data_dir), _places(self)[split]
        species = rng.integers(0, len(data.species), count)
        chosen = rng.integers(0, np.array([len(mine) for mine in places])[species], count)
        picks = np.array([places[kind][pick] for kind, pick in zip(species, chosen, strict=True)])
        found = np.zeros((count, self._drawn), np.uint8)
        pending = np.arange(count)
        for _ in range(_TRIES):
            starts = picks[pending, 0] + rng.integers(0, picks[pending, 1] - self._drawn + 1, len(pending))
            found[pending] = data.bases.values[starts[:, None] + np.arange(self._drawn)]
            pending = pending[(found[pending] == 4).mean(1) > 0.5]
            if not len(pending):
                break
        if split == "train" and self.reverse_complement:
            other = rng.integers(0, 2, count) == 1
            found[other] = reverse_complement(found[other])
        return found, species

    def read_inputs(self, path: str | Path) -> Batch:
        """The sequences of a FASTA file, cut to `window` bases; shorter ones are padded, which `valid` marks."""
        sequences = Ragged.from_sequences([bases[: self.window] for _, bases in read_fasta(Path(path))])
        table, lengths = sequences.pad(None, 4)
        valid = torch.from_numpy(np.arange(table.shape[1]) < lengths[:, None])
        return Batch(torch.from_numpy(table.astype(np.int64)), valid=valid)

    def _text(self, batch: Batch, row: int) -> str:
        bases = "".join(BASES[base] for base in batch.inputs[row, :24].tolist())
        return f"{bases}… {batch.inputs.shape[1]} bases"


@TASKS.register("species")
@dataclass(frozen=True, kw_only=True)
class Species(_Genomes, ClassificationTask):
    """Which species a stretch of DNA is of.

        TCTTTACATAACAAGGTTGGAGAT… 1024 bases | human

    See `longscan.tasks.dna.tasks` for how windows are drawn and split. window, split, reverse_complement and data_dir are
    explained there; a species that has no window in a split is an error.
    """

    name: ClassVar[str] = "species"
    source: ClassVar[str] = "any FASTA files, such as ENCODE's regions"
    uneven: ClassVar[bool] = True

    @property
    def num_classes(self) -> int:
        """The species."""
        return len(self.classes)

    @property
    def classes(self) -> tuple[str, ...]:
        """The species, in the order of their names."""
        return _load(self.data_dir).species

    @property
    def per_step(self) -> bool:
        """False: one answer a window."""
        return False

    @property
    def _drawn(self) -> int:
        return self.window

    def batch(self, split: Split, step: int, batch_size: int, seed: int = 0) -> Batch:
        """The batch of a step: inputs (B, window) int64, targets (B,)."""
        check_request(self, split, step, batch_size, seed)
        bases, species = self._windows(split, step, batch_size, seed)
        return Batch(torch.from_numpy(bases.astype(np.int64)), torch.from_numpy(species))

    def constant_score(self, split: Split = "test") -> float:
        """The accuracy on a split of always giving its most frequent species; of train, one over the number of species."""
        size = self.size(split)
        if size is None:
            return 1 / self.num_classes
        targets = np.concatenate([_block(self, split, number)[1] for number in range(-(-size // _BLOCK))])[:size]
        return largest_share(targets)

    def describe(self, batch: Batch, row: int = 0) -> str:
        """The first bases, the number of bases, the species."""
        text = self._text(batch, row)
        return text if batch.targets is None else f"{text} | {self.classes[int(batch.targets[row])]}"

    def decode(self, output: Tensor, batch: Batch) -> list[dict[str, str | float]]:  # noqa: ARG002
        """The most probable species and its probability. output: (B, K)."""
        best = output.float().softmax(-1).max(-1)
        answers = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        return [{"class": self.classes[choice], "probability": probability} for choice, probability in answers]


@TASKS.register("dna_language")
@dataclass(frozen=True, kw_only=True)
class DnaLanguage(_Genomes, LanguageTask):
    """The next base of a stretch of DNA, on the windows of the task `species`, for pretraining.

    TCTTTACATAACAAGGTTGGAGAT… 1024 bases | A
    """

    name: ClassVar[str] = "dna_language"
    source: ClassVar[str] = "any FASTA files, such as ENCODE's regions"

    @property
    def num_classes(self) -> int:
        """The bases."""
        return len(BASES)

    @property
    def classes(self) -> tuple[str, ...]:
        """The bases."""
        return BASES

    @property
    def _drawn(self) -> int:
        return self.window + 1

    def batch(self, split: Split, step: int, batch_size: int, seed: int = 0) -> Batch:
        """The batch of a step: inputs and targets (B, window) int64."""
        check_request(self, split, step, batch_size, seed)
        return self._shifted(self._windows(split, step, batch_size, seed)[0])

    def _counts(self, split: Split) -> np.ndarray:
        size = self.size(split)
        count = 4 * _BLOCK if size is None else size
        windows = np.concatenate([_block(self, split, number)[0] for number in range(-(-count // _BLOCK))])[:count, 1:]
        return np.bincount(windows.ravel(), minlength=len(BASES))

    def describe(self, batch: Batch, row: int = 0) -> str:
        """The first bases, the number of bases, the last answer."""
        text = self._text(batch, row)
        return text if batch.targets is None else f"{text} | {BASES[int(batch.targets[row, -1])]}"

    def decode(self, output: Tensor, batch: Batch) -> list[dict[str, str | float]]:
        """The most probable next base after each sequence. output: (B, L, 5)."""
        last = torch.full((len(output),), output.shape[1] - 1) if batch.valid is None else batch.valid.sum(1) - 1
        best = output[torch.arange(len(output)), last].float().softmax(-1).max(-1)
        answers = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        return [{"next": BASES[choice], "probability": probability} for choice, probability in answers]


class _Data(NamedTuple):
    """bases: all sequences; owners (N,): numbers of their species; names (N,): of the sequences."""

    bases: Ragged
    owners: np.ndarray
    names: tuple[str, ...]
    species: tuple[str, ...]


@lru_cache(maxsize=2)
def _load(data_dir: str | None) -> _Data:
    folder = data_folder(data_dir, "dna", _WANTED)
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in _ENDINGS)
    if not paths:
        raise FileNotFoundError(f"data_dir: {folder} holds no {_WANTED}")
    kinds = [path.name.split(".")[0] if path.name.count(".") > 1 else path.parent.name for path in paths]
    species = tuple(sorted(set(kinds)))
    if len(species) < 2:
        raise ValueError(f"data_dir: {folder} has files of {len(species)} species, at least two are needed; {_WANTED}")

    def make() -> Arrays:
        sequences, owners, names = [], [], []
        for path, kind in zip(paths, kinds, strict=True):
            for name, bases in read_fasta(path):
                sequences.append(bases)
                owners.append(species.index(kind))
                names.append(f"{path.stem} {name}".encode()[:100])
        return {**Ragged.from_sequences(sequences)._asdict(), "owners": np.array(owners), "names": np.array(names)}

    arrays = stored("dna", paths, species, make)
    names = tuple(name.decode("utf-8", "replace") for name in arrays["names"].tolist())
    return _Data(Ragged(arrays["values"], arrays["offsets"]), np.array(arrays["owners"]), names, species)


@lru_cache(maxsize=8)
def _places(task: _Genomes) -> dict[Split, list[np.ndarray]]:
    """For each split and species, where windows may lie: (n, 2) first base and length of each stretch."""
    data = _load(task.data_dir)
    found: dict[Split, list[list[tuple[int, int]]]] = {split: [[] for _ in data.species] for split in task.splits}
    for owner, name, first, length in zip(data.owners, data.names, data.bases.offsets, data.bases.lengths, strict=False):
        for split, (start, end) in _borders(task.split, name, int(length)).items():
            if end - start >= task._drawn:
                found[split][owner].append((int(first) + start, end - start))
    for split, kinds in found.items():
        for kind, places in zip(data.species, kinds, strict=True):
            if not places:
                raise ValueError(f"window: {kind} has no stretch of {task._drawn} bases in split {split} by {task.split}")
    return {split: [np.array(places) for places in kinds] for split, kinds in found.items()}


def _borders(how: str, name: str, length: int) -> dict[Split, tuple[int, int]]:
    """Which part of a sequence belongs to which split."""
    if how == "position":
        first, second = int(0.7 * length), int(0.85 * length)
        return {"train": (0, first), "valid": (first, second), "test": (second, length)}
    match = re.search(r"(?:chr|chromosome[ _]?)([0-9]+|[XYxy])\b", name)
    number = int(match[1]) if match and match[1].isdigit() else 0
    return {"test" if number in _TEST else "valid" if number in _VALID else "train": (0, length)}


@lru_cache(maxsize=64)
def _block(task: _Genomes, split: Split, number: int) -> tuple[np.ndarray, np.ndarray]:
    return task._draw(split, CounterRNG(("dna", split, task._drawn), number), _BLOCK)
