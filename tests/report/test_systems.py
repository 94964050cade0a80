"""benchmarks/systems.py at tiny sizes: its rows, its tables and curves, and what it says of that which could not be measured."""

import sys
from pathlib import Path

import pytest
import torch

from longscan.report import read_records
from longscan.report.records import check_record

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import attempts
import systems
import systems_page


def run(monkeypatch: pytest.MonkeyPatch, out: Path, *words: str) -> str:
    monkeypatch.setattr(sys, "argv", ["systems.py", "--quick", "--out", str(out), *words])
    assert systems.main() == 0
    return (out / "systems.md").read_text("utf-8")


@pytest.mark.parametrize("system", systems.SYSTEMS, ids=lambda system: system.name)
def test_systems_are_of_one_size(system):
    assert system.sizes[0] == pytest.approx(600_000, rel=0.04)


def test_variants_are_those_of_the_thesis():
    sizes = {system.name: system.sizes[0] for system in systems.VARIANTS}
    assert sizes["S6"] == sizes["S6, recompute"] == pytest.approx(587_000, rel=0.01)  # Table 3
    assert sizes["S6, rotary, learned"] - sizes["S6, rotary, fixed"] == 696  # section 14.3.2
    assert sizes["S6, bidirectional"] == sizes["S6, placebo"]
    assert sizes["S6, speed-matched"] == pytest.approx(1_200_000, rel=0.01)  # Table 6


def test_everything_is_measured_and_drawn(monkeypatch, tmp_path):
    out = tmp_path / "bench"
    page = run(monkeypatch, out, "--only", "S5", "Mamba-", "S6", "GRU", "attention")
    rows = read_records(out / "systems.jsonl")
    assert {row["figure"] for row in rows} == {"length", "overhead", "heads"}
    refused = {row["variant"] for row in rows if "reason" in row}
    assert refused <= {"attention, cuDNN", "attention, memory-efficient"}, "kernels for a GPU"
    for row in rows:
        timed = row["forward_ms"] is not None and row["forward_backward_ms"] is not None
        assert timed != ("reason" in row)
    kernels = {row["variant"]: " ".join(row.get("kernels", ())) for row in rows if row["figure"] == "heads"}
    assert "flash" in kernels["attention"]
    assert "flash" in kernels["attention layer"]
    assert "flash" not in kernels["attention, no fused kernel"]
    assert (out / "systems.png").stat().st_size > 10_000
    for row in rows:
        assert f"| {row['variant']} |" in page
    assert "9 % faster, 27 % less memory" in page
    assert len(next(row["runs"] for row in rows if row["figure"] == "overhead")) == 2


def test_a_limit_leaves_out_what_it_names_and_pages_are_made_anew(monkeypatch, tmp_path, capsys):
    words = ("--parts", "overhead", "length", "--only", "S5", "S6, placebo")
    page = run(monkeypatch, tmp_path / "bench", *words)
    capsys.readouterr()
    (tmp_path / "bench" / "systems.md").unlink()
    assert run(monkeypatch, tmp_path / "bench", *words, "--limit", "0") == page
    assert capsys.readouterr().out.splitlines() == ["--limit leaves out the overhead", "--limit leaves out S5 from L 8"]


def test_what_is_too_much_has_a_row_and_a_reason(monkeypatch, tmp_path):
    def full(system, batch, length):
        if length > 8:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")
        return {"forward_ms": 1.0, "forward_backward_ms": 3000.0 if system.name == "S5" else 3.0, "peak_mib": 1.0}

    monkeypatch.setattr(systems, "measure", full)
    page = run(monkeypatch, tmp_path / "bench", "--parts", "length", "--only", "S5", "LRU")
    assert page.count("| 3,000 | over 4 s a step |") == 1
    assert page.count("| 3 | out of memory |") == 1
    rows = read_records(tmp_path / "bench" / "systems.jsonl")
    assert [row.get("reason") for row in rows] == [None, None, "over 4 s a step", "out of memory"]
    assert rows[2]["forward_backward_ms"] is None


def test_a_failure_is_a_reason_and_a_slip_is_not():
    def fail(error: Exception) -> None:
        raise error

    assert attempts.attempt(lambda: fail(RuntimeError("no kernel. More of it"))) == {"reason": "failed: no kernel"}
    with pytest.raises(KeyError):
        attempts.attempt(lambda: fail(KeyError("forward_ms")))


def test_the_last_row_of_a_measurement_counts(monkeypatch, tmp_path):
    run(monkeypatch, tmp_path / "bench", "--parts", "length", "--only", "LRU")
    run(monkeypatch, tmp_path / "bench", "--parts", "length", "--only", "LRU")
    rows = read_records(tmp_path / "bench" / "systems.jsonl")
    assert len(rows) == 4
    assert systems_page.latest(tmp_path / "bench" / "systems.jsonl", "length") == rows[2:]
    for row in rows:
        check_record("bench", row)
