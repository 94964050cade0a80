"""Citations between papers, from their texts (Radev et al., 2009; Tay et al., 2021)."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch

from longscan._files import read_text
from longscan._types import Doc, at_least
from longscan.tasks._sparklines import truncate_text
from longscan.tasks._store import Arrays, Ragged, cached_arrays, data_folder, first_existing
from longscan.tasks.base import TASKS, Batch, Split
from longscan.tasks.examples import LabelledSequences, consecutive_rows
from longscan.tasks.lra._texts import TextClassification

_NEEDED_FILES = (
    "new_aan_pairs.train.tsv, new_aan_pairs.eval.tsv and new_aan_pairs.test.tsv of Long Range Arena (`longscan data get AAN`)"
)
_FILES: dict[Split, str] = {"train": "train", "valid": "eval", "test": "test"}


@TASKS.register("lra_retrieval")
@dataclass(frozen=True, kw_only=True)
class LraRetrieval(TextClassification):
    """Decide whether one of two papers cites the other.

        We present a method of… / A parser for… 4000 + 3127 bytes | linked

    With layout="joined" the two texts are one sequence with the token vocab_size - 1 between them. With layout="pair" inputs and
    valid are (B, 2, L), and a model with the same weights for both texts encodes each separately, as in Long Range Arena.
    """

    source: ClassVar[str] = "github.com/google-research/long-range-arena"
    d_input: ClassVar[None] = None
    num_classes: ClassVar[int] = 2
    classes: ClassVar[tuple[str, ...]] = ("apart", "linked")
    data_dir: Annotated[str | None, Doc("folder of the three .tsv files, whose columns are label, two ids, two texts")] = None
    longest: Annotated[int, at_least(2), Doc("number of tokens to which each text is truncated")] = 4000
    layout: Annotated[
        Literal["joined", "pair"],
        Doc("both texts in one sequence, or in two that the same stack encodes separately (two towers)"),
    ] = "joined"

    @property
    def vocab_size(self) -> int:
        """Number of tokens: bytes or characters, padding, and the token between joined texts."""
        return self._alphabet.size + (self.layout == "joined")

    @property
    def is_pair(self) -> bool:
        """Whether an example is two sequences."""
        return self.layout == "pair"

    @property
    def length(self) -> int:
        """Steps of the longest sequence, of one text for pairs."""
        return int(self._data().sequences.lengths.max()) if self.is_pair else super().length

    @classmethod
    def _training_texts(cls, data_dir: str | None) -> list[bytes]:
        return _split_texts(_read_pairs(data_dir, "train"))

    def _data(self) -> LabelledSequences:
        return _load(self)

    def describe(self, batch: Batch, row: int = 0) -> str:
        """Return an example as text: the beginnings of both texts, their lengths, the class."""
        if self.is_pair:
            parts = [batch.inputs[row, i][batch.valid_steps(row)[i]].tolist() for i in (0, 1)]
        else:
            tokens = batch.unpadded(row).tolist()
            middle = tokens.index(self.vocab_size - 1)
            parts = [tokens[:middle], tokens[middle + 1 :]]
        first, second = (truncate_text(self._alphabet.text(part), 25) for part in parts)
        return self._append_class(f"{first} / {second} {len(parts[0])} + {len(parts[1])} {self.level}", batch, row)

    def read_inputs(self, path: str | Path) -> Batch:
        """Read pairs from a text file, one per line, the two texts separated by a tab."""
        pairs = []
        for line, text in enumerate(read_text(path).split("\n"), 1):
            words = text.rstrip("\r").split("\t")
            if len(words) != 2 and text.strip():
                raise ValueError(f"{path}:{line}: the line must be two texts, separated by a tab, got {len(words)}")
            if len(words) == 2:
                pairs += [word.encode() for word in words]
        if not pairs:
            raise ValueError(f"{path} must contain pairs of texts, got none")
        return self._to_batch(_lay_out(self, self._alphabet.encode(pairs, self.longest)))

    def _to_batch(self, sequences: Ragged, rows: np.ndarray | None = None) -> Batch:
        """Return the examples with numbers `rows` (None: all) as a batch without targets; of pairs two sequences each."""
        if not self.is_pair:
            return super()._to_batch(sequences, rows)
        rows = np.arange(len(sequences.lengths) // 2) if rows is None else rows
        table, lengths = sequences.pad(np.stack([2 * rows, 2 * rows + 1], 1).reshape(-1), self._padding_value)
        inputs, valid = self._to_inputs(table), np.arange(table.shape[1]) < lengths[:, None]
        shape = (len(rows), 2, table.shape[1])
        return Batch(torch.from_numpy(inputs.reshape(shape)), valid=torch.from_numpy(valid.reshape(shape)))


def _lay_out(task: LraRetrieval, texts: list[np.ndarray]) -> Ragged:
    """Return the sequences of consecutive pairs of texts in the task's layout: one for a pair, or two."""
    return Ragged.from_sequences(texts) if task.is_pair else _join_pairs(texts, task.vocab_size - 1)


def _join_pairs(texts: list[np.ndarray], separator: int) -> Ragged:
    """Return a sequence for each pair of consecutive texts, with a separator token between them."""
    middle = np.array([separator], np.int16)
    pairs = zip(texts[::2], texts[1::2], strict=True)
    return Ragged.from_sequences([np.concatenate([first, middle, second]) for first, second in pairs])


def _read_lines(path: Path) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield label and texts of each line of a .tsv file."""
    for line, text in enumerate(read_text(path).split("\n"), 1):
        words = text.rstrip("\r").split("\t")
        if not text.strip():
            continue
        if len(words) != 5 or words[0] not in ("0", "1", "0.0", "1.0"):
            needed = "a label of 0 or 1, two ids and two texts, separated by tabs"
            raise ValueError(f"{path}:{line}: the line must be {needed}, got {text[:60]!r}")
        yield int(float(words[0])), words[3].encode(), words[4].encode()


def _read_pairs(data_dir: str | None, split: Split) -> Arrays:
    """Return the texts as bytes (values, offsets), two for each pair, and targets (n,)."""
    folder = data_folder(data_dir, "lra", _NEEDED_FILES)
    path = first_existing(folder, [f"new_aan_pairs.{_FILES[split]}.tsv"], _NEEDED_FILES)

    def read() -> Arrays:
        labels, texts = [], []
        for label, first, second in _read_lines(path):
            labels.append(label)
            texts += [np.frombuffer(first or b" ", np.uint8), np.frombuffer(second or b" ", np.uint8)]
        if not labels:
            raise ValueError(f"{path} must contain pairs of texts, got none")
        return {**Ragged.from_sequences(texts)._asdict(), "targets": np.array(labels, np.int64)}

    return cached_arrays("aan", [path], "pairs", read)


def _split_texts(pairs: Arrays) -> list[bytes]:
    return [pairs["values"][first:last].tobytes() for first, last in pairwise(pairs["offsets"])]


@lru_cache(maxsize=2)
def _load(task: LraRetrieval) -> LabelledSequences:
    tokens: list[np.ndarray] = []
    targets: dict[Split, np.ndarray] = {}
    for split in task.splits:
        pairs = _read_pairs(task.data_dir, split)
        tokens += task._alphabet.encode(_split_texts(pairs), task.longest)
        targets[split] = pairs["targets"]
    rows = consecutive_rows({split: len(part) for split, part in targets.items()})
    return LabelledSequences(_lay_out(task, tokens), np.concatenate(list(targets.values())), rows)
