"""Generated files in the formats of the real data sets that a small model can learn from: the quick recipes are trained on them.

Classes differ in the mean or the place of values, which a small model finds in few steps. Series to forecast are noise about
fixed values, so that the mean is a better forecast than the last value.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import made_up
from made_up import FORMS, cifar_batch, gestures, hour_of_2020, reviews, rng, spoken

Settings = dict[str, Any]


def uea(folder: Path, dataset: str, each: int = 12, length: int = 40) -> Settings:
    """A UEA set's channels and classes, `each` series a class; a class has its own mean."""
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
    """SHD, SSC or DVS-Gesture: a class has its own units, or its own columns of the sensor."""
    if dataset == "dvs_gesture":
        return gestures(folder, users=10, count=90, size=(40, 128), shift=44)
    return spoken(folder, dataset, recordings=60, spikes=(60, 90), units=200, shift=250)


def human_activity(folder: Path) -> Settings:
    """Five people, two sequences each; activities differ in height."""
    return made_up.human_activity(folder, steps=480, bout=40, spread=0.3, height=1.0)


def lra_text(folder: Path) -> Settings:
    """aclImdb with eighty reviews a folder."""
    return {"data_dir": made_up.lra_text(folder, 80)["data_dir"]}


def lra_retrieval(folder: Path) -> Settings:
    """Three files of pairs; the second text of a linked one praises."""
    for seed, part in enumerate(("train", "eval", "test")):
        lines = []
        first, *seconds = (reviews(seed + shift, kind, 80) for shift, kind in ((0, "neg"), (5, "neg"), (9, "pos")))
        for number, text in enumerate(first):
            linked = number % 2
            lines.append(f"{linked}.0\tP{number}\tQ{number}\t{text}\t{seconds[linked][number]}")
        (folder / f"new_aan_pairs.{part}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return {"data_dir": str(folder)}


def lra_image(folder: Path) -> Settings:
    """Six python batches of forty pictures; classes differ in brightness."""

    def shaded(seed: int) -> dict[bytes, Any]:
        batch = cifar_batch(seed, 40)
        shades = 25 * np.array(batch[b"labels"])[:, None] + batch[b"data"] // 16
        return batch | {b"data": shades.astype(np.uint8)}

    return made_up.lra_image(folder, shaded)


def forecast(folder: Path) -> Settings:
    """A table of twelve variables, 7,300 hours long."""
    values = rng(0).normal(size=(7300, 12)) + np.arange(12)
    lines = ["date," + ",".join(f"v{number}" for number in range(12))]
    lines += [f"{hour_of_2020(hour)}," + ",".join(f"{x:.3f}" for x in row) for hour, row in enumerate(values)]
    (folder / "WTH.csv").write_text("\n".join(lines) + "\n")
    return {"data_dir": str(folder)}


def walker(folder: Path) -> Settings:
    """Twenty rollouts of three channels of noise."""
    return made_up.walker(folder, walks=False)


def species(folder: Path) -> Settings:
    """Three species with two regions each, of different shares of bases."""
    return {"data_dir": made_up.genomes(folder, 4000)["data_dir"]}


FILES: dict[str, Callable[[Path], Settings]] = {
    made.__name__: made for made in (forecast, human_activity, lra_image, lra_retrieval, lra_text, species, walker)
} | {"dna_language": species}
SETS: dict[str, Callable[[Path, str], Settings]] = {"events": events, "uea": uea}


def learnable(task: dict[str, Any], folder: Path) -> Settings:
    """Write the files that a recipe's task reads; return the settings that name them, none for a task that reads no files."""
    if task["name"] in SETS:
        return SETS[task["name"]](folder, task["dataset"])
    return FILES[task["name"]](folder) if task["name"] in FILES else {}
