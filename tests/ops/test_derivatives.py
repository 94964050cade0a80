"""Derivatives of the reference and eager backends against finite differences, in float64, over chunk boundaries."""

import pytest
import torch

from longscan.ops import OPS, chunks
from op_examples import example, floats

PAIRS = ("linear_scan", "block2_scan", "selective_scan")
CALLS = [*((op, False) for op in OPS), *((op, True) for op in PAIRS)]  # the op, and whether its complex numbers are pairs


def make_function_of_floats(op, backend, is_complex, masked=True):
    # Widths that differ, and two heads in each group: finite differences call the op twice for each number.
    inputs = example(op, torch.float64, length=4, batch=1, masked=masked, is_complex=is_complex, D=2, N=3, H=4, P=2, G=2)
    values = floats(inputs)

    def call(*args):
        results = OPS[op].function(**(inputs | dict(zip(values, args, strict=True))), backend=backend)
        return results if isinstance(results, tuple) else (results,)

    return call, tuple(x.clone().requires_grad_() for x in values.values())


@pytest.fixture(autouse=True)
def _short_chunks(monkeypatch):
    monkeypatch.setattr(chunks, "CHUNK", 3)
    monkeypatch.setattr(chunks, "CHUNK_ELEMENTS", 1)


# In fast mode gradcheck compares the derivative in one random direction of the inputs and results, instead of every entry of the
# Jacobian, for which it calls the op twice for each number.
@pytest.mark.parametrize("backend", ["reference", "eager"])
@pytest.mark.parametrize(("op", "is_complex"), CALLS)
def test_first_derivatives_equal_finite_differences(op, is_complex, backend):
    torch.autograd.gradcheck(*make_function_of_floats(op, backend, is_complex), fast_mode=True)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["reference", "eager"])
@pytest.mark.parametrize(("op", "is_complex"), CALLS)
def test_all_first_derivatives_equal_finite_differences(op, is_complex, backend):
    torch.autograd.gradcheck(*make_function_of_floats(op, backend, is_complex))


@pytest.mark.parametrize(("op", "is_complex"), CALLS)
def test_second_derivatives_of_eager_equal_finite_differences(op, is_complex):
    torch.autograd.gradgradcheck(*make_function_of_floats(op, "eager", is_complex), fast_mode=True)


@pytest.mark.parametrize("fast", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["direction", "entries"])
def test_derivatives_of_complex_tensors_equal_finite_differences(fast):
    """The other tests pass complex numbers as pairs of real numbers."""
    u, dt = torch.randn(1, 4, 2, dtype=torch.float64), torch.rand(1, 4, 2, dtype=torch.float64)
    A, B, C, h = (torch.randn(shape, dtype=torch.complex128) for shape in ((2, 2), (1, 4, 2), (1, 4, 2), (1, 2, 2)))
    for backend in ("reference", "eager"):
        torch.autograd.gradcheck(
            lambda u, dt, A, B, C, h, backend=backend: OPS["selective_scan"].function(
                u, dt, A, B, C, initial_state=h, backend=backend
            ),
            tuple(x.clone().requires_grad_() for x in (u, dt, A, B, C, h)),
            fast_mode=fast,
        )


@pytest.mark.parametrize("op", OPS)
def test_transforms_of_torch_func_equal_a_loop(op):
    """vmap, and per-example gradients by vmap of grad, equal a loop over the examples."""
    size = 2
    call, values = make_function_of_floats(op, "eager", False)
    stacked = [torch.randn(size, *x.shape, dtype=torch.float64) * 0.1 + x.detach() for x in values]

    def loss(*args):
        return sum(x.square().sum() for x in call(*args))

    rows = [[x[i] for x in stacked] for i in range(size)]
    torch.testing.assert_close(torch.func.vmap(loss)(*stacked), torch.stack([loss(*row) for row in rows]))
    argnums = tuple(range(len(values)))
    per_example = torch.func.vmap(torch.func.grad(loss, argnums))(*stacked)
    for mapped, *each in zip(per_example, *[torch.func.grad(loss, argnums)(*row) for row in rows], strict=True):
        torch.testing.assert_close(mapped, torch.stack(each))


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")  # torch's own, in forward mode
@pytest.mark.parametrize("op", OPS)
def test_forward_mode_equals_backward_mode(op):
    """The directional derivatives of eager by forward mode equal those by backward mode."""
    call, values = make_function_of_floats(op, "eager", False)
    primals, directions = tuple(x.detach() for x in values), tuple(torch.randn_like(x) for x in values)
    _, tangents = torch.func.jvp(lambda *args: call(*args)[0], primals, directions)
    y = call(*values)[0]
    cotangent = torch.randn_like(y)
    grads = torch.autograd.grad(y, values, cotangent)
    expected = sum((grad * direction).sum() for grad, direction in zip(grads, directions, strict=True))
    torch.testing.assert_close((tangents * cotangent).sum(), expected)
