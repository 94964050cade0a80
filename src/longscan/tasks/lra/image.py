"""CIFAR-10 pixel by pixel, from its python batches or from folders of images."""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch

from longscan._errors import setting_error
from longscan._types import Doc
from longscan.tasks._images import find_images, image_sequence, read_image, read_images, to_grey
from longscan.tasks._sparklines import shade_line
from longscan.tasks._store import Arrays, cached_arrays, data_folder, first_existing
from longscan.tasks.base import TASKS, Batch, SplitSeed, ValidFraction
from longscan.tasks.examples import LabelledSequences, SequenceClassification, split_off_validation
from longscan.tasks.lra._cifar10 import read_batch

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_NEEDED_FILES = (
    "CIFAR-10: data_batch_1 .. data_batch_5 and test_batch of the python version (`longscan data get CIFAR-10`), "
    "or images in train/CLASS and test/CLASS"
)
_FOLDERS = ("", "cifar-10-batches-py", "CIFAR-10-images", "cifar10")
_BATCHES = [f"data_batch_{number}" for number in range(1, 6)]
_RGB_MEAN, _RGB_STD = np.array([0.4914, 0.4822, 0.4465]), np.array([0.247, 0.243, 0.261])
_GREY_MEAN, _GREY_STD = 122.6 / 255, 61 / 255


@lru_cache
def _standardised(mean: float, std: float) -> np.ndarray:
    """Return the input for each of the 256 shades, (256,) float32: a table is faster than arithmetic on all pixels of a batch."""
    shades: np.ndarray = ((np.arange(256) / 255 - mean) / std).astype(np.float32)
    return shades


@TASKS.register("lra_image")
@dataclass(frozen=True, kw_only=True)
class LraImage(SequenceClassification):
    """Classify a picture of 32 x 32 pixels that is read pixel by pixel, row by row.

        ░▒▒▓▓█▓▒▒░ 1024 pixels of 32 x 32 | frog

    The python batches of CIFAR-10 are pickles; they are read without running code in them. Numerical pixels in colour are those
    of the thesis, shades of grey those of LRA.
    """

    source: ClassVar[str] = "cs.toronto.edu/~kriz/cifar.html"
    num_classes: ClassVar[int] = len(CLASSES)
    classes: ClassVar[tuple[str, ...]] = CLASSES
    plot_kind: ClassVar[Literal["image"]] = "image"
    data_dir: Annotated[
        str | None, Doc("folder of CIFAR-10's python batches, or of train/CLASS/*.png (or .jpg) and test/CLASS")
    ] = None
    pixels: Annotated[Literal["numerical", "categorical"], Doc("pixels as standardised numbers, or as 256 tokens")] = "numerical"
    colour: Annotated[bool, Doc("three channels, red, green and blue, instead of shades of grey")] = False
    valid_fraction: ValidFraction = 0.1
    split_seed: SplitSeed = 42

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.colour and self.pixels == "categorical":
            raise setting_error("colour", self.colour, "false, as categorical pixels are shades of grey")

    @property
    def vocab_size(self) -> int | None:
        """256 tokens for categorical pixels, else None."""
        return 256 if self.pixels == "categorical" else None

    @property
    def d_input(self) -> int | None:
        """Number of channels of numerical pixels, else None."""
        return None if self.pixels == "categorical" else 3 if self.colour else 1

    def _data(self) -> LabelledSequences:
        return _load(self.data_dir, self.colour, self.valid_fraction, self.split_seed)

    def training_set(self, seed: int = 0) -> Batch:  # noqa: ARG002
        """Return all training pictures, 45,000 with 12 KiB each if they are in colour."""
        data = self._data()
        rows = data.rows["train"]
        return self._to_batch(data.sequences, rows)._replace(targets=torch.from_numpy(data.targets[rows].astype(np.int64)))

    def training_set_bytes(self, seed: int = 0) -> int:  # noqa: ARG002
        """Return the size of `training_set` in bytes, from that of one picture."""
        data = self._data()
        rows = data.rows["train"]
        return len(rows) * (self._to_batch(data.sequences, rows[:1]).nbytes + np.dtype(np.int64).itemsize)

    def _to_inputs(self, table: np.ndarray) -> np.ndarray:
        if self.pixels == "categorical":
            return table.astype(np.int64)
        if not self.colour:
            return _standardised(_GREY_MEAN, _GREY_STD)[table][..., None]
        inputs = np.empty(table.shape, np.float32)
        for channel, (mean, std) in enumerate(zip(_RGB_MEAN, _RGB_STD, strict=True)):
            inputs[..., channel] = _standardised(mean, std)[table[..., channel]]
        return inputs

    def describe(self, batch: Batch, row: int = 0) -> str:
        """Return an example as text: a line of the picture in characters, its size, its class."""
        pixels = batch.inputs[row].float()
        image = pixels.reshape(32, 32, -1).mean(-1)
        return self._append_class(f"{shade_line(image)} 1024 pixels of 32 x 32", batch, row)

    def read_inputs(self, path: str | Path) -> Batch:
        """Read an image file of 32 x 32 pixels, or a folder of such files in the order of their names."""
        images = read_images(path, 32, colour=True)
        return self._to_batch(image_sequence(images if self.colour else to_grey(images)))


@lru_cache(maxsize=2)
def _load(data_dir: str | None, colour: bool, valid_fraction: float, split_seed: int) -> LabelledSequences:
    folder = data_folder(data_dir, "lra", _NEEDED_FILES)
    arrays = _arrays(folder)
    images, targets, count = arrays["images"], arrays["targets"], int(arrays["train"][0])
    train, valid = split_off_validation(count, valid_fraction, split_seed)
    sequences = image_sequence(images if colour else to_grey(images))
    return LabelledSequences(sequences, targets, {"train": train, "valid": valid, "test": np.arange(count, len(targets))})


def _arrays(folder: Path) -> Arrays:
    """Return images (N, 32, 32, 3), targets (N,) and train (1,), the number of training pictures, which come first."""
    for name in _FOLDERS:
        if (folder / name / "test_batch").is_file():
            return _read_batch_files(folder / name)
    for name in _FOLDERS:
        root = folder / name
        if (root / "train").is_dir() and (root / "test").is_dir():
            return _read_image_files(root)
    raise FileNotFoundError(f"`data_dir` must be a folder with {_NEEDED_FILES}, got {folder} without them")


def _read_batch_files(folder: Path) -> Arrays:
    paths = [first_existing(folder, [name], _NEEDED_FILES) for name in (*_BATCHES, "test_batch")]

    def read() -> Arrays:
        parts = [read_batch(path) for path in paths]
        images, targets = (np.concatenate(part) for part in zip(*parts, strict=True))
        return {"images": images, "targets": targets, "train": np.array([sum(len(part.labels) for part in parts[:-1])])}

    return cached_arrays("cifar10-batches", paths, "rgb", read)


def _read_image_files(root: Path) -> Arrays:
    paths: list[Path] = []
    targets: list[int] = []
    counts = []
    for part in ("train", "test"):
        for number, kind in enumerate(CLASSES):
            folder = root / part / kind
            images = find_images(folder) if folder.is_dir() else []
            if not images:
                raise FileNotFoundError(f"`data_dir` must be a folder with {_NEEDED_FILES}, got no images in {folder}")
            paths += images
            targets += [number] * len(images)
        counts.append(len(paths))

    def read() -> Arrays:
        images = np.stack([read_image(path, 32, colour=True) for path in paths])
        return {"images": images, "targets": np.array(targets), "train": np.array(counts[:1])}

    return cached_arrays("cifar10-images", paths, "rgb", read)
