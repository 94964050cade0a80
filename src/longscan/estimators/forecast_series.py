"""Reading of the series of `SSMForecaster`: their forms, time zones and steps, and the time stamps of forecasts."""

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd

from longscan.estimators.clock import Step, as_clock, next_stamps, regular_step, same_step, step_name
from longscan.estimators.reading import FittedChannels, Layout, contains_series, convert_input, flat_index, read_collection
from longscan.estimators.series import Collection

LONG_COLUMNS = ("unique_id", "ds", "y")  # of a long frame: the series, the time stamp, the value

Form = Literal["one", "list", "array", "indexed", "long"]


class History(NamedTuple):
    """Series to fit or to forecast, and the form in which they were given, which is that of their forecasts.

    form: "one" series; a "list" of series; an "array" (n, L, C); a frame "indexed" by (case, time); a "long" frame with the
    columns unique_id, ds and y.
    """

    collection: Collection
    form: Form
    given: Any


def find_form(y: Any) -> Form:
    """Return the form of converted `y`, see `History`. Raises ValueError for a frame with some of the columns of a long frame."""
    if isinstance(y, list):
        return "one" if y and all(np.isscalar(step) for step in y) else "list"
    if isinstance(y, pd.DataFrame) and {"unique_id", "ds"} & set(y.columns):
        lacking = [name for name in LONG_COLUMNS if name not in y.columns]
        if lacking:
            found = f"got no column {', '.join(lacking)}"
            advice = "; set_index('ds') makes the times of one series its index" if lacking == ["unique_id"] else ""
            raise ValueError(f"`y` must have the columns unique_id, ds and y as a long frame, {found}{advice}")
        return "long"
    if isinstance(y, (pd.Series, pd.DataFrame)):
        return "indexed" if y.index.nlevels > 1 or not y.size else "one"
    if isinstance(y, np.ndarray) and contains_series(y):
        return "list"
    return "array" if isinstance(y, np.ndarray) and (y.ndim > 2 or not y.size) else "one"


def read_series(y: Any, times: Any, layout: Layout | None, known: FittedChannels | None) -> History:
    """Convert one or several series to a collection.

    known: number and names of the channels of `fit`, None in `fit`.
    """
    y = convert_input(y, "y")
    form = find_form(y)
    if form == "one":
        times = times if times is None or isinstance(times, str) else [times]
        return History(read_collection([y], times, layout=layout, known=known, argument="y"), form, y)
    given = y
    if form == "long":
        y = index_long(y, ["y"])
    return History(read_collection(y, times, layout=layout, known=known, argument="y"), form, given)


def index_long(frame: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """Return columns of a long frame as a frame indexed by (unique_id, ds)."""
    return frame[list(columns)].set_axis(pd.MultiIndex.from_arrays([frame["unique_id"], frame["ds"]]), axis=0)


def restore_form(history: History, forecasts: np.ndarray, stamps: Sequence[pd.Index | None], quantiles: Sequence[float]) -> Any:
    """Return forecasts in the form of the series.

    forecasts: (n, horizon, C, 1 + Q), the point forecast and the quantiles, of which only a long frame has columns. stamps: of
    each forecast, None for arrays.
    """
    collection, form, given = history
    if form == "long":
        columns = ["forecast", *map(quantile_column, quantiles)]
        frames = [pd.DataFrame(part[:, 0], ahead, columns) for part, ahead in zip(forecasts, stamps, strict=True)]
        return pd.concat(frames, keys=collection.cases, names=["unique_id", "ds"]).reset_index()
    points = forecasts[..., 0]
    if form == "array":
        return points
    if form == "indexed":
        labels = channel_labels(history)
        frames = [pd.DataFrame(forecast, ahead, flat_index(labels)) for forecast, ahead in zip(points, stamps, strict=True)]
        joined = pd.concat(frames, keys=collection.cases, names=given.index.names)
        return joined.iloc[:, _column_order(labels, given)] if isinstance(given, pd.DataFrame) else joined.iloc[:, 0]
    series = [given] if form == "one" else given
    parts = zip(series, points, stamps, strict=True)
    converted = [_as_part(part, forecast, ahead, collection.channel_names) for part, forecast, ahead in parts]
    return converted[0] if form == "one" else converted


def quantile_frames(
    history: History, values: np.ndarray, stamps: Sequence[pd.Index | None], quantiles: Sequence[float]
) -> pd.DataFrame | list[pd.DataFrame]:
    """Return the quantiles (n, horizon, C, Q) of forecasts as a frame, or as a list of frames for a list or an array."""
    collection, form, given = history
    series = [given] if form == "one" else given
    names = pd.Index(map(quantile_column, quantiles))
    frames = []
    for row, (part, ahead) in enumerate(zip(values, stamps, strict=True)):
        length = int(collection.lengths[row])
        index = pd.RangeIndex(length, length + len(part)) if ahead is None else ahead
        one = given if form == "indexed" else series[row]
        if isinstance(one, (pd.Series, pd.DataFrame)) and form != "indexed":
            index = convert_time_zone(index, one)
        single = isinstance(one, pd.Series) or (not isinstance(one, pd.DataFrame) and np.ndim(one) == 1)
        labels = _frame_labels(one, collection.channel_names) if isinstance(one, pd.DataFrame) else channel_labels(history)
        if isinstance(one, pd.DataFrame):
            part, labels = part[:, _column_order(labels, one)], list(one.columns)
        columns = names if single else pd.MultiIndex.from_product([labels, names], names=["channel", "quantile"])
        frames.append(pd.DataFrame(part.reshape(len(part), -1), index, columns))
    if form == "indexed":
        return pd.concat(frames, keys=collection.cases, names=given.index.names)
    return frames[0] if form == "one" else frames


def quantile_column(quantile: float) -> str:
    """Return the name of the column of a quantile, such as "q0.9"."""
    return f"q{quantile:g}"


def channel_labels(history: History) -> list[Any]:
    """Return the name of each channel: that of a column or of a Series, otherwise its number."""
    first, names = history.given[0] if history.form == "list" else history.given, history.collection.channel_names
    if isinstance(first, pd.DataFrame):
        return _frame_labels(first, names)
    if names is not None:
        return list(names)
    named = isinstance(first, pd.Series) and (first.name is not None or history.form == "indexed")
    return [first.name] if named else list(range(history.collection.channels))


def _frame_labels(frame: pd.DataFrame, names: Sequence[Hashable] | None) -> list[Any]:
    """Return the labels of channels in the order of `names`: columns of a frame, which for one without names is their order."""
    columns = list(frame.columns)
    return columns if names is None or set(columns) != set(names) else list(names)


def _column_order(labels: Sequence[Any], frame: pd.DataFrame) -> np.ndarray:
    """Return the position in `labels` of each column of a frame, (C,)."""
    return flat_index(labels).get_indexer(flat_index(frame.columns))


def last_known(collection: Collection, cutoffs: np.ndarray) -> pd.Index:
    """Return the last time stamp that is known at each cutoff, without clocks the number of known steps.

    cutoffs: (n, 2), number of the series and of its steps that are known.
    """
    if collection.clocks is None:
        return pd.Index(cutoffs[:, 1])
    stamps = [collection.clocks[row][end - 1 : end] for row, end in cutoffs]
    return stamps[0].append(stamps[1:])


def truncate(collection: Collection, moment: Any) -> Collection:
    """Return the part of each series up to a moment that `last_known` returned; series that begin later are left out."""
    if collection.clocks is None:
        lengths = np.minimum(collection.lengths, moment)
    else:
        lengths = np.array([clock.searchsorted(moment, side="right") for clock in collection.clocks])
    kept = np.flatnonzero(lengths)
    lengths, longest = lengths[kept], int(lengths.max())
    valid = np.arange(longest) < lengths[:, None]
    return replace(
        collection,
        values=np.where(valid[..., None], collection.values[kept, :longest], 0),
        lengths=lengths,
        times=None if collection.times is None else collection.times[kept, :longest],
        covariates=None if collection.covariates is None else collection.covariates[kept, :longest],
        cases=None if collection.cases is None else collection.cases[kept],
        clocks=collection.clocks and tuple(collection.clocks[row][:n] for row, n in zip(kept, lengths, strict=True)),
    )


def _as_part(given: Any, forecast: np.ndarray, stamps: pd.Index | None, names: Sequence[Hashable] | None) -> Any:
    """Return the forecast (horizon, C) of one series in its form: a Series, a frame with its columns, or an array."""
    given = given if isinstance(given, (pd.Series, pd.DataFrame)) else np.asarray(given)
    if isinstance(given, pd.DataFrame):
        labels = _frame_labels(given, names)
        return pd.DataFrame(forecast, convert_time_zone(stamps, given), flat_index(labels)).iloc[:, _column_order(labels, given)]
    if isinstance(given, pd.Series):
        return pd.Series(forecast[:, 0], convert_time_zone(stamps, given), name=given.name)
    return forecast[:, 0] if given.ndim == 1 else forecast


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
    """Return the time stamps of a forecast on a clock with this step. Raises ValueError if the step is not known."""
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
    """Return the given time stamps of a forecast after a clock.

    Raises ValueError for another number of them, or another order.
    """
    ahead = as_clock(times_ahead, "`times_ahead`")
    if getattr(ahead, "tz", None) is not None and getattr(clock, "tz", None) is not None:
        ahead = ahead.tz_convert(clock.tz)
    if _kind_of_times(ahead) != _kind_of_times(clock):
        raise ValueError(f"`times_ahead` must be {_kind_of_times(clock)}, as the times before, got {_kind_of_times(ahead)}")
    if len(ahead) != horizon:
        raise ValueError(f"`times_ahead` must have {horizon} times, one for each step of the horizon, got {len(ahead)}")
    if not as_clock(clock[-1:].append(ahead), "`times_ahead`").is_monotonic_increasing:
        raise ValueError("`times_ahead` must be in the order of time and start after the series ends, got times that do not")
    return ahead


def _kind_of_times(clock: pd.Index) -> str:
    """Return what the times of a clock are, such as "dates with a time zone"."""
    if isinstance(clock, pd.DatetimeIndex):
        return f"dates {'without' if clock.tz is None else 'with'} a time zone"
    return {pd.PeriodIndex: "periods", pd.TimedeltaIndex: "durations"}.get(type(clock), "numbers")


def convert_time_zone(stamps: pd.Index | None, y: pd.Series | pd.DataFrame) -> pd.Index | None:
    """Return the stamps of a forecast in the time zone of the series before it."""
    zone = getattr(y.index, "tz", None)
    return stamps if zone is None or not isinstance(stamps, pd.DatetimeIndex) else stamps.tz_convert(zone)


def _source(collection: Collection, index: int) -> str:
    """Return the name by which errors refer to a series of `y`."""
    return "`y`" if len(collection) == 1 else f"series {index} of `y`"


def _zone_name(zone: Any) -> str:
    return zone if zone == "no time zone" else f"the time zone {zone}"
