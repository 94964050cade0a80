"""The plans of benchmarks/plans: every run of `longscan train` in them has valid settings and a model that can be built."""

import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from longscan._argparse import parse_known
from longscan._types import checked_value, field_types
from longscan.models import SequenceModel
from longscan.training.parsing import _parse_overrides, read_recipe, set_nested, sources_parser, task_class
from longscan.training.settings import AboutSettings, ModelSettings, TrainingSettings
from side_by_side import Planned, read_plan

ROOT = Path(__file__).parents[2]
PLANS = sorted((ROOT / "benchmarks" / "plans").glob("*.txt"))
MODEL_SETTINGS = ("spec", "d_model", "d_state", "norm", "positions", "block_options")


def read_settings(argv: list[str]) -> dict[str, Any]:
    """Return the settings that the arguments of `longscan train` give, by section, without reading data."""
    sources, rest = parse_known(sources_parser(), argv)
    plain, _ = read_recipe(ROOT / sources.config[0])
    for setting, value in _parse_overrides(task_class(sources.task or plain["task"]["name"]), rest).items():
        plain = set_nested(plain, setting, value)
    return plain


@cache
def count_model_parameters(settings: str) -> int:
    """Return the number of parameters of a model for 16 steps with the JSON of model settings."""
    values = json.loads(settings)
    length = None if values["positions"] in ("none", "sinusoidal") else 16
    model = SequenceModel.from_spec(**values, d_input=1, d_output=10, pooling="mean", max_length=length)
    return sum(parameter.numel() for parameter in model.parameters())


def count_parameters(argv: list[str]) -> int:
    """Check the settings of a run; return the number of parameters of its model for one input channel and ten classes."""
    plain = read_settings(argv)
    kind = task_class(plain["task"].pop("name"))
    types = field_types(kind)
    for name, value in plain["task"].items():
        checked_value(value, types[name], f"task.{name}")
    model, _ = ModelSettings.parse_mapping(plain["model"], "model")
    TrainingSettings.parse_mapping(plain["training"], "training")
    AboutSettings.parse_mapping(plain.get("about", {}), "about")
    return count_model_parameters(json.dumps({name: getattr(model, name) for name in MODEL_SETTINGS}))


def read_train_lines(path: Path) -> list[Planned]:
    return [line for line in read_plan(path, []) if line.program == "train"]


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_runs_of_plans_have_valid_settings_and_models(path: Path) -> None:
    assert path.read_text().startswith("# ")
    for line in read_train_lines(path):
        assert count_parameters(line.words) > 0, line.name


def test_sizes_of_complex_and_real_models_are_those_of_table_4() -> None:
    """The table has a head of two layers. Complex A adds 2 * 64 * N numbers per block, N = 16 on Image and 64 on Pathfinder."""
    counts = {
        line.name: count_parameters(line.words) for line in read_train_lines(ROOT / "benchmarks" / "plans" / "mamba_lra.txt")
    }
    head = 64 * 64 + 64 + 64 * 10 + 10 - 64 * 10  # the counted model has a head of one layer without bias
    assert counts["real-image-0"] + head == pytest.approx(153_000, abs=600)
    assert counts["complex-image-0"] + head == pytest.approx(159_000, abs=600)
    head = 64 * 64 + 64 + 64 * 2 + 2 - 64 * 10
    assert counts["real-pathfinder-0"] + head == pytest.approx(123_000, abs=600)
    assert counts["complex-pathfinder-0"] + head == pytest.approx(139_000, abs=1_000)
