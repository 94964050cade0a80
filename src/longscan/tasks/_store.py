"""Data folders, a cache of arrays that are computed from files, and sequences of unequal lengths as arrays.

The cache is a folder in `$LONGSCAN_CACHE`, else `~/.cache/longscan`. Its key consists of the settings and of the paths, sizes and
times of change of the files, so a changed file gives new arrays. If the folder is not writable, arrays stay in memory.
"""

import hashlib
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from longscan._files import cache_folder

VERSION = 6  # version of the cached arrays; must be increased when the output of a reader changes
WINDOWS_FILES = ("desktop.ini", "thumbs.db")  # in lower case
Arrays = dict[str, np.ndarray]
_log = logging.getLogger("longscan")


def default_data_folder(area: str) -> Path | None:
    """Return `$LONGSCAN_DATA/area`, which need not exist, or None if the variable is not set."""
    root = os.environ.get("LONGSCAN_DATA")
    return None if root is None else Path(root) / area


def data_folder(data_dir: str | None, area: str, needed: str) -> Path:
    """Return the folder `data_dir`, or `$LONGSCAN_DATA/area` if it is None.

    Raises FileNotFoundError naming the `needed` files.
    """
    folder = default_data_folder(area) if data_dir is None else Path(data_dir)
    if folder is None:
        elsewhere = f"unless LONGSCAN_DATA names a folder that has them in {area}/"
        raise FileNotFoundError(f"`data_dir` must be a folder with {needed}, {elsewhere}, got None")
    if not folder.is_dir():
        raise FileNotFoundError(f"`data_dir` must be a folder with {needed}, got {folder}, which is not a folder")
    return folder


def visible_paths(folder: Path, pattern: str = "**/*") -> list[Path]:
    """Return the paths in a folder that match a pattern of `Path.glob`, sorted, without hidden ones.

    Hidden are files and folders whose names begin with a dot (.DS_Store, ._image.png, .ipynb_checkpoints), all that is in such
    folders, and the files that Windows adds to folders. The folder itself may be hidden.
    """
    found = (path for path in folder.glob(pattern) if path.name.lower() not in WINDOWS_FILES)
    return sorted(path for path in found if not any(part.startswith(".") for part in path.relative_to(folder).parts))


def first_existing(folder: Path, names: Sequence[str], needed: str) -> Path:
    """Return the first of several relative paths that exists in a folder. Raises FileNotFoundError naming them and `needed`."""
    for name in names:
        if (folder / name).exists():
            return folder / name
    raise FileNotFoundError(f"`data_dir` must be a folder with {needed}, got {folder} without {' or '.join(names)}")


def load_array(path: str | Path) -> np.ndarray:
    """Return the array of an .npy file.

    Raises ValueError naming the file if it is damaged, another format or contains objects.
    """
    try:
        array = np.load(path, allow_pickle=False)
    except Exception as error:  # the header is a Python expression, so a damaged one can raise any exception
        if isinstance(error, OSError) and error.strerror:
            raise ValueError(f"{path} cannot be read: {error.strerror}") from None
        lines = str(error).splitlines() or ["it is cut off"]
        raise ValueError(f"{path} must be an .npy file of numbers, got another or a damaged one ({lines[0][:120]})") from None
    if not isinstance(array, np.ndarray):
        raise ValueError(f"{path} must be an .npy file of one array, got several arrays")
    return array


def cached_arrays(name: str, sources: Iterable[Path], settings: object, compute: Callable[[], Arrays]) -> Arrays:
    """Return the arrays that `compute` returns, memory-mapped; call it only if the cache lacks them for these files and settings.

    name: prefix of the cache folder. sources: the files that are read. Safe for several processes: each writes a temporary
    folder and renames it.
    """
    key: list[object] = [VERSION, name, repr(settings)]
    for path in sources:
        status = path.stat()
        key.append((str(path.resolve()), status.st_size, status.st_mtime_ns))
    folder = cache_folder() / f"{name}-{hashlib.blake2b(repr(key).encode(), digest_size=12).hexdigest()}"
    if not folder.is_dir():
        arrays = compute()
        try:
            _write(folder, arrays)
        except OSError as error:
            _log.warning("%s: arrays cannot be cached (%s), so the next process computes them again", folder, error.strerror)
            return arrays
    return {path.stem: np.load(path, mmap_mode="r", allow_pickle=False) for path in folder.glob("*.npy")}


def _write(folder: Path, arrays: Arrays) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    try:
        for name, array in arrays.items():
            np.save(temporary / f"{name}.npy", array, allow_pickle=False)
        temporary.rename(folder)
    except OSError:
        shutil.rmtree(temporary, ignore_errors=True)
        if not folder.is_dir():  # otherwise another process has written the same arrays
            raise


class Ragged(NamedTuple):
    """Sequences of unequal lengths in one array: number i is values[offsets[i]:offsets[i + 1]].

    values: (T,) or (T, C); offsets: (N + 1,) int64.
    """

    values: np.ndarray
    offsets: np.ndarray

    @classmethod
    def from_sequences(cls, sequences: Sequence[ArrayLike], dtype: type | None = None) -> "Ragged":
        """Concatenate sequences, each (L,) or (L, C); dtype: of the values, None for that of the concatenation."""
        arrays = [np.asarray(sequence) for sequence in sequences]
        offsets = np.concatenate([[0], np.cumsum([len(array) for array in arrays])]).astype(np.int64)
        return cls(np.concatenate(arrays).astype(dtype, copy=False) if dtype else np.concatenate(arrays), offsets)

    @property
    def lengths(self) -> np.ndarray:
        """Number of steps of each sequence, (N,)."""
        return np.diff(self.offsets)

    def pad(self, rows: np.ndarray | None, fill: float) -> tuple[np.ndarray, np.ndarray]:
        """Return the sequences with numbers `rows` (None: all) as one array (n, longest[, C]) and their lengths (n,).

        The array has the value `fill` after the end of each sequence.
        """
        rows = np.arange(len(self.offsets) - 1) if rows is None else rows
        lengths = self.offsets[rows + 1] - self.offsets[rows]
        table = np.full((len(rows), int(lengths.max()), *self.values.shape[1:]), fill, self.values.dtype)
        values = np.asarray(self.values)  # a slice of a memory map takes ten times as long as one of an array
        for line, row, length in zip(table, rows.tolist(), lengths.tolist(), strict=True):
            line[:length] = values[self.offsets[row] : self.offsets[row] + length]
        return table, lengths
