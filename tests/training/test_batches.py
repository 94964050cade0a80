"""The length curriculum, the late range of lengths, and prefetched batches of a schedule that changes."""

from typing import Any

import pytest
import torch

from longscan.training import CurriculumSettings, LateLengthSettings
from longscan.training import batches as module
from longscan.training.batches import LengthSchedule, prefetch_batches


def test_schedule_without_settings_does_not_change_the_task(tiny: Any) -> None:
    settings = tiny()
    schedule = LengthSchedule(settings)
    assert schedule.task(0) is settings.task
    assert not schedule.needs_score(100)


def test_curriculum_grows_if_the_score_exceeds_the_threshold(tiny: Any) -> None:
    schedule = LengthSchedule(tiny(curriculum=CurriculumSettings(start=4, end=7, increment=2, threshold=0.9, every=10)))
    assert schedule.task(0).train_lengths == (3, 4)
    assert [schedule.needs_score(done) for done in (9, 10, 11, 20)] == [False, True, False, True]
    for score, longest in ((0.9, 4), (0.91, 6), (0.5, 6), (1.0, 7)):
        schedule.update(score)
        assert schedule.task(0).train_lengths == (3, longest)
    assert not schedule.needs_score(10)


def test_late_lengths_are_spread_evenly_over_the_late_steps(tiny: Any) -> None:
    schedule = LengthSchedule(tiny(steps=100, late_lengths=LateLengthSettings(share=0.25, start=0.6, shortest=6, longest=12)))
    late = [step for step in range(100) if schedule.task(step).train_lengths == (6, 12)]
    assert late == list(range(63, 100, 4))


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_prefetched_batches_follow_the_schedule_at_the_time_of_use(tiny: Any, depth: int) -> None:
    late = LateLengthSettings(share=0.5, start=0.5, shortest=6, longest=12)
    settings = tiny(steps=12, curriculum=CurriculumSettings(start=4, end=8), late_lengths=late)
    schedule = LengthSchedule(settings)
    batches = prefetch_batches(schedule.task, range(12), 8, 5, depth=depth)
    for step in range(12):
        if step in (3, 4, 8):
            schedule.update(1.0)
        expected = schedule.task(step).batch("train", step, 8, 5)
        batch = next(batches)
        assert torch.equal(batch.inputs, expected.inputs)
        assert torch.equal(batch.targets, expected.targets)
    assert next(batches, None) is None


def test_a_depth_of_zero_starts_no_thread(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*_: Any, **__: Any) -> None:
        raise AssertionError("no thread is needed")

    monkeypatch.setattr(module, "ThreadPoolExecutor", start)
    assert len(list(prefetch_batches(LengthSchedule(tiny()).task, range(3), 8, 5, depth=0))) == 3
    with pytest.raises(AssertionError, match="no thread"):
        next(prefetch_batches(LengthSchedule(tiny()).task, range(3), 8, 5, depth=1))


def test_error_in_a_prefetched_batch_is_raised(tiny: Any) -> None:
    schedule = LengthSchedule(tiny())
    with pytest.raises(ValueError, match="batch_size"):
        next(prefetch_batches(schedule.task, range(4), 0, 0, depth=2))


@pytest.mark.parametrize("depth", [0, 1, 6])
def test_each_batch_is_used_several_times_in_a_row(tiny: Any, depth: int) -> None:
    schedule = LengthSchedule(tiny())
    found = list(prefetch_batches(schedule.task, range(2, 12), 8, 5, depth=depth, repeats=4))
    expected = [schedule.task(0).batch("train", step // 4, 8, 5).inputs for step in range(2, 12)]
    assert all(torch.equal(batch.inputs, inputs) for batch, inputs in zip(found, expected, strict=True))
    assert not torch.equal(expected[1], expected[2])


def test_a_repeated_batch_is_made_again_when_the_curriculum_grows(tiny: Any) -> None:
    schedule = LengthSchedule(tiny(curriculum=CurriculumSettings(start=4, end=8)))
    batches = prefetch_batches(schedule.task, range(4), 8, 5, depth=3, repeats=4)
    for step in range(4):
        if step == 2:
            schedule.update(1.0)
        assert torch.equal(next(batches).inputs, schedule.task(step).batch("train", 0, 8, 5).inputs)
