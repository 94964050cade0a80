import pytest
import torch

from longscan.numerics.hippo import legs, legs_normal


def test_legs_of_size_three():
    a, b = legs(3)
    expected = [[-1, 0, 0], [-(3**0.5), -2, 0], [-(5**0.5), -(15**0.5), -3]]
    torch.testing.assert_close(a, torch.tensor(expected, dtype=torch.float64))
    torch.testing.assert_close(b, torch.tensor([1, 3**0.5, 5**0.5], dtype=torch.float64))


def test_legs_projects_a_constant_onto_the_first_polynomial():
    """For u = 1 the equilibrium of x' = (A x + B u) / t is (1, 0, 0, ...), the Legendre coefficients of 1."""
    a, b = legs(6)
    equilibrium = torch.linalg.solve(-a, b)
    torch.testing.assert_close(equilibrium, torch.eye(6, dtype=torch.float64)[0], atol=1e-12, rtol=0)


@pytest.mark.parametrize("size", [2, 8, 64])
def test_impulse_response_of_the_normal_part(size):
    """It is B^T e^{At} B = 2 Re sum |b_n|^2 e^{lambda_n t} with the eigenvalues and coefficients of `legs_normal`."""
    a, b = legs(size)
    p = torch.sqrt(torch.arange(size, dtype=torch.float64) + 0.5)
    normal = a + torch.outer(p, p)
    eigenvalues, coefficients = legs_normal(size)
    assert len(eigenvalues) == size // 2
    torch.testing.assert_close(eigenvalues.real, torch.full((size // 2,), -0.5, dtype=torch.float64))
    assert (eigenvalues.imag > 0).all()
    for t in (0.0, 0.1, 1.0):
        exact = b @ torch.linalg.matrix_exp(normal * t) @ b
        response = 2 * (coefficients.abs().square() * (eigenvalues * t).exp()).real.sum()
        torch.testing.assert_close(response, exact, rtol=1e-9, atol=1e-9)


def test_odd_size_raises():
    with pytest.raises(ValueError, match="`size` must be an even number of at least 2, got 5"):
        legs_normal(5)
