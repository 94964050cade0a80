"""benchmarks/seeds.py: results/table1/table1.md is generated from the records in its folder; training of several seeds."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import seeds
from longscan.training.parsing import parse_settings

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results" / "table1"
RECIPE = str(ROOT / "recipes" / "aussm" / "parity.yaml")


def test_table_is_generated_from_the_records(tmp_path: Path) -> None:
    seeds.table(RESULTS, tmp_path / "table1.md")
    assert (tmp_path / "table1.md").read_text() == (RESULTS / "table1.md").read_text()


def test_table_of_tests_is_generated_from_the_records(tmp_path: Path) -> None:
    folder = RESULTS.with_name("protocol")
    seeds.tests_table(folder, tmp_path / "tests.md")
    assert (tmp_path / "tests.md").read_text() == (folder / "tests.md").read_text()


def test_table_has_the_last_step_of_a_stopped_run(tmp_path: Path) -> None:
    record = json.loads(next((RESULTS / "aussm").glob("parity-mm.json")).read_text())
    rows = [{"step": 500, "last": [0.5, 0.9]}, {"step": 1000, "last": [0.2, 0.6]}]
    (tmp_path / "one.json").write_text(json.dumps({**record, "rows": rows, "steps": 1000}))
    seeds.table(tmp_path, tmp_path / "table.md")
    assert "| 0.40 [0.20, 0.60] (0.90), stopped at 1,000 | 0.13 | – |" in (tmp_path / "table.md").read_text()


def test_concurrent_stacks_equal_separate_stacks(tmp_path: Path) -> None:
    options = ["--seeds", "2", "--every", "4", "--workers", "0", "--training.steps", "12", "--training.batch_size", "4"]
    argv = [RECIPE, *options, "--task.valid_size", "20", "--task.test_size", "20", "--task.eval_lengths", "[8,12]"]
    for extra, out in ((["--stacks", "mm", "ma"], "both.json"), (["--model.spec", "ma"], "alone.json")):
        seeds.main([*argv, *extra, "--out", str(tmp_path / out)])
    both, alone = (json.loads((tmp_path / name).read_text())["rows"] for name in ("both-ma.json", "alone.json"))
    assert [row["step"] for row in both] == [4, 8, 12]
    for row, other in zip(both, alone, strict=True):
        assert {**row, "seconds": 0} == {**other, "seconds": 0}


def test_run_stopped_by_time_limit_continues_to_equal_results(tmp_path: Path) -> None:
    options = ["--seeds", "2", "--every", "8", "--workers", "0", "--training.steps", "24", "--training.batch_size", "4"]
    argv = [RECIPE, *options, "--stacks", "mm", "ma", "--task.valid_size", "20", "--task.test_size", "20"]
    argv += ["--task.eval_lengths", "[8,12]"]
    seeds.main([*argv, "--out", str(tmp_path / "whole.json")])
    for limit, steps in (("0", 10), ("0", 20), ("1000", 24)):
        seeds.main([*argv, "--out", str(tmp_path / "parts.json"), "--limit", limit])
        assert json.loads((tmp_path / "parts-ma.json").read_text())["steps"] == steps
    for stack in ("mm", "ma"):
        whole, parts = (json.loads((tmp_path / f"{name}-{stack}.json").read_text())["rows"] for name in ("whole", "parts"))
        assert [{**row, "seconds": 0} for row in parts] == [{**row, "seconds": 0} for row in whole]


def test_last_batch_of_an_epoch_is_filled_with_rows_that_are_not_scored(tmp_path: Path) -> None:
    batch = parse_settings(["--config", RECIPE]).task.batch("train", 0, 3, 0)
    filled = seeds.fill_rows(batch, 5)
    assert filled.inputs.shape[0] == 5
    assert filled.loss_mask.sum() == batch.loss_mask.sum() > 0
    assert all(part is None or part.equal(whole) for part, whole in zip(filled.rows(0, 3), batch, strict=True))
    options = ["--seeds", "2", "--every", "4", "--workers", "0", "--training.steps", "12", "--training.batch_size", "4"]
    argv = [RECIPE, *options, "--task.data", "samples", "--task.train_size", "10", "--task.eval_lengths", "[8,12]"]
    seeds.main([*argv, "--task.valid_size", "20", "--task.test_size", "20", "--out", str(tmp_path / "samples.json")])
    assert json.loads((tmp_path / "samples.json").read_text())["steps"] == 12


def test_curriculum_does_not_depend_on_scoring_interval(tmp_path: Path) -> None:
    argv = ["--seeds", "1", "--every", "2", "--training.steps", "12", "--training.batch_size", "4", "--task.valid_size", "20"]
    argv += ["--task.test_size", "20", "--task.eval_lengths", "[41,42]", "--training.curriculum.start", "6"]
    argv += ["--training.curriculum.end", "12", "--training.curriculum.every", "4", "--training.curriculum.threshold", "0"]
    argv += ["--workers", "1"]
    seeds.main([RECIPE, *argv, "--out", str(tmp_path / "one.json")])
    assert json.loads((tmp_path / "one.json").read_text())["longest"] == [12]


def test_stays_exact_needs_perfect_scores_of_all_seeds(tmp_path: Path) -> None:
    settings = parse_settings(["--config", RECIPE, "--task.valid_size", "20", "--task.eval_lengths", "[8,12]"])
    stack = seeds.Seeds(settings, [0, 1], tmp_path / "one.json", "")
    exact, other = {"last": [1.0, 1.0 - 1e-8]}, {"last": [1.0, 0.998]}
    for rows, expected in (([exact], False), ([other, exact, exact], True), ([exact, exact, other], False)):
        stack.record["rows"] = rows
        assert stack.stays_exact(2) is expected
        assert not stack.stays_exact(0)


def test_best_weights_on_validation_are_tested_once(tmp_path: Path) -> None:
    options = (
        "--seeds 3 --every 4 --workers 0 --training.steps 12 --training.batch_size 4 --task.valid_size 20 --task.test_size 300"
    )
    argv = [RECIPE, *options.split(), "--task.eval_lengths", "[8,12]", "--out", str(tmp_path / "one.json")]
    seeds.main([*argv, "--limit", "0"])  # stops before the last update
    assert json.loads((tmp_path / "one.json").read_text())["selected"]["test"] is None
    seeds.main(argv)
    record = json.loads((tmp_path / "one.json").read_text())
    selected = record["selected"]
    for i in range(3):
        scores = [row["last"][i] for row in record["rows"]]
        assert selected["valid"][i] == max(scores)
        assert selected["step"][i] == record["rows"][scores.index(max(scores))]["step"]
    settings = parse_settings(["--config", RECIPE, *argv[7:17]])
    run = seeds.Seeds(settings, [0, 1, 2], tmp_path / "one.json", "")
    assert run.record["selected"] == selected
    seeds.copy_weights(run.selected, run.model)
    assert run.scores("test") == selected["test"]
    assert run.scores("valid") == selected["valid"]


def test_solved_seed_selects_the_weights_that_solved_it(tmp_path: Path) -> None:
    options = (
        "--seeds 2 --every 2 --workers 0 --training.steps 12 --training.batch_size 4 --task.valid_size 20 --task.test_size 30"
    )
    argv = [RECIPE, *options.split(), "--task.eval_lengths", "[8,12]", "--training.select", "last"]
    seeds.main([*argv, "--training.solved_at", "0.01", "--training.solved_for", "2", "--out", str(tmp_path / "one.json")])
    record = json.loads((tmp_path / "one.json").read_text())
    assert record["selected"]["step"] == [4, 4]
    assert record["selected"]["valid"] == record["rows"][-1]["last"]
    assert record["steps"] == 4


def test_fused_seeds_train_and_score_as_seeds_under_vmap(tmp_path: Path) -> None:
    options = (
        "--seeds 2 --every 4 --workers 0 --training.steps 8 --training.batch_size 6 --task.valid_size 20 --task.test_size 40 "
        "--model.spec gru --model.d_model 8 --training.average 0.9 --task.eval_lengths [41,48]"
    )
    records = []
    for name, words in (("vmap", []), ("fused", ["--fused"])):
        path = tmp_path / f"{name}.json"
        seeds.main([RECIPE, *options.split(), "--model.block_options", "{}", *words, "--out", str(path)])
        records.append(json.loads(path.read_text()))
    vmap, fused = records
    assert vmap["rows"][-1]["loss"] == pytest.approx(fused["rows"][-1]["loss"], rel=1e-4)
    assert vmap["rows"][-1]["loss"][0] != pytest.approx(vmap["rows"][-1]["loss"][1], rel=1e-2)
    assert vmap["selected"]["test"] == pytest.approx(fused["selected"]["test"], abs=0.03)


@pytest.mark.parametrize("options", [["--model.spec", "ma"], ["--model.norm", "batch"]])
def test_fused_seeds_need_outputs_that_padding_cannot_change(
    tmp_path: Path, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    argv = [RECIPE, "--model.spec", "gru", "--model.block_options", "{}", *options, "--fused"]
    with pytest.raises(SystemExit):
        seeds.main([*argv, "--seeds", "1", "--out", str(tmp_path / "one.json")])
    assert capsys.readouterr().err.startswith("seeds.py: --fused: ")
