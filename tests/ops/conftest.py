"""A fixture that sets the number of threads."""

import pytest
import torch


@pytest.fixture
def set_num_threads():
    """Return `torch.set_num_threads`; the number of threads is restored after the test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)
