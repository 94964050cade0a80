"""The recipes of the papers' rows: their settings are valid, their models can be built, and they are as the paper prints them."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from longscan._types import checked_value, field_types
from longscan.models import SequenceModel, parse_spec
from longscan.reproduce import PublishedRow, read_rows
from longscan.reproduce.runs import row_settings, with_seed
from longscan.tasks import TASKS
from longscan.training.parsing import read_recipe, set_nested
from longscan.training.settings import AboutSettings, ModelSettings, TrainingSettings

ROOT = Path(__file__).parents[2]
ROWS = [row for row in read_rows() if row.status == "recipe"]
GENERATED = [row for row in ROWS if row.data is None and row.table == "aussm/table1"]
rows = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)


def plain_settings(row: PublishedRow) -> dict[str, Any]:
    """Return the settings of a row by section, without reading its data."""
    assert row.recipe is not None
    plain, _ = read_recipe(ROOT / row.recipe)
    for name, value in row.settings.items():
        plain = set_nested(plain, name, value)
    return plain


def actual(model: ModelSettings, training: TrainingSettings) -> dict[str, Any]:
    """Return what a row trains with, by the names of printed settings."""
    blocks = parse_spec(model.spec)
    dropouts = {options["dropout"] for options in model.block_options.values() if "dropout" in options}
    return {
        "stack": model.spec,
        "depth": sum(block["block"] != "feed_forward" for block in blocks),
        "width": model.d_model,
        "state": model.d_state,
        "dropout": dropouts.pop() if len(dropouts) == 1 else None,
        "lr": training.lr,
        "ssm_lr": pytest.approx(training.lr * training.lr_scale.get("ssm", 1.0), rel=2e-3),
        "weight_decay": training.weight_decay,
        "batch": training.batch_size,
        "clip": training.clip,
    }


@rows
def test_settings_are_valid_and_as_printed(row: PublishedRow) -> None:
    plain = plain_settings(row)
    kind = TASKS[plain["task"].pop("name")]
    types = field_types(kind)
    for name, value in plain["task"].items():
        checked_value(value, types[name], f"task.{name}")
    assert {name.removeprefix("task.") for name in row.with_seed} <= set(types)
    model, _ = ModelSettings.parse_mapping(plain["model"], "model")
    training, _ = TrainingSettings.parse_mapping(plain["training"], "training")
    about, _ = AboutSettings.parse_mapping(plain["about"], "about")
    assert about.paper == row.figure["paper"]
    assert training.steps == row.updates
    printed, found = dict(row.printed), actual(model, training)
    epochs, examples = printed.pop("epochs", None), printed.pop("examples", None)
    if epochs is not None:
        assert training.steps == int(epochs * examples / training.batch_size)
    unlike = {name: (found[name], value) for name, value in printed.items() if found[name] != value}
    assert set(unlike) == set(row.differs), f"(ours, printed): {unlike}"
    assert all(row.differs.values())


@cache
def build(settings: str) -> int:
    """Build a model from the JSON of settings of `SequenceModel.from_spec` and return its number of parameters."""
    model = SequenceModel.from_spec(**json.loads(settings), d_input=3, d_output=10, pooling="mean")
    return sum(parameter.numel() for parameter in model.parameters())


def parameters_of(row: PublishedRow) -> int:
    model, _ = ModelSettings.parse_mapping(plain_settings(row)["model"], "model")
    names = ("spec", "d_model", "d_state", "head", "norm", "block_options")
    return build(json.dumps({name: getattr(model, name) for name in names}))


@rows
def test_models_can_be_built(row: PublishedRow) -> None:
    assert parameters_of(row) > 0


def test_models_of_the_thesis_have_the_printed_sizes() -> None:
    # Table 3, for CIFAR-10 in numbers, in thousands
    sizes = {"simple-s4d": 551, "simple-s4": 616, "mamba-s6": 587, "mamba-s4d": 564, "mamba-s4": 587}
    found = {row.id.rpartition("/")[2]: parameters_of(row) for row in ROWS if row.id.startswith("thesis/table4/cifar_numerical/")}
    assert {name: pytest.approx(1000 * size, rel=0.01) for name, size in sizes.items()} == found


@pytest.mark.parametrize("row", GENERATED, ids=lambda row: row.id)
def test_words_of_the_command_line_are_the_settings_of_the_row(row: PublishedRow) -> None:
    settings = row_settings(row, 3)
    assert (settings.training.steps, settings.training.seed) == (row.updates, 3)
    assert settings.about.published == [row.published]
    assert settings.about.model == row.figure["model"]
    assert settings.task.name == row.id.split("/")[2]
    assert settings == with_seed(row_settings(row), row, 3)
    if "model.spec" in row.settings:
        assert settings.model.spec == row.settings["model.spec"]
