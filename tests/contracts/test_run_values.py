"""Compare what short runs log, choose and score with a record, for every part of the recipe, to detect a changed step.

If a change is intended, regenerate the record with `python tests/contracts/test_run_values.py`, and state in the commit message
why runs have changed.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from recorded_values import describe, list_differences

from longscan.training import parse_settings, train

RECORD = Path(__file__).with_name("run_values.json")
TOLERANCE = 2e-4  # updates repeat and enlarge rounding errors
PARITY = "--task parity --task.train_lengths [3,8] --task.eval_lengths [9,12] --task.valid_size 16 --task.test_size 24"
STEPS = "--training.steps 6 --training.batch_size 8 --training.eval_every 2 --training.log_every 2"
SMALL = "--model.d_model 4 --model.d_state 2 --model.backend eager --training.threads 1 --training.device cpu"
RESULTS = (
    *("task", "suite", "metric", "higher_is_better", "params", "value", "scaled", "selected", "confusion", "by_length", "test"),
    *("constant", "constant_scaled", "status", "steps", "stopped_early", "valid", "classes"),
)
CASES = {
    "plain": "spec=ma",
    "cosine": "spec=a schedule=cosine warmup=2 cooldown=2 lr_min=0.0005 lr_scale={'ssm':0.1} betas=[0.8,0.95] weight_decay=0.5 "
    "decay_all=true",
    "restarts": "spec=m schedule=restarts restart_period=2 hold=1 lr_min=0.0002 lr_min_scaled=false lr_scale={'selector':0.3} "
    "parameters={'A_log':{'lr_scale':0.5,'decay':true}} weight_decay_by_role={'ssm':0.3,'dense':0.1} steps=9",
    "average": "spec=lru average=0.7 average_start=0.3 select=average lr=0.02",
    "mean of the weights": "spec=lru average=1 average_start=0.5 lr=0.02",
    "best": "spec=lru select=best best_by=loss eval_every=1 patience=2 lr=0.1 steps=12",
    "best of equal scores": "spec=lru select=best eval_every=1 lr=0.002",
    "solved": "spec=lru solved_at=0.3 solved_for=2 steps=20",
    "curriculum": "spec=lru curriculum.start=4 curriculum.end=8 curriculum.increment=2 curriculum.every=2 "
    "curriculum.threshold=0.2 log_every=1",
    "late lengths": "spec=lru late_lengths.share=0.5 late_lengths.start=0.3 late_lengths.shortest=10 late_lengths.longest=12 "
    "log_every=1",
    "smoothed sum": "spec=lru label_smoothing=0.2 loss_reduction=sum clip=0.1 batch_repeats=2 seed=3 data_seed=5 log_every=1",
    "part of the splits": "spec=s5 eval_batches=1 test_batches=2 checkpoint_every=3",
}
OTHER_TASKS = {
    "answers at steps": "--task chomsky_reverse_string --model.spec lru --task.valid_size 8 --task.test_size 8",
    "numbers at uneven times": "--task pendulum --model.spec s5 --task.train_size 8 --task.valid_size 8 --task.test_size 8",
}


def pack_numbers(value: Any) -> Any:
    """Return nested values with every list of numbers as an array."""
    if isinstance(value, dict):
        return {name: pack_numbers(item) for name, item in value.items()}
    if isinstance(value, list):
        is_number = all(isinstance(item, int | float) and not isinstance(item, bool) for item in value)
        return np.array(value, dtype=np.float64) if value and is_number else [pack_numbers(item) for item in value]
    return value


def run_values(argv: str, folder: Path) -> dict[str, Any]:
    """Return the recorded values of a run, as read from JSON."""
    run = train(parse_settings([*STEPS.split(), *argv.split(), *SMALL.split()]), folder)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert run.result is not None
    values: dict[str, Any] = {
        "rows": [{name: value for name, value in row.items() if name != "seconds"} for row in rows],
        "result": {name: run.result[name] for name in RESULTS if name in run.result},
        "weights": {
            name: float(value.double().norm()) for name, value in run.model().state_dict().items() if value.is_floating_point()
        },
    }
    for name in ("baselines", "angles") if "training." in argv else ("baselines", "angles", "examples"):
        if (folder / f"{name}.json").exists():
            values[name] = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    return json.loads(json.dumps(describe(pack_numbers(values))))


def arguments(name: str) -> str:
    """Return the command line of a case."""
    if name in OTHER_TASKS:
        return OTHER_TASKS[name]
    given = (part if part.startswith("spec=") else f"training.{part}" for part in CASES[name].split())
    return f"{PARITY} {' '.join(f'--{part}'.replace('--spec', '--model.spec') for part in given)}"


def test_record_has_every_case() -> None:
    assert sorted(json.loads(RECORD.read_text(encoding="utf-8"))) == sorted([*CASES, *OTHER_TASKS])


@pytest.mark.parametrize("name", [*CASES, *OTHER_TASKS])
def test_values_match_the_record(name: str, tmp_path: Path) -> None:
    recorded = json.loads(RECORD.read_text(encoding="utf-8"))[name]
    assert not list_differences(run_values(arguments(name), tmp_path / "run"), recorded, tolerance=TOLERANCE)


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        found = {name: run_values(arguments(name), Path(folder) / name) for name in sorted([*CASES, *OTHER_TASKS])}
    RECORD.write_text("{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(values)}" for name, values in found.items()) + "\n}\n")
