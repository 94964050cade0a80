"""CIFAR-10's "python version" batches: pickles, read without running anything that they name.

A pickle is a program. The reader lets it build numbers, texts, lists and dictionaries, and arrays of bytes through stand-ins of
its own; whatever else it asks for is refused, so a doctored file can at worst be an error.
"""

import pickle
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

_PIXELS = 3 * 32 * 32


class Pictures(NamedTuple):
    """images: (n, 32, 32, 3) uint8; labels: (n,) int64."""

    images: np.ndarray
    labels: np.ndarray


class _Array:
    """Stands in for an array under construction; takes the state that numpy pickles."""

    values: np.ndarray | None = None

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, column_major, raw = state
        if not isinstance(kind, _Kind) or kind.name not in ("u1", "|u1", b"u1", b"|u1") or not isinstance(raw, bytes):
            raise pickle.UnpicklingError("arrays must hold bytes")
        values = np.frombuffer(raw, np.uint8)
        self.values = values.reshape(tuple(int(size) for size in shape), order="F" if column_major else "C")


class _Kind:
    """Stands in for a dtype; its name is all that counts."""

    def __init__(self, name: Any = None, *_: Any) -> None:
        self.name = name

    def __setstate__(self, state: Any) -> None:
        """The byte order, of which bytes have none."""


def _new_array(*_: Any) -> _Array:
    return _Array()


def _encoded(text: Any, encoding: Any) -> bytes:
    if encoding != "latin1" or not isinstance(text, str):
        raise pickle.UnpicklingError("only latin1 text may be encoded")
    return text.encode("latin1")


_ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"): _new_array,
    ("numpy._core.multiarray", "_reconstruct"): _new_array,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Kind,
    ("_codecs", "encode"): _encoded,
}


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """One of the stand-ins."""
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no CIFAR-10 batch needs") from None


def read_batch(path: Path) -> Pictures:
    """One file of the python version: a dictionary with data (n, 3072) and labels. ValueError where it is anything else."""
    try:
        content = _Reader(BytesIO(path.read_bytes()), encoding="bytes").load()
    except OSError as error:
        raise ValueError(f"{path}: can not be read: {error.strerror}") from None
    except Exception as error:  # a damaged pickle fails in any way
        why = str(error).splitlines()[0][:120] if str(error) else type(error).__name__
        raise ValueError(f"{path}: is no CIFAR-10 batch: {why}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path}: is no CIFAR-10 batch: a dictionary is needed, not {type(content).__name__}")
    data, labels = (content.get(key.encode(), content.get(key)) for key in ("data", "labels"))
    pixels = data.values if isinstance(data, _Array) else None
    if pixels is None or pixels.ndim != 2 or pixels.shape[1] != _PIXELS:
        raise ValueError(f"{path}: is no CIFAR-10 batch: 'data' must be bytes of shape (images, {_PIXELS})")
    if not isinstance(labels, list) or len(labels) != len(pixels) or not all(type(x) is int and 0 <= x < 10 for x in labels):
        raise ValueError(f"{path}: is no CIFAR-10 batch: 'labels' must be {len(pixels)} numbers from 0 to 9")
    return Pictures(pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), np.array(labels, np.int64))
