"""`run_sweep`: search settings by their validation scores with Optuna, then test the best setting over several seeds.

A sweep is a folder that all its workers see:

    sweep.yaml                        the configuration
    journal.log                       Optuna's storage, unless a database was given
    trials/0003/seed_0/               a run of the search: a run's directory without a test score
    seeds/trial_0003/seed_5/          a run of the best setting, tested (seeds/seed_5/ if nothing was searched)
    sweep.json, report.html           the results

Search and test are an Optuna study each, of a fixed number of trials. The user attribute `place` is a trial's index. A trial that
was interrupted is marked as failed and enqueued again under the same index with the same parameters; it resumes the runs in its
directory. The last trial of an index is the one that counts.
"""

import json
import logging
import os
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import optuna
from filelock import FileLock, Timeout
from optuna.storages import BaseStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend, JournalStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.exc import SQLAlchemyError

import longscan.report
from longscan._errors import SettingError, one_line, setting_error
from longscan._files import write_text
from longscan.report.records import check_record, read_records
from longscan.report.statistics import mean_interval
from longscan.report.sweep import settings_text
from longscan.training.processes import terminate_as_interrupt
from longscan.training.records import result_row
from longscan.training.run import Run, check_out, commit, is_run_folder, task_title
from longscan.training.space import CONFIG_FILE, SweepConfig, check_same_search, read_config, write_config
from longscan.training.trainer import train
from longscan.training.workers import run_workers

POLL = 0.5  # seconds between two attempts to get a trial while other workers run the last ones of a study
_STATUS = {TrialState.RUNNING: "running", TrialState.COMPLETE: "finished", TrialState.PRUNED: "failed"}


def open_storage(url: str | None, folder: Path) -> BaseStorage:
    """Open Optuna's storage: a database, or the journal in the sweep's folder. Raises SettingError if it cannot be read."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    if url is not None:
        try:
            return RDBStorage(os.path.expandvars(url))
        except (SQLAlchemyError, ImportError, ValueError) as error:
            reason = one_line(error).partition(" (Background")[0]
            raise setting_error("--storage", url, f"the URL of a database that Optuna can open ({reason})") from None
    journal, number = folder / "journal.log", 0
    with FileLock(f"{journal}.lock") as lock:
        content = journal.read_bytes() if journal.exists() else b""
        whole = content[: content.rfind(b"\n") + 1]
        if whole != content:  # Optuna would append to a line that a power cut left incomplete, and could not read it again
            os.truncate(journal, len(whole))
    try:  # Optuna ignores damage in the last line until another one follows, and raises whatever an entry causes
        for number, line in enumerate(whole.splitlines(), 1):  # noqa: B007
            if not {"op_code", "worker_id"} <= json.loads(line).keys():
                raise ValueError("not an entry of Optuna's journal")
        # Optuna's own lock remains after a kill; of the lock that it is given it calls acquire() and release() only.
        return JournalStorage(JournalFileBackend(str(journal), lock_obj=lock))  # type: ignore[arg-type]
    except (ValueError, LookupError, TypeError, AttributeError, AssertionError, RecursionError) as error:
        raise SettingError(f"{journal} is damaged in line {number} or before ({one_line(error)[:200]})") from None


@dataclass(frozen=True)
class Stage:
    """The search, or the test of its best setting.

    Attributes:
        study: Optuna's study.
        folder: the folder of the runs.
        split: "validation" or "test", the split whose score is the value of a trial.
        points: the parameters of each trial that are known before it starts.
        seeds: the seeds of each trial's runs.
        settings: settings of all trials, in addition to their parameters.
    """

    study: optuna.Study
    folder: Path
    split: str
    points: list[dict[str, Any]]
    seeds: list[list[int]]
    settings: dict[str, Any]

    def last_trials(self) -> list[FrozenTrial | None]:
        """Return the last trial of each index, None if there is none yet."""
        last = {trial.user_attrs.get("place"): trial for trial in self.study.get_trials(deepcopy=False)}
        return [last.get(index) for index in range(len(self.points))]

    def is_over(self) -> bool:
        """Return whether every trial has a score or has failed."""
        return all(trial_status(trial) in ("finished", "failed") for trial in self.last_trials())

    def run_folder(self, index: int, seed: int) -> Path:
        """Return the directory of one run."""
        return (self.folder if self.split == "test" else self.folder / f"{index:04d}") / f"seed_{seed}"

    def settings_of(self, trial: FrozenTrial | optuna.Trial) -> dict[str, Any]:
        """Return a trial's settings by their keys in the space. Values of lists are stored as JSON text."""
        return self.settings | {key: json.loads(v) if isinstance(v, str) else v for key, v in trial.params.items()}


def trial_status(trial: FrozenTrial | None) -> str:
    """Return "waiting", "running", "finished" or "failed". An interrupted trial is waiting to be enqueued again."""
    if trial is None:
        return "waiting"
    return _STATUS.get(trial.state, "failed" if "error" in trial.user_attrs else "waiting")


class Sweep:
    """The folder of a sweep. Raises SettingError if it is not one, or if the storage cannot be opened."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder).absolute()
        self.name, self.config = read_config(Path(folder))
        self.lock = FileLock(self.folder / "sweep.lock")
        self._task = self.config.settings.task
        self._storage = open_storage(self.config.storage, self.folder)
        self._study = cache(self._create_study)
        self._constant_score = cache(self._task.constant_score)

    def _create_study(self, name: str) -> optuna.Study:
        direction = StudyDirection.MAXIMIZE if self._task.higher_is_better else StudyDirection.MINIMIZE
        return optuna.create_study(storage=self._storage, study_name=name, direction=direction, load_if_exists=True)

    @cached_property
    def search(self) -> Stage:
        """The search; it has no trials if the space is empty."""
        points = [{key: json.dumps(value) for key, value in point.items()} for point in self.config.grid_points()]
        seeds = [self.config.seeds_of_search()] * len(points)
        return Stage(self._study(self.name), self.folder / "trials", "validation", points, seeds, {})

    def test(self) -> Stage | None:
        """Return the test of the best setting; None if the search is not over or found nothing, and if no seeds are tested."""
        label, settings, seeds = "seeds", {}, [[seed] for seed in self.config.seeds_of_test()]
        best = self.best() if self.search.is_over() else None
        if not seeds or (self.config.space and best is None):
            return None
        if best is not None:
            label, settings = f"seeds/trial_{best.user_attrs['place']:04d}", self.search.settings_of(best)
        return Stage(self._study(f"{self.name}/{label}"), self.folder / label, "test", [{} for _ in seeds], seeds, settings)

    def best(self) -> FrozenTrial | None:
        """Return the trial with the best validation score. Among equal ones the lowest index wins, whichever ended first."""
        trials = [trial for trial in self.search.last_trials() if trial is not None and trial.state is TrialState.COMPLETE]
        sign = -1 if self._task.higher_is_better else 1
        return min(trials, key=lambda trial: (sign * (trial.value or 0.0), trial.user_attrs["place"]), default=None)

    def enqueue_free(self, stage: Stage, *, retry_errors: bool = False) -> None:
        """Enqueue each index that has no trial or an interrupted one; with `retry_errors` also those that raised an exception."""
        for index, trial in enumerate(stage.last_trials()):
            if trial is None:
                stage.study.enqueue_trial(stage.points[index], user_attrs={"place": index})
                continue
            interrupted = trial.state is TrialState.RUNNING and not self.is_alive(trial.user_attrs.get("worker", ""))
            if interrupted:
                stage.study.tell(trial.number, state=TrialState.FAIL)
            if interrupted or (trial.state is TrialState.FAIL and (retry_errors or "error" not in trial.user_attrs)):
                known = {**trial.system_attrs.get("fixed_params", {}), **trial.params}
                stage.study.enqueue_trial(known, user_attrs={"place": index})

    def _worker_lock(self, worker: str) -> FileLock:
        return FileLock(self.folder / "workers" / f"{worker}.lock")

    def is_alive(self, worker: str) -> bool:
        """Return whether a process has the worker's lock, which the system releases when that process ends or is killed."""
        lock = self._worker_lock(worker)
        if not Path(lock.lock_file).exists():
            return False
        try:
            lock.acquire(blocking=False)
        except Timeout:
            return True
        lock.release()
        return False

    def ask(self, worker: str) -> tuple[Stage, optuna.Trial] | None:
        """Start the next trial. Waits while others run the last ones of a study; returns None once the sweep is over."""
        while True:
            with self.lock:  # so that no other worker treats a trial as interrupted before the name of its worker is stored
                # Asked once: other workers end trials at any time, and a search that is over now still has its test to run.
                stage = self.search
                if stage.is_over():
                    test = self.test()
                    if test is None or test.is_over():
                        return None
                    stage = test
                self.enqueue_free(stage)
                waiting = stage.study.get_trials(deepcopy=False, states=(TrialState.WAITING,))
                if waiting:
                    # A sampler seeded by the trial's index: its samples do not depend on which worker asks.
                    seed = self.config.settings.training.seed + waiting[0].user_attrs["place"]
                    tpe, random = optuna.samplers.TPESampler, optuna.samplers.RandomSampler
                    stage.study.sampler = tpe(seed=seed) if self.config.sampler == "tpe" else random(seed=seed)
                    dimensions = self.config.dimensions if stage is self.search else {}
                    trial = stage.study.ask({key: dimension.distribution() for key, dimension in dimensions.items()})
                    trial.set_user_attr("worker", worker)
                    return stage, trial
            time.sleep(POLL)

    def run_trial(self, stage: Stage, trial: optuna.Trial) -> None:
        """Run a trial and tell Optuna its score, or why it has none.

        To Optuna's samplers a pruned trial without a value is worse than any score, and a failed one does not count.
        """
        try:
            stage.study.tell(trial, self.objective(stage, trial))
        except (SettingError, optuna.TrialPruned) as reason:
            trial.set_user_attr("failure", one_line(reason))
            stage.study.tell(trial, state=TrialState.PRUNED)
        except KeyboardInterrupt:
            stage.study.tell(trial, state=TrialState.FAIL)
            raise
        except Exception as error:  # the fault of one trial, such as too little memory, does not end the sweep
            logging.getLogger(__name__).exception("trial %d", trial.user_attrs["place"])
            trial.set_user_attr("error", f"{type(error).__name__}: {one_line(error)}")
            stage.study.tell(trial, state=TrialState.FAIL)

    def objective(self, stage: Stage, trial: optuna.Trial) -> float:
        """Return the mean score of a trial's runs. Raises TrialPruned at the first one without a score."""
        index, runs, tests = trial.user_attrs["place"], [], stage.split == "test"
        for seed in stage.seeds[index]:
            folder = stage.run_folder(index, seed)
            settings = self.config.settings_for(stage.settings_of(trial), seed)
            run = train(settings, folder, resume=is_run_folder(folder), command=self.config.command, test=tests)
            result = run.result or {}
            score = result["value"] if tests else result["valid"].get(result["selected"])
            missing = f"no {result['metric']} on {stage.split}" if score is None else None
            summary = {
                "seed": seed,
                "folder": str(folder.relative_to(self.folder)),
                "score": score,
                "scaled": None if score is None else self._task.scaled(score),
                "constant": self._constant_score("test" if tests else "valid"),
                "failure": result.get("failure") or missing,
                **{name: result[name] for name in ("steps", "seconds", "params")},
            }
            runs.append(summary)
            trial.set_user_attr("runs", runs)
            if summary["failure"] is not None:
                raise optuna.TrialPruned(summary["failure"])
        return sum(run["score"] for run in runs) / len(runs)

    def result(self) -> dict[str, Any]:
        """Return the content of sweep.json."""
        search, test, best, config = self.search, self.test(), self.best(), self.config
        trials = [self._row(search, index) for index in range(len(search.points))]
        seeds = [] if test is None else [self._row(test, index) for index in range(len(test.points))]
        over = search.is_over() and (test is None or test.is_over())
        return {
            "name": self.name,
            "task": task_title(config.settings),
            "metric": self._task.metric,
            "higher_is_better": self._task.higher_is_better,
            "status": "finished" if over else "unfinished",
            "sampler": config.sampler,
            "space": config.space,
            "search_seeds": config.seeds_of_search() if config.space else [],
            "trials": trials,
            "best": None if best is None else trials[best.user_attrs["place"]],
            "seeds": seeds,
            "test": self._summarize_test(seeds),
            "recipe": config.settings.about.recipe,
            "quick": config.settings.about.quick,
            "commit": commit(),
            "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "command": config.command or "",
        }

    def _row(self, stage: Stage, index: int) -> dict[str, Any]:
        trial = stage.last_trials()[index]
        attributes: dict[str, Any] = {} if trial is None else trial.user_attrs
        runs, status = attributes.get("runs", []), trial_status(trial)
        settings = {} if trial is None else stage.settings_of(trial)
        return {
            **({"seed": stage.seeds[index][0]} if stage.split == "test" else {"trial": index, "settings": settings}),
            "status": status,
            "score": trial.value if trial is not None and status == "finished" else None,
            "constant": sum(run["constant"] for run in runs) / len(runs) if runs else None,
            "failure": attributes.get("failure", attributes.get("error")),
            "seconds": sum(run["seconds"] for run in runs),
            "runs": runs,
        }

    def _summarize_test(self, seeds: list[dict[str, Any]]) -> dict[str, Any] | None:
        """Return the mean test score and half the 95 % interval; None before there is a score."""
        scored = [row for row in seeds if row["score"] is not None]
        if not scored:
            return None
        mean, half_width = mean_interval([row["score"] for row in scored])
        return {
            "mean": mean,
            "half_width": half_width,
            "scaled": self._task.scaled(mean),
            "constant": sum(row["constant"] for row in scored) / len(scored),
            "count": len(scored),
            "failed": sum(row["status"] == "failed" for row in seeds),
        }

    def describe(self, stage: Stage, index: int) -> str:
        """Return the outcome of a trial as a line."""
        row = self._row(stage, index)
        outcome = row["failure"] or f"{self._task.metric} {row['score']:.4f} on {stage.split}"
        settings = settings_text(row.get("settings", {}))
        return f"{'seed' if 'seed' in row else 'trial'} {row.get('seed', index)}: {outcome}{settings and f' ({settings})'}"

    def write(self) -> dict[str, Any]:
        """Write sweep.json, and return its content."""
        with self.lock:
            content = self.result()
            check_record("sweep", content)
            write_text(self.folder / "sweep.json", json.dumps(content, indent=1))
        return content

    def unrecorded(self, target: str | Path) -> list[Run]:
        """Return the tested runs that a file of records does not contain yet."""
        runs = [Run(self.folder / run["folder"]) for row in self.result()["seeds"] for run in row["runs"]]
        recorded = read_records(target) if runs and Path(target).exists() else []
        return [run for run in runs if result_row(run) not in recorded]


def echo_to_stderr(line: str) -> None:
    """Write a line to stderr."""
    sys.stderr.write(f"{line}\n")


def work(folder: str | Path, echo: Callable[[str], None] = echo_to_stderr) -> None:
    """Run trials until the sweep is over, with a call of `echo` for each. Raises KeyboardInterrupt on a request to stop."""
    sweep, worker = Sweep(folder), uuid.uuid4().hex
    (sweep.folder / "workers").mkdir(exist_ok=True)
    with sweep._worker_lock(worker) as lock:
        try:
            while (asked := sweep.ask(worker)) is not None:
                stage, trial = asked
                sweep.run_trial(stage, trial)
                sweep.write()
                echo(sweep.describe(stage, trial.user_attrs["place"]))
        finally:
            Path(lock.lock_file).unlink(missing_ok=True)


def run_sweep(
    config: SweepConfig,
    out: str | Path,
    *,
    resume: bool = False,
    workers: int = 1,
    echo: Callable[[str], None] = echo_to_stderr,
    program: str | None = None,
) -> Sweep:
    """Search, test and report.

    Args:
        config: settings, space and seeds.
        out: folder of the sweep, created if needed; for several machines, one that all of them see.
        resume: continue the sweep in `out`, or join its workers. The configuration must be the same except for trials and seeds.
            Trials that are over are not run again, unless they raised an exception; other runs resume from their last checkpoint.
        workers: 1 runs the trials in this process; more start that many processes, which share cores and GPUs of this machine; 0
            only writes the folder, for workers that are started with `resume`.
        echo: called with a line before the first trial, unless `resume`, and with one for each trial and seed that ends; several
            workers write the latter to stderr.
        program: a Python file that registers layers or tasks, which several workers run first. Its code below
            `if __name__ == "__main__"` does not run.

    Returns the sweep; the status in its sweep.json is "unfinished" if workers were lost. Raises SettingError for an invalid
    configuration, KeyboardInterrupt after the checkpoints are saved on a request to stop.
    """
    if workers < 0:
        raise setting_error("--workers", workers, "a whole number of at least 0")
    sweep = open_sweep(config, Path(out), resume=resume)
    if workers and not resume:
        stages = ["trials of the search"] * bool(config.space) + [f"seeds to test: {config.seeds}"] * bool(config.seeds)
        echo(f"{', then '.join(stages)}; each prints a line when it ends, and writes metrics.csv below {out} until then")
    with terminate_as_interrupt():
        try:
            if workers == 1:
                work(sweep.folder, echo)
            elif sweep.result()["status"] != "finished":
                run_workers(sweep.folder, min(workers, max(len(sweep.search.points), config.seeds)), echo, program)
        finally:
            sweep.write()
    with sweep.lock:
        longscan.report.sweep_report(sweep.folder)
    return sweep


def open_sweep(config: SweepConfig, folder: Path, *, resume: bool = False) -> Sweep:
    """Write or check the configuration in a folder and enqueue the trials. Raises SettingError if either is unsuitable."""
    check_out(folder)
    if resume:
        name, stored = read_config(folder)
        check_same_search(stored, config, folder)
        config = replace(config, space=stored.space, spec_version=stored.spec_version)  # the spelling in Optuna's storage
    else:
        if (folder / CONFIG_FILE).exists():
            raise SettingError(f"`--out` must be a directory without a sweep, unless --resume is given, got {folder}")
        if is_run_folder(folder):
            raise SettingError(f"`--out` must be a directory without a run, got {folder}")
        config.check_probes()
        if config.storage is not None:
            open_storage(config.storage, folder)
        folder.mkdir(parents=True, exist_ok=True)
        name, stored = uuid.uuid4().hex, None
    with FileLock(folder / "sweep.lock"):
        if config != stored:
            write_config(folder, config, name)
        sweep = Sweep(folder)
        for stage in (sweep.search, sweep.test()):
            if stage is not None:
                sweep.enqueue_free(stage, retry_errors=True)
    return sweep
