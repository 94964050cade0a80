"""Sentiment of film reviews, byte by byte or character by character (Maas et al., 2011)."""

import random
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from longscan._files import read_text
from longscan.tasks._drawing import clipped
from longscan.tasks._store import Arrays, Ragged, data_folder, stored
from longscan.tasks._text import Alphabet, frequent_characters
from longscan.tasks.base import TASKS, Batch, Split
from longscan.tasks.examples import Labelled, SequenceClassification, carved, check_fraction

_WANTED = "train/pos, train/neg, test/pos and test/neg of aclImdb (https://ai.stanford.edu/~amaas/data/sentiment)"
_PARTS = [(part, kind) for part in ("train", "test") for kind in ("neg", "pos")]


@TASKS.register("lra_text")
@dataclass(frozen=True, kw_only=True)
class LraText(SequenceClassification):
    """Whether a film review praises or condemns.

        A wonderful little production. The filming technique… 1231 bytes | pos

    data_dir: the folder aclImdb, or the one that holds it. level: "bytes", 256 values and padding, or "characters", those that
    occur at least 15 times in the training reviews and an end. longest: what a review is cut to. holdout, what valid is:
    "clean", valid_fraction of the training reviews, drawn by split_seed; "lra", the test reviews themselves, as in Long Range
    Arena, S4 and S5, which makes the score of the best epoch a best test score; "thesis", half of the test reviews, the other
    half being test.
    """

    name: ClassVar[str] = "lra_text"
    source: ClassVar[str] = "ai.stanford.edu/~amaas/data/sentiment"
    data_dir: str | None = None
    level: Literal["bytes", "characters"] = "bytes"
    longest: int = 4096
    holdout: Literal["clean", "lra", "thesis"] = "clean"
    valid_fraction: float = 0.1
    split_seed: int = 42

    def __post_init__(self) -> None:
        for setting, choices in (("level", ("bytes", "characters")), ("holdout", ("clean", "lra", "thesis"))):
            if getattr(self, setting) not in choices:
                raise ValueError(f"{setting}: must be one of {', '.join(choices)}, not {getattr(self, setting)!r}")
        if self.longest < 2:
            raise ValueError(f"longest: must be at least 2, not {self.longest}")
        check_fraction(self.valid_fraction)

    @property
    def vocab_size(self) -> int:
        """Bytes or characters, and padding."""
        return self._alphabet.size

    @property
    def d_input(self) -> None:
        """None: the inputs are tokens."""
        return

    @property
    def num_classes(self) -> int:
        """Two sentiments."""
        return 2

    @property
    def classes(self) -> tuple[str, ...]:
        """Condemning and praising."""
        return ("neg", "pos")

    @property
    def _alphabet(self) -> Alphabet:
        return Alphabet(None if self.level == "bytes" else _characters(self.data_dir))

    def _labelled(self) -> Labelled:
        return _load(self)

    def describe(self, batch: Batch, row: int = 0) -> str:
        """The review's beginning, its length, its sentiment."""
        tokens = batch.inputs[row] if batch.valid is None else batch.inputs[row][batch.valid[row]]
        text = f"{clipped(self._alphabet.text(tokens.tolist()))} {len(tokens)} {self.level}"
        return text if batch.targets is None else f"{text} | {self.classes[int(batch.targets[row])]}"

    def read_inputs(self, path: str | Path) -> Batch:
        """Reviews from a text file, one a line."""
        texts = [line.encode() for line in read_text(path).splitlines() if line.strip()]
        if not texts:
            raise ValueError(f"{path}: holds no text")
        return self._arranged(Ragged.from_sequences(self._alphabet.encoded(texts, self.longest)), np.arange(len(texts)))


def _reviews(data_dir: str | None) -> Arrays:
    """All reviews as bytes: values, offsets; counts (4,) of train/neg, train/pos, test/neg, test/pos."""
    folder = data_folder(data_dir, "lra", _WANTED)
    root = folder if (folder / "train").is_dir() and not (folder / "aclImdb").is_dir() else folder / "aclImdb"
    listed = []
    for part, kind in _PARTS:
        found = sorted((root / part / kind).glob("*.txt"))
        if not found:
            raise FileNotFoundError(f"data_dir: {root / part / kind} holds no .txt files; {_WANTED}")
        listed.append(found)

    def make() -> Arrays:
        texts = [np.frombuffer(read_text(path).encode(), np.uint8) for paths in listed for path in paths]
        return {**Ragged.from_sequences(texts)._asdict(), "counts": np.array([len(paths) for paths in listed])}

    # Fifty thousand files are told apart by their folders, whose times change when a file comes or goes, and by their number.
    folders = [root / part / kind for part, kind in _PARTS]
    return stored("aclimdb", folders, [len(paths) for paths in listed], make)


def _texts(reviews: Arrays, first: int, last: int) -> list[bytes]:
    offsets, values = reviews["offsets"], reviews["values"]
    return [values[offsets[row] : offsets[row + 1]].tobytes() for row in range(first, last)]


@lru_cache(maxsize=2)
def _characters(data_dir: str | None) -> tuple[str, ...]:
    reviews = _reviews(data_dir)
    return frequent_characters(_texts(reviews, 0, int(reviews["counts"][:2].sum())), 15)


@lru_cache(maxsize=2)
def _load(task: LraText) -> Labelled:
    reviews = _reviews(task.data_dir)
    counts = reviews["counts"]
    total, training = int(counts.sum()), int(counts[:2].sum())
    tokens = Ragged.from_sequences(task._alphabet.encoded(_texts(reviews, 0, total), task.longest))
    targets = np.repeat([0, 1, 0, 1], counts)
    rows: dict[Split, np.ndarray] = {"train": np.arange(training)}
    if task.holdout == "clean":
        rows["train"], rows["valid"] = carved(training, task.valid_fraction, task.split_seed)
        rows["test"] = np.arange(training, total)
    elif task.holdout == "lra":
        rows["valid"] = rows["test"] = np.arange(training, total)
    else:
        order = list(range(training, total))
        random.Random(1).shuffle(order)
        half = len(order) // 2
        rows["valid"], rows["test"] = np.array(order[half:]), np.array(order[:half])
    return Labelled(tokens, targets, rows)
