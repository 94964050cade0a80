"""Products over the pairs of steps that a mask allows: values, all kinds of derivatives, and NaN that must not spread."""

import pytest
import torch

from longscan.ops.associative import running_sum
from longscan.ops.masked_products import masked_products, masked_sums

SEQUENCE = torch.tensor([0, 0, 1, 1, 1])
MASK = (SEQUENCE.unsqueeze(1) == SEQUENCE).tril()


def make_operands(function):
    columns = 5 if function is masked_sums else 3
    return tuple(torch.randn(2, 5, k, dtype=torch.float64, requires_grad=True) for k in (columns, 3))


def apply_mask_and_multiply(function, a, b):
    return torch.where(MASK, a @ b.mT, 0) if function is masked_products else torch.where(MASK, a, 0) @ b


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")  # torch's own, in forward mode
@pytest.mark.parametrize("function", [masked_products, masked_sums])
def test_values_and_derivatives_equal_masked_matmul(function):
    operands = make_operands(function)
    torch.testing.assert_close(function(*operands, MASK), apply_mask_and_multiply(function, *operands))
    assert torch.autograd.gradcheck(lambda a, b: function(a, b, MASK), operands)
    assert torch.autograd.gradgradcheck(lambda a, b: function(a, b, MASK), operands, fast_mode=True)
    primals, directions = tuple(x.detach() for x in operands), tuple(torch.randn_like(x) for x in operands)
    tangents, expected = (
        torch.func.jvp(call, primals, directions)[1]
        for call in (lambda a, b: function(a, b, MASK), lambda a, b: apply_mask_and_multiply(function, a, b))
    )
    torch.testing.assert_close(tangents, expected)
    mapped = torch.func.vmap(lambda a, b: function(a, b, MASK))(*primals)
    torch.testing.assert_close(mapped, apply_mask_and_multiply(function, *primals))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e300])
def test_nan_reaches_only_later_steps_of_its_own_sequence(value):
    """A NaN appears in the sums of its own sequence from its step on and in no others; the same holds for gradients."""
    weights, values = (x.detach() for x in make_operands(masked_sums))
    damaged_values = values.clone()
    damaged_values[0, 3, 1] = value
    clean, spoiled = (masked_sums(weights, x, MASK) for x in (values, damaged_values))
    affected = torch.zeros(2, 5, dtype=torch.bool)
    affected[0, 3:] = True
    assert torch.equal(clean[~affected], spoiled[~affected])
    assert not torch.isfinite(spoiled[affected]).all() or value == 1e300
    leaf, cotangent = values.clone().requires_grad_(), torch.ones_like(values)
    cotangent[0, 4] = value
    (grad,) = torch.autograd.grad(masked_sums(weights, leaf, MASK), leaf, cotangent)
    assert grad[0, :2].isfinite().all()
    assert grad[1].isfinite().all()
    assert value == 1e300 or grad[0, 2:].isnan().all()


def test_running_sum_restarts_at_resets():
    x = torch.randn(2, 7, 3, dtype=torch.float64)
    reset = torch.zeros(2, 7, 1, dtype=torch.bool)
    reset[0, 3] = reset[1, 1] = reset[1, 6] = True
    segments = [[x[0, :3], x[0, 3:]], [x[1, :1], x[1, 1:6], x[1, 6:]]]
    expected = torch.stack([torch.cat([part.cumsum(0) for part in row]) for row in segments])
    torch.testing.assert_close(running_sum(x, reset), expected)
    torch.testing.assert_close(running_sum(x), x.cumsum(1))
    spoiled = x.clone()
    spoiled[0, 1], spoiled[1, 2:6] = float("nan"), float("inf")
    sums = running_sum(spoiled, reset)
    assert torch.equal(sums[0, 3:], running_sum(x, reset)[0, 3:])
    assert torch.equal(sums[1, 6], x[1, 6])
