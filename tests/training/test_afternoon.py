"""benchmarks/afternoon.py: plans are read, runs stand side by side, what is stopped goes on, a failed run is told."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import afternoon
from longscan.training import Run
from longscan.training.checkpoint import read_checkpoint

ROOT = Path(__file__).parents[2]
SMALL = "--task parity --task.valid_size 4 --task.test_size 4 --model.d_model 4 --model.d_state 2 --training.batch_size 2"


def plan(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "plan.txt"
    path.write_text("\n".join(["# a plan", "", *lines]) + "\n")
    return path


def test_plans_are_read(tmp_path: Path) -> None:
    path = plan(tmp_path, f'a-0 {SMALL} --model.block_options "{{a: {{dropout: 0.1}}}}"', "b --task parity  # the second")
    first, second = afternoon.read_plan(path, [])
    assert first.words[-1] == "{a: {dropout: 0.1}}"
    assert second == ("b", ["--task", "parity"])
    assert [line.name for line in afternoon.read_plan(path, ["a"])] == ["a-0"]
    with pytest.raises(ValueError, match="a stands there 2 times"):
        afternoon.read_plan(plan(tmp_path, "a --task parity", "a --task parity"), [])


def test_runs_end_or_fail_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = plan(tmp_path, f"good {SMALL} --training.steps 2", "bad --task parity --training.steps 0")
    out = tmp_path / "out"
    monkeypatch.setattr(sys, "argv", ["afternoon.py", str(path), "--out", str(out), "--gpus", "", "--per-gpu", "2"])
    assert afternoon.main() == 1
    result = Run(out / "good").result
    assert result is not None
    assert result["steps"] == 2
    assert "training.steps: got 0" in (out / "bad.txt").read_text()
    assert afternoon.side_by_side(afternoon.read_plan(path, ["good"]), [""], 1, out, 60.0) == {"good": 0}, "over: nothing to do"


@pytest.mark.slow
def test_what_the_limit_cuts_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = afternoon.read_plan(plan(tmp_path, f"long {SMALL} --training.steps 100000 --training.eval_every 20"), [])
    out = tmp_path / "out"
    monkeypatch.setattr(afternoon, "GRACE", 10)
    steps = [0]
    for _ in range(2):
        assert afternoon.side_by_side(lines, [""], 1, out, 35.0) == {"long": 130}
        steps.append(read_checkpoint(Run(out / "long").checkpoint("last"))["step"])
    assert steps == sorted(set(steps)), "each call goes on where the one before was cut"
    assert Run(out / "long").result is None


def test_the_plan_of_the_project_is_of_its_recipes() -> None:
    lines = afternoon.read_plan(ROOT / "benchmarks" / "afternoon.txt", [])
    recipes = {line.words[line.words.index("--config") + 1] for line in lines}
    own = {f"recipes/afternoon/{path.name}" for path in (ROOT / "recipes" / "afternoon").glob("*.yaml")}
    assert own <= recipes
    assert all((ROOT / recipe).exists() for recipe in recipes)
