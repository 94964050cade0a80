"""Tables in a user's files as frames of at most `ROWS` rows: CSV, Parquet, NPZ and folders of these.

pandas reads CSV files (also compressed ones) and pyarrow reads Parquet. Columns that hold names (of series, labels, groups and
times) are read as text, so that 007 stays 007.
"""

import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple
from unicodedata import normalize

import numpy as np

from longscan._errors import cut, one_line, quote, setting_error
from longscan.tasks._store import visible_paths
from longscan.tasks.series.clock import ClockReader

if TYPE_CHECKING:
    import pandas as pd

ROWS = 250_000  # number of rows that are read together
BYTES = 2**20  # number of bytes that are read together
HEADER_ROWS = 1000  # number of rows in which the words of the first line are looked for, to tell names from values
MIN_UNORDERED = 4  # smallest number of fractions without an order that are values; three are often in order by chance
CSV = (".csv", ".tsv", ".txt")
COMPRESSED = (".gz", ".bz2", ".xz", ".zip")
PARQUET = (".parquet", ".pq")
SERIES = (".ts", ".arff")
SUFFIXES = (*CSV, *PARQUET, ".npz", *SERIES)
MISSING_WORDS = ["?", "", "NaN", "nan", "NA", "<NA>", "N/A", "n/a", "#N/A", "null", "NULL", "None"]


class Dialect(NamedTuple):
    """How numbers are written in text files: the character between columns and the decimal mark."""

    separator: str
    decimal: str


def suffix_of(path: Path) -> str:
    """Return the suffix of a file in lower case, without that of a compression."""
    parts = [part.lower() for part in path.suffixes]
    if parts and parts[-1] in COMPRESSED and len(parts) > 1 and parts[-2] in CSV:
        parts.pop()
    return parts[-1] if parts else ""


def without_suffix(name: str) -> str:
    """Return the name of a table without its suffix and that of its compression; dots before them are part of the name."""
    path = Path(name)
    path = path.with_suffix("") if path.suffix.lower() in COMPRESSED and Path(path.stem).suffix.lower() in CSV else path
    return normalize("NFC", str(path.with_suffix("") if path.suffix.lower() in (*CSV, *PARQUET) else path))


def find_files(path: str | Path) -> list[Path]:
    """Return the file, or the files of a folder and its sub-folders in the order of their names, without hidden ones.

    Raises ValueError if there are none.
    """
    path = Path(path)
    if not path.exists():
        raise ValueError(f"{path} cannot be read: No such file or directory")
    if path.is_file():
        if suffix_of(path) not in SUFFIXES:
            compressed = ", ".join(COMPRESSED)
            raise ValueError(f"{path}: its name must end in one of {', '.join(SUFFIXES)} (text also with {compressed})")
        return [path]
    tables = (*CSV, *PARQUET)
    files = [item for item in visible_paths(path) if suffix_of(item) in tables and item.is_file()]
    if not files:
        raise ValueError(f"{path} must contain files with names that end in one of {', '.join(tables)}, got none")
    return files


def column_names(path: Path, dialect: Dialect) -> list[str]:
    """Return the names of the columns of a table. Raises ValueError for names that are missing, repeated or numbers."""
    if suffix_of(path) in PARQUET:
        names = [str(name) for name in _parquet(path).schema_arrow.names if not str(name).startswith("__index_level_")]
    else:
        names = [str(name).strip() for name in _first_lines(path, dialect, 1).iloc[0]]
        _check_header(path, names, dialect)
        _first_lines(path, dialect, 2)  # an error for more values than names, which `read_frames` would take for labels of rows
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{path}: the names of the columns must be unique, got {quote(name)} {names.count(name)} times")
    return names


def _first_lines(path: Path, dialect: Dialect, count: int) -> "pd.DataFrame":
    """Return the first lines of a text file as text. Raises ValueError for an empty file and for lines longer than the first."""
    import pandas as pd

    try:
        return pd.read_csv(
            path, sep=dialect.separator, header=None, nrows=count, dtype=str, keep_default_na=False, encoding="utf-8-sig",
            skipinitialspace=True,
        )  # fmt: skip
    except pd.errors.EmptyDataError:
        raise ValueError(f"{path} must contain a line with the names of the columns, got an empty file") from None
    except _reading_errors(path) as error:
        raise _unreadable(path, error) from None


def _check_header(path: Path, names: Sequence[str], dialect: Dialect) -> None:
    """Raise an error for a header that is not one: another separator, numbers, or what seems to be a row of values."""
    for mark in (";", "\t", ",", "|"):
        if len(names) == 1 and mark != dialect.separator and mark in names[0]:
            raise setting_error(
                "separator", dialect.separator, f"the character between the columns of {path}, {mark!r} it seems (and decimal "
                "',' if numbers are written 1,5)"
            )  # fmt: skip
    if all(_is_number(name, dialect) for name in names):
        raise ValueError(f"{path} must begin with a line with the names of the columns, got the numbers {', '.join(names)[:60]}")
    if _has_values(path, names, dialect):
        shown = cut(", ".join(names))
        raise ValueError(f"{path} must begin with a line with the names of the columns, got what seem to be values: {shown}")


def _has_values(path: Path, names: Sequence[str], dialect: Dialect) -> bool:
    """Return whether the first line of a text file seems to be a row of values.

    Numbers and dates are also names, of the steps of a wide table. They count as values if every other word of the line is a
    missing value or is repeated below it, such as an id or a label, and numbers with fractions also if they are in no order.
    """
    numbers = [name for name in names if _is_number(name, dialect)]
    if not numbers:
        return False
    floats = [_to_float(name, dialect) for name in numbers]
    has_fractions = len(numbers) >= MIN_UNORDERED and not all(number.is_integer() for number in floats)
    if has_fractions and not (_is_sorted(floats) or _is_sorted(numbers)):  # pivoted tables have steps in the order of their text
        return True
    known = {*numbers, *MISSING_WORDS} - {""}
    words = {place: name for place, name in enumerate(names) if name not in known}
    if not words:
        return True
    below = _first_lines(path, dialect, HEADER_ROWS)[1:]
    # `all` ends at the first word that is a name: `_is_time` takes milliseconds, and there may be thousands of columns.
    return all((below[place].str.strip() == name).any() or _is_time(name) for place, name in words.items())


def _is_sorted(values: list[Any]) -> bool:
    return values in (sorted(values), sorted(values, reverse=True))


def _is_time(text: str) -> bool:
    import pandas as pd

    return ClockReader(None).add(pd.Series([text], dtype=str)) is None


def _is_number(text: str, dialect: Dialect) -> bool:
    try:
        _to_float(text, dialect)
    except ValueError:
        return False
    return "_" not in text  # 1_1 is a number for Python alone


def _to_float(text: str, dialect: Dialect) -> float:
    """Return a word of a text file as a number, ValueError if it is none."""
    return float(text.replace(dialect.decimal, "."))


def read_frames(path: Path, columns: Sequence[str], texts: Sequence[str], dialect: Dialect) -> Iterator["pd.DataFrame"]:
    """Yield the rows of a table in frames of at most `ROWS` rows.

    columns: the columns to read. texts: those of them that are read as text, missing ones as NaN; characters with accents are
    one code point (NFC), as two ways to write a word would be two classes. Raises ValueError naming the file for content that
    cannot be read.
    """
    import pandas as pd

    if suffix_of(path) in PARQUET:
        for batch in _parquet(path).iter_batches(ROWS, columns=list(columns)):
            frame = batch.to_pandas()
            frame = (frame.reset_index() if any(frame.index.names) else frame)[list(columns)]  # pandas restores its named indexes
            try:
                yield frame.assign(**{name: _as_text(frame[name]) for name in texts})
            except UnicodeDecodeError as error:
                raise _unreadable(path, error) from None
        return
    names = column_names(path, dialect)
    _check_no_zero_bytes(path)
    try:
        # Without usecols, with which pandas accepts rows that are too long.
        reader = pd.read_csv(
            path, sep=dialect.separator, decimal=dialect.decimal, header=0, names=names, dtype=dict.fromkeys(texts, str),
            na_values=MISSING_WORDS, keep_default_na=False, encoding="utf-8-sig", chunksize=ROWS, skipinitialspace=True,
            low_memory=False, on_bad_lines="error",
        )  # fmt: skip
        with reader:
            for frame in reader:
                yield frame[list(columns)].assign(**{name: frame[name].str.strip().str.normalize("NFC") for name in texts})
    except pd.errors.EmptyDataError:
        return
    except _reading_errors(path) as error:
        raise _unreadable(path, error) from None


def _check_no_zero_bytes(path: Path) -> None:
    """Raise ValueError for a text file with zero bytes, before which pandas ends the value: it would read 12, 0, 34 as 12.

    Computers that lose power leave them in files that are being written.
    """
    try:
        with _open_bytes(path) as file:
            found = any(b"\0" in block for block in iter(lambda: file.read(BYTES), b""))
    except _reading_errors(path) as error:
        raise _unreadable(path, error) from None
    if found:
        raise ValueError(f"{path} must be UTF-8 text, got zero bytes")


@contextmanager
def _open_bytes(path: Path) -> Iterator[IO[bytes]]:
    """Open a text file, or the first file in a zip file, for reading its bytes without their compression."""
    suffix = path.suffix.lower()
    if suffix == ".zip":
        with zipfile.ZipFile(path) as archive, archive.open(archive.namelist()[0]) as file:
            yield file
    elif suffix in COMPRESSED:
        module = import_module({".gz": "gzip", ".bz2": "bz2", ".xz": "lzma"}[suffix])  # some builds of Python lack a module
        with module.open(path) as file:
            yield file
    else:
        with path.open("rb") as file:
            yield file


def _reading_errors(path: Path) -> tuple[type[Exception], ...]:
    """Return the errors that reading a text file may raise, also one that is damaged or not compressed as its name says."""
    errors: tuple[type[Exception], ...] = (ValueError, OSError, EOFError, zlib.error, zipfile.BadZipFile)
    return (*errors, import_module("lzma").LZMAError) if path.suffix.lower() == ".xz" else errors


def _as_text(column: "pd.Series") -> "pd.Series":
    """Return a column of Parquet as text, with NaN for missing values; whole numbers without a decimal point."""
    import pandas as pd

    if pd.api.types.is_datetime64_any_dtype(column):
        return column.map(lambda date: date.isoformat(), na_action="ignore").astype(object)
    if pd.api.types.is_float_dtype(column):
        numbers = column.to_numpy(column.dtype if column.dtype.kind == "f" else np.float64, na_value=np.nan)
        return pd.Series([np.nan if np.isnan(number) else number_text(number) for number in numbers], column.index, object)
    words = column.map(lambda word: word.decode() if isinstance(word, bytes) else str(word), na_action="ignore").astype(object)
    return words.str.normalize("NFC") if words.notna().any() else words


def number_text(number: np.floating) -> str:
    """Return the shortest decimal number that is read as this one in its own precision; a whole one without a decimal point."""
    return str(int(number)) if number.is_integer() else str(number)


def _unreadable(path: Path, error: Exception) -> ValueError:
    """Return the error for a file that cannot be read as a table."""
    if isinstance(error, UnicodeDecodeError):
        byte = error.object[error.start]
        return ValueError(f"{path} must be UTF-8 text, got the byte 0x{byte:02x}; spreadsheets save this form as CSV UTF-8")
    reason = getattr(error, "strerror", None) or one_line(error).removeprefix("Error tokenizing data. C error: ")
    return ValueError(f"{path} cannot be read: {reason}")


def _parquet(path: Path) -> Any:
    """Open a Parquet file. Raises ImportError naming the package to install, ValueError for a file that is none."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ModuleNotFoundError:
        needed = "pip install pyarrow, or longscan[parquet]"
        raise ImportError(f"{path} is a Parquet file, which needs the package pyarrow: {needed}") from None
    try:
        return pq.ParquetFile(path, memory_map=True)
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(path, error) from None


def list_columns(columns: Sequence[str]) -> str:
    """Return names of columns, separated by commas; a name with a comma is in double quotes."""
    return ", ".join(f'"{name}"' if "," in name else name for name in columns)


def check_column(setting: str, name: str, columns: Sequence[str], path: str | Path) -> None:
    """Raise SettingError if no column has a name, with the most similar names."""
    if name not in columns:
        near = get_close_matches(name, columns, 2)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        shown = cut(list_columns(columns[:12]) + (", ..." if len(columns) > 12 else ""))
        raise setting_error(setting, name, f"a column of {path}; {hint}its columns are {shown}")


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of an .npz file by name. Raises ValueError if it is damaged, another format or contains objects."""
    try:
        with np.load(path, allow_pickle=False) as content:
            return {name: content[name] for name in content.files}
    except Exception as error:  # a damaged archive can raise almost any exception
        if isinstance(error, OSError) and error.strerror:
            raise _unreadable(path, error) from None
        reason = one_line(error)[:100]
        raise ValueError(f"{path} must be an .npz file of numbers and text, got another or a damaged one ({reason})") from None
