"""Threads of the compiled kernels: the same bits with any number of them, after a fork, and beside other Python threads."""

import os
import threading
import time

import pytest
import torch

from longscan.ops import linear_scan, selective_scan, short_conv
from native import needs_kernels

pytestmark = needs_kernels


@pytest.fixture
def threads():
    """Sets the number of threads; puts the old one back."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def scan_and_gradients(complex_state=False):
    """Results of a selective scan, a linear scan and a convolution, and all their gradients."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(shape, generator=generator).requires_grad_()

    batch, length, channels, states = 2, 150, 70, 6
    pair = (2,) if complex_state else ()
    u, z = normal(batch, length, channels), normal(batch, length, channels)
    dt = torch.rand(batch, length, channels, generator=generator).requires_grad_()
    A = (-torch.rand(channels, states, *pair, generator=generator)).requires_grad_()
    B, C = normal(batch, length, states, *pair), normal(batch, length, states, *pair)
    weight, decay = normal(channels, 4), torch.rand(channels, generator=generator).requires_grad_()
    v, conv = short_conv(u, weight, activation="silu", backend="cpu")
    y, final = selective_scan(v, dt, A, B, C, z=z, backend="cpu")
    x, last = linear_scan(decay, y, backend="cpu")
    results = [conv, y, final, x, last]
    return results + list(torch.autograd.grad(sum(r.sum() for r in results), [u, z, dt, A, B, C, weight, decay]))


@pytest.mark.parametrize("complex_state", [False, True])
def test_number_of_threads_changes_no_bit(threads, complex_state):
    threads(1)
    alone = scan_and_gradients(complex_state)
    for count in (2, 3, 8):
        threads(count)
        assert all(torch.equal(a, b) for a, b in zip(scan_and_gradients(complex_state), alone, strict=True))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_forked_process_runs_on(threads):
    """OpenMP's threads do not survive a fork: a child that waited for them would hang."""
    threads(2)
    expected = scan_and_gradients()
    child = os.fork()
    if child == 0:
        # `_exit` alone, whatever happens: no second test runner may go on from here. Only this package's kernels run in
        # parallel here, torch's own parallel loops do not survive a fork either.
        try:
            a, b = torch.full((64,), 0.5), torch.ones(4, 100, 64)
            x, _ = linear_scan(a, b, backend="cpu")
            os._exit(0 if bool((x[:, 1] == 1.5).all()) else 1)
        finally:
            os._exit(2)
    deadline = time.monotonic() + 30
    status = None
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        time.sleep(0.01)
    else:
        os.kill(child, 9)
        os.waitpid(child, 0)
        pytest.fail("the forked process hangs")
    assert os.waitstatus_to_exitcode(status) == 0
    assert all(torch.equal(a, b) for a, b in zip(scan_and_gradients(), expected, strict=True))


def test_other_python_threads_run_during_a_kernel(threads):
    threads(1)
    a, b = torch.full((512,), 0.5), torch.ones(8, 4000, 512)
    running, done, seen = threading.Event(), threading.Event(), []

    def work():
        running.set()
        linear_scan(a, b, backend="cpu")
        done.set()

    worker = threading.Thread(target=work)
    worker.start()
    running.wait()
    while not done.is_set():
        seen.append(time.monotonic())
        time.sleep(0)
    worker.join()
    assert len(seen) > 20
