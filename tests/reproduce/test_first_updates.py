"""benchmarks/first_updates.py: the losses that it compares, and the record of a row that stops after a share of its updates."""

import json
import math
from pathlib import Path
from types import ModuleType

import pytest

from longscan.reproduce.rows import find_rows
from longscan.reproduce.runs import row_argv
from longscan.training.parsing import parse_settings
from scripts import load_script

FILE = Path(__file__).parents[2] / "benchmarks/first_updates.py"


@pytest.fixture(scope="module")
def first_updates() -> ModuleType:
    return load_script(FILE, "benchmark_first_updates")


@pytest.mark.parametrize(
    ("slope", "falls"), [(-1.0, True), (-0.01, False), (0.0, False), (1.0, False)], ids=["falls", "hardly falls", "flat", "rises"]
)
def test_a_loss_falls_if_its_tenths_differ_by_more_than_their_noise(first_updates: ModuleType, slope: float, falls: bool) -> None:
    found = first_updates.falls([slope * step / 100 + 0.1 * math.sin(2.0 * step) for step in range(200)])
    assert found["falls"] == falls
    assert found["first"] - found["last"] == pytest.approx(-1.8 * slope, abs=0.05)


def test_the_standard_error_is_that_of_a_difference_of_means(first_updates: ModuleType) -> None:
    found = first_updates.falls([1.0, 3.0, *[2.0] * 16, 0.0, 2.0])
    assert (found["first"], found["last"]) == (2.0, 1.0)
    assert found["standard_error"] == pytest.approx(math.sqrt((2.0 + 2.0) / 2))
    assert not found["falls"]


def test_a_row_stops_after_its_share_with_the_settings_it_has(first_updates: ModuleType, tmp_path: Path) -> None:
    settings = ["--training.batch_size=4", "--task.train_size=50", "--task.no_such_setting=1"]
    record = first_updates.run_row("aussm/table1/parity/ma", 0.0002, tmp_path / "run", settings)
    assert record["settings"] == settings[:2]
    assert (record["updates"], record["updates_published"], record["status"]) == (20, 100_000, "finished")
    assert {"first", "last", "standard_error", "falls"} <= set(record)
    log = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text("utf-8").splitlines()]
    assert [row["step"] for row in log] == list(range(1, 21))
    whole = parse_settings(row_argv(find_rows("aussm/table1/parity/ma")[0], 0)).training
    assert [row["lr"] for row in log] == [whole.learning_rate(step, 1.0) for step in range(20)]


def test_a_row_that_has_no_name_is_an_error(first_updates: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="did you mean aussm/table1/parity"):
        first_updates.run_row("aussm/table1/partiy/ma", 0.0002, tmp_path / "run", [])
