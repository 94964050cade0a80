"""A graph of a layer, recorded at one length, gives at any other length what the layer gives, or raises."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from longscan.layers import LAYERS

pytestmark = [
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
    pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning"),
]

# layers whose Python code depends on the length, so that the graph holds for one alone
ONE_LENGTH = ("linoss", "mlstm", "s4", "s4d", "slstm")
FEW_CHANNELS = 4


class WithState(torch.nn.Module):
    """A layer as a function of x, which returns y and the tensors of the state."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        y, state = self.layer(x, return_state=True)
        return y, *state


def traced(layer, length):
    return torch.jit.trace(layer, (torch.randn(2, length, FEW_CHANNELS),), check_trace=False)


@pytest.mark.parametrize("name", LAYERS)
@torch.no_grad()
def test_a_graph_is_right_at_other_lengths_or_raises(name):
    module = WithState(LAYERS[name](FEW_CHANNELS).eval())
    for recorded in (1, 8):
        graph = traced(module, recorded)
        for length in (recorded, 1, 7, 9, 64):
            x = torch.randn(2, length, FEW_CHANNELS)
            try:
                found = graph(x)
            except RuntimeError:
                assert length != recorded
                continue
            torch.testing.assert_close(found, module(x))


@pytest.mark.parametrize("name", LAYERS)
@torch.no_grad()
def test_a_graph_of_make_fx_is_right_at_other_lengths_or_raises(name):
    module = WithState(LAYERS[name](FEW_CHANNELS).eval())
    parameters = dict(module.named_parameters())

    def call(values, x):
        return torch.func.functional_call(module, dict(zip(parameters, values, strict=True)), (x,))

    graph = make_fx(call, tracing_mode="symbolic")(list(parameters.values()), torch.randn(2, 8, FEW_CHANNELS))
    for length in (8, 1, 7, 9, 16, 64):  # multiples of the length too: what is reshaped may fit by chance
        x = torch.randn(2, length, FEW_CHANNELS)
        try:
            found = graph(list(parameters.values()), x)
        except (IndexError, RuntimeError):
            assert length != 8
            continue
        torch.testing.assert_close(tuple(found), module(x))


@pytest.mark.parametrize("name", ONE_LENGTH)
@torch.no_grad()
def test_a_graph_of_one_length_names_it(name):
    """After the optimisation of the graph, which the second call at its length completes, as before."""
    graph = traced(LAYERS[name](FEW_CHANNELS).eval(), 8)
    for _ in range(3):
        with pytest.raises(RuntimeError, match=r"Provided sizes \[8\] don't multiply up to the size of dim 1 \(1\)"):
            graph(torch.randn(2, 1, FEW_CHANNELS))
        graph(torch.randn(2, 8, FEW_CHANNELS))


@torch.no_grad()
def test_a_frozen_graph_keeps_the_check():
    graph = torch.jit.freeze(traced(LAYERS["s4d"](FEW_CHANNELS).eval(), 8))
    with pytest.raises(RuntimeError, match=r"Provided sizes \[8\]"):
        graph(torch.randn(2, 1, FEW_CHANNELS))


@pytest.mark.parametrize("name", ["linear_scan", "selective_scan", "ssd_scan"])
@torch.no_grad()
def test_the_loops_of_reference_backends_keep_the_check(name):
    layer = LAYERS[{"linear_scan": "lru", "selective_scan": "s6", "ssd_scan": "mamba2"}[name]](FEW_CHANNELS, backend="reference")
    graph = traced(layer.eval(), 4)
    for length in (1, 3, 5):
        with pytest.raises(RuntimeError, match=r"Provided sizes \[4\]"):
            graph(torch.randn(2, length, FEW_CHANNELS))


@pytest.mark.parametrize("length", [1, 3, 6])
@torch.no_grad()
def test_attention_is_traced_at_every_length(length):
    """With a window, too, whose graph holds for one length."""
    for window in (None, 4):
        layer = LAYERS["attention"](FEW_CHANNELS, window=window).eval()
        graph, x = traced(layer, length), torch.randn(2, length, FEW_CHANNELS)
        torch.testing.assert_close(graph(x), layer(x))
    with pytest.raises(RuntimeError, match=rf"Provided sizes \[{length}\]"):
        graph(torch.randn(2, 200, FEW_CHANNELS))
