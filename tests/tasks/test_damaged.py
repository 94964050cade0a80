"""Readers of damaged files return valid data or raise one short error that names the file, within the time limit."""

import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from longscan.tasks import TASKS, read_arff, read_ts
from longscan.tasks._images import read_image
from longscan.tasks.dna.fasta import read_fasta
from longscan.tasks.dynamics.activity import _read as read_activities
from longscan.tasks.dynamics.walker import _read_rollout
from longscan.tasks.events.files import (
    LabelledSpan,
    read_aedat,
    read_gesture_labels,
    read_gestures,
    read_nmnist,
    read_recording_list,
    read_sample_list,
    read_spike_file,
    read_tonic_array,
)
from longscan.tasks.forecasting.tables import read_table
from longscan.tasks.lra._cifar10 import read_batch
from longscan.tasks.lra.retrieval import _read_lines
from longscan.tasks.timeseries.files import read_csv, read_npy
from made_up import MADE_UP, aedat_bytes, cifar_batch, draw_events, event_bytes, table

h5py = pytest.importorskip("h5py")

MUTATIONS = 60  # files of each format in the slow test, which are more than a thousand in all
FEW = 4  # files of each format in the fast test


def write_ts(path: Path) -> None:
    rows = [",".join(f"{x:.2f}" for x in np.random.default_rng(n).normal(size=8)) for n in range(12)]
    lines = [f"{first}:{second}:a" for first, second in zip(rows[::2], rows[1::2], strict=True)]
    path.write_text("\n".join(["@problemName X", "@classLabel true a b", "@data", *lines]))


def write_arff(path: Path) -> None:
    rows = [",".join(f"{x:.2f}" for x in np.random.default_rng(n).normal(size=8)) for n in range(6)]
    path.write_text("@relation X\n@attribute a numeric\n@attribute y {a,b}\n@data\n" + "\n".join(f"{row},a" for row in rows))


def write_npy(path: Path) -> None:
    np.save(path, np.random.default_rng(0).normal(size=(30, 4)))


def write_tonic_array(path: Path) -> None:
    t, x, y, p = draw_events(0, 40, (128, 128))
    np.save(path, np.stack([x, y, p, t // 1000], axis=1))


def write_aedat(path: Path) -> None:
    path.write_bytes(aedat_bytes(*draw_events(0, 40, (128, 128)), packet=9))


def write_gesture_labels(path: Path) -> None:
    path.write_text("class,startTime_usec,endTime_usec\n1,100,2000\n11,3000,4000\n10,5000,60000\n")


SPANS = [LabelledSpan(0, 0, 140_000, "x.csv:2"), LabelledSpan(10, 150_000, 300_000, "x.csv:3")]


def write_spikes(path: Path) -> None:
    with h5py.File(path, "w") as file:
        times = file.create_dataset("spikes/times", (4,), dtype=h5py.vlen_dtype(np.float16))
        units = file.create_dataset("spikes/units", (4,), dtype=h5py.vlen_dtype(np.uint16))
        for number in range(4):
            times[number], units[number] = np.linspace(0, 1, 9).astype(np.float16), np.arange(9)
        file["labels"], file["extra/keys"] = np.arange(4) % 2, np.array([b"null", b"eins"])


def write_activities(path: Path) -> None:
    folder = path.parent / "activities"
    folder.mkdir(exist_ok=True)
    MADE_UP["human_activity"](folder)
    path.write_text("\n".join((folder / "ConfLongDemo_JSI.txt").read_text().splitlines()[:40]))


def write_pairs(path: Path) -> None:
    path.write_text("\n".join(f"{n % 2}.0\tA{n}\tB{n}\tsome text {n}\tanother text" for n in range(8)) + "\n")


FORMATS: dict[
    str, tuple[Callable[[Path], Any], Callable[[Path], Any]]
] = {  # for each file name a function that writes a valid file, and its reader
    "x.ts": (write_ts, lambda path: read_ts(path).series),
    "x.arff": (write_arff, lambda path: read_arff(path).series),
    "series.csv": (lambda path: path.write_text("1,2\n3,4\n5,6\n"), lambda path: read_csv(path).series),
    "series.npy": (write_npy, lambda path: read_npy(path).series),
    "table.csv": (lambda path: path.write_text(table(20, 3)), lambda path: read_table(path).values),
    "rollout.npy": (write_npy, lambda path: _read_rollout(path, 4)),
    "activities.txt": (write_activities, lambda path: [series.inputs for series in read_activities(path)]),
    "genome.fa": (lambda path: path.write_text(">a b\nACGTNACGT\nACG\n>c\nTTT\n"), read_fasta),
    "events.bin": (lambda path: path.write_bytes(event_bytes(*draw_events(0, 30, (34, 34)))), read_nmnist),
    "events.npy": (write_tonic_array, read_tonic_array),
    "events.aedat": (write_aedat, lambda path: read_gestures(path, SPANS)),
    "whole.aedat": (write_aedat, read_aedat),
    "labels.csv": (write_gesture_labels, read_gesture_labels),
    "trials.txt": (lambda path: path.write_text("user01_led.aedat\nuser02_lab.aedat\n"), read_recording_list),
    "spikes.h5": (write_spikes, read_spike_file),
    "listing.txt": (lambda path: path.write_text("#sample #class\n1\t5\n2\t0\n"), read_sample_list),
    "data_batch": (lambda path: path.write_bytes(pickle.dumps(cifar_batch(0), protocol=2)), read_batch),
    "image.png": (lambda path: Image.new("L", (32, 32), 90).save(path), lambda path: read_image(path, 32)),
    "image.jpg": (lambda path: Image.new("L", (32, 32), 90).save(path), lambda path: read_image(path, 32)),
    "pairs.tsv": (write_pairs, lambda path: list(_read_lines(path))),
    "questions.txt": (lambda path: path.write_text("1 0 1\n0 0 1 1\n"), lambda path: TASKS["parity"]().read_inputs(path).inputs),
    "reviews.txt": (lambda path: path.write_text("a film\nüber\n"), lambda path: TASKS["lra_text"]().read_inputs(path).inputs),
    "papers.txt": (lambda path: path.write_text("a\tb\nc\td\n"), lambda path: TASKS["lra_retrieval"]().read_inputs(path).inputs),
    "listops.txt": (lambda path: path.write_text("[MAX 1 [MIN 2 3 ] ]\n"), lambda path: TASKS["listops"]().read_inputs(path)),
}


def damage(content: bytes, draw: np.random.Generator) -> bytes:
    """Return the content with one kind of damage."""
    offset = int(draw.integers(0, max(1, len(content))))
    lines = content.split(b"\n")
    line = int(draw.integers(0, len(lines)))
    kind = int(draw.integers(0, 12))
    if kind == 0:  # cut off
        return content[:offset]
    if kind == 1:  # empty
        return b""
    if kind == 2:  # some bytes changed
        changed = bytearray(content)
        for position in draw.integers(0, max(1, len(content)), 5):
            changed[position : position + 1] = bytes([int(draw.integers(0, 256))])
        return bytes(changed)
    if kind == 3:  # another encoding
        return content.decode("latin-1").encode("utf-16")
    if kind == 4:  # a column more or less
        lines[line] = lines[line] + b",7" if draw.integers(0, 2) else lines[line].rpartition(b",")[0]
    elif kind == 5:  # values that are not finite numbers
        lines[line] = lines[line].replace(b"1", (b"NaN", b"inf", b"1e999", b"x", b"")[int(draw.integers(0, 5))])
    elif kind == 6:  # lines lost
        del lines[line:]
    elif kind == 7:  # much longer
        return content * 40
    elif kind == 8:  # a huge number
        lines[line] = lines[line].replace(b"0", b"9" * 400, 1)
    elif kind == 9:  # zero bytes inside
        return content[:offset] + b"\0" * 9 + content[offset:]
    elif kind == 10:  # bytes that are not UTF-8
        return content[:offset] + b"\xff\xfe\xe9" + content[offset:]
    else:  # a range of bytes lost
        return content[:offset] + content[offset + 13 :]
    return b"\n".join(lines)


def float_arrays(data: Any) -> list[np.ndarray]:
    """Return the arrays of floats in the result of a reader."""
    if isinstance(data, np.ndarray):
        return [data] if data.dtype.kind == "f" else []
    return [array for part in data for array in float_arrays(part)] if isinstance(data, list | tuple) else []


def reads_damaged_file(name: str, path: Path, seed: int) -> bool:
    """Damage a file and read it; return whether the reader returned data instead of raising an error."""
    write, read = FORMATS[name]
    write(path)
    content = path.read_bytes()
    path.write_bytes(damage(content, np.random.default_rng([seed, sum(name.encode())])))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            data = read(path)
        except (ValueError, FileNotFoundError) as error:
            message = str(error)
            assert path.name in message, f"{name}, seed {seed}: the error must name the file: {message}"
            assert "\n" not in message, f"{name}, seed {seed}: more than one line: {message}"
            assert len(message) < 400, f"{name}, seed {seed}: a long message: {message[:600]}"
            return False
    assert all(not np.isinf(array).any() for array in float_arrays(data)), f"{name}, seed {seed}"
    return True


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", FORMATS)
def test_valid_file_is_read(name: str, tmp_path: Path) -> None:
    write, read = FORMATS[name]
    write(tmp_path / name)
    assert read(tmp_path / name) is not None


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", FORMATS)
def test_damaged_file_gives_valid_data_or_a_short_error(name: str, tmp_path: Path) -> None:
    for seed in range(FEW):
        reads_damaged_file(name, tmp_path / name, seed)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", FORMATS)
def test_many_damaged_files_give_valid_data_or_a_short_error(name: str, tmp_path: Path) -> None:
    read = [reads_damaged_file(name, tmp_path / name, seed) for seed in range(1000, 1000 + MUTATIONS)]
    assert not all(read), "no damage was detected"


def test_slow_test_has_at_least_a_thousand_files() -> None:
    assert len(FORMATS) * MUTATIONS >= 1000
