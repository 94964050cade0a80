import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import conv1d, gelu, pad, sigmoid, silu

from longscan.blocks import BLOCKS, AUSSMBlock, MambaBlock, Residual, SimpleBlock, mamba
from longscan.blocks.gated import GatedBlock
from longscan.layers import AUSSM, S6, parameter_options


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize(
    ("d", "n", "published"), [(16, 8, 3_360), (64, 32, 150_144), (64, 64, 287_488), (16, 128, 40_320)], ids=str
)
def test_parameters_of_the_aussm_block(d, n, published):
    """The published counts include the block's own norm; the formula is that of the bare block."""
    block, rank = AUSSMBlock(d, layer_options={"d_state": n}), n
    formula = 3 * d * d + 5 * d + d * rank + (rank * d + d) + d + 4 * n + (n * d * d + n * d)
    assert count(block) == formula
    assert count(Residual(block)) == published


@pytest.mark.parametrize(("d", "n", "published"), [(64, 32, 38_848), (16, 8, 2_608), (16, 128, 14_128)], ids=str)
@pytest.mark.parametrize("variant", ["mamba", "aussm"])
def test_parameters_of_the_mamba_block(d, n, published, variant):
    assert count(Residual(MambaBlock(d, variant=variant, layer_options={"d_state": n}))) == published


def gated_by_hand(block: GatedBlock, x: torch.Tensor) -> torch.Tensor:
    """in_proj, causal depthwise convolution, SiLU unless the layer does it, layer, gate, out_proj."""
    inner, z = block.in_proj(x).chunk(2, -1)
    if block.conv_weight is not None:
        left_padded = pad(inner.transpose(1, 2), (block.d_conv - 1, 0))
        inner = conv1d(left_padded, block.conv_weight.unsqueeze(1), block.conv_bias, groups=block.d_inner).transpose(1, 2)
    inner = inner if block.layer.activates_input else silu(inner)
    return block.out_proj(block.layer(inner) * silu(z))


@pytest.mark.parametrize("d_conv", [0, 1, 4])
@pytest.mark.parametrize(
    ("block", "options"),
    [(MambaBlock, {}), (MambaBlock, {"variant": "aussm"}), (MambaBlock, {"layer": "s4d", "expand": 1}), (AUSSMBlock, {})],
    ids=str,
)
def test_gated_blocks_by_hand(block, options, d_conv):
    module = block(6, d_conv=d_conv, layer_options={"d_state": 4}, **options).double()
    x = torch.randn(2, 9, 6, dtype=torch.float64)
    torch.testing.assert_close(module(x), gated_by_hand(module, x))


def test_silu_before_a_layer_that_has_its_own():
    block = AUSSMBlock(6, d_conv=0, activation="silu", layer_options={"d_state": 4}).double()
    x = torch.randn(2, 9, 6, dtype=torch.float64)
    inner, z = block.in_proj(x).chunk(2, -1)
    torch.testing.assert_close(block(x), block.out_proj(block.layer(silu(inner)) * silu(z)))
    with pytest.raises(ValueError, match=r"`activation` must .*got 'gelu'"):
        AUSSMBlock(6, activation="gelu")


def test_the_variant_sets_the_three_options_and_what_is_given_wins():
    variant = MambaBlock(32, variant="aussm", layer_options={"dt_bias_twice": False}).layer
    assert isinstance(variant, S6)
    assert variant.activates_input
    assert not variant.dt_bias_twice
    assert variant.dt_bias.abs().max() <= variant.dt_rank**-0.5
    standard = MambaBlock(32).layer
    assert isinstance(standard, S6)
    assert not standard.activates_input
    assert standard.dt_rank == 2  # of the block's width, not of the inner one
    assert MambaBlock(32, layer_options={"dt_rank": 5}).layer.dt_rank == 5
    assert isinstance(AUSSMBlock(4).layer, AUSSM)


@pytest.mark.parametrize("options", [{}, {"variant": "aussm"}, {"d_conv": 0}, {"layer": "lru"}], ids=str)
def test_recomputing_changes_no_gradient_and_keeps_less(options):
    """The same outputs and gradients to the bit, from a fraction of the memory between forward and backward."""
    plain = MambaBlock(8, layer_options={"d_state": 16}, **options)
    recomputing = copy.deepcopy(plain)
    recomputing.recompute = True
    x = torch.randn(2, 300, 8)
    valid = torch.arange(300).expand(2, 300) < torch.tensor([[300], [250]])
    results, kept = [], []
    for block in (plain, recomputing):
        sizes: dict[int, int] = {}

        def pack(tensor: torch.Tensor, sizes: dict[int, int] = sizes) -> torch.Tensor:
            sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        given = x.clone().requires_grad_()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            y, state = block(given, block.initial_state(2), valid=valid, return_state=True)
        kept.append(sum(sizes.values()))
        (y.square().sum() + state.layer.ssm.square().sum()).backward()
        results.append([y.detach(), given.grad, *(parameter.grad for parameter in block.parameters())])
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))
    assert kept[1] < 0.7 * kept[0]


def test_simple_block_by_hand():
    block = SimpleBlock(6, layer_options={"d_state": 4}).double()
    x = torch.randn(2, 9, 6, dtype=torch.float64)
    first, second = block.out_proj(gelu(block.layer(x))).chunk(2, -1)
    torch.testing.assert_close(block(x), first * sigmoid(second))


def test_dropout_acts_in_training_only():
    block = SimpleBlock(6, dropout=0.5, layer_options={"d_state": 4})
    x = torch.randn(2, 9, 6)
    assert not torch.equal(block(x), block(x))
    block.eval()
    assert torch.equal(block(x), block(x))


def test_residual_normalises_before_and_adds_after():
    residual = Residual(SimpleBlock(4, layer="lru")).double()
    x = 3 * torch.randn(2, 5, 4, dtype=torch.float64)
    normed = x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    torch.testing.assert_close(residual(x), x + residual.block(normed))
    assert parameter_options(residual.norm.weight).role == "norm"
    y, state = residual.step(x[:, 0], residual.initial_state(2), active=torch.tensor([True, False]))
    torch.testing.assert_close(y[0], residual(x)[0, 0])
    torch.testing.assert_close(y[1], x[1, 0])
    assert torch.equal(state.ssm[1], torch.zeros_like(state.ssm[1]))


def test_blocks_are_what_their_layers_are():
    assert not SimpleBlock(4, layer="gru").irregular
    assert MambaBlock(4).irregular
    assert not Residual(MambaBlock(4, layer="lstm")).irregular


@pytest.mark.parametrize(
    ("block", "options", "error", "message"),
    [
        ("mamba", {"expand": 0}, ValueError, "`expand` must .*got 0"),
        ("mamba", {"d_conv": -1}, ValueError, "`d_conv` must .*got -1"),
        ("mamba", {"variant": "official"}, ValueError, "`variant` must .*got 'official'"),
        ("mamba", {"variant": "aussm", "layer": "lru"}, ValueError, "`layer` must be 's6' with variant='aussm', got 'lru'"),
        ("mamba", {"variant": "aussm", "layer": "s7"}, ValueError, "`layer` must be 's6' with variant='aussm', got 's7'"),
        ("mamba", {"layer": "s66"}, KeyError, "no layer is called 's66'"),
        ("mamba", {"layer_options": {"rank": 3}}, TypeError, "rank"),
        ("aussm", {"d_model": 0}, ValueError, "`d_model` must .*got 0"),
        ("simple", {"dropout": 1.0}, ValueError, r"`dropout` must .*got 1\.0"),
    ],
)
def test_invalid_setting_raises(block, options, error, message):
    with pytest.raises(error, match=message):
        BLOCKS[block](**{"d_model": 4, **options})


@pytest.mark.parametrize(
    ("options", "fused"),
    [
        ({}, True),
        ({"variant": "aussm"}, True),
        ({"d_conv": 0}, False),
        ({"layer": "lru"}, False),
        ({"layer_options": {"complex_state": True}}, False),
        ({"backend": "reference"}, False),
    ],
    ids=str,
)
def test_a_step_is_one_kernel_where_it_can_be(options, fused, monkeypatch):
    """Under no_grad: the fused step, with and without the residual branch, and the same numbers as the forward."""
    residual = Residual(MambaBlock(6, **options)).double()
    calls = []
    original = mamba.mamba_step
    monkeypatch.setattr(mamba, "mamba_step", lambda *args, **kwargs: calls.append(1) or original(*args, **kwargs))
    x, elapsed = torch.randn(2, 3, 6, dtype=torch.float64), torch.rand(2, 3, dtype=torch.float64)
    for module in (residual, residual.block):
        calls.clear()
        with torch.no_grad():
            whole, state = module(x, elapsed=elapsed, return_state=True), module.initial_state(2)
            for t in range(3):
                y, state = module.step(x[:, t], state, elapsed=elapsed[:, t])
        torch.testing.assert_close(y, whole[0][:, -1])
        torch.testing.assert_close(state.layer, whole[1].layer)
        assert len(calls) == (3 if fused else 0)
    calls.clear()
    residual.step(x[:, 0], residual.initial_state(2))[0].sum().backward()
    assert not calls


def test_fused_steps_check_what_they_are_given():
    block = MambaBlock(6)
    x, state = torch.randn(2, 6), block.initial_state(2)
    with torch.no_grad():
        with pytest.raises(ValueError, match=r"`elapsed` must be finite times of at least 0 .*, got -"):
            block.step(x, state, elapsed=-torch.ones(2))
        with pytest.raises(ValueError, match=r"`elapsed` must be finite times of at least 0 .*, got nan"):
            block.step(x, state, elapsed=torch.tensor([1.0, float("nan")]))
        with pytest.raises(ValueError, match=r"`x` must have shape .*, got \(2, 1, 5\)"):
            block.step(x[:, 1:], state)
        active = torch.tensor([True, False])
        y, after = block.step(torch.where(active.unsqueeze(1), x, float("nan")), state, active=active)
    assert torch.equal(y[1], torch.zeros(6))
    assert torch.equal(after.conv[1], state.conv[1])
