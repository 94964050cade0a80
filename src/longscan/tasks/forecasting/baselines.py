"""Forecasts without a sequence model: seasonal mean, seasonal naive and persistence, DLinear.

All map contexts (n, context, C) to forecasts (n, horizon, C).
"""

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

from longscan.engine import Callback, EarlyStopping, Engine, StepResult
from longscan.tasks.fitted import FitProgress, ignore_progress

_KERNEL = 25  # steps of DLinear's moving average
_BATCH_SIZE = 32


def seasonal_mean(contexts: Tensor, horizon: int, period: int, count: int, start: int = 0) -> Tensor:
    """Forecast by repeating the mean of the last `count` periods, or of as many as the context has; without any, its last value.

    count=1 is the seasonal naive forecast, period=1 and count=1 persistence. start: the first step of the forecast, counted from
    the end of the context.
    """
    count = min(count, contexts.shape[1] // period)
    if not count:
        period = count = 1
    mean = contexts[:, -period * count :].reshape(len(contexts), count, period, -1).mean(1)
    return mean[:, torch.arange(start, start + horizon) % period]


class DLinear(nn.Module):
    """Sum of two linear maps from context to horizon, one of the moving average and one of the remainder (Zeng et al., 2023).

    All variables share the maps.
    """

    def __init__(self, context: int, horizon: int) -> None:
        super().__init__()
        self.trend, self.rest = nn.Linear(context, horizon), nn.Linear(context, horizon)
        for layer in (self.trend, self.rest):
            nn.init.constant_(layer.weight, 1 / context)

    def forward(self, contexts: Tensor) -> Tensor:
        """Map contexts (n, context, C) to forecasts (n, horizon, C)."""
        series = contexts.transpose(1, 2)
        ends = series[..., :1].expand(-1, -1, _KERNEL // 2), series[..., -1:].expand(-1, -1, _KERNEL // 2)
        trend = nn.functional.avg_pool1d(torch.cat([ends[0], series, ends[1]], dim=2), _KERNEL, 1)
        forecast: Tensor = self.trend(trend) + self.rest(series - trend)
        return forecast.transpose(1, 2)


class _Report(Callback):
    """Reports the updates of DLinear."""

    def __init__(self, on_progress: FitProgress, total: int) -> None:
        self.on_progress, self.total = on_progress, total

    def on_step_end(self, engine: Engine, _: StepResult) -> None:
        """Report the number of updates."""
        self.on_progress("dlinear", engine.step, self.total)


def fitted_dlinear(
    train: np.ndarray,
    valid: np.ndarray,
    context: int,
    horizon: int,
    *,
    seed: int,
    epochs: int = 10,
    on_progress: FitProgress = ignore_progress,
) -> DLinear:
    """Fit DLinear as its authors do: Adam, windows of stride one in random order, batches of 32, the rate decaying by epoch.

    train, valid: (rows, C), standardised. Returns the model of the epoch with the smallest error on valid; training ends after
    three epochs without a smaller one. The learning rate starts at .001 and is divided by two after each epoch; the authors start
    with .0001 to .05, depending on the data set. `on_progress` is called after each update with those of all epochs as the total.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = DLinear(context, horizon)
    windows, valid_windows = _windows(train, context + horizon), _windows(valid, context + horizon)
    steps_per_epoch = math.ceil(len(windows) / _BATCH_SIZE)

    def batches() -> Iterator[Tensor]:
        for _ in range(epochs):
            yield from torch.split(torch.randperm(len(windows), generator=generator), _BATCH_SIZE)

    def compute_loss(rows: Tensor) -> tuple[Tensor, None]:
        batch = windows[rows]
        return nn.functional.mse_loss(model(batch[:, :context]), batch[:, context:]), None

    stopping = EarlyStopping(model, lambda: _error(model, valid_windows, context), every=steps_per_epoch, patience=3)
    optimizer = torch.optim.Adam(model.parameters())
    engine = Engine(optimizer, compute_loss, learning_rate=lambda step, scale: scale * 1e-3 * 0.5 ** (step // steps_per_epoch))
    engine.callbacks += [stopping, _Report(on_progress, epochs * steps_per_epoch)]
    on_progress("dlinear", 0, epochs * steps_per_epoch)
    engine.run(batches())
    return model.eval()


def _windows(rows: np.ndarray, length: int) -> Tensor:
    """Return all windows of a table (rows, C) as a view (n, length, C)."""
    return torch.from_numpy(np.ascontiguousarray(rows, np.float32)).unfold(0, length, 1).transpose(1, 2)


@torch.no_grad()
def _error(model: DLinear, windows: Tensor, context: int) -> float:
    """Return the mean squared error of the forecasts of windows (n, context + horizon, C)."""
    parts = [((model(part[:, :context]) - part[:, context:]) ** 2).mean((1, 2)) for part in torch.split(windows, 256)]
    return torch.cat(parts).mean().item()
