"""The record of a run: machine, baselines and the file of records; and errors of the pooling and of nested settings."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from longscan.tasks.fitted import FitProgress
from longscan.training import ModelSettings, SettingError, SweepConfig, parse_settings
from longscan.training import run as run_module
from longscan.training.records import check_target, read_baselines, write_baselines
from longscan.training.run import build_model, device_name
from longscan.training.space import read_sweep_file


def test_device_name_of_a_cpu_is_its_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    monkeypatch.setattr(run_module, "Path", lambda path: cpuinfo if path == "/proc/cpuinfo" else Path(path))
    monkeypatch.setattr(run_module.platform, "processor", lambda: "")
    monkeypatch.setattr(run_module.platform, "machine", lambda: "riscv64")
    threads = torch.get_num_threads()
    assert device_name(torch.device("cpu")) == f"cpu, riscv64, {threads} threads"
    cpuinfo.write_text("processor : 0\nmodel name\t: First: one\nmodel name\t: Second\n")
    assert device_name(torch.device("cpu")) == f"cpu, First: one, {threads} threads"
    assert device_name(torch.device("meta")) == "meta"


def make_run(folder: Path) -> Any:
    """Return a run whose task has a baseline without parameters and a fitted one of two parts."""

    def fitted_baselines(split: str, seed: int, on_progress: FitProgress) -> dict[str, float]:
        for done in range(3):
            on_progress("ridge", done, 2)
        return {"ridge": float(seed + len(split))}

    task = SimpleNamespace(
        baselines=lambda split: {"last value": float(len(split))},
        fitted_baselines=fitted_baselines,
    )
    return SimpleNamespace(folder=folder, settings=SimpleNamespace(task=task, training=SimpleNamespace(seed=7)))


def test_baselines_of_a_folder_that_cannot_be_written_are_returned(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = make_run(tmp_path / "file" / "run")
    (tmp_path / "file").write_text("")
    assert write_baselines(run, fitted=False) == {"last value": 4.0}
    assert "baselines.json cannot be written (Not a directory)" in caplog.text


def test_baselines_are_stored_in_the_directory_of_the_run(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    assert read_baselines(run) == {}
    assert write_baselines(run, fitted=False) == {"last value": 4.0}
    assert read_baselines(run) == {"last value": 4.0}
    calls: list[tuple[str, int, int]] = []
    assert write_baselines(run, on_progress=lambda *call: calls.append(call)) == {"last value": 4.0, "ridge": 11.0}
    assert calls == [("ridge", 0, 2), ("ridge", 1, 2), ("ridge", 2, 2)]
    assert json.loads((tmp_path / "baselines.json").read_text()) == {"last value": 4.0, "ridge": 11.0}
    (tmp_path / "baselines.json").write_text('{"ridge": ')
    with pytest.raises(SettingError, match=r"baselines\.json is damaged \(.*\); `longscan baselines` writes it"):
        read_baselines(run)


def test_target_of_a_record_outside_of_runs_raises(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    folder.mkdir()
    check_target(folder / "new.jsonl")
    assert not (folder / "new.jsonl").exists()
    for target in (tmp_path / "new.jsonl", folder, tmp_path / "runs" / "inner" / "new.jsonl"):
        with pytest.raises(SettingError, match=r"`--record` must be a JSON Lines file in a folder called runs, got '.*'"):
            check_target(target)
    (folder / "damaged.jsonl").write_text("{}\n")
    with pytest.raises(SettingError, match=r"`--record` must be a file with valid records, got .*damaged\.jsonl, line 1"):
        check_target(folder / "damaged.jsonl")


@pytest.mark.parametrize(
    ("task", "pooling", "needed"),
    [
        ("pathfinder", "none", "mean or last, as the task wants one answer"),
        ("repetition", "mean", "none, as the task wants an answer at every step"),
        ("repetition", "last", "none, as the task wants an answer at every step"),
    ],
)
def test_pooling_that_does_not_fit_the_task_raises(task: str, pooling: str, needed: str) -> None:
    settings = parse_settings(["--task.name", task, "--model.d_model", "4", "--model.pooling", pooling])
    with pytest.raises(SettingError, match=f"`model.pooling` must be {needed}, got '{pooling}'"):
        build_model(settings)
    assert ModelSettings().pooling == "auto"


def test_unknown_nested_setting_raises_and_names_similar_ones() -> None:
    with pytest.raises(SettingError, match=r"`training\.curriculum\.strat` is an unknown setting.*start"):
        parse_settings(["--task.name", "parity", "--training.curriculum.strat", "3"])


@pytest.mark.parametrize("argv", ["--task parity", ["--task", "parity", "--steps", 5], [Path("--quick")], None], ids=str)
def test_arguments_that_are_no_list_of_texts_raise(argv: Any) -> None:
    with pytest.raises(SettingError, match=r"^`argv` must be a list of texts, such as \['--task', 'parity'\], got "):
        parse_settings(argv)


@pytest.mark.parametrize(
    ("base", "message"),
    [
        ("task: parity", "`base` must be a mapping of sections to mappings of settings, or None, got 'task: parity'"),
        ({"modle": {"d_model": 4}}, "base: each section must be one of task, model, training, about, got 'modle'"),
        ({"task": "parity"}, "base: `task` must be a mapping of settings, got text"),
    ],
)
def test_base_of_other_sections_raises(base: Any, message: str) -> None:
    with pytest.raises(SettingError, match=f"^{message}$"):
        parse_settings(["--task", "parity"], base)


@pytest.mark.parametrize(
    ("further", "model", "published"),
    [
        ([], "S7", ["r148"]),
        (["--model.spec", "s7*4", "--model.d_model", "16"], "S7", ["r148"]),
        (["--model.spec", "(s7 s7)*2"], "S7", ["r148"]),
        (["--model.spec", "s5[s7]*3 s7"], "S7", ["r148"]),
        (["--model.spec", "s7*3"], None, []),
        (["--model.spec", "gru"], None, []),
        (["--model.spec=gru", "--about.model", "GRU"], "GRU", []),
        (["--model.spec", "s5*4", "--about.model=S5", "--about.published", "[r146]"], "S5", ["r146"]),
        (["--task", "parity"], None, []),
    ],
)
def test_record_names_no_published_row_of_another_model_or_task(
    further: list[str], model: str | None, published: list[str]
) -> None:
    path = Path(__file__).parents[2] / "recipes" / "s7" / "pendulum.yaml"
    about = parse_settings(["--config", str(path), *further]).about
    assert (about.paper, about.model, about.published) == ("S7", model, published)


@pytest.mark.parametrize(
    ("content", "model", "published"),
    [
        ("model: {d_model: 16}", "S7", ["r148"]),
        ("model: {spec: s7*4}", "S7", ["r148"]),
        ("model: {spec: s7 s7 s7 s7}", "S7", ["r148"]),
        ("model: {spec: [{layer: s7, block: s5}, {layer: s7, block: s5}]}", None, []),
        ("model: {spec: gru}", None, []),
        ("task: {name: parity}", None, []),
        ("model: {spec: s5*4}\nabout: {model: S5, published: [r146]}", "S5", ["r146"]),
    ],
)
def test_a_later_file_drops_the_published_row_of_another_model_or_task(
    tmp_path: Path, content: str, model: str | None, published: list[str]
) -> None:
    recipe = Path(__file__).parents[2] / "recipes" / "s7" / "pendulum.yaml"
    later = tmp_path / "later.yaml"
    later.write_text(f"spec_version: 2\n{content}\n")
    about = parse_settings(["--config", str(recipe), "--config", str(later)]).about
    assert (about.model, about.published) == (model, published)
    sweep = tmp_path / "sweep.yaml"
    settings = "".join(f"  {line}\n" for line in content.splitlines())
    sweep.write_text(f"spec_version: 2\nconfig: {recipe}\nsettings:\n{settings}")
    about = parse_settings([], read_sweep_file(sweep)["settings"]).about
    assert (about.model, about.published) == (model, published)


def test_a_point_of_a_sweep_drops_the_published_row_of_another_model() -> None:
    recipe = Path(__file__).parents[2] / "recipes" / "s7" / "pendulum.yaml"
    settings = parse_settings(["--config", str(recipe)])
    space = {"model.spec, training.lr": [["s7*4", 0.01], ["gru", 0.01]]}
    config = SweepConfig(settings=settings, space=space)
    first, second = [config.settings_for(point, 0).about for point in config.grid_points()]
    assert (first.model, first.published) == ("S7", ["r148"])
    assert (second.paper, second.model, second.published) == ("S7", None, [])
