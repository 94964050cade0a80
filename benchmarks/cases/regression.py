"""Errors of `SSMRegressor` without settings and of other methods on real series.

- Covid3Month: 84 days of new cases of 201 countries, as aeon has them with their division; the target is the rate of deaths.
- WTH: a week of hours of the twelve channels of WTH.csv; the target is the mean of WetBulbCelsius in the day that follows. Weeks
  begin every three days, in the first 70 % of the file to fit and in the last 20 % to test.

Each method has its default settings, is fitted to the training part and scored on the test part, once for each seed. No setting
is chosen by test scores. A row that is in the file is not measured again: delete rows to replace them. WTH is read from the
folder LONGSCAN_DATA.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from sklearn.dummy import DummyRegressor
from sklearn.linear_model import RidgeCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from harness import ROOT, Row, cpu_provenance, fit_and_predict, measurements
from longscan.estimators import SSMRegressor
from longscan.report.records import Record, read_records
from page import mark_uncommitted, recorded_keys, write_section

WEEK, DAY, STRIDE = 168, 24, 72  # hours
TARGET = "WetBulbCelsius"
KEY = ("set", "method", "seed")  # fields that tell rows apart
PAGE, SECTION = ROOT / "docs/howto/accuracy.md", "regression"


class Part(NamedTuple):
    """Series (n, steps, channels) and their targets (n,)."""

    X: np.ndarray
    y: np.ndarray


def read_covid() -> tuple[Part, Part]:
    """Return the training and the test part of Covid3Month."""
    from aeon.datasets import load_covid_3month

    parts = (load_covid_3month(split=split) for split in ("train", "test"))
    train, test = (Part(np.asarray(X, float).transpose(0, 2, 1), np.asarray(y, float)) for X, y in parts)
    return train, test


def read_weather() -> tuple[Part, Part]:
    """Return weeks of WTH.csv and the means of the days that follow."""
    folder = os.environ.get("LONGSCAN_DATA")
    if not folder:
        raise SystemExit("regression: LONGSCAN_DATA must be the folder that has forecasting/WTH.csv, got nothing")
    frame = pd.read_csv(Path(folder) / "forecasting" / "WTH.csv", index_col=0)
    values, target = frame.to_numpy(np.float64), frame[TARGET].to_numpy(np.float64)

    def part(first: int, last: int) -> Part:
        starts = range(first, last - WEEK - DAY + 1, STRIDE)
        X = np.stack([values[at : at + WEEK] for at in starts])
        return Part(X, np.array([target[at + WEEK : at + WEEK + DAY].mean() for at in starts]))

    return part(0, round(0.7 * len(values))), part(round(0.8 * len(values)), len(values))


SETS = {"Covid3Month": cache(read_covid), "WTH": cache(read_weather)}


class Method(NamedTuple):
    """A method of the table.

    Attributes:
        build: returns the regressor for a seed.
        layout: of the series that it reads: "nlc", (n, steps, channels), "ncl", (n, channels, steps), or "flat", (n, all values).
        random: whether the result depends on the seed.
        package: whose version is recorded, besides that of torch.
    """

    build: Callable[[int], Any]
    layout: str = "ncl"
    random: bool = True
    package: str | None = "aeon"


def _minirocket(seed: int) -> Any:
    from aeon.regression.convolution_based import MiniRocketRegressor

    return MiniRocketRegressor(random_state=seed)


def _multirocket_hydra(seed: int) -> Any:
    from aeon.regression.convolution_based import MultiRocketHydraRegressor

    return MultiRocketHydraRegressor(random_state=seed)


def _quant(seed: int) -> Any:
    from aeon.regression.interval_based import QUANTRegressor

    return QUANTRegressor(random_state=seed)


def _dtw(_seed: int) -> Any:
    from aeon.regression.distance_based import KNeighborsTimeSeriesRegressor

    return KNeighborsTimeSeriesRegressor(distance="dtw", n_neighbors=1)


def _ridge(_seed: int) -> Any:
    return make_pipeline(StandardScaler(), RidgeCV(np.logspace(-2, 5, 15)))


METHODS = {
    "SSMRegressor": Method(lambda seed: SSMRegressor(random_state=seed, device="cpu"), "nlc", package=None),
    "constant": Method(lambda _: DummyRegressor(), "flat", random=False, package=None),
    "ridge": Method(_ridge, "flat", random=False, package=None),
    "MiniRocket": Method(_minirocket),
    "MultiRocket-Hydra": Method(_multirocket_hydra),
    "QUANT": Method(_quant),
    "DTW-1NN": Method(_dtw, random=False),
}


def convert(X: np.ndarray, layout: str) -> np.ndarray:
    """Return series (n, steps, channels) in the form that a method reads."""
    return X if layout == "nlc" else X.transpose(0, 2, 1).copy() if layout == "ncl" else X.reshape(len(X), -1)


def measure(data: str, name: str, seed: int, quick: bool) -> Row:
    """Fit a method to the training part of a set and return its row."""
    train, test = SETS[data]()
    if quick:
        train, test = (Part(part.X[:12], part.y[:12]) for part in (train, test))
    method = METHODS[name]
    X, X_test = convert(train.X, method.layout), convert(test.X, method.layout)
    if method.package is not None:  # numba compiles at the first call
        method.build(0).fit(X[:8], train.y[:8]).predict(X[:8])
    predictions, seconds = fit_and_predict(partial(method.build, seed), X, train.y, X_test)
    return {
        "set": data,
        "method": name,
        "seed": seed,
        "rmse": float(np.sqrt(np.mean((predictions - test.y) ** 2))),
        "n_train": len(train.y),
        "n_test": len(test.y),
        **seconds,
        **cpu_provenance(method.package),
    }


def rows_of(options: Any, *, name: str) -> Iterator[Row]:
    """Yield the rows of a method that are not in the file."""
    path = (options.out or ROOT / "results/regression") / f"{options.name or 'regression'}.jsonl"
    for seed in range(1 if not METHODS[name].random or options.quick else options.runs):
        for data in list(SETS)[:1] if options.quick else SETS:
            if time.perf_counter() < options.end and (options.quick or (data, name, seed) not in recorded_keys(path, KEY)):
                yield measure(data, name, seed, options.quick)


def write_page(path: Path) -> None:
    """Write the table of a file of records into the page of the documentation."""
    write_section(path, PAGE, SECTION, table(read_records(path)))


def table(rows: Sequence[Record]) -> str:
    """Return a Markdown table with a line for each method: root mean square errors and seconds, means over the seeds."""
    found: dict[tuple[str, str], dict[int, Record]] = {}
    for row in rows:
        found.setdefault((row["method"], row["set"]), {})[row["seed"]] = row
    sets = [data for data in SETS if any(name[1] == data for name in found)]
    lines = ["| Method | Seeds | " + " | ".join(f"{data} | fit, s" for data in sets) + " |", "|" + "---|" * (2 + 2 * len(sets))]
    for name in METHODS:
        of_set = {data: list(found.get((name, data), {}).values()) for data in sets}
        if not any(of_set.values()):
            continue
        cells = [
            f"{np.mean([row['rmse'] for row in of_seed]):.4f} | {np.mean([row['fit_seconds'] for row in of_seed]):.1f}"
            if of_seed
            else "– | –"
            for of_seed in of_set.values()
        ]
        lines.append(f"| {name} | {max(map(len, of_set.values()))} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n" + mark_uncommitted(rows, "method")


CASES = measurements("regression", METHODS, rows_of, write_page, folder="regression")
