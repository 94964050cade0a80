"""The number of threads that torch uses in `fit` and `predict`.

Threads of OpenMP that wait for work keep their processors busy, so that two threads are far slower than one when another process
needs a processor. The rule of `n_jobs=None` therefore uses one thread unless the work is large. Measured on two cores with other
processes on them, a Mamba block of width 64, in milliseconds; the last column has OMP_WAIT_POLICY=passive in the environment:

| | one thread | two | two, passive |
|---|---|---|---|
| a step of a stream | 0.2-0.4 | 0.4-39 | 0.4 |
| prediction for 32 series of 50 steps | 11-48 | 260-400 | 16 |
| update on 32 series of 500 steps | 250-920 | 880-1480 | 300 |
| update on 32 series of 2,000 steps | 950-4940 | 2250-2570 | 1640 |
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

LARGE_BATCH = 2**21  # values in the stack: steps of the series of a batch times width


def choose_threads(n_jobs: int | None, values: int) -> int:
    """Return the number of threads for batches of `values` steps times width.

    n_jobs: the number, -1 for all processors of this process, -2 for all but one, ..., as in scikit-learn. None: one thread for
    batches below `LARGE_BATCH`, else torch's own number.
    """
    if n_jobs is None:
        return torch.get_num_threads() if values >= LARGE_BATCH else 1
    if n_jobs > 0:
        return n_jobs
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, available + 1 + n_jobs)


@contextmanager
def limited_threads(n_threads: int) -> Iterator[None]:
    """Set the number of torch's threads for the length of a `with` block, and restore it afterwards."""
    before = torch.get_num_threads()
    if n_threads == before:
        yield
        return
    torch.set_num_threads(n_threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
