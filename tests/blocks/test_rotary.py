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
    """The block-diagonal matrix that turns features at a position (RoFormer, equation 34)."""
    matrix = torch.zeros(rotary.width, rotary.width, dtype=torch.float64)
    for i in range(rotary.width // 2):
        angle = position * rotary.base ** (-2 * i / rotary.width) * rotary.scale
        block = torch.tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
        matrix[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = block
    return matrix


def turned(rotary: Rotary, x: Tensor) -> Tensor:
    return rotary(x, torch.arange(x.shape[1]).expand(x.shape[:2]))


@pytest.mark.parametrize("options", [{}, {"base": 10.0}, {"length": 20}], ids=str)
def test_it_is_a_rotation_matrix_at_each_position(options):
    """The element-wise form equals the matrices; norms stay; inner products depend on distances alone."""
    rotary = Rotary(6, **options)
    x = torch.randn(1, 9, 6, dtype=torch.float64)
    wanted = torch.stack([rotation(rotary, t) @ x[0, t] for t in range(9)])
    torch.testing.assert_close(turned(rotary, x)[0], wanted)
    torch.testing.assert_close(turned(rotary, x).norm(dim=-1), x.norm(dim=-1))
    q, k = torch.randn(2, 6, dtype=torch.float64)
    products = [rotation(rotary, m) @ q @ (rotation(rotary, m + 3) @ k) for m in range(5)]
    torch.testing.assert_close(torch.stack(products), products[0].expand(5))


def test_a_length_spreads_half_a_turn_over_it():
    """Positions 0 and L are exactly opposite in the fastest pair; the last of L positions is so but for one step."""
    rotary = Rotary(6, length=50)
    x = torch.randn(1, 51, 6, dtype=torch.float64)[:, :1].expand(1, 51, 6)
    y = turned(rotary, x)[0]
    torch.testing.assert_close(y[50, :2], -y[0, :2])
    cosine = (y[49, :2] @ y[0, :2] / y[0, :2].square().sum()).item()
    assert cosine == pytest.approx(math.cos(math.pi * 49 / 50))


def test_positions_repeat_like_the_rows_of_an_image():
    rotary, x = Rotary(4, repeat=8, base=10.0), torch.randn(1, 20, 4)
    plain = Rotary(4, base=10.0)
    wanted = torch.cat([turned(plain, part) for part in x.split([8, 8, 4], 1)], 1)
    torch.testing.assert_close(turned(rotary, x), wanted)


def test_late_positions_are_as_exact_as_early_ones():
    rotary = Rotary(4, base=10.0)
    x = torch.tensor([[[1.0, 0.0, 1.0, 0.0]]])
    position = 10_000_019
    rates = [10.0 ** (-2 * i / 4) for i in range(2)]
    wanted = torch.tensor([part for rate in rates for part in (math.cos(position * rate), math.sin(position * rate))])
    torch.testing.assert_close(rotary(x, torch.tensor([[position]]))[0, 0], wanted)


def test_learned_frequencies_start_as_the_fixed_ones_and_learn_slowly():
    learned, fixed = Rotary(6, learned=True, base=10.0), Rotary(6, base=10.0)
    x = torch.randn(1, 9, 6)
    torch.testing.assert_close(turned(learned, x), turned(fixed, x))
    turned(learned, x).sum().backward()
    assert learned.theta.grad.abs().min() > 0
    assert learned.theta.shape == (3,)
    mark = parameter_options(learned.theta)
    assert (mark.lr_scale, mark.decay, mark.keep_float32) == (0.1, False, True)
    assert not list(fixed.parameters())


@pytest.mark.parametrize("targets", [["x"], ["B"], ["C"], ["dt"], ["B", "C", "dt"], ["x", "dt"], ["x", "dt", "B", "C"]], ids=str)
def test_each_input_of_the_scan_is_turned_where_it_is_asked_for(targets):
    """S6 with B, C, dt and what is scanned from the turned features or from the plain ones, by the loop."""
    block = MambaBlock(6, expand=1, rotary={"targets": targets, "base": 10.0}, layer_options={"d_state": 3}).double()
    layer = block.layer
    u = torch.randn(2, 7, 6, dtype=torch.float64)
    x, z = block.in_proj(u).chunk(2, -1)
    weight = block.conv_weight.unsqueeze(1)
    x = silu(conv1d(pad(x.transpose(1, 2), (3, 0)), weight, block.conv_bias, groups=6).transpose(1, 2))
    spun = turned(block.rotary, x)
    q, _, _ = linear(spun if "dt" in targets else x, layer.x_proj).split([1, 3, 3], -1)
    _, B, _ = linear(spun if "B" in targets else x, layer.x_proj).split([1, 3, 3], -1)
    _, _, C = linear(spun if "C" in targets else x, layer.x_proj).split([1, 3, 3], -1)
    dt = softplus(linear(q, layer.dt_proj) + layer.dt_bias)
    scanned = spun if "x" in targets else x
    h, outputs = torch.zeros(2, 6, 3, dtype=torch.float64), []
    for t in range(7):
        decay = (dt[:, t].unsqueeze(-1) * layer.eigenvalues()).exp()
        h = decay * h + (dt[:, t] * scanned[:, t]).unsqueeze(-1) * B[:, t].unsqueeze(1)
        outputs.append((h * C[:, t].unsqueeze(1)).sum(-1) + layer.D * scanned[:, t])
    wanted = block.out_proj(torch.stack(outputs, 1) * silu(z))
    torch.testing.assert_close(block(u), wanted)
    plain = MambaBlock(6, expand=1, layer_options={"d_state": 3}).double()
    plain.load_state_dict(block.state_dict())
    assert not torch.allclose(plain(u), wanted)


def test_the_simple_block_turns_what_its_layer_reads():
    block = SimpleBlock(6, rotary={"base": 10.0}, layer_options={"d_state": 4}).double()
    u = torch.randn(2, 7, 6, dtype=torch.float64)
    y = block.layer(turned(block.rotary, u))
    torch.testing.assert_close(block(u), glu(block.out_proj(gelu(y)), -1))
    with pytest.raises(ValueError, match=r"`rotary` must have the targets \('x',\).*, got \('B',\)"):
        SimpleBlock(6, rotary={"targets": ["B"]})


@pytest.mark.parametrize("make", [lambda **o: MambaBlock(4, layer="lru", **o), lambda **o: AUSSMBlock(4, **o)])
def test_other_layers_read_turned_features(make):
    block = make(rotary={"base": 10.0}).double()
    plain = make().double()
    plain.load_state_dict(block.state_dict())
    u = torch.randn(1, 6, 4, dtype=torch.float64)
    torch.testing.assert_close(block(u)[:, :1], plain(u)[:, :1])  # position 0 turns nothing
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
        ({"rotary": {"targets": ["B"]}, "layer": "lru"}, "`rotary` must have the targets .* 'lru' selects nothing"),
        ({"rotary": {}, "d_model": 3, "expand": 1}, "`width` must .*got 3"),
    ],
    ids=str,
)
def test_invalid_setting_raises(options, message):
    with pytest.raises(ValueError, match=message):
        MambaBlock(**{"d_model": 4, **options})
