import pytest
import torch
from dense_systems import real_form, simulate

from longscan.layers import S5
from longscan.numerics.hippo import legs, legs_basis


def scaled_system(layer):
    """Return Lambda dt, B dt, B and C as complex tensors. Each state has its own dt, so time is measured in units of it."""
    dt = layer.log_dt.detach().exp()
    B, C = (torch.view_as_complex(x.detach()) for x in (layer.B, layer.C))
    return torch.view_as_complex(layer.eigenvalues().detach()) * dt, B * dt.unsqueeze(1), B, C


@pytest.mark.parametrize("discretisation", ["zoh", "bilinear"])
@pytest.mark.parametrize("blocks", [1, 4])
@pytest.mark.parametrize("has_elapsed", [False, True])
def test_outputs_equal_those_of_the_dense_system(discretisation, blocks, has_elapsed):
    """The reference is scipy's discretisation and simulation of the system as one real matrix."""
    layer = S5(3, d_state=16, blocks=blocks, discretisation=discretisation, dt_min=0.01).double()
    u = torch.randn(1, 50, 3, dtype=torch.float64)
    y = layer(u, elapsed=torch.full((1, 50), 1.7, dtype=torch.float64) if has_elapsed else None)
    scaled, B_scaled, _, C = scaled_system(layer)
    expected = simulate(real_form(scaled, B_scaled, C), 1.7 if has_elapsed else 1.0, discretisation, u[0])
    torch.testing.assert_close(y[0], expected + layer.D * u[0], rtol=1e-9, atol=1e-10)


def test_irregular_steps_equal_the_matrix_exponential():
    """For a constant input u over a gap tau, the state after the gap is the first part of e^{(A B; 0 0) tau} (x, u)."""
    layer = S5(2, d_state=8).double()
    scaled, B_scaled, _, C = scaled_system(layer)
    a, b, c = (torch.from_numpy(part) for part in real_form(scaled, B_scaled, C))
    u, elapsed = torch.randn(9, 2, dtype=torch.float64), 40 * torch.rand(9, dtype=torch.float64)
    generator = torch.zeros(10, 10, dtype=torch.float64)
    generator[:8, :8], generator[:8, 8:] = a, b
    x, outputs = torch.zeros(8, dtype=torch.float64), []
    for k in range(9):
        x = (torch.linalg.matrix_exp(generator * elapsed[k]) @ torch.cat([x, u[k]]))[:8]
        outputs.append(c @ x + layer.D * u[k])
    torch.testing.assert_close(layer(u.unsqueeze(0), elapsed=elapsed.unsqueeze(0))[0], torch.stack(outputs))


@pytest.mark.parametrize("discretisation", ["dirac", "async"])
@pytest.mark.parametrize("conjugate", [True, False])
def test_event_discretisations_follow_the_equations(discretisation, conjugate):
    """The state decays over the gap before an event. The event is added directly ("dirac") or held over dt ("async")."""
    layer = S5(2, d_state=6, conjugate=conjugate, discretisation=discretisation).double()
    scaled, B_scaled, B, C = scaled_system(layer)
    u, elapsed = torch.randn(9, 2, dtype=torch.complex128).real.contiguous(), 9 * torch.rand(9, dtype=torch.float64)
    x, outputs = torch.zeros_like(scaled), []
    for k in range(9):
        event_map = B if discretisation == "dirac" else (scaled.exp() - 1).unsqueeze(1) / scaled.unsqueeze(1) * B_scaled
        x = (scaled * elapsed[k]).exp() * x + event_map @ u[k].to(x.dtype)
        outputs.append((2 if conjugate else 1) * (C @ x).real + layer.D * u[k])
    torch.testing.assert_close(layer(u.unsqueeze(0), elapsed=elapsed.unsqueeze(0))[0], torch.stack(outputs))


def test_initial_blocks_are_the_normal_part_of_hippo():
    """In every block V Lambda V* is -1/2 plus the skew-symmetric part of A, and V is unitary."""
    layer = S5(4, d_state=24, blocks=3)
    eigenvalues, vectors = legs_basis(8)
    torch.testing.assert_close(layer.A_imag.double(), eigenvalues.imag.repeat(3), rtol=1e-6, atol=1e-6)
    assert torch.equal(layer.A_real, torch.full((12,), -0.5))
    a, _ = legs(8)
    normal = -0.5 * torch.eye(8, dtype=torch.float64) + (a - a.T) / 2
    rebuilt = 2 * ((vectors * eigenvalues) @ vectors.conj().T).real
    torch.testing.assert_close(rebuilt, normal)
    torch.testing.assert_close(2 * (vectors @ vectors.conj().T).real, torch.eye(8, dtype=torch.float64), atol=1e-12, rtol=0)
    all_eigenvalues, _ = legs_basis(7, pairs=False)
    assert len(all_eigenvalues) == 7
    torch.testing.assert_close(all_eigenvalues.imag, -all_eigenvalues.imag.flip(0), atol=1e-12, rtol=0)


def test_initial_values_are_as_documented():
    layer = S5(200, d_state=400, blocks=4, dt_min=0.01, dt_max=0.02)
    assert layer.B.square().sum(-1).mean().item() == pytest.approx(1 / 200, rel=0.05)
    assert layer.C.square().sum(-1).mean().item() == pytest.approx(2 / 400, rel=0.05)
    assert S5(200, d_state=400, c_init="complex_normal").C.square().sum(-1).mean().item() == pytest.approx(1, rel=0.05)
    dt = layer.log_dt.exp()
    assert dt.min() >= 0.01 * (1 - 1e-6)
    assert dt.max() <= 0.02 * (1 + 1e-6)
    assert sum(p.numel() for p in layer.parameters()) == 3 * 200 + 2 * 2 * 200 * 200 + 200


def test_clip_limits_real_parts_of_eigenvalues():
    for clip, expected in ((True, -1e-4), (False, 0.5)):
        layer = S5(2, d_state=4, clip=clip)
        with torch.no_grad():
            layer.A_real.fill_(0.5)
        assert torch.equal(layer.eigenvalues()[:, 0], torch.full((2,), expected))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"d_state": 0}, "`d_state` must .*got 0"),
        ({"d_state": 8, "blocks": 3}, "`blocks` must .*got 3"),
        ({"d_state": 6, "blocks": 2}, "`d_state` must be even in each of the 2 blocks .*got 6"),
        ({"discretisation": "euler"}, "`discretisation` must .*got 'euler'"),
        ({"c_init": "ones"}, "`c_init` must .*got 'ones'"),
        ({"dt_min": 0.0}, "`dt_min` must .*got 0.0"),
    ],
)
def test_invalid_setting_raises(options, message):
    with pytest.raises(ValueError, match=message):
        S5(4, **options)
