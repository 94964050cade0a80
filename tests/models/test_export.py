"""Graphs of every layer: torch.export programs and ONNX files give the results of the layer."""

import logging
import re
from pathlib import Path

import pytest
import torch

from longscan import SequenceModel
from longscan.blocks import BidirectionalBlock, MambaBlock
from longscan.layers import LAYERS, Attention
from longscan.layers.state import state_tensors
from longscan.models import Forecaster, LanguageModel, SiameseModel, export_onnx
from longscan.models.export import export_graph

pytest.importorskip("onnxruntime")
PAGE = Path(__file__).parents[2] / "docs" / "howto" / "export.md"
IGNORED = pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # a warning of torch
OPTIONS = {
    "s4": {"d_state": 4}, "s4d": {"d_state": 4}, "s5": {"d_state": 4}, "s6": {"d_state": 4}, "aussm": {"d_state": 4},
    "mamba2": {"d_state": 4, "head_dim": 2}, "mamba3": {"d_state": 4, "head_dim": 2},
}  # fmt: skip


def make_layer_and_example(name, length=5):
    torch.manual_seed(0)
    return LAYERS[name](4, **OPTIONS.get(name, {})), torch.randn(2, length, 4)


# test_exported_program_accepts_masks_times_and_a_state exports this method of every layer, with more inputs. Without these inputs
# `make test` exports it for a scan, a window of keys and a loop over the steps.
WITHOUT_INPUTS = ("s6", "attention", "gru")
EVERY_METHOD = [
    pytest.param(name, step, marks=() if step or name in WITHOUT_INPUTS else pytest.mark.slow, id=f"{name}-{method}")
    for step, method in ((False, "forward"), (True, "step"))
    for name in LAYERS
]


@IGNORED
@pytest.mark.parametrize(("name", "step"), EVERY_METHOD)
def test_exported_program_equals_the_layer(name, step):
    layer, example = make_layer_and_example(name, 3)
    traced = export_graph(layer, example, step=step)
    program = torch.export.export(traced.module, traced.arguments, dynamic_shapes=traced.dynamic_shapes)
    with torch.no_grad():
        expected = layer.step(example[:, 0], layer(example, return_state=True)[1]) if step else layer(example)
        results = program.module()(*traced.arguments)
    for result, reference in zip(results if step else [results], state_tensors(expected), strict=True):
        torch.testing.assert_close(result, reference, rtol=1e-4, atol=1e-5)
    assert not any(value.dtype.is_complex for value in traced.arguments)


def export_and_open_session(module, path, example, step, inputs=None):
    import onnxruntime

    export_onnx(module, path, example, step=step, inputs=inputs)
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def inputs_by_name(session, *tensors):
    """Return the inputs of a session by name; a graph has no input on which no output depends."""
    names = ["x", *(f"state_{i}" for i in range(len(tensors) - 1))]
    graph_inputs = {part.name for part in session.get_inputs()}
    return {name: tensor.numpy() for name, tensor in zip(names, tensors, strict=True) if name in graph_inputs}


def relative_error(results, expected):
    """Return the largest error of all results, each divided by the largest absolute value of the expected result."""
    pairs = [
        (torch.from_numpy(result), reference) for result, reference in zip(results, expected, strict=True) if reference.numel()
    ]
    return max(((result - reference).abs().max() / reference.abs().max().clamp(min=1)).item() for result, reference in pairs)


def error_of_steps(module, session, inputs, start):
    """Run single steps that pass their states on, from an initial state; return the largest relative error."""
    errors, state, graph_state = [], start, state_tensors(start)
    with torch.no_grad():
        for x in inputs.unbind(1):
            y, state = module.step(x, state)
            results = session.run(None, inputs_by_name(session, x, *graph_state))
            graph_state = [torch.from_numpy(part) for part in results[1:]]
            errors.append(relative_error(results, [y, *state_tensors(state)]))
    return max(errors)


def every_graph(*quick):
    """Return the cases of a layer and a flag; those that are not in `quick` are slow tests."""
    cases = [(name, flag) for name in LAYERS for flag in (False, True)]
    return [pytest.param(*case, marks=() if case in quick else pytest.mark.slow) for case in cases]


@IGNORED
@pytest.mark.parametrize(("name", "step"), every_graph(("s6", True)))
def test_onnx_graph_equals_the_layer(name, step, tmp_path):
    layer, example = make_layer_and_example(name)
    layer.eval()
    session = export_and_open_session(layer, tmp_path / "layer.onnx", example, step)
    if step:
        assert error_of_steps(layer, session, example, layer.initial_state(2)) < 1e-4
        return
    with torch.no_grad():
        expected = layer(example)
    assert relative_error(session.run(None, inputs_by_name(session, example)), [expected]) < 1e-4


@IGNORED
@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"window": 3}], ids=str)
def test_growing_state_has_a_dynamic_axis(options, tmp_path):
    layer, example = Attention(4, **options).eval(), torch.randn(2, 9, 4)
    session = export_and_open_session(layer, tmp_path / "layer.onnx", example, True)
    slots = next(part for part in session.get_inputs() if part.name == "state_0").shape[1]
    assert slots == (2 if options else "steps")
    assert error_of_steps(layer, session, example, layer.initial_state(2)) < 1e-4


@IGNORED
@pytest.mark.slow
def test_onnx_graph_equals_the_model(tmp_path):
    tokens = torch.randint(0, 7, (2, 6))
    language = LanguageModel.from_spec("mamba attention", d_model=8, vocab_size=7, d_state=4).eval()
    session = export_and_open_session(language, tmp_path / "language.onnx", tokens, True)
    assert error_of_steps(language, session, tokens, language.initial_state(2)) < 1e-4
    model = SequenceModel.from_spec("a", d_model=8, d_output=3, d_input=2, d_state=4).eval()
    series = torch.randn(2, 6, 2)
    session = export_and_open_session(model, tmp_path / "model.onnx", series, False)
    with torch.no_grad():
        assert relative_error(session.run(None, inputs_by_name(session, series)), [model(series)]) < 1e-4


def make_named_inputs(module, length, *, other, state=True):
    """Return inputs by name: a mask with padding on the right, or the left for `other`, times and a state after some steps."""
    steps = torch.arange(length)
    named = {"valid": steps >= torch.tensor([[1], [3]]) if other else steps < torch.tensor([[length], [length - 2]])}
    if getattr(module, "irregular", True):
        named["elapsed"] = torch.rand(2, length) + 0.5
    if state:
        with torch.no_grad():
            named["state"] = module(torch.randn(2, 4 if other else 3, 4), return_state=True)[1]
    return named


def flatten_inputs(example, named):
    """Return the arguments of a graph for named inputs, with the state last."""
    named = dict(named)
    state = named.pop("state", None)
    return example, *named.values(), *state_tensors(state)


def replace_values(example, valid):
    """Return other inputs of the same shape, with NaN in the padding."""
    return torch.where(valid.unsqueeze(-1), torch.randn_like(example), torch.nan)


def call_module(module, example, named):
    """Return the results of a graph with named inputs: y, and the tensors of the final state if there is an initial one."""
    with torch.no_grad():
        return state_tensors(module(example, **named, **({"return_state": True} if "state" in named else {})))


@IGNORED
@pytest.mark.parametrize("name", LAYERS)
def test_exported_program_accepts_masks_times_and_a_state(name):
    layer, example = make_layer_and_example(name)
    layer.eval()
    traced = export_graph(layer, example, inputs=make_named_inputs(layer, 5, other=False))
    program = torch.export.export(traced.module, traced.arguments, dynamic_shapes=traced.dynamic_shapes)
    named = make_named_inputs(layer, 5, other=True)
    example = replace_values(example, named["valid"])
    results, expected = program.module()(*flatten_inputs(example, named)), call_module(layer, example, named)
    torch.testing.assert_close(list(results), list(expected), rtol=1e-4, atol=1e-5)


@IGNORED
# S4's kernel is computed with complex numbers where it is not exported.
@pytest.mark.parametrize(("name", "packed"), every_graph(("s4", False), ("s6", True)))
def test_onnx_graph_accepts_masks_packing_times_and_a_state(name, packed, tmp_path):
    layer, example = make_layer_and_example(name)
    layer.eval()
    example_inputs, named = (make_named_inputs(layer, 5, other=other) for other in (False, True))
    x = replace_values(example, named["valid"])
    if packed:
        first, second = make_seq_idx()
        example_inputs, named = {"seq_idx": first, "state": example_inputs["state"]}, {"seq_idx": second, "state": named["state"]}
        x = example
    session = export_and_open_session(layer, tmp_path / "layer.onnx", example, False, example_inputs)
    if not packed:
        names = {part.name for part in session.get_inputs()}
        assert {"x", "valid", "state_0"} | ({"elapsed"} if layer.irregular else set()) <= names
    assert relative_error(session.run(None, graph_inputs_by_name(session, layer, x, named)), call_module(layer, x, named)) < 1e-4


def make_seq_idx():
    """Return `seq_idx` of two different batches."""
    return torch.tensor([[0, 0, 1, 1, 1]] * 2), torch.tensor([[0, 1, 1, 2, 2], [0, 0, 0, 0, 4]])


def graph_inputs_by_name(session, module, example, named):
    """Return the inputs of a session by the names that `export_graph` gives them."""
    names, graph_inputs = export_graph(module, example, inputs=named).names, {part.name for part in session.get_inputs()}
    return {name: part.numpy() for name, part in zip(names, flatten_inputs(example, named), strict=True) if name in graph_inputs}


@IGNORED
def test_onnx_step_accepts_times_and_inactive_rows(tmp_path):
    layer, example = make_layer_and_example("s6")
    layer.eval()
    example_inputs = {"elapsed": torch.ones(2), "active": torch.ones(2, dtype=torch.bool)}
    session = export_and_open_session(layer, tmp_path / "step.onnx", example, True, example_inputs)
    state, named = layer.initial_state(2), {"elapsed": torch.tensor([0.3, 2.0]), "active": torch.tensor([True, False])}
    for x in example.unbind(1):
        with torch.no_grad():
            y, after = layer.step(x, state, **named)
        values = {"x": x, **named, **{f"state_{i}": part for i, part in enumerate(state_tensors(state))}}
        results = session.run(None, {part.name: values[part.name].numpy() for part in session.get_inputs()})
        assert relative_error(results, [y, *state_tensors(after)]) < 1e-4
        state = after


TIMES = torch.ones(2, 5)
MODELS = {  # functions that make a module
    "bidirectional": lambda: BidirectionalBlock(4, rotary={"base": 10.0, "targets": ["B", "x"]}, layer_options={"d_state": 3}),
    "rotary": lambda: MambaBlock(4, rotary={"base": 10.0}, layer_options={"d_state": 3}),
    "hybrid": lambda: SequenceModel.from_spec("ma", d_model=4, d_input=4, d_output=3, d_state=4),
    "queries": lambda: Forecaster.from_spec("m", d_model=4, d_input=4, horizon=2, d_state=4, normalise=True),
    "offset": lambda: Forecaster.from_spec("m", d_model=4, d_input=4, horizon=2, d_state=4, mode="offset"),
    "siamese": lambda: SiameseModel.from_spec("s4d", d_model=4, d_input=4, d_output=2, d_state=4),
}


@IGNORED
@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_onnx_graph_of_blocks_and_models_accepts_named_inputs(name, tmp_path):
    torch.manual_seed(0)
    module, example = MODELS[name]().eval(), torch.randn(2, 6, 4)
    example_inputs, named = (
        make_named_inputs(module, 6, other=other, state=name in ("rotary", "hybrid")) for other in (False, True)
    )
    x = replace_values(example, named["valid"])
    if name == "queries":
        example_inputs["elapsed_ahead"], named["elapsed_ahead"] = torch.rand(2, 2), torch.rand(2, 2)
    if name == "siamese":
        example_inputs, named = (
            {"second": torch.randn(2, 6, 4), "valid_second": part["valid"]} for part in (example_inputs, named)
        )
        x = example
    session = export_and_open_session(module, tmp_path / "model.onnx", example, False, example_inputs)
    assert (
        relative_error(session.run(None, graph_inputs_by_name(session, module, x, named)), call_module(module, x, named)) < 1e-4
    )


def test_arguments_of_a_graph_have_names():
    layer, example = make_layer_and_example("s6")
    plain = export_graph(layer, example)
    assert (plain.names, plain.dynamic_shapes, len(plain.arguments)) == (("x",), None, 1)
    state = layer.initial_state(2)
    assert export_graph(layer, example, inputs={"state": state, "elapsed": TIMES}).names == ("x", "elapsed", "state_0", "state_1")
    stepped = export_graph(layer, example, step=True, inputs={"elapsed": TIMES[:, 0]})
    assert stepped.names == ("x", "elapsed", "state_0", "state_1")


@pytest.mark.parametrize(
    ("name", "inputs", "step", "error", "message"),
    [
        ("s6", {"vald": TIMES}, False, ValueError, r"S6.forward \(elapsed, gate, seq_idx, state, valid\), got 'vald'"),
        ("s6", {"x": torch.ones(2, 5, 4)}, False, ValueError, "`inputs` must be .*, got 'x'"),
        ("s6", {"valid": TIMES}, True, ValueError, r"`inputs` must be arguments of S6.step \(active, elapsed\), got 'valid'$"),
        ("s6", {"state": None}, True, ValueError, "`inputs` must be .*, got 'state'"),
        ("s6", {"return_state": True}, False, ValueError, "`inputs` must be .*, got 'return_state'"),
        ("s6", {"valid": [True] * 5}, False, TypeError, r"`inputs\['valid'\]` must be a tensor, got a list"),
        ("s6", {"valid": torch.ones(2, 4, dtype=torch.bool)}, False, ValueError, r"`valid` must have shape \(2, 5\), got"),
        ("s6", {"state": (torch.zeros(2),)}, False, TypeError, "`state` must be a ScanState, got a tuple"),
        ("gru", {"elapsed": TIMES}, False, ValueError, "`elapsed` must be None, as GRU takes no elapsed times"),
        ("attention", {"state": "initial"}, False, ValueError, "`state` must be a state after at least two steps"),
    ],
    ids=str,
)
def test_invalid_graph_input_raises(name, inputs, step, error, message):
    layer, example = make_layer_and_example(name)
    if inputs.get("state") == "initial":
        inputs = {"state": layer.initial_state(2)}
    with pytest.raises(error, match=message):
        export_graph(layer, example, step=step, inputs=inputs)


def test_table_of_the_page_has_every_layer_and_small_errors():
    rows = re.findall(r"^\| `(\w+)` \|(.*)\|$", PAGE.read_text(), re.MULTILINE)
    assert sorted({name for name, _ in rows}) == sorted(LAYERS)
    for name, cells in rows:
        assert all(float(cell) <= 1e-4 for cell in cells.split("|")[1:]), name


def test_exporting_an_impossible_step_or_short_example_raises():
    with pytest.raises(ValueError, match=r"`example` must have shape \(batch, length >= 3, \.\.\.\), got \(\d+, 2"):
        export_graph(Attention(4), torch.randn(1, 2, 4))
    with pytest.raises(TypeError, match="`example` must be a tensor, got a str"):
        export_onnx(Attention(4), torch.randn(1, 5, 4), "graph.onnx")  # the order of torch.onnx.export
    with pytest.raises(TypeError, match="`module` must be a layer, a block or a model, got a NoneType"):
        export_graph(None, torch.randn(1, 5, 4))
    with pytest.raises(TypeError, match="`module` must be a layer, a block or a model, got a str"):
        export_onnx("s4d", "graph.onnx", torch.randn(1, 5, 4))
    with pytest.raises(ValueError, match="`step` must be False, as BidirectionalBlock cannot run step by step"):
        export_graph(BidirectionalBlock(4), torch.randn(1, 5, 4), step=True)
    forecaster = Forecaster.from_spec("m", d_model=4, d_input=2, horizon=3)
    with pytest.raises(ValueError, match="`step` must be False, as Forecaster cannot run step by step"):
        export_graph(forecaster, torch.randn(1, 5, 2), step=True)


@pytest.mark.parametrize(
    ("path", "error", "message"),
    [
        (7, TypeError, "`path` must be a str or a path, got 7"),
        (b"graph.onnx", TypeError, "`path` must be a str or a path, got b'graph.onnx'"),
        ("none/graph.onnx", FileNotFoundError, "`path` must be a file in a folder that exists, got .*graph.onnx"),
        ("", IsADirectoryError, "`path` must be a file, got the folder"),
    ],
)
def test_path_to_which_no_graph_can_be_written_raises(path, error, message, tmp_path):
    with pytest.raises(error, match=message):
        export_onnx(Attention(4), tmp_path / path if isinstance(path, str) else path, torch.zeros(1, 5, 4))


def test_export_logs_no_needless_lines_and_keeps_others(tmp_path, caplog, monkeypatch):
    registration = pytest.importorskip("torch.onnx._internal.exporter._registration")
    monkeypatch.setattr(registration.importlib.util, "find_spec", lambda _: None)  # as where torchvision is not installed
    register = registration.ONNXRegistry.register_op

    def register_with_warning(*args, **kwargs):
        registration.logger.warning("another line")
        return register(*args, **kwargs)

    monkeypatch.setattr(registration.ONNXRegistry, "register_op", register_with_warning)
    for logger in logging.root.manager.loggerDict.values():
        if isinstance(logger, logging.Logger) and not logger.propagate:  # its records do not reach the root logger
            monkeypatch.setattr(logger, "handlers", [caplog.handler])
    layer, example = make_layer_and_example("linoss")
    export_onnx(layer, tmp_path / "graph.onnx", example, step=True)  # onnxscript does not fold a constant of this graph
    assert {record.getMessage() for record in caplog.records if record.levelname == "WARNING"} == {"another line"}
    assert not registration.logger.filters


def test_inputs_of_another_kind_or_without_one_that_is_needed_raise():
    pairs = SiameseModel.from_spec("s4d", d_model=4, d_input=4, d_output=2, d_state=4)
    with pytest.raises(ValueError, match="`inputs` must have 'second', which SiameseModel needs, got none"):
        export_graph(pairs, torch.zeros(2, 5, 4))
    with pytest.raises(TypeError, match="`inputs` must be a mapping of names to tensors or None, got a list"):
        export_graph(pairs, torch.zeros(2, 5, 4), inputs=["second"])
