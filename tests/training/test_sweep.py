"""Sweeps: what is tried, what is chosen and by which split, and that no kill loses or repeats anything."""

import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing.forkserver import ensure_running
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from filelock import FileLock
from optuna.trial import TrialState

import longscan.report
from fork_server import PROCESSES
from longscan.report import run_report, sweep_report
from longscan.report.sweep import settings_text
from longscan.tasks import TASKS
from longscan.training import ModelSettings, Run, SettingError, Settings, SweepConfig, TrainingSettings, sweep, train, workers
from longscan.training.checkpoint import read_tensors
from longscan.training.logs import read_rows
from longscan.training.space import read_sweep_file
from longscan.training.sweep import Sweep, open_sweep, run_sweep, work

GRID = {"training.lr": [1e20, 1e-2], "model.spec, model.block_options": [["ma", {}], ["m", {"m": {"d_conv": 2}}]]}


def report_of_one(folder: Path) -> Path:
    """Write the report of one run only: the pages take longer than these runs."""
    return run_report(folder) if "0000" in folder.parts else folder


@pytest.fixture(autouse=True, scope="module")
def _one_report() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(longscan.report, "run_report", report_of_one)
        yield


def result_of(config: SweepConfig, folder: Path, *, resume: bool = False) -> dict[str, Any]:
    """Run a sweep in this process and return its result."""
    return run_sweep(config, folder, resume=resume, echo=lambda _: None).result()


@pytest.fixture(scope="module")
def config() -> SweepConfig:
    """Four settings of two seeds each, two of which diverge; two seeds of the best."""
    task = TASKS["parity"](train_lengths=(3, 8), eval_lengths=(9, 12), valid_size=16, test_size=24)
    model = ModelSettings(spec="ma", d_model=4, d_state=2, backend="eager")
    training = TrainingSettings(
        steps=4, batch_size=8, eval_every=4, log_every=1, checkpoint_every=1, threads=1, device="cpu", seed=7
    )
    settings = Settings(task=task, model=model, training=training)
    return SweepConfig(settings=settings, space=GRID, search_seeds=2, seeds=2, command="a command")


@pytest.fixture(scope="module")
def whole(config: SweepConfig, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The sweep that nothing disturbed: its folder and what came of it."""
    ensure_running()  # the imports of the processes of a later test go on meanwhile
    folder = tmp_path_factory.mktemp("whole") / "sweep"
    return folder, result_of(config, folder)


def weights(folder: Path) -> dict[str, Any]:
    """The last weights of every run below a folder."""
    paths = sorted(folder.rglob("checkpoints/last/model.safetensors"))
    return {str(path.relative_to(folder)): read_tensors(path) for path in paths}


def same_weights(left: Path, right: Path) -> bool:
    ours, theirs = weights(left), weights(right)
    assert ours.keys() == theirs.keys()
    return all(torch.equal(ours[run][name], theirs[run][name]) for run in ours for name in ours[run])


def test_every_point_is_tried_and_failures_are_kept(config: SweepConfig, whole: tuple[Path, dict[str, Any]]) -> None:
    folder, found = whole
    assert found["status"] == "finished"
    values = [row["settings"] for row in found["trials"]]
    assert values == config.grid_points()
    assert len({json.dumps(point) for point in values}) == 4
    for row in found["trials"]:
        diverges = row["settings"]["training.lr"] == 1e20
        assert row["status"] == ("failed" if diverges else "finished")
        assert len(row["runs"]) == (1 if diverges else 2)
        assert ("was not finite" in row["failure"]) if diverges else row["failure"] is None
        for run in row["runs"]:
            settings = Run(folder / run["folder"]).settings
            assert settings == config.settings_for(row["settings"], run["seed"])
        if not diverges:
            results = [Run(folder / run["folder"]).result for run in row["runs"]]
            assert row["score"] == pytest.approx(sum(r["valid"][r["selected"]] for r in results if r) / 2)
            assert [r and r["value"] for r in results] == [None, None], "the search has no test scores"
    assert (folder / "trials" / "0000" / "seed_7" / "report.html").exists(), "a failed run has its report too"


def test_the_best_on_validation_is_tested_with_seeds_of_its_own(
    config: SweepConfig, whole: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    folder, found = whole
    scores = [row["score"] for row in found["trials"]]
    best = max(range(4), key=lambda place: (-1 if scores[place] is None else scores[place], -place))
    assert found["best"] == found["trials"][best]
    assert [row["seed"] for row in found["seeds"]] == [9, 10]
    values = [row["score"] for row in found["seeds"]]
    assert found["test"]["mean"] == pytest.approx(sum(values) / 2)
    assert found["test"]["constant"] == pytest.approx(config.settings.task.constant_score("test"))
    alone = train(config.settings_for(found["best"]["settings"], 10), tmp_path / "alone").result
    assert alone is not None
    assert alone["value"] == values[1]
    assert (folder / "seeds" / f"trial_{best:04d}" / "seed_10" / "result.json").exists()


def test_the_search_does_not_touch_the_test_split_and_a_database_keeps_its_trials(
    config: SweepConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = type(config.settings.task)
    asked: list[tuple[str, bool]] = []

    def watched(name: str) -> None:
        whole = getattr(kind, name)

        def method(self: Any, split: Any = "test", *rest: Any) -> Any:
            asked.append((split, one.search.is_over()))
            return whole(self, split, *rest)

        monkeypatch.setattr(kind, name, method)

    monkeypatch.setenv("PLACE", str(tmp_path))
    space, storage = {"training.lr": [1e-3, 1e-2]}, "sqlite:///$PLACE/trials.db"
    one = open_sweep(SweepConfig(settings=config.settings, space=space, seeds=1, storage=storage), tmp_path / "sweep")
    for name in ("batch", "constant_score"):
        watched(name)
    work(tmp_path / "sweep")
    assert {over for split, over in asked if split == "test"} == {True}
    assert {over for split, over in asked if split == "valid"} == {False, True}
    assert [row["status"] for row in one.result()["trials"]] == ["finished"] * 2
    assert (tmp_path / "trials.db").exists()
    assert not (tmp_path / "sweep" / "journal.log").exists()
    assert "$PLACE" in (tmp_path / "sweep" / "sweep.yaml").read_text()


def test_seeds_without_a_space(config: SweepConfig, tmp_path: Path) -> None:
    found = result_of(SweepConfig(settings=config.settings, seeds=2, with_seed=["training.data_seed"]), tmp_path / "seeds")
    assert (found["trials"], found["best"], [row["seed"] for row in found["seeds"]]) == ([], None, [7, 8])
    assert Run(tmp_path / "seeds" / "seeds" / "seed_8").settings.training.data_seed == 8
    more = SweepConfig(settings=config.settings, seeds=3, with_seed=["training.data_seed"])
    open_sweep(more, tmp_path / "seeds", resume=True)
    before = (tmp_path / "seeds" / "seeds" / "seed_8" / "result.json").stat()
    work(tmp_path / "seeds")
    found = Sweep(tmp_path / "seeds").write()
    assert [row["seed"] for row in found["seeds"]] == [7, 8, 9]
    assert (tmp_path / "seeds" / "seeds" / "seed_8" / "result.json").stat() == before, "what is over is not run again"


RANGES = {
    "training.lr": {"float": [1e-4, 1e-1], "log": True},
    "training.weight_decay": {"float": [0, 0.5], "step": 0.25},
    "model.d_model": {"int": [2, 8], "step": 2},
    "model.d_state": {"int": [1, 8], "log": True},
    "task.suite": ["clean", "aussm"],
}


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_samplers(config: SweepConfig, tmp_path: Path, sampler: str) -> None:
    searched = SweepConfig(settings=config.settings, space=RANGES, sampler=sampler, trials=8, seeds=0)
    sweeps = []
    for name in ("one", "two"):
        open_sweep(searched, tmp_path / name)
        sweeps.append(Sweep(tmp_path / name))
        with_stub(sweeps[-1])
    drawn = [[row["settings"] for row in one.result()["trials"]] for one in sweeps]
    assert drawn[0] == drawn[1], "what is drawn depends on the seed and the scores alone"
    for point in drawn[0]:
        assert list(point) == list(RANGES)
        assert 1e-4 <= point["training.lr"] <= 1e-1
        assert point["training.weight_decay"] in (0.0, 0.25, 0.5)
        assert point["model.d_model"] in (2, 4, 6, 8)
        assert isinstance(point["model.d_state"], int)
        assert point["task.suite"] in ("clean", "aussm")
        assert searched.settings_for(point, 0).training.lr == point["training.lr"]
    assert len({point["training.lr"] for point in drawn[0]}) == 8
    failed = sweeps[0].result()["trials"][3]
    assert (failed["status"], failed["failure"]) == ("failed", "too wide")
    assert sweeps[0].search.study.trials[3].state is TrialState.PRUNED


def with_stub(one: Sweep) -> None:
    """Run a sweep's trials with scores without training; the fourth fails."""
    while (asked := one.ask("nobody")) is not None:
        stage, trial = asked
        if trial.user_attrs["place"] == 3:
            trial.set_user_attr("failure", "too wide")
            stage.study.tell(trial, state=TrialState.PRUNED)
        else:
            stage.study.tell(trial, trial.params["training.lr"])


def test_a_setting_that_a_run_refuses_is_a_failed_trial(config: SweepConfig, tmp_path: Path) -> None:
    space = {"training.warmup": {"int": [0, 4]}, "training.hold": {"int": [0, 4]}}
    found = result_of(SweepConfig(settings=config.settings, space=space, sampler="random", trials=5, seeds=0), tmp_path / "sweep")
    for row in found["trials"]:
        fits = sum(row["settings"].values()) <= 4
        assert row["status"] == ("finished" if fits else "failed")
        assert fits or row["failure"].startswith("`training.warmup` must be")
    assert {row["status"] for row in found["trials"]} == {"finished", "failed"}


def test_an_error_is_kept_and_tried_again_on_resume(config: SweepConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def short_of_memory(settings: Settings, *rest: Any, **named: Any) -> Run:
        if settings.training.lr == 1e-2:
            raise RuntimeError("not enough memory:\n for this one")
        return train(settings, *rest, **named)

    monkeypatch.setattr(sweep, "train", short_of_memory)
    found = result_of(SweepConfig(settings=config.settings, space={"training.lr": [1e-2, 1e-3]}, seeds=1), tmp_path / "sweep")
    assert [row["status"] for row in found["trials"]] == ["failed", "finished"]
    assert found["trials"][0]["failure"] == "RuntimeError: not enough memory: for this one"
    assert found["seeds"][0]["status"] == "finished"
    monkeypatch.undo()
    result = tmp_path / "sweep" / "trials" / "0001" / "seed_7" / "result.json"
    before = result.stat()
    found = result_of(Sweep(tmp_path / "sweep").config, tmp_path / "sweep", resume=True)
    assert [row["status"] for row in found["trials"]] == ["finished"] * 2
    assert result.stat() == before, "what is over is not run again"


def in_process(folder: Path, errors: Path) -> None:
    descriptor = os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 2)
    longscan.report.run_report = report_of_one  # type: ignore[misc]
    work(folder)


def start(folder: Path) -> Any:
    process = PROCESSES.Process(target=in_process, args=(folder, folder / "errors.txt"))
    process.start()
    return process


def wait_for(process: Any, happened: Callable[[], bool]) -> None:
    while process.is_alive() and not happened():
        time.sleep(0.002)
    assert process.is_alive(), "the kill came too late to test anything"


def test_kills_lose_nothing_and_count_nothing_twice(
    config: SweepConfig, whole: tuple[Path, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that is killed, another that is asked to stop, and two that share the rest give the undisturbed sweep."""
    folder = tmp_path / "sweep"
    open_sweep(config, folder)
    process = start(folder)
    log = folder / "trials" / "0002" / "seed_8" / "metrics.jsonl"
    wait_for(process, lambda: len(read_rows(log)) >= 2)
    process.kill()
    process.join()
    before = {path: path.stat() for path in folder.rglob("result.json")}
    assert Sweep(folder).result()["trials"][2]["status"] == "running"

    def stopped(*_: Any, **__: Any) -> Run:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(sweep, "train", stopped)
        with pytest.raises(KeyboardInterrupt):
            work(folder)
    assert "running" not in {row["status"] for row in Sweep(folder).result()["trials"]}, "it gives its trial back"

    process = start(folder)
    wait_for(process, (folder / "trials" / "0002" / "seed_8" / "result.json").exists)
    monkeypatch.setattr(sweep, "POLL", 0.01)
    work(folder, echo=lambda _: None)
    process.join()
    assert {path: path.stat() for path in before} == before, "what is over is not run again"
    assert same_weights(folder, whole[0])
    one = Sweep(folder)
    found, test = one.write(), one.test()
    assert test is not None
    for part in ("trials", "seeds"):
        for left, right in zip(found[part], whole[1][part], strict=True):
            assert {k: v for k, v in left.items() if k not in ("seconds", "runs")} == {
                k: v for k, v in right.items() if k not in ("seconds", "runs")
            }
    for stage in (one.search, test):
        over = [t.user_attrs["place"] for t in stage.study.trials if t.state in (TrialState.COMPLETE, TrialState.PRUNED)]
        assert sorted(over) == list(range(len(stage.points))), "every trial has one outcome"
    workers_of = {trial.user_attrs["worker"] for stage in (one.search, test) for trial in stage.study.trials}
    assert len(workers_of) == 4, "the last two share the work"


def test_a_living_worker_keeps_its_trial_and_a_dead_one_loses_it(config: SweepConfig, tmp_path: Path) -> None:
    one = open_sweep(config, tmp_path / "sweep")

    def waiting() -> list[int]:
        return sorted(trial.user_attrs["place"] for trial in one.search.study.trials if trial.state is TrialState.WAITING)

    (one.folder / "workers").mkdir()
    with FileLock(one.folder / "workers" / "living.lock"):
        assert one.ask("living") is not None
        assert one.ask("dead") is not None, "it holds no lock"
        one.enqueue_free(one.search)
        assert waiting() == [1, 2, 3]
    for _ in range(2):
        one.enqueue_free(one.search)
        assert waiting() == [0, 1, 2, 3], "queued once, however often one looks"


def test_workers_share_cores_and_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    environments = [workers.worker_environment(position, 3) for position in range(3)]
    assert [e["OMP_NUM_THREADS"] for e in environments] == ["2"] * 3
    assert [e["CUDA_VISIBLE_DEVICES"] for e in environments] == ["0", "1", "0"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    environments = [workers.worker_environment(position, 3) for position in range(3)]
    assert [(e["OMP_NUM_THREADS"], e["CUDA_VISIBLE_DEVICES"]) for e in environments] == [("3", "5"), ("3", "7"), ("3", "5")]
    assert workers.worker_environment(0, 1)["CUDA_VISIBLE_DEVICES"] == "5,7"


def test_a_torn_line_of_the_journal_is_cut_off(config: SweepConfig, tmp_path: Path) -> None:
    one = open_sweep(config, tmp_path / "sweep")
    journal = one.folder / "journal.log"
    before = journal.read_bytes()
    journal.write_bytes(before + b'{"op_code": 4, "wor')
    assert len(Sweep(one.folder).search.study.trials) == 4
    assert journal.read_bytes().startswith(before)
    assert b'"wor\n' not in journal.read_bytes()


def test_the_page_shows_trials_failures_and_seeds(whole: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    page = sweep_report(whole[0]).read_text("utf-8")
    values = {"training.lr": 0.00123456, "model.spec, model.norm": ["ma", "rms"], "task.train_lengths": [3, 8], "x": None}
    assert settings_text(values) == "training.lr 0.001235, model.spec ma, model.norm rms, task.train_lengths [3, 8], x null"
    for words in ("training.lr", "model.spec, model.block_options", "was not finite", "best constant predictor", "a command"):
        assert words in page
    assert page.count('class="plot"') == 3
    begun = {**whole[1], "status": "unfinished", "seeds": [], "test": None, "best": None}
    begun["trials"] = [{**row, "status": "waiting", "score": None, "runs": [], "settings": {}} for row in begun["trials"]]
    (tmp_path / "sweep.json").write_text(json.dumps(begun))
    assert "is not over" in sweep_report(tmp_path).read_text("utf-8")


@pytest.mark.parametrize(
    ("space", "values", "names"),
    [
        ({}, {"seeds": 0}, ["seeds", "at least 1"]),
        ({"training.lr": []}, {}, ["space.training.lr", "at least one value"]),
        ({"training.lr": [1e-3, 1e-3]}, {}, ["space.training.lr", "without repeated values"]),
        ({"training.lr": 3}, {}, ["space.training.lr", "a list of values, or a range"]),
        ({"training.lr": {"float": [1, 0]}}, {}, ["space.training.lr.float", "the smaller one first"]),
        ({"training.lr": {"float": [1e-3]}}, {}, ["space.training.lr.float", "two numbers"]),
        ({"training.lr": {"int": [1, 2.5]}}, {}, ["space.training.lr.int", "whole numbers"]),
        ({"training.lr": {"float": [0, 1], "log": True}}, {}, ["space.training.lr.log", "above 0"]),
        ({"training.lr": {"float": [0, 1], "step": 2}}, {}, ["space.training.lr.step", "fits"]),
        ({"training.lr": {"float": [0, 1], "steps": 2}}, {}, ["space.training.lr", "step, log", "'steps'"]),
        ({"training.lr": {"float": [1e-3, 1e-2]}}, {}, ["space.training.lr", "values, unless sampler is random or tpe"]),
        ({"training.lr": [1e-3]}, {"trials": 3}, ["trials", "3"]),
        ({"training.lr": [1e-3]}, {"sampler": "tpe"}, ["`trials` must be", "tpe", "got nothing"]),
        ({"training.lr": [1e-3]}, {"sampler": "tpe", "trials": 0}, ["trials", "at least 1"]),
        ({"training.lr": [1e-3]}, {"sampler": "sobol"}, ["sampler", "'sobol'", "grid, random, tpe"]),
        ({"training.lr": [1e-3]}, {"search_seeds": 0}, ["search_seeds", "at least 1"]),
        ({"training.lr": [1e-3]}, {"seeds": "many"}, ["seeds", "'many'"]),
        ({"lr": [1e-3]}, {}, ["'lr'", "task, model, training"]),
        ({"about.paper": ["x"]}, {}, ["'about.paper'"]),
        ({"training.seed": [1, 2]}, {}, ["training.seed", "search_seeds or seeds"]),
        ({"task.name": ["parity"]}, {}, ["task.name", "different tasks"]),
        ({"training.lr": [1e-3]}, {"with_seed": ["training.lr"]}, ["training.lr", "twice"]),
        ({"training.lr": [1e-3], "training.lr, training.clip": [[1, 1]]}, {}, ["training.lr", "twice"]),
        ({"training.lr, training.clip": [1e-3]}, {}, ["lists of 2 values"]),
        ({"training.lr": [1e-3]}, {"with_seed": "task.split_seed"}, ["with_seed", "a list"]),
        (["training.lr"], {}, ["space", "a mapping"]),
    ],
)
def test_plans_that_make_no_sense(config: SweepConfig, space: Any, values: dict[str, Any], names: list[str]) -> None:
    with pytest.raises(SettingError) as refused:
        SweepConfig(settings=config.settings, space=space, **values)
    assert [name for name in names if name not in str(refused.value)] == [], refused.value


@pytest.mark.parametrize(
    ("space", "names"),
    [
        ({"training.lrr": [1e-3]}, ["training.lrr", "did you mean lr"]),
        ({"training.lr": [1e-3, "fast"]}, ["training.lr", "'fast'"]),
        ({"training.lr": [1e-3, -1]}, ["training.lr", "-1"]),
        ({"training.lr.scale": [1]}, ["training.lr", "a number"]),
        ({"model.spec": ["ma", "mza"]}, ["model.spec", "'mza'"]),
        ({"model.block_options.a.speed": [1]}, ["model", "speed"]),
        ({"training.curriculum.starts": [1]}, ["training.curriculum.starts", "did you mean start"]),
        ({"task.train_lengths": [[3, 8], [9, 3]]}, ["task.train_lengths"]),
    ],
)
def test_values_that_a_run_would_refuse_are_found_before_it(
    config: SweepConfig, tmp_path: Path, space: Any, names: list[str]
) -> None:
    with pytest.raises(SettingError) as refused:
        open_sweep(SweepConfig(settings=config.settings, space=space), tmp_path / "sweep")
    assert [name for name in ("space: ", *names) if name not in str(refused.value)] == [], refused.value
    assert not (tmp_path / "sweep").exists()


def test_another_search_is_not_that_of_a_folder(config: SweepConfig, whole: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    folder = whole[0]
    with pytest.raises(SettingError, match="must be a directory without a sweep"):
        open_sweep(config, folder)
    with pytest.raises(SettingError, match=r"`space` must be .* with --resume, as in"):
        open_sweep(SweepConfig(settings=config.settings, space={"training.lr": [1.0]}, search_seeds=2), folder, resume=True)
    with pytest.raises(SettingError, match="must be a directory without a run"):
        open_sweep(config, folder / "trials" / "0000" / "seed_7")
    with pytest.raises(SettingError, match="is not the directory of a sweep"):
        open_sweep(config, tmp_path, resume=True)


def test_a_sweep_of_version_1_goes_on_with_its_letters(config: SweepConfig, tmp_path: Path) -> None:
    """Optuna knows the values of the space as the folder has them; the runs are of the blocks that the letters stand for."""
    model = ModelSettings(spec="s4d", d_model=4, d_state=2, backend="eager")
    config = SweepConfig(
        settings=replace(config.settings, model=model), space={"model.spec": ["s4d", "s7", "ma"]}, seeds=1, command="a command"
    )
    plain = json.loads(json.dumps({"name": "old", **config.as_dict()}))
    assert (plain.pop("spec_version"), plain["settings"].pop("spec_version")) == (2, 2)
    plain["space"], plain["settings"]["model"]["spec"] = {"model.spec": ["d", "e", "ma"]}, "d"
    (tmp_path / "sweep").mkdir()
    path = tmp_path / "sweep" / "sweep.yaml"
    path.write_text(yaml.safe_dump(plain))
    work(tmp_path / "sweep", lambda _: None)  # a worker that knows nothing but the folder
    found = result_of(config, tmp_path / "sweep", resume=True)
    assert found["status"] == "finished"
    assert [row["settings"]["model.spec"] for row in found["trials"]] == ["d", "e", "ma"]
    specs = [Run(path.parent).settings.model.spec for path in sorted((tmp_path / "sweep" / "trials").rglob("settings.yaml"))]
    assert specs == ["s4d", "s7", "ma"]
    assert yaml.safe_load(path.read_text())["space"] == plain["space"], "Optuna's storage refers to these values"


def test_sweep_files_name_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text("task: {name: parity}\nmodel: {d_model: 8}\n")
    path = tmp_path / "s.yaml"
    path.write_text("config: recipe.yaml\nsettings: {model: {d_state: 4}}\nspace: {training.lr: [1.0e-3]}\n")
    words = read_sweep_file(path)
    assert words["settings"]["model"] == {"d_model": 8, "d_state": 4}
    assert words["settings"]["about"]["recipe"] == str(tmp_path / "recipe.yaml")
    for text, names in (
        ("spaces: {}", ["s.yaml", "'spaces'", "config"]),
        ("config: gone.yaml", ["gone.yaml"]),
        ("settings: 3", ["s.yaml", "settings"]),
        ("settings: {trainer: {lr: 1}}", ["s.yaml", "'trainer'"]),
        ("space: [", ["s.yaml", "line"]),
    ):
        path.write_text(text)
        with pytest.raises(SettingError) as refused:
            read_sweep_file(path)
        assert [name for name in names if name not in str(refused.value)] == [], refused.value
