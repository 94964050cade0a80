"""`run_sweep`: search a space of settings by validation scores, then test the best setting over seeds; by many workers at once.

A sweep is a folder that all its workers see:

    sweep.yaml                        the plan
    journal.log                       Optuna's record of the trials, where no database keeps it
    trials/0003/seed_0/               a run of the search: a run's directory like any other, the test split left alone
    seeds/trial_0003/seed_5/          a run of the best setting, tested (seeds/seed_5/ where nothing was searched)
    sweep.json, report.html           what came of it

Every trial has a place, from 0 on. A place is free, taken by a living worker, or over; a worker that dies leaves its place free,
and the next that takes it resumes the run that stands in its directory. What is free is found out anew each time, under a lock,
from Optuna's record and from the locks that living workers hold; so nothing is lost whatever is killed when.
"""

import json
import logging
import os
import time
import traceback
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import optuna
from filelock import FileLock, Timeout
from optuna.storages import BaseStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock, JournalStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.exc import SQLAlchemyError

import longscan.report
from longscan._files import write_text
from longscan.report.records import check_record, read_records
from longscan.report.statistics import mean_interval
from longscan.report.sweep import settings_text
from longscan.tasks import Task
from longscan.training.loop import train
from longscan.training.parsing import one_line
from longscan.training.records import commit, result_row, task_title
from longscan.training.run import Run, check_out, holds_run
from longscan.training.settings import SettingError, refuse
from longscan.training.space import PLAN, Choices, Plan, same_search, stored_plan, write_plan
from longscan.training.workers import Worker, start_jobs, start_processes

POLL = 0.5  # seconds between two looks at what others have done
_OVER = (TrialState.COMPLETE, TrialState.PRUNED)
_WORDS = {TrialState.WAITING: "waiting", TrialState.RUNNING: "running", TrialState.COMPLETE: "finished"}


class _JournalLock(JournalFileOpenLock):
    """The journal's lock as one that the system releases when its holder is killed; Optuna's own would stay for a while."""

    def __init__(self, journal: Path) -> None:
        super().__init__(str(journal))
        self._lock = FileLock(f"{journal}.lock")

    def acquire(self) -> bool:
        """Wait for the lock."""
        self._lock.acquire()
        return True

    def release(self) -> None:
        """Give it back."""
        self._lock.release()


def open_storage(url: str | None, folder: Path) -> BaseStorage:
    """Optuna's storage: a database, or the journal in the sweep's folder; SettingError where the database can not be opened."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    if url is None:
        journal = folder / "journal.log"
        lock = _JournalLock(journal)
        _mend(journal, lock)
        try:  # Optuna reads all entries here, and trusts them
            return JournalStorage(JournalFileBackend(str(journal), lock_obj=lock))
        except (ValueError, LookupError, TypeError, AttributeError, AssertionError) as error:
            raise SettingError(f"{journal}: damaged ({one_line(error)[:200]}), needed what Optuna wrote") from None
    try:
        return RDBStorage(os.path.expandvars(url))
    except (SQLAlchemyError, ImportError, ValueError) as error:
        reason = one_line(error).partition(" (Background")[0]
        raise refuse("--storage", url, f"the URL of a database that Optuna can open ({reason})") from None


def _mend(journal: Path, lock: _JournalLock) -> None:
    """Cut off a last line that a power cut left half written: Optuna could not read past it. SettingError for other damage."""
    lock.acquire()
    try:
        content = journal.read_bytes() if journal.exists() else b""
        if content and not content.endswith(b"\n"):
            os.truncate(journal, content.rfind(b"\n") + 1)
    finally:
        lock.release()
    for number, line in enumerate(content.split(b"\n")[:-1], 1):
        try:
            entry = json.loads(line)
            if not isinstance(entry, dict) or not {"op_code", "worker_id"} <= entry.keys():
                raise ValueError("no entry of Optuna")
        except (ValueError, RecursionError) as error:
            raise SettingError(f"{journal}, line {number}: damaged ({one_line(error)}), needed what Optuna wrote") from None


@dataclass(frozen=True)
class _Stage:
    """The search, or the seeds of its best setting: places for trials, each of them one or several runs.

    fixed: what is known of each place's settings; the study's sampler chooses the rest. seeds: of each place's runs.
    """

    study: optuna.Study
    folder: Path
    fixed: list[dict[str, Any]]
    seeds: list[list[int]]
    values: dict[str, Any]
    tests: bool

    def latest(self) -> list[FrozenTrial | None]:
        """The trial that stands for each place; the ones before it were interrupted."""
        found: list[FrozenTrial | None] = [None] * len(self.fixed)
        for trial in self.study.get_trials(deepcopy=False):
            place: int = trial.user_attrs["place"]
            if place < len(found):
                found[place] = trial
        return found

    def is_over(self) -> bool:
        """Whether every place has a score or a failure."""
        return all(trial is not None and _is_over(trial) for trial in self.latest())

    def path(self, place: int, seed: int) -> Path:
        """The directory of one run."""
        return self.folder / f"seed_{seed}" if self.tests else self.folder / f"{place:04d}" / f"seed_{seed}"


def _is_over(trial: FrozenTrial) -> bool:
    return trial.state in _OVER or "error" in trial.user_attrs


def _parameters(trial: FrozenTrial) -> dict[str, Any]:
    """What is chosen of a trial's parameters so far, as Optuna keeps them."""
    return {**trial.system_attrs.get("fixed_params", {}), **trial.params}


@dataclass(frozen=True)
class _Claim:
    """A place that a worker has taken, with the settings of its runs."""

    stage: _Stage
    trial: optuna.Trial
    place: int
    values: dict[str, Any]


class Sweep:
    """A sweep's folder. Raises SettingError where `folder` holds none, or its database can not be opened."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder).absolute()
        self.name, self.plan = stored_plan(Path(folder))
        self._storage = open_storage(self.plan.storage, self.folder)
        self._lock = FileLock(self.folder / "sweep.lock")
        self._higher = self.plan.settings.task.higher_is_better
        self._studies: dict[str, optuna.Study] = {}

    # What there is to do.

    @cached_property
    def search(self) -> _Stage:
        """The search; it has no places where the space is empty."""
        points = [{name: self._written(name, value) for name, value in point.items()} for point in self.plan.points()]
        seeds = [self.plan.seeds_of_search()] * len(points)
        return _Stage(self._study(self.name), self.folder / "trials", points, seeds, {}, tests=False)

    def test(self) -> _Stage | None:
        """The seeds of the best setting; None while the search is on, where it found nothing, or where no seeds are asked for."""
        values, label = {}, "seeds"
        if self.plan.space:
            best = self.best() if self.search.is_over() else None
            if best is None:
                return None
            values, label = self._values(best), f"seeds/trial_{best.user_attrs['place']:04d}"
        seeds = [[seed] for seed in self.plan.seeds_of_test()]
        if not seeds:
            return None
        study = self._study(f"{self.name}/{label}")
        return _Stage(study, self.folder / label, [{} for _ in seeds], seeds, values, tests=True)

    def _study(self, name: str) -> optuna.Study:
        if name not in self._studies:
            direction = StudyDirection.MAXIMIZE if self._higher else StudyDirection.MINIMIZE
            self._studies[name] = optuna.create_study(
                study_name=name, storage=self._storage, direction=direction, load_if_exists=True
            )
        return self._studies[name]

    def best(self) -> FrozenTrial | None:
        """The trial with the best validation score, of equal ones the first."""
        trials = [trial for trial in self.search.latest() if trial is not None and trial.state is TrialState.COMPLETE]
        sign = -1 if self._higher else 1
        return min(trials, key=lambda trial: (sign * (trial.value or 0.0), trial.user_attrs["place"]), default=None)

    def _written(self, name: str, value: Any) -> Any:
        """A value as Optuna keeps it: values from lists, of whatever type, as JSON."""
        return json.dumps(value) if isinstance(self.plan.dimensions[name], Choices) else value

    def _values(self, trial: FrozenTrial) -> dict[str, Any]:
        """A trial's settings by their names with dots, as far as they are chosen."""
        known, ways = _parameters(trial), self.plan.dimensions
        chosen = {name: known[name] for name in ways if name in known}
        return {name: json.loads(value) if isinstance(ways[name], Choices) else value for name, value in chosen.items()}

    # What a worker does.

    def claim(self, worker: str) -> _Claim | None:
        """Take a free place, waiting for one while others are at work; None once everything is over."""
        while True:
            with self._lock:
                search = self.search
                stage = search if not search.is_over() else self.test()
                if stage is None or stage.is_over():
                    return None
                self.free_places(stage)
                if stage.study.get_trials(deepcopy=False, states=(TrialState.WAITING,)):
                    return self._take(stage, worker)
            time.sleep(POLL)

    def free_places(self, stage: _Stage, *, retry_errors: bool = False) -> None:
        """Queue every place that nobody has taken or whose worker is gone; also those that ended in an error, where asked."""
        for place, trial in enumerate(stage.latest()):
            if trial is None:
                stage.study.enqueue_trial(stage.fixed[place], user_attrs={"place": place})
                continue
            lost = trial.state is TrialState.RUNNING and not self._is_alive(trial.user_attrs.get("worker"))
            if lost:
                stage.study.tell(trial.number, state=TrialState.FAIL)
            if lost or (trial.state is TrialState.FAIL and (retry_errors or "error" not in trial.user_attrs)):
                stage.study.enqueue_trial(_parameters(trial), user_attrs={"place": place})

    def _is_alive(self, worker: str | None) -> bool:
        """Whether the worker still holds its lock, which its end releases, whatever ended it."""
        mark = None if worker is None else self._mark(worker)
        if mark is None or not mark.exists():
            return False
        try:
            with FileLock(mark, blocking=False):
                return False
        except Timeout:
            return True

    def _mark(self, worker: str) -> Path:
        return self.folder / "workers" / f"{worker}.lock"

    def _take(self, stage: _Stage, worker: str) -> _Claim:
        trial = stage.study.ask()
        trial.set_user_attr("worker", worker)
        place: int = trial.user_attrs["place"]
        if stage.tests:
            return _Claim(stage, trial, place, stage.values)
        # A sampler of the place's own: what is drawn does not depend on which worker draws it.
        seed = self.plan.first_seed + place
        learns = self.plan.sampler == "tpe"
        stage.study.sampler = optuna.samplers.TPESampler(seed=seed) if learns else optuna.samplers.RandomSampler(seed=seed)
        return _Claim(stage, trial, place, {name: self._suggest(trial, name) for name in self.plan.space})

    def _suggest(self, trial: optuna.Trial, name: str) -> Any:
        way = self.plan.dimensions[name]
        if isinstance(way, Choices):
            return json.loads(trial.suggest_categorical(name, [json.dumps(value) for value in way.values]))
        if way.whole:
            return trial.suggest_int(name, int(way.low), int(way.high), step=int(way.step or 1), log=way.log)
        return trial.suggest_float(name, way.low, way.high, step=way.step, log=way.log)

    def work_on(self, claim: _Claim) -> None:
        """Make the runs of a claimed place, up to the first that fails, and put down their mean score or their failure."""
        study, trial, failure = claim.stage.study, claim.trial, None
        runs: list[dict[str, Any]] = []
        try:
            for seed in claim.stage.seeds[claim.place]:
                runs.append(self._run(claim, seed))
                trial.set_user_attr("runs", runs)
                failure = runs[-1]["failure"]
                if failure is not None:
                    break
        except SettingError as error:
            failure = one_line(error)
        except KeyboardInterrupt:
            study.tell(trial, state=TrialState.FAIL)
            raise
        except Exception as error:  # a fault of one trial, such as memory that does not suffice, is kept with it
            logging.getLogger(__name__).error("place %d: %s", claim.place, traceback.format_exc())
            trial.set_user_attr("error", f"{type(error).__name__}: {one_line(error)}")
            study.tell(trial, state=TrialState.FAIL)
            return
        if failure is not None:
            trial.set_user_attr("failure", failure)
            # To Optuna's samplers a pruned trial without a value is worse than any score, a failed one says nothing.
            study.tell(trial, state=TrialState.PRUNED)
            return
        study.tell(trial, sum(run["score"] for run in runs) / len(runs))

    def _run(self, claim: _Claim, seed: int) -> dict[str, Any]:
        """One run, from its last checkpoint where it was begun, and what is kept of it beside its directory."""
        folder, tests = claim.stage.path(claim.place, seed), claim.stage.tests
        settings = self.plan.at(claim.values, seed)
        run = train(settings, folder, resume=holds_run(folder), command=self.plan.command, test=tests)
        result = run.result
        assert result is not None, "training ends with a result"
        score = result["value"] if tests else valid_score(result)
        failure = result.get("failure")
        if failure is None and score is None:
            failure = f"no {result['metric']} on {'test' if tests else 'validation'}"
        return {
            "seed": seed,
            "folder": str(folder.relative_to(self.folder)),
            "score": score,
            "scaled": None if score is None else settings.task.scaled(score),
            "constant": _constant_score(settings.task, "test" if tests else "valid"),
            "failure": failure,
            **{name: result[name] for name in ("steps", "seconds", "params")},
        }

    # What came of it.

    def result(self) -> dict[str, Any]:
        """All trials and seeds as they stand: what sweep.json holds."""
        search, test, plan = self.search, self.test(), self.plan
        best = self.best()
        task = plan.settings.task
        trials = [self._row(search, place, trial) for place, trial in enumerate(search.latest())]
        seeds = [] if test is None else [self._row(test, place, trial) for place, trial in enumerate(test.latest())]
        over = search.is_over() and (test is None or test.is_over())
        return {
            "name": self.name,
            "task": task_title(plan.settings),
            "metric": task.metric,
            "higher_is_better": task.higher_is_better,
            "status": "finished" if over else "unfinished",
            "sampler": plan.sampler,
            "space": plan.space,
            "search_seeds": plan.seeds_of_search() if plan.space else [],
            "trials": trials,
            "best": None if best is None else trials[best.user_attrs["place"]],
            "seeds": seeds,
            "test": _summary(seeds, task.scaled),
            "recipe": plan.settings.about.recipe,
            "quick": plan.settings.about.quick,
            "commit": _commit(),
            "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "command": plan.command or "",
        }

    def _row(self, stage: _Stage, place: int, trial: FrozenTrial | None) -> dict[str, Any]:
        """What sweep.json says of a place."""
        notes: dict[str, Any] = {} if trial is None else trial.user_attrs
        status = "waiting" if trial is None else _WORDS.get(trial.state, "failed" if _is_over(trial) else "waiting")
        runs = notes.get("runs", [])
        constants = [run["constant"] for run in runs]
        values = stage.values if stage.tests or trial is None else self._values(trial)
        score = trial.value if trial is not None and status == "finished" else None
        head = {"seed": stage.seeds[place][0]} if stage.tests else {"trial": place, "settings": values}
        return {
            **head,
            "status": status,
            "score": score,
            "constant": sum(constants) / len(constants) if constants else None,
            "failure": notes.get("failure", notes.get("error")),
            "seconds": sum(run["seconds"] for run in runs),
            "runs": runs,
        }

    def write(self) -> dict[str, Any]:
        """Write sweep.json, and return what it holds."""
        with self._lock:
            found = self.result()
            check_record("sweep", found)
            write_text(self.folder / "sweep.json", json.dumps(found, indent=1))
        return found

    def unrecorded(self, target: str | Path) -> list[Run]:
        """The runs of the best setting over its seeds that a file of records does not hold yet."""
        test = self.test()
        if test is None:
            return []
        rows = [run for trial in test.latest() if trial is not None for run in trial.user_attrs.get("runs", [])]
        runs = [Run(self.folder / row["folder"]) for row in rows]
        held = read_records(target) if Path(target).exists() else []
        return [run for run in runs if result_row(run) not in held]


_commit = cache(commit)


@cache
def _constant_score(task: Task, split: Any) -> float:
    return task.constant_score(split)


def valid_score(result: dict[str, Any]) -> float | None:
    """The validation score of the weights that a run ends with, from its result.json."""
    if result["selected"] is None:
        return None
    score: float | None = result["valid"].get(result["selected"])
    return score


def _summary(seeds: list[dict[str, Any]], scaled: Callable[[float], float]) -> dict[str, Any] | None:
    """Mean and half the 95 % interval over the seeds that have a score; None before there is one."""
    scores = [row["score"] for row in seeds if row["score"] is not None]
    if not scores:
        return None
    mean, half_width = mean_interval(scores)
    constants = [row["constant"] for row in seeds if row["score"] is not None]
    return {
        "mean": mean,
        "half_width": half_width,
        "scaled": scaled(mean),
        "constant": sum(constants) / len(constants),
        "count": len(scores),
        "failed": sum(row["status"] == "failed" for row in seeds),
    }


def work(folder: str | Path) -> int:
    """Take places of a sweep until all is over; the exit code is 0 then, 130 where the process was asked to stop."""
    sweep = Sweep(folder)
    worker = uuid.uuid4().hex
    mark = sweep.folder / "workers" / f"{worker}.lock"
    mark.parent.mkdir(exist_ok=True)
    try:
        with FileLock(mark):
            while (claim := sweep.claim(worker)) is not None:
                sweep.work_on(claim)
    except KeyboardInterrupt:
        return 130
    finally:
        mark.unlink(missing_ok=True)
    return 0


def run_sweep(
    plan: Plan,
    out: str | Path,
    *,
    resume: bool = False,
    workers: int = 1,
    slurm: dict[str, Any] | None = None,
    say: Callable[[str], None] | None = None,
) -> Sweep:
    """Search, test and report; the sweep's folder is `out`, with a directory for each run.

    Args:
        plan: what to search, from which settings, over how many seeds.
        out: folder of the sweep, made if need be; on several machines, one that all of them see.
        resume: go on with the sweep in `out`, whose plan must be this one but for more trials or seeds. What is over is not run
            again, except where it ended in an error; what was interrupted goes on from its last checkpoint. Further machines
            join a sweep in this way while it is on.
        workers: processes to start, each with one run at a time.
        slurm: start them as Slurm jobs with these settings (`slurm_settings`), not as processes of this machine.
        say: is given a line for each trial and seed that comes to its end.

    Returns the sweep, whose `result()` and sweep.json say "unfinished" where workers were lost. Raises SettingError for what
    can not be met, KeyboardInterrupt once the workers have saved their checkpoints where the process was asked to stop.
    """
    if workers < 1:
        raise refuse("--workers", workers, "a whole number of at least 1")
    sweep = open_sweep(plan, Path(out), resume=resume)
    if sweep.write()["status"] != "finished":
        number = min(workers, max(plan.number, plan.seeds))
        started = start_jobs(sweep.folder, number, slurm) if slurm is not None else start_processes(sweep.folder, number)
        _wait(sweep, started, say or _silent)
    longscan.report.sweep_report(sweep.folder)
    return sweep


def _silent(_: str) -> None:
    return


def open_sweep(plan: Plan, folder: Path, *, resume: bool = False) -> Sweep:
    """Make the folder ready and queue what is to be done; SettingError where the plan or the folder is no good."""
    check_out(folder)
    if resume:
        name, stored = stored_plan(folder)
        same_search(stored, plan, folder)
        write_plan(folder, plan, name)
    else:
        if (folder / PLAN).exists():
            raise SettingError(f"--out: {folder} holds a sweep already, needed another directory or --resume")
        if holds_run(folder):
            raise SettingError(f"--out: {folder} holds a run, needed another directory")
        plan.try_values()
        if plan.storage is not None:
            open_storage(plan.storage, folder)
        folder.mkdir(parents=True, exist_ok=True)
        write_plan(folder, plan, uuid.uuid4().hex)
    sweep = Sweep(folder)
    with sweep._lock:
        for stage in (sweep.search, sweep.test()):
            if stage is not None:
                sweep.free_places(stage, retry_errors=True)
    return sweep


def _wait(sweep: Sweep, workers: list[Worker], say: Callable[[str], None]) -> None:
    """Until all workers have ended: tell what they finish and who of them is lost, and keep sweep.json up to date."""
    known, lost = _lines(sweep.result()), set()
    try:
        while True:
            codes = {worker.name: worker.code() for worker in workers}
            lines = _lines(sweep.result())
            for place in sorted(lines.keys() - known.keys()):
                say(lines[place])
            if lines != known:
                sweep.write()
            known = lines
            for name, code in codes.items():
                if code and name not in lost:
                    lost.add(name)
                    say(f"a worker ended with code {code}, others go on with what it had begun: {name}")
            if None not in codes.values():
                sweep.write()
                return
            time.sleep(POLL)
    except KeyboardInterrupt:
        for worker in workers:
            worker.ask_to_stop()
        for worker in workers:
            worker.wait()
        sweep.write()
        raise


def _lines(found: dict[str, Any]) -> dict[tuple[str, int], str]:
    """A line for each trial and seed that is over."""
    lines = {}
    for kind, split, rows in (("trial", "validation", found["trials"]), ("seed", "test", found["seeds"])):
        for row in rows:
            if row["status"] in ("finished", "failed"):
                said = row["failure"] or f"{found['metric']} {row['score']:.4f} on {split}"
                settings = settings_text(row.get("settings", {}))
                lines[kind, row[kind]] = f"{kind} {row[kind]}: {said}{settings and f' ({settings})'}"
    return lines

