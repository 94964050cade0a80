import importlib
import pkgutil
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

import longscan.layers
from longscan.blocks import BLOCKS
from longscan.layers import LAYERS
from longscan.layers.checks import check_state_form, state_form
from longscan.layers.state import ScanState, layer_state, restarted_rows, state_tensors, zero_rows


@layer_state
class Outer(NamedTuple):
    conv: Tensor | None
    inner: tuple[ScanState, ...]


def make_nested_state() -> Outer:
    return Outer(None, (ScanState(torch.arange(6.0).view(3, 2), torch.tensor([-1, 0, 4])),))


def test_methods_of_states_reach_nested_states():
    state = make_nested_state()
    assert state.nbytes == 6 * 4 + 3 * 8
    selected = state.select_rows(slice(1, 3))
    assert selected.conv is None
    assert selected.inner[0].ssm.tolist() == [[2.0, 3.0], [4.0, 5.0]]
    moved = state.to(torch.float64)
    assert moved.inner[0].ssm.dtype == torch.float64
    assert moved.inner[0].last_seq_idx.dtype == torch.int64
    assert isinstance(moved, Outer)
    with_graph = ScanState(torch.ones(2, 3, requires_grad=True) * 2, torch.zeros(2, dtype=torch.int64))
    assert with_graph.ssm.requires_grad
    detached = Outer(None, (with_graph,)).detach()
    assert not detached.inner[0].ssm.requires_grad
    assert torch.equal(detached.inner[0].ssm, with_graph.ssm)
    assert state.to("meta").inner[0].last_seq_idx.device.type == "meta"


@pytest.mark.parametrize(
    ("index", "rows"),
    [
        (1, [1]), (-1, [2]), (np.int64(1), [1]), (torch.tensor(1), [1]), ((0, 1), [0, 1]), ([2, 0], [2, 0]), ([], []),
        (range(2), [0, 1]), (np.array([2, 0]), [2, 0]),
        (torch.tensor([2, 0], dtype=torch.uint8), [2, 0]), ([True, False, True], [0, 2]),
        (torch.tensor([False, False, True]), [2]), (slice(None, None, 2), [0, 2]),
    ],
    ids=str,
)  # fmt: skip
def test_rows_are_selected_by_every_kind_of_index(index: Any, rows: list[int]) -> None:
    state = ScanState(torch.randn(3, 2), torch.arange(3))
    selected = state.select_rows(index)  # type: ignore[attr-defined]
    assert selected.last_seq_idx.tolist() == rows
    assert selected.ssm.equal(state.ssm[torch.tensor(rows, dtype=torch.int64)])


@pytest.mark.parametrize("index", [None, "a", ..., True, 1.0, [0.0], [[0, 1]], {"row": 1}], ids=str)
def test_index_that_selects_no_rows_raises(index: Any) -> None:
    state = ScanState(torch.randn(3, 2), torch.arange(3))
    with pytest.raises(TypeError, match="`index` must be the number of a row, a slice, numbers of rows or a mask"):
        state.select_rows(index)  # type: ignore[attr-defined]
    with pytest.raises(IndexError, match="`index` must be a mask of 3 rows, got one of 2"):
        state.select_rows([True, False])  # type: ignore[attr-defined]


def test_every_state_of_a_layer_has_the_methods_of_states():
    names = [name for _, name, _ in pkgutil.walk_packages(longscan.layers.__path__, "longscan.layers.")]
    states = {
        value
        for name in names
        for value in vars(importlib.import_module(name)).values()
        if isinstance(value, type) and issubclass(value, tuple) and hasattr(value, "_fields") and value.__name__.endswith("State")
    }
    assert {"ScanState", "PhaseState"} < {state.__name__ for state in states}
    for state in states:
        assert {"select_rows", "to", "detach", "nbytes"} <= vars(state).keys(), state


def test_rows_restart_if_their_first_valid_step_has_another_seq_idx():
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


def test_zero_rows_does_not_change_other_rows():
    state = torch.randn(3, 2, 4)
    result = zero_rows(torch.tensor([True, False, True]), state)
    assert torch.equal(result[1], state[1])
    assert torch.equal(result[::2], torch.zeros(2, 2, 4))
    assert zero_rows(None, state) is state


@pytest.mark.parametrize("shape", [(3, 2), (2, 3), (2, 2, 1), (2,)], ids=str)
def test_state_with_another_shape_raises(shape):
    form = state_form(ScanState(torch.zeros(1, 2), torch.zeros(1, dtype=torch.int64)))
    check_state_form(ScanState(torch.zeros(2, 2), torch.zeros(2, dtype=torch.int64)), form, 2)
    with pytest.raises(ValueError, match="`state` must have tensors of shapes"):
        check_state_form(ScanState(torch.zeros(shape), torch.zeros(2, dtype=torch.int64)), form, 2)


def test_state_with_integers_in_place_of_floating_point_numbers_raises():
    form = state_form(ScanState(torch.zeros(1, 2), torch.zeros(1, dtype=torch.int64)))
    numbers, last = torch.zeros(2, 2), torch.zeros(2, dtype=torch.int64)
    check_state_form(ScanState(numbers.bfloat16(), last), form, 2)
    with pytest.raises(TypeError, match=r"^`state` must have floating-point numbers in its tensor 0, got torch\.int64$"):
        check_state_form(ScanState(numbers.long(), last), form, 2)
    with pytest.raises(TypeError, match=r"^`state` must have integers in its tensor 1, got torch\.float32$"):
        check_state_form(ScanState(numbers, last.float()), form, 2)


@pytest.mark.parametrize("name", [*LAYERS, *BLOCKS])
def test_states_of_all_layers_and_blocks_have_rows_dtypes_and_sizes(name):
    """`select_rows`, `to`, `detach` and `nbytes` of the state before the first step, also of those inside it."""
    module = (LAYERS[name] if name in LAYERS else BLOCKS[name])(8)
    state = module.initial_state(3)
    if state is None:
        return
    parts = state_tensors(state)
    assert state.nbytes == sum(part.nbytes for part in parts)
    rows = state.select_rows(torch.tensor([2, 0]))
    for part, selected in zip(parts, state_tensors(rows), strict=True):
        assert torch.equal(selected, part[[2, 0]])
    assert type(rows) is type(state.detach()) is type(state)
    wide = [part.dtype for part in state_tensors(state.to(torch.float64)) if part.is_floating_point()]
    assert set(wide) <= {torch.float64}
