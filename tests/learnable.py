"""Generated files in the formats of the real data sets, from which small models can learn; for tests of the quick recipes.

Classes differ in the mean or the position of values, which a small model learns in few steps. Series to forecast have a daily
period or are random walks, so that earlier values predict later ones better than a constant does.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import made_up
from made_up import FORMS, cifar_batch, gestures, reviews, rng, spoken, table

Settings = dict[str, Any]


def uea(folder: Path, dataset: str, each: int = 12, length: int = 40) -> Settings:
    """Write a UEA set with its channels and classes, and with `each` series per class, whose mean depends on the class."""
    channels, classes = FORMS[dataset]
    labels = [f"c{number}" for number in range(classes)]
    for seed, part in enumerate(("TRAIN", "TEST")):
        draw = rng(seed)
        lines = [f"@problemName {dataset}", "@univariate false", f"@dimensions {channels}", "@equalLength true"]
        lines += [f"@seriesLength {length}", f"@classLabel true {' '.join(labels)}", "@data"]
        for number in range(each * classes):
            values = draw.normal(size=(channels, length)) + 2 * (number % classes) - classes + 1
            lines.append(":".join([*(",".join(f"{x:.3f}" for x in row) for row in values), labels[number % classes]]))
        (folder / f"{dataset}_{part}.ts").write_text("\n".join(lines) + "\n")
    return {"data_dir": str(folder)}


def events(folder: Path, dataset: str) -> Settings:
    """Write SHD, SSC or DVS-Gesture, in which each class has its own units, or its own columns of the sensor."""
    if dataset == "dvs_gesture":
        return gestures(folder, users=10, count=90, size=(40, 128), shift=44)
    return spoken(folder, dataset, recordings=60, spikes=(60, 90), units=200, shift=250)


def human_activity(folder: Path) -> Settings:
    """Write two sequences of each of five people, in which activities differ in height."""
    return made_up.human_activity(folder, steps=480, bout=40, spread=0.3, height=1.0)


def lra_text(folder: Path) -> Settings:
    """Write aclImdb with eighty reviews per folder."""
    return {"data_dir": made_up.lra_text(folder, 80)["data_dir"]}


def lra_retrieval(folder: Path) -> Settings:
    """Write three files of pairs. The second text of a linked pair is positive, all other texts are negative."""
    for seed, part in enumerate(("train", "eval", "test")):
        lines = []
        first, *seconds = (reviews(seed + shift, kind, 80) for shift, kind in ((0, "neg"), (5, "neg"), (9, "pos")))
        for number, text in enumerate(first):
            linked = number % 2
            lines.append(f"{linked}.0\tP{number}\tQ{number}\t{text}\t{seconds[linked][number]}")
        (folder / f"new_aan_pairs.{part}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return {"data_dir": str(folder)}


def lra_image(folder: Path) -> Settings:
    """Write six batches of forty images whose brightness depends on the class."""

    def make_batch(seed: int) -> dict[bytes, Any]:
        batch = cifar_batch(seed, 40)
        pixels = 25 * np.array(batch[b"labels"])[:, None] + batch[b"data"] // 16
        return batch | {b"data": pixels.astype(np.uint8)}

    return made_up.lra_image(folder, make_batch)


def forecast(folder: Path) -> Settings:
    """Write a table of twelve variables with a daily period over 7300 hours."""
    (folder / "WTH.csv").write_text(table(7300, 12))
    return {"data_dir": str(folder)}


def species(folder: Path) -> Settings:
    """Write two regions of each of three species, which differ in the frequencies of bases."""
    return {"data_dir": made_up.genomes(folder, 4000)["data_dir"]}


FILES: dict[str, Callable[[Path], Settings]] = {
    write.__name__: write for write in (forecast, human_activity, lra_image, lra_retrieval, lra_text, made_up.walker, species)
} | {"dna_language": species}
SETS: dict[str, Callable[[Path, str], Settings]] = {"events": events, "uea": uea}


def learnable(task: dict[str, Any], folder: Path) -> Settings:
    """Write the files that a recipe's task reads; return its settings, none for a task that reads no files."""
    if task["name"] in SETS:
        return SETS[task["name"]](folder, task["dataset"])
    return FILES[task["name"]](folder) if task["name"] in FILES else {}
