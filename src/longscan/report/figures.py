"""The figures of the reports: pure functions from numbers to charts."""

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

import numpy as np

from longscan.report.svg import COLOURS, MUTED, TEXT, WIDE, Axis, Chart

SPLITS = {"train": COLOURS[0], "valid": COLOURS[1], "test": COLOURS[2]}
DASHES = ("", "7 3", "2 3", "9 3 2 3")  # patterns of the lines of a figure, so that colour is not their only difference
MAX_STRIPS = 16  # more symbols than this are plotted as a map of their angles
SMOOTHING_LENGTH = 400  # longer series are smoothed
_MAX_WRITTEN = 12  # classes up to which the cells of a confusion matrix have their numbers
STEP = Axis(label="step")
SHARE = Axis(label="success rate", low=-0.04, high=1.04, percent=True)


def smooth(values: np.ndarray, width: int) -> np.ndarray:
    """Return the centred running mean over `width` points, over fewer at the ends."""
    total = np.concatenate(([0.0], np.cumsum(values)))
    index = np.arange(len(values))
    low, high = np.maximum(index - width // 2, 0), np.minimum(index + width // 2 + 1, len(values))
    return (total[high] - total[low]) / (high - low)


def curves(
    series: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    label: str,
    *,
    constant: float | None = None,
    log: bool = False,
    from_zero: bool = False,
) -> Chart:
    """Plot values against steps, a line for each split; long noisy series are faint behind their running mean.

    series: (steps, values) by split. constant: height of the constant predictor's line. log: use a logarithmic axis for positive
    values that span more than a factor of 30. from_zero: the axis begins at 0, as it also does for equal positive values.
    """
    everything = np.concatenate([np.asarray(values, float) for _, values in series.values()])
    finite = everything[np.isfinite(everything)]
    wide = log and len(finite) > 0 and 0 < finite.min() < finite.max() / 30
    axis = Axis(label=label, log=wide)
    if not wide and len(finite) > 0 and (from_zero or finite.min() == finite.max()) and finite.min() >= 0 and finite.max() > 0:
        axis = Axis(label=label, low=0, high=1.1 * max(finite.max(), constant or 0.0))
    chart = Chart(300, STEP, axis, description=f"{label} against the step")
    for (split, (steps, raw)), dash in zip(series.items(), DASHES, strict=False):
        values, colour = np.asarray(raw, float), SPLITS[split]
        if len(values) > SMOOTHING_LENGTH and np.isfinite(values).all():
            chart.line(steps, values, colour, width=1, opacity=0.3)
            values = smooth(values, len(values) // 100 + 1)
        chart.line(steps, values, colour, split, dash=dash)
        if len(values) <= 40:
            labels = [f"step {step:,}: {value:.5g}" for step, value in zip(steps, values, strict=True)]
            chart.points(steps, values, colour, radius=3, labels=labels)
    chart.horizontal_line(constant, "constant predictor")
    return chart


def success_rate(steps: Sequence[int], successes: Sequence[int], seeds: int) -> Chart:
    """Plot the fraction of successful seeds against steps, which stays the same up to the next evaluation."""
    chart = Chart(360, STEP, SHARE, description="share of successful seeds against the step")
    rate = np.array([number / seeds for number in successes])
    chart.line(np.repeat(steps, 2)[1:], np.repeat(rate, 2)[:-1], COLOURS[0])
    labels = [f"step {step:,}: {number} of {seeds} seeds" for step, number in zip(steps, successes, strict=True)]
    chart.points(steps, rate, COLOURS[0], radius=3, labels=labels)
    return chart


def every_seed(
    steps: Sequence[int], scores: Mapping[int, Sequence[float]], *, constant: float | None, published: float | None
) -> Chart:
    """Plot the scaled score of every seed against steps, with lines for the constant predictor's and the published score."""
    lowest = min(min(values) for values in scores.values())
    chart = Chart(360, STEP, Axis(label="scaled score", low=min(lowest, 0.0) - 0.05, high=1.05))
    styles = [(colour, dash) for dash in DASHES for colour in COLOURS]
    for (seed, values), (colour, dash) in zip(scores.items(), cycle(styles), strict=False):
        chart.line(steps, values, colour, f"seed {seed}", width=1.5, dash=dash)
    chart.horizontal_line(constant, "constant predictor")
    chart.horizontal_line(published, "published", "2 3")
    return chart


def confusion(counts: Sequence[Sequence[float]], classes: Sequence[str]) -> Chart:
    """Plot a confusion matrix, rows: true class, columns: predicted class; the colour is the fraction of the row."""
    table = np.asarray(counts)
    share = table / np.maximum(table.sum(1, keepdims=True), 1)
    chart = Chart(
        min(max(300, 110 + 30 * len(classes)), 640),
        Axis(label="predicted", categories=classes, grid=False),
        Axis(label="true", categories=classes, grid=False, reverse=True),
        description="confusion matrix",
    )
    shown = [(i, j) for i in range(len(classes)) for j in range(len(classes)) if table[i, j] or len(classes) <= _MAX_WRITTEN]
    rows, columns = (np.array(part) for part in zip(*shown, strict=True)) if shown else (np.zeros(0, int), np.zeros(0, int))
    labels = [f"true {classes[i]}, predicted {classes[j]}: {table[i, j]:,} ({share[i, j]:.0%})" for i, j in shown]
    chart.cells(columns, rows, share[rows, columns], "var(--full)", labels=labels)
    if len(classes) <= _MAX_WRITTEN:
        colours = ["var(--on-full)" if share[i, j] > 0.55 else TEXT for i, j in shown]
        chart.texts(columns, rows, [f"{table[i, j]:,}" for i, j in shown], colours)
    return chart


def by_length(scores: Mapping[str, float], metric: str, constant: float | None) -> Chart:
    """Plot a bar for each range of lengths, and the constant predictor's line."""
    chart = Chart(300, Axis(label="length", categories=list(scores), grid=False), Axis(label=metric))
    values, places = list(scores.values()), list(range(len(scores)))
    labels = [f"length {name}: {value:.4f}" for name, value in scores.items()]
    chart.bars(places, values, COLOURS[0], "model", labels=labels)
    chart.horizontal_line(constant, "constant predictor")
    return chart


def angle_strips(symbols: Sequence[str], theta: Sequence[Sequence[float]]) -> Chart:
    """Plot rotation angles as points, a row for each symbol; the area of a point grows with its number of angles.

    theta: radians, one list for each symbol; angles that are equal up to half a degree are one point.
    """
    rows = Axis(label="symbol", categories=[str(symbol) for symbol in symbols], reverse=True)
    chart = Chart(90 + 34 * len(symbols), ANGLES, rows, description="rotation angles by symbol")
    for i, (symbol, angles) in enumerate(zip(symbols, theta, strict=True)):
        degrees, number = np.unique((np.round(wrap(angles) * 2) / 2 + 180) % 360 - 180, return_counts=True)
        labels = [f"symbol {symbol}: {angle:g}°, {count} angles" for angle, count in zip(degrees, number, strict=True)]
        radius = np.minimum(2 + np.sqrt(number), 12)
        chart.points(degrees, np.full(len(degrees), i), COLOURS[i % len(COLOURS)], radius=radius, opacity=0.6, labels=labels)
    return chart


def angle_map(symbols: Sequence[str], theta: Sequence[Sequence[float]]) -> Chart:
    """Plot rotation angles of many symbols: a row for each, bins of 5 degrees; the colour is the fraction of the angles."""
    edges = np.linspace(-180, 180, 73)
    share = np.stack([np.histogram(wrap(row), edges)[0] / len(row) for row in theta])
    rows = Axis(label="symbol", categories=[str(symbol) for symbol in symbols], grid=False, reverse=True)
    chart = Chart(min(90 + 14 * len(symbols), 900), ANGLES, rows, description="rotation angles by symbol")
    where = np.argwhere(share > 0)
    labels = [f"symbol {symbols[i]}, {edges[j] + 2.5:g}°: {share[i, j]:.1%}" for i, j in where.tolist()]
    chart.cells(edges[where[:, 1]] + 2.5, where[:, 0], share[*where.T] / share.max(), "var(--full)", size=(5, 1), labels=labels)
    return chart


ANGLES = Axis(
    label="angle", low=-184, high=184, ticks=[(-180, "−π"), (-90, "−π/2"), (0, "0"), (90, "π/2"), (180, "π")], grid=True
)


def wrap(angles: Sequence[float]) -> np.ndarray:
    """Return angles in degrees from -180 to below 180, given radians."""
    wrapped: np.ndarray = (np.degrees(np.asarray(angles, float)) + 180) % 360 - 180
    return wrapped


def scores(
    ours: Sequence[tuple[str, Sequence[float], tuple[float, float | None] | None]],
    published: Sequence[tuple[str, float]],
    baselines: Mapping[str, float],
    label: str,
) -> Chart:
    """Plot scores with a row for each model: all our seeds, their mean and interval, published values, baselines as lines.

    ours: (model, score of each seed, (mean, half width of the interval)); the first model is at the top.
    """
    rows = [*dict.fromkeys([name for name, _, _ in ours] + [name for name, _ in published])]
    height = 100 + 34 * max(len(rows), 3)
    chart = Chart(height, Axis(label=label), Axis(categories=rows, reverse=True), width=WIDE, description=f"{label} by model")
    seeds = [(value, rows.index(name), f"{name}: {value:.4g}") for name, values, _ in ours for value in values]
    means = [(mean[0], rows.index(name), mean[1] or 0.0) for name, _, mean in ours if mean is not None]
    if seeds:
        x, y, hints = zip(*seeds, strict=True)
        chart.points(x, y, COLOURS[0], "longscan, a seed", radius=4.5, opacity=0.45, labels=hints)
    if means:
        x, y, half = zip(*means, strict=True)
        chart.intervals(x, y, half, COLOURS[0])
        labels = [f"mean {value:.4g}" for value in x]
        chart.points(x, y, COLOURS[0], "longscan, mean", radius=7, shape="bar", labels=labels)
    if published:
        labels = [f"{name}: {value:g}" for name, value in published]
        places = [rows.index(name) for name, _ in published]
        chart.points([v for _, v in published], places, COLOURS[1], "published", radius=6, shape="diamond", labels=labels)
    for (name, value), dash in zip(baselines.items(), cycle(("6 4", "2 3", "8 3 2 3", "12 4")), strict=False):
        chart.vertical_line(value, name, dash)
    return chart


def scores_by_setting(
    name: str,
    points: Sequence[tuple[Any, float | None, str, bool]],
    label: str,
    *,
    constant: float | None,
    values: Sequence[str] | None = None,
    log: bool = False,
) -> Chart:
    """Plot scores against one setting; trials without a score are crosses at the bottom, and the chosen trial is larger.

    points: (value, score, text for the mouse, whether it was chosen) for each trial. constant: height of the constant predictor's
    line. values: the values of the setting as text in their order, or None for a numeric axis.
    """
    heights = [score for _, score, _, _ in points if score is not None] + ([] if constant is None else [constant])
    bottom = min(heights, default=0.0) - 0.12 * (max(heights, default=1.0) - min(heights, default=0.0) or 1.0)
    chart = Chart(300, Axis(label=name, categories=values, log=log), Axis(label=label), description=f"{label} against {name}")
    for best, failed, kind, colour, shape in (
        (False, False, "trial", COLOURS[0], "circle"),
        (False, True, "failed", COLOURS[4], "cross"),
        (True, False, "best", COLOURS[1], "diamond"),
    ):
        selected = [point for point in points if point[3] is best and (point[1] is None) is failed]
        if selected:
            x, y, labels, _ = zip(*selected, strict=True)
            places = x if values is None else [values.index(value) for value in x]
            plotted = [bottom if score is None else score for score in y]
            opacity, radius = (1.0, 7.0) if best else (0.6, 4.5)
            chart.points(places, plotted, colour, kind, radius=radius, shape=shape, opacity=opacity, labels=labels)  # type: ignore[arg-type]
    chart.horizontal_line(constant, "constant predictor")
    return chart


def ratios(times: Mapping[str, tuple[float | None, float | None]], unit: str) -> Chart:
    """Plot times relative to `unit`, forward and forward+backward, on a logarithmic axis if they span a factor of 5."""
    names = list(times)
    finite = [v for pair in times.values() for v in pair if v is not None]
    log = max(finite, default=0.0) > 5 * min(finite, default=0.0) > 0
    axis = Axis(label=f"time / time of {unit}", log=log, low=min(finite) / 1.3 if log else None)
    chart = Chart(
        100 + 44 * max(len(names), 2), axis, Axis(categories=names, grid=False, reverse=True), width=WIDE,
        description="times of the implementations",
    )  # fmt: skip
    for i, name, offset in ((0, "forward", -0.2), (1, "forward+backward", 0.2)):
        known = [(row, value) for row, n in enumerate(names) if (value := times[n][i]) is not None]
        if known:
            places, values = [row + offset for row, _ in known], [value for _, value in known]
            labels = [f"{names[row]}, {name}: {value:.2f} ×" for row, value in known]
            start = axis.low if axis.low is not None else 0.0
            chart.bars(places, values, COLOURS[i], name, thickness=0.36, horizontal=True, start=start, labels=labels)
    return chart


def baseline_scores(scores: Mapping[str, float], metric: str, own: str) -> Chart:
    """Plot a bar for each predictor; the bar of `own`, the run, has another colour."""
    names = list(scores)
    chart = Chart(
        70 + 30 * max(len(names), 2), Axis(label=metric), Axis(categories=names, grid=False, reverse=True),
        description=f"{metric} of the predictors",
    )  # fmt: skip
    for name, value in scores.items():
        colour = COLOURS[0] if name == own else MUTED
        chart.bars([names.index(name)], [value], colour, horizontal=True, labels=[f"{name}: {value:.4f}"])
    return chart


def series_lines(lines: Sequence[tuple[Sequence[float], Sequence[float]]], names: Sequence[str], label: str) -> Chart:
    """Plot the channels of one series as lines. lines: (times, values) of each channel."""
    chart = Chart(210, Axis(label=label), Axis(), description="the series")
    styles = [(colour, dash) for dash in DASHES for colour in COLOURS]
    for name, (times, values), (colour, dash) in zip(names, lines, styles, strict=False):
        chart.line(times, values, colour, name if len(names) > 1 else "", width=1.5, dash=dash)
    return chart


def relevance_map(relevance: Sequence[Sequence[float]], times: Sequence[float], names: Sequence[str], label: str) -> Chart:
    """Plot gradient times input, a row for each channel and a column for each segment of time.

    Blue supports the answer, orange speaks against it; the opacity is the square root of the share of the largest value.
    """
    table = np.asarray(relevance, float)
    largest = float(np.abs(table).max()) or 1.0
    width = (times[-1] - times[0]) / max(len(times) - 1, 1) or 1.0
    single = len(names) == 1
    rows = Axis(categories=list(names), grid=False, reverse=True, hidden=single)
    axis = Axis(label=label, grid=False, low=times[0] - width / 2, high=times[-1] + width / 2)
    chart = Chart(64 + (22 if single else 20 * len(names)), axis, rows, description="what the answer depends on")
    for sign, colour in ((1, COLOURS[0]), (-1, COLOURS[1])):
        where = np.argwhere(sign * table > 0.001 * largest)
        if len(where):
            strength = np.sqrt(np.abs(table[*where.T]) / largest)
            chart.cells(np.asarray(times)[where[:, 1]], where[:, 0], strength, colour, size=(width, 0.9))
    return chart


def forecast(
    known: tuple[Sequence[float], Sequence[float]],
    truth: tuple[Sequence[float], Sequence[float]],
    answer: tuple[Sequence[float], Sequence[float]],
    interval: tuple[Sequence[float], Sequence[float], Sequence[float]] | None,
    name: str,
) -> Chart:
    """Plot the answer for one variable over the true values.

    known, truth, answer: (times, values); interval: (times, low, high).
    """
    chart = Chart(240, Axis(label="step"), Axis(label=name), description=f"answer and truth of {name}")
    if interval is not None:
        chart.band(*interval, COLOURS[1], "80 % interval")
    if len(known[0]):
        chart.line(*known, MUTED, "input", width=1.5)
    chart.line(*truth, COLOURS[0], "true", width=1.8)
    chart.line(*answer, COLOURS[1], "model", width=2, dash="7 3")
    return chart
