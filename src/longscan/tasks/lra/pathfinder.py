"""Pathfinder: do two discs lie on the ends of one dashed contour?"""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from longscan._files import read_text
from longscan.tasks._drawing import shades
from longscan.tasks._images import image_sequence, read_image, read_images
from longscan.tasks._random import CounterRNG
from longscan.tasks._store import Ragged, data_folder, first_existing, stored
from longscan.tasks.base import TASKS, Batch, Split, check_request
from longscan.tasks.examples import Labelled
from longscan.tasks.lra._drawn import Block, DrawnTask
from longscan.tasks.lra._snakes import CONTOUR, DRAWINGS, draw_images, drawing

_SOURCE = "get them from https://github.com/google-research/long-range-arena (lra_release.gz, lra_release/pathfinder32)"


@TASKS.register("pathfinder")
@dataclass(frozen=True, kw_only=True)
class Pathfinder(DrawnTask):
    """Whether two discs lie on the ends of one dashed contour, among others; an image, pixel by pixel.

        ░▒░ ▒░█▒ ░░ 1024 pixels of 32 x 32 | apart

    resolution: 32, 64, 128 (Path-X) or 256. Images are drawn by `longscan.tasks.lra._snakes` with the published settings of
    each size and contours of 14 paddles (the hard set; contour: 3 .. 14, the published easier sets have 6 and 9); or, where
    data_dir is given, read from the released files: a folder with metadata/ and the images that it names, such as
    .../pathfinder32/curv_contour_length_14, 80 % of them train, then 10 % valid and 10 % test, drawn by split_seed. pixels:
    "numerical", one channel from -1 to 1 (0 to 1 where not `centred`), or "categorical", 256 tokens.
    """

    name: ClassVar[str] = "pathfinder"
    train_size: int = 160_000
    valid_size: int = 20_000
    test_size: int = 20_000
    resolution: int = 32
    pixels: Literal["numerical", "categorical"] = "numerical"
    centred: bool = True
    contour: int = CONTOUR
    data_dir: str | None = None
    split_seed: int = 42

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.resolution not in DRAWINGS:
            raise ValueError(f"resolution: must be one of {', '.join(map(str, DRAWINGS))}, not {self.resolution}")
        if self.pixels not in ("numerical", "categorical"):
            raise ValueError(f"pixels: must be one of 'numerical', 'categorical', not {self.pixels!r}")
        if not 3 <= self.contour <= CONTOUR:
            raise ValueError(f"contour: must lie in 3 .. {CONTOUR} paddles, not {self.contour}")
        if self.data_dir is not None and self.contour != CONTOUR:
            raise ValueError(f"contour: the files in data_dir have contours of their own, so it must be {CONTOUR}")
        if self.data_dir is not None and self.data == "stream":
            raise ValueError("data: the released files in data_dir are no stream, so it must be 'samples'")

    @property
    def vocab_size(self) -> int | None:
        """256 shades, None where pixels are numbers."""
        return 256 if self.pixels == "categorical" else None

    @property
    def d_input(self) -> int | None:
        """One channel, None where pixels are tokens."""
        return None if self.pixels == "categorical" else 1

    @property
    def num_classes(self) -> int:
        """Apart and connected."""
        return 2

    @property
    def classes(self) -> tuple[str, ...]:
        """What labels 0 and 1 mean."""
        return ("apart", "connected")

    @property
    def length(self) -> int:
        """The pixels."""
        return self.resolution**2

    @property
    def _block_size(self) -> int:
        return 512 if self.resolution == 32 else 64

    def _key(self, split: Split) -> tuple[object, ...]:
        return (self.name, self.resolution, split, *([] if self.contour == CONTOUR else [self.contour]))

    def _draw(self, rng: CounterRNG, count: int) -> Block:
        labels = rng.integers(0, 2, count)
        images = draw_images(rng, labels, drawing(self.resolution, self.contour))
        return Ragged(images.reshape(-1), np.arange(count + 1) * self.length), labels

    @property
    def shown_as(self) -> Literal["image"]:
        """An image."""
        return "image"

    def size(self, split: Split) -> int | None:
        """Images of a split, None for the training stream."""
        if self.data_dir is None:
            return super().size(split)
        check_request(self, split, 0, 1, 0)
        return len(self._labelled().rows[split])

    def _labelled(self) -> Labelled:
        return super()._labelled() if self.data_dir is None else _released(self)

    def _prepared(self, table: np.ndarray) -> np.ndarray:
        if self.pixels == "categorical":
            return table.astype(np.int64)
        scaled = table[..., None].astype(np.float32) / 255
        return 2 * scaled - 1 if self.centred else scaled

    def describe(self, batch: Batch, row: int = 0) -> str:
        """A coarse line of shades, the size, the label."""
        image = batch.inputs[row].reshape(self.resolution, self.resolution).float()
        text = f"{shades(image)} {self.length} pixels of {self.resolution} x {self.resolution}"
        return text if batch.targets is None else f"{text} | {self.classes[int(batch.targets[row])]}"

    def read_inputs(self, path: str | Path) -> Batch:
        """One image file of the right size, or a folder of such files in the order of their names."""
        images = read_images(path, self.resolution)
        return self._arranged(image_sequence(images), np.arange(len(images)))


@lru_cache(maxsize=2)
def _released(task: Pathfinder) -> Labelled:
    """The released files: metadata/*.npy are text, a line an image: folder, name, index, label and more."""
    wanted = f"metadata/ and the images it names; {_SOURCE}"
    folder = data_folder(task.data_dir, "lra", wanted)
    listing = sorted(first_existing(folder, ["metadata"], wanted).glob("*.npy"), key=lambda path: (len(path.name), path.name))
    if not listing:
        raise FileNotFoundError(f"data_dir: {folder / 'metadata'} holds no .npy files; {_SOURCE}")

    def make() -> dict[str, np.ndarray]:
        images, labels = [], []
        for path in listing:
            for line, text in enumerate(read_text(path).splitlines(), 1):
                words = text.split()
                if len(words) < 4 or words[3] not in ("0", "1"):
                    raise ValueError(f"{path}:{line}: needs folder, name, index and a label of 0 or 1, not {text[:60]!r}")
                image = folder / words[0] / words[1]
                if not image.resolve().is_relative_to(folder.resolve()):
                    raise ValueError(f"{path}:{line}: {words[0]}/{words[1]} lies outside {folder}")
                images.append(read_image(image, task.resolution))
                labels.append(int(words[3]))
        return {"images": np.stack(images), "labels": np.array(labels, np.int64)}

    arrays = stored("pathfinder-released", listing, task.resolution, make)
    count = len(arrays["labels"])
    if count < 10:
        raise ValueError(f"data_dir: {folder} has {count} images; at least 10 are needed for a split 80/10/10")
    order = CounterRNG(("split", task.split_seed), 0).permutation(count)
    train, valid, test = (np.sort(part) for part in np.split(order, [int(0.8 * count), int(0.9 * count)]))
    return Labelled(image_sequence(arrays["images"]), arrays["labels"], {"train": train, "valid": valid, "test": test})
