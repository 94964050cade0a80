"""Graphs of every layer: torch.export programs and ONNX files that give what the layer gives."""

import re
from pathlib import Path

import pytest
import torch

from longscan import SequenceModel
from longscan.blocks import BidirectionalBlock
from longscan.layers import LAYERS, Attention
from longscan.layers.state import state_tensors
from longscan.models import Forecaster, LanguageModel, export_onnx
from longscan.models.export import graph

pytest.importorskip("onnxruntime")
PAGE = Path(__file__).parents[2] / "docs" / "howto" / "export.md"
IGNORED = pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # torch's own
FORMS = pytest.mark.parametrize("step", [False, True], ids=["forward", "step"])
OPTIONS = {
    "s4": {"d_state": 4}, "s4d": {"d_state": 4}, "s5": {"d_state": 4}, "s6": {"d_state": 4}, "aussm": {"d_state": 4},
    "mamba2": {"d_state": 4, "head_dim": 2}, "mamba3": {"d_state": 4, "head_dim": 2},
}  # fmt: skip


def layer_and_example(name, length=5):
    torch.manual_seed(0)
    return LAYERS[name](4, **OPTIONS.get(name, {})), torch.randn(2, length, 4)


@IGNORED
@FORMS
@pytest.mark.parametrize("name", LAYERS)
def test_programs(name, step):
    layer, example = layer_and_example(name, 3)
    traced = graph(layer, example, step=step)
    program = torch.export.export(traced.module, traced.arguments, dynamic_shapes=traced.dynamic_shapes)
    with torch.no_grad():
        wanted = layer.step(example[:, 0], layer(example, return_state=True)[1]) if step else layer(example)
        found = program.module()(*traced.arguments)
    for one, other in zip(found if step else [found], state_tensors(wanted), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    assert not any(value.dtype.is_complex for value in traced.arguments)


def session(module, path, example, step):
    import onnxruntime

    export_onnx(module, path, example, step=step)
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def feed(run, *tensors):
    """The inputs of a session by name; an input that no output depends on is not there."""
    names = ["x", *(f"state_{i}" for i in range(len(tensors) - 1))]
    taken = {part.name for part in run.get_inputs()}
    return {name: tensor.numpy() for name, tensor in zip(names, tensors, strict=True) if name in taken}


def relative_error(found, wanted):
    """The largest error of a result in units of its largest number, over all results."""
    pairs = [(torch.from_numpy(one), other) for one, other in zip(found, wanted, strict=True) if other.numel()]
    return max(((one - other).abs().max() / other.abs().max().clamp(min=1)).item() for one, other in pairs)


def steps_in_onnx(module, run, inputs, start):
    """Step after step, the state handed on, from a start: the largest relative error against the module."""
    errors, state, held = [], start, state_tensors(start)
    with torch.no_grad():
        for x in inputs.unbind(1):
            y, state = module.step(x, state)
            found = run.run(None, feed(run, x, *held))
            held = [torch.from_numpy(part) for part in found[1:]]
            errors.append(relative_error(found, [y, *state_tensors(state)]))
    return max(errors)


QUICK = [("s6", True)]
EVERY_GRAPH = [
    pytest.param(*one, marks=() if one in QUICK else pytest.mark.slow) for name in LAYERS for one in ((name, False), (name, True))
]


@IGNORED
@pytest.mark.parametrize(("name", "step"), EVERY_GRAPH)
def test_onnx_gives_the_same(name, step, tmp_path):
    layer, example = layer_and_example(name)
    layer.eval()
    run = session(layer, tmp_path / "layer.onnx", example, step)
    if step:
        assert steps_in_onnx(layer, run, example, layer.initial_state(2)) < 1e-4
        return
    with torch.no_grad():
        wanted = layer(example)
    assert relative_error(run.run(None, feed(run, example)), [wanted]) < 1e-4


@IGNORED
@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"window": 3}], ids=str)
def test_a_growing_state_keeps_its_axis_open(options, tmp_path):
    layer, example = Attention(4, **options).eval(), torch.randn(2, 9, 4)
    run = session(layer, tmp_path / "layer.onnx", example, True)
    slots = next(part for part in run.get_inputs() if part.name == "state_0").shape[1]
    assert slots == (2 if options else "steps")
    assert steps_in_onnx(layer, run, example, layer.initial_state(2)) < 1e-4


@IGNORED
@pytest.mark.slow
def test_models(tmp_path):
    tokens = torch.randint(0, 7, (2, 6))
    language = LanguageModel.from_spec("mt", d_model=8, vocab_size=7, d_state=4).eval()
    run = session(language, tmp_path / "language.onnx", tokens, True)
    assert steps_in_onnx(language, run, tokens, language.initial_state(2)) < 1e-4
    model = SequenceModel.from_spec("a", d_model=8, d_output=3, d_input=2, d_state=4).eval()
    series = torch.randn(2, 6, 2)
    run = session(model, tmp_path / "model.onnx", series, False)
    with torch.no_grad():
        assert relative_error(run.run(None, feed(run, series)), [model(series)]) < 1e-4


def test_the_table_of_the_page_has_every_layer_and_no_error_beyond_the_bound():
    rows = re.findall(r"^\| `(\w+)` \|(.*)\|$", PAGE.read_text(), re.MULTILINE)
    assert sorted({name for name, _ in rows}) == sorted(LAYERS)
    for name, cells in rows:
        assert all(float(cell) <= 1e-4 for cell in cells.split("|")[1:]), name


def test_what_can_not_be_exported_is_named():
    with pytest.raises(ValueError, match="example: got 2 steps, expected at least 3"):
        graph(Attention(4), torch.randn(1, 2, 4))
    with pytest.raises(ValueError, match="step: BidirectionalBlock cannot be run step by step"):
        graph(BidirectionalBlock(4), torch.randn(1, 5, 4), step=True)
    forecaster = Forecaster.from_spec("m", d_model=4, d_input=2, horizon=3)
    with pytest.raises(ValueError, match="step: Forecaster cannot be run step by step"):
        graph(forecaster, torch.randn(1, 5, 2), step=True)
