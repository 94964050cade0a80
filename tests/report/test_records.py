"""Valid and invalid records; all records in results/ are valid."""

import json
import re
from pathlib import Path

import pytest
import yaml

from fork_server import PROCESSES
from longscan.report import append_record, read_records
from longscan.report.published import published_row
from longscan.report.records import apply_corrections, check_record, read_seeds

ROOT = Path(__file__).parents[2]
RESULTS = sorted((*(ROOT / "results").glob("*/*.jsonl"), *(ROOT / "results" / "tries").glob("*/*.jsonl")))
SEEDS = sorted((ROOT / "results" / "seeds").glob("*.json"))
SWEEPS = sorted((ROOT / "results" / "sweeps").glob("*.json"))
TABLE1 = sorted((*(ROOT / "results" / "table1").rglob("*.json"), *(ROOT / "results" / "protocol").glob("*.json")))


def test_appended_records_are_read(tmp_path, new_run_row, new_bench_row):
    for kind, row in (("runs", new_run_row), ("bench", new_bench_row)):
        path = tmp_path / kind / "rows.jsonl"
        append_record(path, row())
        append_record(path, row(commit="später"))
        assert read_records(path) == [row(), row(commit="später")]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"value": "high"}, "`value` must be a finite number or None, got 'high'"),
        ({"value": None}, "`value` must be a finite number, as the run is finished, got None"),
        ({"status": "done"}, "`status` must be one of finished, failed, got 'done'"),
        ({"task": ""}, "`task` must be text that is not empty, got ''"),
        ({"quick": None}, "`quick` must be true or false, got None"),
        ({"published": "parity"}, "`published` must be an id of a row of published.json.* or a list or None, got 'parity'"),
        ({"published": ["r036", "r"]}, r"`published\[1\]` must be an id of a row of published.json, such as r036, got 'r'"),
        ({"baselines": {"mean": "low"}}, "`baselines.mean` must be a finite number, got 'low'"),
        ({"date": "today"}, "`date` must be a date that begins like 2026-11-21, got 'today'"),
        ({"seed": 1.5, "steps": -1}, "`seed` must be a whole number, got 1.5; `steps` must be .* at least 0 or None, got -1"),
        ({"value": float("nan")}, "`value` must be a finite number or None, got nan"),
        ({"value": 10**400}, "`value` must be a finite number or None, got 10000.*"),
        ({"by_length": {"8": float("inf")}}, "Out of range float values"),
        ({"corrected": {"values": {}}}, "`corrected.values` must be a mapping with at least one of scaled, .*, got no field"),
        ({"corrected": {"values": {"value": 1.0}}}, "`corrected.values.value` must be left out, .* of this name, got 1.0"),
    ],
)
def test_invalid_run_raises_and_is_not_written(tmp_path, new_run_row, changes, message):
    path = tmp_path / "runs" / "rows.jsonl"
    with pytest.raises(ValueError, match=rf"{re.escape(str(path))}: .*{message}"):
        append_record(path, new_run_row(**changes))
    assert not path.exists()


def test_missing_field_raises(tmp_path, new_bench_row):
    row = new_bench_row()
    del row["peak_mib"]
    with pytest.raises(ValueError, match="`peak_mib` must be a finite number or None, got nothing"):
        append_record(tmp_path / "bench" / "rows.jsonl", row)


def test_folder_that_is_no_kind_of_record_raises(tmp_path, new_run_row):
    folders = "automata or bench or classification or forecasts or regression or runs or short_series"
    with pytest.raises(ValueError, match=rf"`path` must be in a folder {folders}, got "):
        append_record(tmp_path / "rows.jsonl", new_run_row())


def test_invalid_line_raises_with_its_number(tmp_path, new_run_row):
    path = tmp_path / "runs" / "rows.jsonl"
    append_record(path, new_run_row())
    whole = path.read_text()
    path.write_text(f"{whole}{{\n")
    with pytest.raises(ValueError, match=r"rows\.jsonl, line 2: Expecting"):
        read_records(path)
    path.write_text(whole + json.dumps(new_run_row(steps="many")) + "\n")
    with pytest.raises(ValueError, match=r"rows\.jsonl, line 2: this is not a record of runs: `steps` must be .*, got 'many'"):
        read_records(path)


def _append(path: Path, row: dict, number: int) -> None:
    for i in range(20):
        append_record(path, row | {"seed": 1000 * number + i, "command": "x" * 3000})


def test_concurrent_appends_lose_no_record(tmp_path, new_run_row):
    path = tmp_path / "runs" / "rows.jsonl"
    workers = [PROCESSES.Process(target=_append, args=(path, new_run_row(), n)) for n in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    assert sorted(r["seed"] for r in read_records(path)) == [1000 * n + i for n in range(2) for i in range(20)]


def test_unknown_fields_are_preserved_except_in_automata(tmp_path, new_run_row):
    append_record(path := tmp_path / "runs" / "rows.jsonl", new_run_row(weather="dry"))
    assert read_records(path) == [new_run_row(weather="dry")]
    row = json.loads((ROOT / "results" / "automata" / "mutants.jsonl").read_text())
    check_record("automata", row)
    with pytest.raises(ValueError, match="`weather` must be left out, as there is no field of this name, got 'dry'"):
        check_record("automata", row | {"weather": "dry"})
    with pytest.raises(ValueError, match=r"records? of automata: `(\[\{){100}\.\.\.` must be left out"):
        check_record("automata", row | {"[{" * 3000: 1})


@pytest.mark.parametrize("name", ["table", "million", "random", "mutants", "survival", "learned"])
def test_automata_row_without_the_fields_of_its_kind_raises(name):
    row = json.loads((ROOT / "results" / "automata" / f"{name}.jsonl").read_text().splitlines()[0])
    check_record("automata", row)
    needed = {"backend", "refused", "outcome", "harmless but refused", "phase", "exact"} & row.keys()
    with pytest.raises(ValueError, match="the row must be a row with all fields of one kind: case, backend"):
        check_record("automata", {field: value for field, value in row.items() if field not in needed})


def test_errors_name_fields_inside_lists(make_seeds, tmp_path):
    record = json.loads(make_seeds(tmp_path / "one.json").read_text())
    record["rows"][2]["loss"] = []
    record["rows"][3]["last"][1] = "low"
    del record["settings"]["model"]
    errors = (
        r"`rows\[2\]\.loss` must be a list of at least one number, got \[\]; "
        r"`rows\[3\]\.last\[1\]` must be a finite number, got 'low'; `settings\.model` must be a mapping, got nothing"
    )
    with pytest.raises(ValueError, match=errors):
        check_record("seeds", record)


def test_errors_name_at_most_eight_fields():
    with pytest.raises(ValueError, match=r"`commit` must be text that is not empty, got nothing.*; and 8 more$"):
        check_record("bench", {})
    with pytest.raises(ValueError, match=r"not a record of bench: the row must be a mapping, got \[\]$"):
        check_record("bench", [])


def test_records_in_results_are_valid():
    for row in (row for path in RESULTS for row in read_records(path)):
        identities = row.get("published") or []
        for identity in [identities] if isinstance(identities, str) else identities:
            assert published_row(identity)["paper"] == row["paper"]


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_a_recorded_sweep_is_whole_and_chose_what_the_recipe_has(path):
    sweep = json.loads(path.read_text("utf-8"))
    check_record("sweep", sweep)
    assert sweep["status"] == "finished"
    assert all(row["score"] is not None for row in (*sweep["trials"], *sweep["seeds"]))
    recipe = yaml.safe_load((ROOT / sweep["recipe"]).read_text("utf-8"))
    for key, value in sweep["best"]["settings"].items():
        names = key.split(", ")
        for name, chosen in zip(names, value if len(names) > 1 else [value], strict=True):
            section, setting = name.split(".")
            assert recipe[section][setting] == chosen


def test_constant_score_is_not_that_of_persistence():
    rows = [row for path in RESULTS if path.parent.name == "runs" for row in read_records(path)]
    corrected = [row for row in rows if "corrected" in row]
    assert corrected
    for row in rows:
        corrected_row = apply_corrections(row)
        assert corrected_row["constant"] != corrected_row["baselines"].get("persistence"), (row["task"], row["commit"])
    for row in corrected:
        values = row["corrected"]["values"]
        assert values["constant"] == values["baselines"]["constant"] != row["constant"]
        assert values["scaled"] == pytest.approx(1 - row["value"] / values["constant"])


def test_automata_page_has_the_number_of_rows_from_uncommitted_trees():
    text = " ".join((ROOT / "docs" / "automata.md").read_text("utf-8").split())
    for path in (path for path in RESULTS if path.parent.name == "automata"):
        commits = [json.loads(line)["commit"] for line in path.read_text("utf-8").splitlines()]
        marked = sum(commit.endswith("+changes") for commit in commits)
        assert not marked or f"{marked} of {len(commits):,} in `{path.stem}`" in text


def test_results_folder_has_only_records_and_images():
    others = {p for p in (ROOT / "results").rglob("*") if p.is_file()} - set(RESULTS) - set(SEEDS) - set(TABLE1) - set(SWEEPS)
    # records of scripts with fields of their own
    own = (
        "reliability",
        "gpu_tests",
        "context_parallel",
        "context_parallel_expected",
        "first_updates",
        "row_rates",
        "stacked_seeds",
        "table1_validation",
        "kernels_old_new",
        "plain_torch",
        "ptx",
        "s4d_forms",
        "ssd_scan_tiles",
        "masked_plateau",
        "mamba_blocks",
        "captured_fits",
        "host_time",
        "first_calls",
        "image_features",
        "cpu_floor",
        "busy_threads",
    )
    others -= {ROOT / "results" / f"{name}.jsonl" for name in own}
    assert {p for p in others if p.suffix not in {".png", ".svg", ".md"} and p.name != "report.html"} == set()


def test_invalid_seeds_record_raises(make_seeds, tmp_path):
    path = make_seeds(tmp_path / "seeds" / "one.json")
    assert list(read_seeds(path.parent)) == ["one"]
    assert read_seeds(tmp_path / "nowhere") == {}
    make_seeds(path, success="high")
    with pytest.raises(
        ValueError, match=r"one\.json: this is not a record of seeds: `success` must be a finite number, got 'high'"
    ):
        read_seeds(path.parent)
    path.write_text("{")
    with pytest.raises(ValueError, match=r"one\.json: Expecting"):
        read_seeds(path.parent)


def test_seeds_in_results_are_valid():
    assert list(read_seeds(ROOT / "results" / "seeds")) == [path.stem for path in SEEDS]
    for folder in sorted({path.parent for path in TABLE1}):
        assert list(read_seeds(folder)) == [path.stem for path in TABLE1 if path.parent == folder]


@pytest.mark.parametrize("path", SEEDS, ids=lambda path: path.stem)
def test_seeds_in_results_are_complete(path):
    record = json.loads(path.read_text("utf-8"))
    assert {"task", "suite", "spec", "settings", "command", "commit", "date", "torch", "device"} <= set(record)
    steps = [row["step"] for row in record["rows"]]
    assert steps == sorted(set(steps))
    assert steps[-1] == record["steps"]
    assert all(len(row["last"]) == len(record["seeds"]) and max(row["last"]) <= 1 for row in record["rows"])
    assert record["constant_scaled"] < 0.5
