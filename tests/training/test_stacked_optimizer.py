"""The optimiser of stacked parameters makes the steps of an optimiser for each model."""

import copy
from math import inf

import pytest
import torch
from torch import Tensor, nn
from torch.optim import AdamW

from longscan.training.stacked_optimizer import StackedOptimizer

K = 3


def build(model: nn.Module) -> AdamW:
    groups = [{"params": [model[0].weight], "lr": 0.03, "scale": 3.0}, {"params": [model[0].bias, model[1].weight]}]
    return AdamW(groups, lr=0.01, weight_decay=0.1, fused=True)


def loss_of(model: nn.Module, number: int) -> Tensor:
    """Return a loss whose gradient is small in the first model, and large in the last one."""
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(number))
    return 10.0 ** (number % 10 - 1) * model(x).square().sum()


def gradients_of(models: list[nn.Module], step: int) -> list[list[Tensor]]:
    return [list(torch.autograd.grad(loss_of(model, 10 * step + k), list(model.parameters()))) for k, model in enumerate(models)]


@pytest.mark.parametrize("max_norm", [10.0, inf])
@pytest.mark.parametrize("made", [0, 2], ids=["from the start", "continued"])
@pytest.mark.parametrize("rates", [[0.1, 0.1, 0.1], [0.1, 0.1, 0.3]], ids=["one rate", "two rates"])
def test_steps_are_those_of_separate_optimizers(max_norm: float, made: int, rates: list[float]) -> None:
    torch.manual_seed(0)
    models = [nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2, bias=False)) for _ in range(K)]
    optimizers = [build(model) for model in models]
    for step in range(made):
        for model, optimizer, gradients in zip(models, optimizers, gradients_of(models, step), strict=True):
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter.grad = gradient
            optimizer.step()
    expected = copy.deepcopy(models)
    separate = [build(model) for model in expected]
    for one, optimizer in zip(separate, optimizers, strict=True):
        one.load_state_dict(copy.deepcopy(optimizer.state_dict()))

    own = [dict(model.named_parameters()) for model in models]
    stacked = {name: torch.stack([parameters[name].detach() for parameters in own]).requires_grad_() for name in own[0]}
    for name, together in stacked.items():
        for parameters, values in zip(own, together.detach(), strict=True):
            parameters[name].data = values
    factors = [1.0, 1.0, 1.0] if len(set(rates)) == 1 else [1.0, 1.0, 3.0]
    joint = StackedOptimizer(optimizers, own, stacked, max_norm, rates)
    assert [block.rows for block in joint.blocks] == ([slice(0, 3)] if len(set(rates)) == 1 else [slice(0, 2), slice(2, 3)])
    clipped = []
    for step in range(made, made + 3):
        for block in joint.blocks:
            block.adamw.param_groups[1]["lr"] = 0.01 * factors[block.rows.start] / (1 + step)
        joint.share_learning_rates()
        for together, *parts in zip(stacked.values(), *gradients_of(models, step), strict=True):
            together.grad = torch.stack(parts)
        norms = joint.step()
        for k, (model, optimizer, gradients) in enumerate(zip(expected, separate, gradients_of(expected, step), strict=True)):
            optimizer.param_groups[1]["lr"] = 0.01 * factors[k] / (1 + step)
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter.grad = gradient
            norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm)
            torch.testing.assert_close(norms[k], norm)
            clipped.append(bool(norm > max_norm))
            optimizer.step()
            assert [group["lr"] for group in optimizers[k].param_groups] == [group["lr"] for group in optimizer.param_groups]
            for parameter, other in zip(model.parameters(), models[k].parameters(), strict=True):
                torch.testing.assert_close(other, parameter)
                for entry, value in optimizer.state[parameter].items():
                    torch.testing.assert_close(optimizers[k].state[other][entry], value)
    assert len(set(clipped)) == (1 if max_norm == inf else 2), "some gradients are clipped and others not"
