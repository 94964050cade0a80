"""Where data folders are, arrays made from files once and memory-mapped from then on, and sequences of unequal lengths as arrays.

Arrays are kept under `$LONGSCAN_CACHE`, else `~/.cache/longscan`, by what they were made from: settings, and the files' paths,
sizes and times of change. A changed file makes new arrays. Where nothing can be written they stay in memory.
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

VERSION = 2  # of what is stored; a change of a reader's output must raise it
Arrays = dict[str, np.ndarray]
_log = logging.getLogger("longscan")


def area_folder(area: str) -> Path | None:
    """`$LONGSCAN_DATA/area`, there or not; None where the variable is not set."""
    root = os.environ.get("LONGSCAN_DATA")
    return None if root is None else Path(root) / area


def data_folder(data_dir: str | None, area: str, wanted: str) -> Path:
    """The folder that `data_dir` names, else `$LONGSCAN_DATA/area`; FileNotFoundError saying what it should hold."""
    folder = area_folder(area) if data_dir is None else Path(data_dir)
    if folder is None:
        raise FileNotFoundError(f"data_dir: name the folder with {wanted}, or set LONGSCAN_DATA to a folder with it in {area}/")
    if not folder.is_dir():
        raise FileNotFoundError(f"data_dir: {folder} is no folder; one with {wanted} is needed")
    return folder


def first_existing(folder: Path, names: Sequence[str], wanted: str) -> Path:
    """The first of several paths below a folder that is there; FileNotFoundError naming what was looked for."""
    for name in names:
        if (folder / name).exists():
            return folder / name
    raise FileNotFoundError(f"data_dir: {folder} holds no {' or '.join(names)}; {wanted}")


def load_array(path: str | Path) -> np.ndarray:
    """The array of an .npy file; ValueError naming the file where it is none, or holds objects."""
    try:
        array = np.load(path, allow_pickle=False)
    except Exception as error:  # a damaged header is a damaged Python expression and fails in any way
        lines = str(getattr(error, "strerror", None) or error).splitlines() or ["it is cut off"]
        raise ValueError(f"{path}: is no readable .npy file: {lines[0][:120]}") from None
    if not isinstance(array, np.ndarray):
        raise ValueError(f"{path}: is no readable .npy file: it holds several arrays")
    return array


def stored(name: str, sources: Iterable[Path], settings: object, make: Callable[[], Arrays]) -> Arrays:
    """The arrays that `make` returns, memory-mapped; made only where they are not kept yet for these sources and settings.

    Safe with many processes: each writes a folder of its own and moves it into place.
    """
    facts: list[object] = [VERSION, name, repr(settings)]
    for path in sources:
        status = path.stat()
        facts.append((str(path.resolve()), status.st_size, status.st_mtime_ns))
    folder = cache_folder() / f"{name}-{hashlib.blake2b(repr(facts).encode(), digest_size=12).hexdigest()}"
    if not folder.is_dir():
        arrays = make()
        try:
            _write(folder, arrays)
        except OSError as error:
            _log.warning("%s: arrays can not be kept (%s), so they are made again by the next process", folder, error.strerror)
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
        if not folder.is_dir():  # otherwise another process was first
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
        for line, row, length in zip(table, rows.tolist(), lengths.tolist(), strict=True):
            line[:length] = self.values[self.offsets[row] : self.offsets[row] + length]
        return table, lengths
