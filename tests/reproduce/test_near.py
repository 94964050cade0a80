"""Runs near a row are shown with the reason why they do not count, and change no verdict."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from longscan.cli import main
from longscan.report.records import read_seeds
from longscan.report.statistics import mean_interval
from longscan.reproduce import PublishedRow, find_rows, read_rows
from longscan.reproduce.near import HEADER, TRIED, near_lines, near_runs
from longscan.reproduce.page import read_outcomes, report_page
from longscan.reproduce.tries import settings_name, settings_text

RESULTS = Path(__file__).parents[2] / "results"
ROWS = [row for row in read_rows() if row.near]


@pytest.fixture
def row() -> PublishedRow:
    """Return a row with one of the files of runs near it."""
    (row,) = find_rows("aussm/table1/parity/ma")
    name = "protocol/published_parity-ma.json"
    return replace(row, near={name: row.near[name]})


def test_rows_of_the_released_code_do_not_repeat_the_runs() -> None:
    assert "aussm/table1/parity/ma" in [row.id for row in ROWS]
    assert not any(row.table == "aussm/table1-released" for row in ROWS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_files_have_runs_near_the_row(row: PublishedRow) -> None:
    runs = near_runs(row, RESULTS)
    assert runs
    assert all(run.scores and run.updates and run.why for run in runs)


def test_seeds_that_were_trained_together_have_their_test_scores(row: PublishedRow) -> None:
    (run,) = near_runs(row, RESULTS)
    record = read_seeds(RESULTS / "protocol")["published_parity-ma"]
    assert run.scores == tuple(record["selected"]["test"])
    mean, half = mean_interval(run.scores)
    (_, heading, _, *header, line) = near_lines("aussm/table1", [row], RESULTS)
    assert heading == f"Runs near these rows, which do not count ({run.why}):"
    assert {one.count("|") for one in (*header, line)} == {8}
    assert line.startswith(f"| parity/ma | {mean:.3f} ± {half:.3f} | 10 | 100,000, of 100,000 | 23.1 | – | `")
    assert line.endswith("published_parity-ma.json` by `benchmarks/seeds.py` |")


def test_settings_of_the_record_differ_from_the_row_only_as_the_reason_says(row: PublishedRow) -> None:
    settings = read_seeds(RESULTS / "protocol")["published_parity-ma"]["settings"]
    assert settings["about"]["recipe"] == row.recipe
    assert (settings["task"]["data"], row.settings["task.data"]) == ("stream", "samples")
    assert "batch_repeats" not in settings["training"], "each batch is used once"
    assert (settings["training"]["steps"], settings["training"]["select"]) == (row.updates, "best")


def test_runs_are_grouped_by_the_settings_of_their_commands(tmp_path: Path) -> None:
    (row,) = find_rows("aussm/table3/weather")
    (line,) = [
        record
        for text in (RESULTS / "runs" / "weather.jsonl").read_text("utf-8").splitlines()
        if (record := json.loads(text))["command"].endswith("--out runs/weather/hybrid-720")
    ]
    command = "longscan train --config recipes/aussm/weather.yaml --training.steps"
    changes = [
        {"command": f"{command} 60", "seed": 0, "value": 0.6},
        {"command": f"{command}=60 --training.seed 1", "seed": 1, "value": 0.7},
        {"command": f"{command} 60 --training.lr 0.01", "value": 0.9},
        {"command": f"{command} 60", "published": ["r078"]},
        {"command": f"{command} 60", "recipe": "recipes/aussm/weather_384.yaml"},
        {"command": f"{command} 60", "row": "aussm/table3/weather"},
        {"command": f"{command} 60", "seed": 7, "status": "failed", "value": None, "scaled": None},
    ]
    (tmp_path / "runs").mkdir()
    text = "".join(json.dumps(line | change) + "\n" for change in changes)
    (tmp_path / "runs" / "weather.jsonl").write_text(text)
    first, second = near_runs(replace(row, near={"runs/weather.jsonl": "fewer updates"}), tmp_path)
    assert (first.settings, first.scores) == ("training.lr=0.01 training.steps=60", (0.9,))
    assert (second.settings, second.scores, second.failed) == ("training.steps=60", (0.6, 0.7), 0)


def test_runs_near_a_row_change_no_verdict(row: PublishedRow) -> None:
    outcomes = read_outcomes([row], RESULTS / "protocol")
    page = report_page(outcomes, "longscan reproduce report", folder=RESULTS)
    assert "Of 1 row with a recipe, for 1 figure: not run." in page
    assert "\n| parity/ma | -0.005 ± 0.006 | 10 | 100,000, of 100,000 |" in page


def try_record(row: PublishedRow, changed: dict[str, Any], seed: int, **changes: Any) -> dict[str, Any]:
    """Return the record of a try of a row of parity, as `longscan reproduce --settings` writes it."""
    line = json.loads((RESULTS / "runs" / "table1_tries.jsonl").read_text("utf-8").splitlines()[0])
    own = {"row": f"tries/{row.id}/{settings_name(changed)}", "try_of": row.id, "changed": changed, "seed": seed, "stacked": 2}
    command = f"longscan train --config {row.recipe} --training.seed={seed} " + settings_text(changed)
    return line | own | {"recipe": row.recipe, "published": [row.published], "command": command} | changes


def test_tries_of_a_row_stand_below_it_and_are_not_the_row(tmp_path: Path) -> None:
    """Each text of settings is a line, also where all seeds failed. The row and other rows stay without a run."""
    (row,), (other,) = find_rows("aussm/table1/parity/ma"), find_rows("aussm/table1/parity/am")
    failed: dict[str, Any] = {"status": "failed", "value": None, "scaled": None, "steps": 7}
    records = [
        try_record(row, {"training.lr": 0.003}, 0, scaled=0.6, device_seconds=60.0, seconds=110.0),
        try_record(row, {"training.lr": 0.003}, 1, scaled=0.8, device_seconds=30.0, steps=90_000),
        try_record(row, {"training.lr": 0.003}, 2, device_seconds=6.0, **failed),
        try_record(row, {"model.d_state": 8}, 0, scaled=0.5, steps=50_000, device_seconds=None, seconds=120.0),
        try_record(row, {"training.lr": 9.0}, 0, device_seconds=None, seconds=None, **failed),
        try_record(row, {"training.note": "a|b"}, 0, scaled=0.4, device_seconds=6.0),
    ]
    file = tmp_path / "tries" / "runs" / "any_name.jsonl"
    file.parent.mkdir(parents=True)
    file.write_text("".join(json.dumps(one) + "\n" for one in records))
    source = f"`{file.as_posix()}` by `longscan train`"
    heading = f"Runs near these rows, which do not count ({TRIED}):"
    lines = near_lines("aussm/table1", [row], tmp_path)
    assert lines == [
        "",
        heading,
        "",
        *HEADER,
        f"| parity/ma | 0.500 | 1 | 50,000, of 100,000 | 1.0 | `model.d_state=8` | {source} |",
        f"| parity/ma | 0.700 ± 1.271 | 2, 1 failed | 90,000, of 100,000 | 1.6 | `training.lr=0.003` | {source} |",
        f"| parity/ma | – | 0, 1 failed | 7, of 100,000 | – | `training.lr=9.0` | {source} |",
        f"| parity/ma | 0.400 | 1 | 100,000, of 100,000 | 0.1 | `training.note=a\\|b` | {source} |",
    ]
    assert near_lines("aussm/table1", [other], tmp_path) == []
    outcomes = read_outcomes([row], tmp_path)
    assert (outcomes[0].verdict, outcomes[0].has_run, outcomes[0].minutes) == ("not run", False, 0.0)
    assert "\n".join(lines) in report_page(outcomes, "longscan reproduce report", folder=tmp_path)
    assert main(["reproduce", "report", str(tmp_path), "--out", str(tmp_path / "page.md")]) == 0
    assert "\n".join(lines) in (tmp_path / "page.md").read_text("utf-8")
