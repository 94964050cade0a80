"""Parameter groups of the optimiser follow the options of the parameters."""

import pytest
import torch
from torch import nn

from longscan.engine import make_capturable, set_learning_rates
from longscan.layers.parameters import mark
from longscan.training import SettingError, TrainingSettings
from longscan.training.trainer import build_optimizer


@pytest.fixture
def model() -> nn.Module:
    module = nn.Module()
    module.dense = nn.Parameter(torch.ones(2))
    module.angle = mark(nn.Parameter(torch.ones(3)), "selector", lr_scale=0.5)
    module.decayless = mark(nn.Parameter(torch.ones(4)), "ssm", decay=False)
    module.frozen = nn.Parameter(torch.ones(5), requires_grad=False)
    return module


def rates_and_decays(model: nn.Module, **values: object) -> dict[str, tuple[float, float]]:
    """Return the learning rate, for a base rate of 1, and the weight decay of each parameter by name."""
    optimizer = build_optimizer(model, TrainingSettings(weight_decay=0.1, **values))
    set_learning_rates(optimizer, lambda scale: scale)
    names = {parameter: name for name, parameter in model.named_parameters()}
    return {names[p]: (g["lr"], g["weight_decay"]) for g in optimizer.param_groups for p in g["params"]}


def test_groups_have_the_scale_and_decay_of_the_parameters(model: nn.Module) -> None:
    assert rates_and_decays(model) == {"dense": (1.0, 0.1), "angle": (0.5, 0.1), "decayless": (1.0, 0.0)}


def test_scale_of_a_role_multiplies_that_of_the_parameter(model: nn.Module) -> None:
    assert rates_and_decays(model, lr_scale={"selector": 0.1, "ssm": 0.0})["angle"] == pytest.approx((0.05, 0.1))
    assert rates_and_decays(model, lr_scale={"selector": 0.1, "ssm": 0.0})["decayless"] == (0.0, 0.0)


def test_decay_all_decays_all_parameters(model: nn.Module) -> None:
    assert rates_and_decays(model, decay_all=True)["decayless"] == (1.0, 0.1)


def test_options_of_a_name_replace_those_that_the_parameters_declare(model: nn.Module) -> None:
    """An explicit `decay` also replaces decay_all and weight_decay_by_role; the factor of a role still multiplies `lr_scale`."""
    options = {"dense": {"lr_scale": 0.1, "decay": False}, "angle": {"lr_scale": 0.2}, "decayless": {"decay": False}}
    rates = rates_and_decays(model, parameters=options, decay_all=True, lr_scale={"selector": 0.5})
    assert rates == {"dense": (0.1, 0.0), "angle": (pytest.approx(0.1), 0.1), "decayless": (1.0, 0.0)}
    rates = rates_and_decays(model, parameters={"decayless": {"decay": True}}, weight_decay_by_role={"ssm": 0.3})
    assert rates["decayless"] == (1.0, 0.1)


def test_options_of_a_name_that_no_parameter_has_raise(model: nn.Module) -> None:
    with pytest.raises(SettingError, match=r"`training.parameters` must have names of parameters \(angle, .*\), got A_log"):
        build_optimizer(model, TrainingSettings(parameters={"A_log": {"decay": False}}))


def test_weight_decay_shrinks_only_parameters_with_decay(model: nn.Module) -> None:
    optimizer = build_optimizer(model, TrainingSettings(weight_decay=0.5, lr=0.1))
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    assert model.dense.tolist() == pytest.approx([0.95, 0.95])
    assert model.decayless.tolist() == [1.0] * 4
    assert model.frozen.tolist() == [1.0] * 5


def test_set_learning_rates_changes_rates_of_a_captured_step_in_place(model: nn.Module) -> None:
    """A captured step reads the same tensors, whose value is the rate times the scale of the parameter."""
    optimizer = build_optimizer(model, TrainingSettings(lr=1.0))
    make_capturable(optimizer, torch.device("cpu"))
    before = [group["lr"] for group in optimizer.param_groups]
    set_learning_rates(optimizer, lambda scale: 0.008 * scale)
    assert all(group["lr"] is rate for group, rate in zip(optimizer.param_groups, before, strict=True))
    rates = {parameter: group["lr"].item() for group in optimizer.param_groups for parameter in group["params"]}
    assert rates[model.dense] == pytest.approx(0.008)
    assert rates[model.angle] == pytest.approx(0.004)
