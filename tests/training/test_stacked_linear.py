"""Tests of the gradients of linear layers of models that train together."""

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from longscan.training import stacked_linear
from longscan.training.stacked_linear import SplitLinear, split_k_bmm


@pytest.mark.parametrize(
    ("k", "m", "r", "n", "pieces"), [(3, 5, 1024, 7, 8), (2, 40, 1031, 3, 8), (5, 8, 200, 9, 1), (300, 2, 512, 2, 1)]
)
def test_split_product_is_that_of_bmm(k: int, m: int, r: int, n: int, pieces: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole numbers, so that no sum is rounded. The rest of 1031 steps after 8 pieces is added."""
    batches, bmm = [], torch.bmm
    monkeypatch.setattr(torch, "bmm", lambda a, b: (batches.append(len(a)), bmm(a, b))[1])
    a, b = torch.randint(-9, 10, (k, r, m)).double(), torch.randint(-9, 10, (k, r, n)).double()
    torch.testing.assert_close(split_k_bmm(a.mT, b), a.mT @ b, rtol=0, atol=0)
    assert batches == [k * pieces]


class Model(nn.Module):
    """Linear layers with and without a bias, by position and by name, on inputs of one and of more dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 4, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.second(torch.tanh(self.first(x)))
        gate = functional.linear(weight=self.second.weight, bias=self.first.bias, input=y)
        return y * gate.sigmoid() + self.second(y[0, 0])


@pytest.mark.parametrize("shared_input", [False, True])
def test_gradients_of_stacked_models_are_those_without_the_mode(shared_input: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In float64; the sums of the 2 x 300 steps are split into four pieces."""
    torch.manual_seed(0)
    models = [Model().double() for _ in range(3)]
    x = torch.randn(*([] if shared_input else [3]), 2, 300, 3, dtype=torch.float64)
    products: list[int] = []
    monkeypatch.setattr(stacked_linear, "split_k_bmm", lambda a, b: (products.append(a.shape[2]), split_k_bmm(a, b))[1])

    def gradients(mode: bool) -> list[Tensor]:
        parameters = {
            name: torch.stack([dict(m.named_parameters())[name].detach() for m in models])
            for name, _ in models[0].named_parameters()
        }
        leaves = [value.requires_grad_() for value in parameters.values()]
        inputs = x.clone().requires_grad_()
        run = torch.vmap(lambda p, given: functional_call(models[0], p, (given,)), in_dims=(0, None if shared_input else 0))
        if mode:
            with SplitLinear():
                output = run(parameters, inputs)
        else:
            output = run(parameters, inputs)
        return [output.detach(), *torch.autograd.grad(output.square().sum(), [*leaves, inputs])]

    plain = gradients(mode=False)
    assert products == []
    for one, other in zip(plain, gradients(mode=True), strict=True):
        torch.testing.assert_close(other, one, rtol=1e-12, atol=1e-12 * float(one.abs().max()))
    assert products == [600] * 3


def test_the_mode_leaves_single_models_and_other_functions() -> None:
    model, x = Model(), torch.randn(2, 5, 3)
    expected = model(x)
    with SplitLinear():
        torch.testing.assert_close(model(x), expected)
        torch.testing.assert_close(
            torch.vmap(functional.linear, in_dims=(0, None))(x, model.first.weight), x @ model.first.weight.mT
        )
