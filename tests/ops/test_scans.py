"""Properties of single ops: closed forms, memory, and the functions that eager backends use."""

import gc
import itertools
import math
import weakref

import pytest
import torch

from longscan.ops import linear_scan, long_conv, selective_scan, short_conv
from longscan.ops.associative import affine_scan
from longscan.ops.long_conv.eager import fft_length


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("length", [*range(1, 10), 63, 64, 65])
def test_affine_scan_equals_the_loop(length, constant):
    a, b = torch.randn(2, 1 if constant else length, 3, dtype=torch.float64), torch.randn(2, length, 3, dtype=torch.float64)
    state, steps = torch.randn(2, 3, dtype=torch.float64), a.expand_as(b)
    expected = list(itertools.accumulate(range(length), lambda x, t: steps[:, t] * x + b[:, t], initial=state))[1:]
    torch.testing.assert_close(affine_scan(a, b, state), torch.stack(expected, 1))


@pytest.mark.parametrize("backend", ["reference", "eager", "auto"])
def test_linear_scan_with_constant_factor_equals_the_closed_form(backend):
    """A constant factor and input: x_t = a^t x_0 + b (1 - a^t) / (1 - a)."""
    a, b, start = (torch.tensor([value], dtype=torch.float64) for value in (0.9, 0.3, 2.0))
    x, final = linear_scan(a, b.expand(1, 100, 1), start[None], backend=backend)
    powers = a ** torch.arange(1, 101)
    torch.testing.assert_close(x[0, :, 0], powers * start + b * (1 - powers) / (1 - a))
    assert torch.equal(final[0], x[0, -1])


@pytest.mark.parametrize("backend", ["eager", "auto"])
def test_linear_scan_with_factors_near_one_does_not_drift(backend):
    """For factors just below 1 and 10,000 steps in float32 the error is at most twice that of the loop in float32."""
    a = torch.tensor([1 - 1e-4, 1 - 3e-5, 1 - 1e-5, 1 - 1e-6])
    b = torch.randn(1, 10_000, 4)
    start = torch.full((1, 4), 100.0)
    truth, _ = linear_scan(a.double(), b.double(), start.double(), backend="reference")
    plain, _ = linear_scan(a, b, start, backend="reference")
    x, _ = linear_scan(a, b, start, backend=backend)
    assert ((x - truth).abs().amax(1) <= 2 * (plain - truth).abs().amax(1)).all()


@pytest.mark.parametrize("backend", ["reference", "eager", "auto"])
def test_reverse_linear_scan_equals_scan_of_flipped_inputs(backend):
    """With `reverse`, each segment starts from its last step."""
    a, b = torch.rand(2, 70, 3), torch.randn(2, 70, 3)
    ids = torch.arange(70).expand(2, 70) // 30
    valid = torch.rand(2, 70) < 0.8
    x, final = linear_scan(a, b, reverse=True, valid=valid, seq_idx=ids, backend=backend)
    flipped, last = linear_scan(a.flip(1), b.flip(1), valid=valid.flip(1), seq_idx=ids.flip(1), backend=backend)
    torch.testing.assert_close(x, flipped.flip(1))
    torch.testing.assert_close(final, last)


@pytest.mark.parametrize("backend", ["reference", "eager", "auto"])
def test_paired_selective_scan_equals_scan_of_both_conjugates(backend):
    """N paired complex states stand for 2N unpaired ones: each state and its conjugate."""
    u, dt = torch.randn(2, 9, 3), torch.rand(2, 9, 3)
    A = torch.complex(-torch.rand(3, 2), torch.randn(3, 2))
    B, C = torch.randn(2, 2, 9, 2, dtype=torch.complex64).unbind()
    y, final = selective_scan(u, dt, A, B, C, backend=backend)
    conjugates = [torch.cat([x, x.conj()], -1) for x in (A, B, C)]
    unpaired, _ = selective_scan(u, dt, *conjugates, paired=False, backend=backend)
    torch.testing.assert_close(y, unpaired)
    assert final.dtype == torch.complex64


@pytest.mark.parametrize("backend", ["reference", "eager", "auto"])
def test_selective_scan_with_decay_below_the_range_of_float32(backend):
    """The decay is e^-200 a step; an algorithm that divides by the cumulative product would overflow."""
    u = torch.ones(1, 300, 1)
    y, _ = selective_scan(u, 100 * u, torch.full((1, 1), -2.0), u, u, backend=backend)
    torch.testing.assert_close(y, torch.full_like(u, 100.0))


def test_short_conv_equals_conv1d():
    u, weight, bias = torch.randn(2, 20, 3), torch.randn(3, 4), torch.randn(3)
    for backend in ("reference", "eager", "auto"):
        y, final = short_conv(u, weight, bias, backend=backend)
        expected = torch.nn.functional.conv1d(u.mT, weight[:, None], bias, padding=3, groups=3)[..., :20].mT
        torch.testing.assert_close(y, expected)
        torch.testing.assert_close(final, u[:, -3:].mT)


@pytest.mark.parametrize("backend", ["reference", "eager", "auto"])
@pytest.mark.parametrize("masked", [False, True])
def test_states_of_short_conv_with_one_tap_are_part_of_the_graph(backend, masked):
    """The state is empty. A loss that contains it has a gradient with masks, too."""
    u, weight = torch.randn(2, 5, 3, requires_grad=True), torch.randn(3, 1)
    masks = {"valid": torch.tensor([[True, True, False, True, False]] * 2)} if masked else {}
    _, final = short_conv(u, weight, **masks, backend=backend)
    assert final.shape == (2, 3, 0)
    (gradient,) = torch.autograd.grad(final.sum(), u)
    torch.testing.assert_close(gradient, torch.zeros_like(u))


@pytest.mark.parametrize("needed", [1, 2, 3, 7, 17, 100, 1023, 1025, 100_003])
def test_fft_length_is_a_sufficient_product_of_small_primes(needed):
    """The length is at least what is needed, at most a quarter more, and a power of two times 1, 3, 5, 9 or 15."""
    size = fft_length(needed)
    assert needed <= size <= max(1.25 * needed, needed + 1)
    odd = size // (size & -size)
    assert odd in (1, 3, 5, 9, 15)


@pytest.fixture
def without_garbage_collector():
    gc.disable()
    yield
    gc.enable()


def test_affine_scan_leaves_nothing_to_the_garbage_collector(without_garbage_collector):
    """On a GPU its memory would be free later than that of other operations, also while a CUDA graph is captured."""
    a, b = torch.rand(1, 8, 2, requires_grad=True), torch.rand(1, 8, 2)
    state = a.sum(1)
    lifetime = weakref.ref(state)
    y = affine_scan(a, b, state)
    y.sum().backward()
    del y, state
    assert lifetime() is None


def test_fft_length_is_the_smallest_such_product():
    products = sorted(odd << power for odd in (1, 3, 5, 9, 15) for power in range(11))
    for needed in range(1, 400):
        assert fft_length(needed) == next(size for size in products if size >= needed)


def test_long_conv_with_kernel_of_powers_equals_linear_scan():
    u = torch.randn(2, 200, 3, dtype=torch.float64)
    a = torch.tensor([0.9, -0.5, 0.999], dtype=torch.float64)
    k = a[:, None] ** torch.arange(200)
    torch.testing.assert_close(long_conv(u, k), linear_scan(a, u)[0])


def test_eager_selective_scan_saves_one_state_a_chunk():
    """Autograd saves views of the inputs and one state of each chunk, so that its memory does not grow with L N."""
    saved = set()

    def record_storage(x):
        saved.add((x.untyped_storage().data_ptr(), x.untyped_storage().nbytes()))
        return x

    length, channels, states = 1024, 4, 32
    inputs = [torch.rand(1, length, n, requires_grad=True) for n in (channels, channels, states, states)]
    u, dt, B, C = inputs
    with torch.autograd.graph.saved_tensors_hooks(record_storage, lambda x: x):
        y, _ = selective_scan(u, dt, -torch.rand(channels, states), B, C, backend="eager")
    input_pointers = {x.untyped_storage().data_ptr() for x in inputs}
    extra = sum(size for pointer, size in saved if pointer not in input_pointers)
    assert extra < 4 * length * channels * states / 8
    assert math.isfinite(y.sum().item())
