"""Compare the outputs of layers, blocks and ops for fixed random numbers with the committed tables in this folder.

parameters.json: for each parameter of each layer and block with the settings of the contract suite, its optimiser options
(role, lr_scale, decay, keep_float32) and statistics of its initial values. outputs.json: statistics of the outputs and gradients
of each layer, block and op in float64. Other tests compare implementations with each other and with equations; these also detect
a change that affects all implementations equally. To regenerate the files:

    PYTHONPATH=tests:tests/contracts python tests/contracts/test_recorded_values.py

The statistics of a tensor are its mean, its mean weighted by cos(position), which depends on the order, and its mean square.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from test_layers import ENTRIES, WIDTH, build, get_options
from torch import Tensor

from longscan.layers import parameter_options
from longscan.layers.state import state_tensors
from longscan.models import SequenceModel
from longscan.ops import OPS
from op_examples import example, floats

FOLDER = Path(__file__).parent
DEFAULT_WIDTH = 64  # of modules with default settings
BATCH, LENGTH = 2, 7
MODELS: dict[str, dict[str, Any]] = {
    "rms norm": {"d_input": 2},
    "layer norm": {"vocab_size": 5, "norm": "layer", "head": "affine"},
    "batch norm": {"vocab_size": 5, "norm": "batch", "head": "mlp"},
    "post norm": {"d_input": 2, "norm": "post", "initial_state": "learned"},
}
Table = dict[str, dict[str, Any]]


def compute_statistics(x: Tensor) -> list[float]:
    """Return the mean, the mean weighted by cos(position) and the mean square of a tensor, to 6 digits."""
    values = (torch.view_as_real(x.resolve_conj()) if x.is_complex() else x).detach().double().flatten()
    weights = torch.arange(len(values), dtype=torch.float64).cos()
    sums = (values.sum(), (values * weights).sum(), (values * values).sum())
    return [float(f"{total.item() / max(1, len(values)):.6g}") for total in sums]


def assert_statistics_match(actual: list[float], recorded: list[float], name: str) -> None:
    """Assert that the mean square agrees to 1e-5 of itself, and the means to 1e-5 of the root of the mean square."""
    assert actual[2] == pytest.approx(recorded[2], rel=1e-5, abs=1e-12), name
    assert actual[:2] == pytest.approx(recorded[:2], rel=1e-5, abs=1e-5 * recorded[2] ** 0.5 + 1e-12), name


def tabulate_parameters(entry: str) -> Table:
    """Return a row for each parameter and buffer of a layer or block, for all its OPTIONS and for its defaults."""
    rows = {}
    for options in get_options(entry):
        module = build(entry, options, dtype=torch.float32)
        rows |= {f"{entry} {options} {name}": describe_parameter(x) for name, x in module.named_parameters()}
        rows |= {f"{entry} {options} {name}": {"values": compute_statistics(x)} for name, x in module.named_buffers()}
    torch.manual_seed(0)
    module = ENTRIES[entry](DEFAULT_WIDTH)
    return rows | {f"{entry} default {name}": describe_parameter(x) for name, x in module.named_parameters()}


def tabulate_model_parameters() -> Table:
    """Return a row for each parameter and buffer of models with each kind of norm, head, encoder and initial state."""
    rows = {}
    for kind, options in MODELS.items():
        torch.manual_seed(0)
        blocks = [{"layer": "s6", "block": "mamba", "options": {"d_state": 2}}]
        model = SequenceModel(blocks, d_model=WIDTH, d_output=3, **options)
        rows |= {f"model {kind} {name}": describe_parameter(x) for name, x in model.named_parameters()}
        rows |= {f"model {kind} {name}": {"values": compute_statistics(x)} for name, x in model.named_buffers()}
    return rows


def describe_parameter(parameter: Tensor) -> dict[str, Any]:
    """Return the shape, the optimiser options and the statistics of a parameter."""
    return {"shape": list(parameter.shape), **parameter_options(parameter)._asdict(), "values": compute_statistics(parameter)}


def tabulate_outputs(entry: str) -> Table:
    """Return a row for each result of a layer or block: in evaluation mode, then with all optional inputs in training mode."""
    rows = {}
    for options in get_options(entry):
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
            y, state = module(x, return_state=True, **inputs) if module.streaming else (module(x, **inputs), None)
            name = f"{entry} {options} {kind}"
            rows[name] = {"y": compute_statistics(y)}
            rows[name] |= {f"state {i}": compute_statistics(part) for i, part in enumerate(state_tensors(state))}
            parameters = dict(module.named_parameters())
            weights = torch.randn(y.shape, dtype=torch.float64)
            grads = torch.autograd.grad((y * weights).sum(), [x, *parameters.values()], allow_unused=True)
            gradients = {key: grad for key, grad in zip(("x", *parameters), grads, strict=True) if grad is not None}
            rows[name] |= {f"gradient of {key}": compute_statistics(grad) for key, grad in gradients.items()}
    return rows


def list_op_examples() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the names and arguments of the recorded calls of ops."""
    for op in OPS:
        for is_complex in (False, True):
            for full in (False, True):
                torch.manual_seed(2)
                inputs = example(op, torch.float64, length=LENGTH, optional=full, masked=full, is_complex=is_complex)
                if "dt_softplus" in inputs and is_complex:
                    inputs |= {"dt_softplus": False, "paired": True}
                yield f"{op} {'complex' if is_complex else 'real'} {'full' if full else 'plain'}", inputs


def describe_op(op: str, inputs: dict[str, Any], backend: str) -> dict[str, Any]:
    """Return the statistics of an op's results and of the gradients of its inputs."""
    leaves = {name: x.clone().requires_grad_() for name, x in floats(inputs).items()}
    results = OPS[op].function(**(inputs | leaves), backend=backend)
    results = results if isinstance(results, tuple) else (results,)
    torch.manual_seed(3)
    total = sum((x * torch.randn(x.shape, dtype=x.dtype)).sum() for x in results)
    grads = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
    row = {f"result {i}": compute_statistics(x) for i, x in enumerate(results)}
    return row | {f"gradient of {name}": compute_statistics(g) for name, g in zip(leaves, grads, strict=True) if g is not None}


def read_table(name: str) -> Table:
    return json.loads((FOLDER / name).read_text(encoding="utf-8"))


def write_table(name: str, rows: Table) -> None:
    lines = [f"{json.dumps(key)}: {json.dumps(row)}" for key, row in sorted(rows.items())]
    (FOLDER / name).write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def assert_tables_match(actual: Table, recorded: Table) -> None:
    """Assert that names and options are equal, and statistics are equal up to rounding."""
    assert sorted(actual) == sorted(recorded)
    for name, row in actual.items():
        assert list(row) == list(recorded[name]), name
        for key, value in row.items():
            if isinstance(value, list) and key != "shape":
                assert_statistics_match(value, recorded[name][key], f"{name}: {key}")
            else:
                assert value == recorded[name][key], f"{name}: {key}"


def select_rows(table: Table, entry: str) -> Table:
    return {name: row for name, row in table.items() if name.startswith((f"{entry} {{", f"{entry} default"))}


@pytest.mark.parametrize("entry", ENTRIES)
def test_parameters_match_the_table(entry: str) -> None:
    assert_tables_match(tabulate_parameters(entry), select_rows(read_table("parameters.json"), entry))


@pytest.mark.parametrize("entry", ENTRIES)
def test_outputs_match_the_table(entry: str) -> None:
    assert_tables_match(tabulate_outputs(entry), select_rows(read_table("outputs.json"), entry))


@pytest.mark.parametrize("backend", ["reference", "eager", "auto"])
def test_results_of_ops_match_the_table(backend: str) -> None:
    recorded = read_table("outputs.json")
    for name, inputs in list_op_examples():
        row = describe_op(name.split(" ")[0], inputs, backend)
        assert_tables_match({name: row}, {name: recorded[name]})


def test_parameters_of_models_match_the_table() -> None:
    recorded = {name: row for name, row in read_table("parameters.json").items() if name.startswith("model ")}
    assert_tables_match(tabulate_model_parameters(), recorded)


def test_tables_have_no_other_rows() -> None:
    parameters = {name for name in read_table("parameters.json") if not name.startswith("model ")}
    assert parameters == {name for name in parameters if any(select_rows({name: {}}, entry) for entry in ENTRIES)}
    known = {name for name in read_table("outputs.json") if any(select_rows({name: {}}, entry) for entry in ENTRIES)}
    assert known | {name for name, _ in list_op_examples()} == set(read_table("outputs.json"))


if __name__ == "__main__":
    parameters = {name: row for entry in ENTRIES for name, row in tabulate_parameters(entry).items()}
    write_table("parameters.json", parameters | tabulate_model_parameters())
    outputs = {name: row for entry in ENTRIES for name, row in tabulate_outputs(entry).items()}
    write_table(
        "outputs.json",
        outputs | {name: describe_op(name.split(" ")[0], inputs, "reference") for name, inputs in list_op_examples()},
    )
