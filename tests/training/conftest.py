"""Settings of a run that takes a second: parity of short sequences, and a model with a few hundred weights."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from accelerate.state import AcceleratorState, PartialState

from longscan.tasks import TASKS
from longscan.training import ModelSettings, Settings, TrainingSettings


@pytest.fixture(autouse=True)
def accelerate_is_reset() -> Iterator[None]:
    """Reset the global state of accelerate after each test, since some create an `Accelerator` without `open_accelerator`."""
    yield
    AcceleratorState._reset_state()
    PartialState._reset_state()


@pytest.fixture
def no_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let runs leave out their examples of answers, which take a third of the time of a tiny run."""
    monkeypatch.setattr("longscan.training.trainer.find_examples", lambda *_: None)


@pytest.fixture
def tiny() -> Any:
    """Return a function that makes settings: tiny(steps=4, ...) has the given values in its training section."""
    task = TASKS["parity"](train_lengths=(3, 8), eval_lengths=(9, 12), valid_size=16, test_size=24)
    model = ModelSettings(spec="ma", d_model=4, d_state=2, backend="eager")
    training = TrainingSettings(steps=4, batch_size=8, eval_every=2, log_every=1, threads=1, device="cpu")

    def settings(
        task_values: dict[str, Any] | None = None, model_values: dict[str, Any] | None = None, **values: Any
    ) -> Settings:
        return Settings(
            task=replace(task, **(task_values or {})),
            model=replace(model, **(model_values or {})),
            training=replace(training, **values),
        )

    return settings
