"""Pictures of what the model of a run does with one example, drawn by matplotlib from `longscan.inspection`."""

import io
from pathlib import Path
from textwrap import wrap
from typing import Any, NamedTuple

import torch
from torch import Tensor

from longscan._errors import SettingError, setting_error
from longscan._files import write_user_file
from longscan.inspection import InspectedLayer, ablate_state, gradient_times_input, inspect, time_scales
from longscan.layers.state import state_tensors
from longscan.models import SequenceModel
from longscan.tasks import Batch, Task
from longscan.tasks.base import Split
from longscan.training.run import Run, task_title

SEGMENTS = 64  # number of segments of the sequence in rows and columns of an attention map
MOMENTS = 200  # number of steps at which the state is shown
RANGE = 1000  # ratio of the largest to the smallest value that the colours of an attention map distinguish
COMPONENTS = 48  # number of components of the state that are shown, those that change most
ABLATIONS = 24  # steps after which the states are cleared
MAX_CHANNELS = 6  # number of channels of a series that are shown
MAX_NAMED = 60  # tokens that are shown by their names
SIZE = 110  # dots per inch
COLOURS = 128  # number of colours of a picture
_OUTSIDE: dict[str, Any] = {"fontsize": 7, "loc": "upper left", "bbox_to_anchor": (1, 1)}  # legends are right of axes


class Example(NamedTuple):
    """One example without padding, and one answer of the model.

    Attributes:
        inputs: tokens (1, L) or vectors (1, L, C).
        elapsed: (1, L); None for 1 at every step.
        step: the step of the answer; None for the answer to the whole sequence.
        column: the column of the output that is the answer: the class with the highest score, or the first number.
        label: the name of the class; None for a number.
    """

    inputs: Tensor
    elapsed: Tensor | None
    step: int | None
    column: int
    label: str | None


@torch.no_grad()
def draw_inspection(run: Run, folder: str | Path, row: int, *, split: Split = "test", which: str = "selected") -> list[Path]:
    """Draw pictures of one example of a run into PNG files and return their paths.

    The first one, test_N.png, shows the input, its gradient times input, and the answer after the state of each block was
    cleared. One more for each layer, test_N_LAYER.png, shows its effective attention, its state over time, and its eigenvalues
    with their time scales at the middle step.

    Args:
        run: the run, whose model is read from a checkpoint.
        folder: where to write; created if necessary.
        row: number of the example in the split, from 0.
        split: part of the task's data.
        which: the checkpoint.

    Raises SettingError if there is no such example, or if an example is a pair of sequences or a row of several.
    """
    from matplotlib.figure import Figure

    model, task = run.model(which), run.settings.task
    if not isinstance(model, SequenceModel):
        raise SettingError(f"the model must be a SequenceModel, got {type(model).__name__}, which compares two sequences")
    example = find_example(model, task, split, row, run.settings.data_seed)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    names = task.example_names(split, row, 1, run.settings.data_seed)
    title = f"{task_title(run.settings)}, {split} example {row}{f' ({names[0]})' if names else ''}"
    can_ablate = model.streaming and not any(block.changes_length for block in model.stack)
    count = 3 if can_ablate else 2
    figure = Figure(figsize=(9, 2.6 * count), layout="constrained")
    figure.suptitle(title, fontsize=11)
    axes = figure.subplots(count, 1, sharex=True)
    products = gradient_times_input(model, example.inputs, lambda y: _answer(y, example, 0), elapsed=example.elapsed)[0]
    _draw_input(axes[0], example.inputs[0], list(task.channel_names or ()))
    _draw_products(axes[1], products, example)
    if can_ablate:
        _draw_ablations(axes[2], model, task, example)
    if example.inputs.ndim == 2 and task.symbols is not None and example.inputs.shape[1] <= MAX_NAMED:
        tokens = [task.symbols[token] for token in example.inputs[0].tolist()]
        axes[-1].set_xticks(range(len(tokens)), tokens, fontsize=8, family="monospace", parse_math=False)
    axes[-1].set_xlabel("step")
    paths = [_save(figure, folder / f"{split}_{row}.png")]
    for name, call in inspect(model, example.inputs, elapsed=example.elapsed).items():
        drawn = _draw_layer(call, f"{title}: {name} ({type(call.layer).__name__})")
        paths.append(_save(drawn, folder / f"{split}_{row}_{name.replace('.', '_')}.png"))
    return paths


def find_example(model: SequenceModel, task: Task, split: Split, row: int, seed: int) -> Example:
    """Return an example of a split, cut to its valid steps, and the model's answer to it, or its last one that is scored.

    Raises SettingError if there is no such example, or if an example is a row of several sequences.
    """
    if split not in task.splits:
        raise setting_error("split", split, f"one of {', '.join(task.splits)}")
    count = task.num_batches(split, 1)
    if row < 0 or (count is not None and row >= count):
        last = "" if count is None else f" to {count - 1}"
        raise SettingError(f"`--row` must be from 0{last}, got {row}")
    batch = task.batch(split, row, 1, seed)
    if batch.seq_idx is not None:
        raise SettingError(f"the examples of the task must be single sequences, got rows of several from {task.name}")
    valid = batch.valid_steps(0) if model.padding == "masked" else torch.ones(batch.inputs.shape[1], dtype=torch.bool)
    inputs, elapsed = batch.inputs[:, valid], None if batch.elapsed is None else batch.elapsed[:, valid]
    output = model(inputs, elapsed=elapsed)[0]
    step = None
    if task.per_step:
        scored = _scored_steps(batch)[valid].nonzero()[:, 0]
        step = int(scored[-1])
        output = output[step]
    if task.num_classes is None:
        return Example(inputs, elapsed, step, 0, None)
    column = int(output.argmax())
    return Example(inputs, elapsed, step, column, str(column) if task.classes is None else task.classes[column])


def _save(figure: Any, path: Path) -> Path:
    """Write a figure as a PNG file with at most COLOURS colours, a third of the size of one with all, and return its path."""
    from PIL import Image

    content, smaller = io.BytesIO(), io.BytesIO()
    figure.savefig(content, dpi=SIZE, format="png")
    Image.open(content).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(smaller, "png", optimize=True)
    return write_user_file(path, smaller.getvalue())


def _scored_steps(batch: Batch) -> Tensor:
    """Return which steps of the first row are scored, (L,) bool."""
    return batch.valid_steps(0) if batch.loss_mask is None else batch.loss_mask[0]


def _answer(output: Tensor, example: Example, first: int) -> Tensor:
    """Return the score of the answer in an output that begins with step `first`."""
    return output[0, example.column] if example.step is None else output[0, example.step - first, example.column]


def _draw_input(axes: Any, inputs: Tensor, names: list[str]) -> None:
    axes.set_title("input", fontsize=10, loc="left")
    if inputs.ndim == 1:
        axes.plot(inputs.numpy(), "o", ms=3, color="C0")
        axes.set_ylabel("token")
        axes.yaxis.get_major_locator().set_params(integer=True)
        return
    changes = inputs.float().std(0, correction=0)
    shown = sorted(changes.argsort(descending=True)[:MAX_CHANNELS].tolist())
    for channel in shown:
        axes.plot(inputs[:, channel].numpy(), lw=1, label=names[channel] if names else f"channel {channel + 1}")
    axes.legend(**_OUTSIDE)
    if len(shown) < inputs.shape[1]:
        axes.set_ylabel(f"{len(shown)} of {inputs.shape[1]} channels")


def _draw_products(axes: Any, products: Tensor, example: Example) -> None:
    total = (products if products.ndim == 1 else products.sum(-1)).numpy()
    answer = "answer" if example.label is None else f"score of {example.label!r}"
    axes.set_title(f"gradient of the {answer} times the input", fontsize=10, loc="left", parse_math=False)
    edges = torch.arange(len(total) + 1).numpy() - 0.5
    axes.stairs(total.clip(min=0), edges, fill=True, color="C0")
    axes.stairs(total.clip(max=0), edges, fill=True, color="C1")
    axes.axhline(0, color="0.5", lw=0.6)


def _draw_ablations(axes: Any, model: SequenceModel, task: Task, example: Example) -> None:
    def score(output: Tensor, first: int) -> float:
        found = output if example.step is None else output[:, example.step - first]
        found = found[0] if task.num_classes is None else found[0].softmax(-1)
        return float(found[example.column])

    end = example.inputs.shape[1] - 1 if example.step is None else example.step
    steps = sorted({1 + index * (end - 1) // (ABLATIONS - 1) for index in range(ABLATIONS)}) if end > 0 else []
    answer = "answer" if example.label is None else f"probability of {example.label!r}"
    axes.set_title(f"{answer}, if the state of a block is cleared after a step", fontsize=10, loc="left", parse_math=False)
    axes.axhline(score(model(example.inputs, elapsed=example.elapsed), 0), color="0.5", lw=1, ls="--", label="unchanged")
    for index in range(len(model.stack)):
        values = [score(ablate_state(model, example.inputs, step, block=index, elapsed=example.elapsed), step) for step in steps]
        axes.plot(steps, values, "o-", ms=3, lw=1, label=f"blocks.{index}")
    axes.ticklabel_format(axis="y", useOffset=False)  # a number above the axis would cover the title
    axes.legend(**_OUTSIDE)


def _draw_layer(call: InspectedLayer, title: str) -> Any:
    """Return a figure of up to four panels; a line below them says why a layer does not have the others."""
    from matplotlib.figure import Figure

    middle = call.x.shape[1] // 2
    panels: Any = (
        (lambda: call.attention_map(SEGMENTS), (_draw_attention,)),
        (lambda: _states(call), (_draw_states,)),
        (lambda: call.eigenvalues(middle), (_draw_eigenvalues, _draw_time_scales)),
    )
    found, missing = [], []
    for compute, drawings in panels:
        try:
            values = compute()
            found += [(draw, values) for draw in drawings]
        except (TypeError, ValueError) as error:
            missing.append(str(error))
    columns = min(2, len(found)) or 1
    rows = -(-len(found) // columns) or 1
    figure = Figure(figsize=(5.5 * columns, 4.2 * rows), layout="constrained")
    figure.suptitle(title, fontsize=11)
    for index, (draw, values) in enumerate(found):
        draw(figure.add_subplot(rows, columns, index + 1), call, values)
    if missing:
        lines = (line for reason in dict.fromkeys(missing) for line in wrap(reason, 70 * columns))
        figure.supxlabel("\n".join(lines), fontsize=8)
    return figure


def _draw_attention(axes: Any, call: InspectedLayer, weights: Tensor) -> None:
    from matplotlib.colors import LogNorm

    length, largest = call.x.shape[1], max(float(weights.max()), torch.finfo(torch.float32).tiny)
    shown = weights.double().masked_fill(weights <= largest / RANGE, largest / RANGE).numpy()
    scale = LogNorm(largest / RANGE, largest)
    image = axes.imshow(shown, cmap="Blues", norm=scale, aspect="auto", extent=(0, length, length, 0), interpolation="nearest")
    axes.figure.colorbar(image, ax=axes, label="norm of the contribution")
    axes.set_title("effective attention", fontsize=10, loc="left")
    axes.set(xlabel="input step", ylabel="output step")


def _states(call: InspectedLayer) -> Tensor:
    """Return the numbers of the state (S, T) at up to MOMENTS steps. Raises ValueError if their number changes."""
    rows: list[Tensor] = []
    for _, state in call.states(every=-(-call.x.shape[1] // MOMENTS)):
        rows.append(torch.cat([part.flatten().float() for part in state_tensors(state) if part.is_floating_point()]))
        if len(rows[0]) != len(rows[-1]):
            kind = type(call.layer).__name__
            raise ValueError(f"the state must have the same size at every step, got {kind}, whose state grows")
    return torch.stack(rows, 1)


def _draw_states(axes: Any, call: InspectedLayer, states: Tensor) -> None:
    order = states.std(1, correction=0).argsort(descending=True)[:COMPONENTS]
    chosen = states[order] / states[order].abs().amax(1, keepdim=True).clamp(min=torch.finfo(states.dtype).tiny)
    extent = (0, call.x.shape[1], len(chosen), 0)
    image = axes.imshow(chosen.numpy(), cmap="RdBu_r", vmin=-1, vmax=1, aspect="auto", extent=extent, interpolation="nearest")
    axes.figure.colorbar(image, ax=axes, label="relative to the component's largest value")
    axes.set_title("state over time", fontsize=10, loc="left")
    axes.set(xlabel="step", ylabel=f"component ({len(chosen)} of {len(states)})")


def _draw_eigenvalues(axes: Any, call: InspectedLayer, values: Tensor) -> None:
    from matplotlib.patches import Circle

    axes.add_patch(Circle((0, 0), 1, fill=False, color="0.6", lw=1))
    axes.plot(values.real.numpy(), values.imag.numpy(), ".", ms=4, alpha=0.5, color="C0")
    axes.set_box_aspect(1)
    axes.set_title(f"eigenvalues at step {call.x.shape[1] // 2}", fontsize=10, loc="left")
    axes.set(xlim=(-1.1, 1.1), ylim=(-1.1, 1.1), xlabel="real part", ylabel="imaginary part")


def _draw_time_scales(axes: Any, call: InspectedLayer, values: Tensor) -> None:
    scales = time_scales(values)
    finite, endless = scales[scales.isfinite() & (scales > 0)], int((scales == torch.inf).sum())
    axes.set_title("time scales of the eigenvalues", fontsize=10, loc="left")
    if endless:
        text = f"{endless} of {len(scales)} do not decay"
        axes.text(0.98, 0.97, text, ha="right", va="top", transform=axes.transAxes, fontsize=9)
    if not len(finite):
        axes.set(xticks=[], yticks=[])
        return
    low, high = finite.min().log10() - 0.05, finite.max().log10() + 0.05
    axes.hist(finite.numpy(), bins=torch.logspace(float(low), float(high), 40).numpy(), color="C0")
    axes.axvline(call.x.shape[1], color="0.5", lw=1, ls="--", label="length of the sequence")
    axes.legend(fontsize=7, loc="upper left")
    axes.set(xscale="log", xlabel="steps until a state has decayed to 1/e", ylabel="number of eigenvalues")
