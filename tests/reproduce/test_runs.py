"""Runs of rows: records, folders that are refused, archives, and the report."""

import json
import os
import re
import shutil
import signal
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from filelock import FileLock
from safetensors.torch import load_file

import longscan
from fork_server import running_job
from longscan._errors import SettingError
from longscan.cli import main
from longscan.report.records import read_records
from longscan.reproduce import PublishedRow, archive, find_rows, runs, state_tracking
from longscan.reproduce.archive import MANIFEST, checkpoint_bytes
from longscan.reproduce.near import near_runs
from longscan.reproduce.page import choose_candidates, merge_candidates, outcome_of, read_outcomes, report_page, summary_table
from longscan.reproduce.runs import (
    Planned,
    Process,
    check_manifest,
    check_run,
    progress_of,
    reproduce,
    row_argv,
    row_settings,
    run_folder,
)
from longscan.reproduce.stacks import is_stacked
from longscan.reproduce.tries import count_runs, make_tries, settings_name, settings_text
from longscan.training import Run, processes, train
from longscan.training.parsing import parse_settings
from longscan.training.processes import Ended, Job, lock_job
from longscan.training.run import SETTINGS

RECIPE = """# Parity of short words.
spec_version: 2
task: {name: parity, suite: aussm, train_lengths: [3, 8], eval_lengths: [9, 12], valid_size: 8, test_size: 8}
model: {spec: ma, d_model: 4, d_state: 2, backend: eager}
training: {steps: 3, batch_size: 4, eval_every: 2, select: best, device: cpu}
"""


@pytest.fixture
def row(tmp_path: Path) -> PublishedRow:
    """Parity with a model that trains in a second."""
    recipe = tmp_path / "parity.yaml"
    recipe.write_text(RECIPE)
    return PublishedRow(id="aussm/table1/parity/ma", published="r036", recipe=str(recipe), updates=3, seeds=2, constant=0.01)


@pytest.mark.usefixtures("forked_jobs")
def test_runs_are_recorded_once_and_compared(row: PublishedRow, tmp_path: Path) -> None:
    out, lines = tmp_path / "out", list[str]()
    assert reproduce([row], out, archive=tmp_path / "archive", minutes=5, echo=lines.append) == []
    assert lines[0].startswith("runs to train: 2, in ")
    assert lines[0].endswith("at a time; each prints a line when it ends, and stops after 5 minutes")
    assert lines[1] == f"what the runs print until then is in {out / row.id / 'seed_0.txt'} and the files next to it"
    assert [line.partition(":")[0] for line in sorted(lines[2:])] == [f"{row.id}/seed_0", f"{row.id}/seed_1"]
    records = read_records(out / "runs" / "aussm.jsonl")
    assert sorted(record["seed"] for record in records) == [0, 1]
    for record in records:
        assert (record["row"], record["published"], record["recipe"]) == (row.id, ["r036"], row.recipe)
        assert (record["steps"], record["updates_published"]) == (3, 3)
        assert record["updates_per_second"] == pytest.approx(3 / record["seconds"], rel=0.01)
        assert record["device_seconds"] > 0
        assert list(record["validation_curve"]) == ["2", "3"]
        assert max(record["validation_curve"].values()) == record["valid"]["best"]
    before = (out / "runs" / "aussm.jsonl").read_bytes()
    assert reproduce([row], out, echo=lines.append) == []
    assert (out / "runs" / "aussm.jsonl").read_bytes() == before
    assert len(lines) == 4, "nothing ran again"

    (outcome,) = read_outcomes([row], out)
    assert (len(outcome.scores), outcome.updates, outcome.verdict) == (2, 3, "partial")
    bests = [Run(run_folder(out, row, seed)).result["valid"]["best"] for seed in (0, 1)]
    assert outcome.validation == pytest.approx(sum(bests) / 2)
    assert outcome.state.startswith("done: ours ")
    page = report_page([outcome], "longscan reproduce report")
    assert summary_table([outcome]).splitlines()[2].endswith(" | 1 | 1 | partial |")
    (line,) = [line for line in page.splitlines() if line.startswith("| parity/ma | 1.00 | ")]
    assert line.split(" | ")[3:6] == ["partial", "2 of 2", "3, of 3"]

    elsewhere = tmp_path / "elsewhere"
    assert reproduce([row], elsewhere, archive=tmp_path / "archive") == []
    assert (elsewhere / "runs" / "aussm.jsonl").read_bytes() == before, "the archive has the results and the records"
    (again,) = read_outcomes([row], elsewhere)
    assert again == outcome


def test_candidates_that_differ_in_the_rate_alone_share_a_process() -> None:
    """Runs with the same rate are next to each other. Rows that are not in the set have a process for each run."""
    rows = find_rows("aussm/table1", ["cycle_navigation/aa", "parity/ma", "parity/am"])
    plan = [Planned(row, seed, Path(row.id, f"seed_{seed}"), []) for seed in range(2) for row in rows]
    stacked = {row.id for row in rows} - {"aussm/table1/parity/am"}
    processes = runs._share_processes(plan, stacked)
    named = [[one.name.removeprefix("aussm/table1/") for one in process.runs] for process in processes]
    rates, specs = (0.0001, 0.001, 0.01), ("aa", "aaaa", "aaaaaa")
    assert named == [
        *[[f"cycle_navigation/aa/{spec}-{rate}/seed_{seed}" for rate in rates for seed in range(2)] for spec in specs],
        ["parity/ma/seed_0", "parity/ma/seed_1"],
        ["parity/am/seed_0"],
        ["parity/am/seed_1"],
    ]
    assert len({process.name for process in processes}) == len(processes)


@pytest.mark.usefixtures("forked_jobs")
def test_stacked_seeds_give_the_same_records(row: PublishedRow, tmp_path: Path) -> None:
    """The records of a process with both seeds are those of two processes, except for times and the rounding of the scores."""
    records = {}
    for stacking in ("always", "never"):
        lines = list[str]()
        assert reproduce([row], tmp_path / stacking, stacking=stacking, echo=lines.append) == []
        assert [line.partition(":")[0] for line in sorted(lines[2:])] == [f"{row.id}/seed_0", f"{row.id}/seed_1"]
        found = read_records(tmp_path / stacking / "runs" / "aussm.jsonl")
        records[stacking] = {record["seed"]: record for record in found}
        assert set(records[stacking]) == {0, 1}
        assert all(run_folder(tmp_path / stacking, row, seed).with_suffix(".lock").exists() for seed in (0, 1))
    assert (tmp_path / "always" / row.id / "seeds_0-1.txt").exists()
    varying = {"date", "seconds", "device_seconds", "updates_per_second", "command", "device"}  # with the number of threads
    for seed in (0, 1):
        together, alone = (records[stacking][seed] for stacking in ("always", "never"))
        assert together.pop("stacked") == 2
        assert together.keys() == alone.keys()
        assert together["command"].replace("always", "never") == alone["command"]
        for name in alone.keys() - varying:
            expected = alone[name]
            assert together[name] == (pytest.approx(expected, rel=1e-3) if isinstance(expected, float) else expected), name
        files = [
            {path.relative_to(folder) for path in folder.rglob("*") if path.name != "run.lock"}  # of a run alone in its process
            for folder in (run_folder(tmp_path / stacking, row, seed) for stacking in ("always", "never"))
        ]
        assert {name for name in files[0] if "tfevents" not in name.name} == {
            name for name in files[1] if "tfevents" not in name.name
        }
    assert reproduce([row], tmp_path / "always") == [], "runs that are over are not started again"


def test_seeds_are_stacked_on_a_gpu_if_recipe_and_size_allow_it(row: PublishedRow, monkeypatch: pytest.MonkeyPatch) -> None:
    """Automatic stacking needs a GPU and a small model without dropout; stacking="always" is an error if it is impossible."""
    settings = row_settings(row)
    settings = replace(settings, training=replace(settings.training, device="auto"))
    dropout = replace(settings, model=replace(settings.model, block_options={"mamba": {"dropout": 0.1}}))
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert not is_stacked(row, settings, "auto")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert is_stacked(row, settings, "auto")
    assert not is_stacked(row, settings, "never")
    assert not is_stacked(row, dropout, "auto")
    assert not is_stacked(row, row_settings(row), "auto"), "its device is the CPU"
    large = replace(settings, training=replace(settings.training, batch_size=2**24))
    assert not is_stacked(row, large, "auto")
    assert is_stacked(row, large, "always")
    with pytest.raises(SettingError, match=r"`--stacked` must be auto or never for aussm/table1/parity/ma \(dropout"):
        is_stacked(row, dropout, "always")


def test_only_the_best_candidate_on_validation_is_compared(row: PublishedRow, tmp_path: Path) -> None:
    """The test scores have another order. The choice is partial while a candidate has no run."""
    names = ("aa-0.0001", "aa-0.001", "aa-0.01")
    rows = [replace(row, id=f"aussm/table1/parity/aa/{name}", candidate_of="aussm/table1/parity/aa") for name in names]
    first, second, third = read_outcomes(rows, tmp_path)
    assert [one.verdict for one in (first, second, third)] == ["not run"] * 3
    first = replace(first, validation=0.7, scores=(0.5,), verdict="short")
    second = replace(second, validation=0.6, scores=(1.0,), verdict="reproduced")
    assert [one.verdict for one in choose_candidates([first, second])] == ["short", "not chosen"]
    incomplete = choose_candidates([first, second, third], {"aussm/table1/parity/aa"})
    assert [one.verdict for one in incomplete] == ["partial", "not chosen", "not chosen"]


def test_failed_seeds_and_earlier_recipes_do_not_change_what_is_compared(row: PublishedRow) -> None:
    """A failed seed makes a row partial until it has a finished run; records of another recipe with fewer seeds do not."""
    common = {
        "paper": "AUSSM",
        "task": "parity",
        "metric": "accuracy",
        "published": ["r036"],
        "model": "AUSSM Hybrid",
        "spec": "ma",
    }
    common |= {"suite": "aussm", "recipe": row.recipe, "command": "longscan train", "status": "finished", "commit": "0" * 12}
    common |= {"steps": 3, "value": 1.0, "scaled": 1.0, "constant": 0.5, "constant_scaled": 0.0, "baselines": {}, "seconds": 1.0}
    common |= {"selected": "best", "valid": {"best": 1.0}}
    finished = [common | {"seed": seed} for seed in range(3)]
    failed = common | {"seed": 3, "status": "failed", "steps": 2, "value": None, "scaled": None, "selected": None}
    earlier = common | {"seed": 0, "steps": 1, "recipe": "recipes/earlier.yaml"}

    def verdict_of(*records: dict[str, Any]) -> tuple[str, int]:
        outcome = outcome_of(row, records, {})
        return outcome.verdict, outcome.updates

    assert verdict_of(*finished) == ("reproduced", 3)
    together = [one | {"stacked": 3, "seconds": 180.0} for one in finished]
    assert outcome_of(row, together, {}).minutes == pytest.approx(3.0), "the time of seeds that trained together counts once"
    assert outcome_of(row, [*together[:2], together[2] | {"device_seconds": 30.0}], {}).minutes == pytest.approx(2.5)
    assert verdict_of(*finished, earlier) == ("reproduced", 3)
    assert verdict_of(*finished, failed) == ("partial", 2)
    assert verdict_of(*finished, failed, common | {"seed": 3}) == ("reproduced", 3)


@pytest.mark.usefixtures("forked_jobs")
def test_report_shows_updates_per_second_beside_the_replayed_rate(row: PublishedRow, tmp_path: Path) -> None:
    assert reproduce([row], tmp_path / "out") == []
    path = tmp_path / "out" / "runs" / "aussm.jsonl"
    records = read_records(path)
    changes = ({"updates_per_second": 20.0, "replayed_updates_per_second": 80.0}, {"updates_per_second": 30.0})
    path.write_text("".join(json.dumps(record | change) + "\n" for record, change in zip(records, changes, strict=True)))
    (outcome,) = read_outcomes([row], tmp_path / "out")
    assert (outcome.rate, outcome.replayed_rate) == (25.0, 80.0)
    assert " | 25.0, 80.0 | " in report_page([outcome], "longscan reproduce report")


def test_report_begins_with_the_rows_that_have_runs(row: PublishedRow, tmp_path: Path) -> None:
    rows = [replace(row, id=f"aussm/table1/{name}") for name in ("first", "second", "third")]
    without = read_outcomes(rows, tmp_path)
    assert "## Rows with runs" not in report_page(without, "longscan reproduce report")
    outcomes = [without[0], replace(without[1], unfinished={0: 7}), replace(without[2], scores=(0.5, 0.7), verdict="partial")]
    page = report_page(outcomes, "longscan reproduce report")
    first, of_table = page.split("\n### aussm/table1", 1)
    assert "\n| aussm/table1/second | " in first
    assert "\n| aussm/table1/third | " in first
    assert "first | " not in first
    lines = [line for line in of_table.splitlines() if line.startswith("|")]
    begun, second, third, not_run, alone = [line.split(" |")[0] for line in lines if not line.startswith("|-")][:5]
    assert (begun, second, third, not_run, alone) == ("| row", "| second", "| third", "| not run", "| first")


def test_report_has_one_line_for_candidates_without_runs(row: PublishedRow, tmp_path: Path) -> None:
    names = ["aa", "aaaa"]
    rows = [replace(row, id=f"aussm/table1/parity/aa/{name}", candidate_of="aussm/table1/parity/aa") for name in names]
    outcomes = read_outcomes([row, *rows], tmp_path)
    assert [one.row.id for one in merge_candidates(outcomes)] == [row.id, "aussm/table1/parity/aa (2 settings)"]
    page = report_page(outcomes, "longscan reproduce report")
    assert "Of 2 rows with a recipe, for 1 figure: not run." in page
    assert "| parity/aa (2 settings) | " in page
    begun = choose_candidates([*outcomes[:2], replace(outcomes[2], validation=0.7, scores=(0.5,), verdict="short")])
    assert merge_candidates(begun) == begun
    assert [one.verdict for one in merge_candidates(begun, all_begun=True)] == ["not run", "short"]


def test_tries_of_different_settings_have_different_folders() -> None:
    """Names are safe in a path and short; numbers and texts that look alike, slashes and brackets are told apart."""
    values = ["a/b", "a%2Fb", "a,b=c", "a b", "(a)*2", "[a]*2", "..", 0.5, "0.5", 1, 1.0, True, "true", None, "null", ""]
    values += [[1, 2], "[1, 2]", {"m": {"p": "q"}}, {"m": {"p": 1}}, "x" * 300, "x" * 301]
    names = [settings_name({"model.spec": value}) for value in values]
    names += [settings_name({"model.spec": "a", "training.lr": 1.0}), settings_name({"model.spec": "a,training.lr=1.0"})]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"model\.spec=[\w.~%,=-]*", name) and len(name) < 140 for name in names)
    long = {"model.spec": "a" * 90, "training.steps": 400_000, "training.select": "best"}
    assert re.fullmatch(rf"model\.spec={'a' * 90},~\w{{16}}", settings_name(long)), "no number is cut"
    assert settings_name({"training.lr": 0.003, "model.d_state": 8}) == "model.d_state=8,training.lr=0.003"
    assert settings_text({"training.lr": 0.003, "model.d_state": 8}) == "model.d_state=8 training.lr=0.003"


def test_tries_are_apart_from_the_row_and_continue(row: PublishedRow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folder, record and archive of a try; the same settings in another form resume it, and it is no run of the row."""
    stored: list[Path] = []

    def run_jobs(jobs: list[Job], *others: Any) -> None:
        for job in jobs:
            words = job.command(1.0)
            folder = Path(words[words.index("--out") + 1])
            assert ("--resume" in words) == (folder in stored)
            train(parse_settings(words[words.index("train") + 1 : words.index("--out")]), folder, resume=folder in stored)
            stored.append(folder)
            others[-1](Ended(job.name, 0, 1.5))

    monkeypatch.setattr(runs, "run_jobs", run_jobs)
    out, packed = tmp_path / "out", tmp_path / "packed"
    (tried,) = make_tries([row], ["training.lr=2e-3", "model.block_options.aussm.phase_dt=true"])
    assert tried.changed == {"training.lr": 0.002, "model.block_options": {"aussm": {"phase_dt": True}}}
    (other,) = make_tries([row], ["training.lr=0.003", "training.steps=2"])
    assert other.id == f"tries/{row.id}/training.lr=0.003,training.steps=2"
    lines: list[str] = []
    assert reproduce([tried, other], out, seeds=1, archive=packed, echo=lines.append) == []
    assert [path.relative_to(out) for path in stored] == [Path(one.id, "seed_0") for one in (tried, other)]
    assert [Run(path).settings.training.lr for path in stored] == [0.002, 0.003]
    assert not (out / "runs").exists()
    records = read_records(out / "tries" / "runs" / "aussm.jsonl")
    assert [(one["row"], one["try_of"], one["changed"]) for one in records] == [
        (one.id, row.id, one.changed) for one in (tried, other)
    ]
    assert [(one["steps"], one["updates_published"], one["device_seconds"]) for one in records] == [(3, 3, 1.5), (2, 3, 1.5)]
    assert all(one["validation_curve"] for one in records)
    (outcome,) = read_outcomes([row], out)
    assert not outcome.has_run
    assert [(run.settings, run.updates) for run in near_runs(row, out)] == [
        (settings_text(one.changed), updates) for one, updates in ((tried, 3), (other, 2))
    ]
    assert count_runs(out) == (2, 0)

    elsewhere = tmp_path / "elsewhere"
    same = make_tries([row], ["model.block_options={aussm: {phase_dt: true}}", "training.lr=0.0020"])
    assert same == [tried]
    assert reproduce(same, elsewhere, seeds=1, archive=packed) == []
    assert read_records(elsewhere / "tries" / "runs" / "aussm.jsonl") == records, "nothing ran again"

    folder = run_folder(elsewhere, tried, 0)
    (folder / "result.json").unlink()
    assert count_runs(elsewhere) == (1, 1)
    stored[:] = [folder]
    assert reproduce(same, elsewhere, seeds=1) == [], "a run that is not over continues"
    (folder / SETTINGS).write_text((folder / SETTINGS).read_text().replace("lr: 0.002\n", "lr: 0.004\n"))
    with pytest.raises(SettingError, match=r"`training\.lr` must be 0\.004 as in .* \(choose another --out\), got 0\.002"):
        reproduce(same, elsewhere, seeds=1)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["training.lrx=1"], "`training.lrx` is an unknown setting; did you mean lr?"),
        (["lr=1"], "`--lr` is an unknown argument; did you mean --training.lr?"),
        (["optimizer.lr=1"], "`--optimizer.lr` is an unknown argument; did you mean --training.lr?"),
        (["model={d_model: 8}"], "`--model` is an unknown argument"),
        (["config=other.yaml"], "`--config` is an unknown argument"),
        (["model.block_options.aussm.phase_dt=none"], "model: phase_dt of block 1 (aussm) of `--model.spec` must be true or"),
        (["training.lr=-1"], "`training.lr` must be a number above 0, got -1"),
        (["training.lr=0.001"], "`training.lr` must be another value than that of aussm/table1/parity/ma, got '0.001'"),
        (
            ["training.lr=0.003", "training.lr_min=0"],
            "`training.lr_min` must be another value than that of aussm/table1/parity/ma, got '0'",
        ),
        (["=1"], "`--settings` must be settings of the form NAME=VALUE, each once, got '=1'"),
        (["training.lr"], "`--settings` must be settings of the form NAME=VALUE, each once, got 'training.lr'"),
        (["training.lr=1", "training.lr=2"], "`--settings` must be settings of the form NAME=VALUE, each once, got"),
        (["task.name=majority"], "`task.name` must be left out of --settings, as the task, its data and"),
        (["task.data=stream"], "`task.data` must be left out of --settings, as the task, its data and"),
        (["about.published=r035"], "`about.published` must be left out of --settings, as the task, its data and"),
        (["training.seed=7"], "`training.seed` must be left out of --settings, as --seeds gives the seeds, got '7'"),
    ],
)
def test_settings_of_tries_that_are_no_other_training_of_the_row_are_refused(
    row: PublishedRow, words: list[str], error: str
) -> None:
    with pytest.raises(SettingError) as raised:
        make_tries([row], words)
    assert str(raised.value).startswith(error)


def test_try_with_the_settings_of_another_candidate_is_refused() -> None:
    name = "aussm/table1/parity/aa/aa-0"
    with pytest.raises(SettingError, match=rf"settings that make {name}\.001 differ from {name}\.01, got 'training\.lr=0\.01'"):
        make_tries(find_rows(f"{name}.001"), ["training.lr=0.01"])
    with pytest.raises(SettingError, match=r"differ from .*/aaaa-0\.01, got 'training\.lr=0\.01 model\.spec=aaaa'"):
        make_tries(find_rows(f"{name}.001"), ["training.lr=0.01", "model.spec=aaaa"])
    with pytest.raises(SettingError, match=rf"settings that make {name}\.001 differ from tries/{name}\.0001/training"):
        make_tries(find_rows("aussm/table1/parity/aa"), ["training.lr=0.003"])


def test_rows_of_another_figure_recipe_or_seeding_may_have_the_same_tries(row: PublishedRow, tmp_path: Path) -> None:
    recipe = shutil.copy(row.recipe or "", tmp_path / "other.yaml")
    others = [{"published": "r037"}, {"recipe": str(recipe)}, {"with_seed": ["training.seed"]}]
    rows = [row, *(replace(row, id=f"{row.id}-{number}", **other) for number, other in enumerate(others))]
    assert [one.try_of for one in make_tries(rows, ["training.lr=0.003"])] == [one.id for one in rows]
    same = replace(row, id=f"{row.id}-same")
    with pytest.raises(SettingError, match=f"settings that make {same.id} differ from tries/{row.id}/training.lr=0.003, got"):
        make_tries([row, same], ["training.lr=0.003"])


def write_run(row: PublishedRow, out: Path, seed: int, step: int) -> Path:
    """Write the files that archives read of a run after a number of updates, and return its folder."""
    folder = run_folder(out, row, seed)
    last = folder / "checkpoints" / "last"
    last.mkdir(parents=True)
    (folder / SETTINGS).write_text(yaml.safe_dump(row_settings(row, seed).as_dict()))
    (folder / "metrics.jsonl").write_text("{}\n")
    (folder / "report.html").write_text("page")
    (last / "state.json").write_text(json.dumps({"step": step, "files": {}}))
    (last / "model.safetensors").write_bytes(bytes(range(256)) * step)
    (out / MANIFEST).write_text(json.dumps({"layout": 1, "longscan": longscan.__version__}))
    return folder


def test_merged_records_are_whole_lines(tmp_path: Path) -> None:
    """U+2028 and U+0085 end a line for `str.splitlines` alone, and JSON contains them as they are."""
    first, second = ('{"note": "a\u2028b"}', '{"note": "c\x85d"}')
    source, target = tmp_path / "source.jsonl", tmp_path / "target.jsonl"
    source.write_text(f"{first}\n{second}\n", "utf-8")
    archive._merge_lines(source, target)
    assert target.read_text("utf-8") == source.read_text("utf-8")
    target.write_text(f"{first}\n", "utf-8")
    archive._merge_lines(source, target)
    archive._merge_lines(source, target)
    assert target.read_text("utf-8") == source.read_text("utf-8")


@pytest.mark.parametrize(
    ("status", "was_asked", "text"),
    [
        (0, True, "stopped at update 0 of 3"),
        (130, True, "stopped at update 0 of 3"),
        (-2, True, "stopped at update 0 of 3"),
        (-9, True, "stopped at update 0 of 3"),
        (-9, False, "ended with code -9: last"),
        (2, True, "ended with code 2: last"),
    ],
)
def test_run_that_the_limit_stops_has_not_failed(
    row: PublishedRow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, was_asked: bool, text: str
) -> None:
    """Also a process that is still importing packages, and one whose update takes longer than the time for checkpoints."""

    def run_jobs(jobs: list[Job], *others: Any) -> None:
        (log := jobs[0].log).parent.mkdir(parents=True)
        log.write_text("first\nlast\n")
        others[-1](Ended(jobs[0].name, status, 1.0, was_asked))

    monkeypatch.setattr(runs, "run_jobs", run_jobs)
    lines: list[str] = []
    failed: list[str] = []
    (left,) = reproduce([row], tmp_path / "out", seeds=1, echo=lines.append, on_failure=failed.append)
    assert len(lines) == 3
    assert lines[2].startswith(f"{left.name}: {text}")
    assert failed == ([left.name] if "ended with code" in text else [])


@pytest.mark.parametrize("module", ["runs.reproduce", "state_tracking.run"])
@pytest.mark.parametrize("fails", [False, True])
def test_exit_code_is_that_of_the_runs_whatever_their_lines_say(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, module: str, fails: bool
) -> None:
    """A run is not taken for one that failed, nor the other way round, because of the text of its line."""

    def run(*_: Any, echo: Any, on_failure: Any, **__: Any) -> list[Any]:
        echo("a line without those words" if fails else "a/b: a package whose log says: failed, and x: ended with code 2")
        if fails:
            on_failure("a/b")
        return []

    monkeypatch.setattr(f"longscan.reproduce.{module}", run)
    monkeypatch.setattr("longscan.cli.reproduction._runnable", lambda *_: [])
    target = "state-tracking" if module == "state_tracking.run" else "aussm/table1"
    assert main(["reproduce", target, "--out", str(tmp_path)]) == int(fails)


def test_command_runs_tries_in_place_of_the_row(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given: list[PublishedRow] = []

    def reproduce(rows: list[PublishedRow], *_: Any, **__: Any) -> list[Planned]:
        given.extend(rows)
        return []

    monkeypatch.setattr("longscan.reproduce.runs.reproduce", reproduce)
    name = "aussm/table1/parity/ma"
    command = ["reproduce", name, "--settings", "training.lr=0.003", "model.d_state=9", "--out", str(tmp_path)]
    assert main(command) == 0
    assert [one.id for one in given] == [f"tries/{name}/model.d_state=9,training.lr=0.003"]
    assert capsys.readouterr().out.endswith(f"report {tmp_path}` shows these tries below aussm/table1\n")
    write_run(find_rows(name)[0], tmp_path, 0, 2)
    assert main(["reproduce", "list", str(tmp_path), "--paper", "aussm"]) == 0
    assert "tries" not in capsys.readouterr().out
    for seed, over in enumerate(("0 runs", "1 run", "2 runs")):
        write_run(given[0], tmp_path, seed, 2)
        for earlier in range(seed):
            (run_folder(tmp_path, given[0], earlier) / "result.json").write_text('{"steps": 2}')
        assert main(["reproduce", "list", str(tmp_path), "--paper", "aussm"]) == 0
        text = f"tries with other settings in {tmp_path}: {over} over, which `report` shows, and 1 not over\n"
        assert text in capsys.readouterr().out


def test_lines_before_the_runs_have_singular_and_plural(
    row: PublishedRow, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(runs, "run_jobs", lambda *_: None)
    lines: list[str] = []
    for minutes in (1.0, 1.5):
        reproduce([row], tmp_path / "out", minutes=minutes, per_device=int(minutes * 2) - 1, echo=lines.append)
    first, second = lines[::2]
    assert first.startswith("runs to train: 2, in 1 process at a time; ")
    assert first.endswith(" and stops after 1 minute")
    assert second.startswith("runs to train: 2, in 2 processes at a time; ")
    assert second.endswith(" and stops after 1.5 minutes")
    (outcome,) = read_outcomes([replace(row, seeds=1)], tmp_path)
    assert replace(outcome, scores=(1.0,), verdict="partial").state == "done: ours 1.000, 1 of 1 seed, partial"
    assert replace(outcome, unfinished={0: 7}).state == "at update 7, 1 of 1 seed"


@pytest.mark.parametrize("pack", [[], ["--pack", "packed"]])
def test_command_says_what_is_left(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], pack: list[str]) -> None:
    left: list[Any] = [None, None]
    monkeypatch.setattr("longscan.reproduce.runs.reproduce", lambda *_, **__: left)
    monkeypatch.setattr("longscan.reproduce.state_tracking.run", lambda *_, **__: left)
    for target, options in (("aussm/table1/parity/ma", pack), ("state-tracking", [])):
        assert main(["reproduce", target, "--out", "runs", *options]) == 0
    lines = capsys.readouterr().out.splitlines()
    elsewhere = ", on another machine from packed" if pack else ""
    assert f"runs that have not finished: 2; the same command continues them{elsewhere}" in lines
    assert "trainings that have not finished: 2; the same command continues them" in lines
    left.clear()
    assert main(["reproduce", "aussm/table1/parity/ma", "--out", "runs"]) == 0
    assert main(["reproduce", "state-tracking", "--out", "runs"]) == 0
    assert "not finished" not in capsys.readouterr().out


def test_archive_keeps_the_run_with_more_updates(row: PublishedRow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "PART_BYTES", 500)
    here, there, packed = tmp_path / "here", tmp_path / "there", tmp_path / "packed"
    first, second = write_run(row, here, 0, 7), write_run(row, here, 1, 2)
    parts = archive.pack(here, packed)
    assert len(parts) > 1
    assert max(part.stat().st_size for part in parts) == 500
    assert sorted(path.name for path in packed.iterdir()) == sorted(part.name for part in parts)

    newer = write_run(row, there, 1, 5)
    (there / MANIFEST).write_text(json.dumps({"layout": 1, "longscan": "0.0.1"}))
    with pytest.raises(SettingError, match="`--pack` must be a folder whose archive is of this version"):
        archive.unpack(packed, there)
    shutil.copy(here / MANIFEST, there / MANIFEST)
    archive.unpack(packed, there)
    copied = there / first.relative_to(here)
    assert (copied / "checkpoints/last/model.safetensors").read_bytes() == bytes(range(256)) * 7
    assert not (copied / "report.html").exists()
    assert progress_of(newer) == (5, False), "the run that has made more updates stays"
    assert progress_of(second) == (2, False)
    assert not (there / ".unpacking").exists()

    archive.pack(there, packed)
    archive.unpack(packed, here)
    assert progress_of(second) == (5, False)


def test_archive_waits_for_the_process_that_still_trains_a_run(
    row: PublishedRow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one whose parent was killed: it would save its checkpoint into the run of the archive."""
    here, there, packed = tmp_path / "here", tmp_path / "there", tmp_path / "packed"
    write_run(row, here, 0, 7)
    write_run(row, here, 1, 2)
    archive.pack(here, packed)
    older, newer = write_run(row, there, 0, 5), write_run(row, there, 1, 3)
    held = [FileLock(folder.with_suffix(".lock"), thread_local=False) for folder in (older, newer)]
    for lock in held:
        lock.acquire()
    monkeypatch.setattr(processes, "GRACE", 0.1)
    with pytest.raises(SettingError, match="`--out` must be a run that no other process trains, got /"):
        archive.unpack(packed, there)
    assert progress_of(older) == (5, False)
    monkeypatch.setattr(processes, "GRACE", 60.0)

    def end(step: int) -> None:
        (older / "checkpoints" / "last" / "state.json").write_text(json.dumps({"step": step, "files": {}}))
        held[0].release()

    threading.Timer(0.2, end, [9]).start()
    archive.unpack(packed, there)
    assert [progress_of(one).updates for one in (older, newer)] == [9, 3], "both have more updates than in the archive now"
    held[0].acquire()
    end(6)
    archive.unpack(packed, there)
    assert [progress_of(one).updates for one in (older, newer)] == [7, 3], "nothing waits for a run that stays"


def test_archives_that_are_too_large_or_damaged_are_refused(
    row: PublishedRow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there, packed = tmp_path / "here", tmp_path / "there", tmp_path / "packed"
    write_run(row, here, 0, 7)
    there.mkdir()
    archive.unpack(packed, there)  # there is none yet
    monkeypatch.setattr(archive, "PART_BYTES", 700)
    before = archive.pack(here, packed)
    monkeypatch.setattr(archive, "MAX_PARTS", 1)
    with pytest.raises(SettingError, match="`--pack` must be the folder of an archive of at most 0 MiB"):
        archive.pack(here, packed)
    assert sorted(packed.iterdir()) == sorted(before), "the earlier archive stays"
    whole = before[0].read_bytes()
    before[0].write_bytes(whole[:300])
    with pytest.raises(SettingError, match="a folder whose archive is not damaged"):
        archive.unpack(packed, there)
    before[0].unlink()
    with pytest.raises(SettingError, match=r"a folder with all parts of an archive, and not with runs\.tar\.gz\.\w{8}\.2of"):
        archive.unpack(packed, there)
    assert list(there.iterdir()) == []


def test_folders_in_which_a_process_works_are_refused(row: PublishedRow, tmp_path: Path) -> None:
    out, packed = tmp_path / "out", tmp_path / "packed"
    for folder, name, option in ((out, "reproduce.lock", "--out"), (packed, "runs.lock", "--pack")):
        folder.mkdir(exist_ok=True)
        with (
            FileLock(folder / name),
            pytest.raises(SettingError, match=f"`{option}` must be a folder in which no other process runs, got '{folder}'"),
        ):
            reproduce([row], out, archive=packed)
    assert not archive.read_archives(packed)
    with (
        FileLock(out / state_tracking.LOCK),
        pytest.raises(SettingError, match="`--out` must be a folder in which no other process runs"),
    ):
        state_tracking.run([("Z2", "gru")], out)
    (file := tmp_path / "file").touch()
    with pytest.raises(SettingError, match=f"`--pack` must be a directory, got the file {file}"):
        reproduce([row], out, archive=file)


def test_run_waits_for_the_process_that_still_trains_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as one whose parent was killed, and which saves its checkpoint."""
    held = FileLock(tmp_path / "seed_1.lock", thread_local=False)
    held.acquire()
    monkeypatch.setattr(processes, "GRACE", 0.1)
    with pytest.raises(SettingError, match=r"no other process trains, got .*seed_1"), lock_job(tmp_path / "seed_1"):
        pass
    monkeypatch.setattr(processes, "GRACE", 60.0)
    began = time.monotonic()
    threading.Timer(0.2, held.release).start()
    with lock_job(tmp_path / "seed_1"):
        assert time.monotonic() - began >= 0.2


@pytest.mark.parametrize("seeds", [1, 2])
def test_process_of_a_run_in_use_prints_one_line(row: PublishedRow, tmp_path: Path, seeds: int) -> None:
    """A run alone in its process, and two that share one."""
    plan = [Planned(row, seed, run_folder(tmp_path, row, seed), row_argv(row, seed)) for seed in range(seeds)]
    job = Process(plan)
    program, option, code, *arguments = job.command(1.0)
    code = f"from longscan.training import processes\nprocesses.GRACE = 0.1\n{code}"
    in_use = plan[-1].folder
    with lock_job(in_use), running_job([program, option, code, *arguments], job.log) as process:
        assert process.wait(60.0) == 2
    assert job.log.read_text() == f"`--out` must be a run that no other process trains, got {in_use}\n"


@pytest.mark.parametrize("seeds", [1, 2])
def test_run_whose_parent_is_killed_saves_a_checkpoint(row: PublishedRow, tmp_path: Path, seeds: int) -> None:
    """A run alone in its process, and two that share one."""
    Path(row.recipe or "").write_text(RECIPE.replace("steps: 3", "steps: 1000000"))
    plan = [Planned(row, seed, run_folder(tmp_path, row, seed), row_argv(row, seed)) for seed in range(seeds)]
    job = Process(plan)
    with running_job(job.command(1.0), job.log) as process:
        logs = [one.folder / "metrics.jsonl" for one in plan]
        # The file is empty until the first row. Only the loop that writes rows handles the signal.
        while not all(log.exists() and log.stat().st_size for log in logs):
            assert process.poll() is None, job.log.read_text()
            time.sleep(0.1)
        process.stdin.close()
        assert process.wait(60.0) == 130
    assert all(progress_of(one.folder).updates > 0 for one in plan)


class KilledError(Exception):
    """The end of a process in a test."""


def kill_at(monkeypatch: pytest.MonkeyPatch, folder: Path, count: int) -> None:
    """Let nothing be renamed or removed in a folder after the first `count` times, as if the process had been killed."""
    done: list[str] = []
    for name in ("replace", "unlink"):
        original = getattr(Path, name)

        def act(path: Path, *args: Any, original: Any = original, name: str = name, **options: Any) -> Any:
            if path.parent == folder:
                if len(done) == count:
                    raise KilledError
                done.append(name)
            return original(path, *args, **options)

        monkeypatch.setattr(Path, name, act)


def test_process_that_is_killed_while_it_writes_an_archive_loses_nothing(
    row: PublishedRow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it has renamed and removed, a run continues from the archive before or from the new one."""
    monkeypatch.setattr(archive, "PART_BYTES", 500)
    here, before = tmp_path / "here", tmp_path / "before"
    state = write_run(row, here, 0, 7) / "checkpoints" / "last" / "state.json"
    archive.pack(here, before)
    state.write_text(json.dumps({"step": 9, "files": {}}))
    kept = list[int]()
    for count in range(100):
        packed, there = tmp_path / f"packed_{count}", tmp_path / f"there_{count}"
        shutil.copytree(before, packed)
        with monkeypatch.context() as patched, suppress(KilledError):
            kill_at(patched, packed, count)
            archive.pack(here, packed)
            break
        there.mkdir()
        shutil.copy(here / MANIFEST, there / MANIFEST)
        archive.unpack(packed, there)
        kept.append(progress_of(run_folder(there, row, 0)).updates)
        archive.pack(there, packed)
        assert len(archive.read_archives(packed)) == 1
    assert len(kept) > 3 * len(archive.read_archives(before))
    assert (kept == sorted(kept), set(kept)) == (True, {7, 9})


def test_killed_writer_leaves_no_files(row: PublishedRow, tmp_path: Path) -> None:
    """Neither its incomplete part nor a folder in which it unpacked comes into the next archive."""
    here, packed = tmp_path / "here", tmp_path / "packed"
    run = write_run(row, here, 0, 2)
    packed.mkdir()
    (packed / ".runs.tar.gz.01234567.1of1.7-8.writing").write_bytes(b"x")
    shutil.copytree(run, here / ".unpacking" / run.relative_to(here))
    archive.unpack(packed, here)
    assert not (here / ".unpacking").exists()
    (part,) = archive.pack(here, packed)
    assert list(packed.iterdir()) == [part]


def test_archive_of_earlier_versions_is_read(row: PublishedRow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there, packed = tmp_path / "here", tmp_path / "there", tmp_path / "packed"
    monkeypatch.setattr(archive, "PART_BYTES", 500)
    write_run(row, here, 0, 7)
    for number, part in enumerate(parts := archive.pack(here, packed), 1):
        part.rename(packed / f"runs.tar.gz.{number}of{len(parts)}")
    there.mkdir()
    shutil.copy(here / MANIFEST, there / MANIFEST)
    archive.unpack(packed, there)
    assert progress_of(run_folder(there, row, 0)) == (7, False)


def test_an_archive_that_could_become_too_large_is_refused_before_the_runs(
    row: PublishedRow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = row_settings(row)
    monkeypatch.setattr(archive, "MAX_PARTS", 1)
    monkeypatch.setattr(archive, "PART_BYTES", 2 * checkpoint_bytes(settings) - 1)
    with pytest.raises(SettingError, match="`--pack` must be the folder of an archive of at most"):
        reproduce([row], tmp_path / "out", archive=tmp_path / "packed")
    assert not run_folder(tmp_path / "out", row, 0).exists()
    assert not archive.read_archives(tmp_path / "packed")


def test_checkpoints_of_other_unfinished_runs_count_for_the_size_of_an_archive(
    row: PublishedRow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = replace(row, id="aussm/table1/parity/am")
    folder, over = write_run(other, tmp_path / "out", 0, 100), write_run(other, tmp_path / "out", 1, 100)
    (over / "result.json").write_text("{}")
    size = sum(path.stat().st_size for path in (folder / "checkpoints" / "last").iterdir())
    assert size > 100 * 256
    limit = 2 * checkpoint_bytes(row_settings(row)) + size
    monkeypatch.setattr(archive, "MAX_PARTS", 1)
    monkeypatch.setattr(archive, "PART_BYTES", limit - 1)
    monkeypatch.setattr(runs, "run_jobs", lambda *_: {})
    with pytest.raises(SettingError, match="`--pack` must be the folder of an archive of at most"):
        reproduce([row], tmp_path / "out", archive=tmp_path / "packed")
    monkeypatch.setattr(archive, "PART_BYTES", limit)
    assert len(reproduce([row], tmp_path / "out", archive=tmp_path / "packed")) == 2


@pytest.mark.usefixtures("forked_jobs")
def test_size_of_checkpoints_is_that_of_their_tensors(row: PublishedRow, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert reproduce([row], out, seeds=1) == []
    tensors = [
        tensor
        for name in ("last/model", "last/optimizer", "best/model")
        for key, tensor in load_file(run_folder(out, row, 0) / "checkpoints" / f"{name}.safetensors").items()
        if not key.endswith("/step")
    ]
    assert sum(tensor.nbytes for tensor in tensors) == checkpoint_bytes(row_settings(row))


def test_folders_of_another_version_or_recipe_are_refused(row: PublishedRow, tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_run(row, out, 0, 2)
    check_manifest(out)
    (out / MANIFEST).write_text(json.dumps({"layout": 1, "longscan": "0.0.1"}))
    made_by = rf"`--out` must be a folder made by longscan {longscan.__version__} \(layout 1\), got .*, made by longscan 0\.0\.1"
    with pytest.raises(SettingError, match=made_by):
        reproduce([row], out)
    for text in ("{", "[1]"):
        (out / MANIFEST).write_text(text)
        with pytest.raises(SettingError, match=r"reproduce\.json is damaged"):
            reproduce([row], out)
    (out / MANIFEST).unlink()
    with pytest.raises(SettingError, match="`--out` must be an empty folder or one"):
        reproduce([row], out)
    shutil.rmtree(out)
    for name in ("automata", "state-tracking"):
        (out / name).mkdir(parents=True)
    check_manifest(out)
    folder = write_run(row, out, 0, 2)
    settings = row_settings(row)
    check_run(Planned(row, 0, folder, []), settings)
    Path(row.recipe or "").write_text(RECIPE.replace("batch_size: 4", "batch_size: 8"))
    with pytest.raises(SettingError, match=r"`training\.batch_size` must be 4 as in .* another recipe .*, got 8"):
        reproduce([row], out)
    assert Run(folder).settings == settings


def test_errors_in_arguments_are_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LONGSCAN_DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for words, expected in {
        (
            "aussm/table1",
            "--rows",
            "partiy",
        ): "list` shows, got 'partiy'; did you mean parity?",
        (
            "aussm/table2",
            "--rows",
            "heartbeat",
        ): "aussm/table2/heartbeat: missing data: `longscan data get Heartbeat` downloads them",
        ("aussm/appendix/r082",): "aussm/appendix/r082: cannot be run (impossible: a limit of one kernel",
        ("thesis/section15",): "thesis/section15/r372: cannot be run (no recipe: a difference of two models of a study, ",
        ("thesis/table7/1k",): "thesis/table7/1k/mamba-s6 and 1 more: missing data: `longscan data get genomes` says how to",
        ("list", "--seeds", "3"): "`--seeds` must be left out with `longscan reproduce list`, got 3",
        ("list", "--settings", "training.lr=1"): "`--settings` must be left out with `longscan reproduce list`, got",
        ("state-tracking", "--settings", "training.lr=1"): "`--settings` must be left out with `longscan reproduce state-",
        ("aussm/table1", "--settings", "lr=1"): "`--lr` is an unknown argument; did you mean --training.lr?",
        ("aussm/table1", "--minutes", "0"): "`--minutes` must be a number above 0 or None, got 0",
        (
            "aussm/table1",
            "--minutes",
            "0.33",
        ): "`--minutes` must be at least 0.34, as the last 20 seconds are for checkpoints, got",
        ("aussm/table1", "--minutes", "0.4", "--pack", "x"): "`--minutes` must be at least 0.42, as the last 25 seconds are for",
        ("report", "none"): "`folder` must be a folder with runs of `longscan reproduce` or their records, got 'none', which ",
        ("list", "none"): "`folder` must be a folder with runs of `longscan reproduce` or their records, got 'none', which ",
        ("report",): "got 'runs/reproduce', which does not exist",
        ("list", "."): "runs of `longscan reproduce` or their records, got '.', which has none",
        ("report", "."): "runs of `longscan reproduce` or their records, got '.', which has none",
    }.items():
        assert main(["reproduce", *words]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert expected in line
    (heartbeat,) = find_rows("aussm/table2/heartbeat")
    with pytest.raises(SettingError, match="`longscan data get Heartbeat`"):
        row_settings(heartbeat)


def terminate_after(folder: Path, updates: int) -> None:
    """Send this process SIGTERM once the run in a folder has a checkpoint with more than a number of updates."""
    state, made = folder / "checkpoints" / "last" / "state.json", 0
    while made <= updates:
        time.sleep(0.2)
        with suppress(OSError, ValueError):  # it is being replaced
            made = json.loads(state.read_text())["step"]
    os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.usefixtures("forked_jobs")
def test_stopped_run_continues_from_its_archive_in_another_folder(row: PublishedRow, tmp_path: Path) -> None:
    Path(row.recipe or "").write_text(RECIPE.replace("steps: 3", "steps: 1000000"))
    long, packed, made = replace(row, updates=1_000_000), tmp_path / "packed", [0]
    for out in (tmp_path / "here", tmp_path / "there"):
        folder = run_folder(out, long, 0)
        watch = threading.Thread(target=terminate_after, args=(folder, made[-1]), daemon=True)
        watch.start()
        with pytest.raises(KeyboardInterrupt):
            reproduce([long], out, seeds=1, archive=packed)
        watch.join()
        made.append(progress_of(folder).updates)
        (outcome,) = read_outcomes([long], out)
        assert outcome.unfinished == {0: made[-1]}
        assert outcome.verdict == "not run"
    assert made == sorted(set(made)), "the second folder continues what the archive of the first one holds"
    steps = [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert (steps[0], steps == sorted(steps)) == (1, True)
