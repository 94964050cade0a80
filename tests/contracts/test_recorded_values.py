"""Compare the outputs of layers, blocks and ops for fixed random numbers with the committed tables in this folder.

parameters.json: for each parameter of each layer and block with the settings of the contract suite, its optimiser options
(role, lr_scale, decay, keep_float32) and figures of its initial values. outputs.json: figures of the outputs and gradients of
each layer, block and op in float64. The other tests compare implementations with each other and with equations; a change
that moves all of them together shows here. To write the files anew:

    PYTHONPATH=tests:tests/contracts python tests/contracts/test_recorded_values.py

The figures of a tensor are its mean, its mean weighted by cos(position), which depends on the order, and its mean square.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from test_layers import ENTRIES, WIDTH, build, options_of
from torch import Tensor

from longscan.layers import parameter_options
from longscan.layers.state import state_tensors
from longscan.models import SequenceModel
from longscan.ops import OPS
from op_examples import example, floats

FOLDER = Path(__file__).parent
DEFAULT_WIDTH = 64  # of the modules whose settings are all defaults
BATCH, LENGTH = 2, 7
MODELS: dict[str, dict[str, Any]] = {
    "rms norm": {"d_input": 2},
    "layer norm": {"vocab_size": 5, "norm": "layer", "head": "affine"},
    "batch norm": {"vocab_size": 5, "norm": "batch", "head": "mlp"},
    "post norm": {"d_input": 2, "norm": "post", "initial_state": "learned"},
}
Table = dict[str, dict[str, Any]]


def figures(x: Tensor) -> list[float]:
    """Mean, mean weighted by cos(position) and mean square of a tensor, to 6 digits."""
    values = (torch.view_as_real(x.resolve_conj()) if x.is_complex() else x).detach().double().flatten()
    weights = torch.arange(len(values), dtype=torch.float64).cos()
    sums = (values.sum(), (values * weights).sum(), (values * values).sum())
    return [float(f"{total.item() / max(1, len(values)):.6g}") for total in sums]


def assert_same_figures(found: list[float], kept: list[float], name: str) -> None:
    """The mean square must agree to 1e-5 relative, the means to 1e-5 of the root of the mean square."""
    assert found[2] == pytest.approx(kept[2], rel=1e-5, abs=1e-12), name
    assert found[:2] == pytest.approx(kept[:2], rel=1e-5, abs=1e-5 * kept[2] ** 0.5 + 1e-12), name


def parameters_of(entry: str) -> Table:
    """A row for each parameter and buffer of a layer or block, with each of its settings and with defaults alone."""
    rows = {}
    for options in options_of(entry):
        module = build(entry, options, dtype=torch.float32)
        rows |= {f"{entry} {options} {name}": parameter_row(x) for name, x in module.named_parameters()}
        rows |= {f"{entry} {options} {name}": {"values": figures(x)} for name, x in module.named_buffers()}
    torch.manual_seed(0)
    module = ENTRIES[entry](DEFAULT_WIDTH)
    return rows | {f"{entry} default {name}": parameter_row(x) for name, x in module.named_parameters()}


def parameters_of_models() -> Table:
    """A row for each parameter and buffer of models with each kind of norm, head, encoder and initial state."""
    rows = {}
    for kind, options in MODELS.items():
        torch.manual_seed(0)
        blocks = [{"layer": "s6", "block": "mamba", "options": {"d_state": 2}}]
        model = SequenceModel(blocks, d_model=WIDTH, d_output=3, **options)
        rows |= {f"model {kind} {name}": parameter_row(x) for name, x in model.named_parameters()}
        rows |= {f"model {kind} {name}": {"values": figures(x)} for name, x in model.named_buffers()}
    return rows


def parameter_row(parameter: Tensor) -> dict[str, Any]:
    """Shape, optimiser options and figures of a parameter."""
    return {"shape": list(parameter.shape), **parameter_options(parameter)._asdict(), "values": figures(parameter)}


def outputs_of(entry: str) -> Table:
    """A row for each result of a layer or block: plain, then with every optional input that it takes, in training mode."""
    rows = {}
    for options in options_of(entry):
        for kind in ("plain", "full"):
            module = build(entry, options)
            torch.manual_seed(1)
            x = torch.randn(BATCH, LENGTH, module.d_model, dtype=torch.float64, requires_grad=True)
            inputs: dict[str, Any] = {}
            if kind == "full":
                inputs["valid"] = torch.tensor([[True] * 5 + [False] * 2, [True] * LENGTH])
                if module.irregular:
                    inputs["elapsed"] = 2 * torch.rand(BATCH, LENGTH, dtype=torch.float64)
                if not module.changes_length:
                    inputs["seq_idx"] = torch.tensor([[0, 0, 0, 1, 1, 1, 1], [0, 1, 1, 1, 1, 2, 2]])
                module.train()
            returns_state = module.streaming
            found = module(x, return_state=True, **inputs) if returns_state else (module(x, **inputs), None)
            name = f"{entry} {options} {kind}"
            rows[name] = {"y": figures(found[0])}
            if returns_state:
                rows[name] |= {f"state {i}": figures(part) for i, part in enumerate(state_tensors(found[1]))}
            parameters = dict(module.named_parameters())
            weights = torch.randn(found[0].shape, dtype=torch.float64)
            grads = torch.autograd.grad((found[0] * weights).sum(), [x, *parameters.values()], allow_unused=True)
            given = {key: grad for key, grad in zip(("x", *parameters), grads, strict=True) if grad is not None}
            rows[name] |= {f"gradient of {key}": figures(grad) for key, grad in given.items()}
    return rows


def op_examples() -> Iterator[tuple[str, dict[str, Any]]]:
    """(name, arguments) of the calls of ops that are recorded."""
    for op in OPS:
        for is_complex in (False, True):
            for full in (False, True):
                torch.manual_seed(2)
                inputs = example(op, torch.float64, length=LENGTH, optional=full, masked=full, is_complex=is_complex)
                if "dt_softplus" in inputs and is_complex:
                    inputs |= {"dt_softplus": False, "paired": True}
                yield f"{op} {'complex' if is_complex else 'real'} {'full' if full else 'plain'}", inputs


def op_row(op: str, inputs: dict[str, Any], backend: str) -> dict[str, Any]:
    """Figures of an op's results and of the gradients of its inputs."""
    leaves = {name: x.clone().requires_grad_() for name, x in floats(inputs).items()}
    results = OPS[op].function(**(inputs | leaves), backend=backend)
    results = results if isinstance(results, tuple) else (results,)
    torch.manual_seed(3)
    total = sum((x * torch.randn(x.shape, dtype=x.dtype)).sum() for x in results)
    grads = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
    row = {f"result {i}": figures(x) for i, x in enumerate(results)}
    return row | {f"gradient of {name}": figures(g) for name, g in zip(leaves, grads, strict=True) if g is not None}


def read(name: str) -> Table:
    return json.loads((FOLDER / name).read_text(encoding="utf-8"))


def write(name: str, rows: Table) -> None:
    lines = [f"{json.dumps(key)}: {json.dumps(row)}" for key, row in sorted(rows.items())]
    (FOLDER / name).write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def compare(found: Table, kept: Table) -> None:
    """Equal names, equal options, and equal figures up to rounding."""
    assert sorted(found) == sorted(kept)
    for name, row in found.items():
        assert list(row) == list(kept[name]), name
        for key, value in row.items():
            if isinstance(value, list) and key != "shape":
                assert_same_figures(value, kept[name][key], f"{name}: {key}")
            else:
                assert value == kept[name][key], f"{name}: {key}"


def rows_of(table: Table, entry: str) -> Table:
    return {name: row for name, row in table.items() if name.startswith((f"{entry} {{", f"{entry} default"))}


@pytest.mark.parametrize("entry", ENTRIES)
def test_parameters_are_those_of_the_table(entry: str) -> None:
    compare(parameters_of(entry), rows_of(read("parameters.json"), entry))


@pytest.mark.parametrize("entry", ENTRIES)
def test_outputs_are_those_of_the_table(entry: str) -> None:
    compare(outputs_of(entry), rows_of(read("outputs.json"), entry))


@pytest.mark.parametrize("backend", ["reference", "eager", "auto"])
def test_results_of_ops_are_those_of_the_table(backend: str) -> None:
    kept = read("outputs.json")
    for name, inputs in op_examples():
        row = op_row(name.split(" ")[0], inputs, backend)
        compare({name: row}, {name: kept[name]})


def test_parameters_of_models_are_those_of_the_table() -> None:
    kept = {name: row for name, row in read("parameters.json").items() if name.startswith("model ")}
    compare(parameters_of_models(), kept)


def test_the_tables_hold_nothing_else() -> None:
    parameters = {name for name in read("parameters.json") if not name.startswith("model ")}
    assert parameters == {name for name in parameters if any(rows_of({name: {}}, entry) for entry in ENTRIES)}
    known = {name for name in read("outputs.json") if any(rows_of({name: {}}, entry) for entry in ENTRIES)}
    assert known | {name for name, _ in op_examples()} == set(read("outputs.json"))


if __name__ == "__main__":
    parameters = {name: row for entry in ENTRIES for name, row in parameters_of(entry).items()}
    write("parameters.json", parameters | parameters_of_models())
    outputs = {name: row for entry in ENTRIES for name, row in outputs_of(entry).items()}
    write("outputs.json", outputs | {name: op_row(name.split(" ")[0], inputs, "reference") for name, inputs in op_examples()})
