"""benchmarks/loaders.py on a drawn task: its row, its table, and what it says where data are missing."""

import sys
from pathlib import Path

import pytest

from longscan.report import read_records

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import loaders

ROOT = Path(__file__).parents[2]


def run(monkeypatch: pytest.MonkeyPatch, out: Path, recipe: str) -> int:
    monkeypatch.setattr(sys, "argv", ["loaders.py", str(ROOT / "recipes" / recipe), "--count", "3", "--out", str(out)])
    return loaders.main()


def test_a_row_and_a_table(monkeypatch, tmp_path):
    out = tmp_path / "bench"
    assert run(monkeypatch, out, "aussm/parity.yaml") == 0
    (row,) = read_records(out / "loaders.jsonl")
    assert row["variant"] == "aussm/parity"
    assert len(row["runs"]) == 3
    assert min(row["runs"]) <= row["batch_ms"] <= max(row["runs"])
    assert "| aussm/parity | " in (out / "loaders.md").read_text("utf-8")


def test_updates_are_those_of_the_fastest_run_on_a_gpu():
    runs = [
        {"recipe": "recipes/a/b.yaml", "device": device, "seconds": seconds, "steps": 10}
        for device, seconds in (("NVIDIA H200", 3.0), ("NVIDIA H200", 2.0), ("cpu", 1.0))
    ]
    assert loaders.update_ms("a/b", runs) == pytest.approx(200)
    assert loaders.update_ms("a/c", runs) is None


def test_missing_data_are_a_line(monkeypatch, tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        run(monkeypatch, tmp_path / "bench", "afternoon/cifar10.yaml")
    assert "cifar10.yaml: task.data_dir: name the folder with CIFAR-10" in capsys.readouterr().err
