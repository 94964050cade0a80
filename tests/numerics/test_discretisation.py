"""Discretisations against the matrix exponential, which knows nothing of eigenvalues."""

import math

import pytest
import torch

from longscan.numerics.discretisation import change, discretise, discretise_events, log_step


def real_system(eigenvalue: complex) -> torch.Tensor:
    """x' = lambda x + u for complex x as a real 2x2 system with the held input as a third state."""
    a, b = eigenvalue.real, eigenvalue.imag
    return torch.tensor([[a, -b, 1.0], [b, a, 0.0], [0.0, 0.0, 0.0]], dtype=torch.float64)


@pytest.mark.parametrize("eigenvalue", [-0.5 + 3.0j, -2.0 + 0.0j, -1e-6 + 1e-3j])
@pytest.mark.parametrize("dt", [0.001, 0.7])
def test_zero_order_hold_is_exact_for_held_inputs(eigenvalue, dt):
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
        errors.append((a - exact).norm() / dt)  # of the rate, over one step: local error over dt
    orders = [torch.log2(errors[i] / errors[i + 1]).item() for i in range(2)]
    assert orders == pytest.approx([2.0, 2.0], abs=0.02)


@pytest.mark.parametrize("rule", ["zoh", "bilinear"])
def test_inputs_that_change_are_followed_to_first_order(rule):
    """x' = lambda x + sin(t), each step driven by the input at its end: the error at t = 2 halves with the step."""
    eigenvalue = -0.5 + 3j
    exact = (1j * torch.tensor(2.0, dtype=torch.float64)).exp() / (1j - eigenvalue)
    exact = (exact - torch.tensor(2 * eigenvalue).exp() / (1j - eigenvalue)) / 2j
    other = (-1j * torch.tensor(2.0, dtype=torch.float64)).exp() - torch.tensor(2 * eigenvalue).exp()
    exact = exact - other / (-1j - eigenvalue) / 2j
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
def test_change_is_lambda_times_the_input_factor_and_keeps_its_digits(rule):
    """a - 1 = lambda b under both rules; for steps so short that a rounds to 1 it is lambda dt."""
    eigenvalues = torch.stack([-torch.rand(20), 5 * torch.randn(20)], -1).double()
    dt = torch.rand(20, dtype=torch.float64)
    a, b = (torch.view_as_complex(part) for part in discretise(eigenvalues, dt, rule))
    less_one = torch.view_as_complex(change(eigenvalues, dt, rule))
    torch.testing.assert_close(less_one, a - 1)
    torch.testing.assert_close(less_one, torch.view_as_complex(eigenvalues) * b)
    torch.testing.assert_close(change(eigenvalues, 1e-20 * dt, rule), 1e-20 * dt.unsqueeze(-1) * eigenvalues, rtol=1e-12, atol=0)


@pytest.mark.parametrize("rule", ["zoh", "bilinear"])
def test_log_step_holds_modulus_and_angle(rule):
    eigenvalues = torch.stack([-torch.rand(20), 5 * torch.randn(20)], -1).double()
    dt = 0.1 + torch.rand(20, dtype=torch.float64)
    a, _ = discretise(eigenvalues, dt, rule)
    logs = torch.view_as_complex(log_step(eigenvalues, dt, rule))
    torch.testing.assert_close(logs.exp(), torch.view_as_complex(a))


@pytest.mark.parametrize("rule", ["zoh", "bilinear"])
def test_every_step_may_have_its_own_length(rule):
    eigenvalues = torch.tensor([[-0.5, 1.0], [-0.1, 4.0]], dtype=torch.float64)
    dt = torch.rand(3, 5, 1, dtype=torch.float64)
    a, b = discretise(eigenvalues, dt, rule)
    assert a.shape == b.shape == (3, 5, 2, 2)
    torch.testing.assert_close(a[1, 2], discretise(eigenvalues, dt[1, 2], rule)[0])
    assert torch.autograd.gradcheck(lambda e, d: discretise(e, d, rule), (eigenvalues.requires_grad_(), dt.requires_grad_()))


def test_an_unknown_rule_is_named():
    for function in (discretise, change):
        with pytest.raises(ValueError, match=r"`rule` must be one of .*, got 'euler'"):
            function(torch.ones(1, 2), torch.ones(1), "euler")


def test_events_decay_over_the_gap_and_enter_as_the_rule_says():
    eigenvalues = torch.tensor([[-0.5, 1.0], [-0.1, 4.0]], dtype=torch.float64)
    dt, elapsed = torch.tensor([0.1, 0.3], dtype=torch.float64), torch.tensor([[0.0], [2.5]], dtype=torch.float64)
    for rule in ("zoh", "bilinear"):
        torch.testing.assert_close(discretise_events(eigenvalues, dt, elapsed, rule), discretise(eigenvalues, dt * elapsed, rule))
    one = torch.tensor([1.0, 0.0], dtype=torch.float64).expand(2, 2)
    for rule, enters in (("dirac", one), ("async", discretise(eigenvalues, dt)[1])):
        a, b = discretise_events(eigenvalues, dt, elapsed, rule)
        assert torch.equal(a, discretise(eigenvalues, dt * elapsed)[0])
        assert torch.equal(b, enters)
    with pytest.raises(ValueError, match=r"`rule` must be one of .*, got 'euler'"):
        discretise_events(eigenvalues, dt, None, "euler")
