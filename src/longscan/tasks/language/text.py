"""The next byte of any file."""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from longscan.tasks._drawing import clipped
from longscan.tasks._random import CounterRNG
from longscan.tasks.base import TASKS, Batch, Split, check_request, rows_of_step
from longscan.tasks.language.base import LanguageTask


@TASKS.register("byte_text")
@dataclass(frozen=True, kw_only=True)
class ByteText(LanguageTask):
    """The next byte of a file, of any kind, read as it is.

        ROMEO: But, soft! what light through yonder win | dow breaks?

    path: the file, or a folder whose files are read one after the other in the order of their names. The first part is train,
    then valid_fraction of the bytes valid, and as many test. Training windows of `window` bytes start anywhere; valid and test
    are cut into windows without overlap, of which what is left at the end is not asked for.
    """

    name: ClassVar[str] = "byte_text"
    source: ClassVar[str] = "any file"
    path: str | None = None
    window: int = 256
    valid_fraction: float = 0.05

    def __post_init__(self) -> None:
        if self.window < 1:
            raise ValueError(f"window: must be at least 1, not {self.window}")
        if not 0 < self.valid_fraction < 0.5:
            raise ValueError(f"valid_fraction: must lie between 0 and 0.5, not {self.valid_fraction}")

    @property
    def vocab_size(self) -> int:
        """The bytes."""
        return 256

    @property
    def num_classes(self) -> int:
        """The bytes."""
        return 256

    @property
    def classes(self) -> tuple[str, ...]:
        """The bytes by number."""
        return tuple(f"0x{byte:02x}" for byte in range(256))

    @property
    def length(self) -> int:
        """Bytes of a window."""
        return self.window

    def _stretch(self, split: Split) -> np.ndarray:
        content = _content(self.path)
        share = int(len(content.bytes) * self.valid_fraction)
        if share <= self.window:
            bytes_found = f"{self.path} has {len(content.bytes)} bytes"
            raise ValueError(f"path: {bytes_found}, too few for windows of {self.window} in valid and test")
        first, last = {"train": (None, -2 * share), "valid": (-2 * share, -share), "test": (-share, None)}[split]
        return content.bytes[first:last]

    def size(self, split: Split) -> int | None:
        """Windows of a split, None for train, whose windows start anywhere."""
        check_request(self, split, 0, 1, 0)
        return None if split == "train" else (len(self._stretch(split)) - 1) // self.window

    def batch(self, split: Split, step: int, batch_size: int, seed: int = 0) -> Batch:
        """The batch of a step: inputs and targets (B, window) int64."""
        check_request(self, split, step, batch_size, seed)
        stretch, size = self._stretch(split), self.size(split)
        if size is None:
            starts = CounterRNG(("byte_text", batch_size, seed), step).integers(0, len(stretch) - self.window, batch_size)
        else:
            starts = rows_of_step(size, split, step, batch_size, seed) * self.window
        return self._shifted(stretch[starts[:, None] + np.arange(self.window + 1)])

    def _counts(self, split: Split) -> np.ndarray:
        stretch, size = self._stretch(split), self.size(split)
        return np.bincount(stretch if size is None else stretch[1 : size * self.window + 1], minlength=256)

    def describe(self, batch: Batch, row: int = 0) -> str:
        """The window's bytes as text, and the last answer."""
        text = clipped(bytes(batch.inputs[row].tolist()).decode("utf-8", "replace"))
        return text if batch.targets is None else f"{text} | {bytes([int(batch.targets[row, -1])])!r}"

    def read_inputs(self, path: str | Path) -> Batch:
        """The first `window` bytes of a file."""
        content = np.frombuffer(_read(Path(path))[: self.window], np.uint8)
        if not len(content):
            raise ValueError(f"{path}: holds no bytes")
        return Batch(torch.from_numpy(content.astype(np.int64))[None])

    def decode(self, output: Tensor, batch: Batch) -> list[dict[str, str | float]]:  # noqa: ARG002
        """The most probable next byte after a window and its probability. output: (B, L, 256)."""
        best = output[:, -1].float().softmax(-1).max(-1)
        answers = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        return [{"next": repr(bytes([choice])), "probability": probability} for choice, probability in answers]


class _Content(NamedTuple):
    bytes: np.ndarray


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path}: can not be read: {error.strerror}") from None


@lru_cache(maxsize=4)
def _content(path: str | None) -> _Content:
    if path is None:
        raise FileNotFoundError("path: name a file, or a folder of files, to learn from")
    if not Path(path).exists():
        raise FileNotFoundError(f"path: {path} does not exist; a file or a folder of files is needed")
    if Path(path).is_file():
        # An empty file can not be mapped.
        return _Content(np.memmap(path, np.uint8, "r") if Path(path).stat().st_size else np.empty(0, np.uint8))
    files = sorted(item for item in Path(path).rglob("*") if item.is_file())
    return _Content(np.frombuffer(b"".join(map(_read, files)), np.uint8))
