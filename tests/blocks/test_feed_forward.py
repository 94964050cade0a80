import pytest
import torch
from torch.nn.functional import gelu, layer_norm, silu

from longscan.blocks import BLOCKS, BidirectionalBlock, FeedForwardBlock, MambaBlock, Residual, SharedDropout, SimpleBlock


@pytest.mark.parametrize("gated", [False, True])
def test_feed_forward_equals_its_formula(gated):
    block = FeedForwardBlock(4, d_hidden=6, gated=gated)
    x = torch.randn(2, 5, 4)
    h = block.in_proj(x)
    h = silu(h[..., :6]) * h[..., 6:] if gated else gelu(h)
    torch.testing.assert_close(block(x), block.out_proj(h))
    assert FeedForwardBlock(4).out_proj.weight.shape == (4, 16)
    assert torch.equal(block(x, elapsed=torch.rand(2, 5)), block(x))


@pytest.mark.parametrize(
    ("options", "message"),
    [({"d_hidden": 0}, "`d_hidden` must .*got 0"), ({"dropout": -0.1}, "`dropout` must .*got -0.1"), ({"d_model": 0}, "d_model")],
)
def test_invalid_setting_raises(options, message):
    with pytest.raises(ValueError, match=message):
        BLOCKS["feed_forward"](**{"d_model": 4, **options})


def test_shared_dropout_zeroes_channels_of_whole_sequences():
    dropout = SharedDropout(0.25)
    x = torch.rand(50, 20, 40) + 1
    ratio = dropout(x) / x
    torch.testing.assert_close(ratio, ratio[:, :1].expand_as(ratio))
    assert (ratio[:, 0] == 0).float().mean().item() == pytest.approx(0.25, abs=0.03)
    torch.testing.assert_close(ratio[ratio > 0], torch.full_like(ratio[ratio > 0], 1 / 0.75))
    assert (ratio[0, 0] != ratio[1, 0]).any()
    assert dropout.eval()(x) is x


@pytest.mark.parametrize(
    "make_block",
    [
        lambda **o: MambaBlock(8, **o),
        lambda **o: BidirectionalBlock(8, **o),
        lambda **o: SimpleBlock(8, shared_dropout=True, **o),
    ],
    ids=["mamba", "bidirectional", "simple"],
)
def test_blocks_drop_whole_channels_only_in_training(make_block):
    block, x = make_block(dropout=0.5), torch.randn(2, 6, 8)
    assert not torch.equal(block(x), block(x))
    block.eval()
    assert torch.equal(block(x), block(x))
    ratios = []
    block.train().dropout.register_forward_hook(lambda _, inputs, output: ratios.append(output / inputs[0]))
    block(x)
    assert torch.equal(ratios[0] == 0, (ratios[0] == 0)[:, :1].expand_as(ratios[0]))


def test_steps_of_block_with_dropout_are_not_fused():
    block = MambaBlock(6, dropout=0.5).eval()
    assert not block.fuses_steps
    x = torch.randn(2, 3, 6)
    with torch.no_grad():
        y, _ = block.step(x[:, 0], block.initial_state(2))
    torch.testing.assert_close(y, block(x)[:, 0])


@pytest.mark.parametrize("norm", ["layer", "post"])
def test_layer_norm_is_applied_before_or_after_the_block(norm):
    residual = Residual(SimpleBlock(4, layer="lru"), norm).double()
    with torch.no_grad():
        residual.norm.bias.normal_()
    x = torch.randn(2, 5, 4, dtype=torch.float64)

    def normed(y: torch.Tensor) -> torch.Tensor:
        return layer_norm(y, (4,), residual.norm.weight, residual.norm.bias, 1e-5)

    expected = x + residual.block(normed(x)) if norm == "layer" else normed(x + residual.block(x))
    torch.testing.assert_close(residual(x), expected)
    state, outputs = residual.initial_state(2), []
    for t in range(5):
        y, state = residual.step(x[:, t], state)
        outputs.append(y)
    torch.testing.assert_close(torch.stack(outputs, 1), expected)
    valid = torch.tensor([[False, True, True, True, True], [True, True, True, False, False]])
    padded = residual(x, valid=valid)
    torch.testing.assert_close(padded[0, 1:], residual(x[:1, 1:])[0])
    torch.testing.assert_close(padded[1, :3], residual(x[1:, :3])[0])
    assert not padded[~valid].any()
    y, new_state = residual.step(x[:, 0], state, active=torch.tensor([True, False]))
    assert not y[1].any(), "rows that are not active give zeros, as padded steps do"
    assert torch.equal(new_state.ssm[1], state.ssm[1])
