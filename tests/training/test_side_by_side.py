"""benchmarks/side_by_side.py reads plans, runs their lines in parallel, resumes interrupted runs and reports failed ones."""

import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import side_by_side
from longscan.training import Run, processes
from longscan.training.checkpoint import read_checkpoint

ROOT = Path(__file__).parents[2]
SMALL = "--task parity --task.valid_size 4 --task.test_size 4 --model.d_model 4 --model.d_state 2 --training.batch_size 2"


def write_plan(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "plan.txt"
    path.write_text("\n".join(["# a plan", "", *lines]) + "\n")
    return path


def test_read_plan_gives_names_programs_and_arguments(tmp_path: Path) -> None:
    path = write_plan(
        tmp_path, f'a-0 train {SMALL} --model.block_options "{{a: {{dropout: 0.1}}}}"', "b train --task parity  # the second"
    )
    first, second = side_by_side.read_plan(path, [])
    assert first.words[-1] == "{a: {dropout: 0.1}}"
    assert second == ("b", "train", ["--task", "parity"])
    assert [line.name for line in side_by_side.read_plan(path, ["a"])] == ["a-0"]
    with pytest.raises(ValueError, match="each line must begin with a name and one of train, seeds, learned, got 'a'"):
        side_by_side.read_plan(write_plan(tmp_path, "a"), [])
    with pytest.raises(ValueError, match="the names of lines must differ, got a 2 times"):
        side_by_side.read_plan(write_plan(tmp_path, "a train --task parity", "a train"), [])


def test_settings_and_the_folder_of_the_runs_are_arguments_of_each_line(tmp_path: Path) -> None:
    """Such as a plan at another rate, whose fine-tuning starts from its own pretraining."""
    path = write_plan(tmp_path, "pre train --task parity", "tuned train --training.start_from {out}/pre", "s seeds --table x")
    (pre,) = side_by_side.read_plan(path, ["pre"], ["training.lr=0.004", "task.note=a=b c"])
    assert pre.words == ["--task", "parity", "--training.lr", "0.004", "--task.note", "a=b c"]
    _, tuned, seeds = side_by_side.read_plan(path, [], ["steps=3"])
    command = tuned.command(tmp_path / "new", 60.0)
    assert command[3:] == [
        "train", "--training.start_from", f"{tmp_path}/new/pre", "--steps", "3", "--out", f"{tmp_path}/new/tuned"
    ]  # fmt: skip
    assert seeds.command(tmp_path, 60.0)[2:6] == ["--table", "x", "--steps", "3"]
    with pytest.raises(ValueError, match=r"`--settings` must be texts NAME=VALUE, got 'training\.lr'"):
        side_by_side.read_plan(path, [], ["training.lr"])


@pytest.mark.parametrize(
    ("line", "options", "message"),
    [
        ("a train --task parity", ["--settings", "training.lr"], "`--settings` must be texts NAME=VALUE, got 'training.lr'"),
        ("a", [], "each line must begin with a name and one of train, seeds, learned, got 'a'"),
    ],
)
def test_wrong_plans_and_settings_end_the_command_with_one_error(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    line: str,
    options: list[str],
    message: str,
) -> None:
    monkeypatch.setattr(sys, "argv", ["side_by_side.py", str(write_plan(tmp_path, line)), *options])
    with pytest.raises(SystemExit, match="2"):
        side_by_side.main()
    assert message in capsys.readouterr().err


@pytest.mark.usefixtures("forked_jobs")
def test_finished_and_failed_runs_of_a_plan_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_plan(tmp_path, f"good train {SMALL} --training.steps 2", "bad train --task parity --training.steps 0")
    out = tmp_path / "out"
    options = ["--out", str(out), "--gpus", "", "--per-gpu", "2", "--settings", "training.log_every=1"]
    monkeypatch.setattr(sys, "argv", ["side_by_side.py", str(path), *options])
    assert side_by_side.main() == 1
    result = Run(out / "good").result
    assert result is not None
    assert result["steps"] == 2
    assert Run(out / "good").settings.training.log_every == 1
    assert "`training.steps` must be a whole number of at least 1, got 0" in (out / "bad.txt").read_text()
    ended = side_by_side.side_by_side(side_by_side.read_plan(path, ["good"]), [""], 1, out, 60.0)
    assert {name: one.status for name, one in ended.items()} == {"good": 0}, "a finished run is not repeated"


@pytest.mark.parametrize(("gpus", "expected"), [([], ["3", "5"]), (["--gpus", "5"], ["5"])])
def test_runs_use_the_gpus_that_are_visible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpus: list[str], expected: list[str]
) -> None:
    used: list[list[str]] = []
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(side_by_side, "side_by_side", lambda *args: used.append(args[1]) or {})
    monkeypatch.setattr(sys, "argv", ["side_by_side.py", str(write_plan(tmp_path, "a train --task parity")), *gpus])
    assert side_by_side.main() == 0
    assert used == [expected]


@pytest.mark.slow
def test_runs_interrupted_by_the_limit_are_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = side_by_side.read_plan(
        write_plan(tmp_path, f"long train {SMALL} --training.steps 100000 --training.eval_every 20"), []
    )
    out, limit = tmp_path / "out", 1000.0
    log, n_rows = out / "long" / "metrics.jsonl", 0

    def monotonic() -> float:
        """Return the time, past the limit once the run has logged a row, so that the speed of the machine does not matter."""
        return time.monotonic() + (limit if log.exists() and len(log.read_bytes().splitlines()) > n_rows else 0.0)

    monkeypatch.setattr(processes, "GRACE", 120.0)
    monkeypatch.setattr(processes, "time", SimpleNamespace(monotonic=monotonic, sleep=time.sleep))
    steps = [0]
    for _ in range(2):
        ended = side_by_side.side_by_side(lines, [""], 1, out, limit)
        assert {name: one.status for name, one in ended.items()} == {"long": 130}
        assert not ended["long"].has_failed
        steps.append(read_checkpoint(Run(out / "long").checkpoint("last"))["step"])
        n_rows = len(log.read_bytes().splitlines())
    assert steps == sorted(set(steps)), "each call must resume the run of the call before"
    assert Run(out / "long").result is None


@pytest.mark.parametrize("name", ["afternoon", "table1", "groups", "protocol", "length_generalization", "weather"])
def test_plans_of_the_project_are_valid(name: str, tmp_path: Path) -> None:
    for line in side_by_side.read_plan(ROOT / "benchmarks" / "plans" / f"{name}.txt", []):
        recipes = [argument for argument in line.words if argument.endswith(".yaml")]
        assert all((ROOT / recipe).exists() for recipe in recipes)
        command = line.command(tmp_path, 60.0)
        assert (ROOT / command[1]).exists() or command[1] == "-c"
        assert ("--limit" in command) == (line.program != "train")


def test_plan_has_every_afternoon_recipe() -> None:
    lines = side_by_side.read_plan(ROOT / "benchmarks" / "plans" / "afternoon.txt", [])
    recipes = {line.words[line.words.index("--config") + 1] for line in lines}
    assert {f"recipes/afternoon/{path.name}" for path in (ROOT / "recipes" / "afternoon").glob("*.yaml")} <= recipes
