"""Optimiser groups come from what the parameters declare."""

import pytest
import torch
from torch import nn

from longscan.engine import make_capturable, set_learning_rate
from longscan.layers.parameters import mark
from longscan.training import TrainingSettings
from longscan.training.trainer import build_optimizer


@pytest.fixture
def model() -> nn.Module:
    module = nn.Module()
    module.dense = nn.Parameter(torch.ones(2))
    module.angle = mark(nn.Parameter(torch.ones(3)), "selector", lr_scale=0.5)
    module.decayless = mark(nn.Parameter(torch.ones(4)), "ssm", decay=False)
    module.frozen = nn.Parameter(torch.ones(5), requires_grad=False)
    return module


def groups(model: nn.Module, **values: object) -> dict[str, tuple[float, float]]:
    """Parameter name -> (learning rate, weight decay) at a rate of 1."""
    optimizer = build_optimizer(model, TrainingSettings(weight_decay=0.1, **values))
    set_learning_rate(optimizer, 1.0)
    names = {parameter: name for name, parameter in model.named_parameters()}
    return {names[p]: (g["lr"], g["weight_decay"]) for g in optimizer.param_groups for p in g["params"]}


def test_declared_scale_and_decay(model: nn.Module) -> None:
    assert groups(model) == {"dense": (1.0, 0.1), "angle": (0.5, 0.1), "decayless": (1.0, 0.0)}


def test_role_scale_multiplies_the_declared_one(model: nn.Module) -> None:
    assert groups(model, lr_scale={"selector": 0.1, "ssm": 0.0})["angle"] == pytest.approx((0.05, 0.1))
    assert groups(model, lr_scale={"selector": 0.1, "ssm": 0.0})["decayless"] == (0.0, 0.0)


def test_decay_all(model: nn.Module) -> None:
    assert groups(model, decay_all=True)["decayless"] == (1.0, 0.1)


def test_decay_shrinks_only_what_declares_it(model: nn.Module) -> None:
    optimizer = build_optimizer(model, TrainingSettings(weight_decay=0.5, lr=0.1))
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    assert model.dense.tolist() == pytest.approx([0.95, 0.95])
    assert model.decayless.tolist() == [1.0] * 4
    assert model.frozen.tolist() == [1.0] * 5


def test_rates_that_a_recorded_update_reads_are_filled_in_place(model: nn.Module) -> None:
    """The tensors stay the same, and hold the rate times each parameter's scale: 0.004 for 0.008 of a parameter at a half."""
    optimizer = build_optimizer(model, TrainingSettings(lr=1.0))
    make_capturable(optimizer, torch.device("cpu"))
    before = [group["lr"] for group in optimizer.param_groups]
    set_learning_rate(optimizer, 0.008)
    assert all(group["lr"] is rate for group, rate in zip(optimizer.param_groups, before, strict=True))
    rates = {parameter: group["lr"].item() for group in optimizer.param_groups for parameter in group["params"]}
    assert rates[model.dense] == pytest.approx(0.008)
    assert rates[model.angle] == pytest.approx(0.004)
