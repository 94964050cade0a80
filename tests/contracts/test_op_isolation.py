"""No value of one sequence changes a bit of another: packed in one row, next to padding, and in other rows of the batch.

Every op, on every backend, is called twice: with ordinary numbers, and with one sequence (or the padding, or one row) full of
NaN, infinities or 1e30. Outputs, final states and gradients of everything else must be the same bits. Exempt are gradients of
arguments that all sequences share, such as weights.

Backends are chosen as in test_ops.py: by LONGSCAN_BACKEND, LONGSCAN_DEVICE and TRITON_INTERPRET.
"""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from op_cases import PAIRS, PRECISIONS, Case, cases, run

from longscan.ops import OPS

LENGTHS = (17, 65, 130, 2, 3)  # the first choices make up the first case, and there are few in a short run
POISONS = [float("nan"), float("inf"), -float("inf"), 1e30]
PLACES = st.sampled_from(["inputs", "cotangents", "both"])
SEQUENTIAL = [pair for pair in PAIRS if OPS[pair[0]].per_step]
EVERY_PAIR = pytest.mark.parametrize(("op", "backend"), SEQUENTIAL)
STATEFUL = pytest.mark.parametrize(("op", "backend"), [pair for pair in SEQUENTIAL if OPS[pair[0]].stateful])
FEW = settings(max_examples=max(2, settings().max_examples // 4))  # each is several calls, with their gradients


def packed(data: st.DataObject, op: str, dtype: torch.dtype) -> Case:
    """Return a call on rows of several sequences, numbered 0, 1, ... from left to right, with or without padding anywhere."""
    case = data.draw(cases(op, masked=False, lengths=LENGTHS)).in_precision(dtype)
    generator = torch.Generator().manual_seed(case.seed)
    starts = torch.rand(case.batch, case.length, generator=generator) < data.draw(st.sampled_from([2 / case.length, 0.3]))
    starts[:, data.draw(st.integers(1, case.length - 1))] = True
    masks = {"seq_idx": starts.cumsum(1)}
    if data.draw(st.sampled_from([True, False])):
        masks["valid"] = torch.rand(case.batch, case.length, generator=generator) < 0.8
    return replace(case, masks=masks)


def padded(data: st.DataObject, op: str, dtype: torch.dtype) -> Case:
    """Return a call with padding at the left, at the right or anywhere."""
    case = data.draw(cases(op, masked=False, lengths=LENGTHS)).in_precision(dtype)
    steps, generator = torch.arange(case.length).expand(case.batch, -1), torch.Generator().manual_seed(case.seed)
    kept = torch.randint(0, case.length, (case.batch, 1), generator=generator)
    anywhere = torch.rand(case.batch, case.length, generator=generator) < 0.7
    valid = data.draw(st.sampled_from([steps >= case.length - kept, steps < kept, anywhere]))
    return replace(case, masks={"valid": valid})


def ends(case: Case, steps: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return masks (B,) of the rows whose initial, and whose final, state belongs to the sequence with the mask `steps` (B, L).

    The state before a row's first valid step belongs to the sequence of this step; a row without one belongs to none.
    """
    valid = case.masks.get("valid", torch.ones_like(steps))
    valid, steps = (x.flip(1) if case.options.get("reverse") else x for x in (valid, steps))
    some, rows = valid.any(1), torch.arange(case.batch)
    first, last = valid.to(torch.int8).argmax(1), case.length - 1 - valid.flip(1).to(torch.int8).argmax(1)
    return steps[rows, first] & some, steps[rows, last] & some


def fill(case: Case, steps: torch.Tensor, value: float, what: str = "both") -> Case:
    """Return the call with `value` at the steps (B, L) of inputs, cotangents or both, and in the states that belong to them."""
    initial, final = ends(case, steps)

    def put(x: torch.Tensor, where: torch.Tensor) -> torch.Tensor:
        filler = torch.full((), complex(value, value) if x.is_complex() else value, dtype=x.dtype)
        return torch.where(where.view(*where.shape, *(1,) * (x.ndim - where.ndim)), filler, x)

    def put_in(name: str, x: torch.Tensor) -> torch.Tensor:
        return put(x, initial) if name == "initial_state" else put(x, steps) if case.changes_in_time(name) else x

    inputs, cotangents = case.inputs, case.cotangents
    if what != "cotangents":
        inputs = {name: put_in(name, x) for name, x in inputs.items()}
    if what != "inputs":
        cotangents = tuple(put(x, where) for x, where in zip(cotangents, (steps, final), strict=False))
    return replace(case, inputs=inputs, cotangents=cotangents)


def parts(case: Case, results: dict[str, torch.Tensor], steps: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the results that belong to the steps (B, L): outputs, states, and gradients of all inputs but shared ones."""
    initial, final = ends(case, steps)
    found = {}
    for name, x in results.items():
        source = name.removeprefix("gradient of ")
        if name == "final state":
            found[name] = x[final]
        elif source == "initial_state":
            found[name] = x[initial]
        elif name == "y" or case.changes_in_time(source):
            found[name] = x[steps]
    return found


def assert_same_bits(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    for name, x in one.items():
        assert torch.equal(x, other[name]), f"{name}: {(x != other[name]).sum()} of {x.numel()} numbers differ"


@STATEFUL
@FEW
@given(data=st.data())
def test_sequences_of_a_packed_row_share_nothing(op, backend, data):
    case = packed(data, op, data.draw(st.sampled_from(PRECISIONS)))
    sequence = data.draw(st.integers(0, int(case.masks["seq_idx"].max())))
    theirs = case.masks["seq_idx"] == sequence
    spoiled = fill(case, theirs, data.draw(st.sampled_from(POISONS)), data.draw(PLACES))
    others = ~theirs & case.masks.get("valid", torch.ones_like(theirs))
    assert_same_bits(parts(case, run(spoiled, backend), others), parts(case, run(case, backend), others))


@STATEFUL
@FEW
@given(data=st.data())
def test_gradients_stay_in_their_sequence(op, backend, data):
    """Where only one sequence has a cotangent, its gradients are what they are, and those of all others are exactly 0.

    This holds whatever a third sequence contains, whose own gradients may then be NaN, since 0 times NaN is.
    """
    case = packed(data, op, data.draw(st.sampled_from(PRECISIONS)))
    ids = case.masks["seq_idx"]
    valid = case.masks.get("valid", torch.ones_like(ids, dtype=torch.bool))
    one, spoiled = data.draw(st.permutations(range(max(2, int(ids.max()) + 1))))[:2]
    alone = fill(case, ids != one, 0.0, "cotangents")
    found = run(alone, backend)
    assert_same_bits({name: torch.zeros_like(x) for name, x in gradients(case, found, ids != one).items()},
                     gradients(case, found, ids != one))  # fmt: skip
    beside = run(fill(alone, ids == spoiled, data.draw(st.sampled_from(POISONS)), "inputs"), backend)
    others = (ids != spoiled) & valid
    assert_same_bits(gradients(case, found, others), gradients(case, beside, others))


def gradients(case: Case, results: dict[str, torch.Tensor], steps: torch.Tensor) -> dict[str, torch.Tensor]:
    return {name: x for name, x in parts(case, results, steps).items() if name.startswith("gradient")}


@STATEFUL
@FEW
@given(data=st.data())
def test_padding_reaches_nothing(op, backend, data):
    """Padding changes no outputs, states and gradients, those of shared arguments included; its gradients are exactly 0."""
    case = padded(data, op, data.draw(st.sampled_from(PRECISIONS)))
    hidden = ~case.masks["valid"]
    spoiled = run(fill(case, hidden, data.draw(st.sampled_from(POISONS))), backend)
    assert_same_bits(spoiled, run(case, backend))
    for name, x in parts(case, spoiled, hidden).items():
        assert not x.count_nonzero(), name


@EVERY_PAIR
@FEW
@given(data=st.data())
def test_rows_of_a_batch_share_nothing(op, backend, data):
    case = data.draw(cases(op, lengths=LENGTHS)).in_precision(data.draw(st.sampled_from(PRECISIONS)))
    row = data.draw(st.integers(0, case.batch - 1))
    theirs = (torch.arange(case.batch) == row).unsqueeze(1).expand(-1, case.length)
    spoiled = fill(case, theirs, data.draw(st.sampled_from(POISONS)), data.draw(PLACES))
    kept = [i for i in range(case.batch) if i != row]

    def of_others(results):
        own = {"y", "final state", "gradient of initial_state"}
        return {
            name: x[kept]
            for name, x in results.items()
            if name in own or (name.startswith("gradient of ") and case.changes_in_time(name.removeprefix("gradient of ")))
        }

    assert_same_bits(of_others(run(spoiled, backend)), of_others(run(case, backend)))
