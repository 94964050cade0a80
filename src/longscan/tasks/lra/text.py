"""Sentiment of film reviews, read as bytes or as characters (Maas et al., 2011)."""

import random
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np

from longscan._files import read_text
from longscan._types import Doc, at_least
from longscan.tasks._sparklines import truncate_text
from longscan.tasks._store import Arrays, Ragged, cached_arrays, data_folder, visible_paths
from longscan.tasks.base import TASKS, Batch, Split, SplitSeed, ValidFraction
from longscan.tasks.examples import LabelledSequences, split_off_validation
from longscan.tasks.lra._texts import TextClassification

_NEEDED_FILES = "train/pos, train/neg, test/pos and test/neg of aclImdb (`longscan data get aclImdb`)"
_PARTS = [(part, kind) for part in ("train", "test") for kind in ("neg", "pos")]


@TASKS.register("lra_text")
@dataclass(frozen=True, kw_only=True)
class LraText(TextClassification):
    """Decide whether a film review is positive or negative.

        A wonderful little production. The filming technique… 1231 bytes | pos

    With holdout="lra", as in Long Range Arena, S4 and S5, the score of the best epoch is a best test score.
    """

    source: ClassVar[str] = "ai.stanford.edu/~amaas/data/sentiment"
    d_input: ClassVar[None] = None
    num_classes: ClassVar[int] = 2
    classes: ClassVar[tuple[str, ...]] = ("neg", "pos")
    data_dir: Annotated[str | None, Doc("the folder aclImdb, or its parent")] = None
    longest: Annotated[int, at_least(2), Doc("number of tokens to which a review is truncated")] = 4096
    holdout: Annotated[
        Literal["clean", "lra", "thesis"],
        Doc(
            "validation split: clean, valid_fraction of the training reviews; lra, the test reviews themselves; thesis, half of "
            "the test reviews, while the other half is the test split"
        ),
    ] = "clean"
    valid_fraction: ValidFraction = 0.1
    split_seed: SplitSeed = 42

    @property
    def vocab_size(self) -> int:
        """Number of tokens: bytes or characters, and padding."""
        return self._alphabet.size

    @classmethod
    def _training_texts(cls, data_dir: str | None) -> list[bytes]:
        reviews = _read_reviews(data_dir)
        return _split_texts(reviews, 0, int(reviews["counts"][:2].sum()))

    def _data(self) -> LabelledSequences:
        return _load(self)

    def describe(self, batch: Batch, row: int = 0) -> str:
        """Return an example as text: the beginning of the review, its length, its sentiment."""
        tokens = batch.unpadded(row).tolist()
        return self._append_class(f"{truncate_text(self._alphabet.text(tokens))} {len(tokens)} {self.level}", batch, row)

    def read_inputs(self, path: str | Path) -> Batch:
        """Read reviews from a text file, one per line; empty lines are skipped."""
        texts = [line.encode() for line in read_text(path).split("\n") if line.strip()]
        if not texts:
            raise ValueError(f"{path} must contain text, got none")
        return self._to_batch(Ragged.from_sequences(self._alphabet.encode(texts, self.longest)))


def _read_reviews(data_dir: str | None) -> Arrays:
    """Return all reviews as bytes (values, offsets), and counts (4,) of train/neg, train/pos, test/neg, test/pos."""
    folder = data_folder(data_dir, "lra", _NEEDED_FILES)
    root = folder if (folder / "train").is_dir() and not (folder / "aclImdb").is_dir() else folder / "aclImdb"
    listed = []
    for part, kind in _PARTS:
        paths = visible_paths(root / part / kind, "*.txt")
        if not paths:
            raise FileNotFoundError(
                f"`data_dir` must be a folder with {_NEEDED_FILES}, got no .txt files in {root / part / kind}"
            )
        listed.append(paths)

    def read() -> Arrays:
        texts = [np.frombuffer(read_text(path).encode(), np.uint8) for paths in listed for path in paths]
        return {**Ragged.from_sequences(texts)._asdict(), "counts": np.array([len(paths) for paths in listed])}

    # The cache key has the folders, whose times change when a file is added or removed, instead of fifty thousand files.
    folders = [root / part / kind for part, kind in _PARTS]
    return cached_arrays("aclimdb", folders, [len(paths) for paths in listed], read)


def _split_texts(reviews: Arrays, first: int, last: int) -> list[bytes]:
    offsets, values = reviews["offsets"], reviews["values"]
    return [values[offsets[row] : offsets[row + 1]].tobytes() for row in range(first, last)]


@lru_cache(maxsize=2)
def _load(task: LraText) -> LabelledSequences:
    reviews = _read_reviews(task.data_dir)
    counts = reviews["counts"]
    total, training = int(counts.sum()), int(counts[:2].sum())
    tokens = Ragged.from_sequences(task._alphabet.encode(_split_texts(reviews, 0, total), task.longest))
    targets = np.repeat([0, 1, 0, 1], counts)
    rows: dict[Split, np.ndarray] = {"train": np.arange(training)}
    if task.holdout == "clean":
        rows["train"], rows["valid"] = split_off_validation(training, task.valid_fraction, task.split_seed)
        rows["test"] = np.arange(training, total)
    elif task.holdout == "lra":
        rows["valid"] = rows["test"] = np.arange(training, total)
    else:
        order = list(range(training, total))
        random.Random(1).shuffle(order)
        half = len(order) // 2
        rows["valid"], rows["test"] = np.array(order[half:]), np.array(order[:half])
    return LabelledSequences(tokens, targets, rows)
