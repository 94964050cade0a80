"""Callbacks of the training loop: mean losses of epochs, early stopping, averages of weights."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from longscan.engine import Engine, EpochLosses, NonFiniteLossError, WeightAverage, copy_weights
from longscan.engine.callbacks import EarlyStopping


def make_engine(model: nn.Linear, callbacks: list[Any]) -> Engine:
    """Return an engine whose steps add 1 to the weight, and whose loss is the batch."""

    def compute_loss(batch: Tensor) -> tuple[Tensor, None]:
        return -model.weight.sum() + model.weight.sum().detach() + batch, None

    return Engine(torch.optim.SGD(model.parameters(), lr=1.0), compute_loss, learning_rate=lambda *_: 1.0, callbacks=callbacks)


@pytest.fixture
def model() -> nn.Linear:
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    return model


def test_curve_has_mean_loss_of_each_epoch(model: nn.Linear) -> None:
    losses = EpochLosses(2)
    make_engine(model, [losses]).run(torch.tensor([1.0, 2.0, 5.0, 8.0]))
    assert losses.curve == [1.5, 6.5]


def test_curve_has_mean_losses_of_steps_that_overwrite_the_loss(model: nn.Linear, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps that are replayed as a CUDA graph write every loss to the same tensor."""
    losses, loss = EpochLosses(2), torch.zeros(())
    engine = make_engine(model, [losses])
    monkeypatch.setattr(engine, "_gradient_step", lambda batch: (None, loss.copy_(batch), None))
    engine.run(torch.tensor([1.0, 2.0, 5.0, 8.0]))
    assert losses.curve == [1.5, 6.5]


def test_curve_ends_before_the_epoch_with_nan_loss(model: nn.Linear) -> None:
    losses = EpochLosses(2)
    with pytest.raises(NonFiniteLossError, match="step 4"):
        make_engine(model, [losses]).run(torch.tensor([1.0, 2.0, math.nan, 8.0, 1.0, 1.0]))
    assert losses.curve == [1.5]


def test_early_stopping_restores_the_best_weights(model: nn.Linear) -> None:
    errors = iter([5.0, 4.0, math.nan, 4.0, 3.0, 3.0, 3.5, 9.0, 0.0])
    engine = make_engine(model, [EarlyStopping(model, lambda: next(errors), every=2, patience=3)])
    engine.run(torch.zeros(40))
    assert engine.step == 16
    assert model.weight.item() == 10


def test_early_stopping_restores_initial_weights_if_all_errors_are_nan(model: nn.Linear) -> None:
    make_engine(model, [EarlyStopping(model, lambda: math.nan, every=1, patience=9)]).run(torch.zeros(4))
    assert model.weight.item() == 0


def average_weights(decay: float, values: list[float]) -> tuple[nn.Linear, WeightAverage]:
    model = nn.Linear(1, 1, bias=False)
    average = WeightAverage(model, decay)
    for value in values:
        nn.init.constant_(model.weight, value)
        average.update()
    return model, average


def test_average_with_decay_one_is_the_mean() -> None:
    _, average = average_weights(1.0, [1.0, 2.0, 6.0, 7.0])
    assert average.weights["weight"].item() == pytest.approx(4.0)


def test_average_with_decay_starts_as_the_mean() -> None:
    _, average = average_weights(0.5, [2.0, 4.0, 9.0, 1.0])
    assert average.weights["weight"].item() == pytest.approx(((2 + 4) / 2 * 0.5 + 9 * 0.5) * 0.5 + 1 * 0.5)


def test_averaged_model_is_a_copy() -> None:
    model, average = average_weights(1.0, [1.0, 3.0])
    assert average.model(torch.ones(1, 1)).item() == 2.0
    assert model.weight.item() == 3.0
    copy_weights(average.weights, model)
    assert model.weight.item() == 2.0


def test_average_without_updates_has_no_weights() -> None:
    assert WeightAverage(nn.Linear(1, 1), 0.5).weights == {}


def test_average_starts_after_given_step(model: nn.Linear) -> None:
    average = WeightAverage(model, 1.0, start=2)
    make_engine(model, [average]).run(torch.zeros(5))
    assert (average.count, average.weights["weight"].item()) == (3, 4.0)


def test_averaged_model_has_the_latest_buffers() -> None:
    model = nn.BatchNorm1d(2)
    average = WeightAverage(model, 0.5)
    for _ in range(2):
        model(torch.randn(8, 2))
        average.update()
    assert torch.equal(average.model.running_mean, model.running_mean)


def test_restored_average_continues() -> None:
    _, whole = average_weights(0.9, [1.0, 5.0, 2.0])
    model, part = average_weights(0.9, [1.0, 5.0])
    resumed = WeightAverage(model, 0.9)
    resumed.restore({name: value.clone() for name, value in part.weights.items()}, part.count)
    nn.init.constant_(model.weight, 2.0)
    resumed.update()
    assert torch.equal(resumed.weights["weight"], whole.weights["weight"])
    with pytest.raises(KeyError, match="weight"):
        resumed.restore({}, 1)


def test_numbers_out_of_range_raise(model: nn.Linear) -> None:
    for steps in (0, -1, True, 1.5):
        with pytest.raises(ValueError, match="`steps_per_epoch` must be a whole number of at least 1, got "):
            EpochLosses(steps)
        with pytest.raises(ValueError, match="`every` must be a whole number of at least 1, got "):
            EarlyStopping(model, lambda: 0.0, every=steps, patience=1)
    with pytest.raises(ValueError, match="`patience` must be a whole number of at least 0, got -1"):
        EarlyStopping(model, lambda: 0.0, every=1, patience=-1)
    for decay in (0.0, 1.5, math.nan):
        with pytest.raises(ValueError, match="`decay` must be a number above 0, at most 1, got "):
            WeightAverage(model, decay)
