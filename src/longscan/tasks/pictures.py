"""Plots of a task's examples: texts, series, images, events."""

import io
from collections.abc import Callable
from math import isqrt
from pathlib import Path
from typing import Any

import torch

from longscan._files import write_user_file
from longscan._types import PositiveInt, checked_value
from longscan.tasks.base import Batch, Split, Task
from longscan.tasks.series import SeriesFile, SeriesForecast

_COLUMNS = 3
_MAX_COLOURS = 3  # largest number of channels of a pixel, and of targets in a plot


def draw_examples(task: Task, path: str | Path, *, split: Split = "train", count: int = 6) -> Path:
    """Plot the first `count` examples of a split into a PNG file and return its path. Raises ValueError for a count below one."""
    from matplotlib.figure import Figure

    checked_value(count, PositiveInt, "count")
    batch = task.batch(split, 0, count)
    count = min(count, len(batch.inputs))
    columns = 1 if task.plot_kind == "text" else min(_COLUMNS, count)
    rows = -(-count // columns)
    height = 1.2 if task.plot_kind == "text" else 3.2
    figure = Figure(figsize=(12 if columns == 1 else 4.2 * columns, height * rows + 0.6), layout="constrained")
    title = f"{task.name}, {split}"
    if isinstance(task, SeriesFile):
        scale = ", standardised by the training series" if task.plot_kind == "series" else ""
        title = f"{Path(task.path or '').name} ({task.name}), {split}{scale}"
    figure.suptitle(title, parse_math=False)
    names = task.example_names(split, 0, count)
    for row in range(count):
        axes = figure.add_subplot(rows, columns, row + 1)
        _PLOTTERS[task.plot_kind](axes, task, batch, row)
        if names is not None:
            joint = ", from " if task.plot_kind == "forecast" else " · "
            axes.set_title(f"{axes.get_title()}{joint}{names[row]}", fontsize=8, parse_math=False)
    content = io.BytesIO()
    figure.savefig(content, dpi=110, format="png")
    return write_user_file(Path(path), content.getvalue())


def _text(axes: Any, task: Task, batch: Batch, row: int) -> None:
    question, bar, answer = task.describe(batch, row).rpartition(" | ")
    text = question if len(question) < 260 else f"{question[:170]} … {question[-80:]}"
    axes.axis("off")
    lines = [text[start : start + 130] for start in range(0, len(text), 130)]
    axes.text(0, 0.95, "\n".join(lines), family="monospace", fontsize=8, va="top", parse_math=False)
    axes.text(0, 0.02, f"{bar.strip()} {answer[:130]}", family="monospace", fontsize=9, va="bottom", color="C3", parse_math=False)


def _series(axes: Any, task: Task, batch: Batch, row: int) -> None:
    steps = batch.valid_steps(row)
    times = steps.nonzero()[:, 0].float() if batch.elapsed is None else batch.elapsed[row][steps].cumsum(0)
    values = batch.inputs[row][steps]
    for channel in range(min(6, values.shape[1])):
        axes.plot(times.numpy(), values[:, channel].numpy(), lw=0.8, color=f"C{channel}")
    names = task.channel_names
    if row == 0 and names is not None:
        axes.legend(names[: min(6, values.shape[1])], fontsize=7, loc="upper right")
    if batch.targets is not None and batch.targets.is_floating_point() and batch.targets.ndim == 3:
        scored = steps if batch.loss_mask is None else batch.loss_mask[row]
        target_times = scored.nonzero()[:, 0] + task.target_offset if batch.elapsed is None else times
        for channel in range(min(6, batch.targets.shape[2])):
            axes.plot(target_times.numpy(), batch.targets[row][scored][:, channel].numpy(), lw=0.8, ls=":", color=f"C{channel}")
        axes.set_title("inputs and targets (dotted)", fontsize=8)
    else:
        _answer(axes, task, batch, row)
    axes.set_xlabel("time" if batch.elapsed is not None else "step", fontsize=8)


def _forecast(axes: Any, task: Task, batch: Batch, row: int) -> None:
    assert isinstance(task, SeriesForecast)
    past, ahead = task.past_and_ahead(batch, row)
    for number, name in enumerate(task.variables[:_MAX_COLOURS]):
        axes.plot(range(len(past)), past[:, number].numpy(), lw=0.8, color=f"C{number}", label=name)
        if ahead is not None:
            axes.plot(range(len(past), len(past) + len(ahead)), ahead[:, number].numpy(), lw=1.4, ls=":", color=f"C{number}")
    axes.axvline(len(past) - 0.5, color="grey", lw=0.6)
    axes.set_title("dotted: the steps to forecast", fontsize=8)
    axes.set_xlabel("step", fontsize=8)
    if row == 0:
        axes.legend(fontsize=7, loc="upper left")


def _image(axes: Any, task: Task, batch: Batch, row: int) -> None:
    pictures = batch.inputs[row].float()
    if pictures.ndim == 2 and pictures.shape[1] > _MAX_COLOURS:  # an image at each step, and perhaps its time: plot eight of them
        side = isqrt(pictures.shape[1])
        chosen = torch.linspace(0, len(pictures) - 1, 8).round().long()
        pictures = torch.cat(list(pictures[chosen, : side * side].view(-1, side, side)), dim=1)
    else:
        side = round(len(pictures) ** 0.5)
        pictures = pictures.view(side, side, -1)
    low, high = pictures.min(), pictures.max()
    axes.imshow(((pictures - low) / (high - low + 1e-9)).numpy(), cmap="gray", interpolation="nearest")
    axes.axis("off")
    _answer(axes, task, batch, row)


def _events(axes: Any, task: Task, batch: Batch, row: int) -> None:
    steps = batch.valid_steps(row)
    assert batch.elapsed is not None
    time = batch.elapsed[row][steps].cumsum(0).numpy()
    x, y, polarity = (part.numpy() for part in task.event_coordinates(batch.inputs[row][steps]))
    colours = [("C0", "C3")[int(p)] for p in polarity]
    if y.any():
        figure, position = axes.figure, axes.get_subplotspec()
        axes.remove()
        axes = figure.add_subplot(position, projection="3d")
        axes.scatter(time, x, -y, s=0.3, c=colours)
        axes.set_zticks([])
    else:
        axes.scatter(time, x, s=0.5, c=colours)
    axes.set_xlabel("ms", fontsize=8)
    _answer(axes, task, batch, row)


def _answer(axes: Any, task: Task, batch: Batch, row: int) -> None:
    axes.set_title(task.describe(batch, row).rpartition(" | ")[2][:60], fontsize=9, parse_math=False)


_PLOTTERS: dict[str, Callable[[Any, Task, Batch, int], None]] = {
    "text": _text,
    "series": _series,
    "image": _image,
    "events": _events,
    "forecast": _forecast,
}
