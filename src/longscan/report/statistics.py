"""Means and their intervals over seeds."""

import math
from collections.abc import Sequence

from scipy.special import stdtrit

CONFIDENCE = 0.95


def mean_interval(values: Sequence[float]) -> tuple[float, float | None]:
    """Return the mean and half the width of Student's 95 % t interval, which is None for a single value.

    The interval assumes independent, roughly normal values; with few seeds, or many scores at a bound, it is approximate.
    Raises ValueError for no values.
    """
    n = len(values)
    if n == 0:
        raise ValueError("`values` must have at least one value, got none")
    mean = math.fsum(values) / n
    if n == 1:
        return mean, None
    deviation = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (n - 1))
    return mean, float(stdtrit(n - 1, (1 + CONFIDENCE) / 2)) * deviation / math.sqrt(n)
