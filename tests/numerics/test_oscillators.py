"""Steps of oscillators, compared with the equations that define them and with scipy's matrix exponential."""

import numpy as np
import pytest
import torch
from scipy.linalg import expm

from longscan.numerics.oscillators import oscillator_step


@pytest.mark.parametrize("rule", ["im", "imex"])
@pytest.mark.parametrize("stiffness", [0.0, 0.3, 3.0])
def test_step_solves_its_equations(rule, stiffness):
    """The equations are z_k = z + dt (-A y + f), with the new y (im) or the old one (imex), and y_k = y + dt z_k."""
    A, dt, f = torch.tensor(stiffness, dtype=torch.float64), torch.tensor(0.7, dtype=torch.float64), 1.3
    M, F = oscillator_step(A, dt, rule)
    before = torch.tensor([0.4, -1.1], dtype=torch.float64)
    z, y = M @ before + F * f
    torch.testing.assert_close(z, before[0] + dt * (-A * (y if rule == "im" else before[1]) + f))
    torch.testing.assert_close(y, before[1] + dt * z)


@pytest.mark.parametrize("rule", ["im", "imex"])
def test_eigenvalues_have_modulus_one_for_imex_and_less_for_im(rule):
    A, dt = torch.rand(50, dtype=torch.float64), torch.rand(50, dtype=torch.float64)
    moduli = torch.linalg.eigvals(oscillator_step(A, dt, rule)[0]).abs()
    expected = (1 + dt.square() * A).rsqrt() if rule == "im" else torch.ones(50, dtype=torch.float64)
    torch.testing.assert_close(moduli, expected.unsqueeze(1).expand(50, 2), rtol=1e-7, atol=0)


@pytest.mark.parametrize("rule", ["im", "imex"])
def test_rule_is_of_first_order(rule):
    """For a constant input half the step size gives half the error against the matrix exponential."""
    stiffness, force, start = 2.0, 0.8, np.array([0.5, -1.0])
    generator = np.array([[0, -stiffness, force], [1, 0, 0], [0, 0, 0]])
    exact = (expm(2 * generator) @ np.append(start, 1))[:2]
    errors = []
    for count in (200, 400, 800):
        A, dt = torch.tensor(stiffness, dtype=torch.float64), torch.tensor(2 / count, dtype=torch.float64)
        M, F = (part.numpy() for part in oscillator_step(A, dt, rule))
        state = start
        for _ in range(count):
            state = M @ state + F * force
        errors.append(np.abs(state - exact).max())
    assert np.log2(errors[0] / errors[1]) == pytest.approx(1, abs=0.03)
    assert np.log2(errors[1] / errors[2]) == pytest.approx(1, abs=0.03)


def test_unknown_rule_raises():
    with pytest.raises(ValueError, match=r"`rule` must be one of .*, got 'euler'"):
        oscillator_step(torch.ones(1), torch.ones(1), "euler")
