"""Series in a user's files as arrays: long tables, wide tables, NPZ archives, folders with a file a series, .ts and .arff files.

A long table has a row for each step of each series: a column of ids, perhaps one of times, one of labels, and the channels. A
wide table has a row for each series, whose other columns are its steps. Nothing is guessed: where a file can be read in two ways,
the error names the settings that decide. Long tables are read in pieces and stored in memory-mapped arrays, so that the memory
does not grow with their text.
"""

import logging
import re
import tempfile
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple
from unicodedata import normalize

import numpy as np

from longscan._errors import SettingError, count_text, cut, quote, setting_error
from longscan._float32 import FLOAT32_MAX, MAX_EXACT_INTEGER, check_exact_integers
from longscan.tasks._store import Arrays, cached_arrays
from longscan.tasks.series.clock import (
    MAX_YEAR,
    MIN_YEAR,
    Clock,
    ClockReader,
    calendar_frequency,
    clock_change_hint,
    first_decrease,
    format_stamps,
    uneven_steps,
    usual_step,
)
from longscan.tasks.series.files import (
    MISSING_WORDS,
    PARQUET,
    SERIES,
    Dialect,
    check_column,
    column_names,
    find_files,
    list_columns,
    read_frames,
    read_npz,
    suffix_of,
    without_suffix,
)
from longscan.tasks.timeseries.files import read_arff, read_ts

_log = logging.getLogger("longscan")
TableLayout = Literal["auto", "long", "wide", "nlc", "ncl"]
Order = Literal["refuse", "sort"]
MIN_STEPS = 3  # smallest number of numbered columns that are taken for the steps of a wide table
PIECE_STEPS = 1_000_000  # largest number of steps that are read together
_WORDS_FOR_MISSING = ", ".join(filter(None, MISSING_WORDS))
_WHOLE = re.compile(r"\s*[+-]?\d+\s*")
_DATE = re.compile(r"\s*\d{1,4}([-/.])\d{1,2}\1\d{1,4}\b")  # 2024-03-01 or 1/3/2024, also before a time of day
_THOUSANDS = re.compile(r"\s*[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d*)?\s*")  # 1,000 or 1,234,567.8
_NUMBERED = re.compile(r"(.*?)[ _.\[(-]*(\d+)[\])]?")
# Column names by which tables of this shape call ids and times; a table with one of them needs no setting for it.
ID_NAMES = ("unique_id", "series_id", "case_id", "id")
TIME_NAMES = ("ds", "time", "date", "datetime", "timestamp")


class ReadOptions(NamedTuple):
    """How files are read: the roles of their columns and their form.

    The fields from `layout` to `group`, and `order`, are the settings of these names of `longscan.tasks.series.base.SeriesFile`
    and `longscan.tasks.series.labelled.LabelledSeries`.

    Attributes:
        channels: names of the channels, in their order; None for all columns without another role.
        dialect: column separator and decimal mark of text files.
        fixed: whether `channels` are those of a trained model. Then the columns of labels and groups may be absent, and further
            columns are errors unless `others` is True.
        others: whether further columns are ignored.
    """

    layout: TableLayout
    id: str | None
    time: str | None
    time_format: str | None
    channels: tuple[str, ...] | None
    label: str | None
    labels: str | None
    group: str | None
    dialect: Dialect
    order: Order
    fixed: bool = False
    others: bool = False


class SeriesStore(NamedTuple):
    """All N series of the files, in the order of their first rows, with T steps together and C channels.

    Attributes:
        values: (T, C) float64, NaN for missing values. Series i has the rows offsets[i]:offsets[i + 1].
        offsets: (N + 1,) int64.
        ids: (N,) text.
        labels, groups: (N,) text; None if the files have none.
        stamps: (T,), the time stamps, int64 nanoseconds or float64 numbers; None without a column of times.
        form: format of the time stamps.
        channels: names of the channels.
        layout: "long" or "wide" for tables, "array" for other files.
        has_ids: whether the ids are those of the file, and not numbers of rows.
        has_numbers: whether the format says that the labels are numbers (True) or classes (False); None if it does not say.
        unread: names of the arrays of an .npz file that are not read, and of the columns of labels and groups in new files for a
            trained model.
    """

    values: np.ndarray
    offsets: np.ndarray
    ids: np.ndarray
    labels: np.ndarray | None
    groups: np.ndarray | None
    stamps: np.ndarray | None
    form: str
    channels: tuple[str, ...]
    layout: str
    has_ids: bool
    has_numbers: bool | None
    unread: tuple[str, ...] = ()

    @property
    def lengths(self) -> np.ndarray:
        """Number of steps of each series, (N,)."""
        return np.diff(self.offsets)

    @property
    def is_dated(self) -> bool:
        """Whether the time stamps are dates."""
        return self.stamps is not None and self.form != "numbers"

    def series(self, row: int) -> np.ndarray:
        """Return the values of a series, (L, C) float64."""
        return np.asarray(self.values[self.offsets[row] : self.offsets[row + 1]])


def read_series(path: str | Path, options: ReadOptions) -> SeriesStore:
    """Read all series of a file or folder. Raises ValueError for damaged content, SettingError for settings that do not fit."""
    files = find_files(path)
    if options.labels is not None and Path(path).is_file():
        raise setting_error("labels", options.labels, f"left out, as {path} is no folder with a file for each series")
    sources = [*files, *([Path(options.labels)] if options.labels else [])]
    for source in sources:
        if not source.exists():
            raise setting_error("labels", options.labels, "a file that exists")

    def compute() -> Arrays:
        with tempfile.TemporaryDirectory(prefix="longscan-", ignore_cleanup_errors=True) as folder:  # maps outlive their files
            return _read(Path(path), files, options, Path(folder))

    arrays = cached_arrays("own_series", sources, (str(path), options), compute)
    text = {name: str(arrays[name][0]) for name in ("form", "layout", "has_ids", "has_numbers")}
    return SeriesStore(
        values=arrays["values"],
        offsets=arrays["offsets"],
        ids=arrays["ids"],
        labels=arrays.get("labels"),
        groups=arrays.get("groups"),
        stamps=arrays.get("stamps"),
        form=text["form"],
        channels=tuple(arrays["channels"].tolist()),
        layout=text["layout"],
        has_ids=text["has_ids"] == "True",
        has_numbers={"True": True, "False": False}.get(text["has_numbers"]),
        unread=tuple(arrays["unread"].tolist()),
    )


@dataclass
class _Parts:
    """The arrays of a `SeriesStore` while they are read."""

    values: np.ndarray
    offsets: np.ndarray
    ids: Sequence[str]
    channels: Sequence[str]
    labels: Sequence[str] | None = None
    groups: Sequence[str] | None = None
    clock: Clock | None = None
    layout: str = "long"
    has_ids: bool = True
    has_numbers: bool | None = None
    unread: Sequence[str] = ()

    def arrays(self) -> Arrays:
        """Return the arrays that are cached."""
        found = {"values": self.values, "offsets": self.offsets, "ids": _as_array(self.ids), "channels": _as_array(self.channels)}
        found["unread"] = _as_array(self.unread)
        for name, words in (("labels", self.labels), ("groups", self.groups)):
            if words is not None:
                found[name] = _as_array(words)
        if self.clock is not None:
            found["stamps"] = self.clock.stamps
        form = self.clock.form if self.clock else ""
        texts = {"form": form, "layout": self.layout, "has_ids": self.has_ids, "has_numbers": self.has_numbers}
        return found | {name: np.array([str(value)]) for name, value in texts.items()}


def _as_array(words: Sequence[str]) -> np.ndarray:
    return np.array([str(word) for word in words], dtype=np.str_)


def _read(path: Path, files: Sequence[Path], options: ReadOptions, folder: Path) -> Arrays:
    """Read the files and check what holds for every layout: at least one series, finite values."""
    suffix = suffix_of(files[0])
    if path.is_file() and suffix == ".npz":
        parts = _read_npz(path, options)
    elif path.is_file() and suffix in SERIES:
        parts = _read_series_file(path, options)
    else:
        parts = _read_tables(path, files, options, folder)
    if not len(parts.ids):
        raise ValueError(f"{path} must contain rows after the names of the columns, got none")
    for first in range(0, len(parts.values), PIECE_STEPS):
        piece = np.asarray(parts.values[first : first + PIECE_STEPS])
        wrong = np.argwhere(np.abs(piece) > FLOAT32_MAX)
        if len(wrong):
            row, channel = first + int(wrong[0][0]), int(wrong[0][1])
            series = int(np.searchsorted(parts.offsets, row, "right")) - 1
            raise ValueError(
                f"{path}: values must be finite and at most {FLOAT32_MAX:.3g}, got {parts.values[row, channel]:g} in step "
                f"{row - parts.offsets[series] + 1} of series {quote(parts.ids[series])}, {parts.channels[channel]}"
            )
    return parts.arrays()


class _Roles(NamedTuple):
    """What the columns of a table are."""

    layout: Literal["long", "wide"]
    id: str | None
    time: str | None
    label: str | None
    group: str | None
    channels: tuple[str, ...]  # for a wide table, the columns of its steps
    unread: tuple[str, ...]  # the columns of labels and groups of a table to predict


def _read_tables(path: Path, files: Sequence[Path], options: ReadOptions, folder: Path) -> _Parts:
    """Read one table, or the tables of a folder, each with the steps of one series."""
    is_folder = path.is_dir()
    if is_folder and options.labels is not None:
        files = [file for file in files if file.resolve() != Path(options.labels).resolve()]
    if is_folder:
        twice = _first_twice([_file_id(path, file) for file in files])
        if twice is not None:
            raise ValueError(f"{path}: the files must have different names without their endings, got {quote(twice)} twice")
    columns = column_names(files[0], options.dialect)
    roles = _find_roles(files[0], columns, options, is_folder=is_folder)
    for file in files[1:]:
        others = column_names(file, options.dialect)
        if set(others) != set(columns):
            differing = ", ".join(sorted(set(others) ^ set(columns)))[:80]
            raise ValueError(f"{file} must have the columns of {files[0]}, got others: {differing}")
    parts = _read_wide(files[0], roles, options) if roles.layout == "wide" else _read_long(path, files, roles, options, folder)
    parts.unread = roles.unread
    if is_folder and roles.label is None:
        _label_files(path, parts, options)
    return parts


def _find_roles(path: Path, columns: Sequence[str], options: ReadOptions, *, is_folder: bool) -> _Roles:
    """Return the role of each column. Raises SettingError for unknown columns and for roles that settings must decide."""
    named: dict[str, str | None] = {"id": options.id, "time": options.time, "label": options.label, "group": options.group}
    if is_folder:
        named["id"] = None
        named |= {name: None for name in ("label", "group") if options.labels is not None or named[name] not in columns}
    optional = ("label", "group") if options.fixed else ()
    for setting, name in named.items():
        if name is not None and not (setting in optional and name not in columns):
            check_column(setting, name, columns, path)
    named = {setting: name if name in columns else None for setting, name in named.items()}
    for setting, known in (("id", ID_NAMES), ("time", TIME_NAMES)):
        if named[setting] is None and not (is_folder and setting == "id"):
            taken = [*filter(None, named.values()), *(options.channels or ())]
            found = [name for name in columns if name.lower() in known and name not in taken]
            if len(found) > 1:
                raise setting_error(setting, None, f"one of the columns {', '.join(found)} of {path}")
            named[setting] = found[0] if found else None
    used = [name for name in named.values() if name is not None]
    for name in used:
        if used.count(name) > 1:
            first, second, *_ = (setting for setting, value in named.items() if value == name)
            raise SettingError(f"`{first}` must be another column than `{second}`, got {quote(name)} for both")
    rest = [name for name in columns if name not in used]
    ids = [name for name in rest if name.lower() in ID_NAMES] if is_folder and options.channels is None else []
    if ids:
        needed = f"the columns to read, as {ids[0]!r} of {path} names series, but a file of a folder is one series"
        raise setting_error("channels", None, needed)
    layout = _find_layout(path, columns, rest, named, options, is_folder=is_folder)
    channels = _find_channels(path, columns, rest, options) if layout == "long" else tuple(rest)
    if not options.fixed:
        return _Roles(layout, named["id"], named["time"], named["label"], named["group"], channels, ())
    unread = tuple(name for setting in optional if (name := named[setting]) is not None)  # they may be empty
    return _Roles(layout, named["id"], named["time"], None, None, channels, unread)


def _find_layout(
    path: Path,
    columns: Sequence[str],
    rest: Sequence[str],
    named: dict[str, str | None],
    options: ReadOptions,
    *,
    is_folder: bool,
) -> Literal["long", "wide"]:
    """Return whether a row of a table is a step or a series. Raises SettingError if the columns do not tell."""
    if options.layout in ("nlc", "ncl"):
        raise setting_error("layout", options.layout, f"auto, long or wide, as {path} is a table")
    if options.layout != "auto":
        if options.layout == "wide" and (is_folder or named["time"]):
            reason = "each file of a folder is a series" if is_folder else f"the table has a column of times, {named['time']}"
            raise setting_error("layout", "wide", f"long, as {reason}")
        return "long" if options.layout == "long" else "wide"
    if is_folder or named["time"] is not None:
        return "long"
    numbered = [name for name in rest if _NUMBERED.fullmatch(name)]
    if len(numbered) >= MIN_STEPS and len(numbered) >= len(rest) / 2:
        return "wide"
    if named["id"] is not None:
        return "long"
    shown = list_columns(columns[:8]) + (", ..." if len(columns) > 8 else "")
    raise setting_error(
        "id", None, f"the column that says to which series a row of {path} belongs (`--id`, and `--time` for its time; `--time` "
        f"alone if all rows are one series), or `layout` must be wide if each row is a series; its columns are {shown}"
    )  # fmt: skip


def _find_channels(path: Path, columns: Sequence[str], rest: Sequence[str], options: ReadOptions) -> tuple[str, ...]:
    """Return the channels of a long table. Raises SettingError for unknown columns and columns without a name."""
    if options.channels is not None and not options.fixed:
        for name in options.channels:
            check_column("channels", name, columns, path)
        return options.channels
    if options.channels is not None:
        lacking = [name for name in options.channels if name not in columns]
        if lacking:
            check = "column " if len(lacking) == 1 else "columns "
            raise ValueError(
                f"{path} must have the channels of the training series, {', '.join(options.channels)}, got a table without the "
                f"{check}{', '.join(lacking)}; its columns are {cut(', '.join(columns))}"
            )
        surplus = [name for name in rest if name not in options.channels]
        if surplus and not options.others:
            raise ValueError(
                f"{path} must have no other columns than the table of the training series, got {', '.join(map(quote, surplus))}"
            )
        return options.channels
    if not rest:
        raise ValueError(f"{path} must have at least one column of values, got only {', '.join(columns)}")
    if "" in rest:
        number = list(columns).index("") + 1
        raise setting_error(
            "channels", None, f"the columns to read, as column {number} of {path} has no name (an index that pandas wrote?)"
        )
    return tuple(rest)


class _Codes:
    """Numbers for the names of series in the order of their first occurrence, with a label and a group for each."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.words: dict[str, list[str]] = {"label": [], "group": []}

    def add(self, frame: Any, names: dict[str, str | None], path: Path, first: int) -> np.ndarray:
        """Return the numbers of the series of a frame's rows. first: number of its first row in the file.

        Raises ValueError for rows without an id, and for a series with several labels or groups.
        """
        import pandas as pd

        assert names["id"] is not None
        words = frame[names["id"]]
        _check_present(words, names["id"], path, first)
        codes, uniques = pd.factorize(words)
        for name in uniques:
            self.numbers.setdefault(name, len(self.numbers))
        numbers = np.array([self.numbers[name] for name in uniques], np.int32)[codes]
        for setting in ("label", "group"):
            if names[setting] is not None:
                self._add_words(setting, numbers, frame[names[setting]], names, path, first)
        return numbers

    def _add_words(
        self, setting: str, numbers: np.ndarray, words: Any, names: dict[str, str | None], path: Path, first: int
    ) -> None:
        import pandas as pd

        _check_present(words, str(names[setting]), path, first)
        known = self.words[setting]
        pairs = pd.DataFrame({"number": numbers, "word": words.to_numpy()}).drop_duplicates()
        for number, word in zip(pairs["number"].tolist(), pairs["word"].tolist(), strict=True):
            if number < len(known):
                if known[number] != word:
                    series = list(self.numbers)[number]
                    raise ValueError(
                        f"{path}: each series must have one {setting}, got {quote(known[number])} and {quote(word)} in column "
                        f"{names[setting]!r} of series {quote(series)}"
                    )
            else:
                known.append(word)


def _check_present(words: Any, name: str, path: Path, first: int) -> None:
    """Raise ValueError with the number and the first of the rows that have nothing in a column of text."""
    missing = words.isna().to_numpy() | (words == "").to_numpy()
    if missing.any():
        row = int(missing.argmax())
        found = f"got none in {_where(path, first + row)}"
        meaning = "" if suffix_of(path) in PARQUET else f" (nothing, or one of the words {_WORDS_FOR_MISSING})"
        raise ValueError(f"{path}: column {quote(name)} must have a value in each row, {found}{meaning}")


def _where(path: Path, row: int) -> str:
    """Return a row of a table as text, by its line in a text file."""
    return f"row {row + 1}" if suffix_of(path) in PARQUET else f"line {row + 2}"


def _read_long(path: Path, files: Sequence[Path], roles: _Roles, options: ReadOptions, folder: Path) -> _Parts:
    """Read tables with a row for each step; of a folder, each table is a series with the name of its file."""
    is_folder = path.is_dir()
    values_path, codes_path = folder / "values", folder / "codes"
    codes, clock = _Codes(), ClockReader(options.time_format)
    names: dict[str, str | None] = {"id": roles.id, "label": roles.label, "group": roles.group}
    texts = [name for name in (*names.values(), roles.time) if name is not None]
    columns = list(dict.fromkeys([*texts, *roles.channels]))
    ends, has_ids = [0], roles.id is not None or is_folder
    with values_path.open("wb") as values_file, codes_path.open("wb") as codes_file:
        for file in files:
            first = 0
            for frame in read_frames(file, columns, texts, options.dialect):
                if roles.id is None:
                    names["id"] = "\0id"
                    frame = frame.assign(**{"\0id": _file_id(path, file) if is_folder else "1"})
                codes.add(frame, names, file, first).tofile(codes_file)
                if roles.time is not None:
                    _add_times(clock, frame[roles.time], file, first, options)
                may_be = [role for role, is_given in (("id", has_ids), ("time", roles.time is not None)) if not is_given]
                for name in roles.channels:
                    frame[name] = _as_numbers(frame[name], name, file, first, options.dialect.decimal, may_be)
                frame[list(roles.channels)].to_numpy(np.float64).tofile(values_file)
                first += len(frame)
            if not first:
                raise ValueError(f"{file} must contain rows after the names of the columns, got none")
            ends.append(ends[-1] + first)
    numbers = np.fromfile(codes_path, np.int32)
    values = np.memmap(values_path, np.float64, "r", shape=(len(numbers), len(roles.channels)))
    parts = _Parts(values, np.zeros(0), list(codes.numbers), roles.channels, has_ids=has_ids)
    if roles.id is not None and not options.fixed and options.layout == "auto" and len(numbers) == len(codes.numbers) > 1:
        needed = f"wide if each row of {path} is a series, whose steps are its columns, or long, as each series has only one row"
        raise setting_error("layout", "auto", needed)
    parts.labels = codes.words["label"] if roles.label else None
    parts.groups = codes.words["group"] if roles.group else None
    clocks = clock.clocks() if roles.time is not None else None
    order = _sort_rows(path, parts, numbers, clocks, options, roles.time)
    if order is not None:
        sorted_path = folder / "sorted"
        with sorted_path.open("wb") as sorted_file:
            for first in range(0, len(order), 1_000_000):
                values[order[first : first + 1_000_000]].tofile(sorted_file)
        parts.values = np.memmap(sorted_path, np.float64, "r", shape=values.shape)
    return parts


def _add_times(clock: ClockReader, words: Any, file: Path, first: int, options: ReadOptions) -> None:
    """Read a column of time stamps as text, whose first row is `first`. Raises ValueError with the first that no format reads."""
    _check_present(words, words.name, file, first)
    if options.dialect.decimal == "," and words.map(_is_comma_number).all():
        words = words.map(_with_point)
    wrong = clock.add(words)
    if wrong is not None:
        years = f"from {MIN_YEAR} to {MAX_YEAR}"
        needed = f"numbers below 2^53, ISO 8601 (2024-01-31 13:00) or a common form of day, month, year {years}"
        before = f", after {quote(words.iloc[wrong - 1], 40)}" if wrong else ""
        others = "" if options.time_format else "; `time_format` is for other forms, such as '%d.%m.%y %I:%M %p'"
        raise ValueError(
            f"{file}: column {words.name!r} must contain {options.time_format or needed}, the same in all rows, got "
            f"{quote(words.iloc[wrong], 40)} in {_where(file, first + wrong)}{before}{others}"
        )


def _file_id(folder: Path, file: Path) -> str:
    """Return the name of the series in a file of a folder: its path in the folder without the suffix."""
    return without_suffix(str(file.relative_to(folder)))


def _as_numbers(column: Any, name: str, path: Path, first: int, decimal: str, may_be: Collection[str] = ()) -> np.ndarray:
    """Return a column as float64 with NaN for missing values.

    may_be: what a column of text may be instead, for the error: the "id" of the series, or their "time" if it has dates.

    Raises ValueError with the first word that is no number with this decimal mark, and with the first whole number that is too
    large to be exact.
    """
    import pandas as pd

    if pd.api.types.is_bool_dtype(column) or pd.api.types.is_numeric_dtype(column):
        if pd.api.types.is_complex_dtype(column):
            raise ValueError(f"{path}: column {quote(name)} must contain real numbers, got {column.dtype}")
        numbers = column.to_numpy(np.float64, na_value=np.nan)
        inexact = np.zeros(len(numbers), bool)
        if pd.api.types.is_integer_dtype(column):
            inexact = ((column > MAX_EXACT_INTEGER) | (column < -MAX_EXACT_INTEGER)).to_numpy(bool, na_value=False)
    else:
        words = column if decimal == "." else column.map(_with_point)
        found = pd.to_numeric(words, errors="coerce") if column.dtype.kind not in "mM" else pd.Series(np.nan, column.index)
        wrong = (found.isna() & column.notna()).to_numpy()
        if wrong.any():
            row = int(wrong.argmax())
            word = str(column.iloc[row])
            if decimal == "." and re.fullmatch(r"\s*-?\d+,\d+\s*", word):
                hint = "`decimal=','` reads 1,5"
                if _THOUSANDS.fullmatch(word):
                    hint += ", and commas between thousands must be removed"
            elif decimal == "." and _THOUSANDS.fullmatch(word):
                hint = "commas between thousands must be removed"
            elif found.notna().any():
                hint = f"missing values are empty or one of the words {_WORDS_FOR_MISSING}; `channels` lists the columns to read"
            elif "time" in may_be and (column.dtype.kind == "M" or _DATE.match(word)):
                hint = "`time` names the column of the times, and `channels` lists the columns to read"
            else:
                hint = "`channels` lists the columns to read"
                hint += ", and `id` names the column of several series" * ("id" in may_be)
            raise ValueError(
                f"{path}: column {quote(name)} must contain numbers{' with a decimal comma' if decimal == ',' else ''}, got "
                f"{quote(word, 40)} in {_where(path, first + row)}; {hint}"
            )
        numbers = found.to_numpy(np.float64)
        inexact = np.abs(numbers) >= MAX_EXACT_INTEGER
        inexact[inexact] = [bool(_WHOLE.fullmatch(str(word))) and abs(int(word)) > MAX_EXACT_INTEGER for word in column[inexact]]
    if inexact.any():
        row = int(inexact.argmax())
        raise ValueError(
            f"{path}: column {quote(name)} must contain whole numbers of at most 2^53, which float64 has without gaps, "
            f"got {quote(str(column.iloc[row]), 40)} in {_where(path, first + row)}; subtract a number from the column, or leave "
            "it out by `channels`"
        )
    return numbers


def _is_comma_number(word: str) -> bool:
    """Return whether a word is a whole number, or one with a decimal comma."""
    return re.fullmatch(r"\s*[+-]?\d+(,\d+)?\s*", word) is not None


def _with_point(word: Any) -> Any:
    """Return a number with a decimal comma with a point instead, and a text that has a point already as no number."""
    return word if not isinstance(word, str) else "" if "." in word else word.replace(",", ".")


def _sort_rows(
    path: Path, parts: _Parts, codes: np.ndarray, clocks: Sequence[Clock] | None, options: ReadOptions, column: str | None
) -> np.ndarray | None:
    """Set `offsets` and `clock` of the parts and return the order of the rows by series and time, None if they have it.

    Raises ValueError for time stamps that occur twice in a series, and for rows that are not in the order of time, unless the
    setting `order` is "sort".
    """
    parts.offsets = np.concatenate([[0], np.cumsum(np.bincount(codes, minlength=len(parts.ids)))]).astype(np.int64)
    order = None if (codes[1:] >= codes[:-1]).all() else np.argsort(codes, kind="stable")
    if clocks is not None:
        parts.clock, order = _choose_clock(path, parts, clocks, order, options, column)
    return order


def _choose_clock(
    path: Path, parts: _Parts, clocks: Sequence[Clock], order: np.ndarray | None, options: ReadOptions, column: str | None
) -> tuple[Clock, np.ndarray | None]:
    """Return the clock with which time increases in every series, its rows sorted, and their order."""
    sorted_clocks = [clock if order is None else clock._replace(stamps=clock.stamps[order]) for clock in clocks]
    decreases = [first_decrease(clock.stamps, parts.offsets) for clock in sorted_clocks]
    increasing = [clock for clock, row in zip(sorted_clocks, decreases, strict=True) if row is None]
    if len(increasing) > 1 or (not increasing and len(clocks) > 1):
        forms = ", ".join(clock.form for clock in (increasing or clocks))
        raise setting_error("time_format", None, f"one of {forms}, as column {column!r} of {path} can be read in each of them")
    if increasing:
        return increasing[0], order
    clock, row = sorted_clocks[0], decreases[0]
    assert row is not None
    series = int(np.searchsorted(parts.offsets, row, "right")) - 1
    before, stamp = format_stamps(clock.stamps[row - 1 : row + 1], clock.form)
    name = f"series {quote(parts.ids[series])}" if parts.has_ids else "the table (`id` names the column of several series)"
    codes = np.repeat(np.arange(len(parts.ids), dtype=np.int32), np.diff(parts.offsets))
    by_time = np.lexsort((clock.stamps, codes))
    sorted_clock = clock._replace(stamps=clock.stamps[by_time])
    again = first_decrease(sorted_clock.stamps, parts.offsets)
    if again is not None:  # after sorting only equal time stamps are left
        series = int(np.searchsorted(parts.offsets, again, "right")) - 1
        name = f"series {quote(parts.ids[series])}" if parts.has_ids else name
        (stamp,) = format_stamps(sorted_clock.stamps[again : again + 1], clock.form)
        hint = clock_change_hint(sorted_clock.stamps[again], clock.form)
        raise ValueError(f"{path}: each time of a series must occur once in column {column!r}, got {stamp} twice in {name}{hint}")
    if options.order == "refuse":
        hint = "sort the rows of the file" if options.fixed else "`order='sort'` sorts them"  # a trained model keeps its settings
        raise ValueError(
            f"{path}: the rows of a series must be in the order of column {column!r}, got {stamp} after {before} in {name}; "
            f"{hint}"
        )
    return sorted_clock, by_time if order is None else order[by_time]


def _read_wide(path: Path, roles: _Roles, options: ReadOptions) -> _Parts:
    """Read a table with a row for each series. Missing values after the last one of a row end the series."""
    channels, steps, clock = _wide_columns(path, roles.channels, options)
    names: dict[str, str | None] = {"id": roles.id, "label": roles.label, "group": roles.group}
    texts = [name for name in names.values() if name is not None]
    columns = [name for channel in steps for name in channel]
    series: list[np.ndarray] = []
    words: dict[str, list[str]] = {name: [] for name in names}
    first = 0
    for frame in read_frames(path, [*texts, *columns], texts, options.dialect):
        for setting, name in names.items():
            if name is not None:
                _check_present(frame[name], name, path, first)
                words[setting] += frame[name].tolist()
        table = np.stack([_as_numbers(frame[name], name, path, first, options.dialect.decimal) for name in columns], axis=1)
        cube = table.reshape(len(table), len(channels), -1).transpose(0, 2, 1)
        for number, item in enumerate(cube):
            series.append(_without_end(item, path, _where(path, first + number)))
        first += len(frame)
    if not series:
        raise ValueError(f"{path} must contain rows after the names of the columns, got none")
    ids = words["id"] if roles.id else [str(number + 1) for number in range(len(series))]
    twice = _first_twice(ids)
    if twice is not None:
        raise ValueError(
            f"{path}: each series must have one row in a wide table, got {quote(twice)} twice in column {roles.id!r}; "
            "`layout='long'` takes the rows for steps"
        )
    offsets = np.concatenate([[0], np.cumsum([len(item) for item in series])]).astype(np.int64)
    parts = _Parts(np.concatenate(series), offsets, ids, channels, layout="wide", has_ids=roles.id is not None)
    parts.labels = words["label"] if roles.label else None
    parts.groups = words["group"] if roles.group else None
    if clock is not None:
        parts.clock = clock._replace(stamps=np.concatenate([clock.stamps[: len(item)] for item in series]))
    return parts


class _WideColumns(NamedTuple):
    """The channels of a wide table, the columns of each in the order of its steps, and the times of these if they are uneven."""

    channels: tuple[str, ...]
    columns: list[list[str]]
    clock: Clock | None


def _wide_columns(path: Path, names: Sequence[str], options: ReadOptions) -> _WideColumns:
    """Return the columns of a wide table.

    The columns of one channel are all other columns: in the order of the numbers or dates that are their names, or of the numbers
    at the end of these, else in the order of the file. Several channels have columns NAME_NUMBER for each name in the setting
    `channels`.
    """
    if options.channels in (None, ("value",)):
        ordered = _ordered_steps(path, names, options.time_format)
        if ordered is not None:
            return _WideColumns(("value",), [ordered[0]], _if_uneven(ordered[1]))
    numbered: dict[str, dict[int, str]] = {}
    for name in names:
        match = _NUMBERED.fullmatch(name)
        if match:
            steps = numbered.setdefault(match[1], {})
            if int(match[2]) in steps:
                raise _same_step(path, steps[int(match[2])], name)
            steps[int(match[2])] = name
    if options.channels is not None and options.channels != ("value",):
        for channel in options.channels:
            check_column("channels", channel, list(numbered), path)
        chosen = {channel: numbered[channel] for channel in options.channels}
    elif len(numbered) > 1:
        prefixes = ", ".join(repr(prefix) for prefix in list(numbered)[:8])
        raise setting_error("channels", None, f"the names before the numbers of the steps of {path}, some of {prefixes}")
    elif sum(map(len, numbered.values())) not in (0, len(names)):
        others = [name for name in names if not _NUMBERED.fullmatch(name)]
        raise setting_error(
            "channels", None, f"{next(iter(numbered))!r} for the numbered columns of {path}, as it also has "
            f"{', '.join(map(repr, others[:8]))}; if each row is a step of a series, `layout` must be long (`--id` and `--time`)"
        )  # fmt: skip
    elif not names:
        raise ValueError(f"{path} must have at least one column of values, got none")
    elif not numbered:
        return _WideColumns(("value",), [list(names)], None)
    else:
        chosen = {prefix or "value": steps for prefix, steps in numbered.items()}
    lengths = {channel: len(steps) for channel, steps in chosen.items()}
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{count} of {channel}" for channel, count in lengths.items())
        raise ValueError(f"{path} must have equally many columns for each channel, got {counts}")
    first, *others = chosen
    numbers = sorted(chosen[first])
    for channel in others:
        if chosen[channel].keys() != chosen[first].keys():
            own, other = (min(chosen[a].keys() - chosen[b].keys()) for a, b in ((first, channel), (channel, first)))
            found = f"{own} of {first} alone and {other} of {channel} alone"
            raise ValueError(f"{path} must have the same numbers of steps for each channel, got {found}")
    columns = [[steps[number] for number in numbers] for steps in chosen.values()]
    return _WideColumns(tuple(chosen), columns, _if_uneven(Clock(np.array(numbers, np.float64), "numbers")))


def _same_step(path: Path, name: str, other: str) -> ValueError:
    """Return the error for two columns of the same step."""
    return ValueError(f"{path}: each step of a series must have one column, got {name!r} and {other!r} for the same step")


def _if_uneven(clock: Clock) -> Clock | None:
    """Return the times of the steps of a wide table; None if they are equal, or those of a calendar, such as months."""
    odd = uneven_steps(clock.stamps, np.array([0, len(clock.stamps)]), usual_step(clock.stamps, np.zeros(0)))
    return None if not len(odd) or (clock.is_dated and calendar_frequency(clock.stamps) is not None) else clock


def _ordered_steps(path: Path, names: Sequence[str], time_format: str | None) -> tuple[list[str], Clock] | None:
    """Return column names that are all numbers, such as wavelengths, or dates in the order of these, and their times.

    None for other names.

    Raises SettingError for dates that can be read in several ways, ValueError for a number or a date that occurs twice.
    """
    import pandas as pd

    reader = ClockReader(time_format)
    if not names or reader.add(pd.Series(list(names), dtype=str)) is not None:
        return None
    clocks = reader.clocks()
    increasing = [clock for clock in clocks if (np.diff(clock.stamps) > 0).all()]
    if len(increasing) != 1 and len(clocks) > 1:
        forms = ", ".join(clock.form for clock in increasing or clocks)
        raise setting_error("time_format", None, f"one of {forms}, as the names of the columns of {path} can be read in each")
    clock = (increasing or clocks)[0]
    order = np.argsort(clock.stamps, kind="stable")
    clock = clock._replace(stamps=clock.stamps[order])
    again = np.flatnonzero(np.diff(clock.stamps) == 0)
    if len(again):
        raise _same_step(path, *(names[number] for number in order[again[0] : again[0] + 2]))
    return [names[number] for number in order], clock


def _without_end(item: np.ndarray, path: Path, where: str) -> np.ndarray:
    """Return a series (L, C) without the steps at its end in which every channel is missing.

    Raises ValueError if none is left.
    """
    present = np.flatnonzero(~np.isnan(item).all(1))
    if not len(present):
        raise ValueError(f"{path}: each series must have values, got none in {where}")
    return item[: present[-1] + 1]


def _label_files(path: Path, parts: _Parts, options: ReadOptions) -> None:
    """Label the files of a folder by the table `labels`, or by their sub-folders."""
    if options.fixed:
        return
    if options.labels is None:
        folders = [str(Path(name).parent) for name in parts.ids]
        if "." not in folders:
            parts.labels = folders
        if options.label is not None:
            raise setting_error(
                "label", options.label, f"a column of the files of {path}, left out if its sub-folders are the labels, or with "
                "`labels`, a table with a row for each file"
            )  # fmt: skip
        return
    table = Path(options.labels)
    columns = column_names(table, options.dialect)
    name_column = options.id or "file"
    check_column("id", name_column, columns, table)
    if options.label is None:
        raise setting_error("label", None, f"the column of {table} with the labels, some of {', '.join(columns)}")
    wanted = {"label": options.label, **({"group": options.group} if options.group else {})}
    for setting, name in wanted.items():
        check_column(setting, name, columns, table)
    rows: dict[str, list[str]] = {}
    for frame in read_frames(table, [name_column, *wanted.values()], [name_column, *wanted.values()], options.dialect):
        for name in (name_column, *wanted.values()):
            _check_present(frame[name], name, table, 0)
        for name, *words in frame.itertuples(index=False):
            key = without_suffix(name)
            if rows.setdefault(key, words) != words:
                raise ValueError(f"{table} must have one row for each file, got several for {quote(name)}")
    surplus = sorted(rows.keys() - set(parts.ids))
    if surplus:
        _log.warning("%s: %d rows are of no file in %s, the first of %r", table, len(surplus), path, surplus[0])
    lacking = [name for name in parts.ids if name not in rows]
    if lacking:
        others = f" and {count_text(len(lacking) - 1, 'other')}" if len(lacking) > 1 else ""
        raise ValueError(f"{table} must have a row for each file of {path}, got none for {lacking[0]!r}{others}")
    for number, setting in enumerate(wanted):
        words = [rows[name][number] for name in parts.ids]
        parts.labels, parts.groups = (words, parts.groups) if setting == "label" else (parts.labels, words)


def _read_npz(path: Path, options: ReadOptions) -> _Parts:
    """Read X (N, L), (N, L, C), or `values` (T[, C]) and `offsets` (N + 1,), with arrays (N,) of labels, groups and ids."""
    _check_settings(path, options, ("auto", "nlc", "ncl"), {"time": options.time})
    content = read_npz(path)
    names = list(content)
    if "X" in content and {"values", "offsets"} <= content.keys():
        raise ValueError(f"{path} must contain an array X, or arrays values and offsets, got both")
    if "values" in content and "offsets" in content:
        values, offsets = content["values"], content["offsets"]
        values = values[:, None] if values.ndim == 1 else values
        fits = values.ndim == 2 and offsets.ndim == 1 and offsets.dtype.kind in "iu" and len(offsets) > 1
        if not fits or offsets[0] != 0 or offsets[-1] != len(values) or (np.diff(offsets) <= 0).any():
            raise ValueError(
                f"{path}: `offsets` must be whole numbers that increase from 0 to the length of `values`, got "
                f"{offsets.dtype} of shape {offsets.shape} for values of shape {values.shape}"
            )
    elif "X" in content:
        values, offsets = _split_array(path, content["X"], options)
    else:
        found = cut(", ".join(names)) or "nothing"
        raise ValueError(f"{path} must contain an array X, or arrays values and offsets, got {found}")
    if values.dtype.kind not in "fiub":
        raise ValueError(f"{path} must contain series of numbers, got {values.dtype}")
    channels = _array_channels(path, values.shape[1], options)
    count = len(offsets) - 1
    label = options.label or ("y" if "y" in content else None)
    words: dict[str, list[str] | None] = {}
    named = {"label": label, "group": options.group, "id": options.id or ("id" if "id" in content else None)}
    for setting, name in named.items():
        words[setting] = None
        if name is None or (options.fixed and (setting != "id" or name not in content)):
            continue
        check_column(setting, name, names, path)
        array = content[name]
        if array.shape != (count,):
            raise ValueError(f"{path}: {name} must have one value for each of the {count} series, got the shape {array.shape}")
        if array.dtype.kind == "f" and np.isnan(array).any():
            raise ValueError(f"{path}: {name} must have a value for each series, got none in row {np.isnan(array).argmax() + 1}")
        words[setting] = _array_words(path, name, array)
    read = {"X", *(("values", "offsets") if "X" not in content else ()), *([named["id"]] if options.fixed else named.values())}
    unread = tuple(name for name in names if name not in read)
    if "X" in content and "lengths" in unread:
        raise ValueError(
            f"{path} must have its padding as NaN in X, or arrays values and offsets, got an array `lengths`, which is not read"
        )
    twice = _first_twice(words["id"] or ())
    if twice is not None:
        raise ValueError(f"{path}: each series must have another id, got {quote(twice)} twice")
    ids = words["id"] or [str(number + 1) for number in range(count)]
    numbers = values.astype(np.float64)
    check_exact_integers(values, numbers, str(path))
    return _Parts(
        numbers, offsets.astype(np.int64), ids, channels, words["label"], words["group"], layout="array",
        has_ids=words["id"] is not None, unread=unread,
    )  # fmt: skip


def _check_settings(path: Path, options: ReadOptions, layouts: Sequence[str], left_out: dict[str, str | None]) -> None:
    """Raise SettingError for a setting in `left_out` that is given, and for another layout.

    These mean nothing for a file without columns. Those of a trained model are ignored.
    """
    if options.fixed:
        return
    for setting, given in left_out.items():
        if given is not None:
            raise setting_error(setting, given, f"left out, as {path} has no columns")
    if options.layout not in layouts:
        raise setting_error("layout", options.layout, f"{' or '.join(layouts)} for {path}")


def _array_words(path: Path, name: str, array: np.ndarray) -> list[str]:
    """Return labels, groups or ids (N,) as text. Raises ValueError for anything but text and real numbers."""
    if array.dtype.kind not in "USbiuf":
        raise ValueError(f"{path}: {name} must be text or numbers, got {array.dtype}")
    try:
        texts = [word.decode() if isinstance(word, bytes) else str(word) for word in array.tolist()]
    except UnicodeDecodeError:
        raise ValueError(f"{path}: {name} must be UTF-8 text, got other bytes") from None
    return [normalize("NFC", text) for text in texts]


def _first_twice(names: Sequence[str]) -> str | None:
    """Return the first name in alphabetical order that occurs twice, None if there is none."""
    ordered = sorted(names)
    return next((name for name, other in pairwise(ordered) if name == other), None)


def _split_array(path: Path, array: np.ndarray, options: ReadOptions) -> tuple[np.ndarray, np.ndarray]:
    """Return values (T, C) and offsets of an array (N, L), (N, L, C) or (N, C, L)."""
    if array.ndim not in (2, 3) or not array.size:
        raise ValueError(f"{path}: X must have the shape (series, steps) or (series, steps, channels), got {array.shape}")
    if array.ndim == 2:
        array = array[..., None]
    elif options.layout == "ncl":
        array = array.transpose(0, 2, 1)
    elif options.layout != "nlc" and array.shape[2] > array.shape[1]:
        raise setting_error(
            "layout", options.layout, f"nlc or ncl: {array.shape}, X of {path}, has {count_text(array.shape[1], 'step')} of "
            f"{count_text(array.shape[2], 'channel')} by nlc, or {count_text(array.shape[2], 'step')} of "
            f"{count_text(array.shape[1], 'channel')} by ncl"
        )  # fmt: skip
    count, length, channels = array.shape
    if array.dtype.kind not in "fiub":
        raise ValueError(f"{path} must contain series of numbers, got {array.dtype}")
    padded = np.isnan(array).all(2) if array.dtype.kind == "f" else np.zeros((count, length), bool)
    lengths = length - padded[:, ::-1].argmin(1)
    if padded.all(1).any():
        raise ValueError(f"{path}: each series must have values, got none in series {padded.all(1).argmax() + 1}")
    inside = np.arange(length) < lengths[:, None]
    return array.reshape(-1, channels)[inside.ravel()], np.concatenate([[0], np.cumsum(lengths)])


def _array_channels(path: Path, count: int, options: ReadOptions) -> tuple[str, ...]:
    """Return names of the channels of an array: those of the setting, or numbers from 1."""
    if options.channels is None:
        return tuple(f"channel_{number + 1}" for number in range(count))
    if len(options.channels) != count:
        if options.fixed:
            needed = count_text(len(options.channels), "channel")
            raise ValueError(f"{path} must contain series of {needed}, as in training, got {count}")
        raise setting_error("channels", options.channels, f"names for the {count_text(count, 'channel')} of {path}")
    return options.channels


def _read_series_file(path: Path, options: ReadOptions) -> _Parts:
    """Read a .ts or .arff file; whether its labels are numbers is in its header."""
    _check_settings(path, options, ("auto",), {"id": options.id, "time": options.time, "group": options.group})
    read = read_ts if suffix_of(path) == ".ts" else read_arff
    recordings = read(path, "mask", with_labels=not options.fixed)
    if options.label is not None and not options.fixed:
        raise setting_error("label", options.label, f"left out, as a line of {path} ends with its label")
    channels = _array_channels(path, len(recordings.series[0]), options)
    offsets = np.concatenate([[0], np.cumsum([item.shape[1] for item in recordings.series])]).astype(np.int64)
    parts = _Parts(
        np.concatenate([item.T for item in recordings.series]), offsets,
        [str(number + 1) for number in range(len(recordings.series))], channels, recordings.labels, layout="array", has_ids=False,
    )  # fmt: skip
    header = path.read_bytes()[:100_000].lower()
    parts.has_numbers = b"@targetlabel true" in header
    return parts


def iterate_pieces(store: SeriesStore, ranges: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the values of the steps ranges[i, 0] to ranges[i, 1] - 1, (n, C) float64, in pieces of at most `PIECE_STEPS`."""
    for start, end in ranges.tolist():
        for first in range(start, end, PIECE_STEPS):
            yield np.asarray(store.values[first : min(first + PIECE_STEPS, end)])
