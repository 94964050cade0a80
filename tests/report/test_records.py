"""Records: what is accepted, what is refused, and that everything under results/ is accepted."""

import json
import multiprocessing
from pathlib import Path

import jsonschema
import pytest

from longscan.report import append_record, read_records
from longscan.report.published import published_row
from longscan.report.records import _SCHEMAS, _validator, apply_corrections, read_seeds

ROOT = Path(__file__).parents[2]
RESULTS = sorted((ROOT / "results").glob("*/*.jsonl"))
SEEDS = sorted((ROOT / "results" / "seeds").glob("*.json"))
TABLE1 = sorted((*(ROOT / "results" / "table1").rglob("*.json"), *(ROOT / "results" / "protocol").glob("*.json")))


def test_what_is_appended_is_read(tmp_path, new_run_row, new_bench_row):
    for kind, row in (("runs", new_run_row), ("bench", new_bench_row)):
        path = tmp_path / kind / "rows.jsonl"
        append_record(path, row())
        append_record(path, row(commit="später"))
        assert read_records(path) == [row(), row(commit="später")]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"value": "high"}, r"row\.value: 'high' is not of type"),
        ({"value": None}, r"row\.value: None is not of type 'number'"),
        ({"status": "done"}, r"row\.status: 'done' is not one of \['finished', 'failed'\]"),
        ({"published": "parity"}, r"row\.published: 'parity'"),
        ({"date": "today"}, r"row\.date: 'today' does not match"),
        ({"seed": 1.5, "steps": -1}, r"row\.seed: 1\.5 is not of type 'integer'; row\.steps: -1 is less than"),
        ({"value": float("nan")}, "Out of range float values"),
    ],
)
def test_a_wrong_run_is_refused_and_nothing_is_written(tmp_path, new_run_row, changes, said):
    path = tmp_path / "runs" / "rows.jsonl"
    with pytest.raises(ValueError, match=said):
        append_record(path, new_run_row(**changes))
    assert not path.exists()


def test_a_missing_field_is_named(tmp_path, new_bench_row):
    row = new_bench_row()
    del row["peak_mib"]
    with pytest.raises(ValueError, match="'peak_mib' is a required property"):
        append_record(tmp_path / "bench" / "rows.jsonl", row)


def test_the_folder_says_the_schema(tmp_path, new_run_row):
    with pytest.raises(ValueError, match=r"records live in folders automata, bench, runs"):
        append_record(tmp_path / "rows.jsonl", new_run_row())


def test_a_broken_line_is_named(tmp_path, new_run_row):
    path = tmp_path / "runs" / "rows.jsonl"
    append_record(path, new_run_row())
    with path.open("a") as file:
        file.write("{\n")
    with pytest.raises(ValueError, match=r"rows\.jsonl, line 2"):
        read_records(path)


def _append(path: Path, row: dict, number: int) -> None:
    for i in range(50):
        append_record(path, row | {"seed": 1000 * number + i, "command": "x" * 3000})


def test_processes_that_append_together_lose_nothing(tmp_path, new_run_row):
    path = tmp_path / "runs" / "rows.jsonl"
    context = multiprocessing.get_context("forkserver")
    workers = [context.Process(target=_append, args=(path, new_run_row(), n)) for n in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    assert sorted(r["seed"] for r in read_records(path)) == [1000 * n + i for n in range(2) for i in range(50)]


@pytest.mark.parametrize("kind", _SCHEMAS)
def test_the_schemas_are_schemas_and_hold_the_fields_agreed_on(kind):
    schema = _validator(kind).schema
    jsonschema.Draft202012Validator.check_schema(schema)
    assert set(schema["required"]) <= set(schema["properties"])


def test_the_records_of_the_project_are_valid():
    for row in (row for path in RESULTS for row in read_records(path)):
        identities = row.get("published") or []
        for identity in [identities] if isinstance(identities, str) else identities:
            assert published_row(identity)["paper"] == row["paper"]


def test_no_row_shows_persistence_as_the_constant_predictor():
    rows = [row for path in RESULTS if path.parent.name == "runs" for row in read_records(path)]
    corrected = [row for row in rows if "corrected" in row]
    assert corrected
    for row in rows:
        shown = apply_corrections(row)
        assert shown["constant"] != shown["baselines"].get("persistence"), (row["task"], row["commit"])
    for row in corrected:
        values = row["corrected"]["values"]
        assert values["constant"] == values["baselines"]["constant"] != row["constant"]
        assert values["scaled"] == pytest.approx(1 - row["value"] / values["constant"])


def test_the_page_of_automata_says_which_rows_are_of_uncommitted_trees():
    text = " ".join((ROOT / "docs" / "automata.md").read_text("utf-8").split())
    for path in (path for path in RESULTS if path.parent.name == "automata"):
        commits = [json.loads(line)["commit"] for line in path.read_text("utf-8").splitlines()]
        marked = sum(commit.endswith("+changes") for commit in commits)
        assert f"{marked} of {len(commits):,} in `{path.stem}`" in text


def test_nothing_but_records_and_drawings_lies_under_results():
    others = {p for p in (ROOT / "results").rglob("*") if p.is_file()} - set(RESULTS) - set(SEEDS) - set(TABLE1)
    others.remove(ROOT / "results" / "reliability.jsonl")  # of `make soak`, which checks it
    assert {p for p in others if p.suffix not in {".png", ".svg", ".md"} and p.name != "report.html"} == set()


def test_seeds_trained_together_are_checked(make_seeds, tmp_path):
    path = make_seeds(tmp_path / "seeds" / "one.json")
    assert list(read_seeds(path.parent)) == ["one"]
    assert read_seeds(tmp_path / "nowhere") == {}
    make_seeds(path, success="high")
    with pytest.raises(ValueError, match=r"one\.json: not a row of seeds: row\.success: 'high' is not of type"):
        read_seeds(path.parent)
    path.write_text("{")
    with pytest.raises(ValueError, match=r"one\.json: Expecting"):
        read_seeds(path.parent)


def test_the_seeds_of_the_project_are_valid():
    assert list(read_seeds(ROOT / "results" / "seeds")) == [path.stem for path in SEEDS]
    for folder in sorted({path.parent for path in TABLE1}):
        assert list(read_seeds(folder)) == [path.stem for path in TABLE1 if path.parent == folder]


@pytest.mark.parametrize("path", SEEDS, ids=lambda path: path.stem)
def test_seeds_trained_together_are_whole(path):
    record = json.loads(path.read_text("utf-8"))
    assert {"task", "suite", "spec", "settings", "command", "commit", "date", "torch", "device"} <= set(record)
    steps = [row["step"] for row in record["rows"]]
    assert steps == sorted(set(steps))
    assert steps[-1] == record["steps"]
    assert all(len(row["last"]) == len(record["seeds"]) and max(row["last"]) <= 1 for row in record["rows"])
    assert record["constant_scaled"] < 0.5
