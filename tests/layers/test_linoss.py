import pytest
import torch
from torch._subclasses import FakeTensorMode

from longscan.layers import LinOSS
from longscan.ops import block2_scan


@pytest.mark.parametrize("discretisation", ["im", "imex"])
@pytest.mark.parametrize("has_elapsed", [False, True])
def test_outputs_follow_the_equations(discretisation, has_elapsed):
    """The expected outputs solve the implicit equations of a step in complex numbers; only positions are outputs."""
    layer = LinOSS(3, d_state=5, discretisation=discretisation).double()
    u, elapsed = torch.randn(2, 9, 3, dtype=torch.float64), 1.5 * torch.rand(2, 9, dtype=torch.float64)
    A, B, C = layer.A.detach(), *(torch.view_as_complex(x.detach()) for x in (layer.B, layer.C))
    y, state = layer(u, elapsed=elapsed if has_elapsed else None, return_state=True)
    position, velocity, outputs = *torch.zeros(2, 2, 5, dtype=torch.complex128), []
    for k in range(9):
        dt = layer.dt.detach().sigmoid() * (elapsed[:, k : k + 1] if has_elapsed else 1)
        force = u[:, k].to(B.dtype) @ B.T
        if discretisation == "im":  # z = z' + dt (-A (y' + dt z) + f), solved for z
            velocity = (velocity + dt * (-A * position + force)) / (1 + dt.square() * A)
        else:
            velocity = velocity + dt * (-A * position + force)
        position = position + dt * velocity
        outputs.append((position @ C.T).real + layer.D * u[:, k])
    torch.testing.assert_close(y, torch.stack(outputs, 1))
    torch.testing.assert_close(torch.view_as_complex(state.ssm), torch.stack([velocity, position], -1))


def test_imex_conserves_the_energy_over_1e5_steps():
    """imex conserves z^2 - dt A z y + A y^2; the implicit rule `im` loses all of it."""
    torch.manual_seed(1)
    ratios = {}
    for discretisation in ("im", "imex"):
        layer = LinOSS(1, d_state=8, discretisation=discretisation).double()
        A, dt = layer.A.detach(), layer.dt.detach().sigmoid()
        state = torch.randn(1, 8, 2, 2, dtype=torch.float64)

        def energy(state, A=A, dt=dt):
            z, y = state[0].unbind(1)
            return (z.square() - (dt * A).unsqueeze(1) * z * y + A.unsqueeze(1) * y.square()).sum(-1)

        with torch.no_grad():
            start = layer.initial_state(1)._replace(ssm=state)
            _, after = layer(torch.zeros(1, 100_000, 1, dtype=torch.float64), start, return_state=True)
        ratios[discretisation] = energy(after.ssm) / energy(state)
    torch.testing.assert_close(ratios["imex"], torch.ones(8, dtype=torch.float64), rtol=1e-9, atol=0)
    assert ratios["im"].max() < 1e-9


def test_negative_stiffness_is_zero_and_dt_is_a_sigmoid():
    layer = LinOSS(2, d_state=3).double()
    with torch.no_grad():
        layer.A.fill_(-1.0)
    u = torch.randn(1, 6, 2, dtype=torch.float64)
    dt, force = layer.dt.sigmoid(), torch.einsum("pdc,ld->lpc", layer.B, u[0])
    velocity = (dt.unsqueeze(1) * force).cumsum(0)  # without stiffness the particles are free
    position = (dt.unsqueeze(1) * velocity).cumsum(0)
    expected = (position * layer.C.unsqueeze(1) * torch.tensor([1.0, -1.0])).sum((-1, -2)).T + layer.D * u[0]
    torch.testing.assert_close(layer(u)[0], expected)


def test_unstable_imex_step_raises():
    layer, implicit = LinOSS(2, d_state=4, discretisation="imex"), LinOSS(2, d_state=4)
    u = torch.randn(1, 3, 2)
    long_gap = torch.tensor([[1.0, 1.0, 50.0]])
    with pytest.raises(ValueError, match=r"`elapsed` must be such that dt\^2 A < 4, where 'imex' is stable .*, got dt\^2 A ="):
        layer(u, elapsed=long_gap)
    assert layer(u, elapsed=long_gap, valid=torch.tensor([[True, True, False]])).isfinite().all()
    assert implicit(u, elapsed=long_gap).isfinite().all()
    with torch.no_grad():
        layer.A[1] = 100.0
    with pytest.raises(ValueError, match=r"`A` must be such that dt\^2 A < 4"):
        layer(u)


def test_initial_values_are_as_documented():
    layer = LinOSS(50, d_state=400)
    for values in (layer.A, layer.dt):
        assert 0 <= values.min() < 0.02
        assert 0.98 < values.max() <= 1
    assert layer.B.abs().max().item() == pytest.approx(50**-0.5, rel=0.01)
    assert layer.C.abs().max().item() == pytest.approx(400**-0.5, rel=0.01)
    assert sum(p.numel() for p in layer.parameters()) == 2 * 400 + 4 * 400 * 50 + 50


def test_complex_matrix_raises():
    with pytest.raises(TypeError, match=r"`M` must be of a real floating-point dtype, got torch\.complex64"):
        block2_scan(torch.eye(2, dtype=torch.complex64), torch.ones(1, 3, 2))


@pytest.mark.parametrize(
    ("options", "message"),
    [({"d_state": 0}, "`d_state` must .*got 0"), ({"discretisation": "ex"}, "`discretisation` must .*got 'ex'")],
)
def test_invalid_setting_raises(options, message):
    with pytest.raises(ValueError, match=message):
        LinOSS(4, **options)


def test_imex_runs_on_fake_and_meta_tensors():
    """The check for stable steps is skipped, because these tensors have no values."""
    layer = LinOSS(2, d_state=4, discretisation="imex")
    x = torch.randn(1, 5, 2)
    with FakeTensorMode(allow_non_fake_inputs=True) as fake:
        assert layer(fake.from_tensor(x)).shape == x.shape
    assert LinOSS(2, d_state=4, discretisation="imex").to("meta")(x.to("meta")).shape == x.shape
