"""Predictions for a series whose steps arrive one after the other or in pieces."""

import copy
from typing import Any

import numpy as np
import pandas as pd
import torch

from longscan._torch_defaults import torch_defaults
from longscan.estimators.clock import as_clock, check_unit, to_seconds
from longscan.estimators.reading import FittedChannels, convert_input, read_collection, times_keyword_error, times_presence_error
from longscan.estimators.series import check_predictions
from longscan.estimators.threads import choose_threads, limited_threads

MAX_PIECE = 4096  # steps that are processed together, so that a long piece needs no more memory


class SeriesStream:
    """A series that grows: `SSMClassifier.stream` and `SSMRegressor.stream` return it.

    After each piece the prediction is that of `predict` for all steps so far, up to rounding. Only the state of the model is
    kept, not the steps.

    Attributes:
        n_steps: number of steps so far.
    """

    def __init__(self, estimator: Any) -> None:
        self._estimator = copy.copy(estimator)  # a later `fit` replaces attributes
        self._state = estimator.model_.initial_state(1)
        self._last_stamp: pd.Index | None = None
        self._outputs = np.empty(0)
        self.n_steps = 0

    @torch_defaults()
    def update(self, steps: Any, times: Any = None) -> Any:
        """Read further steps and return the prediction for all steps so far. After an error the stream is as before the call.

        Args:
            steps: one step, a number or (C,), or several, (k,) for one channel or (k, C), an array or a frame; channels with
                names are matched by them.
            times: of these steps, if `fit` had times: (k,), one time for one step, or "index" of a frame. The row of a frame has
                its time as its name.
        """
        values = self._values(steps)
        gaps, last_stamp = self._gaps(steps, times, len(values))
        state = self._state
        model = self._estimator.model_
        device = next(model.parameters()).device
        inputs = torch.from_numpy(values).to(device).unsqueeze(0)
        elapsed = None if gaps is None else torch.from_numpy(gaps).to(device).unsqueeze(0)
        n_threads = choose_threads(self._estimator.n_jobs, min(len(values), MAX_PIECE) * model.d_model)
        with torch.no_grad(), limited_threads(n_threads):
            for first in range(0, len(values), MAX_PIECE):
                piece = slice(first, first + MAX_PIECE)
                between = None if elapsed is None else elapsed[:, piece]
                outputs, state = model(inputs[:, piece], state, elapsed=between, return_state=True)
        self._outputs = check_predictions(outputs.cpu().double().numpy(), "steps")
        self._state, self._last_stamp = state, last_stamp
        self.n_steps += len(values)
        return self.predict()

    def predict(self) -> Any:
        """Return the prediction for all steps so far: a label, a number, or (K,) numbers. Raises ValueError before any step."""
        return self._estimator._predicted(self._checked_outputs())[0]

    def _checked_outputs(self) -> np.ndarray:
        if not self.n_steps:
            raise ValueError("`update` must be called before a prediction, got no steps yet")
        return self._outputs

    def _is_row(self, steps: Any) -> bool:
        """Return whether steps are the row of a frame: a series of channels, whose names it has if there is only one."""
        fitted = self._estimator
        return isinstance(steps, pd.Series) and (fitted.n_channels_ > 1 or tuple(steps.index) == fitted.channel_names_)

    def _values(self, steps: Any) -> np.ndarray:
        """Return the standardised values of the steps, (k, C) float32."""
        fitted = self._estimator
        steps, layout = convert_input(steps, "steps"), fitted.layout
        if self._is_row(steps):
            steps = steps.to_frame().T
        elif not isinstance(steps, (pd.Series, pd.DataFrame)):
            steps = np.asarray(steps)
            if steps.ndim == 0 or (steps.ndim == 1 and fitted.n_channels_ > 1):
                steps, layout = steps.reshape(1, -1), "nlc"
        known = FittedChannels(fitted.n_channels_, fitted.channel_names_)
        collection = read_collection([steps], layout=layout, known=known, argument="steps")
        return collection.standardise(fitted.mean_, fitted.scale_, 1.0, "steps").values[0]

    def _gaps(self, steps: Any, times: Any, length: int) -> tuple[np.ndarray | None, pd.Index | None]:
        """Return the elapsed time before each step in units of `time_unit_`, (k,) float32, and the last time stamp.

        Both are None if `fit` had no times.
        """
        if (times is not None) != self._estimator.has_times_:
            raise times_presence_error(self._estimator.has_times_)
        if times is None:
            return None, None
        if isinstance(times, str):
            if times != "index" or not isinstance(steps, (pd.Series, pd.DataFrame)):
                raise times_keyword_error(times)
            times = [steps.name] if self._is_row(steps) else steps.index
        clock = as_clock([times] if np.ndim(times) == 0 else times, "`times`")
        if len(clock) != length:
            raise ValueError(f"`times` must have {length} times, one for each step, got {len(clock)}")
        check_unit(clock, self._estimator._times_are_seconds)
        whole = clock if self._last_stamp is None else as_clock(self._last_stamp.append(clock), "`times`")
        if not whole.is_monotonic_increasing:
            raise ValueError("`times` must be in the order of time, after those of earlier steps, got times that go back")
        gaps = np.diff(to_seconds(whole)) / self._estimator.time_unit_
        first = [1.0] if len(gaps) < length else []  # the time before the first step is unknown
        return np.concatenate([first, gaps]).astype(np.float32), clock[-1:]


class ClassifierStream(SeriesStream):
    """A series that grows, with a label and probabilities, see `SeriesStream`."""

    def predict_proba(self) -> np.ndarray:
        """Return the probability of each class for all steps so far, (classes,), in the order of `classes_`."""
        probabilities: np.ndarray = self._estimator._probabilities_of(self._checked_outputs())[0]
        return probabilities
