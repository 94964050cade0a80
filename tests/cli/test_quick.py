"""`--quick`: the section of a recipe, what refuses, and that each quick recipe trains and beats the constant predictor."""

import os
import time
from collections.abc import Callable
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
AREAS = {  # task, or task and data set -> the folder of its files where the real ones are at hand
    "lra_text": "lra",
    "lra_image": "lra",
    "forecast": "forecasting",
    "walker": "activity",
    "species": "dna",
    "dna_language": "dna",
    "uea/SelfRegulationSCP1": "uea",
}
SECONDS = 120  # of processor time
SHORT = ("mamba-lra-retrieval",)  # trained in every run of the tests


def name_of(path: Path) -> str:
    return f"{path.parent.name}-{path.stem}"


def quick_settings(path: Path, folder: Path, *words: str) -> Settings:
    """The quick settings of a recipe on made-up files."""
    found = learnable(yaml.safe_load(path.read_text())["task"], folder)
    given = [word for name, value in found.items() for word in (f"--task.{name}", str(value))]
    return parse_settings(["--config", str(path), "--quick", "--training.threads", "1", *given, *words])


@pytest.mark.parametrize("path", RECIPES, ids=name_of)
def test_every_quick_section_is_small_and_of_the_same_task(path: Path, tmp_path: Path) -> None:
    settings = quick_settings(path, tmp_path)
    recipe = yaml.safe_load(path.read_text())
    assert settings.about.quick
    assert settings.task.name == recipe["task"]["name"]
    assert sum(parameter.numel() for parameter in build_model(settings).parameters()) < 60_000
    training = settings.training
    assert training.steps <= 2000
    batch = settings.task.batch("train", 0, training.batch_size)
    assert training.steps * batch.inputs.shape[0] * batch.inputs.shape[1] < 12e6, "steps of sequences that are learned from"
    assert set(recipe["quick"]) <= {"task", "model", "training"}
    for section, values in recipe["quick"].items():
        for name, value in values.items():
            assert recipe[section].get(name) != value, f"{section}.{name} is the recipe's own"


def train_quickly(path: Path, settings: Settings, folder: Path) -> None:
    """Train; the test score must be better than the constant predictor's, within the time.

    Of Pathfinder a run to its end is asked: its models answer by chance until long after two minutes.
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


def trained(paths: list[Path]) -> list[Any]:
    return [pytest.param(path, id=name_of(path), marks=[] if name_of(path) in SHORT else pytest.mark.slow) for path in paths]


@pytest.mark.parametrize("path", trained(RECIPES))
def test_a_quick_recipe_beats_the_constant_predictor(path: Path, tmp_path: Path) -> None:
    train_quickly(path, quick_settings(path, tmp_path), tmp_path)


def area_of(path: Path) -> str | None:
    task = yaml.safe_load(path.read_text())["task"]
    return AREAS.get(task["name"], AREAS.get(f"{task['name']}/{task.get('dataset')}"))


@pytest.mark.slow
@pytest.mark.skipif(REAL is None, reason="LONGSCAN_DATA names no folder of real files")
@pytest.mark.parametrize("path", [path for path in RECIPES if area_of(path)], ids=name_of)
def test_a_quick_recipe_beats_it_on_the_real_files(path: Path, tmp_path: Path) -> None:
    folder = Path(str(REAL)) / str(area_of(path))
    if not folder.is_dir():
        pytest.skip(f"{folder} is not there")
    words = ["--config", str(path), "--quick", "--training.threads", "1", "--task.data_dir", str(folder)]
    train_quickly(path, parse_settings(words), tmp_path)


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


def test_the_section_goes_over_the_recipe_and_words_over_both(recipe: Path) -> None:
    words = ["--config", str(recipe)]
    full, quick = parse_settings(words), parse_settings([*words, "--quick"])
    assert (full.training.steps, full.model.d_state, full.about.quick) == (3, 4, False)
    assert (quick.training.steps, quick.model.d_state, quick.about.quick) == (2, 2, True)
    assert quick.model.block_options == {"m": {"expand": 1, "d_conv": 2}}
    assert quick.task == full.task
    assert parse_settings([*words, "--quick", "--training.steps", "1"]).training.steps == 1


def test_a_later_file_goes_over_the_section(recipe: Path, tmp_path: Path) -> None:
    more = tmp_path / "more.yaml"
    more.write_text("training: {steps: 5}\n")
    settings = parse_settings(["--config", str(recipe), "--config", str(more), "--quick"])
    assert (settings.training.steps, settings.model.d_state, settings.about.quick) == (5, 2, True)


def test_stored_settings_of_a_quick_run_stay_quick(recipe: Path, tmp_path: Path) -> None:
    assert main(["train", "--config", str(recipe), "--quick", "--out", str(tmp_path / "run")]) == 0
    assert parse_settings(["--config", str(tmp_path / "run" / "settings.yaml")]).about.quick


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ("quick: 3", "`quick` must be a mapping with task, model, training, got 3"),
        ("quick: {}", "`quick` must be a mapping with task, model, training, got {}"),
        ("quick: {about: {paper: S7}}", "each section of `quick` must be one of task, model, training, got 'about'"),
        ("quick: {model: 3}", "`quick.model` must be a mapping of settings, got 3"),
        ("quick: {task: {name: set}}", "`quick.task.name` must be left out, as a quick run is of the recipe's task, got 'set'"),
    ],
)
def test_a_section_that_cannot_be_used(section: str, said: str, refused: Callable[..., str], tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(f"task: {{name: parity}}\n{section}\n")
    assert refused("train", "--config", path, "--quick", "--out", tmp_path / "run") == f"longscan: {path}: {said}"


def test_a_setting_that_is_unknown_in_the_section(refused: Callable[..., str], tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("task: {name: parity}\nquick: {training: {step: 3}}\n")
    line = refused("train", "--config", path, "--quick", "--out", tmp_path / "run")
    assert line.startswith("longscan: `training.step` is an unknown setting; did you mean steps?")


def test_a_recipe_without_a_section_and_no_recipe(refused: Callable[..., str], tmp_path: Path) -> None:
    path = tmp_path / "full.yaml"
    path.write_text(yaml.safe_dump(RECIPE))
    line = refused("train", "--config", path, "--quick", "--out", tmp_path / "run")
    assert line == f"longscan: `--config` must be a recipe with a section 'quick' for --quick, got {path}"
    line = refused("train", "--task", "parity", "--quick", "--out", tmp_path / "run")
    assert line == "longscan: `--config` must be the recipe whose quick section --quick takes, got nothing"


def test_resume_keeps_to_the_size(recipe: Path, refused: Callable[..., str], tmp_path: Path) -> None:
    words = ["train", "--config", str(recipe), "--out"]
    full, quick = str(tmp_path / "full"), str(tmp_path / "quick")
    assert main([*words, full]) == 0
    assert main([*words, quick, "--quick"]) == 0
    line = refused(*words, full, "--quick", "--resume")
    assert line == f"longscan: `--quick` must be left out, as {full} is a run of its recipe's full size, got --quick"
    line = refused(*words, quick, "--resume")
    assert line == f"longscan: `--quick` must be given, as {quick} is a run of its recipe's quick size, got nothing"
    assert refused("train", "--out", full, "--quick", "--resume").startswith("longscan: `--config` must be the recipe")
    for more in ([], ["--quick"]):
        assert main(["train", "--out", quick, "--resume", "--steps", "4", *more]) == 0
        assert Run(quick).settings.about.quick
    result = Run(quick).result
    assert result is not None
    assert result["steps"] == 4


def test_a_recipe_is_chosen_on_validation_or_test() -> None:
    assert AboutSettings().chosen_on is None
    with pytest.raises(SettingError, match=r"^`about\.chosen_on` must be one of validation, test or None, got 'train'"):
        AboutSettings(chosen_on="train")  # type: ignore[arg-type]


def test_quick_results_stay_apart(recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records, page = tmp_path / "results" / "runs" / "x.jsonl", tmp_path / "page.md"
    for words in ([], ["--quick"]):
        out = str(tmp_path / f"run{len(words)}")
        assert main(["train", "--config", str(recipe), "--out", out, "--record", str(records), *words]) == 0
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


def test_the_page_of_recipes_holds_the_recorded_table() -> None:
    page = (ROOT / "docs" / "howto" / "recipes.md").read_text("utf-8")
    table = page.split("<!-- quick -->")[1].split("<!-- /quick -->")[0]
    assert table.strip() == quick_markdown(ROOT / "results").strip(), "`longscan report results --markdown` writes it anew"


def test_recorded_quick_runs_beat_the_constant_predictor() -> None:
    rows = read_records(ROOT / "results" / "runs" / "quick.jsonl")
    recipes = {f"{path.parent.name}/{path.stem}" for path in RECIPES}
    for row in rows:
        assert row["quick"]
        assert row["recipe"].removeprefix("recipes/").removesuffix(".yaml") in recipes
        better = TASKS[row["task"].partition("/")[0]].higher_is_better
        beats = row["value"] > row["constant"] if better else row["value"] < row["constant"]
        assert beats or row["task"] == "pathfinder", row["recipe"]
