"""Contents of plots of examples: series, targets, images, texts, events and forecasts."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from longscan.tasks import TASKS, Batch
from longscan.tasks import pictures as module
from longscan.tasks.pictures import draw_examples
from made_up import labelled_series, table_to_forecast


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the list of the figures that are saved, which are not written."""
    saved: list[Any] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: saved.append(figure))
    return saved


def plot(task: Any, batch: Batch, row: int = 0) -> Any:
    """Return the axes with the plot of an example."""
    figure = Figure()
    module._PLOTTERS[task.plot_kind](figure.add_subplot(), task, batch, row)
    return figure.axes[0]


@pytest.mark.parametrize(("count", "size"), [(1, (12, 3.8)), (2, (8.4, 3.8)), (4, (12.6, 7.0))])
def test_examples_are_in_rows_of_three(figures: list[Any], tmp_path: Path, count: int, size: tuple[float, float]) -> None:
    task = TASKS["fitzhugh_nagumo"](train_size=5, valid_size=5, test_size=5)
    assert (
        draw_examples(task, tmp_path / "new" / "one" / "a.png", split="valid", count=count) == tmp_path / "new" / "one" / "a.png"
    )
    (figure,) = figures
    assert figure.get_suptitle() == "fitzhugh_nagumo, valid"
    assert figure.get_size_inches().tolist() == pytest.approx(size)
    assert len(figure.axes) == count
    assert (tmp_path / "new" / "one").is_dir()


def test_examples_of_an_own_file_have_its_name_and_theirs(figures: list[Any], tmp_path: Path) -> None:
    task = TASKS["series_classes"](**labelled_series(tmp_path))
    draw_examples(task, tmp_path / "a.png", count=2)
    assert figures[0].get_suptitle() == "units.csv (series_classes), train, standardised by the training series"
    names = task.example_names("train", 0, 2)
    answers = [task.describe(task.batch("train", 0, 2), row).rpartition(" | ")[2] for row in range(2)]
    assert [axes.get_title() for axes in figures[0].axes] == [f"{a} · {n}" for a, n in zip(answers, names, strict=True)]
    task = TASKS["series_forecast"](**table_to_forecast(tmp_path))
    draw_examples(task, tmp_path / "b.png", count=1)
    (name,) = task.example_names("train", 0, 1)
    assert figures[1].axes[0].get_title() == f"dotted: the steps to forecast, from {name}"


def test_texts_are_in_one_column_and_cut(figures: list[Any], tmp_path: Path) -> None:
    draw_examples(TASKS["parity"](valid_size=4), tmp_path / "a.png", split="valid", count=9)
    assert figures[0].get_size_inches().tolist() == pytest.approx([12, 1.2 * 4 + 0.6])
    assert len(figures[0].axes) == 4, "no more than the split has"
    for length in (259, 260):
        word = "".join(chr(97 + index % 26) for index in range(length))
        task: Any = SimpleNamespace(plot_kind="text", describe=lambda *_, word=word: f"{word} | {word}")
        question, answer = (text.get_text() for text in plot(task, Batch(torch.zeros(1, 1))).texts)
        shown = word if length < 260 else f"{word[:170]} … {word[-80:]}"
        assert question == "\n".join(shown[start : start + 130] for start in range(0, len(shown), 130))
        assert answer == f"| {word[:130]}"


def series_task(**values: Any) -> Any:
    """Return a task of series with the attributes that a plot reads."""
    given = {"plot_kind": "series", "channel_names": None, "target_offset": 0, "describe": lambda _, row: f"x | class {row}"}
    return SimpleNamespace(**(given | values))


def test_series_with_a_class() -> None:
    """At most six channels, without padding, over elapsed times or steps; the first plot names the channels."""
    inputs, valid = torch.randn(2, 5, 8), torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    task = series_task(channel_names=tuple("abcdefgh"))
    axes = plot(task, Batch(inputs, torch.tensor([0, 1]), valid=valid), 1)
    assert [line.get_color() for line in axes.lines] == [f"C{number}" for number in range(6)]
    for channel, line in enumerate(axes.lines):
        assert list(line.get_xdata()) == [0, 1, 2]
        np.testing.assert_array_equal(line.get_ydata(), inputs[1, :3, channel])
    assert (axes.get_title(), axes.get_xlabel(), axes.get_legend()) == ("class 1", "step", None)
    elapsed = torch.tensor([[1.0, 2, 0.5, 1, 1]]).repeat(2, 1)
    axes = plot(task, Batch(inputs, torch.tensor([0, 1]), valid=valid, elapsed=elapsed), 0)
    assert [text.get_text() for text in axes.get_legend().get_texts()] == list("abcdef")
    assert list(axes.lines[0].get_xdata()) == [1, 3, 3.5, 4.5, 5.5]
    assert axes.get_xlabel() == "time"


@pytest.mark.parametrize(("masked", "offset"), [(False, 0), (True, 2)])
def test_series_with_targets_at_steps(masked: bool, offset: int) -> None:
    inputs, targets = torch.randn(1, 5, 1), torch.randn(1, 5, 7)
    mask = torch.tensor([[False, True, True, False, True]])
    axes = plot(series_task(target_offset=offset), Batch(inputs, targets, loss_mask=mask if masked else None))
    _, *dotted = axes.lines
    assert len(dotted) == 6
    steps = [1, 2, 4] if masked else [0, 1, 2, 3, 4]
    for channel, line in enumerate(dotted):
        assert line.get_linestyle() == ":"
        assert list(line.get_xdata()) == [step + offset for step in steps]
        np.testing.assert_array_equal(line.get_ydata(), targets[0, steps, channel])
    assert axes.get_title() == "inputs and targets (dotted)"


@pytest.mark.parametrize("channels", [1, 3])
def test_an_image_with_a_pixel_at_each_step(channels: int) -> None:
    inputs = torch.rand(1, 16, channels)
    shown = plot(series_task(plot_kind="image"), Batch(inputs)).images[0].get_array()
    expected = (inputs - inputs.min()) / (inputs.max() - inputs.min() + 1e-9)
    np.testing.assert_allclose(shown, expected.view(4, 4, channels).squeeze(-1), rtol=1e-5)


def test_an_image_at_each_step_and_its_time() -> None:
    """Eight images, evenly spaced, next to each other."""
    inputs = torch.rand(1, 15, 10)
    shown = plot(series_task(plot_kind="image"), Batch(inputs)).images[0].get_array()
    chosen = inputs[0, [0, 2, 4, 6, 8, 10, 12, 14], :9].view(8, 3, 3)
    expected = torch.cat(list(chosen), 1)
    np.testing.assert_allclose(shown, (expected - expected.min()) / (expected.max() - expected.min()), rtol=1e-5)


@pytest.mark.parametrize("has_rows", [True, False])
def test_events_are_points_of_two_colours(has_rows: bool) -> None:
    """The points are in space and time, or over time alone if all events are in one row."""
    x, y, polarity = torch.tensor([3, 1, 2]), torch.tensor([4, 5, 6]) * has_rows, torch.tensor([0, 1, 1])
    valid = torch.tensor([[True, True, True, False]])
    task = series_task(plot_kind="events", event_coordinates=lambda _: (x, y, polarity))
    axes = plot(task, Batch(torch.zeros(1, 4, dtype=torch.int64), valid=valid, elapsed=torch.tensor([[1.0, 2, 4, 9]])))
    (points,) = axes.collections
    assert axes.name == ("3d" if has_rows else "rectilinear")
    places = np.stack(points._offsets3d) if has_rows else points.get_offsets().T
    assert places.tolist() == [[1, 3, 7], [3, 1, 2], *([[-4, -5, -6]] if has_rows else [])]
    colours = points.get_facecolor()
    assert len(np.unique(colours[:, :3], axis=0)) == 2
    assert axes.get_xlabel() == "ms"
