"""The compiled `unitary_scan`: layouts, chunks, threads and instruction sets, which the contract tests of ops do not vary."""

import os
import subprocess
import sys

import pytest
import torch

from longscan.ops import unitary_scan
from native import needs_kernels

pytestmark = needs_kernels

CHUNK = 64  # number of steps between saved states, for up to 32 states

# (B, L, D, N): lengths of one chunk, one step less and one more; numbers of channels that are multiples of 16, 8, 4 or 2 lanes
# and others; odd and even numbers of states; several chunks, which are longer for more states
SHAPES = [
    (1, CHUNK - 1, 1, 1),
    (2, CHUNK, 5, 3),
    (1, CHUNK + 1, 16, 2),
    (3, 2 * CHUNK + 1, 17, 5),
    (1, 90, 31, 1),
    (2, 90, 8, 33),
    (1, 200, 3, 40),
    (2, 70, 40, 4),
    (1, 1500, 2, 9),
]


def make_inputs(shape, dtype=torch.float64, resets=True):
    batch, length, channels, states = shape
    generator = torch.Generator().manual_seed(sum(shape))

    def normal(*size):
        return torch.randn(size, generator=generator, dtype=torch.float64).to(dtype)

    inputs = {
        "u": normal(batch, length, channels),
        "dt": normal(batch, length, channels).abs(),
        "W": normal(channels, states, channels) / channels,
        "bias": 2 * normal(channels, states),
        "B": normal(channels, states, 2),
        "C": normal(channels, states, 2),
        "D": normal(channels),
        "z": normal(batch, length, channels),
        "initial_state": normal(batch, channels, states, 2),
    }
    inputs = {name: x.requires_grad_() for name, x in inputs.items()}
    if resets:
        inputs["valid"] = torch.rand(batch, length, generator=generator) < 0.9
        inputs["seq_idx"] = (torch.rand(batch, length, generator=generator) < 0.03).cumsum(1)
    return inputs


def run_with_gradients(inputs, backend="cpu", phase_dt=False):
    """Return y, the final state and all gradients, for fixed random cotangents."""
    y, final = unitary_scan(**inputs, phase_dt=phase_dt, backend=backend)
    generator = torch.Generator().manual_seed(0)
    cotangents = [torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x.dtype) for x in (y, final)]
    loss = (y * cotangents[0]).sum() + (final * cotangents[1]).sum()
    return [y, final, *torch.autograd.grad(loss, [x for x in inputs.values() if x.requires_grad])]


def assert_close(results, expected, tolerance):
    """Assert that each result errs at most `tolerance` times its largest absolute value."""
    for result, reference in zip(results, expected, strict=True):
        assert (result - reference).abs().max() <= tolerance * reference.abs().max()


@pytest.mark.parametrize("phase_dt", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_cpu_equals_eager_for_all_layouts(shape, phase_dt):
    inputs = make_inputs(shape)
    assert_close(run_with_gradients(inputs, "cpu", phase_dt), run_with_gradients(inputs, "eager", phase_dt), 1e-11)


@pytest.mark.parametrize("count", [2, 3, 8])
@pytest.mark.parametrize("shape", [(1, 1500, 20, 9), (3, 130, 33, 4), (4, 130, 3, 6), (5, 70, 6, 50)])
def test_same_number_of_threads_gives_the_same_bits(set_num_threads, monkeypatch, shape, count):
    """Another number of threads changes only the order in which sums are added."""
    monkeypatch.setattr("longscan.ops._cpu.MIN_TEAM_WORK", 0)
    inputs = make_inputs(shape)
    set_num_threads(1)
    single = run_with_gradients(inputs)
    set_num_threads(count)
    first, second = run_with_gradients(inputs), run_with_gradients(inputs)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert_close(first, single, 1e-12)


# The module chooses the instruction set when it is loaded. What takes longest to import is imported once for all of them.
IN_OTHER_PROCESSES = """
import os, sys
import numpy, pytest, torch
folder, *isas = sys.argv[1:]
for isa in isas:
    if child := os.fork():
        os.waitpid(child, 0)
        continue
    os.environ["LONGSCAN_CPU_ISA"] = isa
    from longscan.ops import _native
    from test_unitary_native import make_inputs, run_with_gradients
    results = {dtype: run_with_gradients(make_inputs((2, 90, 19, 7), dtype)) for dtype in (torch.float32, torch.float64)}
    torch.save((_native.isa(), results), f"{folder}/{isa}.pt")
    sys.exit()
"""
ISAS = ["baseline", "avx2", "avx512"]


@pytest.fixture(scope="module")
def results_of_isas(tmp_path_factory):
    """Return the folder with the results of each instruction set, and what the processes printed."""
    folder = tmp_path_factory.mktemp("isas")
    done = subprocess.run(
        [sys.executable, "-c", IN_OTHER_PROCESSES, str(folder), *ISAS],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    return folder, done.stderr


@pytest.mark.parametrize("isa", ISAS)
def test_instruction_sets_give_close_results(isa, results_of_isas):
    folder, errors = results_of_isas
    if f"this processor or build has no {isa}" in errors:
        pytest.skip(f"no {isa} here")
    assert (folder / f"{isa}.pt").exists(), errors
    used, results = torch.load(folder / f"{isa}.pt")
    assert used == isa
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-13)):
        assert_close(results[dtype], run_with_gradients(make_inputs((2, 90, 19, 7), dtype)), tolerance)
