"""The compiled `unitary_scan`: layouts, chunks, threads and instruction sets, which the contract of the ops does not see."""

import os
import subprocess
import sys

import pytest
import torch

from longscan.ops import unitary_scan
from native import needs_kernels

pytestmark = needs_kernels

CHUNK = 64  # steps between saved states for up to 32 states

# (B, L, D, N): one chunk less, all and one more step; channels that fill whole vectors of 16, 8, 4 or 2 lanes, with and without
# a rest; odd and even numbers of states; several chunks, longer ones for more states
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


def arguments(shape, dtype=torch.float64, resets=True):
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


def results(inputs, backend="cpu", phase_dt=False):
    """y, the final state and the gradients of both, weighted by fixed numbers."""
    y, final = unitary_scan(**inputs, phase_dt=phase_dt, backend=backend)
    generator = torch.Generator().manual_seed(0)
    weights = [torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x.dtype) for x in (y, final)]
    loss = (y * weights[0]).sum() + (final * weights[1]).sum()
    return [y, final, *torch.autograd.grad(loss, [x for x in inputs.values() if x.requires_grad])]


def assert_close(found, expected, tolerance):
    """To `tolerance` of the largest number of each result."""
    for one, other in zip(found, expected, strict=True):
        assert (one - other).abs().max() <= tolerance * other.abs().max()


@pytest.fixture
def threads():
    """Sets the number of threads; puts the old one back."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("phase_dt", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_layouts_and_chunks(shape, phase_dt):
    inputs = arguments(shape)
    assert_close(results(inputs, "cpu", phase_dt), results(inputs, "eager", phase_dt), 1e-11)


@pytest.mark.parametrize("count", [2, 3, 8])
@pytest.mark.parametrize("shape", [(1, 1500, 20, 9), (3, 130, 33, 4), (4, 130, 3, 6), (5, 70, 6, 50)])
def test_threads_agree_and_repeat_themselves(threads, shape, count):
    """The number of threads changes the order of sums only; the same number gives the same bits."""
    inputs = arguments(shape)
    threads(1)
    alone = results(inputs)
    threads(count)
    first, second = results(inputs), results(inputs)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert_close(first, alone, 1e-12)


IN_ANOTHER_PROCESS = """
import sys, torch
from longscan.ops import _native
from test_unitary_native import arguments, results
found = {dtype: results(arguments((2, 90, 19, 7), dtype)) for dtype in (torch.float32, torch.float64)}
torch.save((_native.isa(), found), sys.argv[1])
"""


@pytest.mark.parametrize("isa", ["baseline", "avx2", "avx512"])
def test_instruction_sets_agree(isa, tmp_path):
    saved = tmp_path / "results.pt"
    run = subprocess.run(
        [sys.executable, "-c", IN_ANOTHER_PROCESS, str(saved)],
        env={**os.environ, "LONGSCAN_CPU_ISA": isa, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    if "this processor or build has no" in run.stderr:
        pytest.skip(f"no {isa} here")
    assert run.returncode == 0, run.stderr
    ran, found = torch.load(saved)
    assert ran == isa
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-13)):
        assert_close(found[dtype], results(arguments((2, 90, 19, 7), dtype)), tolerance)
