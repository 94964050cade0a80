"""Losses in a CUDA graph have the values and gradients of other losses, and no size that depends on values."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from longscan.tasks import TASKS, Batch, Task
from longscan.tasks import classification as classification_module
from longscan.tasks import regression as regression_module
from longscan.tasks.base import Reduction
from task_variants import make_small

TASKS_THAT_SCORE_SOME_STEPS = ["parity", "repetition", "forecast", "dna_language-masked", "series_forecast"]


def batch_of(name: str) -> tuple[Task, Batch, torch.Tensor]:
    """Return a task, a batch of it and random outputs for the batch."""
    name, _, objective = name.partition("-")
    task = make_small(TASKS[name], **({"objective": objective} if objective else {}))
    batch = task.batch("train", 0, 5, 0)
    torch.manual_seed(0)
    return task, batch, torch.randn(*batch.inputs.shape[:2], task.d_output)


def capture(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (classification_module, regression_module):
        monkeypatch.setattr(module, "is_captured", lambda: True)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("name", TASKS_THAT_SCORE_SOME_STEPS)
def test_captured_losses_have_the_same_values_and_gradients(
    name: str, reduction: Reduction, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, batch, output = batch_of(name)
    assert batch.loss_mask is not None
    assert not batch.loss_mask.all()
    smoothings = (0.0,) if task.classes is None else (0.0, 0.1)
    results = []
    for captured in (False, True):
        if captured:
            capture(monkeypatch)
        for smoothing in smoothings:
            leaf = output.clone().requires_grad_()
            loss = task.loss(leaf, batch, reduction, smoothing)
            results.append((loss.detach(), *torch.autograd.grad(loss, leaf)))
    n = len(smoothings)
    torch.testing.assert_close(results[n:], results[:n], rtol=1e-5, atol=1e-7)


def test_targets_at_steps_that_are_not_scored_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a forecast these targets may be NaN."""
    task, batch, output = batch_of("forecast")
    expected = task.loss(output, batch)
    assert batch.targets is not None
    assert batch.loss_mask is not None
    capture(monkeypatch)
    unknown = batch._replace(targets=batch.targets.masked_fill(~batch.loss_mask[..., None], torch.nan))
    torch.testing.assert_close(task.loss(output, unknown), expected)


@pytest.mark.parametrize("name", TASKS_THAT_SCORE_SOME_STEPS)
def test_captured_losses_have_no_size_that_depends_on_values(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    task, batch, output = batch_of(name)
    with FakeTensorMode() as mode:  # raises an error where a size depends on values, as in output[mask]
        fake = Batch(*(None if tensor is None else mode.from_tensor(tensor) for tensor in batch))
        fake_output = mode.from_tensor(output)
        with pytest.raises(Exception, match=r"aten\.(nonzero|index)"):
            task.loss(fake_output, fake)
        capture(monkeypatch)
        assert task.loss(fake_output, fake).shape == ()
