import pytest
import torch
from torch.nn.functional import silu

from longscan.blocks import BidirectionalBlock, MambaBlock
from longscan.blocks.reversal import flip_valid, reversed_steps
from longscan.layers.base import Steps
from longscan.layers.state import state_tensors
from longscan.ops import short_conv

VARIANTS = ("shared", "own", "tied")


def block(**options) -> BidirectionalBlock:
    return BidirectionalBlock(6, **{"layer_options": {"d_state": 4}, **options}).double().eval()


def series(length: int = 9) -> torch.Tensor:
    return torch.randn(2, length, 6, dtype=torch.float64)


def by_hand(module: BidirectionalBlock, u: torch.Tensor) -> torch.Tensor:
    """y = W_out (f(x, z) + flip(g(flip x, flip z))), from `flip`, ops and layers alone."""

    def conv(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return short_conv(x, weight, bias, activation="silu")[0]

    x, z = module.in_proj(u).chunk(2, -1)
    turn = (lambda part: part.flip(1)) if module.flip else (lambda part: part)
    forward = conv(x, module.conv_weight, module.conv_bias)
    reverse = module.reverse_layer if module.reverse_layer is not None else module.layer
    if module.variant == "shared":
        backward = turn(forward)
    elif module.variant == "own":
        backward = conv(turn(x), module.reverse_conv_weight, module.reverse_conv_bias)
    else:
        backward = conv(turn(x), module.conv_weight, module.conv_bias)
    return module.out_proj(module.layer(forward) * silu(z) + turn(reverse(backward) * silu(turn(z))))


@pytest.mark.parametrize("flip", [True, False])
@pytest.mark.parametrize("layer", ["s6", "s4d"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_by_hand(variant, layer, flip):
    module, x = block(variant=variant, layer=layer, flip=flip), series()
    torch.testing.assert_close(module(x), by_hand(module, x))


def test_tied_directions_are_equivariant_to_reversal():
    """Bi(flip x) = flip(Bi x); neither other variant is."""
    x = series()
    for variant in VARIANTS:
        module = block(variant=variant)
        assert torch.allclose(module(x.flip(1)), module(x).flip(1)) == (variant == "tied")


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_placebo_differs_in_its_flips_alone(variant):
    """The same parameters by name and shape, drawn alike; causal, and able to stream."""
    torch.manual_seed(0)
    real = block(variant=variant)
    torch.manual_seed(0)
    placebo = block(variant=variant, flip=False)
    shapes = [(name, parameter.shape) for name, parameter in real.named_parameters()]
    assert shapes == [(name, parameter.shape) for name, parameter in placebo.named_parameters()]
    assert all(torch.equal(a, b) for a, b in zip(real.parameters(), placebo.parameters(), strict=True))
    assert placebo.causal
    assert placebo.streaming
    assert not real.causal
    assert not real.streaming
    x = series()
    changed = x.clone()
    changed[:, 5:] += 1
    torch.testing.assert_close(placebo(changed)[:, :5], placebo(x)[:, :5])
    assert (real(changed)[:, :5] - real(x)[:, :5]).abs().amax((0, 2)).min() > 0


def test_without_its_reverse_branch_it_is_the_mamba_block():
    module = block(variant="own")
    mamba = MambaBlock(6, layer_options={"d_state": 4}).double()
    mamba.load_state_dict({name: value for name, value in module.state_dict().items() if not name.startswith("reverse")})
    with torch.no_grad():
        module.reverse_conv_weight.zero_()
        module.reverse_conv_bias.zero_()
    x = series()
    torch.testing.assert_close(module(x), mamba(x))
    assert module.layer.dt_rank == 1  # of the block's width


def test_pieces_read_forward_from_the_state_and_backward_from_their_own_end():
    module, x = block(variant="own"), series(8)
    _, state = module(x[:, :5], return_state=True)
    assert state.backward is None
    piece = module(x[:, 5:], state)
    forward_only = block(variant="own")
    forward_only.load_state_dict(module.state_dict())
    with torch.no_grad():
        forward_only.reverse_conv_weight.zero_()
        forward_only.reverse_conv_bias.zero_()
    reverse_part = module(x[:, 5:]) - forward_only(x[:, 5:])
    torch.testing.assert_close(piece, forward_only(x)[:, 5:] + reverse_part)


def test_flips_turn_the_valid_run_only():
    x = torch.arange(12.0).view(2, 6)
    valid = torch.tensor([[False, True, True, True, False, False], [False] * 6])
    assert flip_valid(x, valid).tolist() == [[0, 3, 2, 1, 4, 5], [6, 7, 8, 9, 10, 11]]
    assert flip_valid(x, None).tolist() == [[5, 4, 3, 2, 1, 0], [11, 10, 9, 8, 7, 6]]
    assert torch.equal(flip_valid(flip_valid(x, valid), valid), x)


def test_times_of_the_reversed_sequence_are_those_to_the_step_after():
    elapsed = torch.tensor([[9.0, 2.0, 3.0, 4.0, 5.0, 6.0]])
    assert reversed_steps(Steps(elapsed)).elapsed.tolist() == [[1, 6, 5, 4, 3, 2]]
    valid = torch.tensor([[False, True, True, True, False, False]])
    got = reversed_steps(Steps(elapsed, valid)).elapsed
    assert got[valid].tolist() == [1, 4, 3]
    packed = reversed_steps(Steps(elapsed, None, torch.tensor([[0, 0, 0, 1, 1, 1]])))
    assert packed.elapsed.tolist() == [[1, 6, 5, 1, 3, 2]]
    assert packed.seq_idx.tolist() == [[1, 1, 1, 0, 0, 0]]


def test_states_of_the_placebo_hold_both_branches():
    module = block(variant="own", flip=False)
    state = module.initial_state(2)
    assert len(state_tensors(state)) == 6
    assert block(variant="shared", flip=False).initial_state(2).backward.conv is None


@pytest.mark.parametrize(
    ("options", "message"),
    [({"variant": "twin"}, "variant: got 'twin'"), ({"dropout": 1.0}, r"dropout: got 1\.0"), ({"expand": 0}, "expand: got 0")],
    ids=str,
)
def test_impossible_settings_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        block(**options)
