"""CIFAR-10's "python version" batches: pickles, read without running any code that they name.

A pickle is a program. The reader allows numbers, texts, lists, dictionaries, and arrays of bytes through the stub classes in
this file. It refuses everything else, so a manipulated file can only cause an error.
"""

import pickle
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from longscan._files import read_bytes

_PIXELS = 3 * 32 * 32


class Images(NamedTuple):
    """Images of CIFAR-10 with their labels: (n, 32, 32, 3) uint8 and (n,) int64."""

    images: np.ndarray
    labels: np.ndarray


class _ArrayStub:
    """Replacement of numpy's array while a pickle is read; receives the state that numpy pickles."""

    values: np.ndarray | None = None

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, column_major, raw = state
        if not isinstance(kind, _DtypeStub) or kind.name not in ("u1", "|u1", b"u1", b"|u1") or not isinstance(raw, bytes):
            raise pickle.UnpicklingError("arrays must hold bytes")
        values = np.frombuffer(raw, np.uint8)
        self.values = values.reshape(tuple(int(size) for size in shape), order="F" if column_major else "C")


class _DtypeStub:
    """Replacement of numpy's dtype while a pickle is read; only its name is used."""

    def __init__(self, name: Any = None, *_: Any) -> None:
        self.name = name

    def __setstate__(self, state: Any) -> None:
        """Ignore the byte order, which single bytes do not have."""


def _new_array(*_: Any) -> _ArrayStub:
    return _ArrayStub()


def _encode_latin1(text: Any, encoding: Any) -> bytes:
    if encoding != "latin1" or not isinstance(text, str):
        raise pickle.UnpicklingError(f"the encoding must be latin1, got {encoding!r}")
    return text.encode("latin1")


_ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"): _new_array,
    ("numpy._core.multiarray", "_reconstruct"): _new_array,
    ("numpy", "ndarray"): _ArrayStub,
    ("numpy", "dtype"): _DtypeStub,
    ("_codecs", "encode"): _encode_latin1,
}


class _RestrictedUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Return the stub class of an allowed name. Raises UnpicklingError for any other."""
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which a CIFAR-10 batch does not need") from None


def read_batch(path: Path) -> Images:
    """Read one file of the python version, a dictionary with data (n, 3072) and labels.

    Raises ValueError for any other content.
    """
    raw = read_bytes(path)
    try:
        content = _RestrictedUnpickler(BytesIO(raw), encoding="bytes").load()
    except Exception as error:  # a damaged pickle can raise any exception
        why = str(error).splitlines()[0][:120] if str(error) else type(error).__name__
        raise ValueError(f"{path} must be a batch file of CIFAR-10, got another or a damaged one ({why})") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} must be a batch file of CIFAR-10, which is a dictionary, got a {type(content).__name__}")
    data, labels = (content.get(key.encode(), content.get(key)) for key in ("data", "labels"))
    pixels = data.values if isinstance(data, _ArrayStub) else None
    if pixels is None or pixels.ndim != 2 or pixels.shape[1] != _PIXELS:
        raise ValueError(f"{path}: 'data' must be bytes of shape (images, {_PIXELS}), got something else")
    if not isinstance(labels, list) or len(labels) != len(pixels) or not all(type(x) is int and 0 <= x < 10 for x in labels):
        raise ValueError(f"{path}: 'labels' must be {len(pixels)} numbers from 0 to 9, got something else")
    return Images(pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), np.array(labels, np.int64))
