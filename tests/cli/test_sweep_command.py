"""`longscan sweep`: what it prints and leaves, that it survives the death of its parent, and what it answers to bad words."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from longscan.cli import main
from longscan.report.records import check_record, read_records
from longscan.training import Run, SweepConfig, parse_settings, run_sweep
from longscan.training.sweep import Sweep

FILE = """
config: recipe.yaml
space:
  training.lr: [1.0e-2, 1.0e+20]
search_seeds: 1
seeds: 1
"""
RECIPE = """
task: {name: parity, train_lengths: [3, 8], eval_lengths: [9, 12], valid_size: 8, test_size: 8}
model: {d_model: 4, d_state: 2, backend: eager}
training: {steps: 4, batch_size: 4, eval_every: 2, checkpoint_every: 1, threads: 1, device: cpu}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A sweep of two settings, one of which diverges, and one seed."""
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    (tmp_path / "sweep.yaml").write_text(FILE)
    return tmp_path / "sweep.yaml"


def test_a_sweep_from_its_file_to_its_record(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, records = tmp_path / "out", tmp_path / "runs" / "x.jsonl"
    words = ["sweep", str(file), "--out", str(out)]
    assert main([*words, "--record", str(records), "--training.threads", "1"]) == 0
    said = capsys.readouterr()
    found = json.loads((out / "sweep.json").read_text())
    check_record("sweep", found)
    assert found["status"] == "finished"
    assert found["command"] == f"longscan sweep {file} --out {out} --record {records} --training.threads 1"
    score = found["trials"][0]["score"]
    assert f"trial 0: accuracy {score:.4f} on validation (training.lr 0.01)" in said.err
    assert "trial 1: the loss or the norm of its gradient was not finite" in said.err
    assert "seed 1: accuracy" in said.err
    assert f"best on validation: trial 0, accuracy {score:.4f} (training.lr 0.01)" in said.out
    assert "failed, trial 1: the loss or the norm of its gradient was not finite" in said.out
    lines = said.out.splitlines()
    assert lines[-4].startswith(f"test accuracy: {found['test']['mean']:.4f} over 1 seeds (scaled ")
    assert lines[-3:] == [
        f"best constant predictor: {found['test']['constant']:.4f}",
        f"recorded in {records}",
        f"report: {out / 'report.html'}",
    ]
    (row,) = read_records(records)
    assert (row["seed"], row["value"], row["recipe"]) == (1, found["seeds"][0]["score"], str(tmp_path / "recipe.yaml"))

    assert main([*words, "--resume", "--record", str(records)]) == 0
    assert len(read_records(records)) == 1, "what is recorded is not recorded again"
    assert capsys.readouterr().err == "", "what is over is not told again"
    (out / "report.html").unlink()
    assert main(["report", str(out)]) == 0
    assert (out / "report.html").exists()


def test_a_search_that_finds_nothing_ends_with_1(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = parse_settings(["--config", str(tmp_path / "recipe.yaml")])
    run_sweep(SweepConfig(settings=settings, space={"training.lr": [1e20]}, seeds=1), tmp_path / "out")
    assert main(["sweep", "--out", str(tmp_path / "out"), "--resume"]) == 1
    said = capsys.readouterr().out
    assert "failed, trial 0" in said
    assert "test accuracy" not in said


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["--seeds", "-1"], ["seeds", "-1"]),
        (["--workers", "-1"], ["--workers", "-1"]),
        (["--workers", "two"], ["workers", "'two'", "whole number"]),
        (["--sampler", "tpe"], ["`trials` must be"]),
        (["--trials", "3"], ["trials", "3", "grid"]),
        (["--training.lrr", "1"], ["training.lrr", "did you mean lr"]),
        (["--storage", "nowhere"], ["--storage", "'nowhere'", "URL"]),
        (["--storage", "oracle+x://a/b"], ["--storage", "oracle"]),
        (["--storage", "sqlite:////nowhere/at/all.db"], ["--storage", "unable to open database file"]),
        (["--resume"], ["is not the directory of a sweep"]),
        (["--bogus"], ["--bogus", "unknown argument"]),
    ],
    ids=lambda value: " ".join(value) if value and value[0].startswith("--") else "",
)
def test_words(refused: Callable[..., str], file: Path, tmp_path: Path, words: list[str], names: list[str]) -> None:
    line = refused("sweep", file, "--out", tmp_path / "out", *words)
    assert [name for name in names if name not in line] == [], line
    assert not (tmp_path / "out").exists()


def test_files(refused: Callable[..., str], file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert "`--out` must be" in refused("sweep", file)
    assert "gone.yaml" in refused("sweep", tmp_path / "gone.yaml", "--out", out)
    assert "`--task` must be" in refused("sweep", "--out", out)
    file.write_text(FILE.replace("training.lr:", "training.rate:"))
    assert "space: `training.rate` is an unknown setting" in refused("sweep", file, "--out", out)
    file.write_text(FILE + "speed: 3\n")
    assert "got 'speed'" in refused("sweep", file, "--out", out)
    (tmp_path / "text").write_text("")
    file.write_text(FILE)
    assert "must be a directory, got the file" in refused("sweep", file, "--out", tmp_path / "text")
    assert not out.exists()


def test_without_optuna(refused: Callable[..., str], file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    monkeypatch.delitem(sys.modules, "longscan.training.sweep")
    line = refused("sweep", file, "--out", tmp_path / "out")
    assert line.endswith("needs the package optuna, which is not installed: pip install 'longscan[sweep]'")


def start(*words: object) -> subprocess.Popen:
    # A background job of a shell has SIGINT ignored, and so have its children.
    program = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
    program += "from longscan.cli import main; sys.exit(main())"
    return subprocess.Popen(
        [sys.executable, "-c", program, "sweep", *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finished_runs(out: Path) -> dict[Path, float]:
    return {path: path.stat().st_mtime for path in out.glob("*/*/seed_*/result.json")}


QUICK = """
about: {paper: AUSSM, published: [r036]}
quick: {model: {d_model: 2}, training: {steps: 2}}
"""


def test_a_quick_sweep(file: Path, refused: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(RECIPE + QUICK)
    file.write_text(FILE.replace("1.0e+20", "1.0e-3") + "settings: {training: {steps: 3, weight_decay: 0.5}}\n")
    out, records = tmp_path / "out", tmp_path / "runs" / "x.jsonl"
    words = ["sweep", str(file), "--out", str(out)]
    assert main([*words, "--quick", "--record", str(records), "--training.threads", "1"]) == 0
    found = json.loads((out / "sweep.json").read_text())
    assert found["quick"]
    assert "quick size" in (out / "report.html").read_text("utf-8")
    runs = [Run(out / run["folder"]) for row in [*found["trials"], *found["seeds"]] for run in row["runs"]]
    assert len(runs) == 3
    for run in runs:
        settings = run.settings
        assert (settings.about.quick, settings.model.d_model, settings.training.steps) == (True, 2, 2)
        assert settings.training.weight_decay == 0.5
    assert [run.settings.training.lr for run in runs[:2]] == [1e-2, 1e-3], "the space goes over the quick section"
    (row,) = read_records(records)
    assert (row["quick"], row["published"], row["steps"]) == (True, None, 2)

    line = refused(*words, "--resume")
    assert line == (f"longscan: `--quick` must be given, as {out} is a sweep of its recipe's quick size, got nothing")
    assert main([*words, "--quick", "--resume", "--record", str(records)]) == 0
    assert main(["sweep", "--out", str(out), "--resume"]) == 0, "what is stored stays quick"
    assert len(read_records(records)) == 1


def test_a_quick_sweep_of_a_recipe_alone(file: Path, refused: Callable[..., str], tmp_path: Path) -> None:
    recipe, out = tmp_path / "recipe.yaml", tmp_path / "out"
    line = refused("sweep", file, "--out", out, "--quick")
    assert line == f"longscan: `recipe` must have a section 'quick' for --quick, got {recipe}"
    recipe.write_text(RECIPE + QUICK)
    words = ["sweep", "--config", str(recipe), "--seeds", "1", "--out", str(out)]
    assert main(words) == 0
    assert not json.loads((out / "sweep.json").read_text())["quick"]
    assert "`--quick` must be left out" in refused(*words, "--quick", "--resume")
    assert main([*words[:-1], str(tmp_path / "quick"), "--quick"]) == 0
    assert Run(tmp_path / "quick" / "seeds" / "seed_0").settings.about.quick


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGKILL", "SIGINT"])
def test_workers_end_with_their_parent_and_the_sweep_goes_on(file: Path, tmp_path: Path, name: str) -> None:
    file.write_text(FILE.replace("[1.0e-2, 1.0e+20]", "[1.0e-2, 1.0e+20, 1.0e-3, 1.0e-4, 3.0e-3]"))
    out = tmp_path / "out"
    words = (file, "--out", out, "--workers", "2", "--steps", "60")
    process = start(*words)
    while len(finished_runs(out)) < 2:
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(getattr(signal, name))
    process.communicate(timeout=100)
    assert process.returncode == {"SIGKILL": -9, "SIGINT": 130}[name]
    for _ in range(1000):  # until the workers have noticed
        rows = Sweep(out).result()["trials"]
        locks = list((out / "workers").glob("*.lock"))
        if not any(Sweep(out).is_alive(lock.stem) for lock in locks):
            break
        time.sleep(0.1)
    else:
        pytest.fail("a worker outlived its parent")
    assert any(row["status"] in ("waiting", "running") for row in rows), "the signal came too late to test anything"
    before = finished_runs(out)
    process = start(*words, "--resume")
    said = process.communicate(timeout=250)
    assert process.returncode == 0, said[1]
    assert {path: time_ for path, time_ in finished_runs(out).items() if path in before} == before
    found = json.loads((out / "sweep.json").read_text())
    assert [row["status"] for row in found["trials"]] == ["finished", "failed", *["finished"] * 3]
