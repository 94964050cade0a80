"""The scores of a part of a split."""

from typing import Any

import pytest

from longscan.models import SequenceModel
from longscan.tasks import TASKS
from longscan.training.evaluate import evaluate


@pytest.mark.parametrize(
    ("max_batches", "expected"),
    [(0, [*range(10)]), (1, [0]), (3, [0, 3, 6]), (4, [0, 2, 5, 7]), (9, [*range(9)]), (10, [*range(10)]), (99, [*range(10)])],
)
def test_limited_batches_are_evenly_spaced_over_the_split(monkeypatch: Any, max_batches: int, expected: list[int]) -> None:
    """Files that are sorted by class would otherwise be scored on their first class alone."""
    task = TASKS["parity"]()
    model = SequenceModel.from_spec("lru", d_model=4, pooling="none", vocab_size=task.vocab_size, d_output=task.d_output)
    kind, batch, steps = type(task), type(task).batch, []
    monkeypatch.setattr(kind, "batch", lambda self, split, step, *rest: steps.append(step) or batch(self, split, step, *rest))
    evaluate(model, task, "valid", batch_size=100, max_batches=max_batches)
    assert steps == expected
