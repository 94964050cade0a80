"""No value of one sequence changes a bit of another: packed in one row, next to padding, and in other rows of the batch.

Every op is called twice on every backend: with normal numbers, and with one sequence, the padding or one row full of NaN,
infinities or 1e30. All other outputs, final states and gradients must have the same bits, except gradients of arguments that all
sequences share, such as weights.

Backends are chosen as in test_ops.py: by LONGSCAN_BACKEND, LONGSCAN_DEVICE and TRITON_INTERPRET.
"""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from isolation import POISON_VALUES, assert_same_bits, fill_where, find_state_rows
from op_cases import OP_BACKENDS, PRECISIONS, Case, cases, run

from longscan.ops import OPS

LENGTHS = (17, 65, 130, 2, 3)  # the first length is the one of the first example
POISONED_TENSORS = st.sampled_from(["inputs", "cotangents", "both"])
SEQUENTIAL = [pair for pair in OP_BACKENDS if OPS[pair[0]].per_step]
every_sequential_op = pytest.mark.parametrize(("op", "backend"), SEQUENTIAL)
every_stateful_op = pytest.mark.parametrize(("op", "backend"), [pair for pair in SEQUENTIAL if OPS[pair[0]].stateful])
fewer_examples = settings(max_examples=max(2, settings().max_examples // 4))  # an example is several calls with gradients


def draw_packed_case(data: st.DataObject, op: str, dtype: torch.dtype) -> Case:
    """Return a call on rows of several sequences, numbered 0, 1, ... from left to right, with or without padding anywhere."""
    case = data.draw(cases(op, masked=False, lengths=LENGTHS)).in_precision(dtype)
    generator = torch.Generator().manual_seed(case.seed)
    starts = torch.rand(case.batch, case.length, generator=generator) < data.draw(st.sampled_from([2 / case.length, 0.3]))
    starts[:, data.draw(st.integers(1, case.length - 1))] = True
    masks = {"seq_idx": starts.cumsum(1)}
    if data.draw(st.sampled_from([True, False])):
        masks["valid"] = torch.rand(case.batch, case.length, generator=generator) < 0.8
    return replace(case, masks=masks)


def draw_padded_case(data: st.DataObject, op: str, dtype: torch.dtype) -> Case:
    """Return a call with padding at the left, at the right or anywhere."""
    case = data.draw(cases(op, masked=False, lengths=LENGTHS)).in_precision(dtype)
    steps, generator = torch.arange(case.length).expand(case.batch, -1), torch.Generator().manual_seed(case.seed)
    kept = torch.randint(0, case.length, (case.batch, 1), generator=generator)
    anywhere = torch.rand(case.batch, case.length, generator=generator) < 0.7
    valid = data.draw(st.sampled_from([steps >= case.length - kept, steps < kept, anywhere]))
    return replace(case, masks={"valid": valid})


def find_rows(case: Case, steps: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `find_state_rows` of a call, in the direction of its scan."""
    masks = (steps, case.masks.get("valid", torch.ones_like(steps)))
    return find_state_rows(*(x.flip(1) if case.options.get("reverse") else x for x in masks))


def fill_steps(case: Case, steps: torch.Tensor, value: float, poisoned: str = "both") -> Case:
    """Return the call with `value` at the steps (B, L) of inputs, cotangents or both, and in the states that belong to them."""
    initial, final = find_rows(case, steps)
    inputs, cotangents = dict(case.inputs), case.cotangents
    if poisoned != "cotangents":
        for name, x in case.inputs.items():
            if name == "initial_state" or case.has_time_axis(name):
                inputs[name] = fill_where(x, initial if name == "initial_state" else steps, value)
    if poisoned != "inputs":
        cotangents = tuple(fill_where(x, where, value) for x, where in zip(cotangents, (steps, final), strict=False))
    return replace(case, inputs=inputs, cotangents=cotangents)


def select_steps(case: Case, results: dict[str, torch.Tensor], steps: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the results that belong to the steps (B, L): outputs, states, and gradients of all inputs but shared ones."""
    initial, final = find_rows(case, steps)
    selected = {}
    for name, x in results.items():
        source = name.removeprefix("gradient of ")
        if name == "final state":
            selected[name] = x[final]
        elif source == "initial_state":
            selected[name] = x[initial]
        elif name == "y" or case.has_time_axis(source):
            selected[name] = x[steps]
    return selected


def select_gradients(case: Case, results: dict[str, torch.Tensor], steps: torch.Tensor) -> dict[str, torch.Tensor]:
    return {name: x for name, x in select_steps(case, results, steps).items() if name.startswith("gradient")}


@every_stateful_op
@fewer_examples
@given(data=st.data())
def test_packed_sequences_do_not_affect_each_other(op, backend, data):
    case = draw_packed_case(data, op, data.draw(st.sampled_from(PRECISIONS)))
    sequence = data.draw(st.integers(0, int(case.masks["seq_idx"].max())))
    in_sequence = case.masks["seq_idx"] == sequence
    poisoned_case = fill_steps(case, in_sequence, data.draw(POISON_VALUES), data.draw(POISONED_TENSORS))
    others = ~in_sequence & case.masks.get("valid", torch.ones_like(in_sequence))
    assert_same_bits(select_steps(case, run(poisoned_case, backend), others), select_steps(case, run(case, backend), others))


@every_stateful_op
@fewer_examples
@given(data=st.data())
def test_gradients_do_not_cross_sequence_boundaries(op, backend, data):
    """If only one sequence has a cotangent, the gradients of all others are exactly 0, whatever a third sequence contains.

    The gradients of that third sequence may be NaN, since 0 times NaN is NaN.
    """
    case = draw_packed_case(data, op, data.draw(st.sampled_from(PRECISIONS)))
    ids = case.masks["seq_idx"]
    valid = case.masks.get("valid", torch.ones_like(ids, dtype=torch.bool))
    sequence, third = data.draw(st.permutations(range(max(2, int(ids.max()) + 1))))[:2]
    case_of_one = fill_steps(case, ids != sequence, 0.0, "cotangents")
    results = run(case_of_one, backend)
    for name, grad in select_gradients(case, results, ids != sequence).items():
        assert not grad.count_nonzero(), name
    results_with_poison = run(fill_steps(case_of_one, ids == third, data.draw(POISON_VALUES), "inputs"), backend)
    others = (ids != third) & valid
    assert_same_bits(select_gradients(case, results, others), select_gradients(case, results_with_poison, others))


@every_stateful_op
@fewer_examples
@given(data=st.data())
def test_padding_values_change_no_bit(op, backend, data):
    """Gradients of shared arguments are the same, too. The gradients of the padding are exactly 0."""
    case = draw_padded_case(data, op, data.draw(st.sampled_from(PRECISIONS)))
    padding = ~case.masks["valid"]
    results = run(fill_steps(case, padding, data.draw(POISON_VALUES)), backend)
    assert_same_bits(results, run(case, backend))
    for name, x in select_steps(case, results, padding).items():
        assert not x.count_nonzero(), name


@every_sequential_op
@fewer_examples
@given(data=st.data())
def test_batch_rows_do_not_affect_each_other(op, backend, data):
    case = data.draw(cases(op, lengths=LENGTHS)).in_precision(data.draw(st.sampled_from(PRECISIONS)))
    row = data.draw(st.integers(0, case.batch - 1))
    in_row = (torch.arange(case.batch) == row).unsqueeze(1).expand(-1, case.length)
    poisoned_case = fill_steps(case, in_row, data.draw(POISON_VALUES), data.draw(POISONED_TENSORS))
    other_rows = [i for i in range(case.batch) if i != row]

    def select_other_rows(results):
        per_row = {"y", "final state", "gradient of initial_state"}
        return {
            name: x[other_rows]
            for name, x in results.items()
            if name in per_row or (name.startswith("gradient of ") and case.has_time_axis(name.removeprefix("gradient of ")))
        }

    assert_same_bits(select_other_rows(run(poisoned_case, backend)), select_other_rows(run(case, backend)))
