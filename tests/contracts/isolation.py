"""Helpers of the tests that no value of one sequence changes a bit of another."""

from types import EllipsisType

import torch
from hypothesis import strategies as st
from torch import Tensor

POISON_VALUES = st.sampled_from([float("nan"), float("inf"), -float("inf"), 1e30])


def fill_where(x: Tensor, where: Tensor, value: float) -> Tensor:
    """Return x with `value` where a mask of its leading axes is True."""
    filler = torch.full((), complex(value, value) if x.is_complex() else value, dtype=x.dtype, device=x.device)
    return torch.where(where.view(*where.shape, *(1,) * (x.ndim - where.ndim)), filler, x)


def find_state_rows(steps: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """Return masks (B,) of the rows whose initial, and whose final, state belongs to the sequence with the mask `steps`.

    steps, valid: (B, L). The initial state belongs to the sequence of the first valid step, the final state to that of the last.
    The states of a row without a valid step belong to no sequence.
    """
    rows, any_valid = torch.arange(len(valid)), valid.any(1)
    first, last = valid.to(torch.int8).argmax(1), valid.shape[1] - 1 - valid.flip(1).to(torch.int8).argmax(1)
    return steps[rows, first] & any_valid, steps[rows, last] & any_valid


def assert_same_bits(expected: dict[str, Tensor], actual: dict[str, Tensor], where: Tensor | EllipsisType = ...) -> None:
    """Assert that the tensors of `expected` have the same bits in `actual`, at all numbers or where a mask is True."""
    for name, x in expected.items():
        y = actual[name]
        assert torch.equal(x[where], y[where]), f"{name}: {(x != y)[where].sum()} of {x.numel()} numbers differ"
