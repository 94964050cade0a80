"""Still pictures: state diagram, skeleton, wiring of the cascade, phase portraits of counters, traces of flip-flops, the residual
stream over a word, egg-box.

Each function draws into a matplotlib figure of its own and returns it; `write_pictures` writes all that a compiled language has.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch, Rectangle
from matplotlib.path import Path as MplPath

from longscan.automata.analysis import Report, analyse
from longscan.automata.compiler import Compiled
from longscan.automata.dfa import DFA, Word
from longscan.automata.diagrams import arrows, circle, pinned, state_radius
from longscan.automata.monoid import Monoid
from longscan.automata.skeleton import SetClass, members

INK, PALE, BLUE, ORANGE, GREEN, LINE, RED = "#22272e", "#f4f5f7", "#2f6fb2", "#d9822b", "#3c8d5a", "#9aa4b0", "#b3392f"
KINDS = {"counter": BLUE, "flip-flop": ORANGE, "lookup": GREEN}
DPI = 110
MOST_STATES, MOST_OPS, MOST_BOXES, MOST_CLASSES, FEW = 40, 60, 400, 40, 6


def state_diagram(dfa: DFA) -> Figure:
    """The states on a circle, the start with an arrow from outside, accepting states with a double rim."""
    figure, axes = _figure(6, 6)
    _draw_states(axes, dfa)
    return figure


def overview(compiled: Compiled) -> Figure:
    """State diagram and wiring side by side, with the verdict above."""
    figure = Figure(figsize=(15, 6.4), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.6))
    _draw_states(left, compiled.dfa)
    _draw_wiring(right, compiled)
    size = compiled.size
    figure.suptitle(
        f"{compiled.report.verdict}: blocks {compiled.spec}, width {size.d_model}, {size.parameters:,} parameters", color=INK
    )
    return figure


def wiring(compiled: Compiled) -> Figure:
    """The blocks as columns with their counters, flip-flops and lookups, and who reads whom; dashed: from one step before."""
    figure, axes = _figure(max(7, 1.5 * len(compiled.plan.blocks) + 2), 5)
    _draw_wiring(axes, compiled)
    return figure


def skeleton_diagram(report: Report) -> Figure:
    """The classes of image sets, a row for each level, the largest sets on top; single states at the bottom.

    A box names a set of its class, how many more the class has, their tiles, and the holonomy group where it is not trivial;
    lines go to the classes of its tiles.
    """
    bones = report.skeleton
    rows: dict[int, list[SetClass]] = {}
    for found in bones.classes:
        rows.setdefault(found.level, []).append(found)
    widest = max([len(row) for row in rows.values()], default=1)
    figure, axes = _figure(max(5.0, 2.3 * min(widest, MOST_CLASSES)), 1.25 * (bones.height + 1) + 0.4)
    axes.set_axis_off()
    if len(bones.classes) > MOST_CLASSES:
        axes.text(0.5, 0.5, f"{len(bones.classes)} classes of image sets: too many to draw", ha="center", color=INK)
        return figure
    places = {c.number: (i - (len(row) - 1) / 2, float(level)) for level, row in rows.items() for i, c in enumerate(row)}
    for found in bones.classes:
        x, y = places[found.number]
        below = {bones.class_of[tile].number if tile in bones.class_of else None for t in found.tiles.values() for tile in t}
        for number in below:
            low = (0.0, 0.0) if number is None else places[number]
            axes.plot([x, low[0]], [y - 0.3, low[1] + 0.3], color=LINE, lw=1.0, zorder=1)
        states = members(min(found.tiles))
        named = "{" + ",".join(map(str, states)) + "}" if len(states) <= FEW else f"{len(states)} states"
        others = len(found.tiles) - 1
        text = named + (f" and {others} more" if others else "") + f"\n{found.width} tiles"
        solvable = found.group.is_solvable
        colour = LINE if found.group.order == 1 else BLUE if solvable else RED
        if found.group.order > 1:
            text += f"\ngroup {found.group.name}" + ("" if solvable else ", not solvable")
        _box(axes, (x, y), text, colour, 0.42)
    _box(axes, (0.0, 0.0), f"single states, {report.dfa.size} of them", GREEN, 0.42 if widest > 1 else 0.3)
    edge = max(0.6, (widest - 1) / 2 + 0.6)
    for level in range(bones.height + 1):
        axes.text(-edge, level, f"level {level}", ha="right", va="center", color=INK, fontsize=8)
    axes.set_xlim(-edge - 0.4, edge)
    axes.set_ylim(-0.5, bones.height + 0.5)
    return figure


def residual_heat_map(compiled: Compiled, word: Word) -> Figure:
    """The residual stream behind the last block over a word: a row for each dimension, named by the fields that stand there."""
    trace, program, plan = compiled.explain(word), compiled.program, compiled.plan
    spans = [(plan.offsets[i], f.name, 2 if f.is_counter else f.size) for i, f in enumerate(program.fields)]
    spans += [(place, f"{program.fields[i].name} before", program.fields[i].size) for i, place in plan.delayed.items()]
    spans.append((plan.dummy, "constant", 1))
    figure, axes = _figure(max(6, 0.2 * len(trace.steps) + 3), min(24, max(2.5, 0.17 * plan.d_model + 0.9)))
    values = trace.stream.T.float().numpy()
    image = axes.imshow(values, aspect="auto", cmap="RdBu_r", vmin=-1, vmax=1, interpolation="nearest")
    for first, _, size in spans:
        axes.axhline(first + size - 0.5, color=LINE, lw=0.6)
    axes.set_yticks([first + (size - 1) / 2 for first, _, size in spans], [name for _, name, _ in spans], fontsize=7)
    axes.set_xticks(range(len(trace.steps)), [step.letter for step in trace.steps], fontsize=8)
    axes.tick_params(length=0)
    axes.set_xlabel(f"letters of the word; the constant is {plan.constant:g}, off the scale")
    figure.colorbar(image, ax=axes, shrink=0.8)
    return figure


def phase_portraits(compiled: Compiled, word: Word) -> Figure | None:
    """Every counter of the model on its circle over a word: values, borders of their sectors, points coloured by time.

    None where there is no counter.
    """
    stream = compiled.explain(word).stream
    counters = [i for i, f in enumerate(compiled.program.fields) if f.is_counter]
    if not counters:
        return None
    columns = min(4, len(counters))
    rows = -(-len(counters) // columns)
    figure = Figure(figsize=(3.4 * columns + 0.8, 3.5 * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    points: Any = None
    for axes, number in zip(grid.flat, counters, strict=False):
        f, first = compiled.program.fields[number], compiled.plan.offsets[number]
        values, borders = pinned(f.size)
        axes.add_patch(Circle((0, 0), 1, fill=False, color=LINE))
        for border in borders:
            axes.plot([0, 1.25 * border[0]], [0, 1.25 * border[1]], color=LINE, lw=0.8, ls=":")
        axes.scatter(*values.T, s=180, facecolor="white", edgecolor=INK, zorder=2)
        for value, place in enumerate(values):
            axes.text(*(1.28 * place), str(value), ha="center", va="center", color=INK)
        x, y = stream[:, first].numpy(), stream[:, first + 1].numpy()
        inward = np.linspace(0.15, 0.85, len(x))  # the same points again, from the middle outwards as time goes on
        axes.plot(inward * x, inward * y, color=LINE, lw=0.5)
        axes.scatter(inward * x, inward * y, c=np.arange(1, len(x) + 1), cmap="viridis", s=9, zorder=2)
        points = axes.scatter(x, y, c=np.arange(1, len(x) + 1), cmap="viridis", s=28, zorder=3)
        drift = np.abs(np.hypot(x, y) - 1).max(initial=0.0)
        axes.set_title(f"{f.name}, modulo {f.size}; radius off by {drift:.0e}", fontsize=9, color=INK)
        _bare(axes, 1.45)
    for axes in list(grid.flat)[len(counters) :]:
        axes.set_axis_off()
    figure.colorbar(points, ax=grid, label="letter of the word", shrink=0.8)
    return figure


def flip_flop_traces(compiled: Compiled, word: Word) -> Figure | None:
    """What the model holds in every flip-flop over a word, a row for each value; None where there is no flip-flop."""
    trace = compiled.explain(word)
    flops = [op.output for op in compiled.program.ops if op.kind == "flip-flop"]
    if not flops:
        return None
    heights = [compiled.program.fields[i].size for i in flops]
    size_in_inches = (max(6, 0.28 * len(trace.steps) + 2), 0.5 * sum(heights) + 0.6 * len(flops) + 0.8)
    figure = Figure(figsize=size_in_inches, layout="constrained")
    grid = figure.subplots(len(flops), 1, squeeze=False, sharex=True, height_ratios=heights)
    for axes, number in zip(grid.flat, flops, strict=True):
        first, size = compiled.plan.offsets[number], compiled.program.fields[number].size
        values = trace.stream[:, first : first + size].T.numpy()
        axes.imshow(values, aspect="auto", cmap="Oranges", vmin=0, vmax=1.15, interpolation="nearest")
        axes.set_yticks(range(size))
        axes.set_ylabel(compiled.program.fields[number].name, rotation=0, ha="right", va="center", color=INK)
        axes.set_yticks(np.arange(size + 1) - 0.5, minor=True)
        axes.set_xticks(np.arange(len(trace.steps) + 1) - 0.5, minor=True)
        axes.grid(which="minor", color="white", lw=1)
        axes.tick_params(which="both", length=0)
    grid.flat[-1].set_xticks(range(len(trace.steps)), [step.letter for step in trace.steps])
    grid.flat[-1].set_xlabel("letters of the word")
    return figure


def egg_box(monoid: Monoid) -> Figure | None:
    """The D classes from the top, rows R classes, columns L classes; boxes with an idempotent (groups) are filled.

    A box shows the shortest words of its elements. None where there are more than 400 boxes.
    """
    classes = monoid.d_classes
    if sum(len(c.boxes) * len(c.boxes[0]) for c in classes) > MOST_BOXES:
        return None
    texts = [[["\n".join(_elements(monoid, box)) for box in row] for row in c.boxes] for c in classes]
    wide = [0.9 + 0.16 * max(len(line) for row in t for text in row for line in text.split("\n")) for t in texts]
    high = [0.35 + 0.3 * max(text.count("\n") + 1 for row in t for text in row) for t in texts]
    width = max(w * len(c.boxes[0]) for w, c in zip(wide, classes, strict=True))
    height = sum(h * len(c.boxes) + 0.55 for h, c in zip(high, classes, strict=True))
    figure = Figure(figsize=(min(16, 0.62 * width + 2.6), min(18, 0.62 * height + 0.6)), layout="constrained")
    axes = figure.subplots()
    top = 0.0
    for c, text, w, h in zip(classes, texts, wide, high, strict=True):
        left = -w * len(c.boxes[0]) / 2
        for i, row in enumerate(c.boxes):
            for j, box in enumerate(row):
                fill = "#fbe3c4" if c.idempotents & set(box) else PALE
                corner = (left + j * w, top - (i + 1) * h)
                axes.add_patch(Rectangle(corner, w, h, facecolor=fill, edgecolor=INK, lw=0.8))
                axes.text(corner[0] + w / 2, corner[1] + h / 2, text[i][j], ha="center", va="center", fontsize=8, color=INK)
        group = "no group" if c.group is None else f"group {c.group.name}"
        axes.text(-left + 0.2, top - h * len(c.boxes) / 2, f"rank {c.rank}, {group}", va="center", fontsize=8, color=INK)
        top -= h * len(c.boxes) + 0.55
    axes.set_xlim(-width / 2 - 0.2, width / 2 + 3.4)
    axes.set_ylim(top + 0.3, 0.2)
    axes.set_axis_off()
    axes.set_title(f"{monoid.size} elements, {monoid.dfa.size} states; filled: groups", fontsize=10, color=INK)
    return figure


def _elements(monoid: Monoid, box: Sequence[int]) -> list[str]:
    """The shortest words of a box's elements, eight at most, the idempotents with a star."""
    lines = []
    for x in box[:8]:
        word = "".join(monoid.dfa.alphabet[a] for a in monoid.words[x]) or "1"
        lines.append(word + ("*" if _idempotent(monoid.elements[x]) else ""))
    return lines + (["..."] if len(box) > len(lines) else [])


def _idempotent(element: tuple[int, ...]) -> bool:
    return all(element[y] == y for y in set(element))


def write_pictures(compiled: Compiled, folder: str | Path, word: Word) -> list[Path]:
    """Write all pictures that the language has into a folder, as PNG; the word is what portraits and traces show."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    monoid = analyse(compiled.dfa, monoid_limit=1000, minimise=False).monoid
    figures = {
        "states": state_diagram(compiled.dfa),
        "skeleton": skeleton_diagram(compiled.report),
        "wiring": wiring(compiled),
        "phases": phase_portraits(compiled, word),
        "flip_flops": flip_flop_traces(compiled, word),
        "residual": residual_heat_map(compiled, word),
        "egg_box": None if monoid is None else egg_box(monoid),
    }
    written = []
    for name, figure in figures.items():
        if figure is not None:
            written.append(folder / f"{name}.png")
            figure.savefig(written[-1], dpi=DPI)
    return written


def some_word(compiled: Compiled, length: int = 40) -> list[str]:
    """A random word, always the same one for an automaton."""
    generator = torch.Generator().manual_seed(0)
    alphabet = compiled.dfa.alphabet
    return [alphabet[i] for i in torch.randint(len(alphabet), (length,), generator=generator).tolist()]


def _figure(width: float, height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots()


def _box(axes: Axes, at: tuple[float, float], text: str, colour: str, half: float) -> None:
    """A box of half width `half` with text in its middle."""
    corner = (at[0] - half, at[1] - 0.3)
    box = FancyBboxPatch(corner, 2 * half, 0.6, boxstyle="round,pad=0.02", fc="white", ec=colour, lw=1.6, zorder=3)
    axes.add_patch(box)
    axes.text(*at, text, ha="center", va="center", fontsize=7.5, color=INK, zorder=4)


def _bare(axes: Axes, reach: float) -> None:
    axes.set_aspect("equal")
    axes.set_xlim(-reach, reach)
    axes.set_ylim(-reach, reach)
    axes.set_axis_off()


def _draw_states(axes: Axes, dfa: DFA) -> None:
    _bare(axes, 1.62)
    if dfa.size > MOST_STATES:
        axes.text(0, 0, f"{dfa.size} states: too many to draw", ha="center", color=INK)
        return
    places, radius = circle(dfa.size), state_radius(dfa.size)
    small = max(5.0, min(11.0, 55 * radius))
    for arrow in arrows(dfa):
        axes.plot(*arrow.curve[:-1].T, color=LINE, lw=1.2, zorder=1)
        _head(axes, arrow.curve[-4], arrow.curve[-1])
        box = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
        axes.text(*arrow.at, arrow.label, ha="center", va="center", fontsize=small, color=INK, bbox=box, zorder=2)
    for state, place in enumerate(places):
        accepting = state in dfa.accept
        axes.add_patch(Circle(place, radius, facecolor=PALE, edgecolor=INK, lw=1.3, zorder=3))
        if accepting:
            axes.add_patch(Circle(place, 0.84 * radius, fill=False, edgecolor=INK, lw=1.1, zorder=3))
        axes.text(float(place[0]), float(place[1]), str(state), ha="center", va="center", fontsize=small, color=INK, zorder=4)
    out = places[dfa.start] / (np.linalg.norm(places[dfa.start]) or 1)
    out = out if out.any() else np.array([-1.0, 0.0])
    turned = np.array([out[0] * 0.7 - out[1] * 0.7, out[0] * 0.7 + out[1] * 0.7])  # beside the loop
    _head(axes, places[dfa.start] + turned * (radius + 0.3), places[dfa.start] + turned * radius * 1.05, line=True)


def _head(axes: Axes, before: Any, tip: Any, *, line: bool = False) -> None:
    colour = INK if line else LINE
    patch = FancyArrowPatch(before, tip, arrowstyle="-|>", mutation_scale=12, color=colour, shrinkA=0, shrinkB=0, zorder=2)
    axes.add_patch(patch)


def _draw_wiring(axes: Axes, compiled: Compiled) -> None:
    program, plan = compiled.program, compiled.plan
    axes.set_axis_off()
    if len(program.ops) > MOST_OPS:
        axes.text(0.5, 0.5, f"{len(program.ops)} ops in {len(plan.blocks)} blocks: too many to draw", ha="center", color=INK)
        return
    tallest = float(max(1, *(len(block.ops) for block in plan.blocks)))
    writer = {op.output: op for op in program.ops}
    places: dict[int, tuple[float, float]] = {0: (-1.0, 0.0)}
    for column, block in enumerate(plan.blocks):
        for i, number in enumerate(block.ops):
            places[program.ops[number].output] = (float(column), (len(block.ops) - 1) / 2 - i + 0.18 * (-1) ** column)
    reach = tallest / 2 + 0.5
    for op in program.ops:
        for wire in op.wires:
            (x0, y0), (x1, y1) = places[wire.field], places[op.output]
            between = [y for x, y in places.values() if x0 < x < x1]
            side = 1 if y1 >= 0 else -1
            middle: list[tuple[float, float]] = []
            if between:  # around the boxes between, farther the longer the way
                away = max(side * y for y in between) + 0.45 + 0.08 * (x1 - x0)
                handle = (side * away - (y0 + y1) / 8) / 0.75  # a curve with handles there has its middle at `away`
                middle = [(x0 + 0.4, handle), (x1 - 0.58, handle)]
                reach = max(reach, away)
            elif wire.delayed:
                middle = [(x0 + 0.46, y0 + 0.2), (x1 - 0.46, y1 + 0.2)]
            codes = [MplPath.MOVETO, *([MplPath.CURVE4] * 3 if middle else [MplPath.LINETO])]
            colour, dashes = (ORANGE, "--") if wire.delayed else (LINE, "-")
            path = MplPath([(x0 + 0.36, y0), *middle, (x1 - 0.36, y1)], codes)
            patch = FancyArrowPatch(
                path=path, arrowstyle="-|>", mutation_scale=9, color=colour, linestyle=dashes, lw=1.1, zorder=1
            )
            axes.add_patch(patch)
    for number, (x, y) in places.items():
        colour = KINDS[writer[number].kind] if number in writer else INK
        f = program.fields[number]
        text = "letter"
        if number in writer:
            text = f"{f.name}\n{'mod ' if f.is_counter else 'one of '}{f.size}\ntable of {writer[number].rows}"
        _box(axes, (x, y), text, colour, 0.34)
    for column, block in enumerate(plan.blocks):
        axes.text(column, reach + 0.25, block.letter, ha="center", fontsize=13, weight="bold", color=INK)
    for place, (kind, colour) in enumerate(KINDS.items()):
        axes.text(-1.3 + 1.1 * place, -reach - 0.25, kind, color=colour, fontsize=9)
    axes.text(2.0, -reach - 0.25, "dashed: as it was one step before", color=INK, fontsize=9)
    axes.set_xlim(-1.5, len(plan.blocks) - 0.4)
    axes.set_ylim(-reach - 0.5, reach + 0.7)
