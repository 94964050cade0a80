import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import conv1d, gelu, glu, linear, pad, silu, softplus

from longscan.blocks import AUSSMBlock, MambaBlock, Rotary, SimpleBlock
from longscan.blocks.rotary import positions
from longscan.layers import parameter_options
from longscan.layers.base import SequenceInfo


def rotation(rotary: Rotary, position: int) -> Tensor:
    """Return the block-diagonal matrix that rotates the features of a position (RoFormer, equation 34)."""
    matrix = torch.zeros(rotary.width, rotary.width, dtype=torch.float64)
    for i in range(rotary.width // 2):
        angle = position * rotary.base ** (-2 * i / rotary.width) * rotary.scale
        block = torch.tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
        matrix[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = block
    return matrix


def rotate(rotary: Rotary, x: Tensor) -> Tensor:
    return rotary(x, torch.arange(x.shape[1]).expand(x.shape[:2]))


@pytest.mark.parametrize("options", [{}, {"base": 10.0}, {"length": 20}], ids=str)
def test_rotary_equals_rotation_matrices(options):
    """Norms do not change, and inner products depend only on distances."""
    rotary = Rotary(6, **options)
    x = torch.randn(1, 9, 6, dtype=torch.float64)
    expected = torch.stack([rotation(rotary, t) @ x[0, t] for t in range(9)])
    torch.testing.assert_close(rotate(rotary, x)[0], expected)
    torch.testing.assert_close(rotate(rotary, x).norm(dim=-1), x.norm(dim=-1))
    q, k = torch.randn(2, 6, dtype=torch.float64)
    products = [rotation(rotary, m) @ q @ (rotation(rotary, m + 3) @ k) for m in range(5)]
    torch.testing.assert_close(torch.stack(products), products[0].expand(5))


def test_length_rotates_the_fastest_pair_by_half_a_turn():
    """In the fastest pair of features, position L is rotated by pi and the last position by pi (L - 1) / L."""
    rotary = Rotary(6, length=50)
    x = torch.randn(1, 51, 6, dtype=torch.float64)[:, :1].expand(1, 51, 6)
    y = rotate(rotary, x)[0]
    torch.testing.assert_close(y[50, :2], -y[0, :2])
    cosine = (y[49, :2] @ y[0, :2] / y[0, :2].square().sum()).item()
    assert cosine == pytest.approx(math.cos(math.pi * 49 / 50))


def test_repeat_restarts_positions():
    rotary, x = Rotary(4, repeat=8, base=10.0), torch.randn(1, 20, 4)
    plain = Rotary(4, base=10.0)
    expected = torch.cat([rotate(plain, part) for part in x.split([8, 8, 4], 1)], 1)
    torch.testing.assert_close(rotate(rotary, x), expected)


def test_large_positions_are_exact():
    rotary = Rotary(4, base=10.0)
    x = torch.tensor([[[1.0, 0.0, 1.0, 0.0]]])
    position = 10_000_019
    rates = [10.0 ** (-2 * i / 4) for i in range(2)]
    expected = torch.tensor([part for rate in rates for part in (math.cos(position * rate), math.sin(position * rate))])
    torch.testing.assert_close(rotary(x, torch.tensor([[position]]))[0, 0], expected)


def test_learned_frequencies_start_at_the_fixed_ones_with_low_learning_rate():
    learned, fixed = Rotary(6, learned=True, base=10.0), Rotary(6, base=10.0)
    x = torch.randn(1, 9, 6)
    torch.testing.assert_close(rotate(learned, x), rotate(fixed, x))
    rotate(learned, x).sum().backward()
    assert learned.theta.grad.abs().min() > 0
    assert learned.theta.shape == (3,)
    options = parameter_options(learned.theta)
    assert (options.lr_scale, options.decay, options.keep_float32) == (0.1, False, True)
    assert not list(fixed.parameters())


@pytest.mark.parametrize("targets", [["x"], ["B"], ["C"], ["dt"], ["B", "C", "dt"], ["x", "dt"], ["x", "dt", "B", "C"]], ids=str)
def test_targets_choose_the_rotated_inputs_of_the_scan(targets):
    """S6 is computed by a loop with B, C, dt and x from rotated or plain features."""
    block = MambaBlock(6, expand=1, rotary={"targets": targets, "base": 10.0}, layer_options={"d_state": 3}).double()
    layer = block.layer
    u = torch.randn(2, 7, 6, dtype=torch.float64)
    x, z = block.in_proj(u).chunk(2, -1)
    weight = block.conv_weight.unsqueeze(1)
    x = silu(conv1d(pad(x.transpose(1, 2), (3, 0)), weight, block.conv_bias, groups=6).transpose(1, 2))
    rotated = rotate(block.rotary, x)
    q, _, _ = linear(rotated if "dt" in targets else x, layer.x_proj).split([1, 3, 3], -1)
    _, B, _ = linear(rotated if "B" in targets else x, layer.x_proj).split([1, 3, 3], -1)
    _, _, C = linear(rotated if "C" in targets else x, layer.x_proj).split([1, 3, 3], -1)
    dt = softplus(linear(q, layer.dt_proj) + layer.dt_bias)
    scanned = rotated if "x" in targets else x
    h, outputs = torch.zeros(2, 6, 3, dtype=torch.float64), []
    for t in range(7):
        decay = (dt[:, t].unsqueeze(-1) * layer.eigenvalues()).exp()
        h = decay * h + (dt[:, t] * scanned[:, t]).unsqueeze(-1) * B[:, t].unsqueeze(1)
        outputs.append((h * C[:, t].unsqueeze(1)).sum(-1) + layer.D * scanned[:, t])
    expected = block.out_proj(torch.stack(outputs, 1) * silu(z))
    torch.testing.assert_close(block(u), expected)
    plain = MambaBlock(6, expand=1, layer_options={"d_state": 3}).double()
    plain.load_state_dict(block.state_dict())
    assert not torch.allclose(plain(u), expected)


def test_simple_block_rotates_the_input_of_its_layer():
    block = SimpleBlock(6, rotary={"base": 10.0}, layer_options={"d_state": 4}).double()
    u = torch.randn(2, 7, 6, dtype=torch.float64)
    y = block.layer(rotate(block.rotary, u))
    torch.testing.assert_close(block(u), glu(block.out_proj(gelu(y)), -1))
    with pytest.raises(ValueError, match=r"`rotary` must have the targets \('x',\).*, got \('B',\)"):
        SimpleBlock(6, rotary={"targets": ["B"]})


@pytest.mark.parametrize("make_block", [lambda **o: MambaBlock(4, layer="lru", **o), lambda **o: AUSSMBlock(4, **o)])
def test_other_layers_get_rotated_features(make_block):
    block = make_block(rotary={"base": 10.0}).double()
    plain = make_block().double()
    plain.load_state_dict(block.state_dict())
    u = torch.randn(1, 6, 4, dtype=torch.float64)
    torch.testing.assert_close(block(u)[:, :1], plain(u)[:, :1])  # position 0 is not rotated
    assert not torch.allclose(block(u)[:, 1:], plain(u)[:, 1:])


def test_positions_count_valid_steps_of_each_sequence():
    carried = torch.tensor([5, 2])
    valid = torch.tensor([[False, True, True, True], [True, True, False, False]])
    seq_idx = torch.tensor([[7, 7, 8, 8], [1, 1, 1, 1]])
    position, after = positions(carried, None, (2, 4), SequenceInfo(None, valid, seq_idx))
    assert position[valid].tolist() == [5, 0, 1, 2, 3]
    assert after.tolist() == [2, 4]
    position, after = positions(carried, torch.tensor([True, False]), (2, 4), SequenceInfo())
    assert position.tolist() == [[0, 1, 2, 3], [2, 3, 4, 5]]
    assert after.tolist() == [4, 6]
    nothing = SequenceInfo(None, torch.zeros(2, 4, dtype=torch.bool))
    assert positions(carried, None, (2, 4), nothing)[1].tolist() == [5, 2]
    assert positions(carried, None, (2, 0), SequenceInfo())[1].tolist() == [5, 2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rotary": {"base": 0.0}}, "`base` must .*got 0.0"),
        ({"rotary": {"length": 0}}, "`length` must .*got 0"),
        ({"rotary": {"repeat": 0}}, "`repeat` must .*got 0"),
        ({"rotary": {"targets": ["A"]}}, r"`targets\[0\]` must be one of x, dt, B, C, got 'A'"),
        ({"rotary": {"targets": []}}, r"`targets` must be a list of at least one of x, dt, B, C, got \[\]"),
        ({"rotary": {"targets": ["B"]}, "layer": "lru"}, "`rotary` must have the targets .* the layer 'lru' has no others"),
        ({"rotary": {}, "d_model": 3, "expand": 1}, "`width` must .*got 3"),
    ],
    ids=str,
)
def test_invalid_setting_raises(options, message):
    with pytest.raises(ValueError, match=message):
        MambaBlock(**{"d_model": 4, **options})


def test_positions_after_rows_of_few_valid_steps():
    """A call continues at the position after the last valid step; a row without one stays where it was."""
    from longscan.blocks.rotary import positions
    from longscan.layers.base import SequenceInfo

    valid = torch.arange(4) >= torch.tensor([[4], [3], [2], [0]])
    carried = torch.tensor([7, 7, 7, 7])
    position, after = positions(carried, None, (4, 4), SequenceInfo(valid=valid))
    assert after.tolist() == [7, 8, 9, 11]
    assert position[valid].tolist() == [7, 7, 8, 7, 8, 9, 10]
    _, restarted = positions(carried, torch.tensor([True, True, False, False]), (4, 4), SequenceInfo(valid=valid))
    assert restarted.tolist() == [0, 1, 9, 11]
