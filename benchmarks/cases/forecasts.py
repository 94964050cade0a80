"""Errors of forecasts by `SSMForecaster` without settings and by baselines, on rolling windows of the last part of three sets.

Sets are divided in the order of time as in the literature: ETTh1 into 12, 4 and 4 months, the others into 70, 10 and 20 %. All
models see the same: those with settings choose them on the second part, and everything is fitted to the first two parts. Channels
are scaled by mean and standard deviation of the first part; errors are in these units. `SSMForecaster` reads the numbers of the
file, as its users do, in which it recognises codes of missing values such as -9999. The origins of the forecasts are evenly
spaced in the third part. AutoETS is fitted again at each origin to the last ten days, and forecasts only a few origins, the same
for all horizons; `mse_few` and `mae_few` are the errors of all models at these.

Rows that are in the file are not measured again, so that an interrupted run continues. To measure rows again, delete them, or
give them the field `replaced`, with the reason: such rows are in no table.
The sets are read from the folder LONGSCAN_DATA.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.lib.stride_tricks import sliding_window_view
from scipy.linalg import cho_factor, cho_solve
from torch import Tensor, nn

from harness import CPU, ROOT, Row, measurements, provenance
from longscan.estimators import SSMForecaster
from longscan.estimators.shifts import MAX_AGE
from longscan.report.records import Record, read_records
from page import mark_uncommitted, recorded_keys, write_section

HORIZONS = (24, 96, 336, 720)
WINDOWS = (24, 96, 192, 336, 720)  # of the ridge regression
PENALTIES = (0.0, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)  # of the ridge regression, in units of the mean variance of its features
ORIGINS = 400  # largest number of forecast origins
FEW, FEW_ALL = 40, 8  # origins of AutoETS with one channel, and with all
KEY = ("set", "channels", "horizon", "model", "seed")  # fields that tell rows apart
PAGE, SECTION = ROOT / "docs/howto/forecasts.md", "forecasts"

Array = np.ndarray[Any, np.dtype[np.float64]]
Forecast = Callable[[Array], Array]  # maps all steps before an origin (t, C) to those that follow (horizon, C)


@dataclass(frozen=True)
class Part:
    """A set with the steps at which its parts end, and the steps of a day."""

    name: str
    ends: tuple[int, int, int]
    target: str
    day: int

    def read(self, channels: str) -> tuple[Array, Array, Array]:
        """Return the scaled series (L, C), of all channels or of the target alone, and their mean and scale (C,)."""
        folder = os.environ.get("LONGSCAN_DATA")
        if not folder:
            raise SystemExit("forecasts: LONGSCAN_DATA must be the folder that has forecasting/*.csv, got nothing")
        frame = pd.read_csv(Path(folder) / "forecasting" / f"{self.name}.csv", encoding="latin-1", index_col=0)
        values = (frame if channels == "all" else frame[[self.target]]).to_numpy(np.float64)[: self.ends[2]]
        first = values[: self.ends[0]]
        mean, scale = first.mean(0), first.std(0)
        return (values - mean) / scale, mean, scale


SETS = (
    Part("ETTh1", (8640, 11520, 14400), "OT", 24),
    Part("WTH", (24544, 28052, 35064), "WetBulbCelsius", 24),
    Part("weather", (36887, 42157, 52696), "OT", 144),
)


@dataclass(frozen=True)
class Problem:
    """Data that a model is fitted to: the first two parts of a series (L, C), the step that divides them, and the horizon.

    mean, scale: of the channels (C,) in the units of the file.
    """

    x: Array
    mean: Array
    scale: Array
    split: int
    horizon: int
    day: int
    seed: int


@dataclass(frozen=True)
class Fitted:
    """What a model returns: its forecasts, the window that it reads if it has one, and a note of what was chosen."""

    forecast: Forecast
    window: int | None = None
    note: str | None = None


def constant(problem: Problem) -> Fitted:
    """Forecast the mean of each channel."""
    steps = np.tile(problem.x.mean(0), (problem.horizon, 1))
    return Fitted(lambda _: steps)


def last_value(problem: Problem) -> Fitted:
    """Repeat the last step."""
    return Fitted(lambda past: np.tile(past[-1], (problem.horizon, 1)), 1)


def seasonal_naive(problem: Problem) -> Fitted:
    """Repeat the last day."""
    steps = -problem.day + np.arange(problem.horizon) % problem.day
    return Fitted(lambda past: past[steps], problem.day)


def ridge(problem: Problem) -> Fitted:
    """Ridge regressions from a window to the horizon, one for each channel or one for all.

    Window, penalty, whether the last value is subtracted before and added after, and one or all are chosen by the squared error
    on the second part.
    """
    x, split, horizon = problem.x, problem.split, problem.horizon
    channels, found = x.shape[1], []
    stride = 4 if channels == 1 else 24
    for window in (w for w in WINDOWS if 2 * w + horizon <= split):
        for relative in (False, True):
            moments = [_moments(x[:split, c], window, horizon, relative) for c in range(channels)]
            held = [_windows(x[split - window :, c], window, horizon, relative, stride) for c in range(channels)]
            for shared in (True, False) if channels > 1 else (True,):
                for penalty in PENALTIES:
                    errors = [
                        np.mean((past @ weight[:-1] + weight[-1] - ahead) ** 2)
                        for weight, (past, ahead) in zip(_solve_all(moments, penalty, shared), held, strict=True)
                    ]
                    found.append((np.mean(errors), window, relative, shared, penalty))
    _, window, relative, shared, penalty = min(found)
    weights = _solve_all([_moments(x[:, c], window, horizon, relative) for c in range(channels)], penalty, shared)

    def forecast(past: Array) -> Array:
        read = past[-window:]
        level = read[-1] if relative else np.zeros(channels)
        return np.stack([(read[:, c] - level[c]) @ w[:-1] + w[-1] + level[c] for c, w in enumerate(weights)], 1)

    note = f"penalty {penalty:g}, {'last value subtracted' if relative else 'values as they are'}"
    return Fitted(forecast, window, note + (f", {'one for all channels' if shared else 'one for each'}" if channels > 1 else ""))


def _windows(x: Array, window: int, horizon: int, relative: bool, stride: int = 1) -> tuple[Array, Array]:
    """Return windows (n, window) and what follows them (n, horizon), less the last value of each window if `relative`."""
    pairs = sliding_window_view(x, window + horizon)[::stride]
    pairs = pairs - pairs[:, window - 1 : window] if relative else pairs
    return pairs[:, :window], pairs[:, window:]


def _moments(x: Array, window: int, horizon: int, relative: bool) -> tuple[Array, Array, float]:
    """Return the sums z z^T and z y^T over all windows, z being a window and 1, and the number of windows."""
    inner, cross = np.zeros((window + 1, window + 1)), np.zeros((window + 1, horizon))
    count = len(x) - window - horizon + 1
    for first in range(0, count, 4096):
        past, ahead = _windows(x[first : min(first + 4096, count) + window + horizon - 1], window, horizon, relative)
        past = np.hstack([past, np.ones((len(past), 1))])
        inner += past.T @ past
        cross += past.T @ ahead
    return inner, cross, float(count)


def _solve_all(moments: Sequence[tuple[Array, Array, float]], penalty: float, shared: bool) -> list[Array]:
    """Return the weights (window + 1, horizon) of each channel, the last row of which is the constant."""
    if shared:
        inner, cross, count = (sum(parts) for parts in zip(*moments, strict=True))
        return [_solve(inner, cross, count, penalty)] * len(moments)
    return [_solve(*parts, penalty) for parts in moments]


def _solve(inner: Array, cross: Array, count: float, penalty: float) -> Array:
    features = len(inner) - 1
    variance = max(0.0, np.trace(inner[:-1, :-1]) - np.square(inner[-1, :-1]).sum() / count) / features
    weights = np.full(features + 1, (penalty + 1e-9) * variance + 1e-9)
    weights[-1] = 0
    return np.asarray(cho_solve(cho_factor(inner + np.diag(weights)), cross))


class DLinear(nn.Module):
    """Two linear maps from window to horizon, of the moving average of a window and of the rest, for all channels."""

    def __init__(self, window: int, horizon: int, average: int = 25) -> None:
        super().__init__()
        self.trend, self.rest = nn.Linear(window, horizon), nn.Linear(window, horizon)
        self.average = average

    def forward(self, x: Tensor) -> Tensor:
        """Return the forecasts (B, horizon) of windows (B, window)."""
        side = self.average // 2
        padded = torch.cat([x[:, :1].expand(-1, side), x, x[:, -1:].expand(-1, side)], 1)
        trend = nn.functional.avg_pool1d(padded.unsqueeze(1), self.average, 1).squeeze(1)
        return self.trend(trend) + self.rest(x - trend)


def dlinear(problem: Problem) -> Fitted:
    """Train `DLinear` by Adam, at a rate that is halved after each epoch, until the second part is forecast best.

    Window 336, batches of 32, at most 10 epochs of at most 4,096 random windows, patience 3; the rate, .005 or .0005, is chosen
    on the second part. Then it is trained on both parts for as many epochs.
    """
    window, split, horizon = 336, problem.split, problem.horizon
    series = torch.from_numpy(problem.x).float()
    stride = 4 if series.shape[1] == 1 else 24
    held = series[split - window :].unfold(0, window + horizon, stride).flatten(0, 1)

    def train(end: int, lr: float, epochs: int, evaluate: bool) -> tuple[DLinear, list[float]]:
        torch.manual_seed(problem.seed)
        model, errors = DLinear(window, horizon), []
        optimizer = torch.optim.Adam(model.parameters(), lr)
        windows = series[:end].unfold(0, window + horizon, 1)
        for epoch in range(epochs):
            optimizer.param_groups[0]["lr"] = lr * 0.5**epoch
            for rows in torch.randperm(len(windows))[:4096].split(32):
                pairs = windows[rows].flatten(0, 1)
                loss = nn.functional.mse_loss(model(pairs[:, :window]), pairs[:, window:])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            if evaluate:
                with torch.no_grad():
                    parts = [nn.functional.mse_loss(model(p[:, :window]), p[:, window:]).item() for p in held.split(4096)]
                errors.append(float(np.mean(parts)))
                if epoch - int(np.argmin(errors)) == 3:
                    break
        return model, errors

    curves = {lr: train(split, lr, 10, True)[1] for lr in (0.005, 0.0005)}
    lr = min(curves, key=lambda lr: min(curves[lr]))
    epochs = 1 + int(np.argmin(curves[lr]))
    model, _ = train(len(series), lr, epochs, False)

    def forecast(past: Array) -> Array:
        with torch.no_grad():
            return model(torch.from_numpy(past[-window:].T.copy()).float()).T.double().numpy()

    return Fitted(forecast, window, f"lr {lr:g}, {epochs} epochs")


def auto_ets(problem: Problem) -> Fitted:
    """Fit exponential smoothing, whose form is chosen by AIC, to the last ten days before each origin."""

    def forecast(past: Array) -> Array:
        recent = past[-10 * problem.day :].T
        return np.stack([_smooth(values.tobytes(), problem.day)[: problem.horizon] for values in recent], 1)

    return Fitted(forecast, 10 * problem.day)


@cache
def _smooth(values: bytes, day: int) -> Array:
    """Return the forecast of the largest horizon from the numbers of a channel; it serves all horizons."""
    from aeon.forecasting.stats import AutoETS

    numbers = np.frombuffer(values)
    model = AutoETS(seasonal_period=day)
    model.fit(numbers)
    return np.asarray(model.iterative_forecast(numbers, max(HORIZONS)))


def ours(problem: Problem) -> Fitted:
    """Fit `SSMForecaster` without settings to the numbers of the file."""
    mean, scale = problem.mean, problem.scale
    model = SSMForecaster(horizon=problem.horizon, random_state=problem.seed).fit(problem.x * scale + mean)
    added = "linear forecast alone" if model.state_readout_ is None else "linear forecast and states of all channels"
    note = f"{model.n_epochs_} epochs" if model.n_epochs_ else added

    def forecast(past: Array) -> Array:
        read = model.window_ + MAX_AGE  # the window, and the steps before it by which a shift of the level is recognised
        return np.asarray((model.predict(past[-read:] * scale + mean) - mean) / scale)

    return Fitted(forecast, model.window_, note)


MODELS = {
    "SSMForecaster": ours,
    "constant": constant,
    "last value": last_value,
    "seasonal naive": seasonal_naive,
    "ridge": ridge,
    "DLinear": dlinear,
    "AutoETS": auto_ets,
}
RANDOM = {"SSMForecaster": 5, "DLinear": 3}  # seeds at most of the models whose errors depend on them
CHOSEN_ON = {"SSMForecaster": {"chosen_on": "test"}}  # errors of a default with iterated regressions had been seen


def measure(data: Part, channels: str, horizon: int, name: str, seed: int, quick: bool) -> Row:
    """Fit a model and return its row: errors at all origins, and at the few of AutoETS."""
    x, mean, scale = data.read(channels)
    split, end, last = (n // 12 for n in data.ends) if quick else data.ends
    x = x[:last]
    started = time.perf_counter()
    fitted = MODELS[name](Problem(x[:end], mean, scale, split, horizon, data.day, seed))
    seconds = time.perf_counter() - started
    possible = np.arange(end, last - horizon + 1)
    origins = possible[:: -(-len(possible) // (8 if quick else ORIGINS))]
    few = np.linspace(end, last - max(HORIZONS) // (12 if quick else 1), 2 if quick else FEW if x.shape[1] == 1 else FEW_ALL)
    few = few.astype(int)
    read = few if name == "AutoETS" else np.union1d(origins, few)
    started = time.perf_counter()
    errors = np.stack([fitted.forecast(x[:at]) - x[at : at + horizon] for at in read])
    row = {"set": data.name, "channels": channels, "horizon": horizon, "model": name, "seed": seed, "window": fitted.window}
    at_few, at_all = errors[np.isin(read, few)], errors[np.isin(read, origins)]
    for suffix, part in (("", None if name == "AutoETS" else at_all), ("_few", at_few)):
        row["mse" + suffix] = None if part is None else float(np.square(part).mean())
        row["mae" + suffix] = None if part is None else float(np.abs(part).mean())
    row |= {"origins": len(origins), "origins_few": len(few), "fit_seconds": seconds, "threads": torch.get_num_threads()}
    row["predict_seconds"] = (time.perf_counter() - started) / len(read)
    note = {} if fitted.note is None else {"note": fitted.note}
    return row | note | CHOSEN_ON.get(name, {}) | provenance(CPU, uses_triton=False)


def _key(row: Record) -> tuple[Any, ...]:
    return tuple(row[name] for name in KEY)


def rows_of(options: Any, *, name: str) -> Iterator[Row]:
    """Yield the rows of a model that are not in the file."""
    path = (options.out or ROOT / "results/forecasts") / f"{options.name or 'forecasts'}.jsonl"
    for seed in range(1 if name not in RANDOM or options.quick else min(options.runs, RANDOM[name])):
        for data in SETS[:1] if options.quick else SETS:
            for channels in (data.target, "all"):
                for horizon in HORIZONS[:1] if options.quick else HORIZONS:
                    key = (data.name, channels, horizon, name, seed)
                    if time.perf_counter() < options.end and (options.quick or key not in recorded_keys(path, KEY)):
                        yield measure(data, channels, horizon, name, seed, options.quick)


def write_page(path: Path) -> None:
    """Write the tables of a file of records into the page of the documentation."""
    write_section(path, PAGE, SECTION, tables(read_records(path)))


def tables(rows: Sequence[Record]) -> str:
    """Return three Markdown tables: errors of all models, errors at the few origins of AutoETS, and seconds of the fits."""
    latest = {_key(row): row for row in rows if "replaced" not in row}
    names = [name for name in MODELS if any(row["model"] == name for row in latest.values())]
    lines = []
    for title, suffix, models in (
        ("Mean squared error / mean absolute error", "", [name for name in names if name != "AutoETS"]),
        ("The same at the few origins that AutoETS forecasts", "_few", names),
    ):
        lines += [f"{title}:", "", *_header(models)]
        for (data, channels, horizon), found in _by_case(latest).items():
            cells = [_errors(found.get(name, []), suffix) for name in models]
            lines.append(f"| {data} | {channels} | {horizon} | " + " | ".join(cells) + " |")
        lines.append("")
    lines += ["Seconds of a fit, and the window that was chosen:", "", *_header(names)]
    for (data, channels, horizon), found in _by_case(latest).items():
        cells = [_cost(found.get(name, [])) for name in names]
        lines.append(f"| {data} | {channels} | {horizon} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n" + mark_uncommitted(list(latest.values()), "model")


def _header(names: Sequence[str]) -> list[str]:
    return ["| Set | Channels | Horizon | " + " | ".join(names) + " |", "|---|---|---|" + "---|" * len(names)]


def _by_case(latest: dict[tuple[Any, ...], Record]) -> dict[tuple[str, str, int], dict[str, list[Record]]]:
    """Return the rows of all seeds by case and model."""
    found: dict[tuple[str, str, int], dict[str, list[Record]]] = {}
    for data in SETS:
        for channels in (data.target, "all"):
            for horizon in HORIZONS:
                for key, row in latest.items():
                    if key[:3] == (data.name, channels, horizon):
                        found.setdefault((data.name, channels, horizon), {}).setdefault(row["model"], []).append(row)
    return found


def _errors(rows: Sequence[Record], suffix: str) -> str:
    """Return the errors of a model, means over the seeds."""
    if not rows or rows[0]["mse" + suffix] is None:
        return "–"
    return " / ".join(_figure(float(np.mean([row[name + suffix] for row in rows]))) for name in ("mse", "mae"))


def _figure(value: float) -> str:
    return f"{value:.4f}" if value < 0.01 else f"{value:.3f}"


def _cost(rows: Sequence[Record]) -> str:
    if not rows:
        return "–"
    windows = ", ".join(sorted({str(row["window"]) for row in rows if row["window"] is not None}, key=int))
    return f"{np.mean([row['fit_seconds'] for row in rows]):.0f} s" + (f", {windows}" if windows else "")


CASES = measurements("forecasts", MODELS, rows_of, write_page, folder="forecasts")
