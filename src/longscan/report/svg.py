"""Charts as SVG, which a page shows without a script: lines, bands, points, bars, cells, and reference lines over two axes.

Colours and fonts are named as variables of the page's style sheet, which has a light and a dark set.
"""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
from markupsafe import Markup, escape

COLOURS = tuple(f"var(--{name})" for name in ("blue", "orange", "green", "purple", "red", "gold", "pink", "teal"))
TEXT, MUTED = "var(--text)", "var(--muted)"
NARROW, WIDE = 540, 1112  # widths of a figure, in units of which a page of full size has one for each pixel
MAX_POINTS = 700  # number of points of a line; longer lines are reduced to the smallest and largest value of short segments
_SMALL, _LINE_HEIGHT, _CHARACTER = 12, 18, 6.6  # size of text, height of a line of it, width of an average character
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_MAX_CATEGORIES, _MAX_NAME = 24, 22  # labels of an axis of categories, and characters of one
_LARGEST = 1e300  # end of an axis, whose length must be finite; its inverse is that of a logarithmic one
_LEAST_SPAN = 1e-12  # difference of values that an axis can show, as a fraction of the larger one

Shape = Literal["circle", "diamond", "cross", "bar"]
Values = Sequence[float] | np.ndarray


@dataclass(frozen=True, kw_only=True)
class Axis:
    """An axis of a chart.

    Attributes:
        label: its title.
        log: whether it is logarithmic; values that are not positive are left out.
        categories: names of the positions 0, 1, ...; None for numbers.
        low, high: its ends; None: those of the data, or the line of a reference.
        ticks: positions and texts of the ticks in place of round numbers.
        percent: show 0.5 as 50 %.
        reverse: the smallest value is at the right or at the top.
        grid: draw a line at each tick.
        hidden: draw neither ticks nor texts.
    """

    label: str = ""
    log: bool = False
    categories: Sequence[str] | None = None
    low: float | None = None
    high: float | None = None
    ticks: Sequence[tuple[float, str]] | None = None
    percent: bool = False
    reverse: bool = False
    grid: bool = True
    hidden: bool = False


class _Mark(NamedTuple):
    """One thing that is drawn: its kind, positions and style, and its texts for the mouse."""

    kind: Literal["line", "band", "points", "bars", "cells", "intervals", "text"]
    x: np.ndarray
    y: np.ndarray
    other: np.ndarray  # upper end of a band, start of a bar, opacity of a cell, half width of an interval
    colour: str
    size: np.ndarray
    style: str
    labels: tuple[str, ...]
    horizontal: bool = False


class _Entry(NamedTuple):
    """An entry of the legend."""

    name: str
    colour: str
    symbol: str
    dash: str


@dataclass
class Chart:
    """A figure with two axes, to which marks are added in the units of the data; later marks cover earlier ones.

    Attributes:
        height: of the whole figure.
        x, y: its axes.
        width: of the whole figure, NARROW or WIDE.
        description: what a screen reader says.
    """

    height: float
    x: Axis
    y: Axis
    width: float = NARROW
    description: str = ""
    legend: list[_Entry] = field(default_factory=list)
    marks: list[_Mark] = field(default_factory=list)
    references: list[tuple[bool, float, str]] = field(default_factory=list)

    def line(
        self, x: Values, y: Values, colour: str, name: str = "", *, width: float = 2, dash: str = "", opacity: float = 1
    ) -> None:
        """Add a line through points; it is interrupted where a value is not finite.

        A point without neighbours is drawn as a circle, in lines of at most MAX_POINTS points.
        """
        style = f'stroke-width="{width:g}" stroke-opacity="{opacity:g}"' + (f' stroke-dasharray="{dash}"' if dash else "")
        self._add("line", x, y, colour=colour, style=style, labels=(name,) if name else ())
        where, values = (np.asarray([np.nan if v is None else v for v in given], float) for given in (x, y))
        finite = np.pad(np.isfinite(where) & np.isfinite(values), 1)
        alone = np.flatnonzero(finite[1:-1] & ~finite[:-2] & ~finite[2:])
        if len(alone) > 0 and len(values) <= MAX_POINTS:
            style = f'circle fill-opacity="{opacity:g}" stroke-opacity="{opacity:g}"'
            self._add("points", where[alone], values[alone], colour=colour, size=max(width, 3), style=style)
        self._add_legend_entry(name, colour, "line", dash)

    def band(self, x: Values, low: Values, high: Values, colour: str, name: str = "") -> None:
        """Fill the area between two lines."""
        self._add("band", x, low, high, colour=colour, labels=(name,) if name else ())
        self._add_legend_entry(name, colour, "band")

    def points(
        self,
        x: Values,
        y: Values,
        colour: str,
        name: str = "",
        *,
        radius: float | Values = 4,
        shape: Shape = "circle",
        opacity: float = 1,
        labels: Sequence[str] = (),
    ) -> None:
        """Add points. radius: of all or of each; labels: the texts for the mouse."""
        style = f'{shape} fill-opacity="{opacity:g}" stroke-opacity="{opacity:g}"'
        self._add("points", x, y, colour=colour, size=radius, style=style, labels=tuple(labels))
        self._add_legend_entry(name, colour, shape)

    def bars(
        self,
        positions: Values,
        values: Values,
        colour: str,
        name: str = "",
        *,
        thickness: float = 0.6,
        horizontal: bool = False,
        start: float = 0,
        labels: Sequence[str] = (),
    ) -> None:
        """Add bars from `start` to the values. thickness: in units of the positions."""
        where, lengths = (values, positions) if horizontal else (positions, values)
        starts = np.full(len(np.asarray(values)), float(start))
        self._add("bars", where, lengths, starts, colour=colour, size=thickness, labels=tuple(labels), horizontal=horizontal)
        self._add_legend_entry(name, colour, "band")

    def intervals(self, x: Values, y: Values, half_widths: Values, colour: str) -> None:
        """Add horizontal intervals around points."""
        self._add("intervals", x, y, half_widths, colour=colour)

    def cells(
        self,
        x: Values,
        y: Values,
        opacity: Values,
        colour: str,
        *,
        size: tuple[float, float] = (1, 1),
        labels: Sequence[str] = (),
    ) -> None:
        """Add rectangles of `size` (width, height) around points, in the units of the axes. opacity: 0 to 1 for each."""
        count = len(np.asarray(x))
        sizes = np.tile(np.asarray(size, float), (count, 1))
        self._add("cells", x, y, opacity, colour=colour, size=sizes, labels=tuple(labels))

    def texts(self, x: Values, y: Values, texts: Sequence[str], colours: Sequence[str]) -> None:
        """Add texts centred at points."""
        for i, (text, colour) in enumerate(zip(texts, colours, strict=True)):
            self._add("text", [x[i]], [y[i]], colour=colour, labels=(text,))

    def horizontal_line(self, value: float | None, name: str, dash: str = "6 4") -> None:
        """Add a line over the whole width, with an entry in the legend; none for None."""
        if value is not None:
            self.references.append((True, value, dash))
            self._add_legend_entry(name, MUTED, "line", dash)

    def vertical_line(self, value: float, name: str, dash: str = "6 4") -> None:
        """Add a line over the whole height, with an entry in the legend if it has a name."""
        self.references.append((False, value, dash))
        self._add_legend_entry(name, MUTED, "line", dash)

    def render(self) -> Markup:
        """Return the SVG element. All texts in it are escaped."""
        x_scale, y_scale = self._scales()
        x_ticks, y_ticks = x_scale.ticks(self.width / 80), y_scale.ticks(self.height / 45)
        legend, legend_height = self._legend()
        longest = 0.0 if self.y.hidden else max((_width(text) for _, text in y_ticks), default=0.0)
        left = 10 + longest + (22 if self.y.label else 0)
        names = [_width(text) for _, text in x_ticks]
        slanted = self.x.categories is not None and sum(names) + 12 * len(names) > self.width - left
        slant = 0.64 * max(names, default=0.0) if slanted else 0.0
        bottom = 8 + (0 if self.x.hidden else 20 + slant) + (22 if self.x.label else 0)
        right = 14 + (0 if self.x.hidden else max([_width(text) / 2 for _, text in x_ticks[-1:]], default=0.0))
        x_scale.place(left, self.width - right)
        y_scale.place(self.height - bottom, legend_height + 8)
        parts = [legend, *self._grid(x_scale, y_scale, x_ticks, y_ticks, slanted=slanted)]
        parts += [_draw_mark(mark, x_scale, y_scale) for mark in self.marks]
        for is_horizontal, value, dash in self.references:
            if is_horizontal:
                ends = x_scale.start, y_scale.position(value), x_scale.end, y_scale.position(value)
            else:
                ends = x_scale.position(value), y_scale.start, x_scale.position(value), y_scale.end
            parts.append(_segment(*ends, TEXT, f'stroke-width="1.5" stroke-opacity="0.75" stroke-dasharray="{dash}"'))
        kind = "wide" if self.width > NARROW else "narrow"
        named = f' role="img" aria-label="{escape(self.description)}"' if self.description else ' role="img"'
        box = f'viewBox="0 0 {self.width:g} {self.height:g}" class="{kind}"{named}'
        return Markup(f"<svg {box}>{''.join(parts)}</svg>")

    def _add(
        self,
        kind: Literal["line", "band", "points", "bars", "cells", "intervals", "text"],
        x: Values,
        y: Values,
        other: Values = (),
        *,
        colour: str,
        size: float | Values = 0,
        style: str = "",
        labels: tuple[str, ...] = (),
        horizontal: bool = False,
    ) -> None:
        arrays = [np.asarray([np.nan if v is None else v for v in values], float) for values in (x, y, other)]
        sizes = np.asarray(size, float)
        sizes = np.full(len(arrays[0]), float(sizes)) if sizes.ndim == 0 else sizes
        self.marks.append(_Mark(kind, arrays[0], arrays[1], arrays[2], colour, sizes, style, labels, horizontal))

    def _add_legend_entry(self, name: str, colour: str, symbol: str, dash: str = "") -> None:
        """Add an entry to the legend; none without a name."""
        if name:
            self.legend.append(_Entry(name, colour, symbol, dash))

    def _scales(self) -> tuple["_Scale", "_Scale"]:
        """Return the two scales, with limits that contain all marks and references."""
        x_values = [v for is_horizontal, v, _ in self.references if not is_horizontal]
        y_values = [v for is_horizontal, v, _ in self.references if is_horizontal]
        x_arrays, y_arrays = [np.array(x_values)], [np.array(y_values)]
        for mark in self.marks:
            half = mark.size[:, :1] / 2 if mark.kind == "cells" else None
            x_arrays += [mark.x] if half is None else [mark.x - half[:, 0], mark.x + half[:, 0]]
            y_arrays += [mark.y] if half is None else [mark.y - mark.size[:, 1] / 2, mark.y + mark.size[:, 1] / 2]
            if mark.kind == "band" or (mark.kind == "bars" and not mark.horizontal):
                y_arrays.append(mark.other)
            elif mark.kind == "bars":
                x_arrays.append(mark.other)
            elif mark.kind == "intervals":
                x_arrays += [mark.x - mark.other, mark.x + mark.other]
        tight = any(mark.kind == "cells" for mark in self.marks)
        zero_x = any(mark.kind == "bars" and mark.horizontal for mark in self.marks)
        zero_y = any(mark.kind == "bars" and not mark.horizontal for mark in self.marks)
        is_line = all(mark.kind in ("line", "band") for mark in self.marks)
        return (
            _Scale(self.x, np.concatenate(x_arrays), tight=tight or is_line, zero=zero_x),
            _Scale(self.y, np.concatenate(y_arrays), tight=tight, zero=zero_y),
        )

    def _legend(self) -> tuple[str, float]:
        """Return the legend, in as many lines as its names need, and its height."""
        parts, left, top = [], 10.0, 14.0
        for entry in self.legend:
            width = 34 + _width(entry.name)
            if left > 10 and left + width > self.width:
                left, top = 10.0, top + _LINE_HEIGHT
            parts.append(_legend_symbol(entry, left, top - 4))
            parts.append(_text(left + 24, top, entry.name, colour=TEXT, more=' class="name"'))
            left += width + 6
        return "".join(parts), top if parts else 0.0

    def _grid(
        self,
        x: "_Scale",
        y: "_Scale",
        x_ticks: list[tuple[float, str]],
        y_ticks: list[tuple[float, str]],
        *,
        slanted: bool,
    ) -> list[str]:
        """Return the lines of the grid, the texts of the ticks and the titles of the axes.

        slanted: the texts of the horizontal axis are at an angle.
        """
        parts = []
        for value, text in [] if self.x.hidden else x_ticks:
            place = x.position(value)
            if self.x.grid:
                parts.append(_segment(place, y.start, place, y.end, "var(--grid)"))
            if slanted:
                turned = f' transform="rotate(-40 {place:.1f} {y.start + 14:.1f})"'
                parts.append(_text(place + 4, y.start + 14, text, anchor="end", more=turned))
            else:
                parts.append(_text(place, y.start + 16, text, anchor="middle"))
        for value, text in [] if self.y.hidden else y_ticks:
            place = y.position(value)
            if self.y.grid:
                parts.append(_segment(x.start, place, x.end, place, "var(--grid)"))
            parts.append(_text(x.start - 6, place + 4, text, anchor="end"))
        parts.append(_segment(x.start, y.start, x.end, y.start, "var(--line)"))
        parts.append(_segment(x.start, y.start, x.start, y.end, "var(--line)"))
        if self.x.label:
            parts.append(_text((x.start + x.end) / 2, self.height - 6, self.x.label, anchor="middle", colour=TEXT))
        if self.y.label:
            middle = (y.start + y.end) / 2
            turned = f' transform="rotate(-90 14 {middle:.1f})"'
            parts.append(_text(14, middle, self.y.label, anchor="middle", colour=TEXT, more=turned))
        return parts


class _Scale:
    """The map from values of an axis to places of the figure."""

    def __init__(self, axis: Axis, values: np.ndarray, *, tight: bool, zero: bool) -> None:
        self.axis = axis
        self.start = self.end = 0.0
        known = values[np.isfinite(values) & ((values > 0) | (not axis.log))]
        known = known.clip(1 / _LARGEST if axis.log else -_LARGEST, _LARGEST)
        if axis.categories is not None:
            self.low, self.high = -0.5, len(axis.categories) - 0.5
            return
        low, high = (float(known.min()), float(known.max())) if len(known) else (1.0, 10.0) if axis.log else (0.0, 1.0)
        if axis.log:
            low, high = math.log10(low), math.log10(high)
        span = high - low if high - low > _LEAST_SPAN * max(abs(low), abs(high)) else 0.0
        room = 0.0 if tight and span else 0.04 * span or (0.5 if axis.log else abs(high) / 10 or 1.0)
        ends = [low if zero and low == 0 else low - room, high if zero and high == 0 else high + room]
        for i, given in enumerate((axis.low, axis.high)):
            if given is not None:
                ends[i] = math.log10(given) if axis.log else given
        self.low, self.high = ends if ends[0] < ends[1] else (ends[0], ends[0] + (abs(ends[0]) / 10 or 1))

    def place(self, start: float, end: float) -> None:
        """Set the places of the two ends."""
        self.start, self.end = start, end

    def position(self, value: float) -> float:
        """Return the place of a value."""
        return float(self.places(np.array([value]))[0])

    def places(self, values: np.ndarray) -> np.ndarray:
        """Return the places of values; NaN for those that the axis cannot show."""
        if self.axis.log:
            with np.errstate(divide="ignore", invalid="ignore"):
                values = np.where(values > 0, np.log10(values), np.nan)
        share = (values - self.low) / (self.high - self.low)
        share = np.clip(share, -0.02, 1.02)
        places: np.ndarray = self.start + (1 - share if self.axis.reverse else share) * (self.end - self.start)
        return places

    def ticks(self, count: float) -> list[tuple[float, str]]:
        """Return at most about `count` ticks with their texts."""
        axis = self.axis
        if axis.ticks is not None:
            return [(value, text) for value, text in axis.ticks]
        if axis.categories is not None:
            every = math.ceil(len(axis.categories) / _MAX_CATEGORIES)
            return [(float(i), _shorten(str(name))) for i, name in enumerate(axis.categories) if i % every == 0]
        if axis.log:
            return self._log_ticks(count)
        return linear_ticks(self.low, self.high, count, percent=axis.percent)

    def _log_ticks(self, count: float) -> list[tuple[float, str]]:
        powers = range(math.ceil(self.low - 1e-9), math.floor(self.high + 1e-9) + 1)
        if len(powers) >= 3:
            every = math.ceil(len(powers) / max(count, 2))
            return [(10.0**power, power_text(power)) for power in powers if power % every == 0]
        digits = range(math.floor(self.low), math.ceil(self.high) + 1)
        values = [digit * 10.0**power for power in digits for digit in (1, 2, 5)]
        values = [value for value in values if self.low - 1e-9 <= math.log10(value) <= self.high + 1e-9]
        if len(values) < 2:
            return linear_ticks(10.0**self.low, 10.0**self.high, count)
        return [(value, f"{value:,g}") for value in values]


def linear_ticks(low: float, high: float, count: float, *, percent: bool = False) -> list[tuple[float, str]]:
    """Return about `count` round numbers between two ends, with their texts.

    The ends may come in either order; if they are equal, they are the only number. There is none if an end is not finite.
    """
    if not (math.isfinite(low) and math.isfinite(high)):
        return []
    if low == high:
        return [(low, (f"{low * 100:g} %" if percent else f"{low:g}").replace("-", "−"))]
    low, high = sorted((low, high))
    parts = max(count, 2)
    raw = max(high / parts - low / parts, sys.float_info.min)  # the difference itself may be larger than any float
    power = math.floor(math.log10(raw))
    steps = (factor * 10.0**power for factor in (1, 2, 5, 10))
    step = next((step for step in steps if raw * 0.999 <= step < math.inf), 10.0**sys.float_info.max_10_exp)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    values = [number * step for number in range(first, last + 1)]
    exponent, last = (math.floor(math.log10(number) + 1e-9) for number in (max(-low, high, step), step))
    shift, unit = (2, " %") if percent else (0, "")  # texts are of the values times 10**shift
    if -3 <= exponent + shift < 6:
        texts = [f"{value * 10**shift:,.{max(0, -last - shift)}f}" for value in values]
    else:
        factor = power_text(exponent + shift)
        texts = [f"{value / 10.0**exponent:.{max(0, exponent - last)}f} × {factor}" if value else "0" for value in values]
    return [(value, f"{text}{unit}".replace("-", "−")) for value, text in zip(values, texts, strict=True)]


def power_text(exponent: int) -> str:
    """Return a power of ten: "10⁻³"; small ones as numbers."""
    return {0: "1", 1: "10"}.get(exponent, f"10{str(exponent).translate(_SUPERSCRIPTS)}")


def thin(x: np.ndarray, y: np.ndarray, most: int = MAX_POINTS) -> tuple[np.ndarray, np.ndarray]:
    """Reduce a line to at most about `most` points: the smallest and the largest value of each of `most` / 2 segments.

    Values that are not finite are left out of a segment that has others.
    """
    if len(y) <= most:
        return x, y
    kept = []
    for rows in np.array_split(np.arange(len(y)), most // 2):
        finite = rows[np.isfinite(y[rows])]
        chosen = rows[:1] if not len(finite) else finite[[int(y[finite].argmin()), int(y[finite].argmax())]]
        kept += sorted(set(chosen.tolist()))
    return x[kept], y[kept]


def _draw_mark(mark: _Mark, x: _Scale, y: _Scale) -> str:
    if mark.kind == "line":
        return _line(mark, x, y)
    if mark.kind == "band":
        return _band(mark, x, y)
    if mark.kind == "intervals":
        return _intervals(mark, x, y)
    places = x.places(mark.x), y.places(mark.y)
    shown = np.isfinite(places[0]) & np.isfinite(places[1])
    parts = []
    for i in np.flatnonzero(shown).tolist():
        label = mark.labels[i] if i < len(mark.labels) else ""
        parts.append(_draw_item(mark, i, float(places[0][i]), float(places[1][i]), label, x, y))
    common = {"points": f'fill="{mark.colour}" stroke="{mark.colour}"', "bars": f'fill="{mark.colour}"'}
    common["cells"] = f'fill="{mark.colour}" shape-rendering="crispEdges"'
    attributes = common.get(mark.kind, "") + (f" {mark.style.partition(' ')[2]}" if mark.kind == "points" else "")
    return f"<g {attributes}>{''.join(parts)}</g>" if mark.kind != "text" else "".join(parts)


def _draw_item(mark: _Mark, i: int, left: float, top: float, label: str, x: _Scale, y: _Scale) -> str:
    """Return the SVG element of item `i` of a mark: a point, a bar, a cell or a text."""
    title = f"<title>{escape(label)}</title>" if label else ""
    if mark.kind == "text":
        return _text(left, top + 4, label, anchor="middle", colour=mark.colour)
    if mark.kind == "points":
        return _point(mark.style.partition(" ")[0], left, top, float(mark.size[i]), title)
    if mark.kind == "cells":
        width, height = mark.size[i].tolist()
        x1, x2 = (x.position(mark.x[i] + sign * width / 2) for sign in (-1, 1))
        y1, y2 = (y.position(mark.y[i] + sign * height / 2) for sign in (-1, 1))
        return _rectangle(x1, x2, y1, y2, title, f' fill-opacity="{mark.other[i]:.2g}"')
    half, start = float(mark.size[i]) / 2, float(mark.other[i])
    if mark.horizontal:
        return _rectangle(x.position(start), left, y.position(mark.y[i] - half), y.position(mark.y[i] + half), title)
    return _rectangle(x.position(mark.x[i] - half), x.position(mark.x[i] + half), y.position(start), top, title)


def _line(mark: _Mark, x: _Scale, y: _Scale) -> str:
    left, top = (scale.places(values) for scale, values in zip((x, y), thin(mark.x, mark.y), strict=True))
    commands, is_open = [], False
    for a, b in zip(left.tolist(), top.tolist(), strict=True):
        if math.isfinite(a) and math.isfinite(b):
            commands.append(f"{'L' if is_open else 'M'}{a:.1f} {b:.1f}")
            is_open = True
        else:
            is_open = False
    title = f"<title>{escape(mark.labels[0])}</title>" if mark.labels else ""
    path = f'<path d="{"".join(commands)}" fill="none" stroke="{mark.colour}" stroke-linejoin="round" {mark.style}'
    return f"{path}>{title}</path>" if title else f"{path}/>"


def _band(mark: _Mark, x: _Scale, y: _Scale) -> str:
    left, low, high = x.places(mark.x), y.places(mark.y), y.places(mark.other)
    known = np.isfinite(left) & np.isfinite(low) & np.isfinite(high)
    step = math.ceil(known.sum() / MAX_POINTS) or 1
    rows = np.flatnonzero(known)[::step].tolist()
    outline = [f"{left[i]:.1f} {low[i]:.1f}" for i in rows] + [f"{left[i]:.1f} {high[i]:.1f}" for i in reversed(rows)]
    title = f"<title>{escape(mark.labels[0])}</title>" if mark.labels else ""
    return f'<path d="M{"L".join(outline)}Z" fill="{mark.colour}" fill-opacity="0.2" stroke="none">{title}</path>' if rows else ""


def _intervals(mark: _Mark, x: _Scale, y: _Scale) -> str:
    parts = []
    for low, high, top in zip(x.places(mark.x - mark.other), x.places(mark.x + mark.other), y.places(mark.y), strict=True):
        parts.append(_segment(low, top, high, top, mark.colour, 'stroke-width="1.5"'))
        parts += [_segment(end, top - 4, end, top + 4, mark.colour, 'stroke-width="1.5"') for end in (low, high)]
    return "".join(parts)


def _point(shape: str, left: float, top: float, radius: float, title: str) -> str:
    r = radius
    if shape == "circle":
        return f'<circle cx="{left:.1f}" cy="{top:.1f}" r="{r:.1f}" stroke="none">{title}</circle>'
    if shape == "diamond":
        corners = f"M{left:.1f} {top - r:.1f}L{left + r:.1f} {top:.1f}L{left:.1f} {top + r:.1f}L{left - r:.1f} {top:.1f}Z"
        return f'<path d="{corners}" stroke="none">{title}</path>'
    if shape == "bar":
        return f'<path d="M{left:.1f} {top - r:.1f}V{top + r:.1f}" stroke-width="3">{title}</path>'
    x1, x2, y1, y2 = left - r, left + r, top - r, top + r
    cross = f"M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}M{x1:.1f} {y2:.1f}L{x2:.1f} {y1:.1f}"
    return f'<path d="{cross}" stroke-width="2" fill="none">{title}</path>'


def _rectangle(x1: float, x2: float, y1: float, y2: float, title: str, more: str = "") -> str:
    """Return a rectangle, or nothing if an end of it is at a value that its axis cannot show."""
    if not math.isfinite(x1 + x2 + y1 + y2):
        return ""
    place = f'x="{min(x1, x2):.1f}" y="{min(y1, y2):.1f}" width="{abs(x2 - x1):.1f}" height="{abs(y2 - y1):.1f}"{more}'
    return f"<rect {place}>{title}</rect>" if title else f"<rect {place}/>"


def _segment(x1: float, y1: float, x2: float, y2: float, colour: str, more: str = "") -> str:
    """Return a straight line, or nothing if an end of it is at a value that its axis cannot show."""
    if not math.isfinite(x1 + x2 + y1 + y2):
        return ""
    return f'<path d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}" stroke="{colour}" fill="none" {more}/>'


def _text(left: float, top: float, text: str, *, anchor: str = "start", colour: str = MUTED, more: str = "") -> str:
    return f'<text x="{left:.1f}" y="{top:.1f}" text-anchor="{anchor}" fill="{colour}"{more}>{escape(text)}</text>'


def _legend_symbol(entry: _Entry, left: float, top: float) -> str:
    if entry.symbol == "line":
        dash = f' stroke-dasharray="{entry.dash}"' if entry.dash else ""
        return _segment(left, top, left + 18, top, entry.colour, f'stroke-width="2.5"{dash}')
    if entry.symbol == "band":
        return f'<rect x="{left:.1f}" y="{top - 6:.1f}" width="18" height="12" fill="{entry.colour}" fill-opacity="0.5"/>'
    return f'<g fill="{entry.colour}" stroke="{entry.colour}">{_point(entry.symbol, left + 9, top, 5, "")}</g>'


def _width(text: str) -> float:
    return _CHARACTER * len(text)


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_NAME else f"{text[: _MAX_NAME - 1]}…"
