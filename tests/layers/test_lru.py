import pytest
import torch
from dense_systems import real_form, run_recurrence

from longscan.layers import LRU


@pytest.mark.parametrize("has_elapsed", [False, True])
def test_outputs_follow_the_equations(has_elapsed):
    """The equations are x_k = lambda^tau x_{k-1} + gamma B u_k and y = Re(C x) + D u."""
    layer = LRU(3, d_state=5).double()
    u, elapsed = torch.randn(2, 9, 3, dtype=torch.float64), 2 * torch.rand(2, 9, dtype=torch.float64)
    log_eigenvalues = torch.complex(-layer.nu.exp(), layer.phi.exp())
    B, C = torch.view_as_complex(layer.B.detach()), torch.view_as_complex(layer.C.detach())
    x, outputs = torch.zeros(2, 5, dtype=torch.complex128), []
    for k in range(9):
        tau = elapsed[:, k : k + 1] if has_elapsed else 1
        x = (tau * log_eigenvalues).exp() * x + layer.log_gamma.exp() * (u[:, k].to(torch.complex128) @ B.T)
        outputs.append((x @ C.T).real + layer.D * u[:, k])
    torch.testing.assert_close(layer(u, elapsed=elapsed if has_elapsed else None), torch.stack(outputs, 1))


def test_outputs_equal_those_of_the_dense_system():
    layer = LRU(3, d_state=5).double()
    u = torch.randn(1, 60, 3, dtype=torch.float64)
    eigenvalues = torch.complex(-layer.nu.exp(), layer.phi.exp()).exp()
    B, C = (torch.view_as_complex(part.detach()) for part in (layer.B, layer.C))
    a, b, c = real_form(
        eigenvalues, layer.log_gamma.exp().unsqueeze(1) * B, C / 2
    )  # C / 2, because the states are not conjugate pairs
    torch.testing.assert_close(layer(u)[0], run_recurrence(a, b, c, u[0]) + layer.D * u[0], rtol=1e-9, atol=1e-10)


def test_states_of_white_noise_have_unit_variance():
    """The factor gamma = sqrt(1 - |lambda|^2) gives unit variance, times that of B."""
    layer = LRU(4, d_state=8, r_min=0.5, r_max=0.9)
    with torch.no_grad():
        _, state = layer(torch.randn(20_000, 200, 4), return_state=True)
    variance = state.ssm.square().sum(-1).mean(0)
    torch.testing.assert_close(variance, layer.B.square().sum((1, 2)).detach(), rtol=0.05, atol=0)


def test_initial_values_are_as_documented():
    layer = LRU(64, d_state=4000, r_min=0.9, r_max=0.999, max_phase=0.3)
    modulus = torch.exp(-layer.nu.exp())
    assert modulus.min() >= 0.9 - 1e-6
    assert modulus.max() <= 0.999 + 1e-6
    assert layer.phi.exp().max() <= 0.3 + 1e-6
    assert layer.B.var().item() == pytest.approx(1 / 128, rel=0.05)
    assert layer.C.var().item() == pytest.approx(1 / 4000, rel=0.05)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"d_state": 0}, "`d_state` must .*got 0"),
        ({"r_max": 1.2}, "`r_max` must .*got 1.2"),
        ({"max_phase": 0.0}, "`max_phase` must .*got 0.0"),
    ],
)
def test_invalid_setting_raises(options, message):
    with pytest.raises(ValueError, match=message):
        LRU(4, **options)
