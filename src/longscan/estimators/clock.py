"""Time stamps of series as pandas indexes: their validation, their regular step, and the stamps that follow."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd
from pandas.tseries.frequencies import to_offset
from torch import Tensor

from longscan._float32 import MAX_EXACT_INTEGER
from longscan._frequencies import infer_frequency, steps_in_season

Step = Any  # pandas.DateOffset of dates and periods, pandas.Timedelta of durations, float or int of numbers


def as_clock(times: Any, source: str) -> pd.Index:
    """Convert time stamps to an index of numbers, dates, periods or durations; ValueError for any other and for missing ones.

    times: an index, an array, a list, a Series or a tensor, (L,). source: their name in errors, "`y`" or "series 3 of `times`".
    """
    try:
        times = times.detach().cpu().numpy() if isinstance(times, Tensor) else times
        half = isinstance(times, np.ndarray) and times.dtype.kind == "f"  # an index cannot contain fp16 numbers
        index = pd.Index(times.astype(np.float64) if half else times)
        if isinstance(index.dtype, pd.CategoricalDtype):
            index = index.astype(index.categories.dtype)
        if index.dtype == object:
            kind = pd.api.types.infer_dtype(index, skipna=True)
            index = pd.DatetimeIndex(index) if kind in ("date", "datetime", "datetime64") else index.infer_objects()
    except (TypeError, ValueError) as error:  # nested lists; dates of several time zones
        raise ValueError(f"{source} must have times that are numbers, or dates of one time zone, got others ({error})") from None
    number = pd.api.types.is_any_real_numeric_dtype(index.dtype)
    if not number and not isinstance(index, (pd.DatetimeIndex, pd.PeriodIndex, pd.TimedeltaIndex)):
        kind = pd.api.types.infer_dtype(index, skipna=True)
        raise ValueError(
            f"{source} must have times that are numbers, dates, periods or durations, got the kind {kind!r}, which has no order "
            "in time (pd.to_datetime reads dates; reset_index(drop=True) removes an index without times)"
        )
    missing = np.asarray(index.isna())
    if number:
        index = index.astype(np.float64) if missing.any() or pd.api.types.is_extension_array_dtype(index.dtype) else index
        if index.dtype.kind == "u" and len(index) and int(index.max()) >= 2**63:
            raise ValueError(f"{source} must have times below 2**63 if they are whole numbers, got {index.max()}")
        if index.dtype.kind in "iu" and index.dtype != np.int64:  # later steps may exceed such a type, which would wrap
            index = index.astype(np.int64)
        missing = ~np.isfinite(np.asarray(index, dtype=np.float64))
    if missing.any():
        raise ValueError(
            f"{source} must have a time stamp in each row, got {missing.sum()} missing, first row {int(missing.argmax())}"
        )
    return index


def has_seconds(clock: pd.Index) -> bool:
    """Return whether the differences of a clock are seconds: those of dates, periods and durations, but not those of numbers."""
    return isinstance(clock, (pd.DatetimeIndex, pd.PeriodIndex, pd.TimedeltaIndex))


def check_unit(clock: pd.Index, seconds: bool | None) -> None:
    """Raise ValueError for dates, periods and durations if the times of `fit` were numbers, whose unit is unknown.

    Numbers after a fit with dates are seconds. seconds: `has_seconds` of the times of `fit`, None if it is unknown.
    """
    if seconds is False and has_seconds(clock):
        raise ValueError(f"`times` must be numbers as in fit, whose unit is unknown, got {clock.dtype}")


def to_seconds(clock: pd.Index) -> np.ndarray:
    """Convert a clock to float64 (L,): numbers are unchanged; dates, starts of periods and durations are seconds since the first.

    Differences are taken in whole nanoseconds, as float64 counts the seconds since 1970 no finer than a quarter of a microsecond.
    So are those to the first of whole numbers beyond 2^53, such as nanoseconds since 1970.
    """
    if isinstance(clock, pd.PeriodIndex):
        clock = clock.to_timestamp()
    if isinstance(clock, (pd.DatetimeIndex, pd.TimedeltaIndex)):
        stamps = clock.as_unit("ns").asi8
        return (stamps - stamps[:1]) / 1e9
    numbers = np.asarray(clock)
    if numbers.dtype.kind in "iu" and len(numbers) and max(-int(numbers.min()), int(numbers.max())) > MAX_EXACT_INTEGER:
        numbers = numbers - numbers[0]
    return np.asarray(numbers, dtype=np.float64)


def gap_ratio(clocks: Sequence[pd.Index]) -> float:
    """Return the longest time between two steps divided by the median of all; 1.0 if no series has two steps."""
    gaps = np.concatenate([np.diff(to_seconds(clock)) for clock in clocks])
    median = float(np.median(gaps)) if len(gaps) else 0.0
    return float(gaps.max()) / median if median else 1.0


def check_increasing(clock: pd.Index, source: str, *, steps: Literal["row", "column"] = "row") -> None:
    """Raise ValueError if a time stamp is duplicated or lower than the previous one.

    steps: whether the clock is the index of the rows or of the columns of a pandas object.
    """
    is_row = steps == "row"
    unnamed = "reset_index(drop=True)" if is_row else f"set_axis(range({len(clock)}), axis=1)"
    twice = clock.duplicated()
    if twice.any():
        raise ValueError(
            f"{source} must be without duplicated time stamps, got {twice.sum()}, the first {clock[int(twice.argmax())]}; remove "
            f"the other {steps}s, or give local times that repeat an hour a time zone (tz_localize), or remove an index without "
            f"times ({unnamed})"
        )
    if not clock.is_monotonic_increasing:
        number = int(np.argmax(np.asarray(clock[1:] < clock[:-1]))) + 1
        raise ValueError(
            f"{source} must be in the order of time, got {clock[number]} in {steps} {number} after {clock[number - 1]}; "
            f"sort_index({'' if is_row else 'axis=1'}) sorts the {steps}s, {unnamed} removes an index without times"
        )


def regular_step(clock: pd.Index, source: str, known: Step = None) -> Step:
    """Return the step between the stamps of an increasing clock. Raises ValueError naming the first step that differs.

    known: the step of an earlier clock, returned if the stamps are compatible with it, since a few stamps may not determine the
    step. Returns None for a single stamp without a known step.
    """
    if len(clock) < 2:
        return known
    if isinstance(clock, pd.DatetimeIndex):
        if isinstance(known, pd.offsets.BaseOffset) and _follows(clock, known):
            return known
        name = clock.freq or (infer_frequency(clock) if len(clock) > 2 else clock[1] - clock[0])
        if name is not None:
            return to_offset(name)
        gaps = np.diff(clock.asi8)
        shown = pd.to_timedelta(gaps, unit=clock.unit)
    elif isinstance(clock, pd.PeriodIndex):
        gaps = np.diff(clock.asi8)
        if (gaps == clock.freq.n).all():
            return clock.freq
        shown = pd.Index(gaps)
    elif isinstance(clock, pd.TimedeltaIndex):
        gaps = np.diff(clock.asi8)
        if (gaps == gaps[0]).all():
            return clock[1] - clock[0]
        shown = pd.to_timedelta(gaps, unit=clock.unit)
    else:
        values = np.asarray(clock)
        gaps = np.diff(values)
        rounding = 4 * np.finfo(np.float64).eps * np.abs(values.astype(np.float64)).max() if values.dtype.kind == "f" else 0.0
        if (np.abs(gaps - np.median(gaps)) <= rounding + 1e-6 * np.median(gaps) * (values.dtype.kind == "f")).all():
            return gaps[0].item() if values.dtype.kind != "f" else float(np.median(gaps))
        shown = pd.Index(gaps)
    usual = pd.Series(shown).mode().iloc[0]
    odd = np.asarray(shown != usual)
    row = int(odd.argmax())
    local = isinstance(clock, pd.DatetimeIndex) and clock.tz is None
    zone = " (local times of a place that changes its clocks need a time zone, tz_localize)" if local else ""
    raise ValueError(
        f"{source} must have equal steps, got {odd.sum()} of {len(odd)} that differ from {usual}, the first between {clock[row]} "
        f"and {clock[row + 1]}; asfreq and interpolate fill gaps, and times='index' reads uneven times{zone}"
    )


def _follows(clock: pd.DatetimeIndex, step: pd.DateOffset) -> bool:
    expected = pd.date_range(clock[0], periods=len(clock), freq=step)
    return bool((expected == clock).all())


def same_step(step: Step, other: Step) -> bool:
    """Return whether two steps are equal or one is unknown: None, or the 1 of a default index."""
    if any(known is None or (isinstance(known, int) and known == 1) for known in (step, other)):
        return True
    if isinstance(step, (int, float)) and isinstance(other, (int, float)):
        return bool(np.isclose(step, other, rtol=1e-6, atol=0))
    return bool(step == other)


def step_name(step: Step) -> str:
    """Format a step as text, such as "h", "ME", "0 days 00:00:10" or "0.5"."""
    return str(getattr(step, "freqstr", step))


def season_of(step: Step) -> int:
    """Return the usual number of steps in a season: those of a day if shorter than one, otherwise of a week or a year; or 1.

    Steps of numbers and durations have no season: a duration may count anything.
    """
    if not isinstance(step, pd.offsets.BaseOffset):
        return 1
    if isinstance(step, pd.tseries.offsets.Tick):
        count = pd.Timedelta(days=1) / pd.Timedelta(step)
        return int(count) if count > 1 and count == int(count) else 7 if count == 1 else 1
    count = steps_in_season(step.rule_code)
    return count // step.n if count % step.n == 0 else 1


def next_stamps(last: Any, step: Step, count: int) -> pd.Index:
    """Return the `count` stamps after `last` on a clock with this step. Raises ValueError for whole numbers of 2**63 and more."""
    if isinstance(last, pd.Period):
        return pd.period_range(last + step, periods=count, freq=last.freq if step == last.freq else step)
    if isinstance(last, pd.Timestamp):
        if isinstance(step, pd.offsets.BaseOffset):
            return pd.date_range(last, periods=count + 1, freq=step)[1:]
        return pd.DatetimeIndex([last + step * number for number in range(1, count + 1)])
    if isinstance(last, (int, np.integer)) and isinstance(step, int):
        end = int(last) + step * count
        if end >= 2**63:
            raise ValueError(f"`y` must have times that leave {count} steps of {step} below 2**63, got {last}")
        return pd.RangeIndex(int(last) + step, end + 1, step)
    return pd.Index([last + step * number for number in range(1, count + 1)])
