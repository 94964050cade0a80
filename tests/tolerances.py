"""Assertions that errors of results are at most those that `longscan.ops._tolerances` allows."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import torch
from torch import Tensor

from longscan.ops._tolerances import allowed_error, largest_error, largest_value, real_dtype
from longscan.ops._tolerances import perturb as perturb

DOUBLE = 2 * torch.finfo(torch.float64).eps / torch.finfo(torch.float32).eps  # two results in float64, both with errors

FEW, MANY = 2, 24  # neighbours of the inputs; two can have unusually small rounding errors by chance, 24 hardly

Results = Mapping[str, Tensor]


def assert_as_accurate(
    fast: Results,
    plain: Sequence[Results],
    truth: Results,
    moved: Sequence[Results],
    plain_moved: Sequence[Results] = (),
    operations: float = 1,
    precision: float = 1,
    label: str = "",
    terms: Mapping[str, float] = MappingProxyType({}),
) -> None:
    """Assert that every result of `fast` errs at most `allowed_error`. All arguments are results by name.

    terms: for a result that a backend computes as a difference, the size of the terms, whose rounding error is allowed, too.
    """
    for name, value in fast.items():
        assert value.shape == truth[name].shape, f"{label}{name}: shape {tuple(value.shape)}, expected {tuple(truth[name].shape)}"
        others, moves, plain_moves = ([results[name] for results in group] for group in (plain, moved, plain_moved))
        allowed = allowed_error(value.dtype, others, truth[name], moves, plain_moves, operations, precision)
        allowed += torch.finfo(real_dtype(value.dtype)).eps * terms.get(name, 0)
        error = largest_error(value, truth[name])
        assert error <= allowed, (
            f"{label}{name}: error {error:.3g}, allowed {allowed:.3g}, largest value {largest_value(truth[name]):.3g}"
        )


def assert_as_accurate_as_neighbours(
    fast: Results,
    plain: Sequence[Results],
    truth: Results,
    neighbours: Callable[[int], tuple[Sequence[Results], Sequence[Results]]],
    operations: float = 1,
    precision: float = 1,
    label: str = "",
    terms: Mapping[str, float] = MappingProxyType({}),
) -> None:
    """Call `assert_as_accurate` with `moved` and `plain_moved` that `neighbours(count)` computes for neighbours of the inputs.

    The allowed error grows with the number of neighbours, whose results take most of the time of a test. They are computed only
    if the error is too large without any; if it is too large for FEW, too, it is compared again with MANY before the test fails.
    """
    if is_accurate_without_neighbours(fast, plain, truth, operations, precision, terms):
        return
    try:
        assert_as_accurate(fast, plain, truth, *neighbours(FEW), operations, precision, label, terms)
    except AssertionError:
        assert_as_accurate(fast, plain, truth, *neighbours(MANY), operations, precision, label, terms)


def is_accurate_without_neighbours(
    fast: Results,
    plain: Sequence[Results],
    truth: Results,
    operations: float = 1,
    precision: float = 1,
    terms: Mapping[str, float] = MappingProxyType({}),
) -> bool:
    """Return whether `assert_as_accurate` passes where changes of the inputs allow no error, and so with any neighbours."""
    try:
        assert_as_accurate(fast, plain, truth, [truth], (), operations, precision, terms=terms)
    except AssertionError:
        return False
    return True


def assert_same(
    one: Results, other: Results, run_plain: Callable[[str], Results], run_moved: Callable[[], Sequence[Results]], label: str = ""
) -> None:
    """Assert that two computations of the same numbers in float64 agree.

    Args:
        one: results of a computation.
        other: results of the other one.
        run_plain: returns the results of a backend of plain arithmetic, "eager" or "reference", in float32.
        run_moved: returns results in float64 for neighbours of the inputs in float32.
        label: beginning of the message of an error.

    Both functions are called only as long as the error that the results of the calls so far allow is too small.
    """
    plain: list[Results] = []
    for backend in (None, "eager", "reference"):
        if backend is not None:
            plain.append(run_plain(backend))
        if is_accurate_without_neighbours(one, plain, other, operations=2, precision=DOUBLE):
            return
    assert_as_accurate(one, plain, other, run_moved(), operations=2, precision=DOUBLE, label=label)
