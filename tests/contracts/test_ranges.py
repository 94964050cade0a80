"""Values at the ends of the ranges of settings are accepted, and values just outside of them raise an error."""

from dataclasses import fields
from fractions import Fraction
from typing import Any, get_type_hints

import numpy as np
import pytest

from longscan._errors import SettingError
from longscan._types import parse_value
from longscan.blocks import rotary
from longscan.estimators import fitting
from longscan.layers import attention, mamba2, mamba3, s7
from longscan.tasks import TASKS
from longscan.tasks import base as tasks_base
from longscan.tasks.formal import base as formal_base
from longscan.training import TrainingSettings
from longscan.training.settings import CurriculumSettings, LateLengthSettings

EPSILON = 1e-9


def setting(owner: type, name: str) -> Any:
    return get_type_hints(owner, include_extras=True)[name]


# type: values that are accepted, and values that raise an error
BOUNDS: list[tuple[str, Any, list[Any], list[Any]]] = [
    ("step sizes", mamba2.StepSizeLimits, [(0, 1), (0.5, 0.6)], [(1, 1), (-EPSILON, 1), (2, 1), (0,), (0, 1, 2)]),
    ("half or one", mamba3.HalfOrOne, [0.5, 1, 1.0], [0.75, 0.0, 1.5]),
    ("rotary channels", attention.RotaryDim, [0, 2, 4], [1, 3, -2]),
    ("selected maps", s7.SelectedMaps, [[], ["A"], ["A", "B", "C", "D"]], [["E"], ["A", "E"]]),
    ("at least half", s7.AtLeastHalf, [0.5, 3.0], [0.5 - EPSILON, 0]),
    ("below one", s7.PositiveFractionBelowOne, [EPSILON, 1 - EPSILON], [0.0, 1.0]),
    ("rotated", rotary.Targets, [["x"], ["x", "dt", "B", "C"]], [[], ["A"]]),
    ("jobs", fitting.Jobs, [-2, -1, 1], [0]),
    ("validation", tasks_base.ValidFraction, [EPSILON, 1 - EPSILON], [0.0, 1.0]),
    ("lengths", formal_base.LengthRange, [(3, 3), (3, 4)], [(4, 3), (1,), (1, 2, 3)]),
    ("bytes", setting(TASKS["byte_text"], "valid_fraction"), [EPSILON, 0.5 - EPSILON], [0.0, 0.5]),
    ("recall", setting(TASKS["multi_query_recall"], "power"), [EPSILON, 1.0], [0.0, 1 + EPSILON]),
    ("own series", setting(TASKS["series_classes"], "test_fraction"), [EPSILON, 0.5 - EPSILON], [0.0, 0.5]),
    ("decimal", setting(TASKS["series_classes"], "decimal"), [".", ","], [";", "", ".,"]),
    ("table", setting(TASKS["forecast"], "dataset"), ["ETTh1", "a b"], ["", "a/b", "../a"]),
    ("data set", setting(TASKS["uea"], "dataset"), ["Heartbeat"], ["", "a/b", "../a"]),
    ("threads", setting(TrainingSettings, "threads"), [0, 1024], [-1, 1025]),
]  # fmt: skip


@pytest.mark.parametrize(("declared", "right", "wrong"), [case[1:] for case in BOUNDS], ids=[case[0] for case in BOUNDS])
def test_ends_of_ranges(declared: Any, right: list[Any], wrong: list[Any]) -> None:
    assert [value for value in right if parse_value(value, declared)[1]] == []
    assert [value for value in wrong if not parse_value(value, declared)[1]] == []


@pytest.mark.filterwarnings("error")
def test_numbers_of_numpy_are_finite_numbers_of_python() -> None:
    numbers: list[Any] = [np.float16(0.5), np.float32(0.5), np.float64(0.5), np.longdouble(0.5), np.int8(-128), Fraction(1, 2)]
    for number in numbers:
        parsed, errors = parse_value(number, float)
        assert not errors
        assert (type(parsed), parsed) == (float, float(number))
    for value in (np.float16("inf"), np.float32("inf"), np.float32("nan"), np.float64("-inf"), 10**400, Fraction(10**400)):
        assert parse_value(value, float)[1], value


@pytest.mark.parametrize(
    ("kind", "names"), [(CurriculumSettings, ("start", "end")), (LateLengthSettings, ("shortest", "longest"))]
)
def test_shorter_lengths_come_first(kind: Any, names: tuple[str, str]) -> None:
    assert set(names) <= {field.name for field in fields(kind)}
    small, large = names
    kind(**{small: 7, large: 7})
    with pytest.raises(SettingError, match=rf"training\.\w+\.{small}` must be at most training\.\w+\.{large} \(7\), got 8"):
        kind(**{small: 8, large: 7})
