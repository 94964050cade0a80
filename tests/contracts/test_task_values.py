"""Compare what every task generates, scores and prints for seed 0 with a record, so that a changed generator is detected.

Tasks that read files read the small generated files of `made_up`. If a change is intended, regenerate the record with
`python tests/contracts/test_task_values.py`, and state in the commit message why data or scores have changed.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from recorded_values import TOLERANCE, describe, describe_table, list_differences

from longscan.tasks import Batch, Task
from longscan.tasks._random import CounterRNG
from task_variants import SPECIAL, VARIANTS

RECORD = Path(__file__).with_name("task_values.json")

# scipy's RK45 chooses its steps by an estimate of the error at a relative tolerance of 1e-3. A difference in the last bit of a
# power, as between processors with and without AVX-512, changes the steps: single voltages by up to 1e-2, these sums by 5e-5.
TOLERANCES = {"fitzhugh_nagumo-solver=published": 1e-3}
# Without teacher forcing, the other languages are the same as with default settings.
RECORDED_TASKS = [*(variant for variant in VARIANTS if not variant.id.endswith("-teacher_forcing=False")), *SPECIAL]


def make_outputs(task: Task, batch: Batch) -> torch.Tensor:
    """Return model outputs of the task's shape that do not depend on the inputs: multiples of 1/16 between -2 and 2."""
    steps = batch.inputs.shape[:2] if task.per_step else batch.inputs.shape[:1]
    shape = (*steps, task.d_output)
    values = torch.arange(int(np.prod(shape))) * 7919 % 10_007 % 65
    return ((values - 32) / 16).reshape(shape)


def select_tensors(batch: Batch) -> dict[str, Any]:
    """Return the tensors of a batch that are not None, by name."""
    return {name: part for name, part in batch._asdict().items() if part is not None}


def compute_scores(task: Task) -> dict[str, Any]:
    """Return losses, metrics, tables and texts of the first test examples for `make_outputs`, and the scores of constants."""
    batch = task.batch("test", 0, 4)
    output = make_outputs(task, batch)
    metrics = task.metrics("test")
    task.update(metrics, output, batch)
    values: dict[str, Any] = {
        "loss": [task.loss(output, batch).item(), task.loss(output, batch, reduction="sum").item()],
        "metrics": {name: metric.compute() for name, metric in metrics.items()},
        "metrics_of": [list(task.metrics("train")), list(task.metrics("valid"))],
        "decoded": describe_table(task.decode(output, batch)),
        "examples": [task.describe(batch, row) for row in (0, 3)],
        "constant": [task.constant_score("valid"), task.constant_score("test")],
        "baselines": task.baselines("valid"),
        "scaled": [task.scaled(0.25), task.scaled(0.75)],
    }
    if task.num_classes is not None:
        values["smoothed"] = task.loss(output, batch, smoothing=0.125).item()
    return values


def compute_values(task: Task) -> dict[str, Any]:
    """Return all recorded values of a task, with at most 35 test examples if their number is a setting, as read from JSON."""
    if getattr(task, "test_size", 0) > 35:
        task = replace(task, test_size=35)
    values: dict[str, Any] = {
        "sizes": [task.vocab_size, task.d_input, task.num_classes, task.d_output, task.length, task.target_offset],
        "properties": [task.per_step, task.metric, task.higher_is_better, task.source, task.plot_kind],
        "names": [task.classes, task.symbols],
        "counts": [[task.size(split), task.num_batches(split, 7)] for split in task.splits],
        **{split: select_tensors(task.batch(split, 0, 5)) for split in task.splits},
        "train, another seed": task.batch("train", 1000, 3, seed=1).inputs,
        "scores": compute_scores(task),
    }
    if hasattr(task, "summary"):
        values["names"].append(task.channel_names)
        values["summary"] = {name: text.replace(str(task.path), "FILE") for name, text in task.summary()}
    return json.loads(json.dumps(describe(values)))


def draw_random_numbers() -> dict[str, Any]:
    """Return numbers of the random number generator that all tasks share."""
    rng = CounterRNG(("key", 1, ("nested", 2)), 3)
    return {
        "integers": describe(rng.integers(-2, 9, (3, 5))),
        "integers_below": describe(rng.integers(1, np.arange(2, 9), 7)),
        "uniform": describe(rng.uniform((2, 3))),
        "normal": describe(rng.normal(7)),
        "permutation": describe(rng.permutation(9)),
        "next": describe(rng.integers(0, 2**32, 2)),
    }


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    return json.loads(RECORD.read_text(encoding="utf-8"))


@pytest.mark.parametrize("task", RECORDED_TASKS)
def test_task_values_match_the_record(task, recorded, request):
    name = request.node.callspec.id
    assert name in recorded, f"{name} has no record: regenerate the file"
    assert list_differences(compute_values(task), recorded[name], tolerance=TOLERANCES.get(name, TOLERANCE)) == []


def test_random_numbers_match_the_record(recorded):
    assert list_differences(draw_random_numbers(), recorded["CounterRNG"]) == []


def test_record_has_no_other_entries(recorded):
    assert recorded.keys() == {"CounterRNG", *(variant.id for variant in RECORDED_TASKS)}


def test_list_differences_finds_exchanged_and_slightly_changed_values():
    values = torch.linspace(-1, 1, 50)
    exchanged, changed = values.clone(), values.clone()
    exchanged[[3, 4]] = values[[4, 3]]
    changed[7] += 1e-3
    recorded = describe({"x": values})
    assert list_differences(describe({"x": values * (1 + 1e-7)}), recorded) == []
    for other in (exchanged, changed, values[:49], values.double()):
        assert len(list_differences(describe({"x": other}), recorded)) >= 1
    assert list_differences({"x": 1}, {"x": True}) == ["/x: 1, recorded True"]
    assert list_differences({"x": 1}, {"y": 1}) == ["/x: only in one of the two", "/y: only in one of the two"]


def write_record() -> None:
    """Write the record with one line per task."""
    torch.set_num_threads(1)
    values = {variant.id: compute_values(variant.values[0]) for variant in RECORDED_TASKS} | {"CounterRNG": draw_random_numbers()}
    lines = (f"{json.dumps(name)}: {json.dumps(entry, ensure_ascii=False)}" for name, entry in sorted(values.items()))
    partial = RECORD.with_suffix(".partial")
    partial.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    partial.replace(RECORD)


if __name__ == "__main__":
    write_record()
