"""Threads of the compiled kernels: same bits with any number of threads, after a fork, and while other Python threads run."""

import os
import threading
import time
from importlib import import_module

import pytest
import torch

from longscan.blocks import MambaBlock
from longscan.ops import linear_scan, selective_scan, short_conv
from native import needs_kernels

pytestmark = needs_kernels


@pytest.fixture(autouse=True)
def _teams_for_small_calls(monkeypatch):
    """Let several threads share the small calls of these tests."""
    monkeypatch.setattr("longscan.ops._cpu.MIN_TEAM_WORK", 0)


def run_with_gradients(complex_state=False):
    """Return the results of a convolution, a selective scan and a linear scan, and their gradients."""
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
def test_any_number_of_threads_gives_the_same_bits(set_num_threads, complex_state):
    set_num_threads(1)
    single = run_with_gradients(complex_state)
    for count in (2, 3, 8):
        set_num_threads(count)
        assert all(torch.equal(a, b) for a, b in zip(run_with_gradients(complex_state), single, strict=True))


@pytest.mark.parametrize("taps", [3, 4])
def test_convolution_of_whole_and_partial_vectors_equals_the_reference(set_num_threads, taps):
    """Four taps have a loop of their own, and so have vectors of fewer channels than the others."""
    set_num_threads(2)
    generator = torch.Generator().manual_seed(0)
    shapes = (2, 150, 37), (37, taps), (37,), (2, 37, taps - 1)
    inputs = [torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes]
    valid = torch.rand(2, 150, generator=generator) > 0.2
    seq_idx = (torch.arange(150) // 40).expand(2, 150)

    def call(backend):
        y, final = short_conv(*inputs, activation="silu", valid=valid, seq_idx=seq_idx, backend=backend)
        return y, final, *torch.autograd.grad(y.square().sum() + final.square().sum(), inputs)

    torch.testing.assert_close(call("cpu"), call("reference"), rtol=1e-12, atol=1e-12)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_forked_process_can_call_a_kernel(set_num_threads):
    """A child that waits for OpenMP's threads would hang, because a fork does not copy them."""
    set_num_threads(2)
    expected = run_with_gradients()
    child = os.fork()
    if child == 0:
        # `_exit` in every case, because a second test runner must not continue from here. Only kernels of this package are
        # called, because parallel loops of torch hang after a fork, too.
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
    assert all(torch.equal(a, b) for a, b in zip(run_with_gradients(), expected, strict=True))


def test_other_python_threads_run_while_a_kernel_runs(set_num_threads):
    """On a busy machine the other thread may get no time during a call, so several calls are tried."""
    set_num_threads(1)
    a, b = torch.full((512,), 0.5), torch.ones(8, 4000, 512)

    def count_iterations_during_a_call():
        started, done = threading.Event(), threading.Event()

        def run_kernel():
            started.set()
            linear_scan(a, b, backend="cpu")
            done.set()

        worker = threading.Thread(target=run_kernel)
        worker.start()
        started.wait()
        count = 0
        while not done.is_set():
            count += 1
            time.sleep(0)
        worker.join()
        return count

    assert any(count_iterations_during_a_call() > 20 for _ in range(20))


def test_one_step_and_little_work_run_on_one_thread(set_num_threads, monkeypatch):
    monkeypatch.setattr("longscan.ops._cpu.MIN_TEAM_WORK", 1000)
    threads_for = import_module("longscan.ops._cpu").threads_for
    set_num_threads(3)
    assert threads_for(1, 2**40) == 1
    assert threads_for(2, 999) == 1
    assert threads_for(2, 1000) == 3


def test_number_of_threads_of_a_call_follows_its_size(set_num_threads, monkeypatch):
    """A step of one token runs on one thread, whatever its width."""
    counts, native = [], import_module("longscan.ops._native")

    def record(name):
        kernel = getattr(native, name)
        monkeypatch.setattr(native, name, lambda *args: counts.append(args[-1]) or kernel(*args))

    for name in ("linear_scan_forward", "short_conv_forward", "mamba_step_forward"):
        record(name)
    monkeypatch.setattr("longscan.ops._cpu.MIN_TEAM_WORK", 4 * 2 * 100 * 8)
    set_num_threads(2)
    for length in (1, 99, 100):
        linear_scan(torch.rand(2, length, 8), torch.rand(2, length, 8), backend="cpu")
        short_conv(torch.rand(2, length, 8), torch.rand(8, 4), backend="cpu")
    block = MambaBlock(256, backend="cpu").eval()
    with torch.no_grad():
        for rows in (1, 4):
            block.step(torch.rand(rows, 256), block.initial_state(rows))
    assert counts == [1, 1, 1, 1, 2, 2, 1, 2]
