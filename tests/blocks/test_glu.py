import pytest
import torch
from torch.nn.functional import gelu, layer_norm, sigmoid

from longscan.blocks import BLOCKS, LinOSSBlock, Residual, S5Block, SharedDropout, windows
from longscan.layers.base import SequenceInfo
from longscan.models import SequenceModel
from parameter_counts import count_parameters


@pytest.mark.parametrize("glu", ["half1", "half2", "full"])
@pytest.mark.parametrize("output_norm", [False, True])
def test_s5_block_equals_its_formula(glu, output_norm):
    block = S5Block(6, glu=glu, output_norm=output_norm, layer_options={"d_state": 4}).double()
    x = torch.randn(2, 9, 6, dtype=torch.float64)
    u = block.layer(x)
    v = gelu(layer_norm(u, (6,)) if output_norm else u)
    gate = sigmoid(block.gate_proj(v))
    value = {"half1": v, "half2": u, "full": block.value_proj(v) if glu == "full" else None}[glu]
    torch.testing.assert_close(block(x), value * gate)
    assert (
        count_parameters(block) == count_parameters(block.layer) + (2 if glu == "full" else 1) * (6 * 6 + 6) + 2 * 6 * output_norm
    )


def test_linoss_block_equals_its_formula():
    block = LinOSSBlock(6, layer_options={"d_state": 4}).double().eval()
    x = torch.randn(2, 9, 6, dtype=torch.float64)
    v = gelu(block.layer(x))
    torch.testing.assert_close(block(x), block.value_proj(v) * sigmoid(block.gate_proj(v)))
    assert count_parameters(block) == (2 * 4 + 4 * 4 * 6 + 6) + 2 * (6 * 6 + 6)


def test_s5_drops_whole_channels_and_linoss_single_activations():
    shared, single = S5Block(6, dropout=0.5), LinOSSBlock(6, dropout=0.5)
    assert isinstance(shared.dropout, SharedDropout)
    x = torch.randn(3, 50, 6)
    y = shared(x)
    dropped = (y == 0).all(1)
    assert dropped.any()
    assert not (y == 0).transpose(1, 2)[~dropped].any()
    y = single(x)
    assert 0.3 < (y == 0).float().mean() < 0.7
    assert not (y == 0).all(1).any()
    for block in (shared, single):
        block.eval()
        assert torch.equal(block(x), block(x))


def test_window_equals_one_step_with_the_product_of_factors():
    """x_{k+p} = (product of a over the window) x_k + the contributions of the window's inputs, with input-dependent factors."""
    block = S5Block(3, layer="s7", stride=4, layer_options={"d_state": 5}).double()
    layer = block.layer
    u = torch.randn(1, 14, 3, dtype=torch.float64)
    a = layer.factors(u)[0]
    b = (u @ layer.B.T + layer.select_B(u, u) + layer.bias)[0]
    x, states = torch.zeros(5, dtype=torch.float64), []
    for start in range(0, 12, 4):
        inputs = sum(a[start + i + 1 : start + 4].prod(0) * b[start + i] for i in range(4))
        x = a[start : start + 4].prod(0) * x + inputs
        states.append(x)
    last, states = u[:, 3:12:4], torch.stack(states).unsqueeze(0)
    skip = layer.D + last @ layer.select_D.T
    expected = block.mix(states @ layer.C.T + layer.select_C(states, last) + skip * last)
    y, final = block(u, return_state=True)
    torch.testing.assert_close(y, expected)
    assert y.shape == (1, 3, 3)
    x = a[13] * (a[12] * x + b[12]) + b[13]  # steps that fill no window have no output but change the state
    torch.testing.assert_close(final.ssm[0], x)


@pytest.mark.parametrize("pooling", ["last", "mean", "time"])
def test_residual_path_is_pooled(pooling):
    residual = Residual(S5Block(3, stride=4, pooling=pooling, layer_options={"d_state": 4})).double()
    x, elapsed = torch.randn(2, 14, 3, dtype=torch.float64), torch.rand(2, 14, dtype=torch.float64)
    y = residual(x, elapsed=elapsed)
    x_windows, elapsed_windows = x[:, :12].view(2, 3, 4, 3), elapsed[:, :12].view(2, 3, 4, 1) + 1e-6
    skip = {
        "last": x_windows[:, :, 3],
        "mean": x_windows.mean(2),
        "time": (x_windows * elapsed_windows).sum(2) / elapsed_windows.sum(2),
    }[pooling]
    torch.testing.assert_close(y, skip + residual.block(residual.norm(x), elapsed=elapsed))
    after = residual.shorten_info(SequenceInfo(elapsed, torch.arange(14) < torch.tensor([[14], [7]])))
    torch.testing.assert_close(after.elapsed[0], elapsed[0, :12].view(3, 4).mean(1))
    assert after.valid.tolist() == [[True, True, True], [True, False, False]]


def test_chunks_of_whole_windows_equal_one_call():
    block = S5Block(3, stride=4, layer_options={"d_state": 4}).double()
    x = torch.randn(2, 20, 3, dtype=torch.float64)
    whole, final = block(x, return_state=True)
    first, state = block(x[:, :8], return_state=True)
    second, state = block(x[:, 8:], state, return_state=True)
    torch.testing.assert_close(torch.cat([first, second], 1), whole)
    torch.testing.assert_close(state.ssm, final.ssm)


@pytest.mark.parametrize("model_pooling", ["mean", "last", "none"])
def test_model_with_two_pooling_stages_gives_padded_rows_the_results_of_separate_calls(model_pooling):
    """Two stages pool by 3 and 2, and the blocks between them do not."""
    blocks = [
        {"layer": "s5", "block": "s5", "options": {"stride": stride, "pooling": "time", "d_state": 4, "discretisation": "async"}}
        for stride in (3, 1, 2, 1)
    ]
    net = SequenceModel(blocks, d_model=6, d_output=4, vocab_size=9, pooling=model_pooling).double().eval()
    tokens, elapsed = torch.randint(0, 9, (3, 30)), torch.rand(3, 30, dtype=torch.float64)
    lengths = [30, 17, 12]
    for left in (False, True):
        steps = torch.arange(30)
        sizes = torch.tensor(lengths).unsqueeze(1)
        valid = steps >= 30 - sizes if left else steps < sizes
        y = net(tokens, elapsed=elapsed, valid=valid)
        for row, length in enumerate(lengths):
            separate = net(tokens[row : row + 1, valid[row]], elapsed=elapsed[row : row + 1, valid[row]])
            y_of_row = y[row : row + 1, : length // 6] if model_pooling == "none" else y[row : row + 1]
            torch.testing.assert_close(y_of_row, separate)
            if model_pooling == "none":
                assert separate.shape[1] == length // 6
                assert not y[row, length // 6 :].any()
    with pytest.raises(ValueError, match="each block must run step by step for `step`, got block 0"):
        net.step(tokens[:, 0], net.initial_state(3))


def test_windows_of_three_steps():
    """Seven steps have two windows and the last is dropped; with padding, the windows start at the first valid step."""
    x = torch.arange(7.0).view(1, 7, 1)
    elapsed = torch.tensor([[1.0, 2.0, 3.0, 1.0, 1.0, 4.0, 1.0]])
    assert windows.shorten(x, SequenceInfo(), 3, "last").flatten().tolist() == [2.0, 5.0]
    assert windows.shorten(x, SequenceInfo(), 3, "mean").flatten().tolist() == [1.0, 4.0]
    weighted = windows.shorten(x, SequenceInfo(elapsed), 3, "time").flatten()
    torch.testing.assert_close(weighted, torch.tensor([8 / 6, 27 / 6]))
    assert windows.shorten_info(SequenceInfo(elapsed), 3).elapsed.tolist() == [[2.0, 2.0]]
    valid = torch.tensor([[False, False, True, True, True, True, True]])
    assert windows.shorten(x, SequenceInfo(valid=valid), 3, "last").flatten().tolist() == [4.0, 0.0]
    assert windows.shorten_info(SequenceInfo(valid=valid), 3).valid.tolist() == [[True, False]]


def test_windows_with_zero_elapsed_times_are_means():
    x = torch.randn(1, 4, 2, dtype=torch.float64)
    pooled = windows.shorten(x, SequenceInfo(torch.zeros(1, 4, dtype=torch.float64)), 4, "time")
    torch.testing.assert_close(pooled[:, 0], x.mean(1))
    assert windows.shorten(x, SequenceInfo(), 5, "mean").shape == (1, 0, 2)


@pytest.mark.parametrize(
    ("block", "options", "message"),
    [
        ("s5", {"glu": "half"}, "`glu` must .*got 'half'"),
        ("s5", {"stride": 0}, "`stride` must .*got 0"),
        ("s5", {"pooling": "max"}, "`pooling` must .*got 'max'"),
        ("s5", {"dropout": 1.0}, r"`dropout` must .*got 1\.0"),
        ("linoss", {"dropout": -0.1}, r"`dropout` must .*got -0\.1"),
        ("s5", {"layer_options": {"d_state": 6, "blocks": 4}}, "`blocks` must .*got 4"),
    ],
)
def test_invalid_setting_raises(block, options, message):
    with pytest.raises(ValueError, match=message):
        BLOCKS[block](4, **options)


def test_strided_block_raises_for_steps_and_packed_rows():
    block = S5Block(4, stride=2)
    with pytest.raises(ValueError, match=r"`stride` must be 1 for single steps, .*, got 2"):
        block.step(torch.randn(1, 4), block.initial_state(1))
    with pytest.raises(ValueError, match="`seq_idx` must be None with stride=2"):
        block(torch.randn(1, 4, 4), seq_idx=torch.tensor([[0, 0, 1, 1]]))
