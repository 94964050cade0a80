"""Settings that `longscan train FILE` chooses from the size of the data."""

from types import SimpleNamespace
from typing import Any

import pytest

from longscan.training.choice import choose_settings


def task_of(size: int, length: int, per_step: bool = False) -> Any:
    """Return what the choice reads of a task."""
    return SimpleNamespace(size=lambda split: {"train": size}[split], length=length, per_step=per_step)


@pytest.mark.parametrize(
    ("size", "length", "batch", "updates"),
    [
        (1000, 10, 32, 3000),  # a hundred passes would be 3,125 updates
        (264, 10, 32, 825),
        (200, 10, 25, 800),  # an eighth of the examples
        (201, 10, 25, 804),  # 100 passes, rounded up
        (40, 100, 8, 500),
        (10, 5, 8, 300),  # a hundred passes would be 125 updates
        (100, 2000, 8, 750),  # 16,384 steps in a batch, 12 million in all
        (15, 20_000, 1, 600),
        (10, 200_000, 1, 100),  # 12 million steps would be 60 updates
        (64, 16_384, 1, 732),
        (64, 8_192, 2, 732),
    ],
)
def test_batches_and_updates_follow_the_data(size: int, length: int, batch: int, updates: int) -> None:
    training = choose_settings(task_of(size, length))["training"]
    assert (training["batch_size"], training["steps"]) == (batch, updates)
    assert (training["warmup"], training["eval_every"]) == (updates // 10, updates // 10)


@pytest.mark.parametrize(("steps", "tenth"), [(7, 0), (25, 2), (5000, 500)])
def test_a_number_of_updates_that_is_given_is_used(steps: int, tenth: int) -> None:
    training = choose_settings(task_of(1000, 10), steps)["training"]
    assert (training["steps"], training["warmup"], training["eval_every"]) == (steps, tenth, max(1, tenth))


@pytest.mark.parametrize(("per_step", "lr"), [(True, 0.001), (False, 0.003)])
def test_the_other_settings_are_constants(per_step: bool, lr: float) -> None:
    assert choose_settings(task_of(40, 100, per_step)) == {
        "model": {"spec": "mamba*2", "d_model": 64, "head": "affine"},
        "training": {
            "steps": 500,
            "batch_size": 8,
            "lr": lr,
            "weight_decay": 0.05,
            "schedule": "cosine",
            "warmup": 50,
            "eval_every": 50,
            "select": "best",
            "best_by": "loss",
            "patience": 3,
        },
    }
