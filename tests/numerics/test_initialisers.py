import math

import pytest
import torch

from longscan.numerics.initialisers import complex_normal, diagonal_eigenvalues, diagonal_input, ring, uniform_fan_in


def test_s4d_eigenvalues_of_size_four():
    pi = math.pi
    expected = {
        "lin": [[-0.5, 0.0], [-0.5, pi]],
        "inv": [[-0.5, 4 / pi * 3], [-0.5, 4 / pi * (4 / 3 - 1)]],
        "real": [[-1.0, 0.0], [-2.0, 0.0]],
    }
    for kind, values in expected.items():
        torch.testing.assert_close(diagonal_eigenvalues(4, kind), torch.tensor(values, dtype=torch.float64))
        torch.testing.assert_close(diagonal_input(4, kind), torch.tensor([[1.0, 0.0]] * 2, dtype=torch.float64))


def test_largest_frequencies_of_s4d_inv_approximate_legs():
    """S4D-Inv approximates the spectrum of S4D-LegS, so the largest frequencies agree to ten per cent."""
    legs = diagonal_eigenvalues(64, "legs")[:, 1].sort(descending=True).values
    inverse = diagonal_eigenvalues(64, "inv")[:, 1].sort(descending=True).values
    torch.testing.assert_close(inverse[:3], legs[:3], rtol=0.1, atol=0)
    squares = (
        diagonal_input(64, "legs").square().sum().item()
    )  # the norm of B_n = sqrt(2n+1) in a unitary basis, one state of each pair
    assert squares == pytest.approx(64**2 / 2)


def test_complex_normal_divides_its_variance_between_two_independent_parts():
    parts = complex_normal((50_000,), variance=3.0)
    torch.testing.assert_close(parts.var(0), torch.full((2,), 1.5, dtype=torch.float64), rtol=0.05, atol=0)
    assert abs((parts[:, 0] * parts[:, 1]).mean()) < 0.05


def test_ring_samples_eigenvalues_uniformly_in_area():
    nu, phi, log_gamma = ring(50_000, 0.5, 0.9, 1.0)
    modulus = torch.exp(-nu.exp())
    assert 0.5 <= modulus.min() < 0.502
    assert 0.898 < modulus.max() <= 0.9
    median = torch.quantile(modulus.square(), torch.tensor(0.5, dtype=torch.float64))
    assert median.item() == pytest.approx((0.25 + 0.81) / 2, abs=0.005)
    assert phi.exp().max().item() == pytest.approx(1.0, abs=1e-3)
    assert phi.exp().mean().item() == pytest.approx(0.5, abs=0.01)
    torch.testing.assert_close(log_gamma.exp(), (1 - modulus.square()).sqrt())
    assert all(part.isfinite().all() for part in ring(50_000, 0.0, 1.0, 6.28))


def test_invalid_setting_raises():
    with pytest.raises(ValueError, match=r"`d_state` must be an even number of at least 2 \(conjugate pairs\), got 3"):
        diagonal_eigenvalues(3)
    with pytest.raises(ValueError, match=r"`init` must be one of .*, got 'fft'"):
        diagonal_eigenvalues(4, "fft")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"`r_min` and `r_max` must be 0 <= r_min < r_max <= 1, got 0.9 and 0.5"):
        ring(4, 0.9, 0.5, 1.0)
    with pytest.raises(ValueError, match="`max_phase` must be a positive angle, got 0"):
        ring(4, 0.0, 1.0, 0)


@pytest.mark.parametrize("dtype", [None, torch.float64])
def test_weights_of_linear_maps_have_the_bound_and_the_variance_of_pytorch(dtype):
    weights = uniform_fan_in(200, 16, 25, fan_in=25, dtype=dtype)
    assert weights.dtype == (dtype or torch.get_default_dtype())
    assert 0.199 < float(weights.max()) <= 0.2
    assert -0.199 > float(weights.min()) >= -0.2
    assert float(weights.var()) == pytest.approx(1 / (3 * 25), rel=0.02)
