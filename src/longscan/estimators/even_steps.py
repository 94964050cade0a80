"""Series at uneven times as series of equal steps, by linear interpolation, and forecasts of equal steps at other times."""

import numpy as np

from longscan.estimators.series import Collection

ROUNDING = 1e-6  # of a step, by which a time may lie before a whole number of steps


def even_length(times: np.ndarray, unit: float) -> int:
    """Return how many equal steps of length `unit` end at the last of some times (L,) and begin at the first or later."""
    return 1 + int((times[-1] - times[0]) / unit + ROUNDING)


def fill_evenly(series: Collection, ends: np.ndarray, unit: float, most: np.ndarray | None = None) -> Collection:
    """Return steps of length `unit` up to some steps of series with times, by linear interpolation, without times.

    Args:
        series: (n, L, C), with times.
        ends: (m, 2), number of the series and of the steps that are known; the last of these is the last of the equal steps.
        unit: the time between two equal steps.
        most: (m,), how many equal steps there are at most, the last ones; None for all.

    Returns:
        A collection of m series of equal steps.
    """
    assert series.times is not None, "called for series with times"
    filled = []
    for number, (row, end) in enumerate(ends):
        times, values = series.times[row, :end], series.values[row, :end]
        count = even_length(times, unit)
        steps = times[-1] - unit * np.arange((count if most is None else min(count, int(most[number]))) - 1, -1, -1)
        first = max(0, int(np.searchsorted(times, steps[0], side="right")) - 1)
        filled.append(np.stack([np.interp(steps, times[first:], channel) for channel in values[first:].T], 1))
    lengths = np.array([len(one) for one in filled])
    padded = np.zeros((len(filled), lengths.max(), series.channels))
    for one, values in zip(padded, filled, strict=True):
        one[: len(values)] = values
    return Collection(padded, lengths, channel_names=series.channel_names)


def append_steps(series: Collection, steps: np.ndarray) -> Collection:
    """Return series of equal steps (n, L, C) with further ones (n, H, C) at their ends."""
    lengths = series.lengths + steps.shape[1]
    values = np.concatenate([series.values, np.zeros_like(steps)], 1)
    values[np.arange(len(steps))[:, None], series.lengths[:, None] + np.arange(steps.shape[1])] = steps
    return Collection(values, lengths, channel_names=series.channel_names)


def interpolate_forecasts(forecasts: np.ndarray, last: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Return forecasts at other times than equal steps, (n, K, C, Q), by linear interpolation.

    Args:
        forecasts: of equal steps, (n, H, C, Q).
        last: the values before them, (n, C).
        positions: (n, K), the times in steps after the last value, in increasing order. After H the last forecast is repeated.
    """
    known = np.concatenate([np.broadcast_to(last[:, None, :, None], (*forecasts[:, :1].shape,)), forecasts], 1)
    positions = np.clip(positions, 0, forecasts.shape[1])
    before = np.minimum(np.floor(positions + ROUNDING).astype(int), forecasts.shape[1] - 1)
    share = (positions - before)[..., None, None]
    rows = np.arange(len(forecasts))[:, None]
    return np.asarray((1 - share) * known[rows, before] + share * known[rows, before + 1])
