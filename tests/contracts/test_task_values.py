"""Compare what every task generates, scores and prints for seed 0 with a record, so that a change of a generator is detected.

The record also holds the tasks that read files, on the small made-up files of `made_up`. Where a change is intended, write it
anew with `python tests/contracts/test_task_values.py`, and say in the commit why data or scores have changed.
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

from recorded_values import TOLERANCE, describe, describe_table, differences

from longscan.tasks import Batch, Task
from longscan.tasks._random import CounterRNG
from task_variants import SPECIAL, VARIANTS

RECORD = Path(__file__).with_name("task_values.json")
# Without teacher forcing the languages of the clean suite are what they are by default.
# scipy's RK45 chooses its steps by an estimate of the error at a relative tolerance of 1e-3. A difference in the last bit of a
# power, as between processors with and without AVX-512, changes the steps: single voltages by up to 1e-2, these sums by 5e-5.
TOLERANCES = {"fitzhugh_nagumo-solver=published": 1e-3}
ALL = [*(variant for variant in VARIANTS if not variant.id.endswith("-teacher_forcing=False")), *SPECIAL]


def outputs(task: Task, batch: Batch) -> torch.Tensor:
    """Outputs of a model that knows nothing, of the shape that the task asks for: multiples of 1/16 between -2 and 2."""
    steps = batch.inputs.shape[:2] if task.per_step else batch.inputs.shape[:1]
    shape = (*steps, task.d_output)
    values = torch.arange(int(np.prod(shape))) * 7919 % 10_007 % 65
    return ((values - 32) / 16).reshape(shape)


def arrays(batch: Batch) -> dict[str, Any]:
    """The tensors of a batch that are not None."""
    return {name: part for name, part in batch._asdict().items() if part is not None}


def scores(task: Task) -> dict[str, Any]:
    """Losses, metrics, tables and texts of the first test examples under `outputs`, and the scores of constants."""
    batch = task.batch("test", 0, 4)
    output = outputs(task, batch)
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


def values_of(task: Task) -> dict[str, Any]:
    """Everything that is recorded of a task, with a small test set where that is a setting, as JSON gives it back."""
    if getattr(task, "test_size", 0) > 35:
        task = replace(task, test_size=35)
    values: dict[str, Any] = {
        "sizes": [task.vocab_size, task.d_input, task.num_classes, task.d_output, task.length, task.target_offset],
        "properties": [task.per_step, task.metric, task.higher_is_better, task.source, task.plot_kind],
        "names": [task.classes, task.symbols],
        "counts": [[task.size(split), task.num_batches(split, 7)] for split in task.splits],
        **{split: arrays(task.batch(split, 0, 5)) for split in task.splits},
        "train, another seed": task.batch("train", 1000, 3, seed=1).inputs,
        "scores": scores(task),
    }
    return json.loads(json.dumps(describe(values)))


def random_numbers() -> dict[str, Any]:
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


@pytest.mark.parametrize("task", ALL)
def test_a_task_gives_what_was_recorded(task, recorded, request):
    name = request.node.callspec.id
    assert name in recorded, f"{name} is new: write the record anew"
    assert differences(values_of(task), recorded[name], tolerance=TOLERANCES.get(name, TOLERANCE)) == []


def test_the_shared_generator_gives_what_was_recorded(recorded):
    assert differences(random_numbers(), recorded["CounterRNG"]) == []


def test_the_record_holds_nothing_else(recorded):
    assert recorded.keys() == {"CounterRNG", *(variant.id for variant in ALL)}


def test_a_record_notices_exchanged_and_slightly_changed_values():
    values = torch.linspace(-1, 1, 50)
    exchanged, changed = values.clone(), values.clone()
    exchanged[[3, 4]] = values[[4, 3]]
    changed[7] += 1e-3
    recorded = describe({"x": values})
    assert differences(describe({"x": values * (1 + 1e-7)}), recorded) == []
    for other in (exchanged, changed, values[:49], values.double()):
        assert len(differences(describe({"x": other}), recorded)) >= 1
    assert differences({"x": 1}, {"x": True}) == ["/x: 1, recorded True"]
    assert differences({"x": 1}, {"y": 1}) == ["/x: only in one of both", "/y: only in one of both"]


def write() -> None:
    """Write the record anew, a task a line."""
    torch.set_num_threads(1)
    values = {variant.id: values_of(variant.values[0]) for variant in ALL} | {"CounterRNG": random_numbers()}
    lines = (f"{json.dumps(name)}: {json.dumps(entry, ensure_ascii=False)}" for name, entry in sorted(values.items()))
    partial = RECORD.with_suffix(".partial")
    partial.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    partial.replace(RECORD)


if __name__ == "__main__":
    write()
