"""Padded steps of film reviews and list operations change no logits, no loss and no gradient of the models of their recipes."""

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from longscan.reproduce import read_rows
from longscan.tasks import Batch, Task
from longscan.training.batches import pad_batch
from longscan.training.evaluate import evaluate, predict
from longscan.training.parsing import make_settings, set_nested
from longscan.training.run import build_model
from published_settings import read_settings_once
from task_variants import write_files

ROOT = Path(__file__).parents[2]
TASKS = ("listops", "lra_text")
READ = "thesis/"  # rows of a code that reads padding, as their recipe says
SMALL = {"model.d_model": 16, "model.d_state": 4}


def plain_settings() -> dict[str, dict[str, Any]]:
    """Return task and model of each recipe of the tasks, and of each row of a paper whose model is another one."""
    recipes = {str(path.relative_to(ROOT)): path for path in sorted((ROOT / "recipes").glob("*/*.yaml"))}
    found = {name: read_settings_once(path) for name, path in recipes.items()}
    for row in read_rows():
        if row.recipe in found and any(name.startswith("model.") for name in row.settings):
            found[row.id] = read_settings_once(ROOT / row.recipe)
            for name, value in row.settings.items():
                if name.startswith("model."):
                    found[row.id] = set_nested(found[row.id], name, value)
    return {
        name: {part: plain[part] for part in ("task", "model")} for name, plain in found.items() if plain["task"]["name"] in TASKS
    }


ROWS = plain_settings()


@cache
def build(name: str) -> tuple[Task, nn.Module]:
    """Return task and model of a recipe or row at a small size, in float64, without dropout and without reading padding."""
    plain = ROWS[name]
    plain["task"] = {key: value for key, value in plain["task"].items() if key != "holdout"} | write_files(plain["task"]["name"])
    for setting, value in SMALL.items():
        plain = set_nested(plain, setting, value)
    plain = set_nested(plain, "model.padding", "masked")
    plain = set_nested(plain, "model.spec", re.sub(r"\*\d+", "*2", plain["model"]["spec"]))
    torch.manual_seed(0)
    settings = make_settings(plain)
    model = build_model(settings).double()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return settings.task, model


def run(task: Task, model: nn.Module, batch: Batch) -> list[Tensor]:
    """Return logits, loss, gradients and statistics of normalisations after an update's forward and backward pass."""
    model.zero_grad()
    logits = predict(model, batch)
    loss = task.loss(logits, batch)
    loss.backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return [logits.detach(), loss.detach(), *gradients, *(buffer.clone() for buffer in model.buffers())]


@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])
@pytest.mark.parametrize("name", ROWS)
def test_padded_steps_change_nothing(name: str, training: bool) -> None:
    task, model = build(name)
    model.train(training)
    batch = task.batch("train", 0, 5)
    assert batch.valid is not None
    assert not batch.valid.all()
    state = {key: value.clone() for key, value in model.state_dict().items()}
    expected = run(task, model, batch)
    for width, token in ((batch.inputs.shape[1] + 1, 0), (batch.inputs.shape[1] + 37, 5)):
        model.load_state_dict(state)
        padded = pad_batch(batch, width)
        padded = padded._replace(inputs=torch.where(padded.valid, padded.inputs, token))
        for found, wanted in zip(run(task, model, padded), expected, strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", ROWS)
def test_scores_do_not_depend_on_the_padding_of_batches(name: str) -> None:
    task, model = build(name)
    alone, together = (evaluate(model, task, "valid", batch_size=size) for size in (1, 7))
    assert together.loss == pytest.approx(alone.loss, rel=1e-6)
    assert together.values == pytest.approx(alone.values)


def test_padding_is_read_only_where_a_paper_read_it() -> None:
    reading = {name for name, plain in ROWS.items() if plain["model"].get("padding") == "read"}
    assert reading == {name for name in ROWS if name.removeprefix("recipes/").startswith(READ)}
