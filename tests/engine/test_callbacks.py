"""Callbacks for any training: mean losses of epochs, early stopping, averages of weights."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from longscan.engine import Engine, EpochLosses, NonFiniteLossError, WeightAverage, copy_weights
from longscan.engine.callbacks import EarlyStopping


def add_one(model: nn.Linear, callbacks: list[Any]) -> Engine:
    """Each step adds 1 to the weight; the loss is the batch."""

    def compute_loss(batch: Tensor) -> tuple[Tensor, None]:
        return -model.weight.sum() + model.weight.sum().detach() + batch, None

    return Engine(torch.optim.SGD(model.parameters(), lr=1.0), compute_loss, learning_rate=lambda _: 1.0, callbacks=callbacks)


@pytest.fixture
def model() -> nn.Linear:
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    return model


def test_the_curve_has_the_mean_loss_of_each_epoch(model: nn.Linear) -> None:
    losses = EpochLosses(2)
    add_one(model, [losses]).run(torch.tensor([1.0, 2.0, 5.0, 8.0]))
    assert losses.curve == [1.5, 6.5]


def test_an_epoch_with_a_loss_that_is_no_number_is_the_last(model: nn.Linear) -> None:
    losses = EpochLosses(2)
    with pytest.raises(NonFiniteLossError, match="step 4"):
        add_one(model, [losses]).run(torch.tensor([1.0, 2.0, math.nan, 8.0, 1.0, 1.0]))
    assert losses.curve == [1.5]


def test_early_stopping_keeps_the_best_weights(model: nn.Linear) -> None:
    errors = iter([5.0, 4.0, math.nan, 4.0, 3.0, 3.0, 3.5, 9.0, 0.0])
    engine = add_one(model, [EarlyStopping(model, lambda: next(errors), every=2, patience=3)])
    engine.run(torch.zeros(40))
    assert engine.step == 16
    assert model.weight.item() == 10


def test_without_a_number_the_first_weights_stay(model: nn.Linear) -> None:
    add_one(model, [EarlyStopping(model, lambda: math.nan, every=1, patience=9)]).run(torch.zeros(4))
    assert model.weight.item() == 0


def average_of(decay: float, values: list[float]) -> tuple[nn.Linear, WeightAverage]:
    model = nn.Linear(1, 1, bias=False)
    average = WeightAverage(model, decay)
    for value in values:
        nn.init.constant_(model.weight, value)
        average.update()
    return model, average


def test_decay_one_is_the_plain_mean() -> None:
    _, average = average_of(1.0, [1.0, 2.0, 6.0, 7.0])
    assert average.weights["weight"].item() == pytest.approx(4.0)


def test_exponential_average_starts_plain_and_then_forgets() -> None:
    _, average = average_of(0.5, [2.0, 4.0, 9.0, 1.0])
    assert average.weights["weight"].item() == pytest.approx(((2 + 4) / 2 * 0.5 + 9 * 0.5) * 0.5 + 1 * 0.5)


def test_the_averaged_model_is_another_one() -> None:
    model, average = average_of(1.0, [1.0, 3.0])
    assert average.model(torch.ones(1, 1)).item() == 2.0
    assert model.weight.item() == 3.0
    copy_weights(average.weights, model)
    assert model.weight.item() == 2.0


def test_an_average_without_entries_has_no_weights() -> None:
    assert WeightAverage(nn.Linear(1, 1), 0.5).weights == {}


def test_an_average_starts_after_a_step(model: nn.Linear) -> None:
    average = WeightAverage(model, 1.0, start=2)
    add_one(model, [average]).run(torch.zeros(5))
    assert (average.count, average.weights["weight"].item()) == (3, 4.0)


def test_an_average_has_the_newest_buffers() -> None:
    model = nn.BatchNorm1d(2)
    average = WeightAverage(model, 0.5)
    for _ in range(2):
        model(torch.randn(8, 2))
        average.update()
    assert torch.equal(average.model.running_mean, model.running_mean)


def test_a_restored_average_continues() -> None:
    _, whole = average_of(0.9, [1.0, 5.0, 2.0])
    model, part = average_of(0.9, [1.0, 5.0])
    resumed = WeightAverage(model, 0.9)
    resumed.restore({name: value.clone() for name, value in part.weights.items()}, part.count)
    nn.init.constant_(model.weight, 2.0)
    resumed.update()
    assert torch.equal(resumed.weights["weight"], whole.weights["weight"])
    with pytest.raises(KeyError, match="weight"):
        resumed.restore({}, 1)
