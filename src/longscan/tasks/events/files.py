"""Readers of event files: N-MNIST's 40-bit events, SHD's and SSC's HDF5, DVS-Gesture as tonic stores it and as IBM recorded it.

Nothing that a file holds is run. Damaged files raise ValueError naming the file and what is wrong.
"""

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from longscan._files import read_text
from longscan.tasks._store import load_array

# AEDAT 3.1 (docs.inivation.com, AEDAT File Formats), little endian. A packet begins with eventType, eventSource, eventSize,
# eventTSOffset, eventTSOverflow, eventCapacity, eventNumber and eventValid; a polarity event's data are valid (1 bit),
# polarity (1), y (15), x (15).
_PACKET = struct.Struct("<hh6i")
_POLARITY = 1
_EVENT = np.dtype([("data", "<u4"), ("time", "<i4")])
_COLUMNS = "class,startTime_usec,endTime_usec"


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


class Span(NamedTuple):
    """A gesture in a recording: its class, 0 .. 10, from start to before end in microseconds, and the line that says so."""

    target: int
    start: int
    end: int
    line: str


def read_spans(path: Path) -> list[Span]:
    """The labels of a recording of DVS-Gesture: lines of class, 1 .. 11, start and end in microseconds, under their names."""
    lines = read_text(path).splitlines() or [""]
    if lines[0].replace(" ", "") != _COLUMNS:
        raise ValueError(f"{path}: begins with {lines[0][:60]!r}, needed the columns {_COLUMNS}")
    spans = []
    for number, text in enumerate(lines[1:], 2):
        words = [word.strip() for word in text.split(",")]
        if words == [""]:
            continue
        if len(words) != 3 or not all(word.isdecimal() and len(word) < 19 for word in words):
            raise ValueError(f"{path}:{number}: three whole numbers are needed, {_COLUMNS}, not {text[:60]!r}")
        label, start, end = map(int, words)
        if not 1 <= label <= 11 or start >= end:
            raise ValueError(f"{path}:{number}: a class of 1 .. 11 and a start before its end are needed, not {text[:60]!r}")
        spans.append(Span(label - 1, start, end, f"{path.name}:{number}"))
    if not spans:
        raise ValueError(f"{path}: labels nothing")
    return spans


def read_trials(path: Path) -> list[str]:
    """The names of the recordings in trials_to_train.txt or trials_to_test.txt of DVS-Gesture, a line each."""
    names = [line.strip() for line in read_text(path).splitlines() if line.strip()]
    for name in names:
        if not name.endswith(".aedat") or "/" in name or "\\" in name or "\0" in name:
            raise ValueError(f"{path}: lists {name[:60]!r}, needed a recording such as user01_led.aedat")
        if names.count(name) > 1:
            raise ValueError(f"{path}: lists {name[:60]} twice")
    if not names:
        raise ValueError(f"{path}: lists no recording")
    return names


def read_gestures(path: Path, spans: Sequence[Span], size: tuple[int, int] = (128, 128)) -> list[Stream]:
    """The events of each span of an AEDAT 3.1 recording, their times since the span's start.

    ValueError where the file is damaged, or a span lies outside the recording or is without events.
    """
    times, data = _recorded(path)
    places = np.searchsorted(times, [(span.start, span.end) for span in spans])
    streams = []
    for span, (first, last) in zip(spans, places.tolist(), strict=True):
        if span.end <= times[0] or span.start > times[-1]:
            stretch = f"{times[0]} .. {times[-1]} microseconds"
            raise ValueError(f"{path}: has events of {stretch}, {span.line} speaks of {span.start} .. {span.end}")
        streams.append(checked(_decoded(times[first:last] - span.start, data[first:last]), size, f"{path}: {span.line}"))
    return streams


def read_recording(path: Path, size: tuple[int, int] = (128, 128)) -> Stream:
    """All events of an AEDAT 3.1 recording, their times since the first of them."""
    times, data = _recorded(path)
    return checked(_decoded(times - times[0], data), size, path)


def _decoded(times: np.ndarray, data: np.ndarray) -> Stream:
    return Stream(times, *((data >> shift & most).astype(np.int64) for shift, most in ((17, 0x7FFF), (2, 0x7FFF), (1, 1))))


def _recorded(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Times (n,) int64 in microseconds, in order, and data (n,) uint32 of the polarity events of an AEDAT 3.1 file."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path}: can not be read: {error.strerror}") from None
    place = _end_of_header(content, path)
    times, data = [], []
    while place < len(content):
        where, start = f"{path}: packet at byte {place}", place + _PACKET.size
        if start > len(content):
            raise ValueError(f"{where}: is cut off, its header has {_PACKET.size} bytes and {len(content) - place} follow")
        kind, _, length, offset, overflow, _, number, valid = _PACKET.unpack_from(content, place)
        if min(kind, overflow, number) < 0 or length < 1:
            found = f"type {kind}, {number} events of {length} bytes, {overflow} overflows of their times"
            raise ValueError(f"{where}: its header is none of AEDAT 3.1: {found}")
        if kind == _POLARITY and (length, offset) != (_EVENT.itemsize, 4):
            raise ValueError(f"{where}: its events have {length} bytes, the time at byte {offset}; 8 and 4 are needed")
        place = start + number * length
        if place > len(content):
            raise ValueError(f"{where}: is cut off, {number} events of {length} bytes are due and {len(content) - start} follow")
        if kind != _POLARITY or not number:
            continue
        events = np.frombuffer(content, _EVENT, number, start)
        if valid < number:  # only then: IBM's description of its files has no meaning for the bit
            events = events[events["data"] & 1 == 1]
        if len(events) and events["time"].min() < 0:
            raise ValueError(f"{where}: has an event at time {events['time'].min()}, 0 .. {2**31 - 1} is possible")
        times.append(events["time"].astype(np.int64) + (overflow << 31))
        data.append(events["data"])
    if not sum(map(len, times)):
        raise ValueError(f"{path}: holds no polarity events")
    joined = np.concatenate(times), np.concatenate(data)
    order = np.argsort(joined[0], kind="stable")
    return joined[0][order], joined[1][order]


def _end_of_header(content: bytes, path: Path) -> int:
    """Where the packets of an AEDAT 3.1 file begin."""
    if not content.startswith(b"#!AER-DAT3.1"):
        raise ValueError(f"{path}: begins with {content[:12]!r}, needed #!AER-DAT3.1")
    place = 0
    while content.startswith(b"#", place) and (end := content.find(b"\n", place) + 1):
        line, place = content[place:end].strip(), end
        if line.startswith(b"#Format:") and line.partition(b":")[2].strip() != b"RAW":
            raise ValueError(f"{path}: its header says {line[:40]!r}, needed the format RAW")
        if line == b"#!END-HEADER":
            return place
    raise ValueError(f"{path}: its header is without the line #!END-HEADER")


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
