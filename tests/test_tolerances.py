"""The assertions of `tolerances`: what they accept, and when they compute more results."""

import pytest
import torch

from tolerances import FEW, MANY, assert_as_accurate_as_neighbours, assert_same

TRUTH = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
EPS = torch.finfo(torch.float32).eps


def results(error, dtype=torch.float64):
    """Return results whose first element, 1, has an error."""
    return {"y": (TRUTH + torch.tensor([error, 0, 0], dtype=torch.float64)).to(dtype)}


@pytest.mark.parametrize(
    ("error", "expected"),
    [(0.0, []), (1e-9, ["eager"]), (1e-8, ["eager", "reference"]), (5e-8, ["eager", "reference", "moved"])],
)
def test_tolerance_of_results_in_float64_is_computed_as_far_as_it_is_needed(error, expected):
    """The allowed error is 1.5e-9 with an error of 0.1 in float32, 1.5e-8 with one of 1, and 9e-8 with neighbours at 5, too."""
    calls = []

    def run(name, error):
        calls.append(name)
        return results(error)

    def compare(error):
        assert_same(
            results(error), results(0.0), lambda name: run(name, {"eager": 0.1, "reference": 1.0}[name]), lambda: moved(5.0)
        )

    def moved(error):
        return [run("moved", error)]

    compare(error)
    assert calls == expected
    with pytest.raises(AssertionError, match="y: error 1e-06, allowed"):
        compare(1e-6)


@pytest.mark.parametrize(("error", "expected"), [(2, []), (7, [FEW]), (70, [FEW, MANY])])
def test_neighbours_are_computed_if_the_error_is_too_large_without_them(error, expected):
    """Plain arithmetic errs by eps, the few neighbours by 2 eps, the many by 20 eps; all errors are in units of eps."""
    counts = []

    def run_neighbours(count):
        counts.append(count)
        return [results({FEW: 2, MANY: 20}[count] * EPS)], []

    def compare(error):
        fast = results(error * EPS, torch.float32)
        assert_as_accurate_as_neighbours(fast, [results(EPS, torch.float32)], results(0.0), run_neighbours)

    compare(error)
    assert counts == expected
    with pytest.raises(AssertionError, match="y: error"):
        compare(100)
