import math

import pytest
import torch
from torch.nn.functional import silu, softplus

from longscan.layers import AUSSM
from longscan.numerics.timescales import inverse_softplus
from native import BACKENDS


def make_published_example(twice: bool) -> tuple[AUSSM, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return a layer with the parameters of a worked example, and its inputs, step sizes and gates."""
    layer = AUSSM(2, d_state=2, dt_bias_twice=twice).double()
    i, j, p = torch.arange(2.0, dtype=torch.float64), torch.arange(2.0, dtype=torch.float64), torch.arange(2.0).double()
    with torch.no_grad():
        layer.dt_proj.zero_()
        effective = 0.3 * (i + 1).view(2, 1, 1) - 0.2 * j.view(1, 2, 1) + 0.1 * p.view(1, 1, 2)
        layer.angle_proj.copy_(effective * math.sqrt(2))
        layer.angle_bias.copy_(1 + 0.5 * i.view(2, 1) - 0.25 * j.view(1, 2))
        layer.B.copy_(torch.stack([0.2 - 0.1 * j, 0.3 + 0.4 * j], -1))
        layer.C.copy_(torch.stack([-0.1 + 0.2 * j, -0.5 + 0.3 * j], -1))
        layer.D.copy_(torch.tensor([1.0, 0.5]))
    t = torch.arange(5.0, dtype=torch.float64).view(5, 1)
    return layer, torch.sin(0.7 * t + 0.3 * i), 0.5 + 0.1 * t + 0.05 * i, torch.cos(0.4 * t - 0.2 * i)


@pytest.mark.parametrize("twice", [True, False])
@pytest.mark.parametrize("backend", ["auto", "eager", "reference"])
def test_outputs_equal_those_of_the_published_code(twice, backend):
    """The expected outputs and final state were computed from the equations of the published code, to seven digits."""
    layer, u, dt, z = make_published_example(twice)
    layer.backend = backend
    state, outputs = layer.initial_state(1), []
    for t in range(5):
        with torch.no_grad():
            layer.dt_bias.copy_(inverse_softplus(dt[t]) / (2 if twice else 1))
        y, state = layer(u[t].view(1, 1, 2), state, gate=z[t].view(1, 1, 2), return_state=True)
        outputs.append(y[0, 0])
    expected = [
        [0.0000000, 0.1261414],
        [0.4436495, 0.4292926],
        [0.5713468, 0.3186690],
        [0.1995767, 0.1002493],
        [-0.0001451, -0.0107892],
    ]
    torch.testing.assert_close(torch.stack(outputs), torch.tensor(expected, dtype=torch.float64), atol=6e-8, rtol=0)
    final = [
        [[-0.2148608, 0.3006124], [-0.3385424, 0.6113904]],
        [[-0.1125313, 0.0863291], [-0.1192945, -0.0246524]],
    ]
    torch.testing.assert_close(state.ssm[0], torch.tensor(final, dtype=torch.float64), atol=6e-8, rtol=0)


def apply_equations(layer: AUSSM, u: torch.Tensor) -> torch.Tensor:
    """Apply the equations at the top of the layer's file step by step, in complex numbers."""
    twice = 2 if layer.dt_bias_twice else 1
    dt = softplus(u @ layer.x_proj.T @ layer.dt_proj.T + twice * layer.dt_bias)
    theta = layer.angles(u)
    if layer.phase_dt:
        theta = theta * dt.unsqueeze(-1)
    B, C = (torch.polar(softplus(part[..., 0]), part[..., 1]) for part in (layer.B, layer.C))
    h, outputs = torch.zeros(len(u), *layer.angle_bias.shape, dtype=torch.complex128), []
    for t in range(u.shape[1]):
        drive = (dt[:, t] * silu(u[:, t])).unsqueeze(-1) * B
        h = torch.polar(torch.ones_like(theta[:, t]), theta[:, t]) * h + drive
        outputs.append((C * h).real.sum(-1) + layer.D * silu(u[:, t]))
    return torch.stack(outputs, 1)


@pytest.mark.parametrize(
    "options",
    [{}, {"phase_dt": True}, {"dt_bias_twice": False}, {"phase_scale": "one"}, {"shared": False}, {"dt_rank": 1}],
    ids=str,
)
def test_outputs_follow_the_equations(options):
    layer = AUSSM(3, d_state=4, **options).double()
    u = torch.randn(2, 12, 3, dtype=torch.float64)
    torch.testing.assert_close(layer(u), apply_equations(layer, u))


def test_initial_values_are_as_documented():
    layer = AUSSM(16, d_state=32)
    assert layer.angle_proj.abs().max() <= 1 / 4
    assert layer.angle_proj.abs().max() > 0.24
    assert math.pi - 0.05 < layer.angle_bias.abs().max() <= math.pi
    assert layer.dt_proj.shape == (16, 32)
    assert layer.B.shape == layer.C.shape == (32, 2)
    assert AUSSM(16, d_state=32, shared=False).B.shape == (16, 32, 2)
    assert 2.9 < AUSSM(16, d_state=32, angle_spread=3.0).angle_proj.abs().max() <= 3
    u = torch.randn(5, 16)
    wide = AUSSM(16, d_state=32, phase_scale="one")
    wide.load_state_dict(layer.state_dict())
    torch.testing.assert_close(wide.angles(u) - wide.angle_bias, 4 * (layer.angles(u) - layer.angle_bias))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"d_state": 0}, "`d_state` must .*got 0"),
        ({"dt_rank": 0}, "`dt_rank` must .*got 0"),
        ({"phase_scale": "half"}, "`phase_scale` must .*got 'half'"),
        ({"angle_spread": 0.0}, "`angle_spread` must .*got 0.0"),
        ({"angle_spread": -1.0}, "`angle_spread` must .*got -1.0"),
        ({"phase_grid": 1}, "`phase_grid` must .*got 1"),
        ({"phase_grid": 8, "phase_dt": True}, "`phase_grid` must be None with phase_dt=True, got 8"),
    ],
)
def test_invalid_setting_raises(options, message):
    with pytest.raises(ValueError, match=message):
        AUSSM(4, **options)


def set_angles_near_grid(layer: AUSSM, grid: int) -> AUSSM:
    """Set angle parameters so that angles of integer inputs are multiples of 2 pi / grid, plus noise far below half a step."""
    step = 2 * math.pi / grid
    with torch.no_grad():
        layer.angle_proj.copy_(torch.randint(-3, 4, layer.angle_proj.shape).double() * step / layer.phase_factor)
        layer.angle_bias.copy_(torch.randint(0, grid, layer.angle_bias.shape).double() * step)
        layer.angle_bias += 0.2 * step * (torch.rand_like(layer.angle_bias) - 0.5)
    return layer


def copy_with_rounded_bias(layer: AUSSM, grid: int) -> AUSSM:
    """Return a layer without `phase_grid` that has the same parameters, with biases rounded to multiples of 2 pi / grid."""
    rounded = AUSSM(len(layer.dt_bias), d_state=layer.d_state).double()
    rounded.load_state_dict(layer.state_dict())
    step = 2 * math.pi / grid
    with torch.no_grad():
        rounded.angle_bias.copy_(torch.round(layer.angle_bias / step) * step)
    return rounded


@pytest.mark.parametrize("backend", BACKENDS)
def test_phase_grid_equals_the_recurrence_with_rounded_angles(backend):
    layer = set_angles_near_grid(AUSSM(3, d_state=4, phase_grid=7, backend=backend).double(), 7)
    u = torch.randint(-2, 3, (2, 20, 3)).double()
    torch.testing.assert_close(layer(u), apply_equations(copy_with_rounded_bias(layer, 7), u))


def test_phase_grid_does_not_accumulate_noise():
    """After 10,000 float32 steps of noisy angles near thirds of 2 pi the phase is exact and the modulus of the state is 1."""
    layer = set_angles_near_grid(AUSSM(2, d_state=1, phase_grid=3), 3)
    with torch.no_grad():
        layer.B[..., 0] = -200.0  # softplus(-200) = 0, so no input is added
    start = layer.initial_state(1)
    start.ssm[..., 0] = 1.0
    u = torch.randint(-2, 3, (1, 10_000, 2)).float()
    _, after = layer(u, start, return_state=True)
    torch.testing.assert_close(after.ssm, start.ssm, rtol=0, atol=0)
    exact = torch.round(layer.angles(u).double() / (2 * math.pi / 3)).sum(1) % 3
    torch.testing.assert_close(after.phase, exact.long())


def test_phase_grid_has_the_gradient_of_the_unrounded_angle():
    layer = set_angles_near_grid(AUSSM(2, d_state=3, phase_grid=5).double(), 5)
    u = torch.randint(-2, 3, (1, 6, 2)).double()
    gradients = []
    for module in (layer, copy_with_rounded_bias(layer, 5)):
        module(u).square().sum().backward()
        gradients.append(module.angle_proj.grad)
    torch.testing.assert_close(*gradients)
