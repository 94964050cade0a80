import pytest
import torch

from longscan.blocks import BidirectionalBlock, MambaBlock
from longscan.models import (
    LanguageModel,
    SequenceModel,
    freeze,
    make_bidirectional,
    optimizer_groups,
    parameters_by_role,
    with_head,
)
from longscan.training.settings import TrainingSettings
from longscan.training.trainer import build_optimizer


def causal(seed: int = 0, spec: str = "mm", **options) -> SequenceModel:
    torch.manual_seed(seed)
    given = {"d_model": 6, "d_state": 4, "vocab_size": 9, "d_output": 3, "pooling": "none", **options}
    return SequenceModel.from_spec(spec, **given).double()


def count(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def silence_reverse(model: SequenceModel) -> None:
    with torch.no_grad():
        for residual in model.stack:
            if isinstance(residual.block, BidirectionalBlock):
                residual.block.reverse_conv_weight.zero_()
                residual.block.reverse_conv_bias.zero_()


@pytest.mark.parametrize(
    ("spec", "options"),
    [
        ("mm", {}),
        ("m", {"m": {"variant": "aussm"}}),
        ("am", {"m": {"rotary": {"base": 10.0, "targets": ["x", "dt"]}}}),
        ("am", {}),
        ("aa", {"a": {"activation": "silu", "angle_spread": 3.0}}),
        ("mamba s4d feed_forward", {"mamba": {"expand": 1, "d_conv": 2, "dropout": 0.1}}),
    ],
    ids=str,
)
def test_f1_without_its_reverse_branch_is_the_causal_model(spec, options):
    """Both directions hold the pretrained layer; the model grows by a convolution and a layer for each block."""
    old = causal(spec=spec, block_options=options).eval()
    new = make_bidirectional(old, keep_head=True).eval()
    assert not new.causal
    grown = 0
    for before, after in zip(old.stack, new.stack, strict=True):
        if isinstance(after.block, BidirectionalBlock):
            assert all(
                torch.equal(value, after.block.reverse_layer.state_dict()[name])
                for name, value in before.block.layer.state_dict().items()
            )
            assert torch.equal(after.block.reverse_conv_weight, before.block.conv_weight)
            grown += count(before.block.layer) + before.block.conv_weight.numel() + before.block.conv_bias.numel()
    assert count(new) - count(old) == grown > 0
    tokens = torch.randint(0, 9, (2, 7))
    assert not torch.allclose(new(tokens), old(tokens))
    silence_reverse(new)
    torch.testing.assert_close(new(tokens), old(tokens))


def test_a_morphed_block_of_f1_is_equivariant_to_reversal():
    new = make_bidirectional(causal()).eval()
    x = torch.randn(2, 7, 6, dtype=torch.float64)
    block = new.stack[0].block
    torch.testing.assert_close(block(x.flip(1)), block(x).flip(1))


@pytest.mark.parametrize("projections", ["forward", "reverse"])
def test_f1r1_takes_the_projections_of_the_model_it_is_told(projections):
    first, second = causal(0), causal(1)
    new = make_bidirectional(first, second, projections=projections)
    given = first if projections == "forward" else second
    block = new.stack[1].block
    assert isinstance(block, BidirectionalBlock)
    for name in ("in_proj", "out_proj"):
        assert torch.equal(getattr(block, name).weight, getattr(given.stack[1].block, name).weight)
    assert torch.equal(new.encoder.weight, given.encoder.weight)
    assert torch.equal(block.layer.A_log, first.stack[1].block.layer.A_log)
    assert torch.equal(block.layer.dt_bias, first.stack[1].block.layer.dt_bias)
    assert torch.equal(block.reverse_layer.dt_bias, second.stack[1].block.layer.dt_bias)
    assert torch.equal(block.reverse_conv_weight, second.stack[1].block.conv_weight)
    assert torch.equal(new.norm.weight, torch.ones_like(new.norm.weight))


def test_f1r1_takes_the_learned_frequencies_of_each_direction_from_its_model():
    """And the reverse model's block on reversed inputs is the reverse branch: both count in the order that they read in."""
    options = {"m": {"rotary": {"base": 10.0, "learned": True}}}
    first, second = (causal(seed, "m", block_options=options).eval() for seed in (0, 1))
    with torch.no_grad():
        second.stack[0].block.rotary.theta *= 2
    block = make_bidirectional(first, second).stack[0].block.eval()
    ahead, back = first.stack[0].block, second.stack[0].block
    assert torch.equal(block.rotary.theta, ahead.rotary.theta)
    assert torch.equal(block.reverse_rotary.theta, back.rotary.theta)
    back.in_proj, back.out_proj = ahead.in_proj, ahead.out_proj
    x = torch.randn(2, 7, 6, dtype=torch.float64)
    torch.testing.assert_close(block(x), ahead(x) + back(x.flip(1)).flip(1))


def test_f1r1_with_itself_is_f1():
    first = causal()
    one, two = make_bidirectional(first), make_bidirectional(first, first, projections="reverse")
    for name, value in one.state_dict().items():
        if not name.startswith("head"):
            assert torch.equal(value, two.state_dict()[name]), name


def test_a_pretrained_language_model_becomes_a_bidirectional_classifier():
    pretrained = LanguageModel.from_spec("mm", d_model=6, d_state=4, vocab_size=9)
    model = with_head(make_bidirectional(pretrained), 5, head="affine")
    assert model(torch.randint(0, 9, (2, 7))).shape == (2, 5)
    assert torch.equal(model.encoder.weight, pretrained.backbone.encoder.weight)
    same = with_head(pretrained, 6, pooling="none", head="none")
    tokens = torch.randint(0, 9, (2, 7))
    torch.testing.assert_close(same(tokens), pretrained.backbone(tokens))


def test_learned_states_come_along_with_a_new_head():
    old = causal(initial_state="learned")
    with torch.no_grad():
        for start in old.start:
            start.normal_()
    new = with_head(old, 2)
    assert all(torch.equal(a, b) for a, b in zip(old.start, new.start, strict=True))


def test_morphs_that_make_no_sense_are_named():
    with pytest.raises(ValueError, match="`reverse` must have the blocks and the width of the forward model"):
        make_bidirectional(causal(), causal(spec="m"))
    with pytest.raises(ValueError, match="`forward` must have a gated block"):
        make_bidirectional(causal(spec="s4d"))
    with pytest.raises(ValueError, match=r"`projections` must be .*, got 'both'"):
        make_bidirectional(causal(), projections="both")


def test_parameters_have_roles_and_can_be_frozen():
    model = causal()
    groups = parameters_by_role(model)
    assert set(groups) == {"ssm", "selector", "dense", "norm", "embedding"}
    assert {name.rpartition(".")[2] for name in groups["ssm"]} == {"A_log", "D"}
    assert {name.rpartition(".")[2] for name in groups["selector"]} == {"x_proj", "dt_proj", "dt_bias"}
    assert sum(len(members) for members in groups.values()) == len(list(model.parameters()))
    assert freeze(model, "ssm", "embedding") == sum(
        parameter.numel() for role in ("ssm", "embedding") for parameter in groups[role].values()
    )
    trained = [parameter for group in build_optimizer(model, TrainingSettings()).param_groups for parameter in group["params"]]
    assert len(trained) == len(list(model.parameters())) - len(groups["ssm"]) - len(groups["embedding"])
    assert freeze(model, under="blocks.1") == count(model.stack[1])
    with pytest.raises(ValueError, match=r"`roles` must be some of ssm.*, got gate"):
        freeze(model, "gate")
    with pytest.raises(ValueError, match=r"`lr_scale` must be some of ssm.*, got gate"):
        optimizer_groups(model, lr_scale={"gate": 0.1})
    with pytest.raises(ValueError, match="`under` must begin the name of a parameter of roles"):
        freeze(model, "ssm", under="head")
    with pytest.raises(ValueError, match=r"`weight_decay_by_role` must be some of ssm.*, got gate"):
        optimizer_groups(model, weight_decay_by_role={"gate": 0.1})
    assert isinstance(model.stack[0].block, MambaBlock)


def test_weight_decay_by_role():
    """A role that is named decays as given, whatever its parameters declare; the other roles follow the general rule."""
    model = causal()
    groups = optimizer_groups(model, weight_decay=0.1, weight_decay_by_role={"ssm": 0.3, "selector": 0.0})
    decay = {id(parameter): group["weight_decay"] for group in groups for parameter in group["params"]}
    by_role = {
        role: {decay[id(parameter)] for parameter in members.values()} for role, members in parameters_by_role(model).items()
    }
    assert by_role == {"ssm": {0.3}, "selector": {0.0}, "dense": {0.1}, "norm": {0.0}, "embedding": {0.0}}
