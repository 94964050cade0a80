import pytest
import torch
from torch import nn

from longscan.layers import GRU, LSTM
from longscan.models import SequenceModel


@pytest.mark.parametrize(("layer", "module"), [(GRU, nn.GRU), (LSTM, nn.LSTM)])
def test_outputs_equal_those_of_torch_with_the_same_weights(layer, module):
    """Without a mask the layer calls torch on the whole sequence; with a mask it calls a cell for each step."""
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
        with pytest.raises(ValueError, match=rf"`state` must have tensors of shape \(2, 4\), got \({rows}, 4\)"):
            model.step(torch.zeros(2, 2), model.initial_state(rows))
        with pytest.raises(ValueError, match="`state` must have tensors of shapes"):
            model(torch.zeros(2, 5, 2), model.initial_state(rows))
