import pytest
import torch

from longscan.numerics.hippo import legs, legs_normal


def test_legs_by_hand():
    a, b = legs(3)
    expected = [[-1, 0, 0], [-(3**0.5), -2, 0], [-(5**0.5), -(15**0.5), -3]]
    torch.testing.assert_close(a, torch.tensor(expected, dtype=torch.float64))
    torch.testing.assert_close(b, torch.tensor([1, 3**0.5, 5**0.5], dtype=torch.float64))


def test_legs_projects_onto_legendre_polynomials():
    """For u = 1 the rescaled system x' = (A x + B u) / t rests at the coefficients of 1: (1, 0, 0, ...)."""
    a, b = legs(6)
    rest = torch.linalg.solve(-a, b)
    torch.testing.assert_close(rest, torch.eye(6, dtype=torch.float64)[0], atol=1e-12, rtol=0)


@pytest.mark.parametrize("size", [2, 8, 64])
def test_normal_part_is_diagonalised(size):
    """The impulse response B^T e^{At} B of the normal part is 2 Re sum |b_n|^2 e^{lambda_n t}."""
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


def test_odd_sizes_are_refused():
    with pytest.raises(ValueError, match="`size` must be an even number of at least 2, got 5"):
        legs_normal(5)
