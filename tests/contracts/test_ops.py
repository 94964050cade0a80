"""Properties of every op on every backend that this machine has, or on the one that LONGSCAN_BACKEND names.

The Triton kernels run in Triton's interpreter where TRITON_INTERPRET is 1, or on the GPU that LONGSCAN_DEVICE names.
"""

from dataclasses import replace
from functools import cache, partial
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from op_cases import CHOSEN, FACTORS, FAST, PAIRS, PRECISIONS, call, cases, lead_name, named, run, run_plain, why_not

from longscan.ops import OPS
from longscan.ops._tolerances import largest_value
from tolerances import DOUBLE, assert_as_accurate_as_neighbours, assert_same

NARROW = [("ssd_scan", "triton")]  # these multiply in bfloat16, all others in float32
ON_EVERY_BACKEND = pytest.mark.parametrize(("op", "backend"), PAIRS)
STATEFUL_ON_EVERY_BACKEND = pytest.mark.parametrize(("op", "backend"), [pair for pair in PAIRS if OPS[pair[0]].stateful])


@pytest.mark.parametrize(("op", "backend"), [(op, backend) for op in OPS for backend in OPS[op].native])
def test_native_kernels_are_tested(op, backend):
    reason = why_not(op, backend)
    if reason or CHOSEN not in (None, backend):
        pytest.skip(reason or f"LONGSCAN_BACKEND is {CHOSEN}")
    assert backend in FAST[op]


@pytest.mark.parametrize("op", [op for op in OPS if FAST[op]])
@given(data=st.data())
def test_results_err_no_more_than_plain_arithmetic(op, data):
    """y, final state and every gradient, on every backend, against the reference in float64."""
    dtype = data.draw(st.sampled_from(PRECISIONS))
    single = torch.float32 if dtype == torch.float64 else dtype
    case = data.draw(cases(op)).in_precision(single)
    truth = run(case.in_double(), "reference")
    plain = [run_plain(case)]
    if "eager" not in FAST[op]:  # eager is plain arithmetic, too
        plain.append(run(case, "eager"))
    double = dtype == torch.float64
    precision = DOUBLE if double else 1
    terms = subtracted(case, truth)
    neighbours = cache(lambda rounded, count: moved_by_a_rounding(case, rounded, count))
    for backend in FAST[op]:
        rounded = dtype if dtype == torch.bfloat16 and (op, backend) in NARROW else torch.float32
        results = run(case.in_double() if double else case, backend)
        operations = 2 if backend == "eager" else 1  # its scan updates every element twice
        near = partial(neighbours, rounded)
        assert_as_accurate_as_neighbours(results, plain, truth, near, operations, precision, f"{backend}: ", terms)
        if backend == "eager" and not double:
            plain.append(results)


def subtracted(case, truth):
    """Return by name the size of terms whose difference is a result: ssd_scan's angle gets gradients by B and by C."""
    return (
        {"gradient of angle": largest_value(truth["gradient of B"]) * largest_value(case.inputs["B"])}
        if "angle" in case.inputs
        else {}
    )


def moved_by_a_rounding(case, dtype, count):
    """Return the results in float64 and by plain arithmetic of `count` cases whose numbers are each moved to a neighbour."""
    near = case.neighbours(dtype, count)
    return [run(x.in_double(), "reference") for x in near], [run_plain(x) for x in near]


@STATEFUL_ON_EVERY_BACKEND
@given(data=st.data())
def test_carrying_the_state_over_a_split_changes_nothing(op, backend, data):
    single = data.draw(cases(op, lengths=(1, 2, 3, 63, 65, 130))).in_precision(torch.float32)
    case = single.in_double()
    split = data.draw(st.integers(0, case.length))
    pieces = [case.steps(0, split), case.steps(split, case.length)]
    reverse = case.options.get("reverse", False)
    first, second = reversed(pieces) if reverse else pieces
    y1, state = call(first, backend)
    if "seq_idx" in case.masks:  # a split is no new segment for the op: its caller resets the state where the id changed
        before, after = valid_ids(first), valid_ids(second)
        for row in range(case.batch):
            if before[row] and after[row] and before[row][0 if reverse else -1] != after[row][-1 if reverse else 0]:
                state[row] = 0
    second.inputs["initial_state"] = state
    y2, state = call(second, backend)
    y = torch.cat([y2, y1] if reverse else [y1, y2], 1)
    assert_same(named((y, state)), named(call(case, backend)), *margins(single, results_of))


def valid_ids(case):
    """Return the ids of the valid steps, a list for each row."""
    ids = case.masks["seq_idx"]
    valid = case.masks.get("valid", torch.ones_like(ids, dtype=torch.bool))
    return [row[kept].tolist() for row, kept in zip(ids, valid, strict=True)]


def margins(single, evaluate):
    """Return the last arguments of `assert_same`: both plain backends in float32, and the reference in float64 for neighbours."""
    plain = [evaluate(single, backend) for backend in ("reference", "eager")]
    return plain, [evaluate(other.in_double(), "reference") for other in single.neighbours(torch.float32)]


def results_of(case, backend):
    return named(call(case, backend))


@STATEFUL_ON_EVERY_BACKEND
@given(data=st.data())
def test_packed_rows_equal_rows_alone(op, backend, data):
    """Segments of a packed row give what they give alone, the first from the initial state, the others from zero."""
    single = data.draw(cases(op, masked=False, lengths=(1, 2, 3, 63, 65, 130))).in_precision(torch.float32)
    case = single.in_double()
    cuts = sorted(data.draw(st.sets(st.integers(0, case.length), max_size=3)) | {0, case.length})
    ids = torch.zeros(case.batch, case.length, dtype=torch.long)
    for i, cut in enumerate(cuts):
        ids[:, cut:] = 7 - i
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
    alone = {"y": y, "final state": final}
    packed, single = replace(case, masks={"seq_idx": ids}), replace(single, masks={"seq_idx": ids})
    assert_same(named(call(packed, backend)), alone, *margins(single, results_of))


@STATEFUL_ON_EVERY_BACKEND
@given(data=st.data())
def test_invalid_steps_change_nothing(op, backend, data):
    """Padding anywhere, filled with NaN, changes neither results nor gradients, which are 0 there."""
    single = data.draw(cases(op, masked=False, lengths=(0, 1, 2, 3, 63, 65))).in_precision(torch.float32)
    case = single.in_double()
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
    alone = spread_results(run(case, backend))
    assert_same(run(padded, backend), alone, *margins(single, lambda case, plain: spread_results(run(case, plain))))


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
    places = [x.untyped_storage().data_ptr() for x in results if x.numel()]
    assert len(set(places)) == len(places)


@ON_EVERY_BACKEND
@given(data=st.data())
def test_results_have_the_dtypes_and_shapes_of_the_inputs(op, backend, data):
    case = data.draw(cases(op, lengths=(0, 1, 3))).in_precision(data.draw(st.sampled_from(PRECISIONS)))
    results = call(case, backend)
    lead = case.inputs[lead_name(op)]
    data_dtype = torch.promote_types(case.inputs[FACTORS[op]].dtype, lead.dtype) if op in FACTORS else lead.dtype
    assert results[0].dtype == data_dtype
    assert results[0].shape == lead.shape
    if OPS[op].stateful and "initial_state" in case.inputs:
        given_state = case.inputs["initial_state"]
        assert results[1].shape == given_state.shape
        assert results[1].dtype in (given_state.dtype, torch.promote_types(given_state.dtype, torch.float64))
