"""The comparison of the two forms of S4D that several files of tests share."""

import torch

from longscan.layers import S4D
from longscan.layers.base import SequenceInfo
from longscan.ops.arguments import step_flags


def assert_convolution_equals_recurrence(layer: S4D, length: int) -> None:
    """Compare outputs and final states for an initial state and rows that are padded left, right or entirely.

    layer: S4D(3, d_state=8) in float64.
    """
    u = torch.randn(4, length, 3, dtype=torch.float64)
    state = torch.randn(4, 3, 4, 2, dtype=torch.float64)
    steps = torch.arange(length)
    first, last = torch.tensor([[0], [length // 2], [0], [1]]), torch.tensor([[length], [length], [0], [length - 1]])
    for valid in (None, (steps >= first) & (steps < last)):
        y, final = layer.convolve(u, state, valid)
        expected, expected_final = layer.recur(u, state, SequenceInfo(valid=valid), step_flags(4, length, valid, None, u))
        mask = torch.ones(4, length, dtype=torch.bool) if valid is None else valid
        torch.testing.assert_close(y[mask], expected[mask], rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(final, expected_final, rtol=1e-9, atol=1e-9)
