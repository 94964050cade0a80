"""The range of float32, in which models compute; data are read in float64."""

import numpy as np

LARGEST = float(np.finfo(np.float32).max)


def first_beyond(values: np.ndarray) -> tuple[int, ...] | None:
    """Return the index of the first value that is not finite in float32, None if there is none."""
    beyond = ~(np.abs(values) <= LARGEST)
    return tuple(int(axis) for axis in np.unravel_index(int(beyond.argmax()), beyond.shape)) if beyond.any() else None
