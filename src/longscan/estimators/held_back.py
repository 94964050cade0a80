"""The last part of each series, which is held back to choose a model: its windows, and the errors of models on them."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from longscan.estimators.readout import exceeds_chance
from longscan.estimators.series import StandardisedSeries
from longscan.models import Forecaster

HELD_BACK = 0.2  # fraction of each series that is held back
COMPARED = 500  # largest number of windows of the held-back part on which models are compared, evenly spaced
BLOCK_GAIN = 0.1  # smallest relative gain in the error on the held-back part for which the blocks are used


class Windows(NamedTuple):
    """Numbers of windows that begin at consecutive steps of each of n series, counted series by series, without a table.

    first: (n,), the step at which the first window of each series begins. end: (n,), the cumulative number of windows.
    """

    first: np.ndarray
    end: np.ndarray

    @classmethod
    def between(cls, first: np.ndarray, last: np.ndarray) -> "Windows":
        """Return the windows that begin at the steps `first` to `last` (n,) of each series, none where last < first."""
        return cls(first, np.cumsum(np.maximum(last - first + 1, 0)))

    @property
    def total(self) -> int:
        """Number of windows."""
        return int(self.end[-1])

    def starts(self, numbers: np.ndarray) -> np.ndarray:
        """Return the index of the series and the first step, (m, 2), of the windows with these numbers (m,)."""
        series = np.searchsorted(self.end, numbers, side="right")
        before = np.concatenate([[0], self.end])[series]
        return np.stack([series, self.first[series] + numbers - before], 1)


def first_part(series: StandardisedSeries, horizon: int) -> StandardisedSeries:
    """Return the series without the last part of each, which has at least `horizon` steps."""
    return series._replace(lengths=first_lengths(series.lengths, horizon))


def first_lengths(lengths: np.ndarray, horizon: int) -> np.ndarray:
    """Return the lengths (n,) of series without their last parts, see `first_part`."""
    return np.maximum(lengths - np.maximum(np.floor(HELD_BACK * lengths).astype(int), horizon), 0)


def later_starts(lengths: np.ndarray, early: np.ndarray, window: int, horizon: int) -> np.ndarray:
    """Return series number and first step of at most `COMPARED` windows whose forecasts lie after the first part, (count, 2)."""
    windows = Windows.between(np.maximum(early - window, 0), lengths - window - horizon)
    return windows.starts(np.arange(0, windows.total, math.ceil(windows.total / COMPARED)))


def count_independent(starts: np.ndarray, horizon: int) -> np.ndarray:
    """Return for each step ahead (horizon,) the approximate number of independent errors of the windows at `starts` (n, 2).

    Errors k steps ahead are not independent if their origins are less than k steps apart, as they contain errors of the same
    steps.
    """
    found = np.zeros(horizon)
    for series in np.unique(starts[:, 0]):
        firsts = starts[starts[:, 0] == series, 1]
        found += np.minimum(len(firsts), 1 + (firsts[-1] - firsts[0]) / (1 + np.arange(horizon)))
    return found


class Validation:
    """Errors of models on windows that are held back, where what the blocks add is scaled to the lowest squared error.

    true: (n, horizon, C), the steps after the windows. forecast: returns the forecasts of a model. curve: mean squared error of
    the linear forecast, with which evaluation starts, and after each epoch. shares: the factors of the blocks, from 0 to 1.
    """

    def __init__(self, true: np.ndarray, forecast: Callable[[Forecaster], np.ndarray]) -> None:
        self.true, self.forecast = true, forecast
        self.linear: np.ndarray | None = None
        self.curve: list[float] = []
        self.shares: list[float] = []
        self._squares: list[np.ndarray] = []  # errors of the windows, (n,), after each epoch

    def evaluate(self, model: Forecaster) -> float:
        """Return the error of a model and append it to the curve."""
        training = model.training
        model.eval()
        forecast = self.forecast(model)
        model.train(training)
        self.linear = forecast if self.linear is None else self.linear
        added, error = forecast - self.linear, self.true - self.linear
        square = float(np.square(added).sum())
        self.shares.append(min(max(float((added * error).sum()) / square, 0.0), 1.0) if 0 < square < math.inf else 0.0)
        squares = np.square(error - self.shares[-1] * added)
        self._squares.append(squares.reshape(len(squares), -1).mean(1))
        self.curve.append(float(squares.mean()))
        return self.curve[-1]

    def best_epoch(self, independent: int) -> int:
        """Return the number of epochs of lowest error; 0, the linear forecast, without a gain of `BLOCK_GAIN` beyond chance.

        independent: how many of the windows have no common steps.
        """
        best = int(np.nanargmin(self.curve))  # the error of the linear forecast is always a number
        if not self.curve[best] < (1 - BLOCK_GAIN) * self.curve[0]:
            return 0
        return best if exceeds_chance(self._squares[0] - self._squares[best], independent) else 0
