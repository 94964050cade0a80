"""Models, runs, sweeps, recipes and records of earlier versions are read with the same results."""

import json
import shutil
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file
from torch.testing import assert_close

from longscan import models
from longscan._specs import upgrade_settings
from longscan.cli import main
from longscan.report import read_records, results_markdown
from longscan.report.records import check_record
from longscan.training import Run, Settings, parse_settings
from longscan.training.run import build_model
from longscan.training.space import SweepConfig, read_sweep_file
from longscan.training.sweep import work
from made_up import MADE_UP

ROOT = Path(__file__).parent
FOLDERS = sorted(path.parent for path in ROOT.glob("*/about.json"))
MODELS = sorted(path.parent for folder in FOLDERS for path in folder.glob("models/*/class.txt"))
SWEEPS = sorted(path for folder in FOLDERS for path in folder.glob("recipes/*/sweeps/*.yaml"))
RECIPES = sorted({path for folder in FOLDERS for path in folder.glob("recipes/**/*.yaml")} - set(SWEEPS))
TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}  # versions of torch round differently, and training amplifies the differences


def relative_name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_folders_have_files_of_each_kind() -> None:
    assert FOLDERS
    for folder in FOLDERS:
        kinds = {"models": 28, "runs": 3, "recipes": 4, "records": 5, "sweep": 3}
        found = {kind: len(list((folder / kind).iterdir())) for kind in kinds}
        assert all(found[kind] >= count for kind, count in kinds.items()), found


@pytest.mark.parametrize("folder", MODELS, ids=relative_name)
def test_models_give_the_same_outputs(folder: Path) -> None:
    tensors = load_file(folder / "shown.safetensors")
    inputs = [tensors[f"input_{number}"] for number in range(len(tensors) - 1)]
    model = getattr(models, (folder / "class.txt").read_text().strip()).from_pretrained(folder).eval()
    with torch.no_grad():
        assert_close(model(*inputs), tensors["output"], **TOLERANCE)


@pytest.mark.parametrize("name", ["finished", "regression"])
@pytest.mark.parametrize("folder", FOLDERS, ids=relative_name)
def test_runs_give_the_same_weights_and_scores(folder: Path, name: str) -> None:
    run = Run(folder / "runs" / name)
    assert run.result is not None
    weights = load_file(folder / "runs" / name / "selected.safetensors")
    loaded = run.model().state_dict()
    assert loaded.keys() == weights.keys()
    assert all(torch.equal(loaded[name], value) for name, value in weights.items())
    scores = run.evaluate("test")
    assert_close(scores.loss, run.result["test"]["loss"], **TOLERANCE)
    assert_close(scores.values[run.result["metric"]], run.result["value"], **TOLERANCE)


@pytest.mark.parametrize("folder", FOLDERS, ids=relative_name)
def test_stopped_run_resumes_to_the_same_result(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(folder / "runs" / "stopped", tmp_path / "run")
    settings = tmp_path / "run" / "settings.yaml"
    stopped_step = json.loads((tmp_path / "run" / "checkpoints" / "last" / "state.json").read_text())["step"]
    assert main(["train", "--config", str(settings), "--out", str(tmp_path / "run"), "--resume"]) == 0
    whole, resumed = Run(folder / "runs" / "finished"), Run(tmp_path / "run")
    assert whole.result is not None
    assert resumed.result is not None
    assert 0 < stopped_step < resumed.result["steps"] == whole.result["steps"]
    expected, actual = whole.model().state_dict(), resumed.model().state_dict()
    for name, value in expected.items():
        assert_close(actual[name], value, rtol=1e-3, atol=1e-4, msg=name)
    assert_close(resumed.result["test"]["loss"], whole.result["test"]["loss"], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("folder", FOLDERS, ids=relative_name)
def test_stopped_sweep_resumes_to_the_same_result(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(folder / "sweep" / "stopped", tmp_path / "sweep")
    first = tmp_path / "sweep" / "trials" / "0000" / "seed_0" / "result.json"
    modified = first.stat().st_mtime_ns
    work(tmp_path / "sweep")  # as a worker of `longscan sweep --resume`, but in this process
    assert main(["sweep", "--out", str(tmp_path / "sweep"), "--resume"]) == 0
    assert first.stat().st_mtime_ns == modified, "a finished trial is not run again"
    expected, actual = (json.loads(path.read_text()) for path in (folder / "sweep/expected.json", tmp_path / "sweep/sweep.json"))
    check_record("sweep", actual)
    check_record("sweep", expected)
    assert actual["status"] == expected["status"] == "finished"
    pairs = list(zip(actual["trials"] + actual["seeds"], expected["trials"] + expected["seeds"], strict=True))
    assert len(pairs) > 2
    for result, expected_result in pairs:
        assert_close(result["score"], expected_result["score"], **TOLERANCE)


def iterate_values(content: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the paths and values of a nested mapping."""
    for name, value in content.items():
        if isinstance(value, dict) and value:
            yield from iterate_values(value, (*path, name))
        else:
            yield (*path, name), value


def normalise(value: Any) -> Any:
    """Return a value with tuples as lists, and with numbers that YAML reads as text as numbers."""
    if isinstance(value, list | tuple):
        return [normalise(part) for part in value]
    try:
        return float(value)
    except (TypeError, ValueError):
        return value


def read_settings(argv: list[str], task: str, folder: Path, base: dict[str, Any] | None = None) -> Settings:
    """Return the settings, with a folder of small generated files if the task reads files."""
    data = MADE_UP.get(task, lambda _: {})(folder)
    data_options = ["--task.data_dir", data["data_dir"]] if "data_dir" in data else []
    return parse_settings([*argv, *data_options], base=base)


@pytest.mark.parametrize("path", RECIPES, ids=relative_name)
def test_recipes_have_the_same_settings(path: Path, tmp_path: Path) -> None:
    written = upgrade_settings(yaml.safe_load(path.read_text()))
    written.pop("quick", None)
    settings = read_settings(["--config", str(path)], written["task"]["name"], tmp_path)
    found = dict(iterate_values(settings.as_dict()))
    for key, value in iterate_values(written):
        assert normalise(found[key]) == normalise(value), ".".join(key)
    build_model(settings)


@pytest.mark.parametrize("path", SWEEPS, ids=relative_name)
def test_sweep_files_have_the_same_plan(path: Path, tmp_path: Path) -> None:
    options, written = read_sweep_file(path), yaml.safe_load(path.read_text())
    config = ["--config", str(path.parents[1] / "parity.yaml")] if "config" not in written else []
    base = options.pop("settings", None)
    plan = SweepConfig(settings=read_settings(config, base["task"]["name"] if base else "parity", tmp_path, base), **options)
    assert list(plan.dimensions) == list(written["space"])
    values = written["space"].values()
    assert len(plan.grid_points()) == (written.get("trials") or prod(len(value) for value in values))
    assert len(plan.seeds_of_test()) == written["seeds"]


@pytest.mark.parametrize("folder", FOLDERS, ids=relative_name)
def test_records_are_read(folder: Path) -> None:
    records = folder / "records"
    for kind in ("runs", "bench", "automata"):
        paths = sorted((records / kind).glob("*.jsonl"))
        assert paths
        for path in paths:
            assert len(read_records(path)) == len(path.read_text("utf-8").splitlines()) > 0
    for path in [*(records / "seeds").glob("*.json"), *(records / "table1").rglob("*.json")]:
        check_record("seeds", json.loads(path.read_text("utf-8")))
    assert "|" in results_markdown(records)
