"""Readers of event files: N-MNIST's 40-bit events, SHD's and SSC's HDF5, DVS-Gesture as tonic stores it.

Nothing that a file holds is run. Damaged files raise ValueError naming the file and what is wrong.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from longscan._files import read_text
from longscan.tasks._store import load_array


class Stream(NamedTuple):
    """Events in the order of their times: t (n,) int64 in microseconds; x, y (n,) int64 pixels; p (n,) int64, 0 or 1."""

    t: np.ndarray
    x: np.ndarray
    y: np.ndarray
    p: np.ndarray

    def select(self, rows: np.ndarray) -> "Stream":
        """The events of the given rows."""
        return Stream(*(part[rows] for part in self))


def checked(stream: Stream, size: tuple[int, int], path: Path | str) -> Stream:
    """The stream in the order of time; ValueError where it is empty, or an event lies outside the sensor or before time 0."""
    if not len(stream.t):
        raise ValueError(f"{path}: holds no events")
    for name, values, least, most in (
        ("x", stream.x, 0, size[0] - 1),
        ("y", stream.y, 0, size[1] - 1),
        ("polarity", stream.p, 0, 1),
        ("time", stream.t, 0, 2**31 - 1),
    ):
        wrong = np.flatnonzero((values < least) | (values > most))
        if len(wrong):
            raise ValueError(f"{path}: event {wrong[0]} has {name} {values[wrong[0]]}, {least} .. {most} is possible")
    return stream.select(np.argsort(stream.t, kind="stable"))


def read_40_bit(path: Path, size: tuple[int, int] = (34, 34)) -> Stream:
    """N-MNIST's .bin and .bs2 files: five bytes an event, x, y, then one bit of polarity and 23 bits of microseconds."""
    try:
        raw = np.fromfile(path, np.uint8)
    except OSError as error:
        raise ValueError(f"{path}: can not be read: {error.strerror}") from None
    if len(raw) % 5:
        raise ValueError(f"{path}: has {len(raw)} bytes, no multiple of 5; it is cut off or another format")
    x, y, high, middle, low = raw.reshape(-1, 5).T.astype(np.int64)
    return checked(Stream((high & 127) << 16 | middle << 8 | low, x, y, high >> 7), size, path)


def read_columns(path: Path, size: tuple[int, int] = (128, 128)) -> Stream:
    """DVS-Gesture as tonic keeps it: an .npy array (n, 4) of x, y, polarity and milliseconds."""
    events = load_array(path)
    if events.ndim != 2 or events.shape[1] != 4 or events.dtype.kind not in "fiu":
        raise ValueError(f"{path}: numbers of shape (events, 4) are needed: x, y, polarity, milliseconds")
    if not np.isfinite(events).all():
        raise ValueError(f"{path}: event {np.flatnonzero(~np.isfinite(events).all(1))[0]} has a value that is not finite")
    x, y, p, time = np.clip(events.T.astype(np.float64), -1, 2.0**31)
    return checked(Stream(np.rint(time * 1000.0).astype(np.int64), *(part.astype(np.int64) for part in (x, y, p))), size, path)


def read_spikes(path: Path, units: int = 700) -> tuple[list[Stream], np.ndarray, tuple[str, ...]]:
    """An HDF5 file of SHD or SSC: streams of one row (x: unit, y and p: 0), labels (n,), and what the labels are called."""
    import h5py

    try:
        with h5py.File(path, "r") as file:
            times, spikes, labels = file["spikes/times"][:], file["spikes/units"][:], np.asarray(file["labels"][:])
            keys = tuple(key.decode() if isinstance(key, bytes) else str(key) for key in file["extra/keys"][:])
    except (OSError, KeyError, RuntimeError, TypeError, ValueError, UnicodeDecodeError) as error:
        why = str(error).strip("'\"").splitlines()[0][:120] if str(error) else type(error).__name__
        needed = "spikes/times, spikes/units, labels and extra/keys"
        raise ValueError(f"{path}: is no readable HDF5 file with {needed}: {why}") from None
    if not len(times) == len(spikes) == len(labels) > 0 or labels.dtype.kind not in "iu":
        raise ValueError(f"{path}: has {len(times)} recordings of times, {len(spikes)} of units and {len(labels)} labels")
    if labels.min() < 0 or labels.max() >= len(keys):
        raise ValueError(f"{path}: a label lies outside the {len(keys)} in extra/keys")
    streams = []
    for number, (time, unit) in enumerate(zip(times, spikes, strict=True)):
        if len(time) != len(unit) or not np.isfinite(time).all():
            counts = f"{len(time)} times and {len(unit)} units"
            raise ValueError(f"{path}: recording {number} has {counts}, or a time that is not finite")
        micro = np.rint(np.asarray(time, np.float64) * 1e6).astype(np.int64)
        none = np.zeros(len(micro), np.int64)
        streams.append(checked(Stream(micro, np.asarray(unit, np.int64), none, none), (units, 1), f"{path}: recording {number}"))
    return streams, labels.astype(np.int64), keys


def read_listing(path: Path) -> list[tuple[str, int]]:
    """Numbers of samples and classes from a text file with two columns; lines that start with # are left out."""
    rows = []
    for line, text in enumerate(read_text(path).splitlines(), 1):
        words = text.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) != 2 or not all(word.isdigit() for word in words):
            raise ValueError(f"{path}:{line}: a sample's number and its class are needed, not {text[:40]!r}")
        rows.append((words[0], int(words[1])))
    if not rows:
        raise ValueError(f"{path}: lists no sample")
    return rows
