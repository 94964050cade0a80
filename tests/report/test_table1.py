"""results/table1/table1.md is what benchmarks/seeds.py makes of the records beside it."""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import seeds
from longscan.training.parsing import parse_settings

RESULTS = Path(__file__).parents[2] / "results" / "table1"


def test_the_table_is_of_the_records(tmp_path: Path) -> None:
    seeds.table(RESULTS, tmp_path / "table1.md")
    assert (tmp_path / "table1.md").read_text() == (RESULTS / "table1.md").read_text()


def test_the_table_of_tests_is_of_the_records(tmp_path: Path) -> None:
    folder = RESULTS.with_name("protocol")
    seeds.tests_table(folder, tmp_path / "tests.md")
    assert (tmp_path / "tests.md").read_text() == (folder / "tests.md").read_text()


def test_a_record_says_how_far_it_went(tmp_path: Path) -> None:
    record = json.loads(next((RESULTS / "aussm").glob("parity-mm.json")).read_text())
    rows = [{"step": 500, "last": [0.5, 0.9]}, {"step": 1000, "last": [0.2, 0.6]}]
    (tmp_path / "one.json").write_text(json.dumps({**record, "rows": rows, "steps": 1000}))
    seeds.table(tmp_path, tmp_path / "table.md")
    assert "| 0.40 [0.20, 0.60] (0.90), stopped at 1,000 | 0.13 | – |" in (tmp_path / "table.md").read_text()


def test_stacks_side_by_side_learn_what_they_learn_alone(tmp_path: Path) -> None:
    recipe = Path(__file__).parents[2] / "recipes" / "aussm" / "parity.yaml"
    small = ["--seeds", "2", "--every", "4", "--workers", "0", "--training.steps", "12", "--training.batch_size", "4"]
    words = [str(recipe), *small, "--task.valid_size", "20", "--task.test_size", "20", "--task.eval_lengths", "[8,12]"]
    for more, out in ((["--stacks", "mm", "ma"], "both.json"), (["--model.spec", "ma"], "alone.json")):
        seeds.main([*words, *more, "--out", str(tmp_path / out)])
    both, alone = (json.loads((tmp_path / name).read_text())["rows"] for name in ("both-ma.json", "alone.json"))
    assert [row["step"] for row in both] == [4, 8, 12]
    for row, other in zip(both, alone, strict=True):
        assert {**row, "seconds": 0} == {**other, "seconds": 0}


def test_a_call_goes_on_where_its_time_was_over(tmp_path: Path) -> None:
    recipe = Path(__file__).parents[2] / "recipes" / "aussm" / "parity.yaml"
    small = ["--seeds", "2", "--every", "8", "--workers", "0", "--training.steps", "24", "--training.batch_size", "4"]
    words = [str(recipe), *small, "--stacks", "mm", "ma", "--task.valid_size", "20", "--task.test_size", "20"]
    words += ["--task.eval_lengths", "[8,12]"]
    seeds.main([*words, "--out", str(tmp_path / "whole.json")])
    for limit, steps in (("0", 10), ("0", 20), ("1000", 24)):
        seeds.main([*words, "--out", str(tmp_path / "parts.json"), "--limit", limit])
        assert json.loads((tmp_path / "parts-ma.json").read_text())["steps"] == steps
    for stack in ("mm", "ma"):
        whole, parts = (json.loads((tmp_path / f"{name}-{stack}.json").read_text())["rows"] for name in ("whole", "parts"))
        assert [{**row, "seconds": 0} for row in parts] == [{**row, "seconds": 0} for row in whole]


def test_a_curriculum_moves_however_often_seeds_are_scored(tmp_path: Path) -> None:
    recipe = Path(__file__).parents[2] / "recipes" / "aussm" / "parity.yaml"
    words = ["--seeds", "1", "--every", "2", "--training.steps", "12", "--training.batch_size", "4", "--task.valid_size", "20"]
    words += ["--task.test_size", "20", "--task.eval_lengths", "[41,42]", "--training.curriculum.start", "6"]
    words += ["--training.curriculum.end", "12", "--training.curriculum.every", "4", "--training.curriculum.threshold", "0"]
    words += ["--workers", "1"]
    seeds.main([str(recipe), *words, "--out", str(tmp_path / "one.json")])
    assert json.loads((tmp_path / "one.json").read_text())["longest"] == [12]


def test_training_ends_where_all_seeds_have_held_one(tmp_path: Path) -> None:
    recipe = Path(__file__).parents[2] / "recipes" / "aussm" / "parity.yaml"
    settings = parse_settings(["--config", str(recipe), "--task.valid_size", "20", "--task.eval_lengths", "[8,12]"])
    stack = seeds.Seeds(settings, [0, 1], tmp_path / "one.json", "")
    exact, other = {"last": [1.0, 1.0 - 1e-8]}, {"last": [1.0, 0.998]}
    for rows, held in (([exact], False), ([other, exact, exact], True), ([exact, exact, other], False)):
        stack.record["rows"] = rows
        assert stack.stays_exact(2) is held
        assert not stack.stays_exact(0)


def test_the_best_weights_on_validation_are_tested_once(tmp_path: Path) -> None:
    recipe = Path(__file__).parents[2] / "recipes" / "aussm" / "parity.yaml"
    words = [
        str(recipe),
        "--seeds",
        "3",
        "--every",
        "4",
        "--workers",
        "0",
        "--training.steps",
        "12",
        "--training.batch_size",
        "4",
    ]
    words += [
        "--task.valid_size",
        "20",
        "--task.test_size",
        "300",
        "--task.eval_lengths",
        "[8,12]",
        "--out",
        str(tmp_path / "one.json"),
    ]
    seeds.main([*words, "--limit", "0"])  # stops before the last update
    assert json.loads((tmp_path / "one.json").read_text())["selected"]["test"] is None
    seeds.main(words)
    record = json.loads((tmp_path / "one.json").read_text())
    selected = record["selected"]
    for i in range(3):
        scores = [row["last"][i] for row in record["rows"]]
        assert selected["valid"][i] == max(scores)
        assert selected["step"][i] == record["rows"][scores.index(max(scores))]["step"]
    settings = parse_settings(["--config", str(recipe), *words[7:17]])
    run = seeds.Seeds(settings, [0, 1, 2], tmp_path / "one.json", "")
    assert run.record["selected"] == selected
    seeds.copy_weights(run.selected, run.model)
    assert run.scores("test") == selected["test"]
    assert run.scores("valid") == selected["valid"]


def test_a_solved_seed_keeps_the_weights_that_solved_it(tmp_path: Path) -> None:
    recipe = Path(__file__).parents[2] / "recipes" / "aussm" / "parity.yaml"
    words = [
        str(recipe),
        "--seeds",
        "2",
        "--every",
        "2",
        "--workers",
        "0",
        "--training.steps",
        "12",
        "--training.batch_size",
        "4",
    ]
    words += ["--task.valid_size", "20", "--task.test_size", "30", "--task.eval_lengths", "[8,12]", "--training.select", "last"]
    seeds.main([*words, "--training.solved_at", "0.01", "--training.solved_for", "2", "--out", str(tmp_path / "one.json")])
    record = json.loads((tmp_path / "one.json").read_text())
    assert record["selected"]["step"] == [4, 4]
    assert record["selected"]["valid"] == record["rows"][-1]["last"]
    assert record["steps"] == 4
