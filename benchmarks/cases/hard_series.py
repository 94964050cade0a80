"""Errors of `SSMForecaster` without settings where the end of a series is unlike its past, and at uneven times.

- shift: hours of channels of ETTh1, WTH and weather, and made-up days with noise, to which a step of `SHIFT` deviations is added
  `AGE` steps before the end of what is known; it stays in the steps that are forecast. "no shift" are the same without the step.
- trend: made-up days with noise that rise or fall by 20 deviations, or grow exponentially.
- missing hours: the real series without a fifth of their hours at random, and without one whole day.
- uneven times: waves with noise, at times whose gaps are distributed exponentially, with three long pauses.

In the last two groups `SSMForecaster` gets the times of the steps as `times`; the other methods get equal steps, the median gap
apart, that are filled by linear interpolation. "SSMForecaster, shifts not followed" has no `shift_limits_`, as before these
existed. Rows with the field `replaced` are those of an earlier default, whose blocks forecast alone at uneven times. Ridge
regression and DLinear are those of `cases.forecasts`.

Each group has `SERIES` series of `LENGTH` steps, each drawn by its own seed, with one forecast each; real series are from the
second half of a file. What `SSMForecaster` does was chosen on other seeds and on the first halves. Errors are mean absolute
errors, divided by the smaller one of the last value's and the seasonal naive forecast's.

Rows that are in the file are not measured again: delete rows to replace them. Data are read from the folder LONGSCAN_DATA.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from cases.forecasts import Problem, dlinear, ridge
from cases.short_series import ratio_table, row_of
from harness import ROOT, Row, measurements
from longscan.estimators import SSMForecaster
from longscan.report.records import Record, read_records
from page import recorded_keys, write_section

LENGTH, HORIZON, DAY = 1000, 24, 24
SERIES = 20
SHIFT, AGE = 3.0, 14
MISSING, MISSING_DAY = 0.2, 24  # share of hours, and hours in one piece
CODE = 9000.0  # numbers that stand for missing values are at least as large
EVERY = {"ETTh1": 1, "WTH": 1, "weather": 6}  # rows of a file in an hour
KEY = ("set", "model")
PAGE, SECTION = ROOT / "docs/howto/forecasts.md", "hard series"

Array = np.ndarray[Any, np.dtype[np.float64]]


class Series(NamedTuple):
    """Known steps (L,), the steps to forecast (HORIZON,), and the times of the known ones, None for equal steps."""

    past: Array
    ahead: Array
    times: Array | None = None


@cache
def read_hours(name: str) -> Array:
    """Return the hours of all channels of a file, (L, C)."""
    folder = os.environ.get("LONGSCAN_DATA")
    if not folder:
        raise SystemExit("hard_series: LONGSCAN_DATA must be the folder that has forecasting/*.csv, got nothing")
    frame = pd.read_csv(Path(folder) / "forecasting" / f"{name}.csv", encoding="latin-1", index_col=0)
    return frame.to_numpy(np.float64)[:: EVERY[name]]


def _standardise(x: Array) -> Array:
    return np.asarray((x - x[:LENGTH].mean()) / x[:LENGTH].std())


def real(seed: int) -> Array:
    """Return hours of a random channel from the second half of a file, without codes of missing values."""
    random = np.random.default_rng(seed)
    while True:
        values = read_hours(random.choice(list(EVERY)))
        x = values[len(values) // 2 :, random.integers(values.shape[1])]
        x = x[(first := random.integers(len(x) - LENGTH - HORIZON)) : first + LENGTH + HORIZON]
        if np.unique(x).size > LENGTH // 20 and np.abs(x).max() < CODE:
            return _standardise(x)


def made_up(seed: int) -> Array:
    """Return days of two waves with autocorrelated noise."""
    random, steps = np.random.default_rng(10_000 + seed), np.arange(LENGTH + HORIZON) * 2 * np.pi / DAY
    memory, noise = random.choice([0.0, 0.7, 0.95]), random.normal(size=len(steps))
    for step in range(1, len(steps)):
        noise[step] = memory * noise[step - 1] + np.sqrt(1 - memory**2) * noise[step]
    x = np.sin(steps + random.uniform(0, 6)) + 0.4 * np.sin(2 * steps + random.uniform(0, 6))
    return _standardise(x + random.choice([0.3, 0.7]) * noise)


def shifted(seed: int, *, source: Callable[[int], Array]) -> Series:
    """Return a series whose level changes `AGE` steps before the end of what is known."""
    x = source(seed)
    x[LENGTH - AGE :] += SHIFT if seed % 2 else -SHIFT
    return Series(x[:LENGTH], x[LENGTH:])


def unchanged(seed: int, *, source: Callable[[int], Array]) -> Series:
    """Return a series as it is."""
    x = source(seed)
    return Series(x[:LENGTH], x[LENGTH:])


def trend(seed: int) -> Series:
    """Return days with noise and a slope, or an exponential growth with days that grow as well."""
    random, steps = np.random.default_rng(20_000 + seed), np.arange(LENGTH + HORIZON)
    day, noise = np.sin(steps * 2 * np.pi / DAY + random.uniform(0, 6)), 0.3 * random.normal(size=len(steps))
    slope = 20 * random.choice([-1, 1]) * steps / LENGTH + day + noise
    x = slope if seed % 2 else np.exp(3 * steps / LENGTH) * (1 + 0.2 * (day + noise))
    return Series(x[:LENGTH], x[LENGTH:])


def missing_hours(seed: int) -> Series:
    """Return a real series without some of its hours."""
    random, x = np.random.default_rng(30_000 + seed), real(seed)
    is_kept = random.random(LENGTH) > MISSING
    first = random.integers(LENGTH // 10, LENGTH - LENGTH // 10)
    is_kept[first : first + MISSING_DAY] = False
    is_kept[[0, -1]] = True
    times = np.flatnonzero(is_kept)
    return Series(x[times], x[LENGTH:], times.astype(np.float64))


def uneven_times(seed: int) -> Series:
    """Return waves with noise at uneven times; the steps ahead are the median gap apart."""
    random = np.random.default_rng(40_000 + seed)
    gaps = random.exponential(1, LENGTH)
    gaps[random.integers(LENGTH // 20, LENGTH - LENGTH // 20, 3)] += random.uniform(20, 40, 3)
    times = gaps.cumsum()
    every = np.r_[times, times[-1] + np.median(gaps[1:]) * np.arange(1, HORIZON + 1)]
    first, second = random.uniform(0, 6, 2)
    x = np.sin(every * 2 * np.pi / DAY + first) + 0.5 * np.sin(every * 2 * np.pi / 61 + second)
    x += 0.3 * random.normal(size=len(x))
    return Series(x[:LENGTH], x[LENGTH:], times)


GROUPS: dict[str, Callable[[int], Series]] = {
    "shift, real": partial(shifted, source=real),
    "no shift, real": partial(unchanged, source=real),
    "shift, made up": partial(shifted, source=made_up),
    "no shift, made up": partial(unchanged, source=made_up),
    "trend": trend,
    "missing hours": missing_hours,
    "uneven times": uneven_times,
}


def filled(series: Series) -> Array:
    """Return steps at equal times, the median gap apart, by linear interpolation; the last is that of the series."""
    if series.times is None:
        return series.past
    unit = float(np.median(np.diff(series.times)))
    count = int((series.times[-1] - series.times[0]) / unit)
    return np.asarray(np.interp(series.times[-1] - unit * np.arange(count, -1, -1), series.times, series.past))


def _day(series: Series) -> int:
    """Return the steps of a day of the filled series."""
    return DAY if series.times is None else round(DAY / float(np.median(np.diff(series.times))))


def ours(series: Series) -> Array:
    """Fit `SSMForecaster` without settings, with the times where they are uneven."""
    return np.asarray(SSMForecaster(horizon=HORIZON, random_state=0, device="cpu").fit(series.past, series.times).predict())


def ours_without_shifts(series: Series) -> Array:
    """Fit `SSMForecaster` without settings, and forecast without the correction of level shifts."""
    model = SSMForecaster(horizon=HORIZON, random_state=0, device="cpu").fit(series.past)
    model.shift_limits_ = None
    return np.asarray(model.predict())


def last_value(series: Series) -> Array:
    """Repeat the last step."""
    return np.full(HORIZON, series.past[-1])


def seasonal_naive(series: Series) -> Array:
    """Repeat the last day."""
    day = _day(series)
    return filled(series)[-day:][np.arange(HORIZON) % day]


def _other(series: Series, *, fit: Callable[[Problem], Any]) -> Array:
    """Fit a method of `cases.forecasts` to a series, whose last fifth is the second part."""
    x = filled(series)[:, None]
    mean, scale = x.mean(0), x.std(0)
    x = (x - mean) / scale
    problem = Problem(x, mean, scale, round(0.8 * len(x)), HORIZON, _day(series), 0)
    return np.asarray(fit(problem).forecast(x)[:, 0] * scale + mean)


MODELS: dict[str, Callable[[Series], Array]] = {
    "SSMForecaster": ours,
    "SSMForecaster, shifts not followed": ours_without_shifts,
    "last value": last_value,
    "seasonal naive": seasonal_naive,
    "ridge": partial(_other, fit=ridge),
    "DLinear": partial(_other, fit=dlinear),
}
ONLY = {"SSMForecaster, shifts not followed": tuple(GROUPS)[:5]}  # groups of a model that is not for all of them


def error(name: str, series: Series) -> float:
    """Return the mean absolute error of a model."""
    return float(np.abs(MODELS[name](series) - series.ahead).mean())


def rows_of(options: Any, *, name: str) -> Iterator[Row]:
    """Yield the rows of a model that are not in the file."""
    path = (options.out or ROOT / "results/short_series") / f"{options.name or 'hard_series'}.jsonl"
    groups = ONLY.get(name, tuple(GROUPS))
    for group in groups[:1] if options.quick else groups:
        if time.perf_counter() > options.end or (not options.quick and (group, name) in recorded_keys(path, KEY)):
            continue
        series = [GROUPS[group](seed) for seed in range(2 if options.quick else SERIES)]
        started = time.perf_counter()
        errors = np.array([error(name, one) for one in series])
        seconds = time.perf_counter() - started
        ratios = errors / [min(error("last value", one), error("seasonal naive", one)) for one in series]
        yield row_of(group, name, ratios, seconds)


def write_page(path: Path) -> None:
    """Write the table of a file of records into the page of the documentation."""
    write_section(path, PAGE, SECTION, table(read_records(path)))


def table(rows: Sequence[Record]) -> str:
    """Return the table of ratios, without the numbers of the series, which are those of `SERIES`."""
    return ratio_table(rows, GROUPS, MODELS, has_numbers=False)


CASES = measurements("hard_series", MODELS, rows_of, write_page, folder="short_series")
