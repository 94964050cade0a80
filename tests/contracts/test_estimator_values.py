"""Compare what every estimator learns and predicts for fixed series with a record, so that a change of any step is detected.

The series are made from sines, and all settings are small. Other tests compare estimators with each other and with equations;
these also detect a change that they share. If a change is intended, regenerate the record with
`python tests/contracts/test_estimator_values.py`, and state in the commit message why predictions have changed.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from recorded_values import describe, list_differences

from longscan.estimators import SSMClassifier, SSMForecaster, SSMRegressor, score_forecasts
from longscan.estimators.features import StateFeatures
from longscan.estimators.series import StandardisedSeries

RECORD = Path(__file__).with_name("estimator_values.json")
TOLERANCE = 2e-4  # training repeats and enlarges rounding errors
# The error that is left out of a regression on thousands of features is small, and differs by up to 7e-3 between the kernels of
# OpenBLAS and MKL for different processors.
TOLERANCES = dict.fromkeys(
    (
        "classifier",
        "classifier of even series",
        "classifier with times and weights",
        "regressor",
        "regressor with times, weights and two targets",
    ),
    2e-2,
)
COMMON: dict[str, Any] = {"device": "cpu", "random_state": 0}
STACK: dict[str, Any] = {"spec": "lru", "d_model": 4, "d_state": 4, "epochs": 3, "batch_size": 8, "lr": 0.01, **COMMON}
FORECAST: dict[str, Any] = {"horizon": 4, "window": 12, "d_model": 4, "d_state": 2, "epochs": 3, "lr": 0.01, **COMMON}


def make_series(count: int = 20, channels: int = 2) -> tuple[list[np.ndarray], np.ndarray, list[np.ndarray]]:
    """Return series (L, C) of 20 to 28 steps, a number for each, its frequency, and times of the steps."""
    numbers = np.arange(count)
    frequencies = 0.3 + 0.05 * (numbers * 7 % 10)
    lengths = 20 + 2 * (numbers * 3 % 5)
    steps = [np.arange(length) for length in lengths]
    series = [
        np.stack([(1 + k) * np.sin(frequency * step + k * number) + k for k in range(channels)], 1)
        for number, frequency, step in zip(numbers, frequencies, steps, strict=True)
    ]
    times = [step * 0.5 + 0.1 * np.sin(step) + number for number, step in zip(numbers, steps, strict=True)]
    return series, frequencies, times


def make_history(length: int = 150, channels: int = 2) -> np.ndarray:
    """Return a series with two seasons and a trend (L, C)."""
    t = np.arange(length)
    return np.stack(
        [5 * k + np.sin(t / 2) + 0.5 * np.cos(t / 5 + k) + 0.01 * k * t + 0.2 * np.sin(t**2) for k in range(channels)], 1
    )


def classes_of(frequencies: np.ndarray) -> np.ndarray:
    """Return three unequally frequent classes."""
    return np.array(["slow", "mid", "fast"])[np.digitize(frequencies, [0.35, 0.6])]


def fitted_values(model: Any) -> dict[str, Any]:
    """Return the numbers and arrays that `fit` has stored, without times."""
    found = {}
    for name, value in sorted(vars(model).items()):
        if name.endswith("_") and isinstance(value, torch.Tensor | np.ndarray | float | int | list | tuple | str):
            is_text = isinstance(value, np.ndarray) and value.dtype.kind in "OU"
            try:
                found[name] = describe(value.tolist() if is_text else to_plain(value))
            except TypeError:
                continue
    return found


def classify(weights: bool = False, timed: bool = False, even: bool = False, **settings: Any) -> dict[str, Any]:
    series, frequencies, times = make_series()
    if even:
        series, times = [values[:20] for values in series], [values[:20] for values in times]
    given = times if timed else None
    arguments = {"sample_weight": np.arange(1.0, 21) % 4 + 1} if weights else {}
    model = SSMClassifier(**settings).fit(series, classes_of(frequencies), given, **arguments)
    shifted = [values + 0.1 for values in series]
    return {
        "probabilities": model.predict_proba(shifted, given),
        "classes": model.predict(shifted, given).tolist(),
        "score": float(model.score(shifted, classes_of(frequencies), given)),
        **fitted_values(model),
    }


def regress(targets: int = 1, weights: bool = False, timed: bool = False, **settings: Any) -> dict[str, Any]:
    series, frequencies, times = make_series()
    y = frequencies if targets == 1 else np.stack([frequencies, frequencies**2 * 100], 1)
    given = times if timed else None
    arguments = {"sample_weight": np.arange(1.0, 21) % 4 + 1} if weights else {}
    model = SSMRegressor(**settings).fit(series, y, given, **arguments)
    shifted = [values + 0.1 for values in series]
    return {"predictions": model.predict(shifted, given), "score": float(model.score(shifted, y, given)), **fitted_values(model)}


def forecast(history: Any, times: Any = None, levels: Any = None, covariates: Any = None, **settings: Any) -> dict[str, Any]:
    model = SSMForecaster(quantiles=levels, **settings)
    ahead = {}
    if covariates is not None:
        horizon = model.horizon
        model.fit(history[:-horizon], covariates=covariates[:-horizon])
        ahead = {"covariates_ahead": covariates[-horizon:]}
        score = {}
    else:
        model.fit(history, times)
        score = {"score": float(model.score(history, times))} if times is None else {}
    found = {"forecast": model.predict(**ahead), **score, **fitted_values(model)}
    if levels is not None:
        found["quantiles"] = model.predict_quantiles(**ahead)
    if times is None and covariates is None:
        table = model.backtest(stride=7, season=5)
        found |= {"backtest": table.select_dtypes("number"), "errors": score_forecasts(table).select_dtypes("number")}
    return {name: to_plain(value) for name, value in found.items()}


def to_plain(value: Any) -> Any:
    """Return frames, series and lists of these as arrays."""
    if isinstance(value, pd.DataFrame | pd.Series):
        return to_plain(value.to_numpy(dtype=np.float64))
    if isinstance(value, np.ndarray) and value.dtype.kind == "f":
        return np.nan_to_num(value, nan=1000.0, posinf=2000.0, neginf=-2000.0)
    if isinstance(value, dict):
        return {str(name): to_plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    return value


def summarise() -> dict[str, Any]:
    """Return features of random systems for padded series with elapsed times."""
    series, _, times = make_series(6)
    lengths = np.array([len(values) for values in series])
    values, gaps = np.zeros((6, lengths.max(), 2), np.float32), np.ones((6, lengths.max()), np.float32)
    for row, (steps, stamps) in enumerate(zip(series, times, strict=True)):
        values[row, : len(steps)], gaps[row, 1 : len(steps)] = steps, np.diff(stamps)
    found = {}
    for name, given in (("even", None), ("timed", gaps)):
        random = np.random.RandomState(0)
        features = StateFeatures(2, int(lengths.max()), 70, random)
        padded = StandardisedSeries(values, lengths, given).batch(np.arange(6), torch.device("cpu"))
        features.calibrate(*padded, random)
        with torch.no_grad():
            found[name] = features(*padded)
    return found


CASES: dict[str, Callable[[], dict[str, Any]]] = {
    "features": summarise,
    "classifier": lambda: classify(**COMMON),
    "classifier of even series": lambda: classify(even=True, **COMMON),
    "classifier with times and weights": lambda: classify(timed=True, weights=True, class_weight="balanced", **COMMON),
    "trained classifier": lambda: classify(**STACK),
    "trained classifier with times": lambda: classify(timed=True, weights=True, pooling="last", **STACK),
    "trained classifier with validation": lambda: classify(
        validation_fraction=0.3, patience=1, weight_decay=0.1, class_weight={"slow": 2, "mid": 1, "fast": 0.5}, **STACK
    ),
    "regressor": lambda: regress(**COMMON),
    "regressor with times, weights and two targets": lambda: regress(targets=2, timed=True, weights=True, **COMMON),
    "trained regressor": lambda: regress(**STACK),
    "trained regressor of two targets": lambda: regress(targets=2, timed=True, weights=True, validation_fraction=0.3, **STACK),
    "forecaster": lambda: forecast(make_history(), levels=[0.1, 0.5, 0.8], **FORECAST),
    "forecaster of one channel": lambda: forecast(make_history()[:, 0], levels=[0.25, 0.75], **FORECAST),
    "forecaster of limited values": lambda: forecast(np.maximum(make_history()[:, 0], 0), levels=[0.1, 0.9], **FORECAST),
    "forecaster of several series": lambda: forecast(
        [make_history()[:80], make_history()[20:130] * 2, make_history()[:30] - 4], levels=[0.5], **FORECAST
    ),
    "forecaster with times": lambda: forecast(
        make_history(), np.arange(150) + 0.3 * np.sin(np.arange(150)), levels=[0.5], **FORECAST
    ),
    "forecaster with covariates": lambda: forecast(
        make_history()[:, 0] + 2 * np.sin(np.arange(150) ** 2), covariates=np.sin(np.arange(150) ** 2)[:, None], **FORECAST
    ),
    "forecaster without a window": lambda: forecast(make_history(), **(FORECAST | {"window": None, "horizon": 6})),
}


def compute_values(name: str) -> Any:
    """Return the recorded values of a case, as read from JSON."""
    return json.loads(json.dumps(describe({key: to_plain(value) for key, value in CASES[name]().items()})))


def test_record_has_every_case() -> None:
    assert sorted(json.loads(RECORD.read_text(encoding="utf-8"))) == sorted(CASES)


@pytest.mark.parametrize("name", CASES)
def test_values_match_the_record(name: str) -> None:
    recorded = json.loads(RECORD.read_text(encoding="utf-8"))[name]
    assert not list_differences(compute_values(name), recorded, tolerance=TOLERANCES.get(name, TOLERANCE))


if __name__ == "__main__":
    torch.set_num_threads(1)
    lines = [f"{json.dumps(name)}: {json.dumps(compute_values(name))}" for name in sorted(CASES)]
    RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
