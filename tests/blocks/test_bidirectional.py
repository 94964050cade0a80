import pytest
import torch
from torch.nn.functional import silu

from longscan.blocks import BidirectionalBlock, MambaBlock, Rotary
from longscan.blocks.reversal import flip_valid, reversed_steps
from longscan.layers import S6, SequenceLayer
from longscan.layers.base import SequenceInfo
from longscan.layers.state import state_tensors
from longscan.ops import short_conv

VARIANTS = ("shared", "own", "tied")


def make_block(**options) -> BidirectionalBlock:
    return BidirectionalBlock(6, **{"layer_options": {"d_state": 4}, **options}).double().eval()


def randn_series(length: int = 9) -> torch.Tensor:
    return torch.randn(2, length, 6, dtype=torch.float64)


def compute_expected(module: BidirectionalBlock, u: torch.Tensor) -> torch.Tensor:
    """Return y = W_out (f(x, z) + flip(g(flip x, flip z))), computed with `flip`, ops and layers."""

    def apply_layer(layer: SequenceLayer, rotary: Rotary | None, x: torch.Tensor) -> torch.Tensor:
        """Return the layer's output for inputs rotated by their positions in the order of this direction."""
        if rotary is None:
            return layer(x)
        rotated = rotary(x, torch.arange(x.shape[1]).expand(x.shape[:2]))
        if not isinstance(layer, S6):
            return layer(rotated)
        choices = zip(("dt", "B", "C"), layer.select(x), layer.select(rotated), strict=True)
        selected = tuple(with_rotary if name in rotary.targets else without for name, without, with_rotary in choices)
        return layer.scan(rotated if "x" in rotary.targets else x, selected, None, SequenceInfo())[0]

    def conv(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return short_conv(x, weight, bias, activation="silu")[0]

    x, z = module.in_proj(u).chunk(2, -1)
    flip = (lambda part: part.flip(1)) if module.flip else (lambda part: part)
    forward = conv(x, module.conv_weight, module.conv_bias)
    reverse = module.reverse_layer if module.reverse_layer is not None else module.layer
    if module.variant == "shared":
        backward = flip(forward)
    elif module.variant == "own":
        backward = conv(flip(x), module.reverse_conv_weight, module.reverse_conv_bias)
    else:
        backward = conv(flip(x), module.conv_weight, module.conv_bias)
    reverse_rotary = module.reverse_rotary if module.reverse_layer is not None else module.rotary
    forward_y, backward_y = apply_layer(module.layer, module.rotary, forward), apply_layer(reverse, reverse_rotary, backward)
    return module.out_proj(forward_y * silu(z) + flip(backward_y * silu(flip(z))))


ROTARY = {"base": 10.0, "learned": True}


@pytest.mark.parametrize("placebo", ["", " placebo"])
@pytest.mark.parametrize(
    ("layer", "rotary"),
    [
        ("s6", None),
        ("s4d", None),
        ("s4d", ROTARY),
        ("s6", {**ROTARY, "targets": ["x"]}),
        ("s6", {**ROTARY, "targets": ["B", "dt"]}),
    ],
    ids=str,
)
@pytest.mark.parametrize("variant", VARIANTS)
def test_output_equals_flips_ops_and_layers(variant, layer, rotary, placebo):
    module, x = make_block(variant=variant + placebo, layer=layer, rotary=rotary), randn_series()
    assert module.flip == (not placebo)
    if variant != "tied" and rotary is not None:
        with torch.no_grad():
            module.reverse_rotary.theta *= 1.5  # each direction has its own frequencies
    torch.testing.assert_close(module(x), compute_expected(module, x))


@pytest.mark.parametrize("rotary", [None, {"base": 10.0}], ids=str)
def test_tied_directions_are_equivariant_to_reversal(rotary):
    """Bi(flip x) = flip(Bi x) only for the tied variant, also with rotary positions, which each direction counts in its order."""
    x = randn_series()
    for variant in VARIANTS:
        module = make_block(variant=variant, rotary=rotary)
        assert torch.allclose(module(x.flip(1)), module(x).flip(1)) == (variant == "tied")


@pytest.mark.parametrize("variant", VARIANTS)
def test_placebo_has_equal_parameters_and_is_causal(variant):
    """Names, shapes and initial values of the parameters are equal; the placebo streams."""
    torch.manual_seed(0)
    real = make_block(variant=variant)
    torch.manual_seed(0)
    placebo = make_block(variant=f"{variant} placebo")
    shapes = [(name, parameter.shape) for name, parameter in real.named_parameters()]
    assert shapes == [(name, parameter.shape) for name, parameter in placebo.named_parameters()]
    assert all(torch.equal(a, b) for a, b in zip(real.parameters(), placebo.parameters(), strict=True))
    assert placebo.causal
    assert placebo.streaming
    assert not real.causal
    assert not real.streaming
    x = randn_series()
    changed = x.clone()
    changed[:, 5:] += 1
    torch.testing.assert_close(placebo(changed)[:, :5], placebo(x)[:, :5])
    assert (real(changed)[:, :5] - real(x)[:, :5]).abs().amax((0, 2)).min() > 0


def test_block_with_zero_reverse_branch_equals_mamba_block():
    module = make_block(variant="own")
    mamba = MambaBlock(6, layer_options={"d_state": 4}).double()
    mamba.load_state_dict({name: value for name, value in module.state_dict().items() if not name.startswith("reverse")})
    with torch.no_grad():
        module.reverse_conv_weight.zero_()
        module.reverse_conv_bias.zero_()
    x = randn_series()
    torch.testing.assert_close(module(x), mamba(x))
    assert module.layer.dt_rank == 1  # computed from the block's width


def test_state_is_carried_by_the_forward_direction_only():
    module, x = make_block(variant="own"), randn_series(8)
    _, state = module(x[:, :5], return_state=True)
    assert state.backward is None
    piece = module(x[:, 5:], state)
    forward_only = make_block(variant="own")
    forward_only.load_state_dict(module.state_dict())
    with torch.no_grad():
        forward_only.reverse_conv_weight.zero_()
        forward_only.reverse_conv_bias.zero_()
    reverse_part = module(x[:, 5:]) - forward_only(x[:, 5:])
    torch.testing.assert_close(piece, forward_only(x)[:, 5:] + reverse_part)


@pytest.mark.parametrize("variant", VARIANTS)
def test_rotary_positions_count_valid_steps_in_each_direction(variant):
    """Padding on either side, full of NaN, and other sequences of a packed row do not change the outputs."""
    module = make_block(variant=variant, rotary={"base": 10.0, "targets": ["x", "dt", "B", "C"]})
    first, second = randn_series(7)[:1], randn_series(4)[:1]
    padding = torch.full((1, 5, 6), torch.nan, dtype=torch.float64)
    rows = torch.cat([torch.cat([first, padding[:, :1]], 1), torch.cat([padding[:, :3], second, padding[:, :1]], 1)])
    valid = ~rows.isnan().any(-1)
    y = module(rows, valid=valid)
    torch.testing.assert_close(y[:1, :7], module(first))
    torch.testing.assert_close(y[1:, 3:7], module(second))
    assert not y[~valid].any()
    packed = module(torch.cat([first, second], 1), seq_idx=torch.tensor([[3] * 7 + [4] * 4]))
    torch.testing.assert_close(packed, torch.cat([module(first), module(second)], 1))


def test_rotary_positions_of_the_forward_direction_continue_from_the_state():
    module, x = make_block(variant="own", rotary={"base": 10.0}), randn_series(8)
    _, state = module(x[:, :5], return_state=True)
    assert state.forward.position.tolist() == [5, 5]
    with torch.no_grad():
        module.reverse_conv_weight.zero_()
        module.reverse_conv_bias.zero_()
    torch.testing.assert_close(module(x[:, 5:], state), module(x)[:, 5:])


def test_flip_valid_reverses_only_valid_steps():
    x = torch.arange(12.0).view(2, 6)
    valid = torch.tensor([[False, True, True, True, False, False], [False] * 6])
    assert flip_valid(x, valid).tolist() == [[0, 3, 2, 1, 4, 5], [6, 7, 8, 9, 10, 11]]
    assert flip_valid(x, None).tolist() == [[5, 4, 3, 2, 1, 0], [11, 10, 9, 8, 7, 6]]
    assert torch.equal(flip_valid(flip_valid(x, valid), valid), x)


def test_reversed_elapsed_times_are_those_to_the_next_step():
    elapsed = torch.tensor([[9.0, 2.0, 3.0, 4.0, 5.0, 6.0]])
    assert reversed_steps(SequenceInfo(elapsed)).elapsed.tolist() == [[1, 6, 5, 4, 3, 2]]
    valid = torch.tensor([[False, True, True, True, False, False]])
    reversed_elapsed = reversed_steps(SequenceInfo(elapsed, valid)).elapsed
    assert reversed_elapsed[valid].tolist() == [1, 4, 3]
    packed = reversed_steps(SequenceInfo(elapsed, None, torch.tensor([[0, 0, 0, 1, 1, 1]])))
    assert packed.elapsed.tolist() == [[1, 6, 5, 1, 3, 2]]
    assert packed.seq_idx.tolist() == [[1, 1, 1, 0, 0, 0]]


def test_placebo_state_has_both_branches():
    module = make_block(variant="own placebo")
    state = module.initial_state(2)
    assert len(state_tensors(state)) == 6
    assert len(state_tensors(make_block(variant="own placebo", rotary={}).initial_state(2))) == 8
    assert make_block(variant="shared placebo").initial_state(2).backward.conv is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"variant": "twin"}, "`variant` must be one of shared, own, tied, shared placebo, .*, got 'twin'"),
        ({"variant": "own "}, "`variant` must be one of shared, .*, got 'own '"),
        ({"dropout": 1.0}, r"`dropout` must .*got 1\.0"),
        ({"expand": 0}, "`expand` must .*got 0"),
        ({"rotary": {"base": 0.0}}, "`base` must .*got 0.0"),
        ({"rotary": {"targets": ["B"]}, "layer": "s4d"}, "`rotary` must have the targets .* the layer 's4d' has no others"),
    ],
    ids=str,
)
def test_invalid_setting_raises(options, message):
    with pytest.raises(ValueError, match=message):
        make_block(**options)
