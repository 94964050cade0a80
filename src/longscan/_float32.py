"""The range of float32, in which models compute, and the whole numbers that float64, in which data are read, has exactly."""

import re
from typing import Any

import numpy as np

FLOAT32_MAX = float(np.finfo(np.float32).max)
MAX_EXACT_INTEGER = 2**53  # float64 represents all whole numbers from 0 to this one exactly, but not the next one
_WHOLE = re.compile(r"\s*[+-]?\d+\s*")


def find_out_of_range(values: np.ndarray) -> tuple[int, ...] | None:
    """Return the index of the first value that is NaN or beyond the range of float32; None if there is none."""
    beyond = ~(np.abs(values) <= FLOAT32_MAX)
    return tuple(int(axis) for axis in np.unravel_index(int(beyond.argmax()), beyond.shape)) if beyond.any() else None


def check_exact_integers(original: Any, converted: np.ndarray, source: str) -> None:
    """Raise ValueError if a whole number is larger than 2^53, so that its conversion to float64 may have changed it.

    Args:
        original: the numbers before the conversion, of any type, or words of a text file.
        converted: the same numbers in float64.
        source: name of the numbers in the error.
    """
    large = np.abs(converted) >= MAX_EXACT_INTEGER
    if not large.any() or getattr(getattr(original, "dtype", None), "kind", "") == "f":
        return
    for number in np.asarray(original, dtype=object)[large]:
        is_whole = isinstance(number, int | np.integer) or (isinstance(number, str) and _WHOLE.fullmatch(number) is not None)
        if is_whole and abs(int(number)) > MAX_EXACT_INTEGER:
            raise ValueError(
                f"{source} must contain whole numbers of at most 2^53, which float64 has without gaps, got {number}; subtract a "
                "number from all of them"
            )
