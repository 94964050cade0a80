import pytest
import torch
from torch import nn
from torch.nn.functional import conv1d, pad, silu

from longscan import SequenceModel
from longscan.blocks import BLOCKS, Mamba2Block, Mamba3Block
from longscan.layers.base import SequenceInfo
from parameter_counts import count_parameters


def compute_expected(block, x):
    """Apply in_proj, the convolution, the heads, the gate, the norm of each group and out_proj."""
    heads, inner = block.heads, block.d_inner
    z, convolved, rest = block.in_proj(x).split([inner, inner + heads.convolved, heads.selected - heads.convolved], -1)
    if block.conv_weight is not None:
        left_padded = pad(convolved.transpose(1, 2), (block.d_conv - 1, 0))
        weight = block.conv_weight.unsqueeze(1)
        convolved = silu(conv1d(left_padded, weight, block.conv_bias, groups=len(weight)).transpose(1, 2))
    y, _ = heads.forward_impl(convolved[..., :inner], torch.cat([convolved[..., inner:], rest], -1), None, SequenceInfo())
    y = y * silu(z)
    if block.norm_weight is not None:
        groups = y.chunk(heads.groups, -1)
        y = torch.cat([group / (group.square().mean(-1, keepdim=True) + 1e-5).sqrt() for group in groups], -1) * block.norm_weight
    return block.out_proj(y)


@pytest.mark.parametrize(
    "options",
    [
        {"layer_options": {"d_state": 3}},
        {"d_conv": 2, "expand": 1, "layer_options": {"d_state": 3, "head_dim": 2, "groups": 3}},
        {"d_conv": 0, "norm": False, "layer_options": {"d_state": 3}},
    ],
    ids=str,
)
def test_mamba2_equals_its_formula(options):
    block = Mamba2Block(6, **options).double()
    for parameter in block.parameters():
        nn.init.normal_(parameter)
    x = torch.randn(2, 9, 6, dtype=torch.float64)
    torch.testing.assert_close(block(x), compute_expected(block, x))


def test_mamba2_has_the_published_parameter_count():
    """The sizes of the published 130M model: width 768, expand 2, 24 heads of 64, 128 states, one group."""
    inner, states, heads = 1536, 128, 24
    projections = 768 * (2 * inner + 2 * states + heads) + inner * 768
    assert count_parameters(Mamba2Block(768)) == projections + (inner + 2 * states) * (4 + 1) + 3 * heads + inner


def test_mamba3_equals_its_formula_and_has_the_published_parameter_count():
    block = Mamba3Block(6, layer_options={"d_state": 4, "head_dim": 2}).double()
    x = torch.randn(2, 9, 6, dtype=torch.float64)
    torch.testing.assert_close(block(x), compute_expected(block, x))
    d, inner, states, heads, angles = 768, 1536, 128, 24, 32
    expected = d * (2 * inner + 2 * states + 3 * heads + angles) + 2 * heads * states + 2 * states + 2 * heads + inner * d
    assert count_parameters(Mamba3Block(d)) == expected


@pytest.mark.parametrize("name", ["mamba2", "mamba3"])
def test_spec_names_build_models(name):
    model = SequenceModel.from_spec(name, d_model=8, d_output=2, d_input=1, d_state=4)
    assert model(torch.randn(2, 5, 1)).shape == (2, 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layer": "s6"}, "`layer` must .*got 's6'"),
        ({"expand": 0}, "`expand` must .*got 0"),
        ({"layer_options": {"head_dim": 3}}, "`head_dim` must .*got 3"),
    ],
)
@pytest.mark.parametrize("block", ["mamba2", "mamba3"])
def test_invalid_setting_raises(block, options, message):
    with pytest.raises(ValueError, match=message):
        BLOCKS[block](4, **options)


def test_negative_d_conv_raises():
    with pytest.raises(ValueError, match=r"`d_conv` must .*got -1"):
        Mamba2Block(4, d_conv=-1)
