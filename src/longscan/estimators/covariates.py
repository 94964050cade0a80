"""Covariates of forecasts: series whose values are known ahead, such as holidays or prices, and their linear effect.

The weights are those of `longscan.numerics.regression`, whose errors may resemble their neighbours. The forecaster reads the
series without the effect, and adds the effect of the steps ahead to its forecast.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from longscan.estimators.forecast_series import LONG_COLUMNS, find_form, index_long
from longscan.estimators.reading import FittedChannels, Layout, convert_input, read_collection
from longscan.estimators.series import Collection
from longscan.numerics.regression import generalised_least_squares

Array = np.ndarray[Any, np.dtype[np.float64]]


class CovariateEffect(NamedTuple):
    """Linear effect of K covariates on C channels: the mean of each covariate, (K,), and the weights, (K, C).

    A weight is the change of a channel for a change of the covariate by 1, both in their own units.
    """

    mean: Array
    weight: Array

    def of(self, covariates: Array) -> Array:
        """Return the effect (..., C) of covariates (..., K)."""
        effect: Array = (covariates - self.mean) @ self.weight
        return effect

    def remove(self, series: Collection) -> Collection:
        """Return series with covariates without their effect."""
        assert series.covariates is not None, "called for series with covariates"
        values = series.values - self.of(series.covariates)
        return replace(series, values=np.where(series.valid[..., None], values, 0))


def fit_effect(series: Collection, lengths: np.ndarray) -> CovariateEffect:
    """Fit the effect of the covariates on the first `lengths` (n,) steps of each series."""
    covariates = series.covariates
    assert covariates is not None, "called for series with covariates"
    kept = np.flatnonzero(lengths)
    together = np.concatenate([covariates[row, : lengths[row]] for row in kept])
    mean, scale = together.mean(0), together.std(0)
    scale = np.where(scale > 1e-8 * np.abs(together).max(0, initial=1e-30), scale, 1.0)
    x = [(covariates[row, : lengths[row]] - mean) / scale for row in kept]
    weight = np.empty((len(mean), series.channels))
    for channel in range(series.channels):
        weight[:, channel] = generalised_least_squares([series.values[row, : lengths[row], channel] for row in kept], x)
    return CovariateEffect(mean, weight / scale[:, None])


def split_columns(y: Any, covariates: Any) -> tuple[Any, Any]:
    """Return a long frame with the columns unique_id, ds and y alone, and its other columns as covariates.

    Anything else is returned as it is. Raises ValueError if there are covariates in both arguments.
    """
    y = convert_input(y, "y")
    if not isinstance(y, pd.DataFrame) or not set(LONG_COLUMNS) <= set(y.columns):
        return y, covariates
    others = [name for name in y.columns if name not in LONG_COLUMNS]
    if others and covariates is not None:
        raise ValueError(
            "`covariates` must be None for a long frame `y` with columns besides unique_id, ds and y, which are covariates, got "
            f"both, and the columns {', '.join(map(repr, others))}"
        )
    return y[list(LONG_COLUMNS)], y[["unique_id", "ds", *others]] if others else covariates


def read_covariates(
    given: Any,
    series: Collection,
    stamps: Sequence[pd.Index | None],
    lengths: np.ndarray,
    *,
    layout: Layout | None,
    known: FittedChannels | None,
    argument: str,
) -> Collection:
    """Return covariates in the order of the series to which they belong.

    Args:
        given: in any form of series: for one series an array (L,) or (L, K), a Series or a frame, for several a list of these,
            an array (n, L, K), a frame indexed by (case, time), or a long frame with the columns unique_id, ds and the
            covariates.
        series: to which they belong. If both have cases, the covariates are matched by them.
        stamps: the time stamps of the steps of each series, None without any. Time stamps of the covariates must be the same;
            without any in the series, those of covariates may only be numbers, such as the index of a frame that has no other.
        lengths: (n,), the number of steps of each.
        layout: the axes of arrays.
        known: number and names of the covariates of `fit`, None in `fit`.
        argument: their name in errors.
    """
    given = convert_input(given, argument)
    if isinstance(given, pd.DataFrame) and {"unique_id", "ds"} & set(given.columns):
        lacking = [name for name in ("unique_id", "ds") if name not in given.columns]
        columns = [name for name in given.columns if name not in LONG_COLUMNS]
        if lacking or not columns or "y" in given.columns:
            raise ValueError(
                f"`{argument}` must have the columns unique_id, ds and those of the covariates as a long frame, and no column y, "
                f"got {', '.join(map(str, given.columns))}"
            )
        given = index_long(given, columns)
    elif find_form(given) == "one":
        given = [given]
    found = read_collection(given, layout=layout, known=known, argument=argument)
    if len(found) != len(series):
        raise ValueError(f"`{argument}` must have {len(series)} series, as many as `y`, got {len(found)}")
    if series.cases is not None and found.cases is not None:
        order = found.cases.get_indexer(series.cases)
        if (order < 0).any():
            lacking_cases = ", ".join(map(repr, series.cases[order < 0][:3]))
            raise ValueError(f"`{argument}` must have the series of `y`, got no series {lacking_cases}")
        found = found.select(order)
    for row, length in enumerate(lengths):
        source = f"`{argument}`" if len(series) == 1 else f"series {row} of `{argument}`"
        if found.lengths[row] != length:
            raise ValueError(f"{source} must have {length} steps, got {found.lengths[row]}")
        clock = stamps[row]
        if found.clocks is not None and clock is None and not pd.api.types.is_numeric_dtype(found.clocks[row]):
            raise ValueError(
                f"`y` must have time stamps if `{argument}` has some, by which they are matched, got {found.clocks[row][0]} ... "
                f"{found.clocks[row][-1]} in {source} and none in `y`"
            )
        if found.clocks is not None and clock is not None and not _same_stamps(found.clocks[row], clock):
            raise ValueError(
                f"{source} must have the time stamps {clock[0]} ... {clock[-1]}, got {found.clocks[row][0]} ... "
                f"{found.clocks[row][-1]}"
            )
    return found


def _same_stamps(clock: pd.Index, other: pd.Index) -> bool:
    """Return whether two clocks of equal length are the same, for dates also in different time zones."""
    dated = isinstance(clock, pd.DatetimeIndex), isinstance(other, pd.DatetimeIndex)
    if all(dated) and (clock.tz is None) == (other.tz is None):
        return bool((clock.as_unit("ns").asi8 == other.as_unit("ns").asi8).all())
    return not any(dated) and bool(clock.equals(other))
