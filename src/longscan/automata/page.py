"""The page that steps a word through an automaton and its model side by side: one HTML file that opens offline.

Left: the state diagram with the automaton's state filled and the model's ringed. Right: what the model holds, counters on their
circles and every other field as shades. A slider and a button go from letter to letter.
"""

import html
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from longscan.automata.compiler import Compiled
from longscan.automata.dfa import Word
from longscan.automata.diagrams import arrows, circle, pinned, state_radius
from longscan.automata.pictures import BLUE, INK, LINE, MOST_STATES, ORANGE, PALE

LONGEST = 300  # letters of a word
MOST_VALUES, MOST_TICKS = 12, 30  # of a counter that are named on its circle; of a field that are named on the axis


def check_word(compiled: Compiled, word: Word) -> None:
    """Raise ValueError where the page cannot show the word: none or more than 300 letters, or letters of another alphabet."""
    if not 1 <= len(word) <= LONGEST:
        raise ValueError(f"word: got {len(word)} letters, expected 1 to {LONGEST}")
    compiled.dfa.encode(word)


def write_page(compiled: Compiled, path: str | Path, word: Word) -> Path:
    """Write the page for a word of at most 300 letters; ValueError as in `check_word`."""
    check_word(compiled, word)
    path = Path(path)
    figure = stepping_figure(compiled, word)
    title = f"{compiled.report.verdict}: {compiled.spec}"
    config = {"displayModeBar": False, "responsive": True}
    drawn = figure.to_html(full_html=False, include_plotlyjs=True, auto_play=False, config=config)
    certificate = html.escape(str(compiled.verify()))
    body = f"<h1>{html.escape(title)}</h1><p>{certificate}</p>{drawn}<pre>{html.escape(str(compiled.explain(word)))}</pre>"
    style = f"body{{font-family:sans-serif;color:{INK};max-width:1200px;margin:1em auto;padding:0 1em}}pre{{overflow:auto}}"
    head = f'<meta charset="utf-8"><title>{html.escape(title)}</title><link rel="icon" href="data:,"><style>{style}</style>'
    path.write_text(f'<!doctype html><html lang="en"><head>{head}</head><body>{body}</body></html>\n', encoding="utf-8")
    return path


def stepping_figure(compiled: Compiled, word: Word) -> go.Figure:
    """The figure with a frame for every letter, and one before the first."""
    trace = compiled.explain(word)
    fields = [i for i, f in enumerate(compiled.program.fields) if i and not f.is_counter]
    counters = [i for i, f in enumerate(compiled.program.fields) if f.is_counter]
    figure = make_subplots(
        2, 2, specs=[[{"rowspan": 2}, {}], [None, {}]], column_widths=[0.5, 0.5], row_heights=[0.5, 0.5],
        subplot_titles=("automaton (filled) and model (ring)", "counters of the model", "other fields of the model"),
    )  # fmt: skip
    _still(figure, compiled, counters)
    moving = len(figure.data)
    for item in _moving(compiled, None, None, counters, fields):
        figure.add_trace(item[0], *item[1:])
    numbers = list(range(moving, len(figure.data)))
    frames, steps = [], []
    at_once = {"mode": "immediate", "frame": {"duration": 0, "redraw": True}}
    for t in range(len(trace.steps) + 1):
        now = trace.steps[t - 1] if t else None
        stream = trace.stream[t - 1].numpy() if t else None
        data = [item[0] for item in _moving(compiled, now, stream, counters, fields)]
        title = {"title": {"text": _caption(compiled, word, t, now)}}
        frames.append(go.Frame(data=data, traces=numbers, name=str(t), layout=title))
        steps.append({"args": [[str(t)], at_once], "label": str(t), "method": "animate"})
    figure.frames = frames
    going = {"frame": {"duration": 600, "redraw": True}, "fromcurrent": True}
    play = {"label": "play", "method": "animate", "args": [None, going]}
    stop = {"label": "stop", "method": "animate", "args": [[None], at_once]}
    figure.update_layout(
        height=680,
        template="none",
        showlegend=False,
        title={"text": _caption(compiled, word, 0, None), "x": 0.01, "xanchor": "left", "font": {"size": 16}},
        sliders=[{"steps": steps, "currentvalue": {"prefix": "letters read: "}, "pad": {"t": 30}}],
        updatemenus=[{"type": "buttons", "direction": "left", "buttons": [play, stop], "x": 1, "y": 1.16, "xanchor": "right"}],
        margin={"t": 90, "l": 20, "r": 20},
    )
    return figure


def _caption(compiled: Compiled, word: Word, t: int, now: Any) -> str:
    first = max(0, t - 30)
    before = html.escape("".join(word[first : max(0, t - 1)]))
    after = html.escape("".join(word[t : t + 30]))
    letter = f"<b>[{html.escape(word[t - 1])}]</b>" if t else ""
    accepted = compiled.dfa.start in compiled.dfa.accept if now is None else now.accepted
    answer = "accepted" if accepted else "refused"
    return f"{'…' if first else ''}{before}{letter}<span style='color:{LINE}'>{after}</span>   {answer}"


def _still(figure: go.Figure, compiled: Compiled, counters: list[int]) -> None:
    """The edges of the state diagram and the circles of the counters."""
    dfa = compiled.dfa
    hidden = {"visible": False}
    line, left, right = {"line": {"color": LINE}, "mode": "lines"}, {"row": 1, "col": 1}, {"row": 1, "col": 2}
    if dfa.size <= MOST_STATES:
        for arrow in arrows(dfa):
            figure.add_scatter(x=arrow.curve[:, 0], y=arrow.curve[:, 1], hoverinfo="skip", **line, **left)
            tip, before = arrow.curve[-1], arrow.curve[-4]
            angle = 90 - np.degrees(np.arctan2(*(tip - before)[::-1]))
            marker = {"symbol": "triangle-up", "size": 9, "angle": angle, "color": LINE}
            figure.add_scatter(x=[tip[0]], y=[tip[1]], mode="markers", marker=marker, hoverinfo="skip", **left)
            figure.add_scatter(x=[arrow.at[0]], y=[arrow.at[1]], mode="text", text=[arrow.label], hoverinfo="skip", **left)
    turn, centres = np.linspace(0, 2 * np.pi, 80), _centres(len(counters))
    for i, number in enumerate(counters):
        f = compiled.program.fields[number]
        values, _ = pinned(f.size)
        x, y = centres[i].tolist()
        figure.add_scatter(x=x + np.cos(turn), y=y + np.sin(turn), hoverinfo="skip", **line, **right)
        if f.size <= MOST_VALUES:
            named = {"mode": "text", "text": [str(v) for v in range(f.size)]}
            figure.add_scatter(x=x + 1.35 * values[:, 0], y=y + 1.35 * values[:, 1], hoverinfo="skip", **named, **right)
        figure.add_scatter(x=[x], y=[y - 1.75], mode="text", text=[f.name], hoverinfo="skip", **right)
    figure.update_xaxes(range=[-1.7, 1.7], **hidden, **left)
    figure.update_yaxes(range=[-1.7, 1.7], scaleanchor="x", **hidden, **left)
    across, down = centres.max(0, initial=0)[0], centres.min(0, initial=0)[1]
    figure.update_xaxes(range=[-1.7, across + 1.7], **hidden, **right)
    figure.update_yaxes(range=[down - 2.0, 1.7], scaleanchor="x2", **hidden, **right)
    bare = {"showgrid": False, "zeroline": False, "row": 2, "col": 2}
    widest = max((f.size for f in compiled.program.fields[1:] if not f.is_counter), default=1)
    figure.update_xaxes(title="value", dtick=1 if widest <= MOST_TICKS else None, **bare)
    figure.update_yaxes(automargin=True, autorange="reversed", **bare)


def _centres(count: int) -> np.ndarray:
    """The centres of the circles of `count` counters, four side by side: (count, 2)."""
    return np.array([(3.2 * (i % 4), -3.9 * (i // 4)) for i in range(count)]).reshape(-1, 2)


def _moving(
    compiled: Compiled, now: Any, stream: np.ndarray | None, counters: list[int], fields: list[int]
) -> list[tuple[Any, int, int]]:
    """The traces that change from letter to letter, each with its row and column."""
    dfa, program, plan = compiled.dfa, compiled.program, compiled.plan
    state = dfa.start if now is None else now.state
    held = dfa.start if now is None else now.model_state
    if dfa.size <= MOST_STATES:
        places, size = circle(dfa.size), min(34.0, 350 * state_radius(dfa.size))
        colours = [ORANGE if q == state else PALE for q in range(dfa.size)]
        rims = [BLUE if q == held else INK for q in range(dfa.size)]
        widths = [(5 if size > 20 else 3) if q == held else 3 if q in dfa.accept else 1 for q in range(dfa.size)]
        names = [f"<b>{q}</b>" if q in dfa.accept else str(q) for q in range(dfa.size)]
    else:  # too many to draw: the two states by their numbers
        places, size, colours, rims, widths = np.zeros((1, 2)), 34.0, [ORANGE], [BLUE if held == state else INK], [5]
        names = [f"<br><br><br><br>state {state} of {dfa.size}; model: {held}"]
    marker = {"size": size, "color": colours, "line": {"color": rims, "width": widths}}
    states = go.Scatter(
        x=places[:, 0], y=places[:, 1], mode="markers+text", text=names, marker=marker, hoverinfo="skip",
        textfont={"size": 12 if size > 20 else 8},
    )  # fmt: skip
    result: list[tuple[Any, int, int]] = [(states, 1, 1)]
    firsts = [plan.offsets[i] for i in counters]
    at = np.array([[1.0, 0.0] if stream is None else stream[first : first + 2] for first in firsts]).reshape(-1, 2)
    dots = {"size": 14, "color": BLUE}
    at = at + _centres(len(counters))
    result.append((go.Scatter(x=at[:, 0], y=at[:, 1], mode="markers", marker=dots, hoverinfo="skip"), 1, 2))
    width = max((program.fields[i].size for i in fields), default=1)
    shades = np.full((len(fields), width), np.nan)
    for row, number in enumerate(fields):
        f = program.fields[number]
        first = plan.offsets[number]
        shades[row, : f.size] = np.eye(f.size)[f.initial] if stream is None else stream[first : first + f.size]
    labels = [program.fields[i].name for i in fields]
    scale = [[0, PALE], [1, ORANGE]]
    result.append((go.Heatmap(z=shades, y=labels, colorscale=scale, zmin=0, zmax=1, showscale=False, xgap=2, ygap=2), 2, 2))
    return result
