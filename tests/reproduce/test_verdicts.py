"""Verdicts on both sides of each of their limits."""

from typing import Any

import pytest

from longscan.report.statistics import mean_interval
from longscan.reproduce.verdicts import VERDICTS, margin_of, verdict

HIGHER = {
    "published": 0.9,
    "decimals": 2,
    "higher": True,
    "constant": 0.1,
    "margin": 0.05,
    "updates": 100,
    "protocol_updates": 100,
}
LOWER = HIGHER | {"published": 0.5, "higher": False, "constant": 1.5, "margin": 0.025}


def scores_with(mean: float, half: float) -> list[float]:
    """Return three scores with a mean and a half-width of their 95 % interval."""
    unit = mean_interval([-1.0, 0.0, 1.0])[1]
    assert unit is not None
    return [mean - half / unit, mean, mean + half / unit]


@pytest.mark.parametrize(
    ("scores", "changed", "expected"),
    [
        ([], {}, "not run"),
        ([], {"constant": 0.9}, "not run"),
        ([0.9] * 3, {}, "reproduced"),
        ([0.9] * 2, {}, "partial"),
        ([0.9] * 3, {"updates": 99}, "partial"),
        ([0.9] * 3, {"updates": 101}, "reproduced"),
        ([0.9] * 3, {"constant": 0.8501}, "trivial"),
        ([0.9] * 3, {"constant": 0.8499}, "reproduced"),
        ([0.9], {"constant": 0.95}, "trivial"),
        ([0.9] * 3, {"constant": None}, "undecided"),
        # a tenth of the distance to the constant is .08, more than the margin of .05
        (scores_with(0.9, 0.0799), {}, "reproduced"),
        (scores_with(0.9, 0.0801), {}, "undecided"),
        (scores_with(0.9, 0.0499), {"constant": 0.5}, "reproduced"),
        (scores_with(0.9, 0.0501), {"constant": 0.5}, "undecided"),
        # the figure stands for .895 to .905
        ([0.8951] * 3, {}, "reproduced"),
        ([0.8949] * 3, {}, "short"),
        ([0.9049] * 3, {}, "reproduced"),
        ([0.9051] * 3, {}, "beyond"),
        ([0.9051] * 3, {"decimals": 1}, "reproduced"),
        (scores_with(0.86, 0.0351), {}, "reproduced"),
        (scores_with(0.86, 0.0349), {}, "short"),
        (scores_with(0.94, 0.0351), {}, "reproduced"),
        (scores_with(0.94, 0.0349), {}, "beyond"),
        # the interval reaches the constant
        (scores_with(0.87, 0.0499), {"constant": 0.8200}, "reproduced"),
        (scores_with(0.87, 0.0499), {"constant": 0.8202}, "undecided"),
    ],
)
def test_verdict_if_higher_is_better(scores: list[float], changed: dict[str, Any], expected: str) -> None:
    assert verdict(scores, **HIGHER | changed) == expected


@pytest.mark.parametrize(
    ("scores", "changed", "expected"),
    [
        ([0.5] * 3, {}, "reproduced"),
        ([0.4949] * 3, {}, "beyond"),
        ([0.4951] * 3, {}, "reproduced"),
        ([0.5049] * 3, {}, "reproduced"),
        ([0.5051] * 3, {}, "short"),
        ([0.5] * 3, {"constant": 0.5249}, "trivial"),
        ([0.5] * 3, {"constant": 0.5251}, "reproduced"),
        ([0.5] * 3, {"constant": 0.1}, "trivial"),
        (scores_with(0.5, 0.0999), {}, "reproduced"),
        (scores_with(0.5, 0.1001), {}, "undecided"),
    ],
)
def test_verdict_if_lower_is_better(scores: list[float], changed: dict[str, Any], expected: str) -> None:
    assert verdict(scores, **LOWER | changed) == expected


def test_margin_is_in_the_unit_of_the_figure() -> None:
    assert margin_of({"direction": "higher", "unit": "fraction (0=uniform guess, 1=perfect)", "value": 1.0}) == 0.05
    assert margin_of({"direction": "higher", "unit": "% (scaled)", "value": 40.0}) == 5.0
    assert margin_of({"direction": "lower", "unit": "1e-3", "value": 2.0}) == pytest.approx(0.1)


def test_every_verdict_is_explained() -> None:
    verdicts = {verdict(scores, **HIGHER | changed) for scores, changed in [([], {}), ([0.9] * 3, {}), ([0.9], {})]}
    assert verdicts < set(VERDICTS)
    assert len(VERDICTS) == 8
