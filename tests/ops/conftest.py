"""A fixture that sets the number of threads."""

import pytest


@pytest.fixture
def set_num_threads():
    """Return `torch.set_num_threads`; the number of threads is restored after the test."""
    import torch

    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _forget_calls():
    """Calls that a test with other settings has recorded are not repeated."""
    from longscan.ops import _repeated_calls

    _repeated_calls.clear_recorded_calls()
