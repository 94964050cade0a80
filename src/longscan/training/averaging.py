"""A running average of the weights."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class WeightAverage:
    """The mean of a model's parameters over its updates: exponential with `decay` < 1, plain with `decay` = 1.

    After k entries the newest weighs max(1 - decay, 1 / k), so the exponential average starts as a plain one and is never biased
    towards the first weights.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._model = model
        self._decay = decay
        self.count = 0
        self.weights: dict[str, Tensor] = {}

    @torch.no_grad()
    def update(self) -> None:
        """Enter the model's parameters as they are now."""
        self.count += 1
        share = max(1 - self._decay, 1 / self.count)
        for name, parameter in self._model.named_parameters():
            if name in self.weights:
                self.weights[name].lerp_(parameter, share)
            else:
                self.weights[name] = parameter.detach().clone()

    def restore(self, weights: dict[str, Tensor], count: int) -> None:
        """Go on from saved averages over `count` updates."""
        parameters = dict(self._model.named_parameters())
        self.weights = {name: value.to(parameters[name]) for name, value in weights.items()}
        self.count = count

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The model with the averaged parameters, for the length of a `with` block."""
        parameters = dict(self._model.named_parameters())
        saved = {name: parameter.detach().clone() for name, parameter in parameters.items()}
        _copy(self.weights, parameters)
        try:
            yield
        finally:
            _copy(saved, parameters)


@torch.no_grad()
def _copy(values: dict[str, Tensor], parameters: dict[str, nn.Parameter]) -> None:
    for name, value in values.items():
        parameters[name].copy_(value)
