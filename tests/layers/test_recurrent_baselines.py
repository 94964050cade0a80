import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from longscan.layers import GRU, LSTM
from longscan.layers._cells import run_cell
from longscan.layers.base import SequenceInfo
from longscan.models import SequenceModel


@pytest.mark.parametrize(("layer", "module"), [(GRU, nn.GRU), (LSTM, nn.LSTM)])
def test_outputs_equal_those_of_torch_with_the_same_weights(layer, module):
    """With and without a mask."""
    ours, torch_layer = layer(5).double(), module(5, 5, batch_first=True).double()
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    torch_layer.load_state_dict({f"{name}_l0": getattr(ours, name) for name in names})
    x = torch.randn(3, 11, 5, dtype=torch.float64)
    expected, final = torch_layer(x)
    final = final if isinstance(final, tuple) else (final,)
    for options in ({}, {"valid": torch.ones(3, 11, dtype=torch.bool)}):
        y, state = ours(x, return_state=True, **options)
        torch.testing.assert_close(y, expected)
        for part, expected_part in zip(state, final, strict=False):
            torch.testing.assert_close(part, expected_part[0])


@pytest.mark.parametrize(("layer", "states"), [(GRU, 1), (LSTM, 2)])
def test_padded_rows_of_the_fused_kernel_equal_the_loop_over_steps(layer, states, monkeypatch):
    """Outputs, states and gradients agree for padding at any place; NaN at padding reaches none of them."""
    ours, rows, length = layer(5).double(), 6, 9
    valid = torch.rand(rows, length) < 0.5
    valid[0], valid[1] = False, True
    valid[2], valid[3] = torch.arange(length) < 4, torch.arange(length) >= 4  # padding on the right, and on the left
    x = torch.randn(rows, length, 5, dtype=torch.float64).masked_fill(~valid.unsqueeze(-1), torch.nan).requires_grad_()
    state = tuple(torch.randn(rows, 5, dtype=torch.float64, requires_grad=True) for _ in range(states))
    info = SequenceInfo(valid=valid)
    weights = [torch.randn(rows, length, 5, dtype=torch.float64), *(torch.randn_like(part) for part in state)]

    def results(outputs: Tensor, final: tuple[Tensor, ...], inputs: Tensor) -> list[Tensor]:
        total = torch.stack([(weight * part).sum() for weight, part in zip(weights, (outputs, *final), strict=True)]).sum()
        return [outputs, *final, *torch.autograd.grad(total, (inputs, *state, *ours.parameters()))]

    steps = torch.where(valid.unsqueeze(-1), x.detach(), 0).requires_grad_()
    expected = results(*run_cell(ours.cell, linear(steps, ours.weight_ih, ours.bias_ih), state, info), steps)
    monkeypatch.setattr(layer, "cell", None)  # the fused kernel calls no cell
    for part, expected_part in zip(results(*ours.run(x, state, info), x), expected, strict=True):
        torch.testing.assert_close(part, expected_part, rtol=0, atol=1e-13)


@pytest.mark.parametrize("layer", [GRU, LSTM])
@pytest.mark.parametrize("is_padded", [False, True])
def test_float32_inputs_under_autocast_have_the_outputs_of_a_bfloat16_copy(layer, is_padded):
    """torch.lstm raises RuntimeError for such inputs on a CPU."""
    ours, x = layer(6), torch.randn(2, 7, 6)
    valid = torch.arange(7) < torch.tensor([[7], [4]]) if is_padded else None
    with torch.autocast("cpu", torch.bfloat16):
        y = ours(x, valid=valid)
    torch.testing.assert_close(y, ours.to(torch.bfloat16)(x.to(torch.bfloat16), valid=valid), rtol=0, atol=0)


@pytest.mark.parametrize("layer", [GRU, LSTM])
def test_initial_values_are_those_of_torch(layer):
    weights = torch.cat([parameter.detach().flatten() for parameter in layer(100).parameters()])
    assert 0.0999 < weights.abs().max() <= 0.1
    assert weights.mean().abs() < 1e-3


@pytest.mark.parametrize("layer", [GRU, LSTM])
def test_invalid_setting_raises(layer):
    with pytest.raises(ValueError, match=r"`d_model` must .*got 0"):
        layer(0)
    with pytest.raises(ValueError, match=r"`elapsed` must be None, as .* takes no elapsed times"):
        layer(3)(torch.randn(1, 2, 3), elapsed=torch.ones(1, 2))


@pytest.mark.parametrize("name", ["gru", "lstm"])
def test_state_of_another_batch_size_raises(name):
    """A model raises, too, although it calls layers without checks."""
    model = SequenceModel.from_spec(name, d_model=4, d_input=2, d_output=1, pooling="none")
    for rows in (1, 3):
        with pytest.raises(ValueError, match=f"`state` must have 2 rows, as many as the inputs, got {rows}"):
            model.step(torch.zeros(2, 2), model.initial_state(rows))
        with pytest.raises(ValueError, match="`state` must have tensors of shapes"):
            model(torch.zeros(2, 5, 2), model.initial_state(rows))
