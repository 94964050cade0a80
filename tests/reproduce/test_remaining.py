"""The time that is left of the trainings of the state-tracking benchmark."""

from pathlib import Path

import pytest

from longscan.reproduce import remaining, state_tracking
from longscan.reproduce.remaining import RemainingTime, RunProgress, TrainingLog, cpu_seconds, last_update
from longscan.reproduce.state_tracking import MODELS, Planned
from longscan.reproduce.word_problems import GROUPS


def test_the_last_update_is_found_at_the_end_of_a_long_log(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    assert last_update(log) == 0
    log.write_text("a warning\n")
    assert last_update(log) == 0
    log.write_text("".join(f"update {n}: loss 1.0, {n} s\n" for n in range(1000)) + "an error about update 7\n")
    assert last_update(log) == 999


def test_slow_trainings_count_by_their_seconds_and_the_time_runs_down(tmp_path: Path) -> None:
    """100 updates of a second and 100 of nine; the fast training, which is first, makes one in two seconds."""
    fast, slow = TrainingLog(tmp_path / "fast.txt", 100, 1.0), TrainingLog(tmp_path / "slow.txt", 100, 9.0)
    fast.log.write_text("update 50: loss 1.0, 5 s\n")  # of an earlier run, which says nothing about the speed of this one
    now = 1000.0
    rest = RemainingTime([fast, slow], lambda: now)
    assert rest.estimate() == RunProgress(50, 200, None)
    fast.log.write_text("update 60: loss 1.0, 5 s\n")
    assert rest.estimate() == RunProgress(60, 200, None)
    now += 20
    fast.log.write_text("update 70: loss 1.0, 5 s\n")
    assert rest.estimate() == RunProgress(70, 200, pytest.approx(2 * (30 + 900)))
    now += 60
    assert rest.estimate() == RunProgress(70, 200, pytest.approx(2 * (30 + 900) - 60))
    now += 10_000
    assert rest.estimate().seconds == 0
    slow.log.write_text("update 200: loss 1.0, 5 s\n")  # more than there are: of a longer training in the same folder
    assert rest.estimate().made == 170


@pytest.mark.parametrize("group", list(GROUPS))
def test_every_model_of_this_package_has_a_rate(group: str) -> None:
    for model, entry in MODELS.items():
        assert (Planned(group, model, 0, 1).cpu_seconds > 0) == (entry.package is None)


def test_the_cost_is_spread_over_the_cores_that_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_tracking.os, "cpu_count", lambda: 2)
    monkeypatch.setitem(remaining.CPU_SECONDS, "gru", 0.1)
    monkeypatch.setitem(remaining.PDSSM_CPU_SECONDS, 120, 20.0)
    plan = [Planned("S3", "gru", seed, 2400) for seed in range(3)]
    assert "about 6 min 00 s on 2 cores of" in state_tracking._cost_text(plan)
    assert "about 4 min 00 s on 1 core of" in state_tracking._cost_text(plan[:1])
    slow = Planned("S4", "s4d", 0, 2400)
    monkeypatch.setitem(remaining.CPU_SECONDS, "s4d", 0.5)
    assert "about 20 min 00 s on 2 cores of" in state_tracking._cost_text([*plan[:1], slow]), "a training has one core"
    assert "about 13 h 20 min on 1 core of" in state_tracking._cost_text([Planned("S5", "pdssm", 0, 2400)])
    assert cpu_seconds("fla_deltanet", 16) == 0
