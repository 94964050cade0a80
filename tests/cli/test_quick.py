"""`--quick`: the section of a recipe, errors, and that each quick recipe trains and beats the constant predictor."""

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from learnable import learnable
from longscan.cli import main
from longscan.report import quick_markdown, read_records
from longscan.tasks import TASKS
from longscan.training import Run, Settings, parse_settings, record_run, train
from longscan.training.run import build_model
from longscan.training.settings import AboutSettings, SettingError

ROOT = Path(__file__).parents[2]
RECIPES = [path for paper in ("aussm", "mamba-lra", "s7", "thesis") for path in sorted((ROOT / "recipes" / paper).glob("*.yaml"))]
REAL = os.environ.get("LONGSCAN_TEST_DATA")
AREAS = {  # task, or task and data set -> the directory of its real files
    "lra_text": "lra",
    "lra_image": "lra",
    "forecast": "forecasting",
    "walker": "activity",
    "species": "dna",
    "dna_language": "dna",
    "uea/SelfRegulationSCP1": "uea",
}
SECONDS = 120  # limit of processor time
FAST = ("mamba-lra-retrieval",)  # recipes that are not marked as slow


def recipe_name(path: Path) -> str:
    return f"{path.parent.name}-{path.stem}"


def make_quick_settings(path: Path, folder: Path, *options: str) -> Settings:
    """Return the quick settings of a recipe for generated files."""
    values = learnable(yaml.safe_load(path.read_text())["task"], folder)
    task_options = [text for name, value in values.items() for text in (f"--task.{name}", str(value))]
    return parse_settings(["--config", str(path), "--quick", "--training.threads", "1", *task_options, *options])


SLOW_TO_GENERATE = ("s7-fitzhugh_nagumo",)  # every series is simulated


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=recipe_name(path), marks=pytest.mark.slow if recipe_name(path) in SLOW_TO_GENERATE else ())
        for path in RECIPES
    ],
)
def test_quick_section_is_small_and_has_the_same_task(path: Path, tmp_path: Path) -> None:
    settings = make_quick_settings(path, tmp_path)
    recipe = yaml.safe_load(path.read_text())
    assert settings.about.quick
    assert settings.task.name == recipe["task"]["name"]
    assert sum(parameter.numel() for parameter in build_model(settings).parameters()) < 60_000
    training = settings.training
    assert training.steps <= 2000
    sizes = {"train_size": training.batch_size, "valid_size": 1, "test_size": 1}  # drawing whole sets would take ten seconds
    task = replace(settings.task, **{name: size for name, size in sizes.items() if hasattr(settings.task, name)})
    length = task.batch("train", 0, training.batch_size).inputs.shape[1]
    assert training.steps * training.batch_size * length < 12e6, "number of training steps times sequence steps"
    assert set(recipe["quick"]) <= {"task", "model", "training"}
    for section, values in recipe["quick"].items():
        for name, value in values.items():
            assert recipe[section].get(name) != value, f"{section}.{name} is already the value of the recipe"


@pytest.mark.parametrize(
    ("recipe", "baseline"),
    [("aussm/weather", "seasonal_naive"), ("aussm/weather_384", "seasonal_naive"), ("s7/walker", "persistence")],
)
def test_generated_series_can_be_predicted_better_than_by_a_constant(recipe: str, baseline: str, tmp_path: Path) -> None:
    errors = make_quick_settings(ROOT / "recipes" / f"{recipe}.yaml", tmp_path).task.baselines("test")
    assert errors[baseline] < errors["constant"] / 2


def train_and_compare_with_constant(path: Path, settings: Settings, folder: Path) -> None:
    """Train within the time limit and assert that the test score is better than that of the constant predictor.

    Pathfinder must only finish, because its models answer by chance until long after two minutes.
    """
    start = time.process_time()
    run = train(settings, folder / "run")
    assert time.process_time() - start < SECONDS
    assert run.result is not None
    assert run.result["status"] == "finished"
    if settings.task.name != "pathfinder":
        assert run.result["scaled"] > run.result["constant_scaled"], (run.result["value"], run.result["constant"])
    record_run(run, folder / "runs" / "quick.jsonl")
    (row,) = read_records(folder / "runs" / "quick.jsonl")
    assert (row["quick"], row["published"], row["recipe"]) == (True, None, str(path))


def mark_slow_recipes(paths: list[Path]) -> list[Any]:
    return [
        pytest.param(path, id=recipe_name(path), marks=[] if recipe_name(path) in FAST else pytest.mark.slow) for path in paths
    ]


@pytest.mark.parametrize("path", mark_slow_recipes(RECIPES))
def test_quick_recipe_beats_the_constant_predictor(path: Path, tmp_path: Path) -> None:
    train_and_compare_with_constant(path, make_quick_settings(path, tmp_path), tmp_path)


def data_area(path: Path) -> str | None:
    task = yaml.safe_load(path.read_text())["task"]
    return AREAS.get(task["name"], AREAS.get(f"{task['name']}/{task.get('dataset')}"))


@pytest.mark.slow
@pytest.mark.skipif(REAL is None, reason="LONGSCAN_DATA names no folder of real files")
@pytest.mark.parametrize("path", [path for path in RECIPES if data_area(path)], ids=recipe_name)
def test_quick_recipe_beats_the_constant_predictor_on_real_files(path: Path, tmp_path: Path) -> None:
    folder = Path(str(REAL)) / str(data_area(path))
    if not folder.is_dir():
        pytest.skip(f"{folder} is missing")
    argv = ["--config", str(path), "--quick", "--training.threads", "1", "--task.data_dir", str(folder)]
    train_and_compare_with_constant(path, parse_settings(argv), tmp_path)


RECIPE = {
    "task": {"name": "parity", "train_lengths": [3, 8], "eval_lengths": [9, 12], "valid_size": 8, "test_size": 8},
    "model": {"d_model": 4, "d_state": 4, "block_options": {"m": {"expand": 1}}},
    "training": {"steps": 3, "batch_size": 4, "threads": 1, "device": "cpu"},
    "about": {"paper": "AUSSM", "published": ["r036"], "chosen_on": "validation"},
}
QUICK = {"model": {"d_state": 2, "block_options": {"m": {"d_conv": 2}}}, "training": {"steps": 2}}


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(RECIPE | {"quick": QUICK}))
    return path


def test_quick_section_replaces_the_recipe_and_options_replace_both(recipe: Path) -> None:
    argv = ["--config", str(recipe)]
    full, quick = parse_settings(argv), parse_settings([*argv, "--quick"])
    assert (full.training.steps, full.model.d_state, full.about.quick) == (3, 4, False)
    assert (quick.training.steps, quick.model.d_state, quick.about.quick) == (2, 2, True)
    assert quick.model.block_options == {"m": {"expand": 1, "d_conv": 2}}
    assert quick.task == full.task
    assert parse_settings([*argv, "--quick", "--training.steps", "1"]).training.steps == 1


def test_later_file_replaces_the_quick_section(recipe: Path, tmp_path: Path) -> None:
    later = tmp_path / "more.yaml"
    later.write_text("training: {steps: 5}\n")
    settings = parse_settings(["--config", str(recipe), "--config", str(later), "--quick"])
    assert (settings.training.steps, settings.model.d_state, settings.about.quick) == (5, 2, True)


def test_quick_without_a_recipe_raises_unless_the_settings_are_those_of_a_quick_run() -> None:
    with pytest.raises(SettingError, match="`--config` must be the recipe whose quick section --quick takes, got nothing"):
        parse_settings(["--task", "parity", "--quick"])
    quick = {"task": {"name": "parity"}, "about": {"quick": True}}
    assert parse_settings(["--quick", "--steps", "3"], base=quick).about.quick
    with pytest.raises(SettingError, match="`--config` must be the recipe whose quick section"):
        parse_settings(["--quick"], base=quick | {"about": {"quick": False}})


def test_stored_settings_of_a_quick_run_are_quick(recipe: Path, tmp_path: Path) -> None:
    assert main(["train", "--config", str(recipe), "--quick", "--out", str(tmp_path / "run")]) == 0
    assert parse_settings(["--config", str(tmp_path / "run" / "settings.yaml")]).about.quick


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ("quick: 3", "`quick` must be a mapping with task, model, training, got 3"),
        ("quick: {}", "`quick` must be a mapping with task, model, training, got {}"),
        ("quick: {about: {paper: S7}}", "each section of `quick` must be one of task, model, training, got 'about'"),
        ("quick: {model: 3}", "`quick.model` must be a mapping of settings, got 3"),
        ("quick: {task: {name: set}}", "`quick.task.name` must be left out, as a quick run is of the recipe's task, got 'set'"),
    ],
)
def test_invalid_quick_section_fails(section: str, message: str, run_failing_command: Callable[..., str], tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(f"task: {{name: parity}}\n{section}\n")
    assert run_failing_command("train", "--config", path, "--quick", "--out", tmp_path / "run") == f"longscan: {path}: {message}"


def test_unknown_setting_in_the_quick_section_fails(run_failing_command: Callable[..., str], tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("task: {name: parity}\nquick: {training: {step: 3}}\n")
    line = run_failing_command("train", "--config", path, "--quick", "--out", tmp_path / "run")
    assert line.startswith("longscan: `training.step` is an unknown setting; did you mean steps?")


def test_quick_without_recipe_or_section_fails(run_failing_command: Callable[..., str], tmp_path: Path) -> None:
    path = tmp_path / "full.yaml"
    path.write_text(yaml.safe_dump(RECIPE))
    line = run_failing_command("train", "--config", path, "--quick", "--out", tmp_path / "run")
    assert line == f"longscan: `--config` must be a recipe with a section 'quick' for --quick, got {path}"
    other = tmp_path / "other.yaml"
    other.write_text(path.read_text())
    line = run_failing_command("train", "--config", path, "--config", other, "--quick", "--out", tmp_path / "run")
    assert line.endswith(f"a section 'quick' for --quick, got {other}"), "the last file"
    line = run_failing_command("train", "--task", "parity", "--quick", "--out", tmp_path / "run")
    assert line == "longscan: `--config` must be the recipe whose quick section --quick takes, got nothing"


def test_resuming_with_the_other_size_fails(recipe: Path, run_failing_command: Callable[..., str], tmp_path: Path) -> None:
    argv = ["train", "--config", str(recipe), "--out"]
    full, quick = str(tmp_path / "full"), str(tmp_path / "quick")
    assert main([*argv, full]) == 0
    assert main([*argv, quick, "--quick"]) == 0
    line = run_failing_command(*argv, full, "--quick", "--resume")
    assert line == f"longscan: `--quick` must be left out, as {full} is a run of its recipe's full size, got --quick"
    line = run_failing_command(*argv, quick, "--resume")
    assert line == f"longscan: `--quick` must be given, as {quick} is a run of its recipe's quick size, got nothing"
    assert run_failing_command("train", "--out", full, "--quick", "--resume").startswith(
        "longscan: `--config` must be the recipe"
    )
    for options in ([], ["--quick"]):
        assert main(["train", "--out", quick, "--resume", "--steps", "4", *options]) == 0
        assert Run(quick).settings.about.quick
    result = Run(quick).result
    assert result is not None
    assert result["steps"] == 4


def test_chosen_on_is_validation_or_test() -> None:
    assert AboutSettings().chosen_on is None
    with pytest.raises(SettingError, match=r"^`about\.chosen_on` must be one of validation, test or None, got 'train'"):
        AboutSettings(chosen_on="train")  # type: ignore[arg-type]


def test_quick_results_are_in_a_separate_table(recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records, page = tmp_path / "results" / "runs" / "x.jsonl", tmp_path / "page.md"
    for options in ([], ["--quick"]):
        out = str(tmp_path / f"run{len(options)}")
        assert main(["train", "--config", str(recipe), "--out", out, "--record", str(records), *options]) == 0
    rows = read_records(records)
    assert [(row["quick"], row["published"]) for row in rows] == [(False, ["r036"]), (True, None)]
    assert "quick size" in (tmp_path / "run1" / "report.html").read_text("utf-8")
    page.write_text("<!-- results -->\n<!-- /results -->\nbetween\n<!-- quick -->\n<!-- /quick -->\n")
    assert main(["report", str(records.parents[1]), "--markdown", str(page)]) == 0
    full, _, quick = page.read_text("utf-8").partition("between")
    assert "--quick" not in full
    assert rows[0]["command"] in full
    assert [row["chosen_on"] for row in rows] == ["validation"] * 2
    assert "recipe chosen by validation scores |" in full
    assert quick.count("| `longscan train") == 1
    assert rows[1]["command"] in quick
    capsys.readouterr()
    assert main(["report", str(records.parents[1])]) == 0
    assert "quick" in (records.parents[1] / "report.html").read_text("utf-8")


def test_page_of_recipes_has_the_recorded_table() -> None:
    page = (ROOT / "docs" / "howto" / "recipes.md").read_text("utf-8")
    table = page.split("<!-- quick -->")[1].split("<!-- /quick -->")[0]
    assert table.strip() == quick_markdown(ROOT / "results").strip(), "run: longscan report results --markdown"


def test_recorded_quick_runs_beat_the_constant_predictor() -> None:
    rows = read_records(ROOT / "results" / "runs" / "quick.jsonl")
    recipes = {f"{path.parent.name}/{path.stem}" for path in RECIPES}
    for row in rows:
        assert row["quick"]
        assert row["recipe"].removeprefix("recipes/").removesuffix(".yaml") in recipes
        higher_is_better = TASKS[row["task"].partition("/")[0]].higher_is_better
        beats = row["value"] > row["constant"] if higher_is_better else row["value"] < row["constant"]
        assert beats or row["task"] == "pathfinder", row["recipe"]
