"""The learning rate over the steps, against torch's schedulers and against its definition."""

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, CosineAnnealingWarmRestarts

from longscan.training import TrainingSettings


def rates(**values: object) -> list[float]:
    settings = TrainingSettings(**values)
    return [settings.learning_rate(step) for step in range(settings.steps)]


def torch_rates(scheduler: type, lr: float, steps: int, *args: object, **values: object) -> list[float]:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr)
    schedule = scheduler(optimizer, *args, **values)
    found = []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return found


@pytest.mark.parametrize("factor", [1, 2, 3])
def test_restarts_are_those_of_torch(factor: int) -> None:
    ours = rates(steps=60, lr=0.01, lr_min=1e-5, schedule="restarts", restart_period=7, restart_factor=factor)
    theirs = torch_rates(CosineAnnealingWarmRestarts, 0.01, 60, 7, T_mult=factor, eta_min=1e-5)
    assert ours == pytest.approx(theirs, rel=1e-12)


def test_cosine_is_that_of_torch() -> None:
    ours = rates(steps=40, lr=0.02, lr_min=1e-3, schedule="cosine")
    assert ours == pytest.approx(torch_rates(CosineAnnealingLR, 0.02, 40, 40, eta_min=1e-3), rel=1e-9)


def test_warmup_climbs_in_equal_steps_to_the_rate() -> None:
    found = rates(steps=10, lr=1.0, warmup=4)
    assert found == pytest.approx([0.2, 0.4, 0.6, 0.8, 1, 1, 1, 1, 1, 1])


def test_cosine_begins_after_the_warmup() -> None:
    found = rates(steps=12, lr=1.0, schedule="cosine", warmup=2)
    assert found[2:] == pytest.approx(rates(steps=10, lr=1.0, schedule="cosine"))


def test_the_schedule_waits_for_the_end_of_the_hold() -> None:
    held = rates(steps=12, lr=1.0, schedule="cosine", warmup=2, hold=3)
    assert held[:2] == rates(steps=12, lr=1.0, warmup=2)[:2]
    assert held[2:5] == [1.0] * 3
    assert held[5:] == rates(steps=7, lr=1.0, schedule="cosine")


def test_cooldown_falls_in_equal_steps() -> None:
    found = rates(steps=8, lr=1.0, cooldown=4)
    assert found == pytest.approx([1, 1, 1, 1, 0.8, 0.6, 0.4, 0.2])
