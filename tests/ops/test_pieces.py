"""Products of the factors of a piece equal a loop over its steps, for numbers, pairs and matrices, with padding."""

import pytest
import torch
from torch import Tensor

from longscan.numerics.pairs import constant, multiply
from longscan.ops import chunks
from longscan.ops.arguments import INVALID, RESET
from longscan.ops.pieces import power, product_of_factors, sum_steps
from longscan.ops.short_conv import _newest, short_conv

KINDS = {
    "real": (torch.mul, torch.ones(()), ()),
    "pairs": (multiply, constant(torch.ones(()), 1.0, 0.0), (2,)),
    "matrices": (torch.matmul, torch.eye(2), (2, 2)),
}


def multiply_in_a_loop(factors: Tensor, flags: Tensor | None, kind: str) -> Tensor:
    """Return the product of the valid factors (B, L, ...) of each row, the later ones on the left."""
    times, identity, _ = KINDS[kind]
    rows = []
    for row in range(len(factors)):
        result = identity.to(factors.dtype).expand(factors.shape[2:])
        for t in range(factors.shape[1]):
            if flags is None or flags[row, t] != INVALID:
                result = times(factors[row, t], result)
        rows.append(result)
    return torch.stack(rows)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("length", [1, 3, 150])
def test_product_equals_a_loop(kind: str, masked: bool, length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "CHUNK_ELEMENTS", 1)  # chunks of 64 steps
    times, identity, tail = KINDS[kind]
    torch.manual_seed(length)
    factors = (torch.randn(2, length, 3, *tail, dtype=torch.float64) * 0.7 + identity * 0.5).requires_grad_()
    flags = torch.where(torch.rand(2, length) < 0.3, INVALID, 0).index_fill(1, torch.tensor(0), 0) if masked else None
    found = product_of_factors(factors, flags, length, factors.ndim, times, identity)
    expected = multiply_in_a_loop(factors, flags, kind)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    weights = torch.randn_like(found)
    gradients = (torch.autograd.grad((y * weights).sum(), factors)[0] for y in (found, expected))
    torch.testing.assert_close(*gradients, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_power_equals_a_loop(kind: str) -> None:
    times, identity, tail = KINDS[kind]
    base = torch.randn(3, *tail, dtype=torch.float64).requires_grad_()
    counts = torch.tensor([0, 1, 5, 12])
    found = power(base, counts, 12, times, identity.double())
    repeated = base.expand(4, 12, *base.shape)
    flags = (torch.arange(12) >= counts.unsqueeze(1)).to(torch.uint8) * INVALID
    expected = multiply_in_a_loop(repeated, flags, kind)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    gradients = (torch.autograd.grad(y.square().sum(), base)[0] for y in (found, expected))
    torch.testing.assert_close(*gradients, rtol=1e-8, atol=1e-10)


def test_sum_is_over_valid_steps_of_all_sequences_of_a_row() -> None:
    x, flags = torch.tensor([[[1.0], [2.0], [4.0]]]), torch.tensor([[0, RESET, INVALID]], dtype=torch.uint8)
    assert sum_steps(x, flags).tolist() == [[3]]
    assert sum_steps(x, None).tolist() == [[7]]


@pytest.mark.parametrize("length", [1, 3, 6])
def test_newest_inputs_are_the_state_of_a_convolution(length: int) -> None:
    u = torch.randn(2, length, 3)
    torch.testing.assert_close(_newest(u, 5), short_conv(u, torch.randn(3, 5))[1])
