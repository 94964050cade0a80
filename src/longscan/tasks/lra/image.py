"""CIFAR-10 pixel by pixel, from its python batches or from folders of images."""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from longscan.tasks._drawing import shades
from longscan.tasks._images import ENDINGS, grey, image_sequence, read_image, read_images
from longscan.tasks._store import Arrays, data_folder, first_existing, stored
from longscan.tasks.base import TASKS, Batch
from longscan.tasks.examples import Labelled, SequenceClassification, carved, check_fraction
from longscan.tasks.lra._batches import read_batch

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_WANTED = (
    "CIFAR-10: data_batch_1 .. data_batch_5 and test_batch of the python version (https://www.cs.toronto.edu/~kriz/cifar.html), "
    "or images in train/CLASS and test/CLASS"
)
_PLACES = ("", "cifar-10-batches-py", "CIFAR-10-images", "cifar10")
_BATCHES = [f"data_batch_{number}" for number in range(1, 6)]
_RGB_MEAN, _RGB_STD = np.array([0.4914, 0.4822, 0.4465]), np.array([0.247, 0.243, 0.261])
_GREY_MEAN, _GREY_STD = 122.6 / 255, 61 / 255


@TASKS.register("lra_image")
@dataclass(frozen=True, kw_only=True)
class LraImage(SequenceClassification):
    """What a picture of 32 x 32 pixels shows, read pixel by pixel, row by row.

        ░▒▒▓▓█▓▒▒░ 1024 pixels of 32 x 32 | frog

    data_dir: the folder of CIFAR-10's python batches, or of train/CLASS/*.png (or .jpg) and test/CLASS. Batches are pickles;
    they are read without running anything in them. pixels: "numerical", standardised shades, or "categorical", 256 tokens.
    colour: three channels, red, green and blue, where pixels are numerical (the thesis), else shades of grey (LRA).
    valid_fraction of the training pictures are valid, drawn by split_seed.
    """

    name: ClassVar[str] = "lra_image"
    source: ClassVar[str] = "cs.toronto.edu/~kriz/cifar.html"
    data_dir: str | None = None
    pixels: Literal["numerical", "categorical"] = "numerical"
    colour: bool = False
    valid_fraction: float = 0.1
    split_seed: int = 42

    def __post_init__(self) -> None:
        if self.pixels not in ("numerical", "categorical"):
            raise ValueError(f"pixels: must be one of 'numerical', 'categorical', not {self.pixels!r}")
        if self.colour and self.pixels == "categorical":
            raise ValueError("colour: categorical pixels are shades of grey, so it must be false")
        check_fraction(self.valid_fraction)

    @property
    def vocab_size(self) -> int | None:
        """256 shades, None where pixels are numbers."""
        return 256 if self.pixels == "categorical" else None

    @property
    def d_input(self) -> int | None:
        """Channels, None where pixels are tokens."""
        return None if self.pixels == "categorical" else 3 if self.colour else 1

    @property
    def num_classes(self) -> int:
        """The kinds of things."""
        return len(CLASSES)

    @property
    def classes(self) -> tuple[str, ...]:
        """The kinds of things, in the order of CIFAR-10's numbers."""
        return CLASSES

    @property
    def shown_as(self) -> Literal["image"]:
        """An image."""
        return "image"

    def _labelled(self) -> Labelled:
        return _load(self.data_dir, self.colour, self.valid_fraction, self.split_seed)

    def _prepared(self, table: np.ndarray) -> np.ndarray:
        if self.pixels == "categorical":
            return table.astype(np.int64)
        if self.colour:
            return ((table / 255 - _RGB_MEAN) / _RGB_STD).astype(np.float32)
        return ((table[..., None] / 255 - _GREY_MEAN) / _GREY_STD).astype(np.float32)

    def describe(self, batch: Batch, row: int = 0) -> str:
        """A line of shades from the middle of the picture, its size, its class."""
        pixels = batch.inputs[row].float()
        image = pixels.reshape(32, 32, -1).mean(-1)
        text = f"{shades(image)} 1024 pixels of 32 x 32"
        return text if batch.targets is None else f"{text} | {CLASSES[int(batch.targets[row])]}"

    def read_inputs(self, path: str | Path) -> Batch:
        """One image file of 32 x 32 pixels, or a folder of such files in the order of their names."""
        images = read_images(path, 32, colour=True)
        return self._arranged(image_sequence(images if self.colour else grey(images)), np.arange(len(images)))


@lru_cache(maxsize=2)
def _load(data_dir: str | None, colour: bool, valid_fraction: float, split_seed: int) -> Labelled:
    folder = data_folder(data_dir, "lra", _WANTED)
    arrays = _arrays(folder)
    images, targets, count = arrays["images"], arrays["targets"], int(arrays["train"][0])
    train, valid = carved(count, valid_fraction, split_seed)
    sequences = image_sequence(images if colour else grey(images))
    return Labelled(sequences, targets, {"train": train, "valid": valid, "test": np.arange(count, len(targets))})


def _arrays(folder: Path) -> Arrays:
    """images (N, 32, 32, 3), targets (N,), train (1,): how many of them stand first and are training pictures."""
    for place in _PLACES:
        if (folder / place / "test_batch").is_file():
            return _from_batches(folder / place)
    for place in _PLACES:
        root = folder / place
        if (root / "train").is_dir() and (root / "test").is_dir():
            return _from_files(root)
    raise FileNotFoundError(f"data_dir: {folder} holds no {_WANTED}")


def _from_batches(folder: Path) -> Arrays:
    paths = [first_existing(folder, [name], _WANTED) for name in (*_BATCHES, "test_batch")]

    def make() -> Arrays:
        parts = [read_batch(path) for path in paths]
        images, targets = (np.concatenate(part) for part in zip(*parts, strict=True))
        return {"images": images, "targets": targets, "train": np.array([sum(len(part.labels) for part in parts[:-1])])}

    return stored("cifar10-batches", paths, "rgb", make)


def _from_files(root: Path) -> Arrays:
    paths: list[Path] = []
    targets: list[int] = []
    counts = []
    for part in ("train", "test"):
        for number, kind in enumerate(CLASSES):
            folder = root / part / kind
            found = sorted(item for item in folder.iterdir() if item.suffix.lower() in ENDINGS) if folder.is_dir() else []
            if not found:
                raise FileNotFoundError(f"data_dir: {folder} holds no images; {_WANTED}")
            paths += found
            targets += [number] * len(found)
        counts.append(len(paths))

    def make() -> Arrays:
        images = np.stack([read_image(path, 32, colour=True) for path in paths])
        return {"images": images, "targets": np.array(targets), "train": np.array(counts[:1])}

    return stored("cifar10-images", paths, "rgb", make)
