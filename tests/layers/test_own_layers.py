"""Layers that a user registers: their names, and errors for classes that do not keep the contract."""

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from longscan import SequenceModel
from longscan.blocks import BLOCKS
from longscan.layers import LAYERS, SequenceLayer
from longscan.models import export_onnx


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    """Remove the layers that a test registers."""
    before = dict(LAYERS)
    yield
    for name in LAYERS.keys() - before.keys():
        del LAYERS[name]


class Identity(SequenceLayer):
    """Returns its input as output; `result` is what `forward_impl` returns besides it."""

    result: tuple = (None,)

    def __init__(self, d_model):
        super().__init__()
        self.d_model = d_model

    def forward_impl(self, x, state, info):
        return (x, *self.result) if self.result else x

    def initial_state(self, batch):
        return None


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("my layer", r"the name of a layer must be letters, digits and _, and not begin with a digit, got 'my layer'"),
        ("2x", r"the name of a layer must be letters, digits and _, and not begin with a digit, got '2x'"),
        ("mam", r"the name of a layer must not be a word of m and a, which a spec reads as blocks, got 'mam'"),
        ("mamba", r"the name of a layer must not be that of a block in specs, got 'mamba'"),
    ],
)
def test_names_that_a_spec_cannot_contain_are_errors(name, message):
    with pytest.raises(ValueError, match=message):
        LAYERS.register(name)
    assert name not in LAYERS


def test_a_registered_layer_is_part_of_a_model():
    LAYERS.register("identity")(Identity)
    model = SequenceModel.from_spec("simple[identity]", d_model=4, d_input=2, d_output=3)
    assert model(torch.randn(2, 5, 2)).shape == (2, 3)


def linear_with_backend(d_model: int, backend: str) -> nn.Module:
    return nn.Linear(d_model, d_model)


@pytest.mark.parametrize("constructor", [lambda d_model: nn.Linear(d_model, d_model), linear_with_backend])
def test_a_class_that_is_no_layer_is_an_error(constructor):
    LAYERS.register("linear")(constructor)
    with pytest.raises(TypeError, match=r"the layer 'linear' must be a longscan.layers.SequenceLayer, got Linear"):
        SequenceModel.from_spec("simple[linear]", d_model=4, d_input=2, d_output=3)


@pytest.mark.parametrize(("result", "found"), [((), "Tensor"), ((None, None), "3 values")])
def test_a_layer_that_does_not_return_outputs_and_state_is_an_error(result, found, monkeypatch):
    monkeypatch.setattr(Identity, "result", result)
    with pytest.raises(TypeError, match=f"`forward_impl` of Identity must return the outputs and the state, got {found}"):
        Identity(4)(torch.randn(1, 5, 4))


def test_a_layer_without_parameters_takes_any_floating_point_dtype_and_no_other():
    x = torch.ones(1, 5, 4)
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        assert Identity(4)(x.to(dtype)).dtype == dtype
    for dtype in (torch.int64, torch.bool, torch.complex64):
        with pytest.raises(TypeError, match=f"^`x` must have a floating-point dtype, got {dtype}$"):
            Identity(4)(x.to(dtype))


def test_integer_inputs_raise_under_autocast():
    with (
        torch.autocast("cpu", torch.bfloat16),
        pytest.raises(TypeError, match=r"^`x` must have a floating-point dtype, got torch\.int64$"),
    ):
        LAYERS["lru"](4)(torch.ones(1, 5, 4, dtype=torch.int64))


def test_a_layer_from_a_function_does_not_change_the_error_of_blocks_of_heads():
    LAYERS.register("linear")(lambda d_model: nn.Linear(d_model, d_model))
    with pytest.raises(ValueError, match=r"`layer` must be a layer with heads, one of gated_deltanet, mamba2, mamba3, got 'lru'"):
        BLOCKS["mamba2"](4, layer="lru")


@pytest.mark.parametrize("name", ["s6", "s4d"])
def test_a_gate_of_integers_raises(name):
    """In layers whose op multiplies by the gate, and in the others."""
    with pytest.raises(TypeError, match=r"^`gate` must have a floating-point dtype, got torch\.int64$"):
        LAYERS[name](4)(torch.ones(1, 5, 4), gate=torch.ones(1, 5, 4, dtype=torch.int64))


@pytest.mark.parametrize("wrong", [lambda y: y[..., :1], lambda y: y[:, 1:], lambda y: torch.cat([y, y], -1)])
def test_outputs_of_another_shape_are_an_error_that_names_the_layer(wrong):
    class Reshaped(Identity):
        def forward_impl(self, x, state, info):
            return wrong(x), None

    LAYERS.register("reshaped")(Reshaped)
    for spec in ("reshaped", "simple[reshaped]"):
        model = SequenceModel.from_spec(spec, d_model=4, d_input=2, d_output=3)
        with pytest.raises(ValueError, match=r"`forward_impl` of Reshaped must return outputs .*\(2, 5, 4\), got \(2, "):
            model(torch.randn(2, 5, 2))


def test_a_backend_that_a_layer_cannot_pass_to_its_ops_is_an_error(tmp_path):
    class Scans(Identity):
        op_names = ("linear_scan",)

    LAYERS.register("scans")(Scans)
    sizes = {"d_model": 4, "d_input": 2, "d_output": 3}
    model = SequenceModel.from_spec("scans", **sizes)
    for spec in ("scans", "simple[scans]"):
        for backend in ("eager", "reference"):
            with pytest.raises(
                ValueError, match=rf"`backend` must be 'auto', .* has no such argument for linear_scan, got '{backend}'"
            ):
                SequenceModel.from_spec(spec, **sizes, backend=backend)
    with pytest.raises(ValueError, match=r"`module` must contain modules that pass their attribute `backend` .* got Scans"):
        export_onnx(model, tmp_path / "scans.onnx", torch.randn(2, 5, 2))


def test_the_error_about_an_unknown_name_says_when_a_layer_is_known():
    for name in ("leaky", "xyzzy"):
        with pytest.raises(ValueError, match="is known once its module is imported"):
            SequenceModel.from_spec(name, d_model=4, d_input=2, d_output=3)
