"""The learning rate over the steps, compared with the schedulers of torch and with its definition."""

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, CosineAnnealingWarmRestarts

from longscan.training import TrainingSettings


def learning_rates(**values: object) -> list[float]:
    settings = TrainingSettings(**values)
    return [settings.learning_rate(step) for step in range(settings.steps)]


def torch_learning_rates(scheduler: type, lr: float, steps: int, *args: object, **values: object) -> list[float]:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr)
    schedule = scheduler(optimizer, *args, **values)
    rates = []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return rates


@pytest.mark.parametrize("factor", [1, 2, 3])
def test_restarts_equal_those_of_torch(factor: int) -> None:
    rates = learning_rates(steps=60, lr=0.01, lr_min=1e-5, schedule="restarts", restart_period=7, restart_factor=factor)
    expected = torch_learning_rates(CosineAnnealingWarmRestarts, 0.01, 60, 7, T_mult=factor, eta_min=1e-5)
    assert rates == pytest.approx(expected, rel=1e-12)


def test_cosine_equals_that_of_torch() -> None:
    rates = learning_rates(steps=40, lr=0.02, lr_min=1e-3, schedule="cosine")
    assert rates == pytest.approx(torch_learning_rates(CosineAnnealingLR, 0.02, 40, 40, eta_min=1e-3), rel=1e-9)


def test_lowest_rate_of_groups_is_scaled_or_that_of_torch() -> None:
    """PyTorch's schedule has one lowest rate: a group that starts there keeps its rate, one that starts below it rises."""
    scales, values = [1.0, 0.1, 0.05], {"steps": 40, "lr": 0.02, "lr_min": 2e-3, "schedule": "cosine"}
    optimizer = torch.optim.SGD([{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": 0.02 * scale} for scale in scales])
    schedule, settings = CosineAnnealingLR(optimizer, 40, eta_min=2e-3), TrainingSettings(**values, lr_min_scaled=False)
    for step in range(40):
        rates = [settings.learning_rate(step, scale) for scale in scales]
        assert rates == pytest.approx([group["lr"] for group in optimizer.param_groups], rel=1e-9)
        assert [TrainingSettings(**values).learning_rate(step, scale) for scale in scales] == pytest.approx(
            [rates[0] * scale for scale in scales]
        )
        optimizer.step()
        schedule.step()


def test_warmup_scales_with_the_group() -> None:
    settings = TrainingSettings(steps=10, lr=1.0, warmup=4)
    assert [settings.learning_rate(step, 0.5) for step in (0, 5)] == pytest.approx([0.1, 0.5])


def test_warmup_increases_linearly_to_the_rate() -> None:
    rates = learning_rates(steps=10, lr=1.0, warmup=4)
    assert rates == pytest.approx([0.2, 0.4, 0.6, 0.8, 1, 1, 1, 1, 1, 1])


def test_cosine_starts_after_the_warmup() -> None:
    rates = learning_rates(steps=12, lr=1.0, schedule="cosine", warmup=2)
    assert rates[2:] == pytest.approx(learning_rates(steps=10, lr=1.0, schedule="cosine"))


def test_cosine_starts_after_the_hold() -> None:
    rates = learning_rates(steps=12, lr=1.0, schedule="cosine", warmup=2, hold=3)
    assert rates[:2] == learning_rates(steps=12, lr=1.0, warmup=2)[:2]
    assert rates[2:5] == [1.0] * 3
    assert rates[5:] == learning_rates(steps=7, lr=1.0, schedule="cosine")


def test_cooldown_decreases_linearly() -> None:
    rates = learning_rates(steps=8, lr=1.0, cooldown=4)
    assert rates == pytest.approx([1, 1, 1, 1, 0.8, 0.6, 0.4, 0.2])
