"""Products over the pairs of steps that a mask allows: values, derivatives of every kind, and what the mask keeps out."""

import pytest
import torch

from longscan.ops.associative import running_sum
from longscan.ops.masked_products import masked_products, masked_sums

SEQUENCE = torch.tensor([0, 0, 1, 1, 1])
MASK = (SEQUENCE.unsqueeze(1) == SEQUENCE).tril()


def operands(function):
    columns = 5 if function is masked_sums else 3
    return tuple(torch.randn(2, 5, k, dtype=torch.float64, requires_grad=True) for k in (columns, 3))


def plain(function, a, b):
    return torch.where(MASK, a @ b.mT, 0) if function is masked_products else torch.where(MASK, a, 0) @ b


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")  # torch's own, in forward mode
@pytest.mark.parametrize("function", [masked_products, masked_sums])
def test_values_and_derivatives(function):
    given = operands(function)
    torch.testing.assert_close(function(*given, MASK), plain(function, *given))
    assert torch.autograd.gradcheck(lambda a, b: function(a, b, MASK), given)
    assert torch.autograd.gradgradcheck(lambda a, b: function(a, b, MASK), given, fast_mode=True)
    primals, directions = tuple(x.detach() for x in given), tuple(torch.randn_like(x) for x in given)
    found, expected = (
        torch.func.jvp(one, primals, directions)[1]
        for one in (lambda a, b: function(a, b, MASK), lambda a, b: plain(function, a, b))
    )
    torch.testing.assert_close(found, expected)
    mapped = torch.func.vmap(lambda a, b: function(a, b, MASK))(*primals)
    torch.testing.assert_close(mapped, plain(function, *primals))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e300])
def test_a_sum_keeps_what_its_sequence_holds(value):
    """A NaN is not hidden in its own sequence, from its step on, and is nowhere else; nor is one among the gradients."""
    weights, values = (x.detach() for x in operands(masked_sums))
    spoiled = values.clone()
    spoiled[0, 3, 1] = value
    one, other = (masked_sums(weights, x, MASK) for x in (values, spoiled))
    theirs = torch.zeros(2, 5, dtype=torch.bool)
    theirs[0, 3:] = True
    assert torch.equal(one[~theirs], other[~theirs])
    assert not torch.isfinite(other[theirs]).all() or value == 1e300
    leaf, cotangent = values.clone().requires_grad_(), torch.ones_like(values)
    cotangent[0, 4] = value
    (grad,) = torch.autograd.grad(masked_sums(weights, leaf, MASK), leaf, cotangent)
    assert grad[0, :2].isfinite().all()
    assert grad[1].isfinite().all()
    assert value == 1e300 or grad[0, 2:].isnan().all()


def test_running_sums_start_again():
    x = torch.randn(2, 7, 3, dtype=torch.float64)
    reset = torch.zeros(2, 7, 1, dtype=torch.bool)
    reset[0, 3] = reset[1, 1] = reset[1, 6] = True
    parts = [[x[0, :3], x[0, 3:]], [x[1, :1], x[1, 1:6], x[1, 6:]]]
    expected = torch.stack([torch.cat([part.cumsum(0) for part in row]) for row in parts])
    torch.testing.assert_close(running_sum(x, reset), expected)
    torch.testing.assert_close(running_sum(x), x.cumsum(1))
    spoiled = x.clone()
    spoiled[0, 1], spoiled[1, 2:6] = float("nan"), float("inf")
    found = running_sum(spoiled, reset)
    assert torch.equal(found[0, 3:], running_sum(x, reset)[0, 3:])
    assert torch.equal(found[1, 6], x[1, 6])
