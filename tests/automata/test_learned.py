"""benchmarks/learned.py with tiny settings: its rows, its figure, and that an interrupted run resumes."""

import math
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from longscan.report.records import read_records
from scripts import load_script

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks"
TINY = {"steps": 6, "width": 8, "states": 2, "batch": 4, "words": 6, "longest": 64, "every": 4, "seeds": 2}


@pytest.fixture(scope="module")
def learned() -> ModuleType:
    return load_script(FOLDER / "learned.py", "benchmark_learned")


def test_depths_surround_the_derived_length(learned):
    depths = {group: (learned.derived_length(group), learned.depths(group)) for group in learned.GROUPS}
    assert depths == {
        "Z2": (1, (0, 1, 2)),
        "Z5": (1, (0, 1, 2)),
        "S3": (2, (1, 2, 3)),
        "A4": (2, (1, 2, 3)),
        "S4": (3, (2, 3, 4)),
        "A5": (None, (1, 2, 4)),
    }


@pytest.mark.parametrize("options", [[], ["--start", "learned", "--smoothing", "0.2", "--average", "0.5", "--name", "helped"]])
def test_resumed_run_equals_an_uninterrupted_run(learned, tmp_path, monkeypatch, capsys, options):
    sizes = [text for name, value in TINY.items() for text in (f"--{name}", str(value))] + options
    stem = options[-1] if options else "learned"

    def run(name, *argv):
        out = tmp_path / name / "automata"
        monkeypatch.setattr(sys, "argv", ["learned.py", "--out", str(out), "--only", "S3", "--depths", "1", *sizes, *argv])
        assert learned.main() == 0
        return out

    whole = run("whole")
    for number in range(5):  # each call takes at least one step
        sliced = run("sliced", "--limit", "0")
        assert (sliced / f"{stem}.safetensors").stat().st_size < 100_000
        assert "the same command resumes" in capsys.readouterr().out, number
    with pytest.raises(ValueError, match="use its settings, or move the file"):
        run("sliced", "--width", "16")
    run("sliced")
    assert {path.name for path in sliced.iterdir()} == {f"{stem}.jsonl", f"{stem}.png"}
    rows, resumed_rows = (read_records(folder / f"{stem}.jsonl") for folder in (whole, sliced))
    for row, resumed_row in zip(rows, resumed_rows, strict=True):
        for key in ("case", "change", "seed", "blocks", "derived_length", "elements", "states", "exact"):
            assert row[key] == resumed_row[key], key
    assert [row["change"] for row in rows] == ["compiled", "learned", "learned"]
    assert rows[0]["exact"]["64"] == rows[0]["states"]["10"] == 1
    assert list(rows[1]["states"]) == ["10", "20", "40", "64"]
    assert run("whole") == whole
    assert len(read_records(whole / f"{stem}.jsonl")) == 3


def test_average_is_that_of_the_weights_of_all_steps(learned, tmp_path):
    setting = learned.Setting("S3", 1, 6, 8, 2, 4, 3e-3, "learned", 0.2, 0.5)
    whole, sliced = (learned.Learning(setting, 2, tmp_path / name) for name in ("whole", "sliced"))
    means: dict[str, torch.Tensor] = {}
    for _ in range(setting.steps):
        whole.run(0.0, 100)  # one step
        for name, p in whole.model.named_parameters():
            means[name] = torch.lerp(means.get(name, p.detach()), p.detach(), 0.5)
    torch.testing.assert_close(whole.average.weights, means)
    sliced.run(0.0, 100)
    sliced = learned.Learning(setting, 2, tmp_path / "sliced")
    assert sliced.run(math.inf, 100)
    torch.testing.assert_close(sliced.average.weights, means)
    scored_weights = {}

    def record_weights(model, _):
        scored_weights.update({name: p.detach().clone() for name, p in model.named_parameters()})

    whole.average.model.register_forward_pre_hook(record_weights)
    assert any(not torch.equal(means[name], p) for name, p in whole.model.named_parameters())
    list(whole.rows(2, 10))
    torch.testing.assert_close(scored_weights, means)


def test_smoothing_changes_the_loss(learned, tmp_path):
    losses = []
    for smoothing in (0.0, 0.2):
        learning = learned.Learning(learned.Setting("S3", 1, 6, 8, 2, 4, 3e-3, "zero", smoothing, 0.0), 2, tmp_path / "none")
        losses.append(learning.compute_loss(learning.batch(0))[1][1])
    assert (losses[0] != losses[1]).all()


def test_run_with_other_settings_in_the_same_file_raises(learned, tmp_path, monkeypatch):
    argv = [text for name, value in TINY.items() for text in (f"--{name}", str(value))]
    argv = ["learned.py", "--out", str(tmp_path / "automata"), "--only", "Z2", "--depths", "0", *argv]
    monkeypatch.setattr(sys, "argv", argv)
    assert learned.main() == 0
    monkeypatch.setattr(sys, "argv", [*argv, "--start", "learned"])
    with pytest.raises(ValueError, match=r"must have rows of the settings .*, got .*; choose another --name"):
        learned.main()


def test_row_of_a_non_solvable_group_has_the_reason(learned):
    row = learned.compiled_row("A5", 4, 10)
    assert "perfect group of order 60" in row["refused"]
    assert "states" not in row


def test_page_has_the_table_of_the_records(learned):
    rows, helped_rows = (read_records(ROOT / f"results/automata/{name}.jsonl") for name in ("learned", "helped"))
    table = learned.table(rows, helped_rows)
    assert table in (ROOT / "docs/automata.md").read_text("utf-8"), "run: python benchmarks/learned.py --table"
    assert len(table.splitlines()) == 2 + 6 * 3
    depths = {group: set(learned.depths(group)) for group in learned.GROUPS}
    for group, layer_counts in depths.items():
        seeds = [(row["layers"], row["seed"]) for row in rows if (row["case"], row["change"]) == (group, "learned")]
        assert sorted(seeds) == [(layers, seed) for layers in sorted(layer_counts) for seed in range(5)]
    assert not any(row["exact"]["1024"] for row in rows if row["change"] == "learned")
    assert all(row["exact"]["1024"] == 1 for row in rows if row["change"] == "compiled" and "exact" in row)
