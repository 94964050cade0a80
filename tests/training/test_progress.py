"""The output of a run: a progress bar on a terminal, one line for each validation elsewhere, nothing by default."""

import contextlib
import functools
import io
from typing import Any

import pytest
import torch
from rich.console import Console

from longscan.engine import Engine, StepResult
from longscan.training.progress import FitBar, ProgressBar, RunBar

ROWS = [
    {"step": 2, "split": "train", "loss": 0.5, "accuracy": 0.75, "lr": 0.01},
    {"step": 2, "split": "valid", "loss": 0.25, "accuracy": None},
]


def capture_output(monkeypatch: pytest.MonkeyPatch, *, terminal: bool, shown: bool = True) -> str:
    text = io.StringIO()
    console = functools.partial(Console, file=text, force_terminal=terminal, width=160)
    monkeypatch.setattr("longscan.training.progress.Console", lambda **values: console(quiet=values["quiet"]))
    weight = torch.zeros(1, requires_grad=True)
    engine = Engine(torch.optim.SGD([weight]), lambda _: (weight.sum(), None), learning_rate=lambda *_: 0.0)
    with contextlib.closing(ProgressBar(10, 1, "accuracy", shown=shown)) as bar:
        for engine.step in (2, 3, 4):
            bar.on_step_end(engine, StepResult(None, weight, None, 0.0))
        for row in ROWS:
            bar.on_log(engine, row)
    return text.getvalue()


def test_progress_bar_on_a_terminal_has_steps_speed_loss_metric_and_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    text = capture_output(monkeypatch, terminal=True)
    assert "4/10" in text
    assert "steps/s" in text
    assert "train loss 0.5000, accuracy 0.7500, lr 0.01" in text
    assert "step 2: valid loss 0.2500, accuracy none" in text


def test_output_without_terminal_has_one_line_for_each_validation(monkeypatch: pytest.MonkeyPatch) -> None:
    assert capture_output(monkeypatch, terminal=False) == "step 2: valid loss 0.2500, accuracy none\n"


@pytest.mark.parametrize("terminal", [True, False])
def test_training_prints_nothing_by_default(monkeypatch: pytest.MonkeyPatch, terminal: Any) -> None:
    assert capture_output(monkeypatch, terminal=terminal, shown=False) == ""


def test_speed_is_not_summed_for_a_bar_that_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rich.progress.Task.speed", property(lambda _: pytest.fail("the speed was read")))
    weight = torch.zeros(1, requires_grad=True)
    engine = Engine(torch.optim.SGD([weight]), lambda _: (weight.sum(), None), learning_rate=lambda *_: 0.0)
    with contextlib.closing(ProgressBar(10, 0, "accuracy", shown=False)) as bar:
        bar.on_step_end(engine, StepResult(None, weight, None, 0.0))


def test_bar_without_a_time_limit_ends_at_the_number_of_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a limit the total is estimated from the share of the time that is spent. A bar that is not shown is not updated."""
    monkeypatch.setenv("FORCE_COLOR", "1")  # the console counts as a terminal
    weight = torch.zeros(1, requires_grad=True)
    engine = Engine(torch.optim.SGD([weight]), lambda _: (weight.sum(), None), learning_rate=lambda *_: 0.0)
    engine.step = 3
    for time_spent, total in ((None, 10), (lambda: 0.0, 10), (lambda: 0.5, 6), (lambda: 0.1, 10)):
        with contextlib.closing(ProgressBar(10, 0, "accuracy", shown=True, time_spent=time_spent)) as bar:
            bar.on_step_end(engine, StepResult(None, weight, None, 0.0))
            assert (bar._bar.tasks[0].total, bar._bar.tasks[0].completed) == (total, 3)
    with contextlib.closing(ProgressBar(10, 0, "accuracy", shown=False)) as bar:
        bar.on_step_end(engine, StepResult(None, weight, None, 0.0))
        assert bar._bar.tasks[0].completed == 0


@pytest.mark.parametrize("terminal", [True, False])
def test_bars_of_fitted_methods_have_their_parts_and_a_line_each_without_terminal(
    monkeypatch: pytest.MonkeyPatch, terminal: Any
) -> None:
    text = io.StringIO()
    console = functools.partial(Console, file=text, force_terminal=terminal, width=160)
    monkeypatch.setattr("longscan.training.progress.Console", lambda **_: console())
    with contextlib.closing(FitBar()) as bar:
        for call in (("ridge", 0, 2), ("ridge", 1, 2), ("dtw", 0, 30), ("dtw", 30, 30)):
            bar(*call)
    if terminal:
        assert "ridge" in text.getvalue()
        assert "1/2" in text.getvalue()
        assert "30/30" in text.getvalue()
    else:
        assert text.getvalue() == "fitting ridge\nfitting dtw\n"


def test_a_bar_of_several_trainings_has_their_updates_and_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    text = io.StringIO()
    monkeypatch.setattr("longscan.training.progress.Console", lambda **_: pytest.fail("a line beside the bar"))
    with contextlib.closing(RunBar(Console(file=text, force_terminal=True, width=160, color_system=None))) as bar:
        bar.print("models to train: [2]")
        bar.update(10, 40, "no estimate yet")
        bar.update(20, 40, "about 2 min left")
    assert "models to train: [2]\n" in text.getvalue()
    assert "20/40 updates, about 2 min left" in text.getvalue()
    assert text.getvalue().endswith("\x1b[2K"), "the bar is not erased at the end"


def test_several_trainings_without_terminal_print_a_line_a_minute_on_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    out, err, now = io.StringIO(), io.StringIO(), 1000.0
    monkeypatch.setattr("longscan.training.progress.time.monotonic", lambda: now)
    monkeypatch.setattr("longscan.training.progress.Console", lambda *, stderr: Console(file=err, width=160) if stderr else None)
    with contextlib.closing(RunBar(Console(file=out, width=160), every=60.0)) as bar:
        bar.print("models to train: 2")
        for now, made in ((1059.0, 10), (1060.0, 1234), (1119.0, 1300), (1121.0, 2000)):  # noqa: B007
            bar.update(made, 5000, "about 2 min left")
    assert out.getvalue() == "models to train: 2\n"
    assert err.getvalue() == "1,234 of 5,000 updates, about 2 min left\n2,000 of 5,000 updates, about 2 min left\n"
