"""Compare what short runs log, choose and score with a record, for every part of the recipe, so that a changed step is detected.

If a change is intended, regenerate the record with `python tests/contracts/test_run_values.py`, and state in the commit message why
runs have changed.
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
    "plain": "--model.spec ma",
    "cosine": "--model.spec a --training.schedule cosine --training.warmup 2 --training.cooldown 2 --training.lr_min 0.0005 "
    '--training.lr_scale {"ssm":0.1} --training.betas [0.8,0.95] --training.weight_decay 0.5 --training.decay_all true',
    "restarts": "--model.spec m --training.schedule restarts --training.restart_period 2 --training.hold 1 --training.lr_min 0.0002 "
    '--training.lr_min_scaled false --training.lr_scale {"selector":0.3} --training.parameters {"A_log":{"lr_scale":0.5,"decay":true}} '
    '--training.weight_decay_by_role {"ssm":0.3,"dense":0.1} --training.steps 9',
    "average": "--model.spec lru --training.average 0.7 --training.average_start 0.3 --training.select average --training.lr 0.02",
    "mean of the weights": "--model.spec lru --training.average 1 --training.average_start 0.5 --training.lr 0.02",
    "best": "--model.spec lru --training.select best --training.best_by loss --training.eval_every 1 --training.patience 2 "
    "--training.lr 0.1 --training.steps 12",
    "solved": "--model.spec lru --training.solved_at 0.3 --training.solved_for 2 --training.steps 20",
    "curriculum": "--model.spec lru --training.curriculum.start 4 --training.curriculum.end 8 --training.curriculum.increment 2 "
    "--training.curriculum.every 2 --training.curriculum.threshold 0.2 --training.log_every 1",
    "late lengths": "--model.spec lru --training.late_lengths.share 0.5 --training.late_lengths.start 0.3 "
    "--training.late_lengths.shortest 10 --training.late_lengths.longest 12 --training.log_every 1",
    "smoothed sum": "--model.spec lru --training.label_smoothing 0.2 --training.loss_reduction sum --training.clip 0.1 "
    "--training.batch_repeats 2 --training.seed 3 --training.data_seed 5 --training.log_every 1",
    "part of the splits": "--model.spec s5 --training.eval_batches 1 --training.test_batches 2 --training.checkpoint_every 3",
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
    for name in ("baselines", "examples", "angles"):
        if (folder / f"{name}.json").exists():
            values[name] = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    return json.loads(json.dumps(describe(pack_numbers(values))))


def arguments(name: str) -> str:
    """Return the command line of a case."""
    return OTHER_TASKS.get(name) or f"{PARITY} {CASES[name]}"


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
