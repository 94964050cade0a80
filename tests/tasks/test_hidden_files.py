"""Hidden files, which systems and editors add to folders, are no data."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from longscan.tasks import TASKS
from longscan.tasks._store import visible_paths
from longscan.tasks.lra.image import CLASSES
from made_up import MADE_UP, gestures, recordings


def add_hidden_files(root: Path) -> None:
    """Add to each folder what macOS, Windows and Jupyter add, and a hidden copy of each folder."""
    folders = [root, *(path for path in root.rglob("*") if path.is_dir())]
    for folder in folders:
        files = [path for path in folder.iterdir() if path.is_file()]
        (folder / ".ipynb_checkpoints").mkdir()
        for path in files:
            shutil.copy(path, folder / ".ipynb_checkpoints" / path.name)
            shutil.copy(path, folder / f".{path.name}")
            (folder / f"._{path.name}").write_bytes(b"\0\5\26\7\0\2\0\0Mac OS X")
        for name in (".DS_Store", "Thumbs.db", "desktop.ini"):
            (folder / name).write_bytes(b"\0\0\0\1Bud1")
    for folder in folders[1:]:
        shutil.copytree(folder, folder.with_name(f".{folder.name}"))


def images(folder: Path) -> dict[str, Any]:
    """Write CIFAR-10 as image files, two for training and one for testing of each class."""
    draw = np.random.default_rng(0)
    for part, count in (("train", 2), ("test", 1)):
        for kind in CLASSES:
            (folder / "cifar10" / part / kind).mkdir(parents=True)
            for number in range(count):
                pixels = draw.integers(0, 256, (32, 32, 3)).astype(np.uint8)
                Image.fromarray(pixels).save(folder / "cifar10" / part / kind / f"{number}.png")
    return {"data_dir": str(folder)}


def released_images(folder: Path) -> dict[str, Any]:
    """Write Pathfinder as it is released, with twenty images."""
    draw = np.random.default_rng(0)
    (folder / "metadata").mkdir()
    (folder / "imgs" / "0").mkdir(parents=True)
    lines = []
    for number in range(20):
        Image.fromarray(draw.integers(0, 256, (32, 32)).astype(np.uint8)).save(folder / "imgs" / "0" / f"{number}.png")
        lines.append(f"imgs/0 {number}.png {number} {number % 2} 1 2 3")
    (folder / "metadata" / "0.npy").write_text("\n".join(lines))
    return {"data_dir": str(folder)}


def series(folder: Path) -> dict[str, Any]:
    """Write a table for each of twelve series, in a folder for each class."""
    draw = np.random.default_rng(0)
    for number in range(12):
        (folder / "ab"[number % 2]).mkdir(exist_ok=True)
        rows = "\n".join(f"{value:.3f}" for value in draw.normal(size=6))
        (folder / "ab"[number % 2] / f"{number}.csv").write_text(f"x\n{rows}\n")
    return {"path": str(folder)}


def text(folder: Path) -> dict[str, Any]:
    return {**MADE_UP["byte_text"](folder), "path": str(folder)}


FOLDERS: dict[str, tuple[str, Callable[[Path], dict[str, Any]]]] = {
    "reviews": ("lra_text", MADE_UP["lra_text"]),
    "images": ("lra_image", images),
    "released images": ("pathfinder", released_images),
    "rollouts": ("walker", MADE_UP["walker"]),
    "genomes": ("species", MADE_UP["species"]),
    "digits": ("events", MADE_UP["events"]),
    "gestures": ("events", lambda folder: gestures(folder) | {"dataset": "dvs_gesture"}),
    "recordings": ("events", lambda folder: recordings(folder) | {"dataset": "dvs_gesture"}),
    "series": ("series_classes", series),
    "text": ("byte_text", text),
}


@pytest.mark.parametrize("name", FOLDERS)
def test_hidden_files_are_no_data(name: str, tmp_path: Path) -> None:
    task, write = FOLDERS[name]
    batches = []
    for folder in (tmp_path / "plain", tmp_path / "hidden"):
        folder.mkdir()
        settings = write(folder)
        if folder.name == "hidden":
            add_hidden_files(folder)
        batches.append([TASKS[task](**settings).batch(split, 0, 8) for split in TASKS[task].splits])
    for plain, hidden in zip(*batches, strict=True):
        assert torch.equal(plain.inputs, hidden.inputs)
        assert torch.equal(plain.targets, hidden.targets)


def test_a_folder_of_images_to_predict_has_no_hidden_files(tmp_path: Path) -> None:
    settings = images(tmp_path)
    task = TASKS["lra_image"](**settings)
    folder = tmp_path / "cifar10" / "train" / CLASSES[0]
    before = task.read_inputs(folder).inputs
    add_hidden_files(folder)
    assert torch.equal(task.read_inputs(folder).inputs, before)


def test_files_of_a_hidden_folder_are_not_hidden(tmp_path: Path) -> None:
    folder = tmp_path / ".cache" / "data"
    folder.mkdir(parents=True)
    for name in ("b.csv", "a.csv", ".c.csv"):
        (folder / name).write_text("x\n1\n")
    assert [path.name for path in visible_paths(folder)] == ["a.csv", "b.csv"]
    assert visible_paths(folder, "b*") == [folder / "b.csv"]
