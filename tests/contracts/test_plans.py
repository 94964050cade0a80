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
from longscan.training.parsing import _parse_overrides, set_nested, sources_parser, task_class
from longscan.training.settings import AboutSettings, ModelSettings, TrainingSettings
from published_settings import read_settings_once
from side_by_side import Planned, read_plan

ROOT = Path(__file__).parents[2]
PLANS = sorted((ROOT / "benchmarks" / "plans").glob("*.txt"))
KINDS = ("bi", "placebo", "wide")  # of bidirectional.txt of the thesis
MODEL_SETTINGS = ("spec", "d_model", "d_state", "norm", "positions", "block_options")


def read_settings(argv: list[str]) -> dict[str, Any]:
    """Return the settings that the arguments of `longscan train` give, by section, without reading data."""
    sources, rest = parse_known(sources_parser(), argv)
    plain = read_settings_once(ROOT / sources.config[0])
    for setting, value in _parse_overrides(task_class(sources.task or plain["task"]["name"]), rest).items():
        plain = set_nested(plain, setting, value)
    return plain


@cache
def parameter_sizes(settings: str) -> dict[str, int]:
    """Return the number of entries of each parameter of a model for 16 steps with the JSON of model settings."""
    values = json.loads(settings)
    length = None if values["positions"] in ("none", "sinusoidal") else 16
    model = SequenceModel.from_spec(**values, d_input=1, d_output=10, pooling="mean", max_length=length)
    return {name: parameter.numel() for name, parameter in model.named_parameters()}


def check_line(argv: list[str]) -> dict[str, int]:
    """Check the settings of a run; return the sizes of the parameters of its model for one input channel and ten classes."""
    plain = read_settings(argv)
    kind = task_class(plain["task"].pop("name"))
    types = field_types(kind)
    for name, value in plain["task"].items():
        checked_value(value, types[name], f"task.{name}")
    model, _ = ModelSettings.parse_mapping(plain["model"], "model")
    training, _ = TrainingSettings.parse_mapping(plain["training"], "training")
    AboutSettings.parse_mapping(plain.get("about", {}), "about")
    sizes = parameter_sizes(json.dumps({name: getattr(model, name) for name in MODEL_SETTINGS}))
    assert set(training.parameters) <= {name.rpartition(".")[2] for name in sizes}
    return sizes


def count_parameters(argv: list[str]) -> int:
    return sum(check_line(argv).values())


def read_train_lines(path: Path) -> list[Planned]:
    return [line for line in read_plan(path, []) if line.program == "train"]


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_runs_of_plans_have_valid_settings_and_models(path: Path) -> None:
    assert path.read_text().startswith("# ")
    for line in read_train_lines(path):
        assert count_parameters(line.words) > 0, line.name


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_runs_start_from_earlier_runs_of_their_plan(path: Path) -> None:
    """Only from runs in the same folder: with another --out all runs of a plan are in the other folder."""
    earlier: set[str] = set()
    for line in read_train_lines(path):
        sources = {word for word in line.words if word.startswith(("{out}/", f"runs/{path.stem}/"))}
        assert sources <= earlier, line.name
        earlier.add(f"{{out}}/{line.name}")


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


def read_thesis_plan(name: str) -> dict[str, list[str]]:
    """Return the arguments of each run of a plan of the thesis by the run's name."""
    return {line.name: line.words for line in read_train_lines(ROOT / "benchmarks" / "plans" / f"thesis_{name}.txt")}


@pytest.mark.parametrize(
    ("task", "s4d", "counts"),
    [  # Table 5: models with B, C, Delta and X (S6), normalised, with base 10,000, trained
        ("imdb", 8, {"B": 13, "C": 10, "dt": 10, "x": 8, "length": 18, "base": 11, "learned": 13}),
        ("cifar", 11, {"B": 12, "C": 11, "dt": 11, "x": 8, "length": 13, "base": 17, "learned": 13}),
    ],
)
def test_rotary_models_of_the_thesis_have_the_counts_of_table_5(task: str, s4d: int, counts: dict[str, int]) -> None:
    plain = {name: read_settings(words) for name, words in read_thesis_plan("positions").items() if name.startswith(task)}
    options = [next(iter(settings["model"]["block_options"].values())) for settings in plain.values()]
    rotary = [one["rotary"] for one in options if "rotary" in one]
    assert (len(rotary), sum("targets" not in one for one in rotary)) == (27, s4d)
    assert len({json.dumps(one, sort_keys=True) for one in rotary}) == 27
    actual = {name: sum(name in one.get("targets", ()) for one in rotary) for name in ("B", "C", "dt", "x")}
    actual |= {"length": sum("length" in one for one in rotary), "base": sum(one["base"] == 10_000 for one in rotary)}
    assert actual | {"learned": sum(one["learned"] for one in rotary)} == counts
    assert sum(name.endswith(tuple(f"none-{seed}" for seed in range(5))) for name in plain) == 10
    assert {settings["training"]["steps"] for settings in plain.values()} == {5859 if task == "imdb" else 17578}


def test_positions_of_the_thesis_have_the_printed_numbers_of_parameters() -> None:
    plan = read_thesis_plan("positions")
    plain = check_line(plan["cifar-s6-none-0"])
    trained = next(words for name, words in plan.items() if name.startswith("cifar-s6") and name.endswith("trained"))
    added = {name: size for name, size in check_line(trained).items() if name not in plain}
    assert (len(added), sum(added.values())) == (6, 696)
    tables = check_line(plan["cifar-s6-learned_blocks"])["positions.table"]
    assert tables / 16 * 1024 == 712_704, "the counted model has 16 steps"


def test_bidirectional_models_of_the_thesis_have_five_runs_each() -> None:
    names = list(read_thesis_plan("bidirectional"))
    kinds = {name.rpartition("-")[0] for name in names}
    expected = {f"{task}-{layer}-{kind}" for task in ("imdb", "cifar") for layer in ("s4d", "s6") for kind in KINDS}
    assert kinds == expected
    assert len(names) == 5 * len(kinds)


def test_species_of_the_thesis_start_from_runs_of_the_plan_before() -> None:
    """Windows and widths of both runs are equal; the learning rates are 1e-3 * 1024 / L and 4e-3 * 2048 / L."""
    before = {f"runs/thesis_pretraining/{name}": read_settings(words) for name, words in read_thesis_plan("pretraining").items()}
    for settings in before.values():
        assert settings["training"]["lr"] == pytest.approx(4e-3 * 2048 / settings["task"]["window"])
    started = set()
    for words in read_thesis_plan("species").values():
        settings = read_settings(words)
        training, model = settings["training"], settings["model"]
        assert training["lr"] == pytest.approx(1e-3 * 1024 / settings["task"]["window"])
        assert training["lr_min"] == pytest.approx(training["lr"] / 10)
        for source in (training[name] for name in ("start_from", "start_from_reverse") if name in training):
            assert before[source]["task"]["window"] == settings["task"]["window"]
            assert before[source]["model"]["d_model"] == model["d_model"]
            started.add(source)
        if "start_from_reverse" in training:
            assert before[training["start_from_reverse"]]["task"]["objective"] == "reverse"
    assert started == set(before)
