"""The smallest and largest values of each setting, retired settings, and exit codes of the workers of a sweep."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from longscan.training import (
    CurriculumSettings,
    LateLengthSettings,
    ModelSettings,
    ParameterSettings,
    SettingError,
    TrainingSettings,
    workers,
)
from longscan.training.parsing import merge, parse_settings, without_retired

COUNT = ([1, 2**40], [0, -1, 0.5, float("inf"), float("nan")])
COUNT_OR_OFF = ([0, 1, 2**40], [-1, -0.5, float("inf")])
POSITIVE = ([1e-12, 1.0, 1e9], [0.0, -1e-12, float("inf"), float("nan")])
NOT_NEGATIVE = ([0.0, 1e9], [-1e-12, float("inf"), float("nan")])
FRACTION = ([0.0, 0.5, 1.0], [-1e-12, 1 + 1e-12, float("nan")])
BELOW_ONE = ([0.0, 0.5, 1 - 1e-12], [-1e-12, 1.0])
SEED = ([0, 2**63 - 1024], [-1, 2**63])
BOUNDS: dict[type, dict[str, tuple[list[Any], list[Any]]]] = {
    ModelSettings: {
        "spec": (["m"], [""]),
        "d_model": COUNT,
        "d_state": COUNT,
        "encoder": (["auto", "conv2d"], ["linear"]),
        "pooling": (["auto", "mean", "last", "none"], ["max"]),
        "head": (["linear", "affine", "mlp"], ["none"]),
        "initial_state": (["zero", "learned"], ["random"]),
        "norm": (["rms", "layer", "batch", "post"], ["none"]),
        "backend": (["auto", "reference", "eager", "cpu", "triton"], ["cuda"]),
    },
    CurriculumSettings: {
        "start": ([0, 1, 40], [-1, 41]),
        "end": ([1, 2**40], [0, -1]),
        "increment": COUNT,
        "threshold": FRACTION,
        "every": COUNT,
    },
    LateLengthSettings: {"share": FRACTION, "start": FRACTION, "shortest": ([1, 40], [0, 41]), "longest": ([32, 2**40], [31])},
    ParameterSettings: {"lr_scale": ([None, *NOT_NEGATIVE[0]], NOT_NEGATIVE[1]), "decay": ([None, True, False], [0, "no"])},
    TrainingSettings: {
        "steps": COUNT,
        "batch_size": COUNT,
        "batch_repeats": COUNT,
        "lr": POSITIVE,
        "betas": ([(0.0, 0.0), (0.5, 1 - 1e-12)], [(1.0, 0.5), (0.5, 1.0), (-1e-12, 0.5), (0.5,), (0.5, 0.5, 0.5)]),
        "weight_decay": NOT_NEGATIVE,
        "weight_decay_by_role": ([{"ssm": 0.0}, {"norm": 2.0}], [{"ssm": -1e-12}, {"other": 1.0}]),
        "lr_scale": ([{"ssm": 0.0}, {"norm": 2.0, "dense": 1.0}], [{"ssm": -1e-12}, {"other": 1.0}, {"ssm": float("inf")}]),
        "schedule": (["constant", "cosine", "restarts"], ["linear"]),
        "warmup": ([0, 1, 1000], [-1, 1001]),
        "hold": ([0, 1, 1000], [-1, 1001]),
        "cooldown": ([0, 1, 1000], [-1, 1001]),
        "lr_min": NOT_NEGATIVE,
        "parameters": ([{}], [{"A_log": {"lr_scale": -1e-12}}, {"A_log": 0.1}]),
        "restart_period": COUNT,
        "restart_factor": COUNT,
        "clip": NOT_NEGATIVE,
        "loss_reduction": (["mean", "sum"], ["none"]),
        "label_smoothing": BELOW_ONE,
        "average": FRACTION,
        "average_start": BELOW_ONE,
        "select": (["last", "best"], ["average", "first"]),
        "best_by": (["metric", "loss"], ["accuracy"]),
        "eval_every": COUNT_OR_OFF,
        "eval_batches": COUNT_OR_OFF,
        "test_batches": COUNT_OR_OFF,
        "patience": COUNT_OR_OFF,
        "solved_at": NOT_NEGATIVE,
        "solved_for": COUNT,
        "checkpoint_every": COUNT_OR_OFF,
        "log_every": COUNT,
        "seed": SEED,
        "data_seed": ([None, *SEED[0]], SEED[1]),
        "device": (["auto", "cpu", "cuda", "mps"], ["tpu"]),
        "precision": (["float32", "bfloat16"], ["float16"]),
        "threads": ([0, 1, 1024], [-1, 1025]),
        "prefetch": COUNT_OR_OFF,
        "context": COUNT,
    },
}
UNBOUNDED = {
    "block_options",
    "decay_all",
    "lr_min_scaled",
    "curriculum",
    "late_lengths",
    "start_from",
    "start_from_reverse",
    "capture",
    "shard",
    "trackers",
    "padding",
    "positions",
}


def test_every_setting_has_bounds_in_this_file() -> None:
    for kind, bounds in BOUNDS.items():
        assert {field.name for field in fields(kind)} - UNBOUNDED == set(bounds)


@pytest.mark.parametrize("kind", BOUNDS, ids=lambda kind: kind.__name__)
def test_values_at_the_bounds_are_accepted_and_beyond_them_raise(kind: Any) -> None:
    for name, (accepted, rejected) in BOUNDS[kind].items():
        for value in accepted:
            assert getattr(kind(**{name: value}), name) == value
        for value in rejected:
            with pytest.raises(SettingError, match=r"` must be .*, got "):
                kind(**{name: value})


@pytest.mark.parametrize(
    ("values", "rejected"),
    [
        ({"schedule": "cosine", "lr": 0.1, "lr_min": 0.1}, None),
        ({"schedule": "cosine", "lr": 0.1, "lr_min": 0.2}, "training.lr_min"),
        ({"schedule": "restarts", "lr": 0.1, "lr_min": 0.2}, "training.lr_min"),
        ({"schedule": "constant", "lr": 0.1, "lr_min": 0.2}, None),
        ({"steps": 6, "warmup": 1, "hold": 2, "cooldown": 3}, None),
        ({"steps": 5, "warmup": 1, "hold": 2, "cooldown": 3}, "training.warmup"),
        ({"select": "average", "average": 0.9}, None),
        ({"patience": 1, "eval_every": 1}, None),
        ({"patience": 1, "eval_every": 0}, "training.patience"),
        ({"solved_at": 0.5, "eval_every": 0}, "training.solved_at"),
    ],
    ids=str,
)
def test_inconsistent_settings_raise(values: dict[str, Any], rejected: str | None) -> None:
    if rejected is None:
        TrainingSettings(**values)
        return
    with pytest.raises(SettingError, match=rf"^`{rejected}` must be .*, got {values[rejected.partition('.')[2]]}"):
        TrainingSettings(**values)


def test_max_batches_depends_on_the_split() -> None:
    settings = TrainingSettings(eval_batches=3, test_batches=5)
    assert [settings.max_batches(split) for split in ("train", "valid", "test")] == [3, 3, 5]


def test_retired_settings_are_removed_or_raise() -> None:
    values = {"training": {"optimizer": "adamw", "lr": 0.1}, "model": {"optimizer": "other"}}
    result = without_retired(values)
    assert result == {"training": {"lr": 0.1}, "model": {"optimizer": "other"}}
    assert values == {"training": {"optimizer": "adamw", "lr": 0.1}, "model": {"optimizer": "other"}}
    assert without_retired({"model": {}}) == {"model": {}}
    with pytest.raises(SettingError, match=r"`training\.optimizer` must be adamw or left out, as every run does this, got 'sgd'"):
        without_retired({"training": {"optimizer": "sgd"}})


def test_merge_does_not_change_its_arguments() -> None:
    base, over = {"a": {"b": 1, "c": 2}, "d": 3, "f": {"g": 1}}, {"a": {"c": 4}, "d": {"e": 5}, "f": 6}
    assert merge(base, over) == {"a": {"b": 1, "c": 4}, "d": {"e": 5}, "f": 6}
    assert (base["a"], over["a"]) == ({"b": 1, "c": 2}, {"c": 4})


HUGE, DEEP = "9" * 400, "[" * 2000


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (f"task: {{name: parity}}\ntraining: {{lr: {HUGE}}}", r"`training\.lr` must be a number above 0, got 9{100}\.\.\."),
        (f"task: {{name: parity}}\ntraining: {{steps: -{HUGE}}}", r"`training\.steps` must be a whole .*, got -9{99}\.\.\."),
        (f"task: {{name: parity, train_lengths: [3, {HUGE}]}}", r"`task\.train_lengths\[1\]` must be a .*, got 9{100}\.\.\."),
        (f"task: {DEEP}", r"recipe\.yaml must be .*, got text that is not YAML: nested too deeply"),
        (f"task: {{name: {'parity' * 100}}}", r"`task\.name` must be the name of a task, got '(parity){16}par\.\.\."),
    ],
    ids=["huge rate", "huge steps", "huge length", "deep", "long name"],
)
def test_huge_values_in_a_file_give_a_short_error_of_one_line(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(line)
    with pytest.raises(SettingError, match=message) as raised:
        parse_settings(["--config", str(path)])
    assert len(str(raised.value)) < 1000
    assert "\n" not in str(raised.value)


def test_failed_worker_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(workers, "_PROGRAM", "import os, sys; sys.exit(3 * int(os.environ['OMP_NUM_THREADS']))")
    monkeypatch.setattr(workers, "worker_environment", lambda position, _: {"OMP_NUM_THREADS": str(position)})
    lines: list[str] = []
    workers.run_workers(tmp_path, 2, lines.append)
    assert lines == ["a worker ended with code 3, other workers continue its runs"]
