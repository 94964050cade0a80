"""Readers of event files: N-MNIST's 40-bit events, HDF5 of SHD and SSC, DVS-Gesture as tonic's arrays and as IBM's recordings.

No code in a file is run. Damaged files raise ValueError naming the file and the error.
"""

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from longscan._files import read_bytes, read_text
from longscan.tasks._store import load_array

# AEDAT 3.1 (docs.inivation.com, AEDAT File Formats), little endian. A packet begins with eventType, eventSource, eventSize,
# eventTSOffset, eventTSOverflow, eventCapacity, eventNumber and eventValid; a polarity event's data are valid (1 bit),
# polarity (1), y (15), x (15).
_PACKET = struct.Struct("<hh6i")
_POLARITY = 1
_GESTURE_SIZE, _SPIKE_SIZE = (128, 128), (700, 1)  # columns and rows of the sensors
_EVENT = np.dtype([("data", "<u4"), ("time", "<i4")])
_COLUMNS = "class,startTime_usec,endTime_usec"


class Stream(NamedTuple):
    """Events in the order of their times: t (n,) int64 in microseconds; x, y (n,) int64 pixels; p (n,) int64, 0 or 1."""

    t: np.ndarray
    x: np.ndarray
    y: np.ndarray
    p: np.ndarray

    def select(self, rows: np.ndarray) -> "Stream":
        """Return the events with the given numbers."""
        return Stream(*(part[rows] for part in self))


def validate_and_sort(stream: Stream, size: tuple[int, int], path: Path | str) -> Stream:
    """Return a stream in the order of time.

    Raises ValueError if it is empty or an event lies outside the sensor or before time 0.
    """
    if not len(stream.t):
        raise ValueError(f"{path} must contain events, got none")
    for name, values, low, high in (
        ("x", stream.x, 0, size[0] - 1),
        ("y", stream.y, 0, size[1] - 1),
        ("polarity", stream.p, 0, 1),
        ("time", stream.t, 0, 2**31 - 1),
    ):
        wrong = np.flatnonzero((values < low) | (values > high))
        if len(wrong):
            raise ValueError(
                f"{path}: {name} of each event must be from {low} to {high}, got {values[wrong[0]]} in event {wrong[0]}"
            )
    return stream.select(np.argsort(stream.t, kind="stable"))


def read_nmnist(path: Path, size: tuple[int, int] = (34, 34)) -> Stream:
    """Read a .bin or .bs2 file of N-MNIST: five bytes per event, x, y, then one bit of polarity and 23 bits of microseconds."""
    raw = np.frombuffer(read_bytes(path), np.uint8)
    if len(raw) % 5:
        raise ValueError(f"{path} must have 5 bytes for each event, got {len(raw)} bytes; it is cut off or has another format")
    x, y, high, middle, low = raw.reshape(-1, 5).T.astype(np.int64)
    return validate_and_sort(Stream((high & 127) << 16 | middle << 8 | low, x, y, high >> 7), size, path)


def read_tonic_array(path: Path, size: tuple[int, int] = _GESTURE_SIZE) -> Stream:
    """Read a recording of DVS-Gesture as stored by tonic: an .npy array (n, 4) of x, y, polarity and milliseconds."""
    events = load_array(path)
    if events.ndim != 2 or events.shape[1] != 4 or events.dtype.kind not in "fiu":
        raise ValueError(
            f"{path} must be numbers of shape (events, 4): x, y, polarity, milliseconds; got {events.dtype} of shape "
            f"{events.shape}"
        )
    if not np.isfinite(events).all():
        row = np.flatnonzero(~np.isfinite(events).all(1))[0]
        raise ValueError(f"{path} must contain finite values, got {events[row].tolist()} in event {row}")
    for column, name in enumerate(("x", "y", "polarity")):
        fractional = np.flatnonzero(events[:, column] % 1)
        if len(fractional):
            row = fractional[0]
            raise ValueError(
                f"{path}: {name} of each event must be whole, got {events[row, column]:g} in event {row}; the columns are "
                "x, y, polarity, milliseconds"
            )
    x, y, p, time = np.clip(events.T.astype(np.float64), -1, 2.0**31)
    microseconds = np.rint(time * 1000.0)
    return validate_and_sort(Stream(*(part.astype(np.int64) for part in (microseconds, x, y, p))), size, path)


class LabelledSpan(NamedTuple):
    """A gesture in a recording: its class, 0 .. 10, the interval start <= t < end in microseconds, and the line of its label."""

    target: int
    start: int
    end: int
    line: str


def read_gesture_labels(path: Path) -> list[LabelledSpan]:
    """Read the labels of a recording of DVS-Gesture: a header, then lines of class, 1 .. 11, start and end in microseconds."""
    lines = read_text(path).splitlines() or [""]
    if lines[0].replace(" ", "") != _COLUMNS:
        raise ValueError(f"{path}: the first line must be {_COLUMNS}, got {lines[0][:60]!r}")
    spans = []
    for number, text in enumerate(lines[1:], 2):
        words = [word.strip() for word in text.split(",")]
        if words == [""]:
            continue
        if len(words) != 3 or not all(word.isdecimal() and len(word) < 19 for word in words):
            raise ValueError(f"{path}:{number}: the line must be three whole numbers, {_COLUMNS}, got {text[:60]!r}")
        label, start, end = map(int, words)
        if not 1 <= label <= 11 or start >= end:
            raise ValueError(f"{path}:{number}: the class must be from 1 to 11, and the start before the end, got {text[:60]!r}")
        spans.append(LabelledSpan(label - 1, start, end, f"{path.name}:{number}"))
    if not spans:
        raise ValueError(f"{path} must contain labels, got none")
    return spans


def read_recording_list(path: Path) -> list[str]:
    """Read the names of the recordings in trials_to_train.txt or trials_to_test.txt of DVS-Gesture, one per line."""
    names = [line.strip() for line in read_text(path).splitlines() if line.strip()]
    for name in names:
        if not name.endswith(".aedat") or "/" in name or "\\" in name or "\0" in name:
            raise ValueError(f"{path}: each line must be the name of a recording such as user01_led.aedat, got {name[:60]!r}")
        if names.count(name) > 1:
            raise ValueError(f"{path} must list each recording once, got {name[:60]} twice")
    if not names:
        raise ValueError(f"{path} must list recordings, got none")
    return names


def read_gestures(path: Path, spans: Sequence[LabelledSpan]) -> list[Stream]:
    """Return the events of each span of an AEDAT 3.1 recording, with times since the start of the span.

    Raises ValueError if the file is damaged, or if a span lies outside the recording or has no events.
    """
    times, data = _read_aedat_events(path)
    limits = np.searchsorted(times, [(span.start, span.end) for span in spans])
    streams = []
    for span, (first, last) in zip(spans, limits.tolist(), strict=True):
        if span.end <= times[0] or span.start > times[-1]:
            interval = f"from {times[0]} to {times[-1]} microseconds"
            raise ValueError(
                f"{path}: the span of {span.line} must overlap the events {interval}, got {span.start} to {span.end}"
            )
        events = _decode_events(times[first:last] - span.start, data[first:last])
        streams.append(validate_and_sort(events, _GESTURE_SIZE, f"{path}: {span.line}"))
    return streams


def read_aedat(path: Path, size: tuple[int, int] = _GESTURE_SIZE) -> Stream:
    """Read all events of an AEDAT 3.1 recording, with times since the first event."""
    times, data = _read_aedat_events(path)
    return validate_and_sort(_decode_events(times - times[0], data), size, path)


def _decode_events(times: np.ndarray, data: np.ndarray) -> Stream:
    return Stream(times, *((data >> shift & mask).astype(np.int64) for shift, mask in ((17, 0x7FFF), (2, 0x7FFF), (1, 1))))


def _read_aedat_events(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return sorted times (n,) int64 in microseconds and data (n,) uint32 of the polarity events of an AEDAT 3.1 file."""
    content = read_bytes(path)
    position = _find_header_end(content, path)
    times, data = [], []
    while position < len(content):
        where, start = f"{path}: the packet at byte {position}", position + _PACKET.size
        if start > len(content):
            raise ValueError(
                f"{where} must have a header of {_PACKET.size} bytes, got {len(content) - position} bytes; the file is cut off"
            )
        kind, _, length, offset, overflow, _, number, valid = _PACKET.unpack_from(content, position)
        if min(kind, overflow, number) < 0 or length < 1:
            found = f"type {kind}, {number} events of {length} bytes, {overflow} overflows of their times"
            raise ValueError(f"{where} must have a header of AEDAT 3.1, got {found}")
        if kind == _POLARITY and (length, offset) != (_EVENT.itemsize, 4):
            raise ValueError(f"{where} must have events of 8 bytes with the time at byte 4, got {length} bytes and byte {offset}")
        position = start + number * length
        if position > len(content):
            found = f"{len(content) - start} bytes; the file is cut off"
            raise ValueError(f"{where} must have {number} events of {length} bytes, got {found}")
        if kind != _POLARITY or not number:
            continue
        events = np.frombuffer(content, _EVENT, number, start)
        if valid < number:  # otherwise the bit is ignored: IBM's description of its files does not define it
            events = events[events["data"] & 1 == 1]
        if len(events) and events["time"].min() < 0:
            raise ValueError(f"{where} must have times from 0 to {2**31 - 1}, got {events['time'].min()}")
        times.append(events["time"].astype(np.int64) + (overflow << 31))
        data.append(events["data"])
    if not sum(map(len, times)):
        raise ValueError(f"{path} must contain polarity events, got none")
    all_times, all_data = np.concatenate(times), np.concatenate(data)
    order = np.argsort(all_times, kind="stable")
    return all_times[order], all_data[order]


def _find_header_end(content: bytes, path: Path) -> int:
    """Return the byte position of the first packet of an AEDAT 3.1 file."""
    if not content.startswith(b"#!AER-DAT3.1"):
        raise ValueError(f"{path} must begin with #!AER-DAT3.1, got {content[:12]!r}")
    position = 0
    while content.startswith(b"#", position) and (end := content.find(b"\n", position) + 1):
        line, position = content[position:end].strip(), end
        if line.startswith(b"#Format:") and line.partition(b":")[2].strip() != b"RAW":
            raise ValueError(f"{path} must have the format RAW, got the line {line[:40]!r} in its header")
        if line == b"#!END-HEADER":
            return position
    raise ValueError(f"{path} must have the line #!END-HEADER at the end of its header, got a header without it")


def read_spike_file(path: Path) -> tuple[list[Stream], np.ndarray, tuple[str, ...]]:
    """Read an HDF5 file of SHD or SSC; return streams of one row (x: unit, y and p: 0), labels (n,), and names of the labels."""
    import h5py

    try:
        with h5py.File(path, "r") as file:
            times, spikes, labels = file["spikes/times"][:], file["spikes/units"][:], np.asarray(file["labels"][:])
            keys = tuple(key.decode() if isinstance(key, bytes) else str(key) for key in file["extra/keys"][:])
    except (OSError, KeyError, RuntimeError, TypeError, ValueError, UnicodeDecodeError) as error:
        why = str(error).strip("'\"").splitlines()[0][:120] if str(error) else type(error).__name__
        needed = "spikes/times, spikes/units, labels and extra/keys"
        raise ValueError(f"{path} must be an HDF5 file with {needed}, got another or a damaged one ({why})") from None
    if not len(times) == len(spikes) == len(labels) > 0 or labels.dtype.kind not in "iu" or labels.ndim != 1:
        found = f"{len(times)} recordings of times, {len(spikes)} of units and labels of {labels.dtype} and shape {labels.shape}"
        raise ValueError(f"{path} must have times, units and an integer label for each recording, got {found}")
    if labels.min() < 0 or labels.max() >= len(keys):
        raise ValueError(
            f"{path}: each label must be from 0 to {len(keys) - 1}, as extra/keys names {len(keys)}, got {labels.min()} to "
            f"{labels.max()}"
        )
    streams = []
    for number, (time, unit) in enumerate(zip(map(np.asarray, times), map(np.asarray, spikes), strict=True)):
        if any(values.ndim != 1 or values.dtype.kind not in "fiu" for values in (time, unit)):
            found = f"{time.dtype} of shape {time.shape} and {unit.dtype} of shape {unit.shape}"
            raise ValueError(f"{path}: recording {number} must have a list of times and one of units, got {found}")
        if (unit % 1).any():
            raise ValueError(f"{path}: recording {number} must have whole numbers as units, got {unit[unit % 1 != 0][0]:g}")
        if len(time) != len(unit) or not np.isfinite(time).all():
            found = f"{len(time)} times and {len(unit)} units" if len(time) != len(unit) else "a time that is not finite"
            raise ValueError(f"{path}: recording {number} must have a finite time for each unit, got {found}")
        microseconds = np.rint(np.asarray(time, np.float64) * 1e6).astype(np.int64)
        zeros = np.zeros(len(microseconds), np.int64)
        stream = Stream(microseconds, np.asarray(unit, np.int64), zeros, zeros)
        streams.append(validate_and_sort(stream, _SPIKE_SIZE, f"{path}: recording {number}"))
    return streams, labels.astype(np.int64), keys


def read_sample_list(path: Path) -> list[tuple[str, int]]:
    """Read names of samples and their classes from a text file with two columns; lines that start with # are ignored."""
    rows = []
    for line, text in enumerate(read_text(path).splitlines(), 1):
        words = text.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) != 2 or not all(word.isdecimal() for word in words):
            raise ValueError(f"{path}:{line}: the line must be the number of a sample and its class, got {text[:40]!r}")
        rows.append((words[0], int(words[1])))
    if not rows:
        raise ValueError(f"{path} must list samples, got none")
    return rows
