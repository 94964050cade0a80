"""Examples of a model's answers for the report of its run: wrong answers, forecasts, and what an answer depends on.

What an answer depends on is the gradient of its score times the input (Shrikumar et al. 2016, arXiv:1605.01713): to first order
the change of the score if this input were zero. For tokens the input is their embedding.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from longscan.inspection import gradient_times_input
from longscan.report.svg import thin
from longscan.tasks import Batch, Task
from longscan.tasks.base import Split
from longscan.tasks.regression import RegressionTask
from longscan.tasks.series import SeriesFile
from longscan.training.evaluate import error_quantiles, predict

MAX_EXAMPLES, MIN_EXAMPLES = 256, 16  # number of examples that are examined
MAX_STEPS = 2_000_000  # number of steps of all examples that are examined together, unless these are MIN_EXAMPLES
MAX_WRONG, MAX_RIGHT = 4, 2  # numbers of wrong and of right answers that are shown
MAX_VARIABLES = 3  # number of variables of a forecast that are shown
MAX_CHANNELS = 6  # number of channels of a series that are shown, those on which the answer depends most
MAX_UNNAMED = 64  # number of channels without names that are shown separately
MAX_TOKENS = 96  # number of tokens of a text that are shown
SEGMENTS = 120  # number of segments of time over which gradients times inputs are summed
MAX_GRADIENT_STEPS = 50_000  # number of steps of an input whose gradient is computed
BATCHES = 8  # number of batches, equally far apart in a split, from which the examples come


def find_examples(model: nn.Module, task: Task, batch_size: int, seed: int = 0) -> dict[str, Any] | None:
    """Return examples of the answers on the test split, as `longscan.report` reads them from examples.json.

    At most MAX_EXAMPLES examples are examined, fewer if they are long. Wrong answers are those with the greatest probability;
    forecasts those with the smallest, the median and the largest error. None for tasks of pairs of sequences, and of one number
    for each sequence. `standardised` is True for a user's own series, which are in standard deviations of the training series.
    """
    if task.is_pair or (isinstance(task, RegressionTask) and not task.per_step):
        return None
    was_training = model.training
    model.eval()
    try:
        batches, names = _spread_batches(task, "test", seed), _spread_names(task, "test", seed)
        if isinstance(task, RegressionTask):
            found = _find_forecasts(model, task, batches, names, batch_size, seed)
        else:
            found = _find_answers(model, task, batches, names, batch_size)
    finally:
        model.train(was_training)
    count = sum(len(batch.inputs) for batch in batches)
    scale = {"standardised": True} if isinstance(task, SeriesFile) else {}
    return {"split": "test", "n_examined": count, **scale, **found}


def _spread_steps(task: Task, split: Split) -> tuple[list[int], int]:
    """Return the steps of batches of a split that are equally far apart, and the size of these batches."""
    count = min(MAX_EXAMPLES, max(MIN_EXAMPLES, MAX_STEPS // task.length))
    rows = -(-count // BATCHES)
    available = task.num_batches(split, rows)
    steps = range(BATCHES) if available is None else dict.fromkeys(i * available // BATCHES for i in range(BATCHES))
    return list(steps), rows


def _spread_batches(task: Task, split: Split, seed: int) -> list[Batch]:
    """Return batches of a split that are equally far apart, of equal size."""
    steps, rows = _spread_steps(task, split)
    return [task.batch(split, step, rows, seed) for step in steps]


def _spread_names(task: Task, split: Split, seed: int) -> list[str]:
    """Return the names of the examples of `_spread_batches`, one after the other; none if the examples have no names."""
    steps, rows = _spread_steps(task, split)
    return [name for step in steps for name in task.example_names(split, step, rows, seed) or ()]


def _name_entry(names: list[str], row: int) -> dict[str, str]:
    """Return the entry `name` of an example by its position in the batches; nothing if the examples have no names."""
    return {"name": names[row]} if names else {}


@torch.no_grad()
def _outputs(model: nn.Module, batch: Batch, batch_size: int) -> Tensor:
    """Return the model's output on a batch, on the CPU, made in parts of `batch_size` rows."""
    device = next(model.parameters()).device
    parts = [batch.rows(first, batch_size) for first in range(0, len(batch.inputs), batch_size)]
    return torch.cat([predict(model, part.to(device)).float().cpu() for part in parts])


def _find_answers(model: nn.Module, task: Task, batches: list[Batch], names: list[str], batch_size: int) -> dict[str, Any]:
    """Return the most certain wrong answers and the least certain right ones of a classification.

    names: of the examples of all batches, in their order; empty without names.
    """
    found: list[tuple[bool, float, Batch, int]] = []
    for batch in batches:
        assert batch.targets is not None
        probabilities = _outputs(model, batch, batch_size).softmax(-1)
        targets = batch.targets.argmax(-1) if batch.targets.is_floating_point() else batch.targets
        best = probabilities.max(-1)
        is_wrong = best.indices != targets
        if task.per_step:
            scored = _scored_steps(batch, task)
            wrong_rows = (is_wrong & scored).any(1)
            certainty = torch.where(scored, best.values, torch.ones(())).amin(1)  # probability of the least certain answer
            certainty = torch.where(wrong_rows, (is_wrong & scored).sum(1) / scored.sum(1), certainty)
        else:
            wrong_rows, certainty = is_wrong, best.values
        first = len(found)
        found += [(bool(wrong_rows[i]), float(certainty[i]), batch.rows(i), first + i) for i in range(len(batch.inputs))]
    wrong = sorted((one for one in found if one[0]), key=lambda one: -one[1])
    right = sorted((one for one in found if not one[0]), key=lambda one: one[1])
    chosen = wrong[:MAX_WRONG] + right[: MAX_RIGHT + max(0, MAX_WRONG - len(wrong)) // 2]
    show = _describe_steps if task.per_step else _describe_class
    examples = [_name_entry(names, row) | show(model, task, batch) for _, _, batch, row in chosen]
    return {"kind": "classes", "wrong": len(wrong), "examples": examples}


def _scored_steps(batch: Batch, task: Task) -> Tensor:
    """Return which steps of a batch are scored, (B, L) bool."""
    if batch.loss_mask is not None:
        return batch.loss_mask
    if task.per_step and batch.valid is not None:
        return batch.valid
    return torch.ones(batch.inputs.shape[:2], dtype=torch.bool)


def _describe_class(model: nn.Module, task: Task, batch: Batch) -> dict[str, Any]:
    """Return one example with one answer: classes, probabilities, the input and what the answer depends on."""
    assert batch.targets is not None
    assert task.classes is not None
    probabilities = _outputs(model, batch, 1)[0].softmax(-1)
    target = int(batch.targets[0].argmax()) if batch.targets.is_floating_point() else int(batch.targets[0])
    choice = int(probabilities.argmax())
    return {
        "true": task.classes[target],
        "predicted": task.classes[choice],
        "probability": round(float(probabilities[choice]), 4),
        "probability_of_true": round(float(probabilities[target]), 4),
        **_describe_input(model, task, batch, lambda output: output[0, choice]),
    }


def _describe_steps(model: nn.Module, task: Task, batch: Batch) -> dict[str, Any]:
    """Return one example with answers at several steps, and what one of the wrong answers, or the last answer, depends on."""
    assert batch.targets is not None
    best = _outputs(model, batch, 1)[0].softmax(-1).max(-1)
    scored, targets = _scored_steps(batch, task)[0], batch.targets[0]
    wrong = (scored & (best.indices != targets)).nonzero()[:, 0].tolist()
    steps = scored.nonzero()[:, 0].tolist()
    focus = wrong[len(wrong) // 2] if wrong else steps[-1]
    first = max(0, min(focus - MAX_TOKENS // 2, len(targets) - MAX_TOKENS))
    shown = [step for step in steps if first <= step < first + MAX_TOKENS]
    names = _class_names(task)
    answers = [
        [step, names[int(targets[step])], names[int(best.indices[step])], round(float(best.values[step]), 3)] for step in shown
    ]
    choice = int(best.indices[focus])
    described = _describe_input(model, task, batch, lambda output: output[0, focus, choice], first)
    return {"answers": answers, "wrong": len(wrong), "scored": len(steps), "focus": focus, "first": first, **described}


def _describe_input(
    model: nn.Module, task: Task, batch: Batch, score: Callable[[Tensor], Tensor], first: int = 0
) -> dict[str, Any]:
    """Return the channels or tokens of an input and its gradient times input.

    first: the first token that is shown.
    """
    steps = batch.valid_steps(0)
    times = np.arange(int(steps.sum())) if batch.elapsed is None else batch.elapsed[0][steps].double().cumsum(0).numpy()
    products = relevance(model, batch, score)
    label = "step" if batch.elapsed is None else "time"
    described: dict[str, Any] = {"length": len(times), "time": label}
    if products is not None:
        products = products[:, steps.numpy()]
    if task.d_input is None:
        symbols = _token_names(task)
        if symbols is None:
            whole = task.describe(batch)
            described["text"] = whole.rpartition(" | ")[0] or whole
        else:
            tokens = batch.inputs[0][steps][first : first + MAX_TOKENS].tolist()
            described["tokens"] = [symbols[token] for token in tokens]
            if products is not None:
                described["token_relevance"] = _round_values(products[0, first : first + MAX_TOKENS])
        names, rows = ["tokens"], [0]
    else:
        values = batch.inputs[0][steps].double().numpy().T
        names = list(task.channel_names or (str(channel + 1) for channel in range(len(values))))
        strength = values.std(1) if products is None else np.abs(products).sum(1)
        if task.channel_names is None and len(values) > MAX_UNNAMED:  # such as the pixels of an image
            names, values = ["mean of the channels"], values.mean(0, keepdims=True)
            products = None if products is None else products.sum(0, keepdims=True)
            strength = strength[:1]
        rows = sorted(np.argsort(-strength, kind="stable")[:MAX_CHANNELS].tolist())
        described["channels"] = len(values)
        described["series"] = [{"name": names[row], **_thin_line(times, values[row])} for row in rows]
    if products is not None:
        described["relevance"] = _segments(times, products[rows]) | {"names": [names[row] for row in rows]}
    return described


def _token_names(task: Task) -> tuple[str, ...] | None:
    """Return the names of the input tokens, those of the classes if the next token is predicted, None if they have none."""
    if task.symbols is None and task.classes is not None and task.needs_causal and len(task.classes) == task.vocab_size:
        return _class_names(task)
    return task.symbols


def _class_names(task: Task) -> tuple[str, ...]:
    """Return the names of the classes; bytes of printed characters are shown as these."""
    assert task.classes is not None
    if not all(name.startswith("0x") for name in task.classes):
        return task.classes
    shown = {" ": "␣", "\n": "↵"} | {chr(code): chr(code) for code in range(33, 127)}
    return tuple(shown.get(chr(int(name, 16)), name) for name in task.classes)


def relevance(model: nn.Module, batch: Batch, score: Callable[[Tensor], Tensor]) -> np.ndarray | None:
    """Return the gradient of a score of the model's output times the input, (C, L), for a batch of one example.

    C is 1 for tokens, whose embeddings are the input. None for an input of more than MAX_GRADIENT_STEPS steps.
    """
    if batch.inputs.shape[1] > MAX_GRADIENT_STEPS:
        return None
    batch = batch.to(next(model.parameters()).device)
    products = gradient_times_input(
        model,
        batch.inputs,
        lambda output: score(output.float()),
        elapsed=batch.elapsed,
        valid=batch.valid,
        seq_idx=batch.seq_idx,
    )
    channels = products[0].float().cpu().view(batch.inputs.shape[1], -1)
    return channels.T.double().nan_to_num().numpy()


def _find_forecasts(
    model: nn.Module, task: RegressionTask, batches: list[Batch], names: list[str], batch_size: int, seed: int
) -> dict[str, Any]:
    """Return the answers with the smallest, the median and the largest error, with intervals from the validation errors.

    Of a task with `starts_at_zero` also `has_corrections`: whether the model changes the other forecast in any of the batches.
    names: of the examples of all batches, in their order; empty without names.
    """
    errors, rows, inside, has_corrections = [], [], [], False
    valid = _spread_batches(task, "valid", seed)
    masks = [batch.loss_mask for batch in (*valid, *batches) if batch.loss_mask is not None]
    steps = torch.cat(masks).any(0) if masks else None  # of the forecasts, of which an example may have missing targets
    interval = error_quantiles(model, valid, (0.1, 0.9), batch_size, steps)
    for batch in batches:
        assert batch.targets is not None
        scored = _scored_steps(batch, task)
        output = _outputs(model, batch, batch_size)
        has_corrections = has_corrections or bool(output[scored].any())
        for i in range(len(batch.inputs)):
            difference = (batch.targets[i] - output[i])[scored[i]]
            errors.append(float(difference.square().mean()))
            rows.append(batch.rows(i))
            if interval is not None:
                low, high = interval if steps is None else interval[:, scored[i][steps]]
                inside.append(float(((difference >= low) & (difference <= high)).float().mean()))
    order = np.argsort(errors)
    chosen = {"smallest": order[0], "median": order[len(order) // 2], "largest": order[-1]}
    examples = []
    for error, row in chosen.items():
        examples.append(
            {"error": error, **_name_entry(names, row), **_describe_forecast(model, task, rows[row], interval, steps)}
        )
    coverage = round(float(np.mean(inside)), 4) if inside else None
    found: dict[str, Any] = {"kind": "values", "coverage": coverage, "examples": examples}
    if task.starts_at_zero:
        found["has_corrections"] = has_corrections
    if task.starts_at_zero and not has_corrections:
        for example in examples:
            example.pop("relevance", None)  # zeros
    return found


def _describe_forecast(
    model: nn.Module, task: RegressionTask, batch: Batch, interval: Tensor | None, forecast: Tensor | None
) -> dict[str, Any]:
    """Return one example with numbers as answers: input, truth and answer of some variables.

    Also what the last answer depends on. forecast: (L,) bool, the steps of the interval, some of which may not be scored in this
    example; None if they are the scored ones.
    """
    assert batch.targets is not None
    scored = _scored_steps(batch, task)[0]
    output = _outputs(model, batch, 1)
    forecast = scored if forecast is None else forecast
    steps = scored.nonzero()[:, 0]
    times = (steps + task.target_offset).numpy()
    truth, answer = (task.in_units(part, batch)[0][scored].double().numpy() for part in (batch.targets, output))
    ends: list[np.ndarray] = []  # ends of the interval
    for end in () if interval is None else interval:
        shifted = output.clone()
        shifted[0, forecast] += end.float()
        ends.append(task.in_units(shifted, batch)[0][scored].double().numpy())
    names = list(task.channel_names or ())
    is_input = batch.valid_steps(0) & (~forecast if task.target_offset == 0 and batch.loss_mask is not None else True)
    past: np.ndarray | None = None
    if set(task.variables) <= set(names):
        inputs = batch.inputs[..., [names.index(name) for name in task.variables]]
        past = task.in_units(inputs, batch)[0][is_input].double().numpy()
    variables = []
    for column, name in enumerate(task.variables[:MAX_VARIABLES]):
        variable: dict[str, Any] = {"name": name, "known": {"times": [], "values": []}}
        if past is not None:
            known_times = is_input.nonzero()[:, 0].numpy()
            recent = known_times >= known_times[-1] - 3 * len(times)  # a long context would leave no room for the forecast
            variable["known"] = _thin_line(known_times[recent], past[recent, column])
        variable |= {"truth": _thin_line(times, truth[:, column]), "answer": _thin_line(times, answer[:, column])}
        if ends:
            shown = slice(None, None, max(1, len(times) // 200))
            low, high = (_round_values(end[shown, column]) for end in ends)
            variable["interval"] = {"times": times[shown].tolist(), "low": low, "high": high}
        variables.append(variable)
    focus = int(steps[-1])
    described = _describe_input(model, task, batch, lambda given: given[0, focus].sum())
    described.pop("series", None)
    return {"variables": variables, "count": len(task.variables), **described}


def _thin_line(times: np.ndarray, values: np.ndarray) -> dict[str, list[float]]:
    """Return a line with few points as {"times": [...], "values": [...]}, see `longscan.report.svg.thin`."""
    x, y = thin(np.asarray(times, float), values, 400)
    return {"times": _round_values(x), "values": _round_values(y)}


def _round_values(values: np.ndarray) -> list[float]:
    """Return numbers rounded to six significant digits; NaN becomes 0."""
    return [float(f"{value:.6g}") for value in np.nan_to_num(values).tolist()]


def _segments(times: np.ndarray, products: np.ndarray) -> dict[str, Any]:
    """Return the sums of gradients times inputs (C, L) over at most SEGMENTS segments of time, and the middles of these."""
    parts = [part for part in np.array_split(np.arange(len(times)), min(SEGMENTS, len(times))) if len(part)]
    return {
        "times": _round_values(np.array([times[part].mean() for part in parts])),
        "values": [_round_values(np.array([row[part].sum() for part in parts])) for row in products],
    }
