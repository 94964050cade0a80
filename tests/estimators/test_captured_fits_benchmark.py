"""benchmarks/captured_fits.py: fits of both ways are timed and have equal scores."""

import json
from pathlib import Path

from longscan.estimators import fitting
from scripts import load_script

FILE = Path(__file__).parents[2] / "benchmarks/captured_fits.py"


def test_fits_take_turns_and_agree(tmp_path, monkeypatch):
    captures = []
    monkeypatch.setattr(fitting, "replays_updates", lambda device: captures.append(device))  # None: no capture
    out = tmp_path / "rows.jsonl"
    load_script(FILE, "benchmark_captured_fits").main(["--quick", "--spec", "mamba", "--device", "cpu", "--out", str(out)])
    rows = [json.loads(line) for line in out.read_text("utf-8").splitlines()]
    assert [row["captured"] for row in rows] == [True, False]
    assert captures, "the default of a fit is asked where updates may be captured"
    for row in rows:
        assert row["updates"] == 4
        assert row["replays"] == 0, "on a CPU"
        assert 0 < row["seconds_per_update"] < row["fit_seconds"]
    assert rows[0]["accuracy"] == rows[1]["accuracy"]
    assert rows[0]["loss"] == rows[1]["loss"]


def test_series_of_both_classes_differ_by_the_seed():
    script = load_script(FILE, "benchmark_captured_fits")
    X, y = script.make_series(4, 16, seed=0)
    assert X.shape == (4, 16, 3)
    assert y.tolist() == [0, 1, 0, 1]
    assert (script.make_series(4, 16, seed=1)[0] != X).all()
