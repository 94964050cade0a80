"""The range of float32, in which models compute, and of whole numbers in float64, in which data are read."""

import re
from typing import Any

import numpy as np

LARGEST = float(np.finfo(np.float32).max)
MAX_WHOLE = 2**53  # largest whole number up to which float64 has all
_WHOLE = re.compile(r"\s*[+-]?\d+\s*")


def first_beyond(values: np.ndarray) -> tuple[int, ...] | None:
    """Return the index of the first value that is not finite in float32, None if there is none."""
    beyond = ~(np.abs(values) <= LARGEST)
    return tuple(int(axis) for axis in np.unravel_index(int(beyond.argmax()), beyond.shape)) if beyond.any() else None


def check_whole(given: Any, converted: np.ndarray, source: str) -> None:
    """Raise ValueError if one of the given whole numbers is too large for float64 to have it and its neighbours.

    given: numbers of any type, or words of a text file. converted: the same in float64. source: their name in the error.
    """
    large = np.abs(converted) >= MAX_WHOLE
    if not large.any() or getattr(getattr(given, "dtype", None), "kind", "") == "f":
        return
    for number in np.asarray(given, dtype=object)[large]:
        is_whole = isinstance(number, int | np.integer) or (isinstance(number, str) and _WHOLE.fullmatch(number) is not None)
        if is_whole and abs(int(number)) > MAX_WHOLE:
            raise ValueError(
                f"{source} must contain whole numbers of at most 2^53, which float64 has without gaps, got {number}; subtract a "
                "number from all of them"
            )
