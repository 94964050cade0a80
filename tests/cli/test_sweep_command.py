"""`longscan sweep`: its output and files, wrong arguments, quick sweeps, and resuming after a signal."""

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
from longscan.training.sweep import Sweep, open_sweep

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
def sweep_file(tmp_path: Path) -> Path:
    """Write a sweep of two points, one of which diverges, and one seed; return its file."""
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    (tmp_path / "sweep.yaml").write_text(FILE)
    return tmp_path / "sweep.yaml"


def test_sweep_prints_trials_scores_and_report_and_is_recorded(
    sweep_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, records = tmp_path / "out", tmp_path / "runs" / "x.jsonl"
    argv = ["sweep", str(sweep_file), "--out", str(out)]
    assert main([*argv, "--record", str(records), "--training.threads", "1"]) == 0
    captured = capsys.readouterr()
    result = json.loads((out / "sweep.json").read_text())
    check_record("sweep", result)
    assert result["status"] == "finished"
    assert result["command"] == f"longscan sweep {sweep_file} --out {out} --record {records} --training.threads 1"
    score = result["trials"][0]["score"]
    first, second = captured.err.splitlines()[:2]
    assert first.startswith("trials of the search, then seeds to test: 1; each prints a line when it ends, ")
    assert second.startswith(f"trial 0: accuracy {score:.4f} on validation (training.lr 0.01)")
    assert "trial 1: the loss or the norm of its gradient was not finite" in captured.err
    assert "seed 1: accuracy" in captured.err
    assert f"best on validation: trial 0, accuracy {score:.4f} (training.lr 0.01)" in captured.out
    assert "failed, trial 1: the loss or the norm of its gradient was not finite" in captured.out
    lines = captured.out.splitlines()
    assert lines[-4].startswith(f"test accuracy: {result['test']['mean']:.4f} over 1 seed (scaled ")
    assert lines[-3:] == [
        f"best constant predictor: {result['test']['constant']:.4f}",
        f"recorded in {records}",
        f"report: {out / 'report.html'}",
    ]
    (row,) = read_records(records)
    assert (row["seed"], row["value"], row["recipe"]) == (1, result["seeds"][0]["score"], str(tmp_path / "recipe.yaml"))

    assert main([*argv, "--resume", "--record", str(records)]) == 0
    assert len(read_records(records)) == 1, "seeds are not recorded again"
    assert capsys.readouterr().err == "", "finished trials are not printed again"
    (out / "report.html").unlink()
    assert main(["report", str(out)]) == 0
    assert (out / "report.html").exists()


@pytest.mark.slow
def test_program_whose_workers_would_run_its_command_again_fails(tmp_path: Path) -> None:
    program, recipe, out = tmp_path / "own.py", tmp_path / "recipe.yaml", tmp_path / "out"
    program.write_text("import sys\nfrom longscan.cli import main\nsys.exit(main())\n")
    recipe.write_text(RECIPE)
    argv = ["sweep", "--config", recipe, "--seeds", "1", "--workers", "2", "--out", out]
    done = subprocess.run([sys.executable, program, *argv], check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert f"{program}: each process of a sweep runs it first, so the call of main must be below" in " ".join(done.stderr.split())
    assert json.loads((out / "sweep.json").read_text())["status"] != "finished"


@pytest.mark.slow
def test_workers_know_the_layers_of_the_own_program(tmp_path: Path) -> None:
    program, out = tmp_path / "own.py", tmp_path / "out"
    imports = ["import sys", "from longscan.cli import main", "from longscan.layers import LAYERS, LRU"]
    lines = [*imports, "LAYERS.register('own')(LRU)", "if __name__ == '__main__':", "    sys.exit(main())"]
    program.write_text("\n".join(lines) + "\n")
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(RECIPE)
    argv = ["sweep", "--config", recipe, "--seeds", "2", "--workers", "2", "--model.spec", "simple[own]", "--out", out]
    subprocess.run([sys.executable, program, *argv], check=True, capture_output=True)
    result = json.loads((out / "sweep.json").read_text())
    assert [row["status"] for row in result["seeds"]] == ["finished"] * 2
    assert result["command"].startswith(f"python {program} sweep --config")


def test_sweep_without_a_finished_trial_exits_with_1(
    sweep_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = parse_settings(["--config", str(tmp_path / "recipe.yaml")])
    run_sweep(SweepConfig(settings=settings, space={"training.lr": [1e20]}, seeds=1), tmp_path / "out")
    assert main(["sweep", "--out", str(tmp_path / "out"), "--resume"]) == 1
    output = capsys.readouterr().out
    assert "failed, trial 0" in output
    assert "test accuracy" not in output


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (["--seeds", "-1"], ["`--seeds`", "-1"]),
        (["--search-seeds", "0"], ["`--search-seeds`", "at least 1"]),
        (["--sampler", "sobol"], ["`--sampler`", "'sobol'"]),
        (["--workers", "-1"], ["--workers", "-1"]),
        (["--workers", "two"], ["workers", "'two'", "whole number"]),
        (["--sampler", "tpe"], ["`--trials` must be"]),
        (["--trials", "3"], ["`--trials` must be left out", "3", "grid", "unless `--sampler` is"]),
        (["--training.lrr", "1"], ["training.lrr", "did you mean lr"]),
        (["--storage", "nowhere"], ["--storage", "'nowhere'", "URL"]),
        (["--storage", "oracle+x://a/b"], ["--storage", "oracle"]),
        (["--storage", "sqlite:////nowhere/at/all.db"], ["--storage", "unable to open database file"]),
        (["--resume"], ["is not the directory of a sweep"]),
        (["--bogus"], ["--bogus", "unknown argument"]),
    ],
    ids=lambda value: " ".join(value) if value and value[0].startswith("--") else "",
)
def test_wrong_argument_fails(
    run_failing_command: Callable[..., str], sweep_file: Path, tmp_path: Path, options: list[str], names: list[str]
) -> None:
    line = run_failing_command("sweep", sweep_file, "--out", tmp_path / "out", *options)
    assert [name for name in names if name not in line] == [], line
    assert not (tmp_path / "out").exists()


def test_wrong_sweep_file_fails(run_failing_command: Callable[..., str], sweep_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert "`--out` must be" in run_failing_command("sweep", sweep_file)
    assert "gone.yaml" in run_failing_command("sweep", tmp_path / "gone.yaml", "--out", out)
    assert "--config runs/NAME/settings.yaml" in run_failing_command("sweep", tmp_path / "pumps.csv", "--out", out)
    assert "`--task` must be" in run_failing_command("sweep", "--out", out)
    sweep_file.write_text(FILE.replace("training.lr:", "training.rate:"))
    assert "`training.rate` is an unknown setting" in run_failing_command("sweep", sweep_file, "--out", out)
    sweep_file.write_text(FILE + "speed: 3\n")
    assert "got 'speed'" in run_failing_command("sweep", sweep_file, "--out", out)
    (tmp_path / "text").write_text("")
    sweep_file.write_text(FILE)
    assert "must be a directory, got the file" in run_failing_command("sweep", sweep_file, "--out", tmp_path / "text")
    assert not out.exists()


def test_errors_name_options_and_fields_of_the_file_as_they_were_given(
    run_failing_command: Callable[..., str], sweep_file: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert "`--seeds` must be at least 1" in run_failing_command("sweep", "--task", "parity", "--seeds", 0, "--out", out)
    sweep_file.write_text(FILE + "trials: 3\n")
    line = run_failing_command("sweep", sweep_file, "--out", out)
    assert line.startswith(f"longscan: {sweep_file}: `trials` must be left out")
    assert "unless `--sampler` is random or tpe" in line
    sweep_file.write_text(FILE + "sampler: tpe\n")
    assert "`--trials` must be the number" in run_failing_command("sweep", sweep_file, "--out", out)
    sweep_file.write_text(FILE)
    open_sweep(SweepConfig(settings=parse_settings(["--task", "parity"]), space={"training.lr": [0.1]}), out, resume=False)
    line = run_failing_command("sweep", "--out", out, "--resume", "--search-seeds", 2)
    assert "`--search-seeds` must be 1 with --resume" in line


def test_sweep_without_optuna_fails(
    run_failing_command: Callable[..., str], sweep_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    monkeypatch.delitem(sys.modules, "longscan.training.sweep")
    line = run_failing_command("sweep", sweep_file, "--out", tmp_path / "out")
    assert line.endswith("needs the package optuna, which is not installed: pip install 'longscan[sweep]'")


def start_sweep(*arguments: object) -> subprocess.Popen:
    # The default handler of SIGINT is set because background jobs of a shell ignore it, and so do their children.
    program = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
    program += "from longscan.cli import main; sys.exit(main())"
    return subprocess.Popen(
        [sys.executable, "-c", program, "sweep", *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def modification_times(out: Path) -> dict[Path, float]:
    return {path: path.stat().st_mtime for path in out.glob("*/*/seed_*/result.json")}


QUICK = """
about: {paper: AUSSM, published: [r036]}
quick: {model: {d_model: 2}, training: {steps: 2}}
"""


def test_quick_sweep_has_the_settings_of_the_quick_section(
    sweep_file: Path, run_failing_command: Callable[..., str], tmp_path: Path
) -> None:
    (tmp_path / "recipe.yaml").write_text(RECIPE + QUICK)
    sweep_file.write_text(FILE.replace("1.0e+20", "1.0e-3") + "settings: {training: {steps: 3, weight_decay: 0.5}}\n")
    out, records = tmp_path / "out", tmp_path / "runs" / "x.jsonl"
    argv = ["sweep", str(sweep_file), "--out", str(out)]
    assert main([*argv, "--quick", "--record", str(records), "--training.threads", "1"]) == 0
    result = json.loads((out / "sweep.json").read_text())
    assert result["quick"]
    assert "quick size" in (out / "report.html").read_text("utf-8")
    runs = [Run(out / run["folder"]) for row in [*result["trials"], *result["seeds"]] for run in row["runs"]]
    assert len(runs) == 3
    for run in runs:
        settings = run.settings
        assert (settings.about.quick, settings.model.d_model, settings.training.steps) == (True, 2, 2)
        assert settings.training.weight_decay == 0.5
    assert [run.settings.training.lr for run in runs[:2]] == [1e-2, 1e-3], "the space replaces the quick section"
    (row,) = read_records(records)
    assert (row["quick"], row["published"], row["steps"]) == (True, None, 2)

    line = run_failing_command(*argv, "--resume")
    assert line == (f"longscan: `--quick` must be given, as {out} is a sweep of its recipe's quick size, got nothing")
    assert main([*argv, "--quick", "--resume", "--record", str(records)]) == 0
    assert main(["sweep", "--out", str(out), "--resume"]) == 0, "the stored sweep is quick"
    assert len(read_records(records)) == 1


def test_quick_sweep_without_a_sweep_file(sweep_file: Path, run_failing_command: Callable[..., str], tmp_path: Path) -> None:
    recipe, out = tmp_path / "recipe.yaml", tmp_path / "out"
    line = run_failing_command("sweep", sweep_file, "--out", out, "--quick")
    assert line == f"longscan: `recipe` must have a section 'quick' for --quick, got {recipe}"
    recipe.write_text(RECIPE + QUICK)
    argv = ["sweep", "--config", str(recipe), "--seeds", "1", "--out", str(out)]
    assert main(argv) == 0
    assert not json.loads((out / "sweep.json").read_text())["quick"]
    assert "`--quick` must be left out" in run_failing_command(*argv, "--quick", "--resume")
    assert main([*argv[:-1], str(tmp_path / "quick"), "--quick"]) == 0
    assert Run(tmp_path / "quick" / "seeds" / "seed_0").settings.about.quick


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGKILL", "SIGINT"])
def test_workers_end_with_their_parent_and_the_sweep_can_be_resumed(sweep_file: Path, tmp_path: Path, name: str) -> None:
    sweep_file.write_text(FILE.replace("[1.0e-2, 1.0e+20]", "[1.0e-2, 1.0e+20, 1.0e-3, 1.0e-4, 3.0e-3]"))
    out = tmp_path / "out"
    argv = (sweep_file, "--out", out, "--workers", "2", "--steps", "60")
    process = start_sweep(*argv)
    while len(modification_times(out)) < 2:
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(getattr(signal, name))
    process.communicate(timeout=100)
    assert process.returncode == {"SIGKILL": -9, "SIGINT": 130}[name]
    for _ in range(1000):  # waits until the workers have ended
        rows = Sweep(out).result()["trials"]
        locks = list((out / "workers").glob("*.lock"))
        if not any(Sweep(out).is_alive(lock.stem) for lock in locks):
            break
        time.sleep(0.1)
    else:
        pytest.fail("a worker outlived its parent")
    assert any(row["status"] in ("waiting", "running") for row in rows), "the sweep ended before the signal"
    before = modification_times(out)
    process = start_sweep(*argv, "--resume")
    output = process.communicate(timeout=250)
    assert process.returncode == 0, output[1]
    assert {path: time_ for path, time_ in modification_times(out).items() if path in before} == before
    result = json.loads((out / "sweep.json").read_text())
    assert [row["status"] for row in result["trials"]] == ["finished", "failed", *["finished"] * 3]
