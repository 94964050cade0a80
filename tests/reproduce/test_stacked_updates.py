"""benchmarks/stacked_updates.py: the updates of a stack are timed, and its parameters are those before the timed ones."""

from dataclasses import replace
from pathlib import Path

import pytest

from longscan.reproduce.rows import find_rows
from longscan.reproduce.runs import row_settings
from scripts import load_script

FILE = Path(__file__).parents[2] / "benchmarks/stacked_updates.py"


def test_updates_of_all_seeds_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = load_script(FILE, "benchmark_stacked_updates")
    monkeypatch.setattr(script, "WARM_UP", 1)
    settings = row_settings(find_rows("aussm/table1", ["parity/ma"])[0])
    training = replace(settings.training, device="cpu", batch_size=4, capture=False, trackers=[])
    settings = replace(settings, training=training)
    measured = [
        script.measure(settings, 2, on_device=False, splits=False, updates=count, folder=tmp_path / str(count))
        for count in (1, 2)
    ]
    assert [row["updates"] for row, _ in measured] == [2, 4]
    assert all(row["updates_per_second"] > 0 for row, _ in measured)
    (_, one), (_, other) = measured
    assert {value.shape[0] for value in one.values()} == {2}
    assert all(one[key].equal(other[key]) for key in one), "the parameters after the same first update"
