"""Sweeps: the trials, the choice of the best, its test, samplers, errors, and workers that are killed."""

import json
import os
import signal
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
from run_files import have_equal_tensors

GRID = {"training.lr": [1e20, 1e-2], "model.spec, model.block_options": [["ma", {}], ["m", {"m": {"d_conv": 2}}]]}


def report_first_run_only(folder: Path) -> Path:
    """Write the report of the first run only, because a report takes longer than these runs."""
    return run_report(folder) if "0000" in folder.parts else folder


@pytest.fixture(autouse=True, scope="module")
def _report_first_run_only() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(longscan.report, "run_report", report_first_run_only)
        yield


def run_and_get_result(config: SweepConfig, folder: Path, *, resume: bool = False) -> dict[str, Any]:
    """Run a sweep in this process and return its result."""
    return run_sweep(config, folder, resume=resume, echo=lambda _: None).result()


@pytest.fixture(scope="module")
def config() -> SweepConfig:
    """Return a sweep of four points with two seeds each, two of which diverge, and two seeds of the best point."""
    task = TASKS["parity"](train_lengths=(3, 8), eval_lengths=(9, 12), valid_size=16, test_size=24)
    model = ModelSettings(spec="ma", d_model=4, d_state=2, backend="eager")
    training = TrainingSettings(
        steps=4, batch_size=8, eval_every=4, log_every=1, checkpoint_every=1, threads=1, device="cpu", seed=7
    )
    settings = Settings(task=task, model=model, training=training)
    return SweepConfig(settings=settings, space=GRID, search_seeds=2, seeds=2, command="a command")


@pytest.fixture(scope="module")
def whole(config: SweepConfig, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Return the directory and the result of an uninterrupted sweep."""
    ensure_running()  # imports the modules of the processes of a later test in the meantime
    folder = tmp_path_factory.mktemp("whole") / "sweep"
    return folder, run_and_get_result(config, folder)


def read_all_weights(folder: Path) -> dict[str, Any]:
    """Return the last weights of every run in a directory."""
    paths = sorted(folder.rglob("checkpoints/last/model.safetensors"))
    return {str(path.relative_to(folder)): read_tensors(path) for path in paths}


def have_equal_weights(left: Path, right: Path) -> bool:
    left_weights, right_weights = read_all_weights(left), read_all_weights(right)
    assert left_weights.keys() == right_weights.keys()
    return all(have_equal_tensors(left_weights[run], right_weights[run]) for run in left_weights)


def test_every_point_has_a_trial_and_failures_are_recorded(config: SweepConfig, whole: tuple[Path, dict[str, Any]]) -> None:
    folder, result = whole
    assert result["status"] == "finished"
    values = [row["settings"] for row in result["trials"]]
    assert values == config.grid_points()
    assert len({json.dumps(point) for point in values}) == 4
    for row in result["trials"]:
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
            assert [r and r["value"] for r in results] == [None, None], "runs of the search are not scored on test"
    assert (folder / "trials" / "0000" / "seed_7" / "report.html").exists(), "a failed run has a report, too"


def test_best_point_on_validation_is_tested_with_other_seeds(
    config: SweepConfig, whole: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    folder, result = whole
    scores = [row["score"] for row in result["trials"]]
    best = max(range(4), key=lambda index: (-1 if scores[index] is None else scores[index], -index))
    assert result["best"] == result["trials"][best]
    assert [row["seed"] for row in result["seeds"]] == [9, 10]
    values = [row["score"] for row in result["seeds"]]
    assert result["test"]["mean"] == pytest.approx(sum(values) / 2)
    assert result["test"]["constant"] == pytest.approx(config.settings.task.constant_score("test"))
    single = train(config.settings_for(result["best"]["settings"], 10), tmp_path / "single").result
    assert single is not None
    assert single["value"] == values[1]
    assert (folder / "seeds" / f"trial_{best:04d}" / "seed_10" / "result.json").exists()


def test_search_does_not_read_the_test_split_and_a_database_stores_its_trials(
    config: SweepConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = type(config.settings.task)
    calls: list[tuple[str, bool]] = []

    def record_calls_of(name: str) -> None:
        original = getattr(kind, name)

        def method(self: Any, split: Any = "test", *rest: Any) -> Any:
            calls.append((split, opened.search.is_over()))
            return original(self, split, *rest)

        monkeypatch.setattr(kind, name, method)

    monkeypatch.setenv("DIRECTORY", str(tmp_path))
    space, storage = {"training.lr": [1e-3, 1e-2]}, "sqlite:///$DIRECTORY/trials.db"
    opened = open_sweep(SweepConfig(settings=config.settings, space=space, seeds=1, storage=storage), tmp_path / "sweep")
    for name in ("batch", "constant_score"):
        record_calls_of(name)
    work(tmp_path / "sweep")
    assert {after_search for split, after_search in calls if split == "test"} == {True}
    assert {after_search for split, after_search in calls if split == "valid"} == {False, True}
    assert [row["status"] for row in opened.result()["trials"]] == ["finished"] * 2
    assert (tmp_path / "trials.db").exists()
    assert not (tmp_path / "sweep" / "journal.log").exists()
    assert "$DIRECTORY" in (tmp_path / "sweep" / "sweep.yaml").read_text()


def test_sweep_without_a_space_runs_seeds_only(config: SweepConfig, tmp_path: Path) -> None:
    result = run_and_get_result(
        SweepConfig(settings=config.settings, seeds=2, with_seed=["training.data_seed"]), tmp_path / "seeds"
    )
    assert (result["trials"], result["best"], [row["seed"] for row in result["seeds"]]) == ([], None, [7, 8])
    assert Run(tmp_path / "seeds" / "seeds" / "seed_8").settings.training.data_seed == 8
    extended = SweepConfig(settings=config.settings, seeds=3, with_seed=["training.data_seed"])
    open_sweep(extended, tmp_path / "seeds", resume=True)
    before = (tmp_path / "seeds" / "seeds" / "seed_8" / "result.json").stat()
    work(tmp_path / "seeds")
    result = Sweep(tmp_path / "seeds").write()
    assert [row["seed"] for row in result["seeds"]] == [7, 8, 9]
    assert (tmp_path / "seeds" / "seeds" / "seed_8" / "result.json").stat() == before, "finished runs are not repeated"


RANGES = {
    "training.lr": {"float": [1e-4, 1e-1], "log": True},
    "training.weight_decay": {"float": [0, 0.5], "step": 0.25},
    "model.d_model": {"int": [2, 8], "step": 2},
    "model.d_state": {"int": [1, 8], "log": True},
    "task.suite": ["clean", "aussm"],
}


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_sampler_depends_on_seed_and_scores_only(config: SweepConfig, tmp_path: Path, sampler: str) -> None:
    sampled = SweepConfig(settings=config.settings, space=RANGES, sampler=sampler, trials=8, seeds=0)
    sweeps = []
    for name in ("one", "two"):
        open_sweep(sampled, tmp_path / name)
        sweeps.append(Sweep(tmp_path / name))
        run_trials_without_training(sweeps[-1])
    points = [[row["settings"] for row in sampled_sweep.result()["trials"]] for sampled_sweep in sweeps]
    assert points[0] == points[1], "points depend on the seed and the scores only"
    for point in points[0]:
        assert list(point) == list(RANGES)
        assert 1e-4 <= point["training.lr"] <= 1e-1
        assert point["training.weight_decay"] in (0.0, 0.25, 0.5)
        assert point["model.d_model"] in (2, 4, 6, 8)
        assert isinstance(point["model.d_state"], int)
        assert point["task.suite"] in ("clean", "aussm")
        assert sampled.settings_for(point, 0).training.lr == point["training.lr"]
    assert len({point["training.lr"] for point in points[0]}) == 8
    failed = sweeps[0].result()["trials"][3]
    assert (failed["status"], failed["failure"]) == ("failed", "too wide")
    assert sweeps[0].search.study.trials[3].state is TrialState.PRUNED


def run_trials_without_training(opened: Sweep) -> None:
    """Run the trials of a sweep with the learning rate as score; the fourth one fails."""
    while (asked := opened.ask("nobody")) is not None:
        stage, trial = asked
        if trial.user_attrs["place"] == 3:
            trial.set_user_attr("failure", "too wide")
            stage.study.tell(trial, state=TrialState.PRUNED)
        else:
            stage.study.tell(trial, trial.params["training.lr"])


def test_worker_stays_for_the_test_if_the_search_ends_while_it_asks(
    config: SweepConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another worker ends the last trial of the search right after the search was found not to be over."""
    open_sweep(SweepConfig(settings=config.settings, space={"training.lr": [1e-2]}, seeds=1), tmp_path / "sweep")
    opened = Sweep(tmp_path / "sweep")
    (tmp_path / "sweep" / "workers").mkdir(exist_ok=True)
    is_over, told = sweep.Stage.is_over, []

    def end_trial_after_answer(stage: sweep.Stage) -> bool:
        over = is_over(stage)
        if not told:
            told.append(over)
            search.study.tell(trial, 0.5)
        return over

    with opened._worker_lock("other"):
        asked = opened.ask("other")
        assert asked is not None
        search, trial = asked
        monkeypatch.setattr(sweep.Stage, "is_over", end_trial_after_answer)
        monkeypatch.setattr(sweep, "POLL", 0.01)
        last = opened.ask("this")
    assert told == [False]
    assert last is not None, "the test is left"
    assert last[0].split == "test"


def test_invalid_point_is_a_failed_trial(config: SweepConfig, tmp_path: Path) -> None:
    space = {"training.warmup": {"int": [0, 4]}, "training.hold": {"int": [0, 4]}}
    result = run_and_get_result(
        SweepConfig(settings=config.settings, space=space, sampler="random", trials=5, seeds=0), tmp_path / "sweep"
    )
    for row in result["trials"]:
        is_valid = sum(row["settings"].values()) <= 4
        assert row["status"] == ("finished" if is_valid else "failed")
        assert is_valid or row["failure"].startswith("`training.warmup` must be")
    assert {row["status"] for row in result["trials"]} == {"finished", "failed"}


def test_trial_that_raises_is_recorded_and_repeated_on_resume(
    config: SweepConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raise_out_of_memory(settings: Settings, *rest: Any, **named: Any) -> Run:
        if settings.training.lr == 1e-2:
            raise RuntimeError("not enough memory:\n for this one")
        return train(settings, *rest, **named)

    monkeypatch.setattr(sweep, "train", raise_out_of_memory)
    result = run_and_get_result(
        SweepConfig(settings=config.settings, space={"training.lr": [1e-2, 1e-3]}, seeds=1), tmp_path / "sweep"
    )
    assert [row["status"] for row in result["trials"]] == ["failed", "finished"]
    assert result["trials"][0]["failure"] == "RuntimeError: not enough memory: for this one"
    assert result["seeds"][0]["status"] == "finished"
    monkeypatch.undo()
    result_file = tmp_path / "sweep" / "trials" / "0001" / "seed_7" / "result.json"
    before = result_file.stat()
    result = run_and_get_result(Sweep(tmp_path / "sweep").config, tmp_path / "sweep", resume=True)
    assert [row["status"] for row in result["trials"]] == ["finished"] * 2
    assert result_file.stat() == before, "finished runs are not repeated"


def work_in_process(folder: Path, errors: Path, other_works: Path | None) -> None:
    """Work on a sweep. other_works: a file that another worker writes when it trains, for which test runs wait."""
    train = sweep.train

    def train_after_other_worker(*args: Any, **options: Any) -> Run:
        while options["test"] and other_works is not None and not other_works.exists():
            time.sleep(0.002)
        return train(*args, **options)

    sweep.train = train_after_other_worker  # type: ignore[assignment]
    descriptor = os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 2)
    longscan.report.run_report = report_first_run_only  # type: ignore[misc]
    work(folder)


def start_worker(folder: Path, other_works: Path | None = None) -> Any:
    process = PROCESSES.Process(target=work_in_process, args=(folder, folder / "errors.txt", other_works))
    process.start()
    return process


def wait_until(process: Any, condition: Callable[[], bool]) -> None:
    while process.is_alive() and not condition():
        time.sleep(0.002)
    assert process.is_alive(), "the worker ended before the kill"


def test_sweep_with_killed_and_stopped_workers_equals_an_uninterrupted_sweep(
    config: SweepConfig, whole: tuple[Path, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One worker is killed, another one is stopped, and two share the remaining trials."""
    folder = tmp_path / "sweep"
    open_sweep(config, folder)
    process = start_worker(folder)
    log = folder / "trials" / "0002" / "seed_8" / "metrics.jsonl"
    wait_until(process, lambda: len(read_rows(log)) >= 2)
    process.kill()
    process.join()
    before = {path: path.stat() for path in folder.rglob("result.json")}
    assert Sweep(folder).result()["trials"][2]["status"] == "running"

    def raise_interrupt(*_: Any, **__: Any) -> Run:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(sweep, "train", raise_interrupt)
        with pytest.raises(KeyboardInterrupt):
            work(folder)
    assert "running" not in {row["status"] for row in Sweep(folder).result()["trials"]}, "a stopped worker returns its trial"

    works, train = tmp_path / "works", sweep.train
    process = start_worker(folder, works)
    wait_until(process, (folder / "trials" / "0002" / "seed_8" / "result.json").exists)

    def train_and_say_so(*args: Any, **options: Any) -> Run:
        works.touch()
        return train(*args, **options)

    monkeypatch.setattr(sweep, "train", train_and_say_so)
    monkeypatch.setattr(sweep, "POLL", 0.01)
    work(folder, echo=lambda _: None)
    process.join()
    assert {path: path.stat() for path in before} == before, "finished runs are not repeated"
    assert have_equal_weights(folder, whole[0])
    reopened = Sweep(folder)
    result, test = reopened.write(), reopened.test()
    assert test is not None
    for part in ("trials", "seeds"):
        for left, right in zip(result[part], whole[1][part], strict=True):
            assert {k: v for k, v in left.items() if k not in ("seconds", "runs")} == {
                k: v for k, v in right.items() if k not in ("seconds", "runs")
            }
    for stage in (reopened.search, test):
        finished = [t.user_attrs["place"] for t in stage.study.trials if t.state in (TrialState.COMPLETE, TrialState.PRUNED)]
        assert sorted(finished) == list(range(len(stage.points))), "every trial has one outcome"
    workers_of = {trial.user_attrs["worker"] for stage in (reopened.search, test) for trial in stage.study.trials}
    assert len(workers_of) == 4, "the last two workers share the trials"


def test_sweep_with_workers_that_is_terminated_writes_its_results(
    config: SweepConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGTERM ends the wait for the workers as Ctrl-C does."""

    def run_one_trial(folder: Path, *_: Any) -> None:
        opened = Sweep(folder)
        (folder / "workers").mkdir()
        with FileLock(folder / "workers" / "worker.lock"):
            asked = opened.ask("worker")
            assert asked is not None
            opened.run_trial(*asked)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)

    def raise_error(*_: object) -> None:
        raise AssertionError("SIGTERM would have ended this process")

    monkeypatch.setattr(sweep, "run_workers", run_one_trial)
    before = signal.signal(signal.SIGTERM, raise_error)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_sweep(config, tmp_path / "sweep", workers=2, echo=lambda _: None)
        assert signal.getsignal(signal.SIGTERM) is raise_error
    finally:
        signal.signal(signal.SIGTERM, before)
    result = json.loads((tmp_path / "sweep" / "sweep.json").read_text())
    assert result["status"] == "unfinished"
    assert [row["status"] for row in result["trials"]] == ["failed", "waiting", "waiting", "waiting"]


def test_trial_of_a_worker_without_lock_is_queued_again(config: SweepConfig, tmp_path: Path) -> None:
    opened = open_sweep(config, tmp_path / "sweep")

    def waiting_trials() -> list[int]:
        return sorted(trial.user_attrs["place"] for trial in opened.search.study.trials if trial.state is TrialState.WAITING)

    (opened.folder / "workers").mkdir()
    with FileLock(opened.folder / "workers" / "living.lock"):
        assert opened.ask("living") is not None
        assert opened.ask("dead") is not None, "this worker has no lock"
        opened.enqueue_free(opened.search)
        assert waiting_trials() == [1, 2, 3]
    for _ in range(2):
        opened.enqueue_free(opened.search)
        assert waiting_trials() == [0, 1, 2, 3], "a second call does not queue trials again"


def test_workers_divide_cores_and_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_incomplete_line_of_the_journal_is_removed(config: SweepConfig, tmp_path: Path) -> None:
    opened = open_sweep(config, tmp_path / "sweep")
    journal = opened.folder / "journal.log"
    before = journal.read_bytes()
    journal.write_bytes(before + b'{"op_code": 4, "wor')
    assert len(Sweep(opened.folder).search.study.trials) == 4
    assert journal.read_bytes().startswith(before)
    assert b'"wor\n' not in journal.read_bytes()


def test_page_shows_trials_failures_and_seeds(whole: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    page = sweep_report(whole[0]).read_text("utf-8")
    values = {"training.lr": 0.00123456, "model.spec, model.norm": ["ma", "rms"], "task.train_lengths": [3, 8], "x": None}
    assert settings_text(values) == "training.lr 0.001235, model.spec ma, model.norm rms, task.train_lengths [3, 8], x null"
    for text in ("training.lr", "model.spec, model.block_options", "was not finite", "best constant predictor", "a command"):
        assert text in page
    assert page.count("<svg ") == 3
    unfinished = {**whole[1], "status": "unfinished", "seeds": [], "test": None, "best": None}
    unfinished["trials"] = [
        {**row, "status": "waiting", "score": None, "runs": [], "settings": {}} for row in unfinished["trials"]
    ]
    (tmp_path / "sweep.json").write_text(json.dumps(unfinished))
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
        ({"training.lr": {"float": [1e-3, 1e-2]}}, {}, ["space.training.lr", "values, unless `sampler` is random or tpe"]),
        ({"training.lr": [1e-3]}, {"trials": 3}, ["trials", "3"]),
        ({"training.lr": [1e-3]}, {"sampler": "tpe"}, ["`trials` must be", "tpe", "got nothing"]),
        ({"training.lr": [1e-3]}, {"sampler": "tpe", "trials": 0}, ["trials", "at least 1"]),
        ({"training.lr": [1e-3]}, {"sampler": "sobol"}, ["sampler", "'sobol'", "grid, random, tpe"]),
        ({"training.lr": [1e-3]}, {"search_seeds": 0}, ["search_seeds", "at least 1"]),
        ({"training.lr": [1e-3]}, {"seeds": "many"}, ["seeds", "'many'"]),
        ({"lr": [1e-3]}, {}, ["'lr'", "task, model, training"]),
        ({"about.paper": ["x"]}, {}, ["'about.paper'"]),
        ({"training.seed": [1, 2]}, {}, ["training.seed", "`search_seeds` or `seeds`"]),
        ({"task.name": ["parity"]}, {}, ["task.name", "different tasks"]),
        ({"training.lr": [1e-3]}, {"with_seed": ["training.lr"]}, ["training.lr", "twice"]),
        ({"training.lr": [1e-3], "training.lr, training.clip": [[1, 1]]}, {}, ["training.lr", "twice"]),
        ({"training.lr, training.clip": [1e-3]}, {}, ["lists of 2 values"]),
        ({"training.lr": [1e-3]}, {"with_seed": "task.split_seed"}, ["with_seed", "a list"]),
        (["training.lr"], {}, ["space", "a mapping"]),
    ],
)
def test_invalid_sweep_raises_and_names_the_setting(
    config: SweepConfig, space: Any, values: dict[str, Any], names: list[str]
) -> None:
    with pytest.raises(SettingError) as raised:
        SweepConfig(settings=config.settings, space=space, **values)
    assert [name for name in names if name not in str(raised.value)] == [], raised.value


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
def test_invalid_values_of_the_space_raise_before_the_first_run(
    config: SweepConfig, tmp_path: Path, space: Any, names: list[str]
) -> None:
    with pytest.raises(SettingError) as raised:
        open_sweep(SweepConfig(settings=config.settings, space=space), tmp_path / "sweep")
    assert [name for name in ("`space` must have values that runs can have: ", *names) if name not in str(raised.value)] == [], (
        raised.value
    )
    assert not (tmp_path / "sweep").exists()


def test_opening_a_directory_of_another_sweep_raises(
    config: SweepConfig, whole: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    folder = whole[0]
    with pytest.raises(SettingError, match="must be a directory without a sweep"):
        open_sweep(config, folder)
    with pytest.raises(SettingError, match=r"`space` must be .* with --resume, as in"):
        open_sweep(SweepConfig(settings=config.settings, space={"training.lr": [1.0]}, search_seeds=2), folder, resume=True)
    with pytest.raises(SettingError, match="must be a directory without a run"):
        open_sweep(config, folder / "trials" / "0000" / "seed_7")
    with pytest.raises(SettingError, match="is not the directory of a sweep"):
        open_sweep(config, tmp_path, resume=True)


def test_sweep_of_version_1_resumes_with_its_letters(config: SweepConfig, tmp_path: Path) -> None:
    """Optuna keeps the values of the space in the file; the runs have the blocks that the letters stand for."""
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
    work(tmp_path / "sweep", lambda _: None)  # a worker that gets only the directory
    result = run_and_get_result(config, tmp_path / "sweep", resume=True)
    assert result["status"] == "finished"
    assert [row["settings"]["model.spec"] for row in result["trials"]] == ["d", "e", "ma"]
    specs = [Run(path.parent).settings.model.spec for path in sorted((tmp_path / "sweep" / "trials").rglob("settings.yaml"))]
    assert specs == ["s4d", "s7", "ma"]
    assert yaml.safe_load(path.read_text())["space"] == plain["space"], "Optuna's storage refers to these values"


def test_invalid_sweep_file_raises_and_names_the_error(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text("task: {name: parity}\nmodel: {d_model: 8}\n")
    path = tmp_path / "s.yaml"
    path.write_text("config: recipe.yaml\nsettings: {model: {d_state: 4}}\nspace: {training.lr: [1.0e-3]}\n")
    values = read_sweep_file(path)
    assert values["settings"]["model"] == {"d_model": 8, "d_state": 4}
    assert values["settings"]["about"]["recipe"] == str(tmp_path / "recipe.yaml")
    for text, names in (
        ("spaces: {}", ["s.yaml", "'spaces'", "config"]),
        ("config: gone.yaml", ["gone.yaml"]),
        ("settings: 3", ["s.yaml", "settings"]),
        ("settings: {trainer: {lr: 1}}", ["s.yaml", "'trainer'"]),
        ("space: [", ["s.yaml", "line"]),
    ):
        path.write_text(text)
        with pytest.raises(SettingError) as raised:
            read_sweep_file(path)
        assert [name for name in names if name not in str(raised.value)] == [], raised.value
