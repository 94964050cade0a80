"""benchmarks/state_tracking.py: its words do not change, and a run adds rows and continues."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from longscan.report.records import read_records

FILE = Path(__file__).parents[2] / "benchmarks/state_tracking.py"


@pytest.fixture(scope="module")
def tracking() -> ModuleType:
    spec = importlib.util.spec_from_file_location("benchmark_state_tracking", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("group", ["Z2", "Z5", "S3", "A4", "S4", "A5", "S5"])
def test_words_of_every_group_have_their_checksums(tracking: ModuleType, group: str) -> None:
    dfa = tracking.word_problem(group)
    assert dfa.size == {"Z2": 2, "Z5": 5, "S3": 6, "A4": 12, "S4": 24, "A5": 60, "S5": 120}[group]


def test_other_words_are_an_error(tracking: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tracking.CHECKSUMS["S3"], "test", "0")
    with pytest.raises(RuntimeError, match=r"the words of S3, test, must have the checksum 0, got [0-9a-f]{64}"):
        tracking.word_problem("S3")


def test_words_differ_between_splits_seeds_and_numbers_and_extend_shorter_ones(tracking: ModuleType) -> None:
    words = tracking.random_words(2, "train", 0, np.arange(4), 100)
    assert np.array_equal(words[:, :7], tracking.random_words(2, "train", 0, np.arange(4), 7))
    assert np.array_equal(words[2:], tracking.random_words(2, "train", 0, np.arange(2, 4), 100))
    others = [*tracking.random_words(2, "train", 1, np.arange(4), 100), *tracking.random_words(2, "test", 0, np.arange(4), 100)]
    assert len({word.tobytes() for word in [*words, *others]}) == 12
    assert 0.4 < words.mean() < 0.6


def test_a_run_adds_a_row_for_each_model_and_trains_none_twice(
    tracking: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "automata" / "rows.jsonl"
    small = "--groups Z2 --seeds 0 --steps 2 --length 4 --longest 12 --width 4 --batch 2 --every 1 --models pdssm"
    for models in ([], ["lru"]):
        monkeypatch.setattr(sys, "argv", ["state_tracking.py", "--out", str(out), *small.split(), *models])
        assert tracking.main() == 0
    assert capsys.readouterr().out.count("update 2: loss") == 2
    first, second = read_records(out)
    assert (first["blocks"], second["blocks"]) == ("pdssm", "lru")
    assert set(first["states"]) == {"8", "12"}
    assert first["checksum"] == tracking.CHECKSUMS["Z2"]["test"]
