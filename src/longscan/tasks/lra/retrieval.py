"""Whether one paper cites another, from their texts (Radev et al., 2009; Tay et al., 2021)."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from longscan._files import read_text
from longscan.tasks._drawing import clipped
from longscan.tasks._store import Arrays, Ragged, data_folder, first_existing, stored
from longscan.tasks._text import Alphabet, frequent_characters
from longscan.tasks.base import TASKS, Batch, Split
from longscan.tasks.examples import Labelled, SequenceClassification

_WANTED = (
    "new_aan_pairs.train.tsv, new_aan_pairs.eval.tsv and new_aan_pairs.test.tsv of lra_release.gz "
    "(https://github.com/google-research/long-range-arena)"
)
_FILES: dict[Split, str] = {"train": "train", "valid": "eval", "test": "test"}


@TASKS.register("lra_retrieval")
@dataclass(frozen=True, kw_only=True)
class LraRetrieval(SequenceClassification):
    """Whether two papers are linked by a citation.

        We present a method of… / A parser for… 4000 + 3127 bytes | linked

    data_dir: the folder of the three .tsv files: label, two ids, two texts, apart by tabs. Each text is cut to `longest`. level:
    "bytes", 256 values and padding, or "characters", those that occur at least 15 times in train and an end. The texts of a pair
    stand one after the other with a token between them, vocab_size - 1; there are no two towers.
    """

    name: ClassVar[str] = "lra_retrieval"
    source: ClassVar[str] = "github.com/google-research/long-range-arena"
    data_dir: str | None = None
    level: Literal["bytes", "characters"] = "bytes"
    longest: int = 4000

    def __post_init__(self) -> None:
        if self.level not in ("bytes", "characters"):
            raise ValueError(f"level: must be one of bytes, characters, not {self.level!r}")
        if self.longest < 2:
            raise ValueError(f"longest: must be at least 2, not {self.longest}")

    @property
    def vocab_size(self) -> int:
        """Bytes or characters, padding, the token between texts."""
        return self._alphabet.size + 1

    @property
    def d_input(self) -> None:
        """None: the inputs are tokens."""
        return

    @property
    def num_classes(self) -> int:
        """Two."""
        return 2

    @property
    def classes(self) -> tuple[str, ...]:
        """What labels 0 and 1 mean."""
        return ("apart", "linked")

    @property
    def _alphabet(self) -> Alphabet:
        return Alphabet(None if self.level == "bytes" else _characters(self.data_dir))

    def _labelled(self) -> Labelled:
        return _load(self)

    def describe(self, batch: Batch, row: int = 0) -> str:
        """The texts' beginnings, their lengths, the label."""
        tokens = batch.inputs[row] if batch.valid is None else batch.inputs[row][batch.valid[row]]
        listed = tokens.tolist()
        middle = listed.index(self.vocab_size - 1)
        texts = [self._alphabet.text(part) for part in (listed[:middle], listed[middle + 1 :])]
        text = f"{clipped(texts[0], 25)} / {clipped(texts[1], 25)} {middle} + {len(listed) - middle - 1} {self.level}"
        return text if batch.targets is None else f"{text} | {self.classes[int(batch.targets[row])]}"

    def read_inputs(self, path: str | Path) -> Batch:
        """Pairs from a text file, one a line, the two texts apart by a tab."""
        pairs = []
        for line, text in enumerate(read_text(path).split("\n"), 1):
            words = text.rstrip("\r").split("\t")
            if len(words) != 2 and text.strip():
                raise ValueError(f"{path}:{line}: two texts apart by a tab are needed, not {len(words)}")
            if len(words) == 2:
                pairs += [word.encode() for word in words]
        if not pairs:
            raise ValueError(f"{path}: holds no pair of texts")
        tokens = _paired(self._alphabet.encoded(pairs, self.longest), self.vocab_size - 1)
        return self._arranged(tokens, np.arange(len(pairs) // 2))


def _paired(texts: list[np.ndarray], between: int) -> Ragged:
    """Each text with an even number, the token between, and the text after it."""
    middle = np.array([between], np.int16)
    pairs = zip(texts[::2], texts[1::2], strict=True)
    return Ragged.from_sequences([np.concatenate([first, middle, second]) for first, second in pairs])


def _rows(path: Path) -> Iterator[tuple[int, bytes, bytes]]:
    """Label and texts of each line of a .tsv file."""
    for line, text in enumerate(read_text(path).split("\n"), 1):
        words = text.rstrip("\r").split("\t")
        if not text.strip():
            continue
        if len(words) != 5 or words[0] not in ("0", "1", "0.0", "1.0"):
            raise ValueError(f"{path}:{line}: needs a label of 0 or 1, two ids and two texts, apart by tabs, not {text[:60]!r}")
        yield int(float(words[0])), words[3].encode(), words[4].encode()


def _pairs(data_dir: str | None, split: Split) -> Arrays:
    """Texts as bytes: values, offsets, two a pair; targets (n,)."""
    folder = data_folder(data_dir, "lra", _WANTED)
    path = first_existing(folder, [f"new_aan_pairs.{_FILES[split]}.tsv"], _WANTED)

    def make() -> Arrays:
        labels, texts = [], []
        for label, first, second in _rows(path):
            labels.append(label)
            texts += [np.frombuffer(first or b" ", np.uint8), np.frombuffer(second or b" ", np.uint8)]
        if not labels:
            raise ValueError(f"{path}: holds no pair of texts")
        return {**Ragged.from_sequences(texts)._asdict(), "targets": np.array(labels, np.int64)}

    return stored("aan", [path], "pairs", make)


def _texts(pairs: Arrays) -> list[bytes]:
    return [pairs["values"][first:last].tobytes() for first, last in pairwise(pairs["offsets"])]


@lru_cache(maxsize=2)
def _characters(data_dir: str | None) -> tuple[str, ...]:
    return frequent_characters(_texts(_pairs(data_dir, "train")), 15)


@lru_cache(maxsize=2)
def _load(task: LraRetrieval) -> Labelled:
    rows: dict[Split, np.ndarray] = {}
    tokens, targets = [], []
    count = 0
    for split in task.splits:
        pairs = _pairs(task.data_dir, split)
        tokens += task._alphabet.encoded(_texts(pairs), task.longest)
        targets.append(pairs["targets"])
        rows[split] = np.arange(count, count + len(pairs["targets"]))
        count += len(pairs["targets"])
    return Labelled(_paired(tokens, task.vocab_size - 1), np.concatenate(targets), rows)
