"""Every recipe is read, built and trained for two steps, on generated files if its data are missing."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from learnable import uea
from longscan.report import results_report
from longscan.reproduce import PublishedRow, read_rows
from longscan.training import Run, parse_settings, record_run, train
from longscan.training.evaluate import predict
from longscan.training.run import build_model
from longscan.training.space import SweepConfig, read_sweep_file
from made_up import EVENTS, FORMS, MADE_UP, table
from published_settings import FORMAL, SERIES

ROOT = Path(__file__).parents[2]
SWEEPS = sorted((ROOT / "recipes").glob("*/sweeps/*.yaml"))
RECIPES = sorted(set((ROOT / "recipes").rglob("*.yaml")) - set(SWEEPS))
PUBLISHED = FORMAL | SERIES


def write_task_files(task: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Write small files for a task; return settings with their directory and with small numbers of generated examples."""
    if task["name"] == "events" and task["dataset"] != "nmnist":
        return EVENTS[task["dataset"]](folder)
    settings = MADE_UP[task["name"]](folder)
    if task["name"] == "forecast":
        rows, variables = {"WTH": (7300, 12), "ETTh1": (20 * 30 * 24, 7)}[task["dataset"]]
        (folder / f"{task['dataset']}.csv").write_text(table(rows, variables))
        return {"data_dir": settings["data_dir"]}
    if task.get("resolution", 32) > 32:
        return {**settings, "train_size": 4, "valid_size": 4, "test_size": 4}
    return settings


def shorten_recipe(path: Path, tmp_path: Path) -> list[str]:
    """Return the arguments that run a recipe for two steps on small data."""
    argv = [
        "--config",
        str(path),
        "--training.steps",
        "2",
        "--training.batch_size",
        "4",
        "--training.threads",
        "1",
        "--training.warmup",
        "0",
    ]
    argv += ["--training.eval_batches", "1", "--training.test_batches", "1", "--training.cooldown", "0"]
    task = yaml.safe_load(path.read_text())["task"]
    if task["name"] in MADE_UP:
        folder = tmp_path / "data"
        folder.mkdir()
        settings = write_task_files(task, folder)
        return argv + [text for name, value in settings.items() for text in (f"--task.{name}", str(value))]
    if task["name"] != "uea":
        return [*argv, "--task.eval_lengths", "[41, 48]", "--task.valid_size", "4", "--task.test_size", "4"]
    if task["dataset"] in FORMS:
        argv += ["--task.data_dir", uea(tmp_path, task["dataset"], each=4, length=10)["data_dir"]]
    return argv


# `make test` trains the recipes for beginners and one of the AUSSM paper for each kind of task.
FAST = [p for p in RECIPES if p.parent.name == "quickstart" or (p.parent.name == "aussm" and p.stem in ("heartbeat", "parity"))]
RUNS = [pytest.param(p, id=f"{p.parent.name}-{p.stem}", marks=[] if p in FAST else pytest.mark.slow) for p in RECIPES]


@pytest.mark.parametrize("path", RUNS)
def test_recipe_trains_and_is_recorded(path: Path, tmp_path: Path) -> None:
    settings = parse_settings(shorten_recipe(path, tmp_path))
    assert sum(p.numel() for p in build_model(settings).parameters()) > 0
    run = train(settings, tmp_path / "run")
    assert run.result is not None
    assert run.result["status"] == "finished"
    record_run(run, tmp_path / "results" / "runs" / "x.jsonl")
    page = results_report(tmp_path / "results", tmp_path / "page.html")
    assert Path(page).exists()
    assert Run(run.folder).settings.about.recipe == str(path)


ROWS = [
    row
    for row in read_rows()
    if row.status == "recipe"
    and row.settings
    and row.candidate_of is None
    and row.figure["paper"] in ("AUSSM", "MAMBA_LRA", "THESIS")
]


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_row_makes_an_update(row: PublishedRow, tmp_path: Path) -> None:
    """Rows that replace settings of a shared recipe, such as its blocks; the made-up genomes have other species."""
    assert row.recipe is not None
    left_out = "training.capture", *(["task."] if row.data == "genomes" else [])
    values = {name: value if isinstance(value, str) else json.dumps(value) for name, value in row.settings.items()}
    words = [f"--{name}={value}" for name, value in values.items() if not name.startswith(left_out)]
    settings = parse_settings([*shorten_recipe(ROOT / row.recipe, tmp_path), *words, "--training.steps", "1"])
    assert (train(settings, tmp_path / "run").result or {})["status"] == "finished"


SLOW_TO_GENERATE = "pathfinder_64"
OTHERS = [p for p in RECIPES if p not in FAST and p.stem != SLOW_TO_GENERATE]


SLOW_TO_RUN = ("path_x", "fitzhugh_nagumo")


@pytest.mark.parametrize(
    "path",
    [pytest.param(p, id=f"{p.parent.name}-{p.stem}", marks=pytest.mark.slow if p.stem in SLOW_TO_RUN else ()) for p in OTHERS],
)
def test_model_of_a_recipe_accepts_its_data(path: Path, tmp_path: Path) -> None:
    settings = parse_settings(shorten_recipe(path, tmp_path))
    batch = settings.task.batch("train", 0, 2)
    with torch.no_grad():
        output = predict(build_model(settings), batch)
    assert settings.task.loss(output, batch).isfinite()


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_recipe_has_a_comment_and_its_number_of_steps(path: Path) -> None:
    recipe = yaml.safe_load(path.read_text())
    assert recipe["training"]["steps"] > 0
    assert path.read_text().startswith("# ")


@pytest.mark.parametrize("name", PUBLISHED)
def test_recipe_has_the_published_settings(name: str) -> None:
    recipe = yaml.safe_load((ROOT / "recipes" / "aussm" / f"{name}.yaml").read_text())
    model, training = recipe["model"], recipe["training"]
    found = (model["spec"], model["d_model"], model["d_state"], training["weight_decay"], training["lr"])
    assert found == PUBLISHED[name]
    formal = recipe["task"]["name"] != "uea"
    assert (training["batch_size"], training["steps"]) == ((256, 100_000) if formal else (64, 50_000))
    assert training.get("loss_reduction", "mean") == ("sum" if formal else "mean")
    assert training["clip"] == 1.0
    assert model["block_options"]["m"] == {"variant": "aussm"}, "the authors' hybrids have their own Mamba block"


GRIDS = {  # of the papers: sweep file -> (its recipes, points of the grid, seeds of the search, seeds of the test)
    "aussm-hybrid": (("parity",), 4 * 4 * 3 * 3 * 3, 5, 5),
    "aussm-pure": (("parity",), 3 * 4 * 3 * 3 * 3, 5, 5),
    "aussm-series": (("heartbeat",), 3 * 3 * 3, 5, 20),
    "aussm-splits": (("self_regulation_scp1",), 0, 1, 20),
    "aussm-weather": ((), 3 * 3 * 3, 5, 20),
    "thesis-bidirectional": ((), 4, 5, 5),
    "quickstart-basic_motions": ((), 12, 1, 5),
    "s7-dense_rate": ((), 4, 3, 3),
}


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: f"{path.parts[-3]}-{path.stem}")
def test_sweep_file_has_the_published_grid(path: Path, tmp_path: Path) -> None:
    recipes, number, search_seeds, test_seeds = GRIDS[f"{path.parts[-3]}-{path.stem}"]
    assert path.read_text().startswith("# ")
    for recipe in [path.parents[1] / f"{name}.yaml" for name in recipes] or [None]:
        values = read_sweep_file(path)
        settings = values.pop("settings", {})
        folder = tmp_path / str(recipe and recipe.stem)
        folder.mkdir()
        argv = shorten_recipe(recipe or Path(settings["about"]["recipe"]), folder)
        plan = SweepConfig(settings=parse_settings(argv if recipe else argv[2:], base=settings), **values)
        assert (len(plan.grid_points()), len(plan.seeds_of_search()), len(plan.seeds_of_test())) == (
            number,
            search_seeds,
            test_seeds,
        )
        assert not plan.space or not set(plan.seeds_of_search()) & set(plan.seeds_of_test())
        plan.check_probes()


def test_every_sweep_file_has_an_entry_in_grids() -> None:
    assert {f"{path.parts[-3]}-{path.stem}" for path in SWEEPS} == set(GRIDS)
