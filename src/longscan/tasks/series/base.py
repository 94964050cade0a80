"""The settings and the data of tasks on series in a user's own file or folder: `longscan train mine.csv --label worn`."""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np
import torch

from longscan._errors import count_text, cut, setting_error
from longscan._float32 import FLOAT32_MAX
from longscan._types import Doc, NonEmptyStr, Rule
from longscan.tasks._store import visible_paths
from longscan.tasks.base import Batch, Split, SplitSeed, Task
from longscan.tasks.series.clock import has_offsets, uneven_steps
from longscan.tasks.series.files import Dialect
from longscan.tasks.series.reading import Order, ReadOptions, SeriesStore, TableLayout, iterate_pieces, read_series
from longscan.tasks.timeseries.files import Missing
from longscan.tasks.timeseries.protocols import CONSTANT

FileState = str  # 32 hexadecimal digits
Uneven = Literal["refuse", "elapsed", "ignore"]
PART = Rule(lambda part: 0 < part < 0.5, "a number above 0 and below 0.5")
WITH_TIMES = "times-"  # prefix of checksums that depend on the times of the steps; those of earlier versions do not
SHOWN = 12  # largest number of channels or classes in a summary
TREATMENTS = "`missing='fill'` interpolates them, `missing='mask'` marks them"
DECIMALS: tuple[str, ...] = (".", ",")


class ChannelStatistics(NamedTuple):
    """Mean and standard deviation of each channel over the training series, and the number of missing values in all series.

    mean, scale: (C,) float64; the scale of a constant channel is 1. missing: (C,). constant: names of constant channels.
    """

    mean: np.ndarray
    scale: np.ndarray
    missing: np.ndarray
    constant: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class SeriesFile(Task):
    """A task on the series of a user's file or folder. Subclasses define what is asked."""

    splits: ClassVar[tuple[Split, ...]] = ("train", "valid", "test")
    source: ClassVar[str] = "your own file"
    vocab_size: ClassVar[None] = None
    path: Annotated[
        str | None,
        Doc("your file (.csv, .tsv, .parquet, .npz, .ts, .arff; text also .gz), or a folder with a table for each series"),
    ] = None
    id: Annotated[
        NonEmptyStr | None, Doc("column that names the series of a row; None: unique_id, series_id, case_id or id, if present")
    ] = None
    time: Annotated[
        NonEmptyStr | None, Doc("column of time stamps; None: ds, time, date, datetime or timestamp, if there is one")
    ] = None
    channels: Annotated[tuple[str, ...] | None, Doc("columns of values; None: all columns that are nothing else")] = None
    layout: Annotated[
        TableLayout,
        Doc(
            "long: a row is a step; wide: a row is a series; auto: by the columns. Of arrays: nlc, (series, steps, channels), or "
            "ncl, (series, channels, steps)"
        ),
    ] = "auto"
    separator: Annotated[NonEmptyStr, Doc("character between the columns of a text file; comma, tab for .tsv")] = ","
    decimal: Annotated[Annotated[str, Rule(DECIMALS.__contains__, "'.' or ','")], Doc("decimal mark of a text file")] = "."
    time_format: Annotated[
        NonEmptyStr | None, Doc("form of the dates, such as %d/%m/%Y %H:%M, or numbers; None: found from all rows")
    ] = None
    order: Annotated[Order, Doc("rows that are not in the order of time: an error, or sorted")] = "refuse"
    missing: Annotated[
        Missing,
        Doc(
            "missing values ('?', 'NaN', nothing): an error, linear interpolation over the steps (with uneven elapsed over the "
            "times), or the channel's mean and a mask as channels"
        ),
    ] = "refuse"
    split_seed: SplitSeed = 0
    checksum: Annotated[
        NonEmptyStr | None, Doc("of the series in the file; `longscan train FILE` stores it, and other series are then an error")
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_names("channels", self.channels)

    @staticmethod
    def _check_names(setting: str, names: tuple[str, ...] | None) -> None:
        """Raise SettingError if a setting has a name twice."""
        if names is not None and len(set(names)) < len(names):
            raise setting_error(setting, names, "different names")

    def summary(self) -> list[tuple[str, str]]:
        """Return how the file was read, as pairs of a name and a text."""
        raise NotImplementedError

    def error_in_units(self, value: float) -> tuple[str, float] | None:  # noqa: ARG002
        """Return a value of the main metric in the units of the file, after its name; None if it has none."""
        return None

    def _common_summary(self, store: SeriesStore, statistics: ChannelStatistics) -> list[tuple[str, str]]:
        """Return the part of a summary about series, channels, lengths and missing values."""
        lengths = store.lengths
        short, long, median = int(lengths.min()), int(lengths.max()), int(np.median(lengths))
        named = "their files" if Path(str(self.path)).is_dir() else self.id or "the column of ids"
        names = ", ".join(store.channels[:SHOWN]) + (", ..." if len(store.channels) > SHOWN else "")
        missing = [
            f"{count:,} in {name}" for name, count in zip(store.channels, statistics.missing.tolist(), strict=True) if count
        ]
        treatment = {"fill": "filled", "mask": "marked by further channels", "refuse": ""}[self.missing]
        rows = [
            ("series", f"{len(store.ids):,}" + (f", named by {named}" if store.has_ids else "")),
            ("channels", f"{len(store.channels)}: {names}"),
            ("lengths", f"{short:,} steps" if short == long else f"{short:,} to {long:,} steps, median {median:,}"),
            ("missing", f"{', '.join(missing)}, {treatment}" if missing else "none"),
        ]
        if store.unread:
            rows.append(("not read", cut(f"the arrays {', '.join(store.unread)}")))
        if statistics.constant:
            rows.append(("constant", f"{', '.join(statistics.constant)}: without information, not scaled"))
        return rows

    @property
    def _sources(self) -> list[Path]:
        """The files and folders that are read."""
        return [] if self.path is None else [Path(self.path)]

    @cached_property
    def _file_state(self) -> FileState:
        """Digits that depend on path, size and time of change of each file when the task is first used.

        They are a part of the key of caches in memory, so that a new task reads a file that has changed, while a task that is in
        use keeps its data. They are one text, because Python stores the hash of a text, but computes that of a tuple, here of
        thousands of files, at each access to a cache.
        """
        files = [file for source in self._sources for file in (visible_paths(source) if source.is_dir() else [source])]
        status = [(str(file), file.stat()) for file in files if file.is_file()]
        found = [(name, one.st_size, one.st_mtime_ns) for name, one in status]
        return hashlib.blake2b(repr(found).encode(), digest_size=16).hexdigest()

    def read_options(self) -> ReadOptions:
        """Return how the file is read."""
        return self._options()

    def _options(self, *, label: str | None = None, labels: str | None = None, group: str | None = None) -> ReadOptions:
        """Return how the file is read."""
        is_tsv = self.separator == "," and self.path is not None and ".tsv" in Path(self.path).name.lower()
        dialect = Dialect("\t" if is_tsv else self.separator, self.decimal)
        return ReadOptions(
            self.layout, self.id, self.time, self.time_format, self.channels, label, labels, group, dialect, self.order
        )

    def read_store(self) -> SeriesStore:
        """Read the file of the setting `path`. Raises FileNotFoundError without one, SettingError if its checksum is another."""
        if self.path is None:
            raise FileNotFoundError("`path` must be your file or folder, as in `longscan train mine.csv --label NAME`, got None")
        store = read_series(self.path, self.read_options())
        found = None if self.checksum is None else checksum_of(store, with_times=self.checksum.startswith(WITH_TIMES))
        if found != self.checksum:
            raise setting_error(
                "checksum", self.checksum, f"that of the series in {self.path}, {found}: the file has changed since the run "
                "began, or is read in another way"
            )  # fmt: skip
        return store


def checksum_of(store: SeriesStore, with_times: bool = True) -> str:
    """Return a checksum of the values, times, lengths, labels and groups of all series: WITH_TIMES and 16 hexadecimal digits.

    with_times: False for the checksum of earlier versions, digits alone, which does not depend on the times. Runs of these
    versions have stored it, so it is compared for them.
    """
    digest = hashlib.blake2b(digest_size=8)
    columns = [store.values]
    if with_times:
        digest.update(b"none" if store.stamps is None else store.stamps.dtype.str.encode())
        columns += [] if store.stamps is None else [store.stamps]
    for column in columns:
        for first in range(0, len(column), 1_000_000):
            digest.update(np.ascontiguousarray(column[first : first + 1_000_000]).tobytes())
    for part in (store.offsets, store.labels, store.groups):
        digest.update(repr(None if part is None else part.tolist()).encode())
    return WITH_TIMES + digest.hexdigest() if with_times else digest.hexdigest()


def fit_statistics(store: SeriesStore, ranges: np.ndarray, source: str | Path) -> ChannelStatistics:
    """Return the statistics of the channels over the steps `ranges`, (n, 2).

    Raises ValueError for a channel without values there.
    """
    missing = np.zeros(store.values.shape[1], np.int64)
    for first in range(0, len(store.values), 1_000_000):
        missing += np.isnan(store.values[first : first + 1_000_000]).sum(0)
    count = np.zeros(len(missing))
    total = np.zeros(len(missing))
    for piece in iterate_pieces(store, ranges):
        present = ~np.isnan(piece)
        count += present.sum(0)
        total += np.where(present, piece, 0).sum(0)
    if not count.all():
        name = store.channels[int((count == 0).argmax())]
        raise ValueError(f"{source} must have values of {name!r} in the training series, got none")
    mean = total / count
    squares = np.zeros(len(missing))
    for piece in iterate_pieces(store, ranges):
        squares += np.where(np.isnan(piece), 0, piece - mean).__pow__(2).sum(0)
    std = np.sqrt(squares / count)
    is_constant = std <= CONSTANT * np.abs(mean)
    names = tuple(name for name, flag in zip(store.channels, is_constant, strict=True) if flag)
    return ChannelStatistics(mean, np.where(is_constant, 1.0, std), missing, names)


def check_times(store: SeriesStore, known: SeriesStore, source: str | Path, *, with_offsets: bool = False) -> None:
    """Raise ValueError if series have other times than those of training, `known`: none, numbers or dates.

    with_offsets: whether dates with offsets, which are read in UTC, are another kind than dates without, whose zone is unknown.
    """

    def kind(one: SeriesStore) -> str:
        if one.stamps is None:
            return "no times"
        offsets = "" if not with_offsets else " with offsets to UTC" if has_offsets(one.form) else " without offsets to UTC"
        return f"dates{offsets}" if one.is_dated else "numbers as times"

    if kind(store) != kind(known):
        raise ValueError(f"{source} must have {kind(known)}, as the training series, got {kind(store)}")


def check_missing(store: SeriesStore, missing: Missing, source: str | Path, treatments: str = TREATMENTS) -> None:
    """Raise ValueError for missing values that the setting does not allow, with their number and the position of the first.

    treatments: what the other values of the setting do, for the error.
    """
    if missing == "mask":
        return
    counts, first = np.zeros(len(store.channels), np.int64), None
    for start in range(0, len(store.values), 1_000_000):
        gaps = np.isnan(store.values[start : start + 1_000_000])
        counts += gaps.sum(0)
        if first is None and gaps.any():
            row, channel = np.argwhere(gaps)[0]
            first = start + int(row), int(channel)
    if first is None:
        return
    series = int(np.searchsorted(store.offsets, first[0], "right")) - 1
    where = f"step {first[0] - store.offsets[series] + 1} of series {str(store.ids[series])!r}, {store.channels[first[1]]}"
    if missing == "refuse":
        empty = [name for name, count in zip(store.channels, counts, strict=True) if count == len(store.values)]
        hint = f"; no row has a value of {', '.join(empty)}, which `channels` can leave out" if empty else ""
        raise ValueError(f"{source} has {count_text(counts.sum(), 'missing value')}, the first in {where}; {treatments}{hint}")
    for row in range(len(store.ids)):
        has_none = np.isnan(store.series(row)).all(0)
        if has_none.any():
            raise ValueError(
                f"{source}: series {str(store.ids[row])!r} must have a value of {store.channels[int(has_none.argmax())]}, from "
                "which missing ones are interpolated, got none; `missing='mask'` marks them"
            )


def check_steps(store: SeriesStore, unit: float, source: str | Path, *, is_new: bool = False) -> None:
    """Raise SettingError if the time between the steps differs from `unit`, the usual step.

    is_new: whether the file is one for a trained model, so that the setting cannot be changed any more, and `unit` is that of the
    training series; the error is a ValueError then.
    """
    if store.stamps is None:
        return
    odd = uneven_steps(np.asarray(store.stamps), np.asarray(store.offsets), unit)
    if not len(odd):
        return
    row = int(odd[0])
    series = int(np.searchsorted(store.offsets, row, "right")) - 1
    found, usual = (
        format_step(step, is_dated=store.is_dated) for step in (float(store.stamps[row + 1] - store.stamps[row]), unit)
    )
    differ = f"{count_text(len(odd), 'step')} of {source} {'differs' if len(odd) == 1 else 'differ'} from {usual}"
    if is_new:
        accepted = "models trained with --task.uneven elapsed or ignore accept it"
        raise ValueError(
            f"{source} must have {usual} between steps, as the training series, got {count_text(len(odd), 'step')} of another "
            f"length, the first, {found}, in series {str(store.ids[series])!r}; {accepted}"
        )
    raise setting_error(
        "uneven", "refuse", f"elapsed (the layers get the time between steps) or ignore (steps count), as {differ}, the first, "
        f"{found}, in series {str(store.ids[series])!r}"
    )  # fmt: skip


def format_step(step: float, *, is_dated: bool) -> str:
    """Return the time between two steps as text: of dates in nanoseconds as a duration, of numbers as a number."""
    if not is_dated:
        return f"{step:g}"
    from datetime import timedelta

    return str(timedelta(microseconds=round(step / 1000)))


def fill_gaps(values: np.ndarray, times: np.ndarray | None = None) -> np.ndarray:
    """Return a series (L, C) with missing values interpolated in each channel; ends are constant, empty channels stay missing.

    times: (L,), over which values are interpolated; None for steps at equal distances.
    """
    if not np.isnan(values).any():
        return values
    filled = values.copy()
    times = np.arange(len(values)) if times is None else times - times[0]  # float64 does not have nanoseconds since 1970 exactly
    for channel in range(values.shape[1]):
        present = ~np.isnan(values[:, channel])
        if present.any():
            filled[:, channel] = np.interp(times, times[present], values[present, channel])
    return filled


def scaled_values(values: np.ndarray, mean: np.ndarray, scale: np.ndarray, source: str) -> np.ndarray:
    """Return standardised values (..., C) float32. Raises ValueError for a value beyond the range of float32."""
    scaled = (values - mean) / scale
    largest = np.nanmax(np.abs(scaled), initial=0)
    if largest > FLOAT32_MAX:
        raise ValueError(
            f"{source} must have values of at most {FLOAT32_MAX:.3g}, the largest of float32, in units of the training series' "
            f"standard deviation, got {largest:g}"
        )
    return scaled.astype(np.float32)


def build_inputs(
    store: SeriesStore, rows: np.ndarray, mean: np.ndarray, scale: np.ndarray, missing: Missing, unit: float | None
) -> Batch:
    """Return series as a batch without targets: inputs (B, L, C), valid (B, L) or None, elapsed (B, L) if there is a `unit`.

    mean, scale: (C,), of the standardisation. missing: see `SeriesFile`. unit: the time between steps that counts as 1; missing
    values are then interpolated over the times. None for steps that count as equal.
    """
    lengths = np.asarray(store.lengths)[rows]
    channels = len(mean)
    inputs = np.zeros((len(rows), int(lengths.max()), channels * (2 if missing == "mask" else 1)), np.float32)
    elapsed = np.ones(inputs.shape[:2], np.float32)
    for number, row in enumerate(rows.tolist()):
        stamps = None
        if unit is not None and store.stamps is not None:
            stamps = np.asarray(store.stamps[store.offsets[row] : store.offsets[row + 1]])
        values = fill_gaps(store.series(row), stamps) if missing == "fill" else store.series(row)
        scaled = scaled_values(values, mean, scale, f"series {str(store.ids[row])!r}")
        inputs[number, : len(values), :channels] = np.nan_to_num(scaled)
        if missing == "mask":
            inputs[number, : len(values), channels:] = ~np.isnan(values)
        if stamps is not None:
            elapsed[number, 1 : len(values)] = np.diff(stamps) / unit
    valid = np.arange(inputs.shape[1]) < lengths[:, None]
    return Batch(
        torch.from_numpy(inputs),
        valid=None if valid.all() else torch.from_numpy(valid),
        elapsed=None if unit is None else torch.from_numpy(elapsed),
    )
