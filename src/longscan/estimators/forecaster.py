"""A forecaster of series."""

import math
from typing import Any, Self, cast

import numpy as np
import pandas as pd
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor
from torch.nn.functional import l1_loss

from longscan.estimators.fitting import Spec, check_settings, minimise, pick_device, seeded
from longscan.estimators.series import Collection, read_series
from longscan.models import Forecaster


class SSMForecaster(BaseEstimator):
    """A stack of state space blocks that reads a window of a series and goes on with it, by `longscan.models.Forecaster`.

    A series is an array (L,) or (L, C), a Series or a frame whose rows are the steps; `fit` also takes a list of them. It is
    trained on windows of what it is given, by the mean absolute error in units of each window's own standard deviation.

    Args:
        horizon: steps of a forecast.
        window: steps that are read before it, at most.
        spec: the blocks, letters or a list, as in `longscan.SequenceModel.from_spec`; all causal.
        d_model: width of the stack.
        d_state: state size of the layers.
        epochs: times each part of the series is shown.
        batch_size: windows in an update.
        lr: largest learning rate, after a warm-up and before a cosine to 0.
        device: "cpu", "cuda", ..., or "auto".
        random_state: a number, a `numpy.random.RandomState` or None; the same number gives the same model.

    Attributes:
        model_: the fitted `Forecaster`. loss_curve_: mean loss of each epoch. mean_, scale_: of the channels. time_unit_: the
        median time between steps. n_channels_, has_times_: what the series was like.
    """

    def __init__(
        self,
        horizon: int = 24,
        window: int = 96,
        spec: Spec = "m",
        *,
        d_model: int = 64,
        d_state: int = 16,
        epochs: int = 50,
        batch_size: int = 32,
        lr: float = 3e-3,
        device: str = "auto",
        random_state: Any = None,
    ) -> None:
        self.horizon = horizon
        self.window = window
        self.spec = spec
        self.d_model = d_model
        self.d_state = d_state
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.device = device
        self.random_state = random_state

    def fit(self, y: Any, times: Any = None) -> Self:
        """Fit to a series, or to a list of them.

        times: of the steps, (L,), or "index" of a frame; for a list, a list of these or "index". ValueError where no series is
        longer than the horizon.
        """
        check_settings(self)
        several = isinstance(y, list) and not (y and np.isscalar(y[0]))
        given = times if several or times is None or isinstance(times, str) else [times]
        collection = read_series(y if several else [y], given)
        window = min(self.window, int(collection.lengths.max()) - self.horizon)
        if window < 1:
            longest = collection.lengths.max()
            raise ValueError(f"y: the longest series has {longest} steps, expected more than the horizon of {self.horizon}")
        random = check_random_state(self.random_state)
        self.n_channels_, self.has_times_ = collection.channels, collection.times is not None
        self.mean_, self.scale_ = collection.statistics()
        self.time_unit_ = collection.time_unit()
        device = pick_device(self.device)
        starts = _starts(collection, window + self.horizon)
        with seeded(int(random.randint(2**31 - 1))):
            model = Forecaster.from_spec(
                self.spec,
                d_model=self.d_model,
                d_state=self.d_state,
                d_input=collection.channels,
                horizon=self.horizon,
                normalise=True,
            ).to(device)

            def loss_of(chosen: np.ndarray) -> Tensor:
                parts = _windows(collection, starts[chosen], window + self.horizon)
                values, _, elapsed = parts.batch(np.arange(len(chosen)), self.mean_, self.scale_, self.time_unit_, device)
                past, future = values[:, :window], values[:, window:]
                before, ahead = (None, None) if elapsed is None else (elapsed[:, :window], elapsed[:, window:])
                unit = past.std(1, keepdim=True, correction=0) + 1e-2
                return l1_loss(model(past, elapsed=before, elapsed_ahead=ahead) / unit, future / unit)

            stride = max(1, self.horizon // 4)
            count = math.ceil(len(starts) / stride)  # an epoch shows every part of the series a few times, not every window

            def order(random: np.random.RandomState) -> np.ndarray:
                return random.choice(len(starts), count, replace=False)

            self.loss_curve_ = minimise(
                model,
                loss_of,
                order,
                epochs=self.epochs,
                batch_size=self.batch_size,
                lr=self.lr,
                weight_decay=0.01,
                random=random,
            )
        self.model_ = model
        self._latest = None if several else (y, times)
        return self

    def predict(self, y: Any = None, times: Any = None, times_ahead: Any = None) -> Any:
        """The `horizon` steps after a series: an array (horizon,) or (horizon, C), or a frame with the columns of a frame given.

        Args:
            y: what was measured so far, of which the last `window` steps are read; None: the series of `fit`.
            times: of its steps, where `fit` had times.
            times_ahead: (horizon,), the times that are asked for; None: even steps of `time_unit_`.
        """
        check_is_fitted(self, "model_")
        if y is None:
            if self._latest is None:
                raise ValueError("y: fit had several series, expected the one to go on with")
            y, times = self._latest
        history = read_series([y], times if times is None or isinstance(times, str) else [times])
        if history.channels != self.n_channels_:
            raise ValueError(f"y: got {history.channels} channels, expected {self.n_channels_} as in fit")
        if (history.times is not None) != self.has_times_:
            raise ValueError(f"times: got {'some' if times is not None else 'none'}, expected them where fit had them")
        if times_ahead is not None and not self.has_times_:
            raise ValueError("times_ahead: got times, expected none where fit had none")
        length = int(history.lengths[0])
        part = _windows(history, np.array([[0, max(0, length - self.window)]]), min(length, self.window))
        device = next(self.model_.parameters()).device
        values, _, elapsed = part.batch(np.arange(1), self.mean_, self.scale_, self.time_unit_, device)
        ahead = None if elapsed is None else self._ahead(history, times_ahead, device)
        with torch.no_grad():
            forecast = self.model_(values, elapsed=elapsed, elapsed_ahead=ahead)[0].cpu().double().numpy()
        forecast = forecast * self.scale_ + self.mean_
        if isinstance(y, pd.DataFrame):
            return pd.DataFrame(forecast, columns=y.columns)
        return forecast[:, 0] if np.ndim(y) == 1 else forecast

    def score(self, y: Any, times: Any = None) -> float:
        """Skill against the last value: 1 - (mean absolute error) / (that of going on with the last value), 1 at best.

        Forecasts start at every `horizon` steps of the series from `window` on. ValueError where there is no room for one.
        """
        check_is_fitted(self, "model_")
        series = read_series([y], times if times is None or isinstance(times, str) else [times])
        values = series.values[0] / self.scale_
        cuts = range(min(self.window, len(values) - self.horizon), len(values) - self.horizon + 1, self.horizon)
        if not len(cuts) or cuts[0] < 1:
            raise ValueError(f"y: got {len(values)} steps, expected more than the horizon of {self.horizon}")
        error = persistence = 0.0
        for cut in cuts:
            known = None if series.times is None else series.times[0][:cut]
            ahead = None if series.times is None else series.times[0][cut : cut + self.horizon]
            forecast = np.reshape(self.predict(series.values[0][:cut], known, ahead), (self.horizon, -1)) / self.scale_
            error += np.abs(forecast - values[cut : cut + self.horizon]).sum()
            persistence += np.abs(values[cut - 1] - values[cut : cut + self.horizon]).sum()
        return float(1 - error / persistence) if persistence else float(error == 0)

    def _ahead(self, history: Collection, times_ahead: Any, device: torch.device) -> Tensor:
        """(1, horizon): gaps between the times that are asked for, in `time_unit_`."""
        if times_ahead is None:
            return torch.ones(1, self.horizon, device=device)
        given, last = read_series([np.zeros(self.horizon)], [times_ahead]).times, history.times
        gaps = np.diff(cast("np.ndarray", given)[0], prepend=cast("np.ndarray", last)[0, history.lengths[0] - 1])
        if gaps[0] < 0:
            raise ValueError("times_ahead: they start before the series ends")
        return torch.from_numpy((gaps / self.time_unit_).astype(np.float32)).to(device).unsqueeze(0)


def _starts(collection: Collection, length: int) -> np.ndarray:
    """(count, 2): series and first step of every window of this length."""
    return np.array([(i, first) for i, size in enumerate(collection.lengths) for first in range(size - length + 1)])


def _windows(collection: Collection, starts: np.ndarray, length: int) -> Collection:
    """Windows of a collection as one of their own."""
    steps = starts[:, 1:] + np.arange(length)
    times = None if collection.times is None else collection.times[starts[:, :1], steps]
    return Collection(collection.values[starts[:, :1], steps], np.full(len(starts), length), times)
