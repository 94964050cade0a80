"""Compare what is shown of examples with a record: the examples of a report for every task, and the parts of pictures.

A report shows a few answers of a model with the inputs on which they depend; pictures are described by their lines, images,
texts, sizes and colours. If a change is intended, regenerate the record with `python tests/contracts/test_shown_values.py`, and
state in the commit message why something else is shown.
"""

import json
import sys
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from matplotlib.collections import PathCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

sys.path.insert(0, str(Path(__file__).parents[1]))

from recorded_values import describe, list_differences

from longscan.models import SequenceModel
from longscan.tasks import Task
from longscan.tasks.pictures import draw_examples
from longscan.training import parse_settings, pictures
from longscan.training.examples import find_examples
from longscan.training.run import build_model
from task_variants import SPECIAL, VARIANTS

RECORD = Path(__file__).with_name("shown_values.json")
TOLERANCE = 2e-4  # gradients add up rounding errors, and numbers are rounded to four digits
TASKS_BY_TITLE = {variant.id: variant.values[0] for variant in (*VARIANTS, *SPECIAL)}
SHOWN = (
    *("parity", "listops", "lra_image", "lra_text", "byte_text", "dna_language", "species", "events"),
    *("forecast", "forecast-append-season-apart", "series_classes", "series_forecast", "uea", "human_activity", "pendulum"),
    *("walker", "walker-dropped", "events-packed"),
)
PLOTTED = ("parity", "pendulum", "fitzhugh_nagumo", "lra_image", "events", "series_classes", "series_forecast", "forecast")
INSPECTED = {
    "tokens": "--task parity --model.spec s4d --task.eval_lengths [9,12] --task.test_size 3",
    "series": "--task pendulum --model.spec lru --task.train_size 2 --task.valid_size 2 --task.test_size 2",
}


def shown_examples(task: Task) -> Any:
    """Return the examples that a report shows of a small model with random weights."""
    torch.manual_seed(0)
    sizes = {"d_model": 4, "d_state": 4, "vocab_size": task.vocab_size, "d_input": task.d_input, "d_output": task.d_output}
    model = SequenceModel.from_spec("lru", pooling="none" if task.per_step else "mean", backend="eager", **sizes)
    with torch.no_grad():
        for parameter in model.head.parameters():
            parameter.mul_(4)  # so that answers differ
    small = {"MAX_EXAMPLES": 16, "MIN_EXAMPLES": 4, "MAX_TOKENS": 20, "SEGMENTS": 7}
    with mock.patch.multiple("longscan.training.examples", **small):
        return find_examples(model, task, 3)


def describe_text(text: Any) -> list[Any]:
    """Return a text with its size, place and colour; nothing for an empty one."""
    if not text.get_text():
        return []
    place = [round(float(part), 3) for part in text.get_position()]
    return [text.get_text(), float(text.get_fontsize()), place, text.get_ha(), text.get_va(), to_hex(text.get_color())]


def describe_line(line: Any) -> list[Any]:
    """Return the points of a line, its style, colour and name."""
    style = [line.get_linestyle(), line.get_linewidth(), str(line.get_marker()), line.get_markersize(), line.get_alpha()]
    points = [np.asarray(part, dtype=np.float64) for part in line.get_data()]
    return [*points, *style, to_hex(line.get_color()), str(line.get_label())]


def describe_image(image: Any) -> list[Any]:
    """Return the values of an image, its colours and its place."""
    values = np.ma.filled(image.get_array()).astype(np.float64)
    limits = [float(image.norm.vmin), float(image.norm.vmax), *(float(end) for end in image.get_extent())]
    return [values, np.array(limits), image.cmap.name, type(image.norm).__name__, image.get_interpolation()]


def describe_axes(axes: Any) -> dict[str, Any]:
    """Return what axes show."""
    legend = axes.get_legend()
    return {
        "texts": [
            describe_text(text) for text in (axes.title, axes._left_title, axes.xaxis.label, axes.yaxis.label, *axes.texts)
        ],
        "scales": [axes.name, axes.get_xscale(), axes.axison, axes.get_box_aspect()],
        "ticks": [len(axes.get_xticks()), [text.get_text() for text in axes.get_xticklabels()][:9]] if axes.axison else [],
        "lines": [describe_line(line) for line in axes.lines],
        "patches": [
            [to_hex(patch.get_facecolor()), to_hex(patch.get_edgecolor()), patch.get_linewidth(), patch.get_fill()]
            for patch in axes.patches
        ],
        "images": [describe_image(image) for image in axes.images],
        "points": [[np.asarray(points.get_sizes()), len(points.get_facecolor())] for points in axes.findobj(PathCollection)],
        "legend": []
        if legend is None
        else [legend._loc, *([text.get_text(), text.get_fontsize()] for text in legend.get_texts())],
    }


def describe_figure(figure: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Return what a figure shows, and the options with which it was saved."""
    below = figure._supxlabel
    return {
        "size": np.asarray(figure.get_size_inches()),
        "title": describe_text(figure._suptitle),
        "below": [] if below is None else describe_text(below),
        "saved": {name: str(value) for name, value in options.items()},
        "axes": [describe_axes(axes) for axes in figure.axes],
    }


def saved_figures(draw: Any) -> list[dict[str, Any]]:
    """Return the descriptions of the figures that a function saves, which are not written."""
    found: list[dict[str, Any]] = []

    def save(figure: Any, *_: Any, **options: Any) -> None:
        found.append(describe_figure(figure, options))

    with ExitStack() as patches:
        patches.enter_context(mock.patch.object(Figure, "savefig", save))
        patches.enter_context(mock.patch.object(Path, "mkdir"))
        for name in ("PIL.Image.open", "longscan.tasks.pictures.write_user_file", "longscan.training.pictures.write_user_file"):
            patches.enter_context(mock.patch(name))
        draw()
    return found


def plotted_examples(task: Task) -> Any:
    """Return the description of the plot of two examples of a task."""
    return saved_figures(lambda: draw_examples(task, "ignored.png", split="test", count=2))


def inspected_example(argv: str) -> Any:
    """Return the descriptions of the pictures of an example of a small model with random weights."""
    settings = parse_settings([*argv.split(), "--model.d_model", "4", "--model.d_state", "2", "--model.backend", "eager"])
    torch.manual_seed(0)
    model = build_model(settings).eval()
    run: Any = SimpleNamespace(settings=settings, model=lambda _: model)
    return saved_figures(lambda: pictures.draw_inspection(run, "ignored", 1))


def pack_numbers(value: Any) -> Any:
    """Return nested values with every list of numbers as an array."""
    if isinstance(value, dict):
        return {name: pack_numbers(item) for name, item in value.items()}
    if isinstance(value, list):
        is_number = all(isinstance(item, int | float) and not isinstance(item, bool) for item in value)
        return np.array(value, dtype=np.float64) if value and is_number else [pack_numbers(item) for item in value]
    return value


CASES: dict[str, Any] = {
    **{f"examples {title}": lambda title=title: shown_examples(TASKS_BY_TITLE[title]) for title in SHOWN},
    **{f"plot {title}": lambda title=title: plotted_examples(TASKS_BY_TITLE[title]) for title in PLOTTED},
    **{f"inspected {title}": lambda title=title: inspected_example(INSPECTED[title]) for title in INSPECTED},
}


def compute_values(name: str) -> Any:
    """Return the recorded values of a case, as read from JSON."""
    return json.loads(json.dumps(describe(pack_numbers(CASES[name]()))))


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    return json.loads(RECORD.read_text(encoding="utf-8"))


def test_record_has_every_case(recorded: dict[str, Any]) -> None:
    assert sorted(recorded) == sorted(CASES)


@pytest.mark.parametrize("name", CASES)
def test_values_match_the_record(name: str, recorded: dict[str, Any]) -> None:
    assert not list_differences(compute_values(name), recorded[name], tolerance=TOLERANCE)


if __name__ == "__main__":
    torch.set_num_threads(1)
    lines = [f"{json.dumps(name)}: {json.dumps(compute_values(name), ensure_ascii=False)}" for name in sorted(CASES)]
    RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
