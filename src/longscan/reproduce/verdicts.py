"""The comparison of our scores with a published figure, as one word."""

from collections.abc import Sequence
from typing import Any, Literal

from longscan.report.statistics import mean_interval

MIN_SEEDS = 3
MARGIN = 0.05  # in an accuracy between 0 and 1; for an error, a share of the published figure
Verdict = Literal["not run", "trivial", "partial", "reproduced", "beyond", "short", "undecided", "not chosen"]
VERDICTS: dict[Verdict, str] = {
    "reproduced": "the published figure lies inside our 95 % interval, whose half-width is at most .05 or a tenth of the "
    "distance from the figure to the constant predictor; at least three seeds, the whole protocol, and the constant is beaten by "
    "more than the interval",
    "beyond": "our interval lies on the better side of the published figure",
    "short": "our interval lies on the worse side of the published figure",
    "undecided": "the published figure lies inside our interval, which is too wide or reaches the constant predictor",
    "partial": "fewer updates than the protocol has, or fewer than three seeds; the updates of a seed whose run failed are those "
    "up to the failure",
    "trivial": "a constant predictor reaches the published figure within .05",
    "not chosen": "one of several candidates for the figure, of which another has the best validation score",
    "not run": "no run is over",
}


def margin_of(figure: dict[str, Any]) -> float:
    """Return .05 in the unit of a published figure: of accuracies as fractions or in per cent; of errors .05 of the figure."""
    if figure["direction"] == "lower":
        return MARGIN * abs(figure["value"])
    return MARGIN * (100 if figure["unit"].startswith("%") else 1)


def verdict(
    scores: Sequence[float],
    *,
    published: float,
    decimals: int,
    higher: bool,
    constant: float | None,
    margin: float,
    updates: int,
    protocol_updates: int,
) -> Verdict:
    """Compare scores with a published figure, all in its unit.

    Args:
        scores: one for each seed whose run is over.
        published: the figure as printed, which stands for all values that round to it.
        decimals: digits after its point.
        higher: whether higher is better.
        constant: score of the best constant predictor; None if it is not known.
        margin: the .05 of the definitions (`margin_of`).
        updates: the smallest number of updates of these runs.
        protocol_updates: the number of updates of the protocol.
    """
    if not scores:
        return "not run"
    sign = 1 if higher else -1
    advantage = None if constant is None else sign * (published - constant)
    if advantage is not None and advantage <= margin:
        return "trivial"
    if len(scores) < MIN_SEEDS or updates < protocol_updates:
        return "partial"
    mean, half = mean_interval(scores)
    assert half is not None, "there are several scores"
    rounding = 0.5 * 10.0**-decimals
    if sign * (mean - published) - half > rounding:
        return "beyond"
    if sign * (mean - published) + half < -rounding:
        return "short"
    if constant is None or advantage is None:
        return "undecided"
    beats_constant = sign * (mean - constant) > half
    return "reproduced" if half <= max(margin, advantage / 10) and beats_constant else "undecided"
