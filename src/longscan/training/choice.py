"""Settings of model and training chosen from the size of a task's data, for `longscan train FILE`."""

from math import ceil
from typing import Any

from longscan.tasks import Task

WIDTH, BLOCKS = 64, 2
MAX_STEPS_READ = 12_000_000  # largest number of sequence steps that training reads: a few minutes on two CPU cores
FEWEST_UPDATES, MOST_UPDATES = 300, 3_000
EPOCHS = 100  # passes over the training examples, within these limits
MAX_BATCH_STEPS = 16_384  # largest number of sequence steps in a batch


def choose_settings(task: Task, steps: int | None = None) -> dict[str, Any]:
    """Choose settings for a task with finite splits by the number and the length of its examples.

    Returns {"model": ..., "training": ...}, the content of these two sections of a recipe.

    Batches have an eighth of the training split, 8 to 32 examples, and at most `MAX_BATCH_STEPS` steps. The number of updates
    is `steps`. If this is None, it is that of `EPOCHS` passes, clipped to `FEWEST_UPDATES` and `MOST_UPDATES`, and smaller if
    more than `MAX_STEPS_READ` sequence steps would be read. There are up to ten validations; the weights with the smallest
    validation loss are selected, and three validations without a smaller loss end the training. The learning rate is smaller for
    forecasts, whose examples overlap.
    """
    size, length = task.size("train"), task.length
    assert size is not None
    batch = max(1, min(32, max(8, size // 8), MAX_BATCH_STEPS // length))
    updates = min(MOST_UPDATES, max(FEWEST_UPDATES, ceil(EPOCHS * size / batch)))
    updates = steps or max(100, min(updates, MAX_STEPS_READ // (batch * length)))
    model: dict[str, Any] = {"spec": f"mamba*{BLOCKS}", "d_model": WIDTH, "head": "affine"}
    training: dict[str, Any] = {
        "steps": updates,
        "batch_size": batch,
        "lr": 1e-3 if task.per_step else 3e-3,
        "weight_decay": 0.05,
        "schedule": "cosine",
        "warmup": updates // 10,
        "eval_every": max(1, updates // 10),
        "select": "best",
        "best_by": "loss",
        "patience": 3,
    }
    return {"model": model, "training": training}
