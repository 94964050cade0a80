"""Discretisations by eigenvalues, compared with the matrix exponential."""

import math

import pytest
import torch

from longscan.numerics.discretisation import change, discretise, discretise_events, log_step


def real_system(eigenvalue: complex) -> torch.Tensor:
    """Return x' = lambda x + u for complex x as a real 2x2 system whose third state is the constant input."""
    a, b = eigenvalue.real, eigenvalue.imag
    return torch.tensor([[a, -b, 1.0], [b, a, 0.0], [0.0, 0.0, 0.0]], dtype=torch.float64)


@pytest.mark.parametrize("eigenvalue", [-0.5 + 3.0j, -2.0 + 0.0j, -1e-6 + 1e-3j])
@pytest.mark.parametrize("dt", [0.001, 0.7])
def test_zero_order_hold_is_exact_for_constant_inputs(eigenvalue, dt):
    exact = torch.linalg.matrix_exp(real_system(eigenvalue) * dt)
    pair = torch.tensor([eigenvalue.real, eigenvalue.imag], dtype=torch.float64)
    a, b = discretise(pair, torch.tensor(dt, dtype=torch.float64))
    torch.testing.assert_close(a, exact[:2, 0], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(b, exact[:2, 2], rtol=1e-12, atol=1e-12)


def test_bilinear_is_of_second_order():
    eigenvalue = torch.tensor([-0.5, 3.0], dtype=torch.float64)
    errors = []
    for dt in (0.02, 0.01, 0.005):
        exact = torch.linalg.matrix_exp(real_system(-0.5 + 3j) * dt)[:2, 0]
        a, _ = discretise(eigenvalue, torch.tensor(dt, dtype=torch.float64), "bilinear")
        errors.append((a - exact).norm() / dt)  # the local error of one step divided by dt
    orders = [torch.log2(errors[i] / errors[i + 1]).item() for i in range(2)]
    assert orders == pytest.approx([2.0, 2.0], abs=0.02)


@pytest.mark.parametrize("rule", ["zoh", "bilinear"])
def test_error_for_changing_inputs_is_of_first_order(rule):
    """For x' = lambda x + sin(t), sampled at the end of each step, half the step size gives half the error at t = 2."""
    eigenvalue = -0.5 + 3j
    exact = (1j * torch.tensor(2.0, dtype=torch.float64)).exp() / (1j - eigenvalue)
    exact = (exact - torch.tensor(2 * eigenvalue).exp() / (1j - eigenvalue)) / 2j
    conjugate_term = (-1j * torch.tensor(2.0, dtype=torch.float64)).exp() - torch.tensor(2 * eigenvalue).exp()
    exact = exact - conjugate_term / (-1j - eigenvalue) / 2j
    errors = []
    for count in (400, 800, 1600):
        dt = 2 / count
        pair = torch.tensor([eigenvalue.real, eigenvalue.imag], dtype=torch.float64)
        a, b = (complex(*part.tolist()) for part in discretise(pair, torch.tensor(dt, dtype=torch.float64), rule))
        x = 0j
        for k in range(1, count + 1):
            x = a * x + b * math.sin(k * dt)
        errors.append(abs(x - complex(exact)))
    assert [math.log2(errors[i] / errors[i + 1]) for i in range(2)] == pytest.approx([1, 1], abs=0.02)


def test_bilinear_solves_the_trapezoidal_rule():
    eigenvalue, dt, u, x = -0.3 + 2.0j, 0.4, 1.7, 0.5 - 0.2j
    a, b = (
        complex(*part.tolist())
        for part in discretise(torch.tensor([-0.3, 2.0], dtype=torch.float64), torch.tensor(dt, dtype=torch.float64), "bilinear")
    )
    after = a * x + b * u
    assert after == pytest.approx(x + dt * (eigenvalue * (x + after) / 2 + u))


@pytest.mark.parametrize("rule", ["zoh", "bilinear"])
def test_change_equals_lambda_times_the_input_factor_at_any_step_size(rule):
    """Both rules give a - 1 = lambda b; if the step is so short that a rounds to 1, `change` returns lambda dt."""
    eigenvalues = torch.stack([-torch.rand(20), 5 * torch.randn(20)], -1).double()
    dt = torch.rand(20, dtype=torch.float64)
    a, b = (torch.view_as_complex(part) for part in discretise(eigenvalues, dt, rule))
    less_one = torch.view_as_complex(change(eigenvalues, dt, rule))
    torch.testing.assert_close(less_one, a - 1)
    torch.testing.assert_close(less_one, torch.view_as_complex(eigenvalues) * b)
    torch.testing.assert_close(change(eigenvalues, 1e-20 * dt, rule), 1e-20 * dt.unsqueeze(-1) * eigenvalues, rtol=1e-12, atol=0)


@pytest.mark.parametrize("rule", ["zoh", "bilinear"])
def test_exponential_of_log_step_is_the_step(rule):
    eigenvalues = torch.stack([-torch.rand(20), 5 * torch.randn(20)], -1).double()
    dt = 0.1 + torch.rand(20, dtype=torch.float64)
    a, _ = discretise(eigenvalues, dt, rule)
    logs = torch.view_as_complex(log_step(eigenvalues, dt, rule))
    torch.testing.assert_close(logs.exp(), torch.view_as_complex(a))


@pytest.mark.parametrize("rule", ["zoh", "bilinear"])
def test_discretise_accepts_a_dt_for_each_step(rule):
    eigenvalues = torch.tensor([[-0.5, 1.0], [-0.1, 4.0]], dtype=torch.float64)
    dt = torch.rand(3, 5, 1, dtype=torch.float64)
    a, b = discretise(eigenvalues, dt, rule)
    assert a.shape == b.shape == (3, 5, 2, 2)
    torch.testing.assert_close(a[1, 2], discretise(eigenvalues, dt[1, 2], rule)[0])
    assert torch.autograd.gradcheck(lambda e, d: discretise(e, d, rule), (eigenvalues.requires_grad_(), dt.requires_grad_()))


def test_unknown_rule_raises():
    for function in (discretise, change):
        with pytest.raises(ValueError, match=r"`rule` must be one of .*, got 'euler'"):
            function(torch.ones(1, 2), torch.ones(1), "euler")


def test_rules_of_events_discretise_gap_and_input_separately():
    eigenvalues = torch.tensor([[-0.5, 1.0], [-0.1, 4.0]], dtype=torch.float64)
    dt, elapsed = torch.tensor([0.1, 0.3], dtype=torch.float64), torch.tensor([[0.0], [2.5]], dtype=torch.float64)
    for rule in ("zoh", "bilinear"):
        torch.testing.assert_close(discretise_events(eigenvalues, dt, elapsed, rule), discretise(eigenvalues, dt * elapsed, rule))
    ones = torch.tensor([1.0, 0.0], dtype=torch.float64).expand(2, 2)
    for rule, input_factor in (("dirac", ones), ("async", discretise(eigenvalues, dt)[1])):
        a, b = discretise_events(eigenvalues, dt, elapsed, rule)
        assert torch.equal(a, discretise(eigenvalues, dt * elapsed)[0])
        assert torch.equal(b, input_factor)
    with pytest.raises(ValueError, match=r"`rule` must be one of .*, got 'euler'"):
        discretise_events(eigenvalues, dt, None, "euler")
