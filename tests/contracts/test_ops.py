"""What every op promises, on every backend that this machine has."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from op_cases import PRECISIONS, call, cases, named, run

from longscan.ops import OPS
from longscan.ops._dispatch import reject
from tolerances import assert_as_accurate, assert_same

STATEFUL = [name for name, op in OPS.items() if op.stateful]


def usable(op: str, backend: str) -> bool:
    return reject(op, backend, torch.device("cpu"), torch.float32, OPS[op].native) is None


FAST = {op: [backend for backend in ("eager", *OPS[op].native) if usable(op, backend)] for op in OPS}
ON_EVERY_BACKEND = pytest.mark.parametrize(
    ("op", "backend"), [(op, backend) for op in OPS for backend in ("reference", *FAST[op])]
)
STATEFUL_ON_EVERY_BACKEND = pytest.mark.parametrize(
    ("op", "backend"), [(op, backend) for op in STATEFUL for backend in ("reference", *FAST[op])]
)


@pytest.mark.parametrize(("op", "backend"), [(op, backend) for op in OPS for backend in OPS[op].native])
def test_native_kernels_are_there(op, backend):
    reason = reject(op, backend, torch.device("cpu"), torch.float32, OPS[op].native)
    if reason:
        pytest.skip(reason)
    assert backend in FAST[op]


@pytest.mark.parametrize("op", OPS)
@given(data=st.data())
def test_as_accurate_as_plain_arithmetic(op, data):
    """y, final state and every gradient, on every backend, against the reference in float64."""
    dtype = data.draw(st.sampled_from(PRECISIONS))
    single = torch.float32 if dtype == torch.float64 else dtype
    case = data.draw(cases(op)).in_precision(single)
    truth = run(case.in_double(), "reference")
    near = case.neighbours(torch.float32)
    moved = [run(other.in_double(), "reference") for other in near]
    plain, plain_moved = [run(case, "reference")], [run(other, "reference") for other in near]
    double = dtype == torch.float64  # then the truth errs as much as what it is compared with
    precision = 2 * torch.finfo(torch.float64).eps / torch.finfo(torch.float32).eps if double else 1
    for backend in FAST[op]:
        results = run(case.in_double() if double else case, backend)
        operations = 2 if backend == "eager" else 1  # its scan updates every element twice
        assert_as_accurate(results, plain, truth, moved, plain_moved, operations, precision, f"{backend}: ")
        if backend == "eager" and not double:
            plain.append(results)


@STATEFUL_ON_EVERY_BACKEND
@given(data=st.data())
def test_carrying_the_state_over_a_split_changes_nothing(op, backend, data):
    case = data.draw(cases(op, lengths=(1, 2, 3, 63, 65, 130)))
    if case.options.get("reverse"):
        case.options["reverse"] = False
    split = data.draw(st.integers(0, case.length))
    whole = call(case, backend)
    first, second = case.steps(0, split), case.steps(split, case.length)
    y1, state = call(first, backend)
    if "seq_idx" in case.masks:  # a split is no new segment for the op: its caller resets the state where the id changed
        ids, valid = case.masks["seq_idx"], case.masks.get("valid", torch.ones(case.batch, case.length, dtype=torch.bool))
        for row in range(case.batch):
            before, after = ids[row, :split][valid[row, :split]], ids[row, split:][valid[row, split:]]
            if len(before) and len(after) and before[-1] != after[0]:
                state[row] = 0
    second.inputs["initial_state"] = state
    y2, state = call(second, backend)
    moved = [named(call(other, backend)) for other in case.neighbours(torch.float64)]
    assert_same(named((torch.cat([y1, y2], 1), state)), named(whole), moved)


@STATEFUL_ON_EVERY_BACKEND
@given(data=st.data())
def test_packed_rows_equal_rows_alone(op, backend, data):
    """Segments of a packed row give what they give alone, the first from the initial state, the others from zero."""
    case = data.draw(cases(op, masked=False, lengths=(1, 2, 3, 63, 65, 130)))
    cuts = sorted(data.draw(st.sets(st.integers(0, case.length), max_size=3)) | {0, case.length})
    ids = torch.zeros(case.batch, case.length, dtype=torch.long)
    for i, cut in enumerate(cuts):
        ids[:, cut:] = 7 - i
    case.masks["seq_idx"] = ids
    packed = named(call(case, backend))
    moved = [named(call(other, backend)) for other in case.neighbours(torch.float64)]
    case.masks.clear()
    pieces, final = [], None
    reverse = case.options.get("reverse", False)
    spans = list(pairwise(cuts))
    for start, stop in reversed(spans) if reverse else spans:
        piece = case.steps(start, stop)
        if pieces:
            piece.inputs.pop("initial_state", None)
        y, final = call(piece, backend)
        pieces.append(y)
    y = torch.cat(pieces[::-1] if reverse else pieces, 1)
    assert_same(packed, {"y": y, "final state": final}, moved)


@STATEFUL_ON_EVERY_BACKEND
@given(data=st.data())
def test_invalid_steps_are_as_if_absent(op, backend, data):
    """Padding anywhere, filled with NaN, changes neither results nor gradients, which are 0 there."""
    case = data.draw(cases(op, masked=False, lengths=(0, 1, 2, 3, 63, 65)))
    length = case.length + data.draw(st.integers(1, 70))
    kind = data.draw(st.sampled_from(["left", "right", "any"]))
    generator = torch.Generator().manual_seed(case.seed)
    places = torch.stack(
        [
            {
                "left": torch.arange(length - case.length, length),
                "right": torch.arange(case.length),
                "any": torch.randperm(length, generator=generator)[: case.length].sort().values,
            }[kind]
            for _ in range(case.batch)
        ]
    )

    def spread(x, fill):
        index = places.view(*places.shape, *(1,) * (x.ndim - 2)).expand(-1, -1, *x.shape[2:])
        return torch.full((case.batch, length, *x.shape[2:]), fill, dtype=x.dtype).scatter(1, index, x)

    def spread_results(results):
        return {
            name: spread(x, 0) if name == "y" or case.changes_in_time(name.removeprefix("gradient of ")) else x
            for name, x in results.items()
        }

    nan = float("nan")
    padded = replace(
        case,
        inputs={name: spread(x, nan) if case.changes_in_time(name) else x for name, x in case.inputs.items()},
        masks={"valid": spread(torch.ones(case.batch, case.length, dtype=torch.bool), False)},
        cotangents=(spread(case.cotangents[0], nan), case.cotangents[1]),
    )
    moved = [spread_results(run(other, backend)) for other in case.neighbours(torch.float64)]
    assert_same(run(padded, backend), spread_results(run(case, backend)), moved)


@ON_EVERY_BACKEND
@given(data=st.data())
def test_same_bits_twice_and_nothing_aliased(op, backend, data):
    case = data.draw(cases(op, lengths=(0, 1, 2, 65))).in_precision(data.draw(st.sampled_from(PRECISIONS)))
    once, again = run(case, backend), run(case, backend)
    for name, value in once.items():
        assert torch.equal(value, again[name]), name
    owned = {x.untyped_storage().data_ptr() for x in case.inputs.values() if x.numel()}
    results = call(case, backend)
    for result in results:
        assert not result.numel() or result.untyped_storage().data_ptr() not in owned
    if len(results) == 2 and all(x.numel() for x in results):
        assert results[0].untyped_storage().data_ptr() != results[1].untyped_storage().data_ptr()


@ON_EVERY_BACKEND
@given(data=st.data())
def test_dtypes_and_shapes_of_results(op, backend, data):
    case = data.draw(cases(op, lengths=(0, 1, 3))).in_precision(data.draw(st.sampled_from(PRECISIONS)))
    results = call(case, backend)
    lead = case.inputs["b" if op == "linear_scan" else "u"]
    data_dtype = torch.promote_types(case.inputs["a"].dtype, lead.dtype) if op == "linear_scan" else lead.dtype
    assert results[0].dtype == data_dtype
    assert results[0].shape == lead.shape
    if OPS[op].stateful and "initial_state" in case.inputs:
        given_state = case.inputs["initial_state"]
        assert results[1].shape == given_state.shape
        assert results[1].dtype in (given_state.dtype, torch.promote_types(given_state.dtype, torch.float64))
