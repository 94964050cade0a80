"""Entries of the search space of a sweep: which lists and ranges are accepted, and the errors of the others."""

from typing import Any

import pytest

from longscan._errors import SettingError
from longscan.training.space import CategoricalDimension, NumericDimension, parse_dimension, split_key


def test_a_key_may_name_several_settings() -> None:
    assert split_key("model.spec, model.d_model ,training.lr") == ["model.spec", "model.d_model", "training.lr"]


@pytest.mark.parametrize(
    ("key", "given", "expected"),
    [
        ("a", [1], CategoricalDimension((1,))),
        ("a", [1, "x", [2]], CategoricalDimension((1, "x", [2]))),
        ("a,b", [[1, 2], [3, 4]], CategoricalDimension(([1, 2], [3, 4]))),
        ("a", {"int": [2, 8]}, NumericDimension((2, 8), True)),
        ("a", {"int": [2, 8], "step": 6}, NumericDimension((2, 8), True, 6)),
        ("a", {"int": [1, 8], "log": True}, NumericDimension((1, 8), True, None, True)),
        ("a", {"float": [0.5, 2]}, NumericDimension((0.5, 2), False)),
        ("a", {"float": [-1.0, 0.0], "step": 0.25}, NumericDimension((-1.0, 0.0), False, 0.25)),
        ("a", {"float": [1e-4, 1e-2], "log": True}, NumericDimension((1e-4, 1e-2), False, None, True)),
        ("a", {"float": [0.0, 1.0], "log": False, "step": 1.0}, NumericDimension((0.0, 1.0), False, 1.0)),
    ],
)
def test_lists_and_ranges_are_read(key: str, given: Any, expected: Any) -> None:
    assert parse_dimension(key, given) == expected


@pytest.mark.parametrize(
    ("key", "given", "message"),
    [
        ("a", [], "`space.a` must be a list of at least one value, got []"),
        ("a", [1, 2, 1], "`space.a` must be a list without repeated values, got [1, 2, 1]"),
        ("a,b", [[1, 2], [3]], "`space.a,b` must be lists of 2 values each, one for each setting"),
        ("a,b", [1, 2], "`space.a,b` must be lists of 2 values each"),
        ("a", 3, "`space.a` must be a list of values, or a range such as"),
        ("a", {"step": 3}, "`space.a` must be a list of values, or a range such as"),
        ("a,b", {"int": [1, 2]}, "`space.a,b` must be a list of values, or a range such as"),
        ("a", {"int": [1, 2], "steps": 1, "low": 2}, "each name in `space.a` must be one of int, step, log, got 'low'"),
        ("a", {"int": [2, 2]}, "`space.a.int` must be two whole numbers, the smaller one first, got [2, 2]"),
        ("a", {"int": [1.5, 2]}, "`space.a.int` must be two whole numbers"),
        ("a", {"float": [2.0, 1.0]}, "`space.a.float` must be two numbers, the smaller one first, got [2.0, 1.0]"),
        ("a", {"float": [1.0]}, "`space.a.float` must be two numbers"),
        ("a", {"int": [2, 8], "step": 7}, "`space.a.step` must be a whole number above 0 that fits into the range, got 7"),
        ("a", {"int": [2, 8], "step": 0}, "`space.a.step` must be a whole number above 0"),
        ("a", {"float": [0.0, 1.0], "step": 1.1}, "`space.a.step` must be a number above 0 that fits into the range, got 1.1"),
        ("a", {"int": [0, 8], "log": True}, "`space.a.log` must be false, unless the range is above 0 and has no step, got True"),
        ("a", {"int": [1, 8], "log": True, "step": 1}, "`space.a.log` must be false, unless"),
        ("a", {"int": [1, 8], "log": "yes"}, "`space.a.log` must be false, unless"),
    ],
)
def test_other_entries_raise(key: str, given: Any, message: str) -> None:
    with pytest.raises(SettingError) as caught:
        parse_dimension(key, given)
    assert message in str(caught.value)


def test_distributions_have_the_ends_of_the_ranges() -> None:
    whole = parse_dimension("a", {"int": [2, 8], "step": 3}).distribution()
    assert (whole.low, whole.high, whole.step, whole.log) == (2, 8, 3, False)  # type: ignore[attr-defined]
    plain = parse_dimension("a", {"int": [2, 8]}).distribution()
    assert (plain.low, plain.high, plain.step) == (2, 8, 1)  # type: ignore[attr-defined]
    real = parse_dimension("a", {"float": [0.5, 2.0], "log": True}).distribution()
    assert (real.low, real.high, real.step, real.log) == (0.5, 2.0, None, True)  # type: ignore[attr-defined]
    chosen = parse_dimension("a", [1, "x", {"b": [2]}]).distribution()
    assert chosen.choices == ("1", '"x"', '{"b": [2]}')  # type: ignore[attr-defined]
