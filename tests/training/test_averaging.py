"""Running averages of weights."""

import pytest
import torch
from torch import nn

from longscan.training.averaging import WeightAverage


def run(decay: float, values: list[float]) -> tuple[nn.Linear, WeightAverage]:
    model = nn.Linear(1, 1, bias=False)
    average = WeightAverage(model, decay)
    for value in values:
        nn.init.constant_(model.weight, value)
        average.update()
    return model, average


def test_decay_one_is_the_plain_mean() -> None:
    _, average = run(1.0, [1.0, 2.0, 6.0, 7.0])
    assert average.weights["weight"].item() == pytest.approx(4.0)


def test_exponential_average_starts_plain_and_then_forgets() -> None:
    _, average = run(0.5, [2.0, 4.0, 9.0, 1.0])
    assert average.weights["weight"].item() == pytest.approx(((2 + 4) / 2 * 0.5 + 9 * 0.5) * 0.5 + 1 * 0.5)


def test_applied_only_within_the_block() -> None:
    model, average = run(1.0, [1.0, 3.0])
    with average.applied():
        assert model.weight.item() == 2.0
    assert model.weight.item() == 3.0


def test_restored_average_goes_on() -> None:
    _, whole = run(0.9, [1.0, 5.0, 2.0])
    model, part = run(0.9, [1.0, 5.0])
    resumed = WeightAverage(model, 0.9)
    resumed.restore({name: value.clone() for name, value in part.weights.items()}, part.count)
    nn.init.constant_(model.weight, 2.0)
    resumed.update()
    assert torch.equal(resumed.weights["weight"], whole.weights["weight"])
