"""Runs near a row are shown with the reason why they do not count, and change no verdict."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from longscan.report.records import read_seeds
from longscan.report.statistics import mean_interval
from longscan.reproduce import PublishedRow, find_rows, read_rows
from longscan.reproduce.near import near_lines, near_runs
from longscan.reproduce.page import read_outcomes, report_page

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
    assert {one.count("|") for one in (*header, line)} == {7}
    assert line.startswith(f"| parity/ma | {mean:.3f} ± {half:.3f} | 10 | 100,000 | – | `")
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
    ]
    (tmp_path / "runs").mkdir()
    text = "".join(json.dumps(line | change) + "\n" for change in changes)
    (tmp_path / "runs" / "weather.jsonl").write_text(text)
    first, second = near_runs(replace(row, near={"runs/weather.jsonl": "fewer updates"}), tmp_path)
    assert (first.settings, first.scores) == ("training.lr=0.01 training.steps=60", (0.9,))
    assert (second.settings, second.scores) == ("training.steps=60", (0.6, 0.7))


def test_runs_near_a_row_change_no_verdict(row: PublishedRow) -> None:
    outcomes = read_outcomes([row], RESULTS / "protocol")
    page = report_page(outcomes, "longscan reproduce report", folder=RESULTS)
    assert "Of 1 rows with a recipe, for 1 figures: not run." in page
    assert "\n| parity/ma | -0.005 ± 0.006 | 10 | 100,000 |" in page
