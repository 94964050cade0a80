import pytest
import torch
from torch import nn
from torch.nn.functional import conv1d, linear, pad, silu, softplus

from longscan.blocks import GatedDeltaNetBlock
from longscan.layers import GatedDeltaNet, parameter_options
from longscan.layers.base import SequenceInfo
from longscan.layers.gated_deltanet import GatedDeltaNetHeads


def apply_equations(heads: GatedDeltaNetHeads, v: torch.Tensor, selected: torch.Tensor, elapsed: torch.Tensor) -> torch.Tensor:
    """Apply equation 10 of the paper, with normalised keys and queries and a norm of the outputs of each head."""
    width = heads.heads * heads.d_state
    k, q, dt, b = selected.split([width, width, heads.heads, heads.heads], -1)
    alpha = torch.exp(-heads.A_log.exp() * softplus(dt + heads.dt_bias)) ** elapsed.unsqueeze(-1)
    y = torch.zeros_like(v)
    for head in range(heads.heads):
        states = slice(head * heads.d_state, (head + 1) * heads.d_state)
        channels = slice(head * heads.head_dim, (head + 1) * heads.head_dim)
        S = v.new_zeros(len(v), heads.head_dim, heads.d_state)
        for t in range(v.shape[1]):
            key, query = (x[:, t, states] / (x[:, t, states].norm(dim=-1, keepdim=True) ** 2 + 1e-6).sqrt() for x in (k, q))
            beta, decay = b[:, t, head, None, None].sigmoid(), alpha[:, t, head, None, None]
            outer = key.unsqueeze(2) * key.unsqueeze(1)
            S = decay * S @ (torch.eye(heads.d_state, dtype=v.dtype) - beta * outer)
            S = S + beta * v[:, t, channels, None] * key.unsqueeze(1)
            read = (S @ query.unsqueeze(-1)).squeeze(-1)
            y[:, t, channels] = heads.norm_weight * read / (read.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    return y


@pytest.mark.parametrize("options", [{}, {"d_state": 5, "head_dim": 2}, {"d_state": 1, "head_dim": 3}], ids=str)
def test_outputs_follow_the_equations(options):
    layer = GatedDeltaNet(6, **options).double()
    with torch.no_grad():
        layer.heads.norm_weight.normal_()
    (u, gate), elapsed = torch.randn(2, 2, 9, 6, dtype=torch.float64), 2 * torch.rand(2, 9, dtype=torch.float64)
    expected = apply_equations(layer.heads, u, linear(u, layer.x_proj), elapsed) * silu(gate)
    torch.testing.assert_close(layer(u, gate=gate, elapsed=elapsed), expected)


@pytest.mark.parametrize("options", [{}, {"d_conv": 0, "expand": 1}, {"d_conv": 3, "layer_options": {"d_state": 3}}], ids=str)
def test_block_equals_projection_convolution_heads_and_gate(options):
    """The convolution and SiLU apply to values, keys and queries; the norm precedes the gate."""
    block = GatedDeltaNetBlock(4, **options).double()
    for parameter in block.parameters():
        nn.init.normal_(parameter)
    x, heads, inner = torch.randn(2, 9, 4, dtype=torch.float64), block.heads, block.d_inner
    z, vkq, rest = block.in_proj(x).split([inner, inner + 2 * heads.heads * heads.d_state, 2 * heads.heads], -1)
    if block.conv_weight is not None:
        left_padded = pad(vkq.transpose(1, 2), (block.d_conv - 1, 0))
        weight = block.conv_weight.unsqueeze(1)
        vkq = silu(conv1d(left_padded, weight, block.conv_bias, groups=len(weight)).transpose(1, 2))
    ones = torch.ones(2, 9, dtype=torch.float64)
    y = apply_equations(heads, vkq[..., :inner], torch.cat([vkq[..., inner:], rest], -1), ones)
    torch.testing.assert_close(block(x), block.out_proj(y * silu(z)))


def test_query_returns_the_last_value_of_its_key():
    """With a beta of 1 and no decay, a second value replaces the first value of the same key; other keys are unchanged."""
    heads = GatedDeltaNet(2, d_state=2, head_dim=2).double().heads
    with torch.no_grad():
        heads.A_log.fill_(-100.0)
    first, second = torch.eye(2, dtype=torch.float64)
    keys = torch.stack([first, second, first])
    queries = torch.stack([first, first, second])
    values = torch.tensor([[1.0, -1.0], [1.0, 1.0], [-1.0, 1.0]], dtype=torch.float64)
    gates = torch.tensor([0.0, 100.0], dtype=torch.float64).expand(3, 2)
    y, _ = heads.forward_impl(values[None], torch.cat([keys, queries, gates], -1)[None], None, SequenceInfo())
    torch.testing.assert_close(y[0], values[[0, 0, 1]], rtol=1e-4, atol=1e-4)


def test_initial_values_are_as_documented():
    heads = GatedDeltaNet(64 * 200).heads
    assert (heads.heads, heads.head_dim, heads.d_state) == (200, 64, 32)
    rates = heads.A_log.exp()
    assert 1 <= rates.min() < 1.5
    assert 15.5 < rates.max() <= 16
    assert 0.99e-3 < softplus(heads.dt_bias).min() < 2e-3
    assert 0.05 < softplus(heads.dt_bias).max() < 0.1001
    assert torch.equal(heads.norm_weight, torch.ones(64))
    for parameter in (heads.A_log, heads.dt_bias):
        assert not parameter_options(parameter).decay
        assert parameter_options(parameter).keep_float32


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"d_state": 0}, "`d_state` must .*got 0"),
        ({"head_dim": 3}, "`head_dim` must .*got 3"),
        ({"dt_min": 0.5}, "`dt_min` and `dt_max` must be .*, got 0.5 and 0.1"),
        ({"backend": "cpu"}, "`backend` must be 'auto' or 'eager', .*got 'cpu'"),
    ],
)
def test_invalid_setting_raises(options, message):
    with pytest.raises(ValueError, match=message):
        GatedDeltaNet(4, **options)
