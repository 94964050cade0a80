import math

import pytest
import torch
from torch.nn.functional import linear, sigmoid, silu, softplus

from longscan.layers import Mamba3, parameter_options
from longscan.layers.base import SequenceInfo
from longscan.numerics.rotary import rotate_pairs


def apply_published_recurrence(layer: Mamba3, u: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """Apply the recurrence of the authors: B and C are rotated by cumulative angles, and each step adds two input terms."""
    heads, size = layer.heads, layer.heads.groups * layer.heads.d_state
    sizes = [size, size, heads.heads, heads.heads, heads.heads, heads.pairs]
    B, C, dt, a, trap, angle = linear(u, layer.x_proj).split(sizes, -1)

    def normalise_maps(part, scale, bias):
        part = part.unflatten(-1, (heads.groups, heads.d_state))
        part = part / (part.square().mean(-1, keepdim=True) + 1e-5).sqrt() * scale
        return part.repeat_interleave(heads.heads // heads.groups, 2) + bias

    B, C = normalise_maps(B, heads.B_norm, heads.B_bias), normalise_maps(C, heads.C_norm, heads.C_bias)
    dt = softplus(dt + heads.dt_bias)
    A = -torch.where(a >= 0, 1 + a, 1 / (1 - a)).clamp(min=1e-4)
    alpha, weight = (A * dt).exp(), sigmoid(trap)
    angles = (dt.unsqueeze(-1) * math.pi * torch.tanh(angle).unsqueeze(2)).cumsum(1)
    B, C = rotate_pairs(B, angles), rotate_pairs(C, angles)
    x = u.unflatten(-1, (heads.heads, heads.head_dim))
    h = u.new_zeros(len(u), heads.heads, heads.head_dim, heads.d_state)
    previous_input, outputs = torch.zeros_like(h), []
    for t in range(u.shape[1]):
        new_input = x[:, t].unsqueeze(-1) * B[:, t].unsqueeze(-2)
        decay, step, gamma = (part[:, t, :, None, None] for part in (alpha, dt, weight))
        h = decay * h + (1 - gamma) * step * decay * previous_input + gamma * step * new_input
        previous_input = new_input
        outputs.append(torch.einsum("bhpn,bhn->bhp", h, C[:, t]) + heads.D[:, None] * x[:, t])
    return torch.stack(outputs, 1).flatten(2) * silu(gate)


def test_rates_have_finite_gradients_on_both_sides_of_zero():
    """The half of the rate's formula that does not apply divides by zero at 1."""
    layer = Mamba3(4, d_state=4, head_dim=2).double()
    heads, sizes = layer.heads, layer.heads.groups * layer.heads.d_state
    for value in (-3.0, -1.0, 0.0, 0.5, 1.0, 2.0):
        x = torch.randn(1, 3, 4, dtype=torch.float64)
        selected = torch.zeros(1, 3, layer.x_proj.shape[0], dtype=torch.float64)
        selected[..., 2 * sizes + heads.heads : 2 * sizes + 2 * heads.heads] = value
        selected.requires_grad_()
        y, _ = heads(x, selected, layer.initial_state(1), SequenceInfo())
        y.square().sum().backward()
        assert selected.grad.isfinite().all(), value


@pytest.mark.parametrize("options", [{}, {"groups": 3}, {"rope_fraction": 1.0, "d_state": 5}, {"head_dim": 6}], ids=str)
def test_outputs_follow_the_published_recurrence(options):
    layer = Mamba3(6, **{"d_state": 4, "head_dim": 2, **options}).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_()
    u, gate = torch.randn(2, 2, 70, 6, dtype=torch.float64)
    torch.testing.assert_close(layer(u, gate=gate), apply_published_recurrence(layer, u, gate))


def test_state_contains_the_last_input():
    """A step adds a term of the previous input. Without that input in the state the outputs differ."""
    layer = Mamba3(4, d_state=4).double()
    u = torch.randn(1, 6, 4, dtype=torch.float64)
    _, state = layer(u[:, :3], return_state=True)
    whole = layer(u)[:, 3:]
    torch.testing.assert_close(layer(u[:, 3:], state), whole)
    without_input = layer(u[:, 3:], state._replace(last_x=torch.zeros_like(state.last_x)))
    assert not torch.allclose(without_input, whole)


def test_initial_values_are_as_documented():
    layer = Mamba3(64 * 200)
    heads = layer.heads
    assert (heads.heads, heads.head_dim, heads.groups, heads.d_state, heads.pairs) == (200, 64, 1, 128, 32)
    assert 0.99e-3 < softplus(heads.dt_bias).min() < 2e-3
    assert 0.05 < softplus(heads.dt_bias).max() < 0.1001
    for bias in (heads.B_bias, heads.C_bias):
        assert torch.equal(bias, torch.ones(200, 128))
    assert not parameter_options(heads.D).decay
    assert not parameter_options(heads.dt_bias).decay
    assert Mamba3(8, d_state=6).heads.pairs == 1
    assert Mamba3(8, d_state=6, rope_fraction=1.0).heads.pairs == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rope_fraction": 0.3}, r"`rope_fraction` must .*got 0\.3"),
        ({"d_state": 3}, "`d_state` must .*got 3"),
        ({"d_state": 1, "rope_fraction": 1.0}, "`d_state` must .*got 1"),
        ({"d_state": 0}, "`d_state` must .*got 0"),
        ({"head_dim": 3}, "`head_dim` must .*got 3"),
        ({"groups": 2}, "`groups` must .*got 2"),
        ({"dt_min": 0.5}, "`dt_min` and `dt_max` must be .*, got 0.5 and 0.1"),
    ],
)
def test_invalid_setting_raises(options, message):
    with pytest.raises(ValueError, match=message):
        Mamba3(4, **options)
