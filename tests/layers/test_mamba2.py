import pytest
import torch
from torch.nn.functional import linear, silu, softplus

from longscan.layers import Mamba2, parameter_options


def apply_equations(layer: Mamba2, u: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """Apply the equations at the top of the layer's file head by head and step by step."""
    heads = layer.heads
    size = heads.groups * heads.d_state
    B, C, dt = linear(u, layer.x_proj).split([size, size, heads.heads], -1)
    dt = softplus(dt + heads.dt_bias)
    dt = dt if heads.dt_limit is None else dt.clamp(*heads.dt_limit)
    y = torch.zeros_like(u)
    for head in range(heads.heads):
        group = head * heads.groups // heads.heads
        states = slice(group * heads.d_state, (group + 1) * heads.d_state)
        channels = slice(head * heads.head_dim, (head + 1) * heads.head_dim)
        h = u.new_zeros(len(u), heads.head_dim, heads.d_state)
        for t in range(u.shape[1]):
            step = dt[:, t, head, None, None]
            decay = torch.exp(-step * heads.A_log[head].exp())
            h = decay * h + step * u[:, t, channels, None] * B[:, t, None, states]
            y[:, t, channels] = (h * C[:, t, None, states]).sum(-1) + heads.D[head] * u[:, t, channels]
    return y * silu(gate)


@pytest.mark.parametrize("options", [{}, {"groups": 3}, {"dt_limit": (0.0, 0.02)}, {"head_dim": 6}], ids=str)
def test_outputs_follow_the_equations(options):
    layer = Mamba2(6, **{"d_state": 4, "head_dim": 2, **options}).double()
    with torch.no_grad():
        layer.heads.D.normal_()
    u, gate = torch.randn(2, 2, 9, 6, dtype=torch.float64)
    torch.testing.assert_close(layer(u, gate=gate), apply_equations(layer, u, gate))


def test_initial_values_are_as_documented():
    layer = Mamba2(64 * 200)
    heads = layer.heads
    assert (heads.heads, heads.head_dim, heads.groups, heads.d_state) == (200, 64, 1, 128)
    rates = heads.A_log.exp()
    assert 1 <= rates.min() < 1.5
    assert 15.5 < rates.max() <= 16
    assert 0.99e-3 < softplus(heads.dt_bias).min() < 2e-3
    assert 0.05 < softplus(heads.dt_bias).max() < 0.1001
    assert torch.equal(heads.D, torch.ones(200))
    for parameter in (heads.A_log, heads.dt_bias, heads.D):
        assert not parameter_options(parameter).decay
        assert parameter_options(parameter).keep_float32


@pytest.mark.parametrize(("d_model", "width"), [(1, 1), (64, 64), (96, 48), (100, 50), (256, 64)])
def test_head_dim_is_the_largest_divisor_up_to_64(d_model, width):
    assert Mamba2(d_model, d_state=2).heads.head_dim == width


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"d_state": 0}, "`d_state` must .*got 0"),
        ({"head_dim": 3}, "`head_dim` must .*got 3"),
        ({"head_dim": 0}, "`head_dim` must .*got 0"),
        ({"head_dim": 1, "groups": 3}, "`groups` must .*got 3"),
        ({"groups": 0}, "`groups` must .*got 0"),
        ({"dt_min": 0.5}, "`dt_min` and `dt_max` must be .*, got 0.5 and 0.1"),
        ({"dt_limit": (0.1, 0.1)}, r"`dt_limit` must .*got \(0.1, 0.1\)"),
        ({"dt_limit": (0.2, 0.1)}, r"`dt_limit` must .*got \(0.2, 0.1\)"),
        ({"dt_limit": (0.1,)}, r"`dt_limit` must .*got \(0.1,\)"),
    ],
)
def test_invalid_setting_raises(options, message):
    with pytest.raises(ValueError, match=message):
        Mamba2(4, **options)
    with pytest.raises(ValueError, match=r"`d_model` must .*got 0"):
        Mamba2(0)
