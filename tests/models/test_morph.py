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
from parameter_counts import count_parameters


def make_causal_model(seed: int = 0, spec: str = "mm", **options) -> SequenceModel:
    torch.manual_seed(seed)
    settings = {"d_model": 6, "d_state": 4, "vocab_size": 9, "d_output": 3, "pooling": "none", **options}
    return SequenceModel.from_spec(spec, **settings).double()


def zero_reverse_convolutions(model: SequenceModel) -> None:
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
    """Both directions have the pretrained layer, and each block has an additional convolution and layer."""
    old = make_causal_model(spec=spec, block_options=options).eval()
    new = make_bidirectional(old, keep_head=True).eval()
    assert not new.causal
    n_added = 0
    for before, after in zip(old.stack, new.stack, strict=True):
        if isinstance(after.block, BidirectionalBlock):
            assert all(
                torch.equal(value, after.block.reverse_layer.state_dict()[name])
                for name, value in before.block.layer.state_dict().items()
            )
            assert torch.equal(after.block.reverse_conv_weight, before.block.conv_weight)
            n_added += count_parameters(before.block.layer) + before.block.conv_weight.numel() + before.block.conv_bias.numel()
    assert count_parameters(new) - count_parameters(old) == n_added > 0
    tokens = torch.randint(0, 9, (2, 7))
    assert not torch.allclose(new(tokens), old(tokens))
    zero_reverse_convolutions(new)
    torch.testing.assert_close(new(tokens), old(tokens))


def test_block_of_f1_is_equivariant_to_reversal():
    new = make_bidirectional(make_causal_model()).eval()
    x = torch.randn(2, 7, 6, dtype=torch.float64)
    block = new.stack[0].block
    torch.testing.assert_close(block(x.flip(1)), block(x).flip(1))


@pytest.mark.parametrize("projections", ["forward", "reverse"])
def test_f1r1_has_the_projections_of_the_chosen_model(projections):
    first, second = make_causal_model(0), make_causal_model(1)
    new = make_bidirectional(first, second, projections=projections)
    source = first if projections == "forward" else second
    block = new.stack[1].block
    assert isinstance(block, BidirectionalBlock)
    for name in ("in_proj", "out_proj"):
        assert torch.equal(getattr(block, name).weight, getattr(source.stack[1].block, name).weight)
    assert torch.equal(new.encoder.weight, source.encoder.weight)
    assert torch.equal(block.layer.A_log, first.stack[1].block.layer.A_log)
    assert torch.equal(block.layer.dt_bias, first.stack[1].block.layer.dt_bias)
    assert torch.equal(block.reverse_layer.dt_bias, second.stack[1].block.layer.dt_bias)
    assert torch.equal(block.reverse_conv_weight, second.stack[1].block.conv_weight)
    assert torch.equal(new.norm.weight, torch.ones_like(new.norm.weight))


def test_f1r1_has_the_learned_frequencies_of_both_models():
    """The reverse branch equals the block of the reverse model on reversed inputs, with positions in the order of reading."""
    options = {"m": {"rotary": {"base": 10.0, "learned": True}}}
    first, second = (make_causal_model(seed, "m", block_options=options).eval() for seed in (0, 1))
    with torch.no_grad():
        second.stack[0].block.rotary.theta *= 2
    block = make_bidirectional(first, second).stack[0].block.eval()
    forward, reverse = first.stack[0].block, second.stack[0].block
    assert torch.equal(block.rotary.theta, forward.rotary.theta)
    assert torch.equal(block.reverse_rotary.theta, reverse.rotary.theta)
    reverse.in_proj, reverse.out_proj = forward.in_proj, forward.out_proj
    x = torch.randn(2, 7, 6, dtype=torch.float64)
    torch.testing.assert_close(block(x), forward(x) + reverse(x.flip(1)).flip(1))


@pytest.mark.parametrize("kind", ["learned", "blocks", "tied"])
def test_learned_positions_are_copied(kind):
    first, second = (make_causal_model(seed, positions=kind, max_length=7).eval() for seed in (0, 1))
    tokens = torch.randint(0, 9, (2, 7))
    copied = with_head(first, 3, pooling="none").eval()
    copied.head.load_state_dict(first.head.state_dict())
    torch.testing.assert_close(copied(tokens), first(tokens))
    f1 = make_bidirectional(first, keep_head=True).eval()
    zero_reverse_convolutions(f1)
    torch.testing.assert_close(f1(tokens), first(tokens))
    f1r1 = make_bidirectional(first, second, projections="reverse")
    assert torch.equal(f1r1.positions.table, second.positions.table)


@pytest.mark.parametrize(
    ("options", "named"),
    [({"vocab_size": 10}, "vocab_size=9 .* got 10"), ({"positions": "tied", "max_length": 7}, "positions='none' .* got 'tied'")],
)
def test_reverse_model_whose_encoder_does_not_fit_raises(options, named):
    first, second = make_causal_model(), make_causal_model(**options)
    with pytest.raises(ValueError, match=f"`reverse` must have {named}"):
        make_bidirectional(first, second, projections="reverse")
    assert torch.equal(make_bidirectional(first, second).encoder.weight, first.encoder.weight)


def test_f1r1_of_a_model_with_itself_equals_f1():
    first = make_causal_model()
    f1, f1r1 = make_bidirectional(first), make_bidirectional(first, first, projections="reverse")
    for name, value in f1.state_dict().items():
        if not name.startswith("head"):
            assert torch.equal(value, f1r1.state_dict()[name]), name


def test_pretrained_language_model_can_become_a_bidirectional_classifier():
    pretrained = LanguageModel.from_spec("mm", d_model=6, d_state=4, vocab_size=9)
    model = with_head(make_bidirectional(pretrained), 5, head="affine")
    assert model(torch.randint(0, 9, (2, 7))).shape == (2, 5)
    assert torch.equal(model.encoder.weight, pretrained.backbone.encoder.weight)
    features = with_head(pretrained, 6, pooling="none", head="none")
    tokens = torch.randint(0, 9, (2, 7))
    torch.testing.assert_close(features(tokens), pretrained.backbone(tokens))


def test_model_with_a_new_head_keeps_learned_states():
    old = make_causal_model(initial_state="learned")
    with torch.no_grad():
        for start in old.start:
            start.normal_()
    new = with_head(old, 2)
    assert all(torch.equal(a, b) for a, b in zip(old.start, new.start, strict=True))


def test_invalid_conversion_raises():
    with pytest.raises(ValueError, match="`reverse` must have the blocks and the width of the forward model"):
        make_bidirectional(make_causal_model(), make_causal_model(spec="m"))
    with pytest.raises(ValueError, match="`forward` must have a gated block"):
        make_bidirectional(make_causal_model(spec="s4d"))
    with pytest.raises(ValueError, match=r"`projections` must be .*, got 'both'"):
        make_bidirectional(make_causal_model(), projections="both")


def test_parameters_have_roles_and_can_be_frozen():
    model = make_causal_model()
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
    assert freeze(model, prefix="blocks.1") == count_parameters(model.stack[1])
    with pytest.raises(ValueError, match=r"`roles` must be some of ssm.*, got gate"):
        freeze(model, "gate")
    with pytest.raises(ValueError, match=r"`lr_scale` must be some of ssm.*, got gate"):
        optimizer_groups(model, lr_scale={"gate": 0.1})
    with pytest.raises(ValueError, match=r"`by_name\['A_log'\]` must have the options lr_scale and decay, got lr$"):
        optimizer_groups(model, by_name={"A_log": {"lr": 0.1}})
    with pytest.raises(ValueError, match=r"`prefix` must be that of a parameter of roles .*, got 'head'"):
        freeze(model, "ssm", prefix="head")
    with pytest.raises(ValueError, match=r"`weight_decay_by_role` must be some of ssm.*, got gate"):
        optimizer_groups(model, weight_decay_by_role={"gate": 0.1})
    assert isinstance(model.stack[0].block, MambaBlock)


def test_weight_decay_by_role_replaces_that_of_the_parameters():
    """The weight decay of a role applies to all its parameters; other roles have the general weight decay."""
    model = make_causal_model()
    groups = optimizer_groups(model, weight_decay=0.1, weight_decay_by_role={"ssm": 0.3, "selector": 0.0})
    decay = {id(parameter): group["weight_decay"] for group in groups for parameter in group["params"]}
    by_role = {
        role: {decay[id(parameter)] for parameter in members.values()} for role, members in parameters_by_role(model).items()
    }
    assert by_role == {"ssm": {0.3}, "selector": {0.0}, "dense": {0.1}, "norm": {0.0}, "embedding": {0.0}}
