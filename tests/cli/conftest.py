"""Words for a run that takes a second, and what a command answers to bad ones."""

from collections.abc import Callable
from typing import Any

import pytest

from longscan.cli import main


@pytest.fixture(scope="session")
def tiny_words() -> list[str]:
    """Parity of short words, a model of a few hundred weights, two steps."""
    return [
        *("--task", "parity", "--task.train_lengths", "[3, 8]", "--task.eval_lengths", "[9, 12]"),
        *("--task.valid_size", "8", "--task.test_size", "8", "--model.d_model", "4", "--model.d_state", "2"),
        *("--model.backend", "eager", "--training.batch_size", "4", "--training.threads", "1", "--training.device", "cpu"),
        *("--steps", "2"),
    ]


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """`refused(*words)`: the one line that the command answers with."""

    def run(*words: Any) -> str:
        capsys.readouterr()
        assert main([str(word) for word in words]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        lines = captured.err.splitlines()
        assert len(lines) == 1, captured.err
        assert "Traceback" not in captured.err
        assert "usage" not in captured.err.lower()
        return lines[0]

    return run
