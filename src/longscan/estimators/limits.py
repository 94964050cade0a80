"""Numbers that stand for missing values in the channels of series, and limits that the values of a channel do not cross."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from longscan.estimators.series import Collection

CODE_DISTANCE = 5  # smallest distance of a code from all other values, in units of their range
SMALLEST_CODE = 99
LIMIT_SHARE = 0.01  # smallest fraction of the steps at which a limit is reached
LIMIT_VISITS = 5  # smallest number of separate runs of steps at which a limit is reached, some in each half of the steps


class Limits(NamedTuple):
    """Smallest and largest value of each channel, (C,), infinite without a limit, and rounding of the values, (C,)."""

    lower: np.ndarray
    upper: np.ndarray
    rounding: np.ndarray

    def apply(self, forecasts: np.ndarray, smallest: np.ndarray, largest: np.ndarray) -> np.ndarray:
        """Return forecasts (n, horizon, C, K) within the limits, which extend to the values of the window before.

        smallest, largest: (n, C), of the values of each window.
        """
        lower = np.where(smallest < self.lower - self.rounding, smallest, self.lower)
        upper = np.where(largest > self.upper + self.rounding, largest, self.upper)
        return np.clip(forecasts, lower[:, None, :, None], upper[:, None, :, None])


def find_codes(collection: Collection) -> list[float | None]:
    """Return for each channel the number that stands for missing values, None without one.

    It consists of nines, is the smallest or largest value, and is farther from all others than `CODE_DISTANCE` times their range.
    A channel of two values, such as 0 and a price of 99, has no code, as its other value has no range.
    """
    codes: list[float | None] = []
    for column in collection.values[collection.valid].T:
        extremes = (float(column.min(initial=0.0)), float(column.max(initial=0.0)))
        found = None
        for extreme in extremes:
            if set(f"{abs(extreme):g}".replace(".", "")) == {"9"} and abs(extreme) >= SMALLEST_CODE:
                others = column[column != extreme]
                spread = float(np.ptp(others)) if len(others) else 0.0
                if spread and np.abs(others - extreme).min() > CODE_DISTANCE * spread:
                    found = extreme
        codes.append(found)
    return codes


def fill_codes(collection: Collection, codes: Sequence[float | None], fallback: np.ndarray) -> Collection:
    """Return the collection with each code replaced by the last value before it, or leading codes by the first value after them.

    codes: as `find_codes` returns them. fallback: (C,), the values of series that have only codes.
    """
    if all(code is None for code in codes):
        return collection
    values, valid = collection.values.copy(), collection.valid
    steps = np.arange(values.shape[1])
    for channel, code in enumerate(codes):
        missing = values[..., channel] == code
        for row in np.flatnonzero((missing & valid).any(1)):
            known = ~missing[row] & valid[row]
            if known.any():
                last = np.maximum.accumulate(np.where(known, steps, known.argmax()))
                values[row, valid[row], channel] = values[row, last[valid[row]], channel]
            else:
                values[row, valid[row], channel] = fallback[channel]
    return replace(collection, values=values)


def without_values(collection: Collection, codes: Sequence[float | None]) -> list[tuple[int, int]]:
    """Return (series, channel) for each channel of a series that has only the code of missing values. codes: of channels."""
    found = []
    for channel, code in enumerate(codes):
        if code is not None:
            only_codes = ((collection.values[..., channel] == code) | ~collection.valid).all(1) & (collection.lengths > 0)
            found += [(int(row), channel) for row in np.flatnonzero(only_codes)]
    return sorted(found)


def find_limits(collection: Collection, rounding: np.ndarray) -> Limits:
    """Return the smallest and largest value of each channel where it is a hard limit, such as 0 of rain or 100 of humidity.

    The channel must reach the value at a fraction `LIMIT_SHARE` of the steps, in at least `LIMIT_VISITS` separate runs, and in
    both halves of the steps. rounding: (C,), bounds of the rounding errors of the values that the forecaster reads.
    """
    flat = collection.values[collection.valid]
    first_half = (np.arange(collection.values.shape[1]) < collection.lengths[:, None] / 2)[collection.valid]

    def is_limit(reached: np.ndarray) -> np.ndarray:
        visits = (reached & ~np.vstack([np.zeros_like(reached[:1]), reached[:-1]])).sum(0)
        in_both = reached[first_half].any(0) & reached[~first_half].any(0)
        return np.asarray((reached.mean(0) >= LIMIT_SHARE) & (visits >= LIMIT_VISITS) & in_both)

    lower, upper = flat.min(0), flat.max(0)
    lower = np.where(is_limit(flat == lower), lower, -np.inf)
    return Limits(lower, np.where(is_limit(flat == upper), upper, np.inf), rounding)
