"""Arguments of a run that takes a second, and functions that run commands which succeed or fail."""

from collections.abc import Callable
from typing import Any

import pytest

from longscan.cli import main


@pytest.fixture(scope="session")
def tiny_argv() -> list[str]:
    """Return arguments for parity of short sequences, a model with a few hundred weights and two steps."""
    return [
        *("--task", "parity", "--task.train_lengths", "[3, 8]", "--task.eval_lengths", "[9, 12]"),
        *("--task.valid_size", "8", "--task.test_size", "8", "--model.d_model", "4", "--model.d_state", "2"),
        *("--model.backend", "eager", "--training.batch_size", "4", "--training.threads", "1", "--training.device", "cpu"),
        *("--steps", "2"),
    ]


@pytest.fixture
def run_failing_command(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Return a function that runs a command with wrong arguments and returns its error message of one line."""

    def run(*argv: Any) -> str:
        capsys.readouterr()
        assert main([str(argument) for argument in argv]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        lines = captured.err.splitlines()
        assert len(lines) == 1, captured.err
        assert "Traceback" not in captured.err
        assert "usage" not in captured.err.lower()
        return lines[0]

    return run


@pytest.fixture
def run_command(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Return a function that runs a command which succeeds and returns its standard output."""

    def run(*argv: Any) -> str:
        capsys.readouterr()
        assert main([str(argument) for argument in argv]) == 0
        return capsys.readouterr().out

    return run
