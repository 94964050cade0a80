from typing import NamedTuple

import torch
from torch import Tensor

from longscan.layers.state import ScanState, layer_state, restarted_rows, zero_rows


@layer_state
class Outer(NamedTuple):
    conv: Tensor | None
    inner: tuple[ScanState, ...]


def example() -> Outer:
    return Outer(None, (ScanState(torch.arange(6.0).view(3, 2), torch.tensor([-1, 0, 4])),))


def test_states_within_states_select_move_and_count():
    state = example()
    assert state.nbytes == 6 * 4 + 3 * 8
    chosen = state.select_rows(slice(1, 3))
    assert chosen.conv is None
    assert chosen.inner[0].ssm.tolist() == [[2.0, 3.0], [4.0, 5.0]]
    moved = state.to(torch.float64)
    assert moved.inner[0].ssm.dtype == torch.float64
    assert moved.inner[0].last_seq_idx.dtype == torch.int64
    assert isinstance(moved, Outer)
    grown = ScanState(torch.ones(2, 3, requires_grad=True) * 2, torch.zeros(2, dtype=torch.int64))
    assert grown.ssm.requires_grad
    cut = Outer(None, (grown,)).detach()
    assert not cut.inner[0].ssm.requires_grad
    assert torch.equal(cut.inner[0].ssm, grown.ssm)
    assert state.to("meta").inner[0].last_seq_idx.device.type == "meta"


def test_rows_restart_where_their_first_real_step_is_of_another_sequence():
    last = torch.tensor([-1, 3, 3, 3, 3])
    seq_idx = torch.tensor([[5, 5, 6], [3, 3, 4], [4, 4, 4], [9, 3, 3], [9, 9, 9]])
    valid = torch.tensor([[1, 1, 1], [1, 1, 1], [1, 1, 0], [0, 1, 0], [0, 0, 0]], dtype=torch.bool)
    rows, after = restarted_rows(last, valid, seq_idx)
    assert rows is not None
    assert rows.tolist() == [False, False, True, False, False]
    assert after.tolist() == [6, 4, 4, 3, 3]
    rows, after = restarted_rows(last, None, seq_idx)
    assert rows is not None
    assert rows.tolist() == [False, False, True, True, True]
    assert after.tolist() == [6, 4, 4, 3, 9]
    assert restarted_rows(last, valid, None) == (None, last)
    assert restarted_rows(last, valid[:, :0], seq_idx[:, :0]) == (None, last)


def test_rows_that_restart_are_zero_and_others_keep_every_bit():
    state = torch.randn(3, 2, 4)
    found = zero_rows(torch.tensor([True, False, True]), state)
    assert torch.equal(found[1], state[1])
    assert torch.equal(found[::2], torch.zeros(2, 2, 4))
    assert zero_rows(None, state) is state
