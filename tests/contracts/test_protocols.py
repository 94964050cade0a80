"""The recipes of published rows have valid settings, which are those that the paper prints, and models that can be built."""

import json
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts

from longscan._types import checked_value, field_types
from longscan.models import SequenceModel, SiameseModel, parse_spec
from longscan.reproduce import PublishedRow, read_rows
from longscan.reproduce.runs import row_settings, with_seed
from longscan.tasks import TASKS, Task
from longscan.tasks.forecasting import Forecast
from longscan.tasks.formal.base import WordTask
from longscan.training.parsing import set_nested
from longscan.training.settings import AboutSettings, ModelSettings, TrainingSettings
from longscan.training.trainer import build_optimizer
from published_settings import read_settings_once

ROOT = Path(__file__).parents[2]
ROWS = [row for row in read_rows() if row.status == "recipe"]
AUSSM_TABLE_1 = [row for row in ROWS if row.table == "aussm/table1" and row.candidate_of is None]
rows = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)


def plain_settings(row: PublishedRow) -> dict[str, Any]:
    """Return the settings of a row by section, without reading its data."""
    assert row.recipe is not None
    plain = read_settings_once(ROOT / row.recipe)
    for name, value in row.settings.items():
        plain = set_nested(plain, name, value)
    return plain


def task_values(task: Task) -> dict[str, Any]:
    """Return the sizes of a generated task or of a forecast by the names of printed settings."""
    if isinstance(task, WordTask):
        sizes = {f"{split}_examples": task.size(split) for split in task.splits}
        return {**sizes, "train_longest": task._length_range("train")[1], "test_longest": task._length_range("test")[1]}
    return {"context": task._shape.context, "horizon": task._shape.horizon} if isinstance(task, Forecast) else {}


def collect_settings(task: Task, model: ModelSettings, training: TrainingSettings) -> dict[str, Any]:
    """Return the settings that a row trains with, by the names of printed settings."""
    blocks = parse_spec(model.spec)
    dropouts = {options["dropout"] for options in model.block_options.values() if "dropout" in options}
    return {
        **task_values(task),
        "stack": model.spec,
        "depth": sum(block["block"] != "feed_forward" for block in blocks),
        "width": model.d_model,
        "state": model.d_state,
        "blocks": model.block_options.get("s7", {}).get("blocks"),
        "heads": model.d_model // model.block_options["attention"]["head_dim"] if "attention" in model.block_options else None,
        "ff": model.block_options.get("feed_forward", {}).get("d_hidden"),
        "dropout": dropouts.pop() if len(dropouts) == 1 else None,
        "lr": training.lr,
        "ssm_lr": pytest.approx(training.lr * training.lr_scale.get("ssm", 1.0), rel=2e-3),
        "weight_decay": training.weight_decay,
        "batch": training.batch_size,
        "clip": training.clip,
    }


@rows
def test_settings_are_valid_and_equal_the_printed_ones(row: PublishedRow) -> None:
    plain = plain_settings(row)
    kind = TASKS[plain["task"].pop("name")]
    types = field_types(kind)
    task = kind(**{name: checked_value(value, types[name], f"task.{name}") for name, value in plain["task"].items()})
    assert {name.removeprefix("task.") for name in row.with_seed} <= set(types)
    model, _ = ModelSettings.parse_mapping(plain["model"], "model")
    training, _ = TrainingSettings.parse_mapping(plain["training"], "training")
    about, _ = AboutSettings.parse_mapping(plain["about"], "about")
    assert about.paper == row.figure["paper"]
    assert training.steps == row.updates
    printed, settings = dict(row.printed), collect_settings(task, model, training)
    base = printed.pop("base_lr", None)
    if base is not None:  # S7, Table 11: "base LR"; four batches of DVS-Gesture are one update
        assert printed["ssm_lr"] / (base * printed["batch"]) in [pytest.approx(1, rel=0.16), pytest.approx(4, rel=0.01)]
    epochs, examples, _ = (printed.pop(name, None) for name in ("epochs", "examples", "params"))
    if epochs is not None:
        assert training.steps == int(epochs * examples / training.batch_size)
    differences = {name: (settings[name], value) for name, value in printed.items() if settings[name] != value}
    assert set(differences) == set(row.differs), f"(ours, printed): {differences}"
    assert all(row.differs.values())


@pytest.mark.parametrize("row", [row for row in ROWS if "base_lr" in row.printed], ids=lambda row: row.id)
def test_groups_of_s7_have_the_printed_rate_and_decay(row: PublishedRow) -> None:
    """Recurrence and B have the printed SSM learning rate and no decay; all others the decay and a rate at least as high."""
    model, _ = ModelSettings.parse_mapping(plain_settings(row)["model"], "model")
    training, _ = TrainingSettings.parse_mapping(plain_settings(row)["training"], "training")
    names = ("spec", "d_model", "d_state", "head", "norm", "block_options")
    network = SequenceModel.from_spec(**{name: getattr(model, name) for name in names}, vocab_size=3, d_output=2)
    groups = [
        {id(parameter): (training.lr * group["scale"], group["weight_decay"]) for parameter in group["params"]}
        for group in build_optimizer(network, training).param_groups
    ]
    rates_and_decays = {name: next(group[id(x)] for group in groups if id(x) in group) for name, x in network.named_parameters()}
    recurrence = {name for name in rates_and_decays if name.rpartition(".")[2] in ("w", "bias", "B") and ".block.layer." in name}
    undecayed = {name for name in rates_and_decays if ".norm." in name or name.startswith(("norm.", "encoder."))}
    assert len(recurrence) == 3 * row.printed["depth"]
    for name, (rate, decay) in rates_and_decays.items():
        assert rate == pytest.approx(row.printed["ssm_lr"] if name in recurrence else training.lr, rel=2e-3)
        assert decay == (0 if name in recurrence | undecayed else row.printed["weight_decay"])
    assert training.lr >= row.printed["ssm_lr"]


@cache
def build(settings: str) -> SequenceModel:
    """Build a model from the JSON of settings of `SequenceModel.from_spec`."""
    return SequenceModel.from_spec(**json.loads(settings), d_input=3, d_output=10, pooling="mean")


def build_model(row: PublishedRow) -> SequenceModel:
    model, _ = ModelSettings.parse_mapping(plain_settings(row)["model"], "model")
    names = ("spec", "d_model", "d_state", "head", "norm", "block_options")
    return build(json.dumps({name: getattr(model, name) for name in names}))


def count_parameters(row: PublishedRow) -> int:
    return sum(parameter.numel() for parameter in build_model(row).parameters())


@rows
def test_models_can_be_built(row: PublishedRow) -> None:
    assert count_parameters(row) > 0


def printed_group(paper: str, name: str) -> tuple[float, bool]:
    """Return the factor on the learning rate of a parameter, and whether it decays, by the paper or its code."""
    if paper == "AUSSM":
        return 1.0, True  # one group: its code decays everything
    if paper == "MAMBA_LRA":  # nothing is printed: as in Mamba's code, and no decay of norms and embeddings
        return 1.0, name.rpartition(".")[2] not in ("A_log", "A_imag", "D", "dt_bias") and "norm" not in name
    if (
        paper == "THESIS"
    ):  # section 12.2.4 and its code: parameters of the SSM, of S6 only A, have a tenth of the rate and no decay
        is_ssm = "layer." in name and name.rpartition(".")[2] in ("A_log", "A_imag", "log_dt", "B", "C", "P")
        return (0.1, False) if is_ssm else (1.0, True)
    raise AssertionError(f"{paper} has no rule for {name}")


ROWS_WITH_PRINTED_GROUPS = [row for row in ROWS if row.figure["paper"] in ("AUSSM", "MAMBA_LRA", "THESIS")]


def read_training(row: PublishedRow) -> TrainingSettings:
    training, _ = TrainingSettings.parse_mapping(plain_settings(row)["training"], "training")
    return training


@pytest.mark.parametrize("row", ROWS_WITH_PRINTED_GROUPS, ids=lambda row: row.id)
def test_parameter_groups_are_those_of_the_paper(row: PublishedRow) -> None:
    model, training = build_model(row), read_training(row)
    names = {parameter: name for name, parameter in model.named_parameters()}
    optimizer = build_optimizer(model, training)
    actual = {names[p]: (group["scale"], group["weight_decay"]) for group in optimizer.param_groups for p in group["params"]}
    expected = {name: printed_group(row.figure["paper"], name) for name in names.values()}
    expected_groups = {name: (scale, training.weight_decay * decays) for name, (scale, decays) in expected.items()}
    assert actual == {name: pytest.approx(group) for name, group in expected_groups.items()}
    if row.figure["paper"] == "THESIS":
        kinds = {"s6": {"A_log"}, "s4d": {"A_log", "A_imag", "log_dt", "B", "C"}}
        kinds["s4"] = kinds["s4d"] | {"P"}
        kind = row.id.removesuffix("-bi").rpartition("-")[2]
        assert {name.rpartition(".")[2] for name, (scale, _) in actual.items() if scale < 1} == kinds[kind]


def printed_rates(row: PublishedRow, steps: list[int]) -> dict[float, list[float]]:
    """Return the learning rates at these steps, by the factor of a group, by the PyTorch scheduler of the authors' code."""
    training, scales = read_training(row), [1.0]
    if row.id.startswith("aussm/table1"):
        lr, settings = training.lr, {"T_0": 1000, "T_mult": 2, "eta_min": 1e-5}
    elif row.figure["paper"] == "THESIS":
        lr, scales = row.printed["lr"] * (1024 / 4096 if "/imdb/" in row.id else 1), [1.0, 0.1]
        settings = {"T_0": row.updates, "eta_min": 0.1 * lr}
    else:
        return {1.0: [training.lr] * len(steps)}
    optimizer = torch.optim.SGD([{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": lr * scale} for scale in scales])
    scheduler = CosineAnnealingWarmRestarts(optimizer, **settings)
    rates: dict[float, list[float]] = {scale: [] for scale in scales}
    for step in steps:
        scheduler.step(step)
        for scale, group in zip(scales, optimizer.param_groups, strict=True):
            rates[scale].append(group["lr"])
    return rates


@pytest.mark.parametrize("row", ROWS_WITH_PRINTED_GROUPS, ids=lambda row: row.id)
def test_learning_rates_are_those_of_the_paper(row: PublishedRow) -> None:
    training = read_training(row)
    steps = [0, 999, 1000, training.steps // 2, training.steps - 1]
    for scale, rates in printed_rates(row, steps).items():
        assert [training.learning_rate(step, scale) for step in steps] == pytest.approx(rates, rel=1e-9)


@pytest.mark.parametrize("row", [row for row in ROWS if "base_lr" in row.printed], ids=lambda row: row.id)
def test_learning_rates_of_s7_fall_along_a_cosine(row: PublishedRow) -> None:
    """Section 4.1. That they fall to 0 and rise before in some recipes is not printed."""
    training = read_training(row)
    factor = training.lr_scale.get("ssm", 1.0)
    begin, end = training.warmup, training.steps
    steps = [begin, begin + (end - begin) // 4, begin + (end - begin) // 2, begin + 3 * (end - begin) // 4, end - 1]
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=row.printed["ssm_lr"])
    scheduler = CosineAnnealingWarmRestarts(optimizer, T_0=end - begin)
    for step in steps:
        scheduler.step(step - begin)
        expected = optimizer.param_groups[0]["lr"]
        assert training.learning_rate(step, factor) == pytest.approx(expected, rel=2e-3)
        assert training.learning_rate(step) == pytest.approx(expected / factor, rel=2e-3)


# Sizes of inputs and outputs of the tasks of "Long Range Tasks with Mamba": 18 symbols of ListOps with three special ones, 135
# characters of IMDB, 97 of AAN.
LRA_SIZES: dict[str, dict[str, int]] = {
    "listops": {"vocab_size": 18, "d_output": 10},
    "text": {"vocab_size": 135, "d_output": 2},
    "retrieval": {"vocab_size": 97, "d_output": 2},
    "image": {"d_input": 1, "d_output": 10},
    "pathfinder_32": {"d_input": 1, "d_output": 2},
    "pathfinder_64": {"d_input": 1, "d_output": 2},
}
LRA = [row for row in ROWS if row.figure["paper"] == "MAMBA_LRA"]


@pytest.mark.parametrize("row", LRA, ids=lambda row: row.id)
def test_models_of_mamba_on_lra_have_the_printed_sizes(row: PublishedRow) -> None:
    """Table 3, in thousands. Without a pair of towers, Retrieval's model would be smaller; text in bytes, larger."""
    task = row.id.split("/")[2]
    model, _ = ModelSettings.parse_mapping(plain_settings(row)["model"], "model")
    arguments = {"d_model": model.d_model, "d_state": model.d_state, "norm": model.norm, "block_options": model.block_options}
    if task == "retrieval":
        assert plain_settings(row)["task"]["layout"] == "pair"
        net: torch.nn.Module = SiameseModel.from_spec(model.spec, **arguments, **LRA_SIZES[task])
    else:
        net = SequenceModel.from_spec(model.spec, **arguments, head=model.head, **LRA_SIZES[task])
    parts: list[torch.nn.Module] = [net]
    if row.id.endswith("image/mamba"):  # the printed 116K leave no room for a head: they are those of the blocks
        assert isinstance(net, SequenceModel)
        parts = [block.block for block in net.stack]
    count = sum(parameter.numel() for part in parts for parameter in part.parameters())
    assert count == pytest.approx(1000 * row.printed["params"], abs=1000)


def test_models_of_the_thesis_have_the_printed_sizes() -> None:
    # Table 3, for CIFAR-10 in numbers, in thousands
    sizes = {"simple-s4d": 551, "simple-s4": 616, "mamba-s6": 587, "mamba-s4d": 564, "mamba-s4": 587}
    parameter_counts = {
        row.id.rpartition("/")[2]: count_parameters(row) for row in ROWS if row.id.startswith("thesis/table4/cifar_numerical/")
    }
    assert {name: pytest.approx(1000 * size, rel=0.01) for name, size in sizes.items()} == parameter_counts


def test_rows_of_the_thesis_on_imdb_pool_padding() -> None:
    for row in ROWS:
        if row.figure["paper"] == "THESIS":
            expected = "read" if "/imdb/" in row.id else "masked"
            assert ModelSettings.parse_mapping(plain_settings(row)["model"], "model")[0].padding == expected


def test_rows_that_select_weights_on_the_test_set_say_so() -> None:
    """The validation set of Long Range Arena's text is its test set. Another row of the same figure holds examples out."""
    selecting = {row.id for row in ROWS if plain_settings(row)["task"].get("holdout") == "lra"}
    assert selecting == {row.id for row in ROWS if "selected on the test set" in row.note or row.id.endswith("-lra")}
    assert selecting
    assert {row.removesuffix("-lra") for row in selecting} <= {row.id for row in ROWS} - selecting
    assert all("decides nothing" in row.note for row in ROWS if row.id in selecting)


def test_rows_of_retrieval_encode_both_texts_separately() -> None:
    tasks = {row.id: plain_settings(row)["task"] for row in ROWS if row.data == "AAN"}
    assert {name.split("/")[0] for name in tasks} == {"s7", "mamba_lra"}
    assert {name for name, task in tasks.items() if task.get("layout") != "pair"} == set()


def test_pathfinder_32_of_the_papers_has_the_released_shades() -> None:
    tasks = {row.id: plain_settings(row)["task"] for row in ROWS}
    small = {name: task for name, task in tasks.items() if task["name"] == "pathfinder" and task["resolution"] == 32}
    assert {name.split("/")[0] for name in small} == {"s7", "thesis", "mamba_lra"}
    assert {name for name, task in small.items() if task.get("shades") != "released"} == set()


def test_pure_aussm_has_a_candidate_for_each_depth_and_rate() -> None:
    """Appendix G.2: two, four or six blocks and three rates, for every task of both tables."""
    candidates: dict[str, list[tuple[str, float]]] = {}
    for row in ROWS:
        if row.candidate_of is not None:
            candidates.setdefault(row.candidate_of, []).append((row.settings["model.spec"], row.settings["training.lr"]))
    tasks = [row.id.split("/")[2] for row in AUSSM_TABLE_1 if row.id.endswith(("ma", "am"))]
    assert set(candidates) == {f"aussm/{table}/{task}/aa" for table in ("table1", "table1-released") for task in tasks}
    grid = sorted(product(("aa", "aaaa", "aaaaaa"), (1e-4, 1e-3, 1e-2)))
    assert all(sorted(settings) == grid for settings in candidates.values())


def test_released_rows_use_each_batch_four_times_and_the_same_stream_for_all_seeds() -> None:
    for row in ROWS:
        if row.table == "aussm/table1-released":
            assert read_training(row).batch_repeats == 4
            assert {row_settings(row, seed).data_seed for seed in range(2)} == {0}


@pytest.mark.parametrize("row", AUSSM_TABLE_1, ids=lambda row: row.id)
def test_row_settings_have_the_steps_seed_task_and_model_of_the_row(row: PublishedRow) -> None:
    settings = row_settings(row, 3)
    assert (settings.training.steps, settings.training.seed) == (row.updates, 3)
    assert settings.about.published == [row.published]
    assert settings.about.model == row.figure["model"]
    assert settings.task.name == row.id.split("/")[2]
    assert settings == with_seed(row_settings(row), row, 3)
    if "model.spec" in row.settings:
        assert settings.model.spec == row.settings["model.spec"]
