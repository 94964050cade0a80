"""Words for a run that takes a second."""

import pytest


@pytest.fixture(scope="session")
def tiny_words() -> list[str]:
    """Parity of short words, a model of a few hundred weights, two steps."""
    return [
        *("--task", "parity", "--task.train_lengths", "[3, 8]", "--task.eval_lengths", "[9, 12]"),
        *("--task.valid_size", "8", "--task.test_size", "8", "--model.d_model", "4", "--model.d_state", "2"),
        *("--model.backend", "eager", "--training.batch_size", "4", "--training.threads", "1", "--training.device", "cpu"),
        *("--steps", "2"),
    ]
