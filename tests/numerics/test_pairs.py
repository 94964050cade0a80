import pytest
import torch

from longscan.numerics import pairs


def random_pairs(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, 2, dtype=torch.float64)


@pytest.mark.parametrize(
    ("function", "complex_function"),
    [
        (pairs.multiply, torch.multiply),
        (pairs.divide, torch.divide),
    ],
)
def test_arithmetic_of_pairs_equals_that_of_complex_numbers(function, complex_function):
    x, y = random_pairs(3, 4), random_pairs(4)
    expected = complex_function(torch.view_as_complex(x), torch.view_as_complex(y))
    torch.testing.assert_close(torch.view_as_complex(function(x, y)), expected)


def test_exponentials_of_pairs_equal_those_of_complex_numbers():
    x = 3 * random_pairs(20)
    expected = torch.view_as_complex(x).exp()
    torch.testing.assert_close(torch.view_as_complex(pairs.exponential(x)), expected)
    torch.testing.assert_close(torch.view_as_complex(pairs.exponential_minus_one(x)), expected - 1)
    torch.testing.assert_close(torch.view_as_complex(pairs.polar(x[..., 0].exp(), x[..., 1])), expected)


def test_exponential_minus_one_is_accurate_near_zero():
    x = random_pairs(50) * 1e-5
    z = torch.view_as_complex(x)
    series = z + z**2 / 2 + z**3 / 6
    error = (torch.view_as_complex(pairs.exponential_minus_one(x.float())) - series.to(torch.complex64)).abs() / series.abs()
    assert error.max() < 4 * torch.finfo(torch.float32).eps
