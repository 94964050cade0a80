"""Made-up files in the formats of the real ones that hold something to learn: the quick recipes are trained on them.

A class shows in where values lie, which a small model finds in few steps. Series to continue are noise about fixed values, so
that the mean is a better forecast than the last value.
"""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

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
    """Five people, two sequences each; an activity has its own height."""
    from longscan.tasks.dynamics.activity import _TAGS

    draw, lines, ticks = rng(0), [], 633790226051280329
    for person in "ABCDE":
        for sequence in range(2):
            for step in range(480):
                ticks += int(draw.integers(100_000, 900_000))
                number = step // 40 % 3
                x, y, z = draw.normal(size=3) * 0.3 + (0, 0, number)
                activity, tag = ("walking", "sitting", "lying down")[number], _TAGS[draw.integers(4)]
                place = f"{x:.6f},{y:.6f},{z:.6f}"
                lines.append(f"{person}0{sequence + 1},{tag},{ticks},27.05.2009 14:03:25:127,{place},{activity}")
    (folder / "ConfLongDemo_JSI.txt").write_text("\n".join(lines) + "\n")
    return {"data_dir": str(folder)}


def lra_text(folder: Path) -> Settings:
    """aclImdb with eighty reviews a folder."""
    for seed, (part, kind) in enumerate((part, kind) for part in ("train", "test") for kind in ("neg", "pos")):
        place = folder / "aclImdb" / part / kind
        place.mkdir(parents=True)
        for number, text in enumerate(reviews(seed, kind, 80)):
            (place / f"{number}_{seed + 1}.txt").write_text(text, encoding="utf-8")
    return {"data_dir": str(folder)}


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
    """Six python batches of forty pictures, each class of its own brightness."""
    place = folder / "cifar-10-batches-py"
    place.mkdir()
    for number, name in enumerate([*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]):
        batch = cifar_batch(number, 40)
        shades = 25 * np.array(batch[b"labels"])[:, None] + batch[b"data"] // 16
        (place / name).write_bytes(pickle.dumps(batch | {b"data": shades.astype(np.uint8)}, protocol=2))
    return {"data_dir": str(folder)}


def forecast(folder: Path) -> Settings:
    """A table of twelve variables, 7,300 hours long."""
    values = rng(0).normal(size=(7300, 12)) + np.arange(12)
    lines = ["date," + ",".join(f"v{number}" for number in range(12))]
    lines += [f"{hour_of_2020(hour)}," + ",".join(f"{x:.3f}" for x in row) for hour, row in enumerate(values)]
    (folder / "WTH.csv").write_text("\n".join(lines) + "\n")
    return {"data_dir": str(folder)}


def walker(folder: Path) -> Settings:
    """Twenty rollouts of three channels."""
    for number in range(20):
        np.save(folder / f"rollout_{number:03}.npy", rng(number).normal(size=(160, 3)))
    return {"data_dir": str(folder)}


def species(folder: Path) -> Settings:
    """Three species with two regions each, of different shares of bases."""
    for number, name in enumerate(("cat", "dog", "eel")):
        for region in (1, 2):
            bases = "".join(rng(10 * number + region).choice(list("ACGT"), 4000, p=np.roll([0.4, 0.3, 0.2, 0.1], number)))
            lines = [bases[start : start + 50] for start in range(0, len(bases), 50)]
            (folder / f"{name}.R{region}.fa").write_text(f">{name}|R{region}\n" + "\n".join(lines) + "\n")
    return {"data_dir": str(folder)}


FILES: dict[str, Callable[[Path], Settings]] = {
    made.__name__: made for made in (forecast, human_activity, lra_image, lra_retrieval, lra_text, species, walker)
} | {"dna_language": species}
SETS: dict[str, Callable[[Path, str], Settings]] = {"events": events, "uea": uea}


def learnable(task: dict[str, Any], folder: Path) -> Settings:
    """Write the files that a recipe's task reads; settings that find them, none where the task draws its examples itself."""
    if task["name"] in SETS:
        return SETS[task["name"]](folder, task["dataset"])
    return FILES[task["name"]](folder) if task["name"] in FILES else {}
