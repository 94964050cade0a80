"""Functions that write small generated data sets in the formats of the real ones, and return the settings to read them."""

import pickle
import struct
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

Settings = dict[str, Any]
MADE_UP: dict[str, Callable[[Path], Settings]] = {}

FORMS = {  # channels and classes of the UEA sets
    "Heartbeat": (61, 2),
    "SelfRegulationSCP1": (6, 2),
    "SelfRegulationSCP2": (7, 2),
    "EthanolConcentration": (3, 4),
    "MotorImagery": (64, 2),
    "EigenWorms": (6, 5),
    "UWaveGestureLibrary": (3, 8),
    "FingerMovements": (28, 2),
    "Handwriting": (3, 26),
}

_WORDS = ("a plot of", "fine actors", "dull as", "the camera", "über", "never", "wonderful", "boring", "ending", "!")


def register(name: str) -> Callable[[Callable[[Path], Settings]], Callable[[Path], Settings]]:
    """Return a decorator that registers a function which writes a task's files into a folder and returns the task's settings."""

    def decorate(write: Callable[[Path], Settings]) -> Callable[[Path], Settings]:
        MADE_UP[name] = write
        return write

    return decorate


def rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


@register("listops")
def listops(folder: Path) -> Settings:
    """Return settings for short expressions; the task reads no files."""
    return {"train_size": 90, "valid_size": 40, "test_size": 90, "longer_than": 20, "shorter_than": 100, "max_depth": 6}


@register("pathfinder")
def pathfinder(folder: Path) -> Settings:
    """Return settings for few images; the task reads no files."""
    return {"train_size": 30, "valid_size": 20, "test_size": 30}


def reviews(seed: int, kind: str, count: int = 30) -> list[str]:
    draw = rng(seed)
    marked = {"pos": "wonderful ", "neg": "boring "}[kind]
    return [marked + " ".join(draw.choice(_WORDS, draw.integers(2, 9))) + f" {seed} {number}" for number in range(count)]


@register("lra_text")
def lra_text(folder: Path, count: int = 30) -> Settings:
    """Write aclImdb with `count` reviews per folder."""
    for seed, (part, kind) in enumerate((part, kind) for part in ("train", "test") for kind in ("neg", "pos")):
        directory = folder / "aclImdb" / part / kind
        directory.mkdir(parents=True)
        for number, text in enumerate(reviews(seed, kind, count)):
            (directory / f"{number}_{seed + 1}.txt").write_text(text, encoding="utf-8")
    return {"data_dir": str(folder), "longest": 40}


@register("lra_retrieval")
def lra_retrieval(folder: Path) -> Settings:
    """Write three files of pairs."""
    for seed, part in enumerate(("train", "eval", "test")):
        lines = []
        for number, (first, second) in enumerate(zip(reviews(seed, "pos", 20), reviews(seed + 5, "neg", 20), strict=True)):
            lines.append(f"{number % 2}.0\tP{number}\tQ{number}\t{first}\t{second}")
        (folder / f"new_aan_pairs.{part}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return {"data_dir": str(folder), "longest": 30}


def cifar_batch(seed: int, count: int = 20) -> dict[bytes, Any]:
    """Return the content of a Python batch of CIFAR-10."""
    return {
        b"batch_label": f"batch {seed}".encode(),
        b"labels": (np.arange(count) % 10).tolist(),
        b"data": rng(seed).integers(0, 256, (count, 3072), dtype=np.uint8),
        b"filenames": [f"{number}.png".encode() for number in range(count)],
    }


@register("lra_image")
def lra_image(folder: Path, make_batch: Callable[[int], dict[bytes, Any]] = cifar_batch) -> Settings:
    """Write six Python batches of the contents that `make_batch` returns for their numbers."""
    directory = folder / "cifar-10-batches-py"
    directory.mkdir()
    for number, name in enumerate([*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]):
        (directory / name).write_bytes(pickle.dumps(make_batch(number), protocol=2))
    return {"data_dir": str(folder)}


def hour_of_2020(hour: int) -> str:
    """Return an hour as WTH.csv writes it: 1/31/2020 5:00."""
    date = datetime(2020, 1, 1) + timedelta(hours=hour)
    return f"{date.month}/{date.day}/{date.year} {date.hour}:00"


def table(rows: int, variables: int, seed: int = 0) -> str:
    """Return a table of measurements with a daily period."""
    hours = np.arange(rows)[:, None]
    values = np.sin(2 * np.pi * hours / 24 + np.arange(variables)) + 0.1 * rng(seed).normal(size=(rows, variables))
    lines = ["date," + ",".join(f"v{number}" for number in range(variables))]
    lines += [f"{hour_of_2020(hour)}," + ",".join(f"{x:.4f}" for x in row) for hour, row in enumerate(values)]
    return "\n".join(lines) + "\n"


@register("forecast")
def forecast(folder: Path) -> Settings:
    """Write a table of twelve variables over 900 hours."""
    (folder / "WTH.csv").write_text(table(900, 12))
    return {"data_dir": str(folder), "context": 48, "horizon": 24}


@register("pendulum")
def pendulum(folder: Path) -> Settings:
    """Return settings for few episodes; the task reads no files."""
    return {"train_size": 24, "valid_size": 10, "test_size": 12, "frames": 12}


@register("fitzhugh_nagumo")
def fitzhugh_nagumo(folder: Path) -> Settings:
    """Return settings for few series; the task reads no files."""
    return {"train_size": 24, "valid_size": 10, "test_size": 12}


@register("walker")
def walker(folder: Path) -> Settings:
    """Write twenty rollouts of three channels, random walks."""
    for number in range(20):
        np.save(folder / f"rollout_{number:03}.npy", rng(number).normal(size=(160, 3)).cumsum(0))
    return {"data_dir": str(folder)}


@register("human_activity")
def human_activity(folder: Path, steps: int = 150, bout: int = 50, spread: float = 1.0, height: float = 0.0) -> Settings:
    """Write two sequences of each of five people, in which three activities alternate every `bout` steps.

    spread: standard deviation of positions. height: difference of the mean height between activities.
    """
    from longscan.tasks.dynamics.activity import _TAGS

    draw, lines, ticks = rng(0), [], 633790226051280329
    for person in "ABCDE":
        for sequence in range(2):
            for step in range(steps):
                ticks += int(draw.integers(100_000, 900_000))
                number = step // bout % 3
                position = ",".join(f"{x:.6f}" for x in draw.normal(size=3) * spread + (0, 0, height * number))
                activity, tag = ("walking", "sitting", "lying down")[number], _TAGS[draw.integers(4)]
                lines.append(f"{person}0{sequence + 1},{tag},{ticks},27.05.2009 14:03:25:127,{position},{activity}")
    (folder / "ConfLongDemo_JSI.txt").write_text("\n".join(lines) + "\n")
    return {"data_dir": str(folder)}


def event_bytes(t: np.ndarray, x: np.ndarray, y: np.ndarray, p: np.ndarray) -> bytes:
    """Return events in the format of N-MNIST, five bytes per event."""
    return np.stack([x, y, p << 7 | t >> 16, t >> 8 & 255, t & 255], axis=1).astype(np.uint8).tobytes()


def draw_events(seed: int, count: int, size: tuple[int, int]) -> tuple[np.ndarray, ...]:
    """Return t, x, y, p of a random recording."""
    draw = rng(seed)
    times = np.sort(draw.integers(0, 300_000, count))
    return times, draw.integers(0, size[0], count), draw.integers(0, size[1], count), draw.integers(0, 2, count)


@register("events")
def events(folder: Path) -> Settings:
    """Write N-MNIST with three recordings per digit for training and two for testing."""
    seed = 0
    for part, count in (("Train", 3), ("Test", 2)):
        for digit in range(10):
            directory = folder / part / str(digit)
            directory.mkdir(parents=True)
            for number in range(count):
                seed += 1
                (directory / f"{number:05}.bin").write_bytes(event_bytes(*draw_events(seed, 20 + seed % 9, (34, 34))))
    return {"data_dir": str(folder), "valid_fraction": 0.2}


@register("byte_text")
def byte_text(folder: Path) -> Settings:
    """Write ten thousand bytes of words and numbers."""
    draw = rng(0)
    words = [f"{word} {number}" for word, number in zip(draw.choice(_WORDS, 700), draw.integers(0, 10**6, 700), strict=True)]
    (folder / "text.txt").write_text(" ".join(words), encoding="utf-8")
    return {"path": str(folder / "text.txt"), "window": 24, "valid_fraction": 0.2}


def genomes(folder: Path, length: int = 1500) -> Settings:
    """Write two regions of `length` bases of each of three species, which differ in the frequencies of bases."""
    for number, species in enumerate(("cat", "dog", "eel")):
        for region in ("R1", "R2"):
            draw = rng(hash_text(species + region))
            bases = "".join(draw.choice(list("ACGT"), length, p=np.roll([0.4, 0.3, 0.2, 0.1], number)))
            lines = [bases[start : start + 50] for start in range(0, len(bases), 50)]
            (folder / f"{species}.{region}.fa").write_text(f">{species}|{region}\n" + "\n".join(lines) + "\n")
    return {"data_dir": str(folder), "window": 40, "valid_size": 40, "test_size": 60}


def hash_text(text: str) -> int:
    return sum(ord(letter) * 31**position for position, letter in enumerate(text))


MADE_UP["species"] = MADE_UP["dna_language"] = genomes


def spoken(
    folder: Path, dataset: str, recordings: int = 30, spikes: tuple[int, int] = (9, 20), units: int = 700, shift: int = 0
) -> Settings:
    """Write SHD or SSC with recordings of three words in each file; the units of a word are `shift` above those of the last."""
    import h5py

    for seed, part in enumerate(("train", "test") if dataset == "shd" else ("train", "valid", "test")):
        draw = rng(seed)
        with h5py.File(folder / f"{dataset}_{part}.h5", "w") as file:
            times = file.create_dataset("spikes/times", (recordings,), dtype=h5py.vlen_dtype(np.float16))
            fired = file.create_dataset("spikes/units", (recordings,), dtype=h5py.vlen_dtype(np.uint16))
            for number in range(recordings):
                count = int(draw.integers(*spikes))
                times[number] = np.sort(draw.uniform(0, 1, count)).astype(np.float16)
                fired[number] = draw.integers(0, units, count) + shift * (number % 3)
            file["labels"], file["extra/keys"] = np.arange(recordings) % 3, np.array([b"one", b"two", b"three"])
    return {"data_dir": str(folder)}


def gestures(folder: Path, users: int = 4, count: int = 40, size: tuple[int, int] = (128, 128), shift: int = 0) -> Settings:
    """Write DVS-Gesture as tonic does: three gestures of `count` events per person, each `shift` columns right of the last."""
    for part in ("ibmGestureTrain", "ibmGestureTest"):
        for user in range(users):
            directory = folder / part / f"user{user:02}_led"
            directory.mkdir(parents=True)
            for number, kind in enumerate((0, 4, 10)):
                t, x, y, p = draw_events(user * 11 + kind, count, size)
                np.save(directory / f"{kind}.npy", np.stack([x + shift * number, y, p, t // 1000], axis=1))
    return {"data_dir": str(folder)}


def aedat_bytes(t: np.ndarray, x: np.ndarray, y: np.ndarray, p: np.ndarray, packet: int = 16) -> bytes:
    """Return AEDAT 3.1 with a packet of another kind, then `packet` polarity events per packet; times from 2^31 on overflow."""
    header = b"#!AER-DAT3.1\r\n#Format: RAW\r\n#Source 1: DVS128\r\n#Start-Time: 2016-05-17 12:00:00\r\n#!END-HEADER\r\n"
    parts = [header, struct.pack("<hh6iii", 0, 1, 8, 4, 0, 1, 1, 1, 3, 0)]
    data = np.stack([x << 17 | y << 2 | p << 1 | 1, t & 2**31 - 1], axis=1).astype("<u4")
    for overflow in np.unique(t >> 31).tolist():
        events_of_overflow = data[t >> 31 == overflow]
        for events in (events_of_overflow[start : start + packet] for start in range(0, len(events_of_overflow), packet)):
            number = len(events)
            parts += [struct.pack("<hh6i", 1, 1, 8, 4, overflow, number, number, number), events.tobytes()]
    return b"".join(parts)


def recordings(folder: Path, users: int = 4, count: int = 40, begin: int = 0) -> Settings:
    """Write the gestures of `gestures` as IBM does: one recording per person from `begin` us on, with other events between."""
    root = folder / "DvsGesture"
    root.mkdir()
    for number, part in enumerate(("train", "test")):
        names = []
        for user in range(users):
            pieces, lines = [], ["class,startTime_usec,endTime_usec"]
            for index, kind in enumerate((0, 10, 4)):  # tonic's arrays in the order of their names
                t, x, y, p = draw_events(user * 11 + kind, count, (128, 128))
                start = begin + 1_000_000 * (index + 1)
                pieces += [(t // 1000 * 1000 + start, x, y, p), (np.array([start - 1, start + 300_000]), *np.full((3, 2), 1))]
                lines.append(f"{kind + 1},{start},{start + 300_000}")
            columns = [np.concatenate(parts) for parts in zip(*pieces, strict=True)]
            order = np.argsort(columns[0], kind="stable")
            names.append(f"user{number * users + user:02}_led")
            (root / f"{names[-1]}.aedat").write_bytes(aedat_bytes(*(column[order] for column in columns)))
            (root / f"{names[-1]}_labels.csv").write_text("\n".join(lines) + "\n")
        (root / f"trials_to_{part}.txt").write_text("".join(f"{name}.aedat\n" for name in names))
    return {"data_dir": str(folder)}


EVENTS: dict[str, Callable[[Path], Settings]] = {
    "shd": lambda folder: spoken(folder, "shd"),
    "ssc": lambda folder: spoken(folder, "ssc"),
    "dvs_gesture": gestures,
}


@register("series_classes")
def labelled_series(folder: Path, count: int = 40) -> Settings:
    """Write a long table of series of two channels, with times, three classes and a number for each series."""
    draw = rng(0)
    lines = ["unit,second,force,speed,kind,load"]
    for number in range(count):
        phase, kind = draw.uniform(0, 6), number % 3
        for second in range(int(draw.integers(20, 30))):
            force, speed = np.sin(phase + second * (kind + 1) / 3) + draw.normal(0, 0.1), draw.normal(10, 2)
            lines.append(f"u{number},{second},{force:.4f},{speed:.4f},{'abc'[kind]},{phase:.3f}")
    path = folder / "units.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    settings = {"path": str(path), "id": "unit", "time": "second", "channels": ("force", "speed"), "label": "kind"}
    return settings | {"valid_fraction": 0.2, "test_fraction": 0.3}


@register("series_values")
def series_with_numbers(folder: Path) -> Settings:
    """Write the table of `labelled_series`, with its numbers as the answers."""
    return labelled_series(folder) | {"label": "load"}


@register("series_forecast")
def table_to_forecast(folder: Path, rows: int = 150) -> Settings:
    """Write a table of two series of two channels with a row an hour."""
    draw = rng(1)
    lines = ["shop,hour,sales,rain"]
    for number in range(2):
        rain = draw.normal(0, 1, rows)
        for step in range(rows):
            sales = 5 + number + np.sin(step / 24 * 2 * np.pi) + 0.3 * rain[step] + 0.2 * draw.normal()
            hour = datetime(2024, 1, 1) + timedelta(hours=step)
            lines.append(f"s{number},{hour.isoformat(' ')},{sales:.4f},{rain[step]:.4f}")
    path = folder / "shops.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    columns = {"path": str(path), "id": "shop", "time": "hour", "target": ("sales",)}
    return columns | {"horizon": 6, "context": 24, "test_fraction": 0.3}
