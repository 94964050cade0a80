"""Callbacks that any training can use."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from longscan.engine.engine import Callback, Engine, StepResult


class EpochLosses(Callback):
    """Collects the mean loss of each epoch of `steps_per_epoch` steps in `curve`. Raises NonFiniteLossError after an epoch with a
    loss or gradient that is not finite."""

    def __init__(self, steps_per_epoch: int) -> None:
        self.curve: list[float] = []
        self._steps_per_epoch = steps_per_epoch
        self._losses: list[Tensor] = []

    def on_step_end(self, engine: Engine, result: StepResult) -> None:
        """Keep the loss; at the end of an epoch, add the mean to the curve."""
        self._losses.append(result.loss)
        if engine.step % self._steps_per_epoch == 0:
            engine.raise_if_not_finite()
            self.curve.append(float(np.mean(torch.stack(self._losses).tolist())))
            self._losses = []


class EarlyStopping(Callback):
    """Evaluates a model every `every` steps, keeps its best weights, and stops after `patience` evaluations without a better one.

    evaluate: returns the error, smaller is better. The model has its best weights when training ends; its first ones if no error
    was a number.
    """

    def __init__(self, model: nn.Module, evaluate: Callable[[], float], *, every: int, patience: int) -> None:
        self._model, self._evaluate, self._every, self._patience = model, evaluate, every, patience
        self._best_error, self._patience_used = float("inf"), 0
        self._best_weights = self._copy()

    def on_step_end(self, engine: Engine, result: StepResult) -> None:
        """Evaluate if it is time to."""
        if engine.step % self._every:
            return
        error = self._evaluate()
        if error < self._best_error:
            self._best_error, self._patience_used, self._best_weights = error, 0, self._copy()
        else:
            self._patience_used += 1
            engine.stop_requested |= self._patience_used >= self._patience

    def on_train_end(self, engine: Engine) -> None:
        """Give the model its best weights."""
        self._model.load_state_dict(self._best_weights)

    def _copy(self) -> dict[str, Any]:
        return {name: value.clone() for name, value in self._model.state_dict().items()}


class WeightAverage(Callback):
    """The mean of a model's parameters over its steps: exponential with `decay` < 1, plain with `decay` = 1.

    After k entries the newest has the weight max(1 - decay, 1 / k), so the exponential average starts as a plain one and has no
    bias towards the first weights. Steps up to `start` are left out. `model` is a copy of the model that has the averaged
    parameters and the newest buffers.
    """

    def __init__(self, model: nn.Module, decay: float, start: float = 0) -> None:
        self.count, self._source, self._decay, self._start = 0, model, decay, start
        self._averaged = AveragedModel(model, multi_avg_fn=self._add)

    @property
    def model(self) -> Any:
        """The copy of the model with the averaged parameters."""
        return self._averaged.module

    @property
    def weights(self) -> dict[str, Tensor]:
        """The averaged parameters by name; empty before the first entry."""
        return {name: value.detach() for name, value in self.model.named_parameters()} if self.count else {}

    def on_step_end(self, engine: Engine, result: StepResult) -> None:
        """Enter the parameters if the average has started."""
        if engine.step > self._start:
            self.update()

    def update(self) -> None:
        """Enter the model's parameters as they are now."""
        self.count += 1
        self._averaged.update_parameters(self._source)

    def _add(self, averages: Any, parameters: Any, _: Tensor | int) -> None:
        # The count of AveragedModel comes as a tensor on the device, and reading it would wait for the device.
        torch._foreach_lerp_(averages, parameters, max(1 - self._decay, 1 / self.count))

    def restore(self, weights: dict[str, Tensor], count: int) -> None:
        """Continue from averages over `count` entries. Raises KeyError if a parameter is missing."""
        copy_weights(weights, self.model)
        self.count = count
        self._averaged.n_averaged.fill_(count)


@torch.no_grad()
def copy_weights(weights: dict[str, Tensor], model: nn.Module) -> None:
    """Overwrite a model's parameters by the values of their names. Raises KeyError if one is missing."""
    for name, parameter in model.named_parameters():
        parameter.copy_(weights[name])
