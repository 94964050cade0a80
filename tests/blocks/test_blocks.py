import copy

import pytest
import torch
from torch.nn.functional import conv1d, gelu, pad, sigmoid, silu

from longscan.blocks import BLOCKS, AUSSMBlock, BidirectionalBlock, MambaBlock, Residual, S5Block, SimpleBlock, mamba
from longscan.blocks.gated import GatedBlock
from longscan.layers import AUSSM, S6, parameter_options
from longscan.layers.base import SequenceModule
from parameter_counts import count_parameters


@pytest.mark.parametrize(
    ("d", "n", "published"), [(16, 8, 3_360), (64, 32, 150_144), (64, 64, 287_488), (16, 128, 40_320)], ids=str
)
def test_aussm_block_has_the_published_parameter_count(d, n, published):
    """The published counts include the norm; the formula is that of the block without it."""
    block, rank = AUSSMBlock(d, layer_options={"d_state": n}), n
    formula = 3 * d * d + 5 * d + d * rank + (rank * d + d) + d + 4 * n + (n * d * d + n * d)
    assert count_parameters(block) == formula
    assert count_parameters(Residual(block)) == published


@pytest.mark.parametrize(("d", "n", "published"), [(64, 32, 38_848), (16, 8, 2_608), (16, 128, 14_128)], ids=str)
@pytest.mark.parametrize("variant", ["mamba", "aussm"])
def test_mamba_block_has_the_published_parameter_count(d, n, published, variant):
    assert count_parameters(Residual(MambaBlock(d, variant=variant, layer_options={"d_state": n}))) == published


def compute_gated_block(block: GatedBlock, x: torch.Tensor) -> torch.Tensor:
    """Apply in_proj, a causal depthwise convolution, SiLU unless the layer applies it, the layer, the gate and out_proj."""
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
def test_gated_blocks_equal_their_formula(block, options, d_conv):
    module = block(6, d_conv=d_conv, layer_options={"d_state": 4}, **options).double()
    x = torch.randn(2, 9, 6, dtype=torch.float64)
    torch.testing.assert_close(module(x), compute_gated_block(module, x))


def test_silu_is_applied_before_aussm_layer():
    block = AUSSMBlock(6, d_conv=0, activation="silu", layer_options={"d_state": 4}).double()
    x = torch.randn(2, 9, 6, dtype=torch.float64)
    inner, z = block.in_proj(x).chunk(2, -1)
    torch.testing.assert_close(block(x), block.out_proj(block.layer(silu(inner)) * silu(z)))
    with pytest.raises(ValueError, match=r"`activation` must .*got 'gelu'"):
        AUSSMBlock(6, activation="gelu")


def test_aussm_variant_sets_options_of_s6_that_can_be_overridden():
    variant = MambaBlock(32, variant="aussm", layer_options={"dt_bias_twice": False}).layer
    assert isinstance(variant, S6)
    assert variant.activates_input
    assert not variant.dt_bias_twice
    assert variant.dt_bias.abs().max() <= variant.dt_rank**-0.5
    standard = MambaBlock(32).layer
    assert isinstance(standard, S6)
    assert not standard.activates_input
    assert standard.dt_rank == 2  # computed from the block's width, not from the inner one
    assert MambaBlock(32, layer_options={"dt_rank": 5}).layer.dt_rank == 5
    assert isinstance(AUSSMBlock(4).layer, AUSSM)


@pytest.mark.parametrize("options", [{}, {"variant": "aussm"}, {"d_conv": 0}, {"layer": "lru"}], ids=str)
def test_recompute_gives_same_bits_and_saves_less_memory(options):
    """Outputs and gradients have the same bits; the tensors saved for the backward pass take at most 0.7 of the memory."""
    plain = MambaBlock(8, layer_options={"d_state": 16}, **options)
    recomputing = copy.deepcopy(plain)
    recomputing.recompute = True
    x = torch.randn(2, 300, 8)
    valid = torch.arange(300).expand(2, 300) < torch.tensor([[300], [250]])
    results, saved_bytes = [], []
    for block in (plain, recomputing):
        sizes: dict[int, int] = {}

        def pack(tensor: torch.Tensor, sizes: dict[int, int] = sizes) -> torch.Tensor:
            sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        x_leaf = x.clone().requires_grad_()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            y, state = block(x_leaf, block.initial_state(2), valid=valid, return_state=True)
        saved_bytes.append(sum(sizes.values()))
        (y.square().sum() + state.layer.ssm.square().sum()).backward()
        results.append([y.detach(), x_leaf.grad, *(parameter.grad for parameter in block.parameters())])
    assert all(torch.equal(first, second) for first, second in zip(*results, strict=True))
    assert saved_bytes[1] < 0.7 * saved_bytes[0]


def test_simple_block_equals_its_formula():
    block = SimpleBlock(6, layer_options={"d_state": 4}).double()
    x = torch.randn(2, 9, 6, dtype=torch.float64)
    first, second = block.out_proj(gelu(block.layer(x))).chunk(2, -1)
    torch.testing.assert_close(block(x), first * sigmoid(second))


def test_dropout_is_applied_only_in_training():
    block = SimpleBlock(6, dropout=0.5, layer_options={"d_state": 4})
    x = torch.randn(2, 9, 6)
    assert not torch.equal(block(x), block(x))
    block.eval()
    assert torch.equal(block(x), block(x))


def test_residual_normalises_input_and_adds_it_to_output():
    residual = Residual(SimpleBlock(4, layer="lru")).double()
    x = 3 * torch.randn(2, 5, 4, dtype=torch.float64)
    normed = x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    torch.testing.assert_close(residual(x), x + residual.block(normed))
    assert parameter_options(residual.norm.weight).role == "norm"
    y, state = residual.step(x[:, 0], residual.initial_state(2), active=torch.tensor([True, False]))
    torch.testing.assert_close(y[0], residual(x)[0, 0])
    torch.testing.assert_close(y[1], torch.zeros(4, dtype=torch.float64))
    residual.checks_inputs = False  # as inside a model
    y, _ = residual.step(x[:, 0], residual.initial_state(2), active=torch.tensor([True, False]))
    torch.testing.assert_close(y[1], x[1, 0])
    assert torch.equal(state.ssm[1], torch.zeros_like(state.ssm[1]))


def test_block_is_irregular_if_its_layer_is():
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
        ("mamba", {"layer": "s66"}, ValueError, "`layer` must be one of attention, .*, got 's66'; did you mean s6"),
        ("mamba", {"layer": "mamba"}, ValueError, r"`layer` must be one of attention, .*, got 'mamba'; did you mean s6\?$"),
        ("bidirectional", {"layer": "zzz"}, ValueError, "`layer` must be one of attention, .*, got 'zzz'$"),
        ("mamba2", {"layer": "s4d"}, ValueError, "`layer` must be a layer with heads, one of gated_deltanet, .*, got 's4d'"),
        ("simple", {"layer": "S4D"}, ValueError, "`layer` must be one of attention, .*, got 'S4D'; did you mean s4d"),
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
def test_step_is_fused_if_block_supports_it(options, fused, monkeypatch):
    """Steps under no_grad equal the forward pass, with and without the residual branch; a step with gradients is not fused."""
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


def test_fused_step_checks_its_arguments():
    block = MambaBlock(6)
    x, state = torch.randn(2, 6), block.initial_state(2)
    with torch.no_grad():
        with pytest.raises(ValueError, match=r"`elapsed` must be finite times of at least 0 .*, got -"):
            block.step(x, state, elapsed=-torch.ones(2))
        with pytest.raises(ValueError, match=r"`elapsed` must be finite times of at least 0 .*, got nan"):
            block.step(x, state, elapsed=torch.tensor([1.0, float("nan")]))
        with pytest.raises(ValueError, match=r"^`x_t` must have shape \(batch, 6\), got \(2, 5\)$"):
            block.step(x[:, 1:], state)
        active = torch.tensor([True, False])
        y, new_state = block.step(torch.where(active.unsqueeze(1), x, float("nan")), state, active=active)
    assert torch.equal(y[1], torch.zeros(6))
    assert torch.equal(new_state.conv[1], state.conv[1])


@pytest.mark.parametrize("norm", ["rms", "layer", "batch", "post"])
@pytest.mark.parametrize("build", [MambaBlock, S5Block])
@pytest.mark.parametrize("grad_enabled", [False, True])
def test_step_of_a_residual_branch_checks_its_arguments(norm, build, grad_enabled):
    """Mamba's block computes the whole branch in one call without gradients."""
    residual = Residual(build(6), norm).eval()
    x, state, active = torch.randn(2, 6), residual.initial_state(2), torch.tensor([True, False])
    with torch.set_grad_enabled(grad_enabled):
        for wrong, options, message in (
            ((x[:, 1:], state), {}, r"^`x_t` must have shape \(batch, 6\), got \(2, 5\)$"),
            ((x, residual.initial_state(3)), {}, "`state` must have tensors of shapes"),
            ((x, residual.initial_state(1)), {}, "`state` must have tensors of shapes"),
            ((x, state), {"elapsed": torch.tensor([1.0, float("nan")])}, "`elapsed` must be finite times"),
            ((x, state), {"active": torch.ones(3, dtype=torch.bool)}, r"^`active` must have shape \(2,\), got \(3,\)$"),
            ((x, state), {"elapsed": torch.ones(2, 1)}, r"^`elapsed` must have shape \(2,\), got \(2, 1\)$"),
        ):
            with pytest.raises(ValueError, match=message):
                residual.step(*wrong, **options)
        with pytest.raises(TypeError, match="`x` must have the dtype"):
            residual.step(x.double(), state)
        with pytest.raises(TypeError, match=r"^`active` must have dtype torch\.bool, got torch\.int64$"):
            residual.step(x, state, active=torch.ones(2, dtype=torch.int64))
        with pytest.raises(TypeError, match="`x_t` must be a tensor, got a list"):
            residual.step(x.tolist(), state)
        y, _ = residual.step(torch.where(active.unsqueeze(1), x, float("nan")), state, active=active)
        whole = residual(x.unsqueeze(1), valid=active.unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(y, whole)


def test_a_module_changes_the_length_if_one_of_its_children_does():
    """Whatever the order of the children is; every other property needs all of them."""

    class Pair(SequenceModule):
        def __init__(self, *children):
            super().__init__()
            self.parts = torch.nn.ModuleList(self.inherit_properties(child) for child in children)

        forward_impl = initial_state = None

    shorter, same = S5Block(4, stride=2), S5Block(4)
    assert [shorter.changes_length, same.changes_length] == [True, False]
    for children, expected in (((shorter, same), True), ((same, shorter), True), ((same, same), False), ((shorter,), True)):
        assert Pair(*children).changes_length is expected
    both = BidirectionalBlock(4)
    for name in ("causal", "streaming"):
        assert not getattr(both, name)
        assert not getattr(Pair(same, both), name)
        assert not getattr(Pair(both, same), name)


@pytest.mark.parametrize("rows", [1, 3])
def test_fused_step_reads_the_time_since_the_last_step_of_each_row(rows):
    block = MambaBlock(6).eval()
    x, elapsed = torch.randn(rows, 4, 6), torch.rand(rows, 4) + 0.5
    with torch.no_grad():
        whole, _ = block(x, elapsed=elapsed, return_state=True)
        state = block.initial_state(rows)
        for step in range(4):
            y, state = block.step(x[:, step], state, elapsed=elapsed[:, step])
            torch.testing.assert_close(y, whole[:, step])


@pytest.mark.parametrize("grad_enabled", [False, True])
def test_step_of_mamba_block_starts_without_a_state_and_checks_it(grad_enabled):
    """With and without gradients, where the step is one fused call."""
    block, x = MambaBlock(8), torch.randn(2, 8)
    with torch.set_grad_enabled(grad_enabled):
        torch.testing.assert_close(block.step(x, None)[0], block(x.unsqueeze(1)).squeeze(1))
        with pytest.raises(TypeError, match="`state` must be a GatedState, got a ScanState"):
            block.step(x, block.layer.initial_state(2))
        with pytest.raises(ValueError, match="`state` must have tensors of shapes"):
            block.step(x, block.initial_state(3))
