"""Readers of series: the .ts and .arff files of the UEA archive with labels, .csv and .npy files without.

A header is advisory: if it contradicts the data, the data are used and one warning describes the contradiction, and a key without
a value is ignored; but a label that is not in its list of labels is an error. Damaged files raise ValueError with the file, the
line and the error.

Missing values ("?", "NaN", or nothing between commas) are counted, and `missing` selects their treatment:

    "refuse"  ValueError with their number and the position of the first. The default.
    "fill"    Linear interpolation within each channel of a series; before its first and after its last value a channel is
              constant. A log warning has the number of missing values. A channel without any value is an error.
    "mask"    They remain NaN, and the caller must pass a mask to the model. A log warning has the number of missing values.

These formats pad series of unequal lengths with steps that are missing in every channel. Such steps at the end of a series are
removed and not counted.
"""

import logging
import re
import warnings
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from longscan._errors import count_text
from longscan._files import read_bytes
from longscan._float32 import FLOAT32_MAX, MAX_EXACT_INTEGER, check_exact_integers
from longscan._types import checked_value
from longscan.tasks._store import load_array

Missing = Literal["refuse", "fill", "mask"]
Layout = Literal["nlc", "ncl"]
_MISSING = {"?", "nan", ""}
_log = logging.getLogger("longscan")
Header = dict[str, list[str]]


class Recordings(NamedTuple):
    """Series with their labels.

    series: (C, L_i) float64 each, NaN for missing values with missing="mask". labels: one for each series, None if the file has
    none or was read without them. classes: the labels that occur, in the order of the header, or sorted if it lists none; empty
    without labels. n_missing: number of missing values in the file.
    """

    series: list[np.ndarray]
    labels: list[str] | None
    classes: tuple[str, ...]
    n_missing: int = 0


def read_ts(path: str | Path, missing: Missing = "refuse", *, with_labels: bool = True) -> Recordings:
    """Read a .ts file: a header of @ lines, @data, then a line per series; ":" separates channels, "," values; the label is last.

    Series may differ in length, but not in the number of channels. missing: "refuse", "fill" or "mask", see this module's
    docstring. with_labels=False ignores labels. `@classLabel false` means that there are none. Raises ValueError for damaged
    files, labels that the header does not list, missing values, and `@timeStamps true`.
    """
    lines = _lines(path)
    header: Header = {}
    for text in _header_lines(path, lines):
        key, *values = text[1:].split()
        if values:
            header[key.lower()] = values
    if header.get("timestamps", ["false"])[0].lower() == "true":
        raise ValueError(f"{path} must contain series with equal steps, got time stamps (@timeStamps true)")
    stated = [header[key][0].lower() for key in ("classlabel", "targetlabel") if key in header]
    labelled = "true" in stated or not stated
    listed = header.get("classlabel", [])[1:] if with_labels else []
    series: list[np.ndarray] = []
    labels: list[str] = []
    for line, text in lines:
        channels = text.split(":")
        if labelled:
            labels.append(_parse_label(channels.pop(), path, line, listed))
        series.append(_parse_series(channels, series, path, line))
    return _build_recordings(path, header, series, labels if labelled and with_labels else None, missing)


def read_arff(path: str | Path, missing: Missing = "refuse", *, with_labels: bool = True) -> Recordings:
    r"""Read an .arff file with a line per series: one channel and the label, or several channels as 'channel\nchannel...',label.

    missing, with_labels and errors: as for `read_ts`.
    """
    header, series, labels = _read_arff_lines(path, with_labels=with_labels)
    return _build_recordings(path, header, series, labels if with_labels else None, missing)


def read_arff_dimensions(paths: Sequence[str | Path], missing: Missing = "refuse") -> Recordings:
    """Read several .arff files, each with one channel of the same series. Raises ValueError if series, steps or labels differ."""
    header, series, labels = _read_arff_lines(paths[0])
    for path in paths[1:]:
        _, more, more_labels = _read_arff_lines(path)
        if [part.shape[1] for part in more] != [part.shape[1] for part in series]:
            raise ValueError(f"{path} must have the number and the lengths of the series of {paths[0]}, got others")
        if more_labels != labels:
            raise ValueError(f"{path} must have the labels of {paths[0]}, got others")
        series = [np.concatenate(pair) for pair in zip(series, more, strict=True)]
    return _build_recordings(paths[0], header, series, labels, missing)


def read_csv(path: str | Path, missing: Missing = "refuse") -> Recordings:
    """Read one series without labels: a line per step, "," separates channels; a first line without numbers is a header.

    In a file of one channel an empty line between others is a missing value; in wider ones it is ignored. Raises ValueError for
    damaged content, and for a first line of numbers that are probably the names of the channels, such as 0,1,2.
    """
    numbered = list(_lines(path, with_empty=True))
    filled = [row for row, (_, text) in enumerate(numbered) if text]
    lines = numbered[filled[0] : filled[-1] + 1] if filled else []
    if lines and not any(_is_number(word) for word in lines[0][1].split(",")):
        lines = lines[1:]
    elif lines and _has_numbered_channels([text.split(",") for _, text in lines]):
        raise ValueError(
            f"{path}:{lines[0][0]}: the first line must be names or values, got {lines[0][1][:60]!r}, which can be both; a line "
            "of names before it makes it values, '#' in front of it makes it a comment"
        )
    if not lines:
        raise ValueError(f"{path} must contain numbers, got none")
    width = next(len(text.split(",")) for _, text in lines if text)
    rows = []
    for line, text in lines:
        if not text and width > 1:
            continue
        words = text.split(",")
        if len(words) != width:
            raise ValueError(f"{path}:{line}: the line must have {width} columns, like the first row, got {len(words)}")
        rows.append(_parse_numbers(words, path, line))
    series, count = _handle_missing(path, [np.array(rows).T], missing)
    return Recordings(series, None, (), count)


def read_npy(path: str | Path, missing: Missing = "refuse", *, layout: Layout | None = None) -> Recordings:
    """Read one or several series of finite numbers without labels.

    layout: "nlc", (L, C) or (N, L, C), or "ncl", (C, L) or (N, C, L). None: "nlc", but ValueError for arrays that would then have
    more channels than steps, since their layout may be "ncl".
    """
    checked_value(layout, Layout | None, "layout")
    array = load_array(path)
    if array.ndim not in (2, 3) or array.dtype.kind not in "fiu" or not array.size:
        need = "numbers of shape (steps, channels) or (series, steps, channels)"
        raise ValueError(f"{path} must be {need}, got {array.dtype} of shape {array.shape}")
    if np.isinf(array).any():
        raise ValueError(f"{path} must contain finite values, got {np.isinf(array).sum()} infinite ones")
    several = array if array.ndim == 3 else array[None]
    if np.abs(several[~np.isnan(several)].astype(np.float64)).max(initial=0) > FLOAT32_MAX:
        raise ValueError(
            f"{path}: values must be at most {FLOAT32_MAX:.3g}, the largest of float32, got {np.nanmax(np.abs(several)):g}"
        )
    steps, channels = several.shape[1:]
    if layout is None and channels > steps:
        raise ValueError(
            f"`layout` must be 'nlc' or 'ncl' for an array with more channels than steps, got None: the shape {array.shape} of "
            f"{path} is {count_text(steps, 'step')} of {count_text(channels, 'channel')} by 'nlc', or "
            f"{count_text(channels, 'step')} of {count_text(steps, 'channel')} by 'ncl'"
        )
    channels_first = several if layout == "ncl" else several.transpose(0, 2, 1)
    if array.dtype.kind in "iu":
        check_exact_integers(channels_first, channels_first.astype(np.float64), str(path))
    series, count = _handle_missing(path, [np.ascontiguousarray(item, dtype=np.float64) for item in channels_first], missing)
    return Recordings(series, None, (), count)


def read_recordings(
    path: str | Path,
    missing: Missing = "refuse",
    *,
    layout: Layout | None = None,
    with_labels: bool = True,
) -> Recordings:
    """Read a .ts, .arff, .csv or .npy file by its suffix; ValueError for any other. layout: only for .npy, see `read_npy`."""
    ending = Path(path).suffix.lower()
    if ending == ".ts":
        return read_ts(path, missing, with_labels=with_labels)
    if ending == ".arff":
        return read_arff(path, missing, with_labels=with_labels)
    if ending == ".csv":
        return read_csv(path, missing)
    if ending == ".npy":
        return read_npy(path, missing, layout=layout)
    raise ValueError(f"{path}: its name must end in one of .ts, .arff, .csv, .npy")


def _lines(path: str | Path, *, with_empty: bool = False) -> Iterator[tuple[int, str]]:
    """Yield the numbered lines except comments and, unless `with_empty`, empty ones; only these must be UTF-8 text."""
    content = read_bytes(path).removeprefix(b"\xef\xbb\xbf")
    if b"\0" in content:
        raise ValueError(f"{path} must be UTF-8 text, got zero bytes")
    for line, raw in enumerate(content.splitlines(), 1):
        stripped = raw.strip()
        if stripped.startswith((b"#", b"%")) or not (stripped or with_empty):
            continue
        try:
            yield line, stripped.decode()
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}:{line}: the line must be UTF-8 text, got the byte 0x{stripped[error.start]:02x}") from None


def _header_lines(path: str | Path, lines: Iterator[tuple[int, str]]) -> Iterator[str]:
    """Yield the lines of the header up to @data."""
    for line, text in lines:
        if text.lower() == "@data":
            return
        if not text.startswith("@") or len(text) == 1:
            raise ValueError(f"{path}:{line}: a line before @data must start with '@' and a key, not with {text[:20]!r}")
        yield text
    raise ValueError(f"{path} must have a line @data, got none")


def _read_arff_lines(path: str | Path, *, with_labels: bool = True) -> tuple[Header, list[np.ndarray], list[str]]:
    lines = _lines(path)
    header: Header = {}
    relational = False
    for text in _header_lines(path, lines):
        relational = relational or re.match(r"@attribute\s.*\srelational$", text, re.IGNORECASE) is not None
        nominal = re.match(r"@attribute\s.*\{(.*)\}$", text, re.IGNORECASE)
        if nominal is not None:
            header["classlabel"] = ["true", *(word.strip(" '\"") for word in nominal[1].split(","))]
    listed = header.get("classlabel", [])[1:] if with_labels else []
    series: list[np.ndarray] = []
    labels: list[str] = []
    for line, text in lines:
        if relational:
            match = re.fullmatch(r"(['\"])(.*)\1\s*,(.*)", text)
            if match is None:
                raise ValueError(f"{path}:{line}: the line must be a series in quotes, a comma and a label, got {text[:60]!r}")
            channels, label = match[2].split(r"\n"), match[3]
        else:
            channel, _, label = text.rpartition(",")
            channels = [channel]
        labels.append(_parse_label(label, path, line, listed))
        series.append(_parse_series(channels, series, path, line))
    return header, series, labels


def _parse_label(text: str, path: str | Path, line: int, listed: Sequence[str]) -> str:
    """Return the label of a line. Raises ValueError if there is none, or if the header lists labels without it."""
    label = text.strip().strip("'\"")
    if not label or "," in label:
        raise ValueError(f"{path}:{line}: the line must end with a class label, got {label[-40:]!r}")
    if listed and label not in listed:
        shown = ", ".join(listed[:8]) + (", ..." if len(listed) > 8 else "")
        raise ValueError(f"{path}:{line}: the label must be one that the header lists ({shown[:120]}), got {label[:40]!r}")
    return label


def _parse_series(channels: list[str], previous: list[np.ndarray], path: str | Path, line: int) -> np.ndarray:
    """Return the series (C, L) of a line.

    Raises ValueError if its number of channels differs from that of the previous series.
    """
    if not channels:
        raise ValueError(f"{path}:{line}: the line must have a channel before its label, got none")
    rows = [_parse_numbers(channel.split(","), path, line) for channel in channels]
    if previous and len(rows) != len(previous[0]):
        raise ValueError(f"{path}:{line}: the line must have {len(previous[0])} channels, like the first series, got {len(rows)}")
    for number, row in enumerate(rows[1:], 2):
        if len(row) != len(rows[0]):
            raise ValueError(f"{path}:{line}: channel {number} must have {len(rows[0])} values, like channel 1, got {len(row)}")
    return np.array(rows).reshape(len(rows), -1)


def _parse_number(word: str) -> float | None:
    """Return a word as a number, NaN for a missing value, None if it is neither or beyond the range of float32."""
    word = word.strip()
    if word.lower() in _MISSING:
        return np.nan
    try:
        number = float(word)
    except ValueError:
        return None
    return number if abs(number) <= FLOAT32_MAX and "_" not in word else None  # 1_1 is a number for Python alone


def _is_number(word: str) -> bool:
    """Return whether a word is a number, also an infinite or a missing one, or one beyond the range of float32."""
    try:
        float(word)
    except ValueError:
        return word.strip().lower() in _MISSING
    return True


def _has_numbered_channels(rows: list[list[str]]) -> bool:
    """Return whether the words of the first row seem to be names of channels.

    They are whole numbers with equal steps, such as 0,1,2 or 2001,2002 or a single 0, and all other rows have fractions. Two and
    more numbers from 0 on are names in any case, as pandas writes them.
    """
    words = [word.strip() for word in rows[0]]
    if len(rows) == 1 or not all(word.isdecimal() for word in words):
        return False
    numbers = [int(word) for word in words]
    steps = {after - before for before, after in pairwise(numbers)}
    if len(numbers) > 1 and numbers[0] == 0 and steps == {1}:
        return True
    others = ([word.strip() for word in row if word.strip().lower() not in _MISSING] for row in rows[1:])
    if any(row and all(word.isdecimal() for word in row) for row in others):
        return False
    return numbers == [0] or steps == {1} or (len(numbers) > 2 and len(steps) == 1 and min(steps) > 0)


def _is_too_large(word: str) -> bool:
    """Return whether a word is a number in the range of float64 but not of float32."""
    try:
        return FLOAT32_MAX < abs(float(word)) < np.inf
    except ValueError:
        return False


def _parse_numbers(words: list[str], path: str | Path, line: int) -> list[float]:
    try:
        numbers = [float(word) for word in words]
    except ValueError:
        numbers = [np.inf]
    if (np.abs(numbers) < MAX_EXACT_INTEGER).all() and not any("_" in word for word in words):
        return numbers
    checked = [_parse_number(word) for word in words]
    if None in checked:
        word = words[checked.index(None)].strip()
        if _is_too_large(word):
            raise ValueError(
                f"{path}:{line}: values must be at most {FLOAT32_MAX:.3g}, the largest of float32, got {word[:40]!r}"
            )
        raise ValueError(f"{path}:{line}: values must be finite numbers, got {word[:40]!r}")
    found = [np.nan if number is None else number for number in checked]
    check_exact_integers(words, np.array(found), f"{path}:{line}: the line")
    return found


def _build_recordings(
    path: str | Path, header: Header, series: list[np.ndarray], labels: list[str] | None, missing: Missing
) -> Recordings:
    """Remove missing steps at the ends of series, treat other missing values, and warn if the header contradicts the data."""
    if not series:
        raise ValueError(f"{path} must contain series after @data, got none")
    trimmed = []
    for number, case in enumerate(series, 1):
        present = np.flatnonzero(~np.isnan(case).all(0))
        if not len(present):
            raise ValueError(f"{path}: series {number} must have values, got none")
        trimmed.append(case[:, : present[-1] + 1])
    found = set(labels or ())
    stated = [] if labels is None else header.get("classlabel", [])[1:]
    if unknown := next((label for label in labels or () if label.lower() in _MISSING and label not in stated), None):
        number = (labels or []).index(unknown) + 1
        raise ValueError(f"{path}: series {number} must have a class label, got {unknown!r}, which is a missing value")
    classes = tuple(dict.fromkeys(label for label in stated if label in found)) if stated else tuple(sorted(found))
    resolved, count = _handle_missing(path, trimmed, missing)
    mismatches = _header_mismatches(header, series)
    if mismatches:
        text = f"{path}: its header does not fit its data, which are used: {'; '.join(mismatches)}"
        warnings.warn(text, UserWarning, stacklevel=3)
    return Recordings(resolved, labels, classes, count)


def _handle_missing(path: str | Path, series: list[np.ndarray], missing: Missing) -> tuple[list[np.ndarray], int]:
    """Return the series (C, L_i) after the treatment of missing values, and the number of these."""
    checked_value(missing, Missing, "missing")
    gaps = [np.isnan(item) for item in series]
    lacking = [row for row, gap in enumerate(gaps) if gap.any()]
    if not lacking:
        return series, 0
    count, first = sum(int(gap.sum()) for gap in gaps), lacking[0]
    step, channel = np.argwhere(gaps[first].T)[0]
    counts = f"{count_text(count, 'missing value')} ('?', 'NaN' or nothing) in {len(lacking)} of its {len(series)} series"
    if missing == "refuse":
        raise ValueError(
            f"{path} has {counts}, the first in series {first + 1}, channel {channel + 1}, step {step + 1}; missing='fill' "
            "interpolates them, missing='mask' marks them"
        )
    if missing == "mask":
        _log.warning("%s: %s are marked as missing", path, counts)
        return series, count
    filled = list(series)
    for row in lacking:
        filled[row] = _interpolate_channels(path, row + 1, series[row])
    _log.warning("%s: %s were filled by linear interpolation within their series", path, counts)
    return filled, count


def _interpolate_channels(path: str | Path, number: int, series: np.ndarray) -> np.ndarray:
    """Return a series (C, L) with linear interpolation of missing values; the first and last values extend to the ends."""
    filled, steps = series.copy(), np.arange(series.shape[1])
    for channel, values in enumerate(series):
        present = ~np.isnan(values)
        if not present.any():
            raise ValueError(
                f"{path}: series {number} must have a value in channel {channel + 1}, from which missing ones are interpolated, "
                "got none; missing='mask' marks them"
            )
        filled[channel] = np.interp(steps, steps[present], values[present])
    return filled


def _header_mismatches(header: Header, series: list[np.ndarray]) -> list[str]:
    """Return descriptions of the entries of a header that contradict the data."""
    lengths = {case.shape[1] for case in series}
    shortest, longest = min(lengths), max(lengths)
    steps = str(longest) if shortest == longest else f"{shortest} to {longest}"
    actual = {
        "dimensions": {str(len(series[0]))},
        "univariate": {str(len(series[0]) == 1).lower()},
        "equallength": {"true", "false"} if shortest == longest else {"false"},
        "serieslength": {str(longest)},
        "missing": {"true"} if any(np.isnan(case).any() for case in series) else {"false", "true"},
    }
    texts = {**{key: min(values) for key, values in actual.items()}, "serieslength": steps}
    mismatches = []
    for key, values in actual.items():
        claimed = header.get(key, [""])[0].lower()
        if claimed and claimed not in values:
            mismatches.append(f"{key} is {texts[key]}, not {claimed}")
    return mismatches
