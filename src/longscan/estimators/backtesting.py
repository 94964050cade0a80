"""Forecasts from many cutoffs of series in one frame, next to the seasonal naive forecast, and their errors."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from longscan.estimators.clock import as_clock
from longscan.estimators.forecast_series import History, channel_labels, last_known, quantile_column
from longscan.estimators.reading import flat_index
from longscan.estimators.series import Collection, cut_windows

QUANTILE_COLUMN = re.compile(r"q(0\.\d+)")


def find_cutoffs(collection: Collection, start: Any, stride: int, horizon: int) -> np.ndarray:
    """Return the cutoffs of all series, (n, 2): the index of the series, and the number of steps that are known.

    start: the number of steps known at the first cutoff, or the time stamp of the first step that is forecast. Raises ValueError
    if it is neither, or if no series has `horizon` steps after it.
    """
    if isinstance(start, (int, np.integer)) and not isinstance(start, bool) and start < 1:
        raise ValueError(f"`start` must be a number of at least 1 step or a time stamp of `y`, got {start}")
    cutoffs = []
    for row, length in enumerate(collection.lengths):
        first = start
        if not isinstance(start, (int, np.integer)) or isinstance(start, bool):
            if collection.clocks is None:
                raise ValueError(f"`start` must be a number of steps, as `y` has no time stamps, got {start!r}")
            clock = collection.clocks[row]
            try:
                first = int(clock.searchsorted(as_clock([start], "`start`")[0]))
            except (TypeError, ValueError) as error:
                raise ValueError(f"`start` must be a number of steps or a time stamp of `y`, got {start!r} ({error})") from None
        cutoffs += [(row, cut) for cut in range(max(1, first), length - horizon + 1, stride)]
    if not cutoffs:
        raise ValueError(
            f"`y` must have {horizon} steps, the horizon, after `start`, {start!r}, got series of at most "
            f"{collection.lengths.max()} steps"
        )
    return np.array(cutoffs)


def build_frame(
    history: History, cutoffs: np.ndarray, forecasts: np.ndarray, quantiles: Sequence[float], season: int
) -> pd.DataFrame:
    """Return the forecasts as a frame with a row for each cutoff, step ahead and channel.

    forecasts: (n, horizon, C, 1 + Q), the point forecast and the quantiles from each of the cutoffs (n, 2).
    """
    collection = history.collection
    count, horizon, channels, _ = forecasts.shape
    naive, scale = _seasonal_naive(collection, cutoffs, horizon, season)
    rows, ends = cutoffs.T
    if collection.clocks is None:
        cutoff, ahead = pd.Index(ends - 1), pd.Index((ends[:, None] + np.arange(horizon)).ravel())
    else:
        stamps = [collection.clocks[row][end : end + horizon] for row, end in cutoffs]
        cutoff, ahead = last_known(collection, cutoffs), stamps[0].append(stamps[1:])
    columns: dict[str, Any] = {}
    if history.form != "one":
        cases = pd.RangeIndex(len(collection)) if collection.cases is None else collection.cases
        columns["unique_id"] = cases[rows].repeat(horizon * channels)
    columns |= {"cutoff": cutoff.repeat(horizon * channels), "ds": ahead.repeat(channels)}
    if history.form != "long":
        columns["channel"] = flat_index(channel_labels(history)).take(np.tile(np.arange(channels), count * horizon))
    columns |= {"y": cut_windows(collection.values, cutoffs, horizon).ravel(), "forecast": forecasts[..., 0].ravel()}
    columns |= {quantile_column(quantile): forecasts[..., 1 + k].ravel() for k, quantile in enumerate(quantiles)}
    columns |= {"seasonal_naive": naive.ravel(), "naive_scale": np.repeat(scale[rows, None], horizon, 1).ravel()}
    return pd.DataFrame(columns)


def _seasonal_naive(collection: Collection, cutoffs: np.ndarray, horizon: int, season: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the steps one season earlier as forecasts (n, horizon, C), and the scale of the errors of each series (n, C).

    The scale is the mean absolute difference of steps one season apart, before the first cutoff. Series shorter than a season
    repeat their last value.
    """
    rows, ends = cutoffs.T
    seasons = np.where(ends >= season, season, 1)
    earlier = ends[:, None] - seasons[:, None] + np.arange(horizon) % seasons[:, None]
    scale = np.full((len(collection), collection.channels), np.nan)
    for row in np.unique(rows):
        first = ends[rows == row].min()
        known = collection.values[row, :first]
        lag = season if first > season else 1
        if first > lag:
            scale[row] = np.abs(known[lag:] - known[:-lag]).mean(0)
    return collection.values[rows[:, None], earlier], scale


def score_forecasts(forecasts: pd.DataFrame, by: str | Sequence[str] | None = None) -> pd.DataFrame:
    """Return the errors of forecasts and of the seasonal naive forecast next to them.

    Args:
        forecasts: the frame of `SSMForecaster.backtest`.
        by: columns whose values have separate rows, such as "channel" or "unique_id"; None or [] for one row for all.

    Returns:
        A frame with the rows "forecast" and "seasonal_naive" and the columns mse, mae and mase, the mean absolute error in units
        of the mean absolute difference of steps one season apart before the first cutoff (constant series are left out). With
        quantiles also pinball, the mean pinball loss of all quantiles; "covered q0.1" and so on, the share of values at most as
        large as the quantile; and "covered 0.8" and so on, the share of values within each central interval.

    Raises ValueError if `forecasts` is not such a frame, lacks a column or has no rows.
    """
    keys = [by] if isinstance(by, str) else list(by or [])
    needed = ["y", "forecast", "seasonal_naive", "naive_scale", *keys]
    if not isinstance(forecasts, pd.DataFrame):
        raise ValueError(f"`forecasts` must be the frame of backtest, got a {type(forecasts).__name__}")
    lacking = [name for name in needed if name not in forecasts.columns]
    if lacking:
        raise ValueError(f"`forecasts` must be the frame of backtest, with the columns {', '.join(needed)}, got no {lacking[0]}")
    if not len(forecasts):
        raise ValueError("`forecasts` must have at least one row, got none")
    if keys:
        groups = {key if len(keys) > 1 else key[0]: score_forecasts(rows) for key, rows in forecasts.groupby(keys, sort=False)}
        return pd.concat(groups, names=[*keys, "forecast"])
    y = forecasts["y"].to_numpy()
    scale = forecasts["naive_scale"].replace(0, np.nan).to_numpy()
    scores = {}
    for name in ("forecast", "seasonal_naive"):
        error = np.abs(forecasts[name].to_numpy() - y)
        relative = (error / scale)[~np.isnan(scale)]
        scores[name] = {"mse": np.mean(error**2), "mae": error.mean(), "mase": relative.mean() if len(relative) else np.nan}
    quantiles = {float(match[1]): name for name in forecasts.columns if (match := QUANTILE_COLUMN.fullmatch(str(name)))}
    if quantiles:
        values = {quantile: forecasts[name].to_numpy() for quantile, name in quantiles.items()}
        losses = [np.maximum(q * (y - value), (q - 1) * (y - value)).mean() for q, value in values.items()]
        scores["forecast"]["pinball"] = np.mean(losses)
        for quantile, name in quantiles.items():
            scores["forecast"][f"covered {name}"] = np.mean(y <= values[quantile])
        for lower in sorted(quantiles):
            upper = next((q for q in quantiles if lower < 0.5 and np.isclose(q, 1 - lower)), None)
            if upper is not None:
                inside = (values[lower] <= y) & (y <= values[upper])
                scores["forecast"][f"covered {upper - lower:g}"] = inside.mean()
    return pd.DataFrame(scores).T
