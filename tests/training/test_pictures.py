"""Contents of the pictures of `longscan inspect`: input, gradients, cleared states, attention, states and eigenvalues."""

from pathlib import Path
from textwrap import wrap
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from longscan.inspection import InspectedLayer, ablate_state, gradient_times_input, inspect, time_scales
from longscan.training import parse_settings
from longscan.training import pictures as module
from longscan.training.batches import pad_batch
from longscan.training.pictures import draw_inspection, find_example
from longscan.training.run import build_model

SMALL = ["--model.d_model", "4", "--model.d_state", "2"]
Drawn = tuple[Any, Any, dict[str, Any]]


@pytest.fixture
def draw(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that makes a model of a task, and returns model, task and figures of an example by file name."""

    def figures(row: int, *argv: str) -> Drawn:
        settings = parse_settings([*argv, *SMALL])
        torch.manual_seed(1)
        model = build_model(settings).eval()
        drawn: dict[str, Any] = {}
        monkeypatch.setattr(module, "_save", lambda figure, path: drawn.setdefault(path.name, figure) and path)
        run: Any = SimpleNamespace(settings=settings, model=lambda which: model)  # noqa: ARG005
        paths = draw_inspection(run, Path("ignored"), row)
        assert [path.name for path in paths] == list(drawn)
        return model, settings.task, drawn

    monkeypatch.setattr(Path, "mkdir", lambda *_, **__: None)
    return figures


def lines_of(axes: Any) -> list[tuple[list[float], list[float]]]:
    """Return abscissae and ordinates of the lines of axes."""
    return [(np.asarray(line.get_xdata()).tolist(), np.asarray(line.get_ydata()).tolist()) for line in axes.lines]


PARITY = ("--task", "parity", "--model.spec", "s4d lstm", "--task.eval_lengths", "[9, 12]", "--task.test_size", "4")


def test_tokens_gradients_and_cleared_states(draw: Any) -> None:
    model, task, drawn = draw(2, *PARITY)
    example = find_example(model, task, "test", 2, 0)
    tokens = example.inputs[0].tolist()
    figure = drawn["test_2.png"]
    assert figure.get_suptitle() == "parity, test example 2"
    assert figure.get_size_inches().tolist() == pytest.approx([9, 7.8])
    above, middle, below = figure.axes
    assert lines_of(above) == [(list(range(len(tokens))), tokens)]
    assert (above.get_ylabel(), below.get_xlabel()) == ("token", "step")
    assert example.label == (str(example.column) if task.classes is None else task.classes[example.column])
    assert [text.get_text() for text in below.get_xticklabels()] == [task.symbols[token] for token in tokens]
    assert middle.get_title(loc="left") == f"gradient of the score of {example.label!r} times the input"
    products = gradient_times_input(model, example.inputs, lambda y: y[0, example.step, example.column])[0].numpy()
    positive, negative = (patch.get_data() for patch in middle.patches)
    np.testing.assert_allclose(positive.values, products.clip(min=0), atol=1e-6)
    np.testing.assert_allclose(negative.values, products.clip(max=0), atol=1e-6)
    np.testing.assert_allclose(positive.edges, np.arange(len(tokens) + 1) - 0.5)
    assert below.get_title(loc="left").startswith(f"probability of {example.label!r}, if")
    unchanged, *blocks = below.lines
    with torch.no_grad():
        expected = model(example.inputs)[0, example.step].softmax(-1)[example.column]
        assert unchanged.get_ydata()[0] == pytest.approx(float(expected))
        assert [line.get_label() for line in blocks] == ["blocks.0", "blocks.1"]
        for index, line in enumerate(blocks):
            assert list(line.get_xdata()) == list(range(1, example.step + 1)), "all of these few steps"
            for step, value in zip(line.get_xdata(), line.get_ydata(), strict=True):
                cleared = ablate_state(model, example.inputs, step, block=index)
                assert value == pytest.approx(float(cleared[0, example.step - step].softmax(-1)[example.column]))


def test_long_sequences_are_cleared_at_few_steps(draw: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_NAMED", 50)
    _, _, drawn = draw(0, *PARITY[:5], "[80, 80]", "--task.test_size", "1")
    steps = list(drawn["test_0.png"].axes[2].lines[1].get_xdata())
    assert (len(steps), steps[0]) == (module.ABLATIONS, 1)
    assert set(np.diff(steps)) <= {3, 4}
    assert len(drawn["test_0.png"].axes[2].get_xticklabels()) < 20, "numbers of steps, no names of tokens"


def test_channels_and_models_without_states(draw: Any) -> None:
    """Of the pendulum's pixels the six that change most are shown; a model of both directions has no states to clear."""
    sizes = [f"--task.{name}_size=2" for name in ("train", "valid", "test")]
    model, task, drawn = draw(1, "--task", "pendulum", "--model.spec", "bidirectional", *sizes)
    example = find_example(model, task, "test", 1, 0)
    figure = drawn["test_1.png"]
    assert figure.get_size_inches().tolist() == pytest.approx([9, 5.2])
    above, below = figure.axes
    changes = example.inputs[0].std(0, correction=0)
    largest = sorted(changes.argsort(descending=True)[:6].tolist())
    assert [line.get_label() for line in above.lines] == [f"channel {channel + 1}" for channel in largest]
    for line, channel in zip(above.lines, largest, strict=True):
        assert torch.equal(torch.as_tensor(line.get_ydata()), example.inputs[0, :, channel])
    assert above.get_ylabel() == f"6 of {example.inputs.shape[2]} channels"
    assert below.get_title(loc="left") == "gradient of the answer times the input"
    products = gradient_times_input(model, example.inputs, lambda y: y[0, example.step, 0], elapsed=example.elapsed)[0].sum(-1)
    np.testing.assert_allclose(sum(patch.get_data().values for patch in below.patches), products.numpy(), atol=1e-5)


def test_panels_of_a_layer(draw: Any) -> None:
    model, task, drawn = draw(0, *PARITY)
    example = find_example(model, task, "test", 0, 0)
    length = example.inputs.shape[1]
    call = inspect(model, example.inputs)["blocks.0.block.layer"]
    figure = drawn["test_0_blocks_0_block_layer.png"]
    assert figure.get_suptitle() == "parity, test example 0: blocks.0.block.layer (S4D)"
    assert figure.get_size_inches().tolist() == pytest.approx([11, 8.4])
    panels = {axes.get_title(loc="left"): axes for axes in figure.axes}
    attention, states = panels["effective attention"].images[0], panels["state over time"].images[0]
    weights = call.attention_map(64).double()
    largest = float(weights.max())
    np.testing.assert_allclose(attention.get_array(), weights.clamp(min=largest / 1000), rtol=1e-5)
    assert (attention.norm.vmin, attention.norm.vmax) == pytest.approx((largest / 1000, largest))
    assert attention.get_extent() == [0, length, length, 0]
    parts = ([part.flatten() for part in state if part.is_floating_point()] for _, state in call.states())
    found = torch.stack([torch.cat(numbers) for numbers in parts], 1)
    order = found.std(1, correction=0).argsort(descending=True)[:48]
    scaled = found[order] / found[order].abs().amax(1, keepdim=True).clamp(min=1e-30)
    np.testing.assert_allclose(states.get_array(), scaled.clamp(-1, 1), rtol=1e-5, atol=1e-6)
    assert states.get_extent() == [0, length, len(order), 0]
    assert panels["state over time"].get_ylabel() == f"component ({len(order)} of {len(found)})"
    values = call.eigenvalues(length // 2)
    points = panels[f"eigenvalues at step {length // 2}"]
    np.testing.assert_allclose(points.lines[0].get_xdata(), values.real.numpy())
    np.testing.assert_allclose(points.lines[0].get_ydata(), values.imag.numpy())
    assert points.get_xlim() == points.get_ylim() == (-1.1, 1.1)
    assert points.patches[0].radius == 1
    histogram = panels["time scales of the eigenvalues"]
    assert sum(patch.get_height() for patch in histogram.patches) == len(time_scales(values))
    assert lines_of(histogram)[0][0] == [length, length]


def test_a_layer_without_linear_state_says_why_panels_are_missing(draw: Any) -> None:
    _, _, drawn = draw(0, *PARITY)
    figure = next(figure for name, figure in drawn.items() if "blocks_1" in name)
    assert [axes.get_title(loc="left") for axes in figure.axes][:1] == ["state over time"]
    assert figure.get_size_inches().tolist() == pytest.approx([5.5, 4.2])
    text = figure.get_supxlabel()
    assert text.count("LSTM") == 1, "the same reason of two panels is there once"
    assert max(len(line) for line in text.splitlines()) <= 70


def test_a_layer_without_panels_has_a_picture_with_the_reasons(draw: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ValueError("nothing to show")

    for name in ("attention_map", "states", "eigenvalues"):
        monkeypatch.setattr(InspectedLayer, name, fail)
    _, _, drawn = draw(0, *PARITY)
    figure = next(figure for name, figure in drawn.items() if "blocks_0" in name)
    assert not figure.axes
    assert figure.get_size_inches().tolist() == pytest.approx([5.5, 4.2])
    assert figure.get_supxlabel() == "nothing to show"


def test_states_of_long_sequences_and_growing_states(monkeypatch: pytest.MonkeyPatch) -> None:
    """At most MOMENTS moments; a state that grows has no picture."""
    model = build_model(parse_settings(["--task", "parity", "--model.spec", "gru", *SMALL])).eval()
    (call,) = inspect(model, torch.zeros(1, 10, dtype=torch.int64)).values()
    monkeypatch.setattr(module, "MOMENTS", 4)
    assert module._states(call).shape == (4, 4), "after 3, 6, 9 and 10 steps"
    monkeypatch.setattr(InspectedLayer, "states", lambda *_, **__: iter([(1, (torch.ones(1, 2),)), (2, (torch.ones(1, 3),))]))
    with pytest.raises(ValueError, match="the state must have the same size at every step, got GRU, whose state grows"):
        module._states(call)


def test_eigenvalues_that_do_not_decay(draw: Any) -> None:
    """LRU-like eigenvalues of modulus 1 have no finite time scale and are counted in words."""
    from matplotlib.figure import Figure

    axes = Figure().subplots()
    call: Any = SimpleNamespace(x=torch.zeros(1, 7, 2))
    module._draw_time_scales(axes, call, torch.tensor([1, -1, 1j], dtype=torch.complex128))
    assert [text.get_text() for text in axes.texts] == ["3 of 3 do not decay"]
    assert not axes.patches
    axes = Figure().subplots()
    module._draw_time_scales(axes, call, torch.tensor([1, 0.5, 0, 2], dtype=torch.complex128))
    assert [text.get_text() for text in axes.texts] == ["1 of 4 do not decay"]
    assert sum(patch.get_height() for patch in axes.patches) == 1, "0.5; the state of 0 is gone after a step, that of 2 grows"


def test_examples_are_numbers_of_the_split() -> None:
    settings = parse_settings([*PARITY, *SMALL])
    model = build_model(settings).eval()
    with pytest.raises(ValueError, match="`--row` must be from 0 to 3, got 4"):
        find_example(model, settings.task, "test", 4, 0)
    with pytest.raises(ValueError, match="`--row` must be from 0, got -1"):
        find_example(model, settings.task, "train", -1, 0)
    with pytest.raises(ValueError, match="split"):
        find_example(model, settings.task, "other", 0, 0)  # type: ignore[arg-type]
    assert find_example(model, settings.task, "test", 3, 0).inputs.shape[0] == 1


@pytest.mark.parametrize("padding", ["masked", "read"])
def test_steps_of_padding_are_shown_where_the_model_reads_them(padding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = ["--task.longer_than", "0", "--task.shorter_than", "20", "--task.train_size", "2", "--task.valid_size", "2"]
    settings = parse_settings(["--task", "listops", *sizes, "--task.test_size", "2", "--model.padding", padding, *SMALL])
    batch = settings.task.batch("train", 0, 1, 0)
    steps = batch.inputs.shape[1]
    monkeypatch.setattr(type(settings.task), "batch", lambda *_: pad_batch(batch, steps + 3))
    example = find_example(build_model(settings).eval(), settings.task, "train", 0, 0)
    assert example.inputs.shape == (1, steps + (3 if padding == "read" else 0))


def test_reasons_for_missing_panels_are_wrapped_at_the_width_of_the_figure(draw: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    reason = "word " * 60

    def fail(*_: Any) -> None:
        raise ValueError(reason)

    monkeypatch.setattr(InspectedLayer, "attention_map", fail)
    _, _, drawn = draw(0, *PARITY)
    two, one = (next(figure for name, figure in drawn.items() if block in name) for block in ("blocks_0", "blocks_1"))
    assert two.get_supxlabel() == "\n".join(wrap(reason, 140))
    assert one.get_supxlabel().startswith("\n".join(wrap(reason, 70)))
