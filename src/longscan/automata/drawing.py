"""A matplotlib figure of a compiled automaton, and its graphs as a file for Graphviz."""

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch

from longscan._errors import setting_error
from longscan._files import write_user_file
from longscan.automata.compiler import CompiledAutomaton
from longscan.automata.dfa import DFA, Word

MAX_STATES, MAX_LETTERS = 24, 300  # largest numbers that fit into the figure
EDGE_CURVATURE = 0.22  # distance of an edge's control point from the straight line, as a fraction of the edge's length
LABEL_POSITION = 0.36  # position of an edge's letters along the edge; edges between opposite states cross at 0.5
INK, GREY, HIGHLIGHT = "#22272e", "#7d8894", "#fbe3c4"


def draw_model(compiled: CompiledAutomaton, word: Word) -> Figure:
    """Draw the state diagram of an automaton, and the residual stream of its model over a word.

    Left: states on a circle, the start state filled, accepting states with a double circle. Right: the residual stream after the
    last block and each letter, a row for each dimension with the name of its field. Raises ValueError for a letter that is not in
    the alphabet, and for a word that is empty or has more than 300 letters.
    """
    if not 1 <= len(word) <= MAX_LETTERS:
        raise setting_error("word", word, f"a word of 1 to {MAX_LETTERS} letters")
    stream = compiled.explain(word).stream.float().numpy()
    width = min(24.0, 10.5 + 0.16 * len(word))
    figure = Figure(figsize=(width, min(24.0, max(6.2, 1.6 + 0.17 * compiled.plan.d_model))), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(6, width - 6))
    _draw_states(left, compiled.dfa)
    _draw_stream(right, compiled, word, stream)
    size = compiled.size
    figure.suptitle(f"{compiled.report.verdict}: blocks {size.spec}, width {size.d_model}, {size.parameters:,} parameters")
    return figure


def write_dot(automaton: DFA | CompiledAutomaton, path: str | Path) -> Path:
    """Write an automaton as a graph for Graphviz: `dot -Tsvg PATH`.

    For a compiled automaton the file also has the wiring of the model: a box for each operation of the cascade, in the cluster of
    its block, and an edge from each field that it reads; a dashed edge means the value at the previous step.
    """
    dfa = automaton.dfa if isinstance(automaton, CompiledAutomaton) else automaton
    lines = ["digraph {", "  rankdir=LR;", '  start [shape=none, label=""];', f"  start -> {dfa.start};"]
    lines += [f"  {state} [shape={'doublecircle' if state in dfa.accept else 'circle'}];" for state in range(dfa.size)]
    lines += [f"  {source} -> {target} [label={_quote(','.join(edge))}];" for (source, target), edge in dfa.edges().items()]
    if isinstance(automaton, CompiledAutomaton):
        lines += _wiring(automaton)
    text = "\n".join([*lines, "}"]) + "\n"
    return write_user_file(Path(path), text.encode())


def _wiring(compiled: CompiledAutomaton) -> list[str]:
    fields, ops = compiled.program.fields, compiled.program.ops
    lines = ["  node [shape=box];", f"  {_quote(fields[0].name)};"]
    for number, block in enumerate(compiled.plan.blocks):
        lines.append(f"  subgraph cluster_{number} {{ label={_quote(f'block {number}: {block.letter}')};")
        for op in (ops[i] for i in block.ops):
            written = fields[op.output]
            label = _quote(f"{written.name}\n{op.kind}, {written.size} values, {op.rows} rows")
            lines.append(f"    {_quote(written.name)} [label={label}];")
        lines.append("  }")
    for op in ops:
        for wire in op.wires:
            style = " [style=dashed]" if wire.delayed else ""
            lines.append(f"  {_quote(fields[wire.field].name)} -> {_quote(fields[op.output].name)}{style};")
    return lines


def _quote(text: str) -> str:
    """Return a text as a quoted string of the DOT language."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _draw_states(axes: Axes, dfa: DFA) -> None:
    axes.set_aspect("equal")
    axes.set_xlim(-1.6, 1.6)
    axes.set_ylim(-1.6, 1.6)
    axes.set_axis_off()
    if dfa.size > MAX_STATES:
        axes.text(0, 0, f"{dfa.size} states: too many to draw", ha="center", color=INK)
        return
    angles = np.pi - 2 * np.pi * np.arange(dfa.size) / dfa.size
    centres = (dfa.size > 1) * np.stack([np.cos(angles), np.sin(angles)], 1)
    radius = min(0.2, 1.2 / dfa.size)
    font = max(6.0, 55 * radius)
    circles = [Circle((x, y), radius, fc=HIGHLIGHT if i == dfa.start else "white", ec=INK, zorder=3)
               for i, (x, y) in enumerate(centres)]  # fmt: skip
    for state, (x, y) in enumerate(centres):
        axes.add_patch(circles[state])
        axes.text(x, y, str(state), ha="center", va="center", fontsize=font, color=INK, zorder=4)
        if state in dfa.accept:
            axes.add_patch(Circle((x, y), 0.82 * radius, fill=False, ec=INK, zorder=3))
    for (source, target), letters in dfa.edges().items():
        first, last, curvature = centres[source], centres[target], EDGE_CURVATURE
        tail, head = (None, None) if source == target else (circles[source], circles[target])
        if source == target:  # a loop outside the circle of states: between two points of the rim, clipped by nothing
            outward = np.array([-1.0, 0.0]) if dfa.size == 1 else first
            across = radius * 0.6 * np.array([-outward[1], outward[0]])
            first, last = first + 0.8 * radius * outward + across, first + 0.8 * radius * outward - across
            curvature = -2.5
        axes.add_patch(FancyArrowPatch(
            tuple(first), tuple(last), arrowstyle="-|>", mutation_scale=11, color=GREY, shrinkA=0, shrinkB=0,
            connectionstyle=f"arc3,rad={curvature}", patchA=tail, patchB=head,
        ))  # fmt: skip
        along = last - first
        control = (first + last) / 2 + curvature * np.array([along[1], -along[0]])
        t = 0.5 if source == target else LABEL_POSITION
        x, y = (1 - t) ** 2 * first + 2 * t * (1 - t) * control + t**2 * last
        box = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}
        axes.text(x, y, ",".join(letters), ha="center", va="center", fontsize=font, color=INK, bbox=box, zorder=2)


def _draw_stream(axes: Axes, compiled: CompiledAutomaton, word: Word, stream: np.ndarray) -> None:
    fields, plan = compiled.program.fields, compiled.plan
    rows = [(first, fields[i].name, i) for i, first in plan.offsets.items()]
    rows += [(first, f"{fields[i].name} before", i) for i, first in plan.delayed.items()]
    spans = [(first, name, 2 if fields[i].is_counter else fields[i].size) for first, name, i in rows]
    spans.append((plan.constant_position, "constant", 1))
    image = axes.imshow(stream.T, aspect="auto", cmap="RdBu_r", vmin=-1, vmax=1, interpolation="nearest")
    for first, _, size in spans:
        axes.axhline(first + size - 0.5, color=GREY, lw=0.6)
    axes.set_yticks([first + (size - 1) / 2 for first, _, size in spans], [name for _, name, _ in spans], fontsize=7)
    axes.set_xticks(range(len(word)), list(word), fontsize=7)
    axes.tick_params(length=0)
    axes.set_title("residual stream after the last block", fontsize=10)
    axes.set_xlabel(f"letters of the word; the constant is {plan.constant:g}, off the scale")
    axes.figure.colorbar(image, ax=axes, shrink=0.8)
