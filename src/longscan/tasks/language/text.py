"""Prediction of the next byte of any file."""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
import torch
from torch import Tensor

from longscan._files import read_bytes
from longscan._types import Doc, PositiveInt, Rule
from longscan.tasks._random import CounterRNG
from longscan.tasks._sparklines import truncate_text
from longscan.tasks._store import visible_paths
from longscan.tasks.base import TASKS, Batch, Split, check_request, rows_of_step
from longscan.tasks.classification import most_probable
from longscan.tasks.language.base import LanguageTask


@TASKS.register("byte_text")
@dataclass(frozen=True, kw_only=True)
class ByteText(LanguageTask):
    """Predict the next byte of a file of any kind.

        ROMEO: But, soft! what light through yonder win | dow breaks?

    The first bytes are train, those after them valid, and as many at the end test. Training windows start anywhere; valid and
    test are cut into windows without overlap, without the rest at the end.
    """

    source: ClassVar[str] = "any file"
    vocab_size: ClassVar[int] = 256
    num_classes: ClassVar[int] = 256
    classes: ClassVar[tuple[str, ...]] = tuple(f"0x{byte:02x}" for byte in range(256))
    path: Annotated[
        str | None, Doc("file, or folder whose files are concatenated in the order of their names, without hidden ones")
    ] = None
    window: Annotated[PositiveInt, Doc("number of bytes of an example")] = 256
    valid_fraction: Annotated[
        float,
        Rule(lambda fraction: 0 < fraction < 0.5, "a number above 0 and below 0.5"),
        Doc("part of the bytes that is the validation split, and also the test split"),
    ] = 0.05

    @property
    def length(self) -> int:
        """Number of bytes of a window."""
        return self.window

    def _split_bytes(self, split: Split) -> np.ndarray:
        content = _load(self.path)
        size = int(len(content) * self.valid_fraction)
        needed = f"`path` must have more than {self.window} bytes, a window, in"
        if size <= self.window:
            raise ValueError(f"{needed} each of valid and test, got {self.path} with {size} of {len(content)} bytes in each")
        if (left := len(content) - 2 * size) <= self.window:
            raise ValueError(f"{needed} train, got {self.path} with {left} of {len(content)} bytes in it")
        first, last = {"train": (None, -2 * size), "valid": (-2 * size, -size), "test": (-size, None)}[split]
        return content[first:last]

    def size(self, split: Split) -> int | None:
        """Return the number of windows of a split, None for train, whose windows start anywhere."""
        check_request(self, split)
        return None if split == "train" else (len(self._split_bytes(split)) - 1) // self.window

    def batch(self, split: Split, step: int, batch_size: int, seed: int = 0) -> Batch:
        """Return the batch of a step: inputs and targets (B, window) int64."""
        check_request(self, split, step, batch_size, seed)
        content, size = self._split_bytes(split), self.size(split)
        if size is None:
            starts = CounterRNG(("byte_text", batch_size, seed), step).integers(0, len(content) - self.window, batch_size)
        else:
            starts = rows_of_step(size, split, step, batch_size, seed) * self.window
        return self._next_token_batch(content[starts[:, None] + np.arange(self.window + 1)])

    def _token_counts(self, split: Split) -> np.ndarray:
        content, size = self._split_bytes(split), self.size(split)
        return np.bincount(content if size is None else content[1 : size * self.window + 1], minlength=256)

    def describe(self, batch: Batch, row: int = 0) -> str:
        """Return an example as text: the bytes of the window, and the last target."""
        text = truncate_text(bytes(batch.inputs[row].tolist()).decode("utf-8", "replace"))
        return text if batch.targets is None else f"{text} | {bytes([int(batch.targets[row, -1])])!r}"

    def read_inputs(self, path: str | Path) -> Batch:
        """Read the first `window` bytes of a file."""
        content = np.frombuffer(read_bytes(path)[: self.window], np.uint8)
        if not len(content):
            raise ValueError(f"{path} must contain bytes, got an empty file")
        return Batch(torch.from_numpy(content.astype(np.int64))[None])

    def decode(self, output: Tensor, batch: Batch) -> list[dict[str, str | float]]:  # noqa: ARG002
        """Return the most probable next byte after a window and its probability. output: (B, L, 256)."""
        return most_probable(output[:, -1], [repr(bytes([byte])) for byte in range(256)], column="next")


@lru_cache(maxsize=4)
def _load(path: str | None) -> np.ndarray:
    """Return the content of a file, or of all files in a folder, (bytes,) uint8."""
    if path is None:
        raise FileNotFoundError(
            "`path` must be a file or a folder of files to learn from (`longscan data get tinyshakespeare`), got None"
        )
    if not Path(path).exists():
        raise FileNotFoundError(f"`path` must be a file or a folder of files, got {path}, which does not exist")
    if Path(path).is_file():
        # An empty file cannot be mapped.
        return np.memmap(path, np.uint8, "r") if Path(path).stat().st_size else np.empty(0, np.uint8)
    files = [item for item in visible_paths(Path(path)) if item.is_file()]
    return np.frombuffer(b"".join(map(read_bytes, files)), np.uint8)
