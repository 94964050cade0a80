"""A graph of a layer that was traced at one length equals the layer at any other length, or raises an error."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from longscan.layers import LAYERS, mlstm

pytestmark = [
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
    pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning"),
]

# layers whose Python code depends on the length, so that their graphs are valid for one length only
ONE_LENGTH = ("linoss", "mlstm", "s4", "s4d", "slstm")
# layers that torch.export refuses to export with a dynamic length
ONLY_ONE_LENGTH = ("attention", "gru", "linoss", "lstm", "pdssm", "s4", "slstm")
FEW_CHANNELS = 4
# mamba3 and mlstm have the op of mamba2, slstm and pdssm have the loop of gru over the steps, s4d has the convolution of s4, and
# mlstm's maximum has a separate test.
ALIKE = ("mamba3", "mlstm", "pdssm", "s4d", "slstm")


class WithState(torch.nn.Module):
    """A layer that also returns the tensors of its state."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        y, state = self.layer(x, return_state=True)
        return y, *state


def trace(layer, length):
    return torch.jit.trace(layer, (torch.randn(2, length, FEW_CHANNELS),), check_trace=False)


@pytest.mark.parametrize("name", LAYERS)
@torch.no_grad()
def test_traced_graph_equals_the_layer_at_other_lengths_or_raises(name):
    module = WithState(LAYERS[name](FEW_CHANNELS).eval())
    for traced_length in (1, 8):
        graph = trace(module, traced_length)
        for length in (traced_length, 1, 7, 9, 64):
            x = torch.randn(2, length, FEW_CHANNELS)
            try:
                results = graph(x)
            except RuntimeError:
                assert length != traced_length
                continue
            torch.testing.assert_close(results, module(x))


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow if name in ALIKE else ()) for name in LAYERS])
@torch.no_grad()
def test_make_fx_graph_equals_the_layer_at_other_lengths_or_raises(name):
    module = WithState(LAYERS[name](FEW_CHANNELS).eval())
    parameters = dict(module.named_parameters())

    def call(values, x):
        return torch.func.functional_call(module, dict(zip(parameters, values, strict=True)), (x,))

    graph = make_fx(call, tracing_mode="symbolic")(list(parameters.values()), torch.randn(2, 8, FEW_CHANNELS))
    for length in (8, 1, 7, 9, 16, 64):  # with multiples of the traced length, for which a reshape may succeed by chance
        x = torch.randn(2, length, FEW_CHANNELS)
        try:
            results = graph(list(parameters.values()), x)
        except (IndexError, RuntimeError):
            assert length != 8
            continue
        torch.testing.assert_close(tuple(results), module(x))


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name == "s6" else pytest.mark.slow) for name in LAYERS])
@torch.no_grad()
def test_exported_graph_with_a_dynamic_length_equals_the_layer_or_raises(name):
    """Layers whose code depends on the length are refused by torch.export, or with `Dim.AUTO` their graphs at other lengths."""
    module = WithState(LAYERS[name](FEW_CHANNELS).eval())
    example, refused = (torch.randn(2, 8, FEW_CHANNELS),), r"as dynamic but your code specialized it to be a constant \(8\)"
    for kind in (torch.export.Dim.DYNAMIC, torch.export.Dim.AUTO):
        if kind == torch.export.Dim.DYNAMIC and name in ONLY_ONE_LENGTH:
            with pytest.raises(torch._dynamo.exc.UserError, match=refused):
                torch.export.export(module, example, dynamic_shapes=({1: kind},))
            continue
        graph = torch.export.export(module, example, dynamic_shapes=({1: kind},)).module()
        for length in (8, 1, 7, 9, 16, 64, 65, 200):
            x = torch.randn(2, length, FEW_CHANNELS)
            try:
                results = graph(x)
            except (AssertionError, RuntimeError):
                assert length != 8
                continue
            torch.testing.assert_close(tuple(results), module(x))


@pytest.mark.parametrize("name", ONE_LENGTH)
@torch.no_grad()
def test_error_at_another_length_names_the_traced_length(name):
    """The error is the same after the second call at the traced length, which completes the optimisation of the graph."""
    graph = trace(LAYERS[name](FEW_CHANNELS).eval(), 8)
    for _ in range(3):
        with pytest.raises(RuntimeError, match=r"Provided sizes \[8\] don't multiply up to the size of dim 1 \(1\)"):
            graph(torch.randn(2, 1, FEW_CHANNELS))
        graph(torch.randn(2, 8, FEW_CHANNELS))


@torch.no_grad()
def test_frozen_graph_raises_at_another_length():
    graph = torch.jit.freeze(trace(LAYERS["s4d"](FEW_CHANNELS).eval(), 8))
    with pytest.raises(RuntimeError, match=r"Provided sizes \[8\]"):
        graph(torch.randn(2, 1, FEW_CHANNELS))


@pytest.mark.parametrize("name", ["linear_scan", "selective_scan", "ssd_scan"])
@torch.no_grad()
def test_traced_reference_backend_raises_at_another_length(name):
    layer = LAYERS[{"linear_scan": "lru", "selective_scan": "s6", "ssd_scan": "mamba2"}[name]](FEW_CHANNELS, backend="reference")
    graph = trace(layer.eval(), 4)
    for length in (1, 3, 5):
        with pytest.raises(RuntimeError, match=r"Provided sizes \[4\]"):
            graph(torch.randn(2, length, FEW_CHANNELS))


@pytest.mark.parametrize("length", [1, 3, 6])
@torch.no_grad()
def test_attention_can_be_traced_at_every_length(length):
    """The graph of a layer with a window is valid for the traced length only."""
    for window in (None, 4):
        layer = LAYERS["attention"](FEW_CHANNELS, window=window).eval()
        graph, x = trace(layer, length), torch.randn(2, length, FEW_CHANNELS)
        torch.testing.assert_close(graph(x), layer(x))
    with pytest.raises(RuntimeError, match=rf"Provided sizes \[{length}\]"):
        graph(torch.randn(2, 200, FEW_CHANNELS))


@pytest.mark.parametrize("way", ["make_fx", "export"])
@torch.no_grad()
def test_stabiliser_of_mlstm_has_a_dynamic_length_up_to_a_limit(way, monkeypatch):
    """Where the scan is a native op, nothing else in an mLSTM fixes the length, so that its graphs serve every length."""
    monkeypatch.setattr(mlstm, "MAX_SYMBOLIC_LENGTH", 64)

    class Maximum(torch.nn.Module):
        def forward(self, log_f, log_i, start):
            return mlstm.running_maximum(log_f, log_i, start, None)

    def inputs(length):
        return -torch.rand(2, length, 3), torch.randn(2, length, 3), torch.zeros(2, 3)

    if way == "make_fx":
        graph = make_fx(Maximum(), tracing_mode="symbolic")(*inputs(8))
    else:
        length = torch.export.Dim("length", max=64)
        exported = torch.export.export(Maximum(), inputs(8), dynamic_shapes=({1: length}, {1: length}, None))
        graph = exported.module()
    for length in (8, 7, 16, 33, 64):
        given = inputs(length)
        torch.testing.assert_close(graph(*given), Maximum()(*given))
    with pytest.raises((RuntimeError, AssertionError)):
        graph(*inputs(65))


def test_stabiliser_of_mlstm_without_restarts_has_no_masks():
    """Inductor of torch 2.11 writes C++ that does not compile for a mask that is False everywhere."""
    inputs = -torch.rand(2, 8, 3), torch.randn(2, 8, 3), torch.zeros(2, 3)
    graph = make_fx(lambda *args: mlstm.running_maximum(*args, None))(*inputs)
    assert not [node for node in graph.graph.nodes if node.op == "call_function" and node.meta["val"].dtype == torch.bool]
