"""Callbacks that any training can use."""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from longscan._types import NonNegativeInt, PositiveFraction, PositiveInt, checked_value
from longscan.engine.engine import Callback, Engine, StepResult


class EpochLosses(Callback):
    """Collects the mean loss of each epoch of `steps_per_epoch` steps in `curve`, and of the steps after the last whole epoch.

    Raises NonFiniteLossError after an epoch with a loss or gradient that is not finite, SettingError for less than one step.
    """

    def __init__(self, steps_per_epoch: int) -> None:
        checked_value(steps_per_epoch, PositiveInt, "steps_per_epoch")
        self.curve: list[float] = []
        self._steps_per_epoch = steps_per_epoch
        self._losses: list[Tensor] = []

    def on_step_end(self, engine: Engine, result: StepResult) -> None:
        """Store the loss; at the end of an epoch, append the mean to the curve."""
        self._losses.append(result.loss.clone())  # a step that is replayed as a CUDA graph overwrites the tensor
        if engine.step % self._steps_per_epoch == 0:
            engine.raise_if_not_finite()
            self._append_mean()

    def on_train_end(self, engine: Engine) -> None:
        """Append the mean of an incomplete epoch."""
        if self._losses:
            self._append_mean()

    def _append_mean(self) -> None:
        self.curve.append(float(np.mean(torch.stack(self._losses).tolist())))
        self._losses = []


class TimeLimit(Callback):
    """Stops training within a number of seconds from the construction of this callback.

    Training continues while the longest step so far, with all that callbacks did in it, still fits into the time. The first step
    is always made.

    Args:
        seconds: the time.
        reserve: the part of it, in seconds, that is left for what follows the last step.

    Attributes:
        fraction: the fraction of the time, without the reserve, that had passed after the last step, 0 to 1.
    """

    def __init__(self, seconds: float, reserve: float = 0.0) -> None:
        self.fraction = 0.0
        self._seconds = max(seconds - reserve, 0.0)
        self._start = self._last = monotonic()
        self._longest = 0.0

    def on_step_end(self, engine: Engine, result: StepResult) -> None:
        """Measure the step; request a stop if another one may not fit."""
        now = monotonic()
        self._longest, self._last = max(self._longest, now - self._last), now
        spent = now - self._start
        self.fraction = min(1.0, spent / self._seconds) if self._seconds else 1.0
        engine.stop_requested |= spent + self._longest > self._seconds


@dataclass
class Patience:
    """The best error so far, and the number of evaluations since.

    Attributes:
        limit: evaluations without a smaller error after which training stops; 0: never.
        best_error: infinity before the first evaluation.
        used: evaluations since the best one.
        is_used_up: whether `limit` is reached.
    """

    limit: int
    best_error: Any = math.inf
    used: int = 0
    is_used_up: bool = False

    def update(self, error: Any) -> bool:
        """Compare an error, a number or a tuple of numbers, with the best one; return whether it is smaller."""
        is_best = bool(error < self.best_error)
        if is_best:
            self.best_error = error
        self.used = 0 if is_best else self.used + 1
        self.is_used_up = 0 < self.limit <= self.used
        return is_best


class EarlyStopping(Callback):
    """Stops training when the error of a model no longer decreases, and restores the best weights at the end.

    The model is evaluated every `every` steps and after the last one. Training stops after `patience` evaluations without a
    smaller error; with `patience` 0 it is not stopped. evaluate: function that returns the error, a number or a tuple of numbers;
    smaller is better. If all errors are NaN, the first weights are restored. Raises SettingError for `every` below 1 and
    `patience` below 0.
    """

    def __init__(self, model: nn.Module, evaluate: Callable[[], Any], *, every: int, patience: int) -> None:
        checked_value(every, PositiveInt, "every")
        checked_value(patience, NonNegativeInt, "patience")
        self._model, self._evaluate, self._every, self._patience = model, evaluate, every, Patience(patience, (math.inf,))
        self._best_weights = copy.deepcopy(model.state_dict())

    def on_step_end(self, engine: Engine, result: StepResult) -> None:
        """Evaluate the model after every `every`-th step."""
        if engine.step % self._every == 0:
            self._compare()
            engine.stop_requested |= self._patience.is_used_up

    def _compare(self) -> None:
        """Evaluate the model and store its weights if the error is the smallest so far."""
        error = self._evaluate()
        if self._patience.update(error if isinstance(error, tuple) else (error,)):
            self._best_weights = copy.deepcopy(self._model.state_dict())

    def on_train_end(self, engine: Engine) -> None:
        """Evaluate steps after the last evaluation, and restore the best weights."""
        if engine.step % self._every:
            self._compare()
        self._model.load_state_dict(self._best_weights)


class WeightAverage(Callback):
    """Mean of a model's parameters over its steps: exponential with `decay` < 1, plain with `decay` = 1.

    The k-th update has the weight max(1 - decay, 1 / k), so the exponential average starts as a plain one and has no bias towards
    the first weights. Steps up to `start` are left out. Raises SettingError unless `decay` is above 0 and at most 1.

    Attributes:
        count: number of updates so far.
        model: a copy of the model with the averaged parameters and the newest buffers.
    """

    def __init__(self, model: nn.Module, decay: float, start: float = 0) -> None:
        checked_value(decay, PositiveFraction, "decay")
        self.count, self._source, self._decay, self._start = 0, model, decay, start
        self._averaged = AveragedModel(model, multi_avg_fn=self._add)

    @property
    def model(self) -> Any:
        """The copy of the model with the averaged parameters."""
        return self._averaged.module

    @property
    def weights(self) -> dict[str, Tensor]:
        """The averaged parameters by name; empty before the first update."""
        return {name: value.detach() for name, value in self.model.named_parameters()} if self.count else {}

    def on_step_end(self, engine: Engine, result: StepResult) -> None:
        """Add the parameters to the average if it has started."""
        if engine.step > self._start:
            self.update()

    def update(self) -> None:
        """Add the model's present parameters to the average."""
        self.count += 1
        self._averaged.update_parameters(self._source)

    def _add(self, averages: Any, parameters: Any, _: Tensor | int) -> None:
        # AveragedModel passes its count as a tensor on the device; reading it would wait for the device.
        torch._foreach_lerp_(averages, parameters, max(1 - self._decay, 1 / self.count))

    def restore(self, weights: dict[str, Tensor], count: int) -> None:
        """Continue from averages over `count` updates. Raises KeyError if a parameter is missing."""
        copy_weights(weights, self.model)
        self.count = count
        self._averaged.n_averaged.fill_(count)


@torch.no_grad()
def copy_weights(weights: dict[str, Tensor], model: nn.Module) -> None:
    """Copy values into a model's parameters by name. Raises KeyError if one is missing."""
    for name, parameter in model.named_parameters():
        parameter.copy_(weights[name])
