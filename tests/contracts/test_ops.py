"""Properties of every op on every backend that runs on this machine, or on the one that LONGSCAN_BACKEND names.

The Triton kernels run in Triton's interpreter where TRITON_INTERPRET is 1, or on the GPU that LONGSCAN_DEVICE names.
"""

from dataclasses import replace
from functools import cache, partial
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from op_cases import (
    EAGER_IN_GRAPHS,
    FAST_BACKENDS,
    ONLY_BACKEND,
    OP_BACKENDS,
    PRECISIONS,
    TRANSITIONS,
    argument_like_output,
    call,
    cases,
    find_skip_reason,
    name_results,
    run,
    run_plain_arithmetic,
)

from longscan.ops import OPS
from longscan.ops._tolerances import largest_value
from tolerances import DOUBLE, assert_as_accurate_as_neighbours, assert_same

BFLOAT16_PRODUCTS = [("ssd_scan", "triton")]  # all others multiply in float32
ON_EVERY_BACKEND = pytest.mark.parametrize(("op", "backend"), OP_BACKENDS)
STATEFUL_ON_EVERY_BACKEND = pytest.mark.parametrize(("op", "backend"), [pair for pair in OP_BACKENDS if OPS[pair[0]].stateful])


@pytest.mark.parametrize(("op", "backend"), [(op, backend) for op in OPS for backend in OPS[op].native])
def test_native_kernels_are_tested(op, backend):
    reason = find_skip_reason(op, backend)
    if reason or ONLY_BACKEND not in (None, backend):
        pytest.skip(reason or f"LONGSCAN_BACKEND is {ONLY_BACKEND}")
    assert backend in FAST_BACKENDS[op]


@pytest.mark.parametrize("op", [op for op in OPS if FAST_BACKENDS[op]])
@given(data=st.data())
def test_results_err_no_more_than_plain_arithmetic(op, data):
    """Compare y, the final state and every gradient on every backend with the reference in float64."""
    dtype = data.draw(st.sampled_from(PRECISIONS))
    single = torch.float32 if dtype == torch.float64 else dtype
    case = data.draw(cases(op)).in_precision(single)
    truth = run(case.in_double(), "reference")
    plain = [run_plain_arithmetic(case)]
    if "eager" not in FAST_BACKENDS[op]:  # eager is plain arithmetic, too
        plain.append(run(case, "eager"))
    double = dtype == torch.float64
    precision = DOUBLE if double else 1
    terms = list_subtracted_terms(case, truth)
    neighbours = cache(lambda rounded, count: run_neighbours(case, rounded, count))
    for backend in FAST_BACKENDS[op]:
        rounded = dtype if dtype == torch.bfloat16 and (op, backend) in BFLOAT16_PRODUCTS else torch.float32
        results = run(case.in_double() if double else case, backend)
        operations = 2 if backend in ("eager", EAGER_IN_GRAPHS) else 1  # its scan updates every element twice
        run_nearby = partial(neighbours, rounded)
        assert_as_accurate_as_neighbours(results, plain, truth, run_nearby, operations, precision, f"{backend}: ", terms)
        if backend == "eager" and not double:
            plain.append(results)


def list_subtracted_terms(case, truth):
    """Return by name the size of terms whose difference is a result: the gradient of ssd_scan's angle comes from B and C."""
    return (
        {"gradient of angle": largest_value(truth["gradient of B"]) * largest_value(case.inputs["B"])}
        if "angle" in case.inputs
        else {}
    )


def run_neighbours(case, dtype, count):
    """Return the results in float64 and by plain arithmetic for `count` neighbours of the inputs."""
    nearby = case.neighbours(dtype, count)
    return [run(x.in_double(), "reference") for x in nearby], [run_plain_arithmetic(x) for x in nearby]


@STATEFUL_ON_EVERY_BACKEND
@given(data=st.data())
def test_two_calls_with_carried_state_equal_one(op, backend, data):
    single = data.draw(cases(op, lengths=(1, 2, 3, 63, 65, 130))).in_precision(torch.float32)
    case = single.in_double()
    split = data.draw(st.integers(0, case.length))
    pieces = [case.steps(0, split), case.steps(split, case.length)]
    reverse = case.options.get("reverse", False)
    first, second = reversed(pieces) if reverse else pieces
    y1, state = call(first, backend)
    if "seq_idx" in case.masks:  # the op takes no id of earlier calls: its caller resets the state where the id changes
        before, after = list_valid_ids(first), list_valid_ids(second)
        for row in range(case.batch):
            if before[row] and after[row] and before[row][0 if reverse else -1] != after[row][-1 if reverse else 0]:
                state[row] = 0
    second.inputs["initial_state"] = state
    y2, state = call(second, backend)
    y = torch.cat([y2, y1] if reverse else [y1, y2], 1)
    assert_same(name_results((y, state)), name_results(call(case, backend)), *runs_for_tolerance(single, run_forward))


def list_valid_ids(case):
    """Return the ids of the valid steps, a list for each row."""
    ids = case.masks["seq_idx"]
    valid = case.masks.get("valid", torch.ones_like(ids, dtype=torch.bool))
    return [row[kept].tolist() for row, kept in zip(ids, valid, strict=True)]


def runs_for_tolerance(single, evaluate):
    """Return the functions that `assert_same` calls for its tolerance, from a case in float32 and `evaluate(case, backend)`."""

    def run_moved():
        return [evaluate(other.in_double(), "reference") for other in single.neighbours(torch.float32)]

    return partial(evaluate, single), run_moved


def run_forward(case, backend):
    return name_results(call(case, backend))


@STATEFUL_ON_EVERY_BACKEND
@given(data=st.data())
def test_packed_segments_equal_separate_calls(op, backend, data):
    """The first segment of a row starts from the initial state, the others from zero."""
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
    assert_same(name_results(call(packed, backend)), alone, *runs_for_tolerance(single, run_forward))


@STATEFUL_ON_EVERY_BACKEND
@given(data=st.data())
def test_invalid_steps_change_no_results_or_gradients(op, backend, data):
    """Invalid steps are anywhere and full of NaN; results and gradients are 0 there."""
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
            name: spread(x, 0) if name == "y" or case.has_time_axis(name.removeprefix("gradient of ")) else x
            for name, x in results.items()
        }

    nan = float("nan")
    padded = replace(
        case,
        inputs={name: spread(x, nan) if case.has_time_axis(name) else x for name, x in case.inputs.items()},
        masks={"valid": spread(torch.ones(case.batch, case.length, dtype=torch.bool), False)},
        cotangents=(spread(case.cotangents[0], nan), case.cotangents[1]),
    )
    alone = spread_results(run(case, backend))

    def run_and_spread(case, plain):
        return spread_results(run(case, plain))

    assert_same(run(padded, backend), alone, *runs_for_tolerance(single, run_and_spread))


@pytest.mark.parametrize(("op", "backend"), [pair for pair in OP_BACKENDS if pair[0] != "mamba_step"])
@given(data=st.data())
def test_gradients_without_steps_are_zeros(op, backend, data):
    """No gradient is None, and only that of the initial state is not 0, from the final state, which is equal to it."""
    case = data.draw(cases(op, lengths=(0,))).in_precision(data.draw(st.sampled_from(PRECISIONS)))
    inputs = {name: x.detach().clone().requires_grad_() for name, x in case.inputs.items()}
    for i, result in enumerate(call(replace(case, inputs=inputs), backend)):
        gradients = torch.autograd.grad(result, list(inputs.values()), torch.ones_like(result), retain_graph=True)
        for (name, x), gradient in zip(inputs.items(), gradients, strict=True):
            expected = torch.ones_like(x) if i == 1 and name == "initial_state" else torch.zeros_like(x)
            assert torch.equal(gradient, expected), name


@ON_EVERY_BACKEND
@given(data=st.data())
def test_repeated_calls_give_same_bits_without_aliases(op, backend, data):
    case = data.draw(cases(op, lengths=(0, 1, 2, 65))).in_precision(data.draw(st.sampled_from(PRECISIONS)))
    first, second = run(case, backend), run(case, backend)
    for name, value in first.items():
        assert torch.equal(value, second[name]), name
    input_storages = {x.untyped_storage().data_ptr() for x in case.inputs.values() if x.numel()}
    results = call(case, backend)
    for result in results:
        assert not result.numel() or result.untyped_storage().data_ptr() not in input_storages
    result_storages = [x.untyped_storage().data_ptr() for x in results if x.numel()]
    assert len(set(result_storages)) == len(result_storages)


@ON_EVERY_BACKEND
@given(data=st.data())
def test_results_have_the_dtypes_and_shapes_of_the_inputs(op, backend, data):
    case = data.draw(cases(op, lengths=(0, 1, 3))).in_precision(data.draw(st.sampled_from(PRECISIONS)))
    results = call(case, backend)
    like = case.inputs[argument_like_output(op)]
    expected_dtype = torch.promote_types(case.inputs[TRANSITIONS[op]].dtype, like.dtype) if op in TRANSITIONS else like.dtype
    assert results[0].dtype == expected_dtype
    assert results[0].shape == like.shape
    if OPS[op].stateful and "initial_state" in case.inputs:
        initial_state = case.inputs["initial_state"]
        assert results[1].shape == initial_state.shape
        assert results[1].dtype in (initial_state.dtype, torch.promote_types(initial_state.dtype, torch.float64))
