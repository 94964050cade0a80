"""Reading of the series of `SSMForecaster`: their forms, time zones and steps, and the time stamps of forecasts."""

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from longscan.estimators.clock import Step, as_clock, next_stamps, regular_step, same_step, step_name
from longscan.estimators.reading import FittedChannels, Layout, contains_series, convert_input, read_collection
from longscan.estimators.series import Collection


def is_several(y: Any) -> bool:
    """Return whether converted `y` is a collection of series: a list or an array of these, or a frame indexed by (case, time)."""
    if isinstance(y, list):
        return not y or not all(np.isscalar(step) for step in y)
    if isinstance(y, (pd.Series, pd.DataFrame)):
        return y.index.nlevels > 1 or not y.size
    return isinstance(y, np.ndarray) and (y.ndim > 2 or contains_series(y) or not y.size)


def read_series(y: Any, times: Any, layout: Layout | None, known: FittedChannels | None) -> tuple[Collection, bool]:
    """Convert one or several series to a collection; return it and whether the input had several.

    known: number and names of the channels of `fit`, None in `fit`.
    """
    y = convert_input(y, "y")
    if is_several(y):
        return read_collection(y, times, layout=layout, known=known, argument="y"), True
    given = times if times is None or isinstance(times, str) else [times]
    return read_collection([y], given, layout=layout, known=known, argument="y"), False


def unify_time_zones(collection: Collection, fitted: Any, *, fitting: bool) -> tuple[Collection, Any]:
    """Convert the clocks to the time zone of `fit`, or of the first series; return the collection and that time zone.

    fitted: the time zone of `fit`, "naive" for dates without one, None without dates and in `fit`. Raises ValueError if some
    dates have a time zone and others have none.
    """
    zone, clocks = fitted, []
    for index, clock in enumerate(collection.clocks or ()):
        if isinstance(clock, pd.DatetimeIndex):
            aware = clock.tz is not None
            zone = zone if zone is not None else clock.tz if aware else "naive"
            if aware != (zone != "naive"):
                where = "series 0" if fitting or fitted is None else "fit"
                got, needed = (clock.tz, "no time zone") if aware else ("no time zone", zone)
                hint = "tz_convert('UTC').tz_localize(None) removes one" if aware else "tz_localize adds one"
                raise ValueError(
                    f"{_source(collection, index)} must have dates with {_zone_name(needed)} as in {where}, got "
                    f"{_zone_name(got)}; {hint}"
                )
            if aware and str(clock.tz) != str(zone):
                clock = clock.tz_convert(zone)
        clocks.append(clock)
    return (replace(collection, clocks=tuple(clocks)) if clocks else collection), zone


def common_step(collection: Collection, known: Step = None) -> Step:
    """Return the step between the stamps of all series; None without clocks. known: the step of `fit`, None in `fit`."""
    for index, clock in enumerate(collection.clocks or ()):
        source = _source(collection, index)
        step = regular_step(clock, source, known)
        if not same_step(step, known):
            where = "fit" if index == 0 else "series 0"
            raise ValueError(f"{source} must have steps of {step_name(known)} as in {where}, got steps of {step_name(step)}")
        known = step if known is None else known
    return step if collection.clocks else None


def stamps_after(clock: pd.Index, step: Step, horizon: int) -> pd.Index:
    """Return the time stamps of a forecast on a clock with this step; ValueError if the step is not known."""
    if step is None:
        raise ValueError(
            "`y` must have at least two rows, as fit had no index that determines the time between steps, got one row"
        )
    return next_stamps(clock[-1], step, horizon)


def usual_step(clock: pd.Index, time_unit: float) -> Step:
    """Return the step of forecasts after a clock of uneven steps. time_unit: the median step of `fit`, in seconds or numbers."""
    if isinstance(clock, pd.PeriodIndex):
        return clock.freq * max(1, round(np.median(np.diff(clock.asi8)) / clock.freq.n)) if len(clock) > 1 else clock.freq
    return pd.Timedelta(time_unit, unit="s") if isinstance(clock, (pd.DatetimeIndex, pd.TimedeltaIndex)) else time_unit


def read_times_ahead(times_ahead: Any, clock: pd.Index, horizon: int) -> pd.Index:
    """Return the given time stamps of a forecast after a clock; ValueError for another number of them, or another order."""
    ahead = as_clock(times_ahead, "`times_ahead`")
    if getattr(ahead, "tz", None) is not None and getattr(clock, "tz", None) is not None:
        ahead = ahead.tz_convert(clock.tz)
    if len(ahead) != horizon:
        raise ValueError(f"`times_ahead` must have {horizon} times, one for each step of the horizon, got {len(ahead)}")
    if not as_clock(clock[-1:].append(ahead), "`times_ahead`").is_monotonic_increasing:
        raise ValueError("`times_ahead` must be in the order of time and start after the series ends, got times that do not")
    return ahead


def in_zone(stamps: pd.Index | None, y: pd.Series | pd.DataFrame) -> pd.Index | None:
    """Return the stamps of a forecast in the time zone of the series before it."""
    zone = getattr(y.index, "tz", None)
    return stamps if zone is None or not isinstance(stamps, pd.DatetimeIndex) else stamps.tz_convert(zone)


def _source(collection: Collection, index: int) -> str:
    """Return the name by which errors refer to a series of `y`."""
    return "`y`" if len(collection) == 1 else f"series {index} of `y`"


def _zone_name(zone: Any) -> str:
    return zone if zone == "no time zone" else f"the time zone {zone}"
