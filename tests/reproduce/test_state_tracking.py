"""The state-tracking benchmark: its words do not change, and a run adds rows, continues and is reported."""

import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from filelock import FileLock

from fork_server import running_job
from longscan import automata
from longscan._errors import SettingError
from longscan.cli import main
from longscan.report.records import read_records
from longscan.reproduce import state_tracking, word_problems
from longscan.reproduce.state_tracking import (
    MAX_PARAMETERS,
    MODELS,
    RECORDS,
    Planned,
    Training,
    _command,
    _error_line,
    find_targets,
    read_rows,
    report_lines,
    train_one,
)
from longscan.reproduce.word_problems import random_words, word_problem
from longscan.training import processes
from longscan.training.processes import Ended

ORDERS = {"Z2": 2, "Z5": 5, "S3": 6, "A4": 12, "S4": 24, "A5": 60, "S5": 120}
OWN = [name for name, entry in MODELS.items() if entry.package is None]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainings of two words of four letters, tested on three words."""
    monkeypatch.setattr(state_tracking, "BATCH_SIZE", 2)
    monkeypatch.setattr(state_tracking, "TRAIN_LENGTH", 4)
    monkeypatch.setattr(state_tracking, "scored_words", lambda dfa: random_words(len(dfa.alphabet), "test", 0, np.arange(3), 512))


@pytest.mark.parametrize("group", list(ORDERS))
def test_words_of_every_group_have_their_checksums(group: str) -> None:
    assert word_problem(group).size == ORDERS[group]


def test_other_words_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(word_problems.CHECKSUMS["S3"], "test", "0")
    with pytest.raises(RuntimeError, match=r"the words of S3, test, must have the checksum 0, got [0-9a-f]{64}"):
        word_problem("S3")


def test_words_differ_between_splits_seeds_and_numbers_and_extend_shorter_ones() -> None:
    words = random_words(2, "train", 0, np.arange(4), 100)
    assert np.array_equal(words[:, :7], random_words(2, "train", 0, np.arange(4), 7))
    assert np.array_equal(words[2:], random_words(2, "train", 0, np.arange(2, 4), 100))
    others = [*random_words(2, "train", 1, np.arange(4), 100), *random_words(2, "test", 0, np.arange(4), 100)]
    assert len({word.tobytes() for word in [*words, *others]}) == 12
    assert 0.4 < words.mean() < 0.6


@pytest.mark.parametrize(
    ("argument", "value", "needed"),
    [
        ("split", "valid", "one of train, test, got 'valid'"),
        ("seed", 4096, "from 0 to 4,095, got 4,096"),
        ("seed", -1, "from 0 to 4,095, got -1"),
        ("numbers", np.array([0, 2**32]), "from 0 to 4,294,967,295, got 4,294,967,296"),
        ("numbers", np.array([-1, 3]), "from 0 to 4,294,967,295, got -1"),
        ("length", 2**16 + 1, "from 0 to 65,536, got 65,537"),
    ],
)
def test_words_that_would_be_those_of_other_arguments_are_refused(argument: str, value: object, needed: str) -> None:
    arguments: dict[str, Any] = {"split": "train", "seed": 4095, "numbers": np.array([0, 2**32 - 1]), "length": 3}
    assert random_words(2, **arguments).shape == (2, 3)
    with pytest.raises(ValueError, match=f"^`{argument}` must be {needed}$"):
        random_words(2, **{**arguments, argument: value})


@pytest.mark.parametrize(("setting", "most"), [("seeds", 4096), ("updates", 2**32 // state_tracking.BATCH_SIZE)])
def test_more_seeds_or_updates_than_there_are_words_for_are_refused(setting: str, most: int, tmp_path: Path) -> None:
    needed = f"^`--{setting}` must be at most {most:,}, as there are no more words, got {most + 1}$"
    with pytest.raises(SettingError, match=needed):
        state_tracking.run([], tmp_path, **{setting: most + 1})
    assert state_tracking.run([], tmp_path, **{setting: most}) == []


@pytest.mark.parametrize("model", OWN)
def test_models_keep_the_budget_of_parameters_for_the_largest_group(model: str) -> None:
    with torch.device("meta"):
        built = MODELS[model].build(4, ORDERS["S5"])
    assert sum(p.numel() for p in built.parameters()) <= MAX_PARAMETERS


@pytest.mark.usefixtures("small")
def test_a_stopped_training_continues_to_the_same_weights(tmp_path: Path) -> None:
    whole = Training("S3", "gru", 1, 6, tmp_path / "whole.pt", torch.device("cpu"))
    row = whole.run()
    file = tmp_path / "stopped.pt"
    stopped = Training("S3", "gru", 1, 6, file, torch.device("cpu"))
    for step in range(3):
        stopped.engine.update(stopped.batch(step))
    stopped.save()
    again = Training("S3", "gru", 1, 6, file, torch.device("cpu"))
    assert again.engine.step == 3
    continued = again.run()
    assert row is not None
    assert continued is not None
    for name, values in whole.model.state_dict().items():
        torch.testing.assert_close(again.model.state_dict()[name], values, rtol=0, atol=0)
    assert continued["states"] == row["states"]
    assert set(row["states"]) == {str(n) for n in word_problems.LENGTHS}


@pytest.mark.usefixtures("small")
def test_a_signal_saves_the_training(tmp_path: Path) -> None:
    training = Training("Z2", "gru", 0, 6, tmp_path / "seed_0.pt", torch.device("cpu"))
    (watch,) = training.engine.callbacks
    watch.signalled = True  # type: ignore[attr-defined]
    assert training.run() is None
    assert Training("Z2", "gru", 0, 6, tmp_path / "seed_0.pt", torch.device("cpu")).engine.step == 1


@pytest.mark.usefixtures("small")
def test_a_loss_that_is_not_finite_is_recorded(tmp_path: Path) -> None:
    training = Training("Z2", "gru", 0, 2, tmp_path / "seed_0.pt", torch.device("cpu"))
    with torch.no_grad():
        next(training.model.parameters()).fill_(float("nan"))
    row = training.run()
    assert row is not None
    assert "not finite" in row["refused"]
    assert "states" not in row
    assert "1 failed" in "\n".join(report_lines([row]))


def test_a_run_adds_the_compiled_models_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        argv = ["reproduce", "state-tracking", "--rows", "S3/compiled", "A5/compiled", "--out", str(tmp_path)]
        assert main(argv) == 0
    solvable, other = read_records(tmp_path / RECORDS)
    assert (solvable["derived_length"], solvable["layers"], solvable["exact"]["512"]) == (2, 2, 1.0)
    assert solvable["certificate"].startswith("certified for words of every length")
    assert "A5" in other["refused"]
    assert capsys.readouterr().out.count("state-tracking/S3/compiled: certified") == 1

    assert main(["reproduce", "report", str(tmp_path), "--out", str(tmp_path / "page.md")]) == 0
    page = (tmp_path / "page.md").read_text()
    (line,) = [line for line in page.splitlines() if line.startswith("| S3 | compiled")]
    assert line.endswith("| 1.000 | 1.000 | 1.000 | 1.000 |")
    assert "| A5 | compiled: none" in page
    assert "Not run: `pdssm` (all groups); " in page
    assert page.startswith("# State tracking\n")
    assert "aussm/table1" not in page


@pytest.mark.usefixtures("forked_jobs")
def test_a_process_trains_a_model_and_its_row_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["reproduce", "state-tracking/Z2/gru", "--seeds", "1", "--updates", "1", "--out", str(tmp_path)]
    assert main(argv) == 0
    (row,) = read_records(tmp_path / RECORDS)
    assert (row["case"], row["blocks"], row["steps"], row["seed"]) == ("Z2", "gru", 1, 0)
    assert row["words"] == [[500, 512]]
    assert row["command"] == "longscan reproduce state-tracking/Z2/gru --updates 1"
    first, where, *_, last, _ = capsys.readouterr().out.splitlines()
    assert first.startswith("models to train: 1, at most ")
    assert str(tmp_path / "state-tracking/Z2/gru/1/seed_0.txt") in where
    assert "right states" in last
    assert any(line.startswith("| Z2 | `gru` | ") for line in report_lines([row]))
    monkeypatch.setattr(sys, "executable", "no such program")  # nothing is trained twice
    assert main(argv) == 0
    assert len(read_records(tmp_path / RECORDS)) == 1


@pytest.mark.parametrize(("status", "was_asked", "fails"), [(0, False, False), (3, False, True), (-9, True, False)])
def test_a_training_whose_process_fails_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, was_asked: bool, fails: bool
) -> None:
    def run_jobs(jobs: Any, *others: Any) -> None:
        jobs[0].log.parent.mkdir(parents=True)
        jobs[0].log.write_text("last\n")
        others[3](Ended(jobs[0].name, status, 1.0, was_asked))  # on_end

    monkeypatch.setattr(state_tracking, "run_jobs", run_jobs)
    failed: list[str] = []
    (left,) = state_tracking.run([("Z2", "gru")], tmp_path, seeds=1, on_failure=failed.append)
    assert failed == ([left.name] if fails else [])


def test_the_table_has_the_range_of_seeds_that_differ() -> None:
    states = [{"40": 1.0, "128": share, "512": 0.25} for share in (0.5, 0.75)]
    shared = {"case": "Z2", "blocks": "gru", "steps": 5, "parameters": 7, "device": "cpu", "exact": {"512": 0.0}}
    page = report_lines([{**shared, "seed": seed, "states": shares} for seed, shares in enumerate(states)])
    assert "| Z2 | `gru` | 7 | 5 | 2 | 1.000 | 0.625 (0.500 to 0.750) | 0.250 | 0.000 |" in page


def test_the_line_of_an_error_is_found_above_advice() -> None:
    text = "Traceback\n  File\ntorch.AcceleratorError: CUDA error: out of memory\nFor debugging consider passing\n\n"
    assert _error_line(text) == "torch.AcceleratorError: CUDA error: out of memory"
    assert _error_line("killed\n\n") == "killed"
    assert _error_line("") == ""


def test_targets_name_groups_models_or_both() -> None:
    assert len(find_targets("state-tracking")) == 7 * (len(MODELS) + 1)
    assert find_targets("state-tracking/A5/pdssm") == [("A5", "pdssm")]
    assert find_targets("state-tracking", ["A5/gru", "pdssm"])[:2] == [("A5", "gru"), ("Z2", "pdssm")]
    assert find_targets("state-tracking/S3", ["gru"]) == [("S3", "gru")]
    with pytest.raises(ValueError, match=r"did you mean pdssm\?"):
        find_targets("state-tracking", ["pdsm"])


def test_a_missing_package_leaves_its_models_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def nowhere(name: str) -> Any:
        assert name == "fla"

    monkeypatch.setattr(state_tracking, "find_spec", nowhere)
    rows = ["S3/fla_deltaproduct", "Z2/fla_deltaproduct"]
    assert main(["reproduce", "state-tracking", "--rows", *rows, "--out", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "left out, as the package flash-linear-attention is not installed: fla_deltaproduct"
    assert sum("left out" in line for line in lines) == 1


def test_options_of_papers_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "state-tracking", "--pack", str(tmp_path)]) == 2
    assert "`--pack` must be left out with `longscan reproduce state-tracking`" in capsys.readouterr().err
    assert main(["reproduce", "aussm/table1", "--updates", "3"]) == 2
    assert "`--updates` must be left out" in capsys.readouterr().err


def test_compiled_depth_is_that_of_the_analysis() -> None:
    row = state_tracking.compiled_row("A4")
    (holonomy,) = automata.analyse(word_problem("A4")).holonomy
    assert row["derived_length"] == row["layers"] == len(holonomy.series) == 2


@pytest.mark.usefixtures("small")
def test_a_training_waits_for_the_process_that_still_trains_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its row, if it has added one meanwhile, is not added again."""
    planned = Planned("Z2", "gru", 0, 1)
    argument = json.dumps([*planned, str(tmp_path)])
    held = FileLock(planned.path(tmp_path, ".lock"), thread_local=False)
    held.acquire()
    monkeypatch.setattr(processes, "GRACE", 0.1)
    assert train_one(argument) == 2
    line = f"`--out` must be a run that no other process trains, got {planned.path(tmp_path, '.pt')}"
    assert capsys.readouterr().err == f"{line}\n"
    assert read_rows(tmp_path) == []
    held.release()
    for _ in range(2):
        assert train_one(argument) == 0
        assert len(read_rows(tmp_path)) == 1


def test_a_training_whose_parent_is_killed_saves_its_state(tmp_path: Path) -> None:
    planned = Planned("Z2", "gru", 0, 1_000_000)
    file, log = (planned.path(tmp_path, suffix) for suffix in (".pt", ".txt"))
    program, option, code, *arguments = _command(planned, tmp_path, 1.0)
    code = f"from longscan.reproduce import state_tracking\nstate_tracking.PRINT_SECONDS = 0.0\n{code}"
    with running_job([program, option, code, *arguments], log) as process:
        while "update" not in log.read_text():
            assert process.poll() is None, log.read_text()
            time.sleep(0.1)
        assert not file.exists()
        process.stdin.close()
        assert process.wait(60.0) == 128 + signal.SIGINT
    assert file.exists()
