"""Forecasts without a sequence model: seasonal mean, seasonal naive and persistence, DLinear.

Each maps contexts (n, context, C) to forecasts (n, horizon, C).
"""

import numpy as np
import torch
from torch import Tensor, nn

_KERNEL = 25  # of DLinear's moving average


def seasonal_mean(contexts: Tensor, horizon: int, period: int, count: int, start: int = 0) -> Tensor:
    """The mean of the last `count` periods, or of as many as the context holds, repeated; persistence where it holds none.

    count 1 is the seasonal naive forecast, period 1 and count 1 persistence. start: the first step of the answer, counted from
    the context's end.
    """
    count = min(count, contexts.shape[1] // period)
    if not count:
        period = count = 1
    mean = contexts[:, -period * count :].reshape(len(contexts), count, period, -1).mean(1)
    return mean[:, torch.arange(start, start + horizon) % period]


class DLinear(nn.Module):
    """Two linear maps from context to horizon, of the moving average and of the rest, for all variables (Zeng et al., 2023)."""

    def __init__(self, context: int, horizon: int) -> None:
        super().__init__()
        self.trend, self.rest = nn.Linear(context, horizon), nn.Linear(context, horizon)
        for layer in (self.trend, self.rest):
            nn.init.constant_(layer.weight, 1 / context)

    def forward(self, contexts: Tensor) -> Tensor:
        """(n, context, C) -> (n, horizon, C)."""
        series = contexts.transpose(1, 2)
        ends = series[..., :1].expand(-1, -1, _KERNEL // 2), series[..., -1:].expand(-1, -1, _KERNEL // 2)
        trend = nn.functional.avg_pool1d(torch.cat([ends[0], series, ends[1]], dim=2), _KERNEL, 1)
        forecast: Tensor = self.trend(trend) + self.rest(series - trend)
        return forecast.transpose(1, 2)


def fitted_dlinear(train: np.ndarray, valid: np.ndarray, context: int, horizon: int, *, seed: int, epochs: int = 10) -> DLinear:
    """DLinear as its authors fit it: Adam, windows of stride one in random order, batches of 32, the rate halved each epoch.

    train, valid: (rows, C) standardised. The epoch with the best error on valid is kept; three without a better one end it. The
    rate is .001 (theirs lies between .0001 and .05, by data set).
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = DLinear(context, horizon)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    windows = _windows(train, context + horizon)
    best, kept, waited = float("inf"), {name: value.clone() for name, value in model.state_dict().items()}, 0
    for epoch in range(epochs):
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * 0.5**epoch
        for rows in torch.split(torch.randperm(len(windows), generator=generator), 32):
            batch = windows[rows]
            loss = nn.functional.mse_loss(model(batch[:, :context]), batch[:, context:])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        error = _error(model, _windows(valid, context + horizon), context)
        if error < best:
            best, kept, waited = error, {name: value.clone() for name, value in model.state_dict().items()}, 0
        else:
            waited += 1
            if waited == 3:
                break
    model.load_state_dict(kept)
    return model.eval()


def _windows(rows: np.ndarray, length: int) -> Tensor:
    """All windows (n, length, C) of a table, as a view."""
    return torch.from_numpy(np.ascontiguousarray(rows, np.float32)).unfold(0, length, 1).transpose(1, 2)


@torch.no_grad()
def _error(model: DLinear, windows: Tensor, context: int) -> float:
    parts = [((model(part[:, :context]) - part[:, context:]) ** 2).mean((1, 2)) for part in torch.split(windows, 256)]
    return torch.cat(parts).mean().item()
