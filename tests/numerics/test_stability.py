import pytest
import torch

from longscan.numerics.stability import stable_factor, stable_parameter


def test_stable_factor_has_the_published_values():
    """f(w) = 1 - 1 / (w^2 + 1/2) has its largest derivative, 1.837, at w^2 = 1/6."""
    w = torch.tensor([0.0, 0.5**0.5, 1, 2, 5], dtype=torch.float64)
    expected = torch.tensor([-1, 0, 1 / 3, 7 / 9, 0.9608], dtype=torch.float64)
    torch.testing.assert_close(stable_factor(w), expected, rtol=0, atol=1e-4)
    grid = torch.linspace(0, 3, 30_001, dtype=torch.float64, requires_grad=True)
    (derivative,) = torch.autograd.grad(stable_factor(grid).sum(), grid)
    assert derivative[0] == 0
    assert derivative.max().item() == pytest.approx(1.837, abs=1e-3)
    assert grid[derivative.argmax()].item() == pytest.approx((1 / 6) ** 0.5, abs=1e-3)


@pytest.mark.parametrize(("a", "b"), [(1.0, 0.5), (0.5, 0.5), (1.0, 1.0)])
def test_stable_parameter_is_the_inverse_and_factors_are_bounded(a, b):
    factors = torch.linspace(1 - 1 / b, 0.9999, 50, dtype=torch.float64)
    torch.testing.assert_close(stable_factor(stable_parameter(factors, a, b), a, b), factors)
    values = stable_factor(torch.linspace(-1e4, 1e4, 100_001, dtype=torch.float64), a, b)
    assert values.min() >= -1
    assert values.max() < 1
