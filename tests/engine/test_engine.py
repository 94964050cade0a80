"""The training loop: updates, the order of callbacks, and losses that are not finite."""

import math
import threading
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from longscan.engine import Callback, Engine, NonFiniteLossError, StepResult, set_learning_rates


class Recorder(Callback):
    """Record the events of a training run."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.events: list[Any] = []
        self.stop_at = stop_at

    def on_step_end(self, engine: Engine, result: StepResult) -> None:
        self.events.append(engine.step)
        engine.log({"rate": result.learning_rate})
        engine.stop_requested |= engine.step == self.stop_at

    def on_log(self, engine: Engine, row: dict[str, Any]) -> None:
        self.events.append(row)

    def on_train_end(self, engine: Engine) -> None:
        self.events.append("end")


def make_engine(model: nn.Module, slope: float = 1.0, **options: Any) -> Engine:
    """Return an engine with SGD on the loss `slope` * sum of the weights * batch."""

    def compute_loss(batch: Tensor) -> tuple[Tensor, Tensor]:
        loss = slope * sum(parameter.sum() for parameter in model.parameters()) * batch
        return loss, loss.detach() * 2

    optimizer = torch.optim.SGD(model.parameters(), lr=9.0)
    return Engine(optimizer, compute_loss, **{"learning_rate": lambda step, scale: scale * 0.5**step, **options})


def test_update_subtracts_gradient_times_learning_rate_of_the_step() -> None:
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    engine = make_engine(model, 3.0)
    results = [engine.update(torch.tensor(value)) for value in (1.0, 2.0)]
    assert model.weight.item() == -3 * (1 * 1.0 + 0.5 * 2.0), "gradients of earlier steps are not added"
    assert [result.learning_rate for result in results] == [1.0, 0.5]
    assert results[1].loss.item() == 3 * -3 * 2
    assert results[1].outputs.item() == 2 * results[1].loss.item()
    assert results[1].grad_norm is None
    assert not results[1].loss.requires_grad


@pytest.mark.parametrize(
    "device", ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]
)
def test_backward_pass_is_made_by_the_calling_thread(device: str) -> None:
    model = nn.Linear(1, 1).to(device)
    found: list[tuple[int, bool]] = []
    model.weight.register_hook(lambda _: found.append((threading.get_ident(), torch._C._is_multithreading_enabled())))
    make_engine(model).update(torch.tensor(1.0, device=device))
    assert found == [(threading.get_ident(), False)]
    assert torch._C._is_multithreading_enabled(), "other backward passes are not changed"


def test_clip_gradients_is_applied() -> None:
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    clip = partial(nn.utils.clip_grad_norm_, list(model.parameters()), 0.25)
    result = make_engine(model, 4.0, clip_gradients=clip).update(torch.tensor(1.0))
    assert result.grad_norm is not None
    assert result.grad_norm.item() == pytest.approx(4)
    assert model.weight.item() == pytest.approx(-0.25)


def test_callbacks_run_in_order_and_can_stop_training() -> None:
    first, second = Recorder(stop_at=2), Recorder()
    events_before_batch = []

    def batches() -> Any:
        for number in range(5):
            events_before_batch.append(list(second.events))
            yield torch.tensor(float(number))

    engine = make_engine(nn.Linear(1, 1), callbacks=[first, second])
    engine.run(batches())
    rows = [{"step": 1, "rate": 1.0}, {"step": 2, "rate": 0.5}]
    assert first.events == [1, rows[0], rows[0], 2, rows[1], rows[1], "end"]
    assert second.events == [rows[0], 1, rows[0], rows[1], 2, rows[1], "end"]
    assert events_before_batch[1] == [rows[0], 1, rows[0]], "a batch is read after the callbacks of the step before"
    assert len(events_before_batch) == 2


@pytest.mark.parametrize(("slope", "batch"), [(math.nan, 1.0), (1.0, math.inf)])
def test_loss_that_is_not_finite_raises(slope: float, batch: float) -> None:
    recorder = Recorder()
    engine = make_engine(nn.Linear(1, 1), slope, callbacks=[recorder])
    engine.raise_if_not_finite()
    with pytest.raises(NonFiniteLossError, match="not finite at step 2 or before"):
        engine.run([torch.tensor(batch), torch.tensor(1.0)])
    assert "end" not in recorder.events


def test_infinite_gradient_raises() -> None:
    engine = make_engine(nn.Linear(1, 1), clip_gradients=lambda: torch.tensor([1.0, math.inf]))
    engine.update(torch.tensor(1.0))
    with pytest.raises(NonFiniteLossError):
        engine.raise_if_not_finite()


@pytest.mark.parametrize(("finite_here", "failures_elsewhere", "finite"), [(True, 0, True), (True, 1, False), (False, 0, False)])
def test_loss_that_is_not_finite_in_another_process_raises(finite_here: bool, failures_elsewhere: int, finite: bool) -> None:
    engine = make_engine(nn.Linear(1, 1), sum_over_processes=lambda x: x + failures_elsewhere)
    engine.all_finite.fill_(finite_here)
    with nullcontext() if finite else pytest.raises(NonFiniteLossError):
        engine.raise_if_not_finite()


def test_set_learning_rates_gives_groups_the_rate_of_their_scale_and_fills_tensors_in_place() -> None:
    weights = [nn.Parameter(torch.ones(1)) for _ in range(3)]
    rate = torch.tensor(1.0)
    groups = [
        {"params": [weights[0]], "scale": 0.5},
        {"params": [weights[1]]},
        {"params": [weights[2]], "lr": rate, "scale": 2.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1.0, foreach=False)
    set_learning_rates(optimizer, lambda scale: 0.008 * scale)
    assert [float(group["lr"]) for group in optimizer.param_groups] == pytest.approx([0.004, 0.008, 0.016])
    assert optimizer.param_groups[2]["lr"] is rate
