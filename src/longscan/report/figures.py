"""The figures of the reports: pure functions from numbers to Plotly figures.

Colours and fonts are named as variables of the page's style sheet, which has a light and a dark set.
"""

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

import numpy as np
import plotly.graph_objects as go

COLOURS = tuple(f"var(--{name})" for name in ("blue", "orange", "green", "purple", "red", "teal", "pink", "gold"))
SPLITS = {"train": COLOURS[0], "valid": COLOURS[1], "test": COLOURS[2]}
MAX_RINGS = 16  # more symbols than this are plotted as rows of a map, not as rings
SMOOTHING_LENGTH = 400  # longer series are smoothed
TRANSPARENT = "rgba(0,0,0,0)"


def decorate(figure: go.Figure, height: int, x: Mapping[str, Any], y: Mapping[str, Any], **entries: Any) -> go.Figure:
    """Apply the shared layout to a figure; x, y: entries of its axes, `entries`: other top-level entries of the layout."""
    lines = {"gridcolor": "var(--grid)", "linecolor": "var(--line)", "tickcolor": "var(--line)", "zeroline": False}
    axis: dict[str, Any] = lines | {"automargin": True, "title_standoff": 8}
    shared = {
        "template": "none",
        "height": height,
        "paper_bgcolor": TRANSPARENT,
        "plot_bgcolor": TRANSPARENT,
        "font": {"family": "var(--font)", "size": 13, "color": "var(--text)"},
        "margin": {"l": 60, "r": 16, "t": 40, "b": 48},
        "hoverlabel": {"bgcolor": "var(--surface)", "bordercolor": "var(--line)", "font": {"color": "var(--text)"}},
        "legend": {"orientation": "h", "x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom"},
        "showlegend": True,
    }
    # Overwriting takes half the time of merging, and these entries are complete.
    return figure.update_layout(shared | entries | {"xaxis": {**axis, **x}, "yaxis": {**axis, **y}}, overwrite=True)


def horizontal_line(figure: go.Figure, height: float | None, name: str, dash: str = "dash") -> None:
    """Add a dashed horizontal line with an entry in the legend; no line if `height` is None."""
    if height is not None:
        line = {"color": "var(--text)", "dash": dash, "width": 1.5}
        figure.add_hline(height, line=line, opacity=0.7, name=name, showlegend=True)


def heat_map(shares: np.ndarray, x: Sequence[Any], y: Sequence[Any], label: str, **trace: Any) -> go.Figure:
    """Plot a heat map of fractions between 0 and their largest value or `zmax`."""
    bar = {"title": {"text": label, "side": "right"}, "tickformat": ".0%", "thickness": 12, "outlinewidth": 0}
    scale = [[0, "var(--empty)"], [1, "var(--full)"]]
    return go.Figure(go.Heatmap(z=shares, x=x, y=y, zmin=0, colorscale=scale, colorbar=bar, **trace))


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
) -> go.Figure:
    """Plot values against steps, a line for each split; long noisy series are faint behind their running mean.

    series: (steps, values) by split. constant: height of the constant predictor's line. log: use a logarithmic axis for positive
    values that span more than a factor of 30. from_zero: the axis begins at 0, as it also does for equal positive values.
    """
    figure = go.Figure()
    for split, (steps, raw) in series.items():
        values, line = np.asarray(raw, float), {"color": SPLITS[split], "width": 2}
        if len(values) > SMOOTHING_LENGTH and np.isfinite(values).all():
            faint = {"opacity": 0.3, "hoverinfo": "skip", "showlegend": False}
            figure.add_scatter(x=steps, y=values, mode="lines", line=line | {"width": 1}, **faint)
            values = smooth(values, len(values) // 100 + 1)
        figure.add_scatter(x=steps, y=values, name=split, mode="lines+markers" if len(values) <= 40 else "lines", line=line)
    horizontal_line(figure, constant, "constant predictor")
    everything = np.concatenate([np.asarray(values, float) for _, values in series.values()])
    finite = everything[np.isfinite(everything)]
    wide = log and len(finite) > 0 and 0 < finite.min() < finite.max() / 30
    scale: dict[str, Any] = {"type": "log", "dtick": 1, "exponentformat": "power"} if wide else {"exponentformat": "power"}
    if not wide and len(finite) > 0 and (from_zero or finite.min() == finite.max()) and finite.min() >= 0 and finite.max() > 0:
        # Plotly plots a constant in the middle of a range of 2, where a learning rate looks like 0.
        scale = {"range": [0, 1.1 * max(finite.max(), constant or 0.0)], "exponentformat": "none", "separatethousands": True}
    return decorate(
        figure, 320, {"title_text": "step", "exponentformat": "none"}, {"title_text": label, **scale}, hovermode="x unified"
    )


def success_rate(steps: Sequence[int], successes: Sequence[int], seeds: int) -> go.Figure:
    """Plot the fraction of successful seeds against steps."""
    figure = go.Figure()
    hover = "step %{x}: %{customdata}<extra></extra>"
    labels = [f"{number} of {seeds} seeds" for number in successes]
    line = {"color": COLOURS[0], "width": 2, "shape": "hv"}
    rate = [number / seeds for number in successes]
    figure.add_scatter(x=steps, y=rate, mode="lines", line=line, customdata=labels, hovertemplate=hover, showlegend=False)
    share = {"range": [-0.04, 1.04], "tickformat": ".0%", "dtick": 0.2}
    return decorate(figure, 380, {"title_text": "step", "exponentformat": "none"}, {"title_text": "success rate", **share})


def every_seed(
    steps: Sequence[int], scores: Mapping[int, Sequence[float]], *, constant: float | None, published: float | None
) -> go.Figure:
    """Plot the scaled score of every seed against steps, with lines for the constant predictor's and the published score."""
    figure = go.Figure()
    for (seed, values), colour in zip(scores.items(), cycle(COLOURS), strict=False):
        figure.add_scatter(x=steps, y=values, name=f"seed {seed}", mode="lines", line={"color": colour, "width": 1.5})
    horizontal_line(figure, constant, "constant predictor")
    horizontal_line(figure, published, "published", "dot")
    lowest = min([min(values) for values in scores.values()])
    scale = {"range": [min(lowest, 0.0) - 0.05, 1.05], "dtick": 0.2}
    return decorate(
        figure,
        380,
        {"title_text": "step", "exponentformat": "none"},
        {"title_text": "scaled score", **scale},
        hovermode="x unified",
    )


def confusion(counts: Sequence[Sequence[float]], classes: Sequence[str]) -> go.Figure:
    """Plot a confusion matrix, rows: true class, columns: predicted class; the colour is the fraction of the row."""
    table = np.asarray(counts)
    share = table / np.maximum(table.sum(1, keepdims=True), 1)
    trace = {"zmax": 1, "xgap": 2, "ygap": 2, "text": table, "texttemplate": "%{text}" if len(classes) <= 12 else ""}
    hover = "true %{y}, predicted %{x}: %{text} (%{z:.0%})<extra></extra>"
    figure = heat_map(share, classes, classes, "share of true class", hovertemplate=hover, **trace)
    category = {"type": "category", "showgrid": False}
    height = min(max(320, 160 + 30 * len(classes)), 720)
    return decorate(
        figure, height, {"title_text": "predicted", **category}, {"title_text": "true", **category, "autorange": "reversed"}
    )


def by_length(scores: Mapping[str, float], metric: str, constant: float | None) -> go.Figure:
    """Plot a bar for each range of lengths, and the constant predictor's line."""
    lengths, values = list(scores), list(scores.values())
    hover = "length %{x}: %{y:.4f}<extra></extra>"
    text = {"texttemplate": "%{y:.3f}", "insidetextanchor": "end", "insidetextfont_color": "var(--background)"}
    figure = go.Figure()
    figure.add_bar(x=lengths, y=values, name="model", marker_color=COLOURS[0], width=0.6, hovertemplate=hover, **text)
    horizontal_line(figure, constant, "constant predictor")
    category = {"type": "category", "showgrid": False}
    return decorate(figure, 320, {"title_text": "length", **category}, {"title_text": metric, "rangemode": "tozero"})


def angle_rings(symbols: Sequence[str], theta: Sequence[Sequence[float]]) -> go.Figure:
    """Plot rotation angles on circles, a ring for each symbol from the inside out; the area of a point is its number of angles.

    theta: radians, one list for each symbol; angles that are equal up to half a degree are one point.
    """
    figure = go.Figure()
    for i, (symbol, angles) in enumerate(zip(symbols, theta, strict=True)):
        degrees, number = np.unique(np.round(np.degrees(np.asarray(angles, float)) * 2) / 2 % 360, return_counts=True)
        size = np.minimum(4 + 2 * np.sqrt(number), 24)
        marker = {"size": size, "color": COLOURS[i % len(COLOURS)], "opacity": 0.6, "line": {"width": 0}}
        hover = f"symbol {symbol}: %{{theta}}°, %{{customdata}} entries<extra></extra>"
        ring = np.full(len(degrees), i + 2)
        figure.add_scatterpolar(
            theta=degrees, r=ring, name=str(symbol), mode="markers", customdata=number, marker=marker, hovertemplate=hover
        )
    rings = {"range": [0, len(symbols) + 2], "tickvals": [i + 2 for i in range(len(symbols))]}
    radial = {"showticklabels": False, "ticks": "", "showline": False, "gridcolor": "var(--grid)"}
    eighths = ["0", "π/4", "π/2", "3π/4", "π", "−3π/4", "−π/2", "−π/4"]
    angular = {"gridcolor": "var(--grid)", "linecolor": "var(--line)", "tickvals": [*range(0, 360, 45)], "ticktext": eighths}
    polar = {"bgcolor": TRANSPARENT, "radialaxis": rings | radial, "angularaxis": angular}
    legend = {"orientation": "h", "title_text": "symbol ", "x": 0.5, "xanchor": "center", "y": -0.1, "itemsizing": "constant"}
    return decorate(figure, 460, {}, {}, polar=polar, legend=legend, margin={"l": 40, "r": 40, "t": 32, "b": 32})


def angle_map(symbols: Sequence[str], theta: Sequence[Sequence[float]]) -> go.Figure:
    """Plot rotation angles of many symbols: a row for each, bins of 5 degrees; the colour is the fraction of the entries."""
    edges = np.linspace(-180, 180, 73)
    wrapped = (np.degrees(np.asarray(theta, float)) + 180) % 360 - 180
    share = np.stack([np.histogram(row, edges)[0] / len(row) for row in wrapped])
    centres = ((edges[:-1] + edges[1:]) / 2).tolist()
    hover = "symbol %{y}, %{x}°: %{z:.1%}<extra></extra>"
    figure = heat_map(share, centres, [str(s) for s in symbols], "share of entries", hovertemplate=hover)
    angles = {"tickvals": [-180, -90, 0, 90, 180], "ticktext": ["−π", "−π/2", "0", "π/2", "π"], "showgrid": False}
    rows = {"title_text": "symbol", "type": "category", "showgrid": False}
    return decorate(figure, min(160 + 14 * len(symbols), 900), {"title_text": "angle", **angles}, rows)


def scores(
    ours: Sequence[tuple[str, Sequence[float], tuple[float, float | None] | None]],
    published: Sequence[tuple[str, float]],
    baselines: Mapping[str, float],
    label: str,
) -> go.Figure:
    """Plot scores with a row for each model: all our seeds, their mean and interval, published values, baselines as lines.

    ours: (model, score of each seed, (mean, half width of the interval)); the first model is at the top.
    """
    figure = go.Figure()
    dot = {"color": COLOURS[0], "size": 9, "opacity": 0.45}
    bar = {"color": COLOURS[0], "size": 11, "symbol": "line-ns", "line": {"width": 3, "color": COLOURS[0]}}
    for i, (name, values, mean) in enumerate(ours):
        shared = {"mode": "markers", "showlegend": i == 0}
        figure.add_scatter(x=list(values), y=[name] * len(values), name="longscan, a seed", marker=dot, **shared)
        if mean is not None:
            interval = {"type": "data", "array": [mean[1] or 0], "thickness": 1.5, "width": 5, "color": COLOURS[0]}
            figure.add_scatter(x=[mean[0]], y=[name], name="longscan, mean", marker=bar, error_x=interval, **shared)
    if published:
        names, printed = zip(*published, strict=True)
        marker = {"color": COLOURS[1], "size": 11, "symbol": "diamond"}
        figure.add_scatter(x=printed, y=names, mode="markers", name="published", marker=marker)
    for (name, value), dash in zip(baselines.items(), cycle(("dash", "dot", "dashdot", "longdash")), strict=False):
        line = {"color": "var(--text)", "dash": dash, "width": 1.5}
        figure.add_vline(value, line=line, opacity=0.7, name=name, showlegend=True)
    rows = [*dict.fromkeys([name for name, _, _ in ours] + [name for name, _ in published])]
    category = {"type": "category", "categoryarray": rows[::-1], "range": [-0.6, len(rows) - 0.4]}
    return decorate(
        figure, 120 + 34 * max(len(rows), 3), {"title_text": label}, category, margin={"l": 60, "r": 16, "t": 48, "b": 48}
    )


def scores_by_setting(
    name: str,
    points: Sequence[tuple[Any, float | None, str, bool]],
    label: str,
    *,
    constant: float | None,
    values: Sequence[str] | None = None,
    log: bool = False,
) -> go.Figure:
    """Plot scores against one setting; trials without a score are crosses at the bottom, and the chosen trial is larger.

    points: (value, score, hover text, whether it was chosen) for each trial. constant: height of the constant predictor's
    line. values: the values of the setting as text in their order, or None for a numeric axis.
    """
    heights = [score for _, score, _, _ in points if score is not None] + ([] if constant is None else [constant])
    bottom = min(heights, default=0.0) - 0.12 * (max(heights, default=1.0) - min(heights, default=0.0) or 1.0)
    figure = go.Figure()
    for best, failed, kind, marker in (
        (False, False, "trial", {"color": COLOURS[0], "size": 9, "opacity": 0.55}),
        (False, True, "failed", {"color": COLOURS[4], "size": 9, "symbol": "x"}),
        (True, False, "best", {"color": COLOURS[1], "size": 13, "symbol": "diamond"}),
    ):
        selected = [point for point in points if point[3] is best and (point[1] is None) is failed]
        if selected:
            x, y, labels, _ = zip(*selected, strict=True)
            plotted = [bottom if score is None else score for score in y]
            shared = {"mode": "markers", "marker": marker, "customdata": labels, "hovertemplate": "%{customdata}<extra></extra>"}
            figure.add_scatter(x=x, y=plotted, name=kind, **shared)
    horizontal_line(figure, constant, "constant predictor")
    axis: dict[str, Any] = {"type": "log", "dtick": 1, "exponentformat": "power"} if log else {}
    if values is not None:
        axis = {"type": "category", "categoryarray": values, "range": [-0.5, len(values) - 0.5], "showgrid": False}
    return decorate(figure, 320, {"title_text": name, **axis}, {"title_text": label})


def ratios(times: Mapping[str, tuple[float | None, float | None]], unit: str) -> go.Figure:
    """Plot times relative to `unit`, forward and forward+backward, on a logarithmic axis if they span a factor of 5."""
    names = list(times)[::-1]
    figure = go.Figure()
    for i, name in ((1, "forward+backward"), (0, "forward")):
        values = [times[n][i] for n in names]
        if any(v is not None for v in values):
            hover = f"%{{y}}, {name}: %{{x:.2f}} ×<extra></extra>"
            figure.add_bar(y=names, x=values, orientation="h", name=name, marker_color=COLOURS[i], hovertemplate=hover)
    marks = [digit * 10.0**power for power in range(-3, 6) for digit in (1, 2, 5)]
    axis: dict[str, Any] = {"title_text": f"time / time of {unit}", "rangemode": "tozero"}
    finite = [v for pair in times.values() for v in pair if v is not None]
    if max(finite, default=0.0) > 5 * min(finite, default=0.0):
        axis |= {"type": "log", "tickvals": marks, "ticktext": [f"{m:,g}" for m in marks]}
    figure = decorate(figure, 120 + 44 * max(len(names), 2), axis, {"type": "category", "showgrid": False})
    return figure.update_layout(legend_traceorder="reversed")
